//! Data servers tell the metadata server that they live, and who of a group is in step.

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::status::Room;
use super::value::Bytes;

/// The orderer of groups says of another server of them whether it has all that was acknowledged. Without groups, and about
/// itself: a server stops, and leaves all its groups that have another member. Of a member that is in step already: it is to order the groups
/// from now on, since the orderer has ended all its changes (`HAND_ON_VERSION`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step<'a> {
    /// Numbers of eight bytes each, little endian.
    #[serde(borrow)]
    pub groups: Bytes<'a>,
    /// The orderer.
    pub by: u32,
    /// The epoch of its map.
    pub map: u32,
    pub server: u32,
    /// A newcomer has become a member; else a member has missed something.
    pub in_step: bool,
}

/// The version of which metadata servers let an orderer hand groups on.
pub const HAND_ON_VERSION: u16 = 11;

/// Groups that one `Step` names at most.
pub const STEP_GROUPS_MAX: usize = 512;

impl Step<'_> {
    /// The groups that it names.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        let number = |eight: &[u8]| u64::from_le_bytes(eight.try_into().expect("eight bytes"));
        self.groups.0.chunks_exact(8).map(move |eight| Group::from_number(number(eight)))
    }

    /// Groups as `groups` has them.
    pub fn numbers(groups: &[Group]) -> Vec<u8> {
        groups.iter().flat_map(|group| group.number().to_le_bytes()).collect()
    }
}

/// A data server says that it lives, whose store it has, and how much room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat<'a> {
    pub server: u32,
    /// This life of it.
    pub boot: u64,
    /// The life since when it has lost nothing that it acknowledged.
    pub era: u64,
    /// The identity of its store, chosen when that was made.
    pub store: u128,
    /// The identity of the metadata store whose files its objects belong to; 0: of none yet.
    pub history: u128,
    /// The newest start of the metadata server that it has met; 0: none yet.
    pub met: u64,
    /// The start of its own by which it was known before, as [`Registration::KnownBy`] says it; 0: not told.
    pub known_by: u64,
    /// A person ordered that this store takes the place of the one that the number had.
    pub replace: bool,
    /// A person ordered that this server is taken in, though the cluster did not have its number yet.
    pub admit: bool,
    /// Of the file system on which the objects lie.
    pub room: Room,
    #[serde(borrow)]
    pub address: Bytes<'a>,
    /// The name of its failure domain: servers of one domain may fail together, and have no copies of the same bytes.
    #[serde(borrow)]
    pub domain: Bytes<'a>,
}

/// The time of a metadata server, by which data servers judge capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Clock {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Counts the ends of bound sessions since this server began to serve.
    pub revocations: u64,
}

/// The metadata server's answer to a data server's heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Registration<'a> {
    /// It is the server of its number. The first time, this is durable.
    Taken {
        history: u128,
        /// The epoch of the map. Before the server knows that map it serves nobody.
        map: u32,
        /// What it sends at most to bring newcomers into step; 0: no limit.
        mib_per_second: u32,
        clock: Clock,
    },
    /// The number belongs to another store, whose objects would be lost.
    OtherStore,
    /// The server of this number is another process, which lives at this address.
    Alive {
        #[serde(borrow)]
        address: Bytes<'a>,
    },
    /// Its objects belong to files of another metadata store than this one.
    OtherMetadata { history: u128 },
    /// The cluster does not have the number, and nobody ordered that it shall.
    NotAdmitted,
    /// It was known by this start before: it shall say so if that was one of its own. Else its store is an
    /// older copy of the one that it had.
    KnownBy { start: u64 },
    /// The metadata store is an older copy of the one that this server has met.
    OlderMetadata,
}
