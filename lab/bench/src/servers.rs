//! Clusters, mounts and the FUSE passthrough as processes of their own.
//!
//! Invariants
//! * Whatever is started here ends with its owner: by a drop, and by the death of this process
//!   ([`crate::serve_if_child`]).
//! * Our own programs are this program, started again, through the command line that people use.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::counters::{Watched, calls, free};
use crate::worker::lines;
use crate::{ORPHAN, PART, host};

/// The time limit for the start or the end of anything.
const LIMIT: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(1);

/// A process that serves.
pub struct Serving {
    child: Child,
    lines: Receiver<String>,
    what: String,
}

impl Serving {
    /// Starts a command of this program that ends with this process.
    pub fn spawn(mut command: Command, what: &str) -> anyhow::Result<Serving> {
        command.env(ORPHAN, "ends");
        Serving::spawn_as_told(command, what)
    }

    /// The same of a command that says itself how it ends with this process ([`ORPHAN`]).
    pub fn spawn_as_told(mut command: Command, what: &str) -> anyhow::Result<Serving> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {what}"))?;
        let lines = lines(child.stdout.take().expect("it was asked for"));
        Ok(Serving { child, lines, what: what.into() })
    }

    /// This program, with these arguments.
    pub fn start(arguments: &[&str]) -> anyhow::Result<Serving> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments);
        Serving::spawn(command, &arguments[..2.min(arguments.len())].join(" "))
    }

    /// Waits for the line that holds `words`; the text behind them.
    pub fn wait_for(&self, words: &str) -> anyhow::Result<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                bail!("'{}' did not print '{words}'", self.what);
            };
            if let Some((_, rest)) = line.split_once(words) {
                return Ok(rest.trim().to_string());
            }
        }
    }

    /// Its number.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGSTOP, until all of its threads have stopped: one that runs goes on for a while.
    pub fn suspend(&self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::STOP)?;
        waitpid(Some(Pid::from_child(&self.child)), WaitOptions::UNTRACED)?;
        Ok(())
    }

    /// Lets it go on.
    pub fn resume(&self) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Whether it ended by itself before so long.
    fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Without a word, unlike Ctrl-C; killed where that takes too long.
    pub fn stop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        if self.ends_within(Duration::from_secs(10)) {
            return;
        }
        eprintln!("'{}' did not end when it was asked to, and was killed", self.what);
        self.kill();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The directories of the servers' data, and the number of data servers.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The directory of the metadata server, with its journal.
    pub meta: PathBuf,
    /// The parent of the data servers' directories.
    pub data: PathBuf,
    pub data_servers: u32,
}

/// A cluster of separate processes.
pub struct Cluster {
    plan: Plan,
    id: String,
    port: u16,
    /// The pages of metrics: of the data servers, and of the metadata server.
    pages: (Vec<SocketAddr>, SocketAddr),
    // Data servers end first: they speak to the metadata server until then.
    data: Vec<Serving>,
    meta: Serving,
}

