//! A damaged store under real servers: lost data is an error with a name, and nothing else is an error.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use support::command::ropewalk;
use support::{PROGRAM, run};

const FILES: u64 = 8;
const BYTES: usize = 300_000;

fn content(number: u64) -> Vec<u8> {
    let mut random = ropewalk_base::random::Random::from_seed(number);
    (0..BYTES).map(|_| random.next_u64() as u8 | 1).collect()
}

/// A cluster in the background, which is ended with the test.
struct Cluster<'a>(&'a Path, &'a str);

impl Cluster<'_> {
    fn words(&self) -> [&str; 7] {
        let directory = self.0.to_str().unwrap();
        ["up", directory, "--background", "--data-servers", self.1, "--listen", "127.0.0.1:0"]
    }

    fn start(&self) -> String {
        let line = run(self.0.parent().unwrap(), PROGRAM, &self.words());
        let address = line.split("serves at ").nth(1);
        address.expect("it says where").split_whitespace().next().unwrap().to_string()
    }

    /// The error message of a start that fails.
    fn refused(&self) -> String {
        let refused = Command::new(PROGRAM).args(self.words()).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{said}");
        said
    }

    fn kill(&self) {
        let number = fs::read_to_string(self.0.join("running")).unwrap();
        let number = number.split_whitespace().next().unwrap().to_string();
        run(self.0, "kill", &["-9", &number]);
        while Path::new("/proc").join(&number).exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        let _ = Command::new(PROGRAM).arg("down").arg(self.0).output();
    }
}

/// Changes a byte of what is used of the log's first segment; the file beside it keeps its bytes.
fn flip(segment: &Path, part: usize, of: usize) {
    let mut bytes = fs::read(segment).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let at = (used * part / of..used).find(|at| bytes[*at] != 0).unwrap();
    bytes[at] ^= 4;
    fs::write(segment, bytes).unwrap();
}

#[test]
fn a_flipped_bit_in_the_log_of_a_data_server_is_never_read_as_zeros() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cluster");
    let cluster = Cluster(&directory, "1");
    let mut address = cluster.start();
    for number in 0..FILES {
        fs::write(place.path().join("file"), content(number)).unwrap();
        let target = format!(":/{number}");
        ropewalk(place.path(), &address, &["cp", "-s", "-q", "file", &target]).well();
    }
    let mut lost = 0;
    for part in 1..4 {
        cluster.kill();
        flip(&directory.join("data0/objects/log/segment.0000"), part, 4);
        address = cluster.start();
        let mut named = Vec::new();
        for number in 0..FILES {
            let _ = fs::remove_file(place.path().join("back"));
            let source = format!(":/{number}");
            let said = ropewalk(place.path(), &address, &["cp", "-q", &source, "back"]);
            if said.success {
                let back = fs::read(place.path().join("back")).unwrap();
                assert!(back == content(number), "part {part}: file {number} has other bytes");
            } else {
                named.push(number);
            }
        }
        let check = ropewalk(place.path(), &address, &["check", "--read"]);
        assert_eq!(check.success, named.is_empty(), "{}", check.out);
        for number in &named {
            assert!(check.out.contains(&format!("/{number}")), "{}", check.out);
        }
        lost = lost.max(named.len());
    }
    let log = fs::read_to_string(directory.join("log")).unwrap();
    assert_eq!(lost > 0, log.contains("reading them is an error"), "{log}");
    assert!(lost < 4, "{lost} files are lost of three flipped bits");
}

#[test]
fn an_older_copy_of_a_whole_store_is_refused_by_the_servers_that_met_the_newer_one() {
    let place = tempfile::tempdir().unwrap();
    let (directory, older) = (place.path().join("cluster"), place.path().join("older"));
    let cluster = Cluster(&directory, "1");
    let copy = |from: &Path, to: &Path| {
        let paths = [from.to_str().unwrap(), to.to_str().unwrap()];
        run(place.path(), "cp", &["-a", paths[0], paths[1]]);
    };
    let write = |number: u64, address: &str, name: &str| {
        fs::write(place.path().join(name), content(number)).unwrap();
        ropewalk(place.path(), address, &["cp", "-s", "-q", name, &format!(":/{name}")]).well();
    };
    let address = cluster.start();
    write(0, &address, "file");
    cluster.kill();
    copy(&directory, &older);
    let address = cluster.start();
    write(1, &address, "file");
    write(2, &address, "other");
    cluster.kill();
    for part in ["meta", "data0"] {
        let (now, newer) = (directory.join(part), place.path().join("newer"));
        fs::rename(&now, &newer).unwrap();
        copy(&older.join(part), &now);
        // The second time nothing is forgotten.
        for _ in 0..2 {
            let said = cluster.refused();
            assert!(said.contains("older copy"), "{part}: {said}");
        }
        fs::remove_dir_all(&now).unwrap();
        fs::rename(&newer, &now).unwrap();
    }
    // With the newer ones all is there.
    let address = cluster.start();
    for (number, name) in [(1, "file"), (2, "other")] {
        ropewalk(place.path(), &address, &["cp", "-q", &format!(":/{name}"), "back"]).well();
        assert!(fs::read(place.path().join("back")).unwrap() == content(number), "{name}");
        fs::remove_file(place.path().join("back")).unwrap();
    }
    cluster.kill();
    // A whole cluster of an earlier day is consistent in itself.
    fs::remove_dir_all(&directory).unwrap();
    copy(&older, &directory);
    let address = cluster.start();
    ropewalk(place.path(), &address, &["cp", "-q", ":/file", "back"]).well();
    assert!(fs::read(place.path().join("back")).unwrap() == content(0));
}

