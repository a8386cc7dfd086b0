//! The settings of a shard at start.

use std::time::Duration;

use ropewalk_store::superblock::{Boot, Starts};
use ropewalk_wire::fs::layout::{Growth, Layout};

use crate::history::Start;
use crate::names::HASH_BITS;

/// Limits and times of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The lifetime of a session without a call or a renewal, the time limit of a recall, and the length of
    /// the grace period after a restart. One number, since a client counts on its leases for as long as this
    /// after its last renewal, whatever happened to the server.
    pub term: Duration,
    /// The time for which a directory that several sessions change is not cached.
    pub contention: Duration,
    /// The time for which an inode without a name is kept, if another session was told of it and nobody has
    /// it open.
    pub moment: Duration,
    /// Most hard links of a file (`EMLINK`).
    pub links_max: u32,
    /// Sessions there are at most, of one endpoint, and of one user where that is limited to his rights.
    pub sessions_max: usize,
    pub sessions_of_endpoint_max: usize,
    pub sessions_of_user_max: usize,
    /// Leases that one session may hold; above that, nothing more is granted but for opens.
    pub leases_max: usize,
    /// Inodes that one session may have open or hold leases on (`ENFILE`).
    pub opens_max: usize,
    /// The same of all sessions together, about 80 bytes each. Above that, a session gets its share only: the
    /// part that is left where there are as many sessions as there may be.
    pub opens_in_all_max: usize,
    /// Locks that one session may hold and wait for (`ENOLCK`).
    pub locks_max: usize,
    /// The same of all sessions together, at most 400 bytes each; above that, each gets its share only.
    pub locks_in_all_max: usize,
    /// Inode numbers reserved at a time.
    pub inode_range: u64,
    /// A data server that was silent for so long gets no new files.
    pub server_silence: Duration,
    /// Stripe size of new files; a power of two, 64 KiB to 1 GiB.
    pub stripe_bytes: u32,
    /// The spread of new files over servers.
    pub growth: Growth,
    /// Owner and group of the root directory of a new file system: a user that starts a cluster of his own
    /// can write there.
    pub root_owner: (u32, u32),
    /// The number of the metadata server.
    pub server: u32,
    /// This start of it, and the history whose rows they are: data servers register with that history, and with no other
    /// afterwards.
    pub boot: Boot,
    /// The starts of the server on its directory.
    pub starts: Starts,
    /// How this start begins its term.
    pub start: Start,
    /// A store without rows becomes an empty file system; else it is one that lost everything.
    pub format: bool,
    /// An empty file system that is made gets the first format, whose pools name servers; for tests.
    pub first_format: bool,
    /// Bits of name hashes; fewer than the default only to provoke collisions.
    pub hash_bits: u32,
    /// A planted bug, for tests of the tests only: a call that comes once more is executed once more.
    pub execute_duplicates: bool,
    /// Another one: a data server without a link leaves its groups although its lease is not over.
    pub hasty: bool,
}

impl Config {
    /// The part of a number of things that each session may have, however many the others have.
    pub fn share(&self, in_all: usize) -> usize {
        in_all / self.sessions_max.max(1)
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            term: Duration::from_secs(10),
            contention: Duration::from_millis(100),
            moment: Duration::from_secs(2),
            links_max: 65_000,
            sessions_max: 16_384,
            sessions_of_endpoint_max: 64,
            sessions_of_user_max: 256,
            leases_max: 1 << 20,
            opens_max: 1 << 21,
            opens_in_all_max: 1 << 24,
            locks_max: 1 << 18,
            locks_in_all_max: 1 << 22,
            inode_range: 1 << 16,
            server_silence: Duration::from_secs(10),
            stripe_bytes: Layout::STRIPE_BYTES_DEFAULT,
            growth: Growth::Stepped { narrow: 1, wide: 64 },
            root_owner: (0, 0),
            server: 0,
            boot: Boot::default(),
            starts: Starts::default(),
            start: Start::default(),
            format: true,
            first_format: false,
            hash_bits: HASH_BITS,
            execute_duplicates: false,
            hasty: false,
        }
    }
}
