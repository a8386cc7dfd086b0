//! Messages that wait for a receive: looking at them, being asked about each, and receives that are taken
//! back before they have one.

use std::time::Duration;

use ropewalk_core::{Channel, OfferId, OperationId, PeerId, Waiting};

use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::engine::News;

/// A message about which the user is asked before it waits; see [`Endpoint::next_offer`].
#[derive(Debug)]
pub struct Offered {
    id: OfferId,
    pub message: Waiting,
    /// Its bytes are here. Else they are still at the sender, or are not to be seen ([`Level::Unseen`](crate::Level)).
    pub is_whole: bool,
}

impl Endpoint {
    /// The message that a receive like this would take if it were posted now. It stays.
    pub fn probe(
        &self,
        channel: Channel,
        source: Option<PeerId>,
        bits: u64,
        mask: u64,
    ) -> Option<Waiting> {
        self.locked().core.probe(channel, source, bits, mask)
    }

    /// A number that grows whenever a probe, or the next offer, may have another answer than before.
    #[inline]
    pub fn arrivals(&self) -> u64 {
        self.shared.signals.arrivals()
    }

    /// From now on this context is rung when messages wait for a receive.
    pub fn tell_of_arrivals(&self, context: &Context) {
        self.locked().contexts.tell_of(News::Arrivals, &context.queue);
    }

    /// From now on messages of a channel that no posted receive accepts are offered before they wait. So are
    /// messages that wait already and came after [`Endpoint::arrivals`] had this value. `None`: not any more.
    pub fn offer_unmatched(&self, wanted: Option<(Channel, u64)>) {
        self.locked().core.offer_unmatched(wanted);
    }

    /// The next message to ask the user about, with its bytes in `bytes` where it is whole. No receive takes
    /// it before [`Endpoint::end_offer`].
    pub fn next_offer(&self, bytes: &mut Vec<u8>) -> Option<Offered> {
        let mut engine = self.locked();
        let offer = engine.core.next_offer()?;
        bytes.clear();
        if let Some(buffer) = offer.staged {
            engine.read_staged(buffer, bytes);
        }
        let is_whole = !offer.is_withheld;
        Some(Offered { id: offer.id, message: offer.message, is_whole })
    }

    /// The user's answer. `taken`: the message is dropped as received, else it goes to a receive that was
    /// posted meanwhile, or waits.
    pub fn end_offer(&self, offered: &Offered, taken: bool) {
        let mut engine = self.locked();
        // A receive that the user posted just now may have been left for us.
        self.shared.run_commands(&mut engine);
        engine.core.end_offer(offered.id, taken);
        engine.drain();
    }

    /// Ends a receive that has no message yet. True where it had none: it completes as cancelled.
    pub fn withdraw(&self, id: OperationId) -> bool {
        let mut engine = self.locked();
        self.shared.run_commands(&mut engine);
        let withdrawn = engine.core.withdraw(id);
        engine.drain();
        withdrawn
    }

    /// Whether a send waits for a session with its peer.
    pub fn is_unsent(&self, id: OperationId) -> bool {
        let mut engine = self.locked();
        self.shared.run_commands(&mut engine);
        engine.core.is_unsent(id)
    }

    /// From now on [`Endpoint::fetch_still_for`] has answers.
    pub fn follow_fetches(&self) {
        self.locked().follow_fetches();
    }

    /// The time for which nothing more has come of the long message that a receive fetches from its sender. It
    /// counts from the beginning, or from the last call if something had come by then. `None` if the receive fetches
    /// nothing: it has no message, or one whose bytes come by themselves.
    pub fn fetch_still_for(&self, receive: OperationId) -> Option<Duration> {
        let mut engine = self.locked();
        self.shared.run_commands(&mut engine);
        let now = engine.now();
        engine.fetch_still_since(receive, now).map(|since| now.since(since))
    }

    /// Whether a send that is under way has let go of its memory for good.
    pub fn is_buffered(&self, id: OperationId) -> bool {
        let mut engine = self.locked();
        self.shared.run_commands(&mut engine);
        engine.core.is_buffered(id)
    }
}
