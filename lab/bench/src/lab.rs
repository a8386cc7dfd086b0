//! One invocation of a benchmark: its options, its directories, and the parties that alternate.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use tempfile::TempDir;

use crate::host;
use crate::report::Outcome;
use crate::series::{Row, Series};
use crate::servers::{Mount, Passthrough, Plan};
use crate::worker::Work;

/// The rows to measure, and the effort.
#[derive(Debug, Clone)]
pub struct Options {
    /// Smaller work and fewer runs: within two minutes.
    pub quick: bool,
    /// Only rows whose name contains one of these; all if there are none.
    pub only: Vec<String>,
    /// Only messages of these lengths, where a row has several; all if there are none.
    pub sizes: Vec<usize>,
    /// Runs of each row, instead of the usual number.
    pub runs: Option<usize>,
    /// The amount of work in each run is multiplied by this.
    pub scale: f64,
    /// Measure peers and bare references, too.
    pub peers: bool,
    /// Say on stderr what is being measured.
    pub progress: bool,
    /// Hold /dev/cpu_dma_latency at 0 meanwhile (needs to be root).
    pub hold_dma_latency: bool,
    /// Data servers of a cluster, unless a row gives the number.
    pub data_servers: u32,
    /// A directory of a file system in memory.
    pub memory: PathBuf,
    /// A directory on a disk.
    pub disk: PathBuf,
    /// The caller sets this to end the benchmark early, in good order.
    pub interrupted: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            quick: false,
            only: Vec::new(),
            sizes: Vec::new(),
            runs: None,
            scale: 1.0,
            peers: true,
            progress: false,
            hold_dma_latency: false,
            data_servers: 4,
            memory: "/dev/shm".into(),
            disk: "/var/tmp".into(),
            interrupted: Arc::default(),
        }
    }
}

impl Options {
    /// Whether a row of this name is asked for.
    pub fn wanted(&self, name: &str) -> bool {
        !self.is_interrupted() && self.chosen(name)
    }

    /// Whether it shall end early.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    fn chosen(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// An amount of work: this much, or that much when it has to be quick.
    pub fn amount(&self, full: u64, quick: u64) -> u64 {
        let base = if self.quick { quick } else { full };
        ((base as f64 * self.scale) as u64).max(1)
    }

    /// The number of runs of each row.
    pub fn runs(&self) -> usize {
        self.runs_or(7)
    }

    /// The same where a full run has this many.
    pub fn runs_or(&self, full: usize) -> usize {
        self.runs.unwrap_or(if self.quick { 3 } else { full }).max(1)
    }
}

/// A system that takes part in rows: in each run it does the work of all of them, in order.
pub struct Party<'a> {
    pub system: &'static str,
    pub version: String,
    pub medium: &'static str,
    pub params: Vec<(&'static str, String)>,
    /// The work of one run (its number is given), a piece for each row.
    pub act: Box<dyn FnMut(usize) -> anyhow::Result<Vec<Work>> + 'a>,
}

/// A text as a JSON value.
pub fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// The version of ours.
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").into()
}

/// Everything that rows share.
pub struct Lab<'a> {
    pub options: &'a Options,
    memory: TempDir,
    disk: TempDir,
    passthrough: Option<Passthrough>,
    emit: &'a mut dyn FnMut(&Outcome),
    _held: Option<std::fs::File>,
    dma: &'static str,
}

fn scratch(option: &str, below: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("ropewalk-bench-").tempdir_in(below);
    made.map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("{option} {}: no such directory", below.display()),
        ErrorKind::NotADirectory => anyhow!("{option} {}: not a directory", below.display()),
        // The error's own text would repeat the path.
        kind => anyhow!("{option} {}: cannot create a directory there: {kind}", below.display()),
    })
}

