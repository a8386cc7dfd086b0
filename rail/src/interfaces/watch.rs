//! A rail's watch on its local side: the subscription, where there is one, and the signs of a broken path in its news.
//!
//! Invariant: each fault of the side is told once when it begins, whatever else changes meanwhile.

use std::io;
use std::os::fd::BorrowedFd;

use ropewalk_base::health::Suspicion;
use ropewalk_base::time::Time;

use super::side::{LocalFault, LocalSide, SideState};
use super::subscription::{News, Subscription};

/// The meaning of news for a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// There will be no news any more: the interface is to be asked.
    pub is_last: bool,
    /// All paths of the side are suspect from now on.
    pub suspicion: Option<Suspicion>,
    /// Routes have changed: each path may have another one, or none.
    pub may_lack_routes: bool,
}

/// See the module. The default watches nothing.
#[derive(Debug, Default)]
pub struct LocalWatch {
    subscription: Option<Subscription>,
    fault: Option<LocalFault>,
    route_changes: u32,
    is_armed: bool,
    /// A sleep ended, and no pass since.
    is_woken: bool,
}

impl LocalWatch {
    /// Watches a side in the network namespace of the calling thread: its news wakes a sleeper on `set`. Fails as
    /// [`Subscription::open`].
    pub fn open(side: &LocalSide<'_>, set: BorrowedFd<'_>) -> io::Result<LocalWatch> {
        let subscription = Subscription::open(side, set)?;
        let SideState { fault, route_changes, .. } = subscription.state();
        let subscription = Some(subscription);
        Ok(LocalWatch { subscription, fault, route_changes, ..LocalWatch::default() })
    }

    /// Whether there is a subscription.
    pub fn is_open(&self) -> bool {
        self.subscription.is_some()
    }

    /// The state of the side, as far as is known.
    pub fn state(&self) -> Option<SideState> {
        self.subscription.as_ref().map(Subscription::state)
    }

    /// The news since this was asked last, to be asked for in each pass.
    #[inline]
    pub fn poll(&mut self, now: Time) -> Option<Change> {
        self.look(now, false)
    }

    /// The same at the end of a pass, or for a rail whose epoll set is readable for it: a sleep ended, and the pass found
    /// nothing else, so that there may be news.
    pub fn poll_woken(&mut self, now: Time, is_woken: bool) -> Option<Change> {
        if std::mem::take(&mut self.is_woken) || is_woken { self.look(now, true) } else { None }
    }

    /// A pass found what had woken it.
    #[inline]
    pub fn note_awake(&mut self) {
        self.is_woken = false;
    }

    #[inline]
    fn look(&mut self, now: Time, is_woken: bool) -> Option<Change> {
        let subscription = self.subscription.as_mut()?;
        match subscription.poll(now, is_woken) {
            News::Nothing => None,
            News::Changed => Some(self.judge()),
            News::Lost => Some(Change { is_last: true, suspicion: None, may_lack_routes: false }),
        }
    }

    #[cold]
    fn judge(&mut self) -> Change {
        let (mut suspicion, mut may_lack_routes) = (None, false);
        if let Some(SideState { fault, route_changes, .. }) = self.state() {
            let is_new = std::mem::replace(&mut self.fault, fault) != fault;
            suspicion = fault.filter(|_| is_new).map(suspicion_of);
            may_lack_routes =
                std::mem::replace(&mut self.route_changes, route_changes) != route_changes;
        }
        Change { is_last: false, suspicion, may_lack_routes }
    }

    /// Prepares for sleep; false where there is news: it must be polled first.
    pub fn arm(&mut self) -> bool {
        self.is_armed = true;
        self.subscription.as_mut().is_none_or(Subscription::arm)
    }

    /// The sleep is over. `is_quiet`: nothing has woken the rail.
    pub fn disarm(&mut self, is_quiet: bool) {
        let was_armed = std::mem::take(&mut self.is_armed);
        self.is_woken |= was_armed && !is_quiet;
        if let Some(subscription) = &mut self.subscription {
            subscription.disarm();
        }
    }

    /// How often it asked the kernel.
    pub fn looks(&self) -> u64 {
        self.subscription.as_ref().map_or(0, Subscription::looks)
    }
}

fn suspicion_of(fault: LocalFault) -> Suspicion {
    match fault {
        LocalFault::InterfaceRemoved => Suspicion::InterfaceGone,
        LocalFault::InterfaceDown => Suspicion::InterfaceDown,
        LocalFault::AddressRemoved => Suspicion::AddressGone,
        LocalFault::CarrierLost => Suspicion::CarrierLost,
    }
}
