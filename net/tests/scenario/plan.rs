//! What a seed does: the rails of both sides, their faults and pauses with their times, and what is posted.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_net::migration::Policy;
use ropewalk_net::{Direction, Mode};

/// A kind of rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Stream,
    /// A stream with native reads and writes.
    Native,
    /// Frames may be lost; such a rail carries no path beside others.
    Datagram,
    /// Links of packets that may be lost.
    Packets,
}

/// What befalls a rail of one side, or all of them.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// Its links are cut; both ends notice, or the other one so much later.
    Cut {
        late: Option<Duration>,
    },
    /// Its links are cut, and nobody notices at once.
    CutSilently,
    /// Nothing passes: away from this side, towards it, or both.
    Block {
        away: bool,
        towards: bool,
    },
    Slow {
        bytes_per_second: u64,
    },
    Late {
        by: Duration,
    },
    /// Packets are lost, doubled, delayed or spoiled, in parts per million.
    Spoil {
        loss: u32,
        duplication: u32,
        reordering: u32,
        corruption: u32,
    },
    /// Packets that are longer are lost.
    Narrow {
        packet_bytes: usize,
    },
    /// Calls are refused.
    Refuse,
    /// This side's process makes no pass.
    Pause,
    /// This side's process ends, and another one has its place.
    Restart {
        power: bool,
    },
}

/// A fault with its time.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub what: What,
    pub side: usize,
    /// All rails where there is none.
    pub rail: Option<usize>,
    pub at: Duration,
    pub long: Duration,
}

/// Something that is posted.
#[derive(Debug, Clone, Copy)]
pub enum Post {
    Send {
        channel: usize,
        len: usize,
        level: usize,
    },
    Receive {
        channel: usize,
        len: usize,
        from_all: bool,
    },
    Access {
        direction: Direction,
        len: usize,
    },
    /// One is added to the counter of the other side's region, which answers what it was.
    Count,
    /// What an operator or a policy wants of the paths.
    Order(Order),
}

/// An order that concerns paths. Paths are named by their place among those that there are.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    Specify { rail: Option<u8> },
    Load,
    Migrate,
    Drain { path: usize },
    Up { path: usize },
    Weigh { path: usize, weight: u16 },
}

#[derive(Debug, Clone, Copy)]
pub struct Posting {
    pub post: Post,
    pub side: usize,
    pub at: Duration,
    /// It is cancelled so much later.
    pub cancel: Option<Duration>,
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub kinds: Vec<Kind>,
    /// Paths of a session, at most.
    pub paths_max: usize,
    /// Every rail reaches every one of the other side, not only its pair.
    pub is_crossed: bool,
    pub modes: [Mode; 2],
    /// Both know each other before anything happens.
    pub meets: bool,
    pub parks: bool,
    pub policy: Policy,
    pub staging_bytes: usize,
    pub packet_bytes: usize,
    pub faults: Vec<Fault>,
    pub postings: Vec<Posting>,
    /// Accesses of each direction that a side makes, at most.
    pub accesses: usize,
    /// When the last of it begins.
    pub span: Duration,
}

