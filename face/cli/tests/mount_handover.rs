//! A mount that goes from process to process while programs use it.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ropewalk_wire::fs::handover::{
    FrameHead, HEAD_BYTES, Kind, MAGIC, VERSION, WORD_BYTES_MAX, word,
};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use support::filer::{Filer, compile};
use support::{Cluster, PROGRAM, Process, installed, mounts_usable};

/// A cluster with two mounts; the first one changes its process.
struct Scene {
    first: Process,
    second: Process,
    cluster: Cluster,
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(&place.path().join("cluster"));
        let mount = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            cluster.mount(&path)
        };
        let (first, second) = (mount("first"), mount("second"));
        Scene { first, second, cluster, place }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    /// Another process takes the first mount over; the time for which nobody served it.
    fn take_over(&mut self) -> Duration {
        let path = self.at("first");
        let new = Process::mount(&["mount", "--take-over", path.to_str().unwrap()], &path);
        let words: Vec<&str> = new.line.split_whitespace().collect();
        let gap = words[words.len() - 2].parse().expect("the line ends with a time");
        let old = std::mem::replace(&mut self.first, new);
        ended_well(old);
        Duration::from_millis(gap)
    }

    fn end(mut self) {
        self.first.stop();
        self.second.stop();
        self.cluster.process.stop();
    }
}

/// A process that handed its mount over ends by itself, and without an error; the mount stays.
fn ended_well(mut old: Process) {
    let begin = Instant::now();
    while !old.is_over() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the old process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = old.forget();
    assert!(status.success(), "the old process ended with {status}");
}

fn made(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap()
}

fn content(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn open_files_go_on_in_the_next_process() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let mut written = made(&scene.at("first/written"));
    written.write_all(&[1; 3_000_000]).unwrap();
    let nameless = made(&scene.at("first/nameless"));
    nameless.write_at(b"nobody finds me", 0).unwrap();
    fs::remove_file(scene.at("first/nameless")).unwrap();
    let reader = File::open(scene.at("first/written")).unwrap();
    fs::create_dir(scene.at("first/large")).unwrap();
    for number in 0..700 {
        File::create(scene.at(&format!("first/large/file-{number}"))).unwrap();
    }
    // More than one request of the kernel brings.
    let mut listing = fs::read_dir(scene.at("first/large")).unwrap();
    let mut names: Vec<_> = listing.by_ref().take(5).map(|it| it.unwrap().file_name()).collect();
    let mut filer = Filer::start(&compile(scene.place.path()).expect("a C compiler"));
    let mapped = made(&scene.at("first/mapped"));
    mapped.set_len(8192).unwrap();
    filer.well(&format!("open 0 rw {}", scene.at("first/mapped").display()));
    filer.well("map 0 8192 1");
    filer.well("store 0 0 6 7");
    let mut append =
        OpenOptions::new().create(true).append(true).open(scene.at("first/log")).unwrap();
    append.write_all(b"one ").unwrap();
    for turn in 0..3u8 {
        scene.take_over();
        written.write_all(&[turn; 100_000]).unwrap();
        append.write_all(b"more ").unwrap();
        filer.well(&format!("store 0 {} 6 7", 100 * u32::from(turn)));
        nameless.write_at(&[b'0' + turn], 0).unwrap();
        assert_eq!(&content(&nameless)[1..], b"obody finds me");
        assert_eq!(nameless.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        let length = reader.metadata().unwrap().len();
        assert_eq!(length, 3_100_000 + 100_000 * u64::from(turn));
        // The other mount sees it all, and what it writes is seen here.
        fs::write(scene.at("second/told"), [turn]).unwrap();
        assert_eq!(fs::read(scene.at("first/told")).unwrap(), [turn]);
        fs::write(scene.at("first/told"), [turn, turn]).unwrap();
        assert_eq!(fs::read(scene.at("second/told")).unwrap(), [turn, turn]);
    }
    written.sync_all().unwrap();
    filer.well("msync 0");
    names.extend(listing.map(|it| it.unwrap().file_name()));
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 700, "no name is missing");
    assert_eq!(fs::read(scene.at("second/written")).unwrap(), content(&written));
    assert_eq!(fs::read(scene.at("second/log")).unwrap(), b"one more more more ");
    assert_ne!(fs::read(scene.at("second/mapped")).unwrap()[200..206], [0; 6]);
    // The server is started again: the session is the last process's, also there.
    scene.cluster.process.kill();
    scene.cluster.restart();
    written.write_all(b"the end").unwrap();
    written.sync_all().unwrap();
    assert_eq!(&content(&nameless)[..2], b"2o");
    assert!(fs::read(scene.at("second/written")).unwrap().ends_with(b"the end"));
    drop((written, nameless, reader, append, mapped, filer));
    scene.end();
}

