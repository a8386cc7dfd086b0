//! Two mounts of one cluster and the pages, locks and times of their kernels. Each mount sees the other's
//! changes, and a mount does not act any more on anything that it lost.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{OFlags, RawDir, SeekFrom as At, fcntl_setfl};
use rustix::process::{Signal, kill_process};
use support::clock::WrongClock;
use support::filer::{Filer, compile};
use support::servers::Servers;
use support::{PROGRAM, Process, installed, mounts_usable};

/// A cluster whose silent clients lose what they hold within seconds, and two mounts of it.
struct Pair {
    first: Process,
    _second: Process,
    _servers: Servers,
    a: PathBuf,
    b: PathBuf,
    filer: PathBuf,
    _place: tempfile::TempDir,
}

impl Pair {
    /// A program that works on either mount.
    fn program(&self) -> Filer {
        Filer::start(&self.filer)
    }

    /// As [`Pair::program`], with a file of the mount open as 0, in a map of `len` bytes.
    fn mapping(&self, path: &Path, len: usize, writable: bool) -> Filer {
        let mut program = self.program();
        let how = if writable { "rw" } else { "r" };
        program.well(&format!("open 0 {how} {}", path.display()));
        program.well(&format!("map 0 {len} {}", u8::from(writable)));
        program
    }
}

fn pair(term: &'static str) -> Option<Pair> {
    pair_with(term, 0)
}

/// As `pair`; the second mount's calendar is wrong by so many seconds.
fn pair_with(term: &'static str, wrong: i64) -> Option<Pair> {
    if !mounts_usable() {
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    let filer = compile(place.path())?;
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let mut servers = Servers::new(&place.path().join("cluster"), 1, term);
    servers.start();
    let first = servers.mount(&a, None).expect("it lives");
    let second = match wrong {
        0 => servers.mount(&b, None).expect("it lives"),
        _ => servers.mount_by(&WrongClock::new(place.path(), wrong)?, &b),
    };
    Some(Pair { first, _second: second, _servers: servers, a, b, filer, _place: place })
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = kill_process(self.first.pid(), Signal::CONT);
        for path in [&self.a, &self.b] {
            let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(path).output();
        }
    }
}

