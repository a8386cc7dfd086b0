//! Frames between the launcher, its agents and their ranks.
//!
//! 12 bytes in front, little endian: kind (1), zeros (3), rank (4), length (4). Then so many bytes.

use std::io::{self, ErrorKind, Read, Write};

use crate::RANKS_MAX;
use crate::exchange::PART_BYTES_MAX;

/// The longest frame: the parts of all ranks, each with its length.
const BYTES_MAX: usize = RANKS_MAX as usize * (PART_BYTES_MAX + 4);
const HEADER_BYTES: usize = 12;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// To an agent: what it is to run, as JSON.
    Spec = 1,
    /// Of a rank, once: the key.
    Hello = 2,
    /// Of a rank: its part of a round.
    Part = 3,
    /// To ranks: the parts of all.
    Parts = 4,
    /// Of a rank: the job is to end. A byte, the status; then text.
    Abort = 5,
    /// What a rank wrote to its standard output.
    Output = 6,
    /// What it wrote to its standard error.
    Errors = 7,
    /// A rank ended: its status, 4 bytes.
    Ended = 8,
    /// To an agent: a signal for its ranks, 4 bytes.
    Signal = 9,
    /// Of an agent: it cannot do its work. Text.
    Failed = 10,
}

const KINDS: [Kind; 10] = [
    Kind::Spec,
    Kind::Hello,
    Kind::Part,
    Kind::Parts,
    Kind::Abort,
    Kind::Output,
    Kind::Errors,
    Kind::Ended,
    Kind::Signal,
    Kind::Failed,
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub kind: Kind,
    /// The rank that it is of; 0 where it is of none.
    pub rank: u32,
    pub bytes: Vec<u8>,
}

impl Frame {
    pub fn new(kind: Kind, rank: u32, bytes: impl Into<Vec<u8>>) -> Frame {
        Frame { kind, rank, bytes: bytes.into() }
    }

    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut all = Vec::with_capacity(HEADER_BYTES + self.bytes.len());
        all.extend([self.kind as u8, 0, 0, 0]);
        all.extend(self.rank.to_le_bytes());
        all.extend((self.bytes.len() as u32).to_le_bytes());
        all.extend(&self.bytes);
        to.write_all(&all)?;
        to.flush()
    }

    /// The next frame; `None` where the other side has closed its end.
    ///
    /// # Errors
    /// It is no frame, it is longer than any, it ends in its midst, or the other side cannot be read.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Frame>> {
        let mut header = [0; HEADER_BYTES];
        let mut have = 0;
        while have < HEADER_BYTES {
            match from.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => have += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        let kind = KINDS.into_iter().find(|kind| *kind as u8 == header[0]);
        let len = word(8) as usize;
        let is_frame = header[1..4] == [0; 3] && len <= BYTES_MAX && word(4) < RANKS_MAX;
        let Some(kind) = kind.filter(|_| is_frame) else {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "these bytes are no frame of a job",
            ));
        };
        let mut bytes = Vec::new();
        // Memory grows with what comes, not with what is announced.
        from.take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(Some(Frame { kind, rank: word(4), bytes }))
    }

    /// A number of four bytes.
    pub fn number(&self) -> Option<u32> {
        self.bytes.as_slice().try_into().ok().map(u32::from_le_bytes)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_as_they_went_and_one_after_the_other() {
        let frames = [
            Frame::new(Kind::Part, 3, *b"abc"),
            Frame::new(Kind::Ended, 1023, 7u32.to_le_bytes()),
            Frame::new(Kind::Output, 0, Vec::new()),
        ];
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.write(&mut bytes).unwrap());
        let mut from = bytes.as_slice();
        for frame in &frames {
            assert_eq!(Frame::read(&mut from).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(Frame::read(&mut from).unwrap(), None);
        assert_eq!(frames[1].number(), Some(7));
        assert_eq!(frames[0].number(), None);
    }

    #[test]
    fn what_is_no_frame_is_an_error_and_costs_no_memory() {
        let mut whole = Vec::new();
        Frame::new(Kind::Part, 3, *b"abc").write(&mut whole).unwrap();
        for len in 1..whole.len() {
            let error = Frame::read(&mut &whole[..len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{len} bytes");
        }
        for (at, byte) in [(0, 0), (0, 11), (1, 1), (5, 4), (11, 0xff)] {
            let mut other = whole.clone();
            other[at] = byte;
            let error = Frame::read(&mut other.as_slice()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "byte {at}");
        }
        // It is announced, and does not come.
        let mut long = whole.clone();
        long[8..12].copy_from_slice(&(BYTES_MAX as u32).to_le_bytes());
        let error = Frame::read(&mut long.as_slice()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