impl<'a> Lab<'a> {
    /// Makes room for a benchmark. `emit` is told each figure when it is known.
    pub fn open(
        options: &'a Options,
        emit: &'a mut dyn FnMut(&Outcome),
    ) -> anyhow::Result<Lab<'a>> {
        let memory = scratch("--memory", &options.memory)?;
        let disk = scratch("--disk", &options.disk)?;
        let held = options.hold_dma_latency.then(hold_dma_latency).flatten();
        let dma = if held.is_some() { "held" } else { "default" };
        Ok(Lab { options, memory, disk, passthrough: None, emit, _held: held, dma })
    }

    /// The passthrough is needed from now on; if it is not available, stderr says so.
    pub fn want_passthrough(&mut self) {
        if !self.options.peers || self.passthrough.is_some() {
            return;
        }
        match Passthrough::find(self.disk.path()) {
            Ok(found) => self.passthrough = Some(found),
            Err(error) => eprintln!("no comparison with passthrough_ll: {error:#}"),
        }
    }

    /// A passthrough over a new directory below `below`, if there is one.
    pub fn passthrough(&self, below: &Path, name: &str) -> Option<(Mount, String)> {
        let program = self.passthrough.as_ref()?;
        let (source, path) = (below.join(format!("{name}.source")), self.place(name));
        match program.mount(&source, &path) {
            Ok(mount) => Some((mount, program.version.clone())),
            Err(error) => {
                eprintln!("no comparison with passthrough_ll, which does not work here: {error:#}");
                None
            }
        }
    }

    /// A directory in memory.
    pub fn memory(&self) -> &Path {
        self.memory.path()
    }

    /// A directory on a disk.
    pub fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// A place for a mount.
    pub fn place(&self, name: &str) -> PathBuf {
        self.disk.path().join(format!("{name}.mount"))
    }

    /// A cluster's directories, new ones.
    pub fn plan(&self, meta: &Path, data: &Path, name: &str) -> anyhow::Result<Plan> {
        let plan = Plan {
            meta: meta.join(name),
            data: data.join(name),
            data_servers: self.options.data_servers,
        };
        std::fs::create_dir_all(&plan.meta)?;
        std::fs::create_dir_all(&plan.data)?;
        Ok(plan)
    }

    /// The parameters of every row over a cluster of this plan.
    pub fn params(&self, plan: &Plan) -> Vec<(&'static str, String)> {
        vec![
            ("servers", plan.data_servers.to_string()),
            ("storage", quoted(host::storage(&plan.data))),
            ("journal", quoted(host::storage(&plan.meta))),
            ("crc", "true".into()),
            ("dma_latency", quoted(self.dma)),
        ]
    }

    /// The same for a party that has no servers.
    pub fn bare_params(&self, path: &Path) -> Vec<(&'static str, String)> {
        vec![("storage", quoted(host::storage(path))), ("dma_latency", quoted(self.dma))]
    }

    /// Tells a figure that was taken directly.
    pub fn tell(&mut self, outcome: Outcome) {
        if self.options.wanted(&outcome.scenario) {
            (self.emit)(&outcome);
        }
    }

    /// Whether any of these rows is asked for.
    pub fn any_wanted(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.options.wanted(name))
    }

    /// Lets the parties do these rows in alternation, and tells the figures. A party that
    /// fails is named on stderr and left out from then on.
    pub fn alternate(&mut self, rows: &[Row], mut parties: Vec<Party<'_>>) -> Vec<Outcome> {
        let rows_named: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let name = |party: &Party<'_>| format!("{}: {}", rows_named.join(", "), party.system);
        let names: Vec<String> = parties.iter().map(name).collect();
        let mut found = alternate(self.options, self.options.runs(), &names, |turn, run| {
            (parties[turn].act)(run)
        });
        if self.options.is_interrupted() {
            return Vec::new();
        }
        let mut told = Vec::new();
        for (index, row) in rows.iter().enumerate() {
            let series: Vec<Series> = parties
                .iter()
                .zip(&mut found)
                .map(|(party, found)| Series {
                    system: party.system,
                    version: party.version.clone(),
                    medium: party.medium,
                    params: party.params.clone(),
                    runs: found
                        .iter_mut()
                        .filter_map(|works| works.get_mut(index).map(std::mem::take))
                        .collect(),
                })
                .collect();
            for outcome in row.outcomes(&series) {
                self.tell(outcome.clone());
                told.push(outcome);
            }
        }
        told
    }
}

/// Lets parties with these names act in turns, each so many times; the results of each in each of its runs. A party
/// that fails is named on stderr and left out from then on.
pub(crate) fn alternate<T>(
    options: &Options,
    runs: usize,
    names: &[String],
    mut act: impl FnMut(usize, usize) -> anyhow::Result<T>,
) -> Vec<Vec<T>> {
    let mut found: Vec<Vec<T>> = names.iter().map(|_| Vec::new()).collect();
    let mut failed = vec![false; names.len()];
    for run in 0..runs {
        let mut turns: Vec<usize> = (0..names.len()).collect();
        // The first party has an advantage or a disadvantage: the order alternates between runs.
        if run % 2 == 1 {
            turns.reverse();
        }
        for turn in turns {
            if failed[turn] || options.is_interrupted() {
                continue;
            }
            let begin = std::time::Instant::now();
            match act(turn, run) {
                Ok(one) => found[turn].push(one),
                Err(error) => {
                    // Ctrl-C ends the processes of a measurement, too.
                    if !options.is_interrupted() {
                        eprintln!("{} failed: {error:#}", names[turn]);
                    }
                    failed[turn] = true;
                }
            }
            if options.progress {
                eprintln!("{:>8.1?} {} run {run}", begin.elapsed(), names[turn]);
            }
        }
    }
    found
}

/// Keeps the processors from sleeping deeply, as long as the file is open.
pub fn hold_dma_latency() -> Option<std::fs::File> {
    use std::io::Write;
    let opened = std::fs::OpenOptions::new().write(true).open("/dev/cpu_dma_latency");
    let held = opened.and_then(|mut file| file.write_all(&0u32.to_ne_bytes()).map(|()| file));
    if let Err(error) = &held {
        eprintln!("cannot keep the processors awake by /dev/cpu_dma_latency: {error}");
    }
    held.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_begins_changes_and_whoever_fails_is_left_out() {
        let names = ["a", "b", "c"].map(String::from);
        let mut order = Vec::new();
        let found = alternate(&Options::default(), 3, &names, |turn, run| {
            order.push((run, turn));
            anyhow::ensure!((turn, run) != (1, 1), "this one fails");
            Ok(10 * turn + run)
        });
        assert_eq!(found, [vec![0, 1, 2], vec![10], vec![20, 21, 22]]);
        let wanted = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1), (1, 0), (2, 0), (2, 2)];
        assert_eq!(order, wanted);
    }

    #[test]
    fn rows_are_chosen_by_a_part_of_their_name() {
        let mut options = Options::default();
        assert!(options.wanted("mount.write"));
        options.only = vec!["library".into(), "mount.r".into()];
        assert!(options.wanted("mount.read") && options.wanted("library.read"));
        assert!(!options.wanted("mount.write"));
        options.scale = 0.001;
        assert_eq!((options.amount(5000, 100), options.amount(100, 1)), (5, 1));
        assert_eq!((options.runs(), options.runs_or(30)), (7, 30));
        options.quick = true;
        assert_eq!((options.runs(), options.runs_or(30)), (3, 3));
        options.runs = Some(5);
        assert_eq!(options.runs_or(30), 5);
    }
}
