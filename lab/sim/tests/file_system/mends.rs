//! Damage on the disk of one member is healed from another one: by reads, by the scrub, and when the member comes back.

use std::path::PathBuf;
use std::time::Duration;

use crate::check::object_path;
use crate::programs::*;
use ropewalk_base::disk::Disk;
use ropewalk_client::{Caller, Client, Errno};
use ropewalk_data::Scrub;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_store::objects::ObjectId;
use ropewalk_wire::fs::data::Scrubbed;
use ropewalk_wire::fs::meta::ROOT;
use ropewalk_wire::fs::orders::ServerOrder;

const STRIPE: usize = 64 << 10;
const STRIPES: usize = 6;
/// Each chooses the members from which it reads: a few of them meet all members.
const CLIENTS: u32 = 10;

/// A cluster of three data servers with a file of two copies, all of which is in files of objects.
struct Site {
    simulation: Simulation,
    cluster: Cluster,
    inode: u64,
}

impl Site {
    fn new(seed: u64, data_scrub: Option<Scrub>) -> Site {
        let mut simulation = Simulation::new(seed);
        let config = ClusterConfig {
            data_servers: 3,
            clients: CLIENTS,
            data_scrub,
            ..ClusterConfig::default()
        };
        let cluster = Cluster::start(&mut simulation, config);
        cluster.mirror(&mut simulation, 2);
        let inode = cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"f").await;
            write(&client, &file, 0, &pattern(1, STRIPES * STRIPE)).await.expect("written");
            client.sync(&file).await.expect("synced");
            client.lookup(&Caller::root(), ROOT, b"f").await.expect("found").inode
        });
        let site = Site { simulation, cluster, inode };
        site.checkpoint()
    }

    fn checkpoint(mut self) -> Site {
        let stores = [0, 1, 2].map(|server| self.cluster.data(server).store().clone());
        self.cluster.run(&mut self.simulation, 0, |_| async move {
            for store in stores {
                store.checkpoint().await.expect("a checkpoint");
            }
        });
        self
    }

    /// The members of the group of a stripe, counted from 0; the first orders it.
    fn members(&mut self, stripe: usize) -> Vec<usize> {
        let inode = self.inode;
        let group = self.cluster.run(&mut self.simulation, 0, move |client| async move {
            let striped = client.placement(inode).await.expect("told").striped;
            striped.expect("it has stripes").group(stripe as u32)
        });
        let members = self.cluster.meta().map().expect("it serves").members(group);
        members.into_iter().map(|server| server as usize - 1).collect()
    }

    fn path(&self, server: usize, stripe: usize) -> PathBuf {
        object_path(self.cluster.data_disk(server), self.inode, stripe as u32)
    }

    /// Flips a bit of a block of a stripe, counted from the end.
    fn rot(&self, server: usize, stripe: usize, block: u64) {
        let (disk, path) = (self.cluster.data_disk(server), self.path(server, stripe));
        let bytes = disk.bytes(&path).expect("it has bytes").len() as u64;
        disk.flip_bit(&path, bytes - 4096 * block - 2000, 5);
    }

    /// All clients read the file.
    fn read(&mut self) -> Result<Vec<u8>, Errno> {
        let read = async |client: Client| {
            let file = open(&client, b"f", READ).await.expect("opened");
            read_all(&client, &file).await
        };
        let all = (0..CLIENTS as usize)
            .map(|client| self.cluster.run(&mut self.simulation, client, read));
        let all: Vec<Vec<u8>> = all.collect::<Result<_, Errno>>()?;
        assert!(all.iter().all(|bytes| *bytes == all[0]), "all clients read the same");
        Ok(all.into_iter().next().expect("there are clients"))
    }

    fn reads_well(&mut self) {
        let bytes = self.read().expect("it can be read");
        assert_same(&bytes, &pattern(1, STRIPES * STRIPE));
    }

    /// Whether all blocks of a stripe are well at a server.
    fn is_well(&self, server: usize, stripe: usize) -> bool {
        let object = ObjectId { inode: self.inode, generation: 0, stripe: stripe as u32 };
        self.cluster.data(server).store().verify(object).is_ok_and(|blocks| blocks == 16)
    }

    fn figure(&self, server: usize, name: &str) -> u64 {
        let report = self.cluster.data(server).report().expect("it reports");
        let found = report.figures.iter().find(|figure| figure.name.0 == name.as_bytes());
        found.expect("it is there").value
    }
}

