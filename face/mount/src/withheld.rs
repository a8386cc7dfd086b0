//! A write whose last bytes the kernel cannot read: it believes what comes before them, and then fails.

use std::os::fd::{AsRawFd, OwnedFd};

/// Writes `bytes` and announces `withheld` more, at an address where nothing is. The kernel reads nothing
/// there, whatever it makes of the call.
pub(crate) fn write(
    file: &OwnedFd,
    bytes: &[u8],
    withheld: usize,
) -> Result<usize, rustix::io::Errno> {
    let nowhere = std::ptr::without_provenance_mut(1);
    let slices = [
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
        libc::iovec { iov_base: nowhere, iov_len: withheld },
    ];
    // SAFETY: the first slice is borrowed for the call, which only reads it; the second one is read by
    // the kernel alone, which answers EFAULT for an address that is not mapped, as the first page never is.
    let written = unsafe { libc::writev(file.as_raw_fd(), slices.as_ptr(), 2) };
    let error = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    usize::try_from(written).map_err(|_| rustix::io::Errno::from_raw_os_error(error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_withheld_is_not_read() {
        let (_reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let written = write(&writer.into(), b"told", 1);
        assert!(matches!(written, Err(rustix::io::Errno::FAULT) | Ok(4)), "{written:?}");
    }
}
