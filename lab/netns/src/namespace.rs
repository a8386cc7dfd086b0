//! A network namespace, and threads and processes in it.
//!
//! Invariants:
//! * its name has the number of the process that made it, so that processes do not disturb each other;
//! * it goes when it is dropped. A process that was killed leaves its namespaces behind: the next process that
//!   makes one removes them.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Error, Result};
use crate::link::{self, Link};
use crate::tool::{Tool, ip};

/// Where `ip netns` keeps namespaces.
const FOLDER: &str = "/run/netns";
const PREFIX: &str = "ropewalk-netns-";

/// A network namespace of this process, until it is dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Makes one with nothing in it but `lo`, which is down; `role` becomes part of its name. Fails with
    /// [`Error::NotAllowed`] without the rights, and with [`Error::Missing`] without `ip`.
    pub fn new(role: &str) -> Result<Namespace> {
        static SWEPT: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        SWEPT.call_once(sweep);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{role}", std::process::id());
        match ip(&["netns", "add", &name])? {
            Ok(_) => Ok(Namespace { name }),
            Err(said) => Err(Error::NotAllowed { said }),
        }
    }

    /// Its name, as `ip -n NAME` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it, as `nsenter --net=FILE` takes it.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Moves this thread there, for good. The threads and processes that it starts later are there, too.
    pub fn enter(&self) -> Result<()> {
        let failed = |error| Error::system(format!("cannot enter {}", self.name), error);
        let file = File::open(self.path()).map_err(failed)?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| failed(error.into()))
    }

    /// Runs `what` there, in a thread of its own, and waits for it. A panic goes on in the caller.
    ///
    /// Processes that `what` starts are in the namespace. `/sys/class/net` still shows the caller's interfaces;
    /// `/proc/thread-self/net` and `/proc/sys/net` are those of the namespace.
    pub fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let there = || {
            self.enter().expect("it exists while this value lives");
            what()
        };
        std::thread::scope(|scope| scope.spawn(there).join())
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Starts a thread there.
    pub fn spawn<T: Send + 'static>(
        &self,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        self.within(|| {
            std::thread::Builder::new()
                .name(self.name.clone())
                .spawn(what)
                .map_err(|error| Error::system("cannot start a thread", error))
        })
    }

    /// A command that starts a program there. The program keeps the mounts of this process.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(Tool::Nsenter.program());
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// The present state of an interface.
    pub fn link(&self, interface: &str) -> Result<Link> {
        self.read_links(Some(interface))?.pop().ok_or_else(|| {
            let missing = std::io::ErrorKind::NotFound;
            Error::system(format!("no interface {interface} in {}", self.name), missing)
        })
    }

    /// The present state of all interfaces.
    pub fn links(&self) -> Result<Vec<Link>> {
        self.read_links(None)
    }

    /// One interface, or all of them; none where it has no such interface.
    fn read_links(&self, interface: Option<&str>) -> Result<Vec<Link>> {
        let failed = |error| Error::system("cannot read the state of interfaces", error);
        let mut command = Command::new(Tool::Ip.find()?);
        command.args(["-oneline", "-details", "-statistics", "link", "show"]).args(interface);
        let output = self.within(|| command.stdin(Stdio::null()).output()).map_err(failed)?;
        if !output.status.success() {
            return Ok(Vec::new());
        }
        Ok(link::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Lets a program run commands, one a line, until one fails.
    pub(crate) fn run(&self, tool: Tool, lines: &[&str]) -> Result<()> {
        let failed = |error| Error::system(format!("cannot run {}", tool.program()), error);
        let mut command = tool.batch()?;
        let mut child = self.within(|| command.spawn()).map_err(failed)?;
        let mut input = child.stdin.take().expect("it is piped");
        // Who refuses a line reads no further ones: the status tells.
        let _ = input.write_all(format!("{}\n", lines.join("\n")).as_bytes());
        drop(input);
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let number = said.lines().find_map(|line| line.strip_prefix("Command failed -:"));
        let line = number.and_then(|number| lines.get(number.parse::<usize>().ok()? - 1));
        Err(Error::Refused {
            program: tool.program(),
            line: line.or(lines.first()).unwrap_or(&"").to_string(),
            namespace: self.name.clone(),
            said: said.lines().next().unwrap_or("it did not say why").to_string(),
        })
    }

    /// Sets a value below `/proc/sys/net`.
    pub(crate) fn set(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.within(|| {
            settings.iter().try_for_each(|(name, value)| {
                let path = format!("/proc/sys/net/{name}");
                std::fs::write(&path, value)
                    .map_err(|error| Error::system(format!("cannot write {path}"), error))
            })
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["netns", "delete", &self.name]);
    }
}

/// Removes the namespaces of processes that are no more.
fn sweep() {
    let Ok(folder) = std::fs::read_dir(FOLDER) else { return };
    for name in folder.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}
