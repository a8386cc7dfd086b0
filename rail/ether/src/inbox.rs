//! Packets for an endpoint that somebody else found in the ring.
//!
//! Invariants:
//! * an inbox holds a bounded number of bytes and packets; packets that find no room are counted and dropped;
//! * a thread that puts a packet into the inbox of a sleeper wakes it, once for a sleep, and before anybody can
//!   end the sleep: the bell is silent whenever the owner is awake.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ropewalk_wire::mxoe::Station;
use rustix::event::{EventfdFlags, eventfd};

/// Bytes that wait, at most.
pub const INBOX_BYTES: usize = 4 << 20;
/// Bytes that a packet counts at least, for its entry beside it.
const PACKET_BYTES_MIN: usize = 256;
/// Memory that an inbox keeps once it is empty, in bytes.
const KEPT_BYTES: usize = 256 << 10;

/// Packets one behind the other.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The source of each packet, and the offset of its end.
    packets: Vec<(Station, usize)>,
    charged: usize,
    /// Packets that were shown.
    shown: usize,
}

impl Batch {
    fn put(&mut self, from: Station, body: &[u8]) -> bool {
        let charge = body.len().max(PACKET_BYTES_MIN);
        if self.charged + charge > INBOX_BYTES {
            return false;
        }
        self.charged += charge;
        self.bytes.extend_from_slice(body);
        self.packets.push((from, self.bytes.len()));
        true
    }

    /// Shows at most `max` of them; how many.
    pub fn show(&mut self, max: usize, to: &mut dyn FnMut(Station, &[u8])) -> usize {
        let count = max.min(self.packets.len() - self.shown);
        for _ in 0..count {
            let begin = self.shown.checked_sub(1).map_or(0, |before| self.packets[before].1);
            let (from, end) = self.packets[self.shown];
            self.shown += 1;
            to(from, &self.bytes[begin..end]);
        }
        if self.is_over() {
            self.clear();
        }
        count
    }

    /// Whether all of them were shown.
    pub fn is_over(&self) -> bool {
        self.shown == self.packets.len()
    }

    fn clear(&mut self) {
        if self.bytes.capacity() + self.packets.capacity() * size_of::<(Station, usize)>()
            > KEPT_BYTES
        {
            *self = Batch::default();
        }
        self.bytes.clear();
        self.packets.clear();
        (self.charged, self.shown) = (0, 0);
    }
}

#[derive(Debug, Default)]
struct Inside {
    batch: Batch,
    asleep: bool,
    rung: bool,
    full: u64,
    /// Bytes that were copied here.
    copied: u64,
}

/// The inbox of one endpoint.
#[derive(Debug)]
pub struct Inbox {
    inside: Mutex<Inside>,
    /// Packets that wait, for callers that only want to see whether there are some.
    waiting: AtomicUsize,
    bell: OwnedFd,
}

impl Inbox {
    /// An empty one. Fails where there is no descriptor.
    pub fn new() -> std::io::Result<Inbox> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Inbox { inside: Mutex::default(), waiting: AtomicUsize::new(0), bell })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        // Nothing in here is left half-changed.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Readable while a sleeper has packets.
    pub fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    /// A packet for the owner. Whether there was room.
    pub fn put(&self, from: Station, body: &[u8]) -> bool {
        let mut inside = self.inside();
        let put = inside.batch.put(from, body);
        if put {
            inside.copied += body.len() as u64;
            self.waiting.store(inside.batch.packets.len(), Ordering::Release);
        } else {
            inside.full += 1;
        }
        if inside.asleep && !inside.rung {
            // A counter that is full is as good as rung.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            inside.rung = true;
        }
        put
    }

    /// Whether packets wait, without waiting for anybody.
    pub fn has_packets(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }

    /// All packets that wait, in exchange for a batch that is over.
    pub fn take(&self, into: &mut Batch) {
        debug_assert!(into.is_over());
        if self.has_packets() {
            let mut inside = self.inside();
            std::mem::swap(&mut inside.batch, into);
            self.waiting.store(0, Ordering::Release);
        }
    }

    /// The owner goes to sleep; false where there are packets.
    pub fn sleep(&self) -> bool {
        let mut inside = self.inside();
        inside.asleep = inside.batch.packets.is_empty();
        inside.asleep
    }

    /// The owner is awake.
    pub fn wake(&self) {
        let mut inside = self.inside();
        inside.asleep = false;
        if std::mem::take(&mut inside.rung) {
            // Nobody else reads it.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
    }

    /// Bytes of packets that were put here.
    pub fn copied(&self) -> u64 {
        self.inside().copied
    }

    /// Packets that found no room.
    pub fn dropped(&self) -> u64 {
        self.inside().full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(inbox: &Inbox) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(inbox.bell(), PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn what_is_put_comes_out_in_order_with_whom_it_is_from() {
        let (inbox, mut batch) = (Inbox::new().unwrap(), Batch::default());
        let from = |number: u8| Station([number; 6]);
        for number in 0..100u8 {
            assert!(inbox.put(from(number), &vec![number; usize::from(number)]));
        }
        let mut next = 0;
        while next < 100 {
            if batch.is_over() {
                inbox.take(&mut batch);
            }
            let shown = batch.show(7, &mut |station, body| {
                assert_eq!((station, body), (from(next), &vec![next; usize::from(next)][..]));
                next += 1;
                // Meanwhile somebody else puts.
                assert!(next > 30 || inbox.put(from(99), b"later"));
            });
            assert!(shown > 0);
        }
        assert!(inbox.has_packets(), "what came later is kept apart");
    }

    #[test]
    fn a_full_inbox_drops_and_counts_and_gives_its_memory_back() {
        let (inbox, mut batch) = (Inbox::new().unwrap(), Batch::default());
        for body in [vec![1; 1500], Vec::new()] {
            let room = INBOX_BYTES / body.len().max(PACKET_BYTES_MIN);
            let before = inbox.dropped();
            let put = (0..room + 50).filter(|_| inbox.put(Station([0; 6]), &body)).count();
            assert_eq!((put, inbox.dropped() - before), (room, 50));
            inbox.take(&mut batch);
            assert_eq!(batch.show(usize::MAX, &mut |_, _| {}), room);
            let kept = batch.bytes.capacity() + batch.packets.capacity();
            assert!(kept <= KEPT_BYTES, "{kept} bytes");
        }
    }

    #[test]
    fn a_sleeper_is_rung_once_and_one_who_is_awake_never() {
        let (inbox, mut batch) = (Inbox::new().unwrap(), Batch::default());
        let put = || inbox.put(Station([0; 6]), b"x");
        put();
        assert!(!is_readable(&inbox) && !inbox.sleep(), "there is one");
        put();
        assert!(!is_readable(&inbox), "the owner did not go to sleep");
        inbox.take(&mut batch);
        assert!(inbox.sleep() && !is_readable(&inbox));
        put();
        put();
        assert!(is_readable(&inbox));
        inbox.wake();
        assert!(!is_readable(&inbox) && inbox.has_packets());
    }
}
