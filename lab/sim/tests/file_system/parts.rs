//! A part of a server's directory that is not the one that belongs there: another server's, or an older copy
//! of it, beside a superblock that is current. The server says so and serves nobody; with the right
//! part back it serves everything, for a refused start has changed nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::random::Random;
use ropewalk_client::Client;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_store::superblock::{Expect, Identity, Keeper, Role, claim};

const FILES: u64 = 6;
const BYTES: usize = 90_000;
/// The parts, each a path of files that are put back together.
const OBJECTS: &[&str] = &["/data/objects/"];
const METADATA: &[&str] = &["/meta/index.redb", "/meta/journal/", "/meta/journal.mark"];

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// The files of a part.
fn part(disk: &VirtualDisk, of: &[&str]) -> Files {
    let belongs = |path: &PathBuf| {
        of.iter().any(|one| path.to_str().is_some_and(|path| path.starts_with(one)))
    };
    let files = disk.files().into_iter().filter(belongs);
    files.map(|path| (path.clone(), disk.bytes(&path).expect("it was listed"))).collect()
}

/// Puts other files in the place of a part.
fn put(disk: &VirtualDisk, of: &[&str], files: &Files) {
    for path in part(disk, of).into_keys() {
        disk.replace(&path, None);
    }
    for (path, bytes) in files {
        disk.create_directory(path.parent().expect("a file has one")).expect("it can be made");
        drop(disk.open(path, Open::Create).expect("it can be made"));
        disk.replace(path, Some(bytes));
    }
}

async fn write_files(client: Client, version: u64) {
    for number in 0..FILES {
        let name = number.to_string();
        let file = match version {
            0 => create(&client, name.as_bytes()).await,
            _ => open(&client, name.as_bytes(), BOTH).await.expect("it is there"),
        };
        let bytes = pattern(number + 100 * version, BYTES);
        write(&client, &file, 0, &bytes).await.expect("written");
        client.sync(&file).await.expect("synced");
    }
}

async fn check_files(client: Client, version: u64) {
    for number in 0..FILES {
        let file = open(&client, number.to_string().as_bytes(), READ).await.expect("opened");
        let bytes = read_all(&client, &file).await.expect("read");
        assert_same(&bytes, &pattern(number + 100 * version, BYTES));
    }
}

/// A cluster with two data servers, and its files.
struct Scene {
    simulation: Simulation,
    cluster: Cluster,
    version: u64,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let mut simulation = Simulation::new(seed);
        let config = ClusterConfig { data_servers: 2, clients: 1, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        simulation.run_for(Duration::from_secs(3));
        cluster.run(&mut simulation, 0, |client| write_files(client, 0));
        Scene { simulation, cluster, version: 0 }
    }

    fn overwrite(&mut self) {
        self.version += 1;
        let version = self.version;
        self.cluster.run(&mut self.simulation, 0, |client| write_files(client, version));
    }

    fn end(&mut self, clean: bool) {
        for name in ["data1", "data2", "meta"] {
            if clean && name == "meta" {
                let meta = self.cluster.meta();
                let stopped = async move { meta.stop().await.map_err(|error| error.to_string()) };
                let stopped = self.simulation.block_on(name, Duration::from_secs(60), stopped);
                stopped.expect("it stops in time").expect("it stops");
            } else if clean {
                let server = self.cluster.data(usize::from(name == "data2"));
                let stopped = async move { server.stop().await.map_err(|error| error.to_string()) };
                let stopped = self.simulation.block_on(name, Duration::from_secs(60), stopped);
                stopped.expect("it stops in time").expect("it stops");
            }
            self.cluster.kill(&mut self.simulation, name, Kill::Process(Default::default()));
        }
    }

    /// Starts all servers; the lines logged meanwhile.
    fn start(&mut self) -> String {
        let said = self.cluster.logged().len();
        for name in ["meta", "data1", "data2"] {
            self.cluster.restart(&mut self.simulation, name);
        }
        self.simulation.run_for(Duration::from_secs(6));
        self.cluster.logged()[said..].join("\n")
    }

    /// All servers are up, and all files are as they were written last.
    fn check(&mut self) {
        self.cluster.await_start(&mut self.simulation);
        let version = self.version;
        self.cluster.run(&mut self.simulation, 0, |client| check_files(client, version));
    }

    fn kill_all(&mut self) {
        for name in ["data1", "data2", "meta"] {
            if self.simulation.is_alive(name) {
                self.cluster.kill(&mut self.simulation, name, Kill::Process(Default::default()));
            }
        }
    }

    /// Another part in the place of one: refused twice, and well again with the right one.
    fn refuse(&mut self, disk: &VirtualDisk, of: &[&str], other: &Files, expected: &str) {
        let right = part(disk, of);
        put(disk, of, other);
        for _ in 0..2 {
            let said = self.start();
            assert!(
                said.contains(expected) && said.contains("estore the newer one"),
                "{of:?}: {said}"
            );
            self.kill_all();
        }
        put(disk, of, &right);
        self.start();
        self.check();
    }
}

