//! How long it takes to arm alternates, and to move to them, against the number of channels of one association, and against
//! the number of endpoints with an association each (figures 5 and 6 of the paper).
//!
//! All endpoints are in this process, over two addresses of the loopback interface, and one thread drives them. They say that
//! they are on two hosts, as those of the paper are: what associations with one host share they share here. A channel is a pair
//! of match bits with a receive, which gets a message after the move.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::migration::{By, Outcome as End, Policy, Role, Wanted, What};
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{
    Address, Channel, Context, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId, Posted,
};
use ropewalk_rail::Rail;

use crate::lab::{Options, alternate, quoted, version};
use crate::paths::guide::Kin;
use crate::paths::pair::{Many, allow_files};
use crate::report::Outcome;
use crate::series::{OURS, spread};

/// Channels of an association, or endpoints.
const COUNTS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
/// The last one of those that are measured where it has to be quick.
const QUICK_MAX: usize = 16;
/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 128;
const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// What its rows measure.
pub fn kin() -> Kin {
    let [[arm, migrate], [arm_all, migrate_all]] = Many::ALL.map(targets);
    Kin {
        names: "arm.MANY.tcp",
        what: "times of arming and of moving for 1 to 512 (figures 5 and 6)",
        reach: format!(
            "512 channels {arm} and {migrate} ms, endpoints {arm_all} and {migrate_all} ms"
        ),
    }
}

fn row(many: Many) -> String {
    format!("arm.{}.tcp", many.name())
}

/// The most milliseconds that 512 shall take to arm, and to move.
fn targets(many: Many) -> [f64; 2] {
    match many {
        Many::Channels => [12.0, 1.0],
        Many::Endpoints => [80.0, 30.0],
    }
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    Many::ALL.map(row).to_vec()
}

/// Measures the rows that are wanted.
///
/// # Errors
/// An endpoint cannot be opened, or a message was not delivered after the move.
pub fn arm(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    for many in Many::ALL.into_iter().filter(|many| options.wanted(&row(*many))) {
        allow_files();
        let most = if options.quick { QUICK_MAX } else { usize::MAX };
        let counts: Vec<usize> = COUNTS.into_iter().filter(|count| *count <= most).collect();
        let names: Vec<String> =
            counts.iter().map(|count| format!("{}: {count}", row(many))).collect();
        let found = alternate(options, options.runs(), &names, |turn, _| trial(many, counts[turn]));
        for (count, trials) in counts.iter().zip(&found) {
            for outcome in outcomes(many, *count, trials) {
                emit(&outcome);
            }
        }
    }
    Ok(())
}

/// Milliseconds from MIGRATED to ARMED of all, and back, on both sides; and the frames of both sides for each arming.
struct Trial {
    armed: f64,
    migrated: f64,
    frames: f64,
}

/// A figure of a trial.
type Of = fn(&Trial) -> f64;

struct Side {
    endpoint: Endpoint,
    context: Context,
    /// Whether completions have come: of sends, or by the match bits of receives.
    done: usize,
}

struct World {
    server: Side,
    clients: Vec<Side>,
    peers: Vec<PeerId>,
}

/// `host`: the number of its machine.
fn open(host: u64) -> anyhow::Result<Side> {
    let rail = |address: &&str| -> anyhow::Result<Box<dyn Rail>> {
        let place = format!("{address}:0?source={address}");
        let listen = Listen::At { address: &place, exactly: true };
        modules::open("tcp", &listen).with_context(|| format!("cannot listen at {place}"))
    };
    let rails = ADDRESSES.iter().map(rail).collect::<anyhow::Result<Vec<_>>>()?;
    let mut config = EndpointConfig::new(ClusterId(77));
    config.host = host;
    config.service_thread = false;
    config.core.mode = Mode::Resume;
    config.core.paths_max = ADDRESSES.len();
    config.core.path_policy = Policy::Nothing;
    let endpoint = Endpoint::open(config, rails)?;
    let context = endpoint.context(false)?;
    Ok(Side { endpoint, context, done: 0 })
}

