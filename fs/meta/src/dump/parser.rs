//! Reading a dump as its bytes come.
//!
//! A strict parser ends at the first fault. A lax one passes damaged frames over, and tells of them. Frames within frames are
//! never looked for, since these hold bytes of users.

use super::format::{
    DumpedRow, Ending, Frame, Head, Kind, Look, Lost, Totals, Undecodable, VERSION, decode,
    frame_length, look, rows,
};
use super::tables::is_sound;

/// Why bytes are no dump that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    #[error("it is not a dump of metadata")]
    NotADump,
    #[error(
        "the dump has format {found}, but this program reads formats up to {VERSION}: use a newer program"
    )]
    Newer { found: u8 },
    #[error(
        "the dump is cut off at byte {offset}: use another one, or read what is good of it (--salvage)"
    )]
    Truncated { offset: u64 },
    #[error(
        "the dump is damaged at byte {offset}: {what}; use another one, or read what is good of it \
         (--salvage)"
    )]
    Damaged { offset: u64, what: &'static str },
    #[error(
        "the dump says neither at its beginning nor at its end which file system it is of: use \
         another one"
    )]
    Headless,
}

/// A part of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// Where the dump is from: first, and once more at the end.
    Head(Head),
    Rows(Vec<DumpedRow>),
    /// The source could not be read there.
    Lost(Lost),
    /// Of a lax parser: bytes of the dump that are no frame.
    Skipped {
        from: u64,
        to: u64,
    },
    /// Of a lax parser: frames are missing or twice there, or the end's counts differ.
    Gap,
    /// The dump ends here, and is whole where the parser is strict.
    End(Totals),
}

/// See the module.
#[derive(Debug)]
pub struct Parser {
    lax: bool,
    buffer: Vec<u8>,
    /// Bytes of the buffer that are done.
    done: usize,
    /// The offset of the first byte that is not done.
    offset: u64,
    totals: Totals,
    /// The number of the next frame.
    number: u32,
    has_begun: bool,
    has_ended: bool,
    /// Items that come before all others.
    pending: Vec<Item>,
    /// Where the bytes begin that are no frame.
    skipped_from: Option<u64>,
    /// Bytes of a damaged frame that are yet to be passed over; `u64::MAX`: all that follow.
    over: u64,
    /// The key of the last row.
    last_key: Vec<u8>,
}

impl Parser {
    /// A parser of a whole dump.
    pub fn strict() -> Parser {
        Parser::new(false)
    }

    /// A parser that goes on behind what is damaged.
    pub fn lax() -> Parser {
        Parser::new(true)
    }

    fn new(lax: bool) -> Parser {
        Parser {
            lax,
            buffer: Vec::new(),
            done: 0,
            offset: 0,
            totals: Totals::default(),
            number: 0,
            has_begun: false,
            has_ended: false,
            pending: Vec::new(),
            skipped_from: None,
            over: 0,
            last_key: Vec::new(),
        }
    }

    /// Takes more bytes. To be called when [`Parser::next_item`] has none.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.done);
        self.done = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next part; None where there are more bytes needed.
    pub fn next_item(&mut self) -> Result<Option<Item>, DumpError> {
        self.next(false)
    }

    /// As `next_item`, when there are no more bytes. None: that was all.
    pub fn last_item(&mut self) -> Result<Option<Item>, DumpError> {
        if let Some(item) = self.next(true)? {
            return Ok(Some(item));
        }
        match (self.has_ended, self.has_begun, self.lax) {
            (true, ..) | (_, _, true) => Ok(None),
            (false, false, _) if self.offset == 0 && self.buffer.is_empty() => {
                Err(DumpError::NotADump)
            }
            _ => Err(DumpError::Truncated { offset: self.offset }),
        }
    }

    /// The rows and places that were found until now.
    pub fn found(&self) -> &Totals {
        &self.totals
    }

