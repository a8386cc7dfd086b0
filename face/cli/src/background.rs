//! Commands that go on in the background: the program starts itself again in a session of its own,
//! and the command that was typed ends when that one serves.
//!
//! Invariants: a waiting command is told of a start that failed, with its log; a start that no command waits
//! for any more (Ctrl-C) is undone.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_net::threads;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FlockOperation, flock};

use crate::mounted::again;
use crate::report::{announce, print};
use crate::stop::Stop;

/// Says to this program that it is the one in the background, and where it logs.
const BACKGROUND: &str = "ROPEWALK_BACKGROUND";
/// By this line the one in the background says that it serves.
const READY: &str = "ready";

/// Whether this process is the one in the background.
fn is_it() -> bool {
    std::env::var_os(BACKGROUND).is_some()
}

/// Whether this process shall start the one in the background, and end.
pub fn is_wanted(asked: bool) -> bool {
    asked && !is_it()
}

/// Starts this command again, and returns when it serves. It logs into `log`, which is opened by `open` and
/// goes again, if it is `new`, where nothing was started.
pub fn start(
    log: &Path,
    new: bool,
    open: impl Fn(&mut OpenOptions, &Path) -> std::io::Result<File>,
) -> anyhow::Result<()> {
    let cannot = || format!("cannot write the log {}", log.display());
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    let file = open(&mut options, log).with_context(cannot)?;
    let begin = file.metadata()?.len();
    let mut command = again();
    command.env(BACKGROUND, std::path::absolute(log)?).stderr(file);
    let Some(status) = run(&mut command, &log.display().to_string())? else { return Ok(()) };
    let mut said = Vec::new();
    let mut file = open(OpenOptions::new().read(true), log).with_context(cannot)?;
    file.seek(SeekFrom::Start(begin))?;
    file.read_to_end(&mut said)?;
    let said = crate::log::bare(&String::from_utf8_lossy(&said));
    if new && file.metadata()?.is_file() {
        // All that it has is said now. If the file cannot be removed, it stays.
        let _ = fs::remove_file(log);
    }
    bail!(
        "the background process did not start ({status}): {}",
        said.trim_end().trim_start_matches("ropewalk: ")
    )
}

/// As `start`, for a process whose log is the journal.
pub fn start_with_journal() -> anyhow::Result<()> {
    let mut command = again();
    match run(command.env(BACKGROUND, ""), "the journal")? {
        None => Ok(()),
        Some(status) => bail!("the background process did not start ({status}): see the journal"),
    }
}

/// Starts it, and passes its words on until it serves; its exit status if it does not.
fn run(command: &mut Command, log: &str) -> anyhow::Result<Option<ExitStatus>> {
    command.args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the background process")?;
    let output = child.stdout.take().context("the background process has no output")?;
    for line in BufReader::new(output).lines() {
        let line = line?;
        if line == READY {
            announce!("running in the background as process {}; its log is {log}", child.id());
            return Ok(None);
        }
        announce!("{line}");
    }
    Ok(Some(child.wait()?))
}

/// It serves: from now on nobody waits for it any more.
static SERVES: AtomicBool = AtomicBool::new(false);
/// It goes on without a command that waits for it.
static KEEPS: AtomicBool = AtomicBool::new(false);

/// Leaves the terminal, if this process is the one in the background. If the command that waits for it goes
/// away before it serves, it ends.
pub fn enter(stop: &Stop) -> anyhow::Result<()> {
    if !is_it() {
        return Ok(());
    }
    rustix::process::setsid().context("cannot leave the terminal (setsid)")?;
    let stop = stop.clone();
    threads::start("starter", move || {
        let out = std::io::stdout();
        // Readable it never is: an error says that its other end was closed.
        let mut set = [PollFd::new(&out, PollFlags::empty())];
        let mut polled = rustix::event::poll(&mut set, None);
        while polled == Err(rustix::io::Errno::INTR) {
            polled = rustix::event::poll(&mut set, None);
        }
        if polled.is_ok() && !SERVES.load(Ordering::SeqCst) && !KEEPS.load(Ordering::SeqCst) {
            stop.ask();
        }
    })?;
    Ok(())
}

/// From now on this process goes on also where no command waits for it: what it takes over has been served for long.
pub fn keep() {
    KEEPS.store(true, Ordering::SeqCst);
}

/// Tells the waiting command that it serves; if no command waits any more, it ends.
pub fn ready(stop: &Stop) -> anyhow::Result<()> {
    if !is_it() {
        return Ok(());
    }
    SERVES.store(true, Ordering::SeqCst);
    // For as long as this process runs; see `drop_left_logs`. Without a lock the log may go while it is empty.
    let _ = flock(std::io::stderr(), FlockOperation::NonBlockingLockShared);
    // No file system is kept from being unmounted by where the command was typed.
    std::env::set_current_dir("/")?;
    if print(format!("{READY}\n").as_bytes()).is_err() && !KEEPS.load(Ordering::SeqCst) {
        stop.ask();
    }
    Ok(())
}

/// A log for what has no directory of its own.
pub fn new_log(name: &str) -> anyhow::Result<PathBuf> {
    drop_left_logs(name);
    let mut builder = tempfile::Builder::new();
    let file = builder.prefix(&format!("ropewalk-{name}-")).suffix(".log").tempfile();
    let file = file.with_context(|| {
        let place = std::env::temp_dir();
        format!(
            "cannot create a log file in {}: give --log FILE, or set TMPDIR to an existing \
             directory",
            place.display()
        )
    })?;
    Ok(file.keep()?.1)
}

/// Younger logs may be of commands that are still starting.
const LEFT_AFTER: Duration = Duration::from_secs(60);

/// Removes empty logs of processes that were killed: each that runs holds a lock on its own.
fn drop_left_logs(name: &str) {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    let prefix = format!("ropewalk-{name}-");
    for entry in entries.flatten() {
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        if !file_name.starts_with(&prefix) || !file_name.ends_with(".log") {
            continue;
        }
        let is_left = |meta: &fs::Metadata| {
            let own = meta.uid() == rustix::process::geteuid().as_raw();
            let old = meta.modified().ok().and_then(|at| at.elapsed().ok());
            meta.is_file() && own && meta.len() == 0 && old > Some(LEFT_AFTER)
        };
        // Links are not followed: in a directory that all share somebody else may have made them.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(entry.path());
        let Ok(file) = file else { continue };
        let left = file.metadata().is_ok_and(|meta| is_left(&meta));
        if left && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // If the file cannot be removed, it stays, empty.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes the log at a good end if it is empty, since it is no use to anybody.
pub fn drop_empty_log() {
    let Some(log) = std::env::var_os(BACKGROUND) else { return };
    if fs::metadata(&log).is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
        // If the file cannot be removed, it stays, empty.
        let _ = fs::remove_file(&log);
    }
}
