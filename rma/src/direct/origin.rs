//! Accumulates at the origin, as the paper has them: lock by compare-and-swap, get, reduce here, put, unlock.
//!
//! One at a time for each target, in their order; other operations for that target wait behind it. The lock is a word on the
//! target's board: 0, or the number of the rank that has it, from 1 on. If that rank is lost the next one takes the lock over.

use ropewalk_base::memory::{Change, Job, Memory, Operator, Places, Slice, Update};
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::{Completed, Direction, Fault, Posted as NetPosted, Terms};

use super::state::{Landing, Note, Posted, Reducing, Reduction, Step, What};
use crate::error::Loss;
use crate::messages::hub::Hub;
use crate::team::mail::REMOTE;

impl Hub {
    /// A reduction begins.
    pub(super) fn begin_reduction(
        &mut self,
        window: u32,
        rank: u32,
        reduction: Reduction,
        memory: Memory,
        note: Note,
    ) {
        let lane = &mut self.remote(window).lanes[rank as usize];
        (lane.under_way, lane.local) = (lane.under_way + 1, lane.local + 1);
        let step = Step::Lock;
        let (failed, unposted) = (None, None);
        let reducing = Reducing { step, expected: 0, reduction, memory, note, failed, unposted };
        lane.reducing = Some(Box::new(reducing));
        self.swap_lock(window, rank, 0, u64::from(self.rank) + 1);
    }

    /// Tries again to take locks that others had, and what found no room. True: there was something.
    pub fn try_locks_again(&mut self) -> bool {
        let refused = std::mem::take(&mut self.refused_locks);
        let returns = std::mem::take(&mut self.returns);
        let unreturned = std::mem::take(&mut self.unreturned);
        let any = !refused.is_empty() || !returns.is_empty() || !unreturned.is_empty();
        for (rank, key, request) in unreturned {
            self.return_lock(rank, key, request);
        }
        for (window, rank, holder) in returns {
            self.give_lock_back(window, rank, holder);
        }
        for (window, rank) in refused {
            let own = u64::from(self.rank) + 1;
            let lanes = self.remotes.get_mut(&window).map(|remote| &mut remote.lanes);
            let reducing = lanes.and_then(|lanes| lanes[rank as usize].reducing.as_mut());
            match reducing.map(|it| (it.expected, it.unposted.take())) {
                Some((_, Some((what, memory)))) => {
                    self.post_step(window, rank, what, memory);
                }
                Some((expected, None)) => self.swap_lock(window, rank, expected, own),
                None => {}
            }
        }
        any
    }

    /// Sets the word of the lock, if it has the expected value.
    fn swap_lock(&mut self, window: u32, rank: u32, expected: u64, desired: u64) {
        let what = self.remote(window).swap_of_lock(rank, expected, desired);
        self.post_step(window, rank, what, Memory::empty());
    }

    /// A reduction ends before its last step. The target may serve others: they must not wait for us.
    fn abandon_reduction(&mut self, window: u32, rank: u32, fault: Fault) {
        self.give_lock_back(window, rank, self.rank);
        self.reduced(window, rank, Some(fault));
    }

    /// Frees the lock at `rank`, if `holder` has it. Nobody waits for that.
    pub(super) fn give_lock_back(&mut self, window: u32, rank: u32, holder: u32) {
        let Some(remote) = self.remotes.get(&window) else { return };
        let what = remote.swap_of_lock(rank, u64::from(holder) + 1, 0);
        let key = remote.keys[rank as usize];
        let Ok(id) = self.posted.insert(Posted::Return) else {
            return self.returns.push((window, rank, holder));
        };
        let access = (what, Terms::default());
        match self.mail.post_remote(rank, key, access, Memory::empty(), id.to_u64() | REMOTE) {
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            Ok(NetPosted::Pending(_)) => {}
            Err((_, fault)) => {
                self.posted.remove(id);
                if fault == Fault::Busy {
                    self.returns.push((window, rank, holder));
                }
            }
        }
    }

    fn post_step(&mut self, window: u32, rank: u32, what: What, memory: Memory) {
        match self.loss_of(Some(window), rank) {
            None => {}
            Some(Loss::Without) => return self.abandon_reduction(window, rank, Fault::BadKey),
            Some(_) => return self.abandon_reduction(window, rank, Fault::PeerReset),
        }
        let remote = self.remote(window);
        // Elements of a dynamic window are in a region of their own, the lock is not.
        let region = match (&what, &remote.lanes[rank as usize].reducing) {
            (What::Access(..), Some(it)) => it.note.again.as_ref().and_then(|again| again.key),
            _ => None,
        };
        let key = region.unwrap_or(remote.keys[rank as usize]);
        let posted = Posted::Reduction { window, rank, operation: None };
        let Ok(id) = self.posted.insert(posted) else {
            return self.put_off(window, rank, (what, memory));
        };
        match self.mail.post_remote(
            rank,
            key,
            (what.clone(), Terms::default()),
            memory,
            id.to_u64() | REMOTE,
        ) {
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            Ok(NetPosted::Pending(pending)) => {
                if let Some(Posted::Reduction { operation, .. }) = self.posted.get_mut(id) {
                    *operation = Some(pending);
                }
            }
            Err((memory, Fault::Busy)) => {
                self.posted.remove(id);
                self.put_off(window, rank, (what, memory));
            }
            Err((_, fault)) => {
                self.posted.remove(id);
                self.abandon_reduction(window, rank, fault);
            }
        }
    }

