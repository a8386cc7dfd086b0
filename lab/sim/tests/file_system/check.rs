//! `check` and `status` on a whole file system: they find nothing in a sound one, whichever clients work meanwhile;
//! damage is found and named.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::checksum::crc32c;
use ropewalk_base::disk::Disk;
use ropewalk_base::random::Random;
use ropewalk_client::operator::check::{CheckOptions, CheckSummary, Event, Finding, Problem};
use ropewalk_client::operator::status::{ClusterState, SessionState};
use ropewalk_client::{AttributeChange, Caller, Client, Errno};
use ropewalk_sim::cluster::META;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, Simulation};
use ropewalk_store::objects::{ObjectId, WriteEpoch};
use ropewalk_wire::fs::meta::{Node, ROOT};
use ropewalk_wire::fs::value::Bytes;

const PATIENCE: Duration = Duration::from_secs(5);
const PLAIN: CheckOptions = CheckOptions { read: false, repair: false, pause: Duration::ZERO };
const READ_ALL: CheckOptions = CheckOptions { read: true, ..PLAIN };

fn cluster(seed: u64, data_servers: u32, clients: u32) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let mut config = ClusterConfig { data_servers, clients, ..ClusterConfig::default() };
    // Removed files are deleted at once: so more changes between two looks.
    config.meta.tick = Duration::from_millis(1);
    // Rows come from the disk, so that damage of theirs is met.
    config.meta.store.cache_bytes = 16 << 10;
    let cluster = Cluster::start(&mut simulation, config);
    simulation.run_for(Duration::from_secs(2));
    (simulation, cluster)
}

async fn check(client: Client, options: CheckOptions) -> (Vec<Finding>, CheckSummary) {
    let operator = client.operator(PATIENCE).expect("an address");
    let found = RefCell::new(Vec::new());
    let tell = |event: Event<'_>| {
        if let Event::Found(finding) = event {
            found.borrow_mut().push(finding.clone());
        }
    };
    let summary = operator.check(options, &tell).await.expect("the metadata server answers");
    assert_eq!(summary.problems(), found.borrow().len() as u64);
    (found.into_inner(), summary)
}

async fn status(client: Client) -> ClusterState {
    let operator = client.operator(PATIENCE).expect("an address");
    operator.status().await.expect("the metadata server answers")
}

async fn write_file(client: &Client, name: &[u8], bytes: usize) -> u64 {
    let file = create(client, name).await;
    write(client, &file, 0, &pattern(bytes as u64, bytes)).await.expect("written");
    client.sync(&file).await.expect("synced");
    file.number()
}

/// Everything that makes, moves and removes objects, on a few names that others use, too.
async fn work(client: Client, seed: u64, rounds: u64) {
    let (mut random, root) = (Random::from_seed(seed), Caller::root());
    for _ in 0..rounds {
        let name = [b'a' + random.below(6) as u8];
        let len = 1 + random.below(300_000) as usize;
        if random.below(3) == 0 {
            match client.unlink(&root, ROOT, &name).await {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => panic!("unlink: {errno}"),
            }
            continue;
        }
        let truncate = random.below(3) == 0;
        let options = if random.below(2) == 0 { APPEND } else { BOTH };
        let options = ropewalk_client::OpenOptions { truncate, ..options };
        let file = match client.create(&root, ROOT, &name, 0o644, true, options).await {
            Ok((_, file, _)) => file,
            Err(Errno::EEXIST) => match open(&client, &name, options).await {
                Ok(file) => file,
                Err(Errno::ENOENT | Errno::ESTALE) => continue,
                Err(errno) => panic!("open: {errno}"),
            },
            Err(errno) => panic!("create: {errno}"),
        };
        let offset = random.below(200_000);
        write(&client, &file, offset, &pattern(seed, len)).await.expect("written");
        if random.below(3) == 0 {
            let size = Some(random.below(300_000));
            let change = AttributeChange { size, ..AttributeChange::default() };
            client.set_attributes(&root, file.number(), change).await.expect("cut");
        }
    }
}

