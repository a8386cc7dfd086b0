//! Changes of interfaces, as the kernel tells of them: at once, to everybody whom they concern, and to nobody else.

mod namespace;

use std::io::Write;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use namespace::{Namespace, ip};
use ropewalk_base::error::Fault;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{Endpoint, EndpointConfig};
use ropewalk_rail::interfaces::{LocalFault, LocalSide, Named, News, SideState, Subscription};
use ropewalk_rail::port::{Port, PortCounters, Received};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(30);
/// Rounds of each change.
const ROUNDS: usize = 9;
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// A subscription and its user.
struct Follower {
    set: OwnedFd,
    subscription: Subscription,
    start: Instant,
}

impl Follower {
    fn of(side: &LocalSide<'_>) -> Follower {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there are descriptors");
        let subscription = Subscription::open(side, set.as_fd()).expect("the interface is there");
        Follower { set, subscription, start: Instant::now() }
    }

    fn poll(&mut self, is_woken: bool) -> News {
        self.subscription.poll(Time(self.start.elapsed().as_nanos() as u64), is_woken)
    }

    fn state(&self) -> SideState {
        self.subscription.state()
    }

    /// Prepares for a sleep, after all news so far.
    fn fall_asleep(&mut self) {
        while !self.subscription.arm() {
            self.subscription.disarm();
            self.poll(false);
        }
    }

    /// Sleeps, and polls where it was woken. `None`: it slept for all of the limit.
    fn sleep(&mut self, limit: Duration) -> Option<News> {
        let is_woken = !self.subscription.arm() || is_readable(self.set.as_fd(), limit);
        self.subscription.disarm();
        is_woken.then(|| self.poll(true))
    }

    /// Sleeps until the state is like this, and is woken for each step to there.
    fn sleep_until(&mut self, what: &str, is_so: impl Fn(&SideState) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.state()) {
            let state = self.state();
            assert!(begin.elapsed() < LIMIT, "{what}: {state:?}");
            assert!(self.sleep(LIMIT).is_some(), "{what}: slept through it: {state:?}");
        }
    }
}

fn is_readable(set: BorrowedFd<'_>, limit: Duration) -> bool {
    let (tv_sec, tv_nsec) = (limit.as_secs() as i64, i64::from(limit.subsec_nanos()));
    let mut sets = [PollFd::from_borrowed_fd(set, PollFlags::IN)];
    poll(&mut sets, Some(&Timespec { tv_sec, tv_nsec })) == Ok(1)
}

/// Has `ip` do all of these lines, one soon after the other.
fn ip_batch(lines: &str) {
    let mut command = Command::new("ip");
    let mut child = command.args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("as before");
    child.stdin.take().expect("it is piped").write_all(lines.as_bytes()).expect("it reads");
    assert!(child.wait().is_ok_and(|status| status.success()));
}

/// Joins two namespaces by a wire, whose ends have these indices. Where they are equal, the kernel takes the near end
/// for one with a wire of its own, and may tell late of its carrier.
fn join(far: &Namespace, indices: (u32, u32)) {
    let ((near_index, far_index), other) = (indices, far.name());
    assert!(ip(&format!(
        "link add near index {near_index} mtu 9000 type veth \
         peer name far index {far_index} mtu 9000 netns {other}"
    )));
    assert!(ip(&format!("address add {ADDRESS}/24 dev near")) && ip("link set near up"));
    assert!(ip(&format!("-n {other} link set far up")));
}

fn near() -> LocalSide<'static> {
    LocalSide { source: Some(ADDRESS.into()), ..LocalSide::on(Named::Name("near")) }
}

/// A change, the command that takes it back, and how a side shows it.
struct Change {
    what: &'static str,
    there: String,
    back: String,
    is_there: fn(&SideState) -> bool,
}

