//! The service thread: progress while the application makes none.
//!
//! It steps back while the application makes passes of its own: then it only looks now and then
//! whether that is still so, without touching a rail. When the passes stop it arms the rails and
//! serves them, until passes are made again.
//!
//! A look costs a wake-up, maybe on the application's own processor; a peer's access to exposed memory waits for
//! it. So it looks each 100 us for a while after the application has computed for a millisecond, since such a
//! program soon computes again, and otherwise each millisecond. It does not look at an application that sleeps;
//! the end of that sleep nudges it. It looks
//! each 2 ms while messages are announced or long ones awaited, otherwise each 10 ms, and less and less often beside an
//! application that sleeps and has little to do whenever it wakes up.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::engine::Engine;
use crate::shared::Shared;
use crate::teller::{Asked, Callers};

/// The time between looks while memory is exposed and the application computes now and then.
const LOOK_EXPOSED: Duration = Duration::from_micros(100);
/// The same, if it has made passes all the time: a thousand looks cost less than half a per cent of a processor.
const LOOK_EXPOSED_BESIDE: Duration = Duration::from_millis(1);
/// An application that has computed does so again within this time, or it only communicates now.
const COMPUTES_WITHIN: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(10);
/// The longest time between looks at an application that does nothing.
const LOOK_IDLE: Duration = Duration::from_millis(80);
/// The time between looks while messages of the application are announced, whose receivers may need us,
/// or long ones are awaited: the application may compute until they are there.
const LOOK_LONG: Duration = Duration::from_millis(2);
/// Passes between two looks of an application that does nothing, at most.
const PASSES_IDLE: u64 = 64;
/// The longest time between two passes of an application that polls.
const PASS_WITHIN: Duration = Duration::from_micros(5);
/// A service thread that has nothing due still looks whether the endpoint lives.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The time for which rails of a closed endpoint try to send what they have taken.
const FINISH_WITHIN: Duration = Duration::from_secs(10);
const FINISH_LOOK: Duration = Duration::from_millis(1);

/// A running service thread.
pub(crate) struct Service {
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Starts the service thread of an endpoint.
pub(crate) fn start(shared: &Arc<Shared>) -> std::io::Result<Service> {
    let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (weak, inner) = (Arc::downgrade(shared), bell.clone());
    let thread = crate::threads::start("ropewalk-service", move || run(&weak, &inner))?;
    Ok(Service { bell, thread: Some(thread) })
}

impl Service {
    /// There is something new to serve: look at once.
    pub fn nudge(&self) {
        // A full counter means that it is nudged already.
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
    }

