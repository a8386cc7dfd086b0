//! Behaviour of programs on a mount when servers are down, disks full, and bytes flipped.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::command::ropewalk;
use support::servers::Servers;
use support::{PROGRAM, Process, installed, mounts_usable};

/// Longer than anything takes that does not hang.
const HANGS: Duration = Duration::from_secs(60);

fn wait_for(what: &str, mut seen: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !seen() {
        assert!(begin.elapsed() < HANGS, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A cluster with some mounts, which are taken down with it.
struct Site {
    servers: Servers,
    place: PathBuf,
    mounts: Vec<(PathBuf, Process)>,
}

impl Site {
    fn new(place: &Path, data_servers: usize) -> Site {
        let servers = Servers::new(&place.join("cluster"), data_servers, "10");
        Site { servers, place: place.to_path_buf(), mounts: Vec::new() }
    }

    fn mount(&mut self, name: &str, arguments: &[&str]) -> PathBuf {
        let path = self.place.join(name);
        fs::create_dir(&path).unwrap();
        let process = self.servers.mount_with(&path, arguments, None).expect("it lives");
        self.mounts.push((path.clone(), process));
        path
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for (path, mut process) in self.mounts.drain(..) {
            process.kill();
            let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(path).output();
        }
    }
}

/// A small file system in memory, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn new(path: &Path, size: &str) -> Option<Small> {
        fs::create_dir_all(path).unwrap();
        let option = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &option, "none"])
            .arg(path)
            .output()
            .expect("mount is everywhere");
        if !mounted.status.success() {
            let text = String::from_utf8_lossy(&mounted.stderr).trim().to_string();
            println!("SKIP: no small file system in memory can be mounted: {text}");
            return None;
        }
        Some(Small(path.to_path_buf()))
    }

    fn available(&self) -> u64 {
        let space = rustix::fs::statvfs(&self.0).unwrap();
        space.f_bavail * space.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn posix_locks_exclude_across_mounts() {
    use rustix::fs::{FlockOperation, fcntl_lock};
    if !mounts_usable() || !installed("sqlite3") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut site = Site::new(place.path(), 1);
    site.servers.start();
    let (a, b) = (site.mount("a", &[]), site.mount("b", &[]));
    let first = File::create(a.join("lock")).unwrap();
    let second = File::options().read(true).write(true).open(b.join("lock")).unwrap();
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let shared = FlockOperation::NonBlockingLockShared;
    fcntl_lock(&first, exclusive).unwrap();
    assert!(fcntl_lock(&second, exclusive).is_err());
    assert!(fcntl_lock(&second, shared).is_err());
    // One who waits gets it when it is free.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fcntl_lock(&second, FlockOperation::LockExclusive));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        fcntl_lock(&first, FlockOperation::Unlock).unwrap();
        waiting.join().unwrap().unwrap();
    });
    assert!(fcntl_lock(&first, shared).is_err());
    // Closing any descriptor of the file takes the locks of the process away.
    drop(File::open(b.join("lock")).unwrap());
    fcntl_lock(&first, exclusive).unwrap();
    ranges_exclude(&a, &b);
}

/// Ranges of bytes, as sqlite locks them.
fn ranges_exclude(a: &Path, b: &Path) {
    let other = |statement: &str| {
        let mut command = Command::new("sqlite3");
        command.arg("data.db").arg(statement).current_dir(b).output().expect("it runs")
    };
    let made = other("create table t(x);");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let mut holder = Command::new("sqlite3")
        .arg("data.db")
        .current_dir(a)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = holder.stdin.take().unwrap();
    let mut output = BufReader::new(holder.stdout.take().unwrap());
    let mut say = |statement: &str| {
        writeln!(input, "{statement} select 'so';").unwrap();
        input.flush().unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "so\n", "{statement}");
    };
    say("begin exclusive; insert into t values(1);");
    let refused = other("insert into t values(2);");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("locked"), "{text}");
    say("commit;");
    let taken = other("insert into t values(3); select sum(x) from t;");
    assert_eq!(String::from_utf8_lossy(&taken.stdout).trim(), "4");
    drop(input);
    holder.wait().unwrap();
}

/// Writes chunks until one is refused; returns the number that was taken.
fn fill(file: &mut File) -> u8 {
    for number in 0..=255 {
        match file.write_all(&[number; 256 << 10]).and_then(|()| file.sync_all()) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
                return number;
            }
        }
    }
    panic!("64 MiB fit into a small file system");
}

