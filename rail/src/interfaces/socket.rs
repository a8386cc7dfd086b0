//! The socket on which the kernel tells of interfaces.
//!
//! Invariant: only messages of the kernel are shown; other processes may send some, too.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recvfrom,
    sendto, socket_with,
};

use super::filter::{Followed, program};
use super::netlink::{GROUPS, ROUTE_GROUPS};

/// The kernel, as a feed sees it.
pub trait Kernel {
    /// Sends a request.
    fn request(&mut self, bytes: &[u8]) -> Result<(), Errno>;

    /// The next datagram: its length, which is more than that of `buffer` where it was cut. `None`: it is not the
    /// kernel's. `AGAIN`: there is none; `NOBUFS`: some were lost.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno>;
}

/// A socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// One that is told of interfaces and addresses. Fails where this process may not have such a socket.
    pub fn open() -> Result<Socket, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Without a protocol's number: NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
        Ok(Socket(socket))
    }

    /// From now on it is told of routes, too.
    pub fn join_routes(&self) -> Result<(), Errno> {
        let own = SocketAddrNetlink::try_from(getsockname(&self.0)?)?;
        bind(&self.0, &SocketAddrNetlink::new(own.pid(), GROUPS | ROUTE_GROUPS))
    }

    /// From now on it is told of these, and of routes. Without a filter, which the kernel may refuse, of all.
    pub fn filter(&self, followed: &Followed) -> Result<(), Errno> {
        match program(followed).is_some_and(|mut program| self.attach(&mut program)) {
            true => Ok(()),
            false => self.remove_filter(),
        }
    }

    fn attach(&self, program: &mut [libc::sock_filter]) -> bool {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        self.set(libc::SO_ATTACH_FILTER, &program).is_ok()
    }

    /// From now on it is told of all.
    pub fn remove_filter(&self) -> Result<(), Errno> {
        match self.set(libc::SO_DETACH_FILTER, &0i32) {
            Err(error) if error != Errno::NOENT => Err(error),
            _ => Ok(()),
        }
    }

    fn set<T>(&self, option: i32, value: &T) -> Result<(), Errno> {
        let (place, bytes) = (ptr::from_ref(value).cast(), size_of::<T>() as u32);
        let socket = self.0.as_raw_fd();
        // SAFETY: the value lives on, as does what it points to, and has the length that is named.
        match unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, option, place, bytes) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Kernel for Socket {
    fn request(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        sendto(&self.0, bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0)).map(drop)
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        let (_, bytes, from) = recvfrom(&self.0, buffer, RecvFlags::TRUNC)?;
        let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
        Ok(Some(bytes).filter(|_| from.is_some_and(|from| from.pid() == 0)))
    }
}
