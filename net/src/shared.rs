//! The state that the handles of an endpoint share: the engine and its lock, the commands that are left for the
//! engine's holder, and the threads that sleep on the rails.
//!
//! Invariant: a thread that releases the engine has carried out the commands that were left for it, or another
//! thread holds the engine by then; a thread that makes a pass leaves the rails armed for the sleepers.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ropewalk_base::time::Time;
use ropewalk_core::{Identity, OperationId};

use crate::engine::{Command, Engine, Requests, SharedClock, Signals};
use crate::on_demand::OnDemandRails;
use crate::payload::PayloadModes;
use crate::security::Security;
use crate::service::Service;
use crate::teller::{Callers, Door, StartTeller, Teller};

/// Orders a write before a look at another thread's write; that thread writes before it looks at ours. On x86-64
/// both writes in question, counting a command and opening the lock, are locked
/// instructions and order everything already.
#[inline]
pub(crate) fn order_write_before_look() {
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(Ordering::SeqCst);
}

/// Tries to leave the rails armed after a pass beside sleepers, before these are woken instead.
const ARM_TRIES: u32 = 16;

/// Numbers that are kept for posts that find the engine taken.
const RESERVE: usize = 256;

pub(crate) struct Shared {
    /// As in `Config::paths_max`.
    pub paths_wanted: usize,
    pub engine: Mutex<Engine>,
    pub commands: Mutex<VecDeque<Command>>,
    pub command_count: AtomicU32,
    /// Numbers for posts that find the engine taken.
    pub reserve: Mutex<Vec<OperationId>>,
    pub requests: Arc<Requests>,
    pub signals: Arc<Signals>,
    /// Readable when an armed rail has work, or sleepers shall look again.
    pub epoll: OwnedFd,
    pub nudge: OwnedFd,
    pub nudged: AtomicBool,
    /// Threads that sleep on the rails; changed under the engine's lock, but for going down.
    pub armed: AtomicU32,
    /// When the sleepers will look by themselves.
    pub sleep_until: AtomicU64,
    /// Passes that applications made: the service thread steps back while this moves.
    pub passes: AtomicU64,
    /// Waiters that sleep on the rails themselves.
    pub sleepers: AtomicU32,
    pub exposures: AtomicU32,
    /// Accesses of peers that the service thread served.
    pub served_apart: AtomicU64,
    /// The service thread rests for longer than it does beside an application that needs it.
    pub long_rest: AtomicBool,
    /// The service thread rests for long although memory is exposed: somebody sleeps, who says when that is over.
    pub passes_over: AtomicBool,
    pub closing: AtomicBool,
    pub clock: SharedClock,
    pub identity: Identity,
    /// What rails that are added later have to have.
    pub protection: (PayloadModes, Security),
    pub addresses: String,
    pub service: Mutex<Option<Service>>,
    /// Answers those who ask for the counters, in the service thread.
    pub teller: Mutex<Option<Arc<dyn Teller>>>,
    pub start_teller: Option<StartTeller>,
    /// Where the service thread lets others in.
    pub door: Mutex<Option<Arc<dyn Door>>>,
    pub on_demand: OnDemandRails,
}

/// The engine, for as long as a rare call needs it; lets go of it as [`Shared::unlock`] does.
pub(crate) struct Held<'a> {
    shared: &'a Shared,
    engine: Option<MutexGuard<'a, Engine>>,
}

impl Deref for Held<'_> {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        self.engine.as_ref().expect("taken by the drop alone")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("taken by the drop alone")
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // An engine that panicked carries nothing out any more.
        if let Some(engine) = self.engine.take().filter(|_| !std::thread::panicking()) {
            self.shared.unlock(engine);
        }
    }
}

