//! The fixed heads of calls and replies: session, slot, sequence, marks.
//!
//! A call is a request message (BMI's unexpected class): head and body. Its reply is a tagged
//! message whose match bits the head names. Bulk moves beside both, by remote access.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;
use super::trust::{CAPABILITY_BYTES, Capability, SEAL_BYTES, TAG_BYTES};

/// The protocol that a call belongs to.
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
    /// A member of the cluster begins to prove itself: `trust::Introduction`.
    Trust,
    /// From a metadata server to a voter: `election::Ballot`.
    Election,
    /// From a standby metadata server to the active one: `standby::StandbyRequest`.
    Standby,
}

/// The newest version of everything in this folder that this program speaks. Each end says its own in the heads, and sends
/// what a version added only to those who know it (docs/design/128-upgrade.md).
pub const VERSION: u16 = 11;
/// The oldest version that can read messages of this program, and that this program can read.
pub const OLDEST: u16 = 10;
/// Slots of a session: calls that one client may have in flight at one server.
pub const SLOTS_MAX: u16 = 64;
/// Longest body of a call, in bytes; more goes as bulk.
pub const CALL_BYTES_MAX: usize = 24 * 1024;
/// Longest body of a reply, in bytes.
pub const REPLY_BYTES_MAX: usize = 256 * 1024;

/// Head of a call; 56 bytes, and the capability where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallHead {
    pub service: Service,
    /// The client sent this call before and did not see the reply.
    pub retry: bool,
    /// The body ends in a `trust::Seal`: the caller proves to be a member of the cluster.
    pub sealed: bool,
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
    /// The token that the metadata server gave the client with the session. All servers learn from it whose session it
    /// is. Calls about the session itself carry it, too.
    pub token: u64,
    /// The capability that the metadata server gave a bound session for a file; none for all other sessions.
    pub capability: Option<Capability>,
    /// The term in which a metadata server makes this call; 0 of other callers.
    pub term: u64,
    /// The epoch of the map by which the caller chose the server; 0 where none is needed.
    pub map: u32,
    /// The newest version that the caller speaks.
    pub newest: u16,
}

/// Head of a reply; 56 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHead {
    pub status: Status,
    /// The body ends in a tag. By this tag the answering server proves that it is a member of the cluster, and that
    /// this is its answer to that call.
    pub sealed: bool,
    pub slot: u16,
    /// Of the call.
    pub sequence: u64,
    /// The server's life: new at each start. Its upper half counts the starts. Of a metadata server the id of its term.
    pub boot: u64,
    /// Nothing that was acknowledged in an era is lost while it lasts; a power loss ends it.
    pub era: u64,
    /// Everything up to this position survives the death of the server process.
    pub written: u64,
    /// Everything up to this position survives a power loss.
    pub durable: u64,
    /// The newest epoch of the map that a data server knows; 0 from other servers.
    pub map: u32,
    /// The newest version that the server speaks.
    pub newest: u16,
}

