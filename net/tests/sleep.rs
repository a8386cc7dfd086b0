//! Work that one thread gives an endpoint while another one sleeps on its rails: the sleeper looked for work before,
//! and nobody but the rails themselves can tell it of later work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::context::Arm;
use ropewalk_net::{
    Audience, Channel, Completed, Context, Direction, Endpoint, EndpointConfig, Level, OperationId,
    Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

/// More than a rail moves before it has to be polled.
const LARGE: usize = 4 << 20;
/// The time limit for any step before it counts as hanging.
const LIMIT: Duration = Duration::from_secs(30);

fn open(rail: Box<dyn Rail>) -> Endpoint {
    Endpoint::open(EndpointConfig::new(ClusterId(9)), vec![rail]).unwrap()
}

/// An endpoint that only its callers serve, and a way to make its clock jump ahead, over the timers of
/// a handshake: these would wake a sleeper in the end, and it should need no such luck.
fn open_unserved(rail: Box<dyn Rail>) -> (Endpoint, impl Fn()) {
    let mut config = EndpointConfig::new(ClusterId(9));
    config.service_thread = false;
    let ahead = Arc::new(AtomicU64::new(0));
    let (start, jump) = (Instant::now(), ahead.clone());
    config.clock =
        Arc::new(move || Time(start.elapsed().as_nanos() as u64 + ahead.load(Ordering::Relaxed)));
    let endpoint = Endpoint::open(config, vec![rail]).unwrap();
    let jumping = endpoint.clone();
    let jump = move || {
        jump.fetch_add(1_000_000_000_000, Ordering::Relaxed);
        while jumping.deadline().is_some() {
            jumping.progress();
        }
    };
    (endpoint, jump)
}

fn shm(within_process: bool, name: &str) -> Box<dyn Rail> {
    let name = format!("sleep-{}-{name}", std::process::id());
    let config =
        if within_process { ShmConfig::within_process(name) } else { ShmConfig::named(name) };
    Box::new(ShmRail::open(config).unwrap())
}

fn lookup(from: &Endpoint, addresses: &str) -> PeerId {
    from.lookup(&Address::parse(addresses).unwrap()).unwrap()
}

fn filled(pool: &Pool, len: usize, value: u8) -> Memory {
    let mut buffer = pool.take(len).unwrap();
    buffer.fill(value);
    Memory::pooled(buffer)
}

fn is_filled(memory: Memory, value: u8) -> bool {
    memory.into_pooled().unwrap().iter().all(|byte| *byte == value)
}

fn receive(endpoint: &Endpoint, context: &Context, bits: u64, memory: Memory) -> Posted {
    let (mask, cut) = (u64::MAX, Oversize::Truncate);
    endpoint.post_receive(context, Channel::Tagged, None, bits, mask, memory, cut, bits).unwrap()
}

/// Ends the operation that a sleeper waits for, also if its neighbour failed.
struct Cancels<'a>(&'a Endpoint, OperationId);

impl Drop for Cancels<'_> {
    fn drop(&mut self) {
        self.0.cancel(self.1);
    }
}

/// Runs `work` while another thread sleeps in `wait` for something that does not come. There is no service thread:
/// the sleeping thread makes the passes.
fn beside_a_sleeper<T>(endpoint: &Endpoint, work: impl FnOnce() -> T) -> T {
    let context = endpoint.context(false).unwrap();
    let Posted::Pending(never) = receive(endpoint, &context, 999, Memory::empty()) else {
        panic!("nobody sends that");
    };
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| endpoint.wait(&context, 10 * LIMIT));
        let begin = Instant::now();
        let mut before = u64::MAX;
        // A spinning thread makes passes all the time.
        while std::mem::replace(&mut before, endpoint.passes()) != endpoint.passes() {
            std::thread::sleep(Duration::from_millis(200));
            assert!(begin.elapsed() < LIMIT, "the other thread does not go to sleep");
        }
        let end = Cancels(endpoint, never);
        let result = work();
        drop(end);
        let ended = sleeper.join().unwrap().expect("what was cancelled completes");
        assert_eq!(ended.outcome, Err(Fault::Cancelled));
        result
    })
}

/// Waits on the context's own descriptor, as an event loop does, without making a pass before it says
/// something.
fn await_bell(endpoint: &Endpoint, context: &Context) -> Completed {
    use rustix::event::{PollFd, PollFlags, poll};
    loop {
        if endpoint.arm(context) == Arm::Armed {
            let mut fds = [PollFd::from_borrowed_fd(context.descriptor(), PollFlags::IN)];
            let limit = rustix::time::Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
            let woken = poll(&mut fds, Some(&limit)).unwrap();
            endpoint.disarm(context);
            assert_eq!(woken, 1, "it stands still beside a sleeper");
        }
        if let Some(completed) = endpoint.test(context) {
            return completed;
        }
    }
}

fn complete(endpoint: &Endpoint, context: &Context, posted: Posted) -> Completed {
    match posted {
        Posted::Done(completed) => completed,
        Posted::Pending(_) => await_bell(endpoint, context),
    }
}