/// The longest message.
pub const LEN_MAX: usize = 90_000;
/// Bytes that each access has for itself at the other side.
pub const SLOT: usize = 40_000;
/// Accesses of a side, at most.
const ACCESSES: usize = 6;
/// Atomics of both, at most.
const COUNTS: u64 = 24;
const MESSAGES: [u64; 4] = [6, 12, 25, 60];

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let mut random = Random::from_seed(seed ^ 0x7061_7468);
        let random = &mut random;
        let rails = 2 + random.below(3) as usize;
        let stream = if random.below(2) == 0 { Kind::Stream } else { Kind::Native };
        let kinds: Vec<Kind> = (0..rails)
            .map(|_| match random.below(16) {
                0 => Kind::Datagram,
                1..=7 => Kind::Packets,
                _ => stream,
            })
            .collect();
        let resumes = random.below(16) > 0;
        let span = micros(random, [3000, 20_000, 150_000]);
        let mut plan = Plan {
            paths_max: rails,
            kinds,
            is_crossed: random.below(3) == 0,
            modes: match (resumes, random.below(3)) {
                (true, _) => [Mode::Resume; 2],
                (false, 0) => [Mode::Fail; 2],
                (false, 1) => [Mode::Fail, Mode::Resume],
                (false, _) => [Mode::Resume, Mode::Fail],
            },
            meets: random.below(8) > 0,
            parks: random.below(6) == 0,
            staging_bytes: if random.below(3) == 0 { 1 << 20 } else { 16 << 20 },
            packet_bytes: if random.below(2) == 0 { 1472 } else { 8000 },
            policy: Policy::default(),
            faults: Vec::new(),
            postings: Vec::new(),
            accesses: ACCESSES,
            span,
        };
        plan.befall(random, resumes);
        plan.post(random);
        plan.count(seed);
        plan
    }

    /// Atomics, by a random of their own: what else a seed does stays as it was.
    pub(super) fn count(&mut self, seed: u64) {
        let random = &mut Random::from_seed(seed ^ 0x0061_746f_6d69_6373);
        for _ in 0..random.below(COUNTS + 1) {
            let (post, side) = (Post::Count, random.below(2) as usize);
            let at = micros_below(random, self.span);
            let cancel = (random.below(8) == 0).then(|| micros(random, [30, 300, 9000]));
            self.postings.push(Posting { post, side, at, cancel });
        }
        self.postings.sort_by_key(|posting| posting.at);
    }

    fn befall(&mut self, random: &mut Random, resumes: bool) {
        // Where a lost link ends the session nothing of it is promised; such a run is for parking.
        let count = if resumes { 2 + random.below(14) } else { 2 };
        let restarts = resumes && random.below(8) == 0;
        for _ in 0..count {
            let (side, rail) = (random.below(2) as usize, random.below(self.kinds.len() as u64));
            let rail = (random.below(8) > 0).then_some(rail as usize);
            let at = micros_below(random, self.span);
            let long = micros(random, [2000, 30_000, 400_000]);
            let what = match random.below(if resumes { 14 } else { 5 }) {
                0..=2 => spoil(random),
                3 => What::Slow { bytes_per_second: 1_000_000 << random.below(6) },
                4 => What::Late { by: micros(random, [300, 3000, 10_000]) },
                5 => What::CutSilently,
                6 => What::Cut { late: None },
                7 | 8 => What::Cut { late: Some(micros(random, [500, 5000, 3_000_000])) },
                9 => What::Refuse,
                10 => What::Pause,
                11 => What::Block { away: true, towards: false },
                12 => What::Block { away: false, towards: true },
                _ => What::Block { away: true, towards: true },
            };
            let flaps = if random.below(6) == 0 { 1 + random.below(12) } else { 1 };
            let long = if flaps > 1 { long.min(Duration::from_millis(30)) } else { long };
            for number in 0..flaps as u32 {
                self.faults.push(Fault { what, side, rail, at: at + long * 2 * number, long });
            }
        }
        if restarts {
            let what = What::Restart { power: random.below(2) == 0 };
            let (side, at) = (random.below(2) as usize, micros_below(random, self.span));
            self.faults.push(Fault { what, side, rail: None, at, long: Duration::ZERO });
        }
    }

    fn post(&mut self, random: &mut Random) {
        let cancels = random.below(2) == 0;
        let messages = MESSAGES[random.below(4) as usize];
        for side in 0..2 {
            let mut posts = Vec::new();
            for _ in 0..random.below(messages + 1) {
                let channel = random.below(3) as usize;
                let len = if channel == 2 { random.below(16_385) as usize } else { length(random) };
                posts.push(Post::Send { channel, len, level: random.below(3) as usize });
            }
            for _ in 0..random.below(messages + 1) {
                let len = if random.below(10) == 0 { length(random) } else { LEN_MAX };
                let (channel, from_all) = (random.below(2) as usize, random.below(2) == 0);
                posts.push(Post::Receive { channel, len, from_all });
            }
            for _ in 0..random.below(ACCESSES as u64 + 1) {
                let direction = [Direction::Get, Direction::Put][random.below(2) as usize];
                posts.push(Post::Access { direction, len: 1 + random.below(SLOT as u64) as usize });
            }
            for post in posts {
                let at = micros_below(random, self.span);
                let cancel =
                    (cancels && random.below(4) == 0).then(|| micros(random, [30, 300, 9000]));
                self.postings.push(Posting { post, side, at, cancel });
            }
        }
        self.postings.sort_by_key(|posting| posting.at);
    }

    /// Two streams between them, of which nothing breaks; the first side's process makes no pass now and then.
    pub fn pausing(seed: u64) -> Plan {
        let mut random = Random::from_seed(seed);
        let span = Duration::from_millis(100);
        let pause = |number: u32| {
            let (what, side, rail) = (What::Pause, 0, None);
            let (at, long) = (span / 8 * number, micros(&mut random, [20_000, 30_000, 60_000]));
            Fault { what, side, rail, at, long }
        };
        let faults = (0..8).map(pause).collect();
        let (kinds, modes, meets) = (vec![Kind::Stream; 2], [Mode::Resume; 2], true);
        let mut plan = Plan { kinds, modes, meets, parks: false, faults, ..Plan::of(seed) };
        (plan.is_crossed, plan.paths_max) = (false, 2);
        plan
    }

    /// Many rails, of which a session uses eight.
    pub fn wide(seed: u64, rails: usize) -> Plan {
        let plan = Plan::of(seed);
        let kinds = (0..rails).map(|rail| [Kind::Stream, Kind::Packets][rail % 2]).collect();
        Plan { kinds, paths_max: 8, modes: [Mode::Resume; 2], meets: true, ..plan }
    }

    pub fn restarts(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault.what, What::Restart { .. }))
    }

    /// Whether a session may end before its endpoints do, or not begin at once.
    pub fn may_reset(&self) -> bool {
        !self.meets || self.restarts() || self.modes != [Mode::Resume; 2]
    }
}

pub(super) fn spoil(random: &mut Random) -> What {
    let mut chance = |most: u64| if random.below(2) == 0 { random.below(most) as u32 } else { 0 };
    What::Spoil {
        loss: chance(120_000),
        duplication: chance(200_000),
        reordering: chance(300_000),
        corruption: chance(60_000),
    }
}

pub(super) fn length(random: &mut Random) -> usize {
    match random.below(8) {
        0..=3 => random.below(1200) as usize,
        4 | 5 => random.below(16_385) as usize,
        6 => 16_384 + random.below(50_000) as usize,
        _ => random.below(LEN_MAX as u64) as usize,
    }
}

/// Up to one of these numbers of microseconds.
pub(super) fn micros(random: &mut Random, most: [u64; 3]) -> Duration {
    let most = most[random.below(3) as usize];
    Duration::from_micros(1 + random.below(most))
}

pub(super) fn micros_below(random: &mut Random, most: Duration) -> Duration {
    Duration::from_micros(random.below(most.as_micros() as u64 + 1))
}
