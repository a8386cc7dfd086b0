//! The state of a team's windows at one rank: what each call on any of them works on.
//!
//! * [`Mail`] brings messages and takes them away.
//! * `inbound` has what other ranks want here; [`super::execute`] does it.
//! * Each window has a queue for each target; [`super::issue`] fills it.
//!
//! Invariant: nothing of this runs outside of a call on a window or on the team. A call on one window serves all of them.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_base::memory::{BufferTable, Cells, Memory, Slice};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::verb::RemoteKey;
use ropewalk_net::{Fault, OperationId};

use super::locks::Locks;
use super::queue::{Apart, Gate, Parcel, Queue};
use super::state::{Domain, Fetch, Held, Inbound, Moving, Origin, WindowState};
use super::verbs::verb;
use super::wire::{ITEM_BYTES_MAX, Item, Reason, Refused};
use crate::claims::Claim;
use crate::direct::state::{Posted, Remote, Unsure};
use crate::error::{Error, Interrupted, Loss, Refusal, WindowName};
use crate::team::exchanges::Exchanges;
use crate::team::mail::{Event, Kind, MESSAGE_BYTES, Mail};

/// Data of operations are cut into parts of so many bytes where they cannot go from memory to memory.
pub(crate) const PART_BYTES: u64 = 256 << 10;
/// Memories under way, at most.
const MEMORIES_MAX: usize = 1 << 21;
const FETCHES_MAX: usize = 1 << 20;
/// Turns of progress in one call.
const TURNS_MAX: usize = 64;
/// Refusals that are kept in words; the others are counted.
const REFUSALS_MAX: usize = 8;
/// The number by which the team's own barrier is known.
pub(crate) const TEAM: u32 = u32::MAX;

/// See the module.
pub(crate) struct Hub {
    pub mail: Mail,
    pub table: BufferTable,
    /// Bytes of operations that were copied here, beside those that the table counts.
    pub copied: u64,
    pub rank: u32,
    pub size: u32,
    pub windows: BTreeMap<u32, WindowState>,
    /// Of windows by remote access: what they have beside.
    pub remotes: BTreeMap<u32, Remote>,
    pub posted: Slots<Posted>,
    /// By rank: puts that were complete before it had taken them, and that it may still refuse.
    pub unsure: Vec<VecDeque<Unsure>>,
    /// By window and rank that is lost: an operation that this has ended, until a synchronisation tells of it.
    pub interrupted: BTreeMap<(u32, u32), Interrupted>,
    /// Windows and ranks whose accumulates somebody else has locked.
    pub refused_locks: Vec<(u32, u32)>,
    /// Locks of lost ranks that go back, by rank, key and request: there was no room for that.
    pub unreturned: Vec<(u32, RemoteKey, OperationId)>,
    /// Locks that have to be given back: window, rank, and who has it. There was no room for that.
    pub returns: Vec<(u32, u32, u32)>,
    /// Windows and ranks of dynamic windows, to which something may go now.
    pub pushes: Vec<(u32, u32)>,
    pub next_window: u32,
    pub inbound: Vec<Inbound>,
    /// Tokens and answers that leave at the end of a pass, and the ranks that they are for.
    replies: Vec<Option<Parcel>>,
    replied: Vec<u32>,
    pub fetches: Slots<Fetch>,
    pub held: Slots<Held>,
    pub moving: Slots<Moving>,
    pub domain: Domain,
    pub exchanges: Exchanges,
    pub lost: Vec<Option<Loss>>,
    /// Ranks whose works may go on.
    pub ready: Vec<u32>,
    numbers: u64,
    /// Of a message that is taken apart; empty otherwise.
    pub items: Vec<Item>,
}

