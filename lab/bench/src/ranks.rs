//! Started ranks of an MPI program: listened to for as long as it takes, and gone afterwards.
//!
//! Invariants
//! * Nobody outlives its owner: the launcher gets a signal when this process dies, and the process
//!   group of the launcher is killed at the end, also after an ordinary one. Ranks may have process groups of their own (MPICH's
//!   do): all that has the environment of the launcher is killed, too.
//! * What was told in full counts, however the ranks end afterwards: MPICH on UCX over tcp hangs in
//!   its `MPI_Finalize` now and then.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::bail;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::worker::lines;

/// The time limit for the end of ranks after their last line, and again after the request to end.
const END: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(2);

/// The variable by which a launcher's processes are known.
const MARK: &str = "ROPEWALK_RANKS";

/// A launcher with its ranks.
pub struct Ranks {
    child: Child,
    /// The variable and its value, as processes have it in their environment.
    mark: String,
    told: Receiver<String>,
    errors: Receiver<String>,
}

impl Ranks {
    /// Starts them in a process group of their own.
    pub fn start(mut command: Command) -> anyhow::Result<Ranks> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let value = format!("{}.{number}.", std::process::id());
        let mark = format!("{MARK}={value}");
        let command = command.env(MARK, value).process_group(0).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let told = lines(child.stdout.take().expect("it was asked for"));
        let errors = lines(child.stderr.take().expect("it was asked for"));
        Ok(Ranks { child, mark, told, errors })
    }

    /// Hands over each line that they tell, until that was all.
    pub fn listen(
        &mut self,
        limit: Duration,
        mut is_all: impl FnMut(&str) -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.told.recv_timeout(left) {
                Ok(line) if is_all(&line) => return Ok(()),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => bail!("no end within {limit:?}{}", self.why()),
                Err(RecvTimeoutError::Disconnected) => bail!("ended too early{}", self.why()),
            }
        }
    }

    /// The lines that they wrote to standard error, each after a line break.
    pub fn why(&self) -> String {
        let mut text = String::new();
        // The reader of this may be behind.
        while let Ok(line) = self.errors.recv_timeout(Duration::from_millis(200)) {
            text.extend(["\n", &line]);
        }
        text
    }

    /// Whether the launcher ended.
    pub fn have_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// The same within a time. It is not collected: so its group keeps its number.
    fn ends_within(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(Pid::from_child(&self.child)), options) {
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) => return false,
                _ => return true,
            }
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        if !self.ends_within(END) {
            // Asked first: a launcher takes its ranks and its files with it.
            let _ = kill_process_group(group, Signal::TERM);
            self.ends_within(END);
        }
        let _ = kill_process_group(group, Signal::KILL);
        kill_marked(self.mark.as_bytes());
        let _ = self.child.wait();
    }
}

/// Kills all processes with this in their environment.
fn kill_marked(mark: &[u8]) {
    let Ok(processes) = std::fs::read_dir("/proc") else { return };
    for process in processes.flatten() {
        let number = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else { continue };
        // Those of others cannot be read.
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Ranks {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Ranks::start(command).expect("there is a shell")
    }

    #[test]
    fn what_was_told_counts_although_the_end_never_comes() {
        let mut told = Vec::new();
        let mut ranks = shell("echo one; echo two; sleep 3600 & wait");
        let all = ranks.listen(Duration::from_secs(30), |line| {
            told.push(line.to_string());
            told.len() == 2
        });
        all.expect("it told everything");
        assert_eq!(told, ["one", "two"]);
        let lines = std::mem::replace(&mut ranks.told, std::sync::mpsc::channel().1);
        drop(ranks);
        // The sleeper has the other end of the pipe: it is closed only when that is gone, too.
        let end = lines.recv_timeout(Duration::from_secs(30));
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_rank_with_a_session_of_its_own_is_gone_at_the_end() {
        let mut ranks = shell("echo one; setsid sleep 3600 & wait");
        ranks.listen(Duration::from_secs(30), |_| true).expect("it told everything");
        let lines = std::mem::replace(&mut ranks.told, std::sync::mpsc::channel().1);
        drop(ranks);
        let end = lines.recv_timeout(Duration::from_secs(30));
        assert_eq!(end, Err(RecvTimeoutError::Disconnected));
    }

    #[test]
    fn an_early_end_and_a_late_one_are_errors_that_tell_why() {
        let early = shell("echo one; echo sorry >&2").listen(Duration::from_secs(30), |_| false);
        assert_eq!(early.unwrap_err().to_string(), "ended too early\nsorry");
        let late = shell("sleep 3600").listen(Duration::from_millis(20), |_| false);
        assert_eq!(late.unwrap_err().to_string(), "no end within 20ms");
    }
}
