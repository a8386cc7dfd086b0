//! Each MPI that is here tells all figures of the BMI paper and of the paper on windows, and leaves nobody behind.
//!
//! No test harness: the program is started again as its own launcher, as every benchmark is.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_bench::embed::{Embedded, Embedder};
use ropewalk_bench::mpi::windows::{Memory, Order, Progress};
use ropewalk_bench::mpi::{Medium, Mpi, Point};
use ropewalk_netns::{Topology, TopologyConfig};

/// The variable by which this program learns that it is the one to be killed.
const VICTIM: &str = "MPI_FIGURES_VICTIM";
const HANG: Duration = Duration::from_secs(60);

struct Nobody;

impl Embedder for Nobody {
    fn start(&self, _: &Path, _: u32) -> anyhow::Result<Box<dyn Embedded>> {
        anyhow::bail!("no cluster is needed here")
    }
}

fn main() -> anyhow::Result<()> {
    ropewalk_bench::serve_if_child(&Nobody);
    if let Some(directory) = std::env::var_os(VICTIM) {
        for mpi in Mpi::find(Path::new(&directory)) {
            mpi.pattern(Medium::Tcp, 1, 1, 600.0)?;
        }
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let all = Mpi::find(directory.path());
    for name in ["openmpi", "mpich"] {
        if !all.iter().any(|mpi| mpi.name() == name) {
            println!("SKIP: the figures of {name}, which is not here");
        }
    }
    for mpi in &all {
        for medium in [Medium::Tcp, Medium::Shm] {
            figures(mpi, medium)?;
        }
    }
    for mpi in Mpi::find_for_windows(directory.path()) {
        for medium in [Medium::Tcp, Medium::Shm] {
            windows(&mpi, medium)?;
        }
    }
    let config = TopologyConfig { hosts: 3, rails: 1, ..TopologyConfig::default() };
    if let Some(network) = Topology::or_skip(&config) {
        let all = Mpi::find_for_windows(directory.path()).into_iter();
        for mpi in all.filter(|mpi| mpi.lacks_namespaces().is_none()) {
            windows_apart(&mpi, &network)?;
        }
    }
    // Of a launcher that had to be killed they end a moment later.
    wait_for("ranks that are gone", || ranks_from(directory.path()) == 0);
    if !all.is_empty() {
        ranks_die_with_who_measures(directory.path())?;
    }
    println!("{} MPIs told all figures", all.len());
    Ok(())
}

fn figures(mpi: &Mpi, medium: Medium) -> anyhow::Result<()> {
    let show = |what: &str, points: &[Point]| {
        println!("{} {} {medium:?} {what}: {points:?}", mpi.name(), mpi.version());
        assert!(points.iter().all(|point| point.value > 0.0 && point.p99 > 0.0), "{points:?}");
    };
    let sizes = [0, 8, 65_536];
    let points = mpi.latency(medium, 100, &sizes)?;
    assert_eq!(points.iter().map(|point| point.bytes).collect::<Vec<_>>(), sizes);
    show("latency", &points);
    for late in [false, true] {
        let points = mpi.bandwidth(medium, 10_000_000, late, &[8192, 100_000])?;
        assert_eq!((points[0].bytes, points[1].bytes, points.len()), (8192, 100_000, 2));
        show(if late { "late" } else { "pre" }, &points);
    }
    for (servers, clients) in [(1, 1), (2, 2)] {
        let points = mpi.pattern(medium, servers, clients, 0.2)?;
        show(&format!("{servers} servers, {clients} clients"), &points);
    }
    // No size, no figure: a program that fails is an error, not an empty answer.
    assert!(mpi.bandwidth(medium, 1000, false, &[0]).is_err());
    Ok(())
}

/// Programs of `windows.c`: ranks, bytes of an operation, and the number of times that each tells for 4 rounds.
const WINDOWS: [(&str, usize, usize, usize); 16] = [
    ("latency", 2, 8, 4),
    ("bidirectional", 2, 4096, 4),
    ("put", 2, 65_536, 4),
    ("get", 2, 65_536, 4),
    ("overlap", 2, 1024, 4),
    ("skew", 2, 1024, 4),
    ("synchronisation.targets", 3, 0, 4),
    ("synchronisation.origins", 3, 0, 4),
    ("origins", 3, 1024, 4),
    ("flush.strided", 2, 65_536, 4),
    ("flush.lock_put_unlock", 2, 8, 4),
    ("flush16.get_accumulate", 2, 8, 4),
    ("computing.fetch_add", 2, 8, 4),
    ("passive_put", 2, 65_536, 8),
    ("counter", 3, 8, 1),
    ("fairness", 3, 8, 1),
];

fn windows(mpi: &Mpi, medium: Medium) -> anyhow::Result<()> {
    let memory = match medium {
        Medium::Tcp => mpi.memory_over_tcp(),
        Medium::Shm => Memory::Allocated,
    };
    let order = |(program, ranks, bytes, _): (&str, _, _, _), memory| {
        let (program, progress) = (program.to_string(), Progress::Calls);
        let (loops, rounds, by_messages) = (1, 4, false);
        Order { medium, memory, progress, by_messages, program, ranks, bytes, loops, rounds }
    };
    for words in WINDOWS {
        let told = mpi.windows(&order(words, memory), None, 0)?;
        println!("{} {medium:?} {}: {told:?}", mpi.label(), words.0);
        assert_eq!(told.times.len(), words.3);
        assert!(told.times.iter().all(|nanos| *nanos > 0), "{told:?}");
    }
    let exchanged = mpi.windows(&order(WINDOWS[1], Memory::None), None, 0)?;
    assert_eq!(exchanged.times.len(), 4);
    assert!(mpi.windows(&order(("knots", 2, 8, 0), memory), None, 0).is_err());
    for words in WINDOWS {
        let order = Order { by_messages: true, ..order(words, Memory::Created) };
        let told = mpi.windows(&order, None, 0);
        assert_eq!(told.is_ok(), mpi.has_messages(), "{told:?}");
        let Ok(told) = told else { break };
        // It is the component that was asked for, and over tcp no other one moves data.
        let moves = if medium == Medium::Tcp { "btl_tcp" } else { "btl_vader" };
        let mut components = told.components.clone();
        components.sort();
        let mut wanted = ["btl_self", moves, "osc_pt2pt"];
        wanted.sort();
        assert_eq!((components, told.times.len()), (wanted.map(String::from).into(), words.3));
    }
    // More than there is cannot have passed the loopback interface.
    let moved = mpi.windows(&order(WINDOWS[2], memory), None, 1 << 40);
    assert_eq!(moved.is_err(), medium == Medium::Tcp);
    Ok(())
}

/// Each rank is in a namespace of its own, and its interface counts what the others get from it.
fn windows_apart(mpi: &Mpi, network: &Topology) -> anyhow::Result<()> {
    for (program, ranks, bytes) in [("put", 2, 65_536), ("origins", 3, 1024)] {
        let (medium, memory) = (Medium::Tcp, mpi.memory_over_tcp());
        let (program, progress) = (program.to_string(), Progress::Calls);
        let (loops, rounds, by_messages) = (1, 4, mpi.has_messages());
        let order =
            Order { medium, memory, progress, by_messages, program, ranks, bytes, loops, rounds };
        let moved = 4 * 16 * bytes as u64;
        let told = mpi.windows(&order, Some(network), moved)?;
        println!("{} between namespaces {}: {told:?}", mpi.label(), order.program);
        assert_eq!(told.times.len(), 4);
        assert!(told.interface[0] >= moved, "{told:?}");
        assert!(mpi.windows(&order, Some(network), 1 << 40).is_err());
    }
    Ok(())
}

/// The number of processes that run a program from `directory`.
fn ranks_from(directory: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let programs =
        processes.filter_map(|process| std::fs::read_link(process.path().join("exe")).ok());
    programs.filter(|program| program.starts_with(directory)).count()
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + HANG;
    while !done() {
        assert!(Instant::now() < deadline, "{what}: not within {HANG:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn ranks_die_with_who_measures(directory: &Path) -> anyhow::Result<()> {
    let mut victim = Command::new(std::env::current_exe()?)
        .env(VICTIM, directory)
        .stdout(Stdio::null())
        .spawn()?;
    wait_for("ranks that begin", || ranks_from(directory) == 2);
    victim.kill()?;
    victim.wait()?;
    wait_for("ranks that end", || ranks_from(directory) == 0);
    Ok(())
}
