//! How each operation is posted.

use std::sync::Arc;

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::memory::{Change, Element, Memory, Operator, Update, record};
use ropewalk_base::verb::{RemoteLayout, Strided};
use ropewalk_net::{Atomic, Direction, Fault, Posted, Raise};

use super::ops::{Got, NEVER, Op, UnderLock, What};
use super::setting::{CELLS, CHAINS, LOCKED, NODES, REGION, SUMS, TOKENS};
use super::{History, REGIONS};

fn update(operator: Operator) -> Update {
    Update::new(Element::U64, operator).expect("all of them combine integers")
}

fn one(operator: Operator, operand: u64) -> Change {
    Change::One { update: update(operator), operand: operand.to_le_bytes() }
}

/// The growth of an origin's word among the tokens to a number.
fn notice(origin: usize, number: u64) -> Raise {
    let at = TOKENS as usize + origin * 8;
    let word = (REGION - at) / 8 - 1;
    Raise { word: word as u32, value: number, to: true }
}

impl History {
    /// Notes and posts an operation. Its number.
    pub(super) fn post(&mut self, origin: usize, target: usize, what: What) -> usize {
        let user = self.ops.len();
        assert!((user as u64) < REGIONS);
        let posted = self.next_moment();
        let (outcome, got) = (None, Got::Nothing);
        let (ended, over, cancelled) = (NEVER, NEVER, false);
        self.ops.push(Op { origin, target, what, posted, ended, outcome, cancelled, got, over });
        self.world.tell(|| format!("{user} posted by {origin} to {target}: {what:?}"));
        let done = self.start(user as u64, origin, target, what);
        match done {
            Ok(Posted::Done(completed)) => self.completed(origin, completed),
            Ok(Posted::Pending(id)) => _ = self.pending.insert(user as u64, id),
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
        user
    }

    fn start(
        &mut self,
        user: u64,
        origin: usize,
        target: usize,
        what: What,
    ) -> Result<Posted, (Memory, Fault)> {
        match what {
            What::Put { cell, version } => {
                let (at, len) = CELLS[cell];
                let memory = self.world.filled(len, version);
                self.access(user, (origin, target), Direction::Put, at, memory)
            }
            What::Get { cell } => {
                let (at, len) = CELLS[cell];
                self.get(user, (origin, target), at, len)
            }
            What::Look { first, count, .. } => {
                let at = SUMS + u64::from(first) * 8;
                self.get(user, (origin, target), at, count as usize * 8)
            }
            What::Tokens => self.get(user, (origin, target), TOKENS, NODES * 8),
            What::ReadLocked => self.get(user, (origin, target), LOCKED, 8),
            What::WriteLocked => {
                let memory = self.world.words([self.locking.value()]);
                self.access(user, (origin, target), Direction::Put, LOCKED, memory)
            }
            What::Refused => self.start_refused(user, origin, target),
            What::Ending => self.start_ending(user, origin, target),
            What::Add { .. } => self.start_add(user, origin, target, what),
            What::Chain { .. } => self.start_chain(user, origin, target, what),
            What::Token { number } => {
                let change = one(Operator::Max, number);
                let at = TOKENS + origin as u64 * 8;
                let token = Atomic { change, fetch: false, token: true };
                self.atomic(user, (origin, target), at, token)
            }
            What::Records { puts } => self.start_records(user, origin, target, &puts),
            What::Notify { cell, version, number, applied } => {
                let (put, told) = ((cell, version), (number, applied));
                self.start_notify(user, (origin, target), put, told)
            }
            What::LockedPut { what } => self.start_locked_put(user, (origin, target), what),
            What::Probe => {
                let look = Atomic { change: one(Operator::Nothing, 0), fetch: true, token: false };
                self.atomic(user, (origin, target), LOCKED, look)
            }
            What::Lock { exclusive } => {
                let node = &self.world.nodes[origin];
                let (peer, key) = (node.to[target], self.world.nodes[target].key);
                let posted = node.endpoint.post_lock(&node.context, peer, key, exclusive, user);
                posted.map_err(|fault| (Memory::empty(), fault))
            }
            What::Unlock => {
                let node = &self.world.nodes[origin];
                let (peer, key) = (node.to[target], self.world.nodes[target].key);
                let lock = self.locking.held_by(origin);
                let posted = node.endpoint.post_unlock(&node.context, peer, key, lock, user);
                posted.map_err(|fault| (Memory::empty(), fault))
            }
        }
    }

    fn start_records(
        &self,
        user: u64,
        origin: usize,
        target: usize,
        puts: &[Option<(usize, u8)>],
    ) -> Result<Posted, (Memory, Fault)> {
        let records = puts.iter().flatten().map(|(cell, version)| {
            let (at, len) = CELLS[*cell];
            (at, self.world.filled(len, *version).to_vec())
        });
        let records = self.records(records);
        let node = &self.world.nodes[origin];
        let (peer, key) = (node.to[target], self.world.nodes[target].key);
        node.endpoint.post_records(&node.context, peer, key, records, user)
    }

    fn start_notify(
        &self,
        user: u64,
        (origin, target): (usize, usize),
        (cell, version): (usize, u8),
        (number, applied): (u64, bool),
    ) -> Result<Posted, (Memory, Fault)> {
        let (at, len) = CELLS[cell];
        let memory = Memory::pooled(self.world.filled(len, version));
        let node = &self.world.nodes[origin];
        let (peer, key) = (node.to[target], self.world.nodes[target].key);
        let how = (notice(origin, number), applied);
        node.endpoint.post_notify(&node.context, peer, key, at, how, memory, user)
    }

    fn start_locked_put(
        &self,
        user: u64,
        (origin, target): (usize, usize),
        what: UnderLock,
    ) -> Result<Posted, (Memory, Fault)> {
        let (at, exclusive, memory) = match what {
            UnderLock::Cell { cell, version } => {
                let (at, len) = CELLS[cell];
                (at, false, self.world.filled(len, version))
            }
            UnderLock::Word { value } => (LOCKED, true, self.world.words([value])),
        };
        let (node, memory) = (&self.world.nodes[origin], Memory::pooled(memory));
        let (peer, key) = (node.to[target], self.world.nodes[target].key);
        let (endpoint, context) = (&node.endpoint, &node.context);
        endpoint.post_locked_put(context, peer, key, at, exclusive, memory, user)
    }

    fn access(
        &self,
        user: u64,
        (origin, target): (usize, usize),
        way: Direction,
        at: u64,
        memory: ropewalk_base::pool::PoolBuffer,
    ) -> Result<Posted, (Memory, Fault)> {
        let node = &self.world.nodes[origin];
        let (peer, key) = (node.to[target], self.world.nodes[target].key);
        let len = memory.len() as u64;
        let at = match user % 4 {
            // The same bytes, by a layout.
            0 => {
                let shape = Descriptor::contiguous(len).expect("it is short");
                let (shape, address) = (Arc::new(shape), at as i64);
                RemoteLayout::Strided(Strided { shape, address, count: 1, from: 0 })
            }
            _ => RemoteLayout::At(at),
        };
        let memory = Memory::pooled(memory);
        node.endpoint.post_access(&node.context, way, peer, key, at, memory, user)
    }

    fn get(
        &self,
        user: u64,
        between: (usize, usize),
        at: u64,
        len: usize,
    ) -> Result<Posted, (Memory, Fault)> {
        let mut memory = self.world.pool.take(len).expect("there is room");
        memory.fill(0xee);
        self.access(user, between, Direction::Get, at, memory)
    }

    fn atomic(
        &self,
        user: u64,
        (origin, target): (usize, usize),
        at: u64,
        atomic: Atomic,
    ) -> Result<Posted, (Memory, Fault)> {
        let node = &self.world.nodes[origin];
        let (peer, key) = (node.to[target], self.world.nodes[target].key);
        let posted = node.endpoint.post_atomic(&node.context, peer, key, at, atomic, user);
        posted.map_err(|fault| (Memory::empty(), fault))
    }

    fn update(
        &self,
        user: u64,
        (origin, target): (usize, usize),
        at: u64,
        how: (Update, bool),
        words: Vec<u64>,
    ) -> Result<Posted, (Memory, Fault)> {
        let node = &self.world.nodes[origin];
        let (peer, key) = (node.to[target], self.world.nodes[target].key);
        let memory = Memory::pooled(self.world.words(words));
        node.endpoint.post_update(&node.context, peer, key, at, how, memory, user)
    }

    /// Puts that go together.
    fn records(&self, puts: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Memory {
        let with_head =
            |(at, data): (u64, Vec<u8>)| [record(at, data.len() as u32).to_vec(), data].concat();
        let bytes: Vec<u8> = puts.into_iter().flat_map(with_head).collect();
        Memory::pooled(self.world.pool.copy_of(&bytes).expect("there is room"))
    }

    fn start_add(
        &mut self,
        user: u64,
        origin: usize,
        target: usize,
        what: What,
    ) -> Result<Posted, (Memory, Fault)> {
        let What::Add { first, count, bit, fetch, .. } = what else { unreachable!("an addition") };
        let at = SUMS + u64::from(first) * 8;
        if count == 1 && self.world.random.below(2) == 0 {
            let atomic = Atomic { change: one(Operator::Sum, 1 << bit), fetch, token: false };
            return self.atomic(user, (origin, target), at, atomic);
        }
        let mut words = vec![1 << bit; count as usize];
        if fetch {
            words.resize(2 * count as usize, 0xee);
        }
        self.update(user, (origin, target), at, (update(Operator::Sum), fetch), words)
    }

    fn start_chain(
        &mut self,
        user: u64,
        origin: usize,
        target: usize,
        what: What,
    ) -> Result<Posted, (Memory, Fault)> {
        let What::Chain { word, value, expected } = what else { unreachable!("of a chain") };
        let at = CHAINS + word as u64 * 8;
        let by_update = expected.is_none() && self.world.random.below(2) == 0;
        let operator = if value.is_some() { Operator::Replace } else { Operator::Nothing };
        if by_update {
            let words = value.map_or(vec![0xee], |value| vec![value, 0xee]);
            return self.update(user, (origin, target), at, (update(operator), true), words);
        }
        let change = match (value, expected) {
            (Some(value), Some(expected)) => Change::Swap {
                element: Element::U64,
                expected: expected.to_le_bytes(),
                desired: value.to_le_bytes(),
            },
            _ => one(operator, value.unwrap_or(0)),
        };
        self.atomic(user, (origin, target), at, Atomic { change, fetch: true, token: false })
    }

    /// Something with another key, for memory that may be read only, or of which the last byte lies outside.
    fn start_refused(
        &mut self,
        user: u64,
        origin: usize,
        target: usize,
    ) -> Result<Posted, (Memory, Fault)> {
        let node = &self.world.nodes[origin];
        let peer = node.to[target];
        let (right, fixed) = (self.world.nodes[target].key, self.world.nodes[target].fixed);
        let mut wrong = right;
        wrong.secret ^= 1;
        let (key, at) = [(wrong, 0), (fixed, 0), (right, REGION as u64 - 7)][user as usize % 3];
        let context = &node.context;
        match self.world.random.below(6) {
            0 => {
                let memory = Memory::pooled(self.world.filled(3000, 77));
                let (way, at) = (Direction::Put, RemoteLayout::At(at));
                node.endpoint.post_access(context, way, peer, key, at, memory, user)
            }
            1 => {
                let memory = Memory::pooled(self.world.words(vec![7; 400]));
                let how = (update(Operator::Sum), user.is_multiple_of(2));
                node.endpoint.post_update(context, peer, key, at, how, memory, user)
            }
            2 => {
                let change = one(Operator::Sum, 1);
                let atomic = Atomic { change, fetch: true, token: false };
                let posted = node.endpoint.post_atomic(context, peer, key, at, atomic, user);
                posted.map_err(|fault| (Memory::empty(), fault))
            }
            3 => {
                // None of the records is put, the first one neither.
                let between = CELLS[0].0 + CELLS[0].1 as u64;
                let at = if at == 0 { between } else { at };
                let records = self.records([(between, vec![7; 8]), (at, vec![7; 8])]);
                node.endpoint.post_records(context, peer, key, records, user)
            }
            4 => {
                let memory = Memory::pooled(self.world.filled(3000, 77));
                let how = (notice(origin, u64::MAX), true);
                node.endpoint.post_notify(context, peer, key, at, how, memory, user)
            }
            _ => {
                let memory = Memory::pooled(self.world.filled(3000, 77));
                node.endpoint.post_locked_put(context, peer, key, at, true, memory, user)
            }
        }
    }

    /// Something of the region that ends early.
    fn start_ending(
        &mut self,
        user: u64,
        origin: usize,
        target: usize,
    ) -> Result<Posted, (Memory, Fault)> {
        let (node, key) = (&self.world.nodes[origin], self.world.nodes[target].ending);
        let (peer, context) = (node.to[target], &node.context);
        let memory = |len| Memory::pooled(self.world.filled(len, 5));
        match user % 5 {
            0 => {
                let (way, at) = (Direction::Put, RemoteLayout::At(1000));
                node.endpoint.post_access(context, way, peer, key, at, memory(3000), user)
            }
            1 => {
                let (way, at) = (Direction::Get, RemoteLayout::At(0));
                node.endpoint.post_access(context, way, peer, key, at, memory(4000), user)
            }
            2 => {
                let records = self.records([(8, vec![5; 100]), (2000, vec![5; 9])]);
                node.endpoint.post_records(context, peer, key, records, user)
            }
            3 => {
                let how = (Raise { word: 0, value: 1, to: false }, true);
                node.endpoint.post_notify(context, peer, key, 1000, how, memory(2000), user)
            }
            _ => {
                let how = (update(Operator::Sum), user.is_multiple_of(2));
                node.endpoint.post_update(context, peer, key, 0, how, memory(3200), user)
            }
        }
    }
}
