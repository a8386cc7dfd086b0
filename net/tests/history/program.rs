//! What endpoints do at random, and what they do when they learn something: where a bug would show, somebody looks.

use super::History;
use super::ops::{Op, RECORDS_MAX, UnderLock, What, see_token};
use super::setting::{CELLS, CHAIN_COUNT, NODES, SHORT_CELLS, SUM_AREAS};

/// Additions to an area, each with a bit of its own.
const BITS: u8 = 62;
/// Versions of a cell.
const VERSIONS: u8 = 250;
/// All operations of a run, at most.
const OPS_MAX: usize = 600;

/// What is used up, by target.
#[derive(Debug, Default)]
pub struct Program {
    versions: [[u8; CELLS.len()]; NODES],
    bits: [[u8; SUM_AREAS.len()]; NODES],
    values: u64,
    /// The values that origins saw last, by target and word.
    seen: [[u64; CHAIN_COUNT]; NODES],
    /// Tokens that were sent, and those that were seen, by origin and target.
    tokens: [[u64; NODES]; NODES],
    tokens_seen: [[u64; NODES]; NODES],
}

impl History {
    fn any_node(&mut self) -> usize {
        self.world.random.below(NODES as u64) as usize
    }

    fn has_room(&self) -> bool {
        self.ops.len() < OPS_MAX
    }

    /// Some origin begins something.
    pub(super) fn post_any(&mut self) {
        let (origin, target) = (self.any_node(), self.any_node());
        match self.world.random.below(28) {
            0..=4 => self.put_some(origin, target),
            5..=7 => {
                let cell = self.any_cell();
                self.post(origin, target, What::Get { cell });
            }
            8..=12 => self.add_some(origin, target),
            13 => {
                let (area, first, count) = self.any_elements();
                self.post(origin, target, What::Look { area, first, count });
            }
            14..=16 => self.chain_some(origin, target),
            17 | 18 => self.tell(origin, target),
            19 => _ = self.post(origin, target, What::Tokens),
            20 => _ = self.post(origin, target, What::Refused),
            21 => _ = self.post(origin, target, What::Ending),
            22 | 23 => self.record_some(origin, target),
            24 => self.put_under_lock(origin, target),
            _ => self.want_lock(origin, target),
        }
    }

    /// Long ones are rare.
    fn any_cell(&mut self) -> usize {
        let most = [3, 4, 5, 6][self.world.random.below(4) as usize];
        self.world.random.below(most) as usize
    }

    pub(super) fn put_some(&mut self, origin: usize, target: usize) {
        let cell = self.any_cell();
        self.put(origin, target, cell);
    }

    fn put(&mut self, origin: usize, target: usize, cell: usize) {
        if let Some(version) = self.next_version(target, cell) {
            self.post(origin, target, What::Put { cell, version });
        }
    }

    /// The next version of a cell, as long as there are some.
    fn next_version(&mut self, target: usize, cell: usize) -> Option<u8> {
        let version = &mut self.program.versions[target][cell];
        let is_there = *version < VERSIONS;
        *version += u8::from(is_there);
        is_there.then_some(*version)
    }

    fn any_short_cell(&mut self) -> usize {
        self.world.random.below(SHORT_CELLS as u64) as usize
    }

    /// Several short puts together, in any order.
    fn record_some(&mut self, origin: usize, target: usize) {
        let (many, first) = (1 + self.any_short_cell(), self.any_short_cell());
        let mut puts = [None; RECORDS_MAX];
        for (at, put) in puts.iter_mut().enumerate().take(many) {
            let cell = (first + at) % SHORT_CELLS;
            *put = self.next_version(target, cell).map(|version| (cell, version));
        }
        if puts.iter().any(Option::is_some) {
            self.post(origin, target, What::Records { puts });
        }
    }

    /// What a put under a lock writes; nothing where all versions are used up.
    pub(super) fn any_under_lock(&mut self, target: usize) -> Option<UnderLock> {
        if self.world.random.below(2) == 0 {
            return Some(UnderLock::Word { value: self.locking.next_value() });
        }
        let cell = self.any_short_cell();
        self.next_version(target, cell).map(|version| UnderLock::Cell { cell, version })
    }

    fn any_elements(&mut self) -> (usize, u32, u32) {
        let area = self.world.random.below(SUM_AREAS.len() as u64) as usize;
        let (first, most) = SUM_AREAS[area];
        let at = self.world.random.below(u64::from(most.min(20))) as u32;
        let longest = [1, 30, 3_000, 11_998][self.world.random.below(4) as usize];
        let longest = longest.min(most - at);
        (area, first + at, 1 + self.world.random.below(u64::from(longest)) as u32)
    }

    fn add_some(&mut self, origin: usize, target: usize) {
        let (area, first, count) = self.any_elements();
        let fetch = self.world.random.below(2) == 0;
        let bit = self.program.bits[target][area];
        if bit < BITS {
            self.program.bits[target][area] += 1;
            self.post(origin, target, What::Add { area, first, count, bit, fetch });
        }
    }

