//! A frame on its way out of a link.

use ropewalk_base::memory::{BufferTable, Gone, Slice};
use ropewalk_base::verb::{Header, Token};

/// A frame that has not left completely.
#[derive(Debug)]
pub struct Outgoing {
    pub header: Header,
    pub payload: Slice,
    pub token: Token,
    /// Bytes of header and payload that the socket took.
    pub sent: u32,
    /// The payload's last bytes, once its owner wanted its memory back: the slice names nothing then
    /// but the length.
    pub copy: Option<Box<[u8]>>,
    /// It leaves in sealed records; then `sent` counts the bytes that were sealed.
    pub is_sealed: bool,
}

impl Outgoing {
    /// Bytes of header and payload that have not left.
    #[inline]
    pub fn left(&self) -> usize {
        self.header.as_bytes().len() + self.payload.len as usize - self.sent as usize
    }

    /// The part of the payload that has not left.
    #[inline]
    pub fn payload_left(&self) -> Slice {
        let begun = u64::from(self.sent).saturating_sub(self.header.as_bytes().len() as u64);
        self.payload.part(begun, self.payload.len - begun)
    }

    /// Copies bytes of what has not left, from `from` on, to where they are sealed.
    ///
    /// # Errors
    /// Memory of the payload is gone.
    pub fn copy_part(&self, from: usize, to: &mut [u8], buffers: &BufferTable) -> Result<(), Gone> {
        let begin = self.sent as usize + from;
        let header = self.header.as_bytes().get(begin..).unwrap_or(&[]);
        let header = &header[..header.len().min(to.len())];
        let (first, rest) = to.split_at_mut(header.len());
        first.copy_from_slice(header);
        if rest.is_empty() {
            return Ok(());
        }
        let begin = begin + header.len() - self.header.as_bytes().len();
        if let Some(copy) = &self.copy {
            // It ends where the payload ends.
            let at = copy.len() + begin - self.payload.len as usize;
            rest.copy_from_slice(&copy[at..at + rest.len()]);
            return Ok(());
        }
        let part = self.payload.part(begin as u64, rest.len() as u64);
        let read = buffers.try_read(part, rest)?;
        // Fewer bytes than the header says would make the peer take the next frame for payload.
        assert_eq!(
            read,
            rest.len(),
            "the buffer of a queued frame left the table before its outcome"
        );
        Ok(())
    }

    /// Copies the part of the payload that has not left; its memory is the owner's again. False if the payload is
    /// not there.
    pub fn detach(&mut self, buffers: &BufferTable) -> bool {
        let left = self.payload_left();
        let mut copy = vec![0; left.len as usize].into_boxed_slice();
        let whole = buffers.read(left, &mut copy) == copy.len();
        if whole {
            self.copy = Some(copy);
        }
        whole
    }
}
