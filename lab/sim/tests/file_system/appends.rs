//! Appends whose lease or session changes under their transfer: each record is in the file once, and
//! nothing but records.

use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::task::race;
use ropewalk_client::{Actor, Caller, Client, Errno, File, Path};
use ropewalk_sim::cluster::{META, PROGRAM_LIMIT};
use ropewalk_sim::{Cluster, ClusterConfig, Simulation};
use ropewalk_wire::fs::meta::ROOT;

const SERVERS: u32 = 2;
const RECORD: usize = 5000;

/// A file of stripes, which one client has open to append to it and a second one for writing if
/// `shared`.
fn appending(shared: bool, patience: Duration) -> (Simulation, Cluster, Rc<File>, Option<File>) {
    let mut simulation = Simulation::new(9);
    let config =
        ClusterConfig { data_servers: SERVERS, clients: 2, patience, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    let file = cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(0, 100_000)).await.expect("written");
        Rc::new(open(&client, b"f", APPEND).await.expect("opened"))
    });
    let other = shared.then(|| {
        cluster.run(&mut simulation, 1, |client| async move {
            open(&client, b"f", BOTH).await.expect("opened")
        })
    });
    let held = file.clone();
    cluster.run(&mut simulation, 0, |client| async move {
        write(&client, &held, 0, &pattern(1, RECORD)).await.expect("appended");
    });
    (simulation, cluster, file, other)
}

fn isolate(simulation: &Simulation, from_meta: bool) {
    let data = (1..=SERVERS).map(|server| format!("data{server}"));
    for server in data.chain(from_meta.then(|| META.to_string())) {
        simulation.network().partition("client0", &server);
    }
}

fn heal(simulation: &Simulation) {
    for server in ["data1", "data2", META] {
        simulation.network().heal("client0", server);
    }
}

type Appended = Rc<std::cell::RefCell<Option<Result<u64, Errno>>>>;

fn append(simulation: &Simulation, cluster: &Cluster, file: &Rc<File>, number: u64) -> Appended {
    let file = file.clone();
    cluster.spawn(simulation, 0, move |client| async move {
        write(&client, &file, 0, &pattern(number, RECORD)).await
    })
}

fn await_end(simulation: &mut Simulation, appended: &Appended) -> Result<u64, Errno> {
    let ended = simulation.run_until(PROGRAM_LIMIT, |_| appended.borrow().is_some());
    assert!(ended, "the append does not end");
    appended.borrow_mut().take().expect("ended")
}

/// Both clients see these records and nothing else.
fn assert_records(simulation: &mut Simulation, cluster: &Cluster, records: &[u64]) {
    let mut expected = pattern(0, 100_000);
    expected.extend(records.iter().flat_map(|number| pattern(*number, RECORD)));
    for client in [0, 1] {
        let expected = expected.clone();
        cluster.run(simulation, client, |client| async move {
            let size = client.lookup(&Caller::root(), ROOT, b"f").await.expect("found").size;
            assert_eq!(size, expected.len() as u64);
            let file = open(&client, b"f", READ).await.expect("opened");
            assert_same(&read_all(&client, &file).await.expect("read"), &expected);
        });
    }
}

#[test]
fn a_lease_that_grows_under_an_append_does_not_repeat_it() {
    let (mut simulation, cluster, file, other) = appending(true, Duration::from_secs(120));
    isolate(&simulation, false);
    let appended = append(&simulation, &cluster, &file, 2);
    simulation.run_for(Duration::from_millis(200));
    assert!(appended.borrow().is_none(), "no data server is to be had");
    // The other writer goes, and a second program of this client comes: the file is its own now.
    drop(other);
    simulation.run_for(Duration::from_millis(200));
    let second = cluster.run(&mut simulation, 0, |client| async move {
        open(&client, b"f", BOTH).await.expect("opened")
    });
    assert!(appended.borrow().is_none());
    let number = file.number();
    cluster.run(&mut simulation, 0, move |client| async move {
        let size = client.attributes(number).await.expect("known").size;
        assert_eq!(size, 105_000, "nothing of the record is there");
    });
    heal(&simulation);
    assert_eq!(await_end(&mut simulation, &appended), Ok(105_000));
    assert_records(&mut simulation, &cluster, &[1, 2]);
    drop((second, file));
}

