//! Puts and gets of data that lie in instances of a datatype: the layout travels once, over every medium.

use std::sync::Arc;

use crate::common::{self, ALL, Medium, World};
use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, Strided};
use ropewalk_net::{Audience, Direction, Mode, OperationId, PeerId, Posted};
use ropewalk_rail_sim::Path;

const REGION: usize = 2 << 20;
/// Accesses at a time, each in a part of the region of its own.
const BANDS: usize = 8;
const BAND: usize = REGION / BANDS;

/// Two endpoints, of which the second one exposes a region; and what that has to look like.
struct Target {
    world: World,
    to: PeerId,
    key: RemoteKey,
    model: Vec<u8>,
}

impl Target {
    fn new(medium: Medium, mode: Mode) -> Target {
        let mut world = World::new(medium);
        world.mode = mode;
        world.add();
        world.add();
        let to = world.peer(0, 1);
        let region = world.memory(REGION, 9);
        let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
        let model = (0..REGION).map(|index| common::pattern(index, 9)).collect();
        Target { world, to, key, model }
    }

    fn post(
        &mut self,
        direction: Direction,
        remote: RemoteLayout,
        (len, seed): (usize, u8),
        user: u64,
    ) -> Option<OperationId> {
        let memory = self.world.memory(len, seed);
        let node = &self.world.nodes[0];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted =
            endpoint.post_access(context, direction, self.to, self.key, remote, memory, user);
        let operation = match &posted {
            Ok(Posted::Pending(operation)) => Some(*operation),
            _ => None,
        };
        self.world.posted(0, posted);
        operation
    }

    fn put(&mut self, place: &Place, seed: u8, user: u64) -> Option<OperationId> {
        self.post(Direction::Put, place.layout(), (place.len, seed), user)
    }

    /// Notes a put that is complete.
    fn note(&mut self, place: &Place, seed: u8) {
        for (index, at) in place.bytes().enumerate() {
            self.model[at] = common::pattern(index, seed);
        }
    }

    /// The region as one get without gaps has it.
    fn region(&mut self) -> Vec<u8> {
        const USER: u64 = u64::MAX;
        self.post(Direction::Get, RemoteLayout::At(0), (REGION, 0), USER);
        let got = self.world.take(0, USER);
        assert_eq!(got.outcome, Ok(()), "{:?}", self.world.medium);
        got.memory.into_pooled().unwrap().to_vec()
    }

