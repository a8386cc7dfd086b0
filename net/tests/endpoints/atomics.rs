//! Updates, atomics and tokens: once, whole, in order, and answered, over every medium.

use crate::common::{self, ALL, Medium, World};
use crate::stranger::{self, Stranger};
use ropewalk_base::error::Fault;
use ropewalk_base::limits::RECORDS_BYTES_MAX;
use ropewalk_base::memory::{Change, Element, Memory, Operator, RECORD_BYTES, Update, record};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_core::Holdings;
use ropewalk_net::{Atomic, Audience, Direction, Mode, OperationId, PeerId, Posted, Raise};
use ropewalk_wire::frame::{
    AtomicBody, Body, COMPARE_SWAP, FETCH, ReplyBody, StridedBody, TELL, UpdateBody,
};

const REGION: usize = 2 << 20;
const MODES: [Mode; 2] = [Mode::Fail, Mode::Resume];

/// Unsigned integers: type and bytes.
const INTEGERS: [(Element, usize); 4] =
    [(Element::U8, 1), (Element::U16, 2), (Element::U32, 4), (Element::U64, 8)];
const OPERATORS: [Operator; 7] = [
    Operator::Sum,
    Operator::Product,
    Operator::Max,
    Operator::BitXor,
    Operator::BitOr,
    Operator::Replace,
    Operator::Nothing,
];

/// Endpoints of which the first one exposes a region; each, the first one included, changes it.
struct Target {
    world: World,
    /// The first one, as each of them knows it.
    to: Vec<PeerId>,
    key: RemoteKey,
    context: String,
}

impl Target {
    fn new(medium: Medium, mode: Mode, origins: usize) -> Target {
        let mut world = World::new(medium);
        world.mode = mode;
        (0..=origins).for_each(|_| {
            world.add();
        });
        let own = world.nodes[0].endpoint.own_peer().unwrap();
        let to = (0..=origins).map(|it| if it == 0 { own } else { world.peer(it, 0) }).collect();
        let mut region = world.pool.take(REGION).unwrap();
        region.fill(0);
        let region = Memory::pooled(region);
        let key = world.nodes[0].endpoint.expose(region, true, Audience::Everybody).unwrap();
        Target { world, to, key, context: format!("{medium:?} {mode:?}") }
    }

    fn update(
        &mut self,
        from: usize,
        at: u64,
        (update, fetch): (Update, bool),
        elements: &[u8],
        user: u64,
    ) -> Option<OperationId> {
        let halves = match (fetch, update.operator()) {
            (true, Operator::Nothing) | (false, _) => 1,
            (true, _) => 2,
        };
        let mut buffer = self.world.pool.take(elements.len() * halves).unwrap();
        buffer[..elements.len()].copy_from_slice(elements);
        let node = &self.world.nodes[from];
        let (endpoint, context, peer) = (&node.endpoint, &node.context, self.to[from]);
        let (what, memory) = ((update, fetch), Memory::pooled(buffer));
        let posted = endpoint.post_update(context, peer, self.key, at, what, memory, user);
        let operation = match &posted {
            Ok(Posted::Pending(operation)) => Some(*operation),
            _ => None,
        };
        self.world.posted(from, posted);
        operation
    }

    fn atomic(&mut self, from: usize, at: u64, atomic: Atomic, user: u64) {
        let node = &self.world.nodes[from];
        let (endpoint, context, peer) = (&node.endpoint, &node.context, self.to[from]);
        let posted = endpoint.post_atomic(context, peer, self.key, at, atomic, user);
        self.world.posted(from, posted.map_err(|fault| (Memory::empty(), fault)));
    }

    fn put(&mut self, from: usize, at: u64, (len, seed): (usize, u8), user: u64) {
        let memory = self.world.memory(len, seed);
        self.access(from, Direction::Put, at, memory, user);
    }

    fn access(&mut self, from: usize, way: Direction, at: u64, memory: Memory, user: u64) {
        let node = &self.world.nodes[from];
        let (endpoint, context, peer) = (&node.endpoint, &node.context, self.to[from]);
        let at = RemoteLayout::At(at);
        let posted = endpoint.post_access(context, way, peer, self.key, at, memory, user);
        self.world.posted(from, posted);
    }

