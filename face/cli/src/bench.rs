//! `bench`: the benchmarks of `lab/bench` under the command that people have.
//!
//! They start this program again as servers, mounts and workers. A cluster inside one process, which they
//! cannot start themselves, is handed to them here.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_bench::embed::{Embedded, Embedder};
use ropewalk_bench::{Options, Outcome, report};
use ropewalk_rail::Rail;
use signal_hook::flag::{register, register_conditional_shutdown};

use crate::cluster::Cluster;
use crate::report::{print, say};
use crate::stop;

/// Which benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Name {
    /// Messages: latency and bandwidth by size over each transport, compared with plain sockets.
    Net,
    /// File data: 1 MiB and 4 KiB accesses through the library and the mount, compared with system
    /// calls and a FUSE passthrough.
    Io,
    /// The figures of the BMI paper through libbmi, compared with plain sockets and the MPIs of
    /// this host.
    Bmi,
    /// The figures of the MX papers between two network namespaces, compared with raw frames, UDP
    /// and TCP (needs root).
    Mx,
    /// Faults of network paths between network namespaces: the stall of a stream and the time of
    /// parallel programs, compared with TCP and MPTCP (needs root).
    Paths,
    /// One-sided windows: the figures of the paper on put, get and their synchronisation, by remote
    /// access and by messages, compared with the MPIs of this host. Rows over ether, netns-tcp and
    /// netns-udp go between network namespaces (needs root).
    Rma,
    /// Metadata: create, stat, open, PostMark, messages for each operation, restarts, memory of
    /// idle servers.
    Meta,
    /// Servers that fail: gaps while a metadata server with a standby, or a data server under
    /// mirrored files, is killed or stopped; the price of copies, drains, rebuilds, keys and floods.
    /// Nothing may be lost. Without root, hosts are not apart.
    Survive,
}

const EXAMPLES: &str = "Examples:
  ropewalk bench net --quick           measures all transports in two minutes
  ropewalk bench io --only mount.write --only mount.read
  ropewalk bench mx --list             prints the names of rows
  ropewalk bench paths --only cut.silent.1g.tcp --runs 20 --figure cut.svg
  ropewalk bench survive --only meta.killed --runs 50
  ropewalk bench survive --only data.killed.read --figure gap.svg
  ropewalk bench rma --only flush.put.ether --only open.idle

Each row of the result has the median, least and greatest value of its runs. A ratio compares Ropewalk \
with the system that it names.";

/// Rows of these are many, or shall reach something.
fn examples_and_rows() -> String {
    let paths = ("paths", ropewalk_bench::paths::guide());
    let rma = ("rma", ropewalk_bench::rma::guide());
    let survive = ("survive", ropewalk_bench::survive::guide());
    let rows = [paths, rma, survive].map(|(name, guide)| {
        format!("\nRows of 'ropewalk bench {name}', each run by --only NAME:\n{guide}")
    });
    format!("{EXAMPLES}\n{}", rows.concat())
}

/// Arguments of `ropewalk bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = examples_and_rows())]
pub struct BenchArguments {
    /// The benchmark to run.
    #[arg(value_enum)]
    name: Name,
    /// Do less work in fewer runs; it ends within two minutes ('rma' takes more).
    #[arg(long)]
    quick: bool,
    /// Print each figure as a JSON object on its own line, as soon as it is known.
    #[arg(long)]
    json: bool,
    /// Also draw the figures into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
    /// Measure only rows whose name contains PART; can be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Print the names of the rows and exit.
    #[arg(long)]
    list: bool,
    /// Run each row this many times, instead of 7 (30 pairs of 'rma', 3 to 30 in rows of
    /// 'survive'), or of 3 with --quick (1 for faults of 'survive').
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, value_parser = at_least_one::<usize>)]
    runs: Option<usize>,
    /// Multiply the amount of work in each run by this factor.
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true, default_value_t = 1.0)]
    scale: f64,
    /// Measure only messages of these sizes in bytes, separated by commas, such as 64,4K,1M (for
    /// 'mx' only).
    #[arg(long, value_name = "SIZES", allow_negative_numbers = true, value_delimiter = ',', value_parser = crate::mx::perf::size)]
    sizes: Vec<u64>,
    /// Measure Ropewalk alone, without the systems that it is compared with.
    #[arg(long)]
    no_peers: bool,
    /// Start this many data servers, unless a row sets their number.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, default_value_t = 4, value_parser = at_least_one::<u32>)]
    data_servers: u32,
    /// Measure in-memory storage in this directory; it must lie on a file system in memory.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Measure disk storage in this directory; each figure names its file system.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: PathBuf,
    /// Keep the processors out of deep sleep during the measurements (needs root).
    #[arg(long)]
    hold_dma_latency: bool,
    /// Print each measurement on stderr when it begins.
    #[arg(long)]
    progress: bool,
}

fn at_least_one<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    let count = text.parse::<T>().ok().filter(|count| *count >= T::from(1));
    count.ok_or_else(|| "give a whole number of at least 1".to_string())
}

/// The benchmark's options: its selection, and its thoroughness.
fn options(arguments: &BenchArguments) -> anyhow::Result<Options> {
    if !(arguments.scale > 0.0 && arguments.scale <= 1000.0) {
        bail!(
            "--scale {}: give a factor greater than 0 and at most 1000, such as 0.1 or 2",
            arguments.scale
        );
    }
    if !arguments.sizes.is_empty() && arguments.name != Name::Mx {
        bail!(
            "--sizes is only for 'ropewalk bench mx': in other benchmarks the name of a row has \
             its size (--list prints the names, --only selects rows)"
        );
    }
    Ok(Options {
        quick: arguments.quick,
        only: arguments.only.clone(),
        sizes: arguments.sizes.iter().map(|bytes| *bytes as usize).collect(),
        runs: arguments.runs,
        scale: arguments.scale,
        peers: !arguments.no_peers,
        progress: arguments.progress,
        hold_dma_latency: arguments.hold_dma_latency,
        data_servers: arguments.data_servers,
        memory: arguments.memory.clone(),
        disk: arguments.disk.clone(),
        interrupted: Arc::default(),
    })
}