fn copy(from: &Path, to: &Path) {
    run(to.parent().unwrap(), "cp", &["-a", from.to_str().unwrap(), to.to_str().unwrap()]);
}

fn read_back(place: &Path, address: &str, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let _ = fs::remove_file(place.join("back"));
        ropewalk(place, address, &["cp", "-q", &format!(":/{number}"), "back"]).well();
        assert!(fs::read(place.join("back")).unwrap() == content(number), "{number}");
    }
}

fn write(place: &Path, address: &str, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        fs::write(place.join("file"), content(number)).unwrap();
        let target = format!(":/{number}");
        ropewalk(place, address, &["cp", "-s", "-q", "file", &target]).well();
    }
}

#[test]
fn a_part_of_another_directory_and_an_older_copy_of_one_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let directory = place.join("cluster");
    let cluster = Cluster(&directory, "2");
    let address = cluster.start();
    write(place, &address, 0..FILES);
    cluster.kill();
    let objects = [directory.join("data0/objects"), directory.join("data1/objects")];
    let exchange = || {
        fs::rename(&objects[0], place.join("between")).unwrap();
        fs::rename(&objects[1], &objects[0]).unwrap();
        fs::rename(place.join("between"), &objects[1]).unwrap();
    };
    exchange();
    let said = cluster.refused();
    assert!(said.contains("objects is of another directory"), "{said}");
    exchange();
    let address = cluster.start();
    read_back(place, &address, 0..FILES);
    cluster.kill();
    let parts = ["data0/objects", "meta/journal", "meta/index.redb", "meta/journal.mark"];
    fs::create_dir_all(place.join("older/meta")).unwrap();
    fs::create_dir_all(place.join("older/data0")).unwrap();
    parts.iter().for_each(|part| copy(&directory.join(part), &place.join("older").join(part)));
    let address = cluster.start();
    write(place, &address, FILES..FILES + 3);
    cluster.kill();
    let (now, older, newer) = (&directory, &place.join("older"), &place.join("newer"));
    fs::create_dir_all(newer.join("meta")).unwrap();
    fs::create_dir_all(newer.join("data0")).unwrap();
    for parts in [&parts[..1], &parts[1..]] {
        for part in parts {
            fs::rename(now.join(part), newer.join(part)).unwrap();
            copy(&older.join(part), &now.join(part));
        }
        let said = cluster.refused();
        assert!(said.contains(&format!("{} is an older copy", parts[0])), "{said}");
        for part in parts {
            run(place, "rm", &["-r", now.join(part).to_str().unwrap()]);
            fs::rename(newer.join(part), now.join(part)).unwrap();
        }
        let address = cluster.start();
        read_back(place, &address, 0..FILES + 3);
        cluster.kill();
    }
}

/// A file system of its own, which is taken away with the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

#[test]
fn a_data_server_without_an_inode_starts_and_files_can_be_removed() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let directory = place.join("cluster");
    let data = directory.join("data0");
    fs::create_dir_all(&data).unwrap();
    let options = ["-t", "tmpfs", "-o", "size=150m,nr_inodes=200,mode=0700", "none"];
    let mounted = Command::new("mount").args(options).arg(&data).output().unwrap();
    if !mounted.status.success() {
        println!("SKIP: no small file system in memory can be mounted: {mounted:?}");
        return;
    }
    let _mounted = Mounted(data.clone());
    let cluster = Cluster(&directory, "1");
    let mut address = cluster.start();
    write(place, &address, 0..FILES);
    fs::create_dir(data.join("others")).unwrap();
    for life in 0..4 {
        // Somebody else takes all that there is.
        let mut taken = 0;
        while fs::write(data.join(format!("others/{life}.{taken}")), b"").is_ok() {
            taken += 1;
        }
        match life {
            2 => drop(run(place, PROGRAM, &["down", directory.to_str().unwrap()])),
            _ => cluster.kill(),
        }
        address = cluster.start();
        read_back(place, &address, life..FILES);
        ropewalk(place, &address, &["rm", &format!(":/{life}")]).well();
        let until = Instant::now() + Duration::from_secs(20);
        while fs::write(data.join("others/freed"), b"").is_err() {
            assert!(Instant::now() < until, "life {life}: the removal frees nothing");
            std::thread::sleep(Duration::from_millis(50));
        }
        fs::remove_file(data.join("others/freed")).unwrap();
    }
}
