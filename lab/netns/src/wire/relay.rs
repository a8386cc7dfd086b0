//! The thread of a wire: it takes frames from either interface, and hands them to the other one at their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_rail_ether::bare::{OFFLOAD_HEADER_BYTES, all_frames};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use super::Shared;
use super::impairment::decide;
use crate::error::{Error, Result};

/// The longest that the kernel hands over.
const FRAME_BYTES: usize = (1 << 16) + 256 + OFFLOAD_HEADER_BYTES;
/// Bytes of frames that wait in each socket, and in the wire.
const SOCKET_BYTES: usize = 16 << 20;
const WAITING_BYTES: usize = 64 << 20;
/// Frames of one direction before it is the other's turn.
const TURN: usize = 64;
/// The thread sleeps as exactly as the kernel can, in nanoseconds.
const SLACK: NonZeroU64 = NonZeroU64::MIN;

/// The thread, until it is dropped.
#[derive(Debug)]
pub(super) struct Running {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// When a frame goes on, its number, its direction, and itself.
type Waiting = Reverse<(Instant, u64, usize, Vec<u8>)>;

struct Relay {
    shared: Arc<Shared>,
    sockets: [OwnedFd; 2],
    waiting: BinaryHeap<Waiting>,
    waiting_bytes: usize,
    number: u64,
    frame: Vec<u8>,
    delays: Vec<Duration>,
}

impl Running {
    /// In the namespace that this thread is in.
    pub fn start(ends: &[String; 2], shared: &Arc<Shared>) -> Result<Running> {
        let open = |name: &String| {
            let socket = all_frames(name)?;
            sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES)?;
            sockopt::set_socket_send_buffer_size_force(&socket, SOCKET_BYTES)?;
            Ok::<_, std::io::Error>(socket)
        };
        let failed =
            |error| Error::system(format!("cannot join {} and {}", ends[0], ends[1]), error);
        let sockets = [open(&ends[0]).map_err(failed)?, open(&ends[1]).map_err(failed)?];
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let stop = Arc::new(stop);
        let mut relay = Relay {
            shared: shared.clone(),
            sockets,
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            number: 0,
            frame: vec![0; FRAME_BYTES],
            delays: Vec::new(),
        };
        let until = stop.clone();
        let name = "ropewalk-wire".to_string();
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _ = rustix::thread::set_current_timer_slack(Some(SLACK));
            while !relay.wait(&until) {
                relay.take(0);
                relay.take(1);
            }
        });
        Ok(Running { stop, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let told = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take().filter(|_| told.is_ok()) {
            let _ = thread.join();
        }
    }
}

impl Relay {
    /// Hands over the frames whose time has come, and waits for the next ones. Returns whether the wire is gone.
    fn wait(&mut self, stop: &OwnedFd) -> bool {
        let now = Instant::now();
        while let Some(next) = self.waiting.peek() {
            let Reverse((due, ..)) = next;
            if *due > now {
                break;
            }
            let Some(Reverse((_, _, direction, frame))) = self.waiting.pop() else { break };
            self.waiting_bytes -= frame.len();
            self.pass_on(direction, &frame);
        }
        let limit = self.waiting.peek().map(|Reverse((due, ..))| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut ready = [
            PollFd::new(&self.sockets[0], PollFlags::IN),
            PollFd::new(&self.sockets[1], PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        let _ = poll(&mut ready, limit.as_ref());
        !ready[2].revents().is_empty()
    }

    /// Takes frames of a direction, up to its turn's end.
    fn take(&mut self, direction: usize) {
        let shared = self.shared.clone();
        let mut active = shared.active();
        let counters = &shared.counters[direction];
        for _ in 0..TURN {
            // An interface may be down for a while; then there is nothing.
            let taken = recv(&self.sockets[direction], &mut self.frame[..], RecvFlags::DONTWAIT);
            let Ok((bytes, _)) = taken else { break };
            let end = bytes.min(FRAME_BYTES);
            let from = OFFLOAD_HEADER_BYTES.min(end);
            let frame = &mut self.frame[from..end];
            counters.count(&decide(&mut active, direction, frame, &mut self.delays));
            for index in 0..self.delays.len() {
                let delay = self.delays[index];
                if delay.is_zero() {
                    self.pass_on(direction, &self.frame[..end]);
                } else {
                    self.hold(direction, delay, end);
                }
            }
        }
    }

    fn hold(&mut self, direction: usize, delay: Duration, bytes: usize) {
        if self.waiting_bytes + bytes > WAITING_BYTES {
            self.shared.counters[direction].dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.waiting_bytes += bytes;
        self.number += 1;
        let (due, frame) = (Instant::now() + delay, self.frame[..bytes].to_vec());
        self.waiting.push(Reverse((due, self.number, direction, frame)));
    }

    fn pass_on(&self, direction: usize, frame: &[u8]) {
        if send(&self.sockets[1 - direction], frame, SendFlags::DONTWAIT).is_err() {
            self.shared.counters[direction].dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
