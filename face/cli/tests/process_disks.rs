//! Stores whose disks and files are not what a server takes them for, and limits of its process.

mod support;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use support::command::{Plain, ropewalk};
use support::site::is_root;
use support::{PROGRAM, Process};

fn up(directory: &Path) -> Vec<&str> {
    vec!["up", directory.to_str().unwrap(), "--listen", "127.0.0.1:0", "--data-servers", "1"]
}

fn start(directory: &Path) -> (Process, String) {
    let serving = Process::start(&up(directory), "serves at");
    let address = serving.line.split("serves at ").nth(1).unwrap().trim().to_string();
    (serving, address)
}

fn content(number: u8) -> Vec<u8> {
    (0..300_000u32).map(|at| (at % 251) as u8 ^ number).collect()
}

/// Regular files below a directory.
fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => found.extend(files_below(&entry)),
            false => found.push(entry),
        }
    }
    found
}

/// Puts files into a cluster whose stores lose their names meanwhile, and reads them when they have them back.
fn lose_names(place: &Path, lose: impl Fn(&Path), bring_back: impl Fn(&Path)) {
    let directory = place.join("up");
    for name in ["data0", "meta"] {
        let store = directory.join(name);
        let (mut serving, address) = start(&directory);
        let put = |number: u8| {
            fs::write(place.join("file"), content(number)).unwrap();
            ropewalk(place, &address, &["cp", "-s", "file", &format!(":/{number}")]).well();
        };
        (0..4).for_each(put);
        lose(&store);
        fs::create_dir_all(&store).unwrap();
        (4..24).for_each(put);
        ropewalk(place, &address, &["check", "--read"]).well();
        // Journal and log go on in new files.
        assert_eq!(files_below(&store), [] as [&Path; 0], "{name}: files on the wrong disk");
        serving.kill();
        bring_back(&store);
        let (mut serving, address) = start(&directory);
        for number in 0..24 {
            let _ = fs::remove_file(place.join("back"));
            ropewalk(place, &address, &["cp", &format!(":/{number}"), "back"]).well();
            assert!(fs::read(place.join("back")).unwrap() == content(number), "{name}: {number}");
        }
        ropewalk(place, &address, &["check", "--read"]).well();
        ropewalk(place, &address, &["rm", "-r", ":/0", ":/1", ":/2"]).well();
        serving.stop();
    }
}

#[test]
fn a_server_stays_with_its_store_when_that_is_moved() {
    let place = tempfile::tempdir().unwrap();
    let elsewhere = place.path().join("elsewhere");
    lose_names(
        place.path(),
        |store| fs::rename(store, &elsewhere).unwrap(),
        |store| {
            fs::remove_dir_all(store).unwrap();
            fs::rename(&elsewhere, store).unwrap();
        },
    );
}

#[test]
fn a_server_stays_with_a_disk_that_is_unmounted_lazily() {
    if !is_root() {
        return;
    }
    // Other processes see nothing of the mounts of this one, which end with it.
    if std::env::var_os("ROPEWALK_TEST_APART").is_none() {
        let mut apart = Command::new("unshare");
        apart.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
        apart.args([
            "--exact",
            "a_server_stays_with_a_disk_that_is_unmounted_lazily",
            "--nocapture",
        ]);
        let output = apart.env("ROPEWALK_TEST_APART", "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        if error.contains("unshare failed") {
            return println!("SKIP: no mounts here: {error}");
        }
        return assert!(output.status.success() && said.contains("1 passed"), "{said}{error}");
    }
    let place = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| {
        support::run(place.path(), words[0], &words[1..]);
    };
    let disk = place.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let disk = disk.to_str().unwrap();
    let (mut serving, _) = start(&place.path().join("up"));
    serving.stop();
    for name in ["data0", "meta"] {
        // Each store on a disk of its own, which this test sees at another place, too.
        let store = place.path().join("up").join(name);
        let kept = format!("{disk}/{name}");
        fs::create_dir(&kept).unwrap();
        run(&["mount", "-t", "tmpfs", "-o", "mode=0700", "store", &kept]);
        run(&["cp", "-a", &format!("{}/.", store.display()), &kept]);
        fs::remove_dir_all(&store).unwrap();
        fs::create_dir(&store).unwrap();
        run(&["mount", "--bind", &kept, store.to_str().unwrap()]);
    }
    let (lose, bring_back) = (
        |store: &Path| run(&["umount", "-l", store.to_str().unwrap()]),
        |store: &Path| {
            let kept = format!("{disk}/{}", store.file_name().unwrap().display());
            run(&["mount", "--bind", &kept, store.to_str().unwrap()]);
        },
    );
    lose_names(place.path(), lose, bring_back);
    for name in ["data0", "meta"] {
        run(&["umount", "-l", place.path().join("up").join(name).to_str().unwrap()]);
        run(&["umount", "-l", &format!("{disk}/{name}")]);
    }
}

