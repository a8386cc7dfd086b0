//! The words between the protocol core and the rails.
//!
//! Core orders [`Verb`]s; a rail answers at once with [`Ordered`] and later with reports. Neither
//! names the other: both know these words only. Buffers are slices of a table, never pointers.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::descriptor::Descriptor;
use crate::error::Fault;
use crate::limits::{HEADER_BYTES_MAX, REMOTE_SEGMENTS_MAX};
use crate::memory::Slice;
use crate::slots::SlotId;

/// A connection of one rail to one remote rail. Slots are the rail's own; a link that went down is
/// never named again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    /// The number of the rail within the endpoint.
    pub rail: u8,
    /// Slot and generation within the rail.
    pub slot: SlotId,
}

/// Core's name for an order to a rail, given back with its outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

impl Token {
    /// For orders whose outcome nobody waits for: control frames without payload, or with one that is
    /// never taken back.
    pub const NONE: Token = Token(0);
}

/// Names a region that a peer may access: slot and generation, and random bits that a stranger
/// cannot guess.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    pub slot: SlotId,
    pub secret: u64,
}

impl RemoteKey {
    /// The slot of keys that are names: none has this index.
    const NAMED: SlotId = SlotId { index: u32::MAX, generation: 0 };

    /// The region that has this name at a peer, whether there is one or not: nothing has to be received for it. A name is no
    /// secret, so the peer judges by its audience alone who may use it.
    #[inline]
    pub fn named(name: u64) -> RemoteKey {
        RemoteKey { slot: RemoteKey::NAMED, secret: name }
    }

    /// Whether it is a name. Rails know none.
    #[inline]
    pub fn is_named(self) -> bool {
        self.slot.index == RemoteKey::NAMED.index
    }
}

/// A part of a remote region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSegment {
    /// First byte, from the region's beginning.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The place of an access's bytes in the remote region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteLayout {
    /// Contiguous, from this offset on.
    At(u64),
    /// Piece by piece, in order; at most `REMOTE_SEGMENTS_MAX`.
    List(Arc<[RemoteSegment]>),
    /// In instances of a datatype. Rails get lists in its place.
    Strided(Strided),
}

/// The place of bytes that lie in instances of a datatype, one instance after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strided {
    pub shape: Arc<Descriptor>,
    /// In the region; the offsets of the datatype count from here.
    pub address: i64,
    /// Instances of the whole. All of them are judged, though the access is about a part.
    pub count: u64,
    /// Bytes of data before those of the access.
    pub from: u64,
}

impl Strided {
    /// The bytes of the region from the first one of all instances to behind the last one. `None`: they reach farther than
    /// addresses do, or `len` bytes are more than there are.
    pub fn range(&self, len: u64) -> Option<Range<u64>> {
        let bounds = self.shape.bounds(self.count)?;
        let all = i128::from(self.shape.len()) * i128::from(self.count);
        let place = |offset: i64| u64::try_from(i128::from(self.address) + i128::from(offset)).ok();
        let range = place(bounds.start)?..place(bounds.end)?;
        (i128::from(self.from) + i128::from(len) <= all).then_some(range)
    }

    /// The same bytes as a list; `None` where that is longer than lists may be. They lie in the range of [`Self::range`].
    pub fn listed(&self, len: u64) -> Option<Arc<[RemoteSegment]>> {
        self.range(len)?;
        let mut left = len;
        let mut segments = Vec::new();
        let mut pieces = self.shape.pieces(self.count, self.from);
        while left > 0 && segments.len() < REMOTE_SEGMENTS_MAX {
            let piece = pieces.next()?;
            let offset = (self.address + piece.offset) as u64;
            segments.push(RemoteSegment { offset, len: piece.bytes.min(left) });
            left -= piece.bytes.min(left);
        }
        (left == 0).then(|| segments.into())
    }
}

/// The header of a frame, with its bytes inline.
#[derive(Clone, Copy)]
pub struct Header {
    len: u8,
    bytes: [u8; HEADER_BYTES_MAX],
}

impl Header {
    /// A header of no bytes.
    pub const EMPTY: Header = Header { len: 0, bytes: [0; HEADER_BYTES_MAX] };

