//! Content through a mount: open flags, holes, truncation, allocation, maps, by POSIX and the man
//! pages.

mod support;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom as At};
use rustix::io::Errno;
use support::posix::{Place, errno, open, open_with, run_checks};
use support::{installed, run};

const MIB: u64 = 1 << 20;

#[test]
fn content_is_as_the_standard_says() {
    run_checks(&[
        ("access_modes", access_modes),
        ("flags_that_create", flags_that_create),
        ("appending", appending),
        ("appending_beside_appending", appending_beside_appending),
        ("growing_beside_small_writes", growing_beside_small_writes),
        ("reading_at_the_end", reading_at_the_end),
        ("around_the_caches", around_the_caches),
        ("synchronous", synchronous),
        ("holes", holes),
        ("truncation", truncation),
        ("truncation_is_refused", truncation_is_refused),
        ("allocation", allocation),
        ("room_of_holes", room_of_holes),
        ("allocation_is_refused", allocation_is_refused),
        ("allocation_beside_growth", allocation_beside_growth),
        ("copies_in_the_kernel", copies_in_the_kernel),
        ("largest_size", largest_size),
        ("maps", maps),
        ("maps_after_growth", maps_after_growth),
        ("random_changes_through_two_mounts", random_changes_through_two_mounts),
    ]);
}

fn read_all(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

fn access_modes(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, "content").unwrap();
    let mut reader = File::open(&path).unwrap();
    assert_eq!(errno(reader.write(b"x")), Errno::BADF);
    assert_eq!(errno(reader.set_len(1)), Errno::INVAL);
    let mut writer = open(&path, false, true, 0).unwrap();
    assert_eq!(errno(writer.read(&mut [0; 4])), Errno::BADF);
    let path_only = open_with(&path, OFlags::PATH).unwrap();
    assert_eq!(errno((&path_only).read(&mut [0; 4])), Errno::BADF);
    assert_eq!(errno(path_only.sync_all()), Errno::BADF);
    assert_eq!(path_only.metadata().unwrap().len(), 7);
    // Two descriptions of one file each have a position.
    let mut second = File::open(&path).unwrap();
    let (mut one, mut two) = ([0; 3], [0; 3]);
    reader.read_exact(&mut one).unwrap();
    second.read_exact(&mut two).unwrap();
    assert_eq!((&one, &two), (b"con", b"con"));
    // A negative offset, and one past what a file can have.
    assert_eq!(errno(rustix::fs::seek(&reader, At::Current(-100))), Errno::INVAL);
    assert_eq!(errno(rustix::io::pread(&reader, &mut one, u64::MAX)), Errno::INVAL);
}

fn flags_that_create(at: &Place) {
    let path = at.a.join("file");
    let flags = OFlags::RDWR | OFlags::CREATE;
    let file = open_with(&path, flags | OFlags::EXCL).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    assert_eq!(open_with(&at.b.join("file"), flags).unwrap().metadata().unwrap().len(), 7);
    let before = file.metadata().unwrap();
    open_with(&at.b.join("file"), OFlags::WRONLY | OFlags::TRUNC).unwrap();
    let after = file.metadata().unwrap();
    assert_eq!((after.len(), after.ino()), (0, before.ino()));
    file.write_all_at(b"again", 3).unwrap();
    assert_eq!(read_all(&at.b.join("file")), b"\0\0\0again");
    open_with(&path, flags | OFlags::TRUNC).unwrap();
    assert!(read_all(&at.b.join("file")).is_empty());
    // Closed on execution or not is the descriptor's affair, not the file system's.
    open_with(&path, flags | OFlags::CLOEXEC | OFlags::NOATIME | OFlags::NOCTTY).unwrap();
}

