//! `bench io`: data through the library and through a mount, beside bare calls and the passthrough.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::counters::Watched;
use crate::fio;
use crate::host;
use crate::lab::{Lab, Party, quoted, version};
use crate::order::Order;
use crate::report::Outcome;
use crate::series::Figure;
use crate::servers::Cluster;
use crate::stage::{Stage, row};
use crate::work_files::{LARGE, SMALL};
use crate::worker::{Work, run};
use crate::{Options, series};

/// Processes that use a mount at the same time.
const CLIENTS: u64 = 2;

const ROWS: [&str; 15] = [
    "library.write.fresh.depth1",
    "library.write.existing.depth1",
    "library.read.depth1",
    "library.write.fresh.depth4",
    "library.write.existing.depth4",
    "library.read.depth4",
    "mount.write",
    "mount.read.cold",
    "mount.direct.read.depth1",
    "mount.direct.write.depth1",
    "mount.direct.read.depth16",
    "mount.direct.write.depth16",
    "mount.synced.existing",
    "mount.synced.append",
    "mount.synced.existing.syncs",
];

/// The names of all rows.
pub fn rows() -> Vec<String> {
    ROWS.map(String::from).to_vec()
}

/// Measures everything that was asked for.
pub fn io(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let mut lab = Lab::open(options, emit)?;
    for depth in [1, 4] {
        library(&mut lab, depth)?;
    }
    if lab.any_wanted(&ROWS[6..12]) {
        let plan = lab.plan(lab.memory(), lab.memory(), "io")?;
        let cluster = Cluster::start(&plan)?;
        let mount = cluster.mount(&lab.place("io"))?;
        lab.want_passthrough();
        let peer = lab.passthrough(lab.memory(), "passthrough");
        let stage = Stage::new(&lab, &plan, &cluster, &mount, peer.as_ref(), lab.memory())?;
        large(&mut lab, &stage)?;
        for depth in [1, 16] {
            small(&mut lab, &stage, depth)?;
        }
    }
    if lab.any_wanted(&["mount.synced.existing", "mount.synced.append"]) {
        synced(&mut lab)?;
    }
    Ok(())
}

/// 1 MiB through the library: into new files, over existing ones, and back.
fn library(lab: &mut Lab<'_>, depth: u64) -> anyhow::Result<()> {
    let names = ["write.fresh", "write.existing", "read"];
    let names = names.map(|name| format!("library.{name}.depth{depth}"));
    if !names.iter().any(|name| lab.options.wanted(name)) {
        return Ok(());
    }
    let count = lab.options.amount(512, 256);
    let plan = lab.plan(lab.memory(), lab.memory(), &format!("library{depth}"))?;
    let cluster = Cluster::start(&plan)?;
    let rows = names.map(|name| row(&name, Figure::Bandwidth, LARGE, 1, depth));
    let embedded = lab.memory().join(format!("embedded{depth}"));
    let (address, serving) = (cluster.address(), cluster.watched());
    let place = |order: Order, run: usize| order.with("folder", "/io").with("name", run);
    let ours = |serving: &Watched, start: &dyn Fn(&str) -> Order, number: usize| {
        let each = |kind: &str| {
            let order = place(start(kind), number);
            order.with("count", count).with("depth", depth)
        };
        let fresh = run(&[each("library write")], serving)?;
        let existing = run(&[each("library write").with("existing", 1)], serving)?;
        let read = run(&[each("library read")], serving)?;
        run(&[each("library remove")], serving)?;
        Ok(vec![fresh, existing, read])
    };
    let (separate, within) = (
        |kind: &str| Order::new(kind).with("address", &address),
        |kind: &str| {
            let order = Order::new(kind).with("embedded", embedded.display());
            order.with("data_servers", plan.data_servers)
        },
    );
    let params = |placement| [lab.params(&plan), vec![("placement", quoted(placement))]].concat();
    let mut parties = vec![Party {
        system: "ropewalk",
        version: version(),
        medium: "library",
        params: params("processes"),
        act: Box::new(|run| ours(&serving, &separate, run)),
    }];
    if lab.options.peers {
        let folder = lab.memory().to_path_buf();
        parties.push(Party {
            system: "raw",
            version: host::kernel(),
            medium: "library",
            params: lab.bare_params(lab.memory()),
            act: Box::new(move |run| bare(&folder, run, count)),
        });
    }
    parties.push(Party {
        system: "ropewalk",
        version: version(),
        medium: "library",
        params: params("embedded"),
        act: Box::new(|run| ours(&Watched::default(), &within, run)),
    });
    lab.alternate(&rows, parties);
    Ok(())
}

/// The work of one thread on the bare file system.
fn bare(folder: &Path, number: usize, count: u64) -> anyhow::Result<Vec<Work>> {
    let each = |kind: &str| {
        let order = Order::new(kind).with("folder", folder.display());
        order.with("name", format!("bare{number}")).with("count", count)
    };
    let fresh = run(&[each("write large")], &Watched::default())?;
    let existing = run(&[each("write large").with("existing", 1)], &Watched::default())?;
    let read = run(&[each("read large")], &Watched::default())?;
    std::fs::remove_file(folder.join(format!("bare{number}")))?;
    Ok(vec![fresh, existing, read])
}

