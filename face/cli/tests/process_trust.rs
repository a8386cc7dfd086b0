//! What a user with a shell on a host of the cluster cannot do.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use support::command::ropewalk;
use support::{PROGRAM, Process};

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

/// Everything below a directory, and itself, with its rights.
fn rights(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    let mut found = vec![(directory.to_path_buf(), mode(directory))];
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => found.extend(rights(&entry)),
            false => found.push((entry.clone(), mode(&entry))),
        }
    }
    found
}

/// Each thing below a directory that others than its owner can use.
fn wide(directory: &Path) -> Vec<(PathBuf, u32)> {
    rights(directory).into_iter().filter(|(_, mode)| mode & 0o077 != 0).collect()
}

/// A command of a user whose umask takes nothing away.
fn open_handed(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\"", PROGRAM]).args(arguments);
    command
}

#[test]
fn only_the_owner_can_read_what_servers_and_commands_make() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), vec![7; 3_000_000]).unwrap();
    let (up, formatted) = (place.path().join("up"), place.path().join("formatted"));
    let capture = place.path().join("capture.pcapng");
    let mut command = open_handed(&["up", &text(&up), "--listen", "127.0.0.1:0"]);
    command.env("ROPEWALK_CAPTURE", &capture);
    let mut serving = Process::run(command, "serves at").unwrap();
    let address = serving.line.split("serves at ").nth(1).unwrap().trim().to_string();
    ropewalk(place.path(), &address, &["cp", "file", ":/"]).well();
    assert!(rights(&up).len() > 20, "a store has files: {:?}", rights(&up));
    assert_eq!(wide(&up), []);
    serving.stop();
    assert_eq!(wide(&up), []);
    let captures = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path());
    let captures: Vec<_> =
        captures.filter(|path| text(path).contains("capture")).flat_map(|it| wide(&it)).collect();
    assert_eq!(captures, []);
    let status = open_handed(&["format", &text(&formatted)]).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
    assert_eq!(wide(&formatted), []);
    let background = text(&place.path().join("background"));
    let words = ["up", &background, "--listen", "127.0.0.1:0", "--background"];
    // What goes on in the background keeps no pipe of ours.
    let status = open_handed(&words).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
    let found = wide(Path::new(&background));
    ropewalk(place.path(), "", &["down", &background]).well();
    assert_eq!(found, []);
}

#[test]
fn a_store_that_others_can_read_is_told_of_at_each_start() {
    let place = tempfile::tempdir().unwrap();
    let (directory, log) = (place.path().join("up"), place.path().join("log"));
    let mut said = Vec::new();
    for mode in [0o700, 0o755] {
        let stderr = fs::File::create(&log).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["up", &text(&directory), "--listen", "127.0.0.1:0"]).stderr(stderr);
        if mode != 0o700 {
            let store = directory.join("data1");
            fs::set_permissions(store, fs::Permissions::from_mode(mode)).unwrap();
        }
        Process::run(command, "serves at").unwrap().stop();
        said.push(fs::read_to_string(&log).unwrap());
    }
    assert!(!said[0].contains("chmod"), "{}", said[0]);
    let data = text(&directory.join("data1"));
    assert_eq!(said[1].matches("chmod").count(), 1, "{}", said[1]);
    assert!(said[1].contains(&format!("chmod -R go= {data}")), "{}", said[1]);
}