#[test]
fn nothing_is_found_while_clients_write_cut_and_remove() {
    let (mut checks, mut looked) = (0u64, 0);
    for seed in 1..=6 {
        let (mut simulation, cluster) = cluster(seed, 3, 3);
        let workers: Vec<_> = (1..3)
            .map(|client| {
                cluster.spawn(&simulation, client, |it| work(it, seed * 7 + client as u64, 60))
            })
            .collect();
        while workers.iter().any(|worker| worker.borrow().is_none()) {
            // The more changes between two looks, the more looks wrong at first.
            let pause = Duration::from_millis(checks % 3 * 10);
            let options = CheckOptions { pause, ..READ_ALL };
            let (found, summary) = cluster.run(&mut simulation, 0, |it| check(it, options));
            assert_eq!(found, [], "seed {seed}");
            assert_eq!(summary.unreached, BTreeMap::new(), "seed {seed}");
            checks += 1;
            simulation.run_for(Duration::from_micros(300 + checks % 7 * 100));
        }
        let (found, summary) = cluster.run(&mut simulation, 0, |it| check(it, READ_ALL));
        assert_eq!((found, summary.unsettled), (vec![], 0), "seed {seed}");
        looked += summary.looked.objects;
    }
    assert!(looked > 0);
    assert!(checks > 15, "only {checks} checks ran beside the writers");
}

#[test]
fn objects_without_an_inode_are_found_and_go_by_repair() {
    let (mut simulation, cluster) = cluster(9, 2, 1);
    cluster.run(&mut simulation, 0, |client| async move {
        for number in 0..5u8 {
            write_file(&client, &[b'a' + number], 200_000).await;
        }
    });
    // Reserved numbers are nobody's; a number from beyond may become somebody's.
    let planted = [(0, 7, 3), (0, 9, 0), (1, 9, 0), (1, 1 << 40, 0)];
    for (server, inode, generation) in planted {
        let object = ObjectId { inode, generation, stripe: 2 };
        let store = cluster.data(server).store().clone();
        let by = WriteEpoch { session: 1, epoch: 1 };
        store.write(object, 0, &[b"lost"], &[crc32c(b"lost")], by).expect("written");
    }
    let (mut found, _) =
        cluster.run(&mut simulation, 0, |client| check(client, CheckOptions::default()));
    found.sort_by_key(|finding| (finding.server, finding.inode));
    let named: Vec<_> = found
        .iter()
        .map(|found| (found.server as usize - 1, found.inode, found.generation))
        .collect();
    assert_eq!(named, planted, "servers have numbers from 1 on");
    for finding in &found {
        assert_eq!((finding.problem, finding.stripe), (Problem::Orphan, 2));
        assert_eq!((finding.bytes, &finding.path), (4096, &None));
    }
    let repair = CheckOptions { repair: true, ..PLAIN };
    let (_, summary) = cluster.run(&mut simulation, 0, |client| check(client, repair));
    assert_eq!((summary.problems(), summary.discarded), (4, 3));
    simulation.run_for(Duration::from_secs(2));
    let (left, _) = cluster.run(&mut simulation, 0, |client| check(client, READ_ALL));
    let left: Vec<u64> = left.iter().map(|finding| finding.inode).collect();
    assert_eq!(left, [1 << 40]);
    cluster.run(&mut simulation, 0, |client| async move {
        for number in 0..5u8 {
            let file = open(&client, &[b'a' + number], READ).await.expect("opened");
            assert_same(&read_all(&client, &file).await.expect("read"), &pattern(200_000, 200_000));
        }
    });
}

/// The file in which an object of generation 0 lies.
pub fn object_path(disk: &VirtualDisk, inode: u64, stripe: u32) -> PathBuf {
    let name = format!("{inode:016x}.{:08x}.{stripe:08x}", 0);
    let root = Path::new("/data/objects/objects");
    let folders = disk.list(root).expect("the folder of objects");
    let mut paths = folders.iter().map(|(folder, _)| root.join(folder).join(&name));
    paths.find(|path| disk.bytes(path).is_some()).expect("it exists")
}