/// The error message of a start that has to fail at once.
fn refused(directory: &Path) -> String {
    let mut command = Command::new(PROGRAM);
    command.args(up(directory)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let hangs = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!hangs && !output.status.success(), "it starts, or hangs: {error}");
    error
}

#[test]
fn what_is_no_regular_file_is_named_and_waited_for_by_nobody() {
    let place = tempfile::tempdir().unwrap();
    let (directory, kept) = (place.path().join("up"), place.path().join("kept"));
    start(&directory).0.stop();
    for name in [
        "running",
        "cluster",
        "data-servers",
        "meta/lock",
        "meta/superblock",
        "meta/index.redb",
        "meta/journal.mark",
        "data0/lock",
        "data0/superblock.second",
        "data0/joined",
        "data0/objects/store",
        "data0/objects/log/segment.0000",
    ] {
        let path = directory.join(name);
        let was = fs::rename(&path, &kept).is_ok();
        for kind in ["FIFO", "socket"] {
            match kind {
                "FIFO" => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap(),
                _ => drop(UnixListener::bind(&path).unwrap()),
            }
            let error = refused(&directory);
            assert!(error.contains(path.to_str().unwrap()), "{name}: {error}");
            assert!(
                error.contains(kind) && error.contains("not a regular file"),
                "{name}: {error}"
            );
            let twice = error.matches("cannot open").count() + error.matches("cannot read").count();
            assert!(twice <= 1, "{name}: {error}");
            fs::remove_file(&path).unwrap();
        }
        if was {
            fs::rename(&kept, &path).unwrap();
        }
    }
    start(&directory).0.stop();
}

#[test]
fn what_cannot_be_opened_is_said_once() {
    let place = tempfile::tempdir().unwrap();
    let (directory, kept) = (place.path().join("up"), place.path().join("kept"));
    start(&directory).0.stop();
    for name in [
        "meta/lock",
        "meta/superblock",
        "meta/index.redb",
        "meta/journal.mark",
        "data0/lock",
        "data0/superblock",
        "data0/joined",
    ] {
        let path = directory.join(name);
        fs::rename(&path, &kept).unwrap();
        fs::create_dir(&path).unwrap();
        let error = refused(&directory);
        assert!(error.contains("Is a directory"), "{name}: {error}");
        assert_eq!(error.matches(path.to_str().unwrap()).count(), 1, "{name}: {error}");
        fs::remove_dir(&path).unwrap();
        fs::rename(&kept, &path).unwrap();
    }
    for (name, remedy) in [("log", "give-up"), ("objects", "--replace")] {
        let path = directory.join("data0/objects").join(name);
        fs::rename(&path, &kept).unwrap();
        let error = refused(&directory);
        assert!(error.contains(path.to_str().unwrap()), "{name}: {error}");
        assert!(error.contains("gone") && error.contains(remedy), "{name}: {error}");
        fs::rename(&kept, &path).unwrap();
    }
    start(&directory).0.stop();
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_death() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("up");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 4000; exec \"$0\" \"$@\"", PROGRAM]).args(up(&directory));
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{}: {error}", output.status);
    assert!(error.contains("File too large") && error.contains("meta/"), "{error}");
    start(&directory).0.stop();
}

#[test]
fn a_start_without_room_for_its_threads_says_so() {
    let place = tempfile::tempdir().unwrap();
    let plain = Plain::new(place.path());
    let directory = place.path().join("plain");
    fs::create_dir(&directory).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    }
    let cluster = directory.join("up");
    let mut refused = 0;
    for tasks in 1..20 {
        let mut command = Command::new("timeout");
        command.arg("3");
        if is_root() {
            command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.args(["prlimit", &format!("--nproc={tasks}:{tasks}")]);
        command.arg(plain.program()).args(up(&cluster));
        let output = command.current_dir("/").output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!error.contains("panicked"), "{tasks}: {error}");
        if error.contains("cannot start a thread") {
            assert!(error.contains("ulimit -u") && error.contains("ropewalk: "), "{error}");
            refused += 1;
        }
        if output.status.code() == Some(124) {
            break;
        }
    }
    assert!(refused > 0, "no limit was met");
}
