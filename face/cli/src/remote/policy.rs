//! `ropewalk policy`: how many copies of a directory's files the data servers keep.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context, bail};
use ropewalk_client::{Errno, InodeKind, POLICY, Policy};
use serde_json::json;

use super::{Reach, Session, for_each, of, shown};
use crate::report::{print_json, say};

/// Arguments of `ropewalk policy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk policy :/data               shows the policy of a directory
  ropewalk policy --copies 2 :/data    new files in it get two copies
  setfattr -n ropewalk.policy -v copies=2 /mnt/data
                                       does the same through a mount

New directories have the policy of the directory in which they are made. Directories and files \
that are there already keep theirs, also where they are moved. A file that is written anew gets \
the copies of its directory. Copies of a file lie in different \
failure domains, which are hosts unless 'ropewalk serve data --domain' says otherwise. Contents of \
small files lie with the metadata: a standby metadata server has the copy of those.

A file of two copies outlives any one host, and needs twice the space. The owner of a directory \
and root can set its policy. Of each number of copies, the first policy has to be set by root, or \
by the owner of the root directory.")]
pub struct PolicyArguments {
    /// Paths in the cluster; the colon may be left out.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Give files that are made in these directories from now on this many copies.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(1..=3))]
    copies: Option<u8>,
    /// Print a JSON object for each path.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Shows policies, or sets them.
pub fn run(arguments: &PolicyArguments) -> anyhow::Result<()> {
    arguments.reach.run("policy", async |session| {
        let failed = if arguments.copies.is_some() { "set" } else { "shown" };
        for_each(&arguments.paths, failed, async |path| {
            if let Some(copies) = arguments.copies {
                set(session, path, copies).await?;
            }
            show(session, path, arguments.json).await
        })
        .await
    })
}

async fn set(session: &Rc<Session>, path: &[u8], copies: u8) -> anyhow::Result<()> {
    let inode = session.find(path, true).await?.inode;
    let value = Policy::Copies(copies).text();
    let Session { client, caller, .. } = &**session;
    let done = client.set_xattr(caller, inode, POLICY, value.as_bytes(), (false, false)).await;
    let shown = shown(path);
    match done {
        Ok(()) => Ok(()),
        Err(Errno::ENODEV) => bail!(
            "{shown}: {copies} copies need {copies} failure domains with a data server that answers \
             and is not full, and all data servers known right after a start; usually a domain is a host: start data servers on other hosts, or \
             name domains by 'ropewalk serve data --domain' ('ropewalk up --domain each' counts \
             each data server as one)"
        ),
        Err(Errno::ENOTDIR) => bail!(
            "{shown} is not a directory: set the policy of a directory, and copy the file into it"
        ),
        Err(Errno::EOPNOTSUPP) => bail!(
            "{shown}: this cluster has the first format of metadata, which knows no copies: \
             'ropewalk upgrade' brings it forward"
        ),
        Err(Errno::EPERM) => {
            bail!(
                "{shown}: only the owner of a directory and root set its policy; the first policy of \
             {copies} copies in a cluster has to be set by root, or by the owner of the root directory"
            )
        }
        Err(errno) => Err(of(path)(errno)),
    }
}

async fn show(session: &Rc<Session>, path: &[u8], as_json: bool) -> anyhow::Result<()> {
    let found = session.find(path, true).await?;
    let Session { client, caller, .. } = &**session;
    let value = match client.get_xattr(caller, found.inode, POLICY).await {
        Err(Errno::ENODATA) => {
            bail!("{} is no file and no directory: it has no copies", shown(path))
        }
        value => value.map_err(of(path))?,
    };
    let newer = || "the cluster has a policy that this version does not know: install a newer one";
    let copies = Policy::parse(&value).with_context(newer)?.copies();
    if as_json {
        let kind = if found.kind == InodeKind::Directory { "directory" } else { "file" };
        return print_json(&json!({ "path": shown(path), "kind": kind, "copies": copies }));
    }
    say!("{}: {copies} {}", shown(path), if copies == 1 { "copy" } else { "copies" })
}
