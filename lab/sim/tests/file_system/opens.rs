//! Files that lose their name at the very moment in which somebody opens or creates them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::programs::*;
use ropewalk_base::random::Random;
use ropewalk_client::{Caller, Client, Errno};
use ropewalk_sim::cluster::PROGRAM_LIMIT;
use ropewalk_sim::{Cluster, ClusterConfig, Simulation};
use ropewalk_wire::fs::meta::{Node, ROOT, RenameMode};
use ropewalk_wire::fs::value::Bytes;

/// Creates files or opens those that another client made, uses them, and takes names away.
async fn work(client: Client, seed: u64, used: Rc<Cell<u64>>) {
    let (mut random, root) = (Random::from_seed(seed), Caller::root());
    for round in 0..120 {
        let name = [b'a' + random.below(2) as u8];
        client.world().sleep(Duration::from_micros(random.below(300))).await;
        if random.below(2) == 0 {
            match client.unlink(&root, ROOT, &name).await {
                Ok(()) | Err(Errno::ENOENT) => continue,
                Err(errno) => panic!("unlink: {errno}"),
            }
        }
        let file = match client.create(&root, ROOT, &name, 0o644, true, BOTH).await {
            Ok((_, file, _)) => file,
            Err(Errno::EEXIST) => match open(&client, &name, BOTH).await {
                Ok(file) => file,
                Err(Errno::ENOENT | Errno::ESTALE) => continue,
                Err(errno) => panic!("open: {errno}"),
            },
            Err(errno) => panic!("create: {errno}"),
        };
        // Open is open, name or not.
        let len = if random.below(2) == 0 { 100 } else { 20_000 };
        write(&client, &file, 0, &pattern(round, len)).await.expect("written");
        read(&client, &file, 0, len).await.expect("read");
        used.set(used.get() + 1);
    }
}

#[test]
fn a_file_that_is_unlinked_while_it_is_opened_stays_until_it_is_closed() {
    for seed in 1..=12 {
        let mut simulation = Simulation::new(seed);
        let config = ClusterConfig { data_servers: 1, clients: 3, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        simulation.run_for(Duration::from_secs(2));
        let used = Rc::new(Cell::new(0));
        let workers: Vec<_> = (0..3)
            .map(|client| {
                let used = used.clone();
                cluster.spawn(&simulation, client, |it| work(it, seed * 5 + client as u64, used))
            })
            .collect();
        let ended = simulation
            .run_until(PROGRAM_LIMIT, |_| workers.iter().all(|worker| worker.borrow().is_some()));
        assert!(ended && used.get() > 100, "only {} uses", used.get());
        simulation.run_for(Duration::from_secs(3));
        // Removed files that no client has open any more are gone: the root is left, and files with names.
        let inodes = cluster.run(&mut simulation, 2, |client| async move {
            let operator = client.operator(Duration::from_secs(5)).expect("an address");
            operator.status().await.expect("told").meta.inodes
        });
        let names = cluster.run(&mut simulation, 2, |client| async move { list(&client).await });
        assert_eq!(inodes, 1 + names.len() as u64);
    }
}

/// Takes names away or replaces them, in turns.
async fn replace(client: Client, rounds: u64) {
    let root = Caller::root();
    for round in 0..rounds {
        let target = round.to_string();
        let node = || Node::Symlink { target: Bytes(target.as_bytes()) };
        client.make(&root, ROOT, b"new", 0o777, node()).await.expect("made");
        client
            .rename(&root, ROOT, b"new", ROOT, b"link", RenameMode::Replace)
            .await
            .expect("renamed");
        if round % 4 == 3 {
            client.unlink(&root, ROOT, b"link").await.expect("unlinked");
            client.make(&root, ROOT, b"link", 0o777, node()).await.expect("made");
        }
    }
}

/// Comes to the name by look-ups, as the kernel does for another process, and uses what it finds.
async fn visit(client: Client, seed: u64, met: Rc<Cell<u64>>) {
    let (mut random, root) = (Random::from_seed(seed), Caller::root());
    for _ in 0..600 {
        match client.lookup(&root, ROOT, b"link").await {
            Ok(found) => {
                client.looked_up(found.inode, 2);
                client.read_link(found.inode).await.expect("what was found is still there");
                met.set(met.get() + 1);
            }
            Err(Errno::ENOENT) => {}
            Err(errno) => panic!("look-up: {errno}"),
        }
        client.world().sleep(Duration::from_nanos(random.below(200_000))).await;
    }
}

#[test]
fn what_a_look_up_finds_while_the_name_goes_is_kept_for_a_moment() {
    for seed in 1..=12 {
        let mut simulation = Simulation::new(seed);
        let config = ClusterConfig { data_servers: 1, clients: 1, ..ClusterConfig::default() };
        let cluster = Cluster::start(&mut simulation, config);
        simulation.run_for(Duration::from_secs(2));
        let met = Rc::new(Cell::new(0));
        let workers = [
            cluster.spawn(&simulation, 0, |client| replace(client, 300)),
            cluster.spawn(&simulation, 0, |client| visit(client, seed, met.clone())),
        ];
        let ended = simulation
            .run_until(PROGRAM_LIMIT, |_| workers.iter().all(|worker| worker.borrow().is_some()));
        assert!(ended, "seed {seed}: they hang");
        assert!(met.get() > 100, "seed {seed}: {} visits", met.get());
    }
}
