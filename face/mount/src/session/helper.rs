//! The set-uid helper `fusermount3`, by which plain users mount.
//!
//! It mounts, and sends the descriptor of /dev/fuse back over a socket that it inherits. The
//! socket is its standard input, so that no other child process can inherit it by accident.

use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::{MountError, MountOptions, UnmountError};

/// Names of the helper, the newer one first.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];
/// Most bytes of the helper's complaints that are passed on.
const MESSAGE_BYTES_MAX: u64 = 4096;

/// The helper, in the search path or where systems put it.
pub(super) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from));
    let candidates = NAMES.iter().flat_map(|name| folders.iter().map(move |at| at.join(name)));
    candidates.into_iter().find(|file| file.is_absolute() && file.is_file())
}

/// Mounts, and returns the descriptor.
pub(super) fn mount(
    helper: &Path,
    path: &Path,
    options: &MountOptions,
) -> Result<OwnedFd, MountError> {
    let failed = |message: String| MountError::Helper {
        helper: helper.to_owned(),
        path: path.to_owned(),
        message,
    };
    let data = options.helper_data()?;
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new(helper);
    command.arg("-o").arg(data).arg("--").arg(path);
    command.env("_FUSE_COMMFD", "0").stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    // Holds our copy of their end: a helper that dies must read as the end of the stream.
    drop(command);
    let received = receive(&ours);
    let complaint = finish(&mut child);
    match (received, complaint) {
        (Ok(Some(device)), _) => Ok(device),
        (Ok(None), None) => Err(failed("it did not send the descriptor of the mount".into())),
        (Ok(None), Some(message)) => Err(failed(message)),
        (Err(error), _) => Err(failed(error.to_string())),
    }
}

/// Unmounts.
pub(super) fn unmount(helper: &Path, path: &Path, lazy: bool) -> Result<(), UnmountError> {
    let failed = |message: String| UnmountError::Other { path: path.to_owned(), message };
    let mut command = Command::new(helper);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    match finish(&mut child) {
        None => Ok(()),
        Some(message) if message.contains("busy") => Err(UnmountError::Busy(path.to_owned())),
        Some(message) => Err(failed(message)),
    }
}

/// Waits for the helper; returns its complaint if it failed.
fn finish(child: &mut Child) -> Option<String> {
    let mut bytes = Vec::new();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(MESSAGE_BYTES_MAX).read_to_end(&mut bytes);
    }
    let status = child.wait();
    if status.as_ref().is_ok_and(std::process::ExitStatus::success) {
        return None;
    }
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    let fallback = || status.map_or_else(|error| error.to_string(), |status| status.to_string());
    Some(if text.is_empty() { fallback() } else { text })
}

fn receive(socket: &OwnedFd) -> Result<Option<OwnedFd>, rustix::io::Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let flags = RecvFlags::CMSG_CLOEXEC;
    loop {
        let mut slices = [IoSliceMut::new(&mut byte)];
        match rustix::net::recvmsg(socket.as_fd(), &mut slices, &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.flatten().next())
}
