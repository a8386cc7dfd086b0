//! What an origin has for one target of one window: operations that wait, the way to it, and what is under way.

use std::collections::VecDeque;

use ropewalk_base::memory::Memory;
use ropewalk_base::pool::PoolBuffer;

use super::wire::{Item, LOCK_BYTES, TYPES, Writer};
use crate::epochs::LockKind;
use crate::team::mail::MESSAGE_BYTES;

/// Operations, and bytes of their data, that are sent without waiting for the synchronisation.
const OPERATIONS_EARLY: u32 = 16;
const BYTES_EARLY: u64 = 64 << 10;

/// Whether operations may go to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// There is no epoch for it.
    Closed,
    Open,
    /// When as many posts came as there were starts.
    Start,
    /// When the lock is granted, for which nobody asked yet.
    Lock(LockKind),
    /// The same; it was asked for.
    Asked,
}

/// Data in a message of their own.
#[derive(Debug)]
pub(crate) struct Apart {
    pub number: u64,
    pub memory: Memory,
    pub token: u64,
}

/// A message that is being filled, and the data that follow it.
#[derive(Debug)]
pub(crate) struct Parcel {
    buffer: PoolBuffer,
    at: usize,
    pub apart: Vec<Apart>,
    /// The first item is room for a lock.
    has_room: bool,
}

impl Parcel {
    /// In a buffer of [`MESSAGE_BYTES`].
    pub fn new(buffer: PoolBuffer) -> Parcel {
        Parcel { buffer, at: 0, apart: Vec::new(), has_room: false }
    }

    /// Leaves room at the front for a lock.
    fn leave_room(&mut self) {
        self.add(&Item::Nothing);
        self.has_room = true;
    }

    pub fn has_space(&self, bytes: usize) -> bool {
        MESSAGE_BYTES - self.at >= bytes
    }

    /// Adds an item up to its data.
    pub fn add(&mut self, item: &Item) {
        self.at = Writer::new(&mut self.buffer, self.at).item(item);
    }

    /// The next bytes, for the data of the item before them.
    pub fn data(&mut self, bytes: usize) -> &mut [u8] {
        self.at += bytes;
        &mut self.buffer[self.at - bytes..self.at]
    }

    /// The message as it is sent.
    pub fn close(self) -> (PoolBuffer, Vec<Apart>) {
        let Parcel { mut buffer, at, apart, .. } = self;
        buffer.set_len(at);
        (buffer, apart)
    }
}

/// The numbers under which a target knows types, in the order of its messages.
#[derive(Debug)]
struct Known {
    types: [Option<(u64, bool)>; TYPES],
    next: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    pub gate: Gate,
    /// The lock was asked for, or is to be, and has to be released.
    pub locks: bool,
    full: VecDeque<Parcel>,
    open: Option<Parcel>,
    known: Known,
    operations: u32,
    bytes: u64,
    /// More waited than may wait, before the gate was open.
    pub is_urgent: bool,
    /// Operations of which the target has not said that they are done.
    pub is_unflushed: bool,
    /// A complete has ended operations that nobody answers; the target may have refused some of them.
    pub is_unheard: bool,
    /// The last token that was sent, and the last one that came back.
    pub token: u64,
    pub done: u64,
    /// Fetches, and sends of the user's memory, that are under way.
    pub fetches: u32,
    pub sends: u32,
    pub posts: u64,
    pub starts: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            gate: Gate::Closed,
            locks: false,
            full: VecDeque::new(),
            open: None,
            known: Known { types: [None; TYPES], next: 0 },
            operations: 0,
            bytes: 0,
            is_urgent: false,
            is_unflushed: false,
            is_unheard: false,
            token: 0,
            done: 0,
            fetches: 0,
            sends: 0,
            posts: 0,
            starts: 0,
        }
    }
}

impl Queue {
    pub fn is_open(&self) -> bool {
        self.gate == Gate::Open || self.gate == Gate::Start && self.posts >= self.starts
    }

    /// Nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.open.is_none() && self.full.is_empty()
    }

    /// Everything is complete at the origin.
    pub fn is_local(&self) -> bool {
        self.fetches == 0 && self.sends == 0
    }

    /// The parcel that has space for so many bytes.
    pub fn parcel(&mut self, bytes: usize, buffer: impl FnOnce() -> PoolBuffer) -> &mut Parcel {
        if self.open.as_ref().is_some_and(|it| !it.has_space(bytes)) {
            self.full.extend(self.open.take());
        }
        let may_ride = matches!(self.gate, Gate::Lock(_)) && self.full.is_empty();
        self.open.get_or_insert_with(|| {
            let mut parcel = Parcel::new(buffer());
            if may_ride {
                parcel.leave_room();
            }
            parcel
        })
    }

    /// The number of a type; false: the target has to be told now.
    pub fn slot(&mut self, datatype: u64, padded: bool) -> (u8, bool) {
        let known = &mut self.known;
        let wanted = Some((datatype, padded));
        if let Some(slot) = known.types.iter().position(|it| *it == wanted) {
            return (slot as u8, true);
        }
        let slot = known.next;
        known.types[slot] = wanted;
        known.next = (slot + 1) % TYPES;
        (slot as u8, false)
    }

    /// Counts an operation. True: so much waits now that it had better leave.
    pub fn count(&mut self, bytes: u64) -> bool {
        self.operations += 1;
        self.bytes += bytes;
        self.operations >= OPERATIONS_EARLY || self.bytes >= BYTES_EARLY
    }

    /// Everything that waits, in its order.
    pub fn take(&mut self) -> impl Iterator<Item = Parcel> {
        (self.operations, self.bytes, self.is_urgent) = (0, 0, false);
        std::mem::take(&mut self.full).into_iter().chain(self.open.take())
    }

    /// Writes a lock into the room that was left for it, where all that waits is one message whose data are in it. The
    /// caller adds the release and sends it.
    pub fn ride(&mut self, window: u32, kind: LockKind) -> bool {
        let Some(parcel) = self.open.as_mut().filter(|_| self.full.is_empty()) else {
            return false;
        };
        // An item and a token have to fit behind the rest.
        if !parcel.has_room || !parcel.apart.is_empty() || !parcel.has_space(2 * LOCK_BYTES + 8) {
            return false;
        }
        Writer::new(&mut parcel.buffer, 0).item(&Item::Lock { window, kind, rides: true });
        true
    }

    /// The rank is lost: nothing goes there any more, and nothing is waited for.
    pub fn abandon(&mut self) -> Vec<Apart> {
        let left = self.take().flat_map(|parcel| parcel.apart).collect();
        self.is_unflushed = false;
        self.done = self.token;
        left
    }
}