fn appending(at: &Place) {
    let (one, two) = (at.a.join("log"), at.b.join("log"));
    fs::write(&one, "0").unwrap();
    let append = OFlags::WRONLY | OFlags::APPEND;
    let (mut first, mut second) =
        (open_with(&one, append).unwrap(), open_with(&two, append).unwrap());
    for round in 0..20 {
        first.seek(SeekFrom::Start(0)).unwrap();
        write!(first, "a{round}").unwrap();
        write!(second, "b{round}").unwrap();
        // Linux appends here, too, against the letter of POSIX: programs rely on it.
        second.write_all_at(b"!", 0).unwrap();
    }
    let expected: String = (0..20).map(|round| format!("a{round}b{round}!")).collect();
    assert_eq!(String::from_utf8(read_all(&one)).unwrap(), format!("0{expected}"));
    let large = open_with(&at.a.join("large"), append | OFlags::CREATE).unwrap();
    for piece in 0..30u8 {
        (&large).write_all(&vec![piece; 100_001]).unwrap();
    }
    let back = read_all(&at.b.join("large"));
    assert_eq!(back.len(), 30 * 100_001);
    assert!(
        back.chunks(100_001)
            .enumerate()
            .all(|(index, piece)| piece.iter().all(|byte| *byte == index as u8))
    );
}

fn reading_at_the_end(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, vec![5; 100_000]).unwrap();
    let file = open(&path, true, true, 0).unwrap();
    let mut buffer = [0; 100];
    assert_eq!(file.read_at(&mut buffer, 99_990).unwrap(), 10);
    assert_eq!(file.read_at(&mut buffer, 100_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);
    // Data that another mount adds is there at once.
    open(&at.b.join("file"), false, true, 0).unwrap().write_all_at(&[6; 10], 100_000).unwrap();
    assert_eq!(file.read_at(&mut buffer, 99_995).unwrap(), 15);
    assert_eq!(buffer[..15], [[5; 5].as_slice(), &[6; 10]].concat());
    // A write of nothing changes nothing.
    let before = file.metadata().unwrap();
    assert_eq!(file.write_at(&[], 1 << 30).unwrap(), 0);
    assert_eq!(file.metadata().unwrap().len(), before.len());
}

/// Memory that begins at a page.
fn aligned(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    memory.resize(len + 4096, 0);
    let begin = memory.as_ptr().align_offset(4096);
    &mut memory[begin..begin + len]
}

fn around_the_caches(at: &Place) {
    if !at.ours {
        return;
    }
    let path = at.a.join("file");
    let direct = open_with(&path, OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT).unwrap();
    let cached = open(&path, true, true, 0).unwrap();
    let mut memory = Vec::new();
    let buffer = aligned(&mut memory, 65536);
    for round in 0..10u8 {
        buffer.fill(round);
        direct.write_all_at(buffer, u64::from(round) * 65536).unwrap();
        let mut back = vec![0; 65536];
        cached.read_exact_at(&mut back, u64::from(round) * 65536).unwrap();
        assert_eq!(back, buffer, "what went around the cache is not hidden by it");
        cached.write_all_at(&[round + 100; 65536], u64::from(round) * 65536).unwrap();
        direct.read_exact_at(buffer, u64::from(round) * 65536).unwrap();
        assert!(buffer.iter().all(|byte| *byte == round + 100));
    }
    assert_eq!(direct.read_at(buffer, 10 * 65536 - 4096).unwrap(), 4096);
    // No alignment is asked for: there is no disk behind it.
    direct.write_all_at(b"odd", 1).unwrap();
    assert_eq!(read_all(&at.b.join("file"))[..5], [100, b'o', b'd', b'd', 100]);
}

fn synchronous(at: &Place) {
    for (index, flags) in [OFlags::SYNC, OFlags::DSYNC].into_iter().enumerate() {
        let path = at.a.join(index.to_string());
        let mut file = open_with(&path, OFlags::WRONLY | OFlags::CREATE | flags).unwrap();
        file.write_all(&[1; 200_000]).unwrap();
        file.write_all(b"x").unwrap();
        assert_eq!(read_all(&path).len(), 200_001);
    }
    let reader = File::open(at.a.join("0")).unwrap();
    // Durable is also what others wrote, through a descriptor for reading.
    reader.sync_all().unwrap();
    reader.sync_data().unwrap();
    let directory = File::open(&at.a).unwrap();
    directory.sync_all().unwrap();
    directory.sync_data().unwrap();
    rustix::fs::syncfs(&directory).unwrap();
}

