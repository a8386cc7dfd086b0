//! Accesses are posted as their gates open, and end. Words are told, locks asked for and released.

use std::ops::Range;

use ropewalk_base::memory::{Cells, Memory};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{
    Audience, Completed, Direction, Fault, OperationId, Posted as NetPosted, Raise, Terms,
};

use super::state::{
    Gate, Landing, Lane, Lock, Note, Posted, Prepared, Remote, Unsure, What, Word, Words,
};
use crate::epochs::LockKind;
use crate::error::{Error, Loss};
use crate::messages::hub::{Hub, refusal};
use crate::messages::wire::{Reason, Refused};
use crate::team::mail::REMOTE;
use crate::ticket::Ticket;

const KEY_BYTES: usize = 16;
/// Of a completed request for a lock: somebody died with it; the put that went with it is done, and it is given back.
const OWNER_DIED: u64 = 1;
const DONE: u64 = 2;

/// The next step of the program, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// More operations, maybe.
    Operations,
    Anything,
    /// It ends the epoch that a start began.
    Complete,
}

impl Lane {
    /// How often a rank was told of something.
    fn told(&mut self, word: Word) -> &mut u64 {
        match word {
            Word::Posts => &mut self.posts,
            Word::Completes => &mut self.completes,
            Word::Fences => &mut self.fences,
        }
    }

    /// Whether short puts wait for others. Those of an epoch that a start began go together, and the last one may go with its
    /// end. Those behind something that is under way wait for its end, or for a call that is no operation.
    fn keeps_short_puts(&self, next: Next) -> bool {
        let ends = next == Next::Complete;
        self.has_short_puts()
            && match self.gate {
                Gate::Start => !ends || self.queue[0].short_put().is_some(),
                Gate::Open | Gate::Lock => next == Next::Operations && self.under_way > 0,
                Gate::Closed => false,
            }
    }

    /// Nobody asks whether a put of an epoch that a start began is applied: its end comes after it.
    fn terms_of(&self, what: &What, next: Next) -> Terms {
        let is_put = matches!(what, What::Access(Direction::Put, _) | What::Records);
        let local = is_put && self.gate == Gate::Start && self.known.is_none();
        Terms { local, quiet: local, more: local && next == Next::Complete, fenced: false }
    }
}

