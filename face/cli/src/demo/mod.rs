//! `ropewalk demo`: the main job, with real data, in one command.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_base::task::{Either, race};
use ropewalk_client::{Client, ClientConfig};
use ropewalk_mount::MountOptions;
use serde_json::json;

use crate::cluster::Cluster;
use crate::copy;
use crate::files::Files;
use crate::mounted::Mounted;
use crate::node;
use crate::remote::{self, Session};
use crate::report::{bytes, rate, speed, table};
use crate::stop::Stop;
use crate::tree::{self, Moved, Work};

/// Arguments of `ropewalk demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk demo                              the Rust toolchain, through a mount
  ropewalk demo --source /usr/share --json   another tree, figures as JSON
  ropewalk demo --no-mount                   through the client library
  ropewalk demo --directory /var/tmp/demo    keeps the data there; 'ropewalk up' serves it again

Where /dev/fuse cannot be used, it says why and goes through the client library. Ctrl-C unmounts, \
stops the servers and removes what was temporary.")]
pub struct DemoArguments {
    /// The directory tree to copy; by default the Rust toolchain's own installation.
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Where the servers keep their data; by default a temporary directory that is removed.
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Goes through the client library instead of a mount.
    #[arg(long)]
    no_mount: bool,
    /// Data servers.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    data_servers: u32,
    /// A JSON object for each phase and each data server instead of tables.
    #[arg(long)]
    json: bool,
}

impl DemoArguments {
    /// Says something to people: beside the objects, where there are any.
    fn say(&self, line: &str) {
        if self.json {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }
}

/// A phase of the demo and what it took.
struct Phase {
    name: &'static str,
    moved: Moved,
    time: Duration,
}

/// Runs the demo.
pub fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let stop = Stop::watch().context("signals cannot be watched")?;
    let source = match &arguments.source {
        Some(source) => source.clone(),
        None => {
            toolchain().context("no Rust toolchain found to copy; name a tree by --source DIR")?
        }
    };
    let entries = tree::list(&source)?;
    let temporary;
    let directory = match &arguments.directory {
        Some(directory) => directory.as_path(),
        None => {
            temporary = tempfile::Builder::new().prefix("ropewalk-demo-").tempdir()?;
            temporary.path()
        }
    };
    let begin = Instant::now();
    let cluster = Cluster::start(directory, arguments.data_servers)?;
    arguments.say(&format!(
        "A cluster of 1 metadata server and {} data servers serves {} ms after the start, in {}.",
        arguments.data_servers,
        begin.elapsed().as_millis(),
        directory.display()
    ));
    let before = spread(arguments, directory)?;
    let total: u64 = entries.iter().map(|entry| entry.bytes).sum();
    arguments.say(&format!(
        "Copying {} entries, {}, from {}.",
        entries.len(),
        bytes(total),
        source.display()
    ));
    let place = tempfile::Builder::new().prefix("ropewalk-mount-").tempdir()?;
    let phases = match mount(arguments, &cluster, place.path()) {
        Ok(mounted) => {
            arguments.say(&format!(
                "Mounted on {} {} ms after the start.",
                mounted.path().display(),
                begin.elapsed().as_millis()
            ));
            let phases = through_mount(&mounted, &source, &entries, total, &stop);
            mounted.stop()?;
            phases
        }
        Err(error) => {
            let why = format!("Not mounted ({error:#}); going on through the client library.");
            arguments.say(&why);
            through_library(&cluster, &source, entries, total, &stop)
        }
    };
    // Before the servers stop, when they fold their logs into files.
    let after = spread(arguments, directory);
    cluster.stop();
    let phases = phases?;
    print_phases(arguments, &phases)?;
    print_spread(arguments, &before, &after?)?;
    arguments.say("Every byte and attribute is as in the source.");
    Ok(())
}

fn mount(arguments: &DemoArguments, cluster: &Cluster, place: &Path) -> anyhow::Result<Mounted> {
    if arguments.no_mount {
        anyhow::bail!("--no-mount was asked for");
    }
    let rails = cluster.client_rails()?;
    let options = MountOptions::default();
    Mounted::start(cluster.id, rails, &cluster.address, place, options, None)
}

fn through_mount(
    mounted: &Mounted,
    source: &Path,
    entries: &[tree::Entry],
    total: u64,
    stop: &Stop,
) -> anyhow::Result<Vec<Phase>> {
    let mut phases = Vec::new();
    for name in ["copy in", "read back, verify"] {
        let files = Files { source, target: mounted.path(), entries, bar: bar(total, name), stop };
        let begin = Instant::now();
        let moved = match name {
            "copy in" => files.copy_in()?,
            _ => files.verify()?,
        };
        files.bar.finish_and_clear();
        phases.push(Phase { name, moved, time: begin.elapsed() });
    }
    Ok(phases)
}

