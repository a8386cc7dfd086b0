//! Ordinary programs on a mounted cluster of real processes.

mod support;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use support::{Cluster, installed, mounts_usable, run, unmount};

/// A tree of real files to copy: this package's own sources, twice nested, and a large file.
fn tree(path: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(path.join("deep/er")).unwrap();
    for (index, name) in ["src", "tests"].iter().enumerate() {
        let target = if index == 0 { path.join("deep") } else { path.join("deep/er") };
        run(sources, "cp", &["-a", name, target.to_str().unwrap()]);
    }
    let bytes: Vec<u8> = (0..5_000_000u32).flat_map(|word| word.to_le_bytes()).collect();
    fs::write(path.join("large"), &bytes).unwrap();
    std::os::unix::fs::symlink("deep/src/main.rs", path.join("link")).unwrap();
    fs::hard_link(path.join("large"), path.join("also large")).unwrap();
}

#[test]
fn cp_tar_git_sqlite_and_rm_work_on_a_mount() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (source, mount) = (place.path().join("source"), place.path().join("mount"));
    fs::create_dir(&source).unwrap();
    fs::create_dir(&mount).unwrap();
    tree(&source);
    let cluster = Cluster::start(&place.path().join("cluster"));
    let _mounted = cluster.mount(&mount);
    let from = source.to_str().unwrap();
    run(&mount, "cp", &["-a", from, "copy"]);
    run(&mount, "diff", &["-r", from, "copy"]);
    for name in ["large", "deep/src/main.rs", "deep"] {
        let (a, b) = (fs::metadata(source.join(name)), fs::metadata(mount.join("copy").join(name)));
        let (a, b) = (a.unwrap(), b.unwrap());
        assert_eq!((a.mode(), a.mtime(), a.mtime_nsec()), (b.mode(), b.mtime(), b.mtime_nsec()));
    }
    assert_eq!(fs::metadata(mount.join("copy/large")).unwrap().nlink(), 2);
    run(&mount, "tar", &["cSf", "tree.tar", "copy"]);
    fs::create_dir(mount.join("out")).unwrap();
    run(&mount, "tar", &["xf", "tree.tar", "-C", "out"]);
    run(&mount, "diff", &["-r", "copy", "out/copy"]);
    let repository = place.path().join("repository");
    fs::create_dir(&repository).unwrap();
    run(&repository, "git", &["init", "-q"]);
    run(&repository, "cp", &["-r", from, "tree"]);
    run(&repository, "git", &["add", "-A"]);
    let author = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    run(&repository, "git", &[&author[..], &["commit", "-q", "-m", "tree"]].concat());
    run(&mount, "git", &["clone", "-q", repository.to_str().unwrap(), "clone"]);
    let clone = mount.join("clone");
    assert_eq!(run(&clone, "git", &["status", "--short"]), "");
    run(&clone, "git", &["fsck", "--strict"]);
    let script = "create table t(a integer primary key, b text);\
                  with recursive c(x) as (select 1 union all select x+1 from c where x<2000) \
                  insert into t select x, hex(randomblob(50)) from c;\
                  pragma integrity_check; select count(*) from t;";
    assert_eq!(run(&mount, "sqlite3", &["data.db", script]).trim(), "ok\n2000");
    run(&mount, "rm", &["-rf", "copy", "out", "clone", "tree.tar", "data.db"]);
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    unmount(&mount);
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !mounts_usable() || !installed("fio") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mount = place.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let _mounted = cluster.mount(&mount);
    for (name, direct, rw) in [("buffered", "0", "randwrite"), ("direct", "1", "randwrite")] {
        let arguments = [
            format!("--name={name}"),
            format!("--rw={rw}"),
            format!("--direct={direct}"),
            "--bs=4k-64k".into(),
            "--size=16m".into(),
            "--verify=crc32c".into(),
            "--verify_fatal=1".into(),
            "--do_verify=1".into(),
            "--ioengine=psync".into(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run(&mount, "fio", &arguments);
    }
    unmount(&mount);
}

#[test]
fn two_mounts_see_each_other_at_once() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, _two) = (cluster.mount(&a), cluster.mount(&b));
    for round in 0..50 {
        let name = format!("file{round}");
        assert!(fs::metadata(b.join(&name)).is_err());
        fs::write(a.join(&name), format!("from a {round}")).unwrap();
        assert_eq!(fs::read_to_string(b.join(&name)).unwrap(), format!("from a {round}"));
        fs::write(b.join(&name), "from b, longer than before").unwrap();
        assert_eq!(fs::read_to_string(a.join(&name)).unwrap(), "from b, longer than before");
        fs::rename(a.join(&name), a.join("renamed")).unwrap();
        assert!(fs::metadata(b.join(&name)).is_err());
        assert_eq!(fs::read(b.join("renamed")).unwrap().len(), 26);
        fs::remove_file(b.join("renamed")).unwrap();
        assert!(fs::metadata(a.join("renamed")).is_err());
    }
    // An open file is followed, too.
    let mut writer = fs::File::create(a.join("open")).unwrap();
    let mut reader = fs::File::open(b.join("open")).unwrap();
    for round in 0..20u8 {
        writer.seek(SeekFrom::Start(0)).unwrap();
        writer.write_all(&[round; 100]).unwrap();
        let mut seen = [0; 100];
        reader.seek(SeekFrom::Start(0)).unwrap();
        reader.read_exact(&mut seen).unwrap();
        assert_eq!(seen, [round; 100]);
    }
    drop((writer, reader));
    // Appends from both sides: none is lost.
    std::thread::scope(|scope| {
        for (mount, who) in [(&a, 'a'), (&b, 'b')] {
            scope.spawn(move || {
                let path = mount.join("log");
                let mut options = fs::OpenOptions::new();
                let mut file = options.append(true).create(true).open(path).unwrap();
                for number in 0..200 {
                    // One write a line: data that is appended at once stays together.
                    file.write_all(format!("{who}{number:05}\n").as_bytes()).unwrap();
                }
            });
        }
    });
    let log = fs::read_to_string(a.join("log")).unwrap();
    for who in ['a', 'b'] {
        let of: Vec<_> = log.lines().filter(|line| line.starts_with(who)).collect();
        let expected: Vec<_> = (0..200).map(|number| format!("{who}{number:05}")).collect();
        assert_eq!(of, expected);
    }
    unmount(&a);
    unmount(&b);
}

