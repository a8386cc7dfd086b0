//! The state of a window by remote access at one rank: a lane for each target, and a board that others write on.
//!
//! The board has three words for each rank: how often it posted for us, how often it completed an epoch with us, and how many
//! fences it called. They only grow. A rank tells by tokens, which take effect after all that it did before.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use ropewalk_base::limits::{LOCKED_PUT_BYTES_MAX, RECORDS_BYTES_MAX};
use ropewalk_base::memory::{
    Cells, Change, Element, Memory, Operator, RECORD_BYTES, Update, record,
};
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{Atomic, Direction, Fault, OperationId, Raise};

use super::directory::{Directory, Known};
use super::updaters::Updaters;
use crate::epochs::LockKind;
use crate::error::Interrupted;
use crate::messages::verbs::{NOTIFY, verb};
use crate::operation::Destination;
use crate::ticket::Ticket;
use crate::types::Datatype;

const WORD: usize = size_of::<u64>();

/// A word of a rank on a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// How often the rank posted.
    Posts,
    /// How often it completed.
    Completes,
    /// How many fences it called.
    Fences,
}

/// Words of each rank.
const WORDS_OF_RANK: u32 = 3;

/// The words of a board, by their numbers: those of each rank, the lock of accumulates that are reduced at their origins, and
/// counters of notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Words {
    pub ranks: u32,
    pub counters: u32,
}

impl Words {
    fn count(self) -> u32 {
        self.lock() + 1 + self.counters
    }

    pub fn of_rank(self, word: Word, rank: u32) -> u32 {
        WORDS_OF_RANK * rank + word as u32
    }

    pub fn lock(self) -> u32 {
        WORDS_OF_RANK * self.ranks
    }

    pub fn counter(self, counter: u32) -> u32 {
        self.lock() + 1 + counter
    }

    /// A board, all of it 0.
    pub fn board(self) -> Cells {
        Cells::zeroed(self.count() as usize * WORD)
    }

    /// A word as a notice names it: from the end of its region. And the other way round.
    pub fn reversed(self, word: u32) -> u32 {
        self.count() - 1 - word
    }
}

/// A window by remote access.
#[derive(Debug)]
pub(crate) struct Remote {
    pub board: Cells,
    pub words: Words,
    /// By rank: of its window, and its board behind that.
    pub keys: Vec<RemoteKey>,
    pub sizes: Vec<u64>,
    pub lanes: Vec<Lane>,
    /// Accumulates are reduced at their origins.
    pub at_origin: bool,
    /// The memory of ranks that is mapped here. Where it is shared (`Cells::share`) all its accumulates are the processor's
    /// atomic operations, but those of elements that have none.
    pub mapped: Vec<Option<Cells>>,
    pub updaters: Updaters,
    /// The program loads and stores the memory of all ranks.
    pub is_shared: bool,
    /// The window is dynamic: what this rank has attached.
    pub directory: Option<Directory>,
    /// Fences that this rank called.
    pub fences: u64,
    /// Synchronisations that found nothing to wait for since the last look at other windows.
    pub idle_flushes: u32,
    /// Nobody reaches our memory any more.
    pub is_returned: bool,
}

impl Remote {
    /// The word of a rank on our board.
    pub fn word(&self, word: Word, rank: u32) -> u64 {
        self.value(self.words.of_rank(word, rank))
    }

    /// How many notices a counter of ours has had.
    pub fn counter(&self, counter: u32) -> u64 {
        self.value(self.words.counter(counter))
    }

    fn value(&self, word: u32) -> u64 {
        self.board.load(word as usize * WORD).expect("the board has all words")
    }

    /// A word of a rank's board that grows after all that was done before.
    pub fn notice(&self, rank: u32, raise: Raise) -> What {
        let operator = if raise.to { Operator::Max } else { Operator::Sum };
        let update = Update::new(Element::U64, operator).expect("integers take both");
        let change = Change::One { update, operand: raise.value.to_le_bytes() };
        let at = self.word_at(rank, self.words.reversed(raise.word));
        What::Atomic { at, atomic: Atomic { change, fetch: false, token: true } }
    }