#[test]
fn a_full_data_server_is_no_space_for_the_program_and_freed_space_is_used_again() {
    let place = tempfile::tempdir().unwrap();
    if !mounts_usable() {
        return;
    }
    let mut site = Site::new(place.path(), 1);
    // Of these the logs reserve 24 MiB.
    let Some(small) = Small::new(&site.servers.place("data0"), "36m") else { return };
    site.servers.start();
    let path = site.mount("mount", &[]);
    fs::write(path.join("before"), vec![9; 1 << 20]).unwrap();
    let available = small.available();
    let mut counts = Vec::new();
    for round in 0..3 {
        let mut file = File::create(path.join("large")).unwrap();
        let count = fill(&mut file);
        drop(file);
        counts.push(count);
        assert!(count >= 8, "round {round}: only {count} chunks of 256 KiB, after {counts:?}");
        // Writes that were accepted are there, also for a client without any cache.
        let fresh = site.mount(&format!("fresh{round}"), &[]);
        let found = fs::read(fresh.join("large")).unwrap();
        for number in 0..count {
            let chunk = &found[usize::from(number) * (256 << 10)..][..256 << 10];
            assert!(chunk.iter().all(|byte| *byte == number), "chunk {number}");
        }
        assert_eq!(fs::read(fresh.join("before")).unwrap(), vec![9; 1 << 20]);
        // Names and small files live elsewhere.
        fs::write(path.join("small"), "small").unwrap();
        fs::remove_file(path.join("large")).unwrap();
        wait_for("the space is free again", || small.available() + (1 << 20) > available);
    }
    assert_eq!(fs::read_to_string(path.join("small")).unwrap(), "small");
    // Full to the last byte, by others, too; and the server dies.
    fill(&mut File::create(path.join("large")).unwrap());
    let other = small.0.join("other");
    let filled = fs::write(&other, vec![0; small.available() as usize + (1 << 20)]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(small.available(), 0);
    if let Some(mut server) = site.servers.data[0].take() {
        server.kill();
    }
    site.servers.start();
    assert_eq!(fs::read(path.join("before")).unwrap(), vec![9; 1 << 20]);
    fs::remove_file(path.join("large")).unwrap();
    wait_for("the space is free again", || small.available() > 4 << 20);
}

#[test]
fn a_full_metadata_server_is_no_space_for_the_program_and_loses_nothing() {
    let place = tempfile::tempdir().unwrap();
    if !mounts_usable() {
        return;
    }
    let mut site = Site::new(place.path(), 1);
    let Some(small) = Small::new(&place.path().join("small"), "256m") else { return };
    // Somebody else's, on the same disk.
    let ballast = small.0.join("ballast");
    fs::write(&ballast, vec![0; 176 << 20]).unwrap();
    let own = small.0.join("own");
    fs::create_dir(&own).unwrap();
    site.servers.keep("meta", &own);
    site.servers.start();
    let path = site.mount("mount", &[]);
    let content = |number: u32| vec![number as u8; 8000];
    let mut made = 0;
    let refused = loop {
        match fs::write(path.join(made.to_string()), content(made)) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100_000, "it is never full");
    };
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull, "{refused}");
    assert!(made > 100, "only {made}");
    for number in 0..made {
        assert!(fs::read(path.join(number.to_string())).unwrap() == content(number), "{number}");
    }
    // Another file takes the rest; then the server dies. Operations that free room go on.
    let other = small.0.join("other");
    let filled = fs::write(&other, vec![0; small.available() as usize + (1 << 20)]);
    assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(small.available(), 0);
    if let Some(mut meta) = site.servers.meta.take() {
        meta.kill();
    }
    site.servers.start();
    let name = |number: u32| path.join(number.to_string());
    fs::remove_file(name(made - 1)).unwrap();
    fs::rename(name(made - 2), name(made - 3)).unwrap();
    File::options().write(true).open(name(made - 4)).unwrap().set_len(0).unwrap();
    fs::set_permissions(name(made - 5), fs::Permissions::from_mode(0o600)).unwrap();
    let refused = fs::create_dir(path.join("directory")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull, "{refused}");
    let said = site.servers.said();
    assert!(
        said.contains("nearly full: nothing new is created until") && said.contains("MiB"),
        "{said}"
    );
    let made = made - 5;
    fs::remove_file(&other).unwrap();
    fs::remove_file(&ballast).unwrap();
    wait_for("there is space again", || fs::write(path.join("again"), content(7)).is_ok());
    for number in 0..made / 2 {
        fs::remove_file(path.join(number.to_string())).unwrap();
    }
    for number in made / 2..made {
        assert!(fs::read(path.join(number.to_string())).unwrap() == content(number), "{number}");
    }
}

