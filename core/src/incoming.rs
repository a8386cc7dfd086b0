//! Payloads on their way to their places, and which of them a link would take with it.
//!
//! Invariant: an incoming payload is listed with its link, unless its bytes are here already: such a one ends before
//! anything else happens. Nor is a place listed whose bytes are verified apart: it ends with them.

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::{LinkId, Token};
use ropewalk_wire::frame::{self, Prefix, ProveBody};

use crate::api::{Channel, OperationId, PeerId};
use crate::lists::{List, Neighbours, Table};
use crate::remote::{PutFrame, UpdateFrame};

/// A payload on its way to its place.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub link: LinkId,
    pub peer: Option<PeerId>,
    /// The session that its frame belongs to.
    pub session: u32,
    /// Bytes of the frame's payload; the place may be shorter.
    pub payload_bytes: u32,
    pub kind: IncomingKind,
    /// Its place; known late if it is staged.
    pub slice: Slice,
    /// The checksum that its bytes must have.
    pub checksum: Option<u32>,
    pub span: u64,
    /// Its rail was told to give the place up, so that it goes on with another copy of its span.
    pub broken_off: bool,
}

impl Incoming {
    /// The checksum that the payload of this header must have.
    pub fn checksum_of(prefix: &Prefix) -> Option<u32> {
        let checked = prefix.flags.get() & frame::FLAG_PAYLOAD_CHECKSUM != 0;
        checked.then(|| prefix.payload_checksum.get())
    }

    /// Whether the bytes can be verified where they belong, if they are at all. A place that is too short for them is
    /// no such one.
    pub fn is_checked_at_place(&self, prefix: &Prefix) -> bool {
        let whole = self.slice.len == u64::from(self.payload_bytes);
        whole || Incoming::checksum_of(prefix).is_none()
    }

    /// Whether it is no loss if there is no memory for it.
    pub fn is_dispensable(&self) -> bool {
        // A copy comes again, and so does a probe.
        matches!(self.kind, IncomingKind::Copy { .. } | IncomingKind::Prove { .. })
    }