    fn get(&mut self, from: usize, at: u64, len: usize) -> Vec<u8> {
        const USER: u64 = u64::MAX;
        let memory = self.world.memory(len, 0);
        self.access(from, Direction::Get, at, memory, USER);
        let got = self.world.take(from, USER);
        assert_eq!(got.outcome, Ok(()), "{}", self.context);
        got.memory.into_pooled().unwrap().to_vec()
    }

    fn word(&mut self, from: usize, at: u64) -> u64 {
        u64::from_le_bytes(self.get(from, at, 8).try_into().unwrap())
    }

    fn notify(&mut self, from: usize, at: u64, memory: Memory, raise: (Raise, bool), user: u64) {
        let node = &self.world.nodes[from];
        let (endpoint, context, peer) = (&node.endpoint, &node.context, self.to[from]);
        let posted = endpoint.post_notify(context, peer, self.key, at, raise, memory, user);
        self.world.posted(from, posted);
    }

    /// Nothing is left of what was posted.
    fn settle(&mut self) {
        let nothing = Holdings { regions: 1, ..Holdings::default() };
        self.world.until("quiet", |world| {
            let held = world.nodes.iter().map(|node| node.endpoint.held());
            let held: Vec<_> = held.collect();
            held[0].0 == nothing && held[1..].iter().all(|it| it.0 == Holdings::default())
        });
        self.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

fn one(operator: Operator, operand: u64) -> Change {
    let update = Update::new(Element::U64, operator).unwrap();
    Change::One { update, operand: operand.to_le_bytes() }
}

fn fetching(change: Change) -> Atomic {
    Atomic { change, fetch: true, token: false }
}

fn token(operator: Operator, operand: u64) -> Atomic {
    Atomic { change: one(operator, operand), fetch: false, token: true }
}

/// What becomes of an integer.
fn combined(operator: Operator, before: u64, own: u64) -> u64 {
    match operator {
        Operator::Sum => before.wrapping_add(own),
        Operator::Product => before.wrapping_mul(own),
        Operator::Max => before.max(own),
        Operator::BitXor => before ^ own,
        Operator::BitOr => before | own,
        Operator::Replace => own,
        _ => before,
    }
}

fn integer(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// Applies an update to a model; what the elements were.
fn apply(model: &mut [u8], size: usize, operator: Operator, elements: &[u8]) -> Vec<u8> {
    let before = model.to_vec();
    for (place, own) in model.chunks_mut(size).zip(elements.chunks(size)) {
        let after = combined(operator, integer(place), integer(own)).to_le_bytes();
        place.copy_from_slice(&after[..size]);
    }
    before
}

#[test]
fn one_origins_updates_and_atomics_take_effect_in_the_order_of_their_posts() {
    const AREA: usize = 300_000;
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 1);
            let mut random = Random::from_seed(11);
            let mut model = vec![0; AREA];
            for round in 0..6 {
                let from = usize::from(round > 0);
                let mut expected = Vec::new();
                for user in 0..40 {
                    let (element, size) = INTEGERS[random.below(4) as usize];
                    let operator = OPERATORS[random.below(7) as usize];
                    let update = Update::new(element, operator).unwrap();
                    let fetch = random.below(2) == 0;
                    if random.below(3) == 0 {
                        let at = random.below(40) as usize;
                        let operand = random.next_u64().to_le_bytes();
                        let before = apply(&mut model[at..at + size], size, operator, &operand);
                        let change = Change::One { update, operand };
                        target.atomic(
                            from,
                            at as u64,
                            Atomic { change, fetch, token: false },
                            user,
                        );
                        expected.push((fetch.then_some(integer(&before)), None));
                        continue;
                    }
                    let most = [8, 700, 9000, 30_000][random.below(4) as usize];
                    let count = 1 + random.below(most) as usize;
                    let at = random.below(60) as usize;
                    let elements: Vec<u8> =
                        (0..count * size).map(|_| random.next_u64() as u8).collect();
                    let place = &mut model[at..at + count * size];
                    let before = apply(place, size, operator, &elements);
                    target.update(from, at as u64, (update, fetch), &elements, user);
                    expected.push((None, fetch.then_some(before)));
                }
                for (user, (value, elements)) in expected.into_iter().enumerate() {
                    let done = target.world.take(from, user as u64);
                    assert_eq!(done.outcome, Ok(()), "{} {user}", target.context);
                    assert_eq!(done.bits, value.unwrap_or(0), "{} {user}", target.context);
                    if let Some(elements) = elements {
                        let memory = done.memory.into_pooled().unwrap();
                        let fetched = &memory[memory.len() - elements.len()..];
                        assert!(fetched == elements, "{}: what {user} fetched", target.context);
                    }
                }
                assert!(target.get(from, 0, AREA) == model, "{}: {round}", target.context);
            }
            target.settle();
        }
    }
}

