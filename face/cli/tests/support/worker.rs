//! A process of its own that works on files and tells what was acknowledged.
//!
//! It takes a line for each operation and answers with a line: `done`, or `failed` and why. So what
//! was acknowledged is known to another process than any that is killed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::library::Library;
use super::model::Model;
use super::operation::{Operation, Random, bytes};
use super::shim::{KillAt, arm};

/// Says by what way a worker reaches the files: `mount PATH` or `library ADDRESS`.
const WAY: &str = "ROPEWALK_TEST_WORKER";
/// An operation that takes longer hangs.
const HANGS: Duration = Duration::from_secs(120);

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Done,
    Failed(String),
    /// The worker died with it.
    Died,
}

/// A running worker.
pub struct Worker {
    child: Child,
    /// None once it is to end.
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts one that reaches the files by this way, to be killed at `kill`.
    pub fn start(way: &str, kill: Option<&KillAt>) -> Worker {
        let mut command = Command::new(std::env::current_exe().expect("this test has a path"));
        command.args(["--exact", "worker", "--nocapture", "--test-threads=1"]).env(WAY, way);
        if let Some(kill) = kill {
            kill.apply(&mut command);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this test can run again");
        let input = child.stdin.take();
        let output = child.stdout.take().expect("it was asked for");
        let (sender, lines) = channel::<String>();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The test harness of the process prints lines of its own, also before ours.
                if let Some(at) = line.find("worker: ") {
                    let _ = sender.send(line[at + 8..].to_string());
                }
            }
        });
        if lines.recv_timeout(HANGS).is_ok() && kill.is_some_and(|kill| kill.serving) {
            arm(rustix::process::Pid::from_child(&child));
        }
        Worker { child, input, lines }
    }

    /// Has an operation performed.
    pub fn perform(&mut self, operation: &Operation) -> Ended {
        let sent = self.input.as_mut().map(|input| writeln!(input, "{operation}"));
        if sent.is_none_or(|sent| sent.is_err()) {
            return Ended::Died;
        }
        match self.lines.recv_timeout(HANGS) {
            Ok(line) if line == "done" => Ended::Done,
            Ok(line) => Ended::Failed(line),
            Err(RecvTimeoutError::Disconnected) => Ended::Died,
            Err(RecvTimeoutError::Timeout) => panic!("'{operation}' hangs"),
        }
    }

    /// As `perform`, for an operation that may not fail.
    pub fn must(&mut self, operation: &Operation) {
        let ended = self.perform(operation);
        assert_eq!(ended, Ended::Done, "{operation}");
    }

    /// Works until servers lose power, and tells what was done. Returns the operation under way then: nobody knows whether it
    /// took effect.
    pub fn work_until(
        &mut self,
        cut: &AtomicBool,
        model: &mut Model,
        random: &mut Random,
        history: &mut Vec<String>,
    ) -> Option<Operation> {
        loop {
            let operation = model.choose(random);
            let ended = self.perform(&operation);
            let over = cut.load(Ordering::SeqCst);
            let when = if over { ", after the cut" } else { "" };
            history.push(format!("{operation}: {ended:?}{when}"));
            match ended {
                Ended::Done if !over => model.done(&operation),
                // An operation that ended after the cut may have been done before it, and be lost.
                Ended::Done | Ended::Failed(_) => return Some(operation),
                Ended::Died => panic!("nobody killed the worker"),
            }
        }
    }

    /// Ends in good order, so that nobody waits for its session.
    pub fn leave(mut self) {
        self.input = None;
        let _ = self.child.wait();
    }

    /// The process, to be killed by others.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The files through a mount.
struct Mounted {
    root: PathBuf,
    open: BTreeMap<String, File>,
}

impl Mounted {
    fn opened(&mut self, path: &str) -> std::io::Result<&File> {
        if !self.open.contains_key(path) {
            let file = File::options().read(true).write(true).open(self.root.join(path))?;
            self.open.insert(path.to_string(), file);
        }
        Ok(&self.open[path])
    }

    fn perform(&mut self, operation: &Operation) -> std::io::Result<()> {
        let at = |path: &String| self.root.join(path);
        match operation {
            Operation::Directory(path) => fs::create_dir(at(path)),
            Operation::Create(path) => {
                let file =
                    File::options().read(true).write(true).create_new(true).open(at(path))?;
                self.open.insert(path.clone(), file);
                Ok(())
            }
            Operation::Write(path, offset, len, number) => {
                let written = self.opened(path)?.write_all_at(&bytes(*number, *len), *offset);
                if number.is_multiple_of(3) {
                    self.open.remove(path);
                }
                written
            }
            Operation::Append(path, len, number) => {
                let mut file = File::options().append(true).open(at(path))?;
                file.write_all(&bytes(*number, *len))
            }
            Operation::Truncate(path, size) => self.opened(path)?.set_len(*size),
            Operation::Rename(from, to) => {
                fs::rename(at(from), at(to))?;
                // Open files follow their names, but for two names of one file.
                self.open.remove(to);
                self.open.remove(from);
                Ok(())
            }
            Operation::Link(from, to) => fs::hard_link(at(from), at(to)),
            Operation::Unlink(path) => {
                fs::remove_file(at(path))?;
                self.open.remove(path);
                Ok(())
            }
            Operation::Sync(path) => self.opened(path)?.sync_all(),
            Operation::Close => {
                self.open.clear();
                Ok(())
            }
        }
    }
}

/// How a worker reaches the files.
enum Way {
    Mount(Mounted),
    Library(Box<Library>),
}

impl Way {
    fn perform(&mut self, operation: &Operation) -> Result<(), String> {
        match self {
            Way::Mount(mounted) => mounted.perform(operation).map_err(|error| error.to_string()),
            Way::Library(library) => library.perform(operation).map_err(|error| error.to_string()),
        }
    }
}

/// The work of a worker's process: the body of a test that does nothing if it was not started as one.
pub fn work() {
    let Ok(way) = std::env::var(WAY) else { return };
    let mut way = match way.split_once(' ') {
        Some(("mount", path)) => Way::Mount(Mounted { root: path.into(), open: BTreeMap::new() }),
        Some(("library", address)) => Way::Library(Box::new(Library::connect(address))),
        _ => panic!("no way to files: {way}"),
    };
    println!("worker: ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let operation: Operation = line.parse().expect("the test knows its operations");
        let mut output = std::io::stdout().lock();
        match way.perform(&operation) {
            Ok(()) => writeln!(output, "worker: done"),
            Err(error) => writeln!(output, "worker: failed {error}"),
        }
        .expect("somebody reads it");
    }
    if let Way::Library(library) = way {
        library.leave();
    }
}
