//! Writes, more of them than the other side takes offers at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment, Token, Verb};

use crate::world::{World, of};

const COUNT: u64 = 9_000;
const LEN: u64 = 40;
const KEY: RemoteKey = RemoteKey { slot: SlotId { index: 1, generation: 9 }, secret: 77 };

/// Node 0, which writes to a region of node 1.
struct Writer {
    world: World,
    link: SlotId,
    region: Slice,
    /// What is under way, and where it goes.
    writes: BTreeMap<u64, (u64, Slice)>,
}

impl Writer {
    fn new(seed: u64, loss: u64) -> Writer {
        let mut world = World::new(seed, 2, 1486, 64);
        let (link, theirs) = world.connect(0, 1);
        let region = world.nodes[1].store.add(vec![0; (COUNT * LEN) as usize]);
        let expose = Verb::Expose { link: of(theirs), key: KEY, region, writable: true };
        assert!(world.take_back(1, &expose));
        world.air.weather.loss = loss;
        Writer { world, link, region, writes: BTreeMap::new() }
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
        self.writes.insert(token, (at, local));
        token
    }

    fn stop(&mut self, token: u64) {
        let (link, token) = (of(self.link), Token(token));
        if self.world.take_back(0, &Verb::Stop { link, token }) {
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
        for (token, (at, local)) in &self.writes {
            assert_eq!(self.world.nodes[0].seen.ended[token], Ok(()));
            let at = (at * LEN) as usize;
            let here = &region[at..at + LEN as usize];
            assert!(here == self.world.nodes[0].store.bytes(*local), "write {token}");
        }
    }
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
fn a_write_of_more_segments_than_are_taken_at_a_time_is_done() {
    let mut writer = Writer::new(3, 0);
    let local = writer.world.nodes[0].store.patterned(5, COUNT * LEN);
    let segment = |at| RemoteSegment { offset: at * LEN, len: LEN };
    let token = writer.world.order(0, writer.link, |link, token| Verb::Write {
        link,
        key: KEY,
        remote: RemoteLayout::List((0..COUNT).map(segment).collect()),
        local,
        token,
    });
    writer.world.until("its end", |world| world.nodes[0].seen.ended.contains_key(&token));
    assert_eq!(writer.world.nodes[0].seen.ended[&token], Ok(()));
    let region = writer.world.nodes[1].store.bytes(writer.region);
    assert!(region == writer.world.nodes[0].store.bytes(local));
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