#[test]
fn contended_counters_lose_nothing_and_answer_each_value_once() {
    const EACH: u64 = 200;
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 3);
            for user in 0..EACH {
                for from in 0..4 {
                    target.atomic(from, 64, fetching(one(Operator::Sum, 1)), user);
                }
            }
            let mut found = Vec::new();
            for from in 0..4 {
                let own: Vec<_> =
                    (0..EACH).map(|user| target.world.take(from, user).bits).collect();
                assert!(own.is_sorted(), "{}: answers of one origin", target.context);
                found.extend(own);
            }
            found.sort_unstable();
            assert!(found == (0..4 * EACH).collect::<Vec<_>>(), "{}", target.context);
            // A lock by compare-and-swap lets one at a time in.
            let swap = |expected: u64, desired: u64| Change::Swap {
                element: Element::U64,
                expected: expected.to_le_bytes(),
                desired: desired.to_le_bytes(),
            };
            for from in 0..4 {
                target.atomic(from, 128, fetching(swap(0, from as u64 + 1)), 7);
            }
            let before: Vec<_> = (0..4).map(|from| target.world.take(from, 7).bits).collect();
            assert_eq!(before.iter().filter(|it| **it == 0).count(), 1, "{}", target.context);
            let holder = before.iter().position(|it| *it == 0).unwrap() as u64 + 1;
            assert_eq!(target.word(1, 128), holder);
            target.settle();
        }
    }
}

#[test]
fn what_is_refused_has_changed_nothing_and_stands_in_nobodys_way() {
    let sum = Update::new(Element::U64, Operator::Sum).unwrap();
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 1);
            let ones = [1u8; 400_000];
            let at = (REGION - 399_992) as u64;
            // The last element lies outside, in a frame of its own.
            target.update(1, at, (sum, false), &ones, 1);
            target.update(1, at, (sum, true), &ones, 2);
            target.atomic(1, REGION as u64 - 4, fetching(one(Operator::Sum, 1)), 3);
            let key = target.key;
            target.key.secret ^= 1;
            target.update(1, 0, (sum, false), &ones, 4);
            target.atomic(1, 0, fetching(one(Operator::Sum, 1)), 5);
            target.key = key;
            for user in 1..=5 {
                let outcome = target.world.take(1, user).outcome;
                assert_eq!(outcome, Err(Fault::BadKey), "{} {user}", target.context);
            }
            assert!(target.get(1, at, 399_992).iter().all(|byte| *byte == 0), "{}", target.context);
            // A region that may be read only.
            let region = target.world.memory(4096, 3);
            let endpoint = &target.world.nodes[0].endpoint;
            target.key = endpoint.expose(region, false, Audience::Everybody).unwrap();
            target.update(1, 0, (sum, false), &ones[..64], 6);
            target.atomic(1, 0, fetching(one(Operator::Replace, 1)), 7);
            let nothing = Update::new(Element::U64, Operator::Nothing).unwrap();
            target.update(1, 0, (nothing, true), &ones[..64], 8);
            target.atomic(1, 0, fetching(one(Operator::Nothing, 1)), 9);
            assert_eq!(target.world.take(1, 6).outcome, Err(Fault::BadKey));
            assert_eq!(target.world.take(1, 7).outcome, Err(Fault::BadKey));
            let expected: Vec<_> = (0..64).map(|it| common::pattern(it, 3)).collect();
            let read = target.world.take(1, 8).memory.into_pooled().unwrap();
            assert_eq!(read[..], expected[..], "{}", target.context);
            assert_eq!(target.world.take(1, 9).bits, integer(&expected[..8]));
            target.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn illegal_operations_fail_at_their_posts() {
    let mut target = Target::new(Medium::Tcp, Mode::Fail, 1);
    let sum = |element| Update::new(element, Operator::Sum).unwrap();
    target.update(1, 0, (sum(Element::U64), false), &[0; 12], 1);
    target.update(1, u64::MAX - 7, (sum(Element::U64), false), &[0; 16], 2);
    let whole = Change::Update(sum(Element::U64));
    target.atomic(1, 0, Atomic { change: whole, fetch: false, token: false }, 3);
    let long = Change::One { update: sum(Element::Complex64), operand: [0; 8] };
    target.atomic(1, 0, Atomic { change: long, fetch: false, token: false }, 4);
    let asking = Atomic { change: one(Operator::Sum, 1), fetch: true, token: true };
    target.atomic(1, 0, asking, 5);
    for user in 1..=5 {
        assert_eq!(target.world.take(1, user).outcome, Err(Fault::Invalid), "{user}");
    }
    target.update(1, 0, (sum(Element::U64), true), &[], 6);
    assert_eq!(target.world.take(1, 6).outcome, Ok(()), "no elements are no harm");
}