#[test]
fn a_client_that_has_left_opens_no_session_anew() {
    let (mut simulation, cluster) = cluster(12, 1, 2);
    let number = cluster.run(&mut simulation, 0, |client| async move {
        let number = write_file(&client, b"file", 1000).await;
        client.stop().await;
        // Late calls: a renewal, a lease that is given back, a program that does not know yet.
        let root = Caller::root();
        let late = client.create(&root, ROOT, b"late", 0o644, true, BOTH).await;
        assert_eq!(late.err(), Some(Errno::EIO));
        number
    });
    let sessions = cluster.run(&mut simulation, 1, |client| async move {
        client.attributes(number).await.expect("the other one lives");
        client.operator(PATIENCE).expect("an address").sessions(9).await.expect("told").len()
    });
    assert_eq!(sessions, 1, "{:?}", cluster.logged());
}

#[test]
fn absent_and_rotten_objects_are_found_with_the_path() {
    let (mut simulation, cluster) = cluster(10, 2, 1);
    let (lost, rotten) = cluster.run(&mut simulation, 0, |client| async move {
        let root = Caller::root();
        client.make_directories(&root, b"/some/where", 0o755).await.expect("made");
        let lost = write_file(&client, b"lost", 200_000).await;
        let place = client.resolve(&root, b"/some/where", true).await.expect("there").inode;
        let mode = ropewalk_client::RenameMode::Replace;
        client.rename(&root, ROOT, b"lost", place, b"lost", mode).await.expect("renamed");
        (lost, write_file(&client, b"rotten", 200_000).await)
    });
    let holders = |inode: u64, stripe: u32| -> Vec<usize> {
        let object = ObjectId { inode, generation: 0, stripe };
        let has = |server: &usize| {
            let store = cluster.data(*server).store().clone();
            store.info(object).expect("readable").is_some()
        };
        (0..2).filter(has).collect()
    };
    let (lost_at, rotten_at) = (holders(lost, 1)[0], holders(rotten, 2)[0]);
    // Behind the server's back: its own removal would leave a tombstone.
    cluster.run(&mut simulation, 0, |_| {
        let stores = [0, 1].map(|server| cluster.data(server).store().clone());
        async move {
            for store in stores {
                store.checkpoint().await.expect("a checkpoint");
            }
        }
    });
    for server in ["data1", "data2"] {
        cluster.kill(&mut simulation, server, Kill::Process(Duration::ZERO));
    }
    let disk = cluster.data_disk(lost_at);
    disk.remove_file(&object_path(disk, lost, 1)).expect("removed");
    let disk = cluster.data_disk(rotten_at);
    let path = object_path(disk, rotten, 2);
    let middle = disk.bytes(&path).expect("it has bytes").len() as u64 - 20_000;
    disk.flip_bit(&path, middle, 5);
    for server in ["data1", "data2"] {
        cluster.restart(&mut simulation, server);
    }
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(3));
    let plain = CheckOptions::default();
    let (found, summary) = cluster.run(&mut simulation, 0, |client| check(client, plain));
    assert_eq!(summary.found, BTreeMap::from([("absent", 1)]));
    let expected = Finding {
        problem: Problem::Absent,
        server: lost_at as u32 + 1,
        inode: lost,
        generation: 0,
        stripe: 1,
        bytes: 0,
        path: Some(b"/some/where/lost".to_vec()),
    };
    assert_eq!(found, [expected]);
    let (found, summary) = cluster.run(&mut simulation, 0, |client| check(client, READ_ALL));
    assert_eq!(summary.found, BTreeMap::from([("absent", 1), ("corrupt", 1)]));
    let corrupt = found.iter().find(|found| found.inode == rotten).expect("it is named");
    assert!(matches!(corrupt.problem, Problem::Corrupt { .. }));
    assert_eq!((corrupt.server as usize, corrupt.stripe), (rotten_at + 1, 2));
    assert_eq!(corrupt.path.as_deref(), Some(&b"/rotten"[..]));
}

