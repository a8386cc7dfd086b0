//! Reports of servers about themselves, for `status`: lives, room, counters, sessions.
//!
//! Counters begin with the server's life (the boot id in the reply's head names it): a rate is the
//! difference of two answers of one life.

use std::collections::BTreeMap;

use ropewalk_base::disk::DiskTimes;
use ropewalk_base::timing::{BUCKETS, Histogram};
use serde::{Deserialize, Serialize};

use super::value::Bytes;

/// Longest name of a client that a server remembers, in bytes; the rest is cut off.
pub const CLIENT_NAME_BYTES_MAX: usize = 64;

/// Durations of one kind of work, in the buckets of [`ropewalk_base::timing`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Times {
    /// All of them together.
    pub micros: u64,
    pub counts: [u64; BUCKETS],
}

impl From<Histogram> for Times {
    fn from(Histogram { micros, counts }: Histogram) -> Times {
        Times { micros, counts }
    }
}

impl From<Times> for Histogram {
    fn from(Times { micros, counts }: Times) -> Histogram {
        Histogram { micros, counts }
    }
}

/// A server's calls of one kind since its start, or work of another kind that it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity<'a> {
    #[serde(borrow)]
    pub kind: Bytes<'a>,
    pub calls: u64,
    /// File bytes that these calls moved; 0 for kinds that move none.
    pub bytes: u64,
    /// From the arrival of each call to its reply. Calls that wait are not counted yet.
    pub times: Times,
}

/// Work of a kind that has no calls of clients.
pub fn activity_of(kind: &'static str, times: Histogram, bytes: u64) -> Activity<'static> {
    let (kind, calls) = (Bytes(kind.as_bytes()), times.count());
    Activity { kind, calls, bytes, times: times.into() }
}

/// The work of a disk.
pub fn disk_work(times: &DiskTimes) -> [Activity<'static>; 3] {
    [
        activity_of("disk read", times.reads, times.bytes_read),
        activity_of("disk write", times.writes, times.bytes_written),
        activity_of("disk sync", times.syncs, 0),
    ]
}

/// A figure of a server. Names and meanings are those of the catalogue of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figure<'a> {
    #[serde(borrow)]
    pub name: Bytes<'a>,
    pub value: u64,
}

/// Room on a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Room {
    pub total_bytes: u64,
    /// Free bytes, including those that only the superuser may use: the rest is used.
    pub free_bytes: u64,
    /// Free bytes that a server without superuser rights may use.
    pub available_bytes: u64,
    /// Names the file system: servers that say the same lie on one. 0: unknown.
    pub file_system: u128,
}

impl Room {
    /// As `df` has it: bytes in reserved blocks are neither used nor available.
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }

    /// Room of several servers together: each file system counts once, as the server reports it that sees least of it.
    pub fn together(rooms: impl IntoIterator<Item = Room>) -> Room {
        let mut known: BTreeMap<u128, Room> = BTreeMap::new();
        let mut others = Vec::new();
        for room in rooms {
            match room.file_system {
                0 => others.push(room),
                id => {
                    let kept = known.entry(id).or_insert(room);
                    kept.total_bytes = kept.total_bytes.min(room.total_bytes);
                    kept.free_bytes = kept.free_bytes.min(room.free_bytes);
                    kept.available_bytes = kept.available_bytes.min(room.available_bytes);
                }
            }
        }
        others.extend(known.into_values());
        others.into_iter().fold(Room::default(), |sum, room| Room {
            total_bytes: sum.total_bytes.saturating_add(room.total_bytes),
            free_bytes: sum.free_bytes.saturating_add(room.free_bytes),
            available_bytes: sum.available_bytes.saturating_add(room.available_bytes),
            file_system: 0,
        })
    }
}

