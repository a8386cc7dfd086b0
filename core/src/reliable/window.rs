//! Spans that arrive: which of them are here or on the way to their place, and when the peer is told.
//!
//! Copies of a span may come over several links, and any of these may hang. One is on the way to the place; others are
//! staged beside, one a link. The first that is whole counts: a staged one goes to the place after the rail that writes
//! there has given it up.
//!
//! Invariants: a span is placed once, and only when all its bytes were verified; a span has an entry in `placing`
//! while its payload is on the way; only one rail writes to a place; at most one of the copies of a span waits for the
//! place, and then no other one begins.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;
use ropewalk_wire::frame::{AckBody, Prefix};

use crate::incoming::Incoming;

/// Spans beyond the first missing one that a receiver takes.
const WINDOW: u64 = 4096;
/// Placed spans after which an acknowledgement goes without delay.
const ACKNOWLEDGE_EVERY: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Placing,
    Placed,
}

/// One sending of a span: which of them, and over which link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Try {
    pub span: u64,
    pub attempt: u16,
    pub link: LinkId,
}

impl Try {
    pub fn of(prefix: &Prefix, link: LinkId) -> Try {
        Try { span: prefix.span.get(), attempt: prefix.attempt.get(), link }
    }
}

/// A span whose payload is on the way to its place.
#[derive(Debug)]
struct Placing {
    /// The sending that was placed last.
    of: Try,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// This payload is on the way there.
    Of(SlotId),
    /// No rail writes there: the placement broke off, or all bytes are verified before they go there.
    Open(Incoming),
}

/// A copy of a span in a buffer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StagedCopy {
    Arriving(SlotId),
    /// It is whole, and waits for the place.
    Here(Slice),
}

/// What becomes of a copy that is whole.
#[derive(Debug)]
pub(super) enum WholeCopy {
    /// It goes to its place.
    To(Incoming),
    /// It waits for the rail that writes there, which is to give this payload up.
    Waits(SlotId),
    /// Nobody needs it.
    Unneeded,
}

/// What a span means that arrives.
#[derive(Debug)]
pub(super) enum Arrival {
    New,
    /// Its place is open, and this is what goes there.
    Again(Incoming),
    /// Another copy of it is on the way to the place, which may hang.
    Elsewhere(SlotId),
    /// It is here.
    Known,
    /// The same try is on the way or a later one of the same link, all bytes are here, or it is beyond the window.
    Unwanted,
}

#[derive(Debug)]
pub(crate) struct Window {
    /// All spans up to here are placed.
    cumulative: u64,
    /// States of the spans above, the first one's first.
    states: VecDeque<State>,
    placing: Vec<Placing>,
    copies: Vec<(Try, StagedCopy)>,
    unacknowledged: u32,
    acknowledge_at: Option<Time>,
}

impl Window {
    pub fn new() -> Window {
        Window {
            cumulative: 0,
            states: VecDeque::new(),
            placing: Vec::new(),
            copies: Vec::new(),
            unacknowledged: 0,
            acknowledge_at: None,
        }
    }

    fn state_mut(&mut self, span: u64) -> Option<&mut State> {
        let index = span.checked_sub(self.cumulative + 1)?;
        if index >= WINDOW {
            return None;
        }
        while self.states.len() as u64 <= index {
            self.states.push_back(State::Free);
        }
        self.states.get_mut(index as usize)
    }

    fn index_of(&self, span: u64) -> Option<usize> {
        self.placing.iter().position(|placing| placing.of.span == span)
    }

    fn copy_over(&self, of: Try) -> Option<usize> {
        let is_over = |(copy, _): &(Try, _)| (copy.span, copy.link) == (of.span, of.link);
        self.copies.iter().position(is_over)
    }

    /// The copy of a span that waits for the place.
    fn copy_here_of(&self, span: u64) -> Option<usize> {
        let is_it =
            |(of, copy): &(Try, StagedCopy)| of.span == span && matches!(copy, StagedCopy::Here(_));
        self.copies.iter().position(is_it)
    }