/// The names of the rows that the arguments select.
fn chosen_rows(arguments: &BenchArguments) -> Vec<String> {
    let mut names = match arguments.name {
        Name::Net => ropewalk_bench::net::rows(),
        Name::Bmi => ropewalk_bench::bmi::rows(),
        Name::Mx => ropewalk_bench::mx::rows(arguments.quick),
        Name::Paths => ropewalk_bench::paths::rows(arguments.quick),
        Name::Rma => ropewalk_bench::rma::rows(arguments.quick),
        Name::Io => ropewalk_bench::io::rows(),
        Name::Meta => ropewalk_bench::meta::rows(),
        Name::Survive => ropewalk_bench::survive::rows(),
    };
    let only = &arguments.only;
    names.retain(|name| only.is_empty() || only.iter().any(|part| name.contains(part)));
    names
}

/// The error where the selection leaves nothing.
fn no_row(arguments: &BenchArguments) -> anyhow::Error {
    anyhow!(
        "no row matches: 'ropewalk bench NAME --list' prints the names of the rows (with --quick: \
         of those that a quick run measures){}",
        if arguments.sizes.is_empty() { "" } else { "; a row measures only some of the sizes" }
    )
}

/// Measures, and prints what was found.
pub fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    let options = options(arguments)?;
    if arguments.list {
        let chosen = chosen_rows(arguments);
        if chosen.is_empty() {
            return Err(no_row(arguments));
        }
        return chosen.iter().try_for_each(|name| say!("{name}"));
    }
    if let Some(file) = &arguments.figure {
        // Whoever measures for minutes learns now that the picture cannot be written.
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    for signal in stop::signals() {
        // The first one ends it in good order, the second one at once.
        register_conditional_shutdown(signal, 128 + signal, options.interrupted.clone())?;
        register(signal, options.interrupted.clone())?;
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut table = report::Table::default();
    let mut untold = None;
    let mut emit = |outcome: &Outcome| {
        let text =
            if arguments.json { format!("{}\n", outcome.json()) } else { table.add(outcome) };
        if let Err(error) = print(text.as_bytes()) {
            // Nobody measures for nobody.
            options.interrupted.store(true, Ordering::Relaxed);
            untold.get_or_insert(error);
        }
        outcomes.push(outcome.clone());
    };
    match arguments.name {
        Name::Net => ropewalk_bench::net::net(&options, &mut emit),
        Name::Bmi => ropewalk_bench::bmi::bmi(&options, &mut emit),
        Name::Mx => ropewalk_bench::mx::mx(&options, &mut emit)?,
        Name::Paths => ropewalk_bench::paths::paths(&options, &mut emit)?,
        Name::Rma => ropewalk_bench::rma::rma(&options, &mut emit),
        Name::Io => ropewalk_bench::io::io(&options, &mut emit)?,
        Name::Meta => ropewalk_bench::meta::meta(&options, &mut emit)?,
        Name::Survive => ropewalk_bench::survive::survive(&options, &mut emit)?,
    }
    if let Some(error) = untold {
        return Err(error);
    }
    print(table.finish().as_bytes())?;
    if options.interrupted.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    if outcomes.is_empty() {
        if arguments.sizes.is_empty() && !chosen_rows(arguments).is_empty() {
            bail!("nothing was measured: the rows that were chosen failed, as told above");
        }
        return Err(no_row(arguments));
    }
    if let Some(file) = &arguments.figure {
        let picture = match arguments.name {
            Name::Net => report::figure(&outcomes, "latency"),
            Name::Bmi => bmi_figures(&outcomes),
            Name::Mx => ropewalk_bench::mx::figures(&outcomes),
            Name::Paths => ropewalk_bench::paths::figures(&outcomes),
            Name::Rma => ropewalk_bench::rma::figures(&outcomes),
            Name::Survive => ropewalk_bench::survive::figures(&outcomes),
            _ => report::bars(&outcomes),
        };
        std::fs::write(file, picture)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Round trips and bandwidths by size, and bars for what has no size.
fn bmi_figures(outcomes: &[Outcome]) -> String {
    let of = |begin: &str| -> Vec<Outcome> {
        outcomes.iter().filter(|it| it.scenario.starts_with(begin)).cloned().collect()
    };
    let mut figures = Vec::new();
    for (begin, metric) in [("roundtrip", "latency"), ("bandwidth", "bandwidth")] {
        let found = of(begin);
        if !found.is_empty() {
            figures.push(report::figure(&found, metric));
        }
    }
    let mut bars = of("pattern");
    bars.extend(of("beside"));
    if !bars.is_empty() {
        figures.push(report::bars(&bars));
    }
    report::stack(&figures)
}

/// Clusters inside this process.
pub struct InThisProcess;

impl Embedder for InThisProcess {
    fn start(&self, directory: &Path, data_servers: u32) -> anyhow::Result<Box<dyn Embedded>> {
        Ok(Box::new(Cluster::start(directory, data_servers)?))
    }
}

impl Embedded for Cluster {
    fn id(&self) -> ClusterId {
        self.id
    }

    fn address(&self) -> String {
        self.address.clone()
    }

    fn client_rails(&self) -> anyhow::Result<Vec<Box<dyn Rail>>> {
        Cluster::client_rails(self)
    }

    fn stop(self: Box<Self>) {
        Cluster::stop(*self);
    }
}