#[test]
fn a_client_that_died_while_it_wrote_leaves_nothing_once_its_session_is_over() {
    let mut died_writing = 0;
    for seed in 30..40 {
        let (mut simulation, cluster) = cluster(seed, 2, 2);
        let worker = cluster.spawn(&simulation, 1, |client| work(client, seed, 1000));
        simulation.run_for(Duration::from_millis(100 + seed % 10 * 47));
        assert!(worker.borrow().is_none(), "it is at work");
        cluster.kill(&mut simulation, "client1", Kill::Power);
        let objects: u64 = (0..2).map(|server| cluster.data(server).store().usage().objects).sum();
        died_writing += u64::from(objects > 0);
        simulation.run_for(Duration::from_secs(30));
        let (found, summary) = cluster.run(&mut simulation, 0, |client| check(client, READ_ALL));
        // Stripes of which it had not told stay in a file that has others; they are named.
        assert!(found.iter().all(|found| found.problem == Problem::Unrecorded), "{found:?}");
        assert_eq!(summary.unsettled, 0);
    }
    assert!(died_writing > 5);
}

#[test]
fn servers_that_are_down_are_named_and_the_others_are_checked() {
    let (mut simulation, cluster) = cluster(11, 3, 1);
    cluster.run(&mut simulation, 0, |client| async move {
        for number in 0..9u8 {
            write_file(&client, &[b'a' + number], 300_000).await;
        }
    });
    let before = cluster.run(&mut simulation, 0, status);
    assert_eq!((before.servers.len(), before.meta.inodes), (3, 10));
    assert!(before.servers.iter().all(|server| server.answer.is_some() && server.in_pool));
    let objects: u64 =
        before.servers.iter().flat_map(|server| &server.answer).map(|a| a.objects).sum();
    assert_eq!(objects, 9 * 5);
    let written: u64 = before
        .servers
        .iter()
        .flat_map(|server| &server.answer)
        .map(|answer| answer.activities["write"].bytes)
        .sum();
    assert!(written >= 9 * 300_000, "{written}");
    assert_eq!(before.meta.activities["create"].calls, 9);
    assert_eq!((before.meta.written, before.meta.sessions), (before.meta.position, 1));
    cluster.kill(&mut simulation, "data2", Kill::Power);
    simulation.run_for(Duration::from_secs(4));
    let during = cluster.run(&mut simulation, 0, status);
    let answers: Vec<bool> = during.servers.iter().map(|known| known.answer.is_some()).collect();
    assert_eq!(answers, [true, false, true]);
    assert!(during.servers[1].silence >= Some(Duration::from_secs(3)));
    let (found, summary) = cluster.run(&mut simulation, 0, |client| check(client, READ_ALL));
    assert_eq!(found, []);
    assert_eq!(summary.unreached.keys().copied().collect::<Vec<u32>>(), [2]);
    cluster.restart(&mut simulation, "data2");
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(3));
    let after = cluster.run(&mut simulation, 0, status);
    let boots = |state: &ClusterState| -> Vec<u64> {
        state.servers.iter().flat_map(|known| &known.answer).map(|answer| answer.boot).collect()
    };
    assert_ne!(boots(&before)[1], boots(&after)[1], "it lives anew");
    assert_eq!(boots(&before)[0], boots(&after)[0]);
}

#[test]
fn sessions_are_listed_with_what_clients_call_themselves() {
    let (mut simulation, cluster) = cluster(12, 1, 3);
    let sessions = cluster.run(&mut simulation, 0, |client| async move {
        let operator = client.operator(PATIENCE).expect("an address");
        (operator.sessions(100).await.expect("told"), operator.sessions(2).await.expect("told"))
    });
    let mut names: Vec<&str> = sessions.0.iter().map(|session| &*session.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["client0", "client1", "client2"]);
    assert!(sessions.0.iter().all(|session| !session.fencing && !session.left.is_zero()));
    // The remaining times differ between the lists: only the session numbers are compared.
    let numbers =
        |list: &[SessionState]| -> Vec<u64> { list.iter().map(|it| it.session).collect() };
    assert_eq!(numbers(&sessions.1), numbers(&sessions.0[..2]));
}

