//! A mount whose cluster is down while somebody else's answers at its address: nothing goes to the other
//! one, nothing of it is shown, and the mount goes on when its own cluster is back.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use support::command::ropewalk;
use support::{Process, mounts_usable, program};

const BYTES: usize = 100_000;

/// A cluster in a directory, at an address or at one of its own.
fn up(directory: &Path, address: &str) -> (Process, String) {
    let directory = directory.to_str().unwrap();
    let words = ["up", directory, "--listen", address, "--data-servers", "1"];
    let serving = Process::start(&words, "serves at");
    let address = serving.line.split("serves at ").nth(1).unwrap().trim().to_string();
    (serving, address)
}

/// Of what a cluster says of its addresses, the one that another cluster can have, too.
fn socket(address: &str) -> String {
    let (_, socket) = address.rsplit_once("tcp://").expect("it listens over TCP");
    socket.to_string()
}

/// A file that fills the first inode of a cluster with a letter.
fn fill(place: &Path, directory: &Path, letter: u8) {
    let (mut serving, address) = up(directory, "127.0.0.1:0");
    fs::write(place.join("f"), vec![letter; BYTES]).unwrap();
    ropewalk(place, &address, &["cp", "f", ":/"]).well();
    serving.stop();
}

/// Has another cluster answer at the address; `said`: the mount's log must contain it.
fn check(place: &Path, other: &Path, said: &str) {
    let own = place.join("own");
    let mounted = place.join("mount");
    fs::create_dir_all(&mounted).unwrap();
    let (mut serving, address) = up(&own, "127.0.0.1:0");
    let log = place.join("log");
    let mut command = program();
    command.args(["mount", &socket(&address), mounted.to_str().unwrap(), "--patience", "3"]);
    command.stderr(File::create(&log).unwrap());
    let mut mount = Process::run(command, "mounted on").unwrap();
    let mut open = OpenOptions::new().read(true).write(true).open(mounted.join("f")).unwrap();
    let mut first = [0; 10];
    open.read_exact(&mut first).unwrap();
    assert_eq!(first, [b'a'; 10]);
    serving.stop();
    let (mut stranger, _) = up(other, &socket(&address));
    // The patience ends, or the kernel's cache takes the write; no sync may say that all is well.
    let written = open.write_all_at(&[b'x'; 5000], 40_000).and_then(|()| open.sync_all());
    assert!(written.is_err(), "a sync succeeds while the cluster is down");
    let shown = fs::read(mounted.join("f"));
    assert!(shown.as_ref().is_err() || shown.as_ref().unwrap()[..10] == [b'a'; 10], "{shown:?}");
    let made = File::create(mounted.join("new"));
    assert!(made.is_err(), "a file was made in the other cluster");
    ropewalk(place, &socket(&address), &["cp", ":/f", "theirs"]).well();
    assert!(fs::read(place.join("theirs")).unwrap() == vec![b'b'; BYTES], "it is not theirs");
    stranger.stop();
    let (mut serving, _) = up(&own, &socket(&address));
    assert_eq!(fs::read(mounted.join("f")).unwrap().len(), BYTES);
    drop(open);
    fs::write(mounted.join("later"), "later").unwrap();
    File::open(mounted.join("later")).unwrap().sync_all().unwrap();
    mount.stop();
    serving.stop();
    let told = fs::read_to_string(&log).unwrap();
    assert!(told.contains(said), "{told}");
}

#[test]
fn a_cluster_that_has_the_address_by_mistake_is_not_taken_for_the_own_one() {
    let place = tempfile::tempdir().unwrap();
    if !mounts_usable() {
        return;
    }
    let (own, other) = (place.path().join("own"), place.path().join("other"));
    fill(place.path(), &own, b'a');
    fill(place.path(), &other, b'b');
    check(place.path(), &other, "another cluster");
}

#[test]
fn who_only_names_himself_like_the_cluster_is_not_believed() {
    let place = tempfile::tempdir().unwrap();
    if !mounts_usable() {
        return;
    }
    let (own, other) = (place.path().join("own"), place.path().join("other"));
    fill(place.path(), &own, b'a');
    // All but the secret is as it is there, the cluster's number as well.
    let copied = Command::new("cp").arg("-a").args([&own, &other]).status().unwrap();
    assert!(copied.success());
    let said = fs::read_to_string(other.join("cluster")).unwrap();
    fs::write(other.join("cluster"), format!("{}\n", said.lines().next().unwrap())).unwrap();
    fill(place.path(), &other, b'b');
    check(place.path(), &other, "does not belong to the mounted cluster");
}
