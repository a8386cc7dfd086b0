use ropewalk_base::random::Random;

use super::*;

fn attach(directory: &mut Directory, address: u64, bytes: u64) {
    let key = RemoteKey { slot: SlotId::from_u64(address + 1), secret: !address };
    assert!(directory.add(Attached { address, key, is_returned: false }, bytes));
}

fn told(directory: &Directory, known: &Known) -> Vec<u8> {
    let mut bytes = vec![0; known.bytes()];
    directory.cells().read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_attached_is_found_by_whole_ranges() {
    let (mut directory, mut known) = (Directory::new(), Known::new());
    for (address, bytes) in [(500, 10), (100, 50), (150, 50)] {
        attach(&mut directory, address, bytes);
    }
    known.learn(&told(&directory, &known));
    assert_eq!((known.reads, known.regions.len()), (1, 3));
    let start = |address, bytes| known.find(address, bytes).map(|it| it.start);
    assert_eq!((start(100, 50), start(149, 1), start(150, 1)), (Some(100), Some(100), Some(150)));
    assert_eq!(
        (start(149, 2), start(99, 1), start(-1, 1), start(200, 1)),
        (None, None, None, None)
    );
    assert_eq!((start(500, 10), start(501, 10), start(500, u64::MAX)), (Some(500), None, None));
    let (entry, _) = directory.find(100).unwrap();
    directory.clear(entry);
    known.learn(&told(&directory, &known));
    assert_eq!(
        (known.find(100, 1), known.find(150, 50).map(|it| it.key.secret)),
        (None, Some(!150))
    );
}

#[test]
fn a_long_directory_is_asked_for_again() {
    let (mut directory, mut known) = (Directory::new(), Known::new());
    (0..REGIONS_MAX as u64).for_each(|number| attach(&mut directory, number * 8, 8));
    let key = RemoteKey { slot: SlotId::from_u64(1), secret: 1 };
    assert!(!directory.add(Attached { address: 1 << 40, key, is_returned: false }, 8));
    known.learn(&told(&directory, &known));
    assert_eq!((known.reads, known.entries), (0, REGIONS_MAX));
    known.learn(&told(&directory, &known));
    assert_eq!((known.reads, known.regions.len()), (1, REGIONS_MAX));
}

#[test]
fn entries_that_are_half_written_are_none() {
    let (mut directory, mut known) = (Directory::new(), Known::new());
    attach(&mut directory, 64, 8);
    attach(&mut directory, 128, 16);
    let whole = told(&directory, &known);
    for at in WORD..WORD + ENTRY_BYTES {
        let mut torn = whole.clone();
        torn[at] ^= 1;
        known.learn(&torn);
        assert_eq!(known.reads, 0, "byte {at}");
    }
    // One that never becomes whole holds nobody up for ever.
    let mut torn = whole;
    torn[WORD] ^= 1;
    (0..=TORN_MAX).for_each(|_| known.learn(&torn));
    assert_eq!((known.reads, known.regions.len()), (1, 1));
    assert_eq!(known.find(128, 16).map(|it| it.start), Some(128));
}

#[test]
fn any_bytes_are_taken_apart() {
    let mut random = Random::from_seed(3);
    for _ in 0..2000 {
        let mut known = Known::new();
        let bytes: Vec<u8> = (0..random.below(2000)).map(|_| random.next_u64() as u8).collect();
        (0..3).for_each(|_| known.learn(&bytes));
        assert!(known.entries <= REGIONS_MAX && known.regions.len() <= REGIONS_MAX);
    }
}
