//! Groups: endpoints of a job's ranks that know each other, and wait for each other.

use std::time::Duration;

use ropewalk_base::memory::Memory;
use ropewalk_core::{Channel, Level, Oversize, PeerId};
use ropewalk_rail::address::{Address, AddressError};
use thiserror::Error;

use crate::Fault;
use crate::context::Context;
use crate::endpoint::{Endpoint, Posted};

/// Users' names of the two messages of a step.
const SENT: u64 = 1;
const RECEIVED: u64 = 2;
/// The lower bits of a group's messages: the round, then the step.
const STEP_BITS: u32 = 8;
const ROUND_BITS: u32 = 8;

/// The endpoints of all ranks, as one of them sees them.
#[derive(Debug)]
pub struct Group {
    rank: u32,
    peers: Vec<PeerId>,
    context: Context,
    tag: u64,
    round: u64,
}

/// Why a group cannot be made, or does not go on.
#[derive(Debug, Error)]
pub enum GroupError {
    #[error("ranks cannot exchange their addresses: {0}")]
    Exchange(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("rank {rank} has no address that this host knows: {error}")]
    Address { rank: u32, error: AddressError },
    #[error("rank {rank} cannot be reached: {fault}")]
    Rank { rank: u32, fault: Fault },
    #[error("this process has no room for a group: {0}")]
    Room(std::io::Error),
    #[error("a group of {0} ranks has no rank {1}")]
    Size(usize, u32),
}

impl Group {
    /// Finds the endpoints of all ranks. `exchange` gives this rank's addresses to all ranks, and returns those of all, by
    /// rank. The upper 48 bits of `tag` name the group's messages among tagged ones: nobody else uses these, nor receives
    /// from anybody what has them.
    ///
    /// # Errors
    /// The exchange failed, or an address is none that can be reached from here.
    pub fn find<E: std::error::Error + Send + Sync + 'static>(
        endpoint: &Endpoint,
        rank: u32,
        tag: u64,
        exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>, E>,
    ) -> Result<Group, GroupError> {
        let addresses = exchange(endpoint.addresses().as_bytes());
        let addresses = addresses.map_err(|error| GroupError::Exchange(Box::new(error)))?;
        if addresses.len() <= rank as usize {
            return Err(GroupError::Size(addresses.len(), rank));
        }
        let find = |(number, address): (usize, &Vec<u8>)| {
            let own = rank;
            let rank = number as u32;
            let unreached = |fault| GroupError::Rank { rank, fault };
            if rank == own {
                return endpoint.own_peer().map_err(unreached);
            }
            let address = Address::parse(&String::from_utf8_lossy(address))
                .map_err(|error| GroupError::Address { rank, error })?;
            endpoint.lookup(&address).map_err(unreached)
        };
        let peers = addresses.iter().enumerate().map(find).collect::<Result<_, _>>()?;
        let context = endpoint.context(false).map_err(GroupError::Room)?;
        let tag = tag >> (STEP_BITS + ROUND_BITS) << (STEP_BITS + ROUND_BITS);
        Ok(Group { rank, peers, context, tag, round: 0 })
    }

    /// The number of this rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.peers.len() as u32
    }

    /// The endpoint of a rank, this one included.
    ///
    /// # Panics
    /// There is no such rank.
    pub fn peer(&self, rank: u32) -> PeerId {
        self.peers[rank as usize]
    }

    /// Waits until all ranks have come here: `log2(size)` messages of each (dissemination). All ranks call it as often.
    ///
    /// # Errors
    /// A rank cannot be reached any more. The group is of no more use then.
    pub fn barrier(&mut self, endpoint: &Endpoint) -> Result<(), GroupError> {
        let (rank, size) = (u64::from(self.rank), self.peers.len() as u64);
        let mut distance = 1;
        let mut step = 0;
        while distance < size {
            // No rank is more than one round ahead of another one.
            let round = self.round % (1 << ROUND_BITS);
            let bits = self.tag | round << STEP_BITS | step;
            let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
            self.step(endpoint, bits, to as u32, from as u32)?;
            distance *= 2;
            step += 1;
        }
        self.round += 1;
        Ok(())
    }

    /// A message of nothing to one rank, and one from another.
    fn step(&self, endpoint: &Endpoint, bits: u64, to: u32, from: u32) -> Result<(), GroupError> {
        let (channel, context) = (Channel::Tagged, &self.context);
        let (source, cut) = (Some(self.peer(from)), Oversize::Refuse);
        let nothing = Memory::empty;
        let received = endpoint
            .post_receive(context, channel, source, bits, u64::MAX, nothing(), cut, RECEIVED)
            .map_err(|(_, fault)| GroupError::Rank { rank: from, fault })?;
        let sent = endpoint
            .post_send(context, self.peer(to), channel, bits, nothing(), Level::Buffered, SENT)
            .map_err(|(_, fault)| GroupError::Rank { rank: to, fault })?;
        let mut left = 0;
        for posted in [received, sent] {
            match posted {
                Posted::Done(completed) => self.judge(&completed, to, from)?,
                Posted::Pending(_) => left += 1,
            }
        }
        while left > 0 {
            if let Some(completed) = endpoint.wait(context, Duration::MAX) {
                self.judge(&completed, to, from)?;
                left -= 1;
            } else if endpoint.is_closed() {
                return Err(GroupError::Rank { rank: from, fault: Fault::Closed });
            }
        }
        Ok(())
    }

    fn judge(
        &self,
        completed: &crate::context::Completed,
        to: u32,
        from: u32,
    ) -> Result<(), GroupError> {
        let rank = if completed.user == SENT { to } else { from };
        completed.outcome.map_err(|fault| GroupError::Rank { rank, fault })
    }

    /// Gives back what the group has of the endpoint.
    pub fn leave(self, endpoint: &Endpoint) {
        endpoint.retire(&self.context);
    }
}
