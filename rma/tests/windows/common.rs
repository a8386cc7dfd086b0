//! Ranks as threads of one process, each with an endpoint of its own, over real rails and over those of a network with faults.

#[path = "faulty.rs"]
pub mod faulty;

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};
use ropewalk_rma::{Cells, Implementation, Team, Window, WindowOptions};

use faulty::Faulty;

/// How ranks reach each other, and by which implementation.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub scheme: &'static str,
    pub implementation: Implementation,
    pub eager_bytes: u32,
    pub map_memory: bool,
    /// Of the chances of a network with faults.
    pub seed: u64,
}

impl Setup {
    /// Whether frames get lost, or links.
    pub fn is_faulty(&self) -> bool {
        [faulty::LOSES, faulty::CUTS].contains(&self.scheme)
    }

    pub fn options(&self, name: &str) -> WindowOptions {
        WindowOptions {
            implementation: self.implementation,
            name: name.into(),
            eager_bytes: self.eager_bytes,
            map_memory: self.map_memory,
            ..WindowOptions::default()
        }
    }
}

/// What a thread has.
pub struct Rank {
    pub setup: Setup,
    pub endpoint: Endpoint,
    pub team: Team,
    pub rank: u32,
    pub size: u32,
}

impl Rank {
    /// A window of so many bytes.
    pub fn window(&self, bytes: usize) -> Window {
        let window = self.team.allocate(bytes, &self.setup.options("test"));
        window.expect("all ranks make the same")
    }

    /// All other ranks.
    pub fn others(&self) -> Vec<u32> {
        (0..self.size).filter(|rank| *rank != self.rank).collect()
    }
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

fn endpoint(setup: Setup, faulty: Option<&Faulty>) -> Endpoint {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("rma{}-{number}", std::process::id());
    if let Some(faulty) = faulty {
        return faulty.endpoint(&name);
    }
    let address = if setup.scheme == "shm" { name.as_str() } else { "127.0.0.1:0" };
    let rail = modules::open(setup.scheme, &Listen::At { address, exactly: true });
    let rail = rail.expect("this host has it");
    Endpoint::open(EndpointConfig::new(ClusterId(9)), vec![rail]).expect("it opens")
}

/// Runs so many ranks. One that panics closes its endpoint, so that nobody waits for it.
pub fn ranks(setup: Setup, size: u32, work: impl Fn(&Rank) + Sync) {
    let addresses = Mutex::new(vec![Vec::new(); size as usize]);
    let (all_here, all_done) = (Barrier::new(size as usize), Barrier::new(size as usize));
    let faulty = setup.is_faulty().then(|| Faulty::of(setup.scheme, setup.seed));
    let ended = AtomicU64::new(0);
    let run = |rank: u32| {
        let endpoint = endpoint(setup, faulty.as_ref());
        let exchange = |own: &[u8]| {
            addresses.lock().expect("nobody panics")[rank as usize] = own.to_vec();
            all_here.wait();
            Ok::<_, Infallible>(addresses.lock().expect("nobody panics").clone())
        };
        let group = Group::find(&endpoint, rank, 7 << 48, exchange).expect("all are here");
        let team = Team::new(&endpoint, &group, 8 << 48).expect("there is room");
        let own = Rank { setup, endpoint: endpoint.clone(), team, rank, size };
        let outcome = catch_unwind(AssertUnwindSafe(|| work(&own)));
        if outcome.is_ok() && !endpoint.is_closed() {
            own.team.settle(Duration::from_secs(5));
        } else {
            endpoint.close();
        }
        all_done.wait();
        group.leave(&endpoint);
        drop(own);
        endpoint.close();
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    };
    std::thread::scope(|scope| {
        let (run, ended) = (&run, &ended);
        for rank in 0..size {
            scope.spawn(move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| run(rank)));
                ended.fetch_add(1, Ordering::SeqCst);
                outcome.unwrap_or_else(|panic| resume_unwind(panic));
            });
        }
        if let Some(faulty) = &faulty {
            faulty.drive(|| ended.load(Ordering::SeqCst) == u64::from(size));
        }
    });
}

/// Bytes that differ from place to place, and from seed to seed.
pub fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}

/// All bytes of cells.
pub fn bytes(cells: &Cells) -> Vec<u8> {
    let mut all = vec![0; cells.len()];
    cells.read(0, &mut all).expect("they have as many");
    all
}
