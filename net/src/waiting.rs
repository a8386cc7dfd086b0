//! Waiting for completions: spinning while that pays, then sleeping on the rails and the context.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_base::time::Time;

use crate::context::{Arm, Awaited, Completed, Context};
use crate::endpoint::Endpoint;
use crate::spin::{ANSWER_MAX, SPIN_MAX};

impl Endpoint {
    /// Waits for a completion of the context, at most `limit`. Also returns, with `None`, when a
    /// request arrived and the context wants to know of requests, or an event waits in it.
    pub fn wait(&self, context: &Context, limit: Duration) -> Option<Completed> {
        let wanted = context.queue.wants_requests;
        let news = || (wanted && self.has_requests()) || context.queue.has_written();
        self.wait_for(context, limit, &news)
    }

    /// Waits for a completion of the context, at most `limit`, or until `news` says that there is something
    /// else to look at: then it returns `None`. It is asked again whenever a request arrives, where the
    /// context wants requests.
    pub fn wait_for(
        &self,
        context: &Context,
        limit: Duration,
        news: &dyn Fn() -> bool,
    ) -> Option<Completed> {
        let deadline = (self.shared.clock)() + limit;
        loop {
            if let Some(completed) = self.test(context) {
                return Some(completed);
            }
            if news() {
                return None;
            }
            let now = (self.shared.clock)();
            if now >= deadline || self.is_closed() {
                return None;
            }
            if !self.spin(context, Awaited::Program, deadline, news) {
                self.doze(context, deadline.since(now), news);
            }
        }
    }

    /// Makes passes and sleeps until a completion waits in the context, at most `limit`, or until `news` says
    /// that there is something else to look at. Nothing is taken.
    pub fn wait_ready(
        &self,
        context: &Context,
        awaited: Awaited,
        limit: Duration,
        news: &dyn Fn() -> bool,
    ) {
        let deadline = (self.shared.clock)() + limit;
        let ready = || !context.queue.is_empty() || news();
        while !ready() && !self.is_closed() {
            self.progress();
            let now = (self.shared.clock)();
            if ready() || now >= deadline {
                return;
            }
            if !self.spin(context, awaited, deadline, news) {
                self.doze(context, deadline.since(now), news);
            }
        }
    }

    /// Sleeps until the context is rung, at most `limit`, and makes no passes: the service thread and other callers
    /// do. For threads with rare work.
    pub fn sleep_beside(&self, context: &Context, limit: Duration, news: &dyn Fn() -> bool) {
        use rustix::event::{PollFd, PollFlags, poll};
        context.queue.set_armed();
        let requests = context.queue.wants_requests && self.has_requests();
        let requests = requests || context.queue.has_written();
        if !requests && context.queue.is_empty() && !news() {
            self.wake_service();
            let timeout = rustix::time::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            let mut bell = [PollFd::from_borrowed_fd(context.descriptor(), PollFlags::IN)];
            // An interrupted sleep is a short one: the caller looks again in any case.
            let _ = poll(&mut bell, Some(&timeout));
        }
        context.queue.disarm();
    }

    /// Spins for a completion while that pays; true where there is something to look at.
    fn spin(
        &self,
        context: &Context,
        awaited: Awaited,
        deadline: Time,
        news: &dyn Fn() -> bool,
    ) -> bool {
        self.spin_while_paying(context, awaited, deadline, news)
            || self.follow(context, deadline, news)
    }

    /// Spins while a payload is coming in, of which the next bytes are never far behind: a sleep in between would
    /// cost more than their arrival takes. If they do not come, since the sender has no processor, it sleeps, and
    /// tries that less often.
    fn follow(&self, context: &Context, deadline: Time, news: &dyn Fn() -> bool) -> bool {
        let receives = || self.try_lock().is_some_and(|engine| engine.rails.is_receiving());
        let mut spin = context.queue.follow();
        if !receives() {
            return false;
        }
        let budget = spin.budget(SPIN_MAX);
        let limit = |now: Time| (now + budget).min(deadline);
        let mut until = limit((self.shared.clock)());
        let mut found = false;
        while !budget.is_zero() && !found {
            let now = (self.shared.clock)();
            if now >= until {
                spin.missed();
                break;
            }
            if self.progress() {
                spin.paid();
                until = limit(now);
                found = !context.queue.is_empty() || news() || !receives();
            }
            std::hint::spin_loop();
        }
        context.queue.set_follow(spin);
        found
    }

