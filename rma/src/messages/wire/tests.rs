use ropewalk_base::random::Random;

use super::*;

/// One of each kind, with data behind those that have some.
fn all() -> Vec<Item> {
    let whole = Place { address: -7, layout: None, count: 24, from: 0, bytes: 24, whole: None };
    let section = Some((-9, 1 << 50));
    let part =
        Place { address: 1 << 40, layout: Some(3), count: 9, from: 16, bytes: 8, whole: section };
    let (window, token, fetch) = (7, u64::MAX, 1 << 33);
    let here = Wanted { fetch, apart: None };
    let apart = Wanted { fetch, apart: Some(5) };
    let (element, operator) = (Element::F64Index, Operator::MinIndex);
    let refused = Refused {
        window,
        reason: Reason::Bounds,
        verb: 2,
        address: -1,
        bytes: 3,
        window_bytes: 2,
        fetch,
    };
    let inline = || Data::Inline(0..5);
    vec![
        Item::Nothing,
        Item::Type { window, slot: 9, descriptor: 0..11 },
        Item::Put { window, place: whole, data: inline() },
        Item::Put { window, place: part, data: Data::Apart { number: 77, bytes: 8 } },
        Item::Get { window, place: part, wanted: here },
        Item::Get { window, place: whole, wanted: apart },
        Item::Update { window, element, operator, place: part, data: inline(), wanted: None },
        Item::Update {
            window,
            element,
            operator: Operator::Nothing,
            place: whole,
            data: Data::None,
            wanted: Some(apart),
        },
        Item::Swap {
            window,
            element: Element::U16,
            place: whole,
            expected: [1; 8],
            desired: [2; 8],
            wanted: here,
        },
        Item::Lock { window, kind: LockKind::Exclusive, rides: false },
        Item::Lock { window, kind: LockKind::Shared, rides: true },
        Item::Unlock { window, token },
        Item::Flush { window, token },
        Item::Complete { window },
        Item::Post { window },
        Item::Barrier { domain: u32::MAX, lost: None },
        Item::Barrier { domain: 3, lost: Some(2) },
        Item::Exchange { round: 3, bytes: 0..2 },
        Item::GaveUp { lost: 2, call: 1 << 40 },
        Item::Done { window, token },
        Item::Granted { window },
        Item::Result { fetch, bytes: 0..16 },
        Item::Refused(refused),
        Item::Refused(Refused { reason: Reason::Unattached, ..refused }),
    ]
}

/// The range of an item's data.
fn data(item: &mut Item) -> Option<&mut Range<usize>> {
    match item {
        Item::Type { descriptor: range, .. }
        | Item::Exchange { bytes: range, .. }
        | Item::Result { bytes: range, .. }
        | Item::Put { data: Data::Inline(range), .. }
        | Item::Update { data: Data::Inline(range), .. } => Some(range),
        _ => None,
    }
}

/// A message of them, and the items with their data where they lie in it.
fn message(items: Vec<Item>) -> (Vec<u8>, Vec<Item>) {
    let mut message = vec![0xee; 4096];
    let mut at = 0;
    let mut placed = Vec::new();
    for mut item in items {
        let before = at;
        at = Writer::new(&mut message, at).item(&item);
        assert!(at - before <= ITEM_BYTES_MAX, "{item:?}");
        if let Some(range) = data(&mut item) {
            *range = at..at + range.len();
            at = range.end;
        }
        placed.push(item);
    }
    message.truncate(at);
    (message, placed)
}

fn read(message: &[u8]) -> Result<Vec<Item>, Malformed> {
    let mut reader = Reader::new(message);
    let mut items = Vec::new();
    while let Some(item) = reader.next()? {
        items.push(item);
    }
    Ok(items)
}

#[test]
fn items_come_back_as_they_were_written() {
    let (message, items) = message(all());
    assert_eq!(read(&message), Ok(items));
    let lock = Item::Lock { window: 1, kind: LockKind::Shared, rides: true };
    assert_eq!(Writer::new(&mut [0; 64], 0).item(&lock), LOCK_BYTES);
}

#[test]
fn a_message_that_is_cut_within_an_item_is_refused() {
    for item in all() {
        let (message, _) = message(vec![item.clone()]);
        for cut in 1..message.len() {
            assert!(read(&message[..cut]).is_err(), "{cut} bytes of {item:?}");
        }
    }
}

#[test]
fn what_makes_no_sense_is_told_in_words() {
    assert_eq!(read(&[99, 0, 0, 0, 0]), Err("an item has an unknown kind"));
    let (mut lock, _) =
        message(vec![Item::Lock { window: 1, kind: LockKind::Shared, rides: true }]);
    lock[5] = 4;
    assert_eq!(read(&lock), Err("a lock has unknown flags"));
    let place = Place { address: 0, layout: None, count: 8, from: 0, bytes: 0, whole: None };
    let (put, _) = message(vec![Item::Put { window: 1, place, data: Data::None }]);
    assert_eq!(read(&put), Err("a place has no bytes, or ends beyond all addresses"));
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let mut random = Random::from_seed(3);
    let (valid, _) = message(all());
    for _ in 0..20_000 {
        let mut bytes = valid.clone();
        for _ in 0..1 + random.next_u64() % 4 {
            let at = random.next_u64() as usize % bytes.len();
            bytes[at] = random.next_u64() as u8;
        }
        // Either is fine; that it returns is what counts.
        let _ = read(&bytes);
    }
}
