//! Ours: an endpoint on one rail, and tagged messages.

use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{
    Channel, Completed, Context, Endpoint, EndpointConfig, Fault, Level, Oversize, PeerId, Posted,
};
use ropewalk_rail::address::Address;

use crate::host::monotonic_nanos;
use crate::mx::rows::Network;
use crate::mx::side::{Computed, Role, Side, say, warm};
use crate::mx::wire::{CARD, host};
use crate::net::WARM;

const LIMIT: Duration = Duration::from_secs(60);
/// Numbers of posts.
const RECEIVED: u64 = 1;
const SENT: u64 = 2;
/// Match bits of messages, and of those that say that something may begin or is over.
pub const DATA: u64 = 0;
pub const SIGNAL: u64 = 1;
/// Messages under way.
const DEPTH: usize = 16;
/// The time that a receiver computes.
const COMPUTES: Duration = Duration::from_millis(20);
/// The value of every byte of a message.
const FILLING: u8 = 7;

/// One side.
pub struct Ours {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
    spins: bool,
    measures: bool,
    early: Vec<Completed>,
    peer: Option<PeerId>,
}

/// The scheme of a network, and where one listens.
fn place(role: &Role) -> (&'static str, String) {
    match role.network {
        Network::Ether => ("ether", CARD.into()),
        Network::EtherXdp => ("ether", format!("{CARD}?socket=xdp")),
        Network::Mxoe => ("mxoe", CARD.into()),
        Network::Compatible => ("mxoe", format!("{CARD}?mode=compatible")),
        Network::Udp => ("udp", format!("{}:0", host(role.side))),
        Network::Tcp => ("tcp", format!("{}:0", host(role.side))),
    }
}

impl Ours {
    pub fn open(role: &Role) -> anyhow::Result<Ours> {
        ropewalk_host_mx::module::register();
        let (scheme, address) = place(role);
        let rail = modules::open(scheme, &Listen::At { address: &address, exactly: true })?;
        let mut config = EndpointConfig::new(ClusterId(77));
        // As between two machines: no shared memory.
        config.host = 0;
        config.service_thread = role.service;
        config.teller = Some(ropewalk_host_mx::counts::start);
        if role.eager > 0 {
            config.core.eager_bytes_max = Some(role.eager as u32);
        }
        let endpoint = Endpoint::open(config, vec![rail])?;
        let context = endpoint.context(false)?;
        Ok(Ours {
            endpoint,
            context,
            pool: Pool::with_budget(1 << 30),
            spins: role.spins,
            measures: role.side == 0,
            early: Vec::new(),
            peer: None,
        })
    }

    pub fn memory(&self, bytes: usize) -> anyhow::Result<Memory> {
        if bytes == 0 {
            return Ok(Memory::empty());
        }
        let mut buffer = self.pool.take(bytes).context("there is no memory for a message")?;
        buffer.fill(FILLING);
        Ok(Memory::pooled(buffer))
    }