#[test]
fn locks_go_on_in_the_next_process_and_those_that_wait_get_theirs() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let program = compile(scene.place.path()).expect("a C compiler");
    let (mut holder, mut other) = (Filer::start(&program), Filer::start(&program));
    made(&scene.at("first/file"));
    holder.well(&format!("open 0 rw {}", scene.at("first/file").display()));
    other.well(&format!("open 0 rw {}", scene.at("second/file").display()));
    holder.well("lock 0 posix w 0 10");
    holder.well("lock 0 ofd w 20 10");
    holder.well("lock 0 flock w 0 0");
    let waits = |take: fn(&File)| {
        let file = OpenOptions::new().read(true).write(true).open(scene.at("first/file")).unwrap();
        std::thread::spawn(move || {
            take(&file);
            (file, Instant::now())
        })
    };
    let for_record = waits(|file| fcntl_lock(file, FlockOperation::LockExclusive).unwrap());
    let for_whole = waits(|file| flock(file, FlockOperation::LockExclusive).unwrap());
    std::thread::sleep(Duration::from_millis(300));
    for _ in 0..2 {
        scene.take_over();
        for lock in ["posix w 5 1", "ofd w 25 1", "flock r 0 0"] {
            assert_eq!(other.ask(&format!("lock 0 {lock}")), "errno 11", "{lock} is held");
        }
        other.well("lock 0 posix w 40 10");
        other.well("lock 0 posix u 40 10");
    }
    assert!(!for_record.is_finished() && !for_whole.is_finished());
    let freed = Instant::now();
    holder.well("lock 0 flock u 0 0");
    let (whole, at) = for_whole.join().unwrap();
    assert!(at.duration_since(freed) < Duration::from_millis(900), "it is told at once");
    assert_eq!(other.ask("lock 0 flock r 0 0"), "errno 11", "the next one has it");
    holder.well("lock 0 ofd u 20 10");
    holder.well("lock 0 posix u 0 10");
    let (record, _) = for_record.join().unwrap();
    assert_eq!(other.ask("lock 0 posix w 5 1"), "errno 11");
    // Ends of processes and descriptors are known as before.
    drop((record, whole));
    std::thread::sleep(Duration::from_millis(100));
    other.well("lock 0 posix w 5 1");
    other.well("lock 0 flock w 0 0");
    drop((holder, other));
    scene.end();
}

/// Somebody who waits for a lock goes away right behind a hand-over: nobody keeps what he waited for.
#[test]
fn one_who_waited_can_still_be_killed() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let held = made(&scene.at("first/file"));
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let mut waiter = Command::new("flock").arg(scene.at("first/file")).arg("true").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    scene.take_over();
    waiter.kill().unwrap();
    let begin = Instant::now();
    waiter.wait().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    drop(held);
    let again = File::open(scene.at("second/file")).unwrap();
    flock(&again, FlockOperation::LockExclusive).unwrap();
    drop(again);
    scene.end();
}

