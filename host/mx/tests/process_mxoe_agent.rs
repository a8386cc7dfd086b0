//! The agent of an interface, with two hosts: network namespaces that a pair of virtual cards joins.

#[path = "../../../net/tests/captures/mod.rs"]
mod captures;
#[path = "../../../net/tests/common/mod.rs"]
mod common;
#[path = "../../../net/tests/namespace/mod.rs"]
mod namespace;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Node, message};
use namespace::ip;
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_host_mx::agent::{AgentClient, AgentError, KnownPeer};
use ropewalk_host_mx::module::register;
use ropewalk_net::capture::CaptureConfig;
use ropewalk_net::modules::{self, Listen, Options, Rail};
use ropewalk_net::{Channel, Endpoint, EndpointConfig, Level, Posted};
use ropewalk_rail::address::Address;
use ropewalk_rail_ether::interfaces;
use ropewalk_wire::mxoe::{Station, Type};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType, recv};
use rustix::process::{Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const CHILD: &str = "ROPEWALK_TEST_AGENT_CHILD";

/// A namespace with a card `eth0`.
struct Host {
    name: String,
}

/// Two of them, joined. `None`, with the reason on the standard output, where this machine does not allow it.
fn hosts() -> Option<[Host; 2]> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let host =
        |letter| Host { name: format!("ropewalk-agent-{letter}-{}-{number}", std::process::id()) };
    let [a, b] = ["a", "b"].map(host);
    if !ip(&format!("netns add {}", a.name)) {
        println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
        return None;
    }
    assert!(ip(&format!("netns add {}", b.name)));
    let peer = format!("peer name eth0 netns {}", b.name);
    assert!(ip(&format!("-n {} link add eth0 type veth {peer}", a.name)));
    for host in [&a, &b] {
        assert!(ip(&format!("-n {} link set eth0 up", host.name)));
    }
    Some([a, b])
}

impl Drop for Host {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.name));
    }
}

impl Host {
    fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Does something in there.
    fn within<R: Send>(&self, what: impl FnOnce() -> R + Send) -> R {
        let file = std::fs::File::open(self.path()).expect("its name");
        let inside = || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("this thread may go there");
            what()
        };
        thread::scope(|scope| scope.spawn(inside).join().expect("it says itself what is wrong"))
    }

    fn rail(&self, endpoint: u8) -> Box<dyn Rail> {
        self.within(|| {
            let address = format!("eth0/{endpoint}");
            open(&address, &Options::from_environment())
        })
    }

    fn station(&self) -> Station {
        self.within(card).1
    }

    fn agent(&self) -> Option<AgentClient> {
        self.within(|| AgentClient::of(card().0))
    }

    /// The peers that the agent knows, if there is one and it answers: it may be killed at any moment.
    fn known(&self) -> Vec<KnownPeer> {
        self.agent().and_then(|mut agent| agent.peers().ok()).unwrap_or_default()
    }

    fn own(&self) -> Option<KnownPeer> {
        self.known().into_iter().find(|peer| peer.is_own)
    }

    fn knows(&self, station: Station) -> Option<KnownPeer> {
        self.known().into_iter().find(|peer| !peer.is_own && peer.station == station)
    }

    /// A process that has an endpoint there.
    fn process(&self, endpoint: u8) -> Child {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command.args(["--exact", "child", "--nocapture"]).env(CHILD, format!("eth0/{endpoint}"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("nsenter, of util-linux");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut lines = lines.map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("is open")), "it did not open its endpoint");
        child
    }

    /// The outcome of a message to an endpoint, and the types of the packets that came meanwhile.
    fn message(&self, to: Station, endpoint: u8) -> (Result<(), Fault>, Vec<u8>) {
        let folder = std::env::temp_dir();
        let file = folder.join(format!("{}-{endpoint}.pcapng", self.name));
        let name = file.to_str().expect("text").to_string();
        let capture = CaptureConfig { file: name, buffer_bytes: 1 << 20, insist: true };
        let options = Options { capture: Some(capture), ..Options::default() };
        let rail = self.within(|| open("eth0/77", &options));
        let outcome = send(rail, &format!("mxoe://{to}/{endpoint}"));
        let captured = captures::read(&file);
        let _ = std::fs::remove_file(&file);
        let came = captured.packets.iter().filter(|packet| !packet.sent);
        (outcome, came.map(|packet| packet.frame[16]).collect())
    }
}

/// A rail with MXoE at this address.
fn open(address: &str, options: &Options) -> Box<dyn Rail> {
    register();
    let listen = Listen::At { address, exactly: true };
    modules::open_with("mxoe", &listen, options).expect("it is up")
}

