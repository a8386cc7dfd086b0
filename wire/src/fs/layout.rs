//! The place of a stripe: a pure function of the layout that the inode pins, and of the pool's version.
//!
//! Rules: pool versions never change once made, and a stripe never moves because a file
//! grew or a server joined. So a client computes every place from the inode alone.

use ropewalk_base::ids::ServerId;
use serde::{Deserialize, Serialize};

/// Most data servers of one pool version.
pub const POOL_SERVERS_MAX: usize = 1024;

/// The layout of the stripes, which an inode pins; chosen at create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The pool version whose servers hold the stripes.
    pub pool_version: u32,
    /// Mixes the order of servers, so that files begin on different ones.
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

/// A version of the set of data servers. Never changes once made; a later version replaces it for
/// new files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    pub version: u32,
    /// Server ids; at most `POOL_SERVERS_MAX`, never empty.
    pub servers: Vec<u32>,
}

impl Layout {
    /// The default: stripes of 1 MiB; the first on one server, the first 64 on four, then all.
    pub const STRIPE_BYTES_DEFAULT: u32 = 1 << 20;

    /// The server of stripe number `stripe`. `pool` must be the layout's pool version.
    pub fn place(&self, stripe: u32, pool: &Pool) -> ServerId {
        assert_eq!(self.pool_version, pool.version, "a layout is read with its own pool version");
        assert!(!pool.servers.is_empty(), "a pool has servers");
        let all = pool.servers.len() as u64;
        let width = match self.growth {
            Growth::Stepped { narrow, .. } if stripe < narrow => 1,
            Growth::Stepped { wide, .. } if stripe < wide => all.min(4),
            Growth::Stepped { .. } | Growth::Fixed(0) => all,
            Growth::Fixed(width) => all.min(u64::from(width)),
        };
        // The seed chooses the first server; going round from there spreads one file evenly, and
        // seeds spread files. Nothing depends on stripes that come later.
        let first = mix(self.seed) % all;
        let index = (first + u64::from(stripe) % width) % all;
        ServerId(pool.servers[index as usize])
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
    use super::*;

    fn pool(servers: u32) -> Pool {
        Pool { version: 1, servers: (0..servers).collect() }
    }

    fn layout(seed: u64, growth: Growth) -> Layout {
        Layout { pool_version: 1, seed, stripe_bytes: 1 << 20, growth }
    }

    #[test]
    fn files_spread_and_a_wide_file_uses_all_servers_evenly() {
        let pool = pool(8);
        let mut first = [0u32; 8];
        for seed in 0..8000 {
            first[layout(seed, Growth::Fixed(1)).place(5, &pool).0 as usize] += 1;
        }
        assert!(first.iter().all(|&files| (800..1200).contains(&files)), "{first:?}");
        let wide = layout(3, Growth::Fixed(0));
        let mut stripes = [0u32; 8];
        for stripe in 0..800 {
            stripes[wide.place(stripe, &pool).0 as usize] += 1;
        }
        assert_eq!(stripes, [100; 8]);
    }

    #[test]
    fn growth_never_uses_more_servers_than_its_step_allows() {
        let pool = pool(8);
        let stepped = layout(9, Growth::Stepped { narrow: 1, wide: 64 });
        let servers = |range: std::ops::Range<u32>| {
            range
                .map(|stripe| stepped.place(stripe, &pool))
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(servers(0..1).len(), 1);
        assert_eq!(servers(0..64).len(), 4);
        assert_eq!(servers(0..1000).len(), 8);
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
