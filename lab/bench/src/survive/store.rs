//! A cluster of one metadata server and several data servers, each a process with a store on the disk.
//!
//! Invariants
//! * Each server has a port and a directory of its own over all of its lives, and a log.
//! * All of it ends with its owner, also servers that stand still.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ropewalk_netns::Injected;
use serde_json::Value;
use tempfile::TempDir;

use crate::lab::quoted;
use crate::order::Order;
use crate::process::Process;
use crate::servers::Serving;
use crate::survive::ground::Ground;
use crate::survive::site::{LIMIT, pause, scratch, show_end, text};
use crate::{DIES, ORPHAN, Options, host};

const LOOK: Duration = Duration::from_millis(50);
/// The host of the metadata server; data servers have the next ones.
const META: usize = 0;

/// The parts of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub servers: usize,
    /// Everybody proves who he is. Payloads are as clients ask for.
    pub keys: bool,
    /// The metadata server listens by udp, too.
    pub udp: bool,
}

/// So many data servers, and nothing else.
pub const fn plain(servers: usize) -> Plan {
    Plan { servers, keys: false, udp: false }
}

/// See the module.
pub struct Store<'a> {
    ground: &'a Ground,
    options: &'a Options,
    plan: Plan,
    place: TempDir,
    /// Of the metadata server, then of the data servers.
    listen: Vec<SocketAddr>,
    meta: Option<Serving>,
    data: Vec<Option<Serving>>,
}

/// Hosts for a cluster of so many data servers: the metadata server, those, the clients, and somebody else.
pub fn hosts(servers: usize) -> usize {
    servers + 3
}

