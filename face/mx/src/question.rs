//! The messages of two endpoints that connect: a question and its answer, each of fixed length.
//!
//! Layout (little-endian, 48 bytes): `"RWMX"`, version u16, kind u8 (1 question, 2 answer), status u8, number of
//! the question u32, key u32, session of the sender u32, reserved u32, card u64 and endpoint u32 of the sender,
//! card u64 and endpoint u32 of whom it is for.

const MAGIC: [u8; 4] = *b"RWMX";
const VERSION: u16 = 1;
/// Kinds.
pub const QUESTION: u8 = 1;
pub const REPLY: u8 = 2;
/// Its length.
pub const BYTES: usize = 48;

/// A question or an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    pub kind: u8,
    pub status: u8,
    pub number: u32,
    pub key: u32,
    pub session: u32,
    pub from: (u64, u32),
    pub to: (u64, u32),
}

impl Message {
    /// Writes it, in `BYTES` bytes.
    pub fn write(&self, to: &mut [u8]) {
        to.fill(0);
        to[0..4].copy_from_slice(&MAGIC);
        to[4..6].copy_from_slice(&VERSION.to_le_bytes());
        (to[6], to[7]) = (self.kind, self.status);
        to[8..12].copy_from_slice(&self.number.to_le_bytes());
        to[12..16].copy_from_slice(&self.key.to_le_bytes());
        to[16..20].copy_from_slice(&self.session.to_le_bytes());
        to[24..32].copy_from_slice(&self.from.0.to_le_bytes());
        to[32..36].copy_from_slice(&self.from.1.to_le_bytes());
        to[36..44].copy_from_slice(&self.to.0.to_le_bytes());
        to[44..48].copy_from_slice(&self.to.1.to_le_bytes());
    }

    /// Reads what a peer wrote; `None` where it is no such message.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from(half(at)) | u32::from(half(at + 2)) << 16;
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let place = |at: usize| (long(at), word(at + 8));
        let message = Message {
            kind: bytes[6],
            status: bytes[7],
            number: word(8),
            key: word(12),
            session: word(16),
            from: place(24),
            to: place(36),
        };
        let known = bytes[0..4] == MAGIC && half(4) == VERSION && message.from.1 <= 255;
        (known && message.session != 0).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_anything_else_is_refused() {
        let message = Message {
            kind: QUESTION,
            status: 34,
            number: 0x0102_0304,
            key: 0xdead_beef,
            session: 7,
            from: (0x0200_0000_0001, 3),
            to: (0x0200_0000_0002, 0),
        };
        let mut bytes = [0xff; BYTES];
        message.write(&mut bytes);
        assert_eq!(Message::read(&bytes), Some(message));
        assert_eq!(Message::read(&bytes[..BYTES - 1]), None);
        for at in [0, 4] {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Message::read(&other), None, "byte {at}");
        }
        let mut other = bytes;
        other[33] = 1;
        assert_eq!(Message::read(&other), None, "endpoints have 8 bits");
    }
}
