//! A million requests that no kernel sends, and some that one does.

use ropewalk_base::random::Random;
use ropewalk_mount::abi::Opcode;
use ropewalk_mount::abi::requests::{InHeader, WriteIn};
use ropewalk_mount::decode::{DecodeError, Dialect, Operation, Request, parse_header};
use zerocopy::{FromBytes, IntoBytes};

fn message(opcode: u32, body: &[u8], extensions: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len() + extensions.len()) as u32,
        opcode,
        unique: 2,
        node: 1,
        extension_words: (extensions.len() / 8) as u16,
        ..InHeader::default()
    };
    [header.as_bytes(), body, extensions].concat()
}

/// A request of each kind that is well formed enough to reach deep into the decoder.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for opcode in Opcode::ALL {
        for fixed in [0, 8, 16, 24, 32, 40, 48, 56, 64, 88] {
            let body = [&vec![0; fixed], &b"name\0other\0"[..]].concat();
            seeds.push(message(*opcode as u32, &body, &[]));
        }
    }
    let groups = [16u32, 32, 1, 1000].map(u32::to_ne_bytes).concat();
    seeds.push(message(Opcode::Create as u32, &[&[0; 16], &b"n\0"[..]].concat(), &groups));
    seeds
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.next_u64() as u8),
            2 if at + 4 <= bytes.len() => {
                let extreme = [0, 1, 0xffff_fff8, u32::MAX][random.below(4) as usize];
                bytes[at..at + 4].copy_from_slice(&extreme.to_ne_bytes());
            }
            3 => bytes.extend((0..random.below(64)).map(|_| random.next_u64() as u8)),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    // Most mutants get past the first check, which is of the length.
    if random.below(8) > 0 && bytes.len() >= 4 {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }
}

fn walk(bytes: &[u8], dialect: Dialect) -> Result<(), DecodeError> {
    let request = Request::parse_dialect(bytes, dialect)?;
    assert_eq!(request.opcode as u32, request.header.opcode);
    let inside = |part: &[u8]| assert!(part.len() <= bytes.len());
    match request.operation {
        Operation::BatchForget(list) => assert!(list.iter().count() * 16 <= bytes.len()),
        Operation::Lookup { name } | Operation::Create { name, .. } => {
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
        }
        Operation::Rename { name, new_name, .. } => {
            inside(name);
            assert!(!new_name.contains(&0) && new_name.len() <= 1024);
        }
        Operation::Write { header, data } => assert_eq!(header.size as usize, data.len()),
        Operation::SetXattr(set) => inside(set.value),
        Operation::Ioctl(ioctl) => inside(ioctl.input),
        _ => {}
    }
    Ok(())
}

#[test]
fn a_million_mutants_are_decoded_or_refused() {
    let mut random = Random::from_seed(0x5eed);
    let seeds = seeds();
    let (mut good, mut bad) = (0u32, 0u32);
    for number in 0..1_000_000u32 {
        let mut bytes = seeds[random.below(seeds.len() as u64) as usize].clone();
        mutate(&mut bytes, &mut random);
        let dialect = Dialect { setxattr_extended: number % 2 == 0 };
        match walk(&bytes, dialect) {
            Ok(()) => good += 1,
            Err(_) => bad += 1,
        }
        if let Ok(header) = parse_header(&bytes) {
            // In two pieces, as the loop reads WRITEs and io_uring everything.
            let body = &bytes[size_of::<InHeader>()..];
            let cut = random.below(body.len() as u64 + 1) as usize;
            let _ = Request::parse_parts(header, Some(&body[..cut]), &body[cut..], dialect);
        }
    }
    // Both ways were taken often enough for the test to mean something.
    assert!(good > 100_000 && bad > 100_000, "{good} good, {bad} bad");
}

#[test]
fn noise_is_refused() {
    let mut random = Random::from_seed(7);
    for _ in 0..100_000 {
        let len = random.below(200) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| random.next_u64() as u8).collect();
        assert!(walk(&bytes, Dialect::MODERN).is_err());
    }
}

#[test]
fn a_write_reads_the_same_in_one_piece_and_in_two() {
    let fixed = WriteIn { handle: 3, offset: 4096, size: 5, write_flags: 5, ..WriteIn::default() };
    let body = [fixed.as_bytes(), b"hello"].concat();
    let bytes = message(Opcode::Write as u32, &body, &[]);
    let whole = Request::parse(&bytes).unwrap();
    let header = InHeader::read_from_prefix(&bytes).unwrap().0;
    let parts =
        Request::parse_parts(header, Some(fixed.as_bytes()), b"hello", Dialect::MODERN).unwrap();
    assert_eq!(whole, parts);
    let Operation::Write { header, data } = whole.operation else { panic!("{whole:?}") };
    assert_eq!((header.handle, header.offset, data), (3, 4096, &b"hello"[..]));
    assert!(header.from_page_cache && header.kill_privileges && header.lock_owner.is_none());
}

#[test]
fn the_group_behind_a_create_is_found() {
    let groups = [16u32, 32, 1, 1000].map(u32::to_ne_bytes).concat();
    let other = [16u32, 33, 0, 0].map(u32::to_ne_bytes).concat();
    let body = [&[0; 16], &b"name\0"[..]].concat();
    let both = [other.clone(), groups.clone()].concat();
    let bytes = message(Opcode::Create as u32, &body, &both);
    assert_eq!(Request::parse(&bytes).unwrap().parent_group, Some(1000));
    let bytes = message(Opcode::Create as u32, &body, &other);
    assert_eq!(Request::parse(&bytes).unwrap().parent_group, None);
    let endless = [0u32, 32, 1, 1].map(u32::to_ne_bytes).concat();
    let bytes = message(Opcode::Create as u32, &body, &endless);
    assert_eq!(Request::parse(&bytes), Err(DecodeError::BadExtension));
}

#[test]
fn what_is_wrong_is_named() {
    let bytes = message(99, &[], &[]);
    assert_eq!(Request::parse(&bytes), Err(DecodeError::UnknownOpcode(99)));
    let bytes = message(Opcode::Lookup as u32, b"a/b\0", &[]);
    assert_eq!(Request::parse(&bytes), Err(DecodeError::BadName));
    let bytes = message(Opcode::Lookup as u32, b"endless", &[]);
    assert_eq!(Request::parse(&bytes), Err(DecodeError::Unterminated));
    let bytes = message(Opcode::GetAttributes as u32, &[0; 15], &[]);
    assert_eq!(Request::parse(&bytes), Err(DecodeError::Short));
    assert_eq!(Request::parse(&bytes[..50]), Err(DecodeError::Length { said: 55, came: 50 }));
    let mut lock = [0; 48];
    lock[32] = 9;
    let bytes = message(Opcode::SetLock as u32, &lock, &[]);
    assert_eq!(Request::parse(&bytes), Err(DecodeError::BadField));
}
