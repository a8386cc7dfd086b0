//! Many threads on one endpoint, and the thread that serves while the application does not.

mod common;

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::context::Arm;
use ropewalk_net::{
    Audience, Channel, Completed, Context, Direction, Endpoint, EndpointConfig, Level, Oversize,
    PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

fn rail(medium: &str, name: &str) -> Box<dyn Rail> {
    match medium {
        "tcp" => {
            let config = TcpConfig::listening("127.0.0.1:0".parse().unwrap());
            Box::new(TcpRail::open(config).unwrap())
        }
        "shm" => Box::new(ShmRail::open(ShmConfig::named(name.to_string())).unwrap()),
        _ => Box::new(ShmRail::open(ShmConfig::within_process(name.to_string())).unwrap()),
    }
}

fn open(medium: &str, name: &str, service_thread: bool) -> Endpoint {
    let mut config = EndpointConfig::new(ClusterId(9));
    config.service_thread = service_thread;
    let name = format!("threads-{}-{name}", std::process::id());
    Endpoint::open(config, vec![rail(medium, &name)]).unwrap()
}

fn lookup(from: &Endpoint, addresses: &str) -> PeerId {
    from.lookup(&Address::parse(addresses).unwrap()).unwrap()
}

fn filled(pool: &Pool, len: usize, value: u8) -> Memory {
    let mut buffer = pool.take(len).unwrap();
    buffer.fill(value);
    Memory::pooled(buffer)
}

const LIMIT: Duration = Duration::from_secs(20);

/// Waits in one of the ways that there are; `style` chooses.
fn await_one(endpoint: &Endpoint, context: &Context, style: usize) -> Completed {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < LIMIT, "a completion is lost");
        match style % 3 {
            0 => {
                if let Some(completed) = endpoint.wait(context, LIMIT) {
                    return completed;
                }
            }
            1 => {
                if let Some(completed) = endpoint.test(context) {
                    return completed;
                }
                std::thread::yield_now();
            }
            // Somebody's own event loop: the service thread makes the passes.
            _ => {
                if endpoint.arm(context) == Arm::Armed {
                    use rustix::event::{PollFd, PollFlags, poll};
                    let mut fds = [PollFd::from_borrowed_fd(context.descriptor(), PollFlags::IN)];
                    let limit = rustix::time::Timespec { tv_sec: 20, tv_nsec: 0 };
                    let woken = poll(&mut fds, Some(&limit)).unwrap();
                    endpoint.disarm(context);
                    assert_eq!(woken, 1, "an armed descriptor stays silent");
                }
                if let Some(completed) = endpoint.test(context) {
                    return completed;
                }
            }
        }
    }
}