    /// A span arrives.
    pub(super) fn arrive(&mut self, of: Try) -> Arrival {
        if of.span <= self.cumulative {
            return Arrival::Known;
        }
        match self.state_mut(of.span) {
            None => Arrival::Unwanted,
            Some(State::Placed) => Arrival::Known,
            Some(state @ State::Free) => {
                *state = State::Placing;
                Arrival::New
            }
            Some(State::Placing) => self.arrive_again(of),
        }
    }

    fn arrive_again(&mut self, of: Try) -> Arrival {
        let Some(index) = self.index_of(of.span) else { return Arrival::Unwanted };
        // A link doubles a frame, or brings a later try.
        let is_old = |other: Try| other.link == of.link && other.attempt >= of.attempt;
        let copy = self.copy_over(of).map(|at| self.copies[at].0);
        if copy.is_some_and(is_old) || self.copy_here_of(of.span).is_some() {
            return Arrival::Unwanted;
        }
        match &self.placing[index] {
            Placing { place: Place::Of(_), of: placed } if is_old(*placed) => Arrival::Unwanted,
            Placing { place: Place::Of(slot), .. } => Arrival::Elsewhere(*slot),
            Placing { place: Place::Open(_), .. } => match self.placing.swap_remove(index).place {
                Place::Open(incoming) => Arrival::Again(incoming),
                Place::Of(_) => unreachable!("it was open"),
            },
        }
    }

    /// Whether the payload of a span is to come.
    pub(super) fn awaits(&self, span: u64) -> bool {
        self.index_of(span).is_some()
    }

    /// The payload of a span is on the way to its place.
    pub(super) fn begin(&mut self, of: Try, slot: SlotId) {
        debug_assert!(self.index_of(of.span).is_none(), "one payload is on the way to a place");
        self.placing.push(Placing { of, place: Place::Of(slot) });
    }

    /// The payload of a span is staged first, and goes to its place when its bytes were verified.
    pub(super) fn begin_apart(&mut self, of: Try, place: Incoming) {
        self.placing.push(Placing { of, place: Place::Open(place) });
    }

    /// A copy of a span has a buffer. Returns an older one of the same link, which it replaces.
    pub(super) fn stage(&mut self, of: Try, slot: SlotId) -> Option<StagedCopy> {
        let older = self.copy_over(of).map(|at| self.copies.swap_remove(at).1);
        self.copies.push((of, StagedCopy::Arriving(slot)));
        older
    }

    /// A copy of a span is here, and verified.
    pub(super) fn copy_here(&mut self, of: Try, at: Slice) -> WholeCopy {
        let Some(copy) = self.copies.iter().position(|(copy, _)| *copy == of) else {
            return WholeCopy::Unneeded;
        };
        let is_first = self.copy_here_of(of.span).is_none();
        let Some(index) = self.index_of(of.span).filter(|_| is_first) else {
            self.copies.swap_remove(copy);
            return WholeCopy::Unneeded;
        };
        if let Place::Of(slot) = self.placing[index].place {
            self.copies[copy].1 = StagedCopy::Here(at);
            return WholeCopy::Waits(slot);
        }
        self.copies.swap_remove(copy);
        match self.placing.swap_remove(index).place {
            Place::Open(incoming) => WholeCopy::To(incoming),
            Place::Of(_) => unreachable!("it is open"),
        }
    }

    /// A copy of a span does not come.
    pub(super) fn copy_lost(&mut self, of: Try) {
        self.copies.retain(|(copy, _)| *copy != of);
    }

    /// Takes out a copy of a span that took effect: nobody needs it any more.
    pub(crate) fn next_unneeded(&mut self, span: u64) -> Option<StagedCopy> {
        let at = self.copies.iter().position(|(of, _)| of.span == span)?;
        Some(self.copies.swap_remove(at).1)
    }

