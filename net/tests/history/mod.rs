//! Random programs of one-sided operations between endpoints, and what must hold of their histories.
//!
//! * [`setting`]: rails, mode and areas; [`world`]: the endpoints; [`program`]: what they do, and what they do next when they
//!   learn something; [`locking`]: who has which lock;
//! * [`ops`]: the operations; [`cells`], [`sums`], [`chains`], [`tokens`], [`locking`] and [`locked_word`] judge them by models.

mod cells;
mod chains;
mod locked_word;
mod locking;
mod ops;
mod posting;
mod program;
mod setting;
mod sums;
mod tokens;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_core::Plant;
use ropewalk_net::{Completed, Fault, OperationId};
use ropewalk_rail_sim::Trace;

use cells::versions;
use locking::Locking;
use ops::{Got, NEVER, Op, What};
use setting::{CELLS, GUARD, NODES, SMALL};
use world::World;

/// Operations that programs begin, besides those that follow from what they learn.
const PROGRAMS: u64 = 120;
/// The number of regions that come back, beside those of operations.
const REGIONS: u64 = 1 << 40;

/// What a run was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Run {
    pub trace: u64,
    pub operations: u64,
    pub failed: u64,
    pub cancelled: u64,
    pub cuts: u64,
    pub granted: u64,
    /// Puts under a lock that was free.
    pub at_once: u64,
    pub reads: u64,
    pub tokens_seen: u64,
    pub notices_seen: u64,
    pub records: u64,
    pub rested: u64,
}

pub struct History {
    world: World,
    ops: Vec<Op>,
    /// Those that are under way.
    pending: BTreeMap<u64, OperationId>,
    moment: u64,
    locking: Locking,
    program: program::Program,
    /// Memory that is the user's again, and what it was then: nobody changes it any more.
    kept: Vec<(PoolBuffer, Vec<u8>)>,
    regions: BTreeMap<u64, PoolBuffer>,
    ended: usize,
    /// Regions end, and nothing is begun any more.
    is_over: bool,
    trace: Trace,
    run: Run,
}

impl History {
    pub fn new(seed: u64, plant: Plant) -> History {
        History {
            world: World::new(seed, plant),
            ops: Vec::new(),
            pending: BTreeMap::new(),
            moment: 0,
            locking: Locking::default(),
            program: program::Program::default(),
            kept: Vec::new(),
            regions: BTreeMap::new(),
            ended: 0,
            is_over: false,
            trace: Trace::new(),
            run: Run::default(),
        }
    }

    fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    pub fn run(mut self) -> Run {
        if !self.world.setting.ends() || (self.world.seed / 48).is_multiple_of(2) {
            self.meet();
        }
        let (mut left, mut next_cut) = (PROGRAMS, self.world.now());
        let end = self.world.random.below(PROGRAMS);
        while left > 0 || !self.pending.is_empty() || self.locking.is_busy() {
            if left > 0 && self.world.random.below(8) == 0 {
                left -= 1;
                self.post_any();
                if left == end {
                    self.end_regions(0);
                }
            }
            if self.run.cuts < self.world.setting.cuts && self.world.now() >= next_cut {
                self.world.cut();
                self.run.cuts += 1;
                let pause = Duration::from_micros(self.world.random.below(8_000));
                next_cut = self.world.now() + pause;
            }
            if self.world.setting.parks && left > 0 && self.world.random.below(400) == 0 {
                self.pause();
            }
            // In the end everything ends by itself.
            let cancels = self.world.setting.cancels && left > 0;
            if cancels && self.world.random.below(40) == 0 {
                self.cancel_one();
            }
            self.step("operations do not end");
        }
        self.finish()
    }

    /// Nothing new begins for a while, but whoever has a lock may keep it.
    fn pause(&mut self) {
        let until = self.world.now() + Duration::from_secs(2);
        while self.world.now() < until {
            self.step("time does not pass");
        }
    }

    /// Sessions begin. One that goes on after a lost link may still end with its first one, as long as it begins.
    fn meet(&mut self) {
        for origin in 0..NODES {
            for target in 0..NODES {
                self.post(origin, target, What::Tokens);
            }
        }
        while !self.pending.is_empty() {
            self.step("they do not meet");
        }
    }

    fn step(&mut self, what: &str) {
        for (node, completed) in self.world.step() {
            self.completed(node, completed);
        }
        self.give_locks_back();
        if !self.is_over {
            self.look_for_tokens();
        }
        if self.world.is_late() {
            let open = self.pending.keys().filter_map(|user| self.ops.get(*user as usize));
            panic!("seed {}: {what}: {:#?}", self.world.seed, open.collect::<Vec<_>>());
        }
    }

    fn cancel_one(&mut self) {
        let many = self.pending.len() as u64;
        if many == 0 {
            return;
        }
        let at = self.world.random.below(many) as usize;
        let user = *self.pending.keys().nth(at).expect("it is there");
        self.cancel(user);
    }

    fn cancel(&mut self, user: u64) {
        let Some(id) = self.pending.get(&user).copied() else { return };
        let op = &mut self.ops[user as usize];
        if !matches!(op.what, What::ReadLocked | What::WriteLocked | What::Unlock) {
            op.cancelled = true;
            self.world.nodes[op.origin].endpoint.cancel(id);
        }
    }

