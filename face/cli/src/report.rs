//! The output of the program: tables and figures as people read them, and the ways to print them.
//!
//! Nothing here panics. If output that was asked for cannot be written, that is an error. A reader who has seen
//! enough ends the command quietly. A complaint that nobody can hear (the terminal is gone) is dropped, since
//! the servers and mounts of this process go on or end in good order all the same. In those a complaint is a
//! line of their log ([`crate::log`]).

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::time::Duration;

use anyhow::bail;
use comfy_table::{CellAlignment, Table, presets};
use ropewalk_base::level::Level;
use ropewalk_base::text::{is_plain, printable_lines};

use crate::log;

/// Columns where nobody says how many there are.
const COLUMNS: usize = 80;

/// Nobody reads standard output any more: the command ends, and that is no failure.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub struct Closed;

/// Writes to standard output.
pub fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(Closed.into()),
        Err(error) => bail!("cannot write to standard output: {error}"),
        Ok(()) => Ok(()),
    }
}

/// Prints one JSON object as a line. A character that would affect a terminal is written by its number, which
/// means the same to every JSON reader.
pub fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    let mut line = String::new();
    for letter in value.to_string().chars() {
        if is_plain(letter) {
            line.push(letter);
        } else {
            let mut units = [0; 2];
            line.extend(
                letter.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")),
            );
        }
    }
    line.push('\n');
    print(line.as_bytes())
}

/// The function behind `say!`.
pub fn say_line(line: Arguments<'_>) -> anyhow::Result<()> {
    // Names of files and of clients are others' words: they move no cursor here.
    print(format!("{}\n", printable_lines(&line.to_string())).as_bytes())
}

/// The function behind `complain!`.
pub fn complain_line(line: Arguments<'_>) {
    log::answer(Level::Warning, &line.to_string());
}

/// Tells that something serves, to whoever still reads: it serves also where nobody does.
pub fn announce_line(line: Arguments<'_>) {
    if let Err(error) = say_line(line)
        && !error.is::<Closed>()
    {
        complain_line(format_args!("ropewalk: {error:#}"));
    }
}

/// Prints a line on standard output, or says why it cannot.
macro_rules! say {
    ($($words:tt)*) => { $crate::report::say_line(format_args!($($words)*)) };
}

/// Prints a warning on standard error, if anybody hears it.
macro_rules! complain {
    ($($words:tt)*) => { $crate::report::complain_line(format_args!($($words)*)) };
}

/// Tells on standard output that something serves.
macro_rules! announce {
    ($($words:tt)*) => { $crate::report::announce_line(format_args!($($words)*)) };
}

pub(crate) use {announce, complain, say};

/// A table with a header, numbers to the right.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for index in 1..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The columns of the terminal; a usual number where the output is none.
pub fn columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let terminal = || Table::new().width().map(usize::from);
    said.or_else(terminal).unwrap_or(COLUMNS)
}

/// Whether a text has no line of more columns.
pub fn fits(text: &str, columns: usize) -> bool {
    text.lines().all(|line| line.chars().count() <= columns)
}

/// Breaks a text between its words into lines of at most so many columns; `indent` precedes all but the first. A
/// command in backquotes stays on one line, so that it can be copied.
pub fn wrapped(text: &str, columns: usize, indent: &str) -> String {
    let mut quoted = false;
    let words = text.split(|letter| {
        quoted ^= letter == '`';
        letter == ' ' && !quoted
    });
    let (mut lines, mut width) = (String::new(), 0);
    for word in words {
        let long = word.chars().count();
        if width > 0 && width + 1 + long > columns {
            lines.push('\n');
            lines.push_str(indent);
            width = indent.chars().count();
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += long;
    }
    lines
}

/// A table whose last column has addresses, in so many columns: addresses that do not fit beside the rest
/// stand below it.
pub fn with_addresses(header: &[&str], rows: Vec<Vec<String>>, columns: usize) -> String {
    let whole = table(header, rows.clone()).to_string();
    if fits(&whole, columns) {
        return whole;
    }
    let last = header.len() - 1;
    let short = rows.iter().map(|row| row[..last].to_vec()).collect();
    let mut text = table(&header[..last], short).to_string();
    for row in rows {
        // Parts of one address each have a line where a line would be too long.
        let parts: Vec<&str> = row[last].split(',').collect();
        let joined = parts.join(", ");
        let fits = row[0].len() + joined.len() + 4 <= columns;
        let between = format!(",\n{:1$}", "", row[0].len() + 4);
        let parts = if fits { joined } else { parts.join(&between) };
        text.push_str(&format!("\n{} at {parts}", row[0]));
    }
    text
}

/// Bytes with a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count per second.
pub fn rate(count: u64, time: Duration) -> String {
    format!("{:.0}", count as f64 / time.as_secs_f64().max(1e-9))
}

/// MiB per second.
pub fn speed(count: u64, time: Duration) -> String {
    format!("{:.0}", count as f64 / (1 << 20) as f64 / time.as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_between_words_and_not_within_commands() {
        assert_eq!(wrapped("one two three", 80, "  "), "one two three");
        assert_eq!(wrapped("one two three", 7, "  "), "one two\n  three");
        assert_eq!(wrapped("say `ip link` to it", 8, " "), "say\n `ip link`\n to it");
    }
}
