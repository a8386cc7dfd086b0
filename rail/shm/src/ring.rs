//! The ring of one direction of a link: one producer, one consumer, records of bytes in lines.
//!
//! A record is a word (its length and kind) and a body; it begins at a line and is contiguous: a record that does
//! not fit before the ring's end is preceded by a pad record that fills the rest. The consumer finds a record by the
//! word at its own position, so that a short frame crosses between two cores as a single cache line; there is no
//! shared tail index.
//!
//! Invariants:
//! * the word at the consumer's position is 0 until the record there is complete: before a record
//!   is published the producer has cleared the word behind it;
//! * at least one line stays free, so that the clearing never hits an unread record;
//! * the producer writes between its tail and the consumer's published head plus capacity only;
//! * every value that the other side wrote is read once and checked before it is used.
//!
//! The arithmetic is generic over the memory, so that the model checker runs this very code. It must not know the
//! meaning of a body.

/// The memory of a ring and its consumer's published head.
pub trait Medium {
    /// Bytes of a line, a power of two; the word takes the first 8.
    const LINE: usize;
    /// Bytes of the ring, a power of two, a multiple of the line.
    const CAPACITY: usize;

    /// The word at byte `at`, with Acquire.
    fn load_word(&self, at: usize) -> u64;
    /// Sets the word at byte `at`, with Release.
    fn publish_word(&self, at: usize, word: u64);
    /// Zeroes the word at byte `at`, relaxed.
    fn clear_word(&self, at: usize);
    /// The bytes that the consumer has consumed since the beginning, with Acquire.
    fn load_head(&self) -> u64;
    /// Sets it, with Release.
    fn publish_head(&self, head: u64);
}

/// Bytes of the word before a body.
pub const WORD_BYTES: usize = 8;

const VALID: u64 = 1 << 63;
const PAD: u64 = 1 << 62;

/// The other side wrote something that cannot be: the link has to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// The distance ahead of its tail up to which the producer clears words, in lines.
const LINES_AHEAD: usize = 24;

/// The producer's private state.
#[derive(Debug, Default)]
pub struct Producer {
    tail: u64,
    head_cached: u64,
    /// Between the tail and here the word of every line is 0.
    cleared: u64,
    /// Room was reserved and no record published since: lines behind the tail may have been written.
    reserved: bool,
}

/// Room for a record that is not published yet. It may be forgotten, also when it was written to.
#[derive(Debug)]
pub struct Reserved {
    /// The offset of the body in the ring, in bytes.
    pub at: usize,
    body: usize,
    /// Bytes of the pad record before it, or 0.
    pad: usize,
}

/// Bytes that a record with this body takes in a ring.
const fn record_bytes<M: Medium>(body: usize) -> usize {
    (WORD_BYTES + body).next_multiple_of(M::LINE)
}

impl Producer {
    /// Finds room for a body of `body` bytes; `None` while there is none.
    #[inline]
    pub fn reserve<M: Medium>(
        &mut self,
        medium: &M,
        body: usize,
    ) -> Result<Option<Reserved>, Corrupt> {
        if std::mem::replace(&mut self.reserved, true) {
            self.cleared = self.tail;
        }
        let record = record_bytes::<M>(body);
        assert!(record <= M::CAPACITY / 2, "a record longer than half a ring might never fit");
        let position = (self.tail as usize) & (M::CAPACITY - 1);
        let end = position + record;
        let mut pad = if end > M::CAPACITY { M::CAPACITY - position } else { 0 };
        // Each time it crosses another eighth the producer looks whether the consumer has caught up,
        // and begins anew then: under light traffic the memory that a ring touches stays small.
        let eighth = M::CAPACITY / 8;
        if pad == 0 && record < position && position / eighth != end / eighth {
            self.refresh(medium)?;
            if self.head_cached == self.tail {
                pad = M::CAPACITY - position;
            }
        }
        let needed = pad + record + M::LINE;
        if self.free::<M>() < needed {
            self.refresh(medium)?;
            if self.free::<M>() < needed {
                return Ok(None);
            }
        }
        let start = if pad > 0 { 0 } else { position };
        // Nearly always it was cleared ahead. If not, it is before the body, not after it: the consumer
        // watches the line where the body begins, and would take it back while the producer waits for
        // the line that is cleared here.
        if self.cleared <= self.tail + (pad + record) as u64 {
            medium.clear_word((start + record) & (M::CAPACITY - 1));
        }
        Ok(Some(Reserved { at: start + WORD_BYTES, body, pad }))
    }

