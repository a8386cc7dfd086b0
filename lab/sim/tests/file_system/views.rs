//! The whole file system in the simulator: the views of one client and of several.

use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_client::{
    Access, AttributeChange, Caller, Errno, File, LockKind, LockRange, OpenOptions, RenameMode,
};
use ropewalk_sim::cluster::PROGRAM_LIMIT;
use ropewalk_sim::{Cluster, ClusterConfig, Kill, SimConfig, Simulation};
use ropewalk_wire::fs::meta::ROOT;

const INLINE: usize = 16 * 1024;
const STRIPE: usize = 64 * 1024;

/// Sizes around every border that a file can have.
fn sizes() -> Vec<usize> {
    let borders = [INLINE, STRIPE, 2 * STRIPE, 5 * STRIPE];
    let mut sizes = vec![0, 1, 4096, 3 << 20];
    sizes.extend(borders.iter().flat_map(|border| [border - 1, *border, border + 1]));
    sizes
}

#[test]
fn files_of_all_sizes_read_back() {
    for rail in [SimConfig::stream(), SimConfig::native()] {
        let mut simulation = Simulation::new(1);
        let config =
            ClusterConfig { data_servers: 4, clients: 2, rail, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        for (number, size) in sizes().into_iter().enumerate() {
            let name = format!("file{number}");
            let bytes = pattern(number as u64, size);
            let expected = bytes.clone();
            cluster.run(&mut simulation, 0, |client| async move {
                let file = create(&client, name.as_bytes()).await;
                write(&client, &file, 0, &bytes)
                    .await
                    .unwrap_or_else(|errno| panic!("{number} {}: {errno}", bytes.len()));
                assert_same(&read_all(&client, &file).await.expect("read"), &bytes);
                drop(file);
                let file = open(&client, name.as_bytes(), READ).await.expect("opened");
                assert_same(&read_all(&client, &file).await.expect("read again"), &bytes);
                let size = client.attributes(file.number()).await.expect("attributes").size;
                assert_eq!(size, bytes.len() as u64);
            });
            let name = format!("file{number}");
            cluster.run(&mut simulation, 1, |client| async move {
                let file = open(&client, name.as_bytes(), READ).await.expect("opened");
                assert_same(&read_all(&client, &file).await.expect("read elsewhere"), &expected);
            });
        }
    }
}

/// `tar -S` takes a file for one hole that has a size and no blocks.
#[test]
fn what_was_just_written_has_blocks() {
    let mut simulation = Simulation::new(3);
    let config = ClusterConfig { data_servers: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let far = create(&client, b"far").await;
        write(&client, &far, 5 << 20, b"z").await.expect("written");
        let blocks = client.attributes(far.number()).await.expect("told").blocks;
        assert_eq!(blocks, 1, "one byte of the last stripe");
        for len in [1, 70_000] {
            let dense = create(&client, format!("dense{len}").as_bytes()).await;
            write(&client, &dense, 0, &pattern(1, len)).await.expect("written");
            let blocks = client.attributes(dense.number()).await.expect("told").blocks;
            assert!(blocks * 512 >= len as u64, "{blocks} blocks for {len} bytes");
        }
    });
}

/// A client that opens a file for writing only has not read its bytes, and must not assume them.
#[test]
fn what_lies_before_a_write_is_read_by_who_opened_for_writing_only() {
    let writing = OpenOptions::WRITE;
    let appending = OpenOptions { append: true, ..writing };
    for (number, len) in [3, 100, 5000, INLINE - 10, INLINE, STRIPE + 9].into_iter().enumerate() {
        for (options, at, cut) in
            [(appending, len, None), (writing, 1, None), (appending, 2, Some(2))]
        {
            let mut simulation = Simulation::new(number as u64);
            let config = ClusterConfig { data_servers: 1, clients: 2, ..ClusterConfig::default() };
            let cluster = Cluster::start(&mut simulation, config);
            let mut expected = pattern(7, len);
            let bytes = expected.clone();
            cluster.run(&mut simulation, 0, |client| async move {
                let file = create(&client, b"file").await;
                write(&client, &file, 0, &bytes).await.expect("written");
            });
            simulation.run_for(Duration::from_secs(1));
            expected.truncate(cut.unwrap_or(len));
            expected.resize(expected.len().max(at + 2), 0);
            expected[at..at + 2].copy_from_slice(b"xy");
            for reader in [1, 0] {
                let expected = expected.clone();
                cluster.run(&mut simulation, reader, |client| async move {
                    if reader == 1 {
                        if let Some(size) = cut {
                            let inode =
                                open(&client, b"file", READ).await.expect("opened").number();
                            let change = AttributeChange {
                                size: Some(size as u64),
                                ..AttributeChange::default()
                            };
                            let set = client.set_attributes(&Caller::root(), inode, change).await;
                            set.expect("cut");
                        }
                        let file = open(&client, b"file", options).await.expect("opened");
                        write(&client, &file, at as u64, b"xy").await.expect("written");
                    }
                    let file = open(&client, b"file", READ).await.expect("opened");
                    assert_same(&read_all(&client, &file).await.expect("read"), &expected);
                });
            }
        }
    }
}

