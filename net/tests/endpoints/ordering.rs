//! The order and the end of accesses: fences, what is in order without them, and completion as soon as memory is free.

use std::time::Duration;

use crate::common::{self, ALL, Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::{Change, Element, Memory, Operator, Slice, Update};
use ropewalk_base::random::Random;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment};
use ropewalk_core::Holdings;
use ropewalk_net::{Access, Action, Atomic, Audience, Mode, PeerId, Raise, Terms};
use ropewalk_rail_sim::Path;

const REGION: usize = 1 << 20;
const MODES: [Mode; 2] = [Mode::Fail, Mode::Resume];
const PLAIN: Terms = Terms { fenced: false, local: false, quiet: false, more: false };
const FENCED: Terms = Terms { fenced: true, ..PLAIN };
const LOCAL: Terms = Terms { local: true, ..PLAIN };
const QUIET: Terms = Terms { quiet: true, ..LOCAL };
const MORE: Terms = Terms { more: true, ..QUIET };

/// Frames pass each other, all the time.
fn reordering() -> Option<Path> {
    Some(Path { reordering: 300_000, ..Path::default() })
}

struct Target {
    world: World,
    to: PeerId,
    key: RemoteKey,
}

impl Target {
    fn new(medium: Medium, mode: Mode, path: Option<Path>) -> Target {
        let mut world = World::new(medium);
        world.mode = mode;
        (0..2).for_each(|_| {
            world.add();
        });
        if let Some(path) = path {
            world.network.set_default_path(path);
        }
        let to = world.peer(1, 0);
        let mut region = world.pool.take(REGION).unwrap();
        region.fill(0);
        let region = Memory::pooled(region);
        let key = world.nodes[0].endpoint.expose(region, true, Audience::Everybody).unwrap();
        Target { world, to, key }
    }

    fn post(
        &mut self,
        action: Action,
        remote: RemoteLayout,
        bytes: &[u8],
        terms: Terms,
        user: u64,
    ) {
        let mut buffer = self.world.pool.take(bytes.len()).unwrap();
        buffer.copy_from_slice(bytes);
        let node = &self.world.nodes[1];
        let (peer, key, local) = (self.to, self.key, Slice::NONE);
        let access = Access { action, peer, key, remote, local, terms };
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted = endpoint.post_one_sided(context, access, Memory::pooled(buffer), user);
        self.world.posted(1, posted);
    }

    fn at(&mut self, action: Action, at: usize, bytes: &[u8], terms: Terms, user: u64) {
        self.post(action, RemoteLayout::At(at as u64), bytes, terms, user);
    }

    fn taken(&mut self, user: u64) -> (u64, Vec<u8>) {
        let ended = self.world.take(1, user);
        assert_eq!(ended.outcome, Ok(()), "{:?} {user}", self.world.medium);
        let bits = ended.bits;
        let bytes = ended.memory.into_pooled().map_or(Vec::new(), |buffer| buffer.to_vec());
        (bits, bytes)
    }

