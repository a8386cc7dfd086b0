//! Terms of the history: each start begins one, and data servers tell by them which server has a say.

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_meta::{Batch, Call, Config, Moment, Outcome, Rows, Shard, VolatileRows};
use ropewalk_store::superblock::{Boot, Starts};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::value::{Bytes, Timestamp};

const HISTORY: u128 = 5;
const NOW: Moment = Moment { time: Time(0), calendar: Timestamp { seconds: 1, nanos: 0 } };

/// Start number `counter` on a disk; `random` is the lower half of its id.
fn open(rows: VolatileRows, counter: u64, random: u64) -> Shard<VolatileRows> {
    let (id, era) = (counter << 32 | random, 1 << 32);
    let boot = Boot { counter, id, era, store: HISTORY, history: HISTORY };
    // As after a loss of the superblock that had the other ones.
    let starts = Starts::default().with(boot.id);
    let config = Config { boot, starts, server: 2, ..Config::default() };
    Shard::open(rows, config, Random::from_seed(1), NOW).expect("the rows make a shard")
}

fn beat(shard: &mut Shard<VolatileRows>, history: u128, met: Term) -> String {
    let room = Room { total_bytes: 9, free_bytes: 9, available_bytes: 9, file_system: 0 };
    let request = MetaRequest::Heartbeat(Heartbeat {
        server: 1,
        boot: 1,
        era: 1,
        store: 7,
        history,
        met: met.0,
        known_by: 0,
        replace: false,
        admit: true,
        room,
        address: Bytes(b"tcp://one"),
        domain: Bytes(b""),
    });
    let call = Call { session: 0, slot: 0, sequence: 0, request, now: NOW };
    let Outcome::Reply(reply) = shard.execute(call) else { panic!("no reply") };
    match decode::<MetaResult<'_>>(&reply.bytes) {
        Ok(Ok(MetaReply::Registered(verdict))) => match verdict {
            Registration::Taken { history: HISTORY, .. } => "taken".to_owned(),
            other => format!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn terms(rows: &VolatileRows) -> usize {
    rows.iter().filter(|(key, _)| key[0] == b'L').count()
}

#[test]
fn each_start_begins_a_term_and_the_rows_know_the_last_ones() {
    let mut shard = open(VolatileRows::default(), 1, 9);
    let mut met = vec![shard.term().term()];
    for counter in 2..100 {
        shard = open(shard.into_rows(), counter, counter);
        let term = shard.term().term();
        assert_eq!(u64::from(term.number()), counter);
        assert!(met.iter().all(|before| before.is_behind(term)));
        met.push(term);
        for known in &met {
            assert_eq!(beat(&mut shard, HISTORY, *known), "taken", "{known:?} in {term:?}");
        }
        let other = Term(term.0 ^ 1);
        assert_eq!(beat(&mut shard, HISTORY, other), "OlderMetadata");
        let later = Term::new(term.number() + 1, 3);
        assert_eq!(beat(&mut shard, HISTORY, later), "OlderMetadata");
    }
    assert_eq!(terms(&shard.into_rows()), 48);
}

#[test]
fn copies_of_the_rows_do_not_know_the_terms_of_each_other() {
    let first = open(VolatileRows::default(), 1, 9);
    let common = first.term().term();
    let rows = first.into_rows();
    let (mut one, mut two) = (open(rows.clone(), 2, 10), open(rows, 2, 11));
    let (own, other) = (one.term().term(), two.term().term());
    assert!(own.is_behind(other) && other.is_behind(own));
    for (shard, known, unknown) in [(&mut one, own, other), (&mut two, other, own)] {
        assert_eq!(beat(shard, HISTORY, common), "taken");
        assert_eq!(beat(shard, HISTORY, known), "taken");
        assert_eq!(beat(shard, HISTORY, unknown), "OlderMetadata");
    }
    // However often it starts after that.
    for counter in 3..40 {
        two = open(two.into_rows(), counter, counter);
        assert_eq!(beat(&mut two, HISTORY, own), "OlderMetadata");
    }
}

#[test]
fn a_superblock_that_counts_less_does_not_bring_an_older_term_back() {
    let first = open(VolatileRows::default(), 7, 9);
    let met = first.term().term();
    let mut second = open(first.into_rows(), 3, 9);
    assert!(met.is_behind(second.term().term()), "{:?}", second.term());
    assert_eq!(beat(&mut second, HISTORY, met), "taken");
}

#[test]
fn data_servers_of_another_history_are_refused() {
    let mut shard = open(VolatileRows::default(), 1, 9);
    let verdict = beat(&mut shard, HISTORY + 1, Term::default());
    assert!(verdict.starts_with("OtherMetadata"), "{verdict}");
    assert_eq!(beat(&mut shard, 0, Term::default()), "taken");
}

#[test]
fn a_damaged_term_is_no_start() {
    let mut rows = open(VolatileRows::default(), 1, 9).into_rows();
    let key = rows.iter().map(|(key, _)| key.to_vec()).find(|key| key[0] == b'L');
    let mut batch = Batch::default();
    batch.put(key.expect("there is a term"), vec![1, 2, 3]);
    rows.commit(batch).expect("rows in memory do not fail");
    let config = Config::default();
    let opened = Shard::open(rows, config, Random::from_seed(1), NOW);
    assert!(opened.err().is_some_and(|error| error.to_string().contains("terms")));
}
