//! The process of a rank, before and while it is the user's program.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, set_child_subreaper, set_parent_process_death_signal, waitid, waitpid,
};

use crate::frame::Kind;

/// What a status says of a program that cannot be started, as shells do.
const NOT_STARTED: u8 = 127;
/// Waits for what its children still write.
const LAST_WORDS: Duration = Duration::from_millis(500);
const READ_BYTES: usize = 16 << 10;
/// Looks for processes that outlived their rank, at most.
const SWEEPS: u32 = 100;

/// Becomes the user's program. It returns where that cannot be started: the status to end with. `agent`: the process that
/// started this one, at whose end the kernel kills it.
pub fn rank(agent: u32, program: &[String]) -> u8 {
    let agent = i32::try_from(agent).ok().and_then(Pid::from_raw);
    let bound = set_parent_process_death_signal(Some(Signal::KILL));
    if bound.is_err() || getppid() != agent {
        // It went before it could take this one along.
        return NOT_STARTED;
    }
    let Some((name, words)) = program.split_first() else { return NOT_STARTED };
    let error = Command::new(name).args(words).exec();
    eprintln!("cannot start '{name}': {error}");
    NOT_STARTED
}

/// Added to the number of a signal that ended a program: a status of its own has 8 bits.
pub(crate) const BY_SIGNAL: u32 = 256;

/// How a program ended, as a number.
pub(crate) fn status_of(status: ExitStatus) -> u32 {
    use std::os::unix::process::ExitStatusExt;
    let signal = || status.signal().map_or(1, |signal| BY_SIGNAL + signal as u32);
    status.code().map_or_else(signal, |code| code as u32)
}

/// Starts a rank in a process group of its own.
pub(crate) fn start(mut command: Command) -> std::io::Result<Child> {
    command.process_group(0).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Sends a signal to a rank and to what it has started.
pub(crate) fn signal(rank: Pid, signal: Signal) {
    let _ = kill_process_group(rank, signal);
}

/// Hands over what a rank writes until it ends; kills what it leaves behind; returns its status.
pub(crate) fn attend(mut child: Child, tell: impl Fn(Kind, &[u8]) + Clone + Send + 'static) -> u32 {
    let group = Pid::from_child(&child);
    let (done, ends) = channel();
    let streams: [(Kind, Option<Box<dyn Read + Send>>); 2] = [
        (Kind::Output, child.stdout.take().map(|it| Box::new(it) as _)),
        (Kind::Errors, child.stderr.take().map(|it| Box::new(it) as _)),
    ];
    for (kind, stream) in streams {
        let (mut stream, done) = (stream.expect("it was asked for"), done.clone());
        let tell = tell.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; READ_BYTES];
            while let Ok(many @ 1..) = stream.read(&mut bytes) {
                tell(kind, &bytes[..many]);
            }
            let _ = done.send(());
        });
    }
    drop(done);
    // It is not collected yet: so its group keeps its number.
    let _ = waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    signal(group, Signal::KILL);
    let status = child.wait().map_or(1, status_of);
    // Whoever left the group may hold the other ends for as long as it likes.
    let until = Instant::now() + LAST_WORDS;
    while let Ok(()) = ends.recv_timeout(until.saturating_duration_since(Instant::now())) {}
    status
}

/// Makes what descendants leave behind a child of this process.
pub(crate) fn adopt() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills what ranks have left behind, also outside of their groups.
pub(crate) fn sweep() {
    for _ in 0..SWEEPS {
        let left = children();
        if left.is_empty() {
            return;
        }
        for process in left {
            let _ = kill_process(process, Signal::KILL);
            let _ = waitpid(Some(process), WaitOptions::NOHANG);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes whose parent this one is.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|it| std::fs::read_to_string(it.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        list.split_whitespace().filter_map(|number| number.parse().ok()).collect::<Vec<i32>>()
    });
    numbers.filter_map(Pid::from_raw).collect()
}