impl<'a> Store<'a> {
    /// Starts all servers; they serve when this returns.
    pub fn start(ground: &'a Ground, options: &'a Options, plan: Plan) -> anyhow::Result<Self> {
        let place = scratch(&options.disk)?;
        let listen = (0..=plan.servers).map(|host| ground.place(host)).collect::<Result<_, _>>()?;
        let data = (0..plan.servers).map(|_| None).collect();
        let mut store = Store { ground, options, plan, place, listen, meta: None, data };
        store.begin().inspect_err(|_| store.show_logs())?;
        Ok(store)
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        let program = std::env::current_exe()?;
        let made = Command::new(&program).arg("format").arg(self.cluster()).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        if self.plan.keys {
            let made = Command::new(&program).args(["key", "create"]).arg(self.key()).output()?;
            ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr).trim());
        }
        let folder = text(&self.cluster().join("meta"))?;
        let at = self.listen[META];
        let listen = match self.plan.udp {
            true => format!("tcp://{at},udp://{at}"),
            false => format!("tcp://{at}"),
        };
        let words = ["serve", "meta", "--directory", &folder, "--listen", &listen];
        self.meta = Some(self.serve(META, &words)?);
        (0..self.plan.servers).try_for_each(|number| self.start_data(number, false))
    }

    fn cluster(&self) -> PathBuf {
        self.place.path().join("cluster")
    }

    fn key(&self) -> PathBuf {
        self.place.path().join("key")
    }

    fn log(&self, host: usize) -> PathBuf {
        self.place.path().join(format!("host{host}.log"))
    }

    /// Starts this program at a host, and waits until it serves.
    fn serve(&self, host: usize, words: &[&str]) -> anyhow::Result<Serving> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(host))?;
        let mut command = self.ground.command(host);
        command.args(words).arg("--cluster-file").arg(self.cluster().join("cluster"));
        command.arg("--insecure");
        if self.plan.keys {
            command.args(["--payload", "crc", "--key-file"]).arg(self.key());
        }
        // One that stands still would not obey anything less.
        command.env(ORPHAN, DIES).stderr(log);
        let serving = Serving::spawn_as_told(command, &words[..2].join(" "))?;
        serving.wait_for("serving at")?;
        Ok(serving)
    }

    /// Starts a data server, for the first time or once more. `replace`: its former store is given up.
    pub fn start_data(&mut self, number: usize, replace: bool) -> anyhow::Result<()> {
        let (folder, listen) = (text(&self.directory(number))?, self.listen[1 + number]);
        let (listen, address) = (format!("tcp://{listen}"), self.address());
        let server = number.to_string();
        let mut words = vec!["serve", "data", "--directory", &folder, "--server", &server];
        words.extend(["--listen", &listen, "--meta", &address, "--admit", "--domain", "each"]);
        words.extend(replace.then_some("--replace"));
        self.data[number] = Some(self.serve(1 + number, &words)?);
        Ok(())
    }

    /// The directory of a data server's store.
    pub fn directory(&self, number: usize) -> PathBuf {
        self.place.path().join(format!("data{number}"))
    }

    /// A data server that runs.
    pub fn data(&mut self, number: usize) -> anyhow::Result<&mut Serving> {
        self.data[number].as_mut().with_context(|| format!("data server {number} does not run"))
    }

    /// Kills a data server.
    pub fn kill_data(&mut self, number: usize) {
        if let Some(mut serving) = self.data[number].take() {
            serving.kill();
        }
    }

    /// The metadata server's address, for clients.
    pub fn address(&self) -> String {
        format!("tcp://{}", self.listen[META])
    }

    /// Where the metadata server listens.
    pub fn meta_place(&self) -> SocketAddr {
        self.listen[META]
    }

    /// The number of the metadata server's process.
    pub fn meta_process(&self) -> anyhow::Result<u32> {
        Ok(self.meta.as_ref().context("the metadata server does not run")?.process())
    }

    /// The numbers of all processes that run.
    pub fn processes(&self) -> Vec<u32> {
        self.data.iter().flatten().chain(&self.meta).map(Serving::process).collect()
    }

    /// Room for files of whoever uses the cluster.
    pub fn scratch(&self) -> &Path {
        self.place.path()
    }

    pub fn options(&self) -> &'a Options {
        self.options
    }

    /// The hosts of clients, and of somebody else.
    pub fn clients(&self) -> usize {
        1 + self.plan.servers
    }

    pub fn stranger(&self) -> usize {
        2 + self.plan.servers
    }

    /// An order to a worker that is a client.
    pub fn order(&self, kind: &str) -> Order {
        let order = Order::new(kind).with("address", self.address());
        match self.plan.keys {
            true => order.with("keys", self.key().display()),
            false => order,
        }
    }

    /// A command that starts this program at the clients' host.
    pub fn client_command(&self) -> anyhow::Result<Command> {
        let mut command = self.ground.command(self.clients());
        let log = File::options().create(true).append(true).open(self.log(self.clients()))?;
        command.stderr(log);
        Ok(command)
    }

    /// Starts a client that is told what to do.
    pub fn client(&self, order: &Order) -> anyhow::Result<Process> {
        Process::start(self.client_command()?, &format!("work\n{}", order.encode()))
    }

    /// The words of a command of this program about the cluster.
    pub fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = self.ground.command(self.clients());
        command.args(words).args(["--address", &self.address(), "--cluster-file"]);
        said(command.arg(self.cluster().join("cluster")), words)
    }

    /// The same of a command that works with files.
    pub fn ask_as_user(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut command = self.ground.command(self.clients());
        said(command.args(words).args(["--address", &self.address()]), words)
    }

    /// Limits the network of the clients to so many Gbit/s, until this is mended; `None` where that cannot be.
    pub fn limit_clients(&self, gigabits: u64) -> anyhow::Result<Option<Injected>> {
        self.ground.limit(self.clients(), gigabits)
    }

    /// Bytes that the clients' network has sent and got; `None` where it is that of all processes.
    pub fn crossed(&self) -> Option<(u64, u64)> {
        self.ground.crossed(self.clients())
    }

    /// Files that are made anywhere from now on have so many copies.
    pub fn keep_copies(&self, copies: usize) -> anyhow::Result<()> {
        self.ask_as_user(&["policy", "--copies", &copies.to_string(), ":/"]).map(drop)
    }

    fn status(&self) -> anyhow::Result<Value> {
        let text = self.ask(&["status", "--json", "--interval", "0", "--patience", "1"])?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The groups that lack a copy, in words; none where all is well.
    pub fn shortage(&self) -> anyhow::Result<Option<String>> {
        let state = self.status()?;
        let problems = state["problems"].as_array().context("a status has problems")?;
        let mut words = problems.iter().filter_map(|it| it["what"].as_str());
        Ok(words.find(|what| what.contains("lack a copy")).map(str::to_string))
    }

    /// Waits until each group has all of its copies; how long that took.
    pub fn await_copies(&self) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        while let Some(shortage) = self.shortage()? {
            ensure!(begin.elapsed() < LIMIT, "{shortage} after {} s", LIMIT.as_secs());
            pause(self.options, LOOK)?;
        }
        Ok(begin.elapsed())
    }

    /// Waits until a group lacks a copy.
    pub fn await_shortage(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.shortage()?.is_none() {
            ensure!(begin.elapsed() < LIMIT, "no group lacks a copy after {} s", LIMIT.as_secs());
            pause(self.options, LOOK)?;
        }
        Ok(())
    }

    /// File bytes on each data server; 0 of one that does not answer.
    pub fn object_bytes(&self) -> anyhow::Result<Vec<u64>> {
        let state = self.status()?;
        let servers = state["servers"].as_array().context("a status has servers")?;
        let bytes = |number: usize| {
            let server = servers.iter().find(|it| it["server"] == number as u64);
            server.and_then(|it| it["answer"]["object_bytes"].as_u64()).unwrap_or(0)
        };
        Ok((0..self.plan.servers).map(bytes).collect())
    }

    /// Waits until a data server has no groups, after somebody ordered that; how long that took.
    pub fn await_drained(&self, number: usize) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        loop {
            let state: Value = serde_json::from_str(&self.ask(&["server", "status", "--json"])?)?;
            let server = &state["servers"][number];
            if (server["orders"].as_u64(), server["copies"].as_u64()) == (Some(0), Some(0)) {
                return Ok(begin.elapsed());
            }
            if begin.elapsed() > 2 * LIMIT {
                bail!("data server {number} still has groups: {server}, {}", state["moves"]);
            }
            pause(self.options, LOOK)?;
        }
    }

    /// The parameters of all rows here.
    pub fn params(&self) -> Vec<(&'static str, String)> {
        vec![
            ("network", quoted(self.ground.name())),
            ("servers", self.plan.servers.to_string()),
            ("storage", quoted(host::storage(&self.options.disk))),
            ("journal", quoted(host::storage(&self.options.disk))),
            ("placement", quoted("processes")),
            ("crc", "true".into()),
        ]
    }

    /// The last lines of all logs, on stderr.
    pub fn show_logs(&self) {
        if self.options.is_interrupted() {
            return;
        }
        show_end("meta", &self.log(META));
        for number in 0..self.plan.servers {
            show_end(&format!("data{number}"), &self.log(1 + number));
        }
        show_end("clients", &self.log(self.clients()));
    }

    /// Keeps its directory, since something is wrong with what is in it; says where it is.
    pub fn keep(&mut self) -> String {
        self.place.disable_cleanup(true);
        self.place.path().display().to_string()
    }
}

fn said(command: &mut Command, words: &[&str]) -> anyhow::Result<String> {
    let done = command.stdin(Stdio::null()).output()?;
    let told = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "'ropewalk {}': {}", words.join(" "), told.trim());
    Ok(String::from_utf8(done.stdout)?)
}

impl Drop for Store<'_> {
    fn drop(&mut self) {
        // Not in good order: nobody needs the data any more.
        self.data.iter_mut().flatten().chain(&mut self.meta).for_each(Serving::kill);
    }
}
