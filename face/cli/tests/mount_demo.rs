//! The demo: it ends cleanly whatever happens, and works for everybody.

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use rustix::process::{Pid, Signal, kill_process};
use support::command::{Plain, ropewalk};
use support::{Process, mounts_usable, processes, program};

/// A tree whose copying takes a while.
fn source(path: &Path, files: usize) {
    for number in 0..files {
        let directory = path.join(format!("d{}", number % 20));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("f{number}")), vec![number as u8; 6000]).unwrap();
    }
}

/// Waits for a child's end, not for ever.
fn end(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the demo does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a demo.
fn start(source: &Path, temporary: &Path, more: &[&str]) -> Child {
    program()
        .args(["demo", "--source", source.to_str().unwrap()])
        .args(more)
        .env("TMPDIR", temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads lines until one says `at`; the rest.
fn until(output: ChildStdout, at: &str) -> impl Iterator<Item = String> + use<> {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(at)), "it never says '{at}'");
    lines
}

/// Starts a demo, and interrupts it when it says `at`. Whether it was still at work then.
fn interrupted(
    source: &Path,
    temporary: &Path,
    (more, at, signal): (&[&str], &str, Signal),
) -> bool {
    let mut child = start(source, temporary, more);
    let lines = until(child.stdout.take().unwrap(), at);
    kill_process(Pid::from_child(&child), signal).unwrap();
    // Nobody shall wait for a full pipe.
    let reader = std::thread::spawn(move || lines.for_each(drop));
    let mut error = child.stderr.take().unwrap();
    let status = end(&mut child);
    reader.join().unwrap();
    let mut said = String::new();
    error.read_to_string(&mut said).unwrap();
    assert_eq!(fs::read_dir(temporary).unwrap().count(), 0, "nothing is left: {said}");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(temporary.to_str().unwrap()), "nothing stays mounted: {said}");
    assert!(status.success() || said.contains("interrupted"), "it says why it ends: {said}");
    assert!(
        status.success() || said.contains("stopping ..."),
        "it acknowledges the signal: {said}"
    );
    assert_eq!(processes(temporary), [] as [PathBuf; 0], "no process is left");
    !status.success()
}

fn ctrl_c(more: &[&str], at: &str, signal: Signal) {
    let place = tempfile::tempdir().unwrap();
    let (tree, temporary) = (place.path().join("source"), place.path().join("temporary"));
    fs::create_dir(&temporary).unwrap();
    // The signal may come late on a busy machine; then there has to be more to do.
    for files in [1000, 4000, 16000, 64000] {
        source(&tree, files);
        if interrupted(&tree, &temporary, (more, at, signal)) {
            return;
        }
    }
    panic!("no demo was at work when the signal came");
}

#[test]
fn ctrl_c_unmounts_stops_and_leaves_nothing() {
    if mounts_usable() {
        ctrl_c(&[], "Copying", Signal::INT);
    }
}

#[test]
fn ctrl_c_ends_a_demo_without_a_mount_and_leaves_nothing() {
    ctrl_c(&["--no-mount"], "Not mounted (--no-mount was given)", Signal::INT);
}

#[test]
fn a_closed_terminal_unmounts_stops_and_leaves_nothing() {
    if mounts_usable() {
        ctrl_c(&[], "Copying", Signal::HUP);
    }
}

/// Clears the leftovers of a demo's mount.
fn clear(temporary: &Path) {
    for entry in fs::read_dir(temporary).unwrap() {
        let path = entry.unwrap().path();
        if path.to_str().unwrap().contains("ropewalk-mount-") {
            ropewalk(temporary, "", &["umount", path.to_str().unwrap()]);
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(temporary.to_str().unwrap()), "nothing stays mounted");
}

#[test]
fn a_killed_demo_leaves_no_process_behind() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("source");
    source(&tree, 4000);
    for round in 0..4 {
        let temporary = place.path().join(format!("temporary{round}"));
        fs::create_dir(&temporary).unwrap();
        let mut child = start(&tree, &temporary, &[]);
        let lines = until(child.stdout.take().unwrap(), "Copying");
        std::thread::sleep(Duration::from_millis(100 * round));
        child.kill().unwrap();
        end(&mut child);
        drop(lines);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !processes(&temporary).is_empty() {
            assert!(Instant::now() < deadline, "{:?} are left", processes(&temporary));
            std::thread::sleep(Duration::from_millis(20));
        }
        clear(&temporary);
    }
}