/// Another client's record went behind one that is under way. The file then is this client's alone, and
/// what it appends goes behind both.
#[test]
fn what_another_appended_behind_a_record_under_way_stays() {
    let (mut simulation, cluster, file, other) = appending(true, Duration::from_secs(120));
    isolate(&simulation, false);
    let first = append(&simulation, &cluster, &file, 2);
    simulation.run_for(Duration::from_millis(200));
    let behind = cluster.run(&mut simulation, 1, |client| async move {
        let file = open(&client, b"f", APPEND).await.expect("opened");
        drop(other);
        // It waits for the one before for a moment.
        write(&client, &file, 0, &pattern(3, RECORD)).await
    });
    assert_eq!(behind, Ok(110_000));
    simulation.run_for(Duration::from_millis(200));
    let second = cluster.run(&mut simulation, 0, |client| async move {
        open(&client, b"f", BOTH).await.expect("opened")
    });
    let next = append(&simulation, &cluster, &file, 4);
    simulation.run_for(Duration::from_millis(200));
    assert!(first.borrow().is_none() && next.borrow().is_none());
    heal(&simulation);
    assert_eq!(await_end(&mut simulation, &first), Ok(105_000));
    assert_eq!(await_end(&mut simulation, &next), Ok(115_000));
    assert_records(&mut simulation, &cluster, &[1, 2, 3, 4]);
    drop((second, file));
}

/// Another client gives a write up and has the file's write epoch renewed. An append under the former epoch
/// begins anew, in the range that it has: there is no gap, and no record twice.
#[test]
fn an_append_under_a_former_epoch_keeps_its_range() {
    // Before its bytes came, and before its report.
    for moment in [0, 1] {
        let (mut simulation, cluster, file, other) = appending(true, Duration::from_secs(120));
        let blocked: &[&str] =
            if moment == 0 { &["data1", "data2"] } else { &["data1", "data2", META] };
        let appended = match moment {
            0 => {
                isolate(&simulation, false);
                let appended = append(&simulation, &cluster, &file, 2);
                simulation.run_for(Duration::from_millis(200));
                appended
            }
            _ => {
                let disk = |cluster: &Cluster| {
                    [0, 1].map(|server| cluster.data_disk(server).counts().bytes_written)
                };
                let before = disk(&cluster);
                let appended = append(&simulation, &cluster, &file, 2);
                let written = simulation.run_until(PROGRAM_LIMIT, |_| disk(&cluster) != before);
                assert!(written);
                simulation.network().partition("client0", META);
                simulation.run_for(Duration::from_millis(200));
                appended
            }
        };
        assert!(appended.borrow().is_none());
        let other = other.expect("shared");
        for server in ["data1", "data2"] {
            simulation.network().partition("client1", server);
        }
        let other = cluster.run(&mut simulation, 1, |client| async move {
            let bytes = pattern(0, 100_000);
            let written = write(&client, &other, 0, &bytes[..10]);
            race(written, client.world().sleep(Duration::from_millis(5))).await;
            other
        });
        for server in ["data1", "data2"] {
            simulation.network().heal("client1", server);
        }
        cluster.run(&mut simulation, 1, |client| async move {
            write(&client, &other, 0, &pattern(0, 100_000)[..10]).await.expect("written");
        });
        blocked.iter().for_each(|server| simulation.network().heal("client0", server));
        assert_eq!(await_end(&mut simulation, &appended), Ok(105_000), "moment {moment}");
        assert_records(&mut simulation, &cluster, &[1, 2]);
        drop(file);
    }
}

/// The last of several writers has a write under way when a program of its own begins to read.
#[test]
fn a_lease_that_changes_under_a_write_for_a_reader_covers_the_write() {
    for pages in [false, true] {
        let (mut simulation, cluster, file, other) = appending(true, Duration::from_secs(120));
        isolate(&simulation, false);
        let appended = append(&simulation, &cluster, &file, 2);
        simulation.run_for(Duration::from_millis(200));
        drop(other);
        simulation.run_for(Duration::from_millis(200));
        let reader = cluster.run(&mut simulation, 0, move |client| async move {
            let file = open(&client, b"f", READ).await.expect("opened");
            let buffer = client.pool().take(100).expect("room");
            let actor = Actor { path: Path::Pages, ..Actor::OWN };
            if pages {
                // For the lease alone: the data servers are not to be had.
                let read = client.read_for_kernel(&file, 1 << 30, buffer, &actor);
                let (_, len) = read.await.expect("read");
                assert_eq!(len, 0);
            }
            file
        });
        assert!(appended.borrow().is_none());
        heal(&simulation);
        assert_eq!(await_end(&mut simulation, &appended), Ok(105_000));
        let written = file.clone();
        cluster.run(&mut simulation, 0, move |client| async move {
            client.sync(&written).await.expect("nothing is lost");
        });
        assert_records(&mut simulation, &cluster, &[1, 2]);
        drop((reader, file));
    }
}