    fn post(&mut self, posted: Result<Posted, (Memory, Fault)>) -> anyhow::Result<()> {
        match posted {
            Ok(Posted::Done(completed)) => self.early.push(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => bail!("a post was refused: {fault}"),
        }
        Ok(())
    }

    pub fn receive(&mut self, bits: u64, memory: Memory) -> anyhow::Result<()> {
        let (channel, all, whole) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let posted = self.endpoint.post_receive(
            &self.context,
            channel,
            self.peer,
            bits,
            all,
            memory,
            whole,
            RECEIVED,
        );
        self.post(posted)
    }

    pub fn send(&mut self, bits: u64, memory: Memory) -> anyhow::Result<()> {
        let peer = self.peer.context("the other side is not known")?;
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let posted =
            self.endpoint.post_send(&self.context, peer, channel, bits, memory, level, SENT);
        self.post(posted)
    }

    /// The next completion of this kind.
    fn finish(&mut self, user: u64) -> anyhow::Result<Completed> {
        if let Some(at) = self.early.iter().position(|completed| completed.user == user) {
            return Ok(self.early.swap_remove(at));
        }
        let begin = Instant::now();
        let mut looks = 0u32;
        loop {
            let completed = match self.spins {
                true => self.endpoint.test(&self.context),
                false => self.endpoint.wait(&self.context, LIMIT),
            };
            let Some(completed) = completed else {
                looks += 1;
                // The clock costs as much as a look.
                if looks.is_multiple_of(1 << 12) || !self.spins {
                    anyhow::ensure!(begin.elapsed() < LIMIT, "nothing happened for {LIMIT:?}");
                }
                continue;
            };
            if let Err(fault) = completed.outcome {
                bail!("a message failed: {fault}");
            }
            if completed.user == user {
                return Ok(completed);
            }
            self.early.push(completed);
        }
    }

    /// Waits for the next message, and checks its length.
    pub fn arrival(&mut self) -> anyhow::Result<Memory> {
        let completed = self.finish(RECEIVED)?;
        let whole =
            completed.bytes == completed.message_bytes && completed.bytes == completed.memory.len();
        anyhow::ensure!(whole, "a message has the wrong length");
        Ok(completed.memory)
    }

    pub fn sent(&mut self) -> anyhow::Result<Memory> {
        Ok(self.finish(SENT)?.memory)
    }

    pub fn signal(&mut self) -> anyhow::Result<()> {
        self.send(SIGNAL, Memory::empty())?;
        self.sent().map(drop)
    }

    /// Bytes that this endpoint has copied.
    pub fn bytes_copied(&self) -> u64 {
        self.endpoint.bytes_copied()
    }

    /// Sends so many messages, until the other side has them.
    pub fn pour_once(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let free = (0..DEPTH).map(|_| self.memory(bytes)).collect::<Result<Vec<_>, _>>()?;
        let (nanos, _) = self.pour_from(free, count)?;
        Ok(nanos)
    }

    fn pour_from(
        &mut self,
        mut free: Vec<Memory>,
        count: usize,
    ) -> anyhow::Result<(u64, Vec<Memory>)> {
        self.receive(SIGNAL, Memory::empty())?;
        let begin = Instant::now();
        for _ in 0..count {
            let memory = match free.pop() {
                Some(memory) => memory,
                None => self.sent()?,
            };
            self.send(DATA, memory)?;
        }
        self.arrival()?;
        let nanos = begin.elapsed().as_nanos() as u64;
        while free.len() < DEPTH {
            free.push(self.sent()?);
        }
        Ok((nanos, free))
    }

    /// Receives for the first of so many messages.
    pub fn expect(&mut self, bytes: usize, count: usize) -> anyhow::Result<()> {
        for _ in 0..DEPTH.min(count) {
            let room = self.room(bytes)?;
            self.receive(DATA, room)?;
        }
        Ok(())
    }

    /// Takes so many messages, of which the first ones have receives, and says that they came.
    pub fn drink_once(&mut self, count: usize) -> anyhow::Result<()> {
        for taken in 0..count {
            let memory = self.arrival()?;
            match taken + DEPTH < count {
                true => self.receive(DATA, memory)?,
                false => check(memory)?,
            }
        }
        self.signal()
    }

    /// Room for a message, with nothing of one in it.
    pub fn room(&self, bytes: usize) -> anyhow::Result<Memory> {
        match bytes {
            0 => Ok(Memory::empty()),
            _ => Ok(Memory::pooled(cleared(self.pool.take(bytes).context("there is no memory")?))),
        }
    }
}

fn cleared(mut buffer: ropewalk_base::pool::PoolBuffer) -> ropewalk_base::pool::PoolBuffer {
    buffer.fill(0);
    buffer
}

/// Whether a message arrived as it was sent.
pub fn check(memory: Memory) -> anyhow::Result<()> {
    match memory.into_pooled() {
        Some(buffer) if buffer.iter().any(|byte| *byte != FILLING) => bail!("a message is wrong"),
        _ => Ok(()),
    }
}

/// Computes; the result is of no use, but nobody may leave it out. How long it took.
fn work(steps: u64) -> u64 {
    let begin = Instant::now();
    let mut state = 1u64;
    for step in 0..steps {
        state = std::hint::black_box(state.rotate_left(5) ^ step);
    }
    std::hint::black_box(state);
    begin.elapsed().as_nanos() as u64
}

/// Steps of work that take as long as it shall.
fn calibrate() -> u64 {
    let mut steps = 1 << 20;
    for _ in 0..3 {
        let took = work(steps).max(1) as f64;
        steps = (steps as f64 * COMPUTES.as_nanos() as f64 / took) as u64 + 1;
    }
    steps
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

impl Side for Ours {
    fn url(&self) -> String {
        self.endpoint.addresses().to_string()
    }

    fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        if self.measures {
            let address = Address::parse(other)?;
            let peer = self.endpoint.lookup(&address);
            self.peer = Some(peer.map_err(|fault| anyhow!("{other} is no peer: {fault}"))?);
            return self.signal();
        }
        self.receive(SIGNAL, Memory::empty())?;
        self.peer = self.finish(RECEIVED)?.peer;
        Ok(())
    }

    fn ping(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Option<Vec<u64>>> {
        let (mut out, mut into) = (self.memory(bytes)?, self.room(bytes)?);
        let mut samples = Vec::with_capacity(rounds);
        for round in 0..rounds + warm(rounds) {
            let begin = Instant::now();
            self.receive(DATA, into)?;
            self.send(DATA, out)?;
            into = self.arrival()?;
            out = self.sent()?;
            if round >= warm(rounds) {
                samples.push(begin.elapsed().as_nanos() as u64);
            }
        }
        check(into)?;
        Ok(Some(samples))
    }

    fn pong(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<()> {
        let all = rounds + warm(rounds);
        let mut out = self.memory(bytes)?;
        let room = self.room(bytes)?;
        self.receive(DATA, room)?;
        say("ready")?;
        for round in 1..=all {
            let into = self.arrival()?;
            // The next receive is posted before the answer leaves, as any careful program does.
            match round < all {
                true => self.receive(DATA, into)?,
                false => check(into)?,
            }
            self.send(DATA, out)?;
            out = self.sent()?;
        }
        Ok(())
    }

    fn pour(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let mut free = (0..DEPTH).map(|_| self.memory(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut nanos = 0;
        // The first ones make connections and caches warm; the time of the others counts.
        for rounds in [count.min(WARM), count] {
            (nanos, free) = self.pour_from(free, rounds)?;
        }
        Ok(nanos)
    }

    fn drink(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let warm = count.min(WARM);
        let mut posted = DEPTH.min(warm + count);
        self.expect(bytes, posted)?;
        say("ready")?;
        let mut gap = 0;
        for (rounds, counts) in [(warm, false), (count, true)] {
            let mut last = monotonic_nanos();
            for round in 0..rounds {
                let memory = self.arrival()?;
                let now = monotonic_nanos();
                if counts && round > 0 {
                    gap = gap.max(now - last);
                }
                last = now;
                if posted < warm + count {
                    self.receive(DATA, memory)?;
                    posted += 1;
                } else {
                    check(memory)?;
                }
            }
            self.signal()?;
        }
        Ok(gap)
    }

    fn exchange(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<u64> {
        let (mut out, mut into) = (self.memory(bytes)?, self.room(bytes)?);
        let mut begin = Instant::now();
        for round in 0..rounds + warm(rounds) {
            if round == warm(rounds) {
                begin = Instant::now();
            }
            self.receive(DATA, into)?;
            self.send(DATA, out)?;
            into = self.arrival()?;
            out = self.sent()?;
        }
        let nanos = begin.elapsed().as_nanos() as u64;
        check(into)?;
        Ok(nanos)
    }

    fn hand(&mut self, bytes: usize, rounds: usize, late: bool) -> anyhow::Result<u64> {
        self.hand_over(bytes, rounds, late)
    }

    fn take(&mut self, bytes: usize, rounds: usize, late: bool) -> anyhow::Result<u64> {
        self.take_over(bytes, rounds, late)
    }

    fn feed(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<()> {
        let mut memory = self.memory(bytes)?;
        for _ in 0..2 * (rounds + 1) {
            self.receive(SIGNAL, Memory::empty())?;
            self.arrival()?;
            self.send(DATA, memory)?;
            memory = self.sent()?;
        }
        Ok(())
    }

    fn compute(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Computed> {
        let steps = calibrate();
        let mut memory = self.room(bytes)?;
        let (mut alone, mut message) = (Vec::new(), Vec::new());
        let (mut beside, mut rest) = (Vec::new(), Vec::new());
        say("ready")?;
        // The first round makes caches warm.
        for _ in 0..=rounds {
            alone.push(work(steps));
            for computes in [false, true] {
                let begin = Instant::now();
                self.receive(DATA, memory)?;
                self.send(SIGNAL, Memory::empty())?;
                if computes {
                    beside.push(work(steps));
                }
                let computed = Instant::now();
                memory = self.arrival()?;
                match computes {
                    true => rest.push(computed.elapsed().as_nanos() as u64),
                    false => message.push(begin.elapsed().as_nanos() as u64),
                }
                self.sent()?;
            }
        }
        check(memory)?;
        let [alone, message, beside, rest] =
            [alone, message, beside, rest].map(|times| median(times[1..].to_vec()));
        Ok(Computed { alone, message, beside, rest })
    }
}
