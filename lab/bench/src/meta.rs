//! `bench meta`: names through the library and a mount, beside bare calls and the passthrough;
//! PostMark.

use std::path::{Path, PathBuf};

use crate::counters::Watched;
use crate::lab::{Lab, Party, quoted, version};
use crate::order::Order;
use crate::report::Outcome;
use crate::series::{Figure, Row};
use crate::servers::Cluster;
use crate::stage::{Stage, row};
use crate::worker::{Work, run};
use crate::{Options, host, postmark, starts};

/// Processes that use a mount at the same time.
const CLIENTS: u64 = 2;
/// A small file of the usual kind in benchmarks of names.
const SMALL_FILE: usize = 3901;

const MOUNT: [&str; 7] = [
    "mount.create",
    "mount.stat",
    "mount.open",
    "mount.unlink",
    "mount.shared.create",
    "mount.shared.read",
    "mount.shared.unlink",
];

const LIBRARY: [&str; 4] = [
    "library.create.depth1",
    "library.stat.depth1",
    "library.create.depth32",
    "library.stat.depth32",
];

/// The names of all rows.
pub fn rows() -> Vec<String> {
    let fixed = LIBRARY.iter().chain(&MOUNT).chain(&postmark::ROWS).map(|name| name.to_string());
    fixed.chain(starts::rows()).collect()
}

/// Measures everything that was asked for.
pub fn meta(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let mut lab = Lab::open(options, emit)?;
    for depth in [1, 32] {
        library(&mut lab, depth)?;
    }
    if lab.any_wanted(&MOUNT) || lab.any_wanted(&postmark::ROWS) {
        let plan = lab.plan(lab.memory(), lab.memory(), "meta")?;
        let cluster = Cluster::start(&plan)?;
        let mount = cluster.mount(&lab.place("meta"))?;
        lab.want_passthrough();
        let peer = lab.passthrough(lab.memory(), "passthrough");
        let stage = Stage::new(&lab, &plan, &cluster, &mount, peer.as_ref(), lab.memory())?;
        names(&mut lab, &stage);
        shared(&mut lab, &stage);
        postmark::measure(&mut lab, &stage);
    }
    starts::measure(&mut lab)
}

/// One kind of work on many names of one directory, by one worker of the library.
pub fn library_order(cluster: &Cluster, what: &str, folder: &str, count: u64, depth: u64) -> Order {
    let order = Order::new("library names").with("address", cluster.address());
    let order = order.with("what", what).with("folder", folder).with("name", "f");
    order.with("count", count).with("depth", depth)
}

/// Create and stat through the library, the journal on a disk; each by a session that knows nothing.
fn library(lab: &mut Lab<'_>, depth: u64) -> anyhow::Result<()> {
    let names = ["create", "stat"].map(|what| format!("library.{what}.depth{depth}"));
    if !names.iter().any(|name| lab.options.wanted(name)) {
        return Ok(());
    }
    let count = match depth {
        1 => lab.options.amount(20_000, 5_000),
        _ => lab.options.amount(100_000, 20_000),
    };
    let plan = lab.plan(lab.disk(), lab.memory(), &format!("library{depth}"))?;
    let cluster = Cluster::start(&plan)?;
    let serving = cluster.watched();
    let rows = names.map(|name| row(&name, Figure::Rate, 0, 1, depth));
    let mut parties = vec![Party {
        system: "ropewalk",
        version: version(),
        medium: "library",
        params: [lab.params(&plan), vec![("placement", quoted("processes"))]].concat(),
        act: Box::new(|number| {
            let folder = format!("/run{number}");
            let work = |what| {
                let order = library_order(&cluster, what, &folder, count, depth);
                run(&[order], &serving)
            };
            Ok(vec![work("create")?, work("stat")?])
        }),
    }];
    if lab.options.peers {
        let folder: PathBuf = lab.disk().join(format!("bare{depth}"));
        parties.push(Party {
            system: "raw",
            version: host::kernel(),
            medium: "library",
            params: lab.bare_params(lab.disk()),
            act: Box::new(move |number| {
                let folder = folder.join(number.to_string());
                std::fs::create_dir_all(&folder)?;
                let work =
                    |kind| run(&[file_order(kind, &folder, "f", count, 0)], &Watched::default());
                Ok(vec![work("create")?, work("stat")?])
            }),
        });
    }
    lab.alternate(&rows, parties);
    Ok(())
}

/// One kind of work on many files of a directory, by one worker with system calls.
fn file_order(kind: &str, folder: &Path, name: &str, count: u64, bytes: usize) -> Order {
    let order = Order::new(kind).with("folder", folder.display()).with("name", name);
    order.with("count", count).with("bytes", bytes)
}

/// Each process in a directory of its own: empty files. Each looks at the other's.
fn names(lab: &mut Lab<'_>, stage: &Stage<'_>) {
    if !lab.any_wanted(&MOUNT[..4]) {
        return;
    }
    let count = lab.options.amount(5_000, 2_000);
    let act = move |folder: &Path, serving: &Watched, number: usize| {
        let place = |client: u64| folder.join(format!("own{number}.{client}"));
        for client in 0..CLIENTS {
            std::fs::create_dir_all(place(client))?;
        }
        let work = |kind: &str, shift: u64| {
            let of = |client: u64| place((client + shift) % CLIENTS);
            let orders = (0..CLIENTS).map(|client| file_order(kind, &of(client), "f", count, 0));
            run(&orders.collect::<Vec<_>>(), serving)
        };
        Ok(vec![work("create", 0)?, work("stat", 1)?, work("open", 1)?, work("unlink", 0)?])
    };
    let rows: Vec<Row> =
        MOUNT[..4].iter().map(|name| row(name, Figure::Rate, 0, CLIENTS, 1)).collect();
    lab.alternate(&rows, stage.parties(&act));
}

/// All in one directory: small files, written, read by the other process, removed.
fn shared(lab: &mut Lab<'_>, stage: &Stage<'_>) {
    if !lab.any_wanted(&MOUNT[4..]) {
        return;
    }
    let count = lab.options.amount(3_000, 1_000);
    let act = move |folder: &Path, serving: &Watched, number: usize| -> anyhow::Result<Vec<Work>> {
        let folder = folder.join(format!("shared{number}"));
        std::fs::create_dir_all(&folder)?;
        let work = |kind: &str, shift: u64| {
            let orders = (0..CLIENTS).map(|client| {
                let name = format!("{}.", (client + shift) % CLIENTS);
                file_order(kind, &folder, &name, count, SMALL_FILE)
            });
            run(&orders.collect::<Vec<_>>(), serving)
        };
        Ok(vec![work("create", 0)?, work("read", 1)?, work("unlink", 0)?])
    };
    let rows: Vec<Row> =
        MOUNT[4..].iter().map(|name| row(name, Figure::Rate, SMALL_FILE, CLIENTS, 1)).collect();
    lab.alternate(&rows, stage.parties(&act));
}