impl Hub {
    pub fn new(mail: Mail, rank: u32, size: u32) -> Hub {
        let many = size as usize;
        Hub {
            mail,
            table: BufferTable::with_limit(MEMORIES_MAX),
            copied: 0,
            rank,
            size,
            windows: BTreeMap::new(),
            remotes: BTreeMap::new(),
            posted: Slots::with_limit(MEMORIES_MAX),
            unsure: vec![VecDeque::new(); many],
            interrupted: BTreeMap::new(),
            refused_locks: Vec::new(),
            unreturned: Vec::new(),
            returns: Vec::new(),
            pushes: Vec::new(),
            next_window: 0,
            inbound: (0..size).map(|_| Inbound::default()).collect(),
            replies: (0..size).map(|_| None).collect(),
            replied: Vec::new(),
            fetches: Slots::with_limit(FETCHES_MAX),
            held: Slots::with_limit(MEMORIES_MAX),
            moving: Slots::with_limit(MEMORIES_MAX),
            domain: Domain::new(size),
            exchanges: Exchanges::new(size),
            lost: vec![None; many],
            ready: Vec::new(),
            numbers: 0,
            items: Vec::new(),
        }
    }

    /// Makes a window's memory accessible.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn open(
        &mut self,
        name: WindowName,
        (cells, claim): (&Cells, Claim),
        range: std::ops::Range<usize>,
        (eager_bytes, counters): (u64, u32),
        is_dynamic: bool,
    ) -> Result<(), Error> {
        let memory = cells.memory(range.clone()).map_err(|_| Error::Room("this window"))?;
        let bytes = memory.len();
        let memory = self.table.insert(memory).map_err(|_| Error::Room("one more window"))?;
        let size = self.size as usize;
        let state = WindowState {
            cells: cells.clone(),
            _claim: claim,
            base: range.start,
            bytes,
            memory,
            moving: 0,
            regions: is_dynamic.then(Default::default),
            eager_bytes,
            queues: (0..size).map(|_| Queue::default()).collect(),
            origins: vec![Origin::default(); size],
            locks: Locks::default(),
            parked: BTreeMap::new(),
            domain: Domain::new(self.size),
            call: self.exchanges.call(),
            missing: vec![false; size],
            counters: vec![0; counters as usize],
            refusals: VecDeque::new(),
            refused: 0,
            name,
        };
        self.windows.insert(state.name.number, state);
        Ok(())
    }

    /// A window has another name.
    pub fn rename(&mut self, name: WindowName) {
        if let Some(state) = self.windows.get_mut(&name.number) {
            state.name = name;
        }
    }

    /// Withdraws a window's memory: later operations find none. False: data move there, or from there.
    pub fn withdraw_memory(&mut self, window: u32) -> bool {
        let Hub { windows, table, .. } = self;
        let Some(state) = windows.get(&window) else { return true };
        table.remove(state.memory);
        state.moving == 0
    }

    /// Forgets a window. Operations that come for it later are refused, and so are those that wait here for a lock.
    pub fn shut(&mut self, window: u32) {
        self.remotes.remove(&window);
        self.interrupted.retain(|(of, _), _| *of != window);
        self.unsure.iter_mut().for_each(|puts| puts.retain(|put| put.window != window));
        let Some(mut state) = self.windows.remove(&window) else { return };
        self.table.remove(state.memory);
        for rank in state.locks.end() {
            match state.parked.remove(&rank) {
                Some(works) => {
                    self.inbound[rank as usize].works.extend(works);
                    self.ready.push(rank);
                }
                None => self.tell(rank, &Item::Granted { window }),
            }
        }
        self.send_replies();
    }

    /// Whether there was such a window, or this rank gave its creation up: others may not know yet.
    pub fn is_gone(&self, window: u32) -> bool {
        window < self.next_window && !self.windows.contains_key(&window)
    }

    /// The state of a window that is open.
    pub fn window(&mut self, window: u32) -> &mut WindowState {
        self.windows.get_mut(&window).expect("a window is there until it is freed")
    }

    /// See [`Team::bytes_copied`](crate::Team::bytes_copied).
    pub fn bytes_copied(&self) -> u64 {
        self.copied + self.table.bytes_copied()
    }

    /// A number for data that go apart.
    pub fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Serves everybody, as far as that goes without waiting, and for some turns: who floods this rank does not hold its
    /// calls up. True: something happened.
    pub fn progress(&mut self) -> bool {
        let tried = self.try_locks_again();
        for turn in 0..TURNS_MAX {
            // Later turns make no pass: an answer that has just come does not wait for one more look at the rails.
            let mut more = self.mail.poll(turn == 0);
            while let Some(event) = self.mail.next() {
                self.handle(event);
                more = true;
            }
            more |= self.push_attached();
            self.advance_all();
            self.send_replies();
            if !more {
                // Accesses that these events posted may wait in a batch for the next pass.
                if turn > 0 && !self.posted.is_empty() {
                    self.mail.endpoint().progress();
                }
                return turn > 0 || tried;
            }
        }
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Message { rank, buffer } => self.arrive(rank, buffer),
            Event::Received { token, outcome, memory } => {
                self.data_came(token, outcome, memory);
            }
            Event::Sent { token } => self.data_left(token),
            Event::Gone { rank, fault } => self.lose(rank, Loss::Session(fault)),
            Event::Remote(completed) => self.remote_done(completed),
            Event::TooLong { rank } => self.lose(rank, Loss::Protocol("a message is too long")),
        }
    }

    fn data_came(&mut self, token: u64, outcome: Result<u64, Fault>, memory: Memory) {
        match self.moving.remove(SlotId::from_u64(token)) {
            Some(Moving::Operand { rank, serial, staged, used }) => {
                self.moved(used);
                self.operand_came(rank, (serial, staged), outcome, memory);
            }
            Some(Moving::Answer { fetch }) => self.answer_came(fetch, outcome, memory),
            _ => {}
        }
    }

    fn data_left(&mut self, token: u64) {
        match self.moving.remove(SlotId::from_u64(token)) {
            Some(Moving::Out { window, rank, counts, ticket }) => {
                if counts && let Some(state) = self.windows.get_mut(&window) {
                    state.queues[rank as usize].sends -= 1;
                }
                if let Some(ticket) = ticket {
                    ticket.end();
                }
            }
            Some(Moving::AnswerOut { rank, used }) => {
                self.moved(used);
                self.inbound[rank as usize].answers -= 1;
                self.ready.push(rank);
            }
            _ => {}
        }
    }

    /// Adds a token or an answer for a rank, with `bytes` bytes of data that `fill` copies; they leave at the end of the pass.
    pub fn reply_with(
        &mut self,
        rank: u32,
        item: &Item,
        bytes: usize,
        fill: impl FnOnce(&BufferTable, &mut [u8]),
    ) {
        if self.lost[rank as usize].is_some() {
            return;
        }
        let slot = &mut self.replies[rank as usize];
        if slot.as_ref().is_some_and(|it| !it.has_space(ITEM_BYTES_MAX + bytes))
            && let Some(full) = slot.take()
        {
            self.mail.send(rank, full.close().0);
        }
        if slot.is_none() {
            self.replied.push(rank);
        }
        let mail = &self.mail;
        let parcel = slot.get_or_insert_with(|| Parcel::new(mail.buffer(MESSAGE_BYTES)));
        parcel.add(item);
        fill(&self.table, parcel.data(bytes));
    }

    /// Adds a token without data.
    pub fn tell(&mut self, rank: u32, item: &Item) {
        self.reply_with(rank, item, 0, |_, _| ());
    }

    /// Sends the tokens and answers that wait.
    pub fn send_replies(&mut self) {
        while let Some(rank) = self.replied.pop() {
            if let Some(parcel) = self.replies[rank as usize].take() {
                self.mail.send(rank, parcel.close().0);
            }
        }
    }

    /// Tells an origin that its operation is refused.
    pub fn refuse(&mut self, rank: u32, refused: Refused) {
        self.tell(rank, &Item::Refused(refused));
    }

    /// Sends what waits for a target, if the way is open; asks for the lock where that is missing.
    pub fn push(&mut self, window: u32, rank: u32) {
        let Some(state) = self.windows.get_mut(&window) else { return };
        let queue = &mut state.queues[rank as usize];
        if self.lost[rank as usize].is_some() {
            let left = queue.abandon();
            return self.left_apart(left);
        }
        if let Gate::Lock(kind) = queue.gate {
            queue.gate = Gate::Asked;
            let mut parcel = Parcel::new(self.mail.buffer(MESSAGE_BYTES));
            parcel.add(&Item::Lock { window, kind, rides: false });
            self.mail.send(rank, parcel.close().0);
        }
        if !queue.is_open() {
            return;
        }
        for parcel in queue.take() {
            let (buffer, apart) = parcel.close();
            self.mail.send(rank, buffer);
            for Apart { number, memory, token } in apart {
                self.mail.send_apart(rank, Kind::Data, number, memory, token);
            }
        }
    }

    /// Adds a token behind the operations that wait for a target. It gets the next number, if it asks for an answer.
    pub fn append(&mut self, window: u32, rank: u32, item: impl FnOnce(u64) -> Item) {
        let Hub { windows, mail, .. } = self;
        let Some(state) = windows.get_mut(&window) else { return };
        let queue = &mut state.queues[rank as usize];
        let item = item(queue.token + 1);
        if matches!(item, Item::Flush { .. } | Item::Unlock { .. }) {
            queue.token += 1;
            queue.is_unflushed = false;
        }
        queue.parcel(ITEM_BYTES_MAX, || mail.buffer(MESSAGE_BYTES)).add(&item);
    }

    /// Data that will never be sent end as if they had been.
    fn left_apart(&mut self, left: Vec<Apart>) {
        left.into_iter().for_each(|it| self.data_left(it.token));
    }

    /// The gate of a target may be open now: what was urgent leaves.
    pub fn opened(&mut self, window: u32, rank: u32) {
        let Some(state) = self.windows.get(&window) else { return };
        if state.queues[rank as usize].is_urgent {
            self.push(window, rank);
        }
    }

    /// Keeps what a target refused for the next synchronisation.
    pub fn refused(&mut self, rank: u32, refused: Refused) {
        let refusal = refusal(&refused);
        if refused.fetch != 0 {
            self.fetch_refused(rank, refused.fetch, refusal.clone());
        }
        let Some(state) = self.windows.get_mut(&refused.window) else { return };
        state.refused += 1;
        if refusal == Refusal::OwnerDied {
            // Told before all else: the program may read what a dead holder left half done.
            state.refusals.push_front((rank, refusal));
            state.refusals.truncate(REFUSALS_MAX);
        } else if state.refusals.len() < REFUSALS_MAX {
            state.refusals.push_back((rank, refusal));
        }
    }

    /// What was refused since the last synchronisation.
    ///
    /// # Errors
    /// [`Error::Refused`], if something was.
    pub fn settle(&mut self, window: u32) -> Result<(), Error> {
        self.hear_refusals();
        let state = self.window(window);
        let Some((rank, refusal)) = state.refusals.pop_front() else { return Ok(()) };
        let further = state.refused - 1;
        state.refusals.clear();
        state.refused = 0;
        Err(Error::Refused { window: state.name.clone(), rank, refusal, further })
    }

    /// A call has locked the memory of some ranks. Tells whether the last holder of one of these locks died with it; all other
    /// refusals are kept for the next synchronisation.
    ///
    /// # Errors
    /// [`Refusal::OwnerDied`], if that was so.
    pub fn settle_locks(
        &mut self,
        window: u32,
        is_locked: impl Fn(&u32) -> bool,
    ) -> Result<(), Error> {
        let state = self.window(window);
        let is_told =
            |(rank, refusal): &(u32, Refusal)| *refusal == Refusal::OwnerDied && is_locked(rank);
        let died = state.refusals.iter().position(is_told);
        let Some((rank, refusal)) = died.and_then(|at| state.refusals.remove(at)) else {
            return Ok(());
        };
        state.refused -= 1;
        Err(Error::Refused { window: state.name.clone(), rank, refusal, further: 0 })
    }

    /// Whether nothing can be had of a rank in a window: it is lost, or has no such window.
    pub fn is_lost(&self, window: u32, rank: u32) -> bool {
        self.loss_of(Some(window), rank).is_some()
    }

    /// Why nothing can be had of a rank, in a window or at all.
    pub fn loss_of(&self, window: Option<u32>, rank: u32) -> Option<Loss> {
        let state = window.and_then(|window| self.windows.get(&window));
        let is_missing = state.is_some_and(|state| state.missing[rank as usize]);
        self.lost[rank as usize].or(is_missing.then_some(Loss::Without))
    }

    /// The error of a rank that is lost.
    pub fn lost(&self, window: u32, rank: u32) -> Option<Error> {
        let loss = self.loss_of(Some(window), rank)?;
        Some(self.loss(Some(window), rank, loss))
    }

    /// The error of any rank that is lost.
    pub fn anybody_lost(&self, window: u32) -> Option<Error> {
        (0..self.size).find_map(|rank| self.lost(window, rank))
    }

    /// A loss in a call of a window, or of the team.
    pub fn loss(&self, window: Option<u32>, rank: u32, loss: Loss) -> Error {
        match window.and_then(|window| self.windows.get(&window)) {
            Some(state) => Error::Lost { window: state.name.clone(), rank, loss, operation: None },
            None => Error::TeamLost { rank, loss },
        }
    }

    /// A rank that lives has no such window: nobody waits for it there. It refuses what comes, so what waits leaves, and ends.
    pub fn miss(&mut self, window: u32, rank: u32) {
        let Some(state) = self.windows.get_mut(&window) else { return };
        state.missing[rank as usize] = true;
        let queue = &mut state.queues[rank as usize];
        if queue.gate == Gate::Start {
            queue.gate = Gate::Open;
            self.opened(window, rank);
        }
        self.abandon_remotely(window, rank);
    }

    /// A rank is lost: nobody waits for it, and its locks go to others.
    pub fn lose(&mut self, rank: u32, loss: Loss) {
        if self.lost[rank as usize].is_some() {
            return;
        }
        self.lost[rank as usize] = Some(loss);
        self.mail.silence(rank, Fault::PeerReset);
        self.replies[rank as usize] = None;
        self.drop_works(rank);
        self.end_fetches(rank);
        self.lose_remotely(rank, loss);
        let numbers: Vec<u32> = self.windows.keys().copied().collect();
        for window in numbers {
            let state = self.window(window);
            let parked = state.parked.remove(&rank).unwrap_or_default();
            let left = state.queues[rank as usize].abandon();
            let granted = state.locks.forget(rank);
            parked.into_iter().for_each(|work| self.release(work.message));
            self.left_apart(left);
            granted.into_iter().for_each(|next| self.granted(window, next));
        }
    }

    /// Bytes of a message that is held.
    pub fn slice(&self, message: SlotId, range: std::ops::Range<usize>) -> Slice {
        let buffer = self.held.get(message).map(|it| it.buffer);
        let none = Slice::NONE;
        Slice {
            buffer: buffer.unwrap_or(none.buffer),
            offset: range.start as u64,
            len: range.len() as u64,
        }
    }

    /// One item of a message is over. With the last one its buffer is free for the next message.
    pub fn release(&mut self, message: SlotId) {
        let Some(held) = self.held.get_mut(message) else { return };
        held.uses -= 1;
        if held.uses > 0 {
            return;
        }
        let Some(Held { rank, buffer, is_parked, .. }) = self.held.remove(message) else { return };
        self.table.remove(buffer);
        if !is_parked {
            self.mail.await_next(rank);
        }
    }

    /// A message waits for a lock: another one may come in its place, so that its rank is not cut off meanwhile.
    pub fn park(&mut self, message: SlotId) {
        let Some(held) = self.held.get_mut(message) else { return };
        if !std::mem::replace(&mut held.is_parked, true) {
            self.mail.await_next(held.rank);
        }
    }
}

impl Refused {
    /// Of nothing but a reason.
    pub fn of(reason: Reason) -> Refused {
        Refused { window: 0, reason, verb: 0, address: 0, bytes: 0, window_bytes: 0, fetch: 0 }
    }
}

/// The reason of a refusal, as users are told.
pub(crate) fn refusal(refused: &Refused) -> Refusal {
    let verb = verb(refused.verb);
    match refused.reason {
        Reason::Bounds => {
            let Refused { address: at, bytes, window_bytes, .. } = *refused;
            Refusal::Bounds { verb, at, bytes, window_bytes }
        }
        Reason::Unattached => {
            Refusal::Unattached { verb, at: refused.address, bytes: refused.bytes }
        }
        Reason::Window => Refusal::Window { verb },
        Reason::Type => Refusal::Type { verb },
        Reason::Operator => Refusal::Operator { verb },
        Reason::OwnerDied => Refusal::OwnerDied,
        Reason::Room => Refusal::Room { verb },
    }
}
