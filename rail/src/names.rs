//! From the text of an address to socket addresses: numbers at once, names on a thread.
//!
//! Invariants: nothing here blocks the caller; at most [`LOOKUPS_MAX`] threads look names up; an
//! answer that comes after its rail is gone is dropped.

use std::net::{SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ropewalk_base::error::Fault;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

/// Most look-ups at a time.
pub const LOOKUPS_MAX: usize = 16;
/// Most addresses of one name that are tried.
const CANDIDATES_MAX: usize = 8;
/// Longest name, in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 255;

/// The target that an address text names.
#[derive(Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A numeric address.
    Numeric(SocketAddr),
    /// A name to look up, and a port.
    Name(&'a str, u16),
}

/// Reads `host:port`, `[::1]:port` or `[fe80::1%eth0]:port`.
pub fn parse(address: &str) -> Option<Target<'_>> {
    if let Ok(numeric) = address.parse() {
        return Some(Target::Numeric(numeric));
    }
    if let Some(scoped) = address.strip_prefix('[') {
        return scoped_of(scoped).map(|address| Target::Numeric(address.into()));
    }
    let (host, port) = address.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let plausible = !host.is_empty()
        && host.len() <= NAME_BYTES_MAX
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    plausible.then_some(Target::Name(host, port))
}

/// An address that means something on one interface alone, which it names.
fn scoped_of(text: &str) -> Option<SocketAddrV6> {
    let (host, port) = text.split_once("]:")?;
    let (host, interface) = host.split_once('%')?;
    let (host, port) = (host.parse().ok()?, port.parse().ok()?);
    let (domain, kind) = (AddressFamily::INET6, SocketType::DGRAM);
    let socket = socket_with(domain, kind, SocketFlags::CLOEXEC, None).ok()?;
    let scope = netdevice::name_to_index(&socket, interface).ok()?;
    Some(SocketAddrV6::new(host, port, 0, scope))
}

/// Whether a text is an address to connect to, as [`parse`] reads it.
pub fn is_address(text: &str) -> bool {
    match parse(text) {
        Some(Target::Numeric(address)) => address.port() != 0,
        Some(Target::Name(..)) => true,
        None => false,
    }
}

/// The ticket of the caller, and the addresses that were found: the one to be tried first is last.
type Answer = (u64, Vec<SocketAddr>);

/// Looks names up on threads of their own.
#[derive(Debug)]
pub struct Lookups {
    bell: Arc<OwnedFd>,
    sender: Sender<Answer>,
    answers: Receiver<Answer>,
    running: usize,
}

impl Lookups {
    /// No look-ups so far.
    pub fn new() -> Result<Lookups, Errno> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let (sender, answers) = channel();
        Ok(Lookups { bell: Arc::new(bell), sender, answers, running: 0 })
    }

    /// Readable while there are answers, and after [`Lookups::ring`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell readable without an answer.
    pub fn ring(&self) {
        // A counter that is full is as good as rung.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// Begins to look up `host` for `whom`; `Busy` where too many look-ups run.
    pub fn begin(&mut self, whom: u64, host: &str, port: u16) -> Result<(), Fault> {
        if self.running >= LOOKUPS_MAX {
            return Err(Fault::Busy);
        }
        let (sender, bell, host) = (self.sender.clone(), self.bell.clone(), host.to_string());
        let work = move || {
            let found = (host.as_str(), port).to_socket_addrs();
            let mut found: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
            found.truncate(CANDIDATES_MAX);
            // The caller takes addresses from the end.
            found.reverse();
            // If the rail is gone, nobody waits for the answer or the bell.
            let _ = sender.send((whom, found));
            let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
        };
        let thread = std::thread::Builder::new().name("ropewalk-names".into());
        thread.spawn(work).map_err(|_| Fault::Busy)?;
        self.running += 1;
        Ok(())
    }

    /// The next answer; no addresses where the name is unknown.
    pub fn answer(&mut self) -> Option<Answer> {
        let answer = self.answers.try_recv().ok();
        if answer.is_some() {
            self.running -= 1;
        }
        answer
    }

    /// Silences the bell; to be called before the answers are taken.
    pub fn quiet(&self) {
        // Empty when another answer was taken along with an earlier ring.
        let _ = rustix::io::read(&*self.bell, &mut [0u8; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_numbers_names_or_nothing() {
        let numeric = |text: &str| Some(Target::Numeric(text.parse().unwrap()));
        assert_eq!(parse("127.0.0.1:80"), numeric("127.0.0.1:80"));
        assert_eq!(parse("[::1]:7000"), numeric("[::1]:7000"));
        // Every network namespace has that interface, as its first one.
        assert_eq!(parse("[fe80::1%lo]:7000"), numeric("[fe80::1%1]:7000"));
        assert_eq!(parse("[fe80::1%nosuch0]:7000"), None);
        assert_eq!(parse("[fe80::1%lo]"), None);
        assert_eq!(parse("node-1.cluster:7000"), Some(Target::Name("node-1.cluster", 7000)));
        for wrong in
            ["", ":", "node1", "node1:", ":7000", "node1:0", "node1:70000", "a b:1", "::1:7"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(parse(&format!("{}:1", "x".repeat(256))), None);
    }
}