    fn settle(&mut self) {
        let nothing = Holdings { regions: 1, ..Holdings::default() };
        self.world.until("quiet", |world| {
            world.nodes[0].endpoint.held().0 == nothing
                && world.nodes[1].endpoint.held().0 == Holdings::default()
        });
        self.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

/// One of many accesses, in a model and at the peer. Returns what it has to fetch.
fn random_access(
    target: &mut Target,
    random: &mut Random,
    model: &mut [u8],
    user: u64,
) -> Option<Vec<u8>> {
    let len = [8, 8, 300, 5000, 90_000][random.below(5) as usize];
    let at = 8 * random.below(2000) as usize;
    let seed = random.below(250) as u8;
    let bytes: Vec<u8> = (0..len).map(|index| common::pattern(index, seed)).collect();
    let sum = Update::new(Element::U64, Operator::Sum).unwrap();
    let raised = |model: &mut [u8], at: usize, by: u64| {
        let word = u64::from_le_bytes(model[at..at + 8].try_into().unwrap());
        model[at..at + 8].copy_from_slice(&word.wrapping_add(by).to_le_bytes());
    };
    match random.below(7) {
        0 | 1 => {
            target.at(Action::Put, at, &bytes, FENCED, user);
            model[at..at + len].copy_from_slice(&bytes);
            None
        }
        2 => {
            target.at(Action::Get, at, &bytes, FENCED, user);
            Some(model[at..at + len].to_vec())
        }
        3 => {
            let count = len / 8 * 8;
            let action = Action::Update { update: sum, fetch: false };
            target.at(action, at, &bytes[..count], FENCED, user);
            for (index, own) in bytes[..count].chunks(8).enumerate() {
                raised(model, at + 8 * index, u64::from_le_bytes(own.try_into().unwrap()));
            }
            None
        }
        4 => {
            let change = Change::One { update: sum, operand: 3u64.to_le_bytes() };
            let atomic = Atomic { change, fetch: false, token: random.below(2) == 0 };
            target.at(Action::Atomic(atomic), at, &[], FENCED, user);
            raised(model, at, 3);
            None
        }
        5 => {
            let raise = Raise { word: 0, value: 2, to: false };
            let short = &bytes[..len.min(4096)];
            let action = Action::Notify { raise, applied: random.below(2) == 0 };
            target.at(action, at, short, FENCED, user);
            model[at..at + short.len()].copy_from_slice(short);
            raised(model, REGION - 8, 2);
            None
        }
        _ => {
            let list = [(at, 8), (at + 16, len)];
            let both = [&bytes[..8], &bytes[..]].concat();
            let segments =
                list.map(|(at, len)| RemoteSegment { offset: at as u64, len: len as u64 });
            let mut coin = || random.below(2) == 0;
            let terms = Terms { fenced: true, local: coin(), quiet: coin(), more: coin() };
            target.post(Action::Put, RemoteLayout::List(segments.into()), &both, terms, user);
            model[at..at + 8].copy_from_slice(&bytes[..8]);
            model[at + 16..at + 16 + len].copy_from_slice(&bytes);
            None
        }
    }
}

fn like_one_after_the_other(medium: Medium, mode: Mode, path: Option<Path>, seed: u64) {
    const ACCESSES: u64 = 150;
    let mut target = Target::new(medium, mode, path);
    let mut random = Random::from_seed(seed);
    let mut model = vec![0; REGION];
    let mut expected = Vec::new();
    for user in 0..ACCESSES {
        expected.push(random_access(&mut target, &mut random, &mut model, user));
        (0..random.below(3)).for_each(|_| target.world.step());
    }
    for (user, expected) in expected.iter().enumerate() {
        let (_, bytes) = target.taken(user as u64);
        if let Some(expected) = expected {
            assert!(bytes == *expected, "{medium:?} {mode:?} {seed}: {user} read other bytes");
        }
    }
    target.at(Action::Get, 0, &vec![0; REGION], FENCED, ACCESSES);
    assert!(target.taken(ACCESSES).1 == model, "{medium:?} {mode:?} {seed}: other bytes");
    target.settle();
}

#[test]
fn fenced_accesses_are_as_if_each_waited_for_the_one_before() {
    for medium in ALL {
        for mode in MODES {
            like_one_after_the_other(medium, mode, None, 5);
        }
    }
    for seed in 0..6 {
        let mode = MODES[seed as usize % 2];
        like_one_after_the_other(Medium::SimDatagram, mode, reordering(), seed);
        like_one_after_the_other(Medium::SimNative, mode, None, seed);
    }
}

/// A long put and a short one to the place of its last bytes. Whether the bytes of the second one stay.
fn last_stays(medium: Medium, path: Option<Path>, terms: Terms, seed: u8) -> bool {
    const LONG: usize = 900_000;
    let mut target = Target::new(medium, Mode::Fail, path);
    target.at(Action::Put, 0, &[1; 8], PLAIN, 0);
    target.taken(0);
    for (user, (at, len)) in [(0, LONG), (LONG - 8, 8)].into_iter().enumerate() {
        target.at(Action::Put, at, &vec![seed + user as u8; len], terms, 1 + user as u64);
    }
    target.taken(1);
    target.taken(2);
    target.at(Action::Get, LONG - 8, &[0; 8], PLAIN, 9);
    target.taken(9).1 == [seed + 1; 8]
}

#[test]
fn puts_have_no_order_unless_they_are_fenced() {
    // A short one is urgent, and the long one waits behind it: else the fence would be for nothing.
    for medium in [Medium::Tcp, Medium::SimStream, Medium::SimDatagram] {
        assert!(!last_stays(medium, None, PLAIN, 5), "{medium:?}: a put waited for another one");
        assert!(last_stays(medium, None, FENCED, 5), "{medium:?}");
    }
    for seed in 0..10 {
        assert!(last_stays(Medium::SimDatagram, reordering(), FENCED, seed));
    }
}

#[test]
fn atomics_and_updates_keep_their_order_without_a_fence() {
    let replace = Update::new(Element::U64, Operator::Replace).unwrap();
    for seed in 0..10 {
        let mut target = Target::new(Medium::SimDatagram, MODES[seed as usize % 2], reordering());
        let mut random = Random::from_seed(seed);
        let mut last = 0u64;
        for user in 1..200u64 {
            let fetch = random.below(2) == 0;
            let operand = user.to_le_bytes();
            match random.below(2) {
                0 => {
                    let change = Change::One { update: replace, operand };
                    let atomic = Atomic { change, fetch, token: false };
                    target.at(Action::Atomic(atomic), 0, &[], PLAIN, user);
                }
                _ => {
                    let bytes = [operand, operand].concat();
                    let bytes = if fetch { &bytes[..] } else { &bytes[..8] };
                    target.at(Action::Update { update: replace, fetch }, 0, bytes, PLAIN, user);
                }
            }
        }
        for user in 1..200u64 {
            let (bits, bytes) = target.taken(user);
            let fetched = bytes.get(8..16).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
            let fetched = fetched.or((bits > 0).then_some(bits));
            assert!(fetched.is_none_or(|it| it == last), "{seed}: {user} fetched {fetched:?}");
            last = user;
        }
    }
}

/// Whether an access of these terms completes while its peer does nothing.
fn completes_alone(target: &mut Target, action: Action, len: usize, terms: Terms) -> bool {
    const USER: u64 = 500;
    // Nothing is open that it would have to follow.
    target.at(Action::Get, 0, &[0; 8], FENCED, USER + 1);
    target.taken(USER + 1);
    target.at(action, 0, &vec![3; len], terms, USER);
    let medium = target.world.medium;
    if matches!(medium, Medium::SimStream | Medium::SimNative | Medium::SimDatagram) {
        target.world.pass_alone(1, Duration::from_millis(3));
    }
    for _ in 0..50 {
        let node = &mut target.world.nodes[1];
        node.done.extend(node.endpoint.test(&node.context));
    }
    let is_done = target.world.nodes[1].done.iter().any(|it| it.user == USER);
    let ended = target.world.take(1, USER);
    assert_eq!(ended.outcome, Ok(()));
    let bytes = ended.bytes;
    assert!(bytes == len as u64 || len == 0, "{bytes} of {len}");
    is_done
}

#[test]
fn what_is_complete_when_it_has_left_waits_for_nobody() {
    // Virtual time: on a loaded machine a socket may take nothing for a while.
    const MEDIA: [Medium; 3] = [Medium::SimStream, Medium::SimNative, Medium::SimDatagram];
    let sum = Update::new(Element::U64, Operator::Sum).unwrap();
    let change = Change::One { update: sum, operand: [1; 8] };
    let atomic = Action::Atomic(Atomic { change, fetch: false, token: false });
    let update = Action::Update { update: sum, fetch: false };
    for medium in MEDIA {
        for mode in MODES {
            let mut target = Target::new(medium, mode, None);
            target.at(Action::Put, 0, &[1; 8], PLAIN, 0);
            target.taken(0);
            for (action, len) in [(Action::Put, 8), (Action::Put, 3000), (update, 64), (atomic, 0)]
            {
                let case = format!("{medium:?} {mode:?} {action:?} {len}");
                if medium == Medium::SimNative && action == Action::Put && mode == Mode::Fail {
                    // Its rail puts by itself: it is free when it is applied.
                    continue;
                }
                for terms in [LOCAL, QUIET, MORE] {
                    assert!(completes_alone(&mut target, action, len, terms), "{case} {terms:?}");
                    target.settle();
                }
                assert!(!completes_alone(&mut target, action, len, PLAIN), "{case}");
                target.settle();
            }
        }
    }
}

/// Puts that are complete when they have left, in one piece and in several, and one with a word: the peer refuses all of them.
#[test]
fn a_refusal_of_what_was_complete_is_told_and_names_it() {
    for (medium, mode) in ALL.iter().flat_map(|medium| MODES.map(|mode| (*medium, mode))) {
        let mut target = Target::new(medium, mode, None);
        target.world.nodes[1].endpoint.tell_of_refusals(&target.world.nodes[1].context);
        let raise = Raise { word: 0, value: 2, to: false };
        let segment = |offset| RemoteSegment { offset, len: 100 };
        let outside = REGION as u64 - 99;
        let list = RemoteLayout::List([segment(0), segment(outside)].into_iter().collect());
        let notify = Action::Notify { raise, applied: false };
        target.at(Action::Put, 0, &[1; 8], QUIET, 0);
        target.at(Action::Put, outside as usize, &[1; 100], QUIET, 1);
        target.at(Action::Put, outside as usize, &[1; 300_000], QUIET, 2);
        target.at(notify, outside as usize, &[1; 100], PLAIN, 3);
        target.post(Action::Put, list, &[1; 200], QUIET, 4);
        let mut late: Vec<_> = (0..5)
            .map(|user| target.world.take(1, user))
            .filter(|ended| ended.outcome.is_ok())
            .map(|ended| ended.operation)
            .collect();
        // Others may have been refused before they had left, or by their rail.
        assert!(late.len() >= 2, "{medium:?} {mode:?}: the short one and that with a word");
        // The first one is no error.
        late.remove(0);
        let to = target.to;
        target.world.until("refusals", |world| {
            let node = &world.nodes[1];
            while let Some(refusal) = node.endpoint.next_refusal(&node.context) {
                assert_eq!(refusal.fault, Fault::BadKey, "{medium:?} {mode:?}");
                late.retain(|operation| *operation != refusal.operation);
            }
            late.is_empty() && node.endpoint.has_told(to)
        });
        target.settle();
    }
}

#[test]
fn what_has_left_arrives_and_a_fence_waits_for_it() {
    for medium in ALL {
        for (mode, terms) in
            MODES.iter().flat_map(|mode| [LOCAL, QUIET, MORE].map(|it| (*mode, it)))
        {
            let mut target = Target::new(medium, mode, None);
            let mut model = vec![0; REGION];
            for user in 0..300u64 {
                let (at, len) = (user as usize * 3000, [8, 3000][user as usize % 2]);
                let bytes: Vec<u8> =
                    (0..len).map(|index| common::pattern(index, user as u8)).collect();
                target.at(Action::Put, at, &bytes, terms, user);
                model[at..at + len].copy_from_slice(&bytes);
            }
            let long: Vec<u8> = (0..100_000).map(|index| common::pattern(index, 7)).collect();
            target.at(Action::Put, 900_000, &long, terms, 300);
            model[900_000..1_000_000].copy_from_slice(&long);
            // Nobody is told of one that is refused.
            let beyond = REGION - 3;
            let is_native = matches!(medium, Medium::Shm | Medium::ShmRing | Medium::SimNative);
            target.at(Action::Put, beyond, &[1; 8], terms, 301);
            target.at(Action::Get, 0, &vec![0; REGION], FENCED, 400);
            assert!(target.taken(400).1 == model, "{medium:?} {mode:?}: a fence passed a put");
            (0..=300).for_each(|user| {
                target.taken(user);
            });
            let outcome = target.world.take(1, 301).outcome;
            let may_fail = is_native && outcome == Err(Fault::BadKey);
            assert!(may_fail || outcome == Ok(()), "{medium:?} {mode:?} {outcome:?}");
            target.settle();
        }
    }
}
