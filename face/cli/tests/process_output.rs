//! Commands whose output nobody reads, or for which there is no room.

mod support;

use std::fs::OpenOptions;
use std::process::{Command, Output, Stdio};

use support::{Cluster, PROGRAM};

/// Commands that print something.
const COMMANDS: [&[&str]; 12] = [
    &["status"],
    &["status", "--json"],
    &["check"],
    &["check", "--json"],
    &["df"],
    &["ls", "-la", ":/"],
    &["stat", ":/"],
    &["mx", "info"],
    &["mx", "info", "--json"],
    &["mx", "endpoints"],
    &["completions", "bash"],
    &["bench", "net", "--list"],
];

fn run(cluster: &Cluster, arguments: &[&str], out: Stdio) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("ROPEWALK_ADDRESS", cluster.address()).stdout(out);
    command.stderr(Stdio::piped()).output().expect("the program under test can be started")
}

#[test]
fn a_closed_pipe_ends_a_command_quietly_and_a_full_disk_is_an_error() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let closed = run(&cluster, arguments, writer.into());
        let said = String::from_utf8_lossy(&closed.stderr).into_owned();
        assert!(closed.status.success() && said.is_empty(), "{arguments:?}: {said}");
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let full = run(&cluster, arguments, full.into());
        let said = String::from_utf8_lossy(&full.stderr).into_owned();
        assert!(!full.status.success(), "{arguments:?} succeeds on a full disk");
        assert!(said.contains("standard output: No space left on device"), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_demo_that_nobody_reads_ends_in_good_order() {
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("source")).unwrap();
    for arguments in [&["--no-mount"] as &[&str], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(PROGRAM);
        command.args(["demo", "--source", "source"]).args(arguments);
        command.current_dir(place.path()).env("TMPDIR", place.path());
        let ended = command.stdout(writer).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success() && !said.contains("panicked"), "{said}");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "nothing is left: {said}");
    }
}
