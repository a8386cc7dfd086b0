//! Processes that compute together: messages between any two of them, and operations of all.
//!
//! Invariant: every member calls the operations of all in the same order, with lengths that fit each other.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_net::{
    Address, Channel, Completed, Context, Endpoint, Fault, Level, Oversize, PeerId, Posted,
};

/// Nothing is silent for longer, whatever the fault.
const LIMIT: Duration = Duration::from_secs(100);
const POOL_BYTES: usize = 1 << 30;
/// Posts of sends have this number; those of receives have numbers of their own.
const SENT: u64 = 0;
/// Match bits: the sender is in the highest byte, the channel in the next one, then the operation.
const SENDER_SHIFT: u32 = 56;
const CHANNEL_SHIFT: u32 = 48;
/// Operations of two members have this bit, those of all have not.
const PAIR: u64 = 1 << 47;

/// A receive that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// One member's view of all.
pub struct Group {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
    rank: usize,
    peers: Vec<Option<PeerId>>,
    channels: usize,
    /// Operations of all so far.
    turns: u64,
    tickets: u64,
    sending: usize,
    /// Completions that came with their posts.
    early: VecDeque<Completed>,
    received: HashMap<u64, Completed>,
}

impl Group {
    /// The members have these addresses, in the order of their ranks. `channels`: the number of parts in which longer
    /// messages travel, each with match bits of its own.
    pub fn new(
        endpoint: Endpoint,
        rank: usize,
        addresses: &[&str],
        channels: usize,
    ) -> anyhow::Result<Group> {
        let context = endpoint.context(false)?;
        let peer = |(other, address): (usize, &&str)| -> anyhow::Result<Option<PeerId>> {
            if other == rank {
                return Ok(None);
            }
            let found = endpoint.lookup(&Address::parse(address)?);
            found.map(Some).map_err(|fault| anyhow!("{address} is no peer: {fault}"))
        };
        let peers = addresses.iter().enumerate().map(peer).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Group {
            endpoint,
            context,
            pool: Pool::with_budget(POOL_BYTES),
            rank,
            peers,
            channels,
            turns: 0,
            tickets: SENT,
            sending: 0,
            early: VecDeque::new(),
            received: HashMap::new(),
        })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.peers.len()
    }

    pub fn channels(&self) -> usize {
        self.channels
    }

    fn note(&mut self, posted: Result<Posted, (Memory, Fault)>) -> anyhow::Result<()> {
        match posted {
            Ok(Posted::Done(completed)) => self.early.push_back(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => bail!("a post was refused: {fault}"),
        }
        Ok(())
    }

    fn room(&self, bytes: usize) -> anyhow::Result<Memory> {
        if bytes == 0 {
            return Ok(Memory::empty());
        }
        self.pool.take(bytes).map(Memory::pooled).context("there is no memory for a message")
    }

    fn post_send(
        &mut self,
        to: usize,
        channel: usize,
        what: u64,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let memory = match bytes {
            [] => Memory::empty(),
            _ => self.pool.copy_of(bytes).map(Memory::pooled).context("there is no memory")?,
        };
        let peer = self.peers[to].context("nobody sends to himself")?;
        let bits = bits(self.rank, channel, what);
        self.sending += 1;
        let (kind, level) = (Channel::Tagged, Level::Buffered);
        let posted = self.endpoint.post_send(&self.context, peer, kind, bits, memory, level, SENT);
        self.note(posted)
    }

    fn post_receive(
        &mut self,
        from: usize,
        channel: usize,
        what: u64,
        bytes: usize,
    ) -> anyhow::Result<Ticket> {
        let memory = self.room(bytes)?;
        self.tickets += 1;
        let posted = self.endpoint.post_receive(
            &self.context,
            Channel::Tagged,
            None,
            bits(from, channel, what),
            u64::MAX,
            memory,
            Oversize::Truncate,
            self.tickets,
        );
        self.note(posted)?;
        Ok(Ticket(self.tickets))
    }

    /// Takes one completion, of whatever operation.
    fn step(&mut self) -> anyhow::Result<()> {
        let completed = match self.early.pop_front() {
            Some(completed) => completed,
            None => self
                .endpoint
                .wait(&self.context, LIMIT)
                .with_context(|| format!("nothing happened for {LIMIT:?}"))?,
        };
        if let Err(fault) = completed.outcome {
            bail!("a message failed: {fault}");
        }
        if completed.user == SENT {
            self.sending -= 1;
        } else {
            self.received.insert(completed.user, completed);
        }
        Ok(())
    }

    /// Sends to one member on a channel. `number` distinguishes the messages between two members.
    pub fn send(
        &mut self,
        to: usize,
        channel: usize,
        number: u64,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        self.post_send(to, channel, PAIR | number, bytes)
    }

    /// Begins to receive what [`Group::send`] sends under this number; the length in bytes is known before.
    pub fn receive(
        &mut self,
        from: usize,
        channel: usize,
        number: u64,
        bytes: usize,
    ) -> anyhow::Result<Ticket> {
        self.post_receive(from, channel, PAIR | number, bytes)
    }

    /// Waits for a message.
    pub fn wait(&mut self, ticket: Ticket) -> anyhow::Result<Option<PoolBuffer>> {
        loop {
            if let Some(completed) = self.received.remove(&ticket.0) {
                let is_whole = completed.message_bytes == completed.memory.len();
                anyhow::ensure!(is_whole, "a message has the wrong length");
                return Ok(completed.memory.into_pooled());
            }
            self.step()?;
        }
    }

    /// Waits until all that was sent has left.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        while self.sending > 0 {
            self.step()?;
        }
        Ok(())
    }

    /// Gives each member its block, and takes one of each; the lengths in bytes of those are known before.
    pub fn all_to_all_v(
        &mut self,
        blocks: Vec<Vec<u8>>,
        lens: &[usize],
    ) -> anyhow::Result<Vec<Vec<u8>>> {
        self.turns += 1;
        let (turn, channels) = (self.turns, self.channels);
        let others: Vec<usize> =
            (1..self.size()).map(|step| (self.rank + step) % self.size()).collect();
        let mut tickets = Vec::new();
        for from in &others {
            for channel in 0..channels {
                let bytes = part(lens[*from], channel, channels).len();
                tickets.push((*from, self.post_receive(*from, channel, turn, bytes)?));
            }
        }
        for to in &others {
            for channel in 0..channels {
                let range = part(blocks[*to].len(), channel, channels);
                self.post_send(*to, channel, turn, &blocks[*to][range])?;
            }
        }
        let mut found: Vec<Vec<u8>> = lens.iter().map(|len| Vec::with_capacity(*len)).collect();
        for (rank, block) in blocks.into_iter().enumerate().filter(|(rank, _)| *rank == self.rank) {
            found[rank] = block;
        }
        for (from, ticket) in tickets {
            if let Some(buffer) = self.wait(ticket)? {
                found[from].extend_from_slice(&buffer);
            }
        }
        self.flush()?;
        Ok(found)
    }

    /// The same with blocks of one length.
    pub fn all_to_all(&mut self, blocks: Vec<Vec<u8>>) -> anyhow::Result<Vec<Vec<u8>>> {
        let lens = vec![blocks[self.rank].len(); self.size()];
        self.all_to_all_v(blocks, &lens)
    }

    /// The values of each member, in the order of their ranks; all give as many.
    pub fn all_gather<T: Word>(&mut self, values: &[T]) -> anyhow::Result<Vec<Vec<T>>> {
        let block = bytes_of(values);
        let found = self.all_to_all(vec![block; self.size()])?;
        Ok(found.iter().map(|bytes| words_of(bytes)).collect())
    }

    /// The sums over all members, added in the order of their ranks: all get the same bits.
    pub fn all_sum<T: Word>(&mut self, values: &[T]) -> anyhow::Result<Vec<T>> {
        let mut rows = self.all_gather(values)?.into_iter();
        let mut sums = rows.next().context("a group has members")?;
        for row in rows {
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum = sum.plus(value));
        }
        Ok(sums)
    }

    /// Returns when all members are here.
    pub fn barrier(&mut self) -> anyhow::Result<()> {
        self.turns += 1;
        let turn = self.turns;
        let size = self.size();
        let mut distance = 1;
        while distance < size {
            let (to, from) = ((self.rank + distance) % size, (self.rank + size - distance) % size);
            let ticket = self.post_receive(from, 0, turn, 0)?;
            self.post_send(to, 0, turn, &[])?;
            self.wait(ticket)?;
            distance *= 2;
        }
        self.flush()
    }
}

