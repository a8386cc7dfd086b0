//! The choice of the sleeper that shared sockets wake.
//!
//! A socket in the epoll sets of all sleepers would wake all of them for each packet. So it is in one set, that of
//! the *watcher*. The watcher looks at the ring when it is woken, and wakes those whose packets it finds. Several
//! sockets move from set to set together.
//!
//! Beside a member that is awake and looks at the ring all the time, each packet would wake the watcher for nothing.
//! So a watcher keeps the socket while it is awake, unless it is so busy that the socket costs more than to take it
//! again. A watcher that sees that others look gives the socket up. The *guard*, a sleeper with a timer in its set,
//! then checks whether there are enough looks. If there were too few since the timer was started, the socket goes to
//! a sleeper.
//!
//! Invariants:
//! * while anybody sleeps, the watcher sleeps, or the guard sleeps and the timer runs: no packet of a sleeper
//!   waits for longer than two of the timer's times beside others who are awake and do not look;
//! * the sockets are in one set at most, and the timer asks for attention in one;
//! * if a resource is missing (the kernel's memory for the socket in another set), the timer keeps running.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::numbers::Numbers;

/// The time for which members that are awake are trusted at a time.
const TRUST: Duration = Duration::from_millis(1);
/// Looks at the ring in that time by which the trust is earned.
const LOOKS_MIN: u64 = 20;
/// The same for any time: the interval at which there must be a look. In a short time there must be some.
const LOOK_EACH: Duration = Duration::from_micros(50);
const LOOKS_SEEN: u64 = 4;

/// The sleepers of one socket.
#[derive(Debug)]
pub struct Watch {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sockets: Vec<OwnedFd>,
    timer: OwnedFd,
    members: BTreeMap<u8, Member>,
    asleep: Numbers,
    /// The member whose set has the socket, and the member in whose set the timer asks for attention.
    watcher: Option<u8>,
    guard: Option<u8>,
    /// The timer runs, or has run out: since when, and the looks by then.
    trusted: Option<(Instant, u64)>,
}

#[derive(Debug)]
struct Member {
    set: OwnedFd,
    /// When it went to sleep, and the looks by then.
    slept: (Instant, u64),
    /// While it slept others looked at the ring all the time.
    others_look: bool,
}

/// No sleeper of an epoll set tells its descriptors apart.
fn unnamed() -> EventData {
    EventData::new_u64(0)
}

fn set_timer(timer: &OwnedFd, after: Duration) {
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    let after = Timespec { tv_sec: 0, tv_nsec: i64::from(after.subsec_nanos()) };
    let value = Itimerspec { it_interval: none, it_value: after };
    // The arguments are in range: nothing can fail.
    let _ = timerfd_settime(timer, TimerfdTimerFlags::empty(), &value);
}

