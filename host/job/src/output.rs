//! Lines of ranks, each written at once, with the rank in front.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// A line that is longer is written in pieces.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What ranks have written to one of their streams, and has no end of a line yet.
#[derive(Debug)]
pub(crate) struct Lines {
    begun: BTreeMap<u32, Vec<u8>>,
    /// Digits of the highest rank; `None`: no rank in front.
    width: Option<usize>,
}

impl Lines {
    pub fn new(size: u32, tells_ranks: bool) -> Lines {
        let width = size.saturating_sub(1).to_string().len();
        Lines { begun: BTreeMap::new(), width: tells_ranks.then_some(width) }
    }

    /// A rank wrote these bytes: the lines that end in them are written.
    pub fn add(&mut self, rank: u32, bytes: &[u8], to: &mut dyn Write) -> io::Result<()> {
        let begun = self.begun.entry(rank).or_default();
        begun.extend(bytes);
        let end = match begun.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if begun.len() >= LINE_BYTES_MAX => begun.len(),
            None => return Ok(()),
        };
        let rest = begun.split_off(end);
        let lines = std::mem::replace(begun, rest);
        self.write(rank, &lines, to)
    }

    /// A rank writes no more.
    pub fn end(&mut self, rank: u32, to: &mut dyn Write) -> io::Result<()> {
        match self.begun.remove(&rank) {
            Some(rest) if !rest.is_empty() => self.write(rank, &rest, to),
            _ => Ok(()),
        }
    }

    fn write(&self, rank: u32, lines: &[u8], to: &mut dyn Write) -> io::Result<()> {
        let mut all = Vec::with_capacity(lines.len() + 16);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if let Some(width) = self.width {
                write!(all, "[{rank:>width$}] ")?;
            }
            all.extend(line);
            if !line.ends_with(b"\n") {
                all.push(b'\n');
            }
        }
        to.write_all(&all)?;
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ranks_stay_whole_and_have_their_rank_in_front() {
        let mut lines = Lines::new(11, true);
        let mut out = Vec::new();
        lines.add(3, b"one", &mut out).unwrap();
        lines.add(10, b"two\nthr", &mut out).unwrap();
        lines.add(3, b" and a half\n\n", &mut out).unwrap();
        lines.end(10, &mut out).unwrap();
        lines.end(10, &mut out).unwrap();
        lines.end(3, &mut out).unwrap();
        let want = "[10] two\n[ 3] one and a half\n[ 3] \n[10] thr\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
        let mut plain = Lines::new(11, false);
        let mut out = Vec::new();
        plain.add(3, b"a\nb", &mut out).unwrap();
        plain.end(3, &mut out).unwrap();
        assert_eq!(out, b"a\nb\n");
    }

    #[test]
    fn a_line_without_an_end_costs_bounded_memory() {
        let mut lines = Lines::new(2, true);
        let mut out = Vec::new();
        for _ in 0..100 {
            lines.add(1, &[b'x'; 10_000], &mut out).unwrap();
            assert!(lines.begun[&1].len() < LINE_BYTES_MAX);
        }
        lines.end(1, &mut out).unwrap();
        assert_eq!(out.iter().filter(|byte| **byte == b'x').count(), 1_000_000);
    }
}
