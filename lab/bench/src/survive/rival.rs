//! The contract of a file system whose data servers fail under work; and the programs of peers: their places, how to start
//! them, and the words that they print.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::lab::quoted;
use crate::servers::Mount;
use crate::survive::deaths::SERVERS;
use crate::survive::ground::Ground;
use crate::{Options, PART, host};

/// A file system whose data servers can fail.
pub trait Rival {
    /// The name in the column of systems.
    fn system(&self) -> &'static str;
    /// The version of its programs.
    fn version(&self) -> &str;
    /// Copies of a file in the root directory.
    fn copies(&self) -> usize;
    /// More parameters of each row.
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
    /// The first thing, in words, that is not in order yet after a server came back; none where all files of this directory of a mount have
    /// all of their copies, and all servers take part.
    fn shortage(&self, folder: &Path) -> anyhow::Result<Option<String>>;
    /// The numbers of all server processes.
    fn processes(&self) -> Vec<u32>;
    /// The last lines of all logs, on stderr.
    fn show_logs(&self);
}

/// The host of mounts.
pub const CLIENTS: usize = 1 + SERVERS;
/// The interval at which somebody looks whether a peer is ready.
pub const LOOK: Duration = Duration::from_millis(50);

/// The name of a peer, and the copies of files that it keeps.
pub const GLUSTER: (&str, usize) = ("glusterfs", 3);
/// The same of MooseFS.
pub const MOOSE: (&str, usize) = ("moosefs", 2);

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

/// The parameters of each row of a peer.
pub fn params(ground: &Ground, options: &Options) -> Vec<(&'static str, String)> {
    vec![
        ("network", quoted(ground.name())),
        ("servers", SERVERS.to_string()),
        ("storage", quoted(host::storage(&options.disk))),
        ("placement", quoted("processes")),
    ]
}

/// A command that starts another program at a host, so that it ends with this process as that says by its environment.
pub fn command(ground: &Ground, host: usize, program: &Path) -> Command {
    let mut command = ground.command(host);
    command.env(PART, "become").arg(program);
    command
}

/// The output of a program on stdout. `name`: of the program, for errors.
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