    /// Whether the last frame of the dump was there.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn next(&mut self, is_last: bool) -> Result<Option<Item>, DumpError> {
        loop {
            if let Some(item) = self.pending.pop() {
                return Ok(Some(item));
            }
            let bytes = &self.buffer[self.done..];
            if bytes.is_empty() {
                return Ok(if is_last { self.end_of_skipped() } else { None });
            }
            if self.over > 0 {
                let count = usize::try_from(self.over).unwrap_or(usize::MAX).min(bytes.len());
                if self.over < u64::MAX {
                    self.over -= count as u64;
                }
                self.skip(count);
                continue;
            }
            let what = match look(bytes) {
                _ if self.has_ended && !self.lax => "there are bytes behind the end",
                Look::Frame(frame) if self.lax && frame.number != self.number => {
                    // Nobody knows whose it is.
                    self.skipped_from.get_or_insert(self.offset);
                    self.over = u64::MAX;
                    continue;
                }
                Look::Frame(frame) => {
                    let (kind, number) = (frame.kind, frame.number);
                    let length = frame.bytes.len();
                    let taken = taken(&frame).and_then(|items| match self.are_in_order(&items) {
                        true => Ok(items),
                        false => Err(Undecodable::Senseless),
                    });
                    let taken = taken.map_err(|error| match error {
                        Undecodable::Newer(found) => DumpError::Newer { found },
                        Undecodable::Senseless => self.damaged("the frame does not decode"),
                    });
                    match taken {
                        Ok(items) => {
                            let fits = self.note(kind, number, &items, length);
                            if let (Err(what), false) = (fits, self.lax) {
                                return Err(self.damaged(what));
                            }
                            let gap = fits.is_err().then_some(Item::Gap);
                            let skipped = self.end_of_skipped();
                            let all = skipped.into_iter().chain(items).chain(gap);
                            self.pending = all.collect();
                            self.pending.reverse();
                            self.skip(length);
                            continue;
                        }
                        Err(error @ DumpError::Newer { .. }) => return Err(error),
                        Err(_) => "the frame does not decode",
                    }
                }
                Look::More if !is_last => return Ok(None),
                Look::More if !self.lax => {
                    return Err(DumpError::Truncated { offset: self.offset });
                }
                Look::More => "the frame is cut off",
                Look::Bad(_) if !self.lax && self.offset == 0 => return Err(DumpError::NotADump),
                Look::Bad(what) => what,
            };
            if !self.lax {
                return Err(self.damaged(what));
            }
            self.pass_over();
        }
    }

    fn damaged(&self, what: &'static str) -> DumpError {
        DumpError::Damaged { offset: self.offset, what }
    }

    fn skip(&mut self, count: usize) {
        self.done += count;
        self.offset += count as u64;
    }

    /// Passes a damaged frame over, as long as it says that it is. Nothing within it is looked for: it has bytes of users, who
    /// may have put frames there. Where its head is damaged, nothing behind it counts.
    fn pass_over(&mut self) {
        self.skipped_from.get_or_insert(self.offset);
        self.over = frame_length(&self.buffer[self.done..]).map_or(u64::MAX, |it| it as u64);
        self.number = self.number.wrapping_add(1);
    }

    fn end_of_skipped(&mut self) -> Option<Item> {
        let from = self.skipped_from.take()?;
        Some(Item::Skipped { from, to: self.offset })
    }

    /// Whether rows come after those before them, and make sense.
    fn are_in_order(&self, items: &[Item]) -> bool {
        let mut last = &self.last_key[..];
        let rows = items.iter().flat_map(|item| match item {
            Item::Rows(rows) => &rows[..],
            _ => &[],
        });
        for (key, value) in rows {
            if key[..] <= *last || !is_sound(key, value) {
                return false;
            }
            last = key;
        }
        true
    }

    /// Compares a frame with those before it, and counts it.
    fn note(
        &mut self,
        kind: Kind,
        number: u32,
        items: &[Item],
        length: usize,
    ) -> Result<(), &'static str> {
        let frame = &self.buffer[self.done..self.done + length];
        let expected = std::mem::replace(&mut self.number, number.wrapping_add(1));
        let mut fits = match number == expected && (number == 0) == (kind == Kind::Begin) {
            true => Ok(()),
            false => Err("frames are missing, or in another order"),
        };
        self.has_begun |= kind == Kind::Begin;
        if self.has_ended {
            fits = Err("there are frames behind the end");
        }
        if kind == Kind::End {
            self.has_ended = true;
            let same = |item: &Item| matches!(item, Item::End(totals) if *totals == self.totals);
            return match items.iter().any(same) {
                true => fits,
                false => fits.and(Err("the counts at the end do not fit")),
            };
        }
        self.totals.add(frame);
        for item in items {
            match item {
                Item::Rows(rows) => {
                    rows.iter().for_each(|(key, _)| self.totals.count_row(key));
                    if let Some((key, _)) = rows.last() {
                        self.last_key.clone_from(key);
                    }
                }
                Item::Lost(_) => self.totals.lost += 1,
                _ => {}
            }
        }
        fits
    }
}

/// The content of a frame.
fn taken(frame: &Frame<'_>) -> Result<Vec<Item>, Undecodable> {
    Ok(match frame.kind {
        Kind::Begin => vec![Item::Head(decode(frame.payload)?)],
        Kind::Rows => vec![Item::Rows(rows(frame.payload).ok_or(Undecodable::Senseless)?)],
        Kind::Lost => vec![Item::Lost(decode(frame.payload)?)],
        Kind::End => {
            let Ending { totals, head } = decode(frame.payload)?;
            vec![Item::Head(head), Item::End(totals)]
        }
    })
}
