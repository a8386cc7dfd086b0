//! The format of dumps: the journey, and each way to spoil it.

use std::collections::BTreeMap;

use ropewalk_base::random::Random;
use ropewalk_store::{KeyRange, Row, StoreError, Value};

use super::parser::{DumpError, Item, Parser};
use super::{DumpedRow, Dumper, Head, Source, Totals};
use crate::inode::encode_row;
use crate::keys::{self, Table};

#[derive(Clone, Default)]
struct Rows(BTreeMap<Vec<u8>, Value>);

impl Source for Rows {
    fn rows(&self, range: KeyRange<'_>, bytes: usize) -> (Vec<Row>, Result<(), StoreError>) {
        let mut sum = 0;
        let rows = self.0.range::<[u8], _>((range.start, range.end)).take_while(|(_, value)| {
            let goes_on = sum < bytes;
            sum += value.len();
            goes_on
        });
        (rows.map(|(key, value)| (key.clone(), value.clone())).collect(), Ok(()))
    }

    fn value(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        Ok(self.0.get(key).cloned())
    }
}

fn head() -> Head {
    Head {
        cluster: 1 << 100,
        server: 1,
        history: 7,
        term: 3 << 32 | 9,
        position: 1234,
        made: 1_700_000_000,
        program: "test".to_owned(),
    }
}

/// Rows of some tables, and one of sessions, which a dump lacks.
fn rows(random: &mut Random, count: u64, longest: u64) -> Rows {
    let mut rows = Rows::default();
    for _ in 0..count {
        let numbers = [random.next_u64() >> random.below(60), random.below(9)];
        let bytes: Vec<u8> = (0..random.below(longest)).map(|_| random.next_u64() as u8).collect();
        let (key, value) = match random.below(4) {
            0 => (keys::key(Table::Inline, &numbers[..1]), bytes),
            1 => (keys::named(Table::Xattr, &numbers[..1], b"user.name"), bytes),
            2 => (keys::key(Table::Reap, &numbers), encode_row(1, &7u32)),
            _ => (keys::key(Table::Session, &numbers[..1]), bytes),
        };
        rows.0.insert(key, value.into());
    }
    rows
}

fn dump(rows: &Rows) -> Vec<u8> {
    let mut dumper = Dumper::new(rows.clone(), head());
    let mut dump = Vec::new();
    loop {
        let bytes = dumper.next_bytes().unwrap();
        if bytes.is_empty() {
            return dump;
        }
        dump.extend_from_slice(&bytes);
    }
}

fn parse(mut parser: Parser, bytes: &[u8], step: usize) -> Result<Vec<Item>, DumpError> {
    let mut items = Vec::new();
    for chunk in bytes.chunks(step) {
        parser.push(chunk);
        while let Some(item) = parser.next_item()? {
            items.push(item);
        }
    }
    while let Some(item) = parser.last_item()? {
        items.push(item);
    }
    Ok(items)
}

fn rows_of(items: &[Item]) -> Vec<DumpedRow> {
    let rows = items.iter().filter_map(|item| match item {
        Item::Rows(rows) => Some(rows.clone()),
        _ => None,
    });
    rows.flatten().collect()
}

fn totals_of(items: &[Item]) -> Option<&Totals> {
    items.iter().find_map(|item| if let Item::End(totals) = item { Some(totals) } else { None })
}

#[test]
fn rows_survive_the_journey_in_pieces_of_any_size() {
    let mut random = Random::from_seed(5);
    for round in 0..40 {
        let rows = rows(&mut random, round * 5, 1 + round * 400);
        let bytes = dump(&rows);
        let items = parse(Parser::strict(), &bytes, 1 + random.below(9999) as usize).unwrap();
        assert_eq!(items.first(), Some(&Item::Head(head())));
        let is_kept = |key: &[u8]| key[0] != Table::Session as u8;
        let all = rows.0.iter().filter(|(key, _)| is_kept(key));
        let all: Vec<DumpedRow> = all.map(|(key, value)| (key.clone(), value.to_vec())).collect();
        assert_eq!(rows_of(&items), all);
        let totals = totals_of(&items).expect("it has an end");
        assert_eq!((totals.all_rows(), totals.lost), (all.len() as u64, 0));
        let lax = parse(Parser::lax(), &bytes, 4096).unwrap();
        assert_eq!(lax, items, "a whole dump has nothing to be passed over");
    }
}

