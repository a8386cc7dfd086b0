//! `ropewalk demo`: the main job, with real data, in one command.

mod child;
mod spread;
mod work;

use std::cell::{Cell, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_base::task::{Either, race};
use ropewalk_client::{Client, ClientConfig};
use ropewalk_mount::MountOptions;
use serde_json::json;

pub use child::work_if_child;

use crate::cluster::Cluster;
use crate::copy;
use crate::log;
use crate::mounted::Mounted;
use crate::node;
use crate::remote::{self, Session, join};
use crate::report::{bytes, columns, complain, print_json, rate, say, speed, table, wrapped};
use crate::stop::Stop;
use spread::Spread;
use work::{News, work};

/// Arguments of `ropewalk demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk demo                              copies the Rust toolchain
  ropewalk demo --source /usr/share --json   copies another tree, prints JSON
  ropewalk demo --no-mount                   uses the client library, not FUSE
  ropewalk demo --directory /var/tmp/demo    keeps the data: 'ropewalk up
                                             /var/tmp/demo' serves it again, and
                                             a second demo copies into run-2

The demo mounts the cluster over FUSE. If it cannot use /dev/fuse, it prints the reason and uses \
the client library instead. Ctrl-C unmounts, stops the servers and removes temporary files; a \
second Ctrl-C ends the demo at once and prints what it leaves behind.

The demo copies and compares everything that 'cp -a' copies: contents, holes, file types, owners \
and groups (if the user may change them), modes, modification times, extended attributes (user.*) \
and hard links.")]
pub struct DemoArguments {
    /// Copy this directory tree [default: the installed Rust toolchain].
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// Keep the servers' data in this directory [default: a temporary directory, which is removed
    /// at the end].
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Use the client library instead of a mount.
    #[arg(long)]
    no_mount: bool,
    /// Start this many data servers.
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(crate::cluster::DATA_SERVERS_MAX)))]
    data_servers: u32,
    /// Print a JSON object for each phase and each data server instead of tables.
    #[arg(long)]
    json: bool,
}

impl DemoArguments {
    /// Says something to people: beside the objects, if there are any.
    fn say(&self, line: &str) -> anyhow::Result<()> {
        let line = wrapped(line, columns(), "");
        if self.json {
            complain!("{line}");
            return Ok(());
        }
        say!("{line}")
    }
}

/// A phase of the demo and what it took.
struct Phase {
    name: String,
    files: u64,
    bytes: u64,
    time: Duration,
}

/// Hears what the work tells, and says it to people.
struct Teller<'a> {
    arguments: &'a DemoArguments,
    source: &'a Path,
    stop: &'a Stop,
    bar: RefCell<ProgressBar>,
    phases: RefCell<Vec<Phase>>,
    /// The path of the copy, below the root.
    name: RefCell<String>,
    lost: RefCell<Option<String>>,
    /// The error after which nobody can be told any more.
    unheard: Cell<Option<anyhow::Error>>,
}

impl Teller<'_> {
    fn hear(&self, news: News) {
        if let Err(error) = self.tell(news) {
            // The work ends in good order.
            self.unheard.set(Some(error));
            self.stop.ask();
        }
    }

    fn tell(&self, news: News) -> anyhow::Result<()> {
        match news {
            News::Into { name } => {
                self.arguments.say(&format!(
                    "The cluster is not empty: the copy goes into {name}, a new directory."
                ))?;
                *self.name.borrow_mut() = name;
            }
            News::Listed { entries, bytes: size } => self.arguments.say(&format!(
                "Copying {entries} entries, {}, from {}.",
                bytes(size),
                self.source.display()
            ))?,
            News::Begin { phase, bytes } => *self.bar.borrow_mut() = bar(bytes, phase),
            News::At { bytes } => self.bar.borrow().set_position(bytes),
            News::Done { phase: name, files, bytes, nanos } => {
                self.bar.borrow().finish_and_clear();
                let time = Duration::from_nanos(nanos);
                self.phases.borrow_mut().push(Phase { name, files, bytes, time });
            }
            News::Lost { what } => *self.lost.borrow_mut() = Some(what),
            News::Failed { why } => bail!("{why}"),
        }
        Ok(())
    }
}

/// The directory tree to copy.
fn source(arguments: &DemoArguments) -> anyhow::Result<PathBuf> {
    let source = match &arguments.source {
        Some(source) => source.clone(),
        None => toolchain()
            .context("no Rust toolchain found to copy: give a directory tree by --source DIR")?,
    };
    // A link to a tree stands for the tree.
    let source = std::fs::canonicalize(&source)
        .with_context(|| format!("cannot copy {}", source.display()))?;
    anyhow::ensure!(
        source.is_dir(),
        "{} is not a directory: give a directory tree by --source DIR",
        source.display()
    );
    Ok(source)
}