#[test]
fn eight_threads_on_one_endpoint_get_each_their_own_completions() {
    for medium in ["tcp", "shm", "loop"] {
        let left = open(medium, &format!("{medium}-l"), true);
        let right = open(medium, &format!("{medium}-r"), true);
        let barrier = Arc::new(Barrier::new(16));
        let threads: Vec<_> = (0..16usize)
            .map(|number| {
                let (own, other) = if number < 8 { (&left, &right) } else { (&right, &left) };
                let (endpoint, peer) = (own.clone(), lookup(own, other.addresses()));
                let barrier = barrier.clone();
                let name = format!("{medium}-{number}");
                let builder = std::thread::Builder::new().name(name);
                let work = move || {
                    barrier.wait();
                    ping_pong(&endpoint, peer, number % 8, number < 8);
                };
                builder.spawn(work).unwrap()
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        left.check();
        right.check();
        left.close();
        right.close();
    }
}

/// Each pair of threads uses match bits of its own; a thread that gets a foreign completion fails.
fn ping_pong(endpoint: &Endpoint, peer: PeerId, number: usize, first: bool) {
    let context = endpoint.context(false).unwrap();
    let pool = Pool::with_budget(1 << 24);
    for round in 0..120u64 {
        let len = if round % 10 == 9 { 200_000 } else { 64 };
        let user = round << 8 | number as u64;
        let (to, from) = (number as u64 | 0x100, number as u64 | 0x200);
        let (to, from) = if first { (to, from) } else { (from, to) };
        let memory = filled(&pool, len, 0);
        let (mask, cut) = (u64::MAX, Oversize::Truncate);
        let receive = endpoint
            .post_receive(&context, Channel::Tagged, None, from, mask, memory, cut, user | 1 << 60)
            .unwrap();
        let memory = filled(&pool, len, round as u8);
        let send = endpoint
            .post_send(&context, peer, Channel::Tagged, to, memory, Level::Buffered, user)
            .unwrap();
        let mut done: Vec<Completed> = Vec::new();
        for posted in [receive, send] {
            if let Posted::Done(completed) = posted {
                done.push(completed);
            }
        }
        while done.len() < 2 {
            done.push(await_one(endpoint, &context, number + round as usize / 7));
        }
        done.sort_by_key(|completed| completed.user);
        let users: Vec<u64> = done.iter().map(|completed| completed.user).collect();
        assert_eq!(users, [user, user | 1 << 60], "a completion went elsewhere");
        assert!(done.iter().all(|completed| completed.outcome == Ok(())), "{done:?}");
        let received = done.pop().unwrap().memory.into_pooled().unwrap();
        assert!(received.iter().all(|byte| *byte == round as u8), "round {round}");
    }
}

/// The serving side: exposes, posts a receive, says so, and then computes without a call.
fn compute(
    endpoint: &Endpoint,
    announce: impl FnOnce(RemoteKey),
    until: impl Fn() -> bool,
) -> bool {
    let context = endpoint.context(false).unwrap();
    let pool = Pool::with_budget(64 << 20);
    let region = filled(&pool, 1 << 20, 42);
    let key = endpoint.expose(region, false, Audience::Everybody).unwrap();
    let memory = filled(&pool, 8 << 20, 0);
    let (mask, cut) = (u64::MAX, Oversize::Truncate);
    let posted =
        endpoint.post_receive(&context, Channel::Tagged, None, 5, mask, memory, cut, 1).unwrap();
    assert!(matches!(posted, Posted::Pending(_)));
    announce(key);
    let mut number = 1u64;
    while !until() {
        for _ in 0..10_000 {
            number = std::hint::black_box(number.wrapping_mul(3) ^ 7);
        }
    }
    let completed = endpoint.wait(&context, Duration::ZERO);
    completed.is_some_and(|completed| {
        let bytes = completed.memory.into_pooled().unwrap();
        completed.outcome == Ok(()) && bytes.iter().all(|byte| *byte == 7)
    })
}

/// The peer of one that computes: everything works all the same.
fn use_computing_peer(medium: &str, addresses: &str, key: RemoteKey) {
    for newcomer in 0..2 {
        let endpoint = open(medium, &format!("{medium}-new{newcomer}"), false);
        let context = endpoint.context(false).unwrap();
        let pool = Pool::with_budget(64 << 20);
        let peer = lookup(&endpoint, addresses);
        let memory = filled(&pool, 1 << 20, 0);
        let remote = RemoteLayout::At(0);
        let get = endpoint.post_access(&context, Direction::Get, peer, key, remote, memory, 1);
        let got = complete(&endpoint, &context, get.unwrap());
        assert_eq!(got.outcome, Ok(()), "{medium}: get");
        assert!(got.memory.into_pooled().unwrap().iter().all(|byte| *byte == 42));
        if newcomer == 0 {
            let memory = filled(&pool, 8 << 20, 7);
            let channel = Channel::Tagged;
            let send =
                endpoint.post_send(&context, peer, channel, 5, memory, Level::Matched, 2).unwrap();
            assert_eq!(complete(&endpoint, &context, send).outcome, Ok(()), "{medium}: send");
        }
        endpoint.close();
    }
}

fn complete(endpoint: &Endpoint, context: &Context, posted: Posted) -> Completed {
    match posted {
        Posted::Done(completed) => completed,
        Posted::Pending(_) => endpoint.wait(context, LIMIT).expect("the peer serves"),
    }
}

#[test]
fn a_computing_thread_is_served_for() {
    for medium in ["tcp", "shm"] {
        let target = open(medium, &format!("{medium}-target"), true);
        let addresses = target.addresses().to_string();
        let over = Arc::new(AtomicBool::new(false));
        let (say, hear) = std::sync::mpsc::channel();
        let flag = over.clone();
        let thread = std::thread::spawn(move || {
            compute(&target, |key| say.send(key).unwrap(), || flag.load(Ordering::Relaxed))
        });
        let key = hear.recv().unwrap();
        use_computing_peer(medium, &addresses, key);
        over.store(true, Ordering::Relaxed);
        assert!(
            thread.join().unwrap(),
            "{medium}: the receive is complete, without one pass of ours"
        );
    }
}

const CHILD: &str = "ROPEWALK_TEST_COMPUTING_CHILD";

/// Not a test of its own: the child process of the next test runs it.
#[test]
fn computing_child() {
    let Ok(file) = std::env::var(CHILD) else { return };
    let (medium, path) = file.split_once(':').unwrap();
    let target = open(medium, "child", true);
    let addresses = target.addresses().to_string();
    let (ready, over) = (format!("{path}.ready"), format!("{path}.over"));
    let say = |key: RemoteKey| {
        let text = format!("{} {} {addresses}", key.slot.to_u64(), key.secret);
        std::fs::write(&ready, text).unwrap();
        std::fs::rename(&ready, path).unwrap();
    };
    let begin = Instant::now();
    let until = || begin.elapsed() > Duration::from_secs(2) && std::fs::exists(&over).unwrap();
    assert!(compute(&target, say, until), "the receive is complete");
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_computing_process_is_served_for() {
    for medium in ["tcp", "shm"] {
        let name = format!("ropewalk-computing-{}-{medium}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let path = path.to_str().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "computing_child", "--test-threads", "1"])
            .env(CHILD, format!("{medium}:{path}"))
            .spawn()
            .unwrap();
        let mut child = Reaped(child);
        let begin = Instant::now();
        let text = loop {
            match std::fs::read_to_string(path) {
                Ok(text) => break text,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
            assert!(begin.elapsed() < LIMIT, "the child does not start");
        };
        let mut words = text.splitn(3, ' ');
        let mut word = || words.next().unwrap();
        let slot = ropewalk_base::slots::SlotId::from_u64(word().parse().unwrap());
        let key = RemoteKey { slot, secret: word().parse().unwrap() };
        use_computing_peer(medium, word(), key);
        std::fs::write(format!("{path}.over"), "").unwrap();
        assert!(child.0.wait().unwrap().success(), "{medium}: the child was served");
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(format!("{path}.over"));
    }
}

#[test]
fn beside_a_polling_application_the_service_thread_makes_no_passes() {
    for medium in ["tcp", "shm", "loop"] {
        let left = open(medium, &format!("{medium}-pl"), true);
        let right = open(medium, &format!("{medium}-pr"), false);
        let pool = Pool::with_budget(1 << 20);
        let contexts = [left.context(false).unwrap(), right.context(false).unwrap()];
        let peer = lookup(&right, left.addresses());
        let exposed = left.expose(filled(&pool, 100, 1), true, Audience::Everybody).unwrap();
        let (begin, mut own, mut before) = (Instant::now(), 0u64, 0);
        while begin.elapsed() < Duration::from_millis(400) {
            // The first 100 ms are for the service thread to notice that somebody polls.
            if begin.elapsed() < Duration::from_millis(100) {
                (before, own) = (left.passes(), 0);
            }
            let context = &contexts[1];
            // If the thread that holds the other engine is stopped, nobody takes the requests for a while, and the
            // pool runs dry.
            if let Some(buffer) = pool.copy_of(&[3; 8]) {
                let (memory, request) = (Memory::pooled(buffer), Channel::Request);
                right.post_send(context, peer, request, 1, memory, Level::Buffered, 0).unwrap();
            }
            for _ in 0..20 {
                left.progress();
                own += 1;
                right.test(context);
                while left.next_request().is_some() {}
            }
        }
        // A try of ours that finds the engine taken is no pass.
        let foreign = (left.passes() - before).saturating_sub(own);
        // A scheduler that stops this thread for 100 us lets the other one look after the exposed
        // memory; it must be the exception.
        assert!(foreign <= own / 50, "{medium}: {foreign} passes beside {own}");
        left.unexpose(exposed, &contexts[0], 1).unwrap();
        left.close();
        right.close();
    }
}
