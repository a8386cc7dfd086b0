//! A subscriber, as the threads see it that take news in.
//!
//! A subscriber that goes to sleep says so, and then looks at the count of changes. A thread that takes a change in counts
//! it, and then looks at the sleepers. So one of both sees the other, and no change is slept through.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::side::{Side, SideState};
use super::table::Table;

/// The part of a subscription that other threads see.
#[derive(Debug)]
pub struct Subscriber {
    side: Side,
    state: Mutex<SideState>,
    changes: AtomicU32,
    is_asleep: AtomicBool,
    bell: OwnedFd,
}

impl Subscriber {
    pub fn new(side: Side, state: SideState, bell: OwnedFd) -> Subscriber {
        Subscriber {
            side,
            state: Mutex::new(state),
            changes: AtomicU32::new(0),
            is_asleep: AtomicBool::new(false),
            bell,
        }
    }

    fn locked(&self) -> MutexGuard<'_, SideState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of its side, as far as is known.
    pub fn state(&self) -> SideState {
        *self.locked()
    }

    /// Counts changes, and the end of all news.
    #[inline]
    pub fn changes(&self) -> u32 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Readable after it was rung.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// From now on it is rung once at the next news.
    pub fn sleep(&self) {
        self.is_asleep.store(true, Ordering::SeqCst);
    }

    /// It is not rung any more. Whether it was, or is about to be.
    pub fn wake(&self) -> bool {
        !self.is_asleep.swap(false, Ordering::SeqCst)
    }

    /// Silences the bell; how often it was rung since.
    pub fn silence(&self) -> u64 {
        let mut count = [0u8; 8];
        // There is nothing to read if it was not rung.
        rustix::io::read(&self.bell, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    }

    /// The index of its interface, and whether it follows an address.
    pub fn follows(&self, table: &Table) -> (u32, bool) {
        (self.side.index(table, &self.state()), self.side.has_source())
    }

    /// Looks at its side, and tells of a change.
    pub fn update(&self, table: &Table) {
        let mut state = self.locked();
        let now = self.side.state(table, &state);
        let is_new = std::mem::replace(&mut *state, now) != now;
        drop(state);
        if is_new {
            self.tell();
        }
    }

    /// Tells of news.
    pub fn tell(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.is_asleep.swap(false, Ordering::SeqCst) {
            // A counter that is full is as good as rung.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::super::names::{HardwareAddress, InterfaceName};
    use super::*;

    #[test]
    fn news_rings_once_for_each_sleep_and_never_for_one_who_is_awake() {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let state = SideState {
            fault: None,
            index: 1,
            name: InterfaceName::from_kernel(b"lo").unwrap(),
            mtu: 65536,
            hardware: HardwareAddress::default(),
            route_changes: 0,
        };
        let subscriber = Subscriber::new(Side::default(), state, bell);
        subscriber.tell();
        assert_eq!((subscriber.changes(), subscriber.silence()), (1, 0));
        subscriber.sleep();
        assert!(!subscriber.wake());
        subscriber.sleep();
        subscriber.tell();
        subscriber.tell();
        assert!(subscriber.wake());
        assert_eq!((subscriber.changes(), subscriber.silence(), subscriber.silence()), (3, 1, 0));
    }
}
