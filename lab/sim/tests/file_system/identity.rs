//! The files by which a data server knows whose it is, damaged: both copies of the superblock, `joined`
//! (which metadata store it belongs to) and `objects.made` (that there were objects). Each of them with
//! {a bit flipped, zeros, cut short, gone, an older copy, another store's, another one of these} x {after
//! a kill, after a clean stop}.
//!
//! Afterwards the server starts, and every file reads right; or it says what is wrong with which path
//! and serves nobody, and starts again when the file is put back: a refused start has changed nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::programs::*;
use ropewalk_client::Client;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};

const FILES: u64 = 3;
const NODE: &str = "data1";
const SUPERBLOCKS: [&str; 2] = ["superblock", "superblock.second"];
const NAMES: [&str; 4] = ["superblock", "superblock.second", "joined", "objects.made"];

type Files = BTreeMap<&'static str, Vec<u8>>;

fn path(name: &str) -> PathBuf {
    Path::new("/data").join(name)
}

fn files(disk: &VirtualDisk) -> Files {
    NAMES.map(|name| (name, disk.bytes(&path(name)).expect("it is there"))).into()
}

async fn write_files(client: Client) {
    for number in 0..FILES {
        let file = create(&client, number.to_string().as_bytes()).await;
        write(&client, &file, 0, &pattern(number, 90_000)).await.expect("written");
    }
}

async fn check_files(client: Client) {
    for number in 0..FILES {
        let file = open(&client, number.to_string().as_bytes(), READ).await;
        let bytes = read_all(&client, &file.expect("opened")).await.expect("read");
        assert_same(&bytes, &pattern(number, 90_000));
    }
}

/// A cluster of one data server whose files are known.
struct Scene {
    simulation: Simulation,
    cluster: Cluster,
    older: Files,
}

/// The outcome of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Right,
    Refused,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let mut simulation = Simulation::new(seed);
        let config = ClusterConfig { data_servers: 1, clients: 1, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        simulation.run_for(Duration::from_secs(3));
        cluster.run(&mut simulation, 0, write_files);
        let mut scene = Scene { simulation, cluster, older: Files::new() };
        scene.older = files(scene.cluster.data_disk(0));
        scene.end(false);
        assert_eq!(scene.start(), Ok(()));
        scene
    }

    fn end(&mut self, clean: bool) {
        if clean {
            let server = self.cluster.data(0);
            let stopped = async move { server.stop().await };
            let stopped = self.simulation.block_on(NODE, Duration::from_secs(60), stopped);
            stopped.expect("it stops in time").expect("it stops");
        }
        self.cluster.kill(&mut self.simulation, NODE, Kill::Process(Default::default()));
    }

    /// Starts the server and reads everything; else what it said.
    fn start(&mut self) -> Result<(), String> {
        let said = self.cluster.logged().len();
        self.cluster.restart(&mut self.simulation, NODE);
        // Longer than some heartbeats.
        self.simulation.run_for(Duration::from_secs(4));
        let lines = self.cluster.logged()[said..].join("\n");
        let Some(server) = self.cluster.data_if_up(0) else { return Err(lines) };
        let refused = async move { server.refused().await };
        if let Some(refusal) = self.simulation.block_on(NODE, Duration::from_secs(1), refused) {
            return Err(refusal.to_string());
        }
        self.cluster.run(&mut self.simulation, 0, check_files);
        Ok(())
    }

    /// One case: `damaged` has the new bytes of the files, or `None` for files that are gone.
    fn case(
        &mut self,
        what: &str,
        clean: bool,
        damaged: impl Fn(&Files) -> Vec<(&'static str, Option<Vec<u8>>)>,
    ) -> Outcome {
        self.end(clean);
        let disk = self.cluster.data_disk(0).clone();
        let before = files(&disk);
        let damaged = damaged(&before);
        for (name, bytes) in &damaged {
            disk.replace(&path(name), bytes.as_deref());
        }
        let Err(said) = self.start() else { return Outcome::Right };
        assert!(said.contains("/data"), "{what}: {said}");
        let names = damaged.iter().any(|(name, _)| said.contains(name));
        let store = ["of data server", "data server", "metadata server"];
        let clear = names || store.iter().any(|store| said.contains(store));
        assert!(clear, "{what}: nobody learns from this which store is meant: {said}");
        if std::env::var_os("ROPEWALK_VERBOSE").is_some() {
            eprintln!("{what}: {said}");
        }
        if said.contains("joined: it is damaged: remove it") {
            self.end(false);
            disk.replace(&path("joined"), None);
            assert_eq!(self.start(), Ok(()), "{what}: the remedy");
        }
        self.end(false);
        for (name, _) in &damaged {
            put(&disk, name, &before[name]);
        }
        assert_eq!(self.start(), Ok(()), "{what}: the files are as they were again");
        Outcome::Refused
    }
}

