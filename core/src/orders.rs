//! Unfinished work of rails: orders of frames, and payloads on their way to their places.

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Urgency};

use crate::api::{Channel, OperationId, PeerId};

/// Something that a rail was ordered to do and has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// An eager message's frame. Its token is the operation's own number: it is not in the table.
    Eager { operation: OperationId },
    /// A fragment of a message behind the first one.
    Fragment { operation: OperationId, peer: PeerId },
    /// A data frame of a put.
    PutFrame { operation: OperationId, peer: PeerId },
    /// A data frame that serves a get.
    ServeFrame { region: SlotId, peer: PeerId },
    /// A native read or write, and over which link it goes.
    Native { operation: OperationId, peer: PeerId, link: LinkId, bytes: u64 },
    /// Mode `Resume`: whatever frame this span is.
    Span { peer: PeerId, span: u64 },
    /// A frame whose payload its user has back.
    Detached { peer: PeerId, bulk: bool },
    /// Mode `Resume`: the payload of a span, in a buffer of the endpoint since its user has it back.
    Kept { peer: PeerId, bulk: bool, buffer: BufferId },
}

/// A payload on its way to its place.
#[derive(Debug)]
pub(crate) struct Landing {
    pub link: LinkId,
    pub peer: Option<PeerId>,
    /// The session that its frame belongs to.
    pub session: u32,
    /// Bytes of the frame's payload; the place may be shorter.
    pub payload_bytes: u32,
    pub kind: LandingKind,
    /// Its place; known late if it is staged.
    pub slice: Slice,
    /// The checksum that its bytes must have.
    pub checksum: Option<u32>,
    pub span: u64,
    /// We closed its link meanwhile.
    pub broken_off: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum LandingKind {
    Hello,
    Eager {
        operation: OperationId,
    },
    Unmatched {
        message: SlotId,
    },
    Request {
        bits: u64,
        bytes: u32,
    },
    /// Mode `Resume`: a message that overtook an earlier one.
    Held {
        channel: Channel,
        message: u64,
    },
    /// Part of a message, for the receive where there is one.
    Fragment {
        assembly: SlotId,
        operation: Option<OperationId>,
    },
    Data {
        operation: OperationId,
        bytes: u64,
    },
    Put {
        region: SlotId,
        cookie: u64,
        bytes: u64,
        total: u64,
    },
}

/// A frame's payload, and what is to be told when the rail lets go of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payload {
    pub slice: Slice,
    pub urgency: Urgency,
    pub order: Order,
}

/// Marks tokens of placements that name the receive itself: the others name an entry in the table of
/// landings, whose indices stay below.
pub(crate) const OF_RECEIVE: u64 = 1 << 31;
