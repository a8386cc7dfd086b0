//! The demo: it ends cleanly whatever happens, and works for everybody.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use support::command::Plain;
use support::{PROGRAM, mounts_usable};

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

/// Starts a demo, and interrupts it when it says `at`. Whether it was still at work then.
fn interrupted(source: &Path, temporary: &Path, more: &[&str], at: &str) -> bool {
    let mut child = Command::new(PROGRAM)
        .args(["demo", "--source", source.to_str().unwrap()])
        .args(more)
        .env("TMPDIR", temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(at)), "it never says '{at}'");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
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
    !status.success()
}

fn ctrl_c(more: &[&str], at: &str) {
    let place = tempfile::tempdir().unwrap();
    let (tree, temporary) = (place.path().join("source"), place.path().join("temporary"));
    fs::create_dir(&temporary).unwrap();
    // The signal may come late on a busy machine; then there has to be more to do.
    for files in [1000, 4000, 16000, 64000] {
        source(&tree, files);
        if interrupted(&tree, &temporary, more, at) {
            return;
        }
    }
    panic!("no demo was at work when the signal came");
}

#[test]
fn ctrl_c_unmounts_stops_and_leaves_nothing() {
    if mounts_usable() {
        ctrl_c(&[], "Mounted on");
    }
}

#[test]
fn ctrl_c_ends_a_demo_without_a_mount_and_leaves_nothing() {
    ctrl_c(&["--no-mount"], "Not mounted (--no-mount was asked for)");
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
    let through = ["Mounted on ", "going on through the client library"];
    assert!(through.iter().any(|way| said.contains(way)), "{said}");
    assert!(said.contains("Every byte and attribute is as in the source."), "{said}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left");
}