#[test]
fn a_read_of_a_damaged_block_gets_the_bytes_of_another_member_and_heals_it() {
    let mut site = Site::new(21, None);
    let members = site.members(2);
    for block in [0, 3, 4, 9] {
        site.rot(members[0], 2, block);
    }
    assert!(!site.is_well(members[0], 2));
    site.reads_well();
    assert!(site.is_well(members[0], 2), "what was damaged is written again");
    assert_eq!(site.figure(members[0], "data_mended_blocks_total"), 4);
    assert_eq!(site.figure(members[0], "data_lost_blocks_total"), 0);
    // At a member that does not order the writes: it tells the orderer. It serves when it has heard that all have the writes.
    site.simulation.run_for(Duration::from_secs(1));
    for block in [1, 2, 8] {
        site.rot(members[1], 2, block);
    }
    assert!(!site.is_well(members[1], 2));
    site.reads_well();
    site.simulation.run_for(Duration::from_secs(1));
    assert!(site.is_well(members[1], 2), "its orderer has it written again");
    assert_eq!(site.figure(members[0], "data_mended_blocks_total"), 7);
    site.reads_well();
}

#[test]
fn an_object_that_a_member_has_lost_is_read_from_another_and_comes_again() {
    for harm in [Harm::Head, Harm::Gone] {
        let mut site = Site::new(20, None);
        let members = site.members(3);
        // Its store does not notice it before somebody reads.
        site.restart(&[], |site| site.harm(members[1], 3, harm));
        site.reads_well();
        site.simulation.run_for(Duration::from_secs(30));
        site.reads_well();
        assert!(site.is_well(members[1], 3), "{harm:?}: {:#?}", site.cluster.logged());
        let differences = site.cluster.copy_differences(2);
        assert!(differences.is_empty(), "{differences:#?}");
    }
}

#[test]
fn what_is_damaged_everywhere_is_an_error_and_nothing_else_is() {
    let mut site = Site::new(2, None);
    let members = site.members(1);
    for server in &members {
        site.rot(*server, 1, 7);
    }
    assert_eq!(site.read(), Err(Errno::EIO));
    assert!(site.figure(members[0], "data_lost_blocks_total") > 0);
    // Overwritten, it is well again.
    site.cluster.run(&mut site.simulation, 0, |client| async move {
        let file = open(&client, b"f", BOTH).await.expect("opened");
        write(&client, &file, 0, &pattern(1, STRIPES * STRIPE)).await.expect("written");
    });
    site.reads_well();
    assert!(members.iter().all(|server| site.is_well(*server, 1)));
}

#[test]
fn the_scrub_finds_damage_at_any_member_before_somebody_reads() {
    let scrub = Scrub { bytes_per_second: 64 << 20, pause: Duration::from_secs(1) };
    let mut site = Site::new(3, Some(scrub));
    let (first, second) = (site.members(0), site.members(5));
    site.rot(first[0], 0, 2);
    site.rot(first[1], 0, 3);
    site.rot(second[1], 5, 0);
    site.simulation.run_for(Duration::from_secs(8));
    assert!(first.iter().all(|server| site.is_well(*server, 0)));
    assert!(second.iter().all(|server| site.is_well(*server, 5)));
    let mended: u64 = (0..3).map(|it| site.figure(it, "data_mended_blocks_total")).sum();
    assert_eq!(mended, 3);
    site.reads_well();
    assert!((0..3).all(|server| site.figure(server, "data_scrub_rounds_total") > 2));
}