/// The key of a rank, as others are told.
pub(crate) fn encode(key: RemoteKey) -> Vec<u8> {
    [key.slot.to_u64(), key.secret].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The keys of all ranks, who tell them and then what they offer.
///
/// # Errors
/// A rank had no room for the window.
pub(super) fn decode(cards: &[Vec<u8>]) -> Result<Vec<RemoteKey>, Error> {
    let keys = cards.iter().map(|card| decode_one(card)).collect::<Option<Vec<_>>>();
    keys.ok_or(Error::Room("one more window, or another rank has none"))
}

/// What a rank offers to be mapped.
pub(super) fn offer(card: &[u8]) -> &[u8] {
    card.get(KEY_BYTES..).unwrap_or(&[])
}

fn decode_one(card: &[u8]) -> Option<RemoteKey> {
    let (slot, secret) = card.get(..KEY_BYTES)?.split_first_chunk()?;
    let secret = u64::from_le_bytes(secret.try_into().ok()?);
    Some(RemoteKey { slot: SlotId::from_u64(u64::from_le_bytes(*slot)), secret })
}

impl Hub {
    /// A window by remote access that is open.
    pub fn remote(&mut self, window: u32) -> &mut Remote {
        self.remotes.get_mut(&window).expect("a window is there until it is freed")
    }

    /// Exposes a window's memory, and a board behind it.
    ///
    /// # Errors
    /// There is no room.
    pub fn expose(
        &mut self,
        cells: &Cells,
        range: Range<usize>,
        words: Words,
    ) -> Result<(Cells, RemoteKey), Error> {
        let memory = cells.memory(range).expect("the window's range was judged");
        let board = words.board();
        let all = Memory::joined(vec![memory, board.all()]);
        let key = self.mail.endpoint().expose(all, true, Audience::Everybody);
        Ok((board, key.map_err(|_| Error::Room("one more window"))?))
    }

    /// Nobody is to reach the memory any more.
    pub fn unexpose(&mut self, window: u32) {
        let own = self.rank as usize;
        let key = self.remote(window).keys[own];
        if let Ok(id) = self.posted.insert(Posted::Exposed { window })
            && self.mail.unexpose(key, id.to_u64() | REMOTE).is_err()
        {
            self.posted.remove(id);
            self.remote(window).is_returned = true;
        }
    }

    /// Whether the memory is back.
    pub fn is_unexposed(&mut self, window: u32) -> bool {
        self.remote(window).is_returned
    }

    /// Posts what waits for a rank, where the way is open; asks for the lock that it needs.
    pub fn push_remotely(&mut self, window: u32, rank: u32) {
        self.push_lane(window, rank, Next::Anything);
    }

    /// The same, before `next`: short puts that something may go with are kept.
    pub(super) fn push_lane(&mut self, window: u32, rank: u32, next: Next) {
        if self.is_lost(window, rank) {
            return self.abandon_remotely(window, rank);
        }
        loop {
            let Some(remote) = self.remotes.get_mut(&window) else { return };
            if remote.lanes[rank as usize].is_empty() {
                return;
            }
            if !remote.is_open(rank) {
                // A put that is alone may go with the request, when the epoch ends.
                if remote.lanes[rank as usize].rider().is_none() {
                    self.ask_for_lock(window, rank);
                }
                return;
            }
            let is_mapped = remote.mapped[rank as usize].is_some();
            let is_dynamic = remote.directory.is_some();
            let lane = &mut remote.lanes[rank as usize];
            if lane.reducing.is_some() || (!is_mapped && lane.keeps_short_puts(next)) {
                return;
            }
            let ready = match is_dynamic {
                true => self.next_attached(window, rank),
                false => lane.queue.pop_front(),
            };
            let Some(ready) = ready else { return };
            if let What::Reduce(reduction) = ready.what {
                self.remote(window).lanes[rank as usize].is_beginning = true;
                self.begin_reduction(window, rank, reduction, ready.memory, ready.note);
                let Some(remote) = self.remotes.get_mut(&window) else { return };
                remote.lanes[rank as usize].is_beginning = false;
                continue;
            }
            if let Some(ready) = self.post_access(window, rank, ready, next) {
                // The endpoint has no room now: others end first.
                return self.remote(window).lanes[rank as usize].queue.push_front(ready);
            }
        }
    }

    /// Does an access, or posts it. Gives it back where there is no room for it.
    fn post_access(
        &mut self,
        window: u32,
        rank: u32,
        ready: Prepared,
        next: Next,
    ) -> Option<Prepared> {
        let Prepared { what, memory, note } = self.do_mapped(window, rank, ready)?;
        let remote = self.remote(window);
        let region = note.again.as_ref().and_then(|again| again.key);
        let key = region.unwrap_or(remote.keys[rank as usize]);
        let lane = &mut remote.lanes[rank as usize];
        let terms = lane.terms_of(&what, next);
        let unsure = terms.quiet.then(|| Unsure::of(window, &note));
        lane.under_way += 1;
        lane.local += u32::from(note.is_local);
        let posted = Posted::Access { window, rank, operation: None, note };
        let id = match self.posted.insert(posted) {
            Ok(id) => id,
            Err(posted) => return Some(self.take_back(posted, what, memory)),
        };
        match self.mail.post_remote(rank, key, (what.clone(), terms), memory, id.to_u64() | REMOTE)
        {
            Ok(NetPosted::Done(completed)) => {
                self.remember(rank, completed.operation, unsure);
                self.remote_done(completed);
            }
            Ok(NetPosted::Pending(pending)) => {
                self.remember(rank, pending, unsure);
                if let Some(Posted::Access { operation, .. }) = self.posted.get_mut(id) {
                    *operation = Some(pending);
                }
            }
            Err((memory, Fault::Busy)) => {
                let posted = self.posted.remove(id).expect("it was added just now");
                return Some(self.take_back(posted, what, memory));
            }
            Err((memory, fault)) => self.access_over(id, Err(fault), 0, memory),
        }
        None
    }

    /// A rank is lost whose session goes on: its lock goes back, or is not asked for any more. Others may wait for it.
    fn drop_lock(&mut self, window: u32, rank: u32) {
        let Some(remote) = self.remotes.get_mut(&window) else { return };
        let key = remote.keys[rank as usize];
        let Some(lock) = remote.lanes[rank as usize].lock.take() else { return };
        match lock {
            Lock { request: Some(request), is_held: true, .. } => {
                self.return_lock(rank, key, request)
            }
            // A grant that comes all the same goes back at once.
            Lock { request: Some(request), .. } => self.mail.endpoint().cancel(request),
            Lock { request: None, .. } => {}
        }
    }

    /// Gives back the lock of a rank that was lost. That its last holder died is not handed on: the owner has told it once.
    pub(super) fn return_lock(&mut self, rank: u32, key: RemoteKey, request: OperationId) {
        let Ok(id) = self.posted.insert(Posted::Return) else {
            return self.unreturned.push((rank, key, request));
        };
        let released = self.mail.release_lock(rank, key, request, id.to_u64() | REMOTE);
        if let Ok(NetPosted::Pending(_)) = released {
            return;
        }
        self.posted.remove(id);
        if let Err(Fault::Busy) = released {
            self.unreturned.push((rank, key, request));
        }
    }

    /// A rank is lost: nothing of what is under way may use memory of the user's for long.
    fn cancel_accesses(&self, lost: u32) {
        let of_it = |posted: &Posted| match posted {
            Posted::Access { rank, operation, .. } | Posted::Reduction { rank, operation, .. }
                if *rank == lost =>
            {
                *operation
            }
            _ => None,
        };
        let operations = self.posted.iter().filter_map(|(_, posted)| of_it(posted));
        operations.for_each(|operation| self.mail.endpoint().cancel(operation));
    }

    /// The loss of a rank is told with an operation that was under way to it, one for each window.
    fn note_interrupted(&mut self, lost: u32) {
        let Hub { posted, remotes, interrupted, .. } = self;
        for (_, posted) in posted.iter() {
            let (window, note) = match posted {
                Posted::Access { window, rank, note, .. }
                | Posted::LockedPut { window, rank, note, .. }
                    if *rank == lost =>
                {
                    (*window, note)
                }
                _ => continue,
            };
            interrupted.entry((window, lost)).or_insert(note.interrupted());
        }
        for (window, remote) in remotes.iter() {
            if let Some(reducing) = &remote.lanes[lost as usize].reducing {
                interrupted.entry((*window, lost)).or_insert(reducing.note.interrupted());
            }
        }
    }

    /// An access that there is no room for.
    fn take_back(&mut self, posted: Posted, what: What, memory: Memory) -> Prepared {
        let Posted::Access { window, rank, mut note, .. } = posted else {
            unreachable!("{posted:?} is no access")
        };
        let before = note.again.as_mut().and_then(|again| again.take());
        let lane = &mut self.remote(window).lanes[rank as usize];
        lane.under_way -= 1;
        lane.local -= u32::from(note.is_local);
        Prepared { what: before.unwrap_or(what), memory, note }
    }

    /// Something that was posted is over.
    pub fn remote_done(&mut self, completed: Completed) {
        let id = SlotId::from_u64(completed.user & !REMOTE);
        match self.posted.get(id) {
            Some(Posted::Lock { window, rank }) => {
                let (window, rank) = (*window, *rank);
                self.posted.remove(id);
                self.lock_taken(window, rank, &completed);
            }
            Some(Posted::LockedPut { .. }) => self.locked_put_done(id, completed),
            Some(Posted::Reduction { window, rank, .. }) => {
                let (window, rank) = (*window, *rank);
                self.posted.remove(id);
                self.reduction_went_on(window, rank, completed);
            }
            Some(Posted::Directory { window, rank }) => {
                let (window, rank) = (*window, *rank);
                self.posted.remove(id);
                self.directory_came(window, rank, completed);
            }
            Some(_) => self.access_over(id, completed.outcome, completed.bits, completed.memory),
            None => {}
        }
    }

    /// A put went with its request for a lock: it is done, or we have the lock now and it goes again.
    fn locked_put_done(&mut self, id: SlotId, completed: Completed) {
        let Some(Posted::LockedPut { window, rank, at, note }) = self.posted.remove(id) else {
            return;
        };
        let Some(remote) = self.remotes.get_mut(&window) else { return };
        let lane = &mut remote.lanes[rank as usize];
        lane.under_way -= 1;
        let is_undone = matches!(completed.outcome, Ok(()) if completed.bits != DONE);
        if is_undone || completed.outcome == Err(Fault::Busy) {
            let what = What::Access(Direction::Put, RemoteLayout::At(at));
            let memory = completed.memory;
            lane.queue.push_front(Prepared { what, memory, note });
            if is_undone {
                return self.lock_is_ours(window, rank, completed.operation, completed.bits);
            }
            // The target has too many requests: it is asked again.
            return lane.lock.iter_mut().for_each(|lock| lock.request = None);
        }
        (lane.lock, lane.gate) = (None, Gate::Closed);
        if let Err(fault) = completed.outcome {
            self.access_failed(window, rank, &note, fault);
        }
        if let Some(ticket) = &note.ticket {
            ticket.end();
        }
    }

    pub(super) fn access_over(
        &mut self,
        id: SlotId,
        outcome: Result<(), Fault>,
        value: u64,
        memory: Memory,
    ) {
        match self.posted.remove(id) {
            Some(Posted::Access { window, rank, note, .. }) => {
                if let Some(remote) = self.remotes.get_mut(&window) {
                    let lane = &mut remote.lanes[rank as usize];
                    lane.under_way -= 1;
                    lane.local -= u32::from(note.is_local);
                    if lane.under_way == 0 && lane.has_short_puts() {
                        self.pushes.push((window, rank));
                    }
                }
                self.dynamic_over(window, rank, note, (outcome, value), memory);
            }
            Some(Posted::Detached { window, address }) => self.detached(window, address),
            Some(Posted::Exposed { window }) => {
                if let Some(remote) = self.remotes.get_mut(&window) {
                    remote.is_returned = true;
                }
            }
            Some(
                Posted::Word { window, rank }
                | Posted::Lock { window, rank }
                | Posted::LockedPut { window, rank, .. }
                | Posted::Directory { window, rank }
                | Posted::Reduction { window, rank, .. },
            ) => {
                if let Err(fault) = outcome {
                    self.word_failed(window, rank, fault);
                }
            }
            Some(Posted::Return) | None => {}
        }
    }

    /// An access is over, if it does not have to go again. In a dynamic window something may have waited for that.
    pub(super) fn dynamic_over(
        &mut self,
        window: u32,
        rank: u32,
        note: Note,
        (outcome, value): (Result<(), Fault>, u64),
        memory: Memory,
    ) {
        let is_dynamic = note.again.is_some();
        if let Some((note, memory)) = self.unless_it_goes_again(window, rank, outcome, note, memory)
        {
            self.end_access(window, rank, &note, (outcome, value), memory);
        }
        if is_dynamic {
            self.pushes.push((window, rank));
        }
    }

    /// An operation is over: its result lands, or it is refused.
    pub(super) fn end_access(
        &mut self,
        window: u32,
        rank: u32,
        note: &Note,
        (outcome, value): (Result<(), Fault>, u64),
        memory: Memory,
    ) {
        match outcome {
            Ok(()) => self.copied += land(&note.landing, value, memory),
            Err(fault) => self.access_failed(window, rank, note, fault),
        }
        if let Some(ticket) = &note.ticket {
            ticket.end();
        }
    }

    /// A rank did not take a request for its lock, or a step. One that knows no such key has no such window, and lives. Words are
    /// over when they are sent: nobody hears that one was refused.
    fn word_failed(&mut self, window: u32, rank: u32, fault: Fault) {
        match fault {
            Fault::BadKey | Fault::NotPermitted => self.miss(window, rank),
            _ => self.lose(rank, Loss::Session(fault)),
        }
    }

    fn access_failed(&mut self, window: u32, rank: u32, note: &Note, fault: Fault) {
        let Some(reason) = reason_of(fault) else {
            self.interrupted.entry((window, rank)).or_insert(note.interrupted());
            self.lose(rank, Loss::Session(fault));
            if let (Some(ticket), Some(error)) = (&note.ticket, self.lost(window, rank)) {
                ticket.fail(error.during(note.interrupted()));
            }
            return;
        };
        let Note { verb, address, bytes, .. } = *note;
        let refused = Refused { window, reason, verb, address, bytes, window_bytes: 0, fetch: 0 };
        self.refused_remotely(rank, refused, note.ticket.as_deref());
    }

    /// An operation is refused: its ticket is told, and the next synchronisation.
    pub(super) fn refused_remotely(
        &mut self,
        rank: u32,
        refused: Refused,
        ticket: Option<&Ticket>,
    ) {
        let name = self.windows.get(&refused.window).map(|state| state.name.clone());
        if let (Some(ticket), Some(window)) = (ticket, name) {
            let refusal = refusal(&refused);
            ticket.fail(Error::Refused { window, rank, refusal, further: 0 });
        }
        self.refused(rank, refused);
    }

    /// A rank is lost: what waits for it comes to nothing.
    pub fn abandon_remotely(&mut self, window: u32, rank: u32) {
        let error = self.lost(window, rank);
        let Hub { remotes, interrupted, .. } = self;
        let Some(remote) = remotes.get_mut(&window) else { return };
        let lane = &mut remote.lanes[rank as usize];
        let again = std::mem::take(&mut lane.again).into_iter();
        for Prepared { note, .. } in again.chain(std::mem::take(&mut lane.queue)) {
            interrupted.entry((window, rank)).or_insert(note.interrupted());
            let Some(ticket) = &note.ticket else { continue };
            if let Some(error) = &error {
                ticket.fail(error.clone().during(note.interrupted()));
            }
            ticket.end();
        }
    }

    /// The same in all windows. If its session is over it frees no lock of ours any more, so we do.
    pub fn lose_remotely(&mut self, rank: u32, loss: Loss) {
        let windows: Vec<(u32, bool)> =
            self.remotes.iter().map(|(window, remote)| (*window, remote.at_origin)).collect();
        self.note_interrupted(rank);
        for (window, has_lock) in windows {
            self.abandon_remotely(window, rank);
            self.unsure[rank as usize].clear();
            match loss {
                Loss::Session(_) if has_lock => self.give_lock_back(window, self.rank, rank),
                Loss::Session(_) => {}
                Loss::Protocol(_) | Loss::Told | Loss::Without => self.drop_lock(window, rank),
            }
        }
        self.cancel_accesses(rank);
    }

    /// Ends an epoch that a start began: what is kept leaves, and the rank is told. False: not all can leave now.
    pub fn complete_remotely(&mut self, window: u32, rank: u32) -> bool {
        self.push_lane(window, rank, Next::Complete);
        let remote = self.remote(window);
        let lane = &remote.lanes[rank as usize];
        let has_left = lane.has_left() || lane.last_put().is_some();
        has_left && remote.is_open(rank) && self.raise(window, rank, Word::Completes)
    }

    /// Tells a rank that we called one more fence, behind all that went to it. False: not all has left, or there is no room.
    pub fn fence_remotely(&mut self, window: u32, rank: u32) -> bool {
        let has_left = self.remote(window).lanes[rank as usize].has_left();
        has_left && (rank == self.rank || self.raise(window, rank, Word::Fences))
    }

    /// Whether a rank called as many fences as this one.
    pub fn has_fenced(&mut self, window: u32, rank: u32) -> bool {
        let own = self.rank;
        let remote = self.remote(window);
        rank == own || remote.word(Word::Fences, rank) >= remote.fences
    }

    /// Tells a rank that we posted, completed or called a fence once more. False: there is no room for that now.
    pub fn raise(&mut self, window: u32, rank: u32, word: Word) -> bool {
        if self.is_lost(window, rank) {
            return true;
        }
        let posted = Posted::Word { window, rank };
        let Ok(id) = self.posted.insert(posted) else { return false };
        let own = self.rank;
        let remote = self.remote(window);
        let key = remote.keys[rank as usize];
        let lane = &mut remote.lanes[rank as usize];
        let count = lane.told(word);
        *count += 1;
        let count = *count;
        let put = if word == Word::Completes { lane.last_put() } else { None };
        let put = put.and_then(|at| Some((at, lane.queue.pop_front()?)));
        let word_from_end = remote.words.reversed(remote.words.of_rank(word, own));
        let raise = Raise { word: word_from_end, value: count, to: true };
        let unsure = put.as_ref().map(|(_, put)| Unsure::of(window, &put.note));
        let (what, memory, note) = match put {
            Some((at, put)) => {
                (What::Notify { at, raise, applied: false }, put.memory, Some(put.note))
            }
            None => (remote.notice(rank, raise), Memory::empty(), None),
        };
        match self.mail.post_remote(
            rank,
            key,
            (what.clone(), Terms::default()),
            memory,
            id.to_u64() | REMOTE,
        ) {
            Ok(NetPosted::Done(completed)) => {
                self.remember(rank, completed.operation, unsure);
                self.remote_done(completed);
            }
            Ok(NetPosted::Pending(pending)) => self.remember(rank, pending, unsure),
            Err((memory, Fault::Busy)) => {
                self.posted.remove(id);
                let lane = &mut self.remote(window).lanes[rank as usize];
                *lane.told(word) -= 1;
                if let (What::Notify { at, .. }, Some(note)) = (what, note) {
                    let what = What::Access(Direction::Put, RemoteLayout::At(at));
                    lane.queue.push_front(Prepared { what, memory, note });
                }
                return false;
            }
            Err((_, fault)) => self.access_over(id, Err(fault), 0, Memory::empty()),
        }
        true
    }

    /// A counter of a rank grows by 1 after all that was issued to it before, a put included that may go with the notice.
    pub fn notify_remotely(&mut self, window: u32, rank: u32, counter: u32) {
        let remote = self.remote(window);
        let word = remote.words.reversed(remote.words.counter(counter));
        let raise = Raise { word, value: 1, to: false };
        let alone = remote.notice(rank, raise);
        let round = remote.lanes[rank as usize].round.clone();
        let queue = &mut remote.lanes[rank as usize].queue;
        match queue.back_mut().and_then(|put| Some((put.short_put()?, put))) {
            Some((at, put)) => put.what = What::Notify { at, raise, applied: true },
            None => {
                let memory = Memory::empty();
                queue.push_back(Prepared { what: alone, memory, note: Note::of_word(round) });
            }
        }
        self.push_remotely(window, rank);
    }

    /// Whether all ranks of a group completed as many epochs as exposures named them.
    pub fn completed_remotely(&mut self, window: u32, group: &[u32]) -> Result<bool, Error> {
        let mut lost = None;
        for rank in group {
            let remote = self.remote(window);
            let exposures = remote.lanes[*rank as usize].exposures;
            if remote.word(Word::Completes, *rank) < exposures {
                match self.lost(window, *rank) {
                    Some(error) => lost = lost.or(Some(error)),
                    None => return Ok(false),
                }
            }
        }
        lost.map_or(Ok(true), Err)
    }

    /// Asks for the lock of a rank, if an epoch needs it and nobody did.
    pub fn ask_for_lock(&mut self, window: u32, rank: u32) {
        let lane = &mut self.remote(window).lanes[rank as usize];
        let wanted = lane.lock.filter(|it| it.request.is_none() && lane.gate == Gate::Lock);
        let Some(Lock { kind, .. }) = wanted else { return };
        let Ok(id) = self.posted.insert(Posted::Lock { window, rank }) else { return };
        let key = self.remote(window).keys[rank as usize];
        let (exclusive, user) = (kind == LockKind::Exclusive, id.to_u64() | REMOTE);
        match self.mail.ask_for_lock(rank, key, exclusive, user) {
            Ok(NetPosted::Pending(operation)) => {
                if let Some(lock) = &mut self.remote(window).lanes[rank as usize].lock {
                    lock.request = Some(operation);
                }
            }
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            // It is asked for again.
            Err(Fault::Busy) => drop(self.posted.remove(id)),
            Err(fault) => self.access_over(id, Err(fault), 0, Memory::empty()),
        }
    }

    fn lock_taken(&mut self, window: u32, rank: u32, completed: &Completed) {
        match completed.outcome {
            Ok(()) => {}
            Err(Fault::Busy) => {
                // The target has too many requests: it is asked again.
                let lanes = self.remotes.get_mut(&window).map(|remote| &mut remote.lanes);
                let lock = lanes.and_then(|lanes| lanes[rank as usize].lock.as_mut());
                return lock.into_iter().for_each(|lock| lock.request = None);
            }
            Err(fault) => return self.word_failed(window, rank, fault),
        }
        self.lock_is_ours(window, rank, completed.operation, completed.bits);
    }

    fn lock_is_ours(&mut self, window: u32, rank: u32, request: OperationId, note: u64) {
        let Some(remote) = self.remotes.get_mut(&window) else { return };
        let key = remote.keys[rank as usize];
        match &mut remote.lanes[rank as usize].lock {
            Some(lock) => (lock.request, lock.is_held) = (Some(request), true),
            // The rank was lost meanwhile.
            None => return self.return_lock(rank, key, request),
        }
        if note == OWNER_DIED {
            self.refused(rank, Refused { window, ..Refused::of(Reason::OwnerDied) });
        }
        self.push_remotely(window, rank);
    }

    /// Asks for the lock of a rank if something waits for it.
    pub fn ask_for_what_waits(&mut self, window: u32, rank: u32) {
        // A request may be asked about after the window was freed.
        let Some(remote) = self.remotes.get(&window) else { return };
        if !remote.lanes[rank as usize].is_empty() {
            self.ask_for_lock(window, rank);
        }
    }

    /// The only put of an epoch goes with the request for its lock.
    fn ride(&mut self, window: u32, rank: u32, (at, kind): (u64, LockKind)) {
        let remote = self.remote(window);
        let key = remote.keys[rank as usize];
        let lane = &mut remote.lanes[rank as usize];
        let Some(Prepared { memory, note, what }) = lane.queue.pop_front() else { return };
        lane.under_way += 1;
        let id = match self.posted.insert(Posted::LockedPut { window, rank, at, note }) {
            Ok(id) => id,
            Err(posted) => return self.walk(posted, what, memory),
        };
        let exclusive = kind == LockKind::Exclusive;
        let put = (at, exclusive);
        match self.mail.put_under_lock(rank, key, put, memory, id.to_u64() | REMOTE) {
            Ok(NetPosted::Pending(operation)) => {
                if let Some(lock) = &mut self.remote(window).lanes[rank as usize].lock {
                    lock.request = Some(operation);
                }
            }
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            Err((memory, _)) => {
                let posted = self.posted.remove(id).expect("it was added just now");
                self.walk(posted, what, memory);
            }
        }
    }

    /// A put that found no room together with its lock goes after it.
    fn walk(&mut self, posted: Posted, what: What, memory: Memory) {
        let Posted::LockedPut { window, rank, note, .. } = posted else { return };
        let lane = &mut self.remote(window).lanes[rank as usize];
        lane.under_way -= 1;
        lane.queue.push_front(Prepared { what, memory, note });
        self.ask_for_lock(window, rank);
    }

    /// Gives the lock of a rank back, after all operations. False: not all have left, or it is not taken yet.
    pub fn release_remotely(&mut self, window: u32, rank: u32) -> bool {
        let remote = self.remote(window);
        let is_open = remote.is_open(rank);
        let key = remote.keys[rank as usize];
        let lane = &mut remote.lanes[rank as usize];
        if let Some(rider) = lane.rider() {
            self.ride(window, rank, rider);
            return false;
        }
        if !lane.has_left() {
            return false;
        }
        let Some(lock) = lane.lock else { return true };
        let Some(operation) = lock.request else { return true };
        if !is_open {
            return false;
        }
        let posted = Posted::Word { window, rank };
        let Ok(id) = self.posted.insert(posted) else { return false };
        let released = self.mail.release_lock(rank, key, operation, id.to_u64() | REMOTE);
        if let Err(Fault::Busy) = released {
            self.posted.remove(id);
            return false;
        }
        let lane = &mut self.remote(window).lanes[rank as usize];
        (lane.lock, lane.gate) = (None, Gate::Closed);
        match released {
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            Ok(NetPosted::Pending(_)) => {}
            Err(fault) => self.access_over(id, Err(fault), 0, Memory::empty()),
        }
        true
    }
}

/// Why a rank refused an operation that failed by this; `None` where the rank is lost.
pub(super) fn reason_of(fault: Fault) -> Option<Reason> {
    match fault {
        Fault::BadKey | Fault::NotPermitted => Some(Reason::Window),
        Fault::Invalid => Some(Reason::Operator),
        // A buffer, or another thing that comes back.
        Fault::Busy => Some(Reason::Room),
        _ => None,
    }
}

/// Brings a result to its place. Returns its bytes.
fn land(landing: &Landing, value: u64, memory: Memory) -> u64 {
    let (place, half) = match landing {
        Landing::Nothing => return 0,
        Landing::Value(place, bytes) => {
            place.scatter(&value.to_le_bytes()[..*bytes]);
            return *bytes as u64;
        }
        Landing::All(place) => (place, false),
        Landing::Half(place) => (place, true),
    };
    let Some(buffer) = memory.into_pooled() else { return 0 };
    let result = if half { &buffer[buffer.len() / 2..] } else { &buffer[..] };
    place.scatter(result);
    result.len() as u64
}
