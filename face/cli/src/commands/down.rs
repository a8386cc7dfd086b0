//! `ropewalk down`, and its search for the process that serves a directory.
//!
//! The serving process holds a lock on a file in the directory for as long as it lives, and has written its
//! number there. Only a process that holds the lock, by what the kernel says, counts as the serving process. At
//! its end it removes the file; only a process that was killed leaves it.

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
use crate::beside;
use crate::report::{announce, complain};

/// The file in a cluster's directory.
const RUNNING: &str = "running";
/// The time to wait for a process that is being killed.
const DYING: Duration = Duration::from_secs(5);

/// The time that the holder of the lock may take to write its number.
const NUMBERED: Duration = Duration::from_secs(2);

/// Arguments of `ropewalk down`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  ropewalk down /var/tmp/cluster

The command also ends the mount of 'ropewalk up --mount'. Mounts of other processes stay; \
operations on them wait until the cluster runs again.")]
pub struct Down {
    /// The directory that 'ropewalk up' serves.
    directory: PathBuf,
    /// Wait this long for the cluster to stop.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "60", value_parser = seconds)]
    patience: Duration,
}

/// The right to serve a directory.
pub struct Running {
    path: PathBuf,
    /// The directory was made for it.
    made: bool,
    // Locked: closed last.
    file: File,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Another directory may have the name by now. If the file stays, the lock says that nobody serves.
        if is_at(&self.file, &self.path) {
            let _ = std::fs::remove_file(&self.path);
        }
        if self.made
            && let Some(directory) = self.path.parent()
        {
            // A start that failed leaves nothing; if something was made, this does nothing.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// Makes a cluster's directory, if it does not exist, and refuses a directory of another user.
pub fn make_directory(directory: &Path) -> anyhow::Result<()> {
    if directory.exists() && !directory.is_dir() {
        bail!(
            "{} is not a directory: give a directory, or a path that does not exist yet",
            directory.display()
        );
    }
    HostDisk.create_directory(directory)?;
    beside::check_directory(directory)
}

/// Takes the right to serve a directory.
pub fn hold(directory: &Path) -> anyhow::Result<Running> {
    let made = !directory.exists();
    make_directory(directory)?;
    let path = directory.join(RUNNING);
    let cannot = |error: std::io::Error| {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => " (only its owner and root may)",
            _ => "",
        };
        anyhow::Error::new(error).context(format!("cannot use {}{hint}", path.display()))
    };
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        beside::open_own(&mut options, &path)
    };
    let begin = Instant::now();
    let mut file = loop {
        let mut file = open().map_err(cannot)?;
        // One that ended meanwhile has taken its file away: a lock on that one says nothing.
        if is_free(&file).map_err(cannot)? && is_at(&file, &path) {
            break file;
        }
        if begin.elapsed() > DYING {
            let by = number(&mut file)?.map_or(String::new(), |pid| format!(" by process {pid}"));
            let directory = directory.display();
            bail!(
                "the cluster in {directory} is already served{by}: stop it by 'ropewalk down \
                 {directory}'"
            );
        }
        std::thread::sleep(LOOK);
    };
    file.set_len(0).map_err(cannot)?;
    file.seek(SeekFrom::Start(0))?;
    match writeln!(file, "{}", std::process::id()) {
        // The lock is what counts, and the stores have room of their own.
        Err(error) if is_full(&error) => complain!(
            "the disk is full, so this process cannot write its number into {}, and 'ropewalk \
             down' will not find it: stop it by 'kill {}'",
            path.display(),
            std::process::id()
        ),
        written => written.map_err(cannot)?,
    }
    Ok(Running { path, made, file })
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Whether this file is the one of that name.
fn is_at(file: &File, path: &Path) -> bool {
    let number = |found: std::fs::Metadata| (found.dev(), found.ino());
    let (ours, there) = (file.metadata().map(number), path.symlink_metadata().map(number));
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

/// Fails where a process does not serve what this file is beside. Anybody who owns the file can write any
/// number into it: the kernel says who has the lock, and nobody's file speaks for another user's process.
fn serves(pid: Pid, file: &File) -> anyhow::Result<()> {
    let found = file.metadata()?;
    let user = effective_user(pid)?;
    if user != found.uid() {
        bail!("the process belongs to user {user}, but the file belongs to user {}", found.uid());
    }
    if is_locked_by(pid, &found) {
        return Ok(());
    }
    // Some file systems have other numbers in that list.
    let place = format!("/proc/{pid}");
    let list = || format!("cannot list {place}/fd");
    for entry in std::fs::read_dir(format!("{place}/fd")).with_context(list)? {
        let entry = entry.with_context(list)?;
        let name = entry.file_name();
        // One may be closed meanwhile.
        let told = std::fs::read_to_string(format!("{place}/fdinfo/{}", name.display()));
        let is_lock = |line: &str| line.starts_with("lock:") && line.contains("FLOCK");
        if told.is_ok_and(|told| told.lines().any(is_lock))
            && let Ok(other) = std::fs::metadata(entry.path())
            && (other.dev(), other.ino()) == (found.dev(), found.ino())
        {
            return Ok(());
        }
    }
    bail!("the process does not hold the lock on the file")
}

/// Whether the kernel's list of locks has one of this process on this file. Everybody may read it, also
/// where a program with capabilities hides its descriptors from its own user.
fn is_locked_by(pid: Pid, found: &std::fs::Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, "FLOCK", _, _, by, at, ..] if by == pid.to_string() && at == place)
    })
}