#[test]
fn the_scrub_stays_within_its_rate() {
    let scrub = Scrub { bytes_per_second: 64 << 10, pause: Duration::from_secs(1) };
    let site = Site::new(4, Some(scrub));
    let mut site = site;
    site.simulation.run_for(Duration::from_secs(20));
    for server in 0..3 {
        let read = site.figure(server, "data_scrub_bytes_total");
        // One object more may have been begun.
        assert!(read <= 25 * (64 << 10) + STRIPE as u64, "{read} bytes");
    }
}

#[test]
fn an_administrator_has_all_objects_compared_now_and_hears_what_was_damaged() {
    let mut site = Site::new(8, None);
    let (first, second) = (site.members(0), site.members(5));
    site.rot(first[0], 0, 2);
    site.rot(first[1], 0, 3);
    site.rot(second[1], 5, 0);
    let lost = site.members(3);
    for server in &lost {
        site.rot(*server, 3, 6);
    }
    let scrub = |site: &mut Site, rate: u64| {
        site.cluster.run(&mut site.simulation, 0, move |client| async move {
            let operator = client.operator(Duration::from_secs(10)).expect("an address");
            operator.servers().await.expect("told");
            let mut all = [0; 5];
            for server in 1..=3 {
                let found = operator.scrub(server, rate, &|_| {}).await.expect("it ends");
                let Scrubbed { seen, bytes, mended, lost, passed, .. } = found;
                let found = [seen, bytes, mended, lost, passed];
                all.iter_mut().zip(found).for_each(|(all, one)| *all += one);
            }
            all
        })
    };
    let objects = 2 * STRIPES as u64;
    let bytes = (STRIPES * STRIPE) as u64;
    assert_eq!(scrub(&mut site, 0), [objects, bytes, 3, 1, 0]);
    assert!(first.iter().all(|server| site.is_well(*server, 0)));
    assert!(second.iter().all(|server| site.is_well(*server, 5)));
    assert_eq!(scrub(&mut site, 0), [objects, bytes, 0, 1, 0], "mended once");
    let begin = site.simulation.now();
    scrub(&mut site, 64 << 10);
    let took = site.simulation.now().since(begin);
    assert!(took > Duration::from_secs(2), "six stripes at a stripe a second took {took:?}");
    site.cluster.kill(&mut site.simulation, "data3", Kill::Process(Duration::ZERO));
    let silent = site.cluster.run(&mut site.simulation, 0, |client| async move {
        let operator = client.operator(Duration::from_secs(3)).expect("an address");
        operator.servers().await.expect("told");
        operator.scrub(3, 0, &|_| {}).await.is_err()
    });
    assert!(silent);
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    Head,
    Gone,
}

impl Site {
    /// Does harm to the file of a stripe at a server that is down.
    fn harm(&self, server: usize, stripe: usize, harm: Harm) {
        let (disk, path) = (self.cluster.data_disk(server), self.path(server, stripe));
        match harm {
            // The head is there twice.
            Harm::Head => [3, 512 + 3].into_iter().for_each(|at| disk.flip_bit(&path, at, 1)),
            Harm::Gone => disk.remove_file(&path).expect("removed"),
        }
    }

    fn restart(&mut self, servers: &[usize], meanwhile: impl Fn(&Site)) {
        for server in servers {
            let name = format!("data{}", server + 1);
            self.cluster.kill(&mut self.simulation, &name, Kill::Process(Duration::ZERO));
        }
        meanwhile(self);
        for server in servers {
            let name = format!("data{}", server + 1);
            self.cluster.restart(&mut self.simulation, &name);
        }
        self.cluster.await_start(&mut self.simulation);
    }
}