    /// Sets the word of a rank's lock, if it has the expected value.
    pub fn swap_of_lock(&self, rank: u32, expected: u64, desired: u64) -> What {
        let (expected, desired) = (expected.to_le_bytes(), desired.to_le_bytes());
        let change = Change::Swap { element: Element::U64, expected, desired };
        let at = self.word_at(rank, self.words.lock());
        What::Atomic { at, atomic: Atomic { change, fetch: true, token: false } }
    }

    /// Where a word of a rank's board is in its region.
    pub fn word_at(&self, rank: u32, word: u32) -> u64 {
        self.sizes[rank as usize] + u64::from(word) * WORD as u64
    }

    /// Whether operations may go to a rank.
    pub fn is_open(&self, rank: u32) -> bool {
        let lane = &self.lanes[rank as usize];
        match lane.gate {
            Gate::Closed => false,
            Gate::Open => true,
            Gate::Start => self.word(Word::Posts, rank) >= lane.starts,
            Gate::Lock => lane.lock.is_some_and(|lock| lock.is_held),
        }
    }
}

/// Whether operations may go to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Gate {
    /// There is no epoch for it.
    #[default]
    Closed,
    Open,
    /// When it posted as often as we started.
    Start,
    /// When we have its lock.
    Lock,
}

/// The lock of a target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lock {
    pub kind: LockKind,
    /// The request for it, if there is one.
    pub request: Option<OperationId>,
    pub is_held: bool,
}

/// Our side of one target.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub gate: Gate,
    pub lock: Option<Lock>,
    /// Operations that wait until the gate is open.
    pub queue: VecDeque<Prepared>,
    /// The window is dynamic: what is attached there, as far as it is known here.
    pub known: Option<Known>,
    /// Operations whose keys were refused: they go again before the queue, when nothing is under way.
    pub again: Vec<Prepared>,
    /// Of the last operation that was added.
    pub serial: u64,
    /// The round of operations that are issued now, and earlier ones that may not be over.
    pub round: Arc<Round>,
    pub rounds: Vec<Weak<Round>>,
    /// The reduction that is under way here; the queue waits for it.
    pub reducing: Option<Box<Reducing>>,
    /// A reduction has begun that may end at once, since its target is this rank: the loop that began it goes on with the queue, so that
    /// calls do not lie within each other.
    pub is_beginning: bool,
    /// Operations that the target may not have applied, and those of them that have memory of the user's, or results.
    pub under_way: u32,
    pub local: u32,
    /// Epochs of ours with this rank: starts, completes, posts and fences that we told it, and exposures that named it.
    pub starts: u64,
    pub completes: u64,
    pub posts: u64,
    pub fences: u64,
    pub exposures: u64,
}

impl Lane {
    /// Ends the round: later operations hold another one. All rounds that may not be over.
    pub fn end_round(&mut self) -> Vec<Weak<Round>> {
        let round = std::mem::take(&mut self.round);
        self.rounds.retain(|round| round.strong_count() > 0);
        self.rounds.push(Arc::downgrade(&round));
        self.rounds.clone()
    }