#[test]
fn a_token_is_seen_after_all_that_was_begun_before_it() {
    const LONG: usize = 700_000;
    let sum = Update::new(Element::U8, Operator::Sum).unwrap();
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 2);
            for round in 1..=20 {
                // The puts lie one over the other: the last bytes of each are told by the token.
                target.put(1, 4096, (LONG, round), 1);
                let ones = vec![1; 100_000];
                target.update(1, 1 << 20, (sum, false), &ones, 2);
                let memory = target.world.memory(LONG, 0);
                target.access(1, Direction::Get, 4096, memory, 3);
                target.atomic(1, 0, token(Operator::Max, round.into()), 4);
                target.put(1, 4096, (LONG, 200), 5);
                let done = target.world.take(1, 4).outcome;
                assert_eq!(done, Ok(()), "{}", target.context);
                target
                    .world
                    .until("token", |world| world.nodes[0].endpoint.raise_count() >= round.into());
                assert_eq!(target.word(2, 0), round.into(), "{}", target.context);
                let added = target.get(2, (1 << 20) + 99_999, 1);
                assert_eq!(added, [round], "{}: the update came late", target.context);
                let last = target.get(2, 4096 + LONG as u64 - 1, 1);
                let of = |seed| [common::pattern(LONG - 1, seed)];
                assert!(last == of(round) || last == of(200), "{}: a put late", target.context);
                for user in [1, 2, 3, 5] {
                    assert_eq!(target.world.take(1, user).outcome, Ok(()), "{user}");
                }
            }
            target.settle();
        }
    }
}

#[test]
fn a_put_with_a_notice_tells_of_itself_and_of_all_before_it() {
    const LONG: usize = 300_000;
    const SHORT: usize = 4096;
    let word = |number: u64| REGION as u64 - 8 * (number + 1);
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 2);
            for round in 1..=20u8 {
                let to = Raise { word: 1, value: round.into(), to: true };
                let by = Raise { word: 2, value: 3, to: false };
                target.put(1, 4096, (LONG, round), 1);
                target.atomic(1, 8, token(Operator::Sum, 1), 2);
                let (first, second) = (common::pattern(0, round), common::pattern(1, round));
                let memory = target.world.memory(SHORT, round);
                target.notify(1, 1 << 20, memory, (by, round % 2 == 0), 3);
                let memory = target.world.memory(SHORT, round);
                target.notify(1, (1 << 20) + SHORT as u64, memory, (to, round % 3 == 0), 4);
                for user in 1..=4 {
                    let ended = target.world.take(1, user);
                    assert_eq!(ended.outcome, Ok(()), "{}, {user}", target.context);
                }
                let raises = 3 * u64::from(round);
                target
                    .world
                    .until("notice", |world| world.nodes[0].endpoint.raise_count() >= raises);
                assert_eq!(target.word(2, word(1)), round.into(), "{}", target.context);
                assert_eq!(target.word(2, word(2)), raises, "{}", target.context);
                for at in [4096, 1 << 20, (1 << 20) + SHORT as u64] {
                    assert_eq!(target.get(2, at, 2), [first, second], "{}", target.context);
                }
            }
            target.settle();
        }
    }
}