#[test]
fn a_second_ctrl_c_ends_at_once_and_says_what_stays() {
    let place = tempfile::tempdir().unwrap();
    let (tree, temporary) = (place.path().join("source"), place.path().join("temporary"));
    source(&tree, 4000);
    fs::create_dir(&temporary).unwrap();
    // The first one may have ended it already.
    for _ in 0..10 {
        let mut child = start(&tree, &temporary, &[]);
        let lines = until(child.stdout.take().unwrap(), "Copying");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::INT).unwrap();
        let mut error = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(error.any(|line| line == "stopping ..."), "it acknowledges the signal");
        kill_process(pid, Signal::INT).unwrap();
        let status = end(&mut child);
        drop(lines);
        let said: Vec<String> = error.collect();
        if mounts_usable() {
            clear(&temporary);
        }
        if status.code() != Some(130) {
            continue;
        }
        let stays =
            said.iter().find(|line| line.starts_with("ended at once; these directories stay: "));
        let stays = stays.unwrap_or_else(|| panic!("it does not say what stays: {said:?}"));
        for entry in fs::read_dir(&temporary).unwrap() {
            let path = entry.unwrap().path();
            assert!(
                stays.contains(path.to_str().unwrap()),
                "{} is not in: {stays}",
                path.display()
            );
        }
        return;
    }
    panic!("no second signal came in time");
}

/// A tree with everything that is to be kept, as far as this user may make it.
fn everything(root: &Path) {
    fs::create_dir_all(root.join("inner/empty")).unwrap();
    fs::write(root.join("large"), vec![7; 3_000_000]).unwrap();
    fs::write(root.join("small"), b"small").unwrap();
    fs::hard_link(root.join("large"), root.join("inner/other")).unwrap();
    std::os::unix::fs::symlink("../large", root.join("inner/link")).unwrap();
    for (name, kind, device) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("character", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        ("block", FileType::BlockDevice, rustix::fs::makedev(7, 200)),
    ] {
        if device == 0 || rustix::process::geteuid().is_root() {
            let mode = Mode::from_raw_mode(0o620);
            rustix::fs::mknodat(CWD, root.join(name), kind, mode, device).unwrap();
        }
    }
    fs::hard_link(root.join("fifo"), root.join("inner/fifo")).unwrap();
    fs::File::create(root.join("hole")).unwrap().set_len(20 << 20).unwrap();
    let part = fs::File::create(root.join("part")).unwrap();
    part.write_all_at(&[9; 4096], 10 << 20).unwrap();
    part.set_len(20 << 20).unwrap();
    for (name, key) in [("large", "user.one"), ("inner", "user.two"), ("small", "user.three")] {
        let value = key.repeat(40);
        rustix::fs::setxattr(root.join(name), key, value.as_bytes(), XattrFlags::empty()).unwrap();
    }
    for (name, mode) in [("small", 0o4751), ("large", 0o440), ("inner", 0o2711)] {
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(root.join(name), Some(1234), Some(5678)).unwrap();
            std::os::unix::fs::lchown(root.join("inner/link"), Some(12), Some(34)).unwrap();
        }
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (number, name) in ["inner/link", "fifo", "large", "inner", ""].iter().enumerate() {
        let time =
            rustix::fs::Timespec { tv_sec: 1_000_000_000 + number as i64, tv_nsec: 123_456_789 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(CWD, root.join(name), &times, flags).unwrap();
    }
    assert!(fs::metadata(root).unwrap().modified().unwrap() > UNIX_EPOCH);
}

/// All that a copy keeps, by path: the results of `stat`, attributes, content, and the path by which the inode
/// is met first.
fn kept(root: &Path) -> BTreeMap<PathBuf, String> {
    let (mut left, mut paths) = (vec![root.to_path_buf()], Vec::new());
    while let Some(path) = left.pop() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        paths.push(path);
    }
    paths.sort();
    let mut first = BTreeMap::new();
    let mut all = BTreeMap::new();
    for path in paths {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_path_buf();
        let first = first.entry(meta.ino()).or_insert_with(|| name.clone());
        let mut names = vec![0; 1000];
        let len = rustix::fs::llistxattr(&path, &mut names).unwrap();
        let mut values = Vec::new();
        for key in names[..len].split(|byte| *byte == 0).filter(|key| key.starts_with(b"user.")) {
            let mut value = vec![0; 1000];
            let key = OsStr::from_bytes(key);
            let len = rustix::fs::lgetxattr(&path, key, &mut value[..]).unwrap();
            values.push((key.to_os_string(), value[..len].to_vec()));
        }
        values.sort();
        let content = match () {
            () if meta.is_file() => fs::read(&path).unwrap(),
            () if meta.is_symlink() => {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            }
            () => Vec::new(),
        };
        let sum = content.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
        // Holes are as fine as stripes.
        let holes =
            if meta.is_file() { meta.len().saturating_sub(meta.blocks() * 512) >> 20 } else { 0 };
        let line = format!(
            "{:o} {}:{} {}.{} {:x} {} {first:?} {values:?} {sum:x} {}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.rdev(),
            if meta.is_dir() { 0 } else { meta.len() },
            holes.div_ceil(2),
        );
        all.insert(name, line);
    }
    all
}

