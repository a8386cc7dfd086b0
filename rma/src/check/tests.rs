use ropewalk_base::memory::Cells;

use super::*;
use crate::operation::{Destination, Source};
use crate::types::Datatype;

fn spans(of: &[(i64, u64)]) -> Spans {
    let pieces = of.iter().map(|(offset, bytes)| Piece { offset: *offset, bytes: *bytes });
    Spans::new(100, pieces).expect("they are few")
}

#[test]
fn spans_are_sorted_and_joined_and_meet_where_both_have_bytes() {
    assert_eq!(spans(&[(0, 4), (4, 4), (16, 8)]).0, [100..108, 116..124]);
    assert_eq!(spans(&[(16, 8), (0, 4), (4, 4), (2, 6)]).0, [100..108, 116..124]);
    assert_eq!(spans(&[(0, 8), (0, 8), (4, 8), (20, 1)]).0, [100..112, 120..121]);
    let combs = (spans(&[(0, 8), (16, 8), (32, 8)]), spans(&[(8, 8), (24, 8), (40, 8)]));
    assert_eq!(combs.0.common(&combs.1), None);
    assert_eq!(combs.0.common(&spans(&[(8, 8), (39, 1)])), Some(139..140));
    assert_eq!(spans(&[]).common(&combs.0), None);
    let many = (0..PIECES_EACH as i64 + 1).map(|at| Piece { offset: at * 2, bytes: 1 });
    assert!(Spans::new(0, many).is_none());
}

/// Every second one of some bytes, put to a rank.
fn comb(checks: &mut Checks, address: i64, teeth: u64) -> Result<u64, Conflict> {
    let datatype = Datatype::of(Element::U8).vector(teeth, 1, 2).unwrap();
    let bytes = vec![0; 2 * teeth as usize];
    let verb = Verb::Put(Source::slice(&bytes, 1, &datatype));
    checks.operate(&Operation { verb, rank: 1, address, count: 1, datatype: &datatype })
}

#[test]
fn memory_is_bounded_and_what_is_not_compared_is_counted() {
    let mut checks = Checks::new(0, false);
    let far = |number: i64| number << 32;
    for number in 0..OPERATIONS_MAX as i64 {
        comb(&mut checks, far(number), 1).unwrap();
    }
    assert_eq!(checks.unchecked(), 0);
    assert!(comb(&mut checks, far(0), 1).is_err());
    // The first one goes, and is not compared any more.
    comb(&mut checks, far(-1), 1).unwrap();
    assert_eq!(checks.unchecked(), 1);
    comb(&mut checks, far(0), 1).unwrap();
    assert_eq!((checks.unchecked(), checks.kept.len()), (2, OPERATIONS_MAX));
    checks.complete(None, true);
    assert_eq!((checks.pieces, checks.kept.len()), (0, 0));
    let most = PIECES_EACH as u64;
    for number in 0..(PIECES_MAX / PIECES_EACH) as i64 {
        comb(&mut checks, far(number), most).unwrap();
    }
    assert_eq!((checks.unchecked(), checks.pieces), (2, PIECES_MAX));
    comb(&mut checks, far(-1), 1).unwrap();
    assert_eq!((checks.unchecked(), checks.pieces), (3, PIECES_MAX - PIECES_EACH + 1));
    // Too many pieces: it is neither compared nor kept.
    comb(&mut checks, far(3), most + 1).unwrap();
    assert_eq!((checks.unchecked(), checks.pieces), (4, PIECES_MAX - PIECES_EACH + 1));
}

#[test]
fn what_is_complete_here_is_not_complete_there() {
    let mut checks = Checks::new(0, false);
    let (cells, byte) = (Cells::zeroed(64), Datatype::of(Element::U8));
    let operate = |checks: &mut Checks, puts: bool, at: usize, address| {
        let verb = match puts {
            true => Verb::Put(Source::cells(&cells, at, 8, &byte)),
            false => Verb::Get(Destination::new(&cells, at, 8, &byte)),
        };
        checks.operate(&Operation { verb, rank: 1, address, count: 8, datatype: &byte })
    };
    let put = operate(&mut checks, true, 0, 0).unwrap();
    assert!(operate(&mut checks, false, 4, 100).is_err(), "a result where data are read");
    checks.complete_one(put);
    let get = operate(&mut checks, false, 4, 100).unwrap();
    assert!(operate(&mut checks, true, 32, 4).is_err(), "the put is not at its target yet");
    assert!(operate(&mut checks, true, 0, 200).is_err(), "the result may still come");
    checks.complete_one(get);
    operate(&mut checks, true, 0, 200).unwrap();
    operate(&mut checks, true, 32, 100).unwrap();
    checks.complete(Some(0), true);
    assert!(operate(&mut checks, true, 40, 4).is_err(), "another rank is complete");
    checks.complete(Some(1), true);
    operate(&mut checks, true, 40, 4).unwrap();
}
