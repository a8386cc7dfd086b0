//! The files that lie beside the stores in a cluster's directory: `running`, `log`, `cluster`,
//! `data-servers`.
//!
//! Invariants
//! * no link is followed to one, only regular files are opened, and no open waits;
//! * whoever serves believes no file and no directory of another user than root and himself: its
//!   owner can change it at any time.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens a file that lies beside stores.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits() as i32).open(path).map_err(|error| {
        // The errors for a symbolic link, for a socket, and for a FIFO that no process reads.
        let is_odd = [Errno::LOOP, Errno::NXIO].map(|errno| Some(errno.raw_os_error()));
        let found = path.symlink_metadata().ok().filter(|_| is_odd.contains(&error.raw_os_error()));
        found.map_or(error, |found| unfit(found.file_type()))
    })?;
    let kind = opened.metadata()?.file_type();
    if kind.is_file() { Ok(opened) } else { Err(unfit(kind)) }
}

fn unfit(kind: FileType) -> io::Error {
    let what = match () {
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    io::Error::other(format!(
        "it is {what}, not a regular file: find out who made it, then remove it"
    ))
}

/// Opens a file that lies beside stores, and is whoever's who serves, or root's.
pub fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = open(options, path)?;
    match stranger(&file.metadata()?) {
        None => Ok(file),
        Some(owner) => Err(io::Error::other(format!(
            "it belongs to user {owner}, who can change it at any time: check its content, then \
             remove the file or change its owner (chown {})",
            rustix::process::geteuid().as_raw()
        ))),
    }
}

/// The owner of a file, if it is neither root nor the user that runs this process.
pub fn stranger(found: &Metadata) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    Some(found.uid()).filter(|owner| *owner != 0 && *owner != own)
}

/// Refuses a cluster's directory of another user.
pub fn check_directory(directory: &Path) -> anyhow::Result<()> {
    let path = directory.display();
    let found =
        directory.metadata().with_context(|| format!("cannot read the attributes of {path}"))?;
    if let Some(owner) = stranger(&found) {
        bail!(
            "{path} belongs to user {owner}, who can change the data in it at any time: run this \
             command as that user, or change the owner by 'chown -R {} {path}'",
            rustix::process::geteuid().as_raw()
        );
    }
    Ok(())
}
