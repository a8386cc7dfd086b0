//! A cluster of one metadata server or two, each a process, and a data server, which is the witness of two.
//!
//! Invariants
//! * A server has a log in the site's directory, over all of its lives: it says who is the active one, and who may
//!   take over.
//! * All of it ends with its owner, also servers that stand still.

use std::fs::{self, File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tempfile::TempDir;

use crate::servers::Serving;
use crate::survive::ground::{DATA, Ground};
use crate::{DIES, ORPHAN, Options};

/// No server takes longer to catch up, or to take over, unless something is wrong.
pub const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
/// The time of a promise of voters, which is that of a cluster whose configuration does not say another one.
pub const LEASE_MS: u64 = 1000;

/// See the module.
pub struct Site<'a> {
    ground: &'a Ground,
    options: &'a Options,
    /// Metadata, logs and the configuration.
    place: TempDir,
    /// The objects of the data server.
    memory: TempDir,
    listen: Vec<SocketAddr>,
    metas: Vec<Option<Serving>>,
    data: Option<Serving>,
}

impl<'a> Site<'a> {
    /// Starts so many metadata servers and the data server. All serve, and the second one may take over from the first,
    /// when this returns.
    pub fn start(ground: &'a Ground, options: &'a Options, count: usize) -> anyhow::Result<Self> {
        let listen = (0..count).map(|host| ground.place(host)).collect::<anyhow::Result<_>>()?;
        let (place, memory) = (scratch(&options.disk)?, scratch(&options.memory)?);
        let metas = (0..count).map(|_| None).collect();
        let mut site = Site { ground, options, place, memory, listen, metas, data: None };
        site.begin().inspect_err(|_| site.show_logs())?;
        Ok(site)
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        let witness = self.ground.place(DATA)?;
        fs::write(self.config(), self.configuration(witness))?;
        let config = text(&self.config())?;
        let made = Command::new(std::env::current_exe()?)
            .args(["format", "--config", &config])
            .output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        self.start_meta(0, false)?;
        let words = ["serve", "data", "--config", &config, "--server", "0", "--insecure"];
        self.data = Some(self.serve(DATA, "data", &words)?);
        if self.has_standby() {
            self.start_meta(1, true)?;
            self.await_standby(1)?;
        }
        Ok(())
    }

    fn configuration(&self, witness: SocketAddr) -> String {
        let (place, memory) = (self.place.path().display(), self.memory.path().display());
        let election = match self.has_standby() {
            true => format!("[election]\nwitness = 0\nwitness_address = 'tcp://{witness}'\n"),
            false => String::new(),
        };
        format!(
            "directory = '{place}/cluster'\naddress = '{}'\ninsecure = true\n\
             [meta]\nlisten = '{}'\n{election}\
             [[data]]\nserver = 0\ndirectory = '{memory}/data'\nlisten = '{witness}'\n",
            self.address(),
            self.listen[0]
        )
    }

    fn config(&self) -> PathBuf {
        self.place.path().join("site.toml")
    }

    /// Room for files of whoever uses the site.
    pub fn scratch(&self) -> &Path {
        self.place.path()
    }

    /// Whether it has two metadata servers.
    pub fn has_standby(&self) -> bool {
        self.listen.len() > 1
    }

    /// The address of all metadata servers.
    pub fn address(&self) -> String {
        let all: Vec<String> = self.listen.iter().map(|at| format!("tcp://{at}")).collect();
        all.join(";")
    }

    /// The numbers of all processes that run.
    pub fn processes(&self) -> Vec<u32> {
        self.metas.iter().flatten().chain(&self.data).map(Serving::process).collect()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.place.path().join(format!("{name}.log"))
    }

    fn read_log(&self, meta: usize) -> String {
        fs::read_to_string(self.log(&format!("meta{meta}"))).unwrap_or_default()
    }

