//! Endpoints of this process with two paths to another one, and messages to and fro: through many channels of one association, or
//! of many endpoints with an association each. One thread drives all, so that nothing sleeps.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use ropewalk_base::ids::{ClusterId, EndpointId};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::migration::{Policy, Role};
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{
    Address, Channel, Context, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId, Posted,
};
use ropewalk_netns::Host;
use ropewalk_rail::Rail;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const PATHS: usize = 2;
/// An answer that takes longer lets the endpoints pass, too, that have no message under way.
const LONG: Duration = Duration::from_millis(1);
/// The mark of a send: receives have the numbers of their channels.
const SENT: u64 = u64::MAX;

/// What there are many of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Many {
    /// Channels of one association.
    Channels,
    /// Endpoints with an association each to one that all of them know.
    Endpoints,
}

impl Many {
    pub const ALL: [Many; 2] = [Many::Channels, Many::Endpoints];

    pub fn name(self) -> &'static str {
        match self {
            Many::Channels => "channels",
            Many::Endpoints => "endpoints",
        }
    }
}

/// Lets this process have as many files as it may: each endpoint has two sockets that listen, two that are connected, and
/// three descriptors to sleep on.
pub fn allow_files() {
    let limit = getrlimit(Resource::Nofile);
    // Without enough of them large numbers of endpoints fail, and say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

struct End {
    endpoint: Endpoint,
    context: Context,
}

/// An endpoint that begins, and what it calls the far one.
struct Near {
    end: End,
    peer: PeerId,
}

/// See the module. One end begins, of which there may be many.
pub struct Pair {
    nears: Vec<Near>,
    far: End,
    pool: Pool,
    bytes: usize,
}

impl End {
    /// `host`: the number of its machine; 0: it tells none.
    fn open(number: u128, host: u64, places: &[String], policy: Policy) -> anyhow::Result<End> {
        let rail = |place: &String| -> anyhow::Result<Box<dyn Rail>> {
            let listen = Listen::At { address: place, exactly: true };
            modules::open("tcp", &listen).with_context(|| format!("cannot listen at {place}"))
        };
        let rails = places.iter().map(rail).collect::<anyhow::Result<Vec<_>>>()?;
        let mut config = EndpointConfig::new(ClusterId(77));
        // The lower one calls for the further path, from the namespace of the thread.
        config.endpoint = EndpointId(number);
        (config.host, config.service_thread) = (host, false);
        (config.core.mode, config.core.paths_max) = (Mode::Resume, PATHS);
        config.core.path_policy = policy;
        let endpoint = Endpoint::open(config, rails)?;
        let context = endpoint.context(false)?;
        Ok(End { endpoint, context })
    }

    fn send(&self, peer: PeerId, bits: u64, memory: Memory) -> anyhow::Result<()> {
        let (tagged, level) = (Channel::Tagged, Level::Buffered);
        let posted =
            self.endpoint.post_send(&self.context, peer, tagged, bits, memory, level, SENT);
        ensure!(posted.is_ok(), "a message was refused");
        Ok(())
    }

    fn receive(&self, bits: u64, memory: Memory) -> anyhow::Result<()> {
        let (tagged, cut, mask) = (Channel::Tagged, Oversize::Truncate, u64::MAX);
        let context = &self.context;
        let posted =
            self.endpoint.post_receive(context, tagged, None, bits, mask, memory, cut, bits);
        ensure!(matches!(posted, Ok(Posted::Pending(_))), "a receive has ended");
        Ok(())
    }

    /// The channel and the sender of a message that has come; its receive is posted anew.
    fn next(&self) -> anyhow::Result<Option<(u64, PeerId)>> {
        self.endpoint.progress();
        while let Some(done) = self.endpoint.take(&self.context) {
            ensure!(done.outcome == Ok(()), "a message failed: {:?}", done.outcome);
            if done.user != SENT {
                self.receive(done.user, done.memory)?;
                let from = done.peer.context("a message of nobody")?;
                return Ok(Some((done.user, from)));
            }
        }
        Ok(None)
    }
}

impl Pair {
    /// A pair over two addresses of the loopback interface, with so many channels.
    pub fn within_host(bytes: usize, channels: u64, policy: Policy) -> anyhow::Result<Pair> {
        let places = ["127.0.0.1", "127.0.0.2"].map(|host| format!("{host}:0?source={host}"));
        let far = End::open(2, 0, &places, policy)?;
        Pair::of(vec![End::open(1, 0, &places, policy)?], far, bytes, channels)
    }

    /// A pair between two hosts, or so many endpoints at the first one. The calling thread is there.
    pub fn between(
        hosts: [Host<'_>; 2],
        bytes: usize,
        (many, count): (Many, u64),
    ) -> anyhow::Result<Pair> {
        let places = hosts.map(|host| {
            [0, 1]
                .map(|rail| format!("{}:0?interface={}", host.address(rail), host.interface(rail)))
        });
        let policy = Policy::default();
        let ends = if many == Many::Endpoints { count } else { 1 };
        let near = |number: u64| End::open(1 + u128::from(number), 1, &places[0], policy);
        let nears = (0..ends).map(near).collect::<anyhow::Result<Vec<_>>>()?;
        let far = hosts[1].within(|| End::open(1 + u128::from(ends), 2, &places[1], policy))?;
        Pair::of(nears, far, bytes, count)
    }

    fn of(nears: Vec<End>, far: End, bytes: usize, channels: u64) -> anyhow::Result<Pair> {
        let address = Address::parse(far.endpoint.addresses())?;
        let known = |end: End| -> anyhow::Result<Near> {
            let peer = end.endpoint.lookup(&address);
            let peer = peer.map_err(|fault| anyhow!("the other end is no peer: {fault}"))?;
            end.endpoint.connect(peer);
            Ok(Near { end, peer })
        };
        let nears = nears.into_iter().map(known).collect::<anyhow::Result<Vec<_>>>()?;
        let pool = Pool::with_budget(2 * (channels as usize + 8) * bytes.max(1 << 12));
        let pair = Pair { nears, far, pool, bytes };
        for bits in 0..channels {
            pair.near(bits).end.receive(bits, pair.memory()?)?;
            pair.far.receive(bits, pair.memory()?)?;
        }
        let (begin, mut joined) = (Instant::now(), 0);
        let has_all = |near: &Near| near.end.endpoint.path_entries(near.peer).len() == PATHS;
        while joined < pair.nears.len() {
            pair.pass()?;
            joined += pair.nears[joined..].iter().take_while(|near| has_all(near)).count();
            ensure!(begin.elapsed() < LIMIT, "no second path");
        }
        Ok(pair)
    }

    /// The end that has this channel.
    fn near(&self, bits: u64) -> &Near {
        &self.nears[bits as usize % self.nears.len()]
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        Ok(Memory::pooled(self.pool.take(self.bytes).context("no memory for a message")?))
    }

    /// A message through a channel, and its answer; half of the time that took, in microseconds. Those ends pass that have
    /// a part in it; the others when it takes long.
    pub fn ping(&self, bits: u64) -> anyhow::Result<f64> {
        let memory = self.memory()?;
        let near = self.near(bits);
        let Near { end, peer } = near;
        let begin = Instant::now();
        end.send(*peer, bits, memory)?;
        loop {
            if let Some((bits, from)) = self.far.next()? {
                self.far.send(from, bits, self.memory()?)?;
            }
            match end.next()? {
                Some((came, _)) if came == bits => break,
                Some(_) => bail!("an answer came through another channel"),
                None => ensure!(begin.elapsed() < LIMIT, "an answer is awaited in vain"),
            }
            if self.nears.len() > 1 && begin.elapsed() > LONG {
                self.pass_others(Some(near))?;
            }
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / 2.0)
    }

    /// The first near endpoint, and its peer.
    pub fn first(&self) -> (&Endpoint, PeerId) {
        let Near { end, peer } = &self.nears[0];
        (&end.endpoint, *peer)
    }

    /// The rail over which a channel's messages go, at the near end.
    pub fn rail(&self, bits: u64) -> anyhow::Result<usize> {
        let Near { end, peer } = self.near(bits);
        let entries = end.endpoint.path_entries(*peer);
        let carrying = entries.iter().find(|(_, role)| *role == Role::Primary);
        let (entry, _) = carrying.context("no path carries")?;
        Ok(entry.record.local_rail.into())
    }

    /// Paths that any near end suspected so far.
    pub fn suspected(&self) -> u64 {
        self.nears.iter().map(|near| near.end.endpoint.counters().0.paths_suspected).sum()
    }

    /// A pass of the near ends, without the one that waits for an answer.
    fn pass_others(&self, waiting: Option<&Near>) -> anyhow::Result<()> {
        let waits = |near: &Near| waiting.is_some_and(|waiting| std::ptr::eq(waiting, near));
        self.nears.iter().filter(|near| !waits(near)).try_for_each(|near| {
            ensure!(near.end.next()?.is_none(), "nobody sends to this one");
            Ok(())
        })
    }

    /// A pass of all, while there is no message.
    pub fn pass(&self) -> anyhow::Result<()> {
        ensure!(self.far.next()?.is_none(), "nobody sends");
        self.pass_others(None)
    }

    /// Passes of all for a while, without a message.
    pub fn rest(&self, time: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            self.pass()?;
        }
        Ok(())
    }
}
