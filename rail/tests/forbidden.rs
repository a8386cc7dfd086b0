//! A process whose filter of system calls forbids the socket on which the kernel tells of interfaces: it gets an error, by
//! which rails know that they have to ask.

use std::os::fd::AsFd;

use ropewalk_rail::interfaces::{LocalSide, Named, Subscription};
use rustix::event::epoll;

/// The first argument of a system call, its lower half, in the data that a filter sees.
const FIRST_ARGUMENT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };

/// From now on this thread gets `EPERM` for sockets of this family. False where it may not have a filter.
fn forbid_sockets(family: i32) -> bool {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let is_equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(load, 0, 0, 0),
        step(is_equal, libc::SYS_socket as u32, 0, 3),
        step(load, FIRST_ARGUMENT, 0, 0),
        step(is_equal, family as u32, 0, 1),
        step(answer, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(answer, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a plain argument.
    let may = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 };
    // SAFETY: the program lives on, and has the length that is named.
    may && unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter) == 0 }
}

#[test]
fn who_may_not_have_the_socket_is_told_so() {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let open = || Subscription::open(&LocalSide::on(Named::Name("lo")), set.as_fd());
    if !forbid_sockets(libc::AF_NETLINK) {
        println!("SKIP: the kernel filters no system calls");
        return;
    }
    let error = open().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}");
    assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok(), "all else is allowed");
}
