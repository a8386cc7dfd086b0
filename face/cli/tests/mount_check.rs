//! `check` beside a mount that is at work, and of objects that were lost under a file.

mod support;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use support::operator::Servers;
use support::{Process, mounts_usable, unmount};

fn mount(servers: &Servers, path: &Path) -> Process {
    fs::create_dir(path).expect("a place for the mount");
    let name = path.to_str().expect("UTF-8");
    Process::mount(&["mount", &servers.address, name], path)
}

/// Makes, cuts, replaces and removes files until told to stop; returns the number of rounds.
fn work(mount: &Path, stop: &AtomicBool) -> u32 {
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let path = mount.join(format!("f{}", round % 7));
        let bytes = vec![round as u8; 1 + round as usize * 7919 % 3_000_000];
        fs::write(&path, &bytes).expect("written");
        match round % 4 {
            0 => fs::remove_file(&path).expect("removed"),
            1 => fs::rename(&path, mount.join("last")).expect("renamed"),
            2 => {
                let file = fs::File::options().write(true).open(&path).expect("opened");
                file.set_len(bytes.len() as u64 / 2).expect("cut");
            }
            _ => {}
        }
        round += 1;
    }
    round
}

#[test]
fn nothing_is_found_while_a_mount_writes() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let servers = Servers::start(place.path(), 3);
    let path = place.path().join("mount");
    let _mounted = mount(&servers, &path);
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&path, &stop));
        for _ in 0..5 {
            let (code, found, summary) = servers.check(&["--read"]);
            assert_eq!((code, found), (0, vec![]), "{summary}");
        }
        stop.store(true, Ordering::Relaxed);
        worker.join().expect("no operation failed")
    });
    assert!(rounds > 5, "only {rounds} rounds");
    let status = servers.status("0");
    assert!(status["capacity"]["objects"].as_u64() > Some(0), "{status}");
    let sessions = status["sessions"].as_array().expect("a list");
    assert_eq!(sessions.len(), 1);
    assert!(sessions[0]["client"].as_str().expect("a name").starts_with("mount on"));
    unmount(&path);
}

#[test]
fn a_lost_and_a_rotten_object_are_found_with_their_files() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(place.path(), 2);
    let path = place.path().join("mount");
    let mut mounted = mount(&servers, &path);
    fs::create_dir(path.join("some")).unwrap();
    fs::write(path.join("some/lost"), vec![1; 102_400]).unwrap();
    fs::write(path.join("rotten"), vec![2; 102_400]).unwrap();
    mounted.stop();
    for number in 0..2 {
        servers.stop_data(number);
        for (_, object) in servers.objects(number) {
            let mut bytes = fs::read(&object).unwrap();
            match bytes.last() {
                Some(1) => fs::remove_file(&object).unwrap(),
                Some(_) => {
                    let middle = bytes.len() - 20_000;
                    bytes[middle] ^= 4;
                    fs::write(&object, bytes).unwrap();
                }
                None => panic!("an object has bytes"),
            }
        }
        servers.start_data(number);
    }
    let (code, found, _) = servers.check(&[]);
    assert_eq!((code, found.len()), (1, 1));
    assert_eq!((&found[0]["problem"], &found[0]["path"]), (&"absent".into(), &"/some/lost".into()));
    let (code, found, summary) = servers.check(&["--read"]);
    assert_eq!((code, found.len()), (1, 2), "{summary}");
    let rotten = found.iter().find(|found| found["path"] == "/rotten").expect("it is named");
    assert_eq!((&rotten["problem"], &rotten["stripe"]), (&"corrupt".into(), &0.into()));
}
