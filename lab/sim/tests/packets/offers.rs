//! Writes, more of them than the other side takes offers at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment, Token, Verb};

use crate::world::{FOUL, Weather, World, of};

const COUNT: u64 = 9_000;
const LEN: u64 = 40;
const KEY: RemoteKey = RemoteKey { slot: SlotId { index: 1, generation: 9 }, secret: 77 };

/// Node 0, which writes to a region of node 1.
struct Writer {
    world: World,
    link: SlotId,
    theirs: SlotId,
    region: Slice,
    /// The writes under way, and the destinations of their parts.
    writes: BTreeMap<u64, (Slice, Vec<(u64, u64)>)>,
}

impl Writer {
    fn new(seed: u64, loss: u64) -> Writer {
        let mut world = World::new(seed, 2, 1486, 64);
        let (link, theirs) = world.connect(0, 1);
        let region = world.nodes[1].store.add(vec![0; (COUNT * LEN) as usize]);
        let expose = Verb::Expose { link: of(theirs), key: KEY, region, writable: true };
        assert!(world.take_back(1, &expose));
        world.air.weather.loss = loss;
        Writer { world, link, theirs, region, writes: BTreeMap::new() }
    }

    fn write(&mut self, at: u64, id: u64) -> u64 {
        let local = self.world.nodes[0].store.patterned(id, LEN);
        let remote = RemoteLayout::At(at * LEN);
        let token = self.world.order(0, self.link, |link, token| Verb::Write {
            link,
            key: KEY,
            remote,
            local,
            token,
        });
        self.writes.insert(token, (local, vec![(at * LEN, LEN)]));
        token
    }

    /// Writes parts of `local` where they belong.
    fn write_list(&mut self, local: Slice, parts: impl Iterator<Item = (u64, u64)>) -> u64 {
        let parts: Vec<(u64, u64)> = parts.collect();
        let segments = parts.iter().map(|&(offset, len)| RemoteSegment { offset, len });
        let remote = RemoteLayout::List(segments.collect());
        let token = self.world.order(0, self.link, |link, token| Verb::Write {
            link,
            key: KEY,
            remote,
            local,
            token,
        });
        self.writes.insert(token, (local, parts));
        token
    }

    fn stop(&mut self, token: u64) {
        let (link, token) = (of(self.link), Token(token));
        if self.world.take_back(0, &Verb::CancelAccess { link, token }) {
            self.writes.remove(&token.0);
            self.world.nodes[0].seen.pending.remove(&token.0);
        }
    }

    /// All that was not stopped has ended well, and is where it belongs.
    fn check(&mut self) {
        self.world.until("the ends of all writes", |world| {
            assert!(world.nodes.iter().all(|node| node.seen.down.is_empty()), "the link is down");
            world.nodes[0].seen.pending.is_empty()
        });
        let region = self.world.nodes[1].store.bytes(self.region);
        for (token, (local, parts)) in &self.writes {
            assert_eq!(self.world.nodes[0].seen.ended[token], Ok(()));
            let mut bytes = &self.world.nodes[0].store.bytes(*local)[..];
            for (offset, len) in parts {
                let (now, later) = bytes.split_at(*len as usize);
                assert!(region[*offset as usize..].starts_with(now), "write {token}");
                bytes = later;
            }
        }
    }
}

/// Many writes are under way when their region is revoked: each is refused. The trace of all packets.
pub fn revoked_under_writes(seed: u64) -> u64 {
    let mut writer = Writer::new(seed, 0);
    writer.world.room = 2;
    // So long that many are being pulled when the first one has ended.
    for at in 0..60 {
        let local = writer.world.nodes[0].store.patterned(at, 5_000);
        writer.write_list(local, std::iter::once((at * 5_000, 5_000)));
    }
    writer.world.until("the first end", |world| !world.nodes[0].seen.ended.is_empty());
    let revoke = Verb::Revoke { link: of(writer.theirs), key: KEY };
    assert!(writer.world.take_back(1, &revoke));
    writer.world.until("the ends of all writes", |world| world.nodes[0].seen.pending.is_empty());
    let ended = writer.world.nodes[0].seen.ended.values();
    let refused = ended.filter(|end| **end == Err(Fault::BadKey)).count();
    assert!(refused > 10, "{refused} were refused");
    writer.world.trace
}

#[test]
fn more_writes_than_are_taken_at_a_time_are_all_done() {
    for (seed, loss) in [(1, 0), (2, 10)] {
        let mut writer = Writer::new(seed, loss);
        for at in 0..COUNT {
            writer.write(at, at);
        }
        writer.check();
    }
}

