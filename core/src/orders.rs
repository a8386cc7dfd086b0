//! Orders: what rails were told to send or to move, and have not finished.

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::{LinkId, Token, Urgency};

use crate::api::{OperationId, PeerId};

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
    /// Mode `Resume`: whatever frame this span is, over this link.
    Span { peer: PeerId, span: u64, link: LinkId },
    /// The payload of a span whose session ended while several rails had it: the last one that lets go ends the order in
    /// this place.
    Shared { with: SlotId },
    /// A frame whose payload its user has back.
    Detached { peer: PeerId, bulk: bool },
    /// Mode `Resume`: the payload of a span, in a buffer of the endpoint since its user has it back.
    Kept { peer: PeerId, bulk: bool, buffer: BufferId },
}

/// Orders that rails have not finished, and the tokens by which rails tell their ends.
#[derive(Debug)]
pub(crate) struct Orders {
    table: Slots<Order>,
}

/// Marks tokens that name an entry in the table. Indices stay below: the other tokens are numbers of operations.
const IN_TABLE: u64 = 1 << 31;

impl Orders {
    pub fn with_limit(limit: usize) -> Orders {
        Orders { table: Slots::with_limit(limit) }
    }

    /// Adds an order; gives it back if the table is full.
    #[inline]
    pub fn insert(&mut self, order: Order) -> Result<SlotId, Order> {
        self.table.insert(order)
    }

    /// The token of an order, which is added to the table unless its token is its operation's number. Gives the order
    /// back if the table is full.
    #[inline(always)]
    pub fn token_of(&mut self, order: Order) -> Result<Token, Order> {
        match order {
            Order::Eager { operation } => Ok(Token(operation.0.to_u64())),
            order => self.insert(order).map(Orders::token),
        }
    }

    /// The token of an order in the table.
    #[inline]
    pub fn token(slot: SlotId) -> Token {
        Token(slot.to_u64() | IN_TABLE)
    }

    /// The place in the table that a token names; `None` for the token of an eager message.
    #[inline]
    pub fn slot_of(token: Token) -> Option<SlotId> {
        (token.0 & IN_TABLE != 0).then(|| SlotId::from_u64(token.0 & !IN_TABLE))
    }

    /// Ends the order of a token. `None` if it has ended before.
    #[inline(always)]
    pub fn take(&mut self, token: Token) -> Option<Order> {
        if token == Token::NONE {
            return None;
        }
        match Orders::slot_of(token) {
            Some(slot) => self.table.remove(slot),
            None => Some(Order::Eager { operation: OperationId(SlotId::from_u64(token.0)) }),
        }
    }

    pub fn get(&self, slot: SlotId) -> Option<&Order> {
        self.table.get(slot)
    }

    pub fn get_mut(&mut self, slot: SlotId) -> Option<&mut Order> {
        self.table.get_mut(slot)
    }

    pub fn remove(&mut self, slot: SlotId) -> Option<Order> {
        self.table.remove(slot)
    }

    /// All of the table: eager messages are not in it.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &Order)> {
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
