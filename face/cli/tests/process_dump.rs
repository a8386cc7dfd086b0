//! Dumps of the metadata of clusters whose servers are processes of their own, and what is restored of them.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::Command;

use support::command::{Said, ropewalk};
use support::pair::{CLIENT, Pair};
use support::servers::Servers;
use support::shim::{KillAt, kills_usable};
use support::{PROGRAM, Process};

struct Site {
    servers: Servers,
    // Servers end before their directories do.
    place: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        let mut servers = Servers::new(&place.path().join("cluster"), 3, "1");
        servers.start();
        Site { servers, place }
    }

    fn run(&self, arguments: &[&str]) -> Said {
        ropewalk(self.place.path(), &self.servers.address(), arguments)
    }

    fn path(&self, name: &str) -> String {
        self.place.path().join(name).display().to_string()
    }

    /// A tree with files of all kinds, two copies of each.
    fn fill(&self) {
        let tree = self.place.path().join("tree");
        fs::create_dir_all(tree.join("below")).unwrap();
        let bytes: Vec<u8> = (0..5_000_000u32).map(|at| (at / 251) as u8).collect();
        fs::write(tree.join("large"), bytes).unwrap();
        fs::write(tree.join("below/small"), "a few bytes").unwrap();
        fs::hard_link(tree.join("below/small"), tree.join("second name")).unwrap();
        symlink("below/small", tree.join("link")).unwrap();
        self.run(&["policy", "--copies", "2", ":/"]).well();
        self.run(&["cp", "-r", "tree", ":/"]).well();
    }

    fn compare(&self) {
        let _ = fs::remove_dir_all(self.path("back"));
        self.run(&["cp", "-r", ":/tree", "back"]).well();
        for name in ["large", "below/small", "second name", "link"] {
            let read = |top: &str| fs::read(self.place.path().join(top).join(name)).unwrap();
            assert!(read("tree") == read("back"), "{name}");
        }
        assert!(self.run(&["check", "--read"]).well().contains("no problem"));
    }
}

#[test]
fn a_dump_of_a_running_server_becomes_a_store_and_the_former_server_is_refused() {
    let mut site = Site::new();
    site.fill();
    let address = site.servers.address();
    // Others write meanwhile.
    let text = |number: u32| format!(":/made{number}");
    let mut writer = (0..20).map(|number| site.run(&["mkdir", &text(number)]).well());
    writer.by_ref().take(10).for_each(drop);
    site.run(&["meta", "dump", &address, "meta.dump"]).well();
    writer.for_each(drop);
    assert_eq!(fs::metadata(site.path("meta.dump")).unwrap().mode() & 0o777, 0o600);
    let meta = site.servers.place("meta").display().to_string();
    let error = site.run(&["meta", "dump", &meta, "other.dump"]).badly();
    assert!(error.contains("a metadata server runs on"), "{error}");
    assert!(!fs::exists(site.path("other.dump")).unwrap());
    let verified = site.run(&["meta", "dump", "--verify", "--json", "meta.dump"]).objects();
    assert_eq!((&verified[0]["whole"], &verified[0]["lost"]), (&true.into(), &0.into()));
    assert!(verified[0]["rows"]["names"].as_u64() >= Some(6), "{verified:?}");
    let error = site.run(&["meta", "restore", "meta.dump", &meta]).badly();
    assert!(error.contains("already holds"), "{error}");

    site.servers.meta = None;
    site.run(&["meta", "dump", &meta, "stopped.dump"]).well();
    fs::rename(&meta, site.path("former")).unwrap();
    let said = site.run(&["meta", "restore", "meta.dump", &meta]).well();
    assert!(said.starts_with("restored "), "{said}");
    assert!(site.servers.start_meta(None));
    site.compare();
    let listed = site.run(&["ls", ":/"]).well();
    assert!(listed.contains("made9") && !listed.contains("made10"), "{listed}");
    site.run(&["cp", "tree/large", ":/new"]).well();
    // Data servers know that these metadata are restored ones: they free nothing by them unless somebody says so, once.
    let refused = site.run(&["server", "clean", "1"]).badly();
    assert!(refused.contains("restored from a dump"), "{refused}");
    let counted = site.run(&["server", "clean", "1", "--dry-run"]).badly();
    assert!(counted.contains("restored from a dump"), "{counted}");
    let said = site.run(&["server", "clean", "1", "--after-restore"]).well();
    assert!(said.contains("freed 0 B in 0 of "), "{said}");
    site.run(&["server", "clean", "1"]).well();
    site.compare();

    // The former server comes back, and data servers have met a newer term.
    site.servers.meta = None;
    fs::rename(&meta, site.path("restored")).unwrap();
    fs::rename(site.path("former"), &meta).unwrap();
    let _ = site.servers.start_meta(Some(&never()));
    let error = site.run(&["ls", ":/", "--patience", "3"]).badly();
    assert!(!error.is_empty());
    assert!(site.servers.said().contains("is an older copy"), "{}", site.servers.said());
}