impl World {
    /// So many endpoints with an association each to one that all of them know, with two paths.
    fn new(count: usize) -> anyhow::Result<World> {
        let server = open(1)?;
        let clients = (0..count).map(|_| open(2)).collect::<anyhow::Result<Vec<_>>>()?;
        let address = Address::parse(server.endpoint.addresses())?;
        let mut peers = Vec::new();
        for client in &clients {
            let peer = client.endpoint.lookup(&address);
            let peer = peer.map_err(|fault| anyhow!("the server is no peer: {fault}"))?;
            client.endpoint.connect(peer);
            peers.push(peer);
        }
        let mut world = World { server, clients, peers };
        let mut next = 0;
        world.until("two paths of each", |world| {
            let has_two = |at: usize| {
                world.clients[at].endpoint.path_entries(world.peers[at]).len() == ADDRESSES.len()
            };
            next += (next..count).take_while(|at| has_two(*at)).count();
            next == count
        })?;
        Ok(world)
    }

    fn pass(&mut self) -> anyhow::Result<()> {
        for side in self.clients.iter_mut().chain([&mut self.server]) {
            side.endpoint.progress();
            while let Some(completed) = side.endpoint.take(&side.context) {
                ensure!(completed.outcome == Ok(()), "a message failed: {:?}", completed.outcome);
                side.done += 1;
            }
        }
        Ok(())
    }

    fn until(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&mut World) -> bool,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !holds(self) {
            self.pass()?;
            ensure!(begin.elapsed() < LIMIT, "{what}: waited in vain");
        }
        Ok(())
    }

    /// Events of the server that say that traffic moved, or that an alternate is armed.
    fn server_events(&self, is_such: impl Fn(&What) -> bool) -> usize {
        let events = std::iter::from_fn(|| self.server.endpoint.next_path_event());
        events.filter(|event| is_such(&event.what)).count()
    }

    /// Frames that all have sent so far.
    fn frames(&self) -> u64 {
        let sides = self.clients.iter().chain([&self.server]);
        let rails = sides.flat_map(|side| side.endpoint.counters().1);
        rails.map(|(_, counters)| counters.frames_sent).sum()
    }

    fn load(&mut self) -> anyhow::Result<()> {
        for (client, peer) in self.clients.iter().zip(&self.peers) {
            let specified = client.endpoint.specify_path(*peer, Wanted::default());
            specified.map_err(|rule| anyhow!("no alternate: {rule}"))?;
        }
        let begin = self.clients.iter().zip(&self.peers);
        let mut loads: Vec<_> =
            begin.map(|(client, peer)| client.endpoint.load_paths(&[*peer], By::Poll)).collect();
        let (count, mut ended, mut armed) = (self.clients.len(), 0, 0);
        self.until("all loads", |world| {
            let mut ends = |at: usize| world.clients[at].endpoint.poll_loads(&mut loads[at]) == 0;
            while ended < count && ends(ended) {
                ended += 1;
            }
            armed += world.server_events(|what| matches!(what, What::Armed { .. }));
            ended == count && armed >= count
        })?;
        for (_, end) in loads.iter().flat_map(|loads| loads.ends()) {
            let is_armed = matches!(end, Some(End::Armed { .. }));
            ensure!(is_armed, "a load ended with {end:?}");
        }
        Ok(())
    }

    fn migrate(&mut self) -> anyhow::Result<()> {
        for (client, peer) in self.clients.iter().zip(&self.peers) {
            let moved = client.endpoint.migrate_path(*peer);
            moved.map_err(|rule| anyhow!("no move: {rule}"))?;
        }
        let (count, mut moved) = (self.clients.len(), 0);
        self.until("all moves", |world| {
            moved += world.server_events(|what| matches!(what, What::Migrated { .. }));
            moved >= count
        })
    }

    /// Posts a receive for each channel, of which any client may be the sender.
    fn post_receives(&mut self, pool: &Pool, channels: usize) -> anyhow::Result<()> {
        let Side { endpoint, context, .. } = &self.server;
        for bits in 0..channels as u64 {
            let memory = Memory::pooled(pool.take(BYTES).context("no memory for a receive")?);
            let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
            let posted =
                endpoint.post_receive(context, tagged, None, bits, u64::MAX, memory, cut, bits);
            ensure!(matches!(posted, Ok(Posted::Pending(_))), "a receive has ended");
        }
        Ok(())
    }

    /// A message through each channel, which is not lost.
    fn use_channels(&mut self, pool: &Pool, channels: usize) -> anyhow::Result<()> {
        let before = self.server.done;
        for bits in 0..channels as u64 {
            let at = bits as usize % self.clients.len();
            let Side { endpoint, context, .. } = &self.clients[at];
            let memory = Memory::pooled(pool.take(BYTES).context("no memory for a message")?);
            let (tagged, level) = (Channel::Tagged, Level::Buffered);
            let posted =
                endpoint.post_send(context, self.peers[at], tagged, bits, memory, level, bits);
            if posted.is_err() {
                bail!("a message was refused");
            }
        }
        self.until("all messages", |world| world.server.done >= before + channels)
    }
}