#[test]
fn objects_of_two_data_servers_that_were_exchanged_are_refused() {
    for clean in [false, true] {
        let mut scene = Scene::new(1);
        let disks = [0, 1].map(|server| scene.cluster.data_disk(server).clone());
        for life in 0..2 {
            scene.end(clean);
            let right = disks.each_ref().map(|disk| part(disk, OBJECTS));
            put(&disks[0], OBJECTS, &right[1]);
            put(&disks[1], OBJECTS, &right[0]);
            let said = scene.start();
            for name in ["data1: ", "data2: "] {
                let line = said.lines().find(|line| line.starts_with(name)).unwrap_or("");
                assert!(line.contains("/data/objects is of another directory"), "{life}: {said}");
            }
            scene.kill_all();
            put(&disks[0], OBJECTS, &right[0]);
            put(&disks[1], OBJECTS, &right[1]);
            scene.start();
            scene.check();
            scene.overwrite();
        }
    }
}

#[test]
fn objects_of_an_earlier_life_are_refused() {
    for clean in [false, true] {
        let mut scene = Scene::new(2);
        let disk = scene.cluster.data_disk(0).clone();
        scene.end(clean);
        let older = part(&disk, OBJECTS);
        scene.start();
        scene.overwrite();
        scene.end(clean);
        scene.refuse(&disk, OBJECTS, &older, "/data/objects is an older copy");
        // The copy of a server at work, which then ended well.
        let older = part(&disk, OBJECTS);
        scene.overwrite();
        scene.end(true);
        scene.refuse(&disk, OBJECTS, &older, "/data/objects is an older copy");
    }
}

#[test]
fn metadata_of_an_earlier_life_are_refused() {
    for clean in [false, true] {
        let mut scene = Scene::new(3);
        let disk = scene.cluster.meta_disk().clone();
        scene.end(clean);
        let older = part(&disk, METADATA);
        assert!(older.len() > 3, "{:?}", older.keys());
        scene.start();
        scene.overwrite();
        scene.end(clean);
        scene.refuse(&disk, METADATA, &older, "/journal is an older copy");
        let older = part(&disk, METADATA);
        scene.overwrite();
        scene.end(true);
        scene.refuse(&disk, METADATA, &older, "/journal is an older copy");
    }
}

#[test]
fn a_part_that_is_not_there_is_the_right_one_when_it_is_back() {
    let mut scene = Scene::new(4);
    let (meta, data) = (scene.cluster.meta_disk().clone(), scene.cluster.data_disk(0).clone());
    for (disk, of) in [(data, OBJECTS), (meta, &["/meta/journal/"][..])] {
        scene.end(false);
        let right = part(&disk, of);
        put(&disk, of, &Files::new());
        for _ in 0..3 {
            let said = scene.start();
            assert!(said.contains("gone") || said.contains("lost"), "{of:?}: {said}");
            scene.kill_all();
        }
        put(&disk, of, &right);
        scene.start();
        scene.check();
    }
}

#[test]
fn a_part_that_lost_its_own_file_is_told_anew() {
    let mut scene = Scene::new(5);
    let (meta, data) = (scene.cluster.meta_disk().clone(), scene.cluster.data_disk(0).clone());
    for (disk, path, of) in
        [(data, "/data/objects/starts", OBJECTS), (meta, "/meta/journal/starts", METADATA)]
    {
        for bytes in [None, Some(&[7; 8192][..]), Some(&[][..])] {
            scene.end(false);
            disk.replace(Path::new(path), bytes);
            let said = scene.start();
            assert!(said.contains("starts was damaged or missing and is made anew"), "{said}");
            scene.check();
            scene.end(false);
            let older = part(&disk, of);
            scene.start();
            scene.overwrite();
            scene.end(false);
            scene.refuse(&disk, of, &older, "is an older copy");
        }
    }
}

/// One start on a disk, and its end.
fn live(disk: &VirtualDisk, random: u64, work: impl FnOnce(&mut Keeper) -> bool) -> bool {
    let (path, random) = (Path::new("/store"), (random << 32, 5));
    let identity = Identity { cluster: ClusterId(1), server: ServerId(1), role: Role::Data };
    let claimed = claim(disk, path, identity, Expect::Any, random);
    claimed.is_ok_and(|claimed| work(&mut claimed.keeper()))
}

#[test]
fn a_death_at_any_step_of_starts_and_ends_leaves_a_directory_that_starts() {
    let mut random = Random::from_seed(6);
    for power in [false, true] {
        for halted in 0.. {
            let disk = VirtualDisk::new(halted);
            let mut whole = false;
            let mut die = |disk: &VirtualDisk| match power {
                true => disk.crash(&mut random),
                false => disk.survive_process_death(),
            };
            disk.halt_after(halted);
            for number in 0..3 {
                whole = live(&disk, 10 + number, |keeper| {
                    let made = disk.create_directory(Path::new("/store/objects")).is_ok();
                    made && keeper.bind(&disk).is_ok() && keeper.end(&disk).is_ok()
                });
                if !whole {
                    break;
                }
                disk.survive_process_death();
            }
            die(&disk);
            for number in 0..3 {
                // Starts that come no further than this are forgotten again.
                for again in 0..60 * (number % 2) {
                    assert!(live(&disk, 1000 + again, |_| true), "{halted}, {number}");
                    disk.survive_process_death();
                }
                let bound = live(&disk, 100 + number, |keeper| {
                    drop(disk.create_directory(Path::new("/store/objects")));
                    keeper.bind(&disk).is_ok()
                });
                assert!(bound, "power {power}, halted after {halted}, start {number}");
                die(&disk);
            }
            if whole {
                break;
            }
        }
    }
}