/// Writes and reads with a check all the time; the longest time for one operation.
fn work_on(path: PathBuf, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<Duration> {
    std::thread::spawn(move || {
        let file = made(&path.join("worked"));
        let (mut longest, mut turn) = (Duration::ZERO, 0u64);
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            let (place, block) = (turn % 64 * 4096, turn.to_le_bytes().repeat(512));
            file.write_all_at(&block, place).unwrap();
            let mut back = vec![0; block.len()];
            file.read_exact_at(&mut back, place).unwrap();
            assert_eq!(back, block, "turn {turn}");
            let name = path.join(format!("name-{}", turn % 7));
            fs::write(&name, turn.to_string()).unwrap();
            fs::rename(&name, path.join("renamed")).unwrap();
            assert_eq!(fs::read_to_string(path.join("renamed")).unwrap(), turn.to_string());
            longest = longest.max(begin.elapsed());
            turn += 1;
        }
        assert!(turn > 20, "{turn} turns");
        longest
    })
}

#[test]
fn programs_that_work_all_the_time_notice_a_pause_at_most() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = ["first", "second"]
        .map(|name| {
            let path = scene.at(&format!("{name}/work-of-{name}"));
            fs::create_dir(&path).unwrap();
            work_on(path, stop.clone())
        })
        .into();
    let mut gaps = Vec::new();
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(300));
        gaps.push(scene.take_over());
    }
    stop.store(true, Ordering::Relaxed);
    let longest: Vec<_> = workers.into_iter().map(|it| it.join().unwrap()).collect();
    println!("gaps {gaps:?}; longest turn of a worker on the first and second mount {longest:?}");
    for name in ["work-of-first/renamed", "work-of-second/renamed"] {
        let (first, second) = (scene.at("first").join(name), scene.at("second").join(name));
        assert_eq!(fs::read(first).unwrap(), fs::read(second).unwrap());
    }
    scene.end();
}

/// Two mounts count in one file, under a lock, so leases and locks go back and forth all the time.
#[test]
fn counters_under_locks_of_two_mounts_lose_nothing() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    made(&scene.at("first/count")).write_all_at(&0u64.to_le_bytes(), 0).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let counters = ["first/count", "second/count"].map(|name| {
        let (path, stop) = (scene.at(name), stop.clone());
        std::thread::spawn(move || {
            let (mut turns, mut longest) = (0u64, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let begin = Instant::now();
                let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
                flock(&file, FlockOperation::LockExclusive).unwrap();
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, 0).unwrap();
                let next = u64::from_le_bytes(bytes) + 1;
                file.write_all_at(&next.to_le_bytes(), 0).unwrap();
                drop(file);
                turns += 1;
                longest = longest.max(begin.elapsed());
            }
            (turns, longest)
        })
    });
    let mut gaps = Vec::new();
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(300));
        gaps.push(scene.take_over());
    }
    stop.store(true, Ordering::Relaxed);
    let counted = counters.map(|it| it.join().unwrap());
    println!("gaps {gaps:?}; turns and the longest one {counted:?}");
    let total = fs::read(scene.at("first/count")).unwrap();
    assert_eq!(total, (counted[0].0 + counted[1].0).to_le_bytes());
    assert!(counted.iter().all(|(turns, _)| *turns > 8));
    scene.end();
}

/// `fio --verify` while the mount changes its process. Prints the gaps.
#[test]
fn fio_verifies_its_data_over_hand_overs() {
    if !mounts_usable() || !installed("fio") {
        return;
    }
    let mut scene = Scene::new();
    let mut fio = Command::new("fio");
    fio.args(["--name=handed", "--rw=randrw", "--bs=16k", "--size=24m", "--numjobs=2"]);
    fio.args(["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--loops=3"]);
    fio.args(["--ioengine=psync", "--fsync=64", "--rate=12m"]);
    // It leaves files of its own behind.
    fio.current_dir(scene.place.path());
    fio.arg(format!("--directory={}", scene.at("first").display()));
    let mut fio = fio.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut gaps = Vec::new();
    while fio.try_wait().unwrap().is_none() && gaps.len() < 12 {
        std::thread::sleep(Duration::from_millis(400));
        gaps.push(scene.take_over());
    }
    let Output { status, stdout, stderr } = fio.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stdout);
    assert!(status.success(), "{said}{}", String::from_utf8_lossy(&stderr));
    assert!(said.contains("err= 0") && gaps.len() > 3, "{} hand-overs: {said}", gaps.len());
    println!("{} hand-overs under fio --verify, nobody served for {gaps:?}", gaps.len());
    scene.end();
}

