//! Spans that arrive: which of them are here, and when the peer is told.
//!
//! Invariant: a span is placed once, and only when all its bytes were verified.

use std::collections::{BTreeMap, VecDeque};

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

#[derive(Debug)]
pub(crate) struct Window {
    /// All spans up to here are placed.
    cumulative: u64,
    /// States of the spans above, the first one's first.
    states: VecDeque<State>,
    unacknowledged: u32,
    acknowledge_at: Option<Time>,
    /// Placements that broke off: they go on when their span comes again.
    broken: BTreeMap<u64, Incoming>,
}

impl Window {
    pub fn new() -> Window {
        Window {
            cumulative: 0,
            states: VecDeque::new(),
            unacknowledged: 0,
            acknowledge_at: None,
            broken: BTreeMap::new(),
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

    /// A span arrives. False if it is here already, is being placed, or is beyond the window.
    pub(super) fn arrive(&mut self, span: u64) -> bool {
        match self.state_mut(span) {
            Some(state @ State::Free) => {
                *state = State::Placing;
                true
            }
            _ => false,
        }
    }

    /// A span took effect. True if an acknowledgement must not be delayed.
    pub(super) fn place(&mut self, span: u64) -> bool {
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

    /// A span broke off in its placement: it may come again.
    pub(super) fn unplace(&mut self, span: u64) {
        if let Some(state) = self.state_mut(span) {
            *state = State::Free;
        }
    }

    /// An acknowledgement goes by then.
    pub(super) fn acknowledge_by(&mut self, due: Time) {
        self.acknowledge_at.get_or_insert(due);
    }

    /// When a delayed acknowledgement goes.
    pub fn acknowledge_at(&self) -> Option<Time> {
        self.acknowledge_at
    }

    /// The acknowledgement, which goes now.
    pub(super) fn acknowledge(&mut self) -> AckBody {
        self.acknowledge_at = None;
        self.unacknowledged = 0;
        AckBody { cumulative: self.cumulative.into(), bitmap: self.bitmap().into() }
    }

    fn bitmap(&self) -> u64 {
        // Bit n is span cumulative + 2 + n: the one after `cumulative` is missing by definition.
        self.states
            .iter()
            .skip(1)
            .take(64)
            .enumerate()
            .filter(|(_, state)| **state == State::Placed)
            .fold(0, |bits, (index, _)| bits | (1 << index))
    }

    /// Keeps a placement that broke off for the span's next coming.
    pub(super) fn keep_broken(&mut self, span: u64, incoming: Incoming) {
        self.broken.insert(span, incoming);
        self.unplace(span);
    }

    /// The placement of this span that broke off.
    pub(super) fn resume(&mut self, span: u64) -> Option<Incoming> {
        self.broken.remove(&span)
    }

    /// Takes such placements out that wait for their span to come again.
    pub fn take_broken(&mut self, of: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        let taken = self.broken.extract_if(.., |_, incoming| of(incoming));
        taken.map(|(_, incoming)| incoming).collect()
    }

    /// Placements that wait for their span to come again.
    pub fn broken(&self) -> impl Iterator<Item = &Incoming> {
        self.broken.values()
    }
}

#[cfg(test)]
mod tests;