    /// Work for others counts, too: whoever waits while peers access its memory would sleep and wake up for each access.
    fn spin_while_paying(
        &self,
        context: &Context,
        awaited: Awaited,
        deadline: Time,
        news: &dyn Fn() -> bool,
    ) -> bool {
        let mut spin = context.queue.spin(awaited);
        let most = match awaited {
            Awaited::Program => SPIN_MAX,
            Awaited::Answer => ANSWER_MAX,
        };
        let budget = spin.budget(most);
        let limit = |now: Time| (now + budget).min(deadline);
        let mut until = limit((self.shared.clock)());
        let (mut found, mut paid) = (false, false);
        while !budget.is_zero() && !found {
            let now = (self.shared.clock)();
            if now >= until {
                break;
            }
            if self.progress() {
                (until, paid) = (limit(now), true);
            }
            found = !context.queue.is_empty() || news();
            std::hint::spin_loop();
        }
        match (budget.is_zero(), found || paid) {
            (true, _) => {}
            (false, true) => spin.paid(),
            (false, false) => spin.missed(),
        }
        context.queue.set_spin(awaited, spin);
        found
    }

    /// Whether a request waits to be taken.
    pub fn has_requests(&self) -> bool {
        !self.shared.requests.is_empty()
    }

    /// Arms the context: after `Armed` its descriptor becomes readable at the next completion, with
    /// the service thread (or another caller) making the passes.
    pub fn arm(&self, context: &Context) -> Arm {
        context.queue.set_armed();
        let requests = context.queue.wants_requests && self.has_requests();
        let requests = requests || context.queue.has_written();
        if requests || !context.queue.is_empty() {
            context.queue.disarm();
            return Arm::Ready;
        }
        self.wake_service();
        Arm::Armed
    }

    /// Takes the arming back, and silences the descriptor.
    pub fn disarm(&self, context: &Context) {
        context.queue.disarm();
    }

    /// Sleeps until there is work for the rails or a completion of the context, at most `limit`.
    pub fn sleep(&self, context: &Context, limit: Duration) {
        let wanted = context.queue.wants_requests;
        let news = || (wanted && self.has_requests()) || context.queue.has_written();
        self.doze(context, limit, &news);
    }

    fn doze(&self, context: &Context, limit: Duration, news: &dyn Fn() -> bool) {
        use rustix::event::{PollFd, PollFlags, poll};
        context.queue.set_armed();
        let mut limit = limit;
        let mut ready = news() || !context.queue.is_empty();
        let (mut armed, mut quiet) = (false, false);
        if !ready {
            match self.try_lock() {
                Some(mut engine) => {
                    armed = self.shared.arm(&mut engine);
                    ready = !armed;
                    if let Some(deadline) = engine.deadline() {
                        limit = limit.min(deadline.since(engine.now()));
                    }
                    self.unlock(engine);
                    // Commands that were carried out just now may have completed something of ours.
                    ready |= !context.queue.is_empty();
                }
                // Somebody else makes passes; news for this thread will ring.
                None => limit = limit.min(Duration::from_millis(1)),
            }
        }
        if !ready {
            self.shared.sleepers.fetch_add(1, Ordering::SeqCst);
            let mut descriptors = [
                PollFd::new(&self.shared.epoll, PollFlags::IN),
                PollFd::from_borrowed_fd(context.descriptor(), PollFlags::IN),
            ];
            let timeout = rustix::time::Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: i64::from(limit.subsec_nanos()),
            };
            // An interrupted sleep is a short one: the caller looks again in any case.
            quiet = poll(&mut descriptors, Some(&timeout)) == Ok(0);
            self.shared.sleepers.fetch_sub(1, Ordering::SeqCst);
            // The service thread did not look at one who sleeps, and the caller may compute next.
            let passes_over = &self.shared.passes_over;
            if passes_over.load(Ordering::SeqCst) && passes_over.swap(false, Ordering::SeqCst) {
                self.wake_service();
            }
        }
        if armed {
            self.shared.disarm(quiet);
        }
        context.queue.disarm();
    }
}