fn both(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

const KINDS: [&str; 3] = ["flock", "posix", "ofd"];

/// Everything that reads or writes answers EIO through a descriptor whose lock was lost.
fn is_refused(program: &mut Filer, slot: usize) {
    for _ in 0..2 {
        for order in ["read N 0 10", "write N 0 4 1", "sync N", "truncate N 0", "splice N 0 10"] {
            let order = order.replace('N', &slot.to_string());
            assert_eq!(program.ask(&order), "errno 5", "{order}");
        }
    }
}

#[test]
fn who_stood_still_and_lost_a_lock_neither_reads_nor_writes_until_it_unlocks_or_closes() {
    let Some(pair) = pair("2") else { return };
    let sizes = [(4096, "unlock"), (200_000, "close"), (200_000, "unlock")];
    let files: Vec<(&str, usize, &str)> =
        KINDS.iter().flat_map(|kind| sizes.map(|(size, end)| (*kind, size, end))).collect();
    let name = |(kind, size, end): (&str, usize, &str)| format!("{kind}{size}{end}");
    let (mut loser, mut winner) = (pair.program(), pair.program());
    for (slot, file) in files.iter().enumerate() {
        loser.well(&format!("open {slot} rwc {}", pair.a.join(name(*file)).display()));
        loser.well(&format!("write {slot} 0 {} 1", file.1));
        loser.well(&format!("sync {slot}"));
        loser.well(&format!("lock {slot} {} w 0 0", file.0));
    }
    // Unreported writes are lost, too.
    for (slot, file) in files.iter().enumerate() {
        loser.well(&format!("write {slot} 0 {} 1", file.1 + 10));
    }
    // A page that was changed in memory and not written, and a write that waits in the kernel.
    loser.well("map 0 4096 1");
    loser.well("store 0 0 100 7");
    pair.first.suspend();
    loser.order("write 1 100 10 9");
    std::thread::sleep(Duration::from_millis(50));
    for (slot, file) in files.iter().enumerate() {
        winner.well(&format!("open {slot} rw {}", pair.b.join(name(*file)).display()));
        let order = format!("lock {slot} {} w 0 0", file.0);
        let begin = Instant::now();
        while winner.ask(&order) != "0" {
            assert!(begin.elapsed() < Duration::from_secs(30), "the lock does not fall");
            std::thread::sleep(Duration::from_millis(50));
        }
        winner.well(&format!("write {slot} 0 {} 2", file.1));
        winner.well(&format!("sync {slot}"));
    }
    kill_process(pair.first.pid(), Signal::CONT).unwrap();
    assert_eq!(loser.answer(), "errno 5", "a write that waited");
    for slot in 0..files.len() {
        is_refused(&mut loser, slot);
    }
    assert_eq!(loser.ask("msync 0"), "errno 5", "what was changed in memory is lost, and told");
    assert_eq!(loser.ask("load 0 0 10"), "bus");
    loser.well("unmap 0");
    for (slot, file) in files.iter().enumerate() {
        let seen = winner.well(&format!("read {slot} 0 {}", file.1));
        let mut other = pair.program();
        other.well(&format!("open 0 rw {}", pair.a.join(name(*file)).display()));
        assert_eq!(other.well(&format!("read 0 0 {}", file.1)), seen, "{file:?}, elsewhere");
        winner.well(&format!("write {slot} 0 {} 2", file.1));
        assert_eq!(winner.well(&format!("read {slot} 0 {}", file.1)), seen, "{file:?}");
        winner.well(&format!("close {slot}"));
        // Each sync has told of what was lost: neither the close nor a later sync tells of it again.
        match file.2 {
            "unlock" => loser.well(&format!("lock {slot} {} u 0 0", file.0)),
            _ => {
                loser.well(&format!("close {slot}"));
                loser.well(&format!("open {slot} rw {}", pair.a.join(name(*file)).display()))
            }
        };
        loser.well(&format!("read {slot} 0 10"));
        loser.well(&format!("write {slot} 0 10 3"));
        loser.well(&format!("sync {slot}"));
        loser.well(&format!("lock {slot} {} w 0 0", file.0));
        loser.well(&format!("sync {slot}"));
    }
}

#[test]
fn a_map_shows_what_another_mount_wrote_at_the_next_look() {
    let Some(pair) = pair("10") else { return };
    let path = pair.a.join("file");
    let mut writer = pair.program();
    writer.well(&format!("open 0 rwc {}", path.display()));
    writer.well("write 0 0 8192 0");
    let mut reader = pair.mapping(&pair.b.join("file"), 8192, false);
    for round in 1..=60 {
        writer.well(&format!("write 0 0 8192 {round}"));
        if round % 3 == 0 {
            writer.well("sync 0");
        }
        // The writer looks last: its look would help the other one.
        let shown = reader.well("load 0 0 8192");
        let written = writer.well("read 0 0 8192");
        assert_eq!(format!("8192 {shown}"), written, "round {round}, written");
    }
    writer.well("map 0 8192 1");
    for round in 1..=60 {
        writer.well(&format!("store 0 0 8192 {}", 1000 + round));
        if round % 3 == 0 {
            writer.well("msync 0");
        }
        let shown = reader.well("load 0 0 8192");
        assert_eq!(shown, writer.well("load 0 0 8192"), "round {round}, changed in memory");
    }
}

/// The kernel does not ask for the size of a file before it splices, copies, or serves a map.
#[test]
fn a_file_that_another_mount_made_longer_is_as_long_at_the_next_use() {
    let Some(pair) = pair("10") else { return };
    let path = pair.a.join("file");
    let mut writer = pair.program();
    writer.well(&format!("open 0 rwc {}", path.display()));
    writer.well("write 0 0 4096 1");
    let mut reader = pair.mapping(&pair.b.join("file"), 200_000, false);
    reader.well(&format!("open 1 rwc {}", pair.b.join("copy").display()));
    for round in 1..=20u64 {
        let size = 4096 * round;
        assert_eq!(reader.well("stat 0").split(' ').next(), Some(&*size.to_string()));
        match round % 3 {
            0 => writer.well(&format!("truncate 0 {}", size + 4096)),
            1 => writer.well(&format!("write 0 {size} 4096 {round}")),
            _ => writer.well(&format!("allocate 0 {size} 4096")),
        };
        match round % 2 {
            0 => assert_eq!(reader.ask(&format!("copy 0 {size} 0 4096 1")), "4096", "{round}"),
            _ => assert!(reader.ask(&format!("splice 0 {size} 4096")).starts_with("4096 ")),
        }
        let seen = reader.ask(&format!("load 0 {size} 4096"));
        assert_eq!(format!("4096 {seen}"), writer.ask(&format!("read 0 {size} 4096")), "{round}");
    }
}

/// Each writes a piece of its own, all in the same two pages.
#[test]
fn two_mounts_change_one_file_in_memory_and_nothing_is_lost() {
    let Some(pair) = pair("10") else { return };
    fs::write(pair.a.join("file"), [0; 8192]).unwrap();
    let places = [(&pair.a, 0), (&pair.b, 64), (&pair.a, 5000), (&pair.b, 6000)];
    let mut programs: Vec<(Filer, usize)> = places
        .map(|(mount, at)| (pair.mapping(&mount.join("file"), 8192, true), at))
        .into_iter()
        .collect();
    std::thread::scope(|scope| {
        for (program, at) in &mut programs {
            scope.spawn(move || {
                for round in 0..300 {
                    program.well(&format!("store 0 {at} 50 {round}"));
                }
            });
        }
    });
    let (mut last, _) = programs.pop().unwrap();
    last.well("store 0 7000 50 299");
    let expected = last.well("load 0 7000 50");
    for (program, _) in &mut programs {
        for (_, at) in places {
            assert_eq!(program.well(&format!("load 0 {at} 50")), expected, "at {at}");
        }
    }
    // Between maps and writes, too.
    let mut other = pair.program();
    other.well(&format!("open 0 rw {}", pair.b.join("file").display()));
    let (program, _) = &mut programs[0];
    for round in 0..30 {
        program.well(&format!("store 0 100 10 {round}"));
        other.well(&format!("write 0 200 10 {round}"));
        let seen = other.well("read 0 100 10");
        assert_eq!(format!("10 {}", program.well("load 0 200 10")), seen, "round {round}");
    }
}

#[test]
fn sqlite_with_its_write_ahead_log_works_on_two_mounts_at_once() {
    let Some(pair) = pair("10") else { return };
    if !installed("sqlite3") {
        return;
    }
    let made = "pragma journal_mode=wal; create table t(who text, n int);";
    assert_eq!(support::run(&pair.a, "sqlite3", &["data.db", made]), "wal\n");
    let start = |mount: &Path, who: &str| {
        let mut command = Command::new("sqlite3");
        command.args(["-bail", "data.db"]).current_dir(mount).stdin(Stdio::piped());
        let mut child = command.spawn().expect("it is installed");
        let mut input = child.stdin.take().expect("it was asked for");
        writeln!(input, ".timeout 60000").unwrap();
        for number in 0..60 {
            writeln!(input, "begin immediate; insert into t values('{who}',{number}); commit;")
                .unwrap();
        }
        child
    };
    let mut programs = [start(&pair.a, "a"), start(&pair.b, "b")];
    for program in &mut programs {
        assert!(program.wait().unwrap().success());
    }
    for mount in [&pair.a, &pair.b] {
        let query = "select count(*), count(distinct who||n) from t; pragma integrity_check;";
        assert_eq!(support::run(mount, "sqlite3", &["data.db", query]), "120|120\nok\n");
    }
}

#[test]
fn a_time_that_was_set_stays_and_all_others_are_of_one_clock() {
    let Some(pair) = pair("10") else { return };
    let path = pair.a.join("file");
    let file = both(&path);
    file.write_all_at(&[1; 100_000], 0).unwrap();
    let born = file.metadata().unwrap().modified().unwrap();
    let mut map = pair.mapping(&path, 100_000, true);
    map.well("store 0 0 100 1");
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    file.set_times(fs::FileTimes::new().set_modified(past)).unwrap();
    map.well("msync 0");
    file.sync_all().unwrap();
    assert_eq!((modified(&path), modified(&pair.b.join("file"))), (past, past));
    map.well("store 0 0 100 1");
    file.set_times(fs::FileTimes::new().set_modified(past)).unwrap();
    drop((map, file));
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!((modified(&path), modified(&pair.b.join("file"))), (past, past));
    // Later writes have the later time, from the first look on.
    let file = both(&path);
    file.write_all_at(&[2; 100_000], 0).unwrap();
    let seen = file.metadata().unwrap();
    assert!(seen.modified().unwrap() >= born, "{:?} is before {born:?}", seen.modified());
    file.sync_all().unwrap();
    let elsewhere = fs::metadata(pair.b.join("file")).unwrap();
    let time = |found: &fs::Metadata| (found.mtime(), found.mtime_nsec());
    assert_eq!((time(&file.metadata().unwrap()), time(&elsewhere)), (time(&seen), time(&seen)));
}

#[test]
fn a_client_with_a_wrong_calendar_sets_the_servers_times() {
    for wrong in [-60, 60] {
        let Some(pair) = pair_with("10", wrong) else { return };
        let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
        // Checks that both mounts show the same time, and that it is a time since `begin`. A time from a client
        // is late by a round trip at most, which takes a while on a busy machine.
        let check = |name: &str, begin: SystemTime| {
            let seen = modified(&pair.b.join(name));
            let range = begin - Duration::from_secs(10)..=SystemTime::now();
            assert!(range.contains(&seen), "{name}, {wrong} s: {seen:?} is not in {range:?}");
            let found = fs::metadata(pair.a.join(name)).unwrap();
            assert_eq!(found.modified().unwrap(), seen, "{name}, {wrong} s");
            seen
        };
        for (name, len) in [("small", 10), ("large", 300_000)] {
            let begin = SystemTime::now();
            let path = pair.b.join(name);
            let file = File::create(&path).unwrap();
            let born = modified(&path);
            file.write_all_at(&vec![1; len], 0).unwrap();
            let written = modified(&path);
            assert!(written >= born, "{name}, {wrong} s: {written:?} is before {born:?}");
            file.sync_all().unwrap();
            assert_eq!(check(name, begin), written);

            // In memory.
            let begin = SystemTime::now();
            let mut map = pair.mapping(&path, len, true);
            map.well("store 0 0 10 1");
            map.well("msync 0");
            assert!(check(name, begin) >= written, "{name}, {wrong} s: time goes on");
            map.well("store 0 0 10 2");
            map.well("utime 0 1000000000");
            map.well("msync 0");
            drop((map, file));
            let set = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            assert_eq!((modified(&path), modified(&pair.a.join(name))), (set, set));

            let begin = SystemTime::now();
            let touched = Command::new("touch").arg(&path).status();
            assert!(touched.unwrap().success());
            check(name, begin);
        }
        // As make compares: a process that looks at the source and then writes is not older than it, in turns.
        let (source, target) = ("source", "target");
        let mut latest = SystemTime::UNIX_EPOCH;
        for _ in 0..20 {
            for (mount, other, name) in [(&pair.a, target, source), (&pair.b, source, target)] {
                let _ = fs::metadata(mount.join(other));
                fs::write(mount.join(name), vec![2; 100_000]).unwrap();
                let seen = modified(&mount.join(name));
                assert!(seen >= latest, "{name}, {wrong} s: {seen:?} is before {latest:?}");
                latest = seen;
            }
        }
    }
}

#[test]
fn a_name_that_was_replaced_is_the_old_file_or_the_new_one_when_the_client_is_killed() {
    let Some(mut pair) = pair("2") else { return };
    let (a, size) = (pair.a.clone(), 100_000);
    for name in ["renamed", "linked", "closed"] {
        fs::write(a.join(name), vec![b'o'; size]).unwrap();
    }
    fs::remove_file(a.join("linked")).unwrap();
    let new = |name: &str| {
        let mut file = File::create(a.join(name)).unwrap();
        file.write_all(&vec![b'n'; size]).unwrap();
        file
    };
    let first = new("temporary1");
    fs::rename(a.join("temporary1"), a.join("renamed")).unwrap();
    let second = new("temporary2");
    fs::hard_link(a.join("temporary2"), a.join("linked")).unwrap();
    drop(new("closed"));
    pair.first.kill();
    for name in ["renamed", "linked", "closed"] {
        let found = fs::read(pair.b.join(name)).unwrap();
        assert!(found == vec![b'n'; size], "{name}: {} bytes", found.len());
    }
    drop((first, second));
}

#[test]
fn a_lock_whose_file_was_closed_is_free_for_who_does_not_wait() {
    use rustix::fs::{FlockOperation, fcntl_lock, flock};
    let Some(pair) = pair("10") else { return };
    let (exclusive, at_once) =
        (FlockOperation::LockExclusive, FlockOperation::NonBlockingLockExclusive);
    both(&pair.a.join("file"));
    for round in 0..100 {
        let (from, to) = if round % 2 == 0 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
        let file = both(&from.join("file"));
        flock(&file, exclusive).unwrap();
        fcntl_lock(&file, exclusive).unwrap();
        drop(file);
        let other = both(&to.join("file"));
        flock(&other, at_once).unwrap_or_else(|error| panic!("round {round}: {error}"));
        fcntl_lock(&other, at_once).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    // One that is held is refused, and soon.
    let holder = both(&pair.a.join("file"));
    flock(&holder, exclusive).unwrap();
    let other = both(&pair.b.join("file"));
    let begin = Instant::now();
    for _ in 0..20 {
        assert_eq!(flock(&other, at_once), Err(rustix::io::Errno::AGAIN));
    }
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
}

/// The mount fetches many entries with attributes at once and hands them out piece by piece: those of
/// later pieces are not older than the change that came between.
#[test]
fn a_listing_does_not_bring_old_attributes_back() {
    let Some(pair) = pair("10") else { return };
    const FILES: usize = 400;
    let (many, elsewhere) = (pair.a.join("new/many"), pair.b.join("new/many"));
    ["old", "new", "old/many"].iter().for_each(|name| fs::create_dir(pair.a.join(name)).unwrap());
    let names: BTreeSet<String> = (0..FILES).map(|number| number.to_string()).collect();
    names.iter().for_each(|name| drop(File::create(pair.a.join("old/many").join(name)).unwrap()));
    // The client knows the files, and its kernel knows no name in the directory at its new place.
    fs::rename(pair.b.join("old/many"), &elsewhere).unwrap();
    let directory = File::open(&many).unwrap();
    let mut listed = raw_names(&directory);
    let unseen: Vec<_> = names.difference(&listed).cloned().collect();
    let [grown, closed] = [&unseen[100], &unseen[200]];
    let mut program = pair.program();
    program.well(&format!("open 0 rw {}", many.join(grown).display()));
    program.well("truncate 0 1048576");
    program.well("map 0 1048576 1");
    program.well("store 0 500000 100 7");
    let stored = program.well("load 0 500000 100");
    let open = File::open(many.join(closed)).unwrap();
    open.set_permissions(fs::Permissions::from_mode(0o000)).unwrap();
    let mut others: Vec<_> = unseen.iter().filter(|name| ![grown, closed].contains(name)).collect();
    loop {
        // The kernel wants attributes with the next piece where a name was looked up that it did not know.
        others.retain(|name| !listed.contains(*name));
        if let Some(name) = others.pop() {
            assert!(many.join(name).exists());
        }
        let piece = raw_names(&directory);
        if piece.is_empty() {
            break;
        }
        listed.extend(piece);
    }
    assert!(names.is_subset(&listed));
    assert_eq!(open.metadata().unwrap().mode() & 0o777, 0);
    assert_eq!(program.ask("load 0 500000 100"), stored);
    assert_eq!(program.ask("stat 0").split(' ').next(), Some("1048576"));
    program.well("msync 0");
    let mut reader = pair.program();
    reader.well(&format!("open 0 r {}", elsewhere.join(grown).display()));
    assert_eq!(reader.well("read 0 500000 100"), format!("100 {stored}"));
}

/// The names that one call lists into a small buffer.
fn raw_names(directory: &File) -> BTreeSet<String> {
    let mut buffer = Vec::with_capacity(4096);
    let mut piece = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = BTreeSet::new();
    while let Some(entry) = piece.next() {
        names.insert(entry.unwrap().file_name().to_string_lossy().into_owned());
        if piece.is_buffer_empty() {
            break;
        }
    }
    names
}

/// Calls to sync that the metadata server and the data server have served.
fn syncs(pair: &Pair) -> [u64; 2] {
    let mut command = Command::new(PROGRAM);
    let address = pair._servers.address();
    command.args(["status", "--json", "--interval", "0", "--address", &address]);
    let output = command.output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |calls: &serde_json::Value| calls["sync"]["calls"].as_u64().unwrap_or(0);
    let data = &status["servers"][0]["answer"]["calls"];
    assert!(data["write"].is_object(), "{status}");
    [of(&status["metadata"]["calls"]), of(data)]
}

/// The kernel syncs by itself only behind what goes through its pages.
#[test]
fn a_write_past_the_pages_is_durable_when_it_returns_where_that_is_asked_for() {
    use rustix::io::{ReadWriteFlags, pwritev2};
    let Some(pair) = pair("10") else { return };
    let plain = OFlags::WRONLY | OFlags::CREATE;
    let open =
        |path: &Path, flags| File::from(rustix::fs::open(path, flags, 0o644.into()).unwrap());
    for (name, flags) in [("data", OFlags::DSYNC), ("all", OFlags::SYNC), ("none", OFlags::empty())]
    {
        let wanted = u64::from(!flags.is_empty());
        let check = |what: &str, mut file: File| {
            file.write_all(&[1; 200_000]).unwrap();
            for _ in 0..3 {
                let before = syncs(&pair);
                file.write_all(&[1; 100]).unwrap();
                let after = syncs(&pair);
                let added = [after[0] - before[0], after[1] - before[1]];
                assert_eq!(added, [wanted; 2], "{name}, {what}");
            }
        };
        let path = pair.a.join(name);
        check("appended", open(&path, plain | OFlags::APPEND | flags));
        // Several write it: no pages.
        let other = open(&pair.b.join(name), plain);
        other.write_all_at(&[2; 100], 0).unwrap();
        check("shared", open(&path, plain | flags));
        // One write asks for it.
        let file = open(&path, plain | OFlags::APPEND);
        let ask = if wanted == 1 { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        let before = syncs(&pair);
        pwritev2(&file, &[std::io::IoSlice::new(&[3; 100])], 0, ask).unwrap();
        assert_eq!(syncs(&pair)[1] - before[1], wanted, "{name}, one write");
    }
    // Bytes that the inode holds.
    let mut file = open(&pair.a.join("small"), plain | OFlags::APPEND | OFlags::DSYNC);
    let before = syncs(&pair)[0];
    file.write_all(b"small").unwrap();
    assert_eq!(syncs(&pair)[0], before + 1);
    // Through the pages the kernel asks, and once is enough.
    let mut file = open(&pair.a.join("alone"), plain | OFlags::DSYNC);
    file.write_all(&[1; 200_000]).unwrap();
    let before = syncs(&pair)[0];
    file.write_all(&[1; 100]).unwrap();
    assert_eq!(syncs(&pair)[0], before + 1);
}

#[test]
fn a_write_goes_to_the_end_as_long_as_its_descriptor_says_so() {
    let Some(pair) = pair("10") else { return };
    for size in [10, 100_000] {
        let name = format!("file{size}");
        let (here, there) = (pair.a.join(&name), pair.b.join(&name));
        fs::write(&here, vec![b'0'; size]).unwrap();
        let mut expected = vec![b'0'; size];
        let mut file = File::options().read(true).append(true).open(&here).unwrap();
        fcntl_setfl(&file, OFlags::empty()).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        expected[0] = b'x';
        assert!(fs::read(&there).unwrap() == expected, "{size}");
        fcntl_setfl(&file, OFlags::APPEND).unwrap();
        file.write_all(b"one").unwrap();
        expected.extend(b"one");
        assert!(fs::read(&there).unwrap() == expected, "{size}");
        drop(file);

        // Opened to write anywhere, with the pages of the kernel.
        let mut file = both(&here);
        let mut other = File::options().append(true).open(&there).unwrap();
        file.write_all_at(b"y", 1).unwrap();
        expected[1] = b'y';
        fcntl_setfl(&file, OFlags::APPEND).unwrap();
        for round in 0..20 {
            let (mine, others) = (format!("mine{round}"), vec![b'a' + round; 3000]);
            other.write_all(&others).unwrap();
            file.write_all(mine.as_bytes()).unwrap();
            expected.extend(others);
            expected.extend(mine.as_bytes());
            if round % 4 == 0 {
                assert!(fs::read(&here).unwrap() == expected, "{size}, round {round}, here");
            }
            if round % 3 == 0 {
                assert!(fs::read(&there).unwrap() == expected, "{size}, round {round}, there");
            }
        }
        assert!(fs::read(&here).unwrap() == expected && fs::read(&there).unwrap() == expected);
    }
}

#[test]
fn what_was_stored_into_a_map_is_no_hole() {
    let Some(pair) = pair("10") else { return };
    const MIB: u64 = 1 << 20;
    let path = pair.a.join("file");
    let file = both(&path);
    file.set_len(64 * MIB).unwrap();
    let mut program = pair.mapping(&path, 64 << 20, true);
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(At::Data(0)), Err(rustix::io::Errno::NXIO));
    for at in [32 * MIB, 16 * MIB] {
        program.well(&format!("store 0 {} 100 7", at + 5));
        assert_eq!(seek(At::Data(0)), Ok(at));
        assert_eq!(seek(At::Hole(at)), Ok(at + MIB));
    }
    assert_eq!(seek(At::Data(17 * MIB)), Ok(32 * MIB));
    let stored = program.well(&format!("load 0 {} 100", 16 * MIB + 5));
    let copy = pair.a.join("copy");
    support::run(&pair.a, "cp", &["--sparse=auto", "file", "copy"]);
    let mut reader = pair.mapping(&copy, 64 << 20, false);
    assert_eq!(reader.well(&format!("load 0 {} 100", 16 * MIB + 5)), stored);
}
