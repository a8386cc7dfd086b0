//! The fixed heads of calls and replies: session, slot, sequence, marks (DESIGN 5, sessions).
//!
//! A call is a request message (BMI's unexpected class): head and body. Its reply is a tagged
//! message whose match bits the head names. Bulk moves beside both, by remote access.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;

/// Which protocol a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// Sessions themselves: open, renew, close.
    Session,
    /// Metadata: `MetaRequest`.
    Meta,
    /// Data: `DataRequest`.
    Data,
    /// From a metadata server to its client: `Callback`.
    Callback,
}

/// Version of everything in this folder; peers of different versions refuse each other.
pub const VERSION: u16 = 4;
/// Slots of a session: calls that one client may have in flight at one server.
pub const SLOTS_MAX: u16 = 64;
/// Longest body of a call, in bytes; more goes as bulk.
pub const CALL_BYTES_MAX: usize = 24 * 1024;
/// Longest body of a reply, in bytes.
pub const REPLY_BYTES_MAX: usize = 256 * 1024;

/// Head of a call; 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallHead {
    pub service: Service,
    /// The client sent this call before and did not see the reply.
    pub retry: bool,
    /// The session, or 0 for calls outside one (opening a session, `status`).
    pub session: u64,
    /// Slot within the session.
    pub slot: u16,
    /// The slot's sequence number: 1 for its first call, one more for each further call.
    pub sequence: u64,
    /// Match bits of the reply.
    pub reply_bits: u64,
    /// The session's epoch: below the fence of a data server, the call is refused.
    pub epoch: u32,
}

/// Head of a reply; 48 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    pub status: Status,
    pub slot: u16,
    /// Of the call.
    pub sequence: u64,
    /// The server's life: new at each start.
    pub boot: u64,
    /// Nothing that was acknowledged in an era is lost while it lasts; a power loss ends it.
    pub era: u64,
    /// Everything up to this position survives the death of the server process.
    pub written: u64,
    /// Everything up to this position survives a power loss.
    pub durable: u64,
}

/// What became of a call as a call; the outcome of the request itself is in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The body is the service's reply.
    Done,
    /// The server does not know this session (any more).
    NoSession,
    /// The session's epoch is fenced: its leases were given to others.
    Fenced,
    /// The slot's sequence is neither the last one nor the next: a defect or a very late copy.
    BadSequence,
    /// The body does not decode, or the version differs.
    Malformed,
    /// The server cannot serve now (starting, full, stopping); try again later.
    Unavailable,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CallBytes {
    version: U16,
    service: u8,
    flags: u8,
    slot: U16,
    reserved: U16,
    epoch: U32,
    reserved2: U32,
    session: U64,
    sequence: U64,
    reply_bits: U64,
    reserved3: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyBytes {
    version: U16,
    status: u8,
    reserved: u8,
    slot: U16,
    reserved2: U16,
    sequence: U64,
    boot: U64,
    written: U64,
    durable: U64,
    era: U64,
}

/// Bytes of either head.
pub const HEAD_BYTES: usize = 48;
const _: () = assert!(size_of::<CallBytes>() == HEAD_BYTES);
const _: () = assert!(size_of::<ReplyBytes>() == HEAD_BYTES);

impl CallHead {
    /// Appends the head to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bytes = CallBytes {
            version: VERSION.into(),
            service: match self.service {
                Service::Session => 0,
                Service::Meta => 1,
                Service::Data => 2,
                Service::Callback => 3,
            },
            flags: u8::from(self.retry),
            slot: self.slot.into(),
            reserved: 0.into(),
            epoch: self.epoch.into(),
            reserved2: 0.into(),
            session: self.session.into(),
            sequence: self.sequence.into(),
            reply_bits: self.reply_bits.into(),
            reserved3: 0.into(),
        };
        out.extend_from_slice(bytes.as_bytes());
    }

    /// Splits a message into head and body.
    pub fn decode(message: &[u8]) -> Result<(CallHead, &[u8]), Malformed> {
        let (bytes, body) = CallBytes::ref_from_prefix(message).map_err(|_| Malformed)?;
        let service = match bytes.service {
            0 => Service::Session,
            1 => Service::Meta,
            2 => Service::Data,
            3 => Service::Callback,
            _ => return Err(Malformed),
        };
        let legal = bytes.version.get() == VERSION
            && bytes.flags <= 1
            && bytes.slot.get() < SLOTS_MAX
            && body.len() <= CALL_BYTES_MAX;
        let head = CallHead {
            service,
            retry: bytes.flags & 1 != 0,
            session: bytes.session.get(),
            slot: bytes.slot.get(),
            sequence: bytes.sequence.get(),
            reply_bits: bytes.reply_bits.get(),
            epoch: bytes.epoch.get(),
        };
        if legal { Ok((head, body)) } else { Err(Malformed) }
    }
}

impl ReplyHead {
    /// Appends the head to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bytes = ReplyBytes {
            version: VERSION.into(),
            status: match self.status {
                Status::Done => 0,
                Status::NoSession => 1,
                Status::Fenced => 2,
                Status::BadSequence => 3,
                Status::Malformed => 4,
                Status::Unavailable => 5,
            },
            reserved: 0,
            slot: self.slot.into(),
            reserved2: 0.into(),
            sequence: self.sequence.into(),
            boot: self.boot.into(),
            written: self.written.into(),
            durable: self.durable.into(),
            era: self.era.into(),
        };
        out.extend_from_slice(bytes.as_bytes());
    }

    /// Splits a message into head and body.
    pub fn decode(message: &[u8]) -> Result<(ReplyHead, &[u8]), Malformed> {
        let (bytes, body) = ReplyBytes::ref_from_prefix(message).map_err(|_| Malformed)?;
        let status = match bytes.status {
            0 => Status::Done,
            1 => Status::NoSession,
            2 => Status::Fenced,
            3 => Status::BadSequence,
            4 => Status::Malformed,
            5 => Status::Unavailable,
            _ => return Err(Malformed),
        };
        let legal = bytes.version.get() == VERSION && bytes.slot.get() < SLOTS_MAX;
        let head = ReplyHead {
            status,
            slot: bytes.slot.get(),
            sequence: bytes.sequence.get(),
            boot: bytes.boot.get(),
            era: bytes.era.get(),
            written: bytes.written.get(),
            durable: bytes.durable.get(),
        };
        if legal { Ok((head, body)) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_survive_the_journey_and_cut_ones_are_refused() {
        let call = CallHead {
            service: Service::Meta,
            retry: true,
            session: 7,
            slot: 63,
            sequence: 9,
            reply_bits: u64::MAX,
            epoch: 3,
        };
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        bytes.extend_from_slice(b"body");
        assert_eq!(CallHead::decode(&bytes), Ok((call, &b"body"[..])));
        for cut in 0..HEAD_BYTES {
            assert_eq!(CallHead::decode(&bytes[..cut]), Err(Malformed));
        }
        let reply = ReplyHead {
            status: Status::Fenced,
            slot: 1,
            sequence: 2,
            boot: 3,
            era: 6,
            written: 4,
            durable: 5,
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(ReplyHead::decode(&bytes), Ok((reply, &[][..])));
        bytes[2] = 99;
        assert_eq!(ReplyHead::decode(&bytes), Err(Malformed));
    }
}