impl Shared {
    /// The teller that the service thread serves.
    pub fn teller(&self) -> Option<Arc<dyn Teller>> {
        self.teller.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets this teller, or removes it.
    pub fn set_teller(&self, teller: Option<Box<dyn Teller>>) {
        *self.teller.lock().unwrap_or_else(PoisonError::into_inner) = teller.map(Arc::from);
    }

    /// Those whom the service thread answers now.
    pub fn callers(&self) -> Callers {
        let door = self.door.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Callers { teller: self.teller(), door }
    }

    /// Sets this door, or removes it.
    pub fn set_door(&self, door: Option<Arc<dyn Door>>) {
        *self.door.lock().unwrap_or_else(PoisonError::into_inner) = door;
    }

    /// Waits for the engine.
    pub fn locked(&self) -> Held<'_> {
        let engine = self.engine.lock().expect("an engine that panicked is not used again");
        Held { shared: self, engine: Some(engine) }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, Engine>> {
        match self.engine.try_lock() {
            Ok(engine) => Some(engine),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("an engine that panicked is not used again"),
        }
    }

    /// Carries out the commands that others left meanwhile, and lets go. If a command is left after the last look,
    /// the thread that left it sees this: it tries the lock after it counted.
    #[inline]
    pub fn unlock(&self, engine: MutexGuard<'_, Engine>) {
        if self.command_count.load(Ordering::SeqCst) > 0 || self.armed.load(Ordering::Relaxed) > 0 {
            return self.unlock_busy(engine);
        }
        drop(engine);
        order_write_before_look();
        if self.command_count.load(Ordering::SeqCst) > 0
            && let Some(engine) = self.try_lock()
        {
            self.unlock_busy(engine);
        }
    }

    #[cold]
    fn unlock_busy(&self, engine: MutexGuard<'_, Engine>) {
        let mut engine = engine;
        loop {
            while self.command_count.load(Ordering::SeqCst) > 0 {
                self.run_commands(&mut engine);
            }
            if self.armed.load(Ordering::Relaxed) > 0 {
                self.warn_sleepers(&engine);
            }
            drop(engine);
            order_write_before_look();
            if self.command_count.load(Ordering::SeqCst) == 0 {
                return;
            }
            match self.try_lock() {
                Some(again) => engine = again,
                None => return,
            }
        }
    }

    /// One pass. The thread that makes it leaves the rails armed for the sleepers: the pass may have taken the event
    /// that would have woken them, and nobody knows whether there will be another pass. During the pass rails are
    /// awake: nobody has to be woken for work that the pass sees itself.
    #[inline]
    pub fn pass(&self, engine: &mut Engine) -> bool {
        if engine.rails.are_armed() {
            engine.disarm();
        }
        let any = engine.progress();
        if self.armed.load(Ordering::Relaxed) > 0 {
            return self.leave_armed(engine) | any;
        }
        any
    }

    #[cold]
    fn leave_armed(&self, engine: &mut Engine) -> bool {
        let mut any = false;
        for _ in 0..ARM_TRIES {
            if engine.arm() {
                return any;
            }
            any |= engine.progress();
        }
        self.nudge();
        any
    }

    /// Arms the rails for a sleep of the caller; false where there is work.
    pub fn arm(&self, engine: &mut Engine) -> bool {
        if !engine.arm() {
            // The sleepers are not armed any more, and the caller may make no pass.
            if self.armed.load(Ordering::Relaxed) > 0 {
                self.leave_armed(engine);
            }
            return false;
        }
        let until = engine.deadline().unwrap_or(Time::NEVER);
        self.armed.fetch_add(1, Ordering::Relaxed);
        self.sleep_until.store(until.0, Ordering::Relaxed);
        true
    }

    /// A sleep after [`Shared::arm`] is over. `quiet`: it lasted as long as it should, and the rails had
    /// nothing to say all the time.
    pub fn disarm(&self, quiet: bool) {
        let last = self.armed.fetch_sub(1, Ordering::Relaxed) == 1;
        if !last {
            return;
        }
        if let Some(mut engine) = self.try_lock() {
            // A pass by another thread meanwhile disarmed the rails, and may have taken their news.
            if quiet && engine.rails.are_armed() {
                engine.disarm_quiet();
            }
            self.stand_up(&mut engine);
            return self.unlock(engine);
        }
        // The holder ends the arming: nobody knows when the next pass comes, and a rail that seems to sleep may
        // be the one that is woken for its neighbours, too.
        {
            let mut commands = self.commands.lock().expect("never left half-changed");
            commands.push_back(Command::StandUp);
            self.command_count.fetch_add(1, Ordering::SeqCst);
        }
        order_write_before_look();
        if let Some(engine) = self.try_lock() {
            self.unlock(engine);
        }
    }

    /// Ends the arming where nobody sleeps any more.
    pub fn stand_up(&self, engine: &mut Engine) {
        if self.nudged.swap(false, Ordering::Relaxed) {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&self.nudge, &mut count);
        }
        if self.armed.load(Ordering::Relaxed) == 0 && engine.rails.are_armed() {
            engine.disarm();
        }
    }

    /// Sleepers counted on a later deadline than there is now: they look again.
    fn warn_sleepers(&self, engine: &Engine) {
        let due = engine.deadline().unwrap_or(Time::NEVER).0;
        if due < self.sleep_until.load(Ordering::Relaxed) {
            self.sleep_until.store(due, Ordering::Relaxed);
            self.nudge();
        }
    }

    pub fn nudge(&self) {
        // A full counter means that it is readable already.
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
        self.nudged.store(true, Ordering::Relaxed);
    }

    pub fn run_commands(&self, engine: &mut Engine) {
        loop {
            let command = self.commands.lock().expect("never left half-changed").pop_front();
            let Some(command) = command else { break };
            self.command_count.fetch_sub(1, Ordering::SeqCst);
            match command {
                Command::StandUp => self.stand_up(engine),
                command => engine.command(command),
            }
        }
        self.fill_reserve(engine);
    }