#[test]
fn a_session_that_ends_under_an_append_leaves_no_gap() {
    for shared in [true, false] {
        let (mut simulation, cluster, file, other) = appending(shared, Duration::from_secs(120));
        isolate(&simulation, false);
        let appended = append(&simulation, &cluster, &file, 2);
        // Time enough for reports of changes.
        simulation.run_for(Duration::from_millis(1300));
        isolate(&simulation, true);
        // Long enough for the session to end, and to be fenced everywhere.
        simulation.run_for(Duration::from_secs(30));
        assert!(appended.borrow().is_none(), "nobody is to be had");
        heal(&simulation);
        assert_eq!(await_end(&mut simulation, &appended), Ok(105_000), "shared: {shared}");
        assert_records(&mut simulation, &cluster, &[1, 2]);
        drop((other, file));
    }
}

#[test]
fn a_sole_writers_append_that_fails_takes_no_room() {
    let (mut simulation, cluster, file, _) = appending(false, Duration::from_secs(5));
    isolate(&simulation, false);
    let appended = append(&simulation, &cluster, &file, 2);
    assert_eq!(await_end(&mut simulation, &appended), Err(Errno::EIO));
    heal(&simulation);
    assert_records(&mut simulation, &cluster, &[1]);
    let appended = append(&simulation, &cluster, &file, 3);
    assert_eq!(await_end(&mut simulation, &appended), Ok(105_000));
    assert_records(&mut simulation, &cluster, &[1, 3]);
}

/// Appends so many records, and looks at each. Short ones overtake long ones on their way.
async fn append_records(client: &Client, file: &File, appender: u64, count: u64) {
    for number in 0..count {
        let len = if (appender + number).is_multiple_of(2) { 200_000 } else { 100 };
        let record = vec![1 + appender as u8; len];
        let offset = write(client, file, 0, &record).await.expect("appended");
        let size = client.attributes(file.number()).await.expect("known").size;
        assert!(size >= offset + len as u64, "who appended sees its record");
        let found = read(client, file, offset, len).await.expect("read");
        assert_same(&found, &record);
    }
}

/// Programs of one client append to a file that is this client's alone, and others of it look at the file:
/// whatever size they see, there are records up to it, in order.
#[test]
fn a_sole_writers_size_follows_the_bytes_of_its_appends() {
    const APPENDERS: u64 = 4;
    const EACH: u64 = 30;
    let (mut simulation, cluster, file, _) = appending(false, Duration::from_secs(120));
    isolate(&simulation, false);
    let appended = append(&simulation, &cluster, &file, 2);
    simulation.run_for(Duration::from_millis(200));
    assert!(appended.borrow().is_none(), "no data server is to be had");
    let number = file.number();
    cluster.run(&mut simulation, 0, move |client| async move {
        let size = client.attributes(number).await.expect("known").size;
        assert_eq!(size, 105_000, "nothing of the record is there");
    });
    heal(&simulation);
    assert_eq!(await_end(&mut simulation, &appended), Ok(105_000));
    let appenders: Vec<_> = (0..APPENDERS)
        .map(|appender| {
            let file = file.clone();
            cluster.spawn(&simulation, 0, move |client| async move {
                append_records(&client, &file, appender, EACH).await;
            })
        })
        .collect();
    let looker = file.clone();
    let looked = cluster.spawn(&simulation, 0, move |client| async move {
        let mut at = 110_000;
        loop {
            let bytes = read(&client, &looker, at, 1 << 20).await.expect("read");
            let zero = bytes.iter().position(|byte| *byte == 0);
            assert_eq!(zero.map(|zero| at + zero as u64), None, "zeros below the size");
            at += bytes.len() as u64;
            if at == 110_000 + APPENDERS * EACH / 2 * 200_100 {
                return;
            }
            client.world().sleep(Duration::from_micros(50)).await;
        }
    });
    let ended = simulation.run_until(PROGRAM_LIMIT, |_| looked.borrow().is_some());
    assert!(ended, "the records are not all there");
    assert!(appenders.iter().all(|appender| appender.borrow().is_some()));
}

