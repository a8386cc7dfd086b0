//! `ropewalk key`: makes the key files by which nodes prove that they belong to a cluster.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use ropewalk_net::auth::{Authority, Keyring, NodeName, PskKeys};
use ropewalk_net::security::{random_secret, read_key_file};

use crate::report::say;

const DAY_SECONDS: u64 = 86_400;

/// The actions on keys.
#[derive(Debug, clap::Subcommand)]
pub enum KeyCommand {
    /// Makes a new key of a cluster, in a file that only you can read.
    #[command(after_help = "Examples:
  ropewalk key create /etc/ropewalk/key            one key for all nodes
  ropewalk key create --signing /root/rope.sign    a key that signs nodes' keys

With one key for all nodes, copy the file to each node (mode 600), and name it by --key-file. \
Each process that can read it is a member. With a signing key, each node gets a key of its own by \
'ropewalk key sign'; keep the signing key on no node. Keys prove who begins a session. They do not \
protect the bytes on the network yet.")]
    Create {
        /// Write the key to this file, which does not exist yet.
        file: PathBuf,
        /// Make a key that signs the keys of nodes.
        #[arg(long)]
        signing: bool,
    },
    /// Derives the key of one node from a cluster's key: the node can call members, and nobody else
    /// can act for it but members.
    #[command(after_help = "Example:
  ropewalk key derive /etc/ropewalk/key --node c17 c17.key")]
    Derive {
        /// The file with the cluster's key.
        from: PathBuf,
        /// The name of the node: a-z, 0-9, '.', '-' and '_'.
        #[arg(long, value_name = "NAME", value_parser = node_name)]
        node: NodeName,
        /// Write the node's key to this file, which does not exist yet.
        file: PathBuf,
    },
    /// Makes the key of one node, and signs it for some days.
    #[command(after_help = "Examples:
  ropewalk key sign rope.sign --node n1 n1.key
  ropewalk key sign rope.sign --node n1 n1.key --days 7
  ropewalk key sign rope.sign --node n1 n1.key --epoch 3 --refuse-below 3

To revoke keys, sign those of the nodes that stay with a higher epoch, and have them refuse \
earlier ones by --refuse-below.")]
    Sign {
        /// The file with the signing key.
        from: PathBuf,
        /// The name of the node: a-z, 0-9, '.', '-' and '_'.
        #[arg(long, value_name = "NAME", value_parser = node_name)]
        node: NodeName,
        /// Write the node's key to this file, which does not exist yet.
        file: PathBuf,
        /// The key holds for so many days.
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3650))]
        days: u64,
        /// The epoch of the key.
        #[arg(long, default_value_t = 1)]
        epoch: u32,
        /// The node refuses keys of earlier epochs.
        #[arg(long, value_name = "EPOCH", default_value_t = 0)]
        refuse_below: u32,
    },
    /// Changes a cluster's key in three steps, while nodes work: each step is done on all nodes
    /// before the next one.
    #[command(after_help = "Example:
  ropewalk key rotate /etc/ropewalk/key next       a new key counts, too
  ropewalk key rotate /etc/ropewalk/key swap       calls use the new key
  ropewalk key rotate /etc/ropewalk/key finish     the former key is gone

Copy the file to all nodes after each step. Running servers and mounts take it within seconds.")]
    Rotate {
        /// The file with the cluster's key, which is replaced.
        file: PathBuf,
        /// The step.
        step: Step,
    },
    /// Shows what a key file is for, and no secret.
    #[command(after_help = "Example:
  ropewalk key show /etc/ropewalk/key")]
    Show {
        /// The key file.
        file: PathBuf,
    },
}

/// A step in changing a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Step {
    /// Add a new key that counts beside the present one.
    Next,
    /// Use the new key for calls; the former one still counts.
    Swap,
    /// Forget the former key.
    Finish,
}

fn node_name(text: &str) -> Result<NodeName, String> {
    NodeName::new(text).map_err(|error| error.to_string())
}