#[test]
fn all_that_can_be_kept_is_as_in_the_source_through_the_mount_and_the_library() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let [tree, link, directory, mount] =
        ["source", "link", "cluster", "mount"].map(|name| place.path().join(name));
    everything(&tree);
    std::os::unix::fs::symlink("source", &link).unwrap();
    fs::create_dir(&mount).unwrap();
    let expected = kept(&tree);
    for more in [&[] as &[&str], &["--no-mount"]] {
        let arguments = ["demo", "--source", "link", "--directory", "cluster"];
        let said = ropewalk(place.path(), "", &[&arguments, more].concat()).well();
        assert!(said.contains("Every byte matches the source, and so do holes"), "{said}");
        assert_ne!(said.contains("the copy goes into run-2"), more.is_empty(), "{said}");
        let whole: u64 = fs::metadata(tree.join("large")).unwrap().len() + 5 + (40 << 20);
        assert!(said.contains(&format!("{:.1} MiB", whole as f64 / f64::from(1 << 20))), "{said}");
    }
    let [directory, path] = [&directory, &mount].map(|path| path.to_str().unwrap());
    let arguments = ["up", directory, "--listen", "127.0.0.1:0", "--mount", path];
    let mut up = Process::mount(&arguments, &mount);
    for (copy, name) in [(mount.clone(), "run-2/"), (mount.join("run-2"), "")] {
        let mut found = kept(&copy);
        if !name.is_empty() {
            found.retain(|path, _| !path.starts_with(name));
            // The second copy changed the first one's directory.
            found.insert(PathBuf::new(), expected[Path::new("")].clone());
        }
        assert_eq!(found, expected);
    }
    up.stop();
}

#[test]
fn what_cannot_be_kept_is_said() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let plain = Plain::new(place.path());
    let tree = place.path().join("source");
    everything(&tree);
    fs::set_permissions(tree.join("large"), fs::Permissions::from_mode(0o444)).unwrap();
    for name in ["inner", "small"] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = plain.command(&["demo", "--no-mount", "--source", tree.to_str().unwrap()]);
    let output = command.env("TMPDIR", "/tmp").current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let line = said.lines().find(|line| line.starts_with("Not copied: ")).unwrap_or(&said);
    assert!(line.contains("device node of 2 entries, owner and group of "), "{line}");
    assert!(said.contains("and so do, except for these, holes"), "{said}");
}

#[test]
fn the_demo_works_as_a_plain_user_mounted_or_with_a_word_why_not() {
    let place = tempfile::tempdir().unwrap();
    let plain = Plain::new(place.path());
    let (tree, temporary) = (place.path().join("source"), place.path().join("temporary"));
    source(&tree, 40);
    fs::write(tree.join("large"), vec![3; 3_000_000]).unwrap();
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = plain.command(&["demo", "--source", tree.to_str().unwrap()]);
    let output = command.env("TMPDIR", &temporary).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}{error}");
    let through = ["Mounted on ", "the demo uses the client library instead"];
    let flat = said.replace('\n', " ");
    assert!(through.iter().any(|way| flat.contains(way)), "{said}");
    assert!(said.contains("Every byte matches the source, and so do"), "{said}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left");
}
