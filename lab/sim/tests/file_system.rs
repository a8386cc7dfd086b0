//! The whole file system in the simulator: what one client and several clients see.

mod programs;

use std::time::Duration;

use programs::*;
use ropewalk_client::{Access, AttributeChange, Caller, Errno, OpenOptions, RenameMode};
use ropewalk_sim::{Cluster, ClusterConfig, SimConfig, Simulation};
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
                write(&client, &file, 0, &bytes).await.expect("written");
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