    /// A header of these bytes, at most `HEADER_BYTES_MAX`.
    #[inline]
    pub fn new(bytes: &[u8]) -> Header {
        let mut header = Header { len: bytes.len() as u8, bytes: [0; HEADER_BYTES_MAX] };
        header.bytes[..bytes.len()].copy_from_slice(bytes);
        header
    }

    /// Writes a header of two parts over this one, where it lies.
    #[inline]
    pub fn write(&mut self, first: &[u8], second: &[u8]) {
        let len = first.len() + second.len();
        self.len = len as u8;
        self.bytes[..first.len()].copy_from_slice(first);
        self.bytes[first.len()..len].copy_from_slice(second);
    }

    /// Its bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// Its bytes, to change.
    #[inline]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len as usize]
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Header({} bytes, kind {})", self.len, self.bytes[0])
    }
}

/// The queue of a link in which a frame waits. Between two frames `Urgent` ones go first, so that control and small
/// messages never wait behind more than one data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Control and eager messages; in the order of the orders.
    Urgent,
    /// The same, and nobody waits for it yet: it may wait a little for others to leave with.
    Patient,
    /// Data frames.
    Bulk,
}

impl Urgency {
    /// As a rail sees it that lets nothing wait.
    #[inline]
    pub fn at_once(self) -> Urgency {
        match self {
            Urgency::Patient => Urgency::Urgent,
            other => other,
        }
    }
}

/// An order of the core to a rail: send header and payload as one frame.
#[derive(Debug, Clone, Copy)]
pub struct FrameOrder {
    pub link: LinkId,
    pub header: Header,
    pub payload: Slice,
    pub urgency: Urgency,
    pub token: Token,
}

/// The help that the target of a read would give, if it were asked by frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Help {
    /// Nobody says that it does anything soon.
    None,
    /// It makes passes, and sends the bytes like those for others.
    Possible,
    /// It has no other peer that it could have to serve.
    PreferPush,
}

/// Any other order of the core to a rail.
#[derive(Debug, Clone)]
pub enum Verb {
    /// Read remote memory into `local` (rails with `native_read`). Where the target would `help`, a rail to
    /// which frames are cheaper answers `NotPermitted`.
    Read {
        link: LinkId,
        key: RemoteKey,
        remote: RemoteLayout,
        local: Slice,
        token: Token,
        help: Help,
    },
    /// Write `local` to remote memory (rails with `native_write`).
    Write { link: LinkId, key: RemoteKey, remote: RemoteLayout, local: Slice, token: Token },
    /// Make `region` accessible over `link` under `key` (rails with native access only). Takes
    /// effect before any later frame of the same link is seen by the peer.
    Expose { link: LinkId, key: RemoteKey, region: Slice, writable: bool },
    /// End what `Expose` began; `Report::revoked` confirms that no peer holds the region any more.
    Revoke { link: LinkId, key: RemoteKey },
    /// Let go of the payload of a frame that was answered with `Pending`, now. Bytes that have not left yet go from a
    /// private copy, so that the peer sees the frame as it was ordered. The outcome of the frame is reported under
    /// `later` (`Token::NONE`: not at all).
    DetachSend { link: LinkId, token: Token, later: Token },
    /// Forget a frame that was answered with `Pending`, now: nobody needs it any more. Where a part of it has left, the rest
    /// goes as after `DetachSend`. Its outcome is not reported. So what waits for a peer that does not read, and has
    /// acknowledged over another link, costs no memory but that of one frame.
    SkipSend { link: LinkId, token: Token },
    /// Give a read or write up that was answered with `Pending`, now: its memory is not touched any more and no outcome
    /// is reported. Nobody knows which bytes it wrote at the peer, or still writes.
    CancelAccess { link: LinkId, token: Token },
    /// Give the place of a payload up that has not arrived completely, now: the rest of it goes nowhere,
    /// and `received` is not reported.
    CancelReceive { link: LinkId, token: Token },
    /// Close a link: frames that were ordered before are still sent, then `link_down` is reported.
    Close { link: LinkId },
}

/// The immediate outcome of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered {
    /// Done: the rail holds no reference to the order's buffers any more (for `Read`: the bytes are
    /// there; for `Write`: they are visible at the target).
    Released,
    /// `done` or `failed` will be reported with the token.
    Pending,
    /// Not possible; nothing will be reported.
    Refused(Fault),
}

