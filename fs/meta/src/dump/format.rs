//! The bytes of a dump: frames, each with its own checksum.
//!
//! Invariants:
//! * a frame that is cut, changed, left out, repeated or moved is noticed, and named by its offset;
//! * a reader keeps one frame in memory, whatever the bytes say.

use std::collections::BTreeMap;

use ropewalk_base::checksum;
use serde::{Deserialize, Serialize};

/// The version of the format. A program reads its own version and older ones.
pub const VERSION: u8 = 1;
const MAGIC: &[u8; 4] = b"RWDF";
/// Magic, kind, three zero bytes, number, length, checksum.
const HEADER_BYTES: usize = 20;
const CHECKSUM_AT: usize = 16;
/// Most bytes of a frame behind its header: one row of the largest size fits.
pub const PAYLOAD_BYTES_MAX: usize = 2 << 20;
/// A frame of rows is full from here on.
pub const ROWS_BYTES: usize = 128 << 10;
/// Key length and value length in front of a row.
const ROW_HEADER_BYTES: usize = 6;

/// A row: key and value.
pub type DumpedRow = (Vec<u8>, Vec<u8>);

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The first one: [`Head`].
    Begin = b'B',
    /// Rows.
    Rows = b'R',
    /// A place that could not be read: [`Lost`].
    Lost = b'L',
    /// The last one: [`Totals`].
    End = b'E',
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Begin, Kind::Rows, Kind::Lost, Kind::End].into_iter().find(|it| *it as u8 == byte)
    }
}

/// The store whose rows a dump has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub cluster: u128,
    /// The number of the metadata server whose store was read.
    pub server: u32,
    pub history: u128,
    /// The id of the newest term in the rows; 0 where that could not be read.
    pub term: u64,
    /// The rows are those after this record of the journal.
    pub position: u64,
    /// Seconds of the calendar.
    pub made: i64,
    /// The version of the program.
    pub program: String,
}

/// Rows that the source has and the dump lacks: those from one key to before another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub why: String,
}

/// The content of a dump in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Frames in front of the last one.
    pub frames: u32,
    /// Bytes in front of the last frame.
    pub bytes: u64,
    /// Rows by the letters of their tables.
    pub rows: BTreeMap<u8, u64>,
    /// Places that could not be read.
    pub lost: u64,
    /// Checksum of the checksums of all frames in front of the last one.
    pub sum: u32,
}

impl Totals {
    /// All rows.
    pub fn all_rows(&self) -> u64 {
        self.rows.values().sum()
    }

    /// Counts a frame.
    pub(super) fn add(&mut self, frame: &[u8]) {
        self.frames += 1;
        self.bytes += frame.len() as u64;
        self.sum = checksum::append(self.sum, &frame[CHECKSUM_AT..HEADER_BYTES]);
    }

    pub(super) fn count_row(&mut self, key: &[u8]) {
        *self.rows.entry(key.first().copied().unwrap_or(0)).or_default() += 1;
    }
}

/// The content of the last frame. The head once more: it may be lost at the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ending {
    pub totals: Totals,
    pub head: Head,
}

/// A frame that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub kind: Kind,
    pub number: u32,
    pub payload: &'a [u8],
    /// Header and payload.
    pub bytes: &'a [u8],
}

/// The finding at the beginning of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look<'a> {
    Frame(Frame<'a>),
    /// A frame may be there when there are more bytes.
    More,
    /// No frame, for this reason.
    Bad(&'static str),
}

/// Looks at the beginning of `bytes`.
pub(super) fn look(bytes: &[u8]) -> Look<'_> {
    let shown = bytes.len().min(MAGIC.len());
    if bytes[..shown] != MAGIC[..shown] {
        return Look::Bad("no frame begins there");
    }
    let Some(header) = bytes.get(..HEADER_BYTES) else { return Look::More };
    let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let length = number(12) as usize;
    let (Some(kind), [0, 0, 0]) = (Kind::of(header[4]), &header[5..8]) else {
        return Look::Bad("the frame has an unknown kind");
    };
    if length > PAYLOAD_BYTES_MAX {
        return Look::Bad("the frame is too long");
    }
    let Some(bytes) = bytes.get(..HEADER_BYTES + length) else { return Look::More };
    let payload = &bytes[HEADER_BYTES..];
    if checksum_of(header, payload) != number(CHECKSUM_AT) {
        return Look::Bad("the checksum of the frame does not fit");
    }
    Look::Frame(Frame { kind, number: number(8), payload, bytes })
}

/// The length of the frame at the beginning of `bytes`, as its header says it; None where there is no such header.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER_BYTES).filter(|header| header.starts_with(MAGIC))?;
    let length = u32::from_le_bytes(header[12..16].try_into().expect("four bytes")) as usize;
    (length <= PAYLOAD_BYTES_MAX).then_some(HEADER_BYTES + length)
}

fn checksum_of(header: &[u8], payload: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&header[..CHECKSUM_AT]), payload)
}

/// Makes a frame.
pub(super) fn frame(kind: Kind, number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&[kind as u8, 0, 0, 0]);
    bytes.extend_from_slice(&number.to_le_bytes());
    let length = u32::try_from(payload.len()).expect("frames are short");
    bytes.extend_from_slice(&length.to_le_bytes());
    let sum = checksum_of(&bytes, payload);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload of a frame that has one value.
pub(super) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("encoding into memory cannot fail")
}

/// A value from the payload of its frame.
pub(super) fn decode<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, Undecodable> {
    match payload.split_first() {
        Some((&VERSION, fields)) => match postcard::take_from_bytes(fields) {
            Ok((value, [])) => Ok(value),
            _ => Err(Undecodable::Senseless),
        },
        Some((version, _)) if *version > VERSION => Err(Undecodable::Newer(*version)),
        _ => Err(Undecodable::Senseless),
    }
}

/// Why a payload has no value.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Undecodable {
    Newer(u8),
    Senseless,
}

/// Bytes of a row in a frame.
pub(super) fn row_bytes(key: &[u8], value: &[u8]) -> usize {
    ROW_HEADER_BYTES + key.len() + value.len()
}

/// Adds a row to a payload.
pub(super) fn put_row(payload: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let key_length = u16::try_from(key.len()).expect("the store limits keys");
    let value_length = u32::try_from(value.len()).expect("the store limits values");
    payload.extend_from_slice(&key_length.to_le_bytes());
    payload.extend_from_slice(&value_length.to_le_bytes());
    payload.extend_from_slice(key);
    payload.extend_from_slice(value);
}

/// The rows of a payload; None where it makes no sense.
pub(super) fn rows(mut payload: &[u8]) -> Option<Vec<DumpedRow>> {
    let mut rows = Vec::new();
    while !payload.is_empty() {
        let (head, rest) = payload.split_at_checked(ROW_HEADER_BYTES)?;
        let key_length = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let value_length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        let (key, rest) = rest.split_at_checked(key_length)?;
        let (value, rest) = rest.split_at_checked(value_length)?;
        rows.push((key.to_vec(), value.to_vec()));
        payload = rest;
    }
    Some(rows)
}
