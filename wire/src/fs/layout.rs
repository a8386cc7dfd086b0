//! The group of a stripe: a pure function of the layout that the inode pins, and of the pool's version.
//!
//! Rules: pool versions never change once made, and a stripe never changes its group because a file
//! grew or a server joined. So a client computes every group from the inode alone; the map
//! ([`super::map`]) tells its servers.

use serde::{Deserialize, Serialize};

use super::group::{BAND_GROUPS, COPIES_MAX, Group};

/// Most data servers of one pool version.
pub const POOL_SERVERS_MAX: usize = 1024;

/// The layout of the stripes, which an inode pins; chosen at create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The pool version whose groups hold the stripes.
    pub pool_version: u32,
    /// Mixes the order of groups, so that files begin in different ones.
    pub seed: u64,
    /// Bytes of a stripe: a power of two, 64 KiB to 1 GiB.
    pub stripe_bytes: u32,
    /// The growth of the number of servers with the offset.
    pub growth: Growth,
}

/// The number of servers that a file's stripes go round, by stripe number: small files stay on one server, large ones
/// use all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Growth {
    /// The first `narrow` stripes on 1 server, those up to `wide` on 4, the rest on all.
    Stepped { narrow: u32, wide: u32 },
    /// All stripes go round this many servers (0: all), as a user asked for.
    Fixed(u16),
}

/// A version of the set of groups for new files. Never changes once made; a later version replaces it for
/// files that are made later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub version: u32,
    pub members: Members,
    /// Members that each of its groups should have.
    pub copies: u8,
}

/// The groups of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Members {
    /// Of a file system of the first format: one group for each of these servers, which is alone in it.
    Servers(Vec<u32>),
    /// All groups of these bands.
    Bands(Vec<u32>),
}

impl Members {
    /// Servers or bands; at most `POOL_SERVERS_MAX`, never empty.
    pub fn numbers(&self) -> &[u32] {
        match self {
            Members::Servers(numbers) | Members::Bands(numbers) => numbers,
        }
    }
}

impl Pool {
    /// A pool of the first format.
    pub fn of_servers(version: u32, servers: Vec<u32>) -> Pool {
        Pool { version, members: Members::Servers(servers), copies: 1 }
    }

    /// Whether the values make a pool at all (they may come from a disk or a network).
    pub fn is_valid(&self) -> bool {
        // Groups of the first format have no other members.
        let copies = if let Members::Servers(_) = self.members { 1 } else { COPIES_MAX };
        (1..=POOL_SERVERS_MAX).contains(&self.members.numbers().len())
            && (1..=copies).contains(&self.copies)
    }

    /// Group number `index` of all its groups. Neighbours are in different bands, so that they are on different
    /// servers as long as there are several.
    fn group(&self, index: u64) -> Group {
        let numbers = self.members.numbers();
        let member = numbers[(index % numbers.len() as u64) as usize];
        match self.members {
            Members::Servers(_) => Group::of_server(member),
            Members::Bands(_) => Group::of_band(member, (index / numbers.len() as u64) as u32),
        }
    }

    /// The number of its groups.
    fn groups(&self) -> u64 {
        let each = match self.members {
            Members::Servers(_) => 1,
            Members::Bands(_) => u64::from(BAND_GROUPS),
        };
        each * self.members.numbers().len() as u64
    }
}

impl Layout {
    /// The default: stripes of 1 MiB; the first on one server, the first 64 on four, then all.
    pub const STRIPE_BYTES_DEFAULT: u32 = 1 << 20;

    /// The group of stripe number `stripe`. `pool` must be the layout's pool version.
    pub fn group(&self, stripe: u32, pool: &Pool) -> Group {
        assert_eq!(self.pool_version, pool.version, "a layout is read with its own pool version");
        assert!(pool.is_valid(), "a pool has members");
        let (all, apart) = (pool.groups(), pool.members.numbers().len() as u64);
        let width = match self.growth {
            Growth::Stepped { narrow, .. } if stripe < narrow => 1,
            Growth::Stepped { wide, .. } if stripe < wide => apart.min(4),
            Growth::Stepped { .. } | Growth::Fixed(0) => all,
            Growth::Fixed(width) => apart.min(u64::from(width)),
        };
        // The seed chooses the first group; going round from there spreads one file evenly, and
        // seeds spread files. Nothing depends on stripes that come later.
        let first = mix(self.seed) % all;
        pool.group((first + u64::from(stripe) % width) % all)
    }

    /// The groups that can hold stripes of a file of this layout; `None`: all of the pool.
    pub fn groups(&self, pool: &Pool) -> Option<Vec<Group>> {
        let apart = pool.members.numbers().len();
        match self.growth {
            Growth::Fixed(width) if width > 0 && usize::from(width) < apart => {
                Some((0..u32::from(width)).map(|stripe| self.group(stripe, pool)).collect())
            }
            _ => None,
        }
    }

    /// Splits a byte range of the file into pieces that each lie in one stripe.
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let stripe_bytes = u64::from(self.stripe_bytes);
        let end = offset.saturating_add(len);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let within = at % stripe_bytes;
            let bytes = (stripe_bytes - within).min(end - at);
            let piece = Piece {
                stripe: u32::try_from(at / stripe_bytes).unwrap_or(u32::MAX),
                offset: within as u32,
                len: bytes as u32,
                file_offset: at,
            };
            at += bytes;
            Some(piece)
        })
    }

    /// The largest size that a file of this layout can have.
    pub fn size_max(&self) -> u64 {
        (u64::from(u32::MAX) * u64::from(self.stripe_bytes)).min(i64::MAX as u64)
    }

    /// Whether the values make a layout at all (they may come from a disk or a network).
    pub fn is_valid(&self) -> bool {
        self.stripe_bytes.is_power_of_two() && (1 << 16..=1 << 30).contains(&self.stripe_bytes)
    }
}

