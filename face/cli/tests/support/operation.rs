//! Operations on files, as lines between the process that decides them and the one that performs
//! them.

use std::fmt;
use std::str::FromStr;

/// The operations on files, by paths below the root of the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Directory(String),
    Create(String),
    /// Path, offset, length, and the number from which the bytes follow.
    Write(String, u64, usize, u64),
    Append(String, usize, u64),
    Truncate(String, u64),
    Rename(String, String),
    Link(String, String),
    Unlink(String),
    Sync(String),
    /// Closes everything that is open.
    Close,
}

/// A number that follows from a seed and a position.
pub fn mix(seed: u64, position: u64) -> u64 {
    let mut word = seed.wrapping_add((position + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A row of numbers.
#[derive(Debug, Clone)]
pub struct Random {
    seed: u64,
    position: u64,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random { seed, position: 0 }
    }

    pub fn next(&mut self) -> u64 {
        self.position += 1;
        mix(self.seed, self.position)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The bytes of a write.
pub fn bytes(number: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|at| mix(number, at as u64).to_le_bytes());
    words.take(len).collect()
}

impl fmt::Display for Operation {
    fn fmt(&self, line: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Directory(path) => write!(line, "directory {path}"),
            Operation::Create(path) => write!(line, "create {path}"),
            Operation::Write(path, offset, len, number) => {
                write!(line, "write {path} {offset} {len} {number}")
            }
            Operation::Append(path, len, number) => write!(line, "append {path} {len} {number}"),
            Operation::Truncate(path, size) => write!(line, "truncate {path} {size}"),
            Operation::Rename(from, to) => write!(line, "rename {from} {to}"),
            Operation::Link(from, to) => write!(line, "link {from} {to}"),
            Operation::Unlink(path) => write!(line, "unlink {path}"),
            Operation::Sync(path) => write!(line, "sync {path}"),
            Operation::Close => write!(line, "close"),
        }
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(line: &str) -> Result<Operation, String> {
        let bad = || format!("not an operation: '{line}'");
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().map_err(|_| bad());
        let word = |index: usize| words[index].to_string();
        Ok(match (words[0], words.len()) {
            ("directory", 2) => Operation::Directory(word(1)),
            ("create", 2) => Operation::Create(word(1)),
            ("write", 5) => Operation::Write(word(1), number(2)?, number(3)? as usize, number(4)?),
            ("append", 4) => Operation::Append(word(1), number(2)? as usize, number(3)?),
            ("truncate", 3) => Operation::Truncate(word(1), number(2)?),
            ("rename", 3) => Operation::Rename(word(1), word(2)),
            ("link", 3) => Operation::Link(word(1), word(2)),
            ("unlink", 2) => Operation::Unlink(word(1)),
            ("sync", 2) => Operation::Sync(word(1)),
            ("close", 1) => Operation::Close,
            _ => return Err(bad()),
        })
    }
}
