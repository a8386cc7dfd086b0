//! The records of a byte stream.
//!
//! A record is its length (2 bytes, little endian: text and tag), the text, and the tag. The length is covered by the tag.
//! Both sides count the records; the count is the number under which each is sealed. So a record that is lost, doubled,
//! moved or changed is noticed at once, and the stream ends there.

use ropewalk_base::payload::{Cipher, DirectionKey, PayloadMode};

use crate::cipher::{Opener, RECORDS_PER_KEY, Sealer, TAG_BYTES};

/// Bytes before the text of a record.
pub const HEAD_BYTES: usize = 2;
/// Bytes of a record beside its text.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;
/// The longest text of a record, in bytes.
pub const TEXT_BYTES_MAX: usize = 16 * 1024;

/// A record that is not the next one of the other side. The stream ends here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordError {
    /// No record has this length.
    Length(usize),
    /// Somebody changed, repeated, left out or made up bytes.
    Forged,
}

/// Makes the records of one direction.
#[derive(Debug)]
pub struct Writer {
    sealer: Sealer,
}

/// Opens the records of one direction.
#[derive(Debug)]
pub struct Reader {
    opener: Opener,
    next: u64,
}

impl Writer {
    pub fn new(mode: PayloadMode, cipher: Cipher, secret: DirectionKey) -> Writer {
        Writer::with_keys_of(mode, cipher, secret, RECORDS_PER_KEY)
    }

    /// The same with another number of records for each key, for tests.
    pub fn with_keys_of(
        mode: PayloadMode,
        cipher: Cipher,
        secret: DirectionKey,
        per_key: u64,
    ) -> Writer {
        Writer { sealer: Sealer::with_keys_of(mode, cipher, secret, per_key) }
    }

    /// Makes a record of `record`, in place: there lie room for the head, the text, and room for the tag.
    ///
    /// # Panics
    /// The text is empty, or longer than [`TEXT_BYTES_MAX`].
    pub fn seal(&mut self, record: &mut [u8]) {
        let text = record.len() - OVERHEAD_BYTES;
        assert!((1..=TEXT_BYTES_MAX).contains(&text), "a record of {text} bytes");
        let (body, tag) = record.split_at_mut(HEAD_BYTES + text);
        body[..HEAD_BYTES].copy_from_slice(&((text + TAG_BYTES) as u16).to_le_bytes());
        let number = self.sealer.next();
        tag.copy_from_slice(&self.sealer.seal(number, HEAD_BYTES, body));
    }
}

impl Reader {
    pub fn new(mode: PayloadMode, cipher: Cipher, secret: DirectionKey) -> Reader {
        Reader::with_keys_of(mode, cipher, secret, RECORDS_PER_KEY)
    }

    /// The same with another number of records for each key, for tests.
    pub fn with_keys_of(
        mode: PayloadMode,
        cipher: Cipher,
        secret: DirectionKey,
        per_key: u64,
    ) -> Reader {
        Reader { opener: Opener::with_keys_of(mode, cipher, secret, per_key), next: 0 }
    }

    /// Bytes of the record that begins here; `None`: its head is not complete.
    ///
    /// # Errors
    /// No record has this length.
    pub fn record_bytes(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        let body = usize::from(u16::from_le_bytes(*head));
        match (TAG_BYTES + 1..=TAG_BYTES + TEXT_BYTES_MAX).contains(&body) {
            true => Ok(Some(HEAD_BYTES + body)),
            false => Err(RecordError::Length(body)),
        }
    }

    /// Opens a whole record in place. Returns the bytes of its text, which lies behind the head then.
    ///
    /// # Errors
    /// It is not the next record of the other side.
    pub fn open(&mut self, record: &mut [u8]) -> Result<usize, RecordError> {
        let text = self.opener.open(self.next, HEAD_BYTES, record);
        let text = text.map_err(|_| RecordError::Forged)?;
        self.next += 1;
        Ok(text)
    }
}
