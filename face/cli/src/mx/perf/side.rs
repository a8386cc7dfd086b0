//! One side of a measurement: an endpoint, and tagged messages, which all networks carry.
//!
//! The protocol: before messages of a length come, the client sends a *hello*, which tells the length. All
//! messages of the client, hellos included, come back as they are, with the same match bits. So any program
//! that returns messages to their senders will do as a server, also one of a foreign host.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{
    Channel, Completed, Context, Endpoint, EndpointConfig, Fault, Level, OperationId, Oversize,
    PeerId, Posted,
};
use ropewalk_rail::Rail;

use crate::stop::Stop;

/// Longest message.
pub const BYTES_MAX: u64 = 64 << 20;
/// Match bits of hellos and of messages.
pub const HELLO: u64 = 0x6d78_7065_7266_0001;
pub const DATA: u64 = 0x6d78_7065_7266_0002;
/// A hello: its mark, and the length of the messages that follow, in bytes; both little-endian.
pub const HELLO_BYTES: usize = 16;
const HELLO_IS: [u8; 8] = *b"ropeperf";
/// Both sides are of one cluster, which no file system has.
const CLUSTER: ClusterId = ClusterId(0x726f_7065_7761_6c6b_2d6d_7870_6572_6601);
/// Memory for messages of all peers.
const MEMORY_BYTES: usize = 1 << 30;
/// The interval at which a waiting side checks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// See the module.
pub struct Side {
    pub endpoint: Endpoint,
    context: Context,
    pool: Pool,
    early: VecDeque<Completed>,
    stop: Stop,
}

/// The length that a hello tells; none if the message is no hello.
pub fn hello_of(bytes: &[u8]) -> Option<u64> {
    let length = bytes.strip_prefix(&HELLO_IS)?;
    let length = u64::from_le_bytes(length.try_into().ok()?);
    (length <= BYTES_MAX).then_some(length)
}

/// A rail that listens at an address like `mxoe://eth0/3`.
pub fn board(url: &str) -> anyhow::Result<Box<dyn Rail>> {
    let Some((scheme, address)) = url.split_once("://") else {
        bail!(
            "'{url}' is not a network; write it like mxoe://eth0, mxoe://eth0/3 or \
             udp://10.0.0.1:7100"
        );
    };
    let listen = Listen::At { address, exactly: true };
    modules::open(scheme, &listen).with_context(|| format!("board {url}"))
}

impl Side {
    /// An endpoint on this rail.
    pub fn open(rail: Box<dyn Rail>, stop: Stop) -> anyhow::Result<Side> {
        let mut config = EndpointConfig::new(CLUSTER);
        config.teller = Some(ropewalk_host_mx::counts::start);
        // The measurement is of the network that was asked for, and not of shared memory in its place.
        config.host = 0;
        let endpoint = Endpoint::open(config, vec![rail])?;
        let context = endpoint.context(false)?;
        let pool = Pool::with_budget(MEMORY_BYTES);
        Ok(Side { endpoint, context, pool, early: VecDeque::new(), stop })
    }

    /// Memory for a message, with these bytes in it.
    pub fn memory(&self, bytes: u64, filled: impl Fn(usize) -> u8) -> anyhow::Result<Memory> {
        if bytes == 0 {
            return Ok(Memory::empty());
        }
        let mut buffer =
            self.pool.take(bytes as usize).context("not enough memory for messages")?;
        buffer.iter_mut().enumerate().for_each(|(place, byte)| *byte = filled(place));
        Ok(Memory::pooled(buffer))
    }

    /// A hello for messages of this length.
    pub fn hello(&self, bytes: u64) -> anyhow::Result<Memory> {
        let said = [HELLO_IS, bytes.to_le_bytes()].concat();
        self.memory(HELLO_BYTES as u64, |place| said[place])
    }

    fn posted(
        &mut self,
        posted: Result<Posted, (Memory, Fault)>,
    ) -> Result<Option<OperationId>, Fault> {
        match posted {
            Ok(Posted::Done(completed)) => {
                self.early.push_back(completed);
                Ok(None)
            }
            Ok(Posted::Pending(operation)) => Ok(Some(operation)),
            Err((_, fault)) => Err(fault),
        }
    }

    /// Posts a receive; its number where it waits.
    pub fn receive(
        &mut self,
        source: Option<PeerId>,
        bits: u64,
        memory: Memory,
        user: u64,
    ) -> Result<Option<OperationId>, Fault> {
        let posted = self.endpoint.post_receive(
            &self.context,
            Channel::Tagged,
            source,
            bits,
            u64::MAX,
            memory,
            Oversize::Truncate,
            user,
        );
        self.posted(posted)
    }

    /// Posts a send.
    pub fn send(&mut self, to: PeerId, bits: u64, memory: Memory, user: u64) -> Result<(), Fault> {
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let posted = self.endpoint.post_send(&self.context, to, channel, bits, memory, level, user);
        self.posted(posted).map(drop)
    }

    /// The next completion; `None` when nothing happened for so long, or the user wants the end.
    pub fn next(&mut self, limit: Duration) -> Option<Completed> {
        if let Some(completed) = self.early.pop_front() {
            return Some(completed);
        }
        let begin = Instant::now();
        while !self.stop.is_asked() && begin.elapsed() < limit {
            let left = limit.saturating_sub(begin.elapsed()).min(LOOK);
            if let Some(completed) = self.endpoint.wait(&self.context, left) {
                return Some(completed);
            }
        }
        None
    }

    /// The next completion with this number of the caller's; others are kept. An error where it failed, or where
    /// nothing happens for so long.
    pub fn finish(&mut self, user: u64, limit: Duration) -> anyhow::Result<Completed> {
        let mut others = VecDeque::new();
        let found = loop {
            self.stop.check()?;
            match self.next(limit) {
                Some(completed) if completed.user == user => break completed,
                Some(completed) if completed.outcome.is_ok() => others.push_back(completed),
                Some(completed) => break completed,
                None => {
                    self.stop.check()?;
                    bail!("the peer has not answered for {} s", limit.as_secs());
                }
            }
        };
        others.append(&mut self.early);
        self.early = others;
        found.outcome.map_err(|fault| match fault {
            // Nothing else of what is said here is not allowed.
            Fault::NotPermitted => {
                anyhow!(
                    "the peer's endpoint has another key: add it to the address, as in \
                     /0?key=NUMBER"
                )
            }
            Fault::Closed => anyhow!("the peer's endpoint is not open"),
            fault => fault.into(),
        })?;
        Ok(found)
    }

    /// Whether something happens within so long, of which nothing is taken; an error where the user wants the end.
    pub fn happens(&mut self, limit: Duration) -> anyhow::Result<bool> {
        let next = self.next(limit);
        self.stop.check()?;
        let happened = next.is_some();
        self.early.extend(next);
        Ok(happened)
    }

    /// Ends in good order.
    pub fn close(self) {
        self.endpoint.settle(Duration::from_secs(1));
        self.endpoint.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_says_a_length_and_nothing_else_is_one() {
        let said = [HELLO_IS, 4096u64.to_le_bytes()].concat();
        assert_eq!((hello_of(&said), said.len()), (Some(4096), HELLO_BYTES));
        assert_eq!(hello_of(&said[..15]), None);
        assert_eq!(hello_of(&[said.as_slice(), &[0]].concat()), None);
        assert_eq!(hello_of(&[HELLO_IS, (BYTES_MAX + 1).to_le_bytes()].concat()), None);
        assert_eq!(hello_of(&[0; 16]), None);
        assert!(board("eth0").err().unwrap().to_string().contains("mxoe://eth0"));
    }
}