#[test]
fn one_client_does_what_programs_do() {
    let mut simulation = Simulation::new(2);
    let config = ClusterConfig { data_servers: 3, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    cluster.run(&mut simulation, 0, |client| async move {
        let root = Caller::root();
        // Names.
        let file = create(&client, b"a").await;
        assert_eq!(list(&client).await, [b"a".to_vec()]);
        client.rename(&root, ROOT, b"a", ROOT, b"b", RenameMode::Replace).await.expect("renamed");
        assert_eq!(client.lookup(&root, ROOT, b"a").await, Err(Errno::ENOENT));
        assert_eq!(client.lookup(&root, ROOT, b"b").await.expect("found").inode, file.number());
        let linked = client.link(&root, file.number(), ROOT, b"c").await.expect("linked");
        assert_eq!(linked.link_count, 2);
        assert_eq!(list(&client).await, [b"b".to_vec(), b"c".to_vec()]);
        client.unlink(&root, ROOT, b"b").await.expect("unlinked");
        client.unlink(&root, ROOT, b"c").await.expect("unlinked");
        assert_eq!(list(&client).await, Vec::<Vec<u8>>::new());
        // An unlinked open file goes on.
        write(&client, &file, 0, &pattern(1, 100_000)).await.expect("written without a name");
        assert_same(&read_all(&client, &file).await.expect("read"), &pattern(1, 100_000));
        drop(file);
        // Directories and paths.
        let made = client.make_directories(&root, b"/x/y/z", 0o755).await.expect("made");
        let found = client.resolve(&root, b"/x/./y/../y/z", true).await.expect("resolved");
        assert_eq!(found.inode, made.inode);
        assert_eq!(client.remove_directory(&root, ROOT, b"x").await, Err(Errno::ENOTEMPTY));
        // Truncation, both ways, of a small and of a large file.
        for size in [3000usize, 300_000] {
            let file = create(&client, b"t").await;
            let mut model = pattern(3, size);
            write(&client, &file, 0, &model).await.expect("written");
            for to in [size - 10, size / 2, size + 5000, STRIPE, 0, 70_000] {
                let change = AttributeChange { size: Some(to as u64), ..Default::default() };
                client.set_attributes(&root, file.number(), change).await.expect("truncated");
                model.resize(to, 0);
                assert_same(&read_all(&client, &file).await.expect("read"), &model);
                let at = to / 2;
                write(&client, &file, at as u64, b"mark").await.expect("written");
                model.resize(model.len().max(at + 4), 0);
                model[at..at + 4].copy_from_slice(b"mark");
                assert_same(&read_all(&client, &file).await.expect("read"), &model);
            }
            drop(file);
            client.unlink(&root, ROOT, b"t").await.expect("unlinked");
        }
        // Appends, from inline to stripes.
        let append = OpenOptions {
            access: Access { read: true, write: true },
            truncate: false,
            append: true,
        };
        create(&client, b"log").await;
        let file = open(&client, b"log", append).await.expect("opened");
        let mut model = Vec::new();
        for round in 0..40 {
            let piece = pattern(round, 3000 + 100 * round as usize);
            let at = write(&client, &file, 0, &piece).await.expect("appended");
            assert_eq!(at, model.len() as u64);
            model.extend(piece);
        }
        assert_same(&read_all(&client, &file).await.expect("read"), &model);
        // A hole reads as zeros.
        let file = create(&client, b"hole").await;
        write(&client, &file, 1_000_000, b"end").await.expect("written");
        let mut model = vec![0; 1_000_000];
        model.extend(b"end");
        assert_same(&read_all(&client, &file).await.expect("read"), &model);
        client.sync(&file).await.expect("synced");
        client.world().sleep(Duration::from_secs(2)).await;
        assert_same(&read_all(&client, &file).await.expect("read"), &model);
    });
}

fn two_clients(seed: u64) -> (Simulation, Cluster) {
    let mut simulation = Simulation::new(seed);
    let config = ClusterConfig { data_servers: 3, clients: 2, ..ClusterConfig::default() };
    let cluster = Cluster::start(&mut simulation, config);
    (simulation, cluster)
}

/// Runs a program and leaves its open file behind.
fn keep_open(
    simulation: &mut Simulation,
    cluster: &Cluster,
    client: usize,
    name: &'static [u8],
    options: OpenOptions,
) -> Rc<File> {
    cluster.run(simulation, client, |client| async move {
        Rc::new(open(&client, name, options).await.expect("opened"))
    })
}

#[test]
fn what_one_client_did_the_other_sees_at_once() {
    let (mut simulation, cluster) = two_clients(3);
    let root = Caller::root;
    for (round, size) in [100usize, INLINE, 200_000].into_iter().enumerate() {
        let bytes = pattern(round as u64, size);
        // Both look first, so that both have something cached that will be wrong.
        for client in [0, 1] {
            cluster.run(&mut simulation, client, |client| async move {
                assert_eq!(client.lookup(&root(), ROOT, b"f").await, Err(Errno::ENOENT));
                assert_eq!(list(&client).await, Vec::<Vec<u8>>::new());
            });
        }
        let content = bytes.clone();
        cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"f").await;
            write(&client, &file, 0, &content).await.expect("written");
        });
        let mut model = bytes;
        for turn in 0..8 {
            let (expected, at) = (model.clone(), turn * size / 8);
            let piece = pattern(turn as u64, 1 + size / 3);
            let end = at + piece.len();
            model.resize(model.len().max(end), 0);
            model[at..end].copy_from_slice(&piece);
            if turn == 5 {
                model.truncate(size / 2);
            }
            let cut = (turn == 5).then_some((size / 2) as u64);
            cluster.run(&mut simulation, (turn + 1) % 2, |client| async move {
                let file = open(&client, b"f", BOTH).await.expect("opened");
                let size = client.attributes(file.number()).await.expect("attributes").size;
                assert_eq!(size, expected.len() as u64);
                assert_same(&read_all(&client, &file).await.expect("read"), &expected);
                write(&client, &file, at as u64, &piece).await.expect("written");
                if let Some(size) = cut {
                    let change = AttributeChange { size: Some(size), ..Default::default() };
                    client.set_attributes(&root(), file.number(), change).await.expect("cut");
                }
            });
        }
        cluster.run(&mut simulation, 1, |client| async move {
            client
                .rename(&root(), ROOT, b"f", ROOT, b"g", RenameMode::Replace)
                .await
                .expect("done");
        });
        cluster.run(&mut simulation, 0, |client| async move {
            assert_eq!(client.lookup(&root(), ROOT, b"f").await, Err(Errno::ENOENT));
            let file = open(&client, b"g", READ).await.expect("opened");
            assert_same(&read_all(&client, &file).await.expect("read"), &model);
            client.unlink(&root(), ROOT, b"g").await.expect("unlinked");
        });
        cluster.run(&mut simulation, 1, |client| async move {
            assert_eq!(client.lookup(&root(), ROOT, b"g").await, Err(Errno::ENOENT));
        });
    }
}