fn holes(at: &Place) {
    let path = at.a.join("sparse");
    let file = open_with(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
    let far = 10_000 * MIB;
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"end", far).unwrap();
    let found = fs::metadata(at.b.join("sparse")).unwrap();
    assert_eq!(found.len(), far + 3);
    assert!(found.blocks() * 512 < 20 * MIB, "{} blocks", found.blocks());
    let mut buffer = vec![1; 100_000];
    file.read_exact_at(&mut buffer, far / 2).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0));
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(At::Data(0)).unwrap(), 0);
    let hole = seek(At::Hole(0)).unwrap();
    assert!((5..far).contains(&hole));
    let data = seek(At::Data(hole)).unwrap();
    assert!(data > hole && data <= far, "{data}");
    assert_eq!(seek(At::Data(far)).unwrap(), far);
    assert_eq!(seek(At::Hole(far)).unwrap(), far + 3);
    // Nothing of a file was written, or only its first bytes.
    for (name, written) in [("void", 0), ("begun", 5)] {
        let file = open_with(&at.a.join(name), OFlags::RDWR | OFlags::CREATE).unwrap();
        file.write_all_at(&b"begin"[..written], 0).unwrap();
        file.set_len(20 * MIB).unwrap();
        let seek = |from| rustix::fs::seek(&file, from);
        let hole = seek(At::Hole(0)).unwrap();
        assert!((written as u64..=MIB).contains(&hole) && (written > 0 || hole == 0), "{hole}");
        assert_eq!(seek(At::Hole(10 * MIB)).unwrap(), 10 * MIB);
        assert_eq!(errno(seek(At::Data(2 * MIB))), Errno::NXIO);
        assert_eq!(seek(At::Data(0)).is_ok(), written > 0);
    }
    for past in [far + 3, far + 1000] {
        assert_eq!(errno(seek(At::Data(past))), Errno::NXIO);
        assert_eq!(errno(seek(At::Hole(past))), Errno::NXIO);
    }
    // A hole at the end has no data behind it.
    file.set_len(2 * far).unwrap();
    assert_eq!(errno(seek(At::Data(far + far / 2))), Errno::NXIO);
    assert_eq!(seek(At::Hole(far + far / 2)).unwrap(), far + far / 2);
}

fn truncation(at: &Place) {
    for size in [1000u64, 100_000, 5 * MIB + 17] {
        let (path, other) = (at.a.join(size.to_string()), at.b.join(size.to_string()));
        fs::write(&path, vec![1; size as usize]).unwrap();
        let file = open(&path, true, true, 0).unwrap();
        for cut in [size - 1, size / 2, 10, 0] {
            file.set_len(cut).unwrap();
            assert_eq!(fs::metadata(&other).unwrap().len(), cut);
            // Data that was cut off does not come back.
            file.set_len(size).unwrap();
            let back = read_all(&other);
            assert_eq!(back.len() as u64, size);
            assert!(back[..cut as usize].iter().all(|byte| *byte == 1), "{size} {cut}");
            assert!(back[cut as usize..].iter().all(|byte| *byte == 0), "{size} {cut}");
            file.write_all_at(&vec![1; size as usize], 0).unwrap();
        }
        // By name, on the other mount, under an open file.
        File::options().write(true).open(&other).unwrap().set_len(7).unwrap();
        assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 7);
        assert_eq!(file.read_at(&mut [0; 100], 7).unwrap(), 0);
    }
}

