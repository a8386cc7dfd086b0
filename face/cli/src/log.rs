//! The log of servers and mounts: one place for its lines, on standard error.
//!
//! A line has its time (RFC 3339, UTC), its level and its text. Where standard error is the journal, it begins with
//! the level as sd-daemon(3) writes it, and the journal keeps the time. Other commands write the text alone.
//!
//! Invariants
//! * a process has a log from [`begin`] on, and no output before that looks like one;
//! * each line of a text is a line of the log: nobody's words make a line that looks like another one's.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use ropewalk_base::level::Level;
use ropewalk_base::text::printable_lines;
use ropewalk_client::Timestamp;

use crate::remote::text::time;

/// The form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// The text alone.
    Plain,
    Timed,
    Journal,
}

static LOG: OnceLock<Form> = OnceLock::new();

/// From now on this process is a server or a mount: what it writes on standard error is a log.
pub fn begin() {
    LOG.get_or_init(|| if is_journal() { Form::Journal } else { Form::Timed });
}

/// Whether this process has a log.
pub fn has_begun() -> bool {
    LOG.get().is_some()
}

/// Whether standard error is the journal: systemd names its device and inode.
pub fn is_journal() -> bool {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let found = rustix::fs::fstat(std::io::stderr().as_fd());
    found.is_ok_and(|found| told == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Writes a line of the log.
pub fn line(level: Level, text: &str) {
    write(form(), level, text);
}

/// Writes an answer to the person at the terminal, without time and level; elsewhere a line of the log.
pub fn answer(level: Level, text: &str) {
    let is_person = std::io::stderr().is_terminal();
    write(if is_person { Form::Plain } else { form() }, level, text);
}

/// The log of a part of this process: a server by its name, or a mount. A line may begin with its level.
pub fn of(role: &str) -> Rc<dyn Fn(&str)> {
    let role = role.to_string();
    Rc::new(move |told| {
        let (level, text) = Level::split(told);
        line(level, &format!("{role}: {text}"));
    })
}

fn form() -> Form {
    LOG.get().copied().unwrap_or(Form::Plain)
}

fn write(form: Form, level: Level, text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp { seconds: now.as_secs() as i64, nanos: 0 };
    let text = printable_lines(text);
    // There is no third place to say that the second one is gone.
    let _ = std::io::stderr().lock().write_all(formed(form, level, now, &text).as_bytes());
}

fn formed(form: Form, level: Level, now: Timestamp, text: &str) -> String {
    let now = time(now).replace(' ', "T");
    let mut formed = String::new();
    for line in text.lines() {
        let _ = match form {
            Form::Plain => writeln!(formed, "{line}"),
            Form::Timed => writeln!(formed, "{now} {} {line}", level.word()),
            Form::Journal => writeln!(formed, "{}{line}", level.mark()),
        };
    }
    formed
}

/// The texts of a log without times and levels, as a person reads them who has just started its process.
pub fn bare(log: &str) -> String {
    let bare = |line: &str| {
        let (time, rest) = line.split_once(' ')?;
        let (level, text) = rest.split_once(' ')?;
        let is_ours = time.len() == 20 && time.ends_with('Z') && Level::of_word(level).is_some();
        is_ours.then(|| text.to_string())
    };
    let lines: Vec<String> =
        log.lines().map(|line| bare(line).unwrap_or_else(|| line.to_string())).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_time_and_its_level_or_that_of_the_journal() {
        let now = Timestamp { seconds: 1_795_961_129, nanos: 0 };
        let form = |form| formed(form, Level::Warning, now, "data0: one\ntwo");
        assert_eq!(form(Form::Plain), "data0: one\ntwo\n");
        let timed = "2026-11-29T14:05:29Z warning data0: one\n2026-11-29T14:05:29Z warning two\n";
        assert_eq!(form(Form::Timed), timed);
        assert_eq!(form(Form::Journal), "<4>data0: one\n<4>two\n");
        assert_eq!(bare(timed), "data0: one\ntwo");
        assert_eq!(bare("panicked at x\n"), "panicked at x");
    }
}