/// The socket of the process that serves a mount.
fn door(path: &Path) -> UnixStream {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(path.to_str().unwrap())).expect("mounted");
    let device = line.split(' ').nth(2).unwrap();
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let prefix = format!("@ropewalk/mount/{device}/");
    let name = sockets
        .lines()
        .find_map(|line| line.split_whitespace().nth(7).filter(|name| name.starts_with(&prefix)));
    let address = SocketAddr::from_abstract_name(&name.expect("a door")[1..]).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// The next frame: its kind and its body.
fn heard(mut stream: &UnixStream) -> (Kind, Vec<u8>) {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).unwrap();
    let head = FrameHead::decode(&head).unwrap();
    let mut body = vec![0; head.bytes as usize];
    stream.read_exact(&mut body).unwrap();
    assert!(head.is_of(&body));
    (head.kind, body)
}

/// Says a frame's word, and expects an answer of this kind.
fn say(mut stream: &UnixStream, kind: Kind, expected: Kind) {
    stream.write_all(&word(kind)).unwrap();
    let (kind, body) = heard(stream);
    assert_eq!(kind, expected, "{}", String::from_utf8_lossy(&body));
}

#[test]
fn the_old_process_goes_on_where_the_new_one_ends_before_it_serves() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let mut file = made(&scene.at("first/file"));
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let steps = [(Kind::Hello, Kind::Facts), (Kind::Go, Kind::State), (Kind::Ready, Kind::Yours)];
    for count in 0..=steps.len() {
        let stream = door(&scene.at("first"));
        for (word, answer) in &steps[..count] {
            say(&stream, *word, *answer);
        }
        drop(stream);
        let begin = Instant::now();
        file.write_all(b"x").unwrap();
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        assert_eq!(fs::read(scene.at("second/file")).unwrap().len(), count + 1);
        assert!(!scene.first.is_over());
    }
    // One that says nothing for too long: the old process goes on without it.
    let stream = door(&scene.at("first"));
    say(&stream, Kind::Hello, Kind::Facts);
    say(&stream, Kind::Go, Kind::State);
    let begin = Instant::now();
    file.write_all(b"x").unwrap();
    assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
    assert_eq!(heard(&stream).0, Kind::Refused);
    // A real one, killed as it comes.
    for pause in [0, 5, 20] {
        let mut new = Command::new(PROGRAM);
        new.args(["mount", "--take-over"]).arg(scene.at("first"));
        let mut new = new.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(pause));
        new.kill().unwrap();
        new.wait().unwrap();
        if scene.first.is_over() {
            // It served already: what is killed then is a mount as any other.
            drop(file);
            return;
        }
        file.write_all(b"x").unwrap();
    }
    assert_eq!(scene.take_over().as_secs(), 0);
    file.write_all(b"x").unwrap();
    let second = File::open(scene.at("second/file")).unwrap();
    assert!(flock(&second, FlockOperation::NonBlockingLockShared).is_err(), "it is locked still");
    drop((file, second));
    scene.end();
}

