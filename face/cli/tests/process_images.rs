//! Stores of former formats: each image in `lab/images` is a cluster as a former version left it, and is opened for ever.

mod support;

use std::fs;
use std::path::Path;

use support::command::ropewalk;
use support::shim::{KillAt, arm, kills_usable};
use support::{Cluster, run};

/// Unpacks an image.
fn unpack(image: &str, place: &Path) {
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/images").join(image);
    run(place, "tar", &["-xzf", image.to_str().expect("a path in UTF-8")]);
}

/// The files of the image, whose processes were killed a second after the files were synced.
fn check(back: &Path) {
    let read = |name: &str| fs::read(back.join(name)).expect(name);
    assert_eq!(read("d/short"), b"a short file\n");
    let lines: String = (1..=6000).map(|line| format!("line {line} of a long file\n")).collect();
    assert!(read("d/long") == lines.as_bytes(), "the long file differs");
    assert!(read("second") == lines.as_bytes(), "its second name has something else");
    assert!(read("wide") == vec![b'w'; 5_000_000], "the wide file differs");
    let mut holes = vec![0; 5 << 20];
    holes[3_000_000..][..3].copy_from_slice(b"end");
    assert!(read("holes") == holes, "the file with holes differs");
    assert_eq!(fs::read_link(back.join("link")).unwrap(), Path::new("d/short"));
    assert!(fs::read_dir(back.join("empty")).unwrap().next().is_none());
}

#[test]
fn a_cluster_of_the_first_format_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    unpack("file-system-1.tar.gz", place);
    let mut cluster = Cluster::start(&place.join("c"));
    let address = cluster.address();
    let ropewalk = |arguments: &[&str]| ropewalk(place, &address, arguments).well();
    for back in ["first", "again"] {
        ropewalk(&["cp", "-rp", ":/", back]);
        check(&place.join(back));
        if back == "first" {
            // It takes new files.
            fs::write(place.join("new"), vec![7; 3_000_000]).unwrap();
            ropewalk(&["cp", "new", ":/new"]);
            ropewalk(&["check", "--read"]);
            cluster.process.kill();
            cluster.restart();
        }
    }
    assert!(fs::read(place.join("again/new")).unwrap() == vec![7; 3_000_000]);
}

/// A cluster of the first format, and the place of its files.
fn first(place: &Path) -> Cluster {
    unpack("file-system-1.tar.gz", place);
    Cluster::start(&place.join("c"))
}

/// The format, and whether all objects are brought forward.
fn state(place: &Path, cluster: &Cluster, arguments: &[&str]) -> (u64, bool) {
    let arguments = [&["upgrade", "--json"], arguments].concat();
    let said = ropewalk(place, &cluster.address(), &arguments).well();
    let told: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let servers = told["servers"].as_array().expect("servers");
    let done = servers.iter().all(|server| server["done"] == true);
    (told["format"].as_u64().expect("a format"), done)
}

#[test]
fn a_cluster_of_the_first_format_is_brought_forward() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let mut cluster = first(place);
    let address = cluster.address();
    let ropewalk = |arguments: &[&str]| ropewalk(place, &address, arguments);
    assert_eq!(state(place, &cluster, &["--check"]), (1, false));
    let refused = ropewalk(&["policy", "--copies", "2", ":/d"]).badly();
    assert!(refused.contains("ropewalk upgrade"), "{refused}");
    let said = ropewalk(&["upgrade"]).well();
    assert!(said.contains("had format 1 and has format 2 now"), "{said}");
    assert!(said.contains("all objects are brought forward"), "{said}");
    for back in ["first", "again"] {
        assert_eq!(state(place, &cluster, &[]), (2, true));
        ropewalk(&["cp", "-rp", ":/", back]).well();
        check(&place.join(back));
        ropewalk(&["check", "--read"]).well();
        cluster.process.kill();
        cluster.restart();
    }
    ropewalk(&["export", "set", "all", "--clients", "*"]).well();
}

#[test]
fn an_upgrade_that_dies_at_any_call_goes_on() {
    if !kills_usable() {
        return;
    }
    let mut upgraded = 0;
    for (index, number) in [1, 2, 4, 9, 20].into_iter().enumerate() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let mut cluster = first(place);
        cluster.process.kill();
        let (kind, how) = [("write", "torn"), ("sync", "before"), ("write", "after")][index % 3];
        let (serving, group, sockets) = (true, false, false);
        cluster.restart_to_die(&KillAt { kind, number, serving, how, group, sockets });
        // The time in which clients of before may come back has to be over.
        assert_eq!(state(place, &cluster, &["--check"]), (1, false));
        arm(cluster.process.pid());
        let ordered = ["upgrade", "--no-wait", "--patience", "3"];
        drop(ropewalk(place, &cluster.address(), &ordered));
        std::thread::sleep(std::time::Duration::from_millis(700));
        cluster.process.kill();
        cluster.restart();
        let (format, _) = state(place, &cluster, &["--check"]);
        upgraded += u64::from(format == 2);
        assert_eq!(state(place, &cluster, &[]), (2, true), "{kind} {number} {how}");
        ropewalk(place, &cluster.address(), &["cp", "-rp", ":/", "back"]).well();
        check(&place.join("back"));
        ropewalk(place, &cluster.address(), &["check", "--read"]).well();
    }
    assert!((1..5).contains(&upgraded), "{upgraded} of 5 had the new format when they died");
}
