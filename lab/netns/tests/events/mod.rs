//! What the kernel tells about interfaces, when it tells it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, recv, socket_with,
};

/// The group of messages on interfaces, the type of messages on changes, and the flag of a carrier.
const LINKS: u32 = 1;
const NEW_LINK: u16 = 16;
const HAS_CARRIER: u32 = 1 << 16;
/// Bytes of the header of each message.
const HEADER_BYTES: usize = 16;

/// Listens in the namespace in which it was made.
pub struct Events(OwnedFd);

impl Events {
    pub fn listen() -> Events {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // No protocol is that of routes and interfaces.
        let socket = socket_with(family, kind, flags, None).expect("a socket");
        bind(&socket, &netlink::SocketAddrNetlink::new(0, LINKS)).expect("everyone may listen");
        Events(socket)
    }

    /// Waits until an interface gets or loses its carrier; how long that took, if it happened in time.
    pub fn carrier(&self, index: u32, wanted: bool, limit: Duration) -> Option<Duration> {
        let begin = Instant::now();
        let mut buffer = [0; 16_384];
        while begin.elapsed() < limit {
            let _ = poll(
                &mut [PollFd::new(&self.0, PollFlags::IN)],
                Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }),
            );
            while let Ok((bytes, _)) = recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT) {
                let told = carriers(&buffer[..bytes]);
                if told.contains(&(index, wanted)) {
                    return Some(begin.elapsed());
                }
            }
        }
        None
    }
}

/// The indexes of the interfaces that messages are about, and whether each has a carrier.
fn carriers(mut messages: &[u8]) -> Vec<(u32, bool)> {
    let mut found = Vec::new();
    while messages.len() >= HEADER_BYTES {
        let word = |at: usize| {
            messages
                .get(at..at + 4)
                .map_or(0, |four| u32::from_ne_bytes(four.try_into().expect("four bytes")))
        };
        let bytes = word(0) as usize;
        if word(4) as u16 == NEW_LINK {
            found.push((word(HEADER_BYTES + 4), word(HEADER_BYTES + 8) & HAS_CARRIER != 0));
        }
        messages = &messages[bytes.next_multiple_of(4).clamp(HEADER_BYTES, messages.len())..];
    }
    found
}