/// A data server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataStatus<'a> {
    pub server: u32,
    /// Milliseconds since the start.
    pub uptime: u64,
    /// Of the file system on which the objects lie.
    pub room: Room,
    pub objects: u64,
    /// In written blocks of objects.
    pub object_bytes: u64,
    /// Bytes of the log that a crash would replay.
    pub log_bytes: u64,
    /// Blocks that were found damaged since the start.
    pub corrupt_blocks: u64,
    /// Calls that came with bytes which did not match their checksums.
    pub checksum_errors: u64,
    /// Requests that wait or work now.
    pub under_way: u32,
    #[serde(borrow)]
    pub activities: Vec<Activity<'a>>,
    /// The work of its disk.
    pub work: Vec<Activity<'a>>,
    /// All further figures.
    pub figures: Vec<Figure<'a>>,
}

/// A data server as the metadata server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownServer<'a> {
    pub server: u32,
    /// Empty where it was not heard of since the metadata server's start.
    #[serde(borrow)]
    pub address: Bytes<'a>,
    /// Milliseconds since its last heartbeat, if one was heard since the metadata server's start.
    pub silence: Option<u64>,
    pub boot: u64,
    /// The room that it reported last.
    pub room: Room,
    /// Heard of lately.
    pub alive: bool,
    /// Nearly: the rest is kept for the files that it has.
    pub full: bool,
    /// New files may use it: the newest pool version has it.
    pub in_pool: bool,
    /// Fences that it has yet to be told.
    pub fences_owed: u32,
    /// Milliseconds since it asked to join, and was refused: the cluster does not have this number.
    pub asked: Option<u64>,
    /// The name of its failure domain; empty where it was not heard of.
    #[serde(borrow)]
    pub domain: Bytes<'a>,
}

/// A metadata server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaStatus<'a> {
    pub server: u32,
    /// Milliseconds since the start.
    pub uptime: u64,
    pub inodes: u64,
    pub sessions: u32,
    /// Calls that wait for leases, for room or for the end of the grace period.
    pub waiting: u32,
    /// Numbers of batches in the journal: the newest, the newest that survives the death of the
    /// process, the newest that survives a power loss.
    pub position: u64,
    pub written: u64,
    pub durable: u64,
    /// Sessions may still reclaim what they held before the restart; nothing else is served.
    pub in_grace: bool,
    /// The disk has no room for new things.
    pub full: bool,
    /// Bytes that have to be freed on it until there is; 0 where it is not full, or where that is not
    /// known.
    pub missing_bytes: u64,
    /// On the disk of the metadata; none where it does not tell.
    pub room: Option<Room>,
    /// Removed files whose objects are on their way out, as far as they were looked at.
    pub reaps: u32,
    /// Files that are being cut.
    pub cuts: u32,
    /// The newest version of the set of data servers (0: none yet), and how many it has.
    pub pool_version: u32,
    pub pool_servers: u32,
    #[serde(borrow)]
    pub activities: Vec<Activity<'a>>,
    /// The work of its journal and of its disk.
    pub work: Vec<Activity<'a>>,
    /// All further figures.
    pub figures: Vec<Figure<'a>>,
}

/// A session with the metadata server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo<'a> {
    pub session: u64,
    /// The client's name for itself; empty if it opened the session in an earlier life of the server.
    #[serde(borrow)]
    pub name: Bytes<'a>,
    /// Milliseconds until it ends, unless something is heard of the client.
    pub left: u64,
    /// Inodes on which it holds a lease or which it has open.
    pub inodes: u64,
    /// Its term is over: data servers are being told to refuse it.
    pub fencing: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_counts_once() {
        let room = |file_system, available_bytes| Room {
            total_bytes: 100,
            free_bytes: 60,
            available_bytes,
            file_system,
        };
        let whole = Room::together([room(7, 50), room(7, 48), room(9, 10), room(0, 5), room(0, 5)]);
        assert_eq!((whole.total_bytes, whole.free_bytes, whole.available_bytes), (400, 240, 68));
        assert_eq!(Room::together([]), Room::default());
    }
}