    /// Nothing waits to leave.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.again.is_empty()
    }

    /// Whether all operations have left that there are, and none of them comes back.
    pub fn has_left(&self) -> bool {
        let comes_back = self.known.is_some() && self.under_way > 0;
        self.is_empty() && self.reducing.is_none() && !comes_back
    }

    /// Whether all is complete at the target.
    pub fn is_flushed(&self) -> bool {
        self.is_empty() && self.under_way == 0
    }

    /// The put that may go together with the request for the lock, and with its release: nobody asked, and nothing else
    /// waits.
    pub fn rider(&self) -> Option<(u64, LockKind)> {
        let lock = self.lock.filter(|it| self.gate == Gate::Lock && it.request.is_none())?;
        let only = self.queue.front().filter(|_| self.queue.len() == 1)?;
        Some((only.short_put()?, lock.kind))
    }

    /// The put that may go together with the end of an epoch that a start began: nothing else waits.
    pub fn last_put(&self) -> Option<u64> {
        let only = self.queue.front().filter(|_| self.queue.len() == 1)?;
        only.short_put().filter(|_| self.gate == Gate::Start && self.reducing.is_none())
    }

    /// Whether nothing waits but short puts, which may go together with others.
    pub fn has_short_puts(&self) -> bool {
        self.queue.len() == 1 && self.queue[0].is_short()
    }

    /// Puts so many bytes together with the short put that was queued last, as records of one frame. `fill` writes them.
    /// Returns how many bytes were copied, those of a first put that makes room included. `None`: they do not go together.
    pub fn join(
        &mut self,
        at: u64,
        bytes: usize,
        buffer: impl FnOnce(usize) -> PoolBuffer,
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<u64> {
        let last = self.queue.back_mut().filter(|last| last.is_short())?;
        let is_one = !matches!(last.what, What::Records);
        let before = last.memory.len() as usize + if is_one { RECORD_BYTES } else { 0 };
        if before + RECORD_BYTES + bytes > RECORDS_BYTES_MAX as usize {
            return None;
        }
        let mut copied = bytes as u64;
        let memory = std::mem::replace(&mut last.memory, Memory::empty());
        let mut own = memory.into_pooled().expect("data of a short put are copied");
        if let What::Access(Direction::Put, RemoteLayout::At(at)) = last.what {
            let mut records = buffer(RECORDS_BYTES_MAX as usize);
            records[..RECORD_BYTES].copy_from_slice(&record(at, own.len() as u32));
            records[RECORD_BYTES..before].copy_from_slice(&own);
            copied += own.len() as u64;
            (last.what, own) = (What::Records, records);
        }
        own.set_len(before + RECORD_BYTES + bytes);
        let (head, data) = own[before..].split_at_mut(RECORD_BYTES);
        head.copy_from_slice(&record(at, bytes as u32));
        fill(data);
        last.memory = Memory::pooled(own);
        last.note.bytes += bytes as u64;
        Some(copied)
    }

    /// Whether all is complete here.
    pub fn is_local(&self) -> bool {
        self.is_empty() && self.local == 0
    }
}

/// A remote access, ready to be posted.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub what: What,
    pub memory: Memory,
    pub note: Note,
}

impl Prepared {
    /// Whether others may be put together with it.
    fn is_short(&self) -> bool {
        matches!(self.what, What::Records) || self.short_put().is_some()
    }

    /// Where it puts, if it is a put that may go together with something else: copied, short and without gaps.
    pub fn short_put(&self) -> Option<u64> {
        let What::Access(Direction::Put, RemoteLayout::At(at)) = self.what else { return None };
        let is_short = (1..=u64::from(LOCKED_PUT_BYTES_MAX)).contains(&self.memory.len());
        // One to a dynamic window goes to another region than locks and words.
        (is_short && !self.note.is_local && self.note.again.is_none()).then_some(at)
    }
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Access(Direction, RemoteLayout),
    /// Puts, of which the memory has records.
    Records,
    /// A put, and a word that tells of it.
    Notify {
        at: u64,
        raise: Raise,
        applied: bool,
    },
    Update {
        remote: RemoteLayout,
        update: Update,
        fetch: bool,
    },
    Atomic {
        at: u64,
        atomic: Atomic,
    },
    /// To be reduced here.
    Reduce(Reduction),
}

/// A change of elements of the target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reduction {
    /// In the target's region.
    pub at: u64,
    pub change: Change,
    /// Bytes of the elements at the target.
    pub bytes: usize,
}

/// How far a reduction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Lock,
    Get,
    Put,
    Unlock,
}

/// A reduction that is under way.
#[derive(Debug)]
pub(crate) struct Reducing {
    pub step: Step,
    /// The word of the lock as it has to be: 0, or a rank that is lost.
    pub expected: u64,
    pub reduction: Reduction,
    /// Elements of the origin; then what the elements were.
    pub memory: Memory,
    pub note: Note,
    pub failed: Option<Fault>,
    /// A step that found no room.
    pub unposted: Option<(What, Memory)>,
}

/// An access's description for refusals, and the place of its result.
#[derive(Debug)]
pub(crate) struct Note {
    pub landing: Landing,
    /// It has memory of the user's, or a result.
    pub is_local: bool,
    pub ticket: Option<Arc<Ticket>>,
    /// For refusals: the operation's number, its first byte, and how far it reaches.
    pub verb: u8,
    pub address: i64,
    pub bytes: u64,
    /// Of a reduction of one element: what it was.
    pub value: u64,
    /// Of a dynamic window.
    pub again: Option<Box<Again>>,
    /// Held until it is over.
    pub _round: Arc<Round>,
}

