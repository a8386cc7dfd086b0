//! What a seed runs over: the rails, the mode, and the areas of each region.

use ropewalk_net::Mode;
use ropewalk_rail_sim::{Path, SimConfig};

/// Endpoints of a run.
pub const NODES: usize = 3;
/// Rows of words: the tokens of each endpoint; the word that the lock protects; two of replaced values.
pub const TOKENS: u64 = 0;
pub const LOCKED: u64 = 64;
pub const CHAINS: u64 = 128;
pub const CHAIN_COUNT: usize = 2;
/// Elements to which bits are added: two alone, and many in one area.
pub const SUMS: u64 = 256;
pub const SUM_AREAS: [(u32, u32); 3] = [(0, 1), (1, 1), (2, 11_998)];
pub const SUM_COUNT: usize = 12_000;
/// Bytes that puts write, each cell as a whole, and unused ones behind each.
pub const CELLS: [(u64, usize); 6] = cells([8, 100, 3_000, 20_000, 90_000, 270_000]);
pub const GUARD: usize = 64;
/// So many cells fit in one frame, also together.
pub const SHORT_CELLS: usize = 3;
/// Whole words: notices count theirs from the end.
pub const REGION: usize = (CELLS[5].0 as usize + CELLS[5].1 + GUARD).next_multiple_of(8);
/// A second region, which may be read only, and a third one, which ends early.
pub const SMALL: usize = 4096;

const fn cells(lens: [usize; 6]) -> [(u64, usize); 6] {
    let mut cells = [(0, 0); 6];
    let (mut at, mut index) = (SUMS as usize + SUM_COUNT * 8 + GUARD, 0);
    while index < cells.len() {
        cells[index] = (at as u64, lens[index]);
        at += lens[index] + GUARD;
        index += 1;
    }
    cells
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rails {
    Stream,
    Native,
    Datagram,
}

#[derive(Debug, Clone, Copy)]
pub struct Setting {
    kind: Rails,
    pub mode: Mode,
    /// Rails of each endpoint; with two a session has as many paths.
    pub rails: usize,
    pub cuts: u64,
    /// Operations are cancelled.
    pub cancels: bool,
    /// Links of idle sessions are closed.
    pub parks: bool,
}

impl Setting {
    pub fn of(seed: u64) -> Setting {
        const ALL: [(Rails, Mode, usize); 8] = [
            (Rails::Datagram, Mode::Resume, 1),
            (Rails::Stream, Mode::Fail, 1),
            (Rails::Stream, Mode::Resume, 1),
            (Rails::Native, Mode::Fail, 1),
            (Rails::Native, Mode::Resume, 1),
            (Rails::Stream, Mode::Fail, 2),
            (Rails::Native, Mode::Resume, 2),
            (Rails::Datagram, Mode::Fail, 1),
        ];
        let (kind, mode, rails) = ALL[(seed % 8) as usize];
        let cuts = [0, 2, 5][(seed / 8 % 3) as usize];
        let (cancels, parks) = (seed / 8 % 2 == 1, seed / 8 % 5 == 4);
        Setting { kind, mode, rails, cuts, cancels, parks }
    }

    /// A session ends with its link.
    pub fn ends(&self) -> bool {
        self.mode == Mode::Fail && self.rails == 1
    }

    /// Payloads arrive spoiled, and lie at their place until their span comes again.
    pub fn spoils(&self) -> bool {
        self.kind == Rails::Datagram
    }

    /// Rails write by themselves.
    pub fn writes(&self) -> bool {
        self.kind == Rails::Native && self.ends()
    }

    /// Frames of one kind keep their order.
    pub fn in_order(&self) -> bool {
        self.ends() && self.kind != Rails::Datagram
    }

    pub fn rail(&self) -> SimConfig {
        match self.kind {
            Rails::Stream => SimConfig::stream(),
            Rails::Native => SimConfig::native(),
            Rails::Datagram => SimConfig::datagram(),
        }
    }

    pub fn path(&self) -> Path {
        let mut path = Path::default();
        if self.kind == Rails::Datagram {
            path.loss = 30_000;
            path.duplication = 100_000;
            path.reordering = 100_000;
            path.header_corruption = 10_000;
            path.payload_corruption = 30_000;
        }
        path
    }
}