fn truncation_is_refused(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, "content").unwrap();
    let file = open(&path, true, true, 0).unwrap();
    assert_eq!(errno(rustix::fs::ftruncate(&file, u64::MAX)), Errno::INVAL);
    let directory = File::open(&at.a).unwrap();
    assert_eq!(errno(rustix::fs::ftruncate(&directory, 0)), Errno::INVAL);
    if at.ours {
        assert_eq!(errno(rustix::fs::ftruncate(&file, i64::MAX as u64)), Errno::FBIG);
        assert_eq!(file.metadata().unwrap().len(), 7);
    }
}

fn allocation(at: &Place) {
    let path = at.a.join("file");
    let file = open_with(&path, OFlags::RDWR | OFlags::CREATE).unwrap();
    let allocate = |mode, offset, len| rustix::fs::fallocate(&file, mode, offset, len).unwrap();
    let size = || fs::metadata(at.b.join("file")).unwrap().len();
    allocate(FallocateFlags::empty(), 0, 1000);
    assert_eq!(size(), 1000);
    allocate(FallocateFlags::KEEP_SIZE, 0, 5 * MIB);
    assert_eq!(size(), 1000);
    allocate(FallocateFlags::empty(), 100, 3 * MIB);
    assert_eq!(size(), 3 * MIB + 100);
    assert!(read_all(&at.b.join("file")).iter().all(|byte| *byte == 0));
    let mut model = vec![9u8; 3 * MIB as usize + 100];
    file.write_all_at(&model, 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE;
    let ranges = [(punch, 10, 100), (punch, MIB, 2 * MIB), (zero, 5000, 7), (zero, MIB - 5, 10)];
    for (mode, offset, len) in ranges {
        allocate(mode, offset, len);
        let (from, to) = (offset as usize, (offset + len).min(model.len() as u64) as usize);
        model[from..to].fill(0);
        assert!(read_all(&at.b.join("file")) == model, "{offset} {len}");
        assert!(read_all(&path) == model, "{offset} {len}");
    }
    // Behind the end nothing is punched; zeros can make the file grow, unless it keeps its size.
    allocate(punch, 3 * MIB, 10 * MIB);
    allocate(zero | FallocateFlags::KEEP_SIZE, 3 * MIB, 10 * MIB);
    assert_eq!(size(), 3 * MIB + 100);
    allocate(zero, 3 * MIB + 50, 100);
    assert_eq!(size(), 3 * MIB + 150);
    // Punching is a change: it shows in the times.
    let before = file.metadata().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    allocate(punch, 3 * MIB / 2, 1000);
    let after = file.metadata().unwrap();
    let times = |of: &fs::Metadata| (of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    assert!(times(&after) > times(&before));
}

fn room_of_holes(at: &Place) {
    let (path, other) = (at.a.join("file"), at.b.join("file"));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let len = 6 * MIB + MIB / 2;
    // A file that has no other user, and is punched by whoever opens it; whole, or in pieces.
    for (on, piece) in [(&path, len), (&other, len), (&path, MIB / 4), (&other, 3 * MIB)] {
        fs::write(&path, vec![7; len as usize]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        assert!(fs::metadata(&other).unwrap().blocks() >= len / 512);
        let file = open(on, true, true, 0).unwrap();
        for offset in (0..len).step_by(piece as usize) {
            rustix::fs::fallocate(&file, punch, offset, piece).unwrap();
        }
        assert_eq!(fs::metadata(&path).unwrap().blocks(), 0, "{piece}");
        let found = fs::metadata(&other).unwrap();
        assert_eq!((found.blocks(), found.len()), (0, len));
        for path in [&path, &other] {
            let file = File::open(path).unwrap();
            assert_eq!(errno(rustix::fs::seek(&file, At::Data(0))), Errno::NXIO);
            assert!(read_all(path).iter().all(|byte| *byte == 0));
        }
        // Data written into the hole is all that there is.
        file.write_all_at(b"data", 5 * MIB).unwrap();
        file.sync_all().unwrap();
        let mut model = vec![0; len as usize];
        model[5 * MIB as usize..][..4].copy_from_slice(b"data");
        assert!(read_all(&other) == model);
        assert!((1..=2 * MIB / 512).contains(&fs::metadata(&other).unwrap().blocks()));
        // Data that was cut off does not come back.
        file.set_len(MIB).unwrap();
        rustix::fs::fallocate(&file, punch, 0, 10 * MIB).unwrap();
        file.set_len(len).unwrap();
        assert!(read_all(&other).iter().all(|byte| *byte == 0));
        fs::remove_file(&path).unwrap();
    }
    // A small one.
    fs::write(&path, vec![7; 8192]).unwrap();
    let file = open(&other, true, true, 0).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fallocate(&file, punch, 0, 8192).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().blocks(), 0);
    assert_eq!(errno(rustix::fs::seek(&file, At::Data(0))), Errno::NXIO);
    assert_eq!(read_all(&path), vec![0; 8192]);
}

fn allocation_is_refused(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, [1; 10_000]).unwrap();
    let file = open(&path, true, true, 0).unwrap();
    let allocate = |mode, offset, len| rustix::fs::fallocate(&file, mode, offset, len);
    let none = FallocateFlags::empty();
    assert_eq!(errno(allocate(none, 0, 0)), Errno::INVAL);
    assert_eq!(errno(allocate(none, 1 << 63, 10)), Errno::INVAL);
    assert_eq!(errno(allocate(none, i64::MAX as u64, 10)), Errno::FBIG);
    assert_eq!(errno(allocate(FallocateFlags::PUNCH_HOLE, 0, 10)), Errno::OPNOTSUPP);
    if at.ours {
        for mode in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
            assert_eq!(errno(allocate(mode, 0, 4096)), Errno::OPNOTSUPP);
        }
    }
    let reader = File::open(&path).unwrap();
    assert_eq!(errno(rustix::fs::fallocate(&reader, none, 0, 10)), Errno::BADF);
    assert_eq!(file.metadata().unwrap().len(), 10_000);
}