/// For whom a process acts.
fn effective_user(pid: Pid) -> anyhow::Result<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let status = status.with_context(|| format!("there is no process {pid}"))?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = users.and_then(|users| users.split_whitespace().nth(1)?.parse().ok());
    user.with_context(|| format!("cannot find the user of process {pid}"))
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
    let file = beside::open(OpenOptions::new().read(true).write(true), &path);
    let mut file = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("no cluster is running in {directory}")
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!(
                "no permission to stop the cluster in {directory}: run this command as the user \
                 who started it, or as root"
            )
        }
        file => file.with_context(|| format!("cannot find the process that serves {directory}"))?,
    };
    let begin = Instant::now();
    let mut asked = false;
    while !is_free(&file)? {
        if !asked && let Some(pid) = number(&mut file)?.and_then(Pid::from_raw) {
            // Opened first: what is found out of the number afterwards is true of this process, or it is gone.
            let process = pidfd_open(pid, PidfdFlags::empty());
            match (process, serves(pid, &file)) {
                (Ok(process), Ok(())) => {
                    pidfd_send_signal(&process, Signal::TERM).with_context(|| {
                        format!("cannot send a signal to process {pid}, which serves {directory}")
                    })?;
                    asked = true;
                }
                // One that just begins to serve has not written its number yet.
                (_, Err(why)) if begin.elapsed() > NUMBERED.min(arguments.patience) => bail!(
                    "{} names process {pid}, but that process does not seem to serve {directory} \
                     ({why:#}): it was not ended. 'fuser -v {0}' shows the process that has the \
                     file open; stop that process by 'kill'",
                    path.display()
                ),
                _ => (),
            }
        }
        if begin.elapsed() > arguments.patience {
            let Some(pid) = number(&mut file)? else {
                bail!(
                    "a process serves {directory} and does not end, but {} does not have its number: \
                     'fuser -v {0}' shows the process; stop it by 'kill'",
                    path.display()
                )
            };
            bail!(
                "process {pid} serves {directory} and has not ended: its log gives the reason, or \
                 a process in another mount namespace uses its mount ('grep ropewalk \
                 /proc/*/mountinfo' shows that process). Wait, or end that process, or run 'kill \
                 -9 {pid}', which loses no acknowledged data"
            );
        }
        std::thread::sleep(LOOK);
    }
    if asked {
        announce!("the cluster in {directory} has stopped");
        return Ok(());
    }
    bail!("no cluster is running in {directory}")
}