/// A file of stripes that clients 0 and 1 have open to append to it, and client 2 to read it.
fn appending_together(seed: u64) -> (Simulation, Cluster, [Rc<File>; 3]) {
    let mut simulation = Simulation::new(seed);
    let patience = Duration::from_secs(120);
    let config =
        ClusterConfig { data_servers: SERVERS, clients: 3, patience, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let file = create(&client, b"f").await;
        write(&client, &file, 0, &pattern(0, 100_000)).await.expect("written");
    });
    let files = [(0, APPEND), (1, APPEND), (2, READ)].map(|(client, how)| {
        cluster.run(&mut simulation, client, move |client| async move {
            Rc::new(open(&client, b"f", how).await.expect("opened"))
        })
    });
    (simulation, cluster, files)
}

/// The file's size as a client is told it.
fn size_at(simulation: &mut Simulation, cluster: &Cluster, client: usize) -> u64 {
    cluster.run(simulation, client, |client| async move {
        client.lookup(&Caller::root(), ROOT, b"f").await.expect("found").size
    })
}

/// Programs of two clients append, and others look at the file, also on one of these clients.
#[test]
fn the_size_follows_the_bytes_of_appends_by_several_clients() {
    const EACH: u64 = 40;
    for seed in ropewalk_sim::seeds(0, 20) {
        let (mut simulation, cluster, files) = appending_together(seed);
        for (appender, client) in [(0u64, 0), (1, 1), (2, 1)] {
            let file = files[client].clone();
            cluster.spawn(&simulation, client, move |client| async move {
                append_records(&client, &file, appender, EACH).await;
            });
        }
        let lookers = [1, 2].map(|client| {
            let pause = Duration::from_micros(if client == 1 { 70 } else { 50 });
            cluster.spawn(&simulation, client, move |client| async move {
                let file = open(&client, b"f", READ).await.expect("opened");
                let mut at = 100_000;
                while at < 100_000 + 3 * EACH / 2 * 200_100 {
                    let bytes = read(&client, &file, at, 1 << 20).await.expect("read");
                    let zero = bytes.iter().position(|byte| *byte == 0);
                    assert_eq!(zero.map(|zero| at + zero as u64), None, "zeros below the size");
                    at += bytes.len() as u64;
                    client.world().sleep(pause).await;
                }
            })
        });
        let ended = simulation
            .run_until(PROGRAM_LIMIT, |_| lookers.iter().all(|looker| looker.borrow().is_some()));
        assert!(ended, "seed {seed}: the records are not all there");
    }
}

/// A client that does not get on keeps its range, and the others not for long.
#[test]
fn an_append_that_stands_still_holds_others_up_for_a_moment() {
    for dies in [false, true] {
        let (mut simulation, cluster, files) = appending_together(1);
        isolate(&simulation, false);
        let slow = append(&simulation, &cluster, &files[0], 1);
        simulation.run_for(Duration::from_millis(100));
        assert!(slow.borrow().is_none(), "no data server is to be had");
        assert_eq!(size_at(&mut simulation, &cluster, 2), 100_000, "nothing of it is there");
        let file = files[1].clone();
        let begin = simulation.now();
        let offset = cluster.run(&mut simulation, 1, move |client| async move {
            let offset = write(&client, &file, 0, &pattern(2, RECORD)).await.expect("appended");
            let size = client.attributes(file.number()).await.expect("known").size;
            assert_eq!(size, offset + RECORD as u64, "who appended sees its record");
            offset
        });
        assert_eq!(offset, 105_000);
        assert!(simulation.now().since(begin) < Duration::from_secs(3));
        assert_eq!(size_at(&mut simulation, &cluster, 2), 110_000);
        // Nobody waits for it any more.
        let (file, begin) = (files[1].clone(), simulation.now());
        cluster.run(&mut simulation, 1, move |client| async move {
            write(&client, &file, 0, &pattern(3, RECORD)).await.expect("appended");
        });
        assert!(simulation.now().since(begin) < Duration::from_millis(100));
        if dies {
            isolate(&simulation, true);
            simulation.run_for(Duration::from_secs(30));
            assert_eq!(size_at(&mut simulation, &cluster, 2), 115_000);
        }
        heal(&simulation);
        let at = await_end(&mut simulation, &slow).expect("appended");
        let expected: &[u64] = if at == 100_000 { &[1, 2, 3] } else { &[9, 2, 3, 1] };
        let mut whole = pattern(0, 100_000);
        for number in expected {
            // A session that ended leaves zeros in its range.
            let record = if *number == 9 { vec![0; RECORD] } else { pattern(*number, RECORD) };
            whole.extend(record);
        }
        let file = files[2].clone();
        cluster.run(&mut simulation, 2, move |client| async move {
            assert_same(&read_all(&client, &file).await.expect("read"), &whole);
        });
    }
}