/// 1 MiB through the mount: a file for each process, written, and read by the other one.
fn large(lab: &mut Lab<'_>, stage: &Stage<'_>) -> anyhow::Result<()> {
    if !lab.any_wanted(&["mount.write", "mount.read.cold"]) {
        return Ok(());
    }
    let count = lab.options.amount(128, 64);
    let act = move |folder: &Path, serving: &Watched, number: usize| {
        let name = |client: u64| format!("large{number}.{client}");
        let order = |kind: &str, client: u64| {
            let order = Order::new(kind).with("folder", folder.display());
            order.with("name", name(client)).with("count", count)
        };
        let writers: Vec<Order> =
            (0..CLIENTS).map(|client| order("write large", client).with("sync", 1)).collect();
        let written = run(&writers, serving)?;
        if !host::drop_caches() {
            eprintln!("the page cache cannot be emptied: 'cold' reads may be warm");
        }
        let readers: Vec<Order> =
            (0..CLIENTS).map(|client| order("read large", (client + 1) % CLIENTS)).collect();
        let read = run(&readers, serving)?;
        for client in 0..CLIENTS {
            std::fs::remove_file(folder.join(name(client)))?;
        }
        Ok(vec![written, read])
    };
    let rows = ["mount.write", "mount.read.cold"];
    let rows = rows.map(|name| row(name, Figure::Bandwidth, LARGE, CLIENTS, 1));
    lab.alternate(&rows, stage.parties(&act));
    Ok(())
}

/// A file of so many bytes with something in it, made once for each mount.
fn prepared(folder: &Path, bytes: u64) -> anyhow::Result<()> {
    let path = folder.join("small");
    if path.exists() {
        return Ok(());
    }
    let write = || -> std::io::Result<()> {
        use std::io::Write;
        let mut file = std::fs::File::create(&path)?;
        let block = vec![7; LARGE];
        (0..bytes / LARGE as u64).try_for_each(|_| file.write_all(&block))?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// 4 KiB past the page cache at random places, so many at a time, from one process.
fn small(lab: &mut Lab<'_>, stage: &Stage<'_>, depth: u64) -> anyhow::Result<()> {
    let bytes = lab.options.amount(64, 64).max(4) << 20;
    let count = lab.options.amount(if depth == 1 { 40_000 } else { 160_000 }, 10_000) / depth;
    let fio = depth > 1 && fio::installed();
    if depth > 1 && !fio {
        eprintln!(
            "fio is missing: threads make the depth {depth} instead (Debian: apt install fio)"
        );
    }
    for what in ["read", "write"] {
        let name = format!("mount.direct.{what}.depth{depth}");
        if !lab.options.wanted(&name) {
            continue;
        }
        let act = |folder: &Path, serving: &Watched, _: usize| {
            prepared(folder, bytes)?;
            if fio {
                return Ok(vec![fio::random(folder, what, bytes, depth, count * depth, serving)?]);
            }
            let order = Order::new("direct").with("folder", folder.display()).with("name", "small");
            let order = order.with("what", what).with("depth", depth);
            let order = order.with("count", count * depth).with("file_bytes", bytes);
            Ok(vec![run(&[order], serving)?])
        };
        let mut row = row(&name, Figure::Rate, SMALL, 1, depth);
        let generator = match (fio, depth) {
            (true, _) => "fio libaio",
            (_, 1) => "one thread",
            _ => "threads",
        };
        row.params.push(("generator", quoted(generator)));
        lab.alternate(&[row], stage.parties(&act));
    }
    Ok(())
}

/// 4 KiB and fsync, all on a disk; syncs of the servers are counted.
fn synced(lab: &mut Lab<'_>) -> anyhow::Result<()> {
    let plan = lab.plan(lab.disk(), lab.disk(), "synced")?;
    let cluster = Cluster::start(&plan)?;
    let mount = cluster.mount(&lab.place("synced"))?;
    lab.want_passthrough();
    let peer = lab.passthrough(lab.disk(), "synced-passthrough");
    let stage = Stage::new(lab, &plan, &cluster, &mount, peer.as_ref(), lab.disk())?;
    let count = lab.options.amount(4000, 1000);
    for existing in [true, false] {
        let kind = if existing { "existing" } else { "append" };
        let name = format!("mount.synced.{kind}");
        if !lab.options.wanted(&name) {
            continue;
        }
        let syncs = std::cell::RefCell::new(Vec::new());
        let act = |folder: &Path, serving: &Watched, number: usize| {
            let order = Order::new("synced").with("folder", folder.display());
            let order = order.with("name", format!("{kind}{number}")).with("count", count);
            let order = if existing { order.with("existing", 1) } else { order };
            let work = run(&[order], serving)?;
            if let Some(served) = work.served {
                syncs.borrow_mut().push(served.syncs / work.operations as f64);
            }
            Ok(vec![work])
        };
        let mut parties = stage.parties(&act);
        if lab.options.peers {
            let folder: PathBuf = lab.disk().to_path_buf();
            let act = &act;
            parties.push(Party {
                system: "raw",
                version: host::kernel(),
                medium: "mount",
                params: stage.bare.clone(),
                act: Box::new(move |run| act(&folder, &Watched::default(), run)),
            });
        }
        lab.alternate(&[row(&name, Figure::Rate, SMALL, 1, 1)], parties);
        let values = syncs.take();
        if !values.is_empty() {
            let name = format!("{name}.syncs");
            let unit = ("count", "1/operation");
            lab.tell(series::direct(&name, "mount", stage.params.clone(), unit, values));
        }
    }
    Ok(())
}