    /// Sometimes several one after the other.
    fn chain_some(&mut self, origin: usize, target: usize) {
        for _ in 0..=self.world.random.below(3) {
            let word = self.world.random.below(CHAIN_COUNT as u64) as usize;
            let (mut value, mut expected) = (None, None);
            if self.world.random.below(5) > 0 {
                self.program.values += 1;
                value = Some(self.program.values);
                let is_swap = self.world.random.below(3) == 0;
                expected = is_swap.then_some(self.program.seen[target][word]);
            }
            self.post(origin, target, What::Chain { word, value, expected });
        }
    }

    /// A token, often after something that it tells of.
    fn tell(&mut self, origin: usize, target: usize) {
        let before = self.world.random.below(4);
        let cell = self.any_cell();
        match before {
            0 => self.put(origin, target, cell),
            1 => _ = self.post(origin, target, What::Get { cell }),
            2 => self.add_some(origin, target),
            _ => {}
        }
        self.program.tokens[origin][target] += 1;
        let number = self.program.tokens[origin][target];
        let notice = match self.world.random.below(2) {
            0 => {
                let cell = self.any_short_cell();
                self.next_version(target, cell).map(|version| (cell, version))
            }
            _ => None,
        };
        let what = match notice {
            Some((cell, version)) => {
                let applied = self.world.random.below(2) == 0;
                What::Notify { cell, version, number, applied }
            }
            None => What::Token { number },
        };
        self.post(origin, target, what);
    }

    /// A rank that was told of bytes reads them at once.
    pub(super) fn look_for_tokens(&mut self) {
        for node in 0..NODES {
            let raises = self.world.nodes[node].endpoint.raise_count();
            if raises != std::mem::replace(&mut self.world.nodes[node].raises, raises) {
                self.post(node, node, What::Tokens);
            }
        }
    }

    fn saw_tokens(&mut self, reader: usize, target: usize, words: &[u64]) {
        for (origin, number) in words.iter().enumerate().filter(|it| *it.1 > 0) {
            let sent = self.program.tokens[origin][target];
            assert!(
                *number <= sent,
                "{reader} saw token {number} of {origin} to {target}: {sent} were sent"
            );
            let now = self.moment;
            see_token(&mut self.ops, origin, target, *number, now);
            let seen = &mut self.program.tokens_seen[origin][target];
            if *number > *seen {
                *seen = *number;
                self.follow_token(reader, origin, target, *number);
            }
        }
    }

    /// Looks at what was put before a token, and writes what was read before it.
    fn follow_token(&mut self, reader: usize, origin: usize, target: usize, number: u64) {
        let is_it = |op: &Op| op.is_of(origin, target) && op.token() == Some(number);
        let at = self.ops.iter().rposition(is_it).expect("it was sent");
        // A put with a notice is told of by itself.
        let before = self.ops[..=at].iter().rev().filter(|op| op.is_of(origin, target)).take(3);
        let before: Vec<What> = before.map(|op| op.what).collect();
        let has_room = self.has_room();
        for what in before.into_iter().filter(|_| has_room) {
            match what {
                What::Put { cell, .. }
                | What::Notify { cell, .. }
                | What::Records { puts: [Some((cell, _)), ..] } => {
                    _ = self.post(reader, target, What::Get { cell });
                }
                What::Get { cell } => self.put(reader, target, cell),
                What::Add { area, first, count, .. } => {
                    _ = self.post(reader, target, What::Look { area, first, count });
                }
                _ => {}
            }
        }
    }

    /// An operation ended.
    pub(super) fn learned(&mut self, user: usize, bits: u64) {
        let (origin, target, what) = {
            let op = &self.ops[user];
            (op.origin, op.target, op.what)
        };
        let is_certain = self.ops[user].is_certain();
        match what {
            What::Lock { .. }
            | What::LockedPut { .. }
            | What::ReadLocked
            | What::Unlock
            | What::WriteLocked
            | What::Probe => {
                self.lock_learned(user, bits);
            }
            _ if !is_certain => {}
            What::Tokens => {
                let words = self.ops[user].words().to_vec();
                self.saw_tokens(origin, target, &words);
            }
            What::Chain { word, value, expected } => {
                let found = self.ops[user].words()[0];
                let is_changed = expected.is_none_or(|it| it == found);
                self.program.seen[target][word] = value.filter(|_| is_changed).unwrap_or(found);
            }
            What::Put { cell, .. }
            | What::Notify { cell, .. }
            | What::Records { puts: [Some((cell, _)), ..] }
                if self.has_room() =>
            {
                match self.world.random.below(6) {
                    // The target itself looks at once, without a frame; another one does so later.
                    0 | 1 => _ = self.post(target, target, What::Get { cell }),
                    2 => {
                        let other = self.any_node();
                        self.post(other, target, What::Get { cell });
                    }
                    3 => self.put(target, target, cell),
                    // A late copy of one frame with several puts would undo that.
                    _ if matches!(what, What::Records { .. }) => self.put(target, target, cell),
                    _ => {}
                }
            }
            _ => {}
        }
    }
}
