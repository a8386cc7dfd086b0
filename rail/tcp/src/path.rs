//! Sockets of links that are one of several paths.
//!
//! A kernel that does not know an option works without it, as the link does.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::net::sockopt;

/// Bytes that may wait unsent in the kernel: they cannot be sent by another path before the link is given up.
pub const UNSENT_BYTES_MAX: libc::c_int = 64 * 1024;
/// The shortest and the longest time after which the kernel sends again what was not acknowledged. Without them these
/// are 200 ms and two minutes.
pub const SEND_AGAIN_AFTER_MIN_US: libc::c_int = 8000;
pub const SEND_AGAIN_AFTER_MAX_MS: libc::c_int = 1000;
/// The longest time for which the kernel keeps an acknowledgement back.
pub const ACKNOWLEDGE_AFTER_MAX_US: libc::c_int = 8000;

/// Options of linux/tcp.h: since Linux 6.15, 6.11 and 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;
const TCP_RTO_MIN_US: libc::c_int = 45;
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// Options that [`tune`] sets.
pub const OPTIONS: u64 = 4;

/// Tunes a socket for a path beside others. Whether its machine sends again, and acknowledges, within the times above.
pub fn tune(socket: BorrowedFd<'_>) -> bool {
    let mut is_quick = true;
    for (option, value) in [
        (libc::TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX),
        (TCP_RTO_MAX_MS, SEND_AGAIN_AFTER_MAX_MS),
        (TCP_RTO_MIN_US, SEND_AGAIN_AFTER_MIN_US),
        (TCP_DELACK_MAX_US, ACKNOWLEDGE_AFTER_MAX_US),
    ] {
        // SAFETY: the option takes an int, which lives until the call returns.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        is_quick &= set == 0;
    }
    is_quick
}

/// From now on closing the socket drops all that waits in it, and keeps nothing of the connection. The peer is told by a
/// reset, if that reaches it.
pub fn forget_unsent(socket: BorrowedFd<'_>) {
    let at_once = Some(std::time::Duration::ZERO);
    let _ = sockopt::set_socket_linger(socket, at_once);
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn option(socket: BorrowedFd<'_>, option: libc::c_int) -> Option<libc::c_int> {
        let (mut value, mut bytes) =
            (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        // SAFETY: the kernel writes one int and its length, which live until the call returns.
        let asked = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                option,
                (&raw mut value).cast(),
                &raw mut bytes,
            )
        };
        (asked == 0).then_some(value)
    }

    #[test]
    fn the_kernel_takes_what_a_path_wants() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = stream.as_fd();
        let known = option(socket, TCP_DELACK_MAX_US).is_some();
        assert_eq!(tune(socket), known);
        assert_eq!(option(socket, libc::TCP_NOTSENT_LOWAT), Some(UNSENT_BYTES_MAX));
        if !known {
            println!("SKIP: this kernel has no time-outs for single sockets (Linux 6.15 has)");
            return;
        }
        assert_eq!(option(socket, TCP_RTO_MAX_MS), Some(SEND_AGAIN_AFTER_MAX_MS));
        assert_eq!(option(socket, TCP_RTO_MIN_US), Some(SEND_AGAIN_AFTER_MIN_US));
        assert_eq!(option(socket, TCP_DELACK_MAX_US), Some(ACKNOWLEDGE_AFTER_MAX_US));
        forget_unsent(socket);
        assert_eq!(sockopt::socket_linger(socket).unwrap(), Some(std::time::Duration::ZERO));
    }
}
