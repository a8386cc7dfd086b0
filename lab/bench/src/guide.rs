//! The rows of a benchmark for people: what each kind of them measures, and what it shall reach.

use std::fmt::Write;

/// The width of the text, and of the column with names.
const COLUMNS: usize = 80;
const NAMES: usize = 28;

/// Rows that measure the same.
#[derive(Debug, Clone)]
pub struct Kin {
    /// A name, in which words of capital letters stand for others.
    pub names: &'static str,
    pub what: &'static str,
    /// Empty: nothing is asked of it.
    pub reach: String,
}

/// The parts of names, and the words for each.
pub type Value = (&'static str, &'static str);

/// All of these in two columns.
pub fn text(all: &[Kin], values: &[Value]) -> String {
    let mut text = String::new();
    for kin in all {
        let what = match kin.reach.as_str() {
            "" => kin.what.to_string(),
            reach => format!("{}; reach: {reach}", kin.what),
        };
        lay_out(&mut text, kin.names, &what);
    }
    for (name, words) in values {
        lay_out(&mut text, name, words);
    }
    text
}

/// A name, and words beside it, in as many lines as they need.
fn lay_out(text: &mut String, name: &str, words: &str) {
    let mut line = format!("  {name:<NAMES$}");
    if name.len() >= NAMES {
        let _ = writeln!(text, "{}", line.trim_end());
        line = " ".repeat(NAMES + 2);
    }
    for word in words.split(' ') {
        if line.chars().count() + word.chars().count() > COLUMNS {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(NAMES + 2);
        }
        line += word;
        line += " ";
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_beside_their_words_and_long_ones_above_them() {
        let kin = |names, reach: &str| Kin { names, what: "what", reach: reach.into() };
        let text = text(&[kin("a.B", "5 ms"), kin("long.name.of.very.many.words.C", "")], &[]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], format!("  {:<28}what; reach: 5 ms", "a.B"));
        assert_eq!(lines[1], "  long.name.of.very.many.words.C");
        assert_eq!(lines[2], format!("{:30}what", ""));
        // One that fills its column, too.
        let name = "flush.OPERATION.MEDIUM.BYTES";
        assert_eq!(name.len(), NAMES);
        let text = super::text(&[kin(name, "")], &[]);
        assert!(text.starts_with(&format!("  {name}\n{:30}what", "")), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
    }
}
