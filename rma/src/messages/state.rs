//! What a [`Hub`](super::hub::Hub) holds: windows, works of other ranks, and fetches of ours.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::memory::{BufferId, Cells, Element, Places, Slice, Update};
use ropewalk_base::slots::SlotId;

use super::locks::Locks;
use super::queue::Queue;
use super::wire::{TYPES, Wanted};
use crate::claims::Claim;
use crate::epochs::LockKind;
use crate::error::{Refusal, WindowName};
use crate::ticket::Ticket;

/// Tokens of a barrier: how many came from each rank, how many rounds are over, and a rank that will not come any more.
#[derive(Debug)]
pub(crate) struct Domain {
    pub tokens: Vec<u64>,
    pub round: u64,
    pub lost: Option<u32>,
}

impl Domain {
    /// A token came.
    pub fn came(&mut self, rank: u32, lost: Option<u32>) {
        self.tokens[rank as usize] += 1;
        self.lost = self.lost.or(lost);
    }
}

impl Domain {
    pub fn new(size: u32) -> Domain {
        Domain { tokens: vec![0; size as usize], round: 0, lost: None }
    }
}

/// What an origin told of itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Origin {
    pub types: [Option<Arc<Descriptor>>; TYPES],
    /// Epochs of starts that it completed, and exposures that named it.
    pub completes: u64,
    pub exposures: u64,
}

/// Memory that this rank attached to a dynamic window.
#[derive(Debug)]
pub(crate) struct Region {
    pub cells: Cells,
    pub base: usize,
    pub bytes: u64,
    pub memory: BufferId,
    /// Data that are received here, or sent from here, by rails.
    pub moving: u32,
    /// It is detached when nothing moves any more.
    pub is_leaving: bool,
}

/// By address.
pub(crate) type Regions = BTreeMap<u64, Region>;

/// A window, and memory of it that data move to or from.
pub(crate) type Used = Option<(u32, BufferId)>;

/// A window at this rank.
#[derive(Debug)]
pub(crate) struct WindowState {
    pub name: WindowName,
    pub cells: Cells,
    /// As long as others may reach the memory.
    pub _claim: Claim,
    pub base: usize,
    pub bytes: u64,
    pub memory: BufferId,
    /// Data that are received here, or sent from here, by rails.
    pub moving: u32,
    /// The window is dynamic: what is attached.
    pub regions: Option<Regions>,
    pub eager_bytes: u64,
    pub queues: Vec<Queue>,
    pub origins: Vec<Origin>,
    pub locks: Locks,
    /// Works that wait for a lock together with their origin.
    pub parked: BTreeMap<u32, Vec<Work>>,
    pub domain: Domain,
    /// The collective call that made it, and the ranks that gave that call up: they have no such window.
    pub call: u64,
    pub missing: Vec<bool>,
    /// Notices that came, by counter.
    pub counters: Vec<u64>,
    /// What was refused since the last synchronisation: the first ones in words, and how many.
    pub refusals: VecDeque<(u32, Refusal)>,
    pub refused: u64,
}

/// A message whose items are not all executed.
#[derive(Debug)]
pub(crate) struct Held {
    pub rank: u32,
    pub buffer: BufferId,
    pub uses: usize,
    /// Some of it waits for a lock. Another receive was posted for it.
    pub is_parked: bool,
}

/// Why data move, by the token of their events.
#[derive(Debug)]
pub(crate) enum Moving {
    /// Data of an operation that waits here.
    Operand { rank: u32, serial: u64, staged: bool, used: Used },
    /// Data of a refused operation.
    Refused,
    /// The result of a fetch.
    Answer { fetch: u64 },
    /// Data of an operation of ours; of the user's memory, where `counts`.
    Out { window: u32, rank: u32, counts: bool, ticket: Option<Arc<Ticket>> },
    /// A result for somebody.
    AnswerOut { rank: u32, used: Used },
}

/// Where the data of an operation are.
#[derive(Debug)]
pub(crate) enum Operand {
    None,
    /// In the message.
    Here(Slice),
    /// They come in a message of their own, for which nothing is posted yet.
    Awaited {
        number: u64,
        bytes: u64,
    },
    Moving,
    /// They came to a buffer.
    Staged(BufferId, u64),
    /// They came to the window.
    Placed,
}

#[derive(Debug)]
pub(crate) enum Act {
    Put { places: Places, operand: Operand },
    Get { places: Places, wanted: Wanted },
    Update { update: Update, places: Places, operand: Operand, wanted: Option<Wanted> },
    Swap { element: Element, expected: [u8; 8], desired: [u8; 8], places: Places, wanted: Wanted },
    Lock { kind: LockKind, rides: bool },
    Unlock { token: u64 },
    Flush { token: u64 },
    Complete,
    Notify { counter: u32 },
}

/// An operation or a token that is to be executed here.
#[derive(Debug)]
pub(crate) struct Work {
    pub serial: u64,
    pub window: u32,
    /// The message that it lies in.
    pub message: SlotId,
    pub act: Act,
}

/// Works of one rank.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    pub works: VecDeque<Work>,
    pub serial: u64,
    /// Data that are being received, and those of them that are staged here or lie so.
    pub receiving: usize,
    pub staged: usize,
    /// Results that are being sent in messages of their own.
    pub answers: usize,
}

/// A part of a result that is awaited.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub window: u32,
    pub rank: u32,
    pub ticket: Option<Arc<Ticket>>,
    /// The user's memory, as long as the fetch lasts, and where the result goes in it.
    pub memory: BufferId,
    pub places: Places,
    pub bytes: u64,
    /// It comes in a message of its own.
    pub apart: Option<Apart>,
}

/// What is known of a result that comes in a message of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Apart {
    /// It is received into the user's memory.
    pub direct: bool,
    /// It came, and was empty: the target refused.
    pub empty: bool,
    /// The refusal came.
    pub refused: bool,
}