    /// Starts this program at a host, and waits until it serves.
    fn serve(&self, host: usize, name: &str, words: &[&str]) -> anyhow::Result<Serving> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(name))?;
        let mut command = self.ground.command(host);
        // One that stands still would not obey anything less.
        command.args(words).env(ORPHAN, DIES).stderr(log);
        let serving = Serving::spawn_as_told(command, &format!("serve {name}"))?;
        serving.wait_for("serving at")?;
        Ok(serving)
    }

    /// Starts a metadata server, for the first time (`joins`) or once more.
    pub fn start_meta(&mut self, number: usize, joins: bool) -> anyhow::Result<()> {
        let cluster = self.place.path().join("cluster");
        let folder =
            if number == 0 { cluster.join("meta") } else { self.place.path().join("standby") };
        let (config, folder) = (text(&self.config())?, text(&folder)?);
        let (file, listen) = (text(&cluster.join("cluster"))?, self.listen[number].to_string());
        let count = number.to_string();
        let mut words = vec!["serve", "meta", "--config", &config, "--directory", &folder];
        words.extend(["--listen", &listen, "--cluster-file", &file, "--insecure"]);
        if self.has_standby() {
            words.extend(["--number", &count]);
        }
        words.extend(joins.then_some("--join"));
        self.metas[number] = Some(self.serve(number, &format!("meta{number}"), &words)?);
        Ok(())
    }

    /// A metadata server that runs.
    pub fn meta(&mut self, number: usize) -> anyhow::Result<&mut Serving> {
        self.metas[number]
            .as_mut()
            .with_context(|| format!("metadata server {number} does not run"))
    }

    /// The number of the active metadata server: the one that was elected last.
    pub fn active(&self) -> anyhow::Result<usize> {
        if !self.has_standby() {
            return Ok(0);
        }
        let terms = (0..self.listen.len()).map(|meta| (last_term(&self.read_log(meta)), meta));
        let (term, meta) = terms.max().context("there is no metadata server")?;
        ensure!(term > 0, "no metadata server was elected");
        Ok(meta)
    }

    /// Waits until the active metadata server says that this one may take over.
    pub fn await_standby(&self, number: usize) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let active = self.active().ok().filter(|active| *active != number);
            if active.is_some_and(|active| may_take_over(&self.read_log(active), number)) {
                return Ok(());
            }
            if begin.elapsed() > LIMIT {
                bail!("metadata server {number} did not catch up within {} s", LIMIT.as_secs());
            }
            self.pause(LOOK)?;
        }
    }

    /// Has the standby serve.
    pub fn switch(&self) -> anyhow::Result<()> {
        let file = text(&self.place.path().join("cluster/cluster"))?;
        let mut command = self.ground.command(crate::survive::ground::CLIENTS);
        let words = ["meta", "switch", "--address", &self.address(), "--cluster-file", &file];
        let done = command.args(words).stdin(Stdio::null()).output()?;
        ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
        Ok(())
    }

    /// Waits so long; fails at once where the user wants an end.
    pub fn pause(&self, time: Duration) -> anyhow::Result<()> {
        pause(self.options, time)
    }

    /// The options of the benchmark.
    pub fn options(&self) -> &'a Options {
        self.options
    }

    /// The last lines of all logs, on stderr.
    pub fn show_logs(&self) {
        if self.options.is_interrupted() {
            return;
        }
        for name in ["meta0", "meta1", "data", "clients"] {
            show_end(name, &self.log(name));
        }
    }

    /// The file in which clients log.
    pub fn client_log(&self) -> anyhow::Result<File> {
        Ok(OpenOptions::new().create(true).append(true).open(self.log("clients"))?)
    }

    /// Keeps its directories, since something is wrong with what is in them; says where they are.
    pub fn keep(&mut self) -> String {
        self.place.disable_cleanup(true);
        self.memory.disable_cleanup(true);
        format!("{} and {}", self.place.path().display(), self.memory.path().display())
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        // Not in good order: nobody needs the data any more.
        self.metas.iter_mut().flatten().chain(&mut self.data).for_each(Serving::kill);
    }
}

/// Waits so long; fails at once where the user wants an end.
pub fn pause(options: &Options, time: Duration) -> anyhow::Result<()> {
    let begin = Instant::now();
    while begin.elapsed() < time {
        ensure!(!options.is_interrupted(), "interrupted");
        std::thread::sleep(LOOK.min(time.saturating_sub(begin.elapsed())));
    }
    Ok(())
}

/// The last lines of a log, on stderr.
pub fn show_end(name: &str, log: &Path) {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(12)..] {
        eprintln!("{name}: {line}");
    }
}

/// A directory of the benchmark's own.
pub fn scratch(below: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("ropewalk-survive-").tempdir_in(below);
    made.with_context(|| format!("cannot create a directory in {}", below.display()))
}

pub fn text(path: &Path) -> anyhow::Result<String> {
    Ok(path.to_str().context("the path is not UTF-8")?.to_string())
}

/// The last term that a server had, as its log says; 0: none.
fn last_term(log: &str) -> u64 {
    let behind = |line: &str| {
        let (_, rest) = line.split_once("this is the active metadata server now, in term ")?;
        rest.split(',').next()?.parse().ok()
    };
    log.lines().rev().find_map(behind).unwrap_or(0)
}

/// Whether a server's log says that another one may take over from it, in its last term.
fn may_take_over(log: &str, number: usize) -> bool {
    let name = format!("metadata server {number} may ");
    for line in log.lines().rev() {
        if let Some((_, rest)) = line.split_once(&name) {
            return rest.starts_with("take over");
        }
        if line.contains("this is the active metadata server now") {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_says_who_is_active_and_who_may_take_over() {
        let log = "ropewalk: this is the active metadata server now, in term 4, from record 9\n\
                   ropewalk: metadata server 1 may take over from now on\n";
        assert_eq!((last_term(log), last_term("")), (4, 0));
        assert!(may_take_over(log, 1) && !may_take_over(log, 0));
        let later = format!("{log}ropewalk: metadata server 1 may not take over any more\n");
        assert!(!may_take_over(&later, 1));
        let new = "this is the active metadata server now, in term 12, from record 90\n";
        assert!(!may_take_over(&format!("{log}{new}"), 1), "that was another term");
        assert_eq!(last_term(&format!("{log}{new}")), 12);
    }
}
