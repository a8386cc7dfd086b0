//! `bench`: the benchmarks of `lab/bench` under the command that people have.
//!
//! They start this program again as servers, mounts and workers. A cluster inside one process, which they
//! cannot start themselves, is handed to them here.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
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
    /// Messages: latency and bandwidth by size over each rail, beside bare sockets.
    Net,
    /// Data: 1 MiB and 4 KiB through the library and the mount, beside bare calls and a passthrough.
    Io,
    /// The figures of the BMI paper through libbmi, beside bare sockets and the MPIs of this machine.
    Bmi,
    /// The figures of the MX papers between two network namespaces, beside bare frames, UDP and TCP (needs root).
    Mx,
    /// Names: create, stat, open, PostMark, messages by operation, restarts, memory of idle servers.
    Meta,
}

/// Arguments of `ropewalk bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArguments {
    /// What to measure.
    #[arg(value_enum)]
    name: Name,
    /// Less work and fewer runs: within two minutes.
    #[arg(long)]
    quick: bool,
    /// One JSON object a line, as each figure is known.
    #[arg(long)]
    json: bool,
    /// Draw the figures into this file, too.
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
    /// Only rows whose name contains this; can be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Print the names of the rows, and end.
    #[arg(long)]
    list: bool,
    /// Runs of each row.
    #[arg(long, value_name = "COUNT", value_parser = at_least_one::<usize>)]
    runs: Option<usize>,
    /// Multiplies the amount of work in each run.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// Of `mx`, only messages of these lengths, with K and M for 1024 and 1024 times that.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = crate::mx::perf::size)]
    sizes: Vec<u64>,
    /// Leave peers and bare references out.
    #[arg(long)]
    no_peers: bool,
    /// Data servers, where a row does not say how many.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = at_least_one::<u32>)]
    data_servers: u32,
    /// A directory of a file system in memory.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// A directory on a disk; its file system is named with each figure.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: PathBuf,
    /// Keep the processors from sleeping deeply meanwhile (needs root).
    #[arg(long)]
    hold_dma_latency: bool,
    /// Say on stderr what is being measured.
    #[arg(long)]
    progress: bool,
}

fn at_least_one<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    let count = text.parse::<T>().ok().filter(|count| *count >= T::from(1));
    count.ok_or_else(|| "it takes a number from 1 on".to_string())
}

/// The benchmark's options: its selection, and its thoroughness.
fn options(arguments: &BenchArguments) -> anyhow::Result<Options> {
    if !(arguments.scale > 0.0 && arguments.scale <= 1000.0) {
        bail!("--scale is a factor, such as 0.1 or 2");
    }
    if !arguments.sizes.is_empty() && arguments.name != Name::Mx {
        bail!(
            "--sizes picks rows of mx; the others have their sizes in their names (--list, --only)"
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

/// Measures, and prints what was found.
pub fn run(arguments: &BenchArguments) -> anyhow::Result<()> {
    if arguments.list {
        let names = match arguments.name {
            Name::Net => ropewalk_bench::net::rows(),
            Name::Bmi => ropewalk_bench::bmi::rows(),
            Name::Mx => ropewalk_bench::mx::rows(arguments.quick),
            Name::Io => ropewalk_bench::io::rows(),
            Name::Meta => ropewalk_bench::meta::rows(),
        };
        let only = &arguments.only;
        let chosen =
            |name: &&String| only.is_empty() || only.iter().any(|part| name.contains(part));
        return names.iter().filter(chosen).try_for_each(|name| say!("{name}"));
    }
    let options = options(arguments)?;
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
        Name::Io => ropewalk_bench::io::io(&options, &mut emit)?,
        Name::Meta => ropewalk_bench::meta::meta(&options, &mut emit)?,
    }
    if let Some(error) = untold {
        return Err(error);
    }
    print(table.finish().as_bytes())?;
    if options.interrupted.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    if outcomes.is_empty() {
        bail!(
            "nothing was measured; 'ropewalk bench NAME --list' prints the rows there are, with --quick those that it \
             leaves{}",
            if arguments.sizes.is_empty() { "" } else { "; and a row has some sizes only" }
        );
    }
    if let Some(file) = &arguments.figure {
        let picture = match arguments.name {
            Name::Net => report::figure(&outcomes, "latency"),
            Name::Bmi => bmi_figures(&outcomes),
            Name::Mx => ropewalk_bench::mx::figures(&outcomes),
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
