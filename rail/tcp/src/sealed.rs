//! The protection of a link: its records on the way out, and on the way in.
//!
//! A frame is copied into records, which are sealed where they lie and then sent. So a frame has left as soon as all of it is
//! sealed. Records are read into the rail's buffer, opened there, and given away like plain bytes.
//!
//! Invariants: an idle link has no buffer; a link whose socket is full holds at most [`OUT_BYTES`] sealed bytes, and at most
//! one record whose end has not come.

use ropewalk_base::memory::{BufferTable, Gone};
use ropewalk_base::payload::LinkKeys;
use ropewalk_seal::{HEAD_BYTES, OVERHEAD_BYTES, Reader, TAG_BYTES, TEXT_BYTES_MAX, Writer};

use crate::outgoing::Outgoing;

/// Bytes of the buffer in which records are made: four of the longest ones.
pub const OUT_BYTES: usize = 4 * RECORD_BYTES_MAX;
/// Bytes of the buffer into which records are read: eight of them.
pub const IN_BYTES: usize = 8 * RECORD_BYTES_MAX;
/// The longest record.
const RECORD_BYTES_MAX: usize = TEXT_BYTES_MAX + OVERHEAD_BYTES;

/// Whether the frames of a link are sealed.
#[derive(Debug)]
pub enum LinkSeal {
    /// Both sides still greet: nobody has said it.
    Undecided,
    /// They are not.
    Plain,
    Sealed(Box<Sealed>),
}

/// A link whose peer seals what it sends.
#[derive(Debug)]
pub struct Sealed {
    pub reader: Reader,
    /// The beginning of a record whose end has not come.
    pub partial: Vec<u8>,
    /// Seals what we send, as soon as the layer above has ordered it.
    pub writer: Option<Writer>,
    pub out: Out,
}

/// Sealed bytes that the socket has not taken.
#[derive(Debug, Default)]
pub struct Out {
    bytes: Box<[u8]>,
    filled: usize,
    taken: usize,
}

/// Buffers that no link needs at the moment.
#[derive(Debug, Default)]
pub struct Spares {
    out: Box<[u8]>,
    partial: Vec<u8>,
}

/// The record that frames are copied into.
pub struct Filling<'a> {
    writer: &'a mut Writer,
    out: &'a mut Out,
    /// The beginning of a record that is not sealed yet.
    begun: Option<usize>,
}

impl LinkSeal {
    /// The protection of a link, where it has one.
    #[inline]
    pub fn sealed(&mut self) -> Option<&mut Sealed> {
        match self {
            LinkSeal::Sealed(sealed) => Some(sealed),
            _ => None,
        }
    }

    /// Whether frames that are ordered now leave sealed.
    #[inline]
    pub fn seals(&self) -> bool {
        matches!(self, LinkSeal::Sealed(sealed) if sealed.writer.is_some())
    }

    /// Whether the end of a record has not come.
    pub fn is_in_record(&self) -> bool {
        matches!(self, LinkSeal::Sealed(sealed) if !sealed.partial.is_empty())
    }

    /// Whether sealed bytes wait for the socket.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        matches!(self, LinkSeal::Sealed(sealed) if !sealed.out.is_empty())
    }
}

impl Sealed {
    /// What arrives is sealed with these keys.
    pub fn new(keys: &LinkKeys) -> Sealed {
        Sealed {
            reader: Reader::new(keys.mode, keys.cipher, keys.receive.clone()),
            partial: Vec::new(),
            writer: None,
            out: Out::default(),
        }
    }

    /// What leaves is sealed, too.
    pub fn begin_sending(&mut self, keys: &LinkKeys) {
        // Never anew: its numbers would come again.
        let new = || Writer::new(keys.mode, keys.cipher, keys.send.clone());
        self.writer.get_or_insert_with(new);
    }
}

impl Out {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taken == self.filled
    }

    /// The bytes that wait.
    #[inline]
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.taken..self.filled]
    }

    /// The socket took bytes. The buffer goes to the spare ones when it is empty.
    pub fn advance(&mut self, bytes: usize, spares: &mut Spares) {
        self.taken += bytes;
        if self.is_empty() {
            (self.filled, self.taken) = (0, 0);
            spares.out = std::mem::take(&mut self.bytes);
        }
    }
}

impl Spares {
    /// The buffer for the beginning of a record.
    pub fn take_partial(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }

    /// Takes it back.
    pub fn give_partial(&mut self, mut partial: Vec<u8>) {
        partial.clear();
        if partial.capacity() <= IN_BYTES && partial.capacity() > self.partial.capacity() {
            self.partial = partial;
        }
    }
}

