//! Raw endpoints beside agents, which may be in other processes, and on interfaces that come and go.

#[path = "../../../net/tests/namespace/mod.rs"]
mod namespace;

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use namespace::{Namespace, card, ip};
use ropewalk_host_mx::agent::{AgentClient, Map};
use ropewalk_host_mx::counts::counted;
use ropewalk_host_mx::module::register;
use ropewalk_host_mx::raw::{RawCounts, RawEndpoint, RawError, RawEvent};
use ropewalk_net::modules::{self, EtherError, Listen, ModuleError, Rail};
use ropewalk_rail_ether::{agent_name, bare, interfaces};
use ropewalk_wire::mxoe::{ETHERTYPE, Ethernet, Station, Type};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept,
    bind, listen, recv, send, shutdown, socket_with,
};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const CHILD: &str = "ROPEWALK_TEST_RAW_CHILD";
const NIC: u64 = 0x0200_0000_1234;

fn until<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < LIMIT, "no {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Number and address of a card.
fn of(card: &str) -> (u32, Station) {
    let all = interfaces();
    let found = all.iter().find(|interface| interface.name == card).expect("the card");
    (found.index, found.station)
}

/// A rail with MXoE at this address.
fn open(address: &str) -> Result<Box<dyn Rail>, ModuleError> {
    register();
    modules::open("mxoe", &Listen::At { address, exactly: true })
}

fn name_of(index: u32) -> Option<String> {
    AgentClient::of(index)?.name_of(NIC).ok()?
}

/// A RAW packet that is no beacon.
fn frame(from: Station, to: Station, bytes: usize) -> Vec<u8> {
    let ethernet = Ethernet { destination: to, source: from, ethertype: ETHERTYPE };
    let mut frame = [&ethernet.to_bytes()[..], &[0, 0, Type::Raw as u8, 0xa5]].concat();
    frame.resize(bytes, 7);
    frame
}

/// The next frame that is no beacon; `None`: nothing comes at once.
fn next(raw: &RawEndpoint, time: Duration) -> Result<Option<Vec<u8>>, RawError> {
    let mut buffer = [0; 2000];
    loop {
        match raw.next(&mut buffer, true, Some(time))? {
            Some(RawEvent::Received(bytes)) if buffer[17] == 0xa5 => {
                return Ok(Some(buffer[..bytes].to_vec()));
            }
            Some(_) => {}
            None => return Ok(None),
        }
    }
}

fn is_readable(raw: &RawEndpoint, time: Duration) -> bool {
    let handle = raw.handle();
    let mut fds = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::try_from(time).expect("it is short"))).expect("it is open") > 0
}

/// Not a test of its own: a process that has an endpoint, and so may be the agent.
#[test]
fn child() {
    let Ok(address) = std::env::var(CHILD) else { return };
    let rail = open(&address).expect("it is up");
    println!("\n{address} is open");
    let _ = std::io::stdin().lock().lines().count();
    drop(rail);
}

fn process(address: &str) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, address);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("is open")));
    child
}

#[test]
fn a_raw_endpoint_and_an_agent_of_another_process_hear_the_same() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let ((index, station), (_, other)) = (of(&here), of(&there));
    let mut agent = process(&format!("{here}/3"));
    let own = until("agent", || AgentClient::of(index)?.peers().ok()?.pop());
    let raw = RawEndpoint::open(&here).expect("it is up");
    assert!(matches!(RawEndpoint::open(&here), Err(ModuleError::Ether(EtherError::RawTaken(_)))));
    // Its agent sends beacons, which both hear.
    let far = RawEndpoint::open(&there).expect("each card has one");
    until("the other side", || {
        let peers = AgentClient::of(index)?.peers().ok()?;
        peers.into_iter().find(|peer| peer.station == other)?.serial
    });
    let mut buffer = [0; 100];
    let heard = raw.next(&mut buffer, false, Some(LIMIT)).expect("it is there");
    assert_eq!(heard, Some(RawEvent::Received(64)));
    assert_eq!((&buffer[..6], &buffer[6..12]), (&[0xff; 6][..], &other.0[..]));
    // Packets that are no beacons are the mapper's, and nobody else drops them.
    let unasked = |index| {
        let counts = AgentClient::of(index)?.counts().ok()?;
        counts.into_iter().find(|it| it.0 == "dropped.unasked").map(|it| it.1)
    };
    for to in [station, Station::BROADCAST] {
        far.send(&frame(other, to, 77), None).expect("it is up");
        assert_eq!(next(&raw, LIMIT).expect("it is up"), Some(frame(other, to, 77)));
    }
    assert_eq!(unasked(index), Some(0));
    // The counters of this process's raw endpoint are visible, although another process is the agent.
    let told = || {
        let all = counted();
        let raw =
            all.into_iter().find(|it| (it.interface, it.endpoint) == (Some(index), Some(255)))?;
        assert_eq!((raw.process, raw.scheme.as_str()), (std::process::id(), "mxoe"));
        raw.counts.into_iter().find(|it| it.0 == "packets.received").map(|it| it.1)
    };
    assert!(until("counts", told) >= 3);
    // The agent's successor is told the mapper's statements.
    raw.add_peer(NIC, Some("switch:7")).expect("this is root");
    let map = Map { mapper: NIC, version: 1, hosts: 2, is_complete: true };
    raw.set_map(map).expect("this is root");
    assert_eq!(name_of(index).as_deref(), Some("switch:7"));
    agent.kill().expect("it runs");
    agent.wait().expect("it ends");
    until("heir", || {
        let peers = AgentClient::of(index)?.peers().ok()?;
        peers.into_iter().find(|peer| peer.is_own && peer.serial != own.serial)
    });
    assert_eq!(name_of(index).as_deref(), Some("switch:7"));
    assert_eq!(AgentClient::of(index).expect("it runs").map().expect("it answers"), Some(map));
    // The heir is of this process, and tells of the raw endpoint, too.
    assert!(until("counts", told) >= 3);
    drop(raw);
    // A program that another test starts has descriptors of this one for a moment.
    until("end of the agent", || AgentClient::of(index).is_none().then_some(()));
    let _rail = open(&format!("{here}/3"));
    until("agent", || AgentClient::of(index));
    assert_eq!(name_of(index), None, "with the mapper its word is gone");
    far.send(&frame(other, station, 77), None).expect("it is up");
    until("count", || unasked(index).filter(|count| *count == 1));
}