/// Number and address of `eth0` where this thread is.
fn card() -> (u32, Station) {
    let all = interfaces();
    let card = all.iter().find(|interface| interface.name == "eth0").expect("the card");
    (card.index, card.station)
}

fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "no {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn node(rail: Box<dyn Rail>) -> Node {
    let mut config = EndpointConfig::new(ClusterId(1));
    (config.endpoint, config.incarnation) = (EndpointId(9), Incarnation(9));
    (config.host, config.service_thread) = (0, false);
    let endpoint = Endpoint::open(config, vec![rail]).expect("there are descriptors");
    let context = endpoint.context(true).expect("there are descriptors");
    Node { endpoint, context, done: Vec::new() }
}

/// The number of times that the agent of a host, which is a thread of this process, has gone to sleep.
fn sleeps(host: &Host) -> u64 {
    let namespace = std::fs::metadata(host.path()).expect("its name").ino();
    let tasks = std::fs::read_dir("/proc/self/task").expect("the kernel tells").flatten();
    let of = |task: std::fs::DirEntry| {
        let path = task.path();
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let is_here = std::fs::metadata(path.join("ns/net")).ok()?.ino() == namespace;
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let text = status.lines().find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"))?;
        (name.trim() == "mxoe-agent" && is_here).then(|| text.trim().parse().ok())?
    };
    let mut found = tasks.filter_map(of);
    let sleeps = found.next().expect("there is one");
    assert_eq!(found.next(), None, "one thread for each process and interface");
    sleeps
}

/// The outcome of a message over a rail of its own.
fn send(rail: Box<dyn Rail>, address: &str) -> Result<(), Fault> {
    let Node { endpoint, context, .. } = node(rail);
    let peer = endpoint.lookup(&Address::parse(address).expect("an address")).expect("a rail");
    let (memory, level) = (Memory::constant(b"to nobody"), Level::Delivered);
    match endpoint.post_send(&context, peer, Channel::Tagged, 3, memory, level, 1) {
        Ok(Posted::Done(completed)) => completed.outcome,
        Ok(Posted::Pending(_)) => {
            until("outcome", || endpoint.wait(&context, Duration::from_secs(1))).outcome
        }
        Err((_, fault)) => Err(fault),
    }
}

/// Not a test of its own: the processes that tests start run it.
#[test]
fn child() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let rail = open(&address, &Options::from_environment());
    println!("\n{address} is open");
    let _ = std::io::stdin().lock().lines().count();
    drop(rail);
}

#[test]
fn agents_find_each_other_and_know_their_names() {
    let Some([a, b]) = hosts() else { return };
    assert!(a.agent().is_none(), "nobody is there yet");
    let rails = [a.rail(3), b.rail(4)];
    let (at_a, at_b) = (a.station(), b.station());
    let seen = until("b at a", || a.knows(at_b).filter(|peer| peer.name.is_some()));
    assert!(seen.ours.is_some(), "it is one of ours");
    until("a at b", || b.knows(at_a).filter(|peer| peer.reverse == Some(seen.index)));
    let name = b.own().and_then(|own| own.name).expect("its usual name");
    assert!(name.ends_with(":0") && seen.name == Some(name.clone()), "{seen:?}");
    // Both have the name of this machine.
    let mut agent = a.agent().expect("it runs");
    assert!(matches!(agent.nic_id_of(&name), Err(AgentError::Several)));
    b.agent().expect("it runs").set_name("node-b:0").expect("this is root");
    until("new name", || agent.nic_id_of("node-b:0").expect("it answers"));
    assert_eq!(agent.nic_id_of("node-b:0").expect("it answers"), Some(at_b.nic_id()));
    assert_eq!(agent.name_of(at_b.nic_id()).expect("it answers").as_deref(), Some("node-b:0"));
    assert_eq!(agent.nic_id_of("nobody:0").expect("it answers"), None);
    assert_eq!(agent.nic_id_of(&name).expect("it answers"), Some(at_a.nic_id()), "its own");
    drop(rails);
    assert!(a.agent().is_none() && b.agent().is_none(), "it ends with the last endpoint");
}

#[test]
fn who_calls_an_endpoint_that_nobody_has_is_told_so() {
    let Some([a, b]) = hosts() else { return };
    let _rail = a.rail(3);
    until("agent", || a.agent());
    let (outcome, came) = b.message(a.station(), 9);
    assert_eq!(outcome, Err(Fault::Closed));
    assert!(came.contains(&(Type::NackLib as u8)), "it was refused, and not given up: {came:x?}");
    // An endpoint that is there answers for itself.
    let (_, came) = b.message(a.station(), 3);
    assert!(!came.contains(&(Type::NackLib as u8)), "{came:x?}");
}