fn changes(far: &Namespace) -> Vec<Change> {
    let other = far.name();
    let change = |what, there: &str, back: &str, is_there| Change {
        what,
        there: there.to_string(),
        back: back.to_string(),
        is_there,
    };
    vec![
        change(
            "carrier lost at the far end",
            &format!("-n {other} link set far down"),
            &format!("-n {other} link set far up"),
            |state| state.fault == Some(LocalFault::CarrierLost),
        ),
        change("set down", "link set near down", "link set near up", |state| {
            state.fault == Some(LocalFault::InterfaceDown)
        }),
        change("shorter packets", "link set near mtu 1400", "link set near mtu 9000", |state| {
            state.mtu == 1400
        }),
        change(
            "address removed",
            &format!("address del {ADDRESS}/24 dev near"),
            &format!("address add {ADDRESS}/24 dev near"),
            |state| state.fault == Some(LocalFault::AddressRemoved),
        ),
    ]
}

/// A follower that sleeps on a thread of its own, and notes each state and the time when it learned of it.
fn with_sleeper<T>(
    mut follower: Follower,
    work: impl FnOnce(&mpsc::Receiver<(Instant, SideState)>) -> T,
) -> T {
    let (sender, states) = mpsc::channel();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if follower.sleep(Duration::from_millis(50)) == Some(News::Changed) {
                    let _ = sender.send((Instant::now(), follower.state()));
                }
            }
        });
        let result = work(&states);
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// The time from the end of the command to the news of it; zero where the news came first.
fn told_after(
    states: &mpsc::Receiver<(Instant, SideState)>,
    line: &str,
    is_so: impl Fn(&SideState) -> bool,
) -> Duration {
    assert!(ip(line), "{line}");
    let end = Instant::now();
    loop {
        let (at, state) = states.recv_timeout(LIMIT).unwrap_or_else(|_| panic!("{line}: no news"));
        if is_so(&state) {
            return at.saturating_duration_since(end);
        }
    }
}

/// Shows how late the news was.
fn show(what: &str, mut late: Vec<Duration>) {
    late.sort_unstable();
    println!(
        "{what}: {:?} late (median), {:?} at most",
        late[late.len() / 2],
        late[late.len() - 1]
    );
}

#[test]
fn each_change_of_an_interface_is_told() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    join(&far, (100, 200));
    let mut follower = Follower::of(&near());
    follower.sleep_until("the wire is there", |state| state.fault.is_none());
    let begin = follower.state();
    assert_eq!((begin.index, begin.name.as_str(), begin.mtu), (100, "near", 9000));
    assert_eq!(begin.hardware.as_bytes().len(), 6);
    with_sleeper(follower, |states| {
        for Change { what, there, back, is_there } in changes(&far) {
            let mut late = Vec::new();
            for _ in 0..ROUNDS {
                late.push(told_after(states, &there, is_there));
                told_after(states, &back, |state| *state == begin);
            }
            show(what, late);
        }
        // Older kernels rename no interface that is up.
        told_after(states, "link set near down", |state| state.fault.is_some());
        let mut late = Vec::new();
        for _ in 0..ROUNDS {
            let is = |name: &'static str| move |state: &SideState| state.name.as_str() == name;
            late.push(told_after(states, "link set near name other", is("other")));
            late.push(told_after(states, "link set other name near", is("near")));
        }
        show("renamed", late);
    });
}

#[test]
fn an_interface_that_is_removed_is_gone_for_good() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    let is_gone = |state: &SideState| state.fault == Some(LocalFault::InterfaceRemoved);
    let mut late = Vec::new();
    for round in 0..ROUNDS {
        join(&far, (100, 200));
        let follower = Follower::of(&near());
        // Another namespace is as far away as none.
        let away = format!("link set near netns {}", far.name());
        let line = if round == 0 { &away } else { "link del near" };
        late.push(with_sleeper(follower, |states| told_after(states, line, is_gone)));
        if round == 0 {
            assert!(ip(&format!("-n {} link del near", far.name())));
        }
    }
    show("removed", late);
    join(&far, (100, 200));
    let mut follower = Follower::of(&LocalSide::on(Named::Index(100)));
    assert!(ip("link del near"));
    follower.sleep_until("removed", is_gone);
    join(&far, (100, 200));
    while follower.sleep(Duration::from_millis(100)).is_some() {}
    assert!(is_gone(&follower.state()), "one of the same index and name is another one");
}