/// A reply of the metadata server holds so much; the lists go on.
#[test]
fn lists_longer_than_a_page_are_compared_to_the_end() {
    let (mut simulation, cluster) = cluster(13, 2, 1);
    let count = 700u64;
    cluster.run(&mut simulation, 0, move |client| async move {
        for number in 0..count {
            let name = number.to_string();
            let file = create(&client, name.as_bytes()).await;
            write(&client, &file, 70_000, b"end").await.expect("written");
        }
        client.sync_all().await.expect("synced");
    });
    let progress = Rc::new(RefCell::new(0));
    let seen = progress.clone();
    let summary = cluster.run(&mut simulation, 0, |client| async move {
        let operator = client.operator(PATIENCE).expect("an address");
        let tell = |event: Event<'_>| {
            if let Event::Progress(looked) = event {
                *seen.borrow_mut() = looked.inodes;
            }
        };
        operator.check(CheckOptions::default(), &tell).await.expect("checked")
    });
    assert_eq!(summary.problems(), 0);
    assert_eq!((summary.looked.inodes, *progress.borrow()), (count + 1, count + 1));
    assert_eq!((summary.looked.objects, summary.looked.needed), (count, count));
}

#[test]
fn a_data_server_that_missed_a_fence_gets_it_when_it_is_back_whoever_died_meanwhile() {
    let (mut simulation, cluster) = cluster(14, 2, 2);
    cluster.run(&mut simulation, 1, |client| async move {
        write_file(&client, b"file", 200_000).await;
    });
    let sessions = cluster.run(&mut simulation, 0, |client| async move {
        client.operator(PATIENCE).expect("an address").sessions(9).await.expect("told")
    });
    let dead = sessions.iter().find(|session| session.name == "client1").expect("listed").session;
    cluster.kill(&mut simulation, "data2", Kill::Power);
    cluster.kill(&mut simulation, "client1", Kill::Power);
    simulation.run_for(Duration::from_secs(30));
    let owed = |state: &ClusterState| -> Vec<u32> {
        state.servers.iter().map(|server| server.fences_owed).collect()
    };
    let before = cluster.run(&mut simulation, 0, status);
    assert_eq!((before.meta.sessions, owed(&before)), (1, vec![0, 1]), "nobody waits for it");
    cluster.kill(&mut simulation, META, Kill::Power);
    cluster.restart(&mut simulation, META);
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(3));
    assert_eq!(owed(&cluster.run(&mut simulation, 0, status)), [0, 1]);
    cluster.restart(&mut simulation, "data2");
    cluster.await_start(&mut simulation);
    simulation.run_for(Duration::from_secs(3));
    assert_eq!(owed(&cluster.run(&mut simulation, 0, status)), [0, 0]);
    for server in 0..2 {
        assert_eq!(cluster.data(server).store().minimum_epoch(dead), 2);
    }
}

/// Ends client1 for everybody, and returns its session.
fn end_client1(simulation: &mut Simulation, cluster: &Cluster) -> u64 {
    let sessions = cluster.run(simulation, 0, |client| async move {
        client.operator(PATIENCE).expect("an address").sessions(9).await.expect("told")
    });
    let dead = sessions.iter().find(|session| session.name == "client1").expect("listed").session;
    cluster.kill(simulation, "client1", Kill::Power);
    simulation.run_for(Duration::from_secs(30));
    dead
}

#[test]
fn a_data_server_that_joins_after_a_session_has_ended_refuses_that_session() {
    let (mut simulation, mut cluster) = cluster(15, 2, 2);
    cluster.run(&mut simulation, 1, |client| async move {
        write_file(&client, b"file", 200_000).await;
    });
    let dead = end_client1(&mut simulation, &cluster);
    // Another metadata server's life, and then a server that is new, and one with another disk.
    cluster.kill(&mut simulation, META, Kill::Power);
    cluster.restart(&mut simulation, META);
    simulation.run_for(Duration::from_secs(3));
    cluster.add_data_server(&mut simulation);
    cluster.kill(&mut simulation, "data2", Kill::Power);
    cluster.renew_disk(2);
    simulation.run_for(Duration::from_secs(2));
    cluster.restart(&mut simulation, "data2");
    simulation.run_until(Duration::from_secs(60), |_| false);
    for server in 0..3 {
        assert_eq!(cluster.data(server).store().minimum_epoch(dead), 2, "data server {server}");
    }
    let told = cluster.run(&mut simulation, 0, status);
    assert!(told.servers.iter().all(|server| server.fences_owed == 0));
}