/// Appends of two mounts to one striped file: each in one piece, none lost, nothing between them.
fn appending_beside_appending(at: &Place) {
    let (rounds, step) = (60, 30_001);
    std::thread::scope(|scope| {
        for (mount, who) in [(&at.a, 1), (&at.b, 101)] {
            scope.spawn(move || {
                let append = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
                let file = open_with(&mount.join("file"), append).unwrap();
                for round in 0..rounds {
                    (&file).write_all(&vec![who + round; step]).unwrap();
                }
            });
        }
    });
    let back = read_all(&at.a.join("file"));
    assert_eq!(back.len(), 2 * step * usize::from(rounds));
    let mut seen: Vec<u8> = back.chunks(step).map(|piece| piece[0]).collect();
    assert!(back.chunks(step).all(|piece| piece.iter().all(|byte| *byte == piece[0])));
    seen.sort_unstable();
    let expected: Vec<u8> = (1..=rounds).chain(101..=100 + rounds).collect();
    assert_eq!(seen, expected);
}

/// A process that writes a few bytes in place all the time does not keep another one from making the file
/// large.
fn growing_beside_small_writes(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, [1; 100]).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = open(&at.b.join("file"), false, true, 0).unwrap();
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                file.write_all_at(&[2; 10], 0).unwrap();
            }
        });
        let file = open(&path, true, true, 0).unwrap();
        for round in 1..20u64 {
            file.write_all_at(&[3; 5000], round * 5000).unwrap();
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let back = read_all(&at.b.join("file"));
    assert_eq!(back.len(), 100_000);
    assert_eq!(back[5000..], [3; 95_000]);
}

