//! A socket for the raw endpoint of an interface: RAW packets as whole frames, for programs that map the network.
//!
//! The kernel queues the frames, in a ring of its own: nobody has to look at it so that frames come, and frames that
//! do not fit are dropped and counted there. The agent's socket sees the same frames.
//!
//! Invariants:
//! * an interface has one raw endpoint in its network namespace, which ends with its process, however that ends;
//! * a frame that the kernel let through is received, waits in the ring, or is counted as dropped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ropewalk_rail::packet::Packet;
use ropewalk_wire::mxoe::{ETHERTYPE, FRAME_BYTES_MIN, Order, RAW_BYTES_MAX};
use rustix::net::sockopt::socket_error;

use crate::claim::Claim;
use crate::config::{EtherError, Protocol, RAW_ENDPOINT};
use crate::filter::raw_program;
use crate::interface::{self, Interface};
use crate::ring::Ring;
use crate::socket;

/// Frames that wait to be received.
pub const FRAMES_MAX: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct RawSocket {
    claim: Mutex<Option<Claim>>,
    ring: Ring<()>,
    socket: OwnedFd,
    interface: Interface,
    /// The interface was down when it was last heard of, and is not there any more.
    down: AtomicBool,
    gone: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    unsent: AtomicU64,
    no_room: AtomicU64,
    wrong_length: AtomicU64,
}

/// The counters of a raw socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RawCounts {
    pub sent: u64,
    pub received: u64,
    /// The interface was down, or the kernel had no room for the frame.
    pub unsent: u64,
    /// More came than wait.
    pub no_room: u64,
    /// Longer than a RAW packet is.
    pub wrong_length: u64,
}

fn count(what: &AtomicU64) {
    what.fetch_add(1, Ordering::Relaxed);
}

impl RawSocket {
    /// The raw endpoint of the interface of this name, which is up.
    pub fn open(name: &str, order: Order) -> Result<RawSocket, EtherError> {
        let protocol = Protocol::Mxoe(order);
        let interface = interface::find(Some(name), protocol)?;
        let claim =
            Claim::new(&interface, protocol, Some(RAW_ENDPOINT)).map_err(|error| match error {
                held @ EtherError::Held { .. } => held,
                _ => EtherError::RawTaken(interface.name.clone()),
            })?;
        let open = || {
            let socket = socket::open()?;
            let fd = socket.as_fd();
            socket::filter(fd, raw_program(interface.station))?;
            let _ = socket::set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
            let ring = Ring::with_slots(fd, RAW_BYTES_MAX, FRAMES_MAX, ())?;
            socket::bind(fd, &interface, ETHERTYPE)?;
            Ok((socket, ring))
        };
        let (socket, ring) = open().map_err(|cause| match socket::is_right(&cause) {
            true => EtherError::NotPermitted(interface.name.clone()),
            false => EtherError::Socket { interface: interface.name.clone(), cause },
        })?;
        Ok(RawSocket {
            claim: Mutex::new(Some(claim)),
            ring,
            socket,
            interface,
            down: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            no_room: AtomicU64::new(0),
            wrong_length: AtomicU64::new(0),
        })
    }

    /// The interface, as it was when this was opened.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Somebody else may have the raw endpoint, also where this lives on.
    pub fn release(&self) {
        drop(self.claim.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Takes in the frame that came first, as far as there is room; its bytes, without the rest.
    pub fn receive(&self, to: &mut [u8]) -> Option<usize> {
        let mut reader = self.ring.lock();
        loop {
            let mut bytes = None;
            reader.show(&mut |(), frame| {
                if frame.len() <= RAW_BYTES_MAX {
                    let fits = frame.len().min(to.len());
                    to[..fits].copy_from_slice(&frame[..fits]);
                    bytes = Some(fits);
                }
            })?;
            if bytes.is_some() {
                count(&self.received);
                self.down.store(false, Ordering::Relaxed);
                return bytes;
            }
            count(&self.wrong_length);
        }
    }

    /// Sends a frame, padded to the shortest length. A frame that does not leave is lost, as it could be on its way.
    /// An error: the interface is not there any more.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let mut bytes = frame.to_vec();
        bytes.resize(bytes.len().max(FRAME_BYTES_MIN), 0);
        let whole = 0..bytes.len();
        match socket::send(self.socket.as_fd(), &bytes, &[Packet::whole(whole)]) {
            Ok(_) => count(&self.sent),
            Err(error) if !socket::is_bound(self.socket.as_fd()) => {
                self.gone.store(true, Ordering::Relaxed);
                return Err(error);
            }
            Err(_) => count(&self.unsent),
        }
        Ok(())
    }

    /// Takes the kernel's error for the interface, which would wake sleepers until it is read.
    pub fn take_error(&self) {
        if let Ok(Err(_)) = socket_error(&self.socket) {
            self.down.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the interface went down, and was not heard of since. The kernel does not tell when an interface that
    /// is down goes for good: a waiting thread looks now and then.
    pub fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Whether the interface is not there any more.
    pub fn is_gone(&self) -> bool {
        if self.is_down() && !socket::is_bound(self.socket.as_fd()) {
            self.gone.store(true, Ordering::Relaxed);
        }
        self.gone.load(Ordering::Relaxed)
    }

    /// The counters so far.
    pub fn counts(&self) -> RawCounts {
        // The kernel counts from the last question on.
        self.no_room.fetch_add(socket::dropped(self.socket.as_fd()), Ordering::Relaxed);
        let [sent, received, unsent, no_room, wrong_length] =
            [&self.sent, &self.received, &self.unsent, &self.no_room, &self.wrong_length]
                .map(|it| it.load(Ordering::Relaxed));
        RawCounts { sent, received, unsent, no_room, wrong_length }
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
