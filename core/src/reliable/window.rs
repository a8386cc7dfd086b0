//! Spans that arrive: which of them are here or on the way to their place, and when the peer is told.
//!
//! Copies of a span may come over several links. The one that is being placed may lie with a link that hangs, so that
//! a later try takes over: it is staged, and goes to the place after the other link's rail has given that up.
//!
//! Invariants: a span is placed once, and only when all its bytes were verified; a span has an entry in `placing`
//! while its payload is on the way; only one rail writes to a place.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_wire::frame::AckBody;

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

/// A span whose payload is on the way to its place.
#[derive(Debug)]
struct Placing {
    span: u64,
    /// The newest try of those that are under way.
    attempt: u16,
    place: Place,
    copy: Option<StagedCopy>,
}

#[derive(Debug)]
enum Place {
    /// This payload is on the way there.
    Of(SlotId),
    /// No rail writes there: the placement broke off, or all bytes are verified before they go there.
    Open(Incoming),
}

/// A copy of a span that waits for the place, in a buffer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StagedCopy {
    Arriving(SlotId),
    Here(Slice),
}

impl Placing {
    fn awaits_copy(&self, attempt: u16) -> bool {
        self.attempt == attempt && matches!(self.copy, Some(StagedCopy::Arriving(_)))
    }
}

/// What a span means that arrives.
#[derive(Debug)]
pub(super) enum Arrival {
    New,
    /// Its placement broke off, and goes on with this. A copy that was on the way for it is not needed any more.
    Again(Incoming, Option<StagedCopy>),
    /// An earlier try of it is this payload, which may hang.
    Elsewhere(SlotId),
    /// It is here.
    Known,
    /// The same try or a later one is on the way, or it is beyond the window.
    Unwanted,
}

#[derive(Debug)]
pub(crate) struct Window {
    /// All spans up to here are placed.
    cumulative: u64,
    /// States of the spans above, the first one's first.
    states: VecDeque<State>,
    placing: Vec<Placing>,
    unacknowledged: u32,
    acknowledge_at: Option<Time>,
}