    /// Ends the thread; the endpoint is closing.
    pub fn stop(mut self) {
        self.nudge();
        if let Some(thread) = self.thread.take() {
            let own = thread.thread().id() == std::thread::current().id();
            if !own {
                let _ = thread.join();
            }
        }
    }
}

/// Goes on with the rails of a closed endpoint, of which nobody makes passes any more, while it is there: a farewell behind
/// frames that wait for room would never leave, and the peer would wait for us.
pub(crate) fn finish(shared: &Arc<Shared>) -> std::io::Result<()> {
    let weak = Arc::downgrade(shared);
    let work = move || {
        let begin = Instant::now();
        while begin.elapsed() < FINISH_WITHIN {
            let Some(shared) = weak.upgrade() else { return };
            if let Some(mut engine) = shared.try_lock() {
                shared.pass(&mut engine);
                let owes = engine.rails.owe();
                shared.unlock(engine);
                if !owes {
                    return;
                }
            }
            drop(shared);
            std::thread::sleep(FINISH_LOOK);
        }
    };
    crate::threads::start("ropewalk-finish", work).map(drop)
}

fn run(weak: &Weak<Shared>, bell: &OwnedFd) {
    let mut seen = u64::MAX;
    let mut look = LOOK;
    let mut nudged = false;
    let mut computed: Option<Instant> = None;
    let mut moved_at = Instant::now();
    // When the rails were armed that have work now.
    let mut served: Option<Instant> = None;
    loop {
        let Some(shared) = weak.upgrade() else { return };
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let passes = shared.passes.load(Ordering::Relaxed);
        let asleep = shared.sleepers.load(Ordering::SeqCst) > 0;
        let moved = passes.wrapping_sub(seen);
        // An application that has polled for a small part of the time since then probably computes now. If it does not, its
        // passes end the service at once.
        let computes_again = served.take().is_some_and(|armed| {
            let polled = PASS_WITHIN.saturating_mul(u32::try_from(moved).unwrap_or(u32::MAX));
            moved > 0 && !asleep && polled < armed.elapsed()
        });
        if computes_again {
            (seen, moved_at) = (passes, Instant::now());
            computed = Some(moved_at);
        } else if moved > 0 || asleep {
            let idle = asleep && moved <= PASSES_IDLE;
            (seen, moved_at) = (passes, Instant::now());
            let exposed = shared.exposures.load(Ordering::Relaxed) > 0;
            let announced = shared.signals.announced() > 0;
            let awaited = shared.signals.awaited() > 0;
            // An awaited event wakes an application that sleeps; but an application that has
            // just posted may compute next.
            let long = announced || awaited && (nudged || !idle);
            look = match (long, idle && !exposed) {
                (true, _) => LOOK_LONG,
                (false, true) => (look * 2).clamp(LOOK, LOOK_IDLE),
                _ => LOOK,
            };
            shared.long_rest.store(look > LOOK_LONG, Ordering::Relaxed);
            let callers = shared.callers();
            let computes = nudged || computed.is_some_and(|at| at.elapsed() < COMPUTES_WITHIN);
            // The rails wake an application that sleeps, and it serves by itself; it says when it sleeps no more.
            let passes_over = exposed && asleep && moved == 0;
            if passes_over {
                shared.passes_over.store(true, Ordering::SeqCst);
            }
            let still_sleeps = shared.sleepers.load(Ordering::SeqCst) > 0;
            let limit = match (exposed, computes) {
                _ if asleep && moved == 0 && still_sleeps => look,
                (true, true) => LOOK_EXPOSED,
                (true, false) => LOOK_EXPOSED_BESIDE,
                (false, _) => look,
            };
            drop(shared);
            let woken = rest(bell, None, &callers, limit);
            nudged = woken.nudged;
            if woken.asked.any() {
                let Some(shared) = weak.upgrade() else { return };
                answer(&shared, &callers, woken.asked);
            }
            continue;
        }
        look = LOOK;
        (nudged, served) = serve(&shared, bell, seen);
        // A shorter silence may be that of a thread which waits for a processor.
        if moved_at.elapsed() >= LOOK_EXPOSED_BESIDE {
            computed = Some(Instant::now());
        }
    }
}

/// Serves until the application makes passes again, or for one sleep. Whether it was nudged; and when the rails were armed
/// that woke it.
fn serve(shared: &Arc<Shared>, bell: &OwnedFd, seen: u64) -> (bool, Option<Instant>) {
    let Some(mut engine) = shared.try_lock() else {
        return (rest(bell, None, &Callers::default(), LOOK_EXPOSED).nudged, None);
    };
    while pass(shared, &mut engine) {
        if shared.passes.load(Ordering::Relaxed) != seen {
            shared.unlock(engine);
            return (false, None);
        }
    }
    let armed = shared.arm(&mut engine);
    let limit = engine.deadline().map_or(SLEEP_MAX, |due| due.since(engine.now()).min(SLEEP_MAX));
    shared.unlock(engine);
    if !armed {
        return (false, None);
    }
    let (callers, armed) = (shared.callers(), Instant::now());
    let woken = rest(bell, Some(&shared.epoll), &callers, limit);
    shared.disarm(false);
    answer(shared, &callers, woken.asked);
    (woken.nudged, woken.rails.then_some(armed))
}

/// One pass, which counts what it serves.
fn pass(shared: &Shared, engine: &mut Engine) -> bool {
    let before = engine.core.accesses_served();
    let any = shared.pass(engine);
    let served = engine.core.accesses_served() - before;
    shared.served_apart.fetch_add(served, Ordering::Relaxed);
    any
}

/// Answers those who ask.
fn answer(shared: &Shared, callers: &Callers, asked: Asked) {
    let accounts = || {
        let engine = shared.locked();
        engine.rails.iter().filter_map(|rail| rail.account()).collect()
    };
    if let Some(teller) = callers.teller.as_deref().filter(|_| asked.teller)
        && teller.answer(&accounts).is_err()
    {
        shared.set_teller(None);
    }
    if let Some(door) = callers.door.as_deref().filter(|_| asked.door)
        && door.answer().is_err()
    {
        shared.set_door(None);
    }
}

/// The reasons, beside time, for which a rest ended.
#[derive(Debug, Clone, Copy)]
struct Woken {
    nudged: bool,
    asked: Asked,
    rails: bool,
}

/// Sleeps, until something happens or `limit` is over.
fn rest(bell: &OwnedFd, rails: Option<&OwnedFd>, callers: &Callers, limit: Duration) -> Woken {
    let timeout = rustix::time::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    let (teller, door) = (callers.teller.as_deref(), callers.door.as_deref());
    let all = [
        Some(bell.as_fd()),
        teller.map(|it| it.descriptor()),
        door.map(|it| it.descriptor()),
        rails.map(|rails| rails.as_fd()),
    ];
    // Nothing is asked of the bell in the place of one that is not there.
    let mut descriptors = all.map(|it| {
        let flags = if it.is_some() { PollFlags::IN } else { PollFlags::empty() };
        PollFd::from_borrowed_fd(it.unwrap_or(bell.as_fd()), flags)
    });
    // An interrupted sleep is a short one: the loop looks again in any case.
    let _ = poll(&mut descriptors, Some(&timeout));
    let mut count = [0u8; 8];
    let [rung, teller, door, rails] = descriptors.map(|it| it.revents().contains(PollFlags::IN));
    let asked = Asked { teller, door };
    Woken { nudged: rung && rustix::io::read(bell, &mut count).is_ok(), asked, rails }
}
