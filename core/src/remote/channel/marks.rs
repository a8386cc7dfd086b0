//! Marks: each side tells the other one which operations are applied.
//!
//! A mark is told when all else of the moment was dealt with, so that operations that come together have one.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_wire::frame::{
    AppliedBody, Arrived, GiveUpBody, ReplyBody, status_from_wire, status_to_wire,
};

use super::taken::Ended;
use super::{Issued, NUMBERS_MAX};
use crate::api::{OperationId, Output, PeerId};
use crate::engine::Core;
use crate::incoming::IncomingKind;

/// After so long a peer is told what it did not ask for: it has to know some time, and others come together.
const TELL_AFTER: Duration = Duration::from_millis(5);

/// Peers that are to be told what is applied.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    due: Vec<PeerId>,
}

impl Marks {
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = PeerId> {
        self.due.iter().copied()
    }
}

impl Core {
    /// An operation of a peer is over; its number counts as applied, however it ended. `tells`: the peer asked to be told.
    pub(crate) fn operation_over(
        &mut self,
        id: PeerId,
        number: u64,
        outcome: Result<(), Fault>,
        tells: bool,
    ) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let taken = &mut session.one_sided().taken;
        let (ended, has_tokens) = (taken.end(number), taken.has_tokens());
        match ended {
            Ended::Before => {}
            Ended::InTurn if outcome.is_ok() => {
                if tells && !std::mem::replace(&mut taken.is_due, true) {
                    self.marks.due.push(id);
                } else if !tells {
                    self.tell_later(id);
                }
            }
            Ended::InTurn | Ended::Early => {
                if tells || outcome.is_err() {
                    let applied = self.mark_for(id).into();
                    let status = status_to_wire(outcome);
                    let (number, value) = (number.into(), [0; 8]);
                    let body = ReplyBody { number, applied, value, status, reserved: [0; 7] };
                    self.emit_control(id, body);
                    self.note_refusal(id, number.get(), outcome);
                }
            }
        }
        if has_tokens {
            self.let_tokens_go(id);
        }
    }

    /// Until its span has arrived no other frame may say that a refused operation is over.
    fn note_refusal(&mut self, id: PeerId, number: u64, outcome: Result<(), Fault>) {
        let session = self.peers.session_mut(id).filter(|_| outcome.is_err());
        if let Some(session) = session
            && let Some(span) = session.reliable.as_ref().map(|reliable| reliable.sent.last())
        {
            session.one_sided().taken.refused(number, span);
        }
    }

    /// The number up to which a peer is told now that all is over. Later ones are told with a later mark.
    pub(super) fn mark_for(&mut self, id: PeerId) -> u64 {
        let Some(session) = self.peers.session_mut(id) else { return 0 };
        let answered = session.reliable.as_ref().map_or(u64::MAX, |it| it.sent.answered());
        let taken = &mut session.one_sided().taken;
        let told = taken.tell(answered);
        if told < taken.applied() {
            self.tell_later(id);
        }
        told
    }

    /// The false answer of the planted bug `AppliedEarly`.
    #[cold]
    pub(super) fn tell_early(&mut self, id: PeerId, number: u64) {
        let (number, applied, value) = (number.into(), 0.into(), [0; 8]);
        self.emit_control(id, ReplyBody { number, applied, value, status: 0, reserved: [0; 7] });
    }

    /// A number is over, and its operation has an answer of its own.
    pub(super) fn number_over(&mut self, id: PeerId, number: u64) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let taken = &mut session.one_sided().taken;
        taken.end(number);
        if taken.has_tokens() {
            self.let_tokens_go(id);
        }
    }

    /// Nobody waits for what is applied; the peer still needs to know some time.
    fn tell_later(&mut self, id: PeerId) {
        let due = self.now + TELL_AFTER;
        let session = self.peers.session_mut(id);
        if session.is_some_and(|session| session.one_sided().taken.tell_by(due)) {
            self.wake_by(id, due);
        }
    }

    /// Tells a peer of what it did not ask for, where that is due.
    pub(crate) fn run_marks(&mut self, id: PeerId) {
        let now = self.now;
        let session = self.peers.session_mut(id);
        let taken = session.and_then(|it| Some(&mut it.one_sided.as_mut()?.taken));
        if taken.is_some_and(|taken| taken.tell_at() <= now) {
            let applied = self.mark_for(id).into();
            self.emit_control(id, AppliedBody { applied });
        }
    }

    /// Tells those who wait for it what is applied.
    #[cold]
    pub(crate) fn tell_applied(&mut self) {
        while let Some(id) = self.marks.due.pop() {
            let id = self.resolve(id);
            let Some(session) = self.peers.session_mut(id) else { continue };
            let taken = &mut session.one_sided().taken;
            if taken.is_due {
                let applied = self.mark_for(id).into();
                self.emit_control(id, AppliedBody { applied });
            }
        }
    }

    /// A word of the peer's about numbers. False: it names one that there is not.
    pub(crate) fn arrive_mark(&mut self, id: PeerId, body: Arrived<'_>) -> bool {
        match body {
            Arrived::Applied(body) => self.arrive_applied(id, body.applied.get()),
            Arrived::Reply(body) => self.arrive_reply(id, *body),
            Arrived::GiveUp(body) => self.arrive_give_up(id, *body),
            _ => unreachable!("{body:?} is no word about numbers"),
        }
    }

    /// Operations up to this number are applied at the peer. False: it has not heard of that one.
    pub(super) fn arrive_applied(&mut self, id: PeerId, applied: u64) -> bool {
        let Some(issued) = self.issued(id).filter(|issued| issued.was_given(applied)) else {
            return false;
        };
        let mut next = issued.next_applied(applied);
        while let Some((issue, is_last)) = next {
            self.piece_applied(issue.operation, issue.bytes);
            next = match is_last {
                true => None,
                false => self.issued(id).and_then(|issued| issued.next_applied(applied)),
            };
        }
        // Others may wait for that, or for their numbers.
        self.pump(id);
        true
    }

    /// An operation is over at the peer, before others or refused. False: it has not heard of it.
    fn arrive_reply(&mut self, id: PeerId, body: ReplyBody) -> bool {
        let (number, outcome) = (body.number.get(), status_from_wire(body.status));
        if !self.was_given(id, body.applied.get()) {
            return false;
        }
        let Some(issued) = self.issued(id).filter(|issued| issued.was_given(number)) else {
            return false;
        };
        if outcome.is_ok()
            && let Some(issue) = issued.get(number)
            && issue.awaits_elements()
        {
            return false;
        }
        if let Some(issue) = self.issued(id).and_then(|issued| issued.end(number)) {
            match outcome {
                Ok(()) => {
                    self.note_value(issue.operation, body.value);
                    self.piece_applied(issue.operation, issue.bytes);
                }
                Err(fault) => self.refusal_came(id, issue.operation, fault),
            }
        }
        self.arrive_applied(id, body.applied.get())
    }

    /// The peer refused an operation. Its user may have been told already that it is complete.
    #[cold]
    fn refusal_came(&mut self, peer: PeerId, operation: OperationId, fault: Fault) {
        if self.operations.get(operation).is_none_or(|it| it.ending.is_some()) {
            self.outputs.push(Output::Refused { peer, operation, fault });
        }
        self.access_ended(operation, Err(fault));
    }

    /// Whether a peer has told of all operations of ours that have numbers: none of them is refused later.
    pub fn has_told(&self, id: PeerId) -> bool {
        let session = self.peers.session(self.resolve(id));
        session.and_then(|it| it.one_sided.as_ref()).is_none_or(|it| it.issued.is_settled())
    }

    /// The peer gives operations up: nothing of them lands any more. False: it names some that there cannot be.
    fn arrive_give_up(&mut self, id: PeerId, body: GiveUpBody) -> bool {
        let (first, count) = (body.number.get(), u64::from(body.count.get()));
        if first == 0 || !(1..=NUMBERS_MAX).contains(&count) {
            return false;
        }
        let Some(session) = self.peers.session_mut(id) else { return true };
        let most = session.one_sided().taken.applied().saturating_add(NUMBERS_MAX);
        let last = first.saturating_add(count - 1);
        if last > most {
            return false;
        }
        let of = |kind: &IncomingKind| matches!(kind, IncomingKind::Put(put) if (first..=last).contains(&put.number));
        // A frame of it may be on its way to its place over another path.
        self.give_places_up(Some(id), of);
        (first..=last).for_each(|number| self.operation_over(id, number, Ok(()), true));
        true
    }

    /// Whether a peer can know of a number of ours.
    pub(super) fn was_given(&mut self, id: PeerId, number: u64) -> bool {
        number == 0 || self.issued(id).is_some_and(|issued| issued.was_given(number))
    }

    fn issued(&mut self, id: PeerId) -> Option<&mut Issued> {
        Some(&mut self.peers.session_mut(id)?.one_sided.as_mut()?.issued)
    }

    /// Not all frames of an operation were made, and no others will be: its numbers from `from` on are given up.
    pub(crate) fn give_numbers_up(&mut self, peer: PeerId, id: OperationId, from: u64) {
        let runs = self.issued(peer).map_or(Vec::new(), |issued| issued.give_up(id, from));
        for (first, count) in runs {
            let (number, count) = (first.into(), count.into());
            self.emit_control(peer, GiveUpBody { number, count, reserved: [0; 4] });
        }
    }
}
