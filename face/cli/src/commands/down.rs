//! `ropewalk down`, and how it finds whoever serves a directory.
//!
//! Whoever serves holds a lock on a file in the directory for as long as it lives, and has written
//! its number there: the number of a process that is gone is never taken for one that serves. At its
//! end it takes the file away; only one that was killed leaves it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ropewalk_base::disk::Disk;
use ropewalk_store::HostDisk;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{LOOK, seconds};
use crate::report::{announce, complain};

/// The file in a cluster's directory.
const RUNNING: &str = "running";
/// How long one waits for a process that is being killed.
const DYING: Duration = Duration::from_secs(5);

/// Arguments of `ropewalk down`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  ropewalk down /var/tmp/cluster

Ends the mount of 'up --mount', too. Mounts of other processes stay, and wait until the cluster is up \
again.")]
pub struct Down {
    /// The directory that `up` serves.
    directory: PathBuf,
    /// How long to wait for the end.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    patience: Duration,
}

/// The right to serve a directory.
pub struct Running {
    path: PathBuf,
    /// The directory was made for it.
    made: bool,
    // Locked: closed last.
    _file: File,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody else has the lock, so the file is ours. Where it stays, the lock says that nobody serves.
        let _ = std::fs::remove_file(&self.path);
        if self.made
            && let Some(directory) = self.path.parent()
        {
            // A start that failed leaves nothing; where something was made, this does nothing.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Makes a cluster's directory, where it is not there.
pub fn make_directory(directory: &Path) -> anyhow::Result<()> {
    if directory.exists() && !directory.is_dir() {
        bail!("{} is not a directory: name one, or one that is to be made", directory.display());
    }
    HostDisk.create_directory(directory)?;
    Ok(())
}

/// Takes the right to serve a directory.
pub fn hold(directory: &Path) -> anyhow::Result<Running> {
    let made = !directory.exists();
    make_directory(directory)?;
    let path = directory.join(RUNNING);
    let cannot = || format!("cannot use {}: its owner or root can", path.display());
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)
    };
    let begin = Instant::now();
    let mut file = loop {
        let mut file = open().with_context(cannot)?;
        // One that ended meanwhile has taken its file away: a lock on that one says nothing.
        if is_free(&file).with_context(cannot)? && is_at(&file, &path) {
            break file;
        }
        if begin.elapsed() > DYING {
            let by = number(&mut file)?.map_or(String::new(), |pid| format!(" by process {pid}"));
            let directory = directory.display();
            bail!("{directory} is served already{by}: 'ropewalk down {directory}' ends it");
        }
        std::thread::sleep(LOOK);
    };
    file.set_len(0).with_context(cannot)?;
    file.seek(SeekFrom::Start(0))?;
    match writeln!(file, "{}", std::process::id()) {
        // The lock is what counts, and the stores have room of their own.
        Err(error) if is_full(&error) => complain!(
            "no room for the number of this process in {}: 'ropewalk down' does not find it, so end it \
             by 'kill {}'",
            path.display(),
            std::process::id()
        ),
        written => written.with_context(cannot)?,
    }
    Ok(Running { path, made, _file: file })
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Whether this file is the one of that name.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (ours, there) = (file.metadata().map(number), path.metadata().map(number));
    ours.is_ok_and(|ours| there.is_ok_and(|there| ours == there))
}

/// Whether nobody holds the lock; then it is ours.
fn is_free(file: &File) -> std::io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn number(file: &mut File) -> anyhow::Result<Option<i32>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(std::str::from_utf8(&bytes).ok().and_then(|text| text.trim().parse().ok()))
}

/// Ends whoever serves a directory, in good order.
pub fn down(arguments: &Down) -> anyhow::Result<()> {
    let directory = arguments.directory.display();
    let path = arguments.directory.join(RUNNING);
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let mut file = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("nothing is up in {directory}"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("cannot ask whoever serves {directory}: whoever started it, or root, can")
        }
        file => file.with_context(|| format!("cannot ask whoever serves {directory}"))?,
    };
    let begin = Instant::now();
    let mut asked = false;
    while !is_free(&file)? {
        if !asked && let Some(pid) = number(&mut file)?.and_then(Pid::from_raw) {
            let process = pidfd_open(pid, PidfdFlags::empty());
            // Who still holds the lock after the process was opened is that process.
            if let (Ok(process), false) = (process, is_free(&file)?) {
                pidfd_send_signal(&process, Signal::TERM)
                    .with_context(|| format!("process {pid} cannot be asked to end"))?;
                asked = true;
            }
        }
        if begin.elapsed() > arguments.patience {
            let Some(pid) = number(&mut file)? else {
                bail!("whoever serves {directory} does not end, and left no number to find it by")
            };
            bail!(
                "process {pid} serves {directory} and does not end: its log says why, or a process in \
                 another mount namespace has its mount ('grep ropewalk /proc/*/mountinfo' shows which). \
                 Wait, end that one, or 'kill -9 {pid}', which loses nothing that was acknowledged"
            );
        }
        std::thread::sleep(LOOK);
    }
    if asked {
        announce!("{directory} is down");
        return Ok(());
    }
    bail!("nothing is up in {directory}")
}