fn bits(sender: usize, channel: usize, what: u64) -> u64 {
    (sender as u64) << SENDER_SHIFT | (channel as u64) << CHANNEL_SHIFT | what
}

/// The part of `count` things that has this number among `parts`.
pub fn part(count: usize, number: usize, parts: usize) -> std::ops::Range<usize> {
    count * number / parts..count * (number + 1) / parts
}

/// A number that travels.
pub trait Word: Copy {
    const BYTES: usize;
    fn put(self, into: &mut Vec<u8>);
    fn get(bytes: &[u8]) -> Self;
    fn plus(self, other: Self) -> Self;
}

macro_rules! word {
    ($type:ty, $plus:expr) => {
        impl Word for $type {
            const BYTES: usize = size_of::<$type>();
            fn put(self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_le_bytes());
            }
            fn get(bytes: &[u8]) -> Self {
                <$type>::from_le_bytes(bytes.try_into().expect("it has as many bytes"))
            }
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }
        }
    };
}

word!(u32, u32::wrapping_add);
word!(u64, u64::wrapping_add);
word!(f64, |a: f64, b: f64| a + b);

/// Numbers as bytes.
pub fn bytes_of<T: Word>(values: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(values.len() * T::BYTES);
    values.iter().for_each(|value| value.put(&mut bytes));
    bytes
}

