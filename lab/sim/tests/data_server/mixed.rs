//! Everything at once: two clients write, punch, sync and read while the server dies, loses power,
//! and the network fails.
//!
//! A client remembers its unsynced bytes, and writes them again when a boot id says that the server may have
//! forgotten them; so it always reads its own writes. It writes them as they are now, not change by change. The
//! unsynced bytes wholly covered a block that the power loss tore, and only a write that covers the block wholly
//! heals it. Until then a change in part of it is an error, whose reply has the new boot id.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_sim::{Cut, Kill, SimConfig, Simulation, run_seeds, seeds};
use ropewalk_wire::fs::data::{DataRequest, FileId, ObjectRange};

use crate::client::{Client, Outcome, file, range};
use crate::cluster::{Cluster, LIMIT, SESSION, Setup, add_client};

const STRIPES: u32 = 2;
const STRIPE_BYTES: usize = 300_000;
const STEPS: u64 = 14;

/// A change of a file: bytes, or zeros by a punch.
struct Change {
    pieces: Vec<ObjectRange>,
    bytes: Option<Vec<u8>>,
}

/// A client's file as it has to read.
struct Program {
    client: Client,
    file: FileId,
    random: Random,
    model: Vec<Vec<u8>>,
    /// The bytes changed since the last sync, and the life of the server that has them.
    unsynced: Vec<Vec<bool>>,
    era: u64,
}

impl Program {
    fn pieces(&mut self) -> Vec<ObjectRange> {
        let most = [50, 5000, 100_000][self.random.below(3) as usize];
        let count = 1 + self.random.below(4);
        let piece = |random: &mut Random| {
            let len = 1 + random.below(most) as u32;
            let offset = random.below(STRIPE_BYTES as u64 - u64::from(len)) as u32;
            range(random.below(u64::from(STRIPES)) as u32, offset, len)
        };
        (0..count).map(|_| piece(&mut self.random)).collect()
    }

    fn apply(&mut self, change: &Change) {
        let mut at = 0;
        for piece in &change.pieces {
            let len = piece.len as usize;
            let (stripe, offset) = (piece.stripe as usize, piece.offset as usize);
            self.unsynced[stripe][offset..offset + len].fill(true);
            let place = &mut self.model[stripe][offset..offset + len];
            match &change.bytes {
                Some(bytes) => place.copy_from_slice(&bytes[at..at + len]),
                None => place.fill(0),
            }
            at += len;
        }
    }

    /// Sends a change once.
    async fn send(&self, change: &Change) -> Outcome<u64> {
        let Change { pieces, bytes } = change;
        match bytes {
            Some(bytes) => self.client.write(self.file, pieces, bytes).await,
            None => {
                let (file, pieces) = (self.file, pieces.clone());
                self.client.done(&DataRequest::Punch { file, pieces }).await
            }
        }
    }

    /// Everything that is not synced, as it is now.
    fn rest(&self) -> Change {
        let (mut pieces, mut bytes) = (Vec::new(), Vec::new());
        for (stripe, unsynced) in self.unsynced.iter().enumerate() {
            let mut at = 0;
            for run in unsynced.chunk_by(|one, next| one == next) {
                if run[0] {
                    pieces.push(range(stripe as u32, at as u32, run.len() as u32));
                    bytes.extend_from_slice(&self.model[stripe][at..at + run.len()]);
                }
                at += run.len();
            }
        }
        Change { pieces, bytes: Some(bytes) }
    }

    /// Writes again what is not synced until one era of the server has all of it.
    async fn catch_up(&mut self) {
        while self.client.era.get() != self.era {
            self.era = self.client.era.get();
            let rest = self.rest();
            if !rest.pieces.is_empty() {
                self.send(&rest).await.unwrap();
            }
        }
    }

    async fn change(&mut self) {
        let pieces = self.pieces();
        let total = pieces.iter().map(|piece| piece.len as usize).sum();
        let value = self.random.next_u64() as u8;
        let bytes = (self.random.below(6) > 0)
            .then(|| (0..total).map(|index| value.wrapping_add((index >> 3) as u8)).collect());
        let change = Change { pieces, bytes };
        self.apply(&change);
        let sent = self.send(&change).await;
        let forgotten = self.client.era.get() != self.era;
        assert!(forgotten || sent.is_ok(), "{sent:?} without a reason");
        self.catch_up().await;
    }

