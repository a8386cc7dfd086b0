//! Puts that were complete before their target had taken them: those of an epoch that a start began. Their target may refuse
//! them later, if its memory has gone away.
//!
//! The target tells of a refusal at once, and of all else by marks. So each put is remembered until its target must have told of
//! it; a refusal that finds its put here is told by the next synchronisation. No frame asks for that, and no call but the last one
//! of the window waits for it.

use std::collections::VecDeque;

use ropewalk_base::memory::{Change, Element, Memory, Operator, Update};
use ropewalk_net::{Atomic, Fault, LateRefusal, OperationId, Posted as NetPosted, Terms};

use super::posting::reason_of;
use super::state::{Note, Posted, Unsure, What};
use crate::error::Loss;
use crate::messages::hub::Hub;
use crate::messages::wire::Refused;
use crate::team::mail::REMOTE;

/// Puts of a rank that are remembered. It keeps as many numbers apart, so it has told of those before them.
const UNSURE_MAX: usize = 1024;

impl Hub {
    /// A put was posted under this number. `None`: its own end says whether it was refused.
    pub(super) fn remember(&mut self, rank: u32, operation: OperationId, put: Option<Unsure>) {
        let Some(put) = put else { return };
        let puts = &mut self.unsure[rank as usize];
        if puts.len() == UNSURE_MAX {
            puts.pop_front();
        }
        puts.push_back(Unsure { operation: Some(operation), ..put });
    }

    /// Takes refusals that came late to where the next synchronisation finds them.
    pub fn hear_refusals(&mut self) {
        while let Some(LateRefusal { operation, fault, .. }) = self.mail.next_refusal() {
            self.refused_late(operation, fault);
        }
    }

    #[cold]
    fn refused_late(&mut self, operation: OperationId, fault: Fault) {
        let of =
            |puts: &VecDeque<Unsure>| puts.iter().position(|put| put.operation == Some(operation));
        let found = self.unsure.iter().enumerate().find_map(|(rank, puts)| Some((rank, of(puts)?)));
        // It may be one of another team's, or one of several pieces.
        let Some((rank, at)) = found else { return };
        let Some(put) = self.unsure[rank].remove(at) else { return };
        let Some(reason) = reason_of(fault) else {
            return self.lose(rank as u32, Loss::Session(fault));
        };
        let Unsure { window, verb, address, bytes, .. } = put;
        let refused = Refused { window, reason, verb, address, bytes, window_bytes: 0, fetch: 0 };
        self.refused(rank as u32, refused);
    }

    /// Whether a rank may still refuse a put of a window.
    pub(super) fn is_unsure(&mut self, window: u32, rank: u32) -> bool {
        if self.unsure[rank as usize].iter().all(|put| put.window != window) {
            return false;
        }
        // First: what it has told may be a refusal.
        let has_told = self.mail.has_told(rank);
        self.hear_refusals();
        if has_told {
            self.unsure[rank as usize].clear();
        }
        !has_told
    }

    /// Asks a rank for an answer that comes after it has told of all before. False: there is no room for that now.
    pub(super) fn ask_behind_all(&mut self, window: u32, rank: u32) -> bool {
        let remote = self.remote(window);
        let (key, at) = (remote.keys[rank as usize], remote.word_at(rank, 0));
        let note = Note::of_word(remote.lanes[rank as usize].round.clone());
        let update = Update::new(Element::U64, Operator::Nothing).expect("all elements take it");
        let change = Change::One { update, operand: [0; 8] };
        let what = What::Atomic { at, atomic: Atomic { change, fetch: false, token: false } };
        let terms = Terms { fenced: true, ..Terms::default() };
        let posted = Posted::Access { window, rank, operation: None, note };
        let Ok(id) = self.posted.insert(posted) else { return false };
        self.remote(window).lanes[rank as usize].under_way += 1;
        let (user, memory) = (id.to_u64() | REMOTE, Memory::empty());
        match self.mail.post_remote(rank, key, (what, terms), memory, user) {
            Ok(NetPosted::Done(completed)) => self.remote_done(completed),
            Ok(NetPosted::Pending(pending)) => {
                if let Some(Posted::Access { operation, .. }) = self.posted.get_mut(id) {
                    *operation = Some(pending);
                }
            }
            Err((_, Fault::Busy)) => {
                self.posted.remove(id);
                self.remote(window).lanes[rank as usize].under_way -= 1;
                return false;
            }
            Err((memory, fault)) => self.access_over(id, Err(fault), 0, memory),
        }
        true
    }
}

#[cfg(test)]
mod tests;
