//! A network in memory that loses, doubles and reorders frames, or cuts links.
//!
//! Ranks are threads, so a run is not the same twice; the histories of `net` are (`net/tests/histories.rs`). A seed chooses
//! the chances of the network.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::{Endpoint, EndpointConfig, Mode};
use ropewalk_rail_sim::{Cut, Path, SimConfig, SimNetwork};

/// Frames of datagrams get lost, come twice, and overtake each other.
pub const LOSES: &str = "loses";
/// Links of streams are cut, and their sessions go on.
pub const CUTS: &str = "cuts";

/// The time between two rounds of the driver: a frame's way takes about as long.
const ROUND: Duration = Duration::from_micros(20);
/// Rounds between two cuts.
const CUT_EACH: u64 = 300;

/// A network with faults, and who is in it.
pub struct Faulty {
    network: SimNetwork,
    cuts: bool,
    seed: u64,
    begin: Instant,
    members: Mutex<Vec<(String, Endpoint)>>,
}

impl Faulty {
    /// The network of one of these schemes.
    pub fn of(scheme: &str, seed: u64) -> Faulty {
        let network = SimNetwork::new(seed);
        let mut path = Path { latency: ROUND, jitter: ROUND, ..Path::default() };
        if scheme == LOSES {
            (path.loss, path.duplication, path.header_corruption) = (10_000, 20_000, 2_000);
            (path.reordering, path.reordering_delay) = (50_000, Duration::from_micros(200));
        }
        network.set_default_path(path);
        let (cuts, begin, members) = (scheme == CUTS, Instant::now(), Mutex::default());
        Faulty { network, cuts, seed, begin, members }
    }

    pub fn endpoint(&self, name: &str) -> Endpoint {
        let rail = if self.cuts { SimConfig::stream() } else { SimConfig::datagram() };
        let mut config = EndpointConfig::new(ClusterId(9));
        config.core.mode = Mode::Resume;
        let begin = self.begin;
        config.clock = std::sync::Arc::new(move || Time(begin.elapsed().as_nanos() as u64));
        let rails = vec![Box::new(self.network.rail(name, rail)) as _];
        let endpoint = Endpoint::open(config, rails).expect("it opens");
        let mut members = self.members.lock().expect("nobody panics with it");
        members.push((name.into(), endpoint.clone()));
        endpoint
    }

    /// Makes the network's time pass for those who sleep, and cuts links, until all is over.
    pub fn drive(&self, is_over: impl Fn() -> bool) {
        let mut random = Random::from_seed(self.seed);
        for round in 1.. {
            if is_over() {
                return;
            }
            let members = self.members.lock().expect("nobody panics with it");
            for (_, endpoint) in members.iter() {
                endpoint.progress();
            }
            if self.cuts && round % CUT_EACH == 0 && members.len() > 1 {
                let first = random.below(members.len() as u64) as usize;
                let other =
                    (first + 1 + random.below(members.len() as u64 - 1) as usize) % members.len();
                let late = Cut::FirstThenOther(Duration::from_micros(200));
                let cut = if random.below(2) == 0 { Cut::Both } else { late };
                self.network.cut(&members[first].0, &members[other].0, cut);
            }
            drop(members);
            std::thread::sleep(ROUND);
        }
    }
}
