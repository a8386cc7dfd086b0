//! Ours: two endpoints, each with its service thread, in two processes.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::auth::{Keyring, PskKeys, Secret};
use ropewalk_net::{
    Channel, Completed, Context, Endpoint, EndpointConfig, Level, Oversize, PayloadMode,
    PayloadModes, PeerId, Posted, Security,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

use crate::net::{Case, Peer, WARM};

const LIMIT: Duration = Duration::from_secs(30);
const RECEIVED: u64 = 1;
const SENT: u64 = 2;

struct Side {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
    spin: bool,
    early: Vec<Completed>,
}

impl Side {
    fn open(case: &Case) -> Result<Side> {
        let rail: Box<dyn Rail> = match case.medium.as_str() {
            "tcp" => {
                let config = TcpConfig::listening("127.0.0.1:0".parse().expect("an address"));
                Box::new(TcpRail::open(config).map_err(Error::other)?)
            }
            _ => {
                let name = format!("bench-{}", std::process::id());
                Box::new(ShmRail::open(ShmConfig::named(name)).map_err(Error::other)?)
            }
        };
        let mut config = EndpointConfig::new(ClusterId(77));
        (config.payload_checksum, config.same_host_checksum) = (case.checksum, case.checksum);
        if case.payload > PayloadMode::Crc {
            // The same on both sides; nobody else is on this host's loopback.
            let keys = PskKeys::new(Secret::new([7; 32]), None);
            config.security = Security::with(Keyring::Cluster(keys));
            config.payload = PayloadModes::all(case.payload);
        }
        let endpoint = Endpoint::open(config, vec![rail])?;
        let context = endpoint.context(true)?;
        let pool = Pool::with_budget(1 << 30);
        Ok(Side { endpoint, context, pool, spin: case.wait == "spin", early: Vec::new() })
    }

    fn memory(&self, bytes: usize) -> Memory {
        let mut buffer = self.pool.take(bytes).expect("the budget is ample");
        buffer.fill(1);
        Memory::pooled(buffer)
    }

    fn post(&mut self, posted: std::result::Result<Posted, (Memory, ropewalk_base::error::Fault)>) {
        match posted {
            Ok(Posted::Done(completed)) => self.early.push(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    fn receive(&mut self, peer: PeerId, memory: Memory) {
        let (channel, mask) = (Channel::Tagged, u64::MAX);
        let (context, cut) = (&self.context, Oversize::Truncate);
        let posted = self.endpoint.post_receive(
            context,
            channel,
            Some(peer),
            0,
            mask,
            memory,
            cut,
            RECEIVED,
        );
        self.post(posted);
    }

    fn send(&mut self, peer: PeerId, memory: Memory) {
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let posted = self.endpoint.post_send(&self.context, peer, channel, 0, memory, level, SENT);
        self.post(posted);
    }

    /// The memory of the next completion of this kind.
    fn finish(&mut self, user: u64) -> Result<Memory> {
        if let Some(at) = self.early.iter().position(|completed| completed.user == user) {
            return Ok(self.early.swap_remove(at).memory);
        }
        let mut idle = 0u32;
        loop {
            let completed = match self.spin {
                true => self.endpoint.test(&self.context),
                false => self.endpoint.wait(&self.context, LIMIT),
            };
            match completed {
                Some(completed) => {
                    if let Err(fault) = completed.outcome {
                        return Err(Error::other(fault.to_string()));
                    }
                    if completed.user == user {
                        return Ok(completed.memory);
                    }
                    self.early.push(completed);
                }
                None => idle += 1,
            }
            if idle == u32::MAX {
                return Err(ErrorKind::TimedOut.into());
            }
        }
    }
}

pub fn measure(case: &Case) -> Result<Vec<u64>> {
    let mut side = Side::open(case)?;
    let _peer = Peer::start(case, side.endpoint.addresses())?;
    let begin = Instant::now();
    let peer = loop {
        side.endpoint.wait(&side.context, Duration::from_millis(10));
        if let Some(request) = side.endpoint.next_request() {
            break request.peer;
        }
        if begin.elapsed() > LIMIT {
            return Err(ErrorKind::TimedOut.into());
        }
    };
    let samples =
        if case.depth == 1 { ping(&mut side, peer, case) } else { pour(&mut side, peer, case) };
    side.endpoint.close();
    samples
}

fn ping(side: &mut Side, peer: PeerId, case: &Case) -> Result<Vec<u64>> {
    let (mut out, mut into) = (side.memory(case.bytes), side.memory(case.bytes));
    let warm = case.rounds / 10 + 5;
    let mut samples = Vec::with_capacity(case.rounds);
    for round in 0..case.rounds + warm {
        let begin = Instant::now();
        side.receive(peer, into);
        side.send(peer, out);
        into = side.finish(RECEIVED)?;
        out = side.finish(SENT)?;
        if round >= warm {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok(samples)
}

fn pour(side: &mut Side, peer: PeerId, case: &Case) -> Result<Vec<u64>> {
    let mut answer = side.memory(8);
    let mut free: Vec<Memory> = (0..case.depth).map(|_| side.memory(case.bytes)).collect();
    let mut nanos = 0;
    // The first ones make connections and caches warm; the time of the others counts.
    for rounds in [case.rounds.min(WARM), case.rounds] {
        side.receive(peer, answer);
        let begin = Instant::now();
        for _ in 0..rounds {
            let memory = match free.pop() {
                Some(memory) => memory,
                None => side.finish(SENT)?,
            };
            side.send(peer, memory);
        }
        answer = side.finish(RECEIVED)?;
        nanos = begin.elapsed().as_nanos() as u64;
        while free.len() < case.depth {
            free.push(side.finish(SENT)?);
        }
    }
    Ok(vec![nanos])
}

pub fn serve(case: &Case, address: &str) -> Result<()> {
    let mut side = Side::open(case)?;
    let address = Address::parse(address).map_err(|error| Error::other(error.to_string()))?;
    let peer = side.endpoint.lookup(&address).map_err(|fault| Error::other(fault.to_string()))?;
    for _ in 0..case.depth {
        let memory = side.memory(case.bytes);
        side.receive(peer, memory);
    }
    let hello = Memory::empty();
    let (channel, level) = (Channel::Request, Level::Buffered);
    let posted = side.endpoint.post_send(&side.context, peer, channel, 0, hello, level, SENT);
    side.post(posted);
    side.finish(SENT)?;
    if case.depth == 1 {
        let mut out = side.memory(case.bytes);
        loop {
            // The next receive is posted before the answer leaves, as any careful program does.
            // The one who measures hangs up when it has seen enough.
            let Ok(into) = side.finish(RECEIVED) else { return Ok(()) };
            side.receive(peer, into);
            side.send(peer, out);
            match side.finish(SENT) {
                Ok(memory) => out = memory,
                Err(_) => return Ok(()),
            }
        }
    }
    let mut answer = side.memory(8);
    for rounds in [case.rounds.min(WARM), case.rounds] {
        for _ in 0..rounds {
            let memory = side.finish(RECEIVED)?;
            side.receive(peer, memory);
        }
        side.send(peer, answer);
        answer = side.finish(SENT)?;
    }
    // Its end ends this process: until then the answer must not be cut off.
    side.spin = false;
    side.finish(RECEIVED).map(|_| ()).or(Ok(()))
}
