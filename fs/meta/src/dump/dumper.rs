//! The bytes of a dump, made as they are asked for.
//!
//! Invariant: memory is bounded by one frame and one read of the store.

use ropewalk_store::{Row, StoreError};

use super::format::{
    Ending, Head, Kind, Lost, ROWS_BYTES, Totals, encode, frame, put_row, row_bytes,
};
use super::tables::is_sound;
use super::walk::{Source, Step, Walk};

/// See the module.
pub struct Dumper<S> {
    walk: Walk<S>,
    head: Head,
    totals: Totals,
    has_begun: bool,
    has_ended: bool,
}

impl<S: Source> Dumper<S> {
    /// A dump of these rows.
    pub fn new(source: S, head: Head) -> Dumper<S> {
        let walk = Walk::new(source);
        Dumper { walk, head, totals: Totals::default(), has_begun: false, has_ended: false }
    }

    /// The next frames; none behind the end.
    pub fn next_bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        let mut out = Vec::new();
        if self.has_ended {
            return Ok(out);
        }
        if !self.has_begun {
            self.has_begun = true;
            let head = encode(&self.head);
            self.add(Kind::Begin, &head, &mut out);
        }
        match self.walk.step(ROWS_BYTES)? {
            Step::Rows(rows) => self.add_rows(&rows, &mut out),
            Step::Lost(lost) => self.add_lost(&lost, &mut out),
            Step::End => {
                self.has_ended = true;
                let ending = Ending { totals: self.totals.clone(), head: self.head.clone() };
                self.add(Kind::End, &encode(&ending), &mut out);
            }
        }
        Ok(out)
    }

    fn add(&mut self, kind: Kind, payload: &[u8], out: &mut Vec<u8>) {
        let frame = frame(kind, self.totals.frames, payload);
        self.totals.add(&frame);
        out.extend_from_slice(&frame);
    }

    fn add_lost(&mut self, lost: &Lost, out: &mut Vec<u8>) {
        self.totals.lost += 1;
        self.add(Kind::Lost, &encode(lost), out);
    }

    fn add_rows(&mut self, rows: &[Row], out: &mut Vec<u8>) {
        let mut payload = Vec::with_capacity(ROWS_BYTES);
        for (key, value) in rows {
            if !is_sound(key, value) {
                let (from, to) = (key.clone(), [key, &[0][..]].concat());
                let why = "the row does not decode".to_owned();
                self.add_lost(&Lost { from, to, why }, out);
                continue;
            }
            if !payload.is_empty() && payload.len() + row_bytes(key, value) > ROWS_BYTES {
                self.add(Kind::Rows, &std::mem::take(&mut payload), out);
            }
            put_row(&mut payload, key, value);
            self.totals.count_row(key);
        }
        if !payload.is_empty() {
            self.add(Kind::Rows, &payload, out);
        }
    }
}