#[test]
fn a_notice_without_a_word_or_a_region_changes_nothing_and_stands_in_nobodys_way() {
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 1);
            let outside = Raise { word: REGION as u32 / 8, value: 1, to: false };
            let memory = target.world.memory(100, 9);
            target.notify(1, 0, memory, (outside, false), 1);
            let last = Raise { word: 0, ..outside };
            let memory = target.world.memory(100, 9);
            target.notify(1, REGION as u64 - 99, memory, (last, false), 2);
            let memory = target.world.memory(100, 9);
            target.notify(1, REGION as u64 - 99, memory, (last, true), 7);
            assert_eq!(target.world.take(1, 7).outcome, Err(Fault::BadKey), "it is told");
            let memory = target.world.memory(100, 0);
            target.notify(1, 0, memory, (Raise { word: 5, ..last }, false), 3);
            for user in 1..=3 {
                assert_eq!(target.world.take(1, user).outcome, Ok(()), "the memory is free");
            }
            target.world.until("notice", |world| world.nodes[0].endpoint.raise_count() == 1);
            assert_eq!(target.word(1, REGION as u64 - 8), 0, "{}", target.context);
            assert_eq!(target.word(1, REGION as u64 - 48), 1, "{}", target.context);
            assert_eq!(target.get(1, 0, 1), [common::pattern(0, 0)], "{}", target.context);
            for len in [0, 4097] {
                let memory = target.world.memory(len, 0);
                target.notify(1, 0, memory, (last, false), 4);
                let ended = target.world.take(1, 4).outcome;
                assert_eq!(ended, Err(Fault::Invalid), "{len} bytes");
            }
            target.settle();
        }
    }
}

#[test]
fn records_of_short_puts_are_put_in_one_frame_or_none_of_them() {
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode, 1);
            let post = |target: &mut Target, records: &[(u64, Vec<u8>)]| {
                let bytes = records.iter().flat_map(|(at, data)| {
                    record(*at, data.len() as u32).into_iter().chain(data.iter().copied())
                });
                let bytes: Vec<u8> = bytes.collect();
                let mut buffer = target.world.pool.take(bytes.len()).unwrap();
                buffer.copy_from_slice(&bytes);
                let node = &target.world.nodes[1];
                let (endpoint, context, peer) = (&node.endpoint, &node.context, target.to[1]);
                let memory = Memory::pooled(buffer);
                let posted = endpoint.post_records(context, peer, target.key, memory, 1);
                target.world.posted(1, posted);
                target.world.take(1, 1).outcome
            };
            // More than the first credit allows at once.
            for round in 0..30u8 {
                let of = |at: u64| (at * 500, vec![round + at as u8; 400]);
                assert_eq!(post(&mut target, &[9, 1, 4, 7].map(of)), Ok(()), "{}", target.context);
                for at in [9, 1, 4, 7] {
                    let want = vec![round + at as u8; 400];
                    assert_eq!(target.get(1, at * 500, 400), want, "{}", target.context);
                }
            }
            let outside = [(0, vec![9; 10]), (REGION as u64 - 5, vec![9; 6])];
            assert_eq!(post(&mut target, &outside), Err(Fault::BadKey), "{}", target.context);
            assert_eq!(target.get(1, 0, 10), [0; 10], "{}", target.context);
            // The longest ones, in one frame of each medium, and one byte more. A later record covers an earlier one.
            let most = RECORDS_BYTES_MAX as usize - 16 * RECORD_BYTES;
            let mut full: Vec<_> = (0..15u8).map(|it| (0, vec![it; most / 16])).collect();
            full.push((0, vec![77; most - 15 * (most / 16)]));
            for _ in 0..5 {
                assert_eq!(post(&mut target, &full), Ok(()), "{}", target.context);
            }
            assert_eq!(target.get(1, 0, 900), vec![77; 900], "{}", target.context);
            full[0].1.push(0);
            assert_eq!(post(&mut target, &full), Err(Fault::Invalid), "{}", target.context);
            target.settle();
        }
    }
}

#[test]
fn many_tokens_go_without_an_answer_each() {
    const TOKENS: u64 = 3000;
    for medium in ALL {
        let mut target = Target::new(medium, Mode::Fail, 1);
        for user in 0..TOKENS {
            target.atomic(1, 8, token(Operator::Sum, 1), user);
            let done = target.world.take(1, user);
            assert_eq!(done.outcome, Ok(()), "{}", target.context);
        }
        target.world.until("tokens", |world| world.nodes[0].endpoint.raise_count() == TOKENS);
        assert_eq!(target.word(1, 8), TOKENS, "{}", target.context);
        target.settle();
    }
}