    /// A step found no room: it is posted in the next pass.
    fn put_off(&mut self, window: u32, rank: u32, step: (What, Memory)) {
        if let Some(reducing) = &mut self.remote(window).lanes[rank as usize].reducing {
            reducing.unposted = Some(step);
            self.refused_locks.push((window, rank));
        }
    }

    /// A step is over: the next one begins.
    pub(super) fn reduction_went_on(&mut self, window: u32, rank: u32, completed: Completed) {
        let own = u64::from(self.rank) + 1;
        let Some(remote) = self.remotes.get_mut(&window) else { return };
        let Some(reducing) = &mut remote.lanes[rank as usize].reducing else { return };
        if let Err(fault) = completed.outcome {
            let holds = matches!(reducing.step, Step::Get | Step::Put);
            let is_refused =
                matches!(fault, Fault::BadKey | Fault::NotPermitted | Fault::Invalid | Fault::Busy);
            if !holds || !is_refused {
                return self.abandon_reduction(window, rank, fault);
            }
            (reducing.failed, reducing.step) = (Some(fault), Step::Unlock);
            return self.swap_lock(window, rank, own, 0);
        }
        let Reduction { at, bytes, .. } = reducing.reduction;
        let remote = RemoteLayout::At(at);
        match reducing.step {
            Step::Lock if completed.bits != reducing.expected => {
                let holder = completed.bits;
                let is_lost = |holder: usize| self.lost.get(holder).is_some_and(Option::is_some);
                let is_free = !(holder as usize).checked_sub(1).is_some_and(is_lost);
                reducing.expected = if is_free { 0 } else { holder };
                self.refused_locks.push((window, rank));
            }
            Step::Lock => self.get_elements(window, rank, remote, bytes),
            Step::Get => self.combine(window, rank, remote, completed.memory),
            Step::Put => {
                reducing.step = Step::Unlock;
                self.swap_lock(window, rank, own, 0);
            }
            Step::Unlock => {
                let failed = reducing.failed;
                self.reduced(window, rank, failed);
            }
        }
    }

    fn get_elements(&mut self, window: u32, rank: u32, remote: RemoteLayout, bytes: usize) {
        let memory = Memory::pooled(self.mail.buffer(bytes));
        if let Some(reducing) = &mut self.remote(window).lanes[rank as usize].reducing {
            reducing.step = Step::Get;
        }
        self.post_step(window, rank, What::Access(Direction::Get, remote), memory);
    }

    /// The target's elements are here: they are combined with ours, and go back.
    fn combine(&mut self, window: u32, rank: u32, remote: RemoteLayout, elements: Memory) {
        let Hub { remotes, table, mail, .. } = self;
        let Some(state) = remotes.get_mut(&window) else { return };
        let Some(reducing) = &mut state.lanes[rank as usize].reducing else { return };
        let change = reducing.reduction.change;
        if let Some(again) = &mut reducing.note.again {
            again.settle();
        }
        let source = std::mem::replace(&mut reducing.memory, Memory::empty());
        let (bytes, sent) = (elements.len(), source.len());
        let (Ok(target), Ok(own)) = (table.insert(elements), table.insert(source)) else {
            return self.abandon_reduction(window, rank, Fault::Busy);
        };
        let whole = |buffer, len| Slice { buffer, offset: 0, len };
        let fetches = matches!(reducing.note.landing, Landing::All(_));
        let count = |update: Update| update.sent(update.count(bytes as usize).unwrap_or(0)) as u64;
        let result = match change {
            Change::Update(update) if fetches => {
                let before = mail.buffer(count(update) as usize);
                table.insert(Memory::pooled(before)).ok().map(|it| whole(it, count(update)))
            }
            _ => None,
        };
        let reads = matches!(change, Change::Update(it) if it.operator() == Operator::Nothing);
        let job = Job { change, places: Places::One(whole(target, bytes)) };
        let given = if reads { whole(own, 0) } else { whole(own, sent) };
        let combined = table.apply(&job, given, result);
        let elements = table.remove(target).unwrap_or_else(Memory::empty);
        table.remove(own);
        let before = result.and_then(|it| table.remove(it.buffer));
        reducing.memory = before.unwrap_or_else(Memory::empty);
        reducing.failed = combined.err();
        reducing.note.value = combined.map_or(0, u64::from_le_bytes);
        if reads || combined.is_err() {
            reducing.step = Step::Unlock;
            let own = u64::from(self.rank) + 1;
            return self.swap_lock(window, rank, own, 0);
        }
        reducing.step = Step::Put;
        self.post_step(window, rank, What::Access(Direction::Put, remote), elements);
    }

    /// A reduction is over; what waited behind it goes on.
    fn reduced(&mut self, window: u32, rank: u32, failed: Option<Fault>) {
        let Some(remote) = self.remotes.get_mut(&window) else { return };
        let lane = &mut remote.lanes[rank as usize];
        let Some(reducing) = lane.reducing.take() else { return };
        (lane.under_way, lane.local) = (lane.under_way - 1, lane.local - 1);
        let is_beginning = lane.is_beginning;
        let Reducing { memory, note, .. } = *reducing;
        let ended = (failed.map_or(Ok(()), Err), note.value);
        self.dynamic_over(window, rank, note, ended, memory);
        if !is_beginning {
            self.push_remotely(window, rank);
        }
    }
}
