//! Dynamic windows by remote access: ranks attach memory and detach it, and origins name the target's addresses.
//!
//! * Each region of memory is exposed by itself, with a key of its own. The rank's *directory* lists its regions: addresses,
//!   lengths, keys. It takes the place of the window's memory, so that others read it with a get and nobody has to help.
//! * An origin keeps what it read. It reads again when it meets an address that it does not know, and when a target refuses a
//!   key: that region was detached. The operation goes again then, once.
//! * An entry carries a check of its words. One that was read while its rank changed it is no entry, and is read again.
//!
//! Invariants
//! * Operations that were refused for their keys go again in their order, before those behind them: the lane rests meanwhile.
//! * A token behind operations waits for their end, since any of them may have to go again.
//! * After a detach no byte of the region is written: its key is withdrawn, and what was under way has ended.

use std::cmp::Reverse;
use std::ops::Range;

use ropewalk_base::memory::{Cells, Memory};
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment, Strided};
use ropewalk_net::{Audience, Completed, Direction, Fault, Posted as NetPosted, Terms};

use super::directory::{Attached, Directory};
use super::state::{Note, Posted, Prepared, Reduction, What};
use crate::error::{Error, Loss};
use crate::messages::hub::Hub;
use crate::messages::wire::{Reason, Refused};
use crate::team::mail::REMOTE;

impl What {
    /// The same within a region that begins at this address.
    fn within(&self, start: u64) -> What {
        let layout = |layout: &RemoteLayout| match layout {
            RemoteLayout::At(at) => RemoteLayout::At(at - start),
            RemoteLayout::List(list) => {
                let part = |it: &RemoteSegment| RemoteSegment { offset: it.offset - start, ..*it };
                RemoteLayout::List(list.iter().map(part).collect())
            }
            RemoteLayout::Strided(strided) => {
                let address = strided.address - start as i64;
                RemoteLayout::Strided(Strided { address, ..strided.clone() })
            }
        };
        match self {
            What::Access(way, remote) => What::Access(*way, layout(remote)),
            What::Update { remote, update, fetch } => {
                What::Update { remote: layout(remote), update: *update, fetch: *fetch }
            }
            What::Atomic { at, atomic } => What::Atomic { at: at - start, atomic: *atomic },
            What::Reduce(reduction) => {
                What::Reduce(Reduction { at: reduction.at - start, ..*reduction })
            }
            What::Records | What::Notify { .. } => unreachable!("{self:?} is of no dynamic window"),
        }
    }
}

impl Hub {
    /// Attaches memory at this rank: others reach it by its address from now on.
    ///
    /// # Errors
    /// There is no room for one more region.
    pub fn attach_remotely(
        &mut self,
        window: u32,
        cells: &Cells,
        range: Range<usize>,
    ) -> Result<(), Error> {
        let room = Error::Room("one more region of a dynamic window");
        let address = (cells.address().addr() + range.start) as u64;
        let memory = cells.memory(range).expect("the range was judged");
        let bytes = memory.len();
        let key = self.mail.endpoint().expose(memory, true, Audience::Everybody);
        let Ok(key) = key else { return Err(room) };
        let attached = Attached { address, key, is_returned: false };
        match self.directory(window).add(attached, bytes) {
            true => Ok(()),
            false => {
                self.withdraw(window, address, key);
                Err(room)
            }
        }
    }

    fn directory(&mut self, window: u32) -> &mut Directory {
        self.remote(window).directory.as_mut().expect("the window is dynamic")
    }

    fn withdraw(&mut self, window: u32, address: u64, key: RemoteKey) {
        let Ok(id) = self.posted.insert(Posted::Detached { window, address }) else {
            return self.detached(window, address);
        };
        if self.mail.unexpose(key, id.to_u64() | REMOTE).is_err() {
            self.posted.remove(id);
            self.detached(window, address);
        }
    }

    /// Detaches it: nobody is to reach it any more.
    pub fn detach_remotely(&mut self, window: u32, address: u64) {
        let directory = self.directory(window);
        let Some((entry, attached)) = directory.find(address) else { return };
        let key = attached.key;
        directory.clear(entry);
        self.withdraw(window, address, key);
    }

    /// Detaches everything.
    pub fn detach_all(&mut self, window: u32) {
        let addresses = self.remote(window).directory.as_ref().map(Directory::addresses);
        for address in addresses.unwrap_or_default() {
            self.detach_remotely(window, address);
        }
    }

    /// Memory that was detached is back.
    pub fn detached(&mut self, window: u32, address: u64) {
        let remote = self.remotes.get_mut(&window);
        let directory = remote.and_then(|remote| remote.directory.as_mut());
        if let Some((_, attached)) = directory.and_then(|it| it.find(address)) {
            attached.is_returned = true;
        }
    }

    /// Whether nobody reaches memory any more that was detached. Then its entry is free.
    pub fn is_detached(&mut self, window: u32, address: u64) -> bool {
        let directory = self.directory(window);
        let found = directory.find(address).map(|(entry, it)| (entry, it.is_returned));
        if let Some((entry, true)) = found {
            directory.entries[entry] = None;
        }
        found.is_none_or(|(_, is_returned)| is_returned)
    }

    /// The same of everything.
    pub fn is_all_detached(&mut self, window: u32) -> bool {
        let addresses = self.remote(window).directory.as_ref().map(Directory::addresses);
        let mut left = addresses.unwrap_or_default();
        left.retain(|address| !self.is_detached(window, *address));
        left.is_empty()
    }

