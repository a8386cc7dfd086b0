//! Frames that no honest side sent.

use std::rc::Rc;

use ropewalk_base::verb::Header;
use ropewalk_wire::frame::{self, Body, Envelope, Kind};

use super::{Frame, Player};

/// Bytes of a body, by kind: from `Key` to `Immediate`.
const BODY_BYTES: [usize; 19] =
    [24, 48, 8, 24, 8, 16, 12, 8, 16, 32, 8, 16, 48, 56, 48, 64, 64, 48, 56];
const _: () = assert!(Kind::Immediate as usize == Kind::Key as usize + BODY_BYTES.len() - 1);

impl Player<'_> {
    /// A frame of the kinds of paths, with any body.
    pub(super) fn slip_in(&mut self, wire: usize, side: usize) {
        let choice = usize::from(self.byte()) % BODY_BYTES.len();
        let kind = Kind::Key as u8 + choice as u8;
        let shape = self.byte();
        let session = self.seen[side].iter().rev().find_map(|seen| {
            let (prefix, _) = frame::decode(seen.header.as_bytes()).ok()?;
            Some(prefix.session.get()).filter(|session| *session != 0)
        });
        let session = if shape & 1 == 0 { session.unwrap_or(1) } else { self.number() as u32 };
        let span = if shape & 6 == 0 { self.number() } else { 0 };
        let attempt = u16::from(shape >> 4);
        let envelope = Envelope { session, span, attempt, ..Envelope::default() };
        let mut bytes = frame::encode(envelope, &Body::Goodbye).as_bytes().to_vec();
        let words: [u64; 8] = std::array::from_fn(|_| self.number());
        let body = words.map(u64::to_le_bytes);
        bytes.extend_from_slice(&body.as_flattened()[..BODY_BYTES[choice]]);
        (bytes[0], bytes[1]) = (kind, bytes.len() as u8);
        self.place(wire, side, Frame { header: Header::new(&bytes), payload: Rc::default() });
    }
}