    pub fn is_copy(&self) -> bool {
        matches!(self.kind, IncomingKind::Copy { .. })
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum IncomingKind {
    Hello,
    /// A message for a receive. `asked`: what its sender waits for, as the frame says.
    Eager {
        operation: OperationId,
        message: u64,
        asked: u8,
    },
    Unmatched {
        message: SlotId,
    },
    Request {
        bits: u64,
        bytes: u32,
        message: u64,
        asked: u8,
    },
    /// Mode `Resume`: a message that overtook an earlier one.
    Held {
        channel: Channel,
        message: u64,
    },
    /// The `attempt`-th try of a span whose place is another payload's, or is not to be touched before the bytes were
    /// verified.
    Copy {
        attempt: u16,
    },
    /// The bytes of another entry, which is listed nowhere: see [`Core::place_exposed`](crate::engine::Core::place_exposed).
    Apart {
        place: SlotId,
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
    Put(PutFrame),
    /// Bytes for a region, under its lock, which goes back with them.
    LockedPut {
        region: SlotId,
        cookie: u64,
    },
    /// Elements of a peer's, to be combined with some of ours.
    Update(UpdateFrame),
    /// Former values of elements, the answer to an update of ours with this number.
    Elements {
        operation: OperationId,
        number: u64,
        applied: u64,
    },
    /// A long probe of an arming, or its answer.
    Prove {
        body: ProveBody,
    },
}

/// Marks tokens of placements that name the receive itself: the others name an entry in the table of
/// incoming, whose indices stay below.
pub(crate) const OF_RECEIVE: u64 = 1 << 31;
/// The placement of a put that came whole: it is the only one of its kind. No operation has this index.
pub(crate) const OF_PUT: Token = Token(OF_RECEIVE | (OF_RECEIVE - 1));

/// All incoming payloads of an endpoint.
#[derive(Debug)]
pub(crate) struct IncomingPayloads {
    entries: Slots<Entry>,
    /// By rail and slot of the link.
    by_link: Vec<Vec<List>>,
}

#[derive(Debug)]
struct Entry {
    incoming: Incoming,
    listed: bool,
    of_link: Neighbours,
}

impl Table for Slots<Entry> {
    #[inline]
    fn neighbours(&mut self, index: u32) -> &mut Neighbours {
        &mut self.at_mut(index).expect("an incoming payload is listed while it is here").of_link
    }
}

impl IncomingPayloads {
    pub fn with_limit(limit: usize) -> IncomingPayloads {
        IncomingPayloads { entries: Slots::with_limit(limit), by_link: Vec::new() }
    }

    /// Adds a payload; gives it back if the table is full. `here`: its bytes have arrived with its header.
    #[inline]
    pub fn insert(&mut self, incoming: Incoming, here: bool) -> Result<SlotId, Incoming> {
        let entry = Entry { incoming, listed: false, of_link: Neighbours::NONE };
        match self.entries.insert(entry) {
            Ok(id) => {
                if !here {
                    self.list(id);
                }
                Ok(id)
            }
            Err(entry) => Err(entry.incoming),
        }
    }

    /// Lists a payload with its link, unless it is listed.
    #[inline(never)]
    pub fn list(&mut self, id: SlotId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if std::mem::replace(&mut entry.listed, true) {
            return;
        }
        let (rail, slot) = place_of(entry.incoming.link);
        if self.by_link.get(rail).is_none_or(|lists| lists.len() <= slot) {
            self.grow(rail, slot);
        }
        self.by_link[rail][slot].push_back(&mut self.entries, id.index);
    }

    #[cold]
    fn grow(&mut self, rail: usize, slot: usize) {
        if self.by_link.len() <= rail {
            self.by_link.resize_with(rail + 1, Vec::new);
        }
        self.by_link[rail].resize(slot + 1, List::EMPTY);
    }

    /// Takes a payload out.
    #[inline]
    pub fn remove(&mut self, id: SlotId) -> Option<Incoming> {
        let entry = self.entries.get(id)?;
        if entry.listed {
            let link = entry.incoming.link;
            self.unlist(id, link);
        }
        Some(self.entries.remove(id)?.incoming)
    }

    #[inline(never)]
    fn unlist(&mut self, id: SlotId, link: LinkId) {
        let (rail, slot) = place_of(link);
        self.by_link[rail][slot].take(&mut self.entries, id.index);
    }

    /// All payloads of a link, in the order in which they came.
    pub fn of(&mut self, link: LinkId) -> Vec<SlotId> {
        let (rail, slot) = place_of(link);
        let list = self.by_link.get(rail).and_then(|lists| lists.get(slot)).copied();
        let all = list.unwrap_or(List::EMPTY).collect(&mut self.entries);
        let named = |index| {
            let id =
                self.entries.id_at(index).expect("an incoming payload is listed while it is here");
            self.get(id).is_some_and(|incoming| incoming.link == link).then_some(id)
        };
        all.into_iter().filter_map(named).collect()
    }

    /// Takes them out.
    pub fn take_of(&mut self, link: LinkId) -> Vec<Incoming> {
        self.of(link).into_iter().filter_map(|id| self.remove(id)).collect()
    }

    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&Incoming> {
        self.entries.get(id).map(|entry| &entry.incoming)
    }

    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut Incoming> {
        self.entries.get_mut(id).map(|entry| &mut entry.incoming)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Incoming> {
        self.entries.iter().map(|(_, entry)| &entry.incoming)
    }
}

/// The link of the endpoint to itself has the highest rail number, and comes first.
#[inline]
fn place_of(link: LinkId) -> (usize, usize) {
    (usize::from(link.rail.wrapping_add(1)), link.slot.index as usize)
}