/// Has the metadata server's index hold everything, and flips a bit wherever it has one of these bytes.
fn damage_index(simulation: &mut Simulation, cluster: &Cluster, places: &[&[u8]]) {
    let meta = cluster.meta();
    let stopped = cluster.run(simulation, 0, |_| async move { meta.stop().await });
    stopped.expect("it ends well");
    cluster.kill(simulation, META, Kill::Process(Duration::ZERO));
    cluster.restart(simulation, META);
    cluster.await_start(simulation);
    simulation.run_for(Duration::from_secs(3));
    let (disk, index) = (cluster.meta_disk(), Path::new("/meta/index.redb"));
    let bytes = disk.bytes(index).expect("it is there");
    for place in places {
        let found = bytes.windows(place.len()).enumerate().filter(|(_, found)| found == place);
        let found: Vec<usize> = found.map(|(at, _)| at).collect();
        assert!(!found.is_empty(), "{}", place.escape_ascii());
        found.iter().for_each(|at| disk.flip_bit(index, *at as u64, 2));
    }
}

/// Those of 40 files that cannot be read.
async fn unread_files(client: Client) -> Vec<u64> {
    let mut unread = Vec::new();
    for number in 0..40u64 {
        let name = format!("file{number}");
        let inode = client.lookup(&Caller::root(), ROOT, name.as_bytes()).await;
        let bytes = match open(&client, name.as_bytes(), READ).await {
            Ok(file) => read_all(&client, &file).await,
            Err(errno) => Err(errno),
        };
        if bytes.is_err() {
            unread.push(inode.expect("its row is whole").inode);
        }
    }
    unread
}

/// All entries of the root: their inodes, and whether their attributes came with them.
async fn list_all(client: Client) -> Vec<(u64, bool)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let read = client.read_directory(&Caller::root(), ROOT, cookie, true).await;
        let (listed, end) = read.expect("listed");
        cookie = listed.last().map_or(cookie, |last| last.cookie);
        all.extend(listed.iter().map(|entry| (entry.inode, entry.attributes.is_some())));
        if end {
            return all;
        }
    }
}

#[test]
fn damaged_contents_links_attributes_and_entries_are_found_with_the_path() {
    let (mut simulation, cluster) = cluster(15, 1, 2);
    let small = pattern(1, 5000);
    let (inside, value) = (small[2000..2040].to_vec(), pattern(2, 900));
    let attribute = value[400..440].to_vec();
    let expected = cluster.run(&mut simulation, 0, |client| async move {
        let root = Caller::root();
        // The damaged rows lie between others of their kind: a start needs the rows beside them.
        let (mut named, mut link, mut file) = (0, 0, None);
        for number in 0..40u64 {
            let name = format!("file{number}");
            let plain = write_file(&client, name.as_bytes(), 5000 + number as usize).await;
            let other = pattern(100 + number, 900);
            client.set_xattr(&root, plain, b"user.a", &other, (false, false)).await.expect("set");
            if number == 10 {
                let node = Node::Symlink { target: Bytes(b"where-the-target-is-not") };
                let made = client.make(&root, ROOT, b"link", 0o777, node).await;
                link = made.expect("made").inode;
            }
            if number == 20 {
                let made = create(&client, b"small").await;
                write(&client, &made, 0, &small).await.expect("written");
                client.sync(&made).await.expect("synced");
                file = Some(made);
                named = create(&client, b"attributed").await.number();
                let set = client.set_xattr(&root, named, b"user.a", &value, (false, false)).await;
                set.expect("set");
            }
        }
        let file = file.expect("made");
        client.make_directories(&root, b"/many", 0o755).await.expect("made");
        let many = client.resolve(&root, b"/many", true).await.expect("there").inode;
        // So many that they are listed in several pages, and have blocks of their own.
        for number in 0..1500 {
            let name = format!("an-entry-of-many-{number:05}");
            client.make(&root, many, name.as_bytes(), 0o644, Node::Fifo).await.expect("made");
        }
        client.sync_all().await.expect("synced");
        let expected = [(file.number(), "/small"), (named, "/attributed"), (link, "/link")];
        [&expected[..], &[(many, "/many")]].concat()
    });
    let entry = &b"an-entry-of-many-00700"[..];
    damage_index(
        &mut simulation,
        &cluster,
        &[&inside, &attribute, b"where-the-target-is-not", entry],
    );
    for _ in 0..2 {
        let (found, summary) = cluster.run(&mut simulation, 0, |client| check(client, READ_ALL));
        for (inode, path) in &expected {
            let found = found.iter().find(|found| found.inode == *inode);
            let found = found.unwrap_or_else(|| panic!("{path} is not found"));
            assert_eq!(found.problem, Problem::Metadata { inodes: 1 }, "{path}");
            assert_eq!(found.path.as_deref(), Some(path.as_bytes()));
        }
        // A damaged block has neighbours.
        assert!(found.len() < 12, "{found:?}");
        assert_eq!(summary.problems(), found.len() as u64);
        // Every other inode that answers with an error is found, too.
        let told: Vec<u64> = found.iter().map(|found| found.inode).collect();
        let unread = cluster.run(&mut simulation, 1, unread_files);
        assert!(unread.iter().all(|inode| told.contains(inode)), "{unread:?}, {told:?}");
    }
}

