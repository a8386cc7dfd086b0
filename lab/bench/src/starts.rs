//! Measurements of servers rather than clients: messages by operation and number of data servers, the time from
//! nothing to ready and from a kill to the first answer, memory.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::counters::Watched;
use crate::host;
use crate::lab::{Lab, Party, quoted, version};
use crate::meta::library_order;
use crate::order::Order;
use crate::series::{Figure, Row, direct};
use crate::servers::{Cluster, Mount};
use crate::stage::row;
use crate::worker::{Work, Worker, run};

/// Numbers of data servers that are compared.
const SERVERS: [u32; 4] = [1, 2, 4, 8];
const OPERATIONS: [&str; 5] = ["create", "stat", "open", "rename", "unlink"];
/// Bytes of files that no server keeps inline.
const LARGE_FILE: usize = 128 << 10;
/// Counters that do not change for so long will not change by themselves.
const QUIET: Duration = Duration::from_millis(200);

const READY: [&str; 2] = ["ready.library", "ready.mount"];
const RESTART: [&str; 1] = ["restart.meta"];
const MEMORY: [&str; 4] = ["memory.meta", "memory.data", "memory.mount", "memory.meta.files"];

/// The names of all rows.
pub fn rows() -> Vec<String> {
    let kinds = ["empty", "large"];
    let messages = kinds.iter().flat_map(|kind| OPERATIONS.map(|what| message_row(what, kind)));
    let fixed = READY.iter().chain(&RESTART).chain(&MEMORY).map(|name| name.to_string());
    messages.chain(fixed).collect()
}

fn message_row(what: &str, kind: &str) -> String {
    format!("messages.{what}.{kind}")
}

/// Measures everything that was asked for.
pub fn measure(lab: &mut Lab<'_>) -> anyhow::Result<()> {
    messages(lab, "empty", 0)?;
    messages(lab, "large", LARGE_FILE)?;
    ready(lab);
    restart(lab)
}

