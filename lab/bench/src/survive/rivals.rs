//! File systems of three data servers behind mounts: ours, and peers that are installed.
//!
//! Invariants
//! * All have their servers in the same network namespaces as ours, and one disk. Clients of all share one namespace.
//! * All of it ends with its owner, also servers that stand still.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::lab::version;
use crate::series::OURS;
use crate::servers::{Mount, Serving};
use crate::survive::deaths::{COPIES, SERVERS};
use crate::survive::gluster::Gluster;
use crate::survive::ground::Ground;
use crate::survive::moose::Moose;
use crate::survive::site::text;
use crate::survive::store::{Store, hosts, plain};
use crate::{Options, PART};

/// A file system whose data servers can fail.
pub trait Rival {
    /// The name in the column of systems, and the version.
    fn system(&self) -> &'static str;
    /// Of the programs.
    fn version(&self) -> &str;
    /// Copies of a file in the root directory.
    fn copies(&self) -> usize;
    /// What else is to be said about each row.
    fn params(&self) -> Vec<(&'static str, String)>;
    /// Shows it on this directory, by a process of its own.
    fn mount(&self, path: &Path) -> anyhow::Result<Mount>;
    /// `kill -9` of a data server.
    fn kill(&mut self, server: usize) -> anyhow::Result<()>;
    /// Starts it again.
    fn restart(&mut self, server: usize) -> anyhow::Result<()>;
    /// SIGSTOP of a data server.
    fn suspend(&mut self, server: usize) -> anyhow::Result<()>;
    /// SIGCONT.
    fn resume(&mut self, server: usize) -> anyhow::Result<()>;
    /// What is not in order yet after a server came back, in words; none where all files of this directory of a mount have
    /// all of their copies, and all servers take part.
    fn shortage(&self, folder: &Path) -> anyhow::Result<Option<String>>;
    /// The numbers of all server processes.
    fn processes(&self) -> Vec<u32>;
    /// The last lines of all logs, on stderr.
    fn show_logs(&self);
}

/// Hosts for all of them: those of our cluster. Peers use them likewise.
pub fn ground() -> anyhow::Result<Ground> {
    Ground::make(hosts(SERVERS))
}

/// The host of mounts.
pub const CLIENTS: usize = 1 + SERVERS;
/// The interval at which somebody looks whether a peer is ready.
pub const LOOK: Duration = Duration::from_millis(50);

/// The copies of files that peers keep, by which a peer is chosen.
pub const GLUSTER: (&str, usize) = ("glusterfs", 3);
/// The same of MooseFS.
pub const MOOSE: (&str, usize) = ("moosefs", 2);

/// Ours, with two copies of each file of the root directory, and `/c2`, `/c3` with so many.
struct Ours<'a>(Store<'a>, String);

/// Starts ours, and those of these peers that can be had. A sentence on stderr says why one cannot.
pub fn start<'a>(
    ground: &'a Ground,
    options: &'a Options,
    peers: &[&str],
) -> anyhow::Result<Vec<Box<dyn Rival + 'a>>> {
    let store = Store::start(ground, options, plain(SERVERS))?;
    for copies in [3, COPIES] {
        store.keep_copies(copies)?;
        store.ask_as_user(&["mkdir", &format!(":/c{copies}")])?;
    }
    let mut all: Vec<Box<dyn Rival + 'a>> = vec![Box::new(Ours(store, version()))];
    for peer in peers.iter().filter(|_| options.peers) {
        let started: anyhow::Result<Box<dyn Rival + 'a>> = match *peer {
            _ if ground.name() != "namespaces" => {
                Err(anyhow::anyhow!("that needs network namespaces: run as root, with iproute2"))
            }
            "glusterfs" => Gluster::start(ground, options).map(|it| Box::new(it) as _),
            _ => Moose::start(ground, options).map(|it| Box::new(it) as _),
        };
        match started {
            Ok(started) => all.push(started),
            Err(_) if options.is_interrupted() => bail!("interrupted"),
            Err(error) => eprintln!("no comparison with {peer}: {error:#}"),
        }
    }
    Ok(all)
}

impl Rival for Ours<'_> {
    fn system(&self) -> &'static str {
        OURS
    }

    fn version(&self) -> &str {
        &self.1
    }

    fn copies(&self) -> usize {
        COPIES
    }

    fn params(&self) -> Vec<(&'static str, String)> {
        self.0.params()
    }

    fn mount(&self, path: &Path) -> anyhow::Result<Mount> {
        std::fs::create_dir_all(path)?;
        let mut command = self.0.client_command()?;
        command.args(["mount", &self.0.address(), &text(path)?]);
        Mount::by(Serving::spawn(command, "mount")?, path)
    }

    fn kill(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.kill_data(server);
        Ok(())
    }

    fn restart(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.start_data(server, false)
    }

    fn suspend(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.data(server)?.suspend()
    }

    fn resume(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.data(server)?.resume()
    }

    fn shortage(&self, _folder: &Path) -> anyhow::Result<Option<String>> {
        self.0.shortage()
    }

    fn processes(&self) -> Vec<u32> {
        self.0.processes()
    }

    fn show_logs(&self) {
        self.0.show_logs();
    }
}

/// The place of a peer's program; an error says which Debian packages have it.
pub fn program(name: &str, packages: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Programs of the administrator are not on everyone's path.
    let mut places = std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name));
    let found = places.find(|file| file.is_file());
    found.with_context(|| format!("'{name}' is not installed; Debian: apt install {packages}"))
}

/// The version that a program tells: the first word with a digit at its begin.
pub fn told_version(program: &Path, flag: &str) -> anyhow::Result<String> {
    let said = output(Command::new(program).arg(flag), &program.to_string_lossy())?;
    let mut words = said.split_whitespace();
    let found = words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()));
    Ok(found.unwrap_or("unknown").to_string())
}

/// A command that starts another program at a host, so that it ends with this process as that says by its environment.
pub fn command(ground: &Ground, host: usize, program: &Path) -> Command {
    let mut command = ground.command(host);
    command.env(PART, "become").arg(program);
    command
}

/// What a program says on stdout, given its name for errors.
pub fn output(command: &mut Command, name: &str) -> anyhow::Result<String> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("cannot run {name}"))?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let told = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{name}: {} {}", said.trim(), told.trim());
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_packages() {
        assert!(program("sh", "dash").is_ok());
        let told = program("no-such-program", "one two").unwrap_err().to_string();
        assert_eq!(told, "'no-such-program' is not installed; Debian: apt install one two");
    }

    #[test]
    fn a_version_is_the_first_word_that_can_be_one() {
        let said = |text: &str| told_version(Path::new("/bin/echo"), text).unwrap();
        assert_eq!(said("glusterfs 10.3\nRepository revision 7"), "10.3");
        assert_eq!(said("version: 3.0.117-1 ; build: 1341"), "3.0.117-1");
        assert_eq!(said("none"), "unknown");
    }
}