    fn check(&mut self, what: &str) {
        let region = self.region();
        let wrong = (0..REGION).find(|at| region[*at] != self.model[*at]);
        assert_eq!(wrong, None, "{:?} {:?}: {what}", self.world.medium, self.world.mode);
        self.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

/// Bytes of the region: some of those of instances of a datatype.
#[derive(Debug, Clone)]
struct Place {
    strided: Strided,
    len: usize,
}

impl Place {
    fn layout(&self) -> RemoteLayout {
        RemoteLayout::Strided(self.strided.clone())
    }

    fn bytes(&self) -> impl Iterator<Item = usize> + '_ {
        let Strided { shape, address, count, from } = &self.strided;
        let pieces = shape.pieces(*count, *from);
        let bytes = pieces.flat_map(move |piece| {
            let first = (address + piece.offset) as usize;
            first..first + piece.bytes as usize
        });
        bytes.take(self.len)
    }

    /// All data of instances that lie from `at` on.
    fn whole(shape: Descriptor, count: u64, at: usize) -> Place {
        let bounds = shape.bounds(count).expect("they lie where memory can be");
        let (len, address) = ((shape.len() * count) as usize, at as i64 - bounds.start);
        Place { strided: Strided { shape: Arc::new(shape), address, count, from: 0 }, len }
    }

    /// Random ones in a band of the region.
    fn random(random: &mut Random, band: usize) -> Place {
        loop {
            let shape = datatype(random);
            let count = 1 + random.below(4);
            let Some(bounds) = shape.bounds(count) else { continue };
            let reach = (bounds.end - bounds.start) as usize;
            if reach > BAND {
                continue;
            }
            let at = band * BAND + random.below((BAND - reach + 1) as u64) as usize;
            let mut place = Place::whole(shape, count, at);
            if random.below(2) == 0 {
                place.strided.from = random.below(place.len as u64);
                place.len = 1 + random.below(place.len as u64 - place.strided.from) as usize;
            }
            return place;
        }
    }
}

/// Runs of bytes, none of which overlap.
fn datatype(random: &mut Random) -> Descriptor {
    let span = |it: &Descriptor| it.bounds(1).map(|it| it.end - it.start).expect("it is short");
    let mut made = Descriptor::contiguous(1 + random.below(150)).expect("a run");
    if random.below(4) == 0 {
        let mut parts = Vec::new();
        let mut at = -200;
        for _ in 0..1 + random.below(400) {
            parts.push(at);
            at += span(&made) + random.below(30) as i64;
        }
        // In whatever order.
        (1..parts.len()).for_each(|it| parts.swap(it, random.below(it as u64 + 1) as usize));
        let parts: Vec<_> = parts.iter().map(|at| (*at, &made)).collect();
        made = Descriptor::joined(&parts).expect("not too many");
    }
    for _ in 0..random.below(3) {
        let stride = span(&made) + random.below(100) as i64;
        let stride = if random.below(3) == 0 { -stride } else { stride };
        made = made.repeated(1 + random.below(40), stride).expect("not too deep");
    }
    let extent = span(&made) + random.below(50) as i64;
    let extent = if random.below(3) == 0 { -extent } else { extent };
    made.resized(extent).expect("it is short")
}

const MODES: [Mode; 2] = [Mode::Fail, Mode::Resume];

/// 1,024 pieces of 64 bytes.
fn columns(stride: i64) -> Descriptor {
    Descriptor::contiguous(64).and_then(|it| it.repeated(1024, stride)).expect("a vector")
}

#[test]
fn bytes_go_where_the_datatype_says_and_come_from_there() {
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode);
            let mut random = Random::from_seed(mode as u64 + 1);
            for round in 0..8 {
                let places: Vec<_> = (0..BANDS).map(|it| Place::random(&mut random, it)).collect();
                let direction = if round % 2 == 0 { Direction::Put } else { Direction::Get };
                for (user, place) in places.iter().enumerate() {
                    let seed = (round * 16 + user) as u8;
                    target.post(direction, place.layout(), (place.len, seed), user as u64);
                }
                for (user, place) in places.iter().enumerate() {
                    let done = target.world.take(0, user as u64);
                    assert_eq!(done.outcome, Ok(()), "{medium:?} {mode:?}: {place:?}");
                    if direction == Direction::Put {
                        target.note(place, (round * 16 + user) as u8);
                        continue;
                    }
                    let got = done.memory.into_pooled().unwrap();
                    let expected: Vec<u8> = place.bytes().map(|at| target.model[at]).collect();
                    assert!(got[..] == expected[..], "{medium:?} {mode:?}: a get of {place:?}");
                }
                target.check("after a round");
            }
        }
    }
}

#[test]
fn what_reaches_out_of_the_region_has_written_nothing() {
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode);
            // The last instance, with its last byte; the first one, with its first byte; far beyond.
            let mut out = Place::whole(columns(128), 4, REGION - 400_000);
            out.strided.address += 1;
            out.len = 70_000;
            let mut before = Place::whole(columns(-128), 1, 0);
            before.strided.address -= 1;
            let far = Place::whole(columns(128), 1 << 30, 0);
            for (user, mut place) in [(1, out), (2, far)] {
                place.len = place.len.min(100_000);
                target.put(&place, 1, user);
                target.post(Direction::Get, place.layout(), (place.len, 0), 10 + user);
                for user in [user, 10 + user] {
                    let outcome = target.world.take(0, user).outcome;
                    assert_eq!(outcome, Err(Fault::BadKey), "{medium:?} {mode:?}: {user}");
                }
            }
            // That one has no place anywhere.
            target.put(&before, 1, 3);
            assert_eq!(target.world.take(0, 3).outcome, Err(Fault::Invalid));
            target.check("a put that was refused");
        }
    }
}