#[test]
fn cancelled_updates_leave_nothing_behind() {
    let sum = Update::new(Element::U32, Operator::Sum).unwrap();
    let mut ended = 0;
    for medium in ALL {
        for seed in 0..4 {
            let mut target = Target::new(medium, MODES[seed as usize % 2], 1);
            let mut random = Random::from_seed(seed);
            for user in 0..200 {
                let len = [4, 3000, 100_000, 400_000][random.below(4) as usize];
                let fetch = random.below(2) == 0;
                let operation = target.update(1, 0, (sum, fetch), &vec![1; len], user);
                (0..random.below(4)).for_each(|_| target.world.step());
                if let Some(operation) = operation.filter(|_| random.below(3) > 0) {
                    target.world.nodes[1].endpoint.cancel(operation);
                    ended += 1;
                }
                target.world.nodes.iter().for_each(|node| node.endpoint.check());
            }
            for user in 0..200 {
                let outcome = target.world.take(1, user).outcome;
                let legal = matches!(outcome, Ok(()) | Err(Fault::Cancelled));
                assert!(legal, "{} {outcome:?}", target.context);
            }
            target.atomic(1, 1 << 20, fetching(one(Operator::Sum, 1)), 500);
            assert_eq!(target.world.take(1, 500).bits, 0);
            target.settle();
        }
    }
    assert!(ended > 2000, "{ended} were cancelled");
}

/// What a peer answers to an operation that is open, and that it cannot mean.
fn false_answers() -> Vec<(Body, &'static [u8])> {
    let reply = |applied: u64| {
        let (number, applied) = (1.into(), applied.into());
        Body::Reply(ReplyBody { number, applied, value: [0; 8], status: 0, reserved: [0; 7] })
    };
    // Elements that nobody asked for, with a mark and with one that there cannot be; elements that lack.
    vec![(reply(0), b"x"), (reply(9), b"x"), (reply(9), b"")]
}

#[test]
fn answers_that_a_peer_cannot_mean_cost_it_its_link_and_nothing_else() {
    let sum = Update::new(Element::U64, Operator::Sum).unwrap();
    for (answer, payload) in false_answers() {
        for what in 0..3 {
            let mut world = World::new(Medium::Tcp);
            world.add();
            let mut stranger = Stranger::admitted(&mut world, 99);
            stranger::receive(&mut world, 0, None, 666, 8, 1);
            stranger.eager(0, &[7]);
            let peer = world.take(0, 1).peer.expect("somebody sent it");
            let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 5 };
            let memory = world.memory(16, 1);
            let node = &world.nodes[0];
            let (endpoint, context) = (&node.endpoint, &node.context);
            let posted = match what {
                0 => {
                    let at = RemoteLayout::At(0);
                    endpoint.post_access(context, Direction::Put, peer, key, at, memory, 2)
                }
                update => {
                    let fetch = update == 2;
                    endpoint.post_update(context, peer, key, 0, (sum, fetch), memory, 2)
                }
            };
            world.posted(0, posted);
            let made = |body: &Body| matches!(body, Body::Put(_) | Body::Update(_)).then_some(());
            stranger.awaits(&mut world, made);
            assert!(stranger.say(answer, payload));
            let outcome = world.take(0, 2).outcome;
            assert_eq!(outcome, Err(Fault::PeerReset), "{answer:?} of {what}");
            world.nodes[0].endpoint.check();
        }
    }
}

/// Asks a stranger's target for something of this number; the status of the answer.
fn answered(target: &mut Target, stranger: &mut Stranger, number: u64, body: Body) -> u8 {
    let payload: &[u8] = if matches!(body, Body::Update(_)) { &[9; 8] } else { &[] };
    assert!(stranger.say(body, payload));
    let status = |body: &Body| match body {
        Body::Reply(reply) if reply.number.get() == number => Some(reply.status),
        _ => None,
    };
    stranger.awaits(&mut target.world, status)
}

