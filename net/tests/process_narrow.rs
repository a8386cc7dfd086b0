//! A path whose switch passes short packets alone, and tells nobody: it is not armed.

mod wired;

use std::time::{Duration, Instant};

use ropewalk_base::ids::{ClusterId, EndpointId};
use ropewalk_net::migration::{By, Outcome, Policy, Wanted, What};
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Address, Endpoint, EndpointConfig, Mode, PeerId};
use ropewalk_netns::{Fault, FaultKind, Host, Joint};
use wired::network;

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(30);

fn open(host: Host<'_>, number: u128, scheme: &str) -> Endpoint {
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
    // The lower one adds the paths: this thread is at its host.
    config.endpoint = EndpointId(number);
    (config.core.mode, config.core.paths_max) = (Mode::Resume, 2);
    config.core.path_policy = Policy::Nothing;
    Endpoint::open(config, vec![rail(0), rail(1)]).expect("there are descriptors")
}

struct Pair {
    near: Endpoint,
    far: Endpoint,
    peer: PeerId,
}

impl Pair {
    fn until(&self, what: &str, mut holds: impl FnMut(&Pair) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            self.near.progress();
            self.far.progress();
            assert!(begin.elapsed() < LIMIT, "{what}: waited in vain");
        }
    }

    /// Loads whichever path is the alternate, and waits for the end.
    fn load(&self) -> Outcome {
        let mut loads = self.near.load_paths(&[self.peer], By::Poll);
        self.until("a load", |pair| pair.near.poll_loads(&mut loads) == 0);
        loads.ends().next().and_then(|(_, end)| end).expect("it ended")
    }

    /// Whether an event says that a path is armed, of those that nobody took.
    fn tells_of_armed(&self) -> bool {
        let events = |endpoint: &Endpoint| {
            std::iter::from_fn(|| endpoint.next_path_event()).collect::<Vec<_>>()
        };
        let all = [events(&self.near), events(&self.far)].concat();
        all.iter().any(|event| matches!(event.what, What::Armed { .. }))
    }
}

#[test]
fn a_path_that_passes_short_packets_alone_is_armed_when_it_is_mended_and_not_before() {
    let Some(net) = network(Joint::Switched) else { return };
    for scheme in ["tcp", "udp", "ether"] {
        let near = open(net.host(0), 1, scheme);
        let far = net.host(1).within(|| open(net.host(1), 2, scheme));
        let address = Address::parse(far.addresses()).expect("it listens");
        let peer = near.lookup(&address).expect("an address of its rails");
        near.connect(peer);
        let pair = Pair { near, far, peer };
        pair.until("two paths", |pair| pair.near.path_entries(pair.peer).len() == 2);
        let narrow = Fault::new(FaultKind::MtuBlackHole { bytes: 1280 }, 0, 1);
        let narrow = net.inject(&narrow).expect("it can be injected");
        let path = pair.near.specify_path(peer, Wanted::default()).expect("there is one");
        let end = pair.load();
        println!("{scheme}: the load of {path:?} ended with {end:?}");
        assert!(matches!(end, Outcome::Failed(_)), "{scheme}: {end:?}");
        assert!(!pair.tells_of_armed(), "{scheme}");
        narrow.mend().expect("it can be mended");
        let begin = Instant::now();
        pair.until("it is armed", |pair| {
            let specified = pair.near.specify_path(peer, Wanted::default());
            specified.is_ok() && matches!(pair.load(), Outcome::Armed { .. })
        });
        println!("{scheme}: armed {:?} after it was mended", begin.elapsed());
        pair.until("both say so", |pair| pair.tells_of_armed());
    }
}