    /// Publishes a record whose body was written.
    #[inline]
    pub fn commit<M: Medium>(&mut self, medium: &M, reserved: Reserved) {
        let Reserved { at, body, pad } = reserved;
        let record = record_bytes::<M>(body);
        let start = at - WORD_BYTES;
        medium.publish_word(start, VALID | body as u64);
        if pad > 0 {
            let position = (self.tail as usize) & (M::CAPACITY - 1);
            medium.publish_word(position, VALID | PAD | (pad - WORD_BYTES) as u64);
        }
        self.tail += (pad + record) as u64;
        self.reserved = false;
        self.clear_ahead(medium);
    }

    /// Clears the words of the lines that come next. That wins these lines from the consumer, who read
    /// them a lap ago, which takes longest of all; so it is done after a record was published, when
    /// nobody waits for it, and the next record meets lines that are the producer's already.
    #[inline]
    fn clear_ahead<M: Medium>(&mut self, medium: &M) {
        let line = M::LINE as u64;
        // The line at the tail was cleared before the record in front of it was published.
        self.cleared = self.cleared.max(self.tail + line);
        let ahead = self.tail + LINES_AHEAD as u64 * line;
        let end = ahead.min(self.head_cached + M::CAPACITY as u64);
        while self.cleared + line <= end {
            medium.clear_word((self.cleared as usize) & (M::CAPACITY - 1));
            self.cleared += line;
        }
    }

    /// Whether a record with a body of `body` bytes would fit now.
    pub fn has_room<M: Medium>(&mut self, medium: &M, body: usize) -> bool {
        !matches!(self.reserve(medium, body), Ok(None))
    }

    #[inline]
    fn refresh<M: Medium>(&mut self, medium: &M) -> Result<(), Corrupt> {
        let head = medium.load_head();
        if head < self.head_cached || head > self.tail {
            return Err(Corrupt);
        }
        self.head_cached = head;
        Ok(())
    }

    #[inline]
    fn free<M: Medium>(&self) -> usize {
        // The head was checked to lie at most a capacity behind the tail.
        M::CAPACITY - (self.tail - self.head_cached) as usize
    }
}

/// The consumer's private state.
#[derive(Debug, Default)]
pub struct Consumer {
    head: u64,
    published: u64,
}

/// A complete record at the head of a ring.
#[derive(Debug)]
pub struct Front {
    /// The offset of its body in the ring, in bytes.
    pub at: usize,
    /// Bytes of its body; the body lies within the ring.
    pub body: usize,
}

impl Consumer {
    /// Whether something lies at the head: a record, a pad, or garbage.
    #[inline]
    pub fn is_empty<M: Medium>(&self, medium: &M) -> bool {
        medium.load_word((self.head as usize) & (M::CAPACITY - 1)) == 0
    }

    /// The record at the head, where one is complete.
    #[inline]
    pub fn front<M: Medium>(&mut self, medium: &M) -> Result<Option<Front>, Corrupt> {
        loop {
            let position = (self.head as usize) & (M::CAPACITY - 1);
            let word = medium.load_word(position);
            if word == 0 {
                return Ok(None);
            }
            let body = (word & !(VALID | PAD)) as usize;
            let room = M::CAPACITY - position - WORD_BYTES;
            if word & VALID == 0 || body > room {
                return Err(Corrupt);
            }
            if word & PAD == 0 {
                return Ok(Some(Front { at: position + WORD_BYTES, body }));
            }
            // A pad fills the ring to its end, and is never at its beginning: so this loop ends.
            if body != room || position == 0 {
                return Err(Corrupt);
            }
            self.head += (body + WORD_BYTES) as u64;
        }
    }

    /// Steps over a record. Its bytes stay the consumer's until `publish`.
    #[inline]
    pub fn pop<M: Medium>(&mut self, front: Front) {
        self.head += record_bytes::<M>(front.body) as u64;
    }

    /// Bytes consumed and not published yet.
    #[inline]
    pub fn unpublished(&self) -> u64 {
        self.head - self.published
    }

    /// Gives the consumed bytes back to the producer.
    #[inline]
    pub fn publish<M: Medium>(&mut self, medium: &M) {
        self.published = self.head;
        medium.publish_head(self.head);
    }
}