#[test]
fn operators_and_elements_that_a_target_does_not_know_are_refused_and_change_nothing() {
    let (sum, xor) = (Operator::Sum as u8, Operator::BitXor as u8);
    let (word, float, byte) = (Element::U64 as u8, Element::F64 as u8, Element::Byte as u8);
    // Numbers that nothing has, and pairs that do not go together. The last one is legal.
    let kinds = [(0, word), (200, word), (100, word), (sum, 0), (sum, 255), (0, 0), (xor, float)];
    let kinds = kinds.into_iter().chain([(COMPARE_SWAP, float), (COMPARE_SWAP, 200), (sum, byte)]);
    for mode in MODES {
        let mut target = Target::new(Medium::Tcp, mode, 0);
        let mut stranger = Stranger::admitted(&mut target.world, 99);
        let (slot, secret) = (target.key.slot.to_u64().into(), target.key.secret.into());
        let mut numbers = 1..;
        for (operator, element) in kinds.clone().chain([(sum, word)]) {
            let expected = if (operator, element) == (sum, word) { 0 } else { 7 };
            let number = numbers.next().expect("there is always one more");
            let atomic = Body::Atomic(AtomicBody {
                key_slot: slot,
                key_secret: secret,
                offset: 64.into(),
                number: number.into(),
                operand: [9; 8],
                compare: [0; 8],
                operator,
                element,
                flags: (TELL | FETCH).into(),
                reserved: [0; 4],
            });
            let status = answered(&mut target, &mut stranger, number, atomic);
            assert_eq!(status, expected, "{mode:?}: atomic {operator} {element}");
            // An update has no operator to compare and swap: with any element it is unknown.
            let number = numbers.next().expect("there is always one more");
            let update = Body::Update(UpdateBody {
                key_slot: slot,
                key_secret: secret,
                offset: 72.into(),
                number: number.into(),
                total: 1.into(),
                within: 0.into(),
                count: 1.into(),
                operator,
                element,
                flags: (TELL | FETCH).into(),
            });
            let status = answered(&mut target, &mut stranger, number, update);
            assert_eq!(status, expected, "{mode:?}: update {operator} {element}");
            let words = [64, 72].map(|at| target.word(0, at));
            let changed = if expected == 0 { u64::from_ne_bytes([9; 8]) } else { 0 };
            assert_eq!(words, [changed; 2], "{mode:?}: {operator} {element}");
        }
        target.world.nodes[0].endpoint.check();
    }
}

#[test]
fn a_layout_that_nobody_told_costs_a_peer_its_link_and_changes_nothing() {
    let mut target = Target::new(Medium::Tcp, Mode::Fail, 1);
    let mut stranger = Stranger::admitted(&mut target.world, 99);
    let strided = Body::Strided(StridedBody {
        key_slot: target.key.slot.to_u64().into(),
        key_secret: target.key.secret.into(),
        address: 0.into(),
        number: 1.into(),
        instances: 1.into(),
        from: 0.into(),
        count: 8.into(),
        operator: Operator::Replace as u8,
        element: Element::Byte as u8,
        flags: TELL.into(),
        layout: 3,
        reserved: [0; 7],
    });
    assert!(stranger.say(strided, &[9; 8]));
    let mut heard = Vec::new();
    target.world.until("the end of the link", |_| !stranger.hear(&mut heard));
    assert_eq!(target.word(1, 0), 0, "others go on");
    target.world.nodes[0].endpoint.check();
}

#[test]
fn a_token_takes_effect_although_the_put_before_it_is_given_up_at_the_target() {
    let mut broken_off = 0;
    for medium in [Medium::Tcp, Medium::ShmRing, Medium::Udp, Medium::SimStream] {
        for steps in 0..25 {
            let mut target = Target::new(medium, Mode::Fail, 1);
            let region = target.world.memory(64, 0);
            let node = &target.world.nodes[0];
            let board = node.endpoint.expose(region, true, Audience::Everybody).unwrap();
            target.get(1, 0, 8);
            target.put(1, 0, (REGION, 1), 1);
            let window = std::mem::replace(&mut target.key, board);
            target.atomic(1, 0, token(Operator::Replace, 7), 2);
            (0..steps).for_each(|_| target.world.step());
            let node = &target.world.nodes[0];
            node.endpoint.unexpose(window, &node.context, 3).unwrap();
            target.world.take(0, 3);
            target.world.until("token", |world| world.nodes[0].endpoint.raise_count() == 1);
            assert_eq!(target.word(1, 0), 7, "{}", target.context);
            let outcome = target.world.take(1, 1).outcome;
            let legal = matches!(outcome, Ok(()) | Err(Fault::BadKey));
            assert!(legal, "{}: {outcome:?}", target.context);
            broken_off += usize::from(outcome.is_err());
            // Its board is free, too.
            let node = &target.world.nodes[0];
            node.endpoint.unexpose(board, &node.context, 4).unwrap();
            target.world.take(0, 4);
        }
    }
    assert!(broken_off > 20, "{broken_off} puts were given up");
}