#[test]
fn a_cluster_on_a_full_disk_starts_again_and_can_be_emptied() {
    let place = tempfile::tempdir().unwrap();
    let Some(small) = Small::new(&place.path().join("small"), "160m") else { return };
    let directory = small.0.join("cluster");
    let words =
        ["up", directory.to_str().unwrap(), "--listen", "127.0.0.1:0", "--data-servers", "1"];
    let start = || {
        let up = Process::start(&words, "serves at");
        let address = up.line.split("serves at ").nth(1).unwrap().trim().to_string();
        (up, address)
    };
    let (mut up, address) = start();
    fs::write(place.path().join("file"), vec![7; 3 << 20]).unwrap();
    ropewalk(place.path(), &address, &["cp", "file", ":/file"]).well();
    up.kill();
    for round in 0..2 {
        // Log, number of the process, stores: all of them lie on a disk without a byte left.
        let other = small.0.join(format!("other{round}"));
        let filled = fs::write(&other, vec![0; small.available() as usize + (1 << 20)]);
        assert_eq!(filled.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(small.available(), 0);
        let (mut up, address) = start();
        let run = |words: &[&str]| ropewalk(place.path(), &address, words);
        if round == 0 {
            run(&["cp", ":/file", "back"]).well();
            assert!(fs::read(place.path().join("back")).unwrap() == vec![7; 3 << 20]);
            let error = run(&["mkdir", ":/new"]).badly();
            assert!(error.contains("No space left"), "{error}");
            run(&["rm", ":/file"]).well();
            wait_for("the room is free", || small.available() > 2 << 20);
        } else {
            assert!(run(&["ls", ":/"]).well().trim().is_empty());
        }
        up.kill();
    }
}

/// The largest file below a directory.
fn largest(directory: &Path) -> (u64, PathBuf) {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let size = |entry: fs::DirEntry| match entry.metadata().unwrap() {
        found if found.is_dir() => largest(&entry.path()),
        found => (found.len(), entry.path()),
    };
    entries.map(size).max().unwrap_or_default()
}

#[test]
fn a_mount_is_unmounted_also_while_its_servers_are_down() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut site = Site::new(place.path(), 1);
    site.servers.start();
    let path = site.mount("mount", &[]);
    fs::write(path.join("file"), b"bytes").unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    File::open(path.join("file")).unwrap().sync_all().unwrap();
    site.servers.kill_servers();
    let said = ropewalk(place.path(), "", &["umount", path.to_str().unwrap()]);
    said.well();
    assert!(fs::read_dir(&path).unwrap().next().is_none(), "it is mounted still");
}

#[test]
fn a_flipped_byte_is_an_error_that_names_the_object() {
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut site = Site::new(place.path(), 1);
    site.servers.start();
    let path = site.mount("mount", &[]);
    let bytes: Vec<u8> = (0..300_000u32).map(|number| (number / 7) as u8).collect();
    fs::write(path.join("file"), &bytes).unwrap();
    File::open(path.join("file")).unwrap().sync_all().unwrap();
    let objects = site.servers.place("data0").join("objects/objects");
    let (_, object) = largest(&objects);
    let file = File::options().read(true).write(true).open(&object).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 150_000).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 150_000).unwrap();
    let fresh = site.mount("fresh", &[]);
    let error = fs::read(fresh.join("file")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let inode = rustix::fs::stat(fresh.join("file")).unwrap().st_ino;
    let name = format!("object {inode}.0.0");
    assert!(site.servers.said().contains(&name), "{name} is not in: {}", site.servers.said());
    // A copy without the mount says of which file, and from where.
    let copy = ["cp", ":/file", "copy"];
    let error = ropewalk(place.path(), &site.servers.address(), &copy).badly();
    assert!(error.contains(&format!("inode {inode}: data server 0 cannot read")), "{error}");
    // The rest of the file is served, if the kernel does not ask for more than is read.
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = File::options().read(true).custom_flags(direct).open(fresh.join("file")).unwrap();
    let mut part = vec![0; 65_536];
    let refused: Vec<usize> = (0..262_144)
        .step_by(part.len())
        .filter(|offset| match file.read_exact_at(&mut part, *offset as u64) {
            Ok(()) => {
                assert!(part == bytes[*offset..offset + 65_536], "at {offset}");
                false
            }
            Err(_) => true,
        })
        .collect();
    assert_eq!(refused.len(), 1, "one block is bad: {refused:?}");
    // Whole blocks that are written anew are well again.
    let healer = File::options().write(true).open(fresh.join("file")).unwrap();
    let bad = refused[0];
    healer.write_all_at(&bytes[bad..bad + 65_536], bad as u64).unwrap();
    assert!(fs::read(path.join("file")).unwrap() == bytes);
}

