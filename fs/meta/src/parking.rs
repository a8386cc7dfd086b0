//! Calls that wait: for recalled leases, a cut file, releases of locks, the end of the grace period, durable inode
//! numbers, a first data server.
//!
//! Invariants: a parked call has changed nothing and is executed again from its beginning when one of its
//! wait conditions came about, or its reply is stored and told then; calls are tried again in the order in
//! which they came.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::Kept;

/// The conditions that a call can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitOn {
    /// Leases of an inode, or its cut.
    Inode(u64),
    /// Whether locks of an inode that are in the way are still held.
    Locks(u64),
    /// The sessions that have to hear that a file grew.
    Grown(u64),
    /// The end of the grace period.
    Grace,
    /// The durable mark.
    Durable,
    /// A first pool version.
    Pool,
}

/// A call that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parked {
    pub session: u64,
    pub slot: u16,
    pub sequence: u64,
    pub request: Kept,
    pub on: Vec<WaitOn>,
}

/// All calls that wait, by ticket; tickets grow in the order of arrival.
#[derive(Debug, Default)]
pub struct Parking {
    calls: BTreeMap<u64, Parked>,
    waiting: BTreeSet<(WaitOn, u64)>,
    woken: BTreeSet<u64>,
    next_ticket: u64,
}

impl Parking {
    /// A ticket for a call that begins now.
    pub fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// The ticket of the newest call.
    pub fn newest(&self) -> u64 {
        self.next_ticket
    }

    /// Lets a call wait.
    pub fn park(&mut self, ticket: u64, call: Parked) {
        for on in &call.on {
            self.waiting.insert((*on, ticket));
        }
        self.calls.insert(ticket, call);
    }

    /// Takes a call out. The caller has to wake the calls that wait behind it when it is done.
    pub fn take(&mut self, ticket: u64) -> Option<Parked> {
        let call = self.calls.remove(&ticket)?;
        for on in &call.on {
            self.waiting.remove(&(*on, ticket));
        }
        self.woken.remove(&ticket);
        Some(call)
    }

    /// Wakes the calls that wait for `on`.
    pub fn wake(&mut self, on: WaitOn) {
        let range = (on, 0)..=(on, u64::MAX);
        self.woken.extend(self.waiting.range(range).map(|(_, ticket)| *ticket));
    }

    /// The earliest call to be tried again.
    pub fn next_woken(&mut self) -> Option<u64> {
        self.woken.pop_first()
    }

    /// Whether the call waits for `on`.
    pub fn waits(&self, on: WaitOn, ticket: u64) -> bool {
        self.waiting.contains(&(on, ticket))
    }

    /// Whether a call that came before `ticket` waits for the inode.
    pub fn is_awaited(&self, inode: u64, ticket: u64) -> bool {
        let on = WaitOn::Inode(inode);
        self.waiting.range((on, 0)..(on, ticket)).next().is_some()
    }

    /// Tickets of the calls of a session.
    pub fn of_session(&self, session: u64) -> Vec<u64> {
        let calls = self.calls.iter().filter(|(_, call)| call.session == session);
        calls.map(|(ticket, _)| *ticket).collect()
    }

    /// Calls that wait.
    pub fn count(&self) -> usize {
        self.calls.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(on: &[WaitOn]) -> Parked {
        Parked { session: 1, slot: 0, sequence: 1, request: Kept::default(), on: on.to_vec() }
    }

    #[test]
    fn calls_wake_in_order_and_only_for_what_they_wait_for() {
        let mut parking = Parking::default();
        let (first, second) = (parking.ticket(), parking.ticket());
        parking.park(second, call(&[WaitOn::Inode(5)]));
        parking.park(first, call(&[WaitOn::Inode(5), WaitOn::Inode(6)]));
        parking.wake(WaitOn::Inode(7));
        parking.wake(WaitOn::Grace);
        assert_eq!(parking.next_woken(), None);
        assert!(parking.is_awaited(5, u64::MAX) && !parking.is_awaited(5, first));
        parking.wake(WaitOn::Inode(5));
        assert_eq!(parking.next_woken(), Some(first));
        assert!(parking.take(first).is_some());
        assert_eq!(parking.next_woken(), Some(second));
        assert_eq!(parking.of_session(1), [second]);
        assert!(parking.take(second).is_some() && parking.count() == 0);
    }
}