impl Cluster {
    /// Starts it; all serve when this returns.
    pub fn start(plan: &Plan) -> anyhow::Result<Cluster> {
        // A port that was free a moment ago: after a restart it has to be the same.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let place = plan.meta.to_str().context("the path is not UTF-8")?;
        let id = Serving::start(&["format", place])?.wait_for("")?;
        let file = folder(&plan.meta, "cluster")?;
        let data_pages = (0..plan.data_servers).map(|_| free());
        let pages = (data_pages.collect::<anyhow::Result<Vec<_>>>()?, free()?);
        let meta = meta(plan, &id, (port, pages.1))?;
        let data = (0..plan.data_servers)
            .map(|number| {
                let (server, address) = (number.to_string(), format!("tcp://127.0.0.1:{port}"));
                let folder = folder(&plan.data, &format!("data{number}"))?;
                let page = pages.0[number as usize].to_string();
                Serving::start(&[
                    "serve",
                    "data",
                    "--directory",
                    &folder,
                    "--cluster",
                    &id,
                    "--server",
                    &server,
                    "--meta",
                    &address,
                    "--listen",
                    "127.0.0.1:0",
                    "--cluster-file",
                    &file,
                    "--admit",
                    "--metrics",
                    &page,
                ])
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        meta.wait_for("serving at")?;
        for server in &data {
            server.wait_for("serving at")?;
        }
        Ok(Cluster { plan: plan.clone(), id, port, pages, data, meta })
    }

    /// The metadata server's address.
    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// The metadata server, and the data servers.
    pub fn servers(&self) -> (&Serving, &[Serving]) {
        (&self.meta, &self.data)
    }

    /// The numbers of all its processes.
    pub fn processes(&self) -> Vec<u32> {
        let data = self.data.iter().map(Serving::process);
        data.chain([self.meta.process()]).collect()
    }

    /// Its processes, whose work is measured.
    pub fn watched(&self) -> Watched {
        let pages = self.pages.0.iter().chain([&self.pages.1]).copied();
        Watched::new(self.processes(), pages.collect())
    }

    /// The same, with a mount's process.
    pub fn watched_with(&self, mount: u32) -> Watched {
        let mut watched = self.watched();
        watched.processes.push(mount);
        watched
    }

    /// The calls that all data servers have had.
    pub fn data_calls(&self) -> anyhow::Result<u64> {
        calls(&self.pages.0)
    }

    /// Kills the metadata server and starts it again; returns before it serves.
    pub fn restart_meta(&mut self) -> anyhow::Result<()> {
        self.meta.kill();
        self.meta = meta(&self.plan, &self.id, (self.port, self.pages.1))?;
        Ok(())
    }

    /// Mounts it by a process of its own.
    pub fn mount(&self, path: &Path) -> anyhow::Result<Mount> {
        std::fs::create_dir_all(path)?;
        let folder = path.to_str().context("the path is not UTF-8")?;
        let serving = Serving::start(&["mount", &self.address(), folder])?;
        serving.wait_for("mounted on")?;
        Ok(Mount { path: path.to_path_buf(), serving, ends: Ends::Unmounted })
    }
}

fn folder(path: &Path, name: &str) -> anyhow::Result<String> {
    Ok(path.join(name).to_str().context("the path is not UTF-8")?.to_string())
}

fn meta(plan: &Plan, id: &str, (port, page): (u16, SocketAddr)) -> anyhow::Result<Serving> {
    let (folder, listen) = (folder(&plan.meta, "meta")?, format!("127.0.0.1:{port}"));
    let (place, page) = (["--directory", &folder, "--cluster", id], page.to_string());
    let own = ["--listen", &listen, "--metrics", &page];
    Serving::start(&[&["serve", "meta"], &place[..], &own[..]].concat())
}

/// A mount that another process serves.
pub struct Mount {
    path: PathBuf,
    serving: Serving,
    /// The way in which the mount ends: its process is asked to end, or ends by itself after the unmount.
    ends: Ends,
}

#[derive(PartialEq, Eq)]
enum Ends {
    Asked,
    Unmounted,
}

impl Mount {
    /// A cluster below `folder` and its mount on `path`, all in one process.
    pub fn embedded(folder: &Path, path: &Path, data_servers: u32) -> anyhow::Result<Mount> {
        std::fs::create_dir_all(path)?;
        let text = |path: &Path| path.to_str().map(str::to_string).context("no UTF-8");
        let (folder, place, servers) = (text(folder)?, text(path)?, data_servers.to_string());
        let mut words = vec!["up", &folder, "--listen", "127.0.0.1:0", "--mount", &place];
        words.extend(["--data-servers", &servers]);
        let serving = Serving::start(&words)?;
        serving.wait_for("mounted on")?;
        Ok(Mount { path: path.to_path_buf(), serving, ends: Ends::Asked })
    }

    /// A mount on `path` that a process is about to serve; it is there when this returns.
    pub fn by(mut serving: Serving, path: &Path) -> anyhow::Result<Mount> {
        let deadline = Instant::now() + LIMIT;
        while !host::is_mounted(path) {
            if serving.ends_within(Duration::ZERO) || Instant::now() > deadline {
                bail!("'{}' did not mount {}", serving.what, path.display());
            }
            std::thread::sleep(LOOK);
        }
        Ok(Mount { path: path.to_path_buf(), serving, ends: Ends::Unmounted })
    }

    /// Kills the process that serves it: all operations that wait for it fail then.
    pub fn abort(&mut self) {
        self.serving.kill();
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the process that serves it.
    pub fn process(&self) -> u32 {
        self.serving.process()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.ends == Ends::Asked {
            self.serving.stop();
        }
        if !host::is_mounted(&self.path) {
            return;
        }
        unmount(&self.path);
        // It notices, and ends: a signal would come in between.
        self.serving.ends_within(Duration::from_secs(2));
    }
}

/// Takes a mount out of the tree; the process that serves it ends by that.
fn unmount(path: &Path) {
    if rustix::mount::unmount(path, UnmountFlags::DETACH).is_err() {
        let helper = Command::new("fusermount3").args(["-u", "-z"]).arg(path).output();
        if host::is_mounted(path) {
            eprintln!("{} is still mounted: {helper:?}", path.display());
        }
    }
}

/// The peer of every figure of a mount: libfuse's example `passthrough_ll`.
pub struct Passthrough {
    program: PathBuf,
    /// Of libfuse.
    pub version: String,
}

/// The path of its source in Debian's `libfuse3-dev`.
const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

impl Passthrough {
    /// Finds it in the path, or builds it from the source that `libfuse3-dev` brings.
    pub fn find(scratch: &Path) -> anyhow::Result<Passthrough> {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&paths).map(|path| path.join("passthrough_ll"));
        let program = match found.into_iter().find(|program| program.is_file()) {
            Some(program) => program,
            None => build(scratch).context(
                "'passthrough_ll' is not in PATH and cannot be built; Debian: apt install \
                 libfuse3-dev pkg-config gcc",
            )?,
        };
        let output = Command::new(&program).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.lines().next().unwrap_or("unknown").trim().to_string();
        Ok(Passthrough { program, version })
    }

    /// Shows `source` again on `path`, in the mode of the measured baselines.
    pub fn mount(&self, source: &Path, path: &Path) -> anyhow::Result<Mount> {
        std::fs::create_dir_all(source)?;
        std::fs::create_dir_all(path)?;
        // Through this program, so that it ends with this process.
        let mut command = Command::new(std::env::current_exe()?);
        let options = format!("source={},cache=auto", source.display());
        let words = [self.program.as_os_str(), "-f".as_ref(), "-o".as_ref(), options.as_ref()];
        command.env(PART, "become").args(words).arg(path);
        Mount::by(Serving::spawn(command, "passthrough_ll")?, path)
    }
}

fn build(scratch: &Path) -> anyhow::Result<PathBuf> {
    let output = Command::new("pkg-config").args(["fuse3", "--cflags", "--libs"]).output()?;
    if !output.status.success() {
        bail!("pkg-config does not find fuse3");
    }
    let flags = String::from_utf8_lossy(&output.stdout).into_owned();
    let program = scratch.join("passthrough_ll");
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-o"]).arg(&program).arg(SOURCE).args(flags.split_whitespace());
    let built = compiler.output().context("cannot run cc")?;
    if !built.status.success() {
        bail!("cc: {}", String::from_utf8_lossy(&built.stderr).trim());
    }
    Ok(program)
}
