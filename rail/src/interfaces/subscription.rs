//! A rail's subscription to the local side of its paths.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::time::Time;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use super::shared::Interfaces;
use super::side::{LocalSide, SideState};
use super::subscriber::Subscriber;

/// The interval at which a subscriber that is awake asks the kernel for news.
pub const LOOK_EACH: Duration = Duration::from_millis(1);
/// The same for a subscriber that was woken and found nothing else: probably there is news.
const LOOK_WOKEN: Duration = Duration::from_micros(100);

/// The result of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    Nothing,
    /// The state of its side has changed.
    Changed,
    /// There will be no news any more; told once.
    Lost,
}

/// A subscription. It belongs to one rail, which polls and sleeps.
#[derive(Debug)]
pub struct Subscription {
    interfaces: Arc<Interfaces>,
    subscriber: Arc<Subscriber>,
    /// The epoll set of its user.
    set: OwnedFd,
    seen: u32,
    looked: Option<Time>,
    /// The last look left something.
    is_behind: bool,
    is_armed: bool,
    /// Rings of the bell that were not read yet.
    rings: u64,
    is_lost: bool,
    looks: u64,
}

impl Subscription {
    /// Subscribes to a local side in the network namespace of the calling thread. From now on `set` is readable, after
    /// [`Subscription::arm`] said true, when there may be news. A set serves one subscription.
    ///
    /// Fails with `NotFound` where there is no such side, and otherwise where this process cannot have the socket, or the
    /// descriptors: then the interface is to be asked.
    pub fn open(side: &LocalSide<'_>, set: BorrowedFd<'_>) -> io::Result<Subscription> {
        let interfaces = Interfaces::here()?;
        let set = set.try_clone_to_owned()?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&set, &bell, EventData::new_u64(0), EventFlags::IN)?;
        let subscriber = interfaces.enter(side, bell)?;
        let subscription = Subscription {
            interfaces,
            subscriber,
            set,
            seen: 0,
            looked: None,
            is_behind: false,
            is_armed: false,
            rings: 0,
            is_lost: false,
            looks: 0,
        };
        subscription.interfaces.watch(subscription.set.as_fd())?;
        Ok(subscription)
    }

    /// Whether the state has changed since this was asked last. Asks the kernel now and then. `is_woken`: a sleep ended,
    /// and nothing else was found.
    #[inline]
    pub fn poll(&mut self, now: Time, is_woken: bool) -> News {
        let interval = if is_woken { LOOK_WOKEN } else { LOOK_EACH };
        if self.is_behind || self.looked.is_none_or(|looked| now.since(looked) >= interval) {
            self.look(now);
        }
        if self.subscriber.changes() == self.seen {
            return News::Nothing;
        }
        self.take_news()
    }

    #[cold]
    fn look(&mut self, now: Time) {
        self.looked = Some(now);
        if !self.is_lost {
            self.looks += 1;
            self.is_behind = self.interfaces.look();
        }
    }

    #[cold]
    fn take_news(&mut self) -> News {
        self.seen = self.subscriber.changes();
        if !self.interfaces.is_broken() {
            return News::Changed;
        }
        if std::mem::replace(&mut self.is_lost, true) {
            return News::Nothing;
        }
        self.is_behind = false;
        self.interfaces.unwatch(self.set.as_fd());
        News::Lost
    }

    /// The state of its side, as far as is known.
    pub fn state(&self) -> SideState {
        self.subscriber.state()
    }

    /// Asks the kernel for the state of its interface at this moment. For a peer that is silent, since the kernel may tell
    /// of a lost carrier late. Waits for the kernel, which may be busy with other interfaces.
    pub fn ask(&mut self) -> io::Result<SideState> {
        self.looks += 1;
        self.is_behind |= self.interfaces.ask(self.state().index)?;
        Ok(self.state())
    }

    /// Prepares for sleep; false where there is news: it must be polled first.
    pub fn arm(&mut self) -> bool {
        self.is_armed = true;
        self.subscriber.sleep();
        !self.is_behind && self.subscriber.changes() == self.seen
    }

    /// The sleep is over.
    pub fn disarm(&mut self) {
        if !std::mem::take(&mut self.is_armed) {
            return;
        }
        self.rings += u64::from(self.subscriber.wake());
        if self.rings > 0 {
            // Another thread may be about to ring: then the bell is read after the next sleep.
            self.rings = self.rings.saturating_sub(self.subscriber.silence());
        }
    }

    /// How often it asked the kernel.
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Dumps of all interfaces after the first one.
    pub fn dumped_again(&self) -> u64 {
        self.interfaces.dumped_again()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A process that was forked off has its parent's epoll sets, and leaves them as they are.
        if self.interfaces.is_own() {
            self.interfaces.unwatch(self.set.as_fd());
            let _ = epoll::delete(&self.set, self.subscriber.bell());
            self.interfaces.leave(&self.subscriber);
        }
    }
}