/// Bytes as numbers.
pub fn words_of<T: Word>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::BYTES).map(T::get).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::paths::presence::{Medium, open};

    /// Lets so many members do something, each in a thread, over the loopback interface.
    pub fn together<T: Send + 'static>(
        size: usize,
        channels: usize,
        act: impl Fn(&mut Group) -> anyhow::Result<T> + Send + Sync + Copy + 'static,
    ) -> Vec<T> {
        let endpoints: Vec<Endpoint> = (0..size)
            .map(|_| open(Medium::Tcp, "127.0.0.1:0").expect("there is a loopback interface"))
            .collect();
        let addresses: Vec<String> =
            endpoints.iter().map(|endpoint| endpoint.addresses().to_string()).collect();
        let members: Vec<_> = endpoints
            .into_iter()
            .enumerate()
            .map(|(rank, endpoint)| {
                let addresses = addresses.clone();
                std::thread::spawn(move || -> anyhow::Result<(T, Group)> {
                    let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
                    let mut group = Group::new(endpoint, rank, &names, channels)?;
                    let found = act(&mut group)?;
                    group.barrier()?;
                    Ok((found, group))
                })
            })
            .collect();
        let join = |member: std::thread::JoinHandle<anyhow::Result<_>>| {
            member.join().expect("no panic").expect("it works")
        };
        // Nobody leaves before all are done.
        let done: Vec<(T, Group)> = members.into_iter().map(join).collect();
        done.into_iter().map(|(found, _)| found).collect()
    }

    #[test]
    fn each_member_gets_what_each_other_one_gave_it() {
        for channels in [1, 3] {
            let found = together(4, channels, |group| {
                let own = group.rank();
                let block = |to: usize| vec![(10 * own + to) as u8; own + 2 * to];
                let lens: Vec<usize> = (0..4).map(|from| from + 2 * own).collect();
                let taken = group.all_to_all_v((0..4).map(block).collect(), &lens)?;
                let sums = group.all_sum(&[own as u64, 1])?;
                let floats = group.all_sum(&[0.1 * own as f64])?;
                group.barrier()?;
                Ok((taken, sums, floats[0].to_bits()))
            });
            for (rank, (taken, sums, bits)) in found.iter().enumerate() {
                for (from, block) in taken.iter().enumerate() {
                    assert_eq!(*block, vec![(10 * from + rank) as u8; from + 2 * rank]);
                }
                assert_eq!(*sums, [6, 4]);
                assert_eq!(*bits, found[0].2);
            }
        }
    }

    #[test]
    fn parts_are_all_of_it() {
        for (count, parts) in [(10, 3), (2, 8), (0, 4), (64, 64)] {
            let mut next = 0;
            for number in 0..parts {
                let range = part(count, number, parts);
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, count);
        }
    }
}