impl Watch {
    /// Nobody sleeps on these sockets. Fails where there is no descriptor.
    pub fn new(sockets: Vec<OwnedFd>) -> std::io::Result<Watch> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let state = State {
            sockets,
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            members: BTreeMap::new(),
            asleep: Numbers::default(),
            watcher: None,
            guard: None,
            trusted: None,
        };
        Ok(Watch { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves it as the invariants say.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A member sleeps on this set from now on.
    pub fn enter(&self, own: u8, set: BorrowedFd<'_>) -> std::io::Result<()> {
        let set = set.try_clone_to_owned()?;
        let mut state = self.state();
        epoll::add(&set, &state.timer, unnamed(), EventFlags::empty())?;
        let slept = (Instant::now(), 0);
        state.members.insert(own, Member { set, slept, others_look: false });
        Ok(())
    }

    /// A member sleeps no more.
    pub fn leave(&self, own: u8, looks: u64) {
        let mut state = self.state();
        state.asleep.remove(own);
        if state.watcher == Some(own) {
            match state.asleep.last() {
                Some(heir) => state.watch(heir),
                None => state.unwatch(),
            }
        }
        state.ensure(looks);
        if state.guard == Some(own) {
            state.guard = None;
            state.trusted = None;
        }
        if let Some(Member { set, .. }) = state.members.remove(&own) {
            // The set may be somebody else's as well, and live on.
            let _ = epoll::delete(&set, &state.timer);
            if state.watcher == Some(own) {
                state.remove_from(&set, state.sockets.len());
                state.watcher = None;
            }
        }
    }

    /// Goes to sleep. `eager`: packets came for it since it slept last, so that the next may be, too. Whether
    /// it is the watcher now.
    pub fn sleep(&self, own: u8, eager: bool, looks: u64) -> bool {
        let mut state = self.state();
        state.judge(own, looks);
        state.asleep.insert(own);
        let mut trusts = false;
        if let Some(member) = state.members.get_mut(&own) {
            member.slept = (Instant::now(), looks);
            trusts = member.others_look && !eager;
        }
        match state.watcher {
            Some(watcher) if watcher == own && trusts => state.unwatch(),
            Some(watcher) if watcher == own => {}
            Some(watcher) if eager && state.asleep.contains(watcher) => state.watch(own),
            Some(_) => {}
            None if eager || (state.trusted.is_none() && !trusts) => state.watch(own),
            None => {}
        }
        state.ensure(looks);
        state.watcher == Some(own)
    }

    /// A member that is awake has much to do. The kernel does its work for sleepers on a socket for each packet that
    /// comes or has left. So the sockets go out of the member's set until it sleeps again.
    pub fn busy(&self, own: u8, looks: u64) {
        let mut state = self.state();
        if state.watcher == Some(own) && !state.asleep.contains(own) {
            state.unwatch();
            state.ensure(looks);
        }
    }

    /// Is awake.
    pub fn wake(&self, own: u8, looks: u64) {
        let mut state = self.state();
        if state.asleep.contains(own)
            && let Some(member) = state.members.get_mut(&own)
        {
            let (since, before) = member.slept;
            let wanted = since.elapsed().as_nanos() / LOOK_EACH.as_nanos();
            let seen = looks.wrapping_sub(before);
            member.others_look = seen >= LOOKS_SEEN && u128::from(seen) >= wanted;
        }
        state.asleep.remove(own);
        state.judge(own, looks);
        state.ensure(looks);
    }
}

impl State {
    fn watcher_sleeps(&self) -> bool {
        self.watcher.is_some_and(|watcher| self.asleep.contains(watcher))
    }

    /// If this is the guard and the timer has run out, judges whether the members that are awake were worth the trust.
    fn judge(&mut self, own: u8, looks: u64) {
        let ran_out = |(since, _): &mut (Instant, u64)| since.elapsed() >= TRUST;
        if self.guard != Some(own) {
            return;
        }
        let Some((_, before)) = self.trusted.take_if(ran_out) else { return };
        // From here on it does not ask for attention.
        set_timer(&self.timer, Duration::ZERO);
        if !self.watcher_sleeps() && looks.wrapping_sub(before) < LOOKS_MIN {
            match self.asleep.last() {
                Some(heir) => self.watch(heir),
                // The next one to go to sleep takes it.
                None => self.unwatch(),
            }
        }
    }

    /// Makes someone the watcher, if the kernel has the memory.
    fn watch(&mut self, heir: u8) {
        if self.watcher == Some(heir) {
            return;
        }
        let Some(heirs) = self.members.get(&heir) else { return };
        let mut sockets = self.sockets.iter();
        let refuses =
            |socket: &&OwnedFd| epoll::add(&heirs.set, socket, unnamed(), EventFlags::IN).is_err();
        if let Some(first) = sockets.position(|socket| refuses(&socket)) {
            self.remove_from(&heirs.set, first);
            return;
        }
        self.unwatch();
        self.watcher = Some(heir);
    }

    /// Takes the first so many sockets out of a set.
    fn remove_from(&self, set: &OwnedFd, count: usize) {
        for socket in &self.sockets[..count] {
            let _ = epoll::delete(set, socket);
        }
    }

    fn unwatch(&mut self) {
        if let Some(member) = self.watcher.take().and_then(|own| self.members.get(&own)) {
            // They are there.
            self.remove_from(&member.set, self.sockets.len());
        }
    }

    /// Sees to it that there is a guard where one is needed. The last one by number stands up last where one
    /// thread sleeps on many.
    fn ensure(&mut self, looks: u64) {
        if self.asleep.is_empty() || self.watcher_sleeps() {
            return;
        }
        if !self.guard.is_some_and(|guard| self.asleep.contains(guard)) {
            self.point_timer(self.guard, EventFlags::empty());
            self.guard = self.asleep.last();
            self.point_timer(self.guard, EventFlags::IN);
        }
        if self.trusted.is_none() {
            self.trusted = Some((Instant::now(), looks));
            set_timer(&self.timer, TRUST);
        }
    }

    fn point_timer(&self, at: Option<u8>, flags: EventFlags) {
        if let Some(member) = at.and_then(|at| self.members.get(&at)) {
            // A change of an entry that exists: nothing can fail.
            let _ = epoll::modify(&member.set, self.timer.as_fd(), unnamed(), flags);
        }
    }
}

#[cfg(test)]
mod tests;