fn reader(path: &Path) -> Child {
    // SIGINT may be ignored in whoever runs the tests in the background.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", "cat"])
        .arg(path)
        .stdout(Stdio::null())
        .spawn()
        .expect("cat runs")
}

fn ends_by(path: &Path, signal: Signal) {
    use std::os::unix::process::ExitStatusExt;
    let mut child = reader(path);
    std::thread::sleep(Duration::from_millis(300));
    let early = child.try_wait().unwrap();
    assert!(early.is_none(), "{}, {signal:?}: it does not wait: {early:?}", path.display());
    kill_process(Pid::from_child(&child), signal).unwrap();
    wait_for("whoever waits for a dead server can be ended", || {
        child.try_wait().unwrap().is_some_and(|status| {
            assert_eq!(status.signal(), Some(signal.as_raw()));
            true
        })
    });
}

#[test]
fn a_process_that_waits_for_a_dead_server_dies_on_a_signal() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut site = Site::new(place.path(), 1);
    site.servers.start();
    let path = site.mount("mount", &["--patience", "3600"]);
    for name in ["a", "b", "c", "d"] {
        fs::write(path.join(name), vec![1; 1 << 20]).unwrap();
    }
    // A mount that has none of it in memory.
    let fresh = site.mount("fresh", &["--patience", "3600"]);
    site.servers.data[0].as_ref().expect("it runs").suspend();
    ends_by(&fresh.join("a"), Signal::INT);
    ends_by(&fresh.join("b"), Signal::KILL);
    site.servers.data[0] = None;
    ends_by(&fresh.join("c"), Signal::INT);
    ends_by(&fresh.join("d"), Signal::KILL);
    // The same for the metadata server.
    site.servers.meta.as_ref().expect("it runs").suspend();
    ends_by(&fresh.join("absent"), Signal::INT);
    site.servers.meta = None;
    ends_by(&fresh.join("absent"), Signal::INT);
    ends_by(&fresh.join("absent"), Signal::KILL);
    site.servers.start();
    for name in ["a", "b", "c", "d"] {
        assert!(fs::read(fresh.join(name)).unwrap() == vec![1; 1 << 20], "{name}");
    }
}

#[test]
fn operations_wait_for_a_server_that_is_down_and_fail_when_patience_ends() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut site = Site::new(place.path(), 1);
    site.servers.start();
    let writer = site.mount("writer", &[]);
    fs::write(writer.join("file"), vec![1; 1 << 20]).unwrap();
    let path = site.mount("mount", &["--patience", "2"]);
    let fails = |path: &Path| {
        let begin = Instant::now();
        let error = fs::read(path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5), "{error}");
        let took = begin.elapsed();
        assert!(took >= Duration::from_secs(2), "it was patient");
        // The kernel asks again for what failed: that is not another patience.
        assert!(took < Duration::from_millis(3500), "{took:?}");
    };
    site.servers.data[0] = None;
    fails(&path.join("file"));
    assert!(site.servers.said().contains("mount: waiting for data server 0 at"));
    site.servers.start();
    assert!(fs::read(path.join("file")).unwrap() == vec![1; 1 << 20]);
    site.servers.meta = None;
    fails(&path.join("another"));
    assert!(site.servers.said().contains("mount: waiting for the metadata server at"));
    site.servers.start();
    fs::write(path.join("another"), "written").unwrap();
    assert_eq!(fs::read_to_string(writer.join("another")).unwrap(), "written");
}
