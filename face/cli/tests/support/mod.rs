//! Clusters and mounts as real processes of the command line, for tests.
#![allow(dead_code, reason = "every test file uses another part of it")]

pub mod clock;
pub mod command;
pub mod disk;
pub mod filer;
pub mod library;
pub mod model;
pub mod names;
pub mod operation;
pub mod operator;
pub mod pair;
pub mod posix;
pub mod scrape;
pub mod servers;
pub mod shim;
pub mod site;
pub mod stranger;
pub mod worker;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

/// Processes that were started with this directory for temporary files.
pub fn processes(temporary: &Path) -> Vec<PathBuf> {
    let variable =
        [b"TMPDIR=", std::os::unix::ffi::OsStrExt::as_bytes(temporary.as_os_str())].concat();
    let of = |path: &PathBuf| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|it| it == variable)
    };
    std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(of).collect()
}

/// The program, with signals as a terminal gives them: the user that runs the tests may ignore some.
pub fn program() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT", PROGRAM]);
    command
}

/// A process that printed the line by which it says that it serves.
pub struct Process {
    child: Child,
    /// The mount that it made, which does not stay when it ends.
    mount: Option<PathBuf>,
    /// The first line that it printed.
    pub line: String,
}

impl Process {
    /// Starts `ropewalk` with these arguments, and waits until it prints `expected`.
    pub fn start(arguments: &[&str], expected: &str) -> Process {
        let mut command = program();
        command.args(arguments);
        Process::run(command, expected)
            .unwrap_or_else(|status| panic!("{arguments:?} did not say '{expected}' ({status})"))
    }

    /// Starts a command, and waits until it prints `expected`; else returns its exit status.
    pub fn run(mut command: Command, expected: &str) -> Result<Process, ExitStatus> {
        let started = command.stdout(Stdio::piped()).spawn();
        let mut child = started.expect("the program under test can be started");
        let output = child.stdout.take().expect("it was asked for");
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(line) if line.contains(expected) => {
                    // The rest of the output is read and dropped.
                    std::thread::spawn(move || receiver.iter().for_each(drop));
                    return Ok(Process { child, mount: None, line });
                }
                Ok(_) => {}
                Err(_) => {
                    let _ = child.kill();
                    return Err(child.wait().expect("a killed child ends"));
                }
            }
        }
    }

    /// The process's number.
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// SIGSTOP, until all of its threads have stopped: one that runs goes on for a while.
    pub fn suspend(&self) {
        use rustix::process::{Signal, WaitOptions, kill_process, waitpid};
        kill_process(self.pid(), Signal::STOP).expect("a child can be stopped");
        let waited = waitpid(Some(self.pid()), WaitOptions::UNTRACED);
        let (_, status) = waited.expect("a child's state is told").expect("it was waited for");
        assert!(status.stopped(), "it has stopped");
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its end; its mount stays.
    pub fn forget(mut self) -> ExitStatus {
        self.mount = None;
        self.child.wait().expect("a child's end is told")
    }

    /// Starts a process that mounts on `path`, which is unmounted at the latest with the result.
    pub fn mount(arguments: &[&str], path: &Path) -> Process {
        let mut process = Process::start(arguments, "mounted on");
        process.mount = Some(path.to_path_buf());
        process
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a killed child ends");
    }

    /// As Ctrl-C does, and waits for the end in good order.
    pub fn stop(&mut self) {
        let _ = rustix::process::kill_process(self.pid(), rustix::process::Signal::INT);
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                assert!(status.success(), "it ends well: {status}");
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("it does not end within 60 s of an interrupt");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(path) = &self.mount {
            // Also where a test failed, or killed the process itself; mostly it is gone already.
            let mut umount = Command::new(PROGRAM);
            umount.args(["umount", "--lazy"]).arg(path).stderr(Stdio::null());
            let _ = umount.status();
        }
    }
}

/// A cluster in one process, on a port that the system chose.
pub struct Cluster {
    pub process: Process,
    directory: PathBuf,
    port: u16,
}

impl Cluster {
    pub fn start(directory: &Path) -> Cluster {
        // A port that was free a moment ago: it has to be the same after a restart.
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let port = socket.local_addr().expect("it is bound").port();
        drop(socket);
        let process = Cluster::run(directory, port);
        Cluster { process, directory: directory.to_path_buf(), port }
    }

    fn run(directory: &Path, port: u16) -> Process {
        let listen = format!("127.0.0.1:{port}");
        let directory = directory.to_str().expect("a path in UTF-8");
        Process::start(&["up", directory, "--listen", &listen], "serves at")
    }

    /// Starts it again after it ended or was killed.
    pub fn restart(&mut self) {
        self.process = Cluster::run(&self.directory, self.port);
    }

    /// Starts it again, to die at a chosen call once it is told so ([`shim::arm`]).
    pub fn restart_to_die(&mut self, at: &shim::KillAt) {
        let listen = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(PROGRAM);
        command.arg("up").arg(&self.directory).args(["--listen", &listen]);
        at.apply(&mut command);
        self.process = Process::run(command, "serves at").expect("it serves before it dies");
    }

    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    /// Mounts it by a process of its own.
    pub fn mount(&self, path: &Path) -> Process {
        let name = path.to_str().expect("a path in UTF-8");
        Process::mount(&["mount", &self.address(), name], path)
    }
}

/// Unmounts by the command line.
pub fn unmount(path: &Path) {
    let status = Command::new(PROGRAM).arg("umount").arg(path).status().expect("it runs");
    assert!(status.success(), "umount {}", path.display());
}

/// Whether mounts can be tested here. Under CI they must be.
pub fn mounts_usable() -> bool {
    match std::fs::File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => true,
        Err(error) => {
            println!("SKIP: /dev/fuse cannot be used here: {error}");
            false
        }
    }
}

/// Whether a program of the system is there.
pub fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        println!("SKIP: {program} is not installed");
    }
    found
}

/// Runs a command of the system in a directory; its output.
pub fn run(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output()
        .unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}: {}\n{text}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
