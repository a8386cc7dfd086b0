//! Servers and mounts that are killed: acknowledged operations are there, and everybody goes on.

mod support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Cluster, mounts_usable, unmount};

/// Creates, writes, renames and unlinks until told to stop; returns the acknowledged operations.
fn work(mount: &Path, stop: &AtomicBool) -> Vec<(String, Option<Vec<u8>>)> {
    let mut done: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let (name, last) = (format!("f{round}"), format!("r{round}"));
        // Some stay inline, some have stripes.
        let content = vec![round as u8; (round as usize * 7919) % 200_000];
        fs::write(mount.join(&name), &content).expect("a write ends well, sooner or later");
        done.push((name.clone(), Some(content.clone())));
        if round.is_multiple_of(3) {
            fs::rename(mount.join(&name), mount.join(&last)).expect("so does a rename");
            done.push((name, None));
            done.push((last, Some(content)));
        } else if round.is_multiple_of(5) {
            fs::remove_file(mount.join(&name)).expect("so does an unlink");
            done.push((name, None));
        }
        round += 1;
    }
    done
}

#[test]
fn acknowledged_work_survives_the_death_of_all_servers_and_mounts_go_on() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mount = place.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let mut cluster = Cluster::start(&place.path().join("cluster"));
    let _mounted = cluster.mount(&mount);
    let stop = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&mount, &stop));
        for round in 0..6 {
            // Moments that differ from round to round, and from operation to operation.
            std::thread::sleep(Duration::from_millis(150 + 37 * round));
            cluster.process.kill();
            cluster.restart();
        }
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        worker.join().expect("no operation failed")
    });
    assert!(done.len() > 50, "only {} operations in all that time", done.len());
    // Seen by somebody who remembers nothing.
    let fresh = place.path().join("fresh");
    fs::create_dir(&fresh).unwrap();
    let _second = cluster.mount(&fresh);
    let last: std::collections::BTreeMap<_, _> = done.into_iter().collect();
    for (name, content) in last {
        let found = fs::read(fresh.join(&name)).ok();
        assert_eq!(found.map(|found| found.len()), content.as_ref().map(Vec::len), "{name}");
        if let Some(content) = content {
            assert!(fs::read(fresh.join(&name)).unwrap() == content, "{name}: other bytes");
        }
    }
    unmount(&fresh);
    unmount(&mount);
}

#[test]
fn a_dead_mount_is_cleared_by_the_next_one() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mount = place.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let mut first = cluster.mount(&mount);
    fs::write(mount.join("kept"), "kept").unwrap();
    first.kill();
    assert!(fs::read_dir(&mount).is_err(), "nobody answers any more");
    let _second = cluster.mount(&mount);
    assert_eq!(fs::read_to_string(mount.join("kept")).unwrap(), "kept");
    unmount(&mount);
}

#[test]
fn an_interrupt_ends_a_cluster_in_good_order_and_nothing_is_lost() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mount = place.path().join("mount");
    fs::create_dir(&mount).unwrap();
    let mut cluster = Cluster::start(&place.path().join("cluster"));
    {
        let mut mounted = cluster.mount(&mount);
        fs::write(mount.join("file"), vec![7; 300_000]).unwrap();
        mounted.stop();
    }
    cluster.process.stop();
    cluster.restart();
    let mut mounted = cluster.mount(&mount);
    assert_eq!(fs::read(mount.join("file")).unwrap(), vec![7; 300_000]);
    mounted.stop();
}