    /// The placement of a span broke off, and goes on when the span comes again. With a copy that is here it goes on at
    /// once: then both come back.
    pub(super) fn break_off(
        &mut self,
        span: u64,
        incoming: Incoming,
    ) -> Result<Option<(Incoming, Slice)>, Incoming> {
        let Some(index) = self.index_of(span) else { return Err(incoming) };
        let here = self.copy_here_of(span).map(|at| self.copies.swap_remove(at).1);
        match here {
            Some(StagedCopy::Here(copy)) => {
                self.placing.swap_remove(index);
                Ok(Some((incoming, copy)))
            }
            _ => {
                self.placing[index].place = Place::Open(incoming);
                Ok(None)
            }
        }
    }

    /// A span took effect. True if an acknowledgement must not be delayed. Its other copies are to be taken with
    /// [`Window::next_unneeded`].
    pub(super) fn place(&mut self, span: u64) -> bool {
        if let Some(index) = self.index_of(span) {
            self.placing.swap_remove(index);
        }
        if let Some(state) = self.state_mut(span) {
            *state = State::Placed;
        }
        while self.states.front() == Some(&State::Placed) {
            self.states.pop_front();
            self.cumulative += 1;
        }
        self.unacknowledged += 1;
        self.unacknowledged >= ACKNOWLEDGE_EVERY
    }

    /// An acknowledgement goes by then.
    pub(super) fn acknowledge_by(&mut self, due: Time) {
        self.acknowledge_at.get_or_insert(due);
    }

    /// When a delayed acknowledgement goes.
    pub fn acknowledge_at(&self) -> Option<Time> {
        self.acknowledge_at
    }

    /// The acknowledgement, which goes now. `delay`: how long its oldest news waited.
    pub(super) fn acknowledge(&mut self, delay: Duration) -> AckBody {
        self.acknowledge_at = None;
        self.unacknowledged = 0;
        let mut ack = AckBody::new(self.cumulative, delay);
        let (mut missing, mut placed) = (0, 0);
        for state in &self.states {
            match (*state == State::Placed, placed) {
                (true, _) => placed += 1,
                (false, 0) => missing += 1,
                // The receiver of this learns of those above when it has sent what is missing here.
                (false, _) if !ack.push(missing, placed) => return ack,
                (false, _) => (missing, placed) = (1, 0),
            }
        }
        if placed > 0 {
            ack.push(missing, placed);
        }
        ack
    }

    /// All spans up to here are placed.
    pub(super) fn cumulative(&self) -> u64 {
        self.cumulative
    }

    /// The same; it rides on a frame that goes now, and is all that there is to say where none above is placed.
    pub(super) fn ride(&mut self) -> u64 {
        if self.states.iter().all(|state| *state != State::Placed) {
            self.acknowledge_at = None;
            self.unacknowledged = 0;
        }
        self.cumulative
    }

    /// Takes out what waits for its span to come again.
    pub(crate) fn take_broken(&mut self, of: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        let such = |placing: &mut Placing| matches!(&placing.place, Place::Open(it) if of(it));
        let taken = self.placing.extract_if(.., such);
        let open = |placing: Placing| match placing.place {
            Place::Open(incoming) => Some(incoming),
            Place::Of(_) => None,
        };
        taken.filter_map(open).collect()
    }

    /// Takes out all copies of spans.
    pub(super) fn take_copies(&mut self) -> Vec<StagedCopy> {
        self.copies.drain(..).map(|(_, copy)| copy).collect()
    }

    /// Placements that wait for their span to come again.
    pub fn broken(&self) -> impl Iterator<Item = &Incoming> {
        self.placing.iter().filter_map(|placing| match &placing.place {
            Place::Open(incoming) => Some(incoming),
            Place::Of(_) => None,
        })
    }

    /// Copies that are here and wait for their place.
    pub fn waiting_copies(&self) -> usize {
        self.copies.iter().filter(|(_, copy)| matches!(copy, StagedCopy::Here(_))).count()
    }
}

#[cfg(test)]
mod tests;