#[test]
fn what_happens_in_another_namespace_is_not_told() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    // Of the same index and name.
    let add = "link add same index 77 type bridge";
    assert!(ip(add) && ip(&format!("-n {} {add}", far.name())));
    let side = LocalSide::on(Named::Name("same"));
    let (mut own, mut other) = (Follower::of(&side), far.within(|| Follower::of(&side)));
    let before = own.state();
    assert!(ip(&format!("-n {} link set same mtu 1400", far.name())));
    other.sleep_until("shorter packets", |state| state.mtu == 1400);
    assert!(ip(&format!("-n {} link del same", far.name())));
    other.sleep_until("removed", |state| state.fault == Some(LocalFault::InterfaceRemoved));
    // All of it has been told there.
    while let Some(news) = own.sleep(Duration::from_millis(100)) {
        assert_eq!(news, News::Nothing);
    }
    assert_eq!((own.poll(true), own.state()), (News::Nothing, before));
}

#[test]
fn other_interfaces_wake_nobody() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link add own type bridge"));
    let mut own = Follower::of(&LocalSide::on(Named::Name("own")));
    while own.sleep(Duration::from_millis(300)).is_some() {}
    own.fall_asleep();
    assert!(ip("link add other type bridge") && ip("link set other up"));
    assert!(ip("address add 10.9.0.1/24 dev other") && ip("link del other"));
    assert!(!is_readable(own.set.as_fd(), Duration::from_millis(100)));
    assert!(ip("link set own mtu 1400"));
    assert!(is_readable(own.set.as_fd(), LIMIT));
}

#[test]
fn an_address_is_followed_to_an_interface_that_is_made_later() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link add first type bridge") && ip("link set first up"));
    assert!(ip(&format!("address add {ADDRESS}/24 dev first")));
    let mut own = Follower::of(&LocalSide::at(ADDRESS.into()));
    assert_eq!(own.state().name.as_str(), "first");
    assert!(ip("link del first"));
    let gone = Some(LocalFault::AddressRemoved);
    own.sleep_until("its interface is gone", |state| state.fault == gone);
    assert!(ip("link add second mtu 1400 type bridge") && ip("link set second up"));
    assert!(ip(&format!("address add {ADDRESS}/24 dev second")));
    own.sleep_until("another one has it", |state| {
        state.name.as_str() == "second" && state.mtu == 1400 && state.fault != gone
    });
    assert!(ip("link set second mtu 1300"));
    own.sleep_until("that one is followed", |state| state.mtu == 1300);
}

#[test]
fn news_that_one_takes_in_reaches_all_whom_it_concerns() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    join(&far, (100, 200));
    assert!(ip("link set lo up"));
    let mut followers = [(); 3].map(|()| Follower::of(&LocalSide::on(Named::Name("near"))));
    let mut beside = Follower::of(&LocalSide::on(Named::Name("lo")));
    let mtu = |mtu| move |state: &SideState| state.mtu == mtu;
    for round in 0..20 {
        let bytes = 1400 + round;
        followers.iter_mut().for_each(Follower::fall_asleep);
        assert!(ip(&format!("link set near mtu {bytes}")));
        let [first, others @ ..] = &mut followers;
        first.subscription.disarm();
        first.sleep_until("the first one", mtu(bytes));
        for other in others {
            assert!(is_readable(other.set.as_fd(), LIMIT), "it was asleep");
            other.subscription.disarm();
            other.sleep_until("the others", mtu(bytes));
        }
        assert_eq!(beside.poll(false), News::Nothing);
    }
    // Many changes, one soon after the other, and several threads that sleep.
    let lines: String = (0..300).map(|at| format!("link set near mtu {}\n", 2000 + at)).collect();
    thread::scope(|scope| {
        for follower in &mut followers {
            scope.spawn(move || follower.sleep_until("the last one", mtu(2299)));
        }
        ip_batch(&lines);
    });
}