#[test]
fn garbage_other_versions_and_strangers_get_nothing() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let head = |version: u16, kind: u8, bytes: u32| {
        let (version, bytes) = (version.to_le_bytes(), bytes.to_le_bytes());
        [&MAGIC[..], &version, &[kind, 0], &bytes, &[0; 4]].concat()
    };
    let cases = [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "does not speak the protocol"),
        (head(VERSION + 1, Kind::Hello as u8, 0), "by version 2 of the protocol"),
        (head(VERSION, 99, 0), "damaged, or too long"),
        (head(VERSION, Kind::Hello as u8, 7), "damaged, or too long"),
        (head(VERSION, Kind::State as u8, u32::MAX), "damaged, or too long"),
        (head(VERSION, Kind::Refused as u8, WORD_BYTES_MAX), "damaged"),
        (word(Kind::Serving).to_vec(), "out of turn"),
        (word(Kind::Ready).to_vec(), "out of turn"),
    ];
    for (bytes, reason) in cases {
        let mut stream = door(&scene.at("first"));
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let (kind, body) = heard(&stream);
        let body = String::from_utf8_lossy(&body);
        assert_eq!(kind, Kind::Refused, "{reason}");
        assert!(body.contains(reason), "{body}");
    }
    fs::write(scene.at("first/file"), b"as before").unwrap();
    let mistaken = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let place = scene.place.path().to_str().unwrap().to_string();
    assert!(mistaken(&["mount", "--take-over", &place]).contains("nothing is mounted on"));
    let (address, first) = (scene.cluster.address(), scene.at("first"));
    let first = first.to_str().unwrap();
    let said = mistaken(&["mount", "--take-over", &address, first]);
    assert!(said.contains("name the directory alone"), "{said}");
    assert!(mistaken(&["mount", "--take-over", "-o", "ro", first]).contains("cannot be used"));
    let own = File::open(scene.at("first/file")).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["mount", "--take-over", first]).stdin(own.try_clone().unwrap());
    let said = String::from_utf8_lossy(&command.output().unwrap().stderr).into_owned();
    assert!(said.contains("cannot serve itself"), "{said}");
    drop((own, command));
    if rustix::process::geteuid().is_root() {
        let program = scene.at("stranger");
        fs::copy(PROGRAM, &program).unwrap();
        for path in [scene.place.path(), &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
        command.args(["mount", "--take-over", first]).current_dir("/");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("only root and the user"), "{said}");
    }
    scene.take_over();
    assert_eq!(fs::read(scene.at("first/file")).unwrap(), b"as before");
    scene.end();
}

/// Unmounts at the latest when the test is over.
struct Unmounts(String);

impl Drop for Unmounts {
    fn drop(&mut self) {
        let mut umount = Command::new(PROGRAM);
        let _ = umount.args(["umount", "--lazy", &self.0]).stderr(Stdio::null()).status();
    }
}

#[test]
fn keys_and_patience_go_along_also_into_the_background() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_string();
    let (key, mount) = (at("key"), at("mount"));
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let output = command.args(arguments).current_dir(place.path()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["key", "create", &key]);
    fs::create_dir(&mount).unwrap();
    let words = ["up", &at("up"), "--listen", "127.0.0.1:0", "--key-file", &key];
    let mut up = Process::start(&words, "serves at");
    let address = up.line.split("serves at ").nth(1).unwrap().split(',').next_back().unwrap();
    let (address, log) = (address.trim(), at("log"));
    run(&["mount", address, &mount, "--key-file", &key, "--background", "--log", &log]);
    let _unmounts = Unmounts(mount.clone());
    let file = made(Path::new(&mount).join("file").as_path());
    file.write_all_at(b"with keys", 0).unwrap();
    for _ in 0..2 {
        let said = run(&["mount", "--take-over", &mount, "--background", "--log", &log]);
        assert!(said.contains("taken over from process"), "{said}");
        assert_eq!(content(&file), b"with keys");
    }
    drop(file);
    run(&["umount", &mount]);
    up.stop();
}

#[test]
fn a_mount_whose_server_is_away_is_not_handed_over() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    fs::write(scene.at("first/file"), b"one").unwrap();
    scene.cluster.process.suspend();
    let path = scene.at("first/other");
    let waits = std::thread::spawn(move || fs::write(path, b"two"));
    std::thread::sleep(Duration::from_millis(100));
    let mut new = Command::new(PROGRAM);
    new.args(["mount", "--patience", "2", "--take-over"]).arg(scene.at("first"));
    let output = new.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("does not answer"), "{said}");
    rustix::process::kill_process(scene.cluster.process.pid(), rustix::process::Signal::CONT)
        .unwrap();
    waits.join().unwrap().unwrap();
    scene.take_over();
    assert_eq!(fs::read(scene.at("first/other")).unwrap(), b"two");
    scene.end();
}
