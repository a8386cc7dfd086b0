//! The activity of an endpoint while nothing happens.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::{Cells, Memory};
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::{
    Audience, Awaited, Channel, Context, Direction, Endpoint, EndpointConfig, Level, Oversize,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

fn rails(name: &str) -> Vec<Box<dyn Rail>> {
    let name = format!("idle-{name}-{}", std::process::id());
    let listen = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
    let shm = ShmRail::open(ShmConfig::named(name)).unwrap();
    vec![Box::new(TcpRail::open(listen).unwrap()), Box::new(shm)]
}

fn config(number: u64) -> EndpointConfig {
    let mut config = EndpointConfig::new(ClusterId(1));
    config.endpoint = EndpointId(number.into());
    config.incarnation = Incarnation(number);
    config
}

#[test]
fn quiet_sockets_are_hardly_asked_beside_shared_memory() {
    let mut config = config(1);
    config.service_thread = false;
    // No time passes but that of the kernel's ticks.
    config.clock = Arc::new(|| Time(1 << 40));
    let endpoint = Endpoint::open(config, rails("quiet")).unwrap();
    let calls = || endpoint.counters().1.iter().map(|(_, rail)| rail.system_calls).sum::<u64>();
    // At first it is not known that they are quiet.
    for _ in 0..1000 {
        endpoint.progress();
    }
    let (before, begin) = (calls(), std::time::Instant::now());
    let passes = 100_000;
    for _ in 0..passes {
        endpoint.progress();
    }
    let ticks = begin.elapsed().as_millis() as u64 + 1;
    let asked = calls() - before;
    assert!(asked <= ticks, "{asked} system calls in {passes} passes and at most {ticks} ticks");
}

/// Those who count the sleeps of threads have their names for themselves.
static ALONE: Mutex<()> = Mutex::new(());

/// Waits until no thread has such a name any more: the kernel lists threads for a while after they were joined.
fn alone(thread: &str) -> MutexGuard<'static, ()> {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    while !counts_of(thread).is_empty() {
        std::thread::yield_now();
    }
    guard
}

/// The number of times that a thread of this process went to sleep.
fn sleeps_of(thread: &str) -> u64 {
    counts_of(thread).into_iter().sum()
}