#[test]
fn news_for_which_the_kernel_had_no_room_is_found_by_a_dump() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    join(&far, (100, 200));
    assert!(ip("link add passing type bridge"));
    let mut follower = Follower::of(&near());
    let mut passing = Follower::of(&LocalSide::on(Named::Name("passing")));
    let dumps = follower.subscription.dumped_again();
    let lines: String = (0..1500).map(|at| format!("link set near mtu {}\n", 2000 + at)).collect();
    ip_batch(&lines);
    assert!(ip("link del passing") && ip("link set near name other down"));
    follower.sleep_until("the last one", |state| {
        state.mtu == 3499 && state.name.as_str() == "other" && state.fault.is_some()
    });
    passing.sleep_until("removed", |state| state.fault == Some(LocalFault::InterfaceRemoved));
    assert!(follower.subscription.dumped_again() > dumps, "there was room for all");
}

#[test]
fn a_carrier_of_which_the_kernel_tells_late_is_asked_for() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    join(&far, (100, 100));
    let other = far.name();
    let mut follower = Follower::of(&near());
    let is_lost = |state: &SideState| state.fault == Some(LocalFault::CarrierLost);
    let mut late = Vec::new();
    for _ in 0..3 {
        assert!(ip(&format!("-n {other} link set far up")));
        follower.sleep_until("the wire is there", |state| state.fault.is_none());
        assert!(ip(&format!("-n {other} link set far down")));
        assert!(is_lost(&follower.subscription.ask().expect("it asks")), "at once");
        // The news comes in the end, and is none by then.
        assert!(ip(&format!("-n {other} link set far up")));
        follower.sleep_until("the wire is there", |state| state.fault.is_none());
        let begin = Instant::now();
        assert!(ip(&format!("-n {other} link set far down")));
        follower.sleep_until("the carrier is lost", is_lost);
        late.push(begin.elapsed());
    }
    println!("where nobody asks: {late:?}");
    assert!(ip("link del near"));
    let gone = |state: SideState| state.fault == Some(LocalFault::InterfaceRemoved);
    assert!(gone(follower.subscription.ask().expect("it asks")));
}

#[test]
fn routes_are_told_of_to_those_who_follow_them() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    join(&far, (100, 200));
    let mut follower = Follower::of(&LocalSide { follows_routes: true, ..near() });
    let mut beside = Follower::of(&near());
    follower.sleep_until("the wire is there", |state| state.fault.is_none());
    while follower.sleep(Duration::from_millis(300)).is_some() {}
    while beside.sleep(Duration::from_millis(10)).is_some() {}
    for line in ["route add 10.10.0.0/16 via 10.9.0.2", "route del 10.10.0.0/16 via 10.9.0.2"] {
        let before = follower.state();
        assert!(ip(line));
        follower.sleep_until(line, |state| state.route_changes != before.route_changes);
        let SideState { fault, mtu, .. } = follower.state();
        assert_eq!((fault, mtu), (before.fault, before.mtu));
        assert_eq!(beside.poll(true), News::Nothing);
    }
}

/// A port of which nobody learns anything but how often it is asked for its interface.
struct Silent {
    interface: u32,
    asked: Arc<AtomicU64>,
    slot: [u8; 1500],
}

impl Port for Silent {
    type Station = u32;