/// Both know the file, both write it at the same moment: each write holds pages of its kernel, which
/// the other one's write wants to be given up.
#[test]
fn two_mounts_that_write_one_file_at_the_same_moment_do_not_wait_for_each_other() {
    use std::os::unix::fs::FileExt;
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, _two) = (cluster.mount(&a), cluster.mount(&b));
    const ROUNDS: u64 = 60;
    let begin = std::time::Instant::now();
    for round in 0..ROUNDS {
        let name = format!("both{round}");
        fs::write(a.join(&name), vec![b'.'; 40_000]).unwrap();
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (mount, who) in [(&a, b'a'), (&b, b'b')] {
                let (path, barrier) = (mount.join(&name), &barrier);
                scope.spawn(move || {
                    let file = fs::File::options().read(true).write(true).open(path).unwrap();
                    let mut seen = [0; 100];
                    file.read_exact_at(&mut seen, 0).unwrap();
                    barrier.wait();
                    for part in 0..8 {
                        // Parts of pages that the kernel may not have, next to the other one's.
                        let at = part * 4096 + if who == b'a' { 100 } else { 2000 };
                        file.write_all_at(&[who; 500], at).unwrap();
                    }
                });
            }
        });
        let (seen, other) = (fs::read(a.join(&name)).unwrap(), fs::read(b.join(&name)).unwrap());
        assert!(seen == other, "round {round}: the mounts see different bytes");
        for part in 0..8 {
            let at = part * 4096;
            assert_eq!(seen[at + 100..at + 600], [b'a'; 500], "round {round}");
            assert_eq!(seen[at + 2000..at + 2500], [b'b'; 500], "round {round}");
        }
    }
    // A wait for the end of a session's term takes ten seconds.
    println!("{ROUNDS} rounds took {:?}", begin.elapsed());
    unmount(&a);
    unmount(&b);
}