#[test]
fn damaged_inodes_are_found_and_the_others_are_compared_to_the_end() {
    let (mut simulation, cluster) = cluster(16, 1, 1);
    let count = 600u64;
    // Known by their users, which no other row has: not even stored replies, in the end.
    let users = [[0xd1, 0xe2, 0xc3, 0xb4, 0x05], [0xd7, 0xe8, 0xc9, 0xba, 0x05]];
    let numbers = cluster.run(&mut simulation, 0, move |client| async move {
        let mut numbers = Vec::new();
        for number in 0..count {
            let file = create(&client, number.to_string().as_bytes()).await;
            write(&client, &file, 70_000, b"end").await.expect("written");
            numbers.push(file.number());
            let bytes = match number {
                200 => users[0],
                300 => users[1],
                _ => continue,
            };
            let user = bytes.iter().rev().fold(0, |user, byte| user << 7 | u32::from(byte & 0x7f));
            let change = AttributeChange { user: Some(user), ..AttributeChange::default() };
            let given = client.set_attributes(&Caller::root(), file.number(), change).await;
            given.expect("given away");
        }
        for name in [b"x", b"y", b"z"] {
            numbers.push(write_file(&client, name, 5000).await);
        }
        client.sync_all().await.expect("synced");
        numbers
    });
    damage_index(&mut simulation, &cluster, &[&users[0], &users[1]]);
    let listed = cluster.run(&mut simulation, 0, list_all);
    assert_eq!(listed.len() as u64, count + 3, "names are whole");
    let nothing_known = |number: &u64| listed.contains(&(*number, false));
    let bare = numbers.iter().filter(|number| nothing_known(number)).count();
    assert!((2..120).contains(&bare), "{bare} inodes are damaged");
    for options in [PLAIN, READ_ALL] {
        let (found, summary) = cluster.run(&mut simulation, 0, |client| check(client, options));
        let mut lost = 0;
        let spans = |found: &Finding, number: u64| match found.problem {
            Problem::Metadata { inodes } => (found.inode..found.inode + inodes).contains(&number),
            _ => panic!("{found:?}"),
        };
        for number in &numbers {
            lost += u64::from(found.iter().any(|found| spans(found, *number)));
        }
        for number in [numbers[200], numbers[300]] {
            assert!(found.iter().any(|found| spans(found, number)), "{found:?}");
        }
        assert!(found.len() <= 4 && lost < 120, "{lost} in {found:?}");
        assert_eq!(summary.looked.inodes, count + 4 - lost);
        assert_eq!(summary.looked.objects, count);
        let needed = count + 3 - lost;
        assert!((needed - 3..=needed).contains(&summary.looked.needed), "{summary:?}");
        assert_eq!(summary.unsettled, 0);
    }
}