    pub fn fill_reserve(&self, engine: &mut Engine) {
        let mut reserve = self.reserve.lock().expect("never left half-changed");
        while reserve.len() < RESERVE {
            match engine.allocate() {
                Some(id) => reserve.push(id),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
    use ropewalk_base::memory::Memory;
    use ropewalk_core::{Channel, Level, Oversize};
    use ropewalk_rail::address::Address;
    use ropewalk_rail_shm::{ShmConfig, ShmRail};

    use crate::context::Completed;
    use crate::endpoint::{Endpoint, EndpointConfig, Posted};

    fn endpoint(number: u64) -> Endpoint {
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number.into());
        config.incarnation = Incarnation(number);
        config.service_thread = false;
        let name = format!("order{}-{number}", std::process::id());
        let rail = ShmRail::open(ShmConfig::within_process(name)).unwrap();
        Endpoint::open(config, vec![Box::new(rail)]).unwrap()
    }

    #[test]
    fn what_was_left_for_a_holder_goes_before_what_is_posted_after_it() {
        let (sender, receiver) = (endpoint(1), endpoint(2));
        let own = (sender.context(false).unwrap(), receiver.context(false).unwrap());
        let peer = sender.lookup(&Address::parse(receiver.addresses()).unwrap()).unwrap();
        let pool = ropewalk_base::pool::Pool::with_budget(1 << 16);
        let post = |user| {
            let (bytes, level) = (Memory::constant(b"x"), Level::Buffered);
            sender.post_send(&own.0, peer, Channel::Tagged, user, bytes, level, user).unwrap()
        };
        let receive = || {
            let memory = Memory::pooled(pool.take(8).unwrap());
            let cut = Oversize::Truncate;
            let posted =
                receiver.post_receive(&own.1, Channel::Tagged, None, 0, 0, memory, cut, 0).unwrap();
            let done = |completed: Completed| completed.bits;
            match posted {
                Posted::Done(completed) => done(completed),
                Posted::Pending(_) => loop {
                    sender.progress();
                    if let Some(completed) = receiver.test(&own.1) {
                        break done(completed);
                    }
                },
            }
        };
        post(0);
        assert_eq!(receive(), 0, "the session is there");
        let holder = sender.try_lock().unwrap();
        assert!(matches!(post(1), Posted::Pending(_)), "left for the holder");
        // Acts as a thread that has already looked for commands for the last time.
        drop(holder);
        post(2);
        assert_eq!((receive(), receive()), (1, 2));
        // A holder for a rare call carries out the commands that were left, too.
        let holder = sender.locked();
        assert!(matches!(post(3), Posted::Pending(_)), "left for the holder");
        drop(holder);
        assert_eq!(sender.shared.command_count.load(super::Ordering::SeqCst), 0);
    }

    #[test]
    fn the_last_one_to_wake_up_leaves_nothing_armed_beside_a_holder() {
        let endpoint = endpoint(5);
        let shared = &endpoint.shared;
        let mut engine = endpoint.try_lock().unwrap();
        while !shared.arm(&mut engine) {
            engine.progress();
        }
        // It wakes up while somebody else, who makes no pass, has the engine.
        shared.disarm(false);
        assert!(engine.rails.are_armed(), "only the holder can");
        shared.unlock(engine);
        assert!(!endpoint.try_lock().unwrap().rails.are_armed());
    }

    #[test]
    fn who_cannot_sleep_leaves_others_armed_or_awake() {
        let (sender, receiver) = (endpoint(3), endpoint(4));
        let context = sender.context(false).unwrap();
        let peer = sender.lookup(&Address::parse(receiver.addresses()).unwrap()).unwrap();
        let pool = ropewalk_base::pool::Pool::with_budget(1 << 16);
        let post = || {
            let (bytes, level) = (Memory::constant(b"x"), Level::Buffered);
            sender.post_send(&context, peer, Channel::Tagged, 0, bytes, level, 0).unwrap()
        };
        let own = receiver.context(false).unwrap();
        let memory = Memory::pooled(pool.take(8).unwrap());
        let cut = Oversize::Truncate;
        receiver.post_receive(&own, Channel::Tagged, None, 0, 0, memory, cut, 0).unwrap();
        post();
        while receiver.test(&own).is_none() {
            sender.progress();
        }
        let shared = &receiver.shared;
        let mut engine = receiver.locked();
        while !shared.arm(&mut engine) {
            engine.progress();
        }
        // The second thread to go to sleep is between the end of the first arming and its own. A frame that arrives
        // then rings for nobody.
        engine.disarm();
        post();
        assert!(!shared.arm(&mut engine), "there is work");
        // It may find something else to do now, and make no pass. The first one still sleeps.
        assert_eq!(engine.core.unmatched_count(), 1, "the message was taken in");
        assert!(engine.rails.are_armed(), "whatever comes next rings");
    }
}