#[test]
fn appends_of_two_clients_lose_nothing_and_overlap_nowhere() {
    for seed in 0..10 {
        let (mut simulation, cluster) = two_clients(seed);
        cluster.run(&mut simulation, 0, |client| async move { drop(create(&client, b"f").await) });
        let done: Vec<_> = [0, 1]
            .map(|number| {
                cluster.spawn(&simulation, number, |client| async move {
                    let file = open(&client, b"f", APPEND).await.expect("opened");
                    for line in 0..60u64 {
                        let mut bytes = vec![0; 700];
                        bytes[..8]
                            .copy_from_slice(&(number as u64 * 1000 + line + 1).to_le_bytes());
                        write(&client, &file, 0, &bytes).await.expect("appended");
                    }
                })
            })
            .into();
        let ended = simulation
            .run_until(PROGRAM_LIMIT, |_| done.iter().all(|place| place.borrow().is_some()));
        assert!(ended, "the programs do not end");
        for client in [0, 1] {
            cluster.run(&mut simulation, client, |client| async move {
                let file = open(&client, b"f", READ).await.expect("opened");
                let bytes = read_all(&client, &file).await.expect("read");
                assert_eq!(bytes.len(), 120 * 700);
                let mut lines: Vec<u64> = bytes
                    .chunks(700)
                    .map(|line| u64::from_le_bytes(line[..8].try_into().expect("8 bytes")))
                    .collect();
                for number in [0, 1] {
                    let of_one = lines.iter().filter(|line| **line / 1000 == number);
                    assert!(of_one.is_sorted(), "the appends of one client are in its order");
                }
                lines.sort_unstable();
                assert_eq!(lines, (1..=60).chain(1001..=1060).collect::<Vec<u64>>());
            });
        }
    }
}

