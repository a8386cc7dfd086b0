//! Files of several copies, with servers that are processes of their own and are killed.

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::command::{Said, ropewalk};
use support::servers::Servers;
use support::shim::{KillAt, arm, first_calls, kills_usable};

/// More than one stripe on each server.
const FILE_BYTES: usize = 9_000_000;
/// The time within which a server that came back has what it lacks.
const PATIENCE: Duration = Duration::from_secs(60);

struct Site {
    servers: Servers,
    // Servers end before their directories do.
    place: tempfile::TempDir,
}

impl Site {
    fn new(data_servers: usize) -> Site {
        let place = tempfile::tempdir().unwrap();
        let mut servers = Servers::new(&place.path().join("cluster"), data_servers, "5");
        servers.start();
        Site { servers, place }
    }

    fn run(&self, arguments: &[&str]) -> Said {
        ropewalk(self.place.path(), &self.servers.address(), arguments)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(arguments).well()).unwrap()
    }

    /// A file of this byte and its number, in the place.
    fn file(&self, name: &str, first: u8) {
        let bytes: Vec<u8> = (0..FILE_BYTES).map(|at| first ^ (at / 251) as u8).collect();
        fs::write(self.place.path().join(name), bytes).unwrap();
    }

    fn reads_back(&self, name: &str) {
        self.run(&["cp", &format!(":/{name}"), "back"]).well();
        let read = |name: &str| fs::read(self.place.path().join(name)).unwrap();
        assert!(read(name) == read("back"), "{name} has other bytes");
    }

    /// Bytes on the disk of a data server, counted from 0.
    fn held(&self, server: usize) -> u64 {
        let (mut held, mut left) = (0, vec![self.servers.place(&format!("data{server}"))]);
        while let Some(path) = left.pop() {
            let known = fs::metadata(&path).unwrap();
            held += known.blocks() * 512;
            if known.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        held
    }

    /// The largest file of objects of a data server, counted from 0, that is stopped.
    fn largest_object(&self, server: usize) -> PathBuf {
        let objects = self.servers.place(&format!("data{server}")).join("objects");
        let (mut found, mut left) = ((0, PathBuf::new()), vec![objects]);
        while let Some(path) = left.pop() {
            let known = fs::metadata(&path).unwrap();
            if known.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else if !["objects", "log"]
                .map(Path::new)
                .iter()
                .any(|it| path.parent().unwrap().ends_with(it))
            {
                found = found.max((known.len(), path));
            }
        }
        found.1
    }

    /// The groups that lack a copy, in words; none where all is well.
    fn shortage(&self) -> Option<String> {
        let state = self.json(&["status", "--json", "--interval", "0", "--patience", "1"]);
        let problems = state["problems"].as_array().unwrap();
        let mut problems = problems.iter().map(|it| it["what"].as_str().unwrap());
        problems.find(|what| what.contains("lack a copy")).map(str::to_string)
    }

    fn await_copies(&self) {
        let deadline = Instant::now() + PATIENCE;
        while let Some(shortage) = self.shortage() {
            assert!(Instant::now() < deadline, "{shortage}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The servers of each written stripe of a file.
    fn places(&self, name: &str) -> Vec<Vec<u64>> {
        let stat = self.json(&["stat", "--json", &format!(":/{name}")]);
        let stripes = stat["layout"]["stripes"].as_array().unwrap().clone();
        let numbers = |stripe: &Value| {
            let servers = stripe["servers"].as_array().unwrap();
            servers.iter().map(|it| it.as_u64().unwrap()).collect()
        };
        stripes.iter().map(numbers).collect()
    }
}

#[test]
fn a_policy_is_shown_set_and_inherited() {
    let site = Site::new(3);
    assert_eq!(site.run(&["policy", ":/"]).well(), ":/: 1 copy\n");
    assert_eq!(site.run(&["policy", "--copies", "2", ":/"]).well(), ":/: 2 copies\n");
    site.run(&["mkdir", ":/below"]).well();
    let shown = site.json(&["policy", "--json", ":/below"]);
    assert_eq!(shown, serde_json::json!({ "path": ":/below", "kind": "directory", "copies": 2 }));
    site.file("file", 1);
    site.run(&["cp", "file", ":/below/file"]).well();
    assert_eq!(site.run(&["policy", ":/below/file"]).well(), ":/below/file: 2 copies\n");
    let places = site.places("below/file");
    assert!(
        places.len() >= 9 && places.iter().all(|it| it.len() == 2 && it[0] != it[1]),
        "{places:?}"
    );
    let text = site.run(&["stat", ":/below/file"]).well();
    assert!(text.contains("2 copies of each") && text.contains("data servers "), "{text}");
    let error = site.run(&["policy", "--copies", "3", ":/below/file"]).badly();
    assert!(error.contains("is not a directory"), "{error}");
    site.run(&["policy", "--copies", "4", ":/"]).badly();
    assert!(site.run(&["check", "--read"]).well().contains("no problem"));
}

#[test]
fn copies_that_could_die_together_are_refused_with_the_remedy() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cluster");
    let up = ["up", directory.to_str().unwrap(), "--listen", "127.0.0.1:0", "--background"];
    let said = ropewalk(place.path(), "tcp://127.0.0.1:1", &up).well();
    let address = address_in(&said, &directory);
    let error = ropewalk(place.path(), &address, &["policy", "--copies", "2", ":/"]).badly();
    assert!(error.contains("2 failure domains") && error.contains("--domain each"), "{error}");
    ropewalk(place.path(), &address, &["down", directory.to_str().unwrap()]).well();
    let said = ropewalk(place.path(), &address, &[&up[..], &["--domain", "each"]].concat()).well();
    let address = address_in(&said, &directory);
    assert_eq!(
        ropewalk(place.path(), &address, &["policy", "--copies", "3", ":/"]).well(),
        ":/: 3 copies\n"
    );
    ropewalk(place.path(), &address, &["down", directory.to_str().unwrap()]).well();
}

fn address_in(said: &str, directory: &Path) -> String {
    let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
    let all = format!("{log}{said}");
    let line = all.lines().rev().find(|line| line.contains("serves at ")).expect("it says where");
    line.split("serves at ").nth(1).unwrap().trim().to_string()
}

#[test]
fn files_outlive_the_death_of_any_one_server_and_get_their_copies_back() {
    let mut site = Site::new(3);
    site.run(&["policy", "--copies", "2", ":/"]).well();
    site.file("first", 1);
    site.run(&["cp", "first", ":/"]).well();
    for server in 0..3 {
        site.servers.data[server] = None;
        let begin = Instant::now();
        site.reads_back("first");
        let name = format!("during{server}");
        site.file(&name, 10 + server as u8);
        site.run(&["cp", &name, ":/"]).well();
        println!("read and written {:?} after the death of {server}", begin.elapsed());
        site.reads_back(&name);
        let shortage = site.shortage().expect("a server is down");
        assert!(shortage.contains("the last copy is left"), "{shortage}");
        let begin = Instant::now();
        assert!(site.servers.start_data(server, None), "it starts");
        let started = begin.elapsed();
        site.await_copies();
        println!("started within {started:?}, in step after {:?}", begin.elapsed());
        let checked = site.run(&["check", "--read"]).well();
        assert!(checked.contains("no problem was found"), "{checked}");
        println!("checked after {:?}", begin.elapsed());
    }
    for name in ["first", "during0", "during1", "during2"] {
        site.reads_back(name);
    }
    // The log tells the story.
    let log = site.servers.said();
    for line in ["groups lack a copy", "all groups have all their copies again"] {
        assert!(log.contains(line), "the log does not say {line:?}:\n{log}");
    }
}

#[test]
fn the_cluster_goes_on_without_a_server_that_a_person_gave_up() {
    let mut site = Site::new(3);
    site.run(&["policy", "--copies", "2", ":/"]).well();
    site.file("double", 2);
    site.run(&["cp", "double", ":/"]).well();
    let dry = site.run(&["server", "lost", "1", "--dry-run"]).well();
    assert!(dry.contains("of 64 of which it is the only member in step; 0 files"), "{dry}");
    let lives = site.run(&["server", "lost", "1"]).badly();
    assert!(lives.contains("less than 30 seconds ago"), "{lives}");
    let unknown = site.run(&["server", "lost", "9"]).badly();
    assert!(unknown.contains("no data server of this number"), "{unknown}");
    site.servers.data[1] = None;
    std::thread::sleep(Duration::from_secs(31));
    let said = site.run(&["server", "lost", "1"]).well();
    // Nobody else has its groups of one copy, in which there is nothing.
    assert!(said.starts_with("64 groups wait for data server 1"), "{said}");
    assert!(said.contains("0 files have bytes only there") && said.contains("--replace"), "{said}");
    site.reads_back("double");
    site.await_copies();
    let log = site.servers.said();
    let is_silent = |line: &str| line.contains("data server 1 at ") && line.contains(" is silent");
    assert!(log.lines().any(is_silent), "{log}");
    let ordered = log.lines().filter(|line| line.contains("go on without data server 1")).count();
    let refused = log.lines().filter(|line| line.contains("which is refused: ETXTBSY")).count();
    assert_eq!((ordered, refused), (2, 1), "{log}");
}

#[test]
fn a_server_is_drained_removed_and_its_files_stay() {
    let mut site = Site::new(3);
    site.file("single", 1);
    site.run(&["cp", "single", ":/"]).well();
    site.run(&["policy", "--copies", "2", ":/"]).well();
    site.file("double", 2);
    site.run(&["cp", "double", ":/"]).well();
    // The last copy of something is there.
    let refused = site.run(&["server", "remove", "1"]).badly();
    assert!(refused.contains("/single") && refused.contains("drain 1 --wait"), "{refused}");
    let unknown = site.run(&["server", "drain", "9"]).badly();
    assert!(unknown.contains("no data server of this number"), "{unknown}");
    let said = site.run(&["server", "drain", "1", "--wait"]).well();
    assert!(said.contains("data server 1 has no groups"), "{said}");
    let state = site.json(&["server", "status", "--json"]);
    let first = &state["servers"][1];
    assert_eq!((&first["server"], &first["leaves"]), (&1.into(), &true.into()), "{state}");
    assert_eq!((&first["orders"], &first["copies"]), (&0.into(), &0.into()), "{state}");
    let table = site.run(&["server", "status"]).well();
    assert!(table.contains("leaves") && table.contains("no group has to move"), "{table}");
    let running = site.run(&["server", "remove", "1"]).badly();
    assert!(running.contains("stop it first"), "{running}");
    // The bytes that it gave away stay until somebody has them freed.
    let unknown = site.run(&["server", "clean", "9"]).badly();
    assert!(unknown.contains("no data server 9"), "{unknown}");
    let misplaced = site.run(&["check"]);
    assert!(!misplaced.success && misplaced.out.contains("misplaced"), "{misplaced:?}");
    let count = |counted: &serde_json::Value| counted["bytes"].as_u64().expect("a number");
    let counted = site.json(&["server", "clean", "1", "--dry-run", "--json"]);
    assert!(count(&counted) > 0 && counted["dry_run"] == true, "{counted}");
    let before = site.held(1);
    let said = site.run(&["server", "clean", "1"]).well();
    assert!(said.starts_with("data server 1 freed "), "{said}");
    let (after, freed) = (site.held(1), count(&counted));
    assert!(after + freed / 2 < before, "{before} bytes on the disk, then {after}; {freed} freed");
    let counted = site.json(&["server", "clean", "1", "--json"]);
    assert_eq!((count(&counted), &counted["unknown_group"]), (0, &0.into()), "{counted}");
    assert!(site.run(&["check", "--read"]).well().contains("no problem"));
    site.servers.data[1] = None;
    std::thread::sleep(Duration::from_secs(2));
    site.run(&["server", "remove", "1"]).well();
    for name in ["single", "double"] {
        site.reads_back(name);
    }
    site.file("after", 3);
    site.run(&["cp", "after", ":/"]).well();
    site.reads_back("after");
    assert!(site.run(&["check", "--read"]).well().contains("no problem"));
}

#[test]
fn a_scrub_finds_and_mends_a_damaged_copy_that_nobody_reads() {
    let mut site = Site::new(2);
    site.run(&["policy", "--copies", "2", ":/"]).well();
    site.file("file", 1);
    site.run(&["cp", "file", ":/"]).well();
    let scrub = |site: &Site, servers: &[&str]| {
        let told = site.json(&[&["server", "scrub", "--json"], servers].concat());
        let sum = |name| -> u64 {
            let servers = told["servers"].as_array().unwrap().iter();
            servers.map(|server| server[name].as_u64().unwrap()).sum()
        };
        ["objects", "bytes", "mended_blocks", "lost_blocks", "not_compared"].map(sum)
    };
    let (bytes, all) = (FILE_BYTES.next_multiple_of(4096) as u64, &["0", "1"]);
    let whole = scrub(&site, &[]);
    assert!(whole[0] > 16 && whole[1] >= bytes, "{whole:?}");
    assert_eq!(whole[2..], [0, 0, 0]);
    // In good order: all is in files of objects then, and the server has left its groups before its process ends.
    site.servers.data[1].take().expect("it runs").stop();
    assert!(site.shortage().is_some(), "nobody waits for its silence");
    let object = site.largest_object(1);
    let mut bytes = fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    fs::write(&object, bytes).unwrap();
    assert!(site.servers.start_data(1, None));
    site.await_copies();
    assert_eq!(scrub(&site, all)[2..], [1, 0, 0]);
    assert_eq!(scrub(&site, all)[2..], [0, 0, 0]);
    let said = site.run(&["server", "scrub", "--rate", "500"]).well();
    assert!(said.contains("not compared") && said.lines().count() >= 3, "{said}");
    assert!(site.run(&["server", "scrub", "7"]).badly().contains("no data server 7"));
    site.servers.data[1] = None;
    let error = site.run(&["server", "scrub", "1", "--patience", "1"]).badly();
    assert!(error.contains("data server 1 ended no round"), "{error}");
}

/// Calls at which a member dies, counted from when it is in step.
const CALLS: [(&str, u64, &str); 9] = [
    ("write", 1, "before"),
    ("write", 1, "torn"),
    ("write", 2, "after"),
    ("write", 9, "torn"),
    ("sync", 1, "before"),
    ("sync", 2, "after"),
    ("send", 2, "before"),
    ("send", 9, "after"),
    ("send", 40, "before"),
];

#[test]
fn a_member_that_dies_at_a_chosen_call_loses_nothing() {
    kills(&CALLS);
}

#[test]
#[ignore = "takes minutes"]
fn members_that_die_at_each_of_the_first_calls_lose_nothing() {
    kills(&first_calls(16));
}

/// One member after the other dies at such a call, while files with two copies are written.
fn kills(calls: &[(&'static str, u64, &'static str)]) {
    if !kills_usable() {
        return;
    }
    let mut site = Site::new(3);
    site.run(&["policy", "--copies", "2", ":/"]).well();
    let mut written = Vec::new();
    let mut chosen = 0;
    for (turn, &(kind, number, how)) in calls.iter().enumerate() {
        // Each server orders some groups, and has copies of others.
        let victim = turn % 3;
        site.servers.data[victim] = None;
        let kill = KillAt { kind, number, serving: true, how, group: false, sockets: false };
        assert!(site.servers.start_victim(victim, Some(&kill)), "it is not armed yet");
        site.await_copies();
        arm(site.servers.data[victim].as_ref().expect("it lives").pid());
        let begin = Instant::now();
        let mut died = None;
        for count in 0..4 {
            let name = format!("turn{turn}-{count}");
            site.file(&name, (turn * 16) as u8 ^ count);
            site.run(&["cp", &name, ":/"]).well();
            written.push(name);
            if site.servers.data[victim].as_mut().expect("it was started").is_over() {
                died = Some(count);
                break;
            }
        }
        chosen += u32::from(died.is_some());
        println!("{kind} {number} {how}: after {died:?} files, {:?}", begin.elapsed());
        // With one copy of what was written, and again when the server is back.
        site.reads_back(written.last().expect("one was written"));
        site.servers.data[victim] = None;
        assert!(site.servers.start_data(victim, None), "it starts again");
        site.await_copies();
    }
    let most = calls.len() as u32 * 2 / 3;
    assert!(chosen >= most, "most die at the call that was chosen, not {chosen}");
    written.iter().for_each(|name| site.reads_back(name));
    assert!(site.run(&["check", "--read"]).well().contains("no problem"));
}
