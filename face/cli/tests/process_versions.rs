//! The version before this one and this one work together: each program of a cluster is exchanged, one after the other.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::command::{Said, ropewalk};
use support::servers::Servers;
use support::shim::{KillAt, arm, kills_usable};
use support::{PROGRAM, Process, mounts_usable, run, unmount};

/// The last commit whose programs speak version 10 of the wire.
const FORMER: &str = "a7e7cbc7bb74f1498c89312cb7bf854e3223c389";

/// The program of that commit: the one that `ROPEWALK_FORMER` names, or built here.
fn former(place: &Path) -> PathBuf {
    if let Some(program) = std::env::var_os("ROPEWALK_FORMER") {
        return program.into();
    }
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (tree, target) = (place.join("former"), Path::new(env!("CARGO_TARGET_TMPDIR")).join("v10"));
    let tree = tree.to_str().expect("a path in UTF-8");
    run(&repository, "git", &["clone", "-q", "--no-checkout", ".", tree]);
    run(Path::new(tree), "git", &["checkout", "-q", FORMER]);
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "-p", "ropewalk-cli"])
        .current_dir(tree)
        .env("CARGO_TARGET_DIR", &target)
        .status();
    assert!(built.expect("cargo runs").success(), "the former program cannot be built");
    target.join("debug/ropewalk")
}

/// Writes, renames, reads again and removes until told to stop. Returns the rounds.
fn work(mount: &Path, stop: &AtomicBool) -> u32 {
    let mut round = 0u32;
    while !stop.load(Ordering::Relaxed) {
        let (name, new) = (mount.join(format!("f{round}")), mount.join(format!("r{round}")));
        let content = vec![round as u8; 100_000 + (round as usize * 7919) % 2_000_000];
        fs::write(&name, &content).expect("a write ends well");
        fs::File::open(&name).expect("it is there").sync_all().expect("so does a sync");
        fs::rename(&name, &new).expect("so does a rename");
        if let Some(before) = round.checked_sub(5) {
            let before = mount.join(format!("r{before}"));
            fs::read(&before).expect("a former file is there");
            fs::remove_file(&before).expect("it can be removed");
        }
        assert!(fs::read(&new).expect("it can be read") == content, "other bytes");
        round += 1;
    }
    round
}

/// Stops each server in turn, and starts it by another program, while somebody works.
fn exchange(servers: &mut Servers, program: &Path) {
    servers.run_by(program);
    for data in 0..servers.data.len() {
        servers.data[data].take().expect("it runs").stop();
        assert!(servers.start_data(data, None));
        std::thread::sleep(Duration::from_millis(700));
    }
    servers.meta.take().expect("it runs").stop();
    assert!(servers.start_meta(None));
    std::thread::sleep(Duration::from_millis(1500));
}

fn by(program: &Path, directory: &Path, address: &str, arguments: &[&str]) -> Said {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env("ROPEWALK_ADDRESS", address);
    Said::of(&command.output().expect("it can be started"))
}

#[test]
#[ignore = "builds the program of a former commit"]
fn programs_are_exchanged_one_by_one_and_back_while_clients_work() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (old, new) = (former(place), PathBuf::from(PROGRAM));
    let mut servers = Servers::new(&place.join("c"), 2, "10");
    servers.run_by(&old);
    servers.start();
    let mounts = ["old", "new"].map(|name| place.join(name));
    mounts.iter().for_each(|mount| fs::create_dir(mount).unwrap());
    let mut first = servers.mount(&mounts[0], None).expect("a mount of the former program");
    servers.run_by(&new);
    let mut second = servers.mount(&mounts[1], None).expect("a mount of this program");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers = mounts.each_ref().map(|mount| {
            let own = mount.join(mount.file_name().expect("a name"));
            fs::create_dir(&own).unwrap();
            let stop = &stop;
            scope.spawn(move || work(&own, stop))
        });
        for program in [&new, &old, &new] {
            exchange(&mut servers, program);
            let address = servers.address();
            for asker in [&old, &new] {
                by(asker, place, &address, &["check"]).well();
                by(asker, place, &address, &["status"]).well();
            }
        }
        // The mount of the former program goes to this one.
        let path = mounts[0].to_str().unwrap();
        let taken = Process::mount(&["mount", "--take-over", path], &mounts[0]);
        drop(std::mem::replace(&mut first, taken));
        std::thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            assert!(worker.join().expect("no operation failed") > 5);
        }
    });
    first.stop();
    second.stop();
    ropewalk(place, &servers.address(), &["check", "--read"]).well();
}