/// The outcome of a call as a call; the outcome of the request itself is in the body.
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
    /// The server cannot serve now (full, stopping); try again later.
    Unavailable,
    /// The server has just started and will serve in a moment: it is there.
    Starting,
    /// Only for members of the cluster, and the call does not prove that it comes from one.
    Unproven,
    /// The call is about a group that this server is not in, or its caller's map is older than the group's servers: the
    /// caller has to ask the metadata server for the map.
    OtherMap,
    /// The calling metadata server serves in an older term than one that this server has met.
    OlderTerm,
    /// The call's capability is missing, has expired, or is of another generation of the file: the caller has to ask for
    /// another.
    OldCapability,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CallBytes {
    version: U16,
    service: u8,
    flags: u8,
    slot: U16,
    /// Zeros in version 10.
    newest: U16,
    epoch: U32,
    map: U32,
    session: U64,
    sequence: U64,
    reply_bits: U64,
    token: U64,
    term: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyBytes {
    version: U16,
    status: u8,
    flags: u8,
    slot: U16,
    /// Zeros in version 10.
    newest: U16,
    sequence: U64,
    boot: U64,
    written: U64,
    durable: U64,
    era: U64,
    map: U32,
    reserved2: U32,
}

/// Flags of calls, and of replies.
const RETRY: u8 = 1;
const SEALED: u8 = 2;
/// A capability follows the head.
const CAPABLE: u8 = 4;

/// Bytes of either head.
pub const HEAD_BYTES: usize = 56;
const _: () = assert!(size_of::<CallBytes>() == HEAD_BYTES);
const _: () = assert!(size_of::<ReplyBytes>() == HEAD_BYTES);

impl CallHead {
    /// The head of a first call outside of any session.
    pub fn free(service: Service) -> CallHead {
        CallHead {
            service,
            retry: false,
            sealed: false,
            session: 0,
            slot: 0,
            sequence: 0,
            reply_bits: 0,
            epoch: 0,
            token: 0,
            capability: None,
            term: 0,
            map: 0,
            newest: VERSION,
        }
    }

    /// Bytes of this head, with its capability.
    pub fn bytes(&self) -> usize {
        HEAD_BYTES + if self.capability.is_some() { CAPABILITY_BYTES } else { 0 }
    }

    /// Appends the head to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        let flags = flag(self.retry, RETRY)
            | flag(self.sealed, SEALED)
            | flag(self.capability.is_some(), CAPABLE);
        let bytes = CallBytes {
            version: OLDEST.into(),
            service: match self.service {
                Service::Session => 0,
                Service::Meta => 1,
                Service::Data => 2,
                Service::Callback => 3,
                Service::Trust => 4,
                Service::Election => 5,
                Service::Standby => 6,
            },
            flags,
            slot: self.slot.into(),
            newest: self.newest.into(),
            epoch: self.epoch.into(),
            map: self.map.into(),
            session: self.session.into(),
            sequence: self.sequence.into(),
            reply_bits: self.reply_bits.into(),
            token: self.token.into(),
            term: self.term.into(),
        };
        out.extend_from_slice(bytes.as_bytes());
        if let Some(capability) = &self.capability {
            capability.encode(out);
        }
    }

    /// Splits a message into head and body.
    pub fn decode(message: &[u8]) -> Result<(CallHead, &[u8]), Malformed> {
        let (bytes, body) = CallBytes::ref_from_prefix(message).map_err(|_| Malformed)?;
        let service = match bytes.service {
            0 => Service::Session,
            1 => Service::Meta,
            2 => Service::Data,
            3 => Service::Callback,
            4 => Service::Trust,
            5 => Service::Election,
            6 => Service::Standby,
            _ => return Err(Malformed),
        };
        let sealed = bytes.flags & SEALED != 0;
        let (capability, body) = match bytes.flags & CAPABLE != 0 {
            true => Capability::split(body).map(|(capability, body)| (Some(capability), body))?,
            false => (None, body),
        };
        let seal = if sealed { SEAL_BYTES } else { 0 };
        let newest = spoken(bytes.version, bytes.newest)?;
        let legal = bytes.flags <= RETRY | SEALED | CAPABLE
            && bytes.slot.get() < SLOTS_MAX
            && (seal..=CALL_BYTES_MAX + seal).contains(&body.len());
        let head = CallHead {
            service,
            retry: bytes.flags & RETRY != 0,
            sealed,
            session: bytes.session.get(),
            slot: bytes.slot.get(),
            sequence: bytes.sequence.get(),
            reply_bits: bytes.reply_bits.get(),
            epoch: bytes.epoch.get(),
            token: bytes.token.get(),
            capability,
            term: bytes.term.get(),
            map: bytes.map.get(),
            newest,
        };
        if legal { Ok((head, body)) } else { Err(Malformed) }
    }

    /// The head of an answer to a message that no version of this program can read, if it looks like a call: so its sender
    /// hears of it.
    pub fn of_other_version(message: &[u8]) -> Option<(ReplyHead, u64)> {
        let (bytes, _) = CallBytes::ref_from_prefix(message).ok()?;
        let is_other = spoken(bytes.version, bytes.newest).is_err();
        (is_other && bytes.slot.get() < SLOTS_MAX).then(|| {
            let (slot, sequence) = (bytes.slot.get(), bytes.sequence.get());
            (
                ReplyHead { slot, sequence, ..ReplyHead::of(Status::Malformed) },
                bytes.reply_bits.get(),
            )
        })
    }
}

/// The newest version that the sender of a message speaks. `version`: the oldest one that can read the message.
fn spoken(version: U16, newest: U16) -> Result<u16, Malformed> {
    match version.get() {
        version @ OLDEST..=VERSION => Ok(newest.get().max(version)),
        _ => Err(Malformed),
    }
}

impl ReplyHead {
    /// An answer without marks.
    pub fn of(status: Status) -> ReplyHead {
        ReplyHead {
            status,
            sealed: false,
            slot: 0,
            sequence: 0,
            boot: 0,
            era: 0,
            written: 0,
            durable: 0,
            map: 0,
            newest: VERSION,
        }
    }