    /// The next access for a rank that may leave now, by the key of its region. `None`: there is none, or it waits.
    pub(super) fn next_attached(&mut self, window: u32, rank: u32) -> Option<Prepared> {
        loop {
            let lane = &mut self.remotes.get_mut(&window)?.lanes[rank as usize];
            let rests = lane.under_way == 0;
            if !lane.again.is_empty() {
                if !rests {
                    return None;
                }
                let mut again = std::mem::take(&mut lane.again);
                again.sort_by_key(|it| Reverse(it.note.again.as_ref().map(|again| again.serial)));
                again.into_iter().for_each(|it| lane.queue.push_front(it));
            }
            let known = lane.known.as_mut()?;
            let mut next = lane.queue.pop_front()?;
            let Note { address, bytes, again, .. } = &mut next.note;
            let Some(again) = again else {
                if rests {
                    return Some(next);
                }
                lane.queue.push_front(next);
                return None;
            };
            if let Some(region) = known.find(*address, *bytes) {
                again.key = Some(region.key);
                let within = next.what.within(region.start);
                again.what = Some(std::mem::replace(&mut next.what, within));
                return Some(next);
            }
            let reads = known.reads;
            if *again.asked.get_or_insert(reads) == reads {
                lane.queue.push_front(next);
                if rests && !known.is_asked {
                    self.read_directory(window, rank);
                }
                return None;
            }
            self.refuse_unattached(window, rank, &next.note);
        }
    }

    /// Memory that is not attached: the operation is over.
    fn refuse_unattached(&mut self, window: u32, rank: u32, note: &Note) {
        let Note { verb, address, bytes, .. } = *note;
        let reason = Reason::Unattached;
        let refused = Refused { window, reason, verb, address, bytes, window_bytes: 0, fetch: 0 };
        self.refused_remotely(rank, refused, note.ticket.as_deref());
        if let Some(ticket) = &note.ticket {
            ticket.end();
        }
    }

    /// Asks for the directory of a rank.
    fn read_directory(&mut self, window: u32, rank: u32) {
        let remote = self.remote(window);
        let key = remote.keys[rank as usize];
        let lane = &mut remote.lanes[rank as usize];
        let Some(known) = &lane.known else { return };
        // All that wait will have seen it.
        for again in lane.queue.iter_mut().filter_map(|it| it.note.again.as_mut()) {
            again.asked.get_or_insert(known.reads);
        }
        let bytes = known.bytes();
        let Ok(id) = self.posted.insert(Posted::Directory { window, rank }) else { return };
        let what = What::Access(Direction::Get, RemoteLayout::At(0));
        let memory = Memory::pooled(self.mail.buffer(bytes));
        self.set_asked(window, rank, true);
        match self.mail.post_remote(
            rank,
            key,
            (what, Terms::default()),
            memory,
            id.to_u64() | REMOTE,
        ) {
            Ok(NetPosted::Pending(_)) => {}
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            Err((_, fault)) => {
                self.posted.remove(id);
                self.set_asked(window, rank, false);
                // Busy: it is asked for again with the next push.
                if fault != Fault::Busy {
                    self.lose(rank, Loss::Session(fault));
                }
            }
        }
    }

    fn set_asked(&mut self, window: u32, rank: u32, is_asked: bool) {
        if let Some(known) = &mut self.remote(window).lanes[rank as usize].known {
            known.is_asked = is_asked;
        }
    }

    /// A directory came: what waits for it goes on.
    pub(super) fn directory_came(&mut self, window: u32, rank: u32, completed: Completed) {
        let Some(remote) = self.remotes.get_mut(&window) else { return };
        let Some(known) = &mut remote.lanes[rank as usize].known else { return };
        known.is_asked = false;
        match completed.outcome {
            Ok(()) => {}
            // The rank has freed its window: it has nothing attached.
            Err(Fault::BadKey | Fault::NotPermitted) => known.entries = 0,
            // The rank has too much to do: it is asked again.
            Err(Fault::Busy) => return self.pushes.push((window, rank)),
            Err(fault) => return self.lose(rank, Loss::Session(fault)),
        }
        let bytes = completed.memory.into_pooled();
        known.learn(bytes.as_deref().unwrap_or(&[]));
        self.pushes.push((window, rank));
    }

    /// Lanes go on that waited for the end of something. True: there was one.
    pub fn push_attached(&mut self) -> bool {
        let mut lanes = std::mem::take(&mut self.pushes);
        lanes.sort_unstable();
        lanes.dedup();
        for (window, rank) in &lanes {
            self.push_remotely(*window, *rank);
        }
        !lanes.is_empty()
    }

    /// An access is over. One that a target refused for its key goes again, once; any other one comes back.
    pub(super) fn unless_it_goes_again(
        &mut self,
        window: u32,
        rank: u32,
        outcome: Result<(), Fault>,
        mut note: Note,
        memory: Memory,
    ) -> Option<(Note, Memory)> {
        let is_stale = matches!(outcome, Err(Fault::BadKey | Fault::NotPermitted));
        let is_here = !self.is_lost(window, rank);
        let again = note.again.as_mut().filter(|it| is_stale && is_here && !it.went_again);
        let Some(what) = again.and_then(|again| {
            let what = again.take()?;
            (again.went_again, again.asked) = (true, None);
            Some(what)
        }) else {
            return Some((note, memory));
        };
        let Some(remote) = self.remotes.get_mut(&window) else { return Some((note, memory)) };
        let lane = &mut remote.lanes[rank as usize];
        if let Some(known) = &mut lane.known {
            known.regions.clear();
        }
        lane.again.push(Prepared { what, memory, note });
        None
    }
}