/// A part of a file that lies in one stripe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub stripe: u32,
    /// From the stripe's first byte.
    pub offset: u32,
    pub len: u32,
    /// From the file's first byte.
    pub file_offset: u64,
}

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pools(members: u32) -> [Pool; 2] {
        let numbers: Vec<u32> = (0..members).collect();
        let bands = Pool { version: 1, members: Members::Bands(numbers.clone()), copies: 1 };
        [Pool::of_servers(1, numbers), bands]
    }

    /// The server, where each band is on the server of its number.
    fn server(layout: &Layout, stripe: u32, pool: &Pool) -> u32 {
        let group = layout.group(stripe, pool);
        group.server().or(group.band().map(|(band, _)| band)).expect("one of both")
    }

    fn layout(seed: u64, growth: Growth) -> Layout {
        Layout { pool_version: 1, seed, stripe_bytes: 1 << 20, growth }
    }

    #[test]
    fn files_spread_and_a_wide_file_uses_all_servers_evenly() {
        for pool in pools(8) {
            let mut first = [0u32; 8];
            for seed in 0..8000 {
                first[server(&layout(seed, Growth::Fixed(1)), 5, &pool) as usize] += 1;
            }
            assert!(first.iter().all(|&files| (800..1200).contains(&files)), "{first:?}");
            let wide = layout(3, Growth::Fixed(0));
            let mut stripes = [0u32; 8];
            for stripe in 0..800 {
                stripes[server(&wide, stripe, &pool) as usize] += 1;
            }
            assert_eq!(stripes, [100; 8]);
        }
    }

    #[test]
    fn growth_never_uses_more_servers_than_its_step_allows() {
        for pool in pools(8) {
            let stepped = layout(9, Growth::Stepped { narrow: 1, wide: 64 });
            let servers = |range: std::ops::Range<u32>| -> BTreeSet<u32> {
                range.map(|stripe| server(&stepped, stripe, &pool)).collect()
            };
            assert_eq!(servers(0..1).len(), 1);
            assert_eq!(servers(0..64).len(), 4);
            assert_eq!(servers(0..1000).len(), 8);
        }
    }

    #[test]
    fn a_very_wide_file_uses_each_group_of_a_band() {
        let [_, pool] = pools(3);
        let wide = layout(5, Growth::Fixed(0));
        let groups: BTreeSet<Group> = (0..192).map(|stripe| wide.group(stripe, &pool)).collect();
        assert_eq!(groups.len(), 192);
        assert_eq!(wide.group(192, &pool), wide.group(0, &pool));
    }

    #[test]
    fn the_groups_of_a_file_are_those_of_its_stripes() {
        for (pool, width) in pools(5).iter().flat_map(|pool| (0..7).map(move |it| (pool, it))) {
            let layout = layout(77, Growth::Fixed(width));
            let used: BTreeSet<Group> = (0..2000).map(|it| layout.group(it, pool)).collect();
            match layout.groups(pool) {
                Some(groups) => assert_eq!(groups.into_iter().collect::<BTreeSet<_>>(), used),
                None => assert!(used.len() >= 5, "{width}"),
            }
        }
    }

    /// Files that exist are found by these places for ever. The table was made when the first format was the only one.
    #[test]
    fn the_places_of_the_first_format_stay() {
        let growths = [
            Growth::Stepped { narrow: 1, wide: 64 },
            Growth::Stepped { narrow: 0, wide: 0 },
            Growth::Stepped { narrow: 3, wide: u32::MAX },
            Growth::Fixed(0),
            Growth::Fixed(1),
            Growth::Fixed(5),
        ];
        let mut places = Vec::new();
        for (members, growth) in
            [1, 2, 3, 7, 64, 1000].iter().flat_map(|n| growths.map(|g| (*n, g)))
        {
            let pool = Pool::of_servers(1, (0..members).map(|server| 3 * server + 1).collect());
            for seed in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
                for stripe in [0, 1, 2, 3, 4, 63, 64, 65, 1000, 1_000_000, u32::MAX] {
                    let group = layout(seed, growth).group(stripe, &pool);
                    places.extend(group.server().expect("one server").to_le_bytes());
                }
            }
        }
        assert_eq!(places[..16], [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!((places.len(), ropewalk_base::checksum::crc32c(&places)), (6336, 0x6e99f406));
    }

    #[test]
    fn pieces_cover_the_range_once() {
        let layout = layout(0, Growth::Fixed(0));
        let pieces: Vec<_> = layout.pieces((1 << 20) - 10, (1 << 20) + 20).collect();
        assert_eq!(pieces.len(), 3);
        assert_eq!(
            pieces[0],
            Piece { stripe: 0, offset: (1 << 20) - 10, len: 10, file_offset: (1 << 20) - 10 }
        );
        assert_eq!(pieces[1].len, 1 << 20);
        assert_eq!(pieces[2], Piece { stripe: 2, offset: 0, len: 10, file_offset: 2 << 20 });
        assert_eq!(layout.pieces(5, 0).count(), 0);
    }
}