/// Allocation never takes away what another mount has added meanwhile.
fn allocation_beside_growth(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, "").unwrap();
    let (rounds, step) = (200, 5000);
    std::thread::scope(|scope| {
        let other = at.b.join("file");
        scope.spawn(move || {
            let file = open_with(&other, OFlags::WRONLY | OFlags::APPEND).unwrap();
            for round in 0..rounds {
                (&file).write_all(&vec![round as u8 + 1; step]).unwrap();
            }
        });
        let file = open(&path, true, true, 0).unwrap();
        for _ in 0..rounds {
            // A little more than there is: by now the other one may have added more than that.
            let len = file.metadata().unwrap().len() + 100;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len).unwrap();
        }
    });
    let mut seen = vec![0; rounds];
    for byte in read_all(&path).into_iter().filter(|byte| *byte > 0) {
        seen[byte as usize - 1] += 1;
    }
    assert_eq!(seen, vec![step; rounds]);
}

fn copies_in_the_kernel(at: &Place) {
    let (from, to) = (at.a.join("from"), at.a.join("to"));
    let content: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
    fs::write(&from, &content).unwrap();
    let source = File::open(&from).unwrap();
    let target = open_with(&to, OFlags::RDWR | OFlags::CREATE).unwrap();
    let (mut input, mut output) = (1000, 500);
    while input < 2_000_000 {
        let left = 2_000_000 - input as usize;
        let copied = rustix::fs::copy_file_range(
            &source,
            Some(&mut input),
            &target,
            Some(&mut output),
            left,
        )
        .unwrap();
        assert!(copied > 0);
    }
    let back = read_all(&at.b.join("to"));
    assert!(back[..500].iter().all(|byte| *byte == 0));
    assert!(back[500..] == content[1000..2_000_000]);
    let (mut input, mut output) = (0, 100);
    let same =
        rustix::fs::copy_file_range(&target, Some(&mut input), &target, Some(&mut output), 1000);
    assert_eq!(errno(same), Errno::INVAL);
    let mut end = 3_000_000;
    assert_eq!(rustix::fs::copy_file_range(&source, Some(&mut end), &target, None, 10).unwrap(), 0);
    let append = open_with(&to, OFlags::WRONLY | OFlags::APPEND).unwrap();
    assert_eq!(errno(rustix::fs::copy_file_range(&source, None, &append, None, 10)), Errno::BADF);
    assert_eq!(errno(rustix::fs::copy_file_range(&target, None, &source, None, 10)), Errno::BADF);
    // The standard library's copy, with reflinks and all that it tries first.
    fs::copy(at.b.join("from"), at.b.join("copy")).unwrap();
    assert!(read_all(&at.a.join("copy")) == content);
}

fn largest_size(at: &Place) {
    if !at.ours {
        return;
    }
    let file = open_with(&at.a.join("file"), OFlags::RDWR | OFlags::CREATE).unwrap();
    let far = 1 << 40;
    file.write_all_at(b"far", far).unwrap();
    assert_eq!(fs::metadata(at.b.join("file")).unwrap().len(), far + 3);
    let mut back = [0; 3];
    File::open(at.b.join("file")).unwrap().read_exact_at(&mut back, far).unwrap();
    assert_eq!(&back, b"far");
    let refused = errno(file.write_all_at(b"x", i64::MAX as u64 - 10));
    assert_eq!(refused, Errno::FBIG);
    file.set_len(0).unwrap();
}

fn maps(at: &Place) {
    if !installed("xfs_io") {
        return;
    }
    for size in [8192usize, 300_000, 3_000_000] {
        let (path, other) = (at.a.join(size.to_string()), at.b.join(size.to_string()));
        fs::write(&path, vec![b'o'; size]).unwrap();
        let mut model = vec![b'o'; size];
        let (end, middle) = (size - 100, size / 2);
        model[..50].fill(b'a');
        model[middle..middle + 2000].fill(b'b');
        model[end..].fill(b'c');
        let map = format!("mmap -rw 0 {size}");
        let writes = [
            "mwrite -S 0x61 0 50".to_string(),
            format!("mwrite -S 0x62 {middle} 2000"),
            format!("mwrite -S 0x63 {end} 100"),
            format!("msync -s 0 {size}"),
        ];
        let mut arguments = vec!["-c", map.as_str()];
        for write in &writes {
            arguments.extend(["-c", write.as_str()]);
        }
        arguments.push(path.to_str().unwrap());
        run(&at.a, "xfs_io", &arguments);
        // Shared: seen by everybody, through any mount.
        assert!(read_all(&other) == model && read_all(&path) == model, "{size}");
        // Without msync: written back when the map goes with its process.
        let arguments = ["-c", map.as_str(), "-c", "mwrite -S 0x64 0 10", other.to_str().unwrap()];
        run(&at.a, "xfs_io", &arguments);
        model[..10].fill(b'd');
        assert!(read_all(&path) == model, "{size}");
    }
}

