//! Runs one command, keeps what it prints, and ends it where it takes too long.
//!
//! Invariants:
//! * output is kept whole and in order (both streams share one pipe), and shown by the caller only
//!   where it matters, but for tests that fail; on long silence a sign of life is printed, since some
//!   CI systems end what says nothing;
//! * the command stays in the foreground group, so Ctrl-C reaches it without help;
//! * after the limit, the command and all its descendants are killed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Silence after which a sign of life is printed.
const HEARTBEAT: Duration = Duration::from_secs(60);

/// A command to run.
#[derive(Debug, Clone)]
pub struct Invocation {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Invocation {
    /// A program without arguments.
    pub fn new(program: &str) -> Invocation {
        let program = program.to_string();
        Invocation { program, arguments: Vec::new(), environment: Vec::new() }
    }

    /// Adds arguments.
    pub fn args<S: Into<String>>(mut self, more: impl IntoIterator<Item = S>) -> Invocation {
        self.arguments.extend(more.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: &str, value: &str) -> Invocation {
        self.environment.push((name.to_string(), value.to_string()));
        self
    }

    /// The command as one would type it.
    pub fn line(&self) -> String {
        let quote = |value: &str| match value.contains([' ', '"', '\'']) || value.is_empty() {
            true => format!("'{value}'"),
            false => value.to_string(),
        };
        let environment =
            self.environment.iter().map(|(name, value)| format!("{name}={} ", quote(value)));
        let arguments = self.arguments.iter().map(|argument| format!(" {}", quote(argument)));
        let program = self.program.rsplit('/').next().unwrap_or_default().to_string();
        environment.chain([program]).chain(arguments).collect()
    }
}

/// The result of a command.
pub struct Output {
    pub passed: bool,
    pub timed_out: bool,
    /// Both streams, as they came.
    pub text: String,
}

/// Runs `invocation` in `folder` for at most `limit`.
pub fn run(invocation: &Invocation, folder: &Path, limit: Duration) -> Result<Output> {
    let (reader, writer) = std::io::pipe().context("no pipe for the output of a step")?;
    let mut command = Command::new(&invocation.program);
    command
        .args(&invocation.arguments)
        .envs(invocation.environment.iter().map(|(name, value)| (name, value)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let spawned = command.spawn();
    // The command holds the writing ends now; ours must go, or the reader would wait for ever.
    drop(command);
    let mut child = spawned.with_context(|| format!("{} cannot be started", invocation.program))?;
    let (text, timed_out) = collect(&lines(reader), limit, || kill_tree(child.id()));
    let status = child.wait()?;
    Ok(Output { passed: status.success() && !timed_out, timed_out, text })
}

/// Runs `commands` in `folder`, `lanes` of them at a time, each for at most `limit`; tells their results in the order
/// of the commands.
pub fn in_lanes<'a>(
    commands: &'a [Invocation],
    lanes: usize,
    folder: &Path,
    limit: Duration,
) -> Result<Vec<(&'a Invocation, Output)>> {
    let next = AtomicUsize::new(0);
    let lane = || {
        let mut finished = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(command) = commands.get(number) else { return finished };
            finished.push((number, command, run(command, folder, limit)));
        }
    };
    let mut finished = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        let ended = lanes.into_iter().map(|lane| lane.join().expect("a lane does not panic"));
        ended.flatten().collect::<Vec<_>>()
    });
    finished.sort_by_key(|(number, ..)| *number);
    finished.into_iter().map(|(_, command, output)| Ok((command, output?))).collect()
}

/// Lines of a pipe, read by a thread of their own so that silence can be noticed.
fn lines(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

fn collect(lines: &Receiver<String>, limit: Duration, kill: impl FnOnce()) -> (String, bool) {
    let begin = Instant::now();
    let mut text = String::new();
    let mut last_sign = Instant::now();
    loop {
        let Some(left) = limit.checked_sub(begin.elapsed()) else {
            kill();
            return (text, true);
        };
        match lines.recv_timeout(left.min(Duration::from_secs(1))) {
            Ok(line) => {
                if is_failure(&line) {
                    eprintln!("    {} s: {}", begin.elapsed().as_secs(), line.trim());
                }
                text += &line;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return (text, false),
        }
        if last_sign.elapsed() >= HEARTBEAT {
            last_sign = Instant::now();
            let last = text.lines().next_back().unwrap_or_default().trim();
            eprintln!("    {} s: {last}", begin.elapsed().as_secs());
        }
    }
}

/// Whether a test tells that it failed: a step of hours tells it at once.
fn is_failure(line: &str) -> bool {
    line.starts_with("test ") && line.contains(" ... FAILED")
}

/// Kills a process and everything that it started and that still belongs to it.
fn kill_tree(root: u32) {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything; the parent is the second field after it.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1));
        if let Some(parent) = parent.and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(process) = doomed.get(next) {
        doomed.extend(children.remove(process).unwrap_or_default());
        next += 1;
    }
    let _ = Command::new("kill")
        .arg("-KILL")
        .args(doomed.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Output {
        run(&Invocation::new("sh").args(["-c", script]), Path::new("/"), limit).unwrap()
    }

    #[test]
    fn both_streams_are_kept_in_order_and_the_status_is_told() {
        let minute = Duration::from_secs(60);
        let output = shell("echo one; echo two >&2; printf three", minute);
        assert!(output.passed && !output.timed_out);
        assert_eq!(output.text, "one\ntwo\nthree");
        assert!(!shell("exit 1", minute).passed);
        assert!(run(&Invocation::new("no-such-program"), Path::new("/"), minute).is_err());
    }

    #[test]
    fn a_test_that_fails_is_told_from_others() {
        assert!(is_failure("test a::b ... FAILED <0.100s>\n"));
        assert!(!is_failure("test a::b ... ok <0.100s>\n"));
        assert!(!is_failure("test result: FAILED. 3 passed; 1 failed\n"));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        let begin = Instant::now();
        let output = shell("echo begun; sleep 300 & sleep 300; echo ended", Duration::from_secs(2));
        assert!(output.timed_out && !output.passed);
        assert_eq!(output.text, "begun\n");
        assert!(begin.elapsed() < Duration::from_secs(100));
    }

    #[test]
    fn lanes_run_beside_each_other_and_tell_in_order() {
        // Each of the two waits for a file that the other makes.
        let folder = std::env::temp_dir().join(format!("ropewalk-lanes-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let meet = |own: &str, other: &str| {
            let script =
                format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done; echo {own}");
            Invocation::new("sh").args(["-c".to_string(), script])
        };
        let last = Invocation::new("sh").args(["-c", "echo c; exit 1"]);
        let commands = [meet("a", "b"), meet("b", "a"), last];
        let finished = in_lanes(&commands, 2, &folder, Duration::from_secs(60)).unwrap();
        let told: Vec<_> =
            finished.iter().map(|(_, output)| (output.passed, output.text.as_str())).collect();
        assert_eq!(told, [(true, "a\n"), (true, "b\n"), (false, "c\n")]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_line_can_be_typed_again() {
        let invocation = Invocation::new("/usr/bin/cargo").args(["test", "a b"]).env("X", "1 2");
        assert_eq!(invocation.line(), "X='1 2' cargo test 'a b'");
    }
}