/// The same, for each thread with this name.
fn counts_of(thread: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |directory: std::path::PathBuf| -> Option<u64> {
        let name = std::fs::read_to_string(directory.join("comm")).ok()?;
        let status = std::fs::read_to_string(directory.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        (name.trim() == thread).then(|| line.trim().parse().unwrap())
    };
    tasks.filter_map(|task| of(task.ok()?.path())).collect()
}

#[test]
fn the_service_thread_leaves_an_idle_application_alone() {
    let _alone = alone("ropewalk-servic");
    let endpoint = Endpoint::open(config(2), rails("service")).unwrap();
    let context = endpoint.context(true).unwrap();
    let wait = || assert!(endpoint.wait(&context, Duration::from_millis(10)).is_none());
    (0..30).for_each(|_| wait());
    let before = sleeps_of("ropewalk-servic");
    let begin = std::time::Instant::now();
    (0..100).for_each(|_| wait());
    let sleeps = sleeps_of("ropewalk-servic") - before;
    // At each look that would be one each 10 ms.
    let most = begin.elapsed().as_millis() as u64 / 40;
    assert!((1..=most).contains(&sleeps), "{sleeps} sleeps, at most {most}");
}

#[test]
fn the_service_thread_hardly_disturbs_who_polls_beside_exposed_memory() {
    let _alone = alone("ropewalk-servic");
    let endpoint = Endpoint::open(config(6), rails("exposed")).unwrap();
    let cells = Cells::zeroed(4096);
    let memory = cells.memory(0..4096).unwrap();
    endpoint.expose(memory, true, Audience::Everybody).unwrap();
    let poll = |time: Duration| {
        let begin = std::time::Instant::now();
        while begin.elapsed() < time {
            endpoint.progress();
        }
        begin.elapsed()
    };
    // Where the machine takes the processor from us, the application seems to compute: then another try.
    let attempt = || {
        poll(Duration::from_millis(100));
        let before = sleeps_of("ropewalk-servic");
        let most = poll(Duration::from_millis(100)).as_millis() as u64 + 10;
        (sleeps_of("ropewalk-servic") - before, most)
    };
    let is_calm = |(sleeps, most): (u64, u64)| (1..=most).contains(&sleeps);
    assert!((0..30).any(|_| is_calm(attempt())));
}

#[test]
fn a_wait_in_vain_asks_the_kernel_once() {
    let mut config = config(3);
    config.service_thread = false;
    let endpoint = Endpoint::open(config, rails("vain")).unwrap();
    let context = endpoint.context(true).unwrap();
    let calls = || endpoint.counters().1.iter().map(|(_, rail)| rail.system_calls).sum::<u64>();
    let wait = || assert!(endpoint.wait(&context, Duration::from_millis(10)).is_none());
    (0..10).for_each(|_| wait());
    let before = calls();
    (0..50).for_each(|_| wait());
    // The rails themselves are asked nothing: the sleep has shown that they are quiet.
    let asked = calls() - before;
    assert!(asked <= 25, "{asked} system calls of rails in 50 waits");
}

#[test]
fn the_service_thread_rests_again_after_an_announced_message() {
    let _alone = alone("ropewalk-servic");
    // Without a service thread of its own: the sleeps that are counted are the sender's.
    let mut other = config(5);
    other.service_thread = false;
    let shm = |name| rails(name).split_off(1);
    let receiver = Endpoint::open(other, shm("after-receiver")).unwrap();
    let sender = Endpoint::open(config(4), shm("after-sender")).unwrap();
    let (context, received) = (sender.context(true).unwrap(), receiver.context(false).unwrap());
    let pool = Pool::with_budget(8 << 20);
    let memory = || Memory::pooled(pool.take(1 << 20).unwrap());
    let peer = sender.lookup(&Address::parse(receiver.addresses()).unwrap()).unwrap();
    let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
    receiver.post_receive(&received, channel, None, 1, u64::MAX, memory(), cut, 1).unwrap();
    sender.post_send(&context, peer, channel, 1, memory(), Level::Buffered, 1).unwrap();
    let (mut sent, mut came) = (false, false);
    while !(sent && came) {
        sent |= sender.test(&context).is_some();
        came |= receiver.test(&received).is_some();
    }
    let wait = || assert!(sender.wait(&context, Duration::from_millis(10)).is_none());
    (0..30).for_each(|_| wait());
    let before = sleeps_of("ropewalk-servic");
    let begin = std::time::Instant::now();
    (0..100).for_each(|_| wait());
    let sleeps = sleeps_of("ropewalk-servic") - before;
    // Half of that where nobody else wants the processor.
    let most = begin.elapsed().as_millis() as u64 / 30;
    assert!(sleeps <= most, "{sleeps} sleeps, at most {most}");
}

/// It computes, calls for a moment, and computes again, all the time: the service thread answers for it without a look
/// beforehand.
#[test]
fn who_computes_again_is_served_at_once() {
    const ROUNDS: u64 = 100;
    let _alone = alone("ropewalk-servic");
    let tcp = |name| rails(name).drain(..1).collect::<Vec<_>>();
    let mut asks = config(8);
    asks.service_thread = false;
    let origin = Endpoint::open(asks, tcp("asks")).unwrap();
    let target = Endpoint::open(config(7), tcp("computes")).unwrap();
    let cells = Cells::zeroed(4096);
    let key = target.expose(cells.memory(0..4096).unwrap(), true, Audience::Everybody).unwrap();
    let context = origin.context(false).unwrap();
    let peer = origin.lookup(&Address::parse(target.addresses()).unwrap()).unwrap();
    let pool = Pool::with_budget(8 << 20);
    let access = || {
        let memory = Memory::pooled(pool.take(8).unwrap());
        let (put, to) = (Direction::Put, RemoteLayout::At(0));
        origin.post_access(&context, put, peer, key, to, memory, 1).unwrap();
        let begin = std::time::Instant::now();
        while origin.test(&context).is_none() {
            assert!(begin.elapsed() < Duration::from_secs(10), "nobody answers");
        }
    };
    let compute = || {
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(2) {
            origin.progress();
        }
    };
    let round = || {
        target.progress();
        compute();
        access();
    };
    // At first it looks whether the passes go on.
    (0..20).for_each(|_| round());
    let before = sleeps_of("ropewalk-servic");
    (0..ROUNDS).for_each(|_| round());
    let sleeps = sleeps_of("ropewalk-servic") - before;
    // One for each access; with a look before, they are two.
    assert!(sleeps < ROUNDS * 3 / 2, "{sleeps} sleeps in {ROUNDS} rounds");
}

/// Acts until the service thread has gone to sleep three times.
fn three_looks(act: impl Fn()) {
    let before = sleeps_of("ropewalk-servic");
    while sleeps_of("ropewalk-servic") < before + 3 {
        act();
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// It sleeps until shortly before it computes. Nobody looks at one who sleeps; the end of its sleep calls the service thread.
#[test]
fn who_slept_before_it_computes_is_served_soon() {
    const ROUNDS: usize = 7;
    const POLLS: u8 = 0;
    const SLEEPS: u8 = 1;
    const COMPUTES: u8 = 2;
    const ENDS: u8 = 3;
    let _alone = alone("ropewalk-servic");
    let tcp = |name| rails(name).drain(..1).collect::<Vec<_>>();
    let mut asks = config(10);
    asks.service_thread = false;
    let origin = Endpoint::open(asks, tcp("asks-a-sleeper")).unwrap();
    let target = Endpoint::open(config(9), tcp("slept")).unwrap();
    let cells = Cells::zeroed(4096);
    let key = target.expose(cells.memory(0..4096).unwrap(), true, Audience::Everybody).unwrap();
    let (context, slept) = (origin.context(false).unwrap(), target.context(false).unwrap());
    let peer = origin.lookup(&Address::parse(target.addresses()).unwrap()).unwrap();
    let pool = Pool::with_budget(8 << 20);
    // The times that the origin looks whether its access is over, with a short sleep before each.
    let access = || {
        let memory = Memory::pooled(pool.take(8).unwrap());
        let (put, to) = (Direction::Put, RemoteLayout::At(0));
        origin.post_access(&context, put, peer, key, to, memory, 1).unwrap();
        let is_over = |_: &usize| {
            std::thread::sleep(Duration::from_micros(100));
            origin.test(&context).is_some()
        };
        (1..1 << 17).find(is_over).expect("somebody answers")
    };
    let (phase, computes) = (AtomicU8::new(POLLS), AtomicBool::new(false));
    let is = |wanted: u8| phase.load(Ordering::SeqCst) == wanted;
    let program = || {
        while !is(ENDS) {
            if is(POLLS) {
                target.progress();
            } else if is(SLEEPS) {
                let (awaited, limit) = (Awaited::Program, Duration::from_secs(60));
                target.wait_ready(&slept, awaited, limit, &|| !is(SLEEPS));
            } else {
                computes.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    };
    let round = || {
        phase.store(POLLS, Ordering::SeqCst);
        // It serves until it sees that there are passes.
        three_looks(|| {
            access();
        });
        phase.store(SLEEPS, Ordering::SeqCst);
        let mut passes = u64::MAX;
        // From the second look at one who sleeps it rests for long.
        while std::mem::replace(&mut passes, target.passes()) != target.passes() {
            three_looks(|| ());
        }
        computes.store(false, Ordering::SeqCst);
        phase.store(COMPUTES, Ordering::SeqCst);
        slept.wake();
        while !computes.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        access()
    };
    let mut taken: Vec<usize> = std::thread::scope(|scope| {
        scope.spawn(program);
        let taken = (0..ROUNDS).map(|_| round()).collect();
        phase.store(ENDS, Ordering::SeqCst);
        taken
    });
    taken.sort_unstable();
    // A long rest of the service thread is about 70 of them.
    assert!(taken[ROUNDS / 2] <= 20, "{taken:?}");
}

/// Barriers may take long, so that spinning for them never pays. It pays for answers nevertheless.
#[test]
fn waits_for_programs_that_never_pay_leave_those_for_answers_alone() {
    let mut config = config(11);
    config.service_thread = false;
    let endpoint = Endpoint::open(config, rails("apart")).unwrap();
    // The passes of a wait in vain: a spin makes hundreds.
    let passes = |context: &Context, awaited| {
        let before = endpoint.passes();
        endpoint.wait_ready(context, awaited, Duration::from_millis(1), &|| false);
        endpoint.passes() - before
    };
    let spins = |_: usize| {
        let context = endpoint.context(false).unwrap();
        let of_programs: u64 = (0..60).map(|_| passes(&context, Awaited::Program)).sum();
        assert!(of_programs <= 300, "{of_programs} passes in 60 waits that do not pay");
        passes(&context, Awaited::Answer) >= 20
    };
    // Where the machine takes the processor from us in the middle of a spin, it makes few passes.
    assert!((0..10).any(spins), "a wait for an answer sleeps at once");
}
