//! A device between a card and its bridge that has two ways, as bonded links have: each keeps the order of its
//! frames, and frames of one overtake those of the other.
//!
//! The kernel's own bonds are a module, which a machine may not have.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use ropewalk_rail_ether::bare::{OFFLOAD_HEADER_BYTES, all_frames};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::namespace::{card, ip};

/// The longest that the kernel hands over.
const FRAME_BYTES: usize = (1 << 16) + 256 + OFFLOAD_HEADER_BYTES;
/// Bytes of frames that wait for a relay.
const QUEUE_BYTES: usize = 16 << 20;
/// Frames of one direction before it is the other's turn.
const TURN: usize = 32;
/// Frames that wait on the slow way; and how long, where none follow.
const SLOW_FRAMES: usize = 6;
const SLOW_FOR: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000 };
/// The interval at which the thread checks whether it is over, while nothing comes.
const IDLE_FOR: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Two ways between two interfaces, until it is dropped.
#[derive(Debug)]
pub struct Bond {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bond {
    /// A card, and the bond that joins it and the bridge; frames that others overtake are counted.
    pub fn card(mtu: u32, overtaken: &Arc<AtomicU64>) -> (String, Bond) {
        let card = card(mtu);
        let plug = card.replace("card", "plug");
        let (near, far) = (card.replace("card", "near"), card.replace("card", "far"));
        assert!(ip(&format!("link set {plug} nomaster")));
        assert!(ip(&format!("link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}")));
        assert!(ip(&format!("link set {far} master bridge up")));
        assert!(ip(&format!("link set {near} up")));
        let bond = Bond::between(&plug, &near, overtaken.clone());
        (card, bond)
    }

    fn between(one: &str, other: &str, overtaken: Arc<AtomicU64>) -> Bond {
        let sockets = [one, other].map(|name| {
            let socket = all_frames(name).expect("the interface is up");
            sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).expect("as root");
            socket
        });
        let over = Arc::<AtomicBool>::default();
        let until = over.clone();
        let thread = std::thread::spawn(move || {
            let mut ways = [Ways::default(), Ways::default()];
            while !until.load(Ordering::Relaxed) {
                carry(&sockets, &mut ways, &overtaken);
            }
        });
        Bond { over, thread: Some(thread) }
    }
}

impl Drop for Bond {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok(), "a bond broke");
        }
    }
}

/// Both ways in one direction.
#[derive(Debug, Default)]
struct Ways {
    /// The frames that wait on the slow way.
    slow: VecDeque<Vec<u8>>,
    frames: usize,
}

fn carry(sockets: &[OwnedFd; 2], ways: &mut [Ways; 2], overtaken: &AtomicU64) {
    let waits = ways.iter().any(|ways| !ways.slow.is_empty());
    let mut ready = sockets.each_ref().map(|socket| PollFd::new(socket, PollFlags::IN));
    let count = poll(&mut ready, Some(if waits { &SLOW_FOR } else { &IDLE_FOR }));
    let is_quiet = matches!(count, Ok(0));
    let mut frame = vec![0; FRAME_BYTES];
    for (from, to) in [(0, 1), (1, 0)] {
        let ways = &mut ways[from];
        for _ in 0..TURN {
            // The card may be down for a while: that is none of a bond's business.
            let Ok((bytes, _)) = recv(&sockets[from], &mut frame[..], RecvFlags::DONTWAIT) else {
                break;
            };
            ways.frames += 1;
            if ways.frames.is_multiple_of(2) {
                ways.slow.push_back(frame[..bytes].to_vec());
            } else {
                overtaken.fetch_add(ways.slow.len() as u64, Ordering::Relaxed);
                pass_on(&sockets[to], &frame[..bytes]);
            }
        }
        if is_quiet || ways.slow.len() >= SLOW_FRAMES {
            ways.slow.drain(..).for_each(|frame| pass_on(&sockets[to], &frame));
        }
    }
}

fn pass_on(socket: &OwnedFd, frame: &[u8]) {
    // If the card has no room for a frame, it may drop it.
    while let Err(Errno::AGAIN | Errno::NOBUFS) = send(socket, frame, SendFlags::DONTWAIT) {
        let _ = poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&IDLE_FOR));
    }
}