    fn scheme(&self) -> &'static str {
        "silent"
    }
    fn endpoint(&self) -> u8 {
        0
    }
    fn packet_bytes(&self) -> usize {
        self.slot.len()
    }
    fn packet_bytes_now(&mut self) -> usize {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.slot.len()
    }
    fn packets_max(&self) -> u32 {
        16
    }
    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }
    fn resolve(&mut self, _: &str) -> Result<(u32, u8), Fault> {
        Err(Fault::Invalid)
    }
    fn host(&self, _: u32) -> Option<String> {
        None
    }
    fn receive(&mut self, _: usize, _: &mut dyn FnMut(u32, &[u8])) -> Received {
        Received { packets: 0, empty: true }
    }
    fn slot(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.slot)
    }
    fn commit(&mut self, _: u32, _: usize) {}
    fn flush(&mut self) -> bool {
        true
    }
    fn attach(&mut self, _: BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }
    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
    fn interface(&self) -> Option<u32> {
        Some(self.interface)
    }
}

/// An endpoint on such a port, and the count of questions.
fn silent(interface: u32) -> (Endpoint, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let port = Silent { interface, asked: asked.clone(), slot: [0; 1500] };
    let mut config = EndpointConfig::new(ClusterId(1));
    config.service_thread = false;
    let clock = config.clock.clone();
    let rail = PacketRail::new(port, Random::from_seed(1), clock).expect("there are descriptors");
    (Endpoint::open(config, vec![Box::new(rail)]).expect("there are descriptors"), asked)
}

#[test]
fn a_rail_asks_its_interface_when_something_has_changed_and_not_before() {
    let (Some(far), Some(_near)) = (Namespace::enter(), Namespace::enter()) else { return };
    join(&far, (100, 200));
    Follower::of(&near()).sleep_until("the wire is there", |state| state.fault.is_none());
    let (endpoint, asked) = silent(100);
    let questions = || asked.load(Ordering::Relaxed);
    let spin_until = |is_over: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !is_over() {
            endpoint.progress();
            assert!(begin.elapsed() < LIMIT);
        }
        begin.elapsed()
    };
    let begin = Instant::now();
    spin_until(&|| begin.elapsed() > Duration::from_millis(500));
    assert_eq!(questions(), 1, "at first, and never again");
    let looks = endpoint.counters().1[0].1.system_calls;
    let most = begin.elapsed().as_millis() as u64 + 1;
    assert!(looks <= most, "{looks} looks in {most} ms");
    // While it is polled.
    let mut late = Vec::new();
    for round in 0..ROUNDS {
        let before = questions();
        assert!(ip(&format!("link set near mtu {}", 1500 + round)));
        late.push(spin_until(&|| questions() > before));
    }
    show("polled", late);
    // While its user sleeps.
    let context = endpoint.context(false).expect("there are descriptors");
    let (sender, ended) = mpsc::channel();
    thread::scope(|scope| {
        let (endpoint, context) = (&endpoint, &context);
        scope.spawn(move || {
            endpoint.wait_for(context, LIMIT, &|| ended.try_recv().is_ok());
        });
        let mut late = Vec::new();
        for round in 0..ROUNDS {
            thread::sleep(Duration::from_millis(20));
            let before = questions();
            assert!(ip(&format!("link set near mtu {}", 1600 + round)));
            let begin = Instant::now();
            while questions() == before {
                assert!(begin.elapsed() < LIMIT, "it sleeps on");
                thread::sleep(Duration::from_micros(50));
            }
            late.push(begin.elapsed());
        }
        show("asleep", late);
        sender.send(()).expect("it waits");
        endpoint.wake_sleepers();
    });
}

#[test]
fn a_rail_without_news_asks_its_interface_now_and_then() {
    let Some(_namespace) = Namespace::enter() else { return };
    // Of an interface that is not there comes no news.
    let (endpoint, asked) = silent(4711);
    let begin = Instant::now();
    while asked.load(Ordering::Relaxed) < 5 {
        endpoint.progress();
        assert!(begin.elapsed() < LIMIT);
    }
    assert!(begin.elapsed() > Duration::from_millis(350), "ten times a second");
}