/// A map made right after the file grew reaches to its end.
fn maps_after_growth(at: &Place) {
    if !installed("xfs_io") {
        return;
    }
    let path = at.a.join("file");
    let arguments = [
        "-f",
        "-c",
        "truncate 16m",
        "-c",
        "mmap -rw 0 16m",
        "-c",
        "mwrite -S 0x61 8m 10",
        "-c",
        "mread -v 15m 1",
        path.to_str().unwrap(),
    ];
    run(&at.a, "xfs_io", &arguments);
    let back = read_all(&at.b.join("file"));
    assert_eq!(back.len() as u64, 16 * MIB);
    assert_eq!(back.iter().filter(|byte| **byte == b'a').count(), 10);
}

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Reads, writes, truncations and allocations, each through one of two mounts and of several
/// descriptors, against a model in memory.
fn random_changes_through_two_mounts(at: &Place) {
    let rounds = if std::env::var_os("ROPEWALK_SEEDS").is_some() { 200 } else { 3 };
    for seed in 0..rounds {
        for size_max in [3000, 60_000, 4_000_000] {
            random_changes(at, seed, size_max);
        }
    }
}

fn random_changes(at: &Place, seed: u64, size_max: u64) {
    let mut random = Random(seed * 1000 + size_max);
    let paths = [at.a.join("random"), at.b.join("random")];
    fs::write(&paths[0], "").unwrap();
    let reopen = |index: u64| open(&paths[index as usize % 2], true, true, 0).unwrap();
    let mut files: Vec<File> = (0..4).map(reopen).collect();
    let mut model: Vec<u8> = Vec::new();
    for step in 0..300u64 {
        let index = random.below(4);
        let file = &files[index as usize];
        let (from, len) = (random.below(size_max), random.below(size_max / 4) + 1);
        let end = from + len;
        let what = random.below(9);

        let place = format!("seed {seed} size {size_max} step {step}: {what} {from} {len}");
        match what {
            0..=2 => {
                let bytes = vec![step as u8 | 1; len as usize];
                file.write_all_at(&bytes, from).expect(&place);
                model.resize(model.len().max(end as usize), 0);
                model[from as usize..end as usize].copy_from_slice(&bytes);
            }
            3 => {
                file.set_len(from).expect(&place);
                model.resize(from as usize, 0);
            }
            4 => {
                rustix::fs::fallocate(file, FallocateFlags::empty(), from, len).expect(&place);
                model.resize(model.len().max(end as usize), 0);
            }
            5 => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, punch, from, len).expect(&place);
                let size = model.len();
                model[size.min(from as usize)..size.min(end as usize)].fill(0);
            }
            6 => files[index as usize] = reopen(index),
            _ => {
                let mut back = vec![0; len as usize];
                let read = file.read_at(&mut back, from).expect(&place);
                let size = model.len();
                let expected = &model[size.min(from as usize)..size.min(end as usize)];
                assert!(back[..read] == *expected, "{place}: {read} bytes");
            }
        }
        assert_eq!(files[0].metadata().unwrap().len(), model.len() as u64, "{place}");
    }
    assert!(read_all(&paths[0]) == model && read_all(&paths[1]) == model);
}