impl Window {
    pub fn new() -> Window {
        Window {
            cumulative: 0,
            states: VecDeque::new(),
            placing: Vec::new(),
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
        self.placing.iter().position(|placing| placing.span == span)
    }

    fn placing_mut(&mut self, span: u64) -> Option<&mut Placing> {
        self.placing.iter_mut().find(|placing| placing.span == span)
    }

    /// A span arrives, for the `attempt`-th time that it was sent.
    pub(super) fn arrive(&mut self, span: u64, attempt: u16) -> Arrival {
        if span <= self.cumulative {
            return Arrival::Known;
        }
        match self.state_mut(span) {
            None => Arrival::Unwanted,
            Some(State::Placed) => Arrival::Known,
            Some(state @ State::Free) => {
                *state = State::Placing;
                Arrival::New
            }
            Some(State::Placing) => self.arrive_again(span, attempt),
        }
    }

    fn arrive_again(&mut self, span: u64, attempt: u16) -> Arrival {
        let Some(index) = self.index_of(span) else { return Arrival::Unwanted };
        let Placing { attempt: newest, place, copy, .. } = &self.placing[index];
        let is_newer = attempt > *newest;
        match (place, copy) {
            (_, Some(StagedCopy::Here(_))) => Arrival::Unwanted,
            (Place::Open(_), copy) if copy.is_none() || is_newer => {
                let Placing { place, copy, .. } = self.placing.swap_remove(index);
                let Place::Open(incoming) = place else { unreachable!("it was open") };
                Arrival::Again(incoming, copy)
            }
            (Place::Of(slot), _) if is_newer => Arrival::Elsewhere(*slot),
            _ => Arrival::Unwanted,
        }
    }

    /// Whether the payload of a span is to come.
    pub(super) fn awaits(&self, span: u64) -> bool {
        self.index_of(span).is_some()
    }

    /// The payload of a span is on the way to its place.
    pub(super) fn begin(&mut self, span: u64, attempt: u16, slot: SlotId) {
        debug_assert!(self.index_of(span).is_none(), "one payload is on the way to a place");
        self.placing.push(Placing { span, attempt, place: Place::Of(slot), copy: None });
    }

    /// The payload of a span is staged first, and goes to its place when its bytes were verified.
    pub(super) fn begin_apart(&mut self, span: u64, attempt: u16, place: Incoming) {
        self.placing.push(Placing { span, attempt, place: Place::Open(place), copy: None });
    }

    /// A copy of a span has a buffer. What it takes over from: the payload on the way to the place, and an older copy.
    pub(super) fn stage(
        &mut self,
        span: u64,
        attempt: u16,
        slot: SlotId,
    ) -> (Option<SlotId>, Option<StagedCopy>) {
        let Some(placing) = self.placing_mut(span) else { return (None, None) };
        placing.attempt = attempt;
        let older = placing.copy.replace(StagedCopy::Arriving(slot));
        match placing.place {
            Place::Of(slot) => (Some(slot), older),
            Place::Open(_) => (None, older),
        }
    }

    /// A copy of a span is here, and verified: where it goes now. `Err(true)`: it waits until no rail writes there;
    /// `Err(false)`: nobody needs it.
    pub(super) fn copy_here(
        &mut self,
        span: u64,
        attempt: u16,
        at: Slice,
    ) -> Result<Incoming, bool> {
        let arrives = |index: &usize| self.placing[*index].awaits_copy(attempt);
        let Some(index) = self.index_of(span).filter(arrives) else { return Err(false) };
        let copy = Some(StagedCopy::Here(at));
        match self.placing.swap_remove(index) {
            Placing { place: Place::Open(incoming), .. } => Ok(incoming),
            placing => {
                self.placing.push(Placing { copy, ..placing });
                Err(true)
            }
        }
    }

    /// A copy of a span does not come.
    pub(super) fn copy_lost(&mut self, span: u64, attempt: u16) {
        if let Some(placing) = self.placing_mut(span)
            && placing.awaits_copy(attempt)
        {
            placing.copy = None;
        }
    }

    /// The placement of a span broke off, and goes on when the span comes again. With a copy that is here it goes on at
    /// once: then both come back.
    pub(super) fn break_off(
        &mut self,
        span: u64,
        incoming: Incoming,
    ) -> Result<Option<(Incoming, Slice)>, Incoming> {
        let Some(index) = self.index_of(span) else { return Err(incoming) };
        match self.placing[index].copy {
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

    /// A span took effect. True if an acknowledgement must not be delayed; and a copy that nobody needs any more.
    pub(super) fn place(&mut self, span: u64) -> (bool, Option<StagedCopy>) {
        let index = self.index_of(span);
        let copy = index.and_then(|index| self.placing.swap_remove(index).copy);
        if let Some(state) = self.state_mut(span) {
            *state = State::Placed;
        }
        while self.states.front() == Some(&State::Placed) {
            self.states.pop_front();
            self.cumulative += 1;
        }
        self.unacknowledged += 1;
        (self.unacknowledged >= ACKNOWLEDGE_EVERY, copy)
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

    /// Takes out what waits for its span to come again, with the copies that are on the way for it.
    pub(crate) fn take_broken(
        &mut self,
        of: impl Fn(&Incoming) -> bool,
    ) -> Vec<(Incoming, Option<StagedCopy>)> {
        let such = |placing: &mut Placing| matches!(&placing.place, Place::Open(it) if of(it));
        let taken = self.placing.extract_if(.., such);
        let open = |placing: Placing| match placing.place {
            Place::Open(incoming) => Some((incoming, placing.copy)),
            Place::Of(_) => None,
        };
        taken.filter_map(open).collect()
    }

    /// The copies of spans whose place a rail still has.
    pub(super) fn take_copies(&mut self) -> Vec<StagedCopy> {
        self.placing.iter_mut().filter_map(|placing| placing.copy.take()).collect()
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
        let here = |placing: &&Placing| matches!(placing.copy, Some(StagedCopy::Here(_)));
        self.placing.iter().filter(here).count()
    }
}

#[cfg(test)]
mod tests;