/// A process that writes a few bytes in place all the time does not keep another one from making the file
/// large, and its own writes are answered. A write holds a page of its kernel for as long as it lasts. So a
/// recall must not wait for the kernel while the write waits for a lease.
#[test]
fn a_file_grows_on_one_mount_while_the_other_writes_its_beginning() {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, _two) = (cluster.mount(&a), cluster.mount(&b));
    let rounds = if std::env::var_os("ROPEWALK_SEEDS").is_some() { 600 } else { 12 };
    for round in 0..rounds {
        let name = format!("grows{round}");
        let path = a.join(&name);
        fs::write(&path, [1; 100]).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = fs::File::options().write(true).open(b.join(&name)).unwrap();
                while !over.load(Ordering::Relaxed) {
                    file.write_all_at(&[2; 10], 0).unwrap();
                }
            });
            let file = fs::File::options().read(true).write(true).open(&path).unwrap();
            for part in 1..20u64 {
                file.write_all_at(&[3; 5000], part * 5000).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        let back = fs::read(b.join(&name)).unwrap();
        assert_eq!(back.len(), 100_000);
        assert_eq!(back[5000..], [3; 95_000]);
        fs::remove_file(&path).unwrap();
    }
    unmount(&a);
    unmount(&b);
}

/// Programs on two mounts append to one file, and others follow it, as `tail -f` does.
#[test]
fn who_follows_a_file_that_two_mounts_append_to_sees_no_zeros() {
    const EACH: usize = 150;
    const LENGTHS: [usize; 3] = [100, 60_000, 3000];
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, _two) = (cluster.mount(&a), cluster.mount(&b));
    fs::write(a.join("log"), vec![9; 100_000]).unwrap();
    let appending =
        |mount: &Path| fs::File::options().append(true).open(mount.join("log")).unwrap();
    // Both are open before the first record: neither mount has the file for itself.
    let files = [(1, appending(&a)), (2, appending(&b)), (3, appending(&b))];
    let whole = 100_000 + files.len() * EACH / LENGTHS.len() * LENGTHS.iter().sum::<usize>();
    std::thread::scope(|scope| {
        for (writer, mut file) in files {
            scope.spawn(move || {
                for number in 0..EACH {
                    let record = vec![writer; LENGTHS[number % LENGTHS.len()]];
                    file.write_all(&record).unwrap();
                    assert!(file.metadata().unwrap().len() >= record.len() as u64);
                }
            });
        }
        for mount in [&a, &b] {
            scope.spawn(move || {
                let mut file = fs::File::open(mount.join("log")).unwrap();
                let (mut at, mut bytes) = (0, vec![0; 1 << 17]);
                while at < whole {
                    let len = file.read(&mut bytes).unwrap();
                    let zero = bytes[..len].iter().position(|byte| *byte == 0);
                    assert_eq!(zero.map(|zero| at + zero), None, "a zero below the size");
                    at += len;
                }
            });
        }
    });
    assert_eq!(fs::metadata(b.join("log")).unwrap().len(), whole as u64);
    unmount(&a);
    unmount(&b);
}

#[test]
fn locks_exclude_across_mounts() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, mut two) = (cluster.mount(&a), cluster.mount(&b));
    let first = fs::File::create(a.join("lock")).unwrap();
    let second = fs::OpenOptions::new().write(true).open(b.join("lock")).unwrap();
    first.lock().unwrap();
    assert!(second.try_lock().is_err());
    first.unlock().unwrap();
    second.try_lock().unwrap();
    assert!(first.try_lock().is_err());
    // The mount that holds it dies: its locks end with its session.
    two.kill();
    drop(second);
    first.lock().unwrap();
    drop(first);
    unmount(&a);
}