/// Does it.
pub fn run(command: &KeyCommand) -> anyhow::Result<()> {
    match command {
        KeyCommand::Create { file, signing: false } => {
            write(file, &Keyring::Cluster(PskKeys::new(random_secret(), None)), true)
        }
        KeyCommand::Create { file, signing: true } => {
            write(file, &Keyring::Authority(Authority::new(random_secret())), true)
        }
        KeyCommand::Derive { from, node, file } => match read_key_file(from)? {
            Keyring::Cluster(keys) => {
                write(file, &Keyring::Derived(keys.derive(node), node.clone()), true)
            }
            _ => bail!("{} has no cluster's key: name the file of 'key create'", from.display()),
        },
        KeyCommand::Sign { from, node, file, days, epoch, refuse_below } => {
            let Keyring::Authority(authority) = read_key_file(from)? else {
                bail!("{} signs nothing: name the file of 'key create --signing'", from.display())
            };
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            let validity = (now, now + days * DAY_SECONDS);
            let keys = authority.sign(node.clone(), random_secret(), *epoch, validity);
            write(file, &Keyring::Node(keys.refusing_below(*refuse_below)), true)
        }
        KeyCommand::Rotate { file, step } => rotate(file, *step),
        KeyCommand::Show { file } => {
            for line in read_key_file(file)?.describe() {
                say!("{line}")?;
            }
            Ok(())
        }
    }
}

fn rotate(file: &Path, step: Step) -> anyhow::Result<()> {
    let Keyring::Cluster(keys) = read_key_file(file)? else {
        bail!("{} has no cluster's key: sign or derive the key of a node anew", file.display())
    };
    let changed = match (step, keys.count()) {
        (Step::Next, 1) => keys.with_next(random_secret()),
        (Step::Swap, 2) => keys.swapped(),
        (Step::Finish, 2) => keys.first_alone(),
        (Step::Next, _) => bail!("{} has two keys already: go on with 'swap'", file.display()),
        _ => bail!("{} has one key only: begin with 'next'", file.display()),
    };
    write(file, &Keyring::Cluster(changed), false)
}

/// Writes a key file that its owner alone can read, whole or not at all. `new`: there is none yet.
fn write(file: &Path, ring: &Keyring, new: bool) -> anyhow::Result<()> {
    let cannot = || format!("cannot write the key file {}", file.display());
    if new && (file.exists() || file.is_symlink()) {
        bail!("{} exists already: name another file, or remove it first", file.display());
    }
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(name);
    let mut options = OpenOptions::new();
    let fill = || {
        let mut out = options.write(true).create_new(true).mode(0o600).open(&beside)?;
        out.write_all(ring.to_text().as_bytes())?;
        out.sync_all()?;
        match new {
            // A file of this name that comes meanwhile stays.
            true => std::fs::hard_link(&beside, file).and_then(|()| std::fs::remove_file(&beside)),
            false => std::fs::rename(&beside, file),
        }
    };
    let written: std::io::Result<()> = { fill }();
    if written.is_err() {
        // If it cannot be removed it stays; only its owner can read it.
        let _ = std::fs::remove_file(&beside);
    }
    written.with_context(cannot)?;
    say!("{}", file.display())?;
    for line in ring.describe() {
        say!("{line}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_are_made_shown_and_changed() {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        let create = |name: &str, signing| KeyCommand::Create { file: at(name), signing };
        run(&create("key", false)).expect("made");
        run(&create("key", false)).expect_err("it is there");
        run(&create("sign", true)).expect("made");
        let node = NodeName::new("n1").expect("a name");
        let derive = |from: &str, to: &str| KeyCommand::Derive {
            from: at(from),
            node: node.clone(),
            file: at(to),
        };
        run(&derive("key", "derived")).expect("derived");
        run(&derive("sign", "other")).expect_err("it derives nothing");
        let sign = |from: &str, to: &str| KeyCommand::Sign {
            from: at(from),
            node: node.clone(),
            file: at(to),
            days: 30,
            epoch: 2,
            refuse_below: 2,
        };
        run(&sign("sign", "n1")).expect("signed");
        run(&sign("key", "n2")).expect_err("it signs nothing");
        for name in ["key", "sign", "derived", "n1"] {
            run(&KeyCommand::Show { file: at(name) }).expect("shown");
        }
        let first = read_key_file(&at("key")).expect("it can be read");
        for (step, is_done) in [
            (Step::Swap, false),
            (Step::Next, true),
            (Step::Next, false),
            (Step::Swap, true),
            (Step::Finish, true),
            (Step::Finish, false),
        ] {
            let done = run(&KeyCommand::Rotate { file: at("key"), step });
            assert_eq!(done.is_ok(), is_done, "{step:?}: {done:?}");
        }
        assert!(read_key_file(&at("key")).expect("it can be read") != first);
        let left = std::fs::read_dir(place.path()).expect("a directory").count();
        assert_eq!(left, 4, "nothing is left beside");
    }
}