/// Runs the demo.
pub fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let stop = Stop::watch_aloud().context("cannot watch for signals")?.also_at_termination();
    let source = source(arguments)?;
    let temporary;
    let directory = match &arguments.directory {
        Some(directory) => directory.as_path(),
        None => {
            temporary = tempfile::Builder::new().prefix("ropewalk-demo-").tempdir()?;
            temporary.path()
        }
    };
    let place = tempfile::Builder::new().prefix("ropewalk-mount-").tempdir()?;
    stop.leaves(format!(
        "these directories stay: {}, {} (unmount the second by 'ropewalk umount' before you remove \
         it)",
        directory.display(),
        place.path().display()
    ));
    let begin = Instant::now();
    let cluster = Cluster::start(directory, arguments.data_servers)?;
    let after = |begin: Instant| begin.elapsed().as_millis();
    arguments.say(&format!(
        "A cluster of 1 metadata server and {} data servers was ready after {} ms, in {}.",
        arguments.data_servers,
        after(begin),
        directory.display()
    ))?;
    let teller = Teller {
        arguments,
        source: &source,
        stop: &stop,
        bar: RefCell::new(ProgressBar::hidden()),
        phases: RefCell::default(),
        name: RefCell::default(),
        lost: RefCell::default(),
        unheard: Cell::default(),
    };
    let own = [directory, place.path()];
    let own = own.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf()));
    let own = [own[0].as_path(), own[1].as_path()];
    let done = match mount(arguments, &cluster, place.path(), &stop) {
        Ok(mounted) => {
            let path = mounted.path().display();
            let said = arguments.say(&format!("Mounted on {path} after {} ms.", after(begin)));
            let done = said.and_then(|()| {
                child::work_beside(&source, mounted.path(), &own, &stop, &|news| teller.hear(news))
            });
            mounted.stop()?;
            done
        }
        Err(error) => {
            let why = format!("Not mounted ({error:#}): the demo uses the client library instead.");
            arguments.say(&why)?;
            through_library(&cluster, &source, &own, &stop, &teller)
        }
    };
    if let Some(error) = teller.unheard.take() {
        return Err(error);
    }
    done?;
    let spread = where_it_lies(&cluster, &stop, &teller)?;
    cluster.stop();
    print(arguments, &teller, &spread)
}

fn mount(
    arguments: &DemoArguments,
    cluster: &Cluster,
    place: &Path,
    stop: &Stop,
) -> anyhow::Result<Mounted> {
    if arguments.no_mount {
        bail!("--no-mount was given");
    }
    let rails = cluster.client_rails()?;
    let options = MountOptions::default();
    Mounted::start(cluster.id, rails, &cluster.address, place, options, None, stop)
}

/// A session of this process with its cluster, until the work is done or a signal comes.
fn with_session<T>(
    cluster: &Cluster,
    stop: &Stop,
    act: impl AsyncFnOnce(&Rc<Session>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (reactor, world, endpoint) =
        node::calling(cluster.id, cluster.client_rails()?, &cluster.address)?;
    let config =
        ClientConfig { name: "demo".into(), log: log::of("client"), ..ClientConfig::default() };
    let client = reactor.block_on(Client::connect(&world, &endpoint, &cluster.address, config))?;
    let caller = remote::caller()?;
    let session = Rc::new(Session { client: client.clone(), caller, world });
    let done = reactor.block_on(async {
        match race(act(&session), stop.asked(&session.world)).await {
            Either::Left(done) => done,
            Either::Right(()) => Err(anyhow::anyhow!("interrupted")),
        }
    });
    reactor.block_on(client.stop());
    done
}

fn through_library(
    cluster: &Cluster,
    source: &Path,
    except: &[&Path],
    stop: &Stop,
    teller: &Teller<'_>,
) -> anyhow::Result<()> {
    with_session(cluster, stop, async |session| {
        let (from, to) = (copy::Host::new(&session.world), copy::Cluster::new(session));
        let keep = copy::Keep { attributes: true, umask: 0 };
        let mut copy = copy::Copy::new(from, to, session.client.pool(), keep, true);
        copy.except = except.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect();
        copy.stop = stop.clone();
        let source = source.as_os_str().as_bytes();
        work(&copy, &session.world, source, b"/", &|news| teller.hear(news)).await
    })
}

fn where_it_lies(cluster: &Cluster, stop: &Stop, teller: &Teller<'_>) -> anyhow::Result<Spread> {
    let root = join(b"/", teller.name.borrow().as_bytes());
    with_session(cluster, stop, async |session| spread::spread(session, &root).await)
}

fn bar(total: u64, name: String) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{msg:18} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}",
    );
    let bar = ProgressBar::new(total).with_message(name);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn print(arguments: &DemoArguments, teller: &Teller<'_>, spread: &Spread) -> anyhow::Result<()> {
    print_phases(arguments, &teller.phases.borrow())?;
    spread.print(arguments)?;
    let mut all = "Every byte matches the source, and so do";
    if let Some(what) = &*teller.lost.borrow() {
        arguments.say(&format!("Not copied: {what}."))?;
        all = "Every byte matches the source, and so do, except for these,";
    }
    arguments.say(&format!(
        "{all} holes, file types, owners, modes, modification times, extended attributes (user.*) \
         and hard links."
    ))
}

fn print_phases(arguments: &DemoArguments, phases: &[Phase]) -> anyhow::Result<()> {
    if arguments.json {
        for Phase { name, files, bytes, time } in phases {
            let seconds = time.as_secs_f64();
            print_json(&json!({
                "phase": name,
                "files": files,
                "bytes": bytes,
                "seconds": seconds,
                "mib_per_second": *bytes as f64 / (1 << 20) as f64 / seconds,
                "files_per_second": *files as f64 / seconds,
            }))?;
        }
        return Ok(());
    }
    let rows = phases.iter().map(|phase| {
        vec![
            phase.name.clone(),
            phase.files.to_string(),
            bytes(phase.bytes),
            format!("{:.2}", phase.time.as_secs_f64()),
            speed(phase.bytes, phase.time),
            rate(phase.files, phase.time),
        ]
    });
    let header = ["phase", "files", "bytes", "seconds", "MiB/s", "files/s"];
    say!("{}", table(&header, rows.collect()))
}

/// The installation of the Rust toolchain that runs this.
fn toolchain() -> anyhow::Result<PathBuf> {
    let output = std::process::Command::new("rustc").args(["--print", "sysroot"]).output()?;
    let path = String::from_utf8(output.stdout)?;
    let path = PathBuf::from(path.trim());
    anyhow::ensure!(path.is_dir(), "'{}' is not a directory", path.display());
    Ok(path)
}