/// Core's answer to a rail that holds a header and wants to know where its payload belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// To `slice`; bytes beyond the slice are dropped. `received` is reported with the token when all bytes arrived.
    Into { slice: Slice, token: Token },
    /// To a buffer of the endpoint's pool, since no receive is posted: the layer above provides it
    /// and turns this answer into `Into` before the rail sees it.
    Stage { bytes: u32, token: Token },
    /// Nowhere: the payload is skipped.
    Drop,
    /// The frame breaks the protocol: the link is closed.
    Violation(&'static str),
}

/// A message of a *foreign* peer: one that speaks no frames of ours, but a protocol that its rail knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignMessage {
    /// Its number among the messages of this link, which names it at its end.
    pub number: u64,
    /// The bits that receives match.
    pub bits: u64,
    /// Bytes of the whole message.
    pub bytes: u64,
    /// The key for reading it, if it is only announced; for `Verb::Read` of the same link.
    pub key: Option<RemoteKey>,
}

/// The end of a message to a foreign peer, told by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignEnd {
    /// The channel and number that the frame of ours named which began it.
    pub channel: u8,
    pub number: u64,
    /// Bytes that the peer took.
    pub bytes: u64,
}

/// The identity of a foreign peer, in the words of its protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignName {
    /// Its address at its station, as people write it, and its number there.
    pub station: String,
    pub endpoint: u8,
    /// Of this life of it.
    pub session: u32,
}

/// The promises of a rail about its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// A frame arrives, or the link goes down.
    pub reliable: bool,
    /// Frames of one urgency arrive in the order in which they were sent.
    pub ordered: bool,
    /// Bits cannot flip on the way (shared memory): frames go without checksums.
    pub intact: bool,
    /// `Verb::Read` works without the target's help.
    pub native_read: bool,
    /// `Verb::Write` works without the target's help.
    pub native_write: bool,
    /// Longest payload of a frame, in bytes.
    pub frame_payload_bytes_max: u32,
    /// Messages up to so many bytes had better leave at once than be announced and read. From
    /// [`EAGER_BYTES`](crate::limits::EAGER_BYTES) to [`EAGER_BYTES_MAX`](crate::limits::EAGER_BYTES_MAX); more than a
    /// frame takes only where the rail is reliable and ordered, since the fragments of a message follow each other.
    pub eager_bytes: u32,
    /// The rail's preference for a peer that several rails reach: the highest wins.
    pub preference: u8,
    /// Works between processes of one host only; used after memory was proven to be shared.
    pub same_host_only: bool,
    /// Its peers speak a protocol of their own: no greeting, no credit, tagged messages only.
    pub foreign: bool,
}

/// Always-on counters of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RailCounters {
    pub frames_sent: u64,
    pub frames_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Payload bytes that went through a buffer of the rail before they reached their place,
    /// because they were read together with a header. Everything else lands directly.
    pub bytes_staged: u64,
    /// Payload bytes that it copied between buffers of its own, beside copies to and from the endpoint's.
    pub bytes_copied: u64,
    /// Bytes moved by native reads and writes.
    pub bytes_native: u64,
    pub system_calls: u64,
    pub links_up: u64,
    pub links_down: u64,
    /// Frames or connections refused because they broke the rail's own framing.
    pub violations: u64,
    /// Wake-ups sent to a sleeping peer.
    pub doorbells: u64,
    /// Packets that were dropped, of rails that carry packets; they came again, or their links ended.
    pub drops: PacketDrops,
}

/// Packets that were dropped, by the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketDrops {
    /// The kernel had no room for what came, of all endpoints that share a socket.
    pub no_room: u64,
    /// The endpoint has not looked at its inbox for too long.
    pub inbox_full: u64,
    /// For an endpoint that is not here (any more), or for a link that is not there.
    pub strangers: u64,
    /// Too short to say whom they are for, or longer than the longest packet.
    pub malformed: u64,
    /// Of a type that says nothing about whom they are for, or that is no endpoint's.
    pub wrong_type: u64,
    /// The checksum or the layout does not hold.
    pub corrupt: u64,
    /// Could not leave: the interface is down or gone, or takes shorter packets.
    pub unsent: u64,
}
