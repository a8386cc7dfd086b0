//! Rows of pools and of bands.
//!
//! A row has the oldest version that can say what it says: a store without copies is one that former programs read.

use ropewalk_wire::fs::layout::{Members, Pool};
use ropewalk_wire::fs::map::{Band, Membership, Mirroring};
use serde::{Deserialize, Serialize};

use crate::inode::{Damaged, decode_row, encode_row};

/// Version of pool rows that name servers: those of the first format.
const SERVERS_VERSION: u8 = 1;
/// Version of the rows of pools of one copy.
const SINGLE_POOL_VERSION: u8 = 2;
/// Version of pool rows.
const POOL_VERSION: u8 = 3;
/// Version of the rows of bands whose groups have no newcomers.
pub(super) const PLAIN_BAND_VERSION: u8 = 1;
/// Version of the rows of bands for files of one copy.
const SINGLE_BAND_VERSION: u8 = 2;
/// Version of the rows of bands for files of several copies.
const MIRRORED_BAND_VERSION: u8 = 3;
/// Version of the rows of bands of which groups move.
const BAND_VERSION: u8 = 4;

/// A pool's row in the first format.
#[derive(Serialize, Deserialize)]
struct ServersRow {
    version: u32,
    servers: Vec<u32>,
}

/// The row of a pool of one copy.
#[derive(Serialize, Deserialize)]
struct SinglePool {
    version: u32,
    members: Members,
}

/// The row of a pool.
pub fn encode_pool(pool: &Pool) -> Vec<u8> {
    let version = pool.version;
    match &pool.members {
        Members::Servers(servers) => {
            encode_row(SERVERS_VERSION, &ServersRow { version, servers: servers.clone() })
        }
        members if pool.copies == 1 => {
            encode_row(SINGLE_POOL_VERSION, &SinglePool { version, members: members.clone() })
        }
        Members::Bands(_) => encode_row(POOL_VERSION, pool),
    }
}

/// A pool from its row.
pub fn decode_pool(bytes: &[u8]) -> Result<Pool, Damaged> {
    let pool = match bytes.first() {
        Some(&SERVERS_VERSION) => {
            let ServersRow { version, servers } = decode_row(SERVERS_VERSION, bytes)?;
            Pool::of_servers(version, servers)
        }
        Some(&SINGLE_POOL_VERSION) => {
            let SinglePool { version, members } = decode_row(SINGLE_POOL_VERSION, bytes)?;
            Pool { version, members, copies: 1 }
        }
        _ => decode_row(POOL_VERSION, bytes)?,
    };
    if pool.is_valid() { Ok(pool) } else { Err(Damaged) }
}

/// A band's row without newcomers.
#[derive(Serialize, Deserialize)]
pub(super) struct PlainBand {
    pub number: u32,
    pub groups: Vec<(u32, Vec<u32>)>,
}

/// A group that does not move.
#[derive(Serialize, Deserialize)]
struct SteadyGroup {
    since: u32,
    servers: Vec<u32>,
    newcomers: Vec<u32>,
    losses: u32,
}

impl From<&Membership> for SteadyGroup {
    fn from(group: &Membership) -> SteadyGroup {
        let Membership { since, servers, newcomers, losses, .. } = group.clone();
        SteadyGroup { since, servers, newcomers, losses }
    }
}

impl From<SteadyGroup> for Membership {
    fn from(group: SteadyGroup) -> Membership {
        let SteadyGroup { since, servers, newcomers, losses } = group;
        Membership { newcomers, losses, ..Membership::new(since, servers) }
    }
}

/// The row of a band for files of one copy.
#[derive(Serialize, Deserialize)]
struct SingleBand {
    number: u32,
    groups: Vec<SteadyGroup>,
}

/// The row of a band for files of several copies.
#[derive(Serialize, Deserialize)]
struct MirroredBand {
    number: u32,
    groups: Vec<SteadyGroup>,
    mirroring: Option<Mirroring>,
}

/// The row of a band.
pub fn encode_band(band: &Band) -> Vec<u8> {
    let (number, mirroring) = (band.number, band.mirroring);
    if band.groups.iter().any(|group| !group.leaving.is_empty() || !group.takers.is_empty()) {
        return encode_row(BAND_VERSION, band);
    }
    let groups = band.groups.iter().map(SteadyGroup::from).collect();
    match mirroring {
        None => encode_row(SINGLE_BAND_VERSION, &SingleBand { number, groups }),
        Some(_) => encode_row(MIRRORED_BAND_VERSION, &MirroredBand { number, groups, mirroring }),
    }
}

/// A band from its row.
pub fn decode_band(bytes: &[u8]) -> Result<Band, Damaged> {
    let band = match bytes.first() {
        Some(&PLAIN_BAND_VERSION) => {
            let PlainBand { number, groups } = decode_row(PLAIN_BAND_VERSION, bytes)?;
            let groups = groups.into_iter();
            let groups = groups.map(|(since, servers)| Membership::new(since, servers)).collect();
            Band { number, groups, mirroring: None }
        }
        Some(&SINGLE_BAND_VERSION) => {
            let SingleBand { number, groups } = decode_row(SINGLE_BAND_VERSION, bytes)?;
            let groups = groups.into_iter().map(Membership::from).collect();
            Band { number, groups, mirroring: None }
        }
        Some(&MIRRORED_BAND_VERSION) => {
            let MirroredBand { number, groups, mirroring } =
                decode_row(MIRRORED_BAND_VERSION, bytes)?;
            let groups = groups.into_iter().map(Membership::from).collect();
            Band { number, groups, mirroring }
        }
        _ => decode_row(BAND_VERSION, bytes)?,
    };
    if band.is_valid() { Ok(band) } else { Err(Damaged) }
}