impl<'a> Filling<'a> {
    /// Fills an empty buffer.
    pub fn new(writer: &'a mut Writer, out: &'a mut Out, spares: &mut Spares) -> Filling<'a> {
        debug_assert!(out.is_empty(), "records leave in the order in which they were made");
        if out.bytes.is_empty() {
            out.bytes = std::mem::take(&mut spares.out);
        }
        if out.bytes.is_empty() {
            out.bytes = vec![0; OUT_BYTES].into_boxed_slice();
        }
        (out.filled, out.taken) = (0, 0);
        Filling { writer, out, begun: None }
    }

    /// Bytes that still fit into the record, or into the next one where none is begun.
    fn room(&self) -> usize {
        let Some(begun) = self.begun else {
            let left = self.out.bytes.len() - self.out.filled;
            return left.saturating_sub(OVERHEAD_BYTES).min(TEXT_BYTES_MAX);
        };
        let most = (begun + HEAD_BYTES + TEXT_BYTES_MAX).min(self.out.bytes.len() - TAG_BYTES);
        most - self.out.filled
    }

    /// Copies the rest of a frame into records. Returns the bytes that found room: the buffer is full where they are fewer.
    ///
    /// # Errors
    /// Memory of the payload is gone. Nothing of the record that it belongs to will leave.
    pub fn add(&mut self, frame: &Outgoing, buffers: &BufferTable) -> Result<usize, Gone> {
        let left = frame.left();
        // A frame that fits into one record lies in one: it is handed up whole at the other side.
        if left > self.room() && left <= TEXT_BYTES_MAX {
            self.finish();
            if left > self.room() {
                return Ok(0);
            }
        }
        let mut done = 0;
        while done < left {
            let room = self.room();
            if room == 0 {
                if self.begun.is_none() {
                    break;
                }
                self.finish();
                continue;
            }
            let bytes = room.min(left - done);
            let begun = *self.begun.get_or_insert_with(|| {
                let begun = self.out.filled;
                self.out.filled += HEAD_BYTES;
                begun
            });
            let to = &mut self.out.bytes[self.out.filled..][..bytes];
            if let Err(gone) = frame.copy_part(done, to, buffers) {
                self.out.filled = begun;
                self.begun = None;
                return Err(gone);
            }
            self.out.filled += bytes;
            done += bytes;
        }
        Ok(done)
    }

    /// Seals the record that is begun.
    pub fn finish(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.out.filled += TAG_BYTES;
            self.writer.seal(&mut self.out.bytes[begun..self.out.filled]);
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::memory::{Memory, Slice};
    use ropewalk_base::payload::{Cipher, DirectionKey, PayloadMode};
    use ropewalk_base::pool::Pool;
    use ropewalk_base::verb::{Header, Token};

    use super::*;

    fn keys() -> LinkKeys {
        LinkKeys {
            mode: PayloadMode::Secure,
            cipher: Cipher::Aes256Gcm,
            send: DirectionKey([1; 32]),
            receive: DirectionKey([1; 32]),
            has_greeted: true,
        }
    }

    fn frame(payload: Slice, sent: u32) -> Outgoing {
        let header = Header::new(&[7; 40]);
        Outgoing { header, payload, token: Token::NONE, sent, copy: None, is_sealed: true }
    }

    /// The texts of the records in a buffer.
    fn texts(reader: &mut Reader, bytes: &[u8]) -> Vec<Vec<u8>> {
        let (mut bytes, mut texts) = (bytes.to_vec(), Vec::new());
        while let Some(len) = Reader::record_bytes(&bytes).unwrap() {
            let rest = bytes.split_off(len);
            let text = reader.open(&mut bytes).unwrap();
            texts.push(bytes[HEAD_BYTES..HEAD_BYTES + text].to_vec());
            bytes = rest;
        }
        texts
    }

    #[test]
    fn frames_of_any_length_come_out_as_they_went_in() {
        let mut buffers = BufferTable::with_limit(4);
        let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 7 / 3) as u8).collect();
        let copy = Pool::with_budget(1 << 20).copy_of(&bytes).unwrap();
        let buffer = buffers.insert(Memory::pooled(copy)).unwrap();
        for len in [1, 100, TEXT_BYTES_MAX - 40, TEXT_BYTES_MAX - 39, 65_536, 300_000] {
            let mut sealed = Sealed::new(&keys());
            sealed.begin_sending(&keys());
            let (mut reader, mut spares) = (sealed.reader, Spares::default());
            let (mut writer, mut out) = (sealed.writer.unwrap(), sealed.out);
            let payload = Slice { buffer, offset: 0, len: len as u64 };
            let (mut sent, mut heard) = (0, Vec::new());
            while sent < len + 40 {
                let mut filling = Filling::new(&mut writer, &mut out, &mut spares);
                let done = filling.add(&frame(payload, sent as u32), &buffers).unwrap();
                filling.finish();
                assert!(done > 0, "{len} bytes at {sent}");
                sent += done;
                let waiting = out.waiting().to_vec();
                out.advance(waiting.len(), &mut spares);
                let texts = texts(&mut reader, &waiting);
                assert!(texts.len() == 1 || len + 40 > TEXT_BYTES_MAX, "{len}");
                heard.extend(texts.concat());
            }
            assert_eq!(heard[..40], [7; 40], "{len}");
            assert!(heard[40..] == bytes[..len], "{len}");
        }
    }

    #[test]
    fn short_frames_share_a_record_and_none_is_cut() {
        let buffers = BufferTable::with_limit(1);
        let mut sealed = Sealed::new(&keys());
        sealed.begin_sending(&keys());
        let (mut spares, mut count) = (Spares::default(), 0);
        let mut writer = sealed.writer.take().unwrap();
        let mut filling = Filling::new(&mut writer, &mut sealed.out, &mut spares);
        while filling.add(&frame(Slice::NONE, 0), &buffers).unwrap() == 40 {
            count += 1;
        }
        filling.finish();
        assert!(count >= 4 * (TEXT_BYTES_MAX / 40), "{count}");
        let texts = texts(&mut sealed.reader, sealed.out.waiting());
        assert!(texts.len() >= 4 && texts.iter().all(|text| text.len() % 40 == 0));
    }
}
