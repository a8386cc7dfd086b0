//! Reading the journal while it grows: the feed of a standby.
//!
//! Invariants: a reader hands out each written record once, in order, or says that it was cut off; what it has not read yet is
//! kept for it, within bounds.

use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::File;

use super::Shared;
use super::record::{RECORD_HEADER_BYTES, RecordHeader, SEGMENT_HEADER_BYTES, record_bytes};
use crate::error::StoreError;
use crate::marks::Position;

/// Iterates over written records. The newest ones come from memory; reads of others block for as long as the disk takes.
pub struct JournalReader {
    shared: Rc<Shared>,
    /// Its number among the readers.
    number: u64,
    next: u64,
    pub(super) place: Option<Place>,
    /// Behind the last record that came from memory: the segment, the offset there.
    end: Option<(u64, u64)>,
}

/// The position of the reader: `position` is that of the record at `offset`.
pub(super) struct Place {
    sequence: u64,
    file: Arc<dyn File>,
    offset: u64,
    pub position: u64,
}

impl JournalReader {
    pub(super) fn new(shared: Rc<Shared>, next: u64) -> JournalReader {
        let next = next.max(1);
        let mut state = shared.state.borrow_mut();
        let number = state.next_reader;
        state.next_reader += 1;
        state.wanted.insert(number, next);
        drop(state);
        JournalReader { shared, number, next, place: None, end: None }
    }

    /// The position that comes next.
    pub fn position(&self) -> Position {
        Position(self.next)
    }

    /// The next record; `None` where it is not written yet (then wait for `Journal::wait_own_written`).
    ///
    /// # Errors
    /// `Cut` where it is gone already, `Damaged` where it no longer holds.
    pub fn next_record(&mut self) -> Result<Option<(Position, Vec<u8>)>, StoreError> {
        if self.next > self.shared.own_written.get().0 {
            return Ok(None);
        }
        let recent = {
            let state = self.shared.state.borrow();
            let is_there = state.segments[0].first <= self.next;
            let record = state.recent.get(self.next).filter(|_| is_there);
            record.map(|record| (record.payload.clone(), record.end))
        };
        if let Some((payload, end)) = recent {
            let position = Position(self.next);
            (self.place, self.end) = (None, Some(end));
            self.advance();
            return Ok(Some((position, payload)));
        }
        self.find_segment()?;
        loop {
            let place = self.place.as_mut().expect("the segment was just found");
            let (header, payload) = read_record(&self.shared, place, place.position == self.next)?;
            place.offset += record_bytes(header.len) as u64;
            place.position += 1;
            if let Some(payload) = payload {
                self.advance();
                return Ok(Some((Position(header.position), payload)));
            }
        }
    }

    fn advance(&mut self) {
        self.next += 1;
        self.shared.state.borrow_mut().wanted.insert(self.number, self.next);
    }

    /// Goes to the segment that holds the next position.
    fn find_segment(&mut self) -> Result<(), StoreError> {
        let state = self.shared.state.borrow();
        let Some(segment) = state.segments.iter().rev().find(|one| one.first <= self.next) else {
            return Err(StoreError::Cut { asked: self.next, oldest: state.segments[0].first });
        };
        if self.place.as_ref().is_none_or(|place| place.sequence != segment.sequence) {
            let (sequence, file) = (segment.sequence, segment.file.clone());
            let (offset, position) = match self.end.take() {
                Some((known, offset)) if known == sequence => (offset, self.next),
                _ => (SEGMENT_HEADER_BYTES, segment.first),
            };
            self.place = Some(Place { sequence, file, offset, position });
        }
        Ok(())
    }
}

impl Drop for JournalReader {
    fn drop(&mut self) {
        self.shared.state.borrow_mut().wanted.remove(&self.number);
    }
}

/// Reads the record at `place`, its payload only where it is wanted.
fn read_record(
    shared: &Shared,
    place: &Place,
    wanted: bool,
) -> Result<(RecordHeader, Option<Vec<u8>>), StoreError> {
    let path = || shared.directory.join(super::segment_name(place.sequence));
    let read = |bytes: &mut [u8]| {
        let count = place.file.read_at(place.offset, bytes);
        count.map_err(|cause| StoreError::io("cannot read the journal", &path(), cause))
    };
    let damaged = || StoreError::Damaged {
        path: path(),
        what: format!("record {} at byte {} does not hold", place.position, place.offset),
    };
    let mut head = [0; RECORD_HEADER_BYTES];
    let count = read(&mut head)?;
    let header = RecordHeader::decode(&head[..count]).ok_or_else(damaged)?;
    if header.position != place.position || header.len > shared.config.segment_bytes as usize {
        return Err(damaged());
    }
    if !wanted {
        return Ok((header, None));
    }
    let mut bytes = vec![0; RECORD_HEADER_BYTES + header.len];
    let count = read(&mut bytes)?;
    let payload = header.payload(shared.seed, &bytes[..count]).ok_or_else(damaged)?.to_vec();
    Ok((header, Some(payload)))
}