    fn completed(&mut self, node: usize, completed: Completed) {
        self.trace.mix(completed.user);
        self.trace.mix(completed.outcome.map_or_else(|fault| fault as u64, |()| 99));
        self.trace.mix(completed.bits);
        if completed.user >= REGIONS {
            let memory = completed.memory.into_pooled().expect("regions are of the pool");
            self.kept_region(completed.user, memory);
            return;
        }
        let user = completed.user;
        self.pending.remove(&user);
        self.locking.note(user, node, completed.operation);
        let moment = self.next_moment();
        let ends = self.world.setting.ends();
        let op = &mut self.ops[user as usize];
        assert_eq!((op.origin, op.outcome), (node, None), "{op:?} ended twice");
        (op.ended, op.outcome) = (moment, Some(completed.outcome));
        let is_legal = match completed.outcome {
            Ok(()) => op.what != What::Refused,
            Err(Fault::Cancelled) => op.cancelled,
            Err(Fault::BadKey) => matches!(op.what, What::Refused | What::Ending),
            Err(Fault::PeerReset | Fault::Unreachable) => ends && op.origin != op.target,
            Err(_) => false,
        };
        assert!(is_legal, "seed {}: {op:?}", self.world.seed);
        self.world.tell(|| format!("{user} ended: {op:?}"));
        let is_ok = completed.outcome.is_ok();
        self.run.records += u64::from(is_ok && matches!(op.what, What::Records { .. }));
        self.run.reads += u64::from(is_ok && matches!(op.what, What::Get { .. }));
        self.run.failed += u64::from(!is_ok);
        self.run.cancelled += u64::from(completed.outcome == Err(Fault::Cancelled));
        let memory = completed.memory.into_pooled();
        if let (true, Some(memory)) = (is_ok, memory.as_ref().filter(|it| !it.is_empty())) {
            op.got = got(op.what, memory);
        } else if is_ok && matches!(op.what, What::Add { fetch: true, .. } | What::Chain { .. }) {
            op.got = Got::Words(vec![completed.bits]);
        }
        if let (true, What::LockedPut { .. }) = (is_ok, op.what) {
            op.got = if completed.bits == 2 { Got::Put } else { Got::Lock };
        }
        if let (false, Some(memory)) = (is_ok, memory) {
            let bytes = memory.to_vec();
            self.kept.push((memory, bytes));
        }
        self.learned(user as usize, completed.bits);
    }

    fn kept_region(&mut self, user: u64, memory: PoolBuffer) {
        if user < REGIONS + NODES as u64 {
            let bytes = memory.to_vec();
            self.kept.push((memory, bytes));
            self.ended += 1;
        } else {
            self.regions.insert(user, memory);
        }
    }

    /// Ends the regions that end early, or the others.
    fn end_regions(&mut self, kind: u64) {
        for (number, node) in self.world.nodes.iter().enumerate() {
            let key = [node.ending, node.key, node.fixed][kind as usize];
            let user = REGIONS + kind * NODES as u64 + number as u64;
            node.endpoint.unexpose(key, &node.context, user).expect("it is exposed");
        }
    }

    fn finish(mut self) -> Run {
        // Tokens take effect, and late copies of frames come meanwhile.
        let until = self.world.now() + Duration::from_millis(50);
        while self.world.now() < until || self.world.awaits() || !self.pending.is_empty() {
            self.step("something is under way");
        }
        self.is_over = true;
        self.end_regions(1);
        self.end_regions(2);
        while self.regions.len() < 2 * NODES || self.ended < NODES || !self.world.is_quiet() {
            self.step("something is held");
        }
        self.world.nodes.iter().for_each(|node| node.endpoint.check());
        for node in &self.world.nodes {
            let counters = node.endpoint.counters().0;
            assert_eq!(counters.violations, 0, "seed {}", self.world.seed);
            self.run.rested += counters.sessions_idle_closed;
        }
        self.check();
        self.trace.mix(self.world.network.trace_hash());
        self.trace.mix(self.world.now().0);
        self.run.trace = self.trace.value();
        self.run.operations = self.ops.len() as u64;
        self.run
    }

    fn check(&mut self) {
        let kept = self.kept.iter().all(|(memory, bytes)| memory[..] == bytes[..]);
        assert!(kept, "memory that had been given back was changed");
        let region = |number: usize| self.regions[&(REGIONS + (NODES + number) as u64)].to_vec();
        let regions: Vec<Vec<u8>> = (0..NODES).map(region).collect();
        for (number, region) in regions.iter().enumerate() {
            let fixed = &self.regions[&(REGIONS + (2 * NODES + number) as u64)];
            assert!(
                fixed[..] == self.world.filled(SMALL, 9)[..],
                "memory that may be read only was changed"
            );
            for (at, len) in CELLS {
                let guard = &region[at as usize + len..][..GUARD];
                assert!(guard.iter().all(|byte| *byte == 0), "bytes between cells were changed");
            }
        }
        for op in self.ops.iter().filter(|op| op.over < NEVER) {
            self.run.tokens_seen += u64::from(matches!(op.what, What::Token { .. }));
            self.run.notices_seen += u64::from(matches!(op.what, What::Notify { .. }));
        }
        ops::judge_ends(&mut self.ops, self.world.setting.writes());
        cells::check(&self.ops, &regions, self.world.setting.spoils());
        sums::check(&self.ops, &regions);
        chains::check(&self.ops, &regions);
        tokens::check(&self.ops, &regions, self.world.setting.ends());
        (self.run.granted, self.run.at_once) = self.locking.check(&self.ops, &regions);
    }
}

/// What an operation brought.
fn got(what: What, memory: &[u8]) -> Got {
    let words = |bytes: &[u8]| {
        bytes
            .chunks(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("whole words")))
            .collect()
    };
    match what {
        What::Get { .. } => Got::Versions(versions(memory)),
        What::Look { .. } | What::Tokens | What::ReadLocked => Got::Words(words(memory)),
        What::Add { count, fetch: true, .. } => Got::Words(words(&memory[count as usize * 8..])),
        What::Chain { .. } => Got::Words(words(&memory[memory.len() - 8..])),
        _ => Got::Nothing,
    }
}