#[test]
fn two_writers_of_one_file_both_land() {
    for seed in 0..10 {
        let (mut simulation, cluster) = two_clients(seed);
        cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"f").await;
            write(&client, &file, 0, &[9; 10]).await.expect("written");
        });
        let done: Vec<_> = [0, 1]
            .map(|number| {
                cluster.spawn(&simulation, number, |client| async move {
                    let file = open(&client, b"f", BOTH).await.expect("opened");
                    for piece in 0..40u64 {
                        let at = (2 * piece + number as u64) * 5000;
                        let bytes = vec![number as u8 + 1; 5000];
                        write(&client, &file, at, &bytes).await.expect("written");
                    }
                })
            })
            .into();
        let ended = simulation
            .run_until(PROGRAM_LIMIT, |_| done.iter().all(|place| place.borrow().is_some()));
        assert!(ended, "the programs do not end");
        for client in [0, 1] {
            cluster.run(&mut simulation, client, |client| async move {
                let file = open(&client, b"f", READ).await.expect("opened");
                let expected: Vec<u8> =
                    (0..80).flat_map(|piece| vec![piece as u8 % 2 + 1; 5000]).collect();
                assert_same(&read_all(&client, &file).await.expect("read"), &expected);
            });
        }
    }
}

#[test]
fn a_file_that_another_client_unlinked_stays_readable_while_it_is_open() {
    for size in [500usize, 300_000] {
        let (mut simulation, cluster) = two_clients(4);
        let bytes = pattern(7, size);
        let content = bytes.clone();
        cluster.run(&mut simulation, 0, |client| async move {
            let file = create(&client, b"f").await;
            write(&client, &file, 0, &content).await.expect("written");
        });
        let file = keep_open(&mut simulation, &cluster, 1, b"f", BOTH);
        cluster.run(&mut simulation, 0, |client| async move {
            client.unlink(&Caller::root(), ROOT, b"f").await.expect("unlinked");
            client.world().sleep(Duration::from_secs(30)).await;
        });
        let (held, content) = (file.clone(), bytes.clone());
        cluster.run(&mut simulation, 1, |client| async move {
            assert_same(&read_all(&client, &held).await.expect("read"), &content);
            write(&client, &held, 3, b"on it goes").await.expect("written");
            assert_eq!(read(&client, &held, 3, 10).await.expect("read"), b"on it goes");
        });
        drop(file);
        simulation.run_for(Duration::from_secs(30));
        let objects: u64 = (0..3).map(|server| cluster.data(server).store().usage().objects).sum();
        assert_eq!(objects, 0, "the last close leaves no object behind");
    }
}

fn whole(kind: LockKind, owner: u64) -> LockRange {
    LockRange { kind, whole_file: false, owner, process: 1, start: 0, end: u64::MAX }
}

#[test]
fn locks_exclude_and_fall_with_the_session_of_a_dead_client() {
    let (mut simulation, cluster) = two_clients(5);
    cluster.run(&mut simulation, 0, |client| async move { drop(create(&client, b"f").await) });
    let first = keep_open(&mut simulation, &cluster, 0, b"f", BOTH);
    let second = keep_open(&mut simulation, &cluster, 1, b"f", BOTH);
    let number = first.number();
    cluster.run(&mut simulation, 0, |client| async move {
        client.set_lock(number, whole(LockKind::Exclusive, 1), false).await.expect("locked");
    });
    cluster.run(&mut simulation, 1, |client| async move {
        let denied = client.set_lock(number, whole(LockKind::Shared, 1), false).await;
        assert_eq!(denied, Err(Errno::EAGAIN));
        let conflict = client.test_lock(number, whole(LockKind::Shared, 1)).await.expect("tested");
        assert_eq!(conflict.expect("a conflict").kind, LockKind::Exclusive);
    });
    // One that waits gets it when the holder gives it back.
    let waiting = cluster.spawn(&simulation, 1, |client| async move {
        client.set_lock(number, whole(LockKind::Exclusive, 1), true).await
    });
    simulation.run_for(Duration::from_secs(3));
    assert!(waiting.borrow().is_none(), "the lock is held");
    cluster.run(&mut simulation, 0, |client| async move {
        client.set_lock(number, whole(LockKind::Unlock, 1), false).await.expect("unlocked");
    });
    simulation.run_for(Duration::from_secs(2));
    assert_eq!(*waiting.borrow(), Some(Ok(())));
    // And when the holder dies.
    let waiting = cluster.spawn(&simulation, 0, |client| async move {
        client.set_lock(number, whole(LockKind::Exclusive, 1), true).await
    });
    simulation.run_for(Duration::from_secs(1));
    assert!(waiting.borrow().is_none(), "the lock is held");
    drop(second);
    cluster.kill(&mut simulation, "client1", Kill::Power);
    simulation.run_for(Duration::from_secs(30));
    assert_eq!(*waiting.borrow(), Some(Ok(())), "a dead client's lock falls");
    drop(first);
}