#[test]
#[ignore = "builds the program of a former commit"]
fn a_former_client_stands_in_the_way_of_an_upgrade_and_is_refused_after_it() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let old = former(place);
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/images/file-system-1.tar.gz");
    run(place, "tar", &["-xzf", image.to_str().unwrap()]);
    let mut cluster = support::Cluster::start(&place.join("c"));
    let (address, mount) = (cluster.address(), place.join("m"));
    fs::create_dir(&mount).unwrap();
    let mut command = Command::new(&old);
    command.arg("mount").arg(&address).arg(&mount);
    let mounted = Process::run(command, "mounted").expect("a mount of the former program");
    fs::write(mount.join("new"), vec![1; 3_000_000]).unwrap();
    let refused = ropewalk(place, &address, &["upgrade"]).badly();
    assert!(
        refused.contains("the format stays 1") && refused.contains("former version"),
        "{refused}"
    );
    let taken = Process::mount(&["mount", "--take-over", mount.to_str().unwrap()], &mount);
    ropewalk(place, &address, &["upgrade"]).well();
    assert!(fs::read(mount.join("new")).unwrap() == vec![1; 3_000_000]);
    let refused = by(&old, place, &address, &["ls", ":/"]).badly();
    assert!(refused.contains("version"), "{refused}");
    unmount(&mount);
    drop((mounted, taken));
    // Once all is done, a former server finds a format that it knows, and serves it; this one goes on behind it.
    cluster.process.stop();
    let mut command = Command::new(&old);
    command.args(["up", "c", "--listen", address.trim_start_matches("tcp://")]).current_dir(place);
    let mut former = Process::run(command, "serves at").expect("the former program starts");
    by(&old, place, &address, &["cp", ":/new", "copy"]).well();
    by(&old, place, &address, &["cp", "copy", ":/former"]).well();
    former.stop();
    cluster.restart();
    ropewalk(place, &address, &["check", "--read"]).well();
    for name in ["new", "former"] {
        ropewalk(place, &address, &["cp", &format!(":/{name}"), name]).well();
        assert!(fs::read(place.join(name)).unwrap() == vec![1; 3_000_000], "{name}");
    }
}

/// While objects learn their groups, a former server would lack the locks of this time: it finds a format that it does not
/// know, and touches nothing.
#[test]
#[ignore = "builds the program of a former commit"]
fn a_former_server_refuses_a_store_whose_upgrade_is_under_way() {
    if !kills_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let old = former(place.path());
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/images/file-system-1.tar.gz");
    let mut refused = 0;
    for number in [1, 9, 20, 40] {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        run(place, "tar", &["-xzf", image.to_str().unwrap()]);
        let mut cluster = support::Cluster::start(&place.join("c"));
        let address = cluster.address();
        cluster.process.kill();
        let (kind, how, serving, group, sockets) = ("write", "after", true, false, false);
        cluster.restart_to_die(&KillAt { kind, number, serving, how, group, sockets });
        ropewalk(place, &address, &["upgrade", "--check"]).well();
        arm(cluster.process.pid());
        drop(ropewalk(place, &address, &["upgrade", "--no-wait", "--patience", "3"]));
        std::thread::sleep(Duration::from_millis(700));
        cluster.process.kill();
        let mut command = Command::new(&old);
        command.args(["up", "c", "--listen", address.trim_start_matches("tcp://")]);
        command.current_dir(place);
        let former = Process::run(command, "serves at").map(drop);
        cluster.restart();
        let said = ropewalk(place, &address, &["upgrade", "--check", "--json"]).well();
        let told: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        println!("write {number}: format {}, the former server: {former:?}", told["format"]);
        refused += u32::from(former.is_err());
        assert!(former.is_err() || told["format"] == 1, "it serves in the middle of an upgrade");
        ropewalk(place, &address, &["upgrade"]).well();
        ropewalk(place, &address, &["check", "--read"]).well();
    }
    assert!(refused > 0);
}