/// A program under an agent's name that does everything at once, and reports the questions that it was asked.
struct Fake {
    listener: OwnedFd,
    asked: Receiver<(OwnedFd, Vec<u8>)>,
}

impl Fake {
    /// `None`: the name is somebody else's.
    fn new(index: u32) -> Option<Fake> {
        let flags = SocketFlags::CLOEXEC;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let name = agent_name(index);
        bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).ok()?;
        listen(&listener, 8).unwrap();
        let (tell, asked) = mpsc::channel();
        let own = listener.try_clone().unwrap();
        thread::spawn(move || {
            while let Ok(socket) = accept(&own) {
                let tell = tell.clone();
                thread::spawn(move || answer(&socket, &tell));
            }
        });
        Some(Fake { listener, asked })
    }

    /// The next question of this kind, and the connection that it came from.
    fn asked(&self, kind: u8) -> (OwnedFd, Vec<u8>) {
        loop {
            let (who, question) = self.asked.recv_timeout(LIMIT).expect("a question");
            if question[0] == kind {
                return (who, question);
            }
        }
    }

    /// The name is free from now on, also for clients that are still connected.
    fn end(&self) {
        shutdown(&self.listener, Shutdown::Both).unwrap();
    }
}

fn answer(socket: &OwnedFd, tell: &Sender<(OwnedFd, Vec<u8>)>) {
    let mut buffer = [0; 200];
    while let Ok((len, _)) = recv(socket, &mut buffer, RecvFlags::empty()) {
        if len == 0 || tell.send((socket.try_clone().unwrap(), buffer[..len].to_vec())).is_err() {
            return;
        }
        // Done; who tells of endpoints wants no answer.
        if buffer[0] > 2 && send(socket, &[6], SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

const HOLD: u8 = 1;
const ADD_PEER: u8 = 8;
const SET_MAP: u8 = 10;

#[test]
fn each_agent_that_follows_is_told_what_the_mapper_said() {
    let Some(_namespace) = Namespace::enter() else { return };
    let here = card(1500);
    let (index, _) = of(&here);
    let first = Fake::new(index).expect("nobody is there");
    let raw = RawEndpoint::open(&here).expect("it is up");
    let (keeper, question) = first.asked(HOLD);
    assert_eq!(question, [HOLD, 255]);
    raw.add_peer(NIC, None).expect("it is done");
    raw.add_peer(NIC, Some("switch:7")).expect("it is done");
    raw.add_peer(NIC + 1, Some("gone:0")).expect("it is done");
    raw.remove_peer(NIC + 1).expect("it is done");
    let map = Map { mapper: NIC, version: 1, hosts: 2, is_complete: true };
    raw.set_map(map).expect("it is done");
    first.end();
    drop(first.listener);
    // The keeper, which stands by as long as the first one is connected, finds the second.
    let second = until("name", || Fake::new(index));
    shutdown(&keeper, Shutdown::Both).expect("it is connected");
    let (_, question) = second.asked(ADD_PEER);
    assert_eq!(question, [&[ADD_PEER], &NIC.to_ne_bytes()[..], b"switch:7"].concat());
    let (keeper, question) = second.asked(SET_MAP);
    assert_eq!(question[1..9], NIC.to_ne_bytes());
    let (_, question) = second.asked(HOLD);
    assert_eq!(question, [HOLD, 255], "and nothing else");
    second.end();
    drop(second.listener);
    shutdown(&keeper, Shutdown::Both).expect("it is connected");
    // It becomes the agent itself.
    assert_eq!(until("name", || name_of(index)), "switch:7");
    assert_eq!(AgentClient::of(index).expect("it runs").map().expect("it answers"), Some(map));
}

#[test]
fn frames_that_no_raw_packet_can_be_are_dropped_and_counted() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(9000), card(9000));
    let ((_, station), (_, other)) = (of(&here), of(&there));
    let raw = RawEndpoint::open(&here).expect("it is up");
    let stranger = bare::frames_of(&there, ETHERTYPE).expect("root may");
    // One that does not even fit a slot, one too long, one of another type, one for somebody else.
    let mut typed = frame(other, station, 60);
    typed[16] = Type::HostQuery as u8;
    for bad in [
        frame(other, station, 5000),
        frame(other, station, 1025),
        typed,
        frame(other, Station([2, 0, 0, 0, 0, 99]), 60),
    ] {
        rustix::io::write(&stranger, &bad).expect("the card is up");
    }
    rustix::io::write(&stranger, &frame(other, station, 1024)).expect("the card is up");
    let came = next(&raw, LIMIT).expect("it is up");
    assert_eq!(came, Some(frame(other, station, 1024)));
    let counts = raw.counts();
    assert_eq!((counts.wrong_length, counts.received), (2, 1));
    assert!(!is_readable(&raw, Duration::ZERO), "nothing waits");
    // And frames for which there is no room.
    for _ in 0..50 {
        rustix::io::write(&stranger, &frame(other, station, 60)).expect("the card is up");
    }
    assert_eq!(raw.counts().no_room, 50 - 32);
    assert!(is_readable(&raw, Duration::ZERO));
    let came = std::iter::from_fn(|| next(&raw, Duration::ZERO).expect("it is up")).count();
    assert_eq!((came, raw.counts().received), (32, 33));
    assert!(!is_readable(&raw, Duration::ZERO));
}

#[test]
fn an_interface_that_is_down_loses_frames_and_one_that_is_gone_is_told() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let ((_, station), (_, other)) = (of(&here), of(&there));
    let raw = RawEndpoint::open(&here).expect("it is up");
    let far = RawEndpoint::open(&there).expect("it is up");
    assert!(ip(&format!("link set {here} down")));
    raw.send(&frame(station, other, 60), Some(5)).expect("as if it were lost on its way");
    assert_eq!(raw.counts(), RawCounts { unsent: 1, ..raw.counts() });
    assert_eq!(raw.next(&mut [], true, None).expect("it is there"), Some(RawEvent::Sent(5)));
    assert_eq!(next(&raw, Duration::from_millis(20)).expect("it is there"), None);
    assert!(!is_readable(&raw, Duration::ZERO), "that it is down was heard");
    assert!(ip(&format!("link set {here} up")));
    until("frame", || {
        // The bridge may not let it through at once.
        far.send(&frame(other, station, 60), None).expect("it is up");
        next(&raw, Duration::from_millis(20)).expect("it is up again")
    });
    let waits = |raw: &RawEndpoint| matches!(next(raw, LIMIT), Err(RawError::Gone));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            loop {
                match next(&raw, LIMIT) {
                    Ok(Some(_)) => {}
                    other => return matches!(other, Err(RawError::Gone)),
                }
            }
        });
        assert!(ip(&format!("link del {here}")));
        assert!(waiter.join().expect("it says what is wrong"), "who waits is told");
    });
    assert!(
        waits(&raw) && matches!(raw.send(&frame(station, other, 60), None), Err(RawError::Gone))
    );
    assert!(matches!(
        RawEndpoint::open(&here),
        Err(ModuleError::Ether(EtherError::NoInterface(_)))
    ));
}

#[test]
fn a_network_that_is_said_wrongly_has_no_raw_endpoint() {
    let Some(_namespace) = Namespace::enter() else { return };
    let here = card(1500);
    for (said, works) in
        [("?order=little", true), ("?mode=compatible", false), ("?order=up", false)]
    {
        // An earlier endpoint, or a failed attempt, leaves nothing behind. But a program that another test starts
        // has descriptors of this one for a moment.
        let opened = until("answer", || match RawEndpoint::open(&format!("{here}{said}")) {
            Err(ModuleError::Ether(EtherError::RawTaken(_))) => None,
            opened => Some(opened),
        });
        assert_eq!(opened.is_ok(), works, "{said}: {:?}", opened.err());
    }
}
