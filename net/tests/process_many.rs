//! Endpoints by the hundred in one process, each bound to an interface: all sleep, and all hear that it is down.

mod wired;

use std::time::{Duration, Instant};

use ropewalk_base::health::Suspicion;
use ropewalk_base::ids::ClusterId;
use ropewalk_net::migration::Connection;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Address, Endpoint, EndpointConfig, PeerId};
use ropewalk_netns::{Fault, FaultKind, Joint};
use ropewalk_rail::Rail;
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wired::network;

/// More than Linux lets watch one file over two sets.
const ENDPOINTS: usize = 640;
/// Descriptors of an endpoint, and of its link at the other end, and some.
const FILES_EACH: u64 = 12;
/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(60);

fn open(rail: Box<dyn Rail>) -> Endpoint {
    let mut config = EndpointConfig::new(ClusterId(77));
    (config.host, config.service_thread) = (0, false);
    Endpoint::open(config, vec![rail]).expect("there are descriptors")
}

/// Makes passes until there is nothing to do. An answer of false would be work for the next one.
fn fall_asleep(endpoint: &Endpoint) {
    while !endpoint.arm_rails().0 {
        endpoint.disarm_rails();
        endpoint.progress();
    }
}

fn allow_files() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let needed = ENDPOINTS as u64 * FILES_EACH;
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        println!("SKIP: {needed} open files are needed; raise the limit (`ulimit -Hn`)");
        return false;
    }
    let current = limit.current.map(|current| current.max(needed));
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).is_ok()
}

#[test]
fn hundreds_of_sleeping_endpoints_hear_that_their_interface_is_down() {
    let Some(net) = network(Joint::Direct) else { return };
    if !allow_files() {
        return;
    }
    let (near, far) = (net.host(0), net.host(1));
    let place = format!("{}:0?interface={}", far.address(0), far.interface(0));
    let listen = Listen::At { address: &place, exactly: true };
    let server = far.within(|| open(modules::open("tcp", &listen).expect("it is there")));
    let address = Address::parse(server.addresses()).expect("it listens");
    let binding = format!("interface={}", near.interface(0));
    let clients: Vec<(Endpoint, PeerId)> = (0..ENDPOINTS)
        .map(|_| {
            let rail = modules::open_to_call_by("tcp", &binding);
            let endpoint = open(rail.expect("the interface is there"));
            let peer = endpoint.lookup(&address).expect("its rail can call it");
            endpoint.connect(peer);
            (endpoint, peer)
        })
        .collect();
    let begin = Instant::now();
    let is_up = |(endpoint, peer): &(Endpoint, PeerId)| {
        endpoint.path_state(*peer).connection == Connection::Rts
    };
    while !clients.iter().all(is_up) {
        server.progress();
        clients.iter().for_each(|(endpoint, _)| {
            endpoint.progress();
        });
        assert!(begin.elapsed() < LIMIT, "not all are connected");
    }
    println!("{ENDPOINTS} endpoints connected within {:?}", begin.elapsed());

    // One set over all of them, as a program would have it.
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there are descriptors");
    for (at, (endpoint, _)) in clients.iter().enumerate() {
        let data = epoll::EventData::new_u64(at as u64);
        let added = epoll::add(&set, endpoint.descriptor(), data, epoll::EventFlags::IN);
        added.expect("the kernel allows as many");
    }
    clients.iter().for_each(|(endpoint, _)| fall_asleep(endpoint));
    let has_heard =
        |endpoint: &Endpoint| endpoint.counters().0.suspected.of(Suspicion::InterfaceDown) > 0;
    let fault =
        net.inject(&Fault::new(FaultKind::InterfaceDown, 0, 0)).expect("it can be set down");
    let begin = Instant::now();
    let mut heard = 0;
    let mut events = Vec::with_capacity(ENDPOINTS);
    while heard < ENDPOINTS {
        events.clear();
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        epoll::wait(&set, rustix::buffer::spare_capacity(&mut events), Some(&limit))
            .expect("it can be slept on");
        for event in &events {
            let (endpoint, _) = &clients[event.data.u64() as usize];
            let before = has_heard(endpoint);
            endpoint.disarm_rails();
            endpoint.progress();
            heard += usize::from(!before && has_heard(endpoint));
            fall_asleep(endpoint);
        }
        assert!(begin.elapsed() < LIMIT, "{heard} have heard of it");
    }
    println!("all have heard of it within {:?}", begin.elapsed());
    assert!(clients.iter().all(|(endpoint, _)| has_heard(endpoint)));
    fault.mend().expect("it can be mended");
}