fn through_library(
    cluster: &Cluster,
    source: &Path,
    entries: Vec<tree::Entry>,
    total: u64,
    stop: &Stop,
) -> anyhow::Result<Vec<Phase>> {
    let (reactor, world, endpoint) = node::local(cluster.id, cluster.client_rails()?)?;
    let config = ClientConfig {
        name: "demo".into(),
        log: Rc::new(|line| eprintln!("client: {line}")),
        ..ClientConfig::default()
    };
    let client = reactor.block_on(Client::connect(&world, &endpoint, &cluster.address, config))?;
    let caller = remote::caller()?;
    let session = Rc::new(Session { client: client.clone(), caller, world });
    let phases = reactor.block_on(async {
        match race(phases(&session, source, entries, total, stop), stop.asked(&session.world)).await
        {
            Either::Left(phases) => phases,
            Either::Right(()) => Err(anyhow::anyhow!("interrupted")),
        }
    });
    reactor.block_on(client.stop());
    phases
}

async fn phases(
    session: &Rc<Session>,
    source: &Path,
    entries: Vec<tree::Entry>,
    total: u64,
    stop: &Stop,
) -> anyhow::Result<Vec<Phase>> {
    let begin = Instant::now();
    let (from, to) = (copy::Host::new(&session.world), copy::Cluster::new(session));
    let keep = copy::Keep { attributes: true, umask: 0 };
    let mut copy = copy::Copy::new(from, to, &session.client, keep, true);
    copy.bar = bar(total, "copy in");
    let job = copy::Job { from: source.as_os_str().as_bytes().to_vec(), to: b"/".to_vec() };
    let moved = copy.run(&[job]).await?;
    copy.bar.finish_and_clear();
    let copied = Phase { name: "copy in", moved, time: begin.elapsed() };
    let work = Rc::new(Work {
        client: session.client.clone(),
        caller: session.caller.clone(),
        root: source.to_path_buf(),
        entries,
        bar: bar(total, "read back, verify"),
        stop: stop.clone(),
    });
    let begin = Instant::now();
    let moved = work.verify().await?;
    work.bar.finish_and_clear();
    let verified = Phase { name: "read back, verify", moved, time: begin.elapsed() };
    Ok(vec![copied, verified])
}

fn bar(total: u64, name: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:18} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(total).with_message(name);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn print_phases(arguments: &DemoArguments, phases: &[Phase]) -> anyhow::Result<()> {
    if arguments.json {
        for Phase { name, moved, time } in phases {
            let seconds = time.as_secs_f64();
            remote::print_json(&json!({
                "phase": name,
                "files": moved.files,
                "bytes": moved.bytes,
                "seconds": seconds,
                "mib_per_second": moved.bytes as f64 / (1 << 20) as f64 / seconds,
                "files_per_second": moved.files as f64 / seconds,
            }))?;
        }
        return Ok(());
    }
    let rows = phases.iter().map(|phase| {
        vec![
            phase.name.to_string(),
            phase.moved.files.to_string(),
            bytes(phase.moved.bytes),
            format!("{:.2}", phase.time.as_secs_f64()),
            speed(phase.moved.bytes, phase.time),
            rate(phase.moved.files, phase.time),
        ]
    });
    let header = ["phase", "files", "bytes", "seconds", "MiB/s", "files/s"];
    println!("{}", table(&header, rows.collect()));
    Ok(())
}

/// What lies on a data server's disk.
#[derive(Clone, Copy)]
struct Share {
    files: u64,
    bytes: u64,
}

/// What lies on each data server's disk now.
fn spread(arguments: &DemoArguments, directory: &Path) -> anyhow::Result<Vec<Share>> {
    let of = |server: u32| {
        let files = tree::list(&directory.join(format!("data{server}")))?;
        let files = || files.iter().filter(|entry| entry.bytes > 0);
        let (count, bytes) = (files().count() as u64, files().map(|entry| entry.bytes).sum());
        Ok(Share { files: count, bytes })
    };
    (0..arguments.data_servers).map(of).collect()
}

/// How the bytes spread over the data servers: what came since they were started, when logs of a
/// fixed size were there already.
fn print_spread(
    arguments: &DemoArguments,
    before: &[Share],
    after: &[Share],
) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for (server, (before, after)) in before.iter().zip(after).enumerate() {
        let files = after.files.saturating_sub(before.files);
        let size = after.bytes.saturating_sub(before.bytes);
        if arguments.json {
            remote::print_json(&json!({ "server": server, "files": files, "bytes": size }))?;
        }
        rows.push(vec![format!("data server {server}"), files.to_string(), bytes(size)]);
    }
    if !arguments.json {
        println!("{}", table(&["came to disk", "files", "bytes"], rows));
    }
    Ok(())
}

/// The installation of the Rust toolchain that runs this.
fn toolchain() -> anyhow::Result<PathBuf> {
    let output = std::process::Command::new("rustc").args(["--print", "sysroot"]).output()?;
    let path = String::from_utf8(output.stdout)?;
    let path = PathBuf::from(path.trim());
    anyhow::ensure!(path.is_dir(), "'{}' is not a directory", path.display());
    Ok(path)
}