#[test]
fn a_dump_that_is_cut_off_anywhere_is_refused_and_its_good_rows_can_be_read() {
    let mut random = Random::from_seed(6);
    let bytes = dump(&rows(&mut random, 30, 60));
    let whole = rows_of(&parse(Parser::strict(), &bytes, 4096).unwrap());
    for cut in 0..bytes.len() {
        let error = parse(Parser::strict(), &bytes[..cut], 97).unwrap_err();
        match error {
            DumpError::Truncated { offset } => assert!(offset <= cut as u64),
            DumpError::NotADump => assert_eq!(cut, 0, "{cut}"),
            error => panic!("{cut}: {error}"),
        }
        let good = rows_of(&parse(Parser::lax(), &bytes[..cut], 97).unwrap());
        assert!(whole.starts_with(&good), "{cut}");
    }
    let longer = [&bytes[..], &[0]].concat();
    let error = parse(Parser::strict(), &longer, 97).unwrap_err();
    assert!(matches!(error, DumpError::Damaged { offset, .. } if offset == bytes.len() as u64));
}

#[test]
fn each_flipped_bit_is_found_and_the_other_frames_can_be_read() {
    let mut random = Random::from_seed(8);
    let rows = rows(&mut random, 24, 9000);
    let bytes = dump(&rows);
    let whole = rows_of(&parse(Parser::strict(), &bytes, 4096).unwrap());
    let places = (0..bytes.len()).filter(|at| *at < 400 || *at % 97 == 0 || at + 400 > bytes.len());
    for at in places {
        for bit in [0, 3, 7] {
            let mut spoiled = bytes.clone();
            spoiled[at] ^= 1 << bit;
            parse(Parser::strict(), &spoiled, 8192).expect_err("a bit is wrong");
            match parse(Parser::lax(), &spoiled, 8192) {
                Ok(items) => {
                    let good = rows_of(&items);
                    assert!(good.iter().all(|row| whole.contains(row)), "{at}");
                    let has_fault =
                        items.iter().any(|it| matches!(it, Item::Skipped { .. } | Item::Gap));
                    assert!(has_fault, "{at}");
                }
                Err(error) => assert!(matches!(error, DumpError::Newer { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn frames_that_are_left_out_or_repeated_or_of_another_dump_are_found() {
    let mut random = Random::from_seed(9);
    let frames_of = |rows: &Rows| {
        let mut dumper = Dumper::new(rows.clone(), head());
        let mut frames = Vec::new();
        loop {
            match dumper.next_bytes().unwrap() {
                bytes if bytes.is_empty() => return frames,
                bytes => frames.push(bytes),
            }
        }
    };
    let frames = frames_of(&rows(&mut random, 40, 40_000));
    let others = frames_of(&rows(&mut random, 40, 40_000));
    assert!(frames.len() > 3 && others.len() > 3);
    for index in 0..frames.len() {
        let mut less = frames.clone();
        less.remove(index);
        let mut more = frames.clone();
        more.insert(index, frames[index].clone());
        let mut mixed = frames.clone();
        if let Some(other) = others.get(index) {
            mixed[index].clone_from(other);
        }
        for spoiled in [less, more, mixed] {
            if spoiled != frames {
                parse(Parser::strict(), &spoiled.concat(), 4096).expect_err("it is not whole");
            }
        }
    }
}

#[test]
fn rows_that_make_no_sense_are_left_out_and_counted() {
    let mut rows = Rows::default();
    rows.0.insert(keys::key(Table::Inode, &[5]), Value::from(&b"nonsense"[..]));
    rows.0.insert(keys::key(Table::Inline, &[5]), Value::from(&b"text"[..]));
    let items = parse(Parser::strict(), &dump(&rows), 4096).unwrap();
    assert_eq!(rows_of(&items), [(keys::key(Table::Inline, &[5]), b"text".to_vec())]);
    assert_eq!(totals_of(&items).unwrap().lost, 1);
    let lost =
        items.iter().find_map(|it| if let Item::Lost(lost) = it { Some(lost) } else { None });
    assert_eq!(lost.unwrap().from, keys::key(Table::Inode, &[5]));
}
