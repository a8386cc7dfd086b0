//! The stream through endpoints of ours, as tagged messages.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_net::{Address, Channel, Completed, Context, Endpoint, Level, Oversize, Posted};
use ropewalk_net::{Fault, PeerId};

use crate::host::monotonic_nanos;
use crate::paths::presence::{self, Medium};
use crate::paths::stream::{Arrivals, MESSAGE_BYTES, fill};

/// Messages under way.
const DEPTH: u64 = 16;
/// Nothing is silent for longer, whatever the fault.
const LIMIT: Duration = Duration::from_secs(60);
/// Match bits of the stream, and of the message by which the sides meet.
const DATA: u64 = 0;
const SIGNAL: u64 = 1;

/// What goes to one of several receivers.
struct Pouring {
    from: u64,
    free: Vec<PoolBuffer>,
    sent: u64,
    is_done: bool,
}

/// One side.
pub struct Ours {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
    /// Those that it sends to.
    peers: Vec<PeerId>,
    /// Completions that came with their posts.
    early: Vec<Completed>,
}

impl Ours {
    pub fn open(medium: Medium, places: &str) -> anyhow::Result<Ours> {
        let endpoint = presence::open(medium, places)?;
        let context = endpoint.context(false)?;
        let pool = Pool::with_budget(64 << 20);
        Ok(Ours { endpoint, context, pool, peers: Vec::new(), early: Vec::new() })
    }

    pub fn url(&self) -> String {
        self.endpoint.addresses().to_string()
    }

    /// Connects to a receiver.
    pub fn call(&mut self, other: &str) -> anyhow::Result<()> {
        let address = Address::parse(other)?;
        let peer = self.endpoint.lookup(&address);
        self.peers.push(peer.map_err(|fault| anyhow!("{other} is no peer: {fault}"))?);
        self.send(self.peers.len() - 1, SIGNAL, Memory::empty())?;
        self.finish().map(drop)
    }

    /// Waits for the sender.
    pub fn answer(&mut self) -> anyhow::Result<()> {
        self.receive(SIGNAL, Memory::empty(), 0)?;
        self.finish().map(drop)
    }

    fn note(&mut self, posted: Result<Posted, (Memory, Fault)>) -> anyhow::Result<()> {
        match posted {
            Ok(Posted::Done(completed)) => self.early.push(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => bail!("a post was refused: {fault}"),
        }
        Ok(())
    }

    fn send(&mut self, to: usize, bits: u64, memory: Memory) -> anyhow::Result<()> {
        let peer = *self.peers.get(to).context("the other side is not known")?;
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let posted = {
            let (endpoint, context, user) = (&self.endpoint, &self.context, to as u64);
            endpoint.post_send(context, peer, channel, bits, memory, level, user)
        };
        self.note(posted)
    }

    fn receive(&mut self, bits: u64, memory: Memory, place: u64) -> anyhow::Result<()> {
        let posted = self.endpoint.post_receive(
            &self.context,
            Channel::Tagged,
            None,
            bits,
            u64::MAX,
            memory,
            Oversize::Truncate,
            place,
        );
        self.note(posted)
    }

    /// The next completion.
    fn finish(&mut self) -> anyhow::Result<Completed> {
        let completed = match self.early.pop() {
            Some(completed) => completed,
            None => self
                .endpoint
                .wait(&self.context, LIMIT)
                .with_context(|| format!("nothing happened for {LIMIT:?}"))?,
        };
        match completed.outcome {
            Ok(()) => Ok(completed),
            Err(fault) => bail!("a message failed: {fault}"),
        }
    }

    fn room(&self) -> anyhow::Result<PoolBuffer> {
        self.pool.take(MESSAGE_BYTES).context("there is no memory for a message")
    }

    /// Sends messages until this time of the machine's clock. Returns their number.
    pub fn pour(&mut self, until: u64) -> anyhow::Result<u64> {
        let mut free = (0..DEPTH).map(|_| self.room()).collect::<anyhow::Result<Vec<_>>>()?;
        for number in 0.. {
            let mut buffer = match free.pop() {
                Some(buffer) => buffer,
                None => self.finish()?.memory.into_pooled().context("a buffer is lost")?,
            };
            let is_last = monotonic_nanos() >= until;
            fill(&mut buffer, number, is_last);
            self.send(0, DATA, Memory::pooled(buffer))?;
            if is_last {
                return Ok(number + 1);
            }
        }
        unreachable!("the numbers do not end")
    }

    /// Sends messages to each receiver from its time of the machine's clock on, until the last one. Returns their numbers.
    pub fn pour_to_all(&mut self, from: &[u64], until: u64) -> anyhow::Result<Vec<u64>> {
        let mut streams = Vec::new();
        for from in from {
            let free = (0..DEPTH).map(|_| self.room()).collect::<anyhow::Result<Vec<_>>>()?;
            streams.push(Pouring { from: *from, free, sent: 0, is_done: false });
        }
        while !streams.iter().all(|stream| stream.is_done) {
            for (to, stream) in streams.iter_mut().enumerate() {
                while !stream.is_done && monotonic_nanos() >= stream.from {
                    let Some(mut buffer) = stream.free.pop() else { break };
                    let is_last = monotonic_nanos() >= until;
                    fill(&mut buffer, stream.sent, is_last);
                    self.send(to, DATA, Memory::pooled(buffer))?;
                    (stream.sent, stream.is_done) = (stream.sent + 1, is_last);
                }
            }
            // One that begins later waits for nothing of its own.
            let early = self.early.pop();
            let patience = Duration::from_millis(1);
            let completed = early.or_else(|| self.endpoint.wait(&self.context, patience));
            let Some(completed) = completed else { continue };
            completed.outcome.map_err(|fault| anyhow!("a message failed: {fault}"))?;
            let stream = streams.get_mut(completed.user as usize).context("an unknown message")?;
            stream.free.push(completed.memory.into_pooled().context("a buffer is lost")?);
        }
        Ok(streams.iter().map(|stream| stream.sent).collect())
    }

    /// Frames that our protocol sent again.
    pub fn frames_re_sent(&self) -> u64 {
        self.endpoint.counters().0.frames_re_sent
    }

    /// Takes all messages.
    pub fn drink(&mut self) -> anyhow::Result<Arrivals> {
        let mut arrivals = Arrivals::default();
        for place in 0..DEPTH {
            let room = self.room()?;
            self.receive(DATA, Memory::pooled(room), place)?;
        }
        for next in DEPTH.. {
            let completed = self.finish()?;
            let place = completed.user;
            let whole = completed.bytes == completed.message_bytes;
            let buffer = completed.memory.into_pooled().context("a buffer is lost")?;
            let now = monotonic_nanos();
            arrivals.note(place, if whole { &buffer } else { &[] }, now);
            if arrivals.is_complete() {
                return Ok(arrivals);
            }
            self.receive(DATA, Memory::pooled(buffer), next)?;
        }
        unreachable!("the numbers do not end")
    }
}