/// An endpoint without a service thread, one with, and a session between them; in both forms of
/// shared memory.
fn for_each_form(name: &str, test: impl Fn(&Endpoint, &Endpoint, PeerId)) {
    for within_process in [false, true] {
        let form = if within_process { "loop" } else { "shm" };
        let (own, jump) = open_unserved(shm(within_process, &format!("{name}-{form}-own")));
        let other = open(shm(within_process, &format!("{name}-{form}-other")));
        let peer = lookup(&own, other.addresses());
        let context = own.context(false).unwrap();
        let hello = Memory::constant(b"hello");
        let sent = own.post_send(&context, peer, Channel::Tagged, 1, hello, Level::Matched, 1);
        let into = filled(&Pool::with_budget(1 << 16), 8, 0);
        let received = other.context(false).unwrap();
        let received_posted = receive(&other, &received, 1, into);
        if let Posted::Pending(_) = sent.unwrap() {
            assert_eq!(own.wait(&context, LIMIT).expect("a session").outcome, Ok(()));
        }
        if let Posted::Pending(_) = received_posted {
            assert_eq!(other.wait(&received, LIMIT).expect("a session").outcome, Ok(()));
        }
        jump();
        test(&own, &other, peer);
        own.close();
        other.close();
    }
}

#[test]
fn a_large_get_goes_on_beside_a_sleeper() {
    for_each_form("get", |own, other, peer| {
        let pool = Pool::with_budget(64 << 20);
        let key = other.expose(filled(&pool, LARGE, 42), false, Audience::Everybody).unwrap();
        let context = own.context(false).unwrap();
        let got = beside_a_sleeper(own, || {
            let (memory, remote) = (filled(&pool, LARGE, 0), RemoteLayout::At(0));
            let get = own.post_access(&context, Direction::Get, peer, key, remote, memory, 1);
            complete(own, &context, get.unwrap())
        });
        assert_eq!(got.outcome, Ok(()));
        assert!(is_filled(got.memory, 42));
    });
}

#[test]
fn a_receive_for_a_large_message_goes_on_beside_a_sleeper() {
    for_each_form("receive", |own, other, _| {
        let pool = Pool::with_budget(64 << 20);
        let contexts = [own.context(false).unwrap(), other.context(false).unwrap()];
        let (to_own, level) = (lookup(other, own.addresses()), Level::Matched);
        let memory = filled(&pool, LARGE, 7);
        let sent = other.post_send(&contexts[1], to_own, Channel::Tagged, 5, memory, level, 5);
        let begin = Instant::now();
        while own.unmatched_count() == 0 {
            own.progress();
            assert!(begin.elapsed() < LIMIT, "the message is announced");
        }
        let received = beside_a_sleeper(own, || {
            let posted = receive(own, &contexts[0], 5, filled(&pool, LARGE, 0));
            complete(own, &contexts[0], posted)
        });
        assert_eq!((received.outcome, received.bytes), (Ok(()), LARGE as u64));
        assert!(is_filled(received.memory, 7));
        let Posted::Pending(_) = sent.unwrap() else { panic!("nothing was read by then") };
        assert_eq!(other.wait(&contexts[1], LIMIT).expect("it was read").outcome, Ok(()));
    });
}

#[test]
fn an_exposure_ends_beside_a_sleeper() {
    for_each_form("unexpose", |own, _, _| {
        let pool = Pool::with_budget(1 << 20);
        let context = own.context(false).unwrap();
        let key = own.expose(filled(&pool, 4096, 3), true, Audience::Everybody).unwrap();
        let ended = beside_a_sleeper(own, || {
            own.unexpose(key, &context, 8).unwrap();
            await_bell(own, &context)
        });
        assert_eq!((ended.user, ended.outcome), (8, Ok(())));
        assert!(is_filled(ended.memory, 3));
    });
}

#[test]
fn a_connect_that_fails_at_once_is_told_beside_a_sleeper() {
    let rail = TcpRail::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap())).unwrap();
    let (own, _) = open_unserved(Box::new(rail));
    let context = own.context(false).unwrap();
    // Nobody connects to everybody: the call itself says `ENETUNREACH`.
    let peer = lookup(&own, "tcp://255.255.255.255:7");
    let ended = beside_a_sleeper(&own, || {
        let (memory, level) = (Memory::constant(b"x"), Level::Matched);
        let sent = own.post_send(&context, peer, Channel::Tagged, 1, memory, level, 1);
        complete(&own, &context, sent.unwrap())
    });
    assert_eq!(ended.outcome, Err(Fault::Unreachable));
    own.close();
}

#[test]
fn announces_leave_at_once_beside_a_sleeper() {
    const MESSAGES: u64 = 40;
    let rail = || TcpRail::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap())).unwrap();
    let (own, _) = open_unserved(Box::new(rail()));
    let other = open(Box::new(rail()));
    let pool = Pool::with_budget(64 << 20);
    let (context, received) = (own.context(false).unwrap(), other.context(false).unwrap());
    let peer = lookup(&own, other.addresses());
    let send = |user: u64| {
        let (memory, level) = (filled(&pool, 100_000, user as u8), Level::Buffered);
        own.post_send(&context, peer, Channel::Tagged, user, memory, level, user).unwrap();
    };
    send(0);
    let posted = receive(&other, &received, 0, filled(&pool, 100_000, 0));
    while let Posted::Pending(_) = posted {
        own.progress();
        if other.test(&received).is_some() {
            break;
        }
    }
    // Nobody here makes a pass but the sleeper, when something comes: only of the last message's sort.
    let last = receive(&other, &received, MESSAGES, filled(&pool, 100_000, 0));
    assert!(matches!(last, Posted::Pending(_)));
    beside_a_sleeper(&own, || {
        (1..=MESSAGES).for_each(send);
        let completed = other.wait(&received, LIMIT).expect("the last one comes");
        assert!(is_filled(completed.memory, MESSAGES as u8));
    });
    own.close();
}