/// A death that does not come: the server may end by itself.
fn never() -> KillAt {
    let (kind, how) = ("send", "before");
    KillAt { kind, number: u64::MAX, serving: false, how, group: false, sockets: false }
}

/// The way out that a data server names when the metadata are an older copy, and the newer ones are lost.
#[test]
fn an_older_copy_of_the_metadata_becomes_a_store_by_a_dump_and_a_restore() {
    let mut site = Site::new();
    site.fill();
    let meta = site.servers.place("meta").display().to_string();
    site.servers.meta = None;
    let copied = Command::new("cp").args(["-a", &meta]).arg(site.path("older")).status();
    assert!(copied.expect("cp is everywhere").success());
    assert!(site.servers.start_meta(None));
    site.run(&["mkdir", ":/later"]).well();
    // Data servers have met the newer one; it is lost.
    site.servers.meta = None;
    fs::rename(&meta, site.path("lost")).unwrap();
    fs::rename(site.path("older"), &meta).unwrap();
    let _ = site.servers.start_meta(Some(&never()));
    let error = site.run(&["ls", ":/", "--patience", "3"]).badly();
    assert!(!error.is_empty());
    let log = site.servers.said();
    assert!(log.contains("'ropewalk meta restore FILE NEW'"), "{log}");
    site.servers.meta = None;
    site.run(&["meta", "dump", &meta, "old.dump"]).well();
    fs::rename(&meta, site.path("older")).unwrap();
    site.run(&["meta", "restore", "old.dump", &meta]).well();
    assert!(site.servers.start_meta(None));
    for server in 0..site.servers.data.len() {
        site.servers.data[server] = None;
        assert!(site.servers.start_data(server, None), "it takes the restored store");
    }
    site.compare();
    assert!(!site.run(&["ls", ":/"]).well().contains("later"));
    site.run(&["cp", "tree/large", ":/new"]).well();
}

#[test]
fn no_server_starts_from_a_restore_that_was_killed() {
    if !kills_usable() {
        return;
    }
    let mut site = Site::new();
    site.fill();
    let address = site.servers.address();
    site.run(&["meta", "dump", &address, "meta.dump"]).well();
    site.servers.meta = None;
    let meta = site.servers.place("meta").display().to_string();
    fs::rename(&meta, site.path("former")).unwrap();
    let mut kills = 0;
    for number in 1.. {
        let _ = fs::remove_dir_all(&meta);
        let kill = KillAt { kind: "sync", number, how: "after", ..never() };
        let mut command = Command::new(PROGRAM);
        command.args(["meta", "restore", "meta.dump", &meta]).current_dir(site.place.path());
        kill.apply(&mut command);
        if command.output().unwrap().status.success() {
            break;
        }
        kills += 1;
        let is_whole = fs::exists(format!("{meta}/superblock")).unwrap()
            && !fs::exists(format!("{meta}/copy.unfinished")).unwrap();
        if is_whole {
            continue;
        }
        if number % 4 == 0 && fs::exists(format!("{meta}/copy.unfinished")).unwrap() {
            let mut server = Command::new(PROGRAM);
            server.args(["serve", "meta", "--directory", &meta, "--listen", "127.0.0.1:0"]);
            assert!(Process::run(server, "serving at").is_err(), "{number}");
            site.run(&["meta", "restore", "meta.dump", &meta]).well();
        }
    }
    assert!(kills > 5, "{kills}");
    assert!(site.servers.start_meta(None));
    site.compare();
}

#[test]
fn a_standby_gives_a_dump_too() {
    let mut pair = Pair::new();
    pair.make(5);
    let status = pair.wait_for_standby();
    let active = status["metadata_servers"]["active"].as_u64().expect("one serves") as usize;
    let file = pair.cluster_file();
    for (number, names) in [(1 - active, 5), (active, 6)] {
        let address = pair.address_of(number);
        let arguments = ["meta", "dump", &address, "pair.dump", "--cluster-file", &file, "--json"];
        let told = pair.run(CLIENT, &arguments).objects();
        assert_eq!(told[0]["server"], number, "{told:?}");
        assert_eq!((&told[0]["rows"]["names"], &told[0]["lost"]), (&names.into(), &0.into()));
        let told = pair.run(CLIENT, &["meta", "dump", "--verify", "--json", "pair.dump"]).objects();
        assert_eq!(told[0]["whole"], true);
        pair.make(1);
    }
    pair.check();
}