/// A cluster of so many data servers, with the counts of messages over it.
struct Counted {
    cluster: Cluster,
    /// Operation; messages that the client sent to data servers for it; all that they got then.
    found: RefCell<Vec<(&'static str, f64, f64)>>,
}

/// Requests to data servers, when no more come by themselves.
fn quiet_requests(cluster: &Cluster) -> anyhow::Result<u64> {
    let mut before = cluster.data_calls()?;
    let mut since = Instant::now();
    while since.elapsed() < QUIET {
        let now = cluster.data_calls()?;
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    Ok(before)
}

/// Each operation with 1, 2, 4, 8 data servers: the rate, and how many messages they got.
fn messages(lab: &mut Lab<'_>, kind: &str, bytes: usize) -> anyhow::Result<()> {
    let names = OPERATIONS.map(|what| message_row(what, kind));
    if !names.iter().any(|name| lab.options.wanted(name)) {
        return Ok(());
    }
    let count =
        if bytes > 0 { lab.options.amount(4_000, 300) } else { lab.options.amount(20_000, 3_000) };
    let mut clusters = Vec::new();
    for servers in SERVERS {
        let mut plan = lab.plan(lab.memory(), lab.memory(), &format!("{kind}{servers}"))?;
        plan.data_servers = servers;
        let cluster = Cluster::start(&plan)?;
        let params = [lab.params(&plan), vec![("placement", quoted("processes"))]].concat();
        clusters.push((Counted { cluster, found: RefCell::default() }, params));
    }
    let parties = clusters.iter().map(|(counted, params)| Party {
        system: "ropewalk",
        version: version(),
        medium: "library",
        params: params.clone(),
        act: Box::new(move |number| counted.operations(number, count, bytes)),
    });
    let rows: Vec<Row> = names.iter().map(|name| row(name, Figure::Rate, bytes, 1, 1)).collect();
    let outcomes = lab.alternate(&rows, parties.collect());
    for (name, what) in names.iter().zip(OPERATIONS) {
        for (counted, params) in &clusters {
            let found = counted.found.borrow();
            let of = |pick: fn(&(&str, f64, f64)) -> f64| -> Vec<f64> {
                found.iter().filter(|(other, ..)| *other == what).map(pick).collect()
            };
            let (asked, got) = (of(|found| found.1), of(|found| found.2));
            // Removed files go later, in bundles: those are messages, but nobody waits for them.
            for (kind, values) in [("asked", asked), ("received", got)] {
                if !values.is_empty() && (kind == "received" || what == "unlink") {
                    let (name, unit) = (format!("{name}.{kind}"), ("count", "1/operation"));
                    lab.tell(direct(&name, "library", params.clone(), unit, values));
                }
            }
        }
        // Over the numbers of servers: the slowest as a part of the fastest.
        let rates = outcomes.iter().filter(|one| one.metric == "rate" && one.scenario == *name);
        let rates: Vec<f64> = rates.map(|one| one.median).collect();
        let (low, high) = (
            rates.iter().copied().fold(f64::MAX, f64::min),
            rates.iter().copied().fold(0.0, f64::max),
        );
        if rates.len() == SERVERS.len() {
            let params = vec![("servers", quoted("1 to 8")), ("bytes", bytes.to_string())];
            let name = format!("{name}.flat");
            lab.tell(direct(&name, "library", params, ("count", "min/max"), vec![low / high]));
        }
    }
    Ok(())
}

impl Counted {
    fn operations(&self, number: usize, count: u64, bytes: usize) -> anyhow::Result<Vec<Work>> {
        let (folder, serving) = (format!("/m{number}"), self.cluster.watched());
        let order = |what: &str| library_order(&self.cluster, what, &folder, count, 1);
        // Counting waits until nothing moves; the counts are the same in each run.
        let counting = number == 0;
        let mut works = Vec::new();
        let mut before = if counting { quiet_requests(&self.cluster)? } else { 0 };
        for what in OPERATIONS {
            let work = run(&[order(what)], &serving)?;
            if counting {
                let after = quiet_requests(&self.cluster)?;
                let each = |messages: u64| messages as f64 / work.operations as f64;
                let found = (what, each(work.extra), each(after - before));
                self.found.borrow_mut().push(found);
                before = after;
            }
            works.push(work);
            if what == "create" && bytes > 0 {
                run(&[order("fill").with("bytes", bytes)], &serving)?;
                before = if counting { quiet_requests(&self.cluster)? } else { 0 };
            }
        }
        Ok(works)
    }
}

/// A span that began in this process and ended with this work.
fn since(begin_nanos: u64) -> Work {
    let mut work = Work { begin_nanos, operations: 1, ..Work::default() };
    work.end_nanos = host::monotonic_nanos();
    work.times.note(work.end_nanos - begin_nanos);
    work
}

/// The function that measures a start; its number is new each time.
type Start<'a> = Box<dyn Fn(&Lab<'_>, usize) -> anyhow::Result<Work> + 'a>;

/// From nothing to the first answer, and to the first look through a mount.
fn ready(lab: &mut Lab<'_>) {
    let starts: [(&str, &str, Start<'_>); 4] = [
        (READY[0], "processes", Box::new(library_of_processes)),
        (READY[0], "embedded", Box::new(library_embedded)),
        (READY[1], "processes", Box::new(mount_of_processes)),
        (READY[1], "embedded", Box::new(mount_embedded)),
    ];
    for (name, placement, start) in starts {
        if !lab.options.wanted(name) {
            continue;
        }
        let params = vec![
            ("servers", lab.options.data_servers.to_string()),
            ("storage", quoted(host::storage(lab.memory()))),
            ("placement", quoted(placement)),
        ];
        let mut values = Vec::new();
        for number in 0..lab.options.runs() {
            match start(lab, number) {
                Ok(work) => values.push(work.seconds() * 1e3),
                Err(error) => eprintln!("{name} {placement}: {error:#}"),
            }
        }
        if !values.is_empty() {
            let medium = if name == READY[0] { "library" } else { "mount" };
            lab.tell(direct(name, medium, params, ("latency", "ms"), values));
        }
    }
}

fn library_of_processes(lab: &Lab<'_>, number: usize) -> anyhow::Result<Work> {
    let plan = lab.plan(lab.memory(), lab.memory(), &format!("ready{number}"))?;
    let begin = host::monotonic_nanos();
    let cluster = Cluster::start(&plan)?;
    let work = run(
        &[Order::new("library ready").with("address", cluster.address())],
        &Watched::default(),
    )?;
    Ok(Work { begin_nanos: begin, ..work })
}

fn library_embedded(lab: &Lab<'_>, number: usize) -> anyhow::Result<Work> {
    let folder = lab.memory().join(format!("ready-embedded{number}"));
    let order = Order::new("library ready").with("embedded", folder.display());
    run(&[order.with("data_servers", lab.options.data_servers)], &Watched::default())
}

fn mount_of_processes(lab: &Lab<'_>, number: usize) -> anyhow::Result<Work> {
    let plan = lab.plan(lab.memory(), lab.memory(), &format!("ready-mount{number}"))?;
    let begin = host::monotonic_nanos();
    let cluster = Cluster::start(&plan)?;
    let mount = cluster.mount(&lab.place("ready"))?;
    std::fs::read_dir(mount.path())?.count();
    Ok(since(begin))
}

fn mount_embedded(lab: &Lab<'_>, number: usize) -> anyhow::Result<Work> {
    let (folder, place) = (lab.memory().join(format!("up{number}")), lab.place("up"));
    let begin = host::monotonic_nanos();
    let mount = Mount::embedded(&folder, &place, lab.options.data_servers)?;
    std::fs::read_dir(mount.path())?.count();
    Ok(since(begin))
}

fn memory_mib(process: u32) -> anyhow::Result<f64> {
    Ok(host::resident_bytes(process)? as f64 / f64::from(1 << 20))
}

/// Memory of idle servers; then many files, a kill, and the time to the first answer: for a client
/// that was there before, and for a new one.
fn restart(lab: &mut Lab<'_>) -> anyhow::Result<()> {
    if !lab.any_wanted(&RESTART) && !lab.any_wanted(&MEMORY) {
        return Ok(());
    }
    let plan = lab.plan(lab.disk(), lab.memory(), "restart")?;
    let mut cluster = Cluster::start(&plan)?;
    let params = [lab.params(&plan), vec![("placement", quoted("processes"))]].concat();
    idle(lab, &cluster, &params)?;
    let files = lab.options.amount(100_000, 100_000);
    let many = [&params[..], &[("files", files.to_string())]].concat();
    let made = run(&[library_order(&cluster, "create", "/many", files, 32)], &Watched::default())?;
    assert_eq!(made.operations, files, "a worker does all that it is told, or fails");
    let (meta, _) = cluster.servers();
    let value = memory_mib(meta.process())?;
    lab.tell(direct(MEMORY[3], "library", many.clone(), ("memory", "MiB"), vec![value]));
    for client in ["known", "new"] {
        if !lab.options.wanted(RESTART[0]) {
            break;
        }
        let mut values = Vec::new();
        for _ in 0..lab.options.runs() {
            let kind = if client == "known" { "library reconnect" } else { "library ready" };
            let mut worker = Worker::start(&Order::new(kind).with("address", cluster.address()))?;
            let begin = host::monotonic_nanos();
            cluster.restart_meta()?;
            worker.go()?;
            let work = Work { begin_nanos: begin, ..worker.finish()? };
            values.push(work.seconds() * 1e3);
        }
        let params = [&many[..], &[("client", quoted(client))]].concat();
        lab.tell(direct(RESTART[0], "library", params, ("latency", "ms"), values));
    }
    Ok(())
}

/// Memory of servers that have nothing, and of a mount that nobody used.
fn idle(
    lab: &mut Lab<'_>,
    cluster: &Cluster,
    params: &[(&'static str, String)],
) -> anyhow::Result<()> {
    // A mount where mounts can be used; the servers are measured in any case.
    let mount = cluster.mount(&lab.place("idle"));
    let (meta, data) = cluster.servers();
    let unit = ("memory", "MiB");
    let mut tell = |name: &str, medium, values: Vec<f64>| {
        lab.tell(direct(name, medium, params.to_vec(), unit, values));
    };
    tell(MEMORY[0], "library", vec![memory_mib(meta.process())?]);
    let each = data.iter().map(|server| memory_mib(server.process()));
    tell(MEMORY[1], "library", each.collect::<anyhow::Result<_>>()?);
    match mount {
        Ok(mount) => tell(MEMORY[2], "mount", vec![memory_mib(mount.process())?]),
        Err(error) => eprintln!("{}: {error:#}", MEMORY[2]),
    }
    Ok(())
}
