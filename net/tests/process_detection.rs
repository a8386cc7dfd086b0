//! Sessions with two paths between namespaces, while something happens to an interface, to a peer, or to the processors:
//! traffic goes on, and no message is lost, doubled or out of order.

mod common;
mod wired;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{check, pattern};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{
    Address, Channel, Completed, Context, Counters, Endpoint, EndpointConfig, Level, Mode,
    Oversize, PeerId, Posted,
};
use ropewalk_netns::{Fault, FaultKind, Host, Joint, Topology};
use wired::network;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Messages under way, and bytes of the longest.
const DEPTH: u64 = 8;
const BYTES_MAX: usize = 50_000;
/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(60);
/// No fault of one path holds traffic up for longer, however busy the machine is.
const STALL_MAX: Duration = Duration::from_secs(3);

fn bytes(number: u64) -> usize {
    1 + (number as usize * 7919) % if number.is_multiple_of(4) { BYTES_MAX } else { 2000 }
}

/// One end, driven by a thread of its host.
struct End {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
    early: VecDeque<Completed>,
}

impl End {
    fn open(host: Host<'_>, scheme: &str) -> End {
        let rail = |rail: usize| {
            let (address, interface) = (host.address(rail), host.interface(rail));
            let place = match scheme {
                "ether" => interface,
                _ => format!("{address}:0?interface={interface}"),
            };
            let listen = Listen::At { address: &place, exactly: true };
            modules::open(scheme, &listen).expect("the interface is there")
        };
        let mut config = EndpointConfig::new(ClusterId(77));
        (config.host, config.service_thread) = (0, false);
        (config.core.mode, config.core.paths_max) = (Mode::Resume, 2);
        let endpoint = Endpoint::open(config, vec![rail(0), rail(1)]).expect("there is room");
        let context = endpoint.context(false).expect("there are descriptors");
        End { endpoint, context, pool: Pool::with_budget(64 << 20), early: VecDeque::new() }
    }

