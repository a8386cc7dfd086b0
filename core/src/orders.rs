//! Orders: what rails were told to send or to move, and have not finished, and over which links.
//!
//! Invariant: an order keeps its link, also after the session that it was given in has ended.

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::{LinkId, Token, Urgency};

use crate::api::{OperationId, PeerId};
use crate::remote::Part;

/// Something that a rail was ordered to do and has not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// An eager message's frame. Its token is the operation's own number: it is not in the table.
    Eager { operation: OperationId },
    /// A fragment of a message behind the first one.
    Fragment { operation: OperationId, peer: PeerId },
    /// A frame of a put. `bulk`: it is a data frame among others.
    PutFrame { operation: OperationId, peer: PeerId, bulk: bool },
    /// A data frame that serves a get.
    ServeFrame { region: SlotId, peer: PeerId, cookie: u64 },
    /// A native read or write.
    Native { operation: OperationId, peer: PeerId, bytes: u64 },
    /// A native read of a part of a get.
    Part { operation: OperationId, peer: PeerId, part: Part },
    /// Mode `Resume`: whatever frame this span is.
    Span { peer: PeerId, span: u64 },
    /// The payload of a span whose session ended while several rails had it: the last one that lets go ends the order in
    /// this place.
    Shared { with: SlotId },
    /// The answer to an update of a peer's.
    Answer { peer: PeerId, session: u32, buffer: BufferId, bytes: u32, bulk: bool },
    /// A greeting with a block.
    Greeting { buffer: BufferId },
    /// A frame whose payload its user has back.
    Detached { peer: PeerId, bulk: bool },
    /// Mode `Resume`: the payload of a span, in a buffer of the endpoint since its user has it back.
    Kept { peer: PeerId, bulk: bool, buffer: BufferId },
}

impl Order {
    /// The peer that the order's frame went to; an eager message's operation has it.
    pub fn peer(&self) -> Option<PeerId> {
        match *self {
            Order::Eager { .. } | Order::Shared { .. } | Order::Greeting { .. } => None,
            Order::Fragment { peer, .. }
            | Order::PutFrame { peer, .. }
            | Order::ServeFrame { peer, .. }
            | Order::Native { peer, .. }
            | Order::Part { peer, .. }
            | Order::Span { peer, .. }
            | Order::Answer { peer, .. }
            | Order::Detached { peer, .. }
            | Order::Kept { peer, .. } => Some(peer),
        }
    }

    /// Whether it is a read or a write of a rail's.
    pub fn is_native(&self) -> bool {
        matches!(self, Order::Native { .. } | Order::Part { .. })
    }

    /// Whether its frame is a data frame.
    pub fn is_bulk(&self) -> bool {
        match *self {
            Order::Fragment { .. } | Order::ServeFrame { .. } => true,
            Order::PutFrame { bulk, .. }
            | Order::Answer { bulk, .. }
            | Order::Detached { bulk, .. }
            | Order::Kept { bulk, .. } => bulk,
            Order::Eager { .. } | Order::Native { .. } | Order::Part { .. } => false,
            Order::Span { .. } | Order::Shared { .. } | Order::Greeting { .. } => false,
        }
    }
}

/// An order in the table, and the link that it was given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub order: Order,
    pub link: LinkId,
}

/// Orders that rails have not finished, and the tokens by which rails tell their ends.
#[derive(Debug)]
pub(crate) struct Orders {
    table: Slots<Entry>,
}

/// What a token names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// An order in the table, if it has not ended.
    Entry(SlotId),
    /// The frame of an eager message.
    Eager(OperationId),
    Nothing,
}

/// Marks tokens that name an entry in the table. Indices stay below: the other tokens are numbers of operations.
const IN_TABLE: u64 = 1 << 31;

impl Orders {
    pub fn with_limit(limit: usize) -> Orders {
        Orders { table: Slots::with_limit(limit) }
    }

    /// Adds an order for this link; gives it back if the table is full.
    #[inline]
    pub fn insert(&mut self, order: Order, link: LinkId) -> Result<SlotId, Order> {
        self.table.insert(Entry { order, link }).map_err(|entry| entry.order)
    }

    /// The token of an order, which is added to the table unless its token is its operation's number. Gives the order
    /// back if the table is full.
    #[inline(always)]
    pub fn token_of(&mut self, order: Order, link: LinkId) -> Result<Token, Order> {
        match order {
            Order::Eager { operation } => Ok(Token(operation.0.to_u64())),
            order => self.insert(order, link).map(Orders::token),
        }
    }

    /// The token of an order in the table.
    #[inline]
    pub fn token(slot: SlotId) -> Token {
        Token(slot.to_u64() | IN_TABLE)
    }

    /// What a token names.
    #[inline(always)]
    pub fn named(token: Token) -> Named {
        if token.0 & IN_TABLE != 0 {
            Named::Entry(SlotId::from_u64(token.0 & !IN_TABLE))
        } else if token == Token::NONE {
            Named::Nothing
        } else {
            Named::Eager(OperationId(SlotId::from_u64(token.0)))
        }
    }

    /// Takes out the order of a token that is in the table. `None` if it has ended before.
    pub fn take(&mut self, token: Token) -> Option<Entry> {
        match Orders::named(token) {
            Named::Entry(slot) => self.remove(slot),
            Named::Eager(_) | Named::Nothing => None,
        }
    }

    pub fn get(&self, slot: SlotId) -> Option<&Entry> {
        self.table.get(slot)
    }

    pub fn get_mut(&mut self, slot: SlotId) -> Option<&mut Entry> {
        self.table.get_mut(slot)
    }

    pub fn remove(&mut self, slot: SlotId) -> Option<Entry> {
        self.table.remove(slot)
    }

    /// Such orders of the table that were given to one of these links.
    pub fn over(&self, links: &[LinkId], is_such: impl Fn(&Order) -> bool) -> Vec<SlotId> {
        let such = |entry: &Entry| links.contains(&entry.link) && is_such(&entry.order);
        self.table.iter().filter(|(_, entry)| such(entry)).map(|(slot, _)| slot).collect()
    }

    /// All of the table: eager messages are not in it.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Entry)> {
        self.table.iter()
    }
}

/// A frame's payload, and what is to be told when the rail lets go of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payload {
    pub slice: Slice,
    pub urgency: Urgency,
    pub order: Order,
}

impl Payload {
    /// Its bytes, if it is that of a data frame.
    pub fn bulk_bytes(&self) -> u64 {
        if self.urgency == Urgency::Bulk { self.slice.len } else { 0 }
    }
}