impl Note {
    /// The operation, where a loss has ended it.
    pub fn interrupted(&self) -> Interrupted {
        Interrupted { verb: verb(self.verb), at: self.address, bytes: self.bytes }
    }

    /// Of a word that is told.
    pub fn of_word(round: Arc<Round>) -> Note {
        Note {
            landing: Landing::Nothing,
            is_local: false,
            ticket: None,
            verb: NOTIFY,
            address: 0,
            bytes: 0,
            value: 0,
            again: None,
            _round: round,
        }
    }
}

/// A put that its target may still refuse, and what a refusal says of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unsure {
    pub window: u32,
    pub verb: u8,
    pub address: i64,
    pub bytes: u64,
    pub operation: Option<OperationId>,
}

impl Unsure {
    pub fn of(window: u32, note: &Note) -> Unsure {
        let Note { verb, address, bytes, .. } = *note;
        Unsure { window, verb, address, bytes, operation: None }
    }
}

/// The operations between two flushes of a target, which hold it.
#[derive(Debug, Default)]
pub(crate) struct Round;

/// An operation on a dynamic window: what is kept of it, should it have to go again.
#[derive(Debug, Default)]
pub(crate) struct Again {
    /// Its place in the order of its lane.
    pub serial: u64,
    /// Of the region that it goes to.
    pub key: Option<RemoteKey>,
    /// The access by the target's addresses.
    pub what: Option<What>,
    /// How often the directory had been read when it was not found there.
    pub asked: Option<u64>,
    pub went_again: bool,
}

impl Again {
    /// The access as it was before it was sent.
    pub fn take(&mut self) -> Option<What> {
        self.key = None;
        self.what.take()
    }

    /// It has changed something: it cannot go again.
    pub fn settle(&mut self) {
        self.what = None;
    }
}

/// Where the result of an access goes.
#[derive(Debug)]
pub(crate) enum Landing {
    /// There is none, or it is there.
    Nothing,
    /// All of the memory.
    All(Place),
    /// Its second half.
    Half(Place),
    /// A number of so many bytes.
    Value(Place, usize),
}

/// A place for data of some instances of a datatype, from their byte `from` on.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    cells: Cells,
    at: i64,
    count: u64,
    datatype: Datatype,
    from: u64,
}

impl Place {
    pub fn new(to: &Destination<'_>, from: u64) -> Place {
        let (cells, datatype) = (to.cells.clone(), to.datatype.clone());
        Place { cells, at: to.at as i64, count: to.count, datatype, from }
    }

    /// Writes data there.
    pub fn scatter(&self, data: &[u8]) {
        let to = Destination::new(&self.cells, self.at as usize, self.count, &self.datatype);
        to.scatter(self.from, data);
    }
}

/// An access that was posted.
#[derive(Debug)]
pub(crate) enum Posted {
    Access {
        window: u32,
        rank: u32,
        /// Its number at the endpoint, as soon as there is one.
        operation: Option<OperationId>,
        note: Note,
    },
    /// A put that goes with its request for the lock, to this byte.
    LockedPut { window: u32, rank: u32, at: u64, note: Note },
    /// A step of what is reduced here.
    Reduction { window: u32, rank: u32, operation: Option<OperationId> },
    /// The lock of a rank is asked for.
    Lock { window: u32, rank: u32 },
    /// Something is told; nobody waits for it.
    Word { window: u32, rank: u32 },
    /// A lock of accumulates is given back for one who cannot do it; nothing comes of its failure.
    Return,
    /// Memory of ours comes back.
    Exposed { window: u32 },
    /// Memory that we detached comes back.
    Detached { window: u32, address: u64 },
    /// The directory of a rank is read.
    Directory { window: u32, rank: u32 },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_over_without_the_operations_that_came_after_it() {
        let mut lane = Lane::default();
        let open = |rounds: &[Weak<Round>]| rounds.iter().any(|round| round.strong_count() > 0);
        let first = lane.round.clone();
        let one = lane.end_round();
        let second = lane.round.clone();
        assert!(open(&one), "an operation holds it");
        let both = lane.end_round();
        let _third = lane.round.clone();
        drop(second);
        assert!(open(&one) && open(&both), "a later round waits for the earlier one, too");
        drop(first);
        assert!(!open(&one) && !open(&both), "nobody waits for what came later");
        assert_eq!(lane.end_round().len(), 1, "rounds that are over are forgotten");
    }
}
