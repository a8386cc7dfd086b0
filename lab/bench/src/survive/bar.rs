//! The state of a long measurement on a terminal: one line that is written over.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const CELLS: usize = 24;

/// A line on stderr, where that is a terminal; gone when dropped.
pub struct Bar {
    name: String,
    count: usize,
    begin: Instant,
    is_shown: bool,
}

impl Bar {
    /// For so many steps.
    pub fn new(name: &str, count: usize) -> Bar {
        let is_shown = std::io::stderr().is_terminal() && count > 0;
        Bar { name: name.into(), count, begin: Instant::now(), is_shown }
    }

    /// So many steps are done; `words` say what was found.
    pub fn show(&self, done: usize, words: &str) {
        if self.is_shown {
            let line = line(&self.name, (done, self.count), self.begin.elapsed(), words);
            // Nobody is worse off without it.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(name: &str, (done, count): (usize, usize), spent: Duration, words: &str) -> String {
    let cells = CELLS * done / count;
    let bar = format!("{}{}", "#".repeat(cells), "-".repeat(CELLS - cells));
    let left = match done {
        0 => String::new(),
        _ => {
            let left = spent.as_secs_f64() / done as f64 * (count - done) as f64;
            format!(", {left:.0} s left")
        }
    };
    let words = if words.is_empty() { String::new() } else { format!(", {words}") };
    format!("{name} [{bar}] {done} of {count}{words}{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_is_left() {
        let text = line("meta.cut", (10, 40), Duration::from_secs(50), "median 1.4 s");
        assert_eq!(text, "meta.cut [######------------------] 10 of 40, median 1.4 s, 150 s left");
        assert!(line("a", (0, 3), Duration::ZERO, "").ends_with("0 of 3"));
        assert!(line("a", (3, 3), Duration::ZERO, "").contains("[########################]"));
    }
}
