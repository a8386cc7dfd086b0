//! Two endpoints of this process with two paths between them, and messages to and fro through many channels. One thread drives
//! both, so that nothing sleeps.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use ropewalk_base::ids::{ClusterId, EndpointId};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::migration::Policy;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{
    Address, Channel, Context, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId, Posted,
};
use ropewalk_netns::Host;
use ropewalk_rail::Rail;

/// Nothing takes longer.
const LIMIT: Duration = Duration::from_secs(60);
const PATHS: usize = 2;
/// The mark of a send: receives have the numbers of their channels.
const SENT: u64 = u64::MAX;

struct End {
    endpoint: Endpoint,
    context: Context,
}

/// See the module.
pub struct Pair {
    near: End,
    far: End,
    peer: PeerId,
    pool: Pool,
    bytes: usize,
}

impl End {
    fn open(number: u128, places: &[String], policy: Policy) -> anyhow::Result<End> {
        let rail = |place: &String| -> anyhow::Result<Box<dyn Rail>> {
            let listen = Listen::At { address: place, exactly: true };
            modules::open("tcp", &listen).with_context(|| format!("cannot listen at {place}"))
        };
        let rails = places.iter().map(rail).collect::<anyhow::Result<Vec<_>>>()?;
        let mut config = EndpointConfig::new(ClusterId(77));
        // The lower one calls for the further path, from the namespace of the thread.
        config.endpoint = EndpointId(number);
        (config.host, config.service_thread) = (0, false);
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
    /// A pair over two addresses of the loopback interface.
    pub fn within_host(bytes: usize, channels: u64, policy: Policy) -> anyhow::Result<Pair> {
        let places = ["127.0.0.1", "127.0.0.2"].map(|host| format!("{host}:0?source={host}"));
        let near = End::open(1, &places, policy)?;
        let far = End::open(2, &places, policy)?;
        Pair::of(near, far, bytes, channels)
    }

    /// A pair between two hosts. The calling thread is at the first of them.
    pub fn between(hosts: [Host<'_>; 2], bytes: usize, channels: u64) -> anyhow::Result<Pair> {
        let places = hosts.map(|host| {
            [0, 1]
                .map(|rail| format!("{}:0?interface={}", host.address(rail), host.interface(rail)))
        });
        let policy = Policy::default();
        let near = End::open(1, &places[0], policy)?;
        let far = hosts[1].within(|| End::open(2, &places[1], policy))?;
        Pair::of(near, far, bytes, channels)
    }

    fn of(near: End, far: End, bytes: usize, channels: u64) -> anyhow::Result<Pair> {
        let address = Address::parse(far.endpoint.addresses())?;
        let peer = near.endpoint.lookup(&address);
        let peer = peer.map_err(|fault| anyhow!("the other end is no peer: {fault}"))?;
        near.endpoint.connect(peer);
        let pool = Pool::with_budget(2 * (channels as usize + 8) * bytes.max(1 << 12));
        let pair = Pair { near, far, peer, pool, bytes };
        for bits in 0..channels {
            pair.near.receive(bits, pair.memory()?)?;
            pair.far.receive(bits, pair.memory()?)?;
        }
        let begin = Instant::now();
        while pair.near.endpoint.path_entries(peer).len() < PATHS {
            ensure!(pair.far.next()?.is_none() && pair.near.next()?.is_none(), "nobody sends");
            ensure!(begin.elapsed() < LIMIT, "no second path");
        }
        Ok(pair)
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        Ok(Memory::pooled(self.pool.take(self.bytes).context("no memory for a message")?))
    }

    /// A message through a channel, and its answer; half of the time that took, in microseconds.
    pub fn ping(&self, bits: u64) -> anyhow::Result<f64> {
        let memory = self.memory()?;
        let begin = Instant::now();
        self.near.send(self.peer, bits, memory)?;
        loop {
            if let Some((bits, from)) = self.far.next()? {
                self.far.send(from, bits, self.memory()?)?;
            }
            match self.near.next()? {
                Some((came, _)) if came == bits => break,
                Some(_) => bail!("an answer came through another channel"),
                None => ensure!(begin.elapsed() < LIMIT, "an answer is awaited in vain"),
            }
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / 2.0)
    }

    /// The near endpoint, and its peer.
    pub fn near(&self) -> (&Endpoint, PeerId) {
        (&self.near.endpoint, self.peer)
    }

    /// Passes of both for a while, without a message.
    pub fn rest(&self, time: Duration) -> anyhow::Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < time {
            ensure!(self.far.next()?.is_none() && self.near.next()?.is_none(), "nobody sends");
        }
        Ok(())
    }
}
