//! Processes of this program that play a part: told what to do line by line, and heard likewise.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::worker::lines;
use crate::{ORPHAN, PART};

/// No measurement takes longer: one that does hangs.
const LIMIT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);

/// A process, which ends with its owner.
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    /// Starts this program, as the command says, for a part.
    pub fn start(mut command: Command, part: &str) -> anyhow::Result<Process> {
        let command = command.env(PART, part).env(ORPHAN, "ends");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a process of the benchmark")?;
        let input = child.stdin.take().expect("it was asked for");
        let lines = lines(child.stdout.take().expect("it was asked for"));
        Ok(Process { child, input, lines })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        writeln!(self.input, "{line}").context("a process of the benchmark has ended")
    }

    /// The next line that it says.
    pub fn hear(&mut self) -> anyhow::Result<String> {
        self.hear_within(LIMIT)
    }

    fn hear_within(&mut self, limit: Duration) -> anyhow::Result<String> {
        self.lines
            .recv_timeout(limit)
            .ok()
            .context("a process of the benchmark failed or does not answer")
    }

    /// Reads the next line, which must begin with `word`; returns the rest of the line.
    pub fn hear_word(&mut self, word: &str) -> anyhow::Result<String> {
        self.hear_word_within(word, LIMIT)
    }

    /// The same of a process that may take so long.
    pub fn hear_word_within(&mut self, word: &str, limit: Duration) -> anyhow::Result<String> {
        let line = self.hear_within(limit)?;
        let rest = line.strip_prefix(word);
        Ok(rest.with_context(|| format!("a process said '{line}'"))?.trim_start().to_string())
    }

    /// Waits until it ends by itself: it has something to put in order.
    pub fn await_end(mut self) -> anyhow::Result<()> {
        let begin = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(begin.elapsed() < LIMIT, "a process of the benchmark does not end");
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// The numbers of its answer, behind a word.
    pub fn numbers(&mut self) -> anyhow::Result<Vec<u64>> {
        let answer = self.hear()?;
        let words = answer.split(' ').skip(1);
        let numbers: Option<_> = words.map(|word| word.parse().ok()).collect();
        numbers.with_context(|| format!("a process answered '{answer}'"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next line from the process that started this one; `None` if it closed the pipe.
pub fn next_line() -> anyhow::Result<Option<String>> {
    use std::io::BufRead;
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_string()))
}