#[test]
fn what_overlaps_itself_or_has_not_so_many_bytes_is_no_put() {
    let mut target = Target::new(Medium::Tcp, Mode::Fail);
    let narrow = Place::whole(columns(63), 1, 0);
    let close = Place::whole(columns(128).resized(64).expect("an extent"), 2, 0);
    let mut short = Place::whole(columns(128), 1, 0);
    short.strided.from = 1;
    // One piece more than travels.
    let run = Descriptor::contiguous(3).expect("a run");
    let parts: Vec<_> = (0..1025).map(|it| (5 * it, &run)).collect();
    let long = Place::whole(Descriptor::joined(&parts).expect("it may be here"), 1, 0);
    for (user, place) in [narrow, close, short, long].iter().enumerate() {
        target.put(place, 1, user as u64);
        assert_eq!(target.world.take(0, user as u64).outcome, Err(Fault::Invalid), "{user}");
    }
    target.check("what is no put");
}

#[test]
fn layouts_without_number_take_turns() {
    for medium in [Medium::Tcp, Medium::SimDatagram] {
        let mut target = Target::new(medium, Mode::Resume);
        let path = Path { reordering: 200_000, ..Path::default() };
        target.world.network.set_default_path(path);
        // More than have numbers, with more nodes than are kept, in use at the same time.
        let run = Descriptor::contiguous(3).expect("a run");
        for round in 0..3 {
            let place = |user: usize| {
                let runs = [2, 300, 9, 1000][user % 4];
                let parts: Vec<_> = (0..runs).map(|it| (5 * it + it / 7, &run)).collect();
                let shape = Descriptor::joined(&parts).expect("not too many");
                Place::whole(shape, 1, user * 8_000 + user)
            };
            let places: Vec<_> = (0..200).map(place).collect();
            for (user, place) in places.iter().enumerate() {
                target.put(place, (user + round) as u8, user as u64);
                (0..user % 3).for_each(|_| target.world.step());
            }
            for (user, place) in places.iter().enumerate() {
                assert_eq!(target.world.take(0, user as u64).outcome, Ok(()), "{medium:?}");
                target.note(place, (user + round) as u8);
            }
            target.check("many layouts");
        }
    }
}

#[test]
fn what_is_cancelled_leaves_no_number_open() {
    let mut ended = 0;
    for medium in ALL {
        for seed in 0..4 {
            let mut target = Target::new(medium, MODES[seed as usize % 2]);
            let mut random = Random::from_seed(seed);
            for user in 0..150 {
                let place = Place::random(&mut random, 0);
                let direction = [Direction::Get, Direction::Put][random.below(2) as usize];
                let operation = target.post(direction, place.layout(), (place.len, 5), user);
                (0..random.below(4)).for_each(|_| target.world.step());
                if let Some(operation) = operation.filter(|_| random.below(3) > 0) {
                    target.world.nodes[0].endpoint.cancel(operation);
                    ended += 1;
                }
                target.world.nodes.iter().for_each(|node| node.endpoint.check());
            }
            for user in 0..150 {
                let outcome = target.world.take(0, user).outcome;
                let is_legal = matches!(outcome, Ok(()) | Err(Fault::Cancelled));
                assert!(is_legal, "{medium:?} {outcome:?}");
            }
            // All that was written lies in one band, which is written anew.
            let whole = Place::whole(columns(64), 4, 0);
            target.post(Direction::Put, RemoteLayout::At(0), (BAND, 3), 1000);
            assert_eq!(target.world.take(0, 1000).outcome, Ok(()), "{medium:?}");
            target.note(&whole, 3);
            target.check("after cancelled accesses");
        }
    }
    assert!(ended > 1000, "{ended} were cancelled");
}

#[test]
fn a_session_that_begins_anew_is_told_its_layouts_anew() {
    for mode in MODES {
        let mut target = Target::new(Medium::Tcp, mode);
        for user in 0..3 {
            let place = Place::whole(columns(96), 2, 4096);
            target.put(&place, user as u8, user);
            assert_eq!(target.world.take(0, user).outcome, Ok(()), "{mode:?}: {user}");
            target.note(&place, user as u8);
            target.check("a session");
            target.world.nodes[0].endpoint.forget(target.to);
            (0..1000).for_each(|_| target.world.step());
            target.to = target.world.peer(0, 1);
        }
    }
}