    async fn sync(&mut self) {
        loop {
            let synced = self.client.sync(&[self.file]).await;
            if self.client.era.get() == self.era {
                synced.unwrap();
                self.unsynced.iter_mut().for_each(|stripe| stripe.fill(false));
                return;
            }
            self.catch_up().await;
        }
    }

    /// Reads everything; writes that the server has forgotten since the last reply are repeated first.
    async fn check(&mut self) {
        loop {
            self.client.call(&DataRequest::Status, |_| ()).await.unwrap();
            self.catch_up().await;
            let mut whole = Vec::new();
            for stripe in 0..STRIPES {
                let pieces = [range(stripe, 0, STRIPE_BYTES as u32)];
                whole.push(self.client.read(self.file, &pieces).await);
            }
            self.client.call(&DataRequest::Status, |_| ()).await.unwrap();
            if self.client.era.get() == self.era {
                for (stripe, (read, model)) in whole.into_iter().zip(&self.model).enumerate() {
                    assert!(read.unwrap().bytes == *model, "stripe {stripe}");
                }
                return;
            }
        }
    }

    async fn run(mut self) {
        for _ in 0..STEPS {
            match self.random.below(5) {
                0 => self.sync().await,
                1 => self.check().await,
                _ => self.change().await,
            }
            let pause = self.random.below(20_000);
            self.client.world.sleep(Duration::from_micros(pause)).await;
        }
        self.check().await;
    }
}

fn misfortune(simulation: &mut Simulation, cluster: &Cluster, random: &mut Random) {
    let pause = Duration::from_micros(random.below(2_000_000));
    let client = ["client", "other"][random.below(2) as usize];
    match random.below(4) {
        0 => cluster.restart(simulation, Kill::Power),
        1 => cluster.restart(simulation, Kill::Process(pause / 100)),
        2 => {
            simulation.network().partition(client, "server");
            simulation.run_for(pause);
            simulation.network().heal(client, "server");
        }
        _ => {
            simulation.network().cut("server", client, Cut::FirstThenOther(pause));
        }
    }
}

fn scenario(simulation: &mut Simulation) {
    let mut random = simulation.fork_random();
    let native = random.below(2) == 0;
    let rail = if native { SimConfig::native() } else { SimConfig::stream() };
    let mut setup = Setup::new(rail.clone());
    // Small sizes, so that checkpoints and waiting for buffers are part of it.
    setup.transfer_bytes = 0;
    setup.objects.object_bytes = 1 << 20;
    setup.objects.segment_bytes = 64 << 10;
    setup.objects.checkpoint_bytes = 128 << 10;
    setup.objects.overlay_bytes = 64 << 10;
    let cluster = Cluster::new(simulation, &setup);
    let other = add_client(simulation, "other", rail);
    other.use_session(SESSION + 1, 1);
    let ended = Rc::new(Cell::new(0));
    for (name, client) in [("client", cluster.client.clone()), ("other", other)] {
        let program = Program {
            client: client.clone(),
            file: file(client.connection.session()),
            random: simulation.fork_random(),
            model: vec![vec![0; STRIPE_BYTES]; STRIPES as usize],
            unsynced: vec![vec![false; STRIPE_BYTES]; STRIPES as usize],
            era: cluster.server().era(),
        };
        let ended = ended.clone();
        simulation.node(name).world().spawn(async move {
            program.run().await;
            ended.set(ended.get() + 1);
        });
    }
    for _ in 0..5 {
        simulation.run_for(Duration::from_micros(random.below(80_000)));
        misfortune(simulation, &cluster, &mut random);
    }
    assert!(simulation.run_until(LIMIT, |_| ended.get() == 2), "the clients do not end");
    assert_eq!(cluster.counters().checksum_errors, 0);
}

#[test]
fn clients_read_what_they_wrote_over_deaths_power_cuts_and_lost_links() {
    let hashes = RefCell::new(Vec::new());
    run_seeds(seeds(0, 100), |simulation| {
        scenario(simulation);
        hashes.borrow_mut().push(simulation.trace_hash());
    });
    let mut hashes = hashes.into_inner();
    let seeds = hashes.len() / 2;
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), seeds, "each seed is a run of its own");
}
