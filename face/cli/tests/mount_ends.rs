//! A mount that is told to end while programs have files open: their writes are kept.

mod support;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};
use support::filer::{Filer, compile};
use support::{Cluster, Process, mounts_usable};

/// Two mounts of a cluster; a program works on the first one and looks from the second one.
struct Scene {
    place: tempfile::TempDir,
    second: Process,
    first: Process,
    cluster: Cluster,
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
        Scene { place, second, first, cluster }
    }

    /// Writes, and leaves all of it where programs leave it: in caches, in a map, unsynced.
    fn work(&self) -> (File, File, Filer) {
        let at = |name: &str| self.place.path().join("first").join(name);
        let made = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).open(at(name)).unwrap()
        };
        let mut written = made("written");
        written.write_all(&[1; 400_000]).unwrap();
        let mut synced = made("synced");
        synced.write_all(&[2; 100_000]).unwrap();
        synced.sync_all().unwrap();
        synced.write_all(&[3; 100_000]).unwrap();
        let mut mapped = made("mapped");
        mapped.write_all(&[b'.'; 8192]).unwrap();
        mapped.sync_all().unwrap();
        let mut filer = Filer::start(&compile(self.place.path()).expect("a C compiler"));
        filer.well(&format!("open 0 rw {}", at("mapped").display()));
        filer.well("map 0 8192 1");
        filer.well("store 0 0 6 7");
        (written, synced, filer)
    }

    fn check(&self) {
        let begin = Instant::now();
        let read = |name: &str| fs::read(self.place.path().join("second").join(name)).unwrap();
        assert!(read("written") == vec![1; 400_000], "what was only written");
        assert!(
            read("synced") == [vec![2; 100_000], vec![3; 100_000]].concat(),
            "and after a sync"
        );
        assert_ne!(&read("mapped")[..6], b"......", "what was stored in a map");
        // Nobody waits for the end of a session that was left behind.
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }

    fn end(mut self) {
        self.second.stop();
        self.cluster.process.stop();
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.contains(path.to_str().unwrap())
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !there() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_mount_that_is_in_use_goes_on_until_its_last_user_has_left() {
    if !mounts_usable() {
        return;
    }
    for signal in [Signal::TERM, Signal::INT] {
        let mut scene = Scene::new();
        let (mut written, synced, map) = scene.work();
        kill_process(scene.first.pid(), signal).unwrap();
        let first = scene.place.path().join("first");
        wait_for("it leaves the tree", || !is_mounted(&first));
        scene.check();
        assert!(!scene.first.is_over(), "it has users");
        written.write_all(b"later").unwrap();
        written.sync_all().unwrap();
        drop((written, synced, map));
        wait_for("it ends with its last user", || scene.first.is_over());
        let longer = fs::read(scene.place.path().join("second/written")).unwrap();
        assert!(longer.ends_with(b"later") && longer.len() == 400_005);
        scene.end();
    }
}

#[test]
fn a_second_signal_ends_a_mount_that_is_in_use_in_good_order() {
    if !mounts_usable() {
        return;
    }
    let mut scene = Scene::new();
    let (mut written, synced, map) = scene.work();
    kill_process(scene.first.pid(), Signal::TERM).unwrap();
    let first = scene.place.path().join("first");
    wait_for("it leaves the tree", || !is_mounted(&first));
    kill_process(scene.first.pid(), Signal::TERM).unwrap();
    wait_for("it ends", || scene.first.is_over());
    assert!(written.write_all(b"later").is_err());
    scene.check();
    drop((written, synced, map));
    scene.end();
}