#[test]
fn an_agent_sleeps_while_messages_go_by() {
    let Some([a, b]) = hosts() else { return };
    let [one, two] = [(&a, 3), (&b, 4)].map(|(host, endpoint)| node(host.rail(endpoint)));
    until("b at a", || a.knows(b.station()).filter(|peer| peer.name.is_some()));
    let to = Address::parse(&format!("mxoe://{}/4", b.station())).expect("an address");
    let to = one.endpoint.lookup(&to).expect("a rail");
    let pool = Pool::with_budget(1 << 20);
    let mut held = [(); 2].map(|()| Memory::pooled(pool.take(100).expect("the pool is large")));
    held = message(&one, &two, to, held);
    let before = sleeps(&a) + sleeps(&b);
    for _ in 0..20_000 {
        held = message(&one, &two, to, held);
    }
    let slept = sleeps(&a) + sleeps(&b) - before;
    // The only events are beacons, one a second, and names.
    assert!(slept < 300, "{slept} times for 20,000 messages");
}

#[test]
fn the_agent_is_killed_and_another_process_takes_over() {
    let Some([a, b]) = hosts() else { return };
    let mut first = a.process(5);
    let serial = until("agent", || a.own()).serial;
    let (rail, _other) = (a.rail(6), b.rail(1));
    let at_a = a.station();
    until("a at b", || b.knows(at_a).filter(|peer| peer.serial == serial));
    assert_eq!(a.own().expect("the same agent").serial, serial, "there is one at a time");
    a.agent().expect("it runs").set_name("spare:0").expect("this is root");
    let serial = a.own().expect("the same agent").serial;
    first.kill().expect("it runs");
    first.wait().expect("it ends");
    let heir = until("heir", || a.own().filter(|own| own.serial != serial));
    assert_eq!(heir.name.as_deref(), Some("spare:0"), "it inherits the name");
    until("the heir at b", || b.knows(at_a).filter(|peer| peer.serial == heir.serial));
    // Nobody has the endpoint of the process that was killed.
    let (outcome, came) = b.message(at_a, 5);
    assert_eq!(outcome, Err(Fault::Closed));
    assert!(came.contains(&(Type::NackLib as u8)), "{came:x?}");
    drop(rail);
    assert!(a.agent().is_none());
}

/// Connects to the agent here as often as that, as this user, and says nothing.
fn connect(times: usize, user: u32) -> Vec<OwnedFd> {
    let name = format!("ropewalk/mxoe/{}/agent", card().0);
    let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("it is short");
    let user = Uid::from_raw(user);
    // Of this thread alone.
    rustix::thread::set_thread_res_uid(None, Some(user), None).expect("this is root");
    let one = || {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
        let socket = socket.expect("there are descriptors");
        rustix::net::connect(&socket, &name).expect("the agent listens");
        socket
    };
    (0..times).map(|_| one()).collect()
}

/// Those that the agent has not closed.
fn open_ones(sockets: &[OwnedFd]) -> usize {
    let is_open = |socket: &&OwnedFd| {
        recv(socket, &mut [0u8; 8], RecvFlags::DONTWAIT).is_err_and(|error| error == Errno::AGAIN)
    };
    sockets.iter().filter(is_open).count()
}

#[test]
fn strangers_do_not_use_up_the_descriptors_of_an_agent() {
    let Some([a, _b]) = hosts() else { return };
    let _rail = a.rail(3);
    let mut agent = until("agent", || a.agent());
    agent.peers().expect("it answers");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), ..limit }).expect("it is less");
    let strangers = a.within(|| connect(100, 65_534));
    until("end to that", || (open_ones(&strangers) == 64).then_some(()));
    let others = a.within(|| connect(100, 0));
    until("end to that", || (open_ones(&others) == 63).then_some(()));
    assert_eq!(open_ones(&strangers), 64);
    setrlimit(Resource::Nofile, limit).expect("it was so");
    agent.peers().expect("it answers");
    // Those who go on saying nothing go.
    until("end", || (open_ones(&strangers) + open_ones(&others) == 0).then_some(()));
    agent.peers().expect("it answers");
}

#[test]
fn an_agent_ends_where_its_interface_was_taken_down_and_removed() {
    let Some([a, _b]) = hosts() else { return };
    let rail = a.rail(3);
    until("agent", || a.agent());
    assert!(ip(&format!("-n {} link set eth0 down", a.name)));
    let mut agent = until("agent", || a.agent());
    assert!(agent.peers().is_ok(), "it may come up again");
    assert!(ip(&format!("-n {} link del eth0", a.name)));
    until("end", || agent.peers().err());
    drop(rail);
}