/// Puts a file back, also if it is gone.
fn put(disk: &VirtualDisk, name: &str, bytes: &[u8]) {
    use ropewalk_base::disk::{Disk, Open};
    disk.open(&path(name), Open::Create).expect("it can be made");
    disk.replace(&path(name), Some(bytes));
}

/// Every way to damage one file, in words, with the damaged bytes.
fn damages(name: &str, scene: &Scene, foreign: &Files) -> Vec<(String, Option<Vec<u8>>)> {
    let good = files(scene.cluster.data_disk(0))[name].clone();
    let mut all = vec![
        ("gone".to_owned(), None),
        ("an older copy".to_owned(), Some(scene.older[name].clone())),
        ("another store's".to_owned(), Some(foreign[name].clone())),
        ("empty".to_owned(), Some(Vec::new())),
        ("longer".to_owned(), Some([&good[..], b"x"].concat())),
    ];
    for at in (0..good.len()).step_by(7) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        all.push((format!("byte {at} flipped"), Some(bytes)));
    }
    for at in (0..good.len()).step_by(97) {
        let mut bytes = good.clone();
        bytes[at..].fill(0);
        all.push((format!("zeros from byte {at} on"), Some(bytes)));
        all.push((format!("cut at byte {at}"), Some(good[..at].to_vec())));
    }
    for other in NAMES.into_iter().filter(|other| *other != name) {
        let bytes = files(scene.cluster.data_disk(0))[other].clone();
        all.push((format!("{other} instead"), Some(bytes)));
    }
    all
}

#[test]
fn a_server_whose_identity_is_damaged_serves_what_it_had_or_says_why_not() {
    let foreign = files(Scene::new(2).cluster.data_disk(0));
    let mut scene = Scene::new(1);
    let mut outcomes: BTreeMap<(&str, bool, Outcome), u32> = BTreeMap::new();
    for clean in [false, true] {
        for name in NAMES {
            for (how, bytes) in damages(name, &scene, &foreign) {
                let what = format!("{name}: {how}, stopped: {clean}");
                let outcome = scene.case(&what, clean, |_| vec![(name, bytes.clone())]);
                *outcomes.entry((name, clean, outcome)).or_default() += 1;
                // A damaged file with a second copy keeps no server from its start, unless the copies contradict each
                // other.
                let one_of_two = SUPERBLOCKS.contains(&name) && how != "another store's";
                assert!(!one_of_two || outcome == Outcome::Right, "{what}");
            }
        }
        type Change = fn(Vec<u8>) -> Option<Vec<u8>>;
        let changes: [(&str, Change); 4] = [
            ("gone", |_| None),
            ("zeros", |bytes| Some(vec![0; bytes.len()])),
            ("flipped", |mut bytes| {
                bytes[100] ^= 1;
                Some(bytes)
            }),
            ("cut", |bytes| Some(bytes[..300].to_vec())),
        ];
        for (how, change) in changes {
            let what = format!("both superblocks: {how}, stopped: {clean}");
            let both = |before: &Files| {
                SUPERBLOCKS.map(|name| (name, change(before[name].clone()))).to_vec()
            };
            assert_eq!(scene.case(&what, clean, both), Outcome::Refused, "{what}");
        }
        for (how, files) in [("older", scene.older.clone()), ("another's", foreign.clone())] {
            let what = format!("both superblocks: {how}, stopped: {clean}");
            let both =
                |_: &Files| SUPERBLOCKS.map(|name| (name, Some(files[name].clone()))).to_vec();
            let outcome = scene.case(&what, clean, both);
            assert!(how == "older" || outcome == Outcome::Refused, "{what}");
        }
    }
    println!("{outcomes:?}");
    let refused = |name| outcomes.keys().any(|key| key.0 == name && key.2 == Outcome::Refused);
    assert!(refused("joined") && !refused("objects.made"), "{outcomes:?}");
}
