//! A cluster of separate processes, each of which can die alone.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::clock::WrongClock;
use super::shim::{KillAt, arm};
use super::{PROGRAM, Process};

/// The parts of a cluster, and their output.
pub struct Servers {
    directory: PathBuf,
    cluster: String,
    /// Seconds that a silent client keeps what it holds.
    term: &'static str,
    meta_port: u16,
    data_ports: Vec<u16>,
    pub meta: Option<Process>,
    pub data: Vec<Option<Process>>,
    /// Leads the process group of those that are to die together.
    leader: Option<Child>,
    /// The program of each process that is started.
    program: PathBuf,
}

fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    socket.local_addr().expect("it is bound").port()
}

impl Servers {
    /// A cluster in this directory of which nothing runs yet.
    pub fn new(directory: &Path, data_servers: usize, term: &'static str) -> Servers {
        std::fs::create_dir_all(directory).expect("the place for tests is ours");
        let output = Command::new(PROGRAM).arg("format").arg(directory).output().expect("it runs");
        assert!(output.status.success());
        let cluster = String::from_utf8(output.stdout).expect("digits").trim().to_string();
        Servers {
            directory: directory.to_path_buf(),
            cluster,
            term,
            // The same after each restart.
            meta_port: free_port(),
            data_ports: (0..data_servers).map(|_| free_port()).collect(),
            meta: None,
            data: (0..data_servers).map(|_| None).collect(),
            leader: None,
            program: PathBuf::from(PROGRAM),
        }
    }

    /// All that is started from now on runs this program.
    pub fn run_by(&mut self, program: &Path) {
        self.program = program.to_path_buf();
    }

    /// Starts all that does not run.
    pub fn start(&mut self) {
        assert!(self.meta.is_some() || self.start_meta(None), "the metadata server starts");
        for server in 0..self.data.len() {
            assert!(self.data[server].is_some() || self.start_data(server, None), "it starts");
        }
    }

    /// The metadata server's address.
    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.meta_port)
    }

    /// The directory of a part's data: `meta`, `data0`, ...
    pub fn place(&self, part: &str) -> PathBuf {
        self.directory.join(part)
    }

    /// Has a part keep its data in this directory.
    pub fn keep(&self, part: &str, directory: &Path) {
        if let Ok(made) = std::fs::read_dir(self.place(part)) {
            // The files that formatting made move with it.
            for entry in made.map(|entry| entry.expect("what was made can be listed")) {
                let (from, to) = (entry.path(), directory.join(entry.file_name()));
                let moved = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status();
                assert!(moved.expect("cp is everywhere").success());
            }
            std::fs::remove_dir_all(self.place(part)).expect("it is ours");
        }
        std::os::unix::fs::symlink(directory, self.place(part)).expect("nothing is there yet");
    }

    /// The output of all parts of the cluster and its mounts until now.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    fn command(&self, kill: Option<&KillAt>) -> Command {
        let mut command = Command::new(&self.program);
        let log = File::options().create(true).append(true).open(self.directory.join("log"));
        command.stderr(log.expect("the log can be written"));
        if let Some(kill) = kill {
            kill.apply(&mut command);
        }
        if let Some(leader) = &self.leader {
            use std::os::unix::process::CommandExt;
            command.process_group(leader.id() as i32);
        }
        command
    }

    fn server(&self, role: &str, part: &str, port: u16, kill: Option<&KillAt>) -> Command {
        let mut command = self.command(kill);
        command.args(["serve", role, "--cluster", &self.cluster, "--directory"]);
        command.arg(self.place(part)).args(["--listen", &format!("127.0.0.1:{port}")]);
        command.arg("--cluster-file").arg(self.directory.join("cluster"));
        command
    }

    /// Starts the metadata server; false where it died before it served.
    pub fn start_meta(&mut self, kill: Option<&KillAt>) -> bool {
        let mut command = self.server("meta", "meta", self.meta_port, kill);
        command.args(["--term", self.term]);
        self.meta = started(command, "serving at", kill);
        self.meta.is_some()
    }

    /// Starts a data server; false where it died before it served.
    pub fn start_data(&mut self, server: usize, kill: Option<&KillAt>) -> bool {
        let started = self.start_victim(server, kill);
        if let Some(process) = self.data[server].as_ref()
            && kill.is_some_and(|kill| kill.serving)
        {
            arm(process.pid());
        }
        started
    }

    /// As [`Servers::start_data`], of one whose calls count from when it is told so ([`arm`]).
    pub fn start_victim(&mut self, server: usize, kill: Option<&KillAt>) -> bool {
        let (part, port) = (format!("data{server}"), self.data_ports[server]);
        let mut command = self.server("data", &part, port, kill);
        command.args(["--server", &server.to_string(), "--meta", &self.address(), "--admit"]);
        // All of them are on one host.
        command.args(["--domain", "each"]);
        self.data[server] = started_unarmed(command, "serving at", kill);
        self.data[server].is_some()
    }

    /// Mounts it by a process of its own; none where that died before it was done.
    pub fn mount(&self, path: &Path, kill: Option<&KillAt>) -> Option<Process> {
        self.mount_with(path, &[], kill)
    }

    /// As `mount`, with more arguments.
    pub fn mount_with(
        &self,
        path: &Path,
        arguments: &[&str],
        kill: Option<&KillAt>,
    ) -> Option<Process> {
        let mut command = self.command(kill);
        command.arg("mount").args(arguments).arg(self.address()).arg(path);
        started(command, "mounted on", kill)
    }

    /// As `mount`, by a process whose calendar is wrong.
    pub fn mount_by(&self, clock: &WrongClock, path: &Path) -> Process {
        let mut command = self.command(None);
        clock.apply(&mut command);
        command.arg("mount").arg(self.address()).arg(path);
        started(command, "mounted on", None).expect("nothing kills it")
    }

    /// All processes that are started from now on die together.
    pub fn lead(&mut self) {
        use std::os::unix::process::CommandExt;
        self.end_group();
        let mut leader = Command::new("sleep");
        let leader = leader.arg("1000").process_group(0).stdin(Stdio::null()).spawn();
        self.leader = Some(leader.expect("sleep is everywhere"));
    }

    fn end_group(&mut self) {
        if let Some(mut leader) = self.leader.take() {
            let _ = kill_process_group(pid_of(&leader), Signal::KILL);
            let _ = leader.wait();
        }
    }

    /// Kills all that is in the group.
    pub fn kill_group(&mut self) {
        self.end_group();
        // They are reaped, and their ports are free again.
        self.kill_servers();
    }

    /// Kills all servers.
    pub fn kill_servers(&mut self) {
        self.meta = None;
        self.data.iter_mut().for_each(|server| *server = None);
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.end_group();
        if std::thread::panicking() {
            eprintln!("--- what the cluster said\n{}", self.said());
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn started(command: Command, expected: &str, kill: Option<&KillAt>) -> Option<Process> {
    let process = started_unarmed(command, expected, kill)?;
    if kill.is_some_and(|kill| kill.serving) {
        arm(process.pid());
    }
    Some(process)
}

fn started_unarmed(command: Command, expected: &str, kill: Option<&KillAt>) -> Option<Process> {
    let shown = format!("{command:?}");
    match Process::run(command, expected) {
        Ok(process) => Some(process),
        Err(_) if kill.is_some() => None,
        Err(status) => panic!("{shown} did not say '{expected}' ({status})"),
    }
}

/// `kill -9` for a process that somebody else waits for.
pub fn kill(process: Pid) {
    let _ = kill_process(process, Signal::KILL);
}