#[test]
fn lists_of_more_segments_than_are_taken_at_a_time_are_done() {
    const LONGEST: u64 = REMOTE_SEGMENTS_MAX as u64;
    let mut writer = Writer::new(3, 0);
    for (list, stopped) in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].into_iter().zip([false, true].repeat(5)) {
        let local = writer.world.nodes[0].store.patterned(list, LONGEST * 4);
        let segments = (0..LONGEST).map(|at| (list * 4 * LONGEST + at * 4, 4)).rev();
        let token = writer.write_list(local, segments);
        if stopped && list > 7 {
            writer.stop(token);
        }
    }
    for at in 8_000..8_100 {
        writer.write(at, at);
    }
    writer.check();
    // More than that is no list.
    let local = writer.world.nodes[0].store.patterned(1, LONGEST + 1);
    let token = writer.write_list(local, (0..LONGEST + 1).map(|at| (at, 1)));
    assert_eq!(writer.world.nodes[0].seen.ended[&token], Err(Fault::Invalid));
}

#[test]
fn a_list_of_which_a_part_is_refused_leaves_no_trace() {
    const PART: u64 = 3_000;
    for seed in 0..60 {
        let mut writer = Writer::new(seed, 0);
        writer.world.air.weather = Weather { apart: 30, ..FOUL };
        let mut random = Random::from_seed(seed);
        for _ in 0..4 {
            let count = 2 + random.below(8);
            let bad = random.below(count);
            let beyond = [COUNT * LEN - 1, u64::MAX - 2][random.below(2) as usize];
            let place = |at| if at == bad { beyond } else { at * PART };
            let local = writer.world.nodes[0].store.patterned(seed, count * PART);
            let token = writer.write_list(local, (0..count).map(|at| (place(at), PART)));
            let over = |world: &World| world.nodes[0].seen.ended.contains_key(&token);
            writer.world.until("its end", over);
            assert_eq!(writer.world.nodes[0].seen.ended[&token], Err(Fault::BadKey), "seed {seed}");
        }
        writer.world.pass(Duration::from_millis(2));
        let region = writer.world.nodes[1].store.bytes(writer.region);
        assert!(region.iter().all(|byte| *byte == 0), "seed {seed}: a refused list left a trace");
    }
}

#[test]
fn writes_that_are_stopped_count_until_the_other_side_is_done_with_them() {
    for (seed, loss) in [(4, 0), (5, 10)] {
        let mut writer = Writer::new(seed, loss);
        for at in 0..COUNT {
            let token = writer.write(at, at);
            if at % 100 > 0 {
                writer.stop(token);
            }
            if at % 1000 == 0 {
                writer.world.pass(Duration::from_micros(100));
            }
        }
        writer.check();
    }
}

#[test]
fn whoever_closes_a_link_has_nothing_written_over_it_any_more() {
    let mut late = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, 2, 1486, 64);
        let (link, theirs) = world.connect(0, 1);
        let region = world.nodes[1].store.add(vec![0; 1 << 20]);
        let expose = Verb::Expose { link: of(theirs), key: KEY, region, writable: true };
        assert!(world.take_back(1, &expose));
        let local = world.nodes[0].store.patterned(1, 1 << 20);
        let token = world.order(0, link, |link, token| Verb::Write {
            link,
            key: KEY,
            remote: RemoteLayout::At(0),
            local,
            token,
        });
        world.until("its beginning", |world| {
            world.nodes[1].machine.counters().bytes_received > 100_000
        });
        assert!(world.take_back(1, &Verb::Close { link: of(theirs) }));
        let before = world.nodes[1].store.bytes(region);
        let received = world.nodes[1].machine.counters().bytes_received;
        world.until("its end", |world| world.nodes[0].seen.ended.contains_key(&token));
        assert!(world.nodes[0].seen.ended[&token].is_err());
        world.pass(Duration::from_millis(1));
        assert!(world.nodes[1].store.bytes(region) == before, "seed {seed}");
        late += world.nodes[1].machine.counters().bytes_received - received;
    }
    assert!(late > 100_000, "pieces came late: {late} bytes of them");
}

#[test]
fn what_is_written_after_a_write_was_stopped_stays() {
    const BYTES: u64 = 40_000;
    for seed in 0..300 {
        let mut writer = Writer::new(seed, 0);
        let mut random = Random::from_seed(seed);
        writer.world.air.weather = Weather { lateness: 300, ..FOUL };
        let write = |writer: &mut Writer, id: u64| {
            let local = writer.world.nodes[0].store.patterned(id, BYTES);
            let token = writer.write_list(local, std::iter::once((0, BYTES)));
            (token, local)
        };
        let (first, _) = write(&mut writer, 1);
        writer.world.pass(Duration::from_micros(random.below(300)));
        writer.stop(first);
        let (second, local) = write(&mut writer, 2);
        writer.world.until("its end", |world| world.nodes[0].seen.ended.contains_key(&second));
        assert_eq!(writer.world.nodes[0].seen.ended[&second], Ok(()));
        let expected = writer.world.nodes[0].store.bytes(local);
        writer.world.pass(Duration::from_millis(2));
        let region = writer.world.nodes[1].store.bytes(writer.region);
        assert!(region.starts_with(&expected), "seed {seed}: a stopped write undid a later one");
    }
}