#[test]
fn a_member_that_comes_back_with_a_lost_object_gets_it_again() {
    for (seed, harm) in [(5, Harm::Head), (6, Harm::Gone)] {
        let mut site = Site::new(seed, None);
        let members = site.members(3);
        site.restart(&members[..1], |site| site.harm(members[0], 3, harm));
        site.simulation.run_for(Duration::from_secs(20));
        assert!(site.is_well(members[0], 3), "{harm:?}: {:#?}", site.cluster.logged());
        let differences = site.cluster.copy_differences(2);
        assert!(differences.is_empty(), "{differences:#?}");
        site.reads_well();
    }
}

#[test]
fn an_orderer_that_finds_an_object_lost_gives_the_group_up_and_gets_it_again() {
    let mut healed = [0, 0];
    for (seed, harm) in (7..17).flat_map(|seed| [(seed, Harm::Head), (seed, Harm::Gone)]) {
        let mut site = Site::new(seed, None);
        let members = site.members(3);
        // All at once: nobody lives who would take its place.
        site.restart(&[0, 1, 2], |site| site.harm(members[0], 3, harm));
        site.simulation.run_for(Duration::from_secs(1));
        if site.read().is_err() {
            site.simulation.run_for(Duration::from_secs(10));
            // Others that were silent for too long before they started again are out of step, and the last copy that
            // counts is the lost one.
            if site.members(3) == [members[0]] {
                continue;
            }
            site.reads_well();
        }
        site.simulation.run_for(Duration::from_secs(20));
        assert!(site.is_well(members[0], 3), "{harm:?}: {:#?}", site.cluster.logged());
        let differences = site.cluster.copy_differences(2);
        assert!(differences.is_empty(), "{differences:#?}");
        site.reads_well();
        healed[usize::from(harm == Harm::Gone)] += 1;
    }
    assert!(healed.iter().all(|times| *times > 2), "{healed:?}");
}

/// The last copy that counts has lost a whole object. Reading it is an error, also once a member with an older copy is there: nobody
/// takes that for the truth unasked, and nobody empties it. A person who gives the server up gets it.
#[test]
fn a_lost_object_of_the_last_member_is_an_error_until_somebody_gives_the_server_up() {
    for (seed, harm) in [(31, Harm::Head), (32, Harm::Gone), (33, Harm::Head), (34, Harm::Gone)] {
        let mut site = Site::new(seed, None);
        let members = site.members(3);
        let (last, other) = (members[0], members[1]);
        let names = [last, other].map(|server| format!("data{}", server + 1));
        site.cluster.kill(&mut site.simulation, &names[1], Kill::Process(Duration::ZERO));
        site.simulation.run_for(Duration::from_secs(5));
        assert_eq!(site.members(3), [last]);
        site.cluster.kill(&mut site.simulation, &names[0], Kill::Process(Duration::ZERO));
        site.harm(last, 3, harm);
        for name in &names {
            site.cluster.restart(&mut site.simulation, name);
        }
        site.cluster.await_start(&mut site.simulation);
        assert!(!site.is_well(last, 3), "{harm:?}: no harm was done");
        site.simulation.run_for(Duration::from_secs(20));
        assert_eq!(site.members(3), [last], "{harm:?}: {:#?}", site.cluster.logged());
        assert!(site.read().is_err(), "{harm:?}: nobody has the bytes for certain");
        assert!(site.is_well(other, 3), "{harm:?}: the older copy stays");
        site.cluster.kill(&mut site.simulation, &names[0], Kill::Process(Duration::ZERO));
        site.simulation.run_for(Duration::from_secs(35));
        let number = last as u32 + 1;
        site.cluster.run(&mut site.simulation, 0, move |client| async move {
            let operator = client.operator(Duration::from_secs(5)).expect("an address");
            operator.order(ServerOrder::Lost { server: number }).await.expect("given up");
        });
        site.simulation.run_for(Duration::from_secs(20));
        site.reads_well();
    }
}