fn trial(many: Many, count: usize) -> anyhow::Result<Trial> {
    let clients = if many == Many::Endpoints { count } else { 1 };
    let mut world = World::new(clients)?;
    let pool = Pool::with_budget(16 << 20);
    world.post_receives(&pool, count)?;
    world.server_events(|_| true);
    let (begin, before) = (Instant::now(), world.frames());
    world.load()?;
    let armed = begin.elapsed();
    let frames = (world.frames() - before) as f64 / world.clients.len() as f64;
    let begin = Instant::now();
    world.migrate()?;
    let migrated = begin.elapsed();
    for (client, peer) in world.clients.iter().zip(&world.peers) {
        let entries = client.endpoint.path_entries(*peer);
        let moved =
            entries.iter().any(|(entry, role)| *role == Role::Primary && entry.record.id.0 != 0);
        ensure!(moved, "the primary path is the one of before");
    }
    world.use_channels(&pool, count)?;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Trial { armed: millis(armed), migrated: millis(migrated), frames })
}

fn outcomes(many: Many, count: usize, trials: &[Trial]) -> Vec<Outcome> {
    if trials.is_empty() {
        return Vec::new();
    }
    let [arm, migrate] = targets(many);
    let figures: [(&str, Of, f64); 2] =
        [("armed", |it| it.armed, arm), ("migrated", |it| it.migrated, migrate)];
    let outcome = |(name, of, target): (&str, Of, f64)| {
        let values: Vec<f64> = trials.iter().map(of).collect();
        let (median, min, max) = spread(values);
        let mut params =
            vec![(many.name(), count.to_string()), ("placement", quoted("one process"))];
        if name == "armed" {
            let frames = spread(trials.iter().map(|it| it.frames).collect()).0;
            params.push(("frames_each", format!("{frames:.1}")));
        }
        if COUNTS.last() == Some(&count) {
            params.push(("target_ms", target.to_string()));
        }
        Outcome {
            scenario: format!("{}.{name}", row(many)),
            system: OURS,
            version: version(),
            medium: "tcp",
            params,
            metric: "latency",
            unit: "ms",
            median,
            min,
            max,
            p99: max,
            runs: trials.len(),
            ratio: None,
        }
    };
    figures.map(outcome).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_channels_and_all_endpoints_are_armed_and_move() {
        for many in Many::ALL {
            let trial = trial(many, 4).unwrap();
            assert!(trial.armed > 0.0 && trial.migrated > 0.0);
            let outcomes = outcomes(many, 4, &[trial]);
            assert_eq!(outcomes.len(), 2);
        }
    }
}