    /// Appends the head to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bytes = ReplyBytes {
            version: OLDEST.into(),
            status: match self.status {
                Status::Done => 0,
                Status::NoSession => 1,
                Status::Fenced => 2,
                Status::BadSequence => 3,
                Status::Malformed => 4,
                Status::Unavailable => 5,
                Status::Unproven => 6,
                Status::Starting => 7,
                Status::OtherMap => 8,
                Status::OlderTerm => 9,
                Status::OldCapability => 10,
            },
            flags: if self.sealed { SEALED } else { 0 },
            slot: self.slot.into(),
            newest: self.newest.into(),
            sequence: self.sequence.into(),
            boot: self.boot.into(),
            written: self.written.into(),
            durable: self.durable.into(),
            era: self.era.into(),
            map: self.map.into(),
            reserved2: 0.into(),
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
            6 => Status::Unproven,
            7 => Status::Starting,
            8 => Status::OtherMap,
            9 => Status::OlderTerm,
            10 => Status::OldCapability,
            _ => return Err(Malformed),
        };
        let sealed = bytes.flags == SEALED;
        let newest = spoken(bytes.version, bytes.newest)?;
        let legal = (sealed || bytes.flags == 0)
            && bytes.slot.get() < SLOTS_MAX
            && (!sealed || body.len() >= TAG_BYTES);
        let head = ReplyHead {
            status,
            sealed,
            slot: bytes.slot.get(),
            sequence: bytes.sequence.get(),
            boot: bytes.boot.get(),
            era: bytes.era.get(),
            written: bytes.written.get(),
            durable: bytes.durable.get(),
            map: bytes.map.get(),
            newest,
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
            sealed: false,
            session: 7,
            slot: 63,
            sequence: 9,
            reply_bits: u64::MAX,
            epoch: 3,
            token: 11,
            capability: Some(Capability { reads: true, writes: false, expires: 1, tag: [3; 16] }),
            term: 0,
            map: 13,
            newest: 11,
        };
        let free = CallHead { term: 14, ..CallHead::free(Service::Data) };
        let mut bytes = Vec::new();
        free.encode(&mut bytes);
        assert_eq!(CallHead::decode(&bytes), Ok((free, &[][..])));
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        bytes.extend_from_slice(b"body");
        assert_eq!(CallHead::decode(&bytes), Ok((call, &b"body"[..])));
        for cut in 0..HEAD_BYTES {
            assert_eq!(CallHead::decode(&bytes[..cut]), Err(Malformed));
        }
        let reply = ReplyHead {
            status: Status::Fenced,
            sealed: false,
            slot: 1,
            sequence: 2,
            boot: 3,
            era: 6,
            written: 4,
            durable: 5,
            map: 7,
            newest: 12,
        };
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        assert_eq!(ReplyHead::decode(&bytes), Ok((reply, &[][..])));
        bytes[2] = 99;
        assert_eq!(ReplyHead::decode(&bytes), Err(Malformed));
    }

    #[test]
    fn a_neighbouring_version_is_understood_and_others_hear_of_it() {
        let head = CallHead { sequence: 5, reply_bits: 9, ..CallHead::free(Service::Meta) };
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        assert_eq!((bytes[..2].to_vec(), bytes[6]), (vec![10, 0], 11), "version 10 can read it");
        // Version 10 said nothing of the newest one.
        bytes[6] = 0;
        assert_eq!(CallHead::decode(&bytes).map(|(head, _)| head.newest), Ok(10));
        assert_eq!(CallHead::of_other_version(&bytes), None);
        // A later program that is understood.
        (bytes[0], bytes[6]) = (11, 12);
        assert_eq!(CallHead::decode(&bytes).map(|(head, _)| head.newest), Ok(12));
        for version in [9, 12] {
            bytes[0] = version;
            assert_eq!(CallHead::decode(&bytes), Err(Malformed));
            let (reply, bits) = CallHead::of_other_version(&bytes).expect("an answer");
            assert_eq!((reply.status, reply.sequence, bits), (Status::Malformed, 5, 9));
        }
        assert_eq!(CallHead::of_other_version(&bytes[..40]), None);
    }

    #[test]
    fn what_is_sealed_has_room_for_its_seal() {
        let call = CallHead { sealed: true, ..CallHead::free(Service::Data) };
        let mut bytes = Vec::new();
        call.encode(&mut bytes);
        assert_eq!(CallHead::decode(&bytes), Err(Malformed));
        bytes.resize(HEAD_BYTES + SEAL_BYTES, 0);
        assert!(CallHead::decode(&bytes).is_ok_and(|(head, _)| head.sealed));
        bytes.resize(HEAD_BYTES + CALL_BYTES_MAX + SEAL_BYTES, 0);
        assert!(CallHead::decode(&bytes).is_ok());
        bytes.push(0);
        assert_eq!(CallHead::decode(&bytes), Err(Malformed));
    }
}
