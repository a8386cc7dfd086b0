//! Plans with ten times as much of everything: for runs that count faults.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_net::migration::Policy;
use ropewalk_net::{Direction, Mode};

use super::plan::{Fault, LEN_MAX, Order, Plan, Post, Posting, SLOT, What};
use super::plan::{length, micros, micros_below, spoil};

const POLICIES: [Policy; 5] = [
    Policy::Nothing,
    Policy::MigrateWhenArmed,
    Policy::SpecifyAndLoad,
    Policy::SpecifyOnly,
    Policy::KeepArmed,
];

impl Plan {
    /// A plan whose faults never leave the network in peace, with orders to the paths among its operations.
    pub fn long(seed: u64) -> Plan {
        let mut random = Random::from_seed(seed ^ 0x6c6f_6e67);
        let random = &mut random;
        let mut plan = Plan::of(seed ^ 0x6c6f_6e67);
        plan.modes = [Mode::Resume; 2];
        plan.policy = POLICIES[random.below(5) as usize];
        plan.accesses = 24;
        plan.span = Duration::from_millis(200 + random.below(1800));
        plan.faults.clear();
        plan.postings.clear();
        plan.befall_at_length(random);
        plan.post_at_length(random);
        plan.count(seed);
        plan
    }

    fn befall_at_length(&mut self, random: &mut Random) {
        // Something is wrong with the packets nearly all the time.
        for side in 0..2 {
            for rail in 0..self.kinds.len() {
                let (rail, at) = (Some(rail), micros_below(random, self.span / 4));
                let what = spoil(random);
                self.faults.push(Fault { what, side, rail, at, long: self.span });
            }
        }
        for _ in 0..20 + random.below(60) {
            let (side, rail) = (random.below(2) as usize, random.below(self.kinds.len() as u64));
            let rail = (random.below(12) > 0).then_some(rail as usize);
            let at = micros_below(random, self.span);
            let long = micros(random, [2000, 60_000, 400_000]);
            let what = match random.below(16) {
                0 | 1 => spoil(random),
                // Half of all, up to nearly all.
                2 => What::Spoil {
                    loss: 300_000 + random.below(600_000) as u32,
                    duplication: random.below(500_000) as u32,
                    reordering: random.below(900_000) as u32,
                    corruption: random.below(300_000) as u32,
                },
                3 => What::Slow { bytes_per_second: 1_000_000 << random.below(6) },
                4 => What::Late { by: micros(random, [300, 3000, 10_000]) },
                5 => What::CutSilently,
                6 => What::Cut { late: None },
                7 | 8 => What::Cut { late: Some(micros(random, [500, 5000, 3_000_000])) },
                9 => What::Refuse,
                10 => What::Pause,
                11 => What::Block { away: true, towards: false },
                12 => What::Block { away: false, towards: true },
                13 => What::Narrow { packet_bytes: 100 + random.below(1500) as usize },
                _ => What::Block { away: true, towards: true },
            };
            let flaps = if random.below(6) == 0 { 1 + random.below(12) } else { 1 };
            let long = if flaps > 1 { long.min(Duration::from_millis(30)) } else { long };
            for number in 0..flaps as u32 {
                self.faults.push(Fault { what, side, rail, at: at + long * 2 * number, long });
            }
        }
        for _ in 0..random.below(8).saturating_sub(5) {
            let what = What::Restart { power: random.below(2) == 0 };
            let (side, at) = (random.below(2) as usize, micros_below(random, self.span));
            self.faults.push(Fault { what, side, rail: None, at, long: Duration::ZERO });
        }
    }

    fn post_at_length(&mut self, random: &mut Random) {
        let cancels = random.below(2) == 0;
        let orders = random.below(2) == 0;
        for side in 0..2 {
            let mut posts = Vec::new();
            for _ in 0..50 + random.below(150) {
                let channel = random.below(3) as usize;
                let len = if channel == 2 { random.below(16_385) as usize } else { length(random) };
                posts.push(Post::Send { channel, len, level: random.below(3) as usize });
            }
            for _ in 0..50 + random.below(150) {
                let len = if random.below(10) == 0 { length(random) } else { LEN_MAX };
                let (channel, from_all) = (random.below(2) as usize, random.below(2) == 0);
                posts.push(Post::Receive { channel, len, from_all });
            }
            for _ in 0..random.below(2 * self.accesses as u64 + 1) {
                let direction = [Direction::Get, Direction::Put][random.below(2) as usize];
                posts.push(Post::Access { direction, len: 1 + random.below(SLOT as u64) as usize });
            }
            for _ in 0..if orders { random.below(60) } else { 0 } {
                posts.push(Post::Order(order(random)));
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
}

fn order(random: &mut Random) -> Order {
    let path = random.below(4) as usize;
    match random.below(8) {
        0 => Order::Specify { rail: None },
        1 => Order::Specify { rail: Some(random.below(4) as u8) },
        2 => Order::Load,
        3 => Order::Migrate,
        4 => Order::Drain { path },
        5 | 6 => Order::Up { path },
        _ => Order::Weigh { path, weight: random.below(1001) as u16 },
    }
}