    fn note(&mut self, posted: Result<Posted, (Memory, ropewalk_net::Fault)>) {
        match posted {
            Ok(Posted::Done(completed)) => self.early.push_back(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    fn send(&mut self, peer: PeerId, number: u64) {
        let mut buffer = self.pool.take(bytes(number)).expect("there is memory");
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(index, number as u8);
        }
        let (channel, level, memory) = (Channel::Tagged, Level::Buffered, Memory::pooled(buffer));
        let posted =
            self.endpoint.post_send(&self.context, peer, channel, number, memory, level, number);
        self.note(posted);
    }

    fn receive(&mut self, place: u64) {
        let memory = Memory::pooled(self.pool.take(BYTES_MAX + 1).expect("there is memory"));
        let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
        let posted =
            self.endpoint.post_receive(&self.context, channel, None, 0, 0, memory, cut, place);
        self.note(posted);
    }

    fn next(&mut self, limit: Duration) -> Option<Completed> {
        self.early.pop_front().or_else(|| self.endpoint.wait(&self.context, limit))
    }

    fn counters(&self) -> Counters {
        self.endpoint.counters().0
    }
}

/// What the threads of both ends know of each other.
#[derive(Default)]
struct Shared {
    received: AtomicU64,
    /// The longest time without a message so far, in microseconds, since this was set to 0.
    stall_us: AtomicU64,
    is_stopped: AtomicBool,
    /// The receiving thread does nothing.
    is_asleep: AtomicBool,
    has_joined: AtomicBool,
}

/// A stream of messages from the first host to the second.
struct Stream {
    near: End,
    peer: PeerId,
    shared: Arc<Shared>,
    far: thread::JoinHandle<Counters>,
    sent: u64,
    under_way: u64,
}

/// Takes messages, each the one that is due.
fn take(mut end: End, shared: &Shared) -> Counters {
    (0..DEPTH).for_each(|place| end.receive(place));
    // The next place. Messages take places in order, and long ones are complete later.
    let mut place = DEPTH;
    let mut last = Instant::now();
    while !shared.is_stopped.load(Ordering::Acquire) {
        if shared.is_asleep.load(Ordering::Acquire) {
            thread::sleep(MS);
            continue;
        }
        shared.has_joined.fetch_or(end.counters().paths_joined > 0, Ordering::Release);
        let Some(completed) = end.next(2 * MS) else { continue };
        let number = completed.user;
        assert_eq!((completed.outcome, completed.bits), (Ok(()), number), "in order, each once");
        assert_eq!(completed.message_bytes, bytes(number) as u64);
        check(completed.memory, bytes(number), number as u8);
        end.receive(place);
        place += 1;
        let stall = last.elapsed().as_micros() as u64;
        shared.stall_us.fetch_max(stall, Ordering::Relaxed);
        last = Instant::now();
        shared.received.fetch_add(1, Ordering::Release);
    }
    end.counters()
}

impl Stream {
    /// Both paths are there when this returns. The caller's thread is at the first host.
    fn new(net: &Topology, scheme: &'static str) -> Stream {
        let shared = Arc::new(Shared::default());
        let near = End::open(net.host(0), scheme);
        let far = net.host(1).within(|| End::open(net.host(1), scheme));
        let address = Address::parse(far.endpoint.addresses()).expect("it listens");
        let peer = near.endpoint.lookup(&address).expect("an address of its rails");
        let theirs = shared.clone();
        let far = net.host(1).spawn(move || take(far, &theirs)).expect("a thread");
        let mut stream = Stream { near, peer, shared, far, sent: 0, under_way: 0 };
        let begin = Instant::now();
        while !stream.has_both() {
            stream.run(20 * MS);
            assert!(begin.elapsed() < LIMIT, "{scheme}: no second path");
        }
        stream
    }

    fn has_both(&self) -> bool {
        self.near.counters().paths_joined > 0 && self.shared.has_joined.load(Ordering::Acquire)
    }

    fn finish_one(&mut self, limit: Duration) {
        if let Some(completed) = self.near.next(limit) {
            assert_eq!(completed.outcome, Ok(()));
            self.under_way -= 1;
        }
    }

    /// Sends messages for so long.
    fn run(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while Instant::now() < end {
            if self.under_way < DEPTH {
                self.near.send(self.peer, self.sent);
                (self.sent, self.under_way) = (self.sent + 1, self.under_way + 1);
            }
            let limit = if self.under_way < DEPTH { Duration::ZERO } else { MS };
            self.finish_one(limit);
        }
    }

    /// Waits until all messages have arrived; the counters of both ends.
    fn end(mut self, what: &str) -> [Counters; 2] {
        let begin = Instant::now();
        while self.shared.received.load(Ordering::Acquire) < self.sent {
            self.finish_one(MS);
            let arrived = self.shared.received.load(Ordering::Relaxed);
            assert!(begin.elapsed() < LIMIT, "{what}: {arrived} of {} messages", self.sent);
            assert!(!self.far.is_finished(), "{what}: the receiver has ended");
        }
        self.shared.is_stopped.store(true, Ordering::Release);
        let counters = [self.near.counters(), self.far.join().expect("no panic")];
        for counters in counters {
            let kept = (counters.sessions, counters.resets, counters.violations);
            assert_eq!(kept, (1, 0, 0), "{what}: the session goes on");
        }
        counters
    }

    fn stall(&self) -> Duration {
        Duration::from_micros(self.shared.stall_us.load(Ordering::Relaxed))
    }

    /// Sends messages while a fault begins, lasts half a second, and ends.
    fn meet(&mut self, net: &Topology, fault: &Fault) {
        self.run(100 * MS);
        self.shared.stall_us.store(0, Ordering::Relaxed);
        let before = self.shared.received.load(Ordering::Acquire);
        thread::scope(|scope| {
            let injects = scope.spawn(|| net.inject(fault).expect("it can be injected"));
            while !injects.is_finished() {
                self.run(5 * MS);
            }
            let injected = injects.join().expect("no panic");
            self.run(500 * MS);
            let mends = scope.spawn(|| injected.mend().expect("it can be mended"));
            while !mends.is_finished() {
                self.run(5 * MS);
            }
        });
        self.run(400 * MS);
        let passed = self.shared.received.load(Ordering::Acquire) - before;
        let stall = self.stall();
        println!("{fault}: {passed} messages, at most {stall:?} without one");
        assert!(passed > 50 && stall < STALL_MAX, "{fault}: {passed} messages, {stall:?}");
    }
}

/// Traffic by two paths goes on through this, at either end of the first of them.
fn goes_on(joint: Joint, schemes: &[&'static str], kind: FaultKind) {
    let Some(net) = network(joint) else { return };
    for &scheme in schemes {
        for host in 0..2 {
            let mut stream = Stream::new(&net, scheme);
            stream.meet(&net, &Fault::new(kind, host, 0));
            stream.end(scheme);
        }
    }
}

#[test]
fn an_interface_may_be_removed() {
    goes_on(Joint::Switched, &["tcp", "udp"], FaultKind::InterfaceRemoved);
}

#[test]
fn an_interface_may_get_another_name() {
    goes_on(Joint::Switched, &["tcp", "udp"], FaultKind::InterfaceRenamed);
}

#[test]
fn an_interface_may_get_another_address() {
    goes_on(Joint::Switched, &["tcp", "udp"], FaultKind::AddressChanged);
    goes_on(Joint::Switched, &["tcp", "udp"], FaultKind::AddressRemoved);
}

#[test]
fn the_mtu_of_one_path_may_shrink() {
    goes_on(Joint::Switched, &["tcp", "udp", "ether"], FaultKind::MtuShrink { bytes: 1280 });
}

#[test]
fn the_mtu_of_one_path_may_shrink_without_a_word() {
    goes_on(Joint::Switched, &["tcp", "udp", "ether"], FaultKind::MtuBlackHole { bytes: 1280 });
}

#[test]
fn what_one_end_sees_of_a_path_the_other_one_is_told() {
    let Some(net) = network(Joint::Switched) else { return };
    for scheme in ["tcp", "udp"] {
        let mut stream = Stream::new(&net, scheme);
        // The switch keeps the near carrier up.
        stream.meet(&net, &Fault::new(FaultKind::InterfaceDown, 1, 0));
        let [near, _] = stream.end(scheme);
        assert!(near.paths_suspected_by_peers > 0, "{scheme}: {near:?}");
    }
}

#[test]
fn a_peer_that_is_stopped_for_two_seconds_is_no_dead_path() {
    let Some(net) = network(Joint::Switched) else { return };
    for scheme in ["tcp", "udp"] {
        let mut stream = Stream::new(&net, scheme);
        stream.run(200 * MS);
        stream.shared.is_asleep.store(true, Ordering::Release);
        stream.run(2 * SECOND);
        stream.shared.is_asleep.store(false, Ordering::Release);
        stream.run(500 * MS);
        for counters in stream.end(scheme) {
            assert_eq!((counters.paths_dead, counters.paths_lost), (0, 0), "{scheme}");
        }
    }
}

/// Streams beside programs that compute on every processor, two on each, for so long: no path counts as dead.
fn beside_hogs(length: Duration) {
    let Some(net) = network(Joint::Switched) else { return };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 * thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let run = || {
            for scheme in ["tcp", "udp"] {
                let mut stream = Stream::new(&net, scheme);
                stream.run(length);
                let stall = stream.stall();
                for counters in stream.end(scheme) {
                    let suspected = counters.paths_suspected;
                    let hourly = suspected as f64 * 3600.0 / length.as_secs_f64();
                    println!(
                        "{scheme}: {suspected} suspicions, {hourly:.0} an hour, {stall:?} without a message"
                    );
                    assert_eq!((counters.paths_dead, counters.paths_lost), (0, 0), "{scheme}");
                }
            }
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn no_path_is_dead_because_others_have_the_processors() {
    beside_hogs(2 * SECOND);
}

#[test]
#[ignore = "for --deep: ten minutes"]
fn no_path_is_dead_because_others_have_the_processors_for_ten_minutes() {
    beside_hogs(300 * SECOND);
}
