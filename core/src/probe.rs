//! A look at messages that wait for a receive: probing them, and offering each to the user before it waits.
//!
//! A message is *offered* where its user wants to be asked about messages that no posted receive accepts
//! (MX's handler of unexpected ones): one at a time, in the order of their arrival, each once, whole where
//! it is small. While the user thinks about it no receive takes it; then it is dropped as received, or
//! waits like any other.
//!
//! The core calls nobody: the driver asks for the next offer when its user can be asked. Until then a
//! receive that is posted takes a message as if it had been posted before it came.

use ropewalk_base::memory::BufferId;
use ropewalk_base::slots::SlotId;

use crate::api::*;
use crate::credit::Charge;
use crate::eager::wanted;
use crate::engine::Core;
use crate::matching::{Content, Unmatched, Wanted};
use crate::operation::{Kind, ReceiveStage, SendStage, SendState};

/// A message that waits for a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    pub peer: PeerId,
    pub bits: u64,
    pub bytes: u64,
}

/// Names a message that is being offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferId(SlotId);

/// A message about which the user is asked.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    pub id: OfferId,
    pub message: Waiting,
    /// Its bytes, if there are any and all of them are here.
    pub staged: Option<BufferId>,
    /// Its bytes are still at the sender, or not to be seen before a receive takes them; also where it has none.
    pub is_withheld: bool,
}

impl Core {
    /// The message that a receive like this would take if it were posted now. It stays.
    pub fn probe(
        &mut self,
        channel: Channel,
        source: Option<PeerId>,
        bits: u64,
        mask: u64,
    ) -> Option<Waiting> {
        let source = source.map(|peer| self.resolve(peer));
        let found = self.matching.find_message(Wanted { channel, source, bits, mask })?;
        let message = self.matching.message_mut(found)?;
        Some(Waiting { peer: message.peer, bits: message.bits, bytes: message.bytes })
    }

    /// A number that grows whenever a probe, or the next offer, may have another answer than before.
    #[inline]
    pub fn arrivals(&self) -> u64 {
        self.matching.arrivals
    }

    /// From now on messages of a channel that no posted receive accepts are offered, with those that wait already and came
    /// after so many arrivals; `None`: not any more.
    pub fn offer_unmatched(&mut self, wanted: Option<(Channel, u64)>) {
        self.matching.offer_unmatched(wanted);
    }

    /// Notes that a message waits which may have to be offered.
    #[inline]
    pub(crate) fn offer(&mut self, channel: Channel, found: SlotId) {
        self.matching.offer(channel, found);
    }

    /// The next message to ask the user about, until [`Core::end_offer`] has the answer.
    pub fn next_offer(&mut self) -> Option<Offer> {
        while let Some(found) = self.matching.first_offer() {
            let content = self.matching.message_mut(found).map(|message| message.content);
            if let Some(Content::Arriving { claimed_by: None }) = content {
                // Those behind it wait for their turn.
                return None;
            }
            self.matching.end_first_offer();
            // A receive has it by now, or its sender took it back.
            let Some(message) = self.matching.message_mut(found) else { continue };
            let is_unseen = message.acknowledge == Level::Unseen as u8;
            let (staged, is_withheld) = match message.content {
                Content::Arriving { .. } => continue,
                Content::Staged(buffer) => (Some(buffer).filter(|_| !is_unseen), is_unseen),
                Content::Empty => (None, is_unseen),
                Content::Rendezvous(..) => (None, true),
            };
            message.shown = true;
            let Unmatched { peer, bits, bytes, .. } = *message;
            return Some(Offer {
                id: OfferId(found),
                message: Waiting { peer, bits, bytes },
                staged,
                is_withheld,
            });
        }
        None
    }

    /// The user's answer. `taken`: the message is dropped as received, else it goes to a receive that was
    /// posted meanwhile, or waits.
    pub fn end_offer(&mut self, offer: OfferId, taken: bool) {
        let Some(message) = self.matching.message_mut(offer.0) else { return };
        message.shown = false;
        if !taken {
            return self.rematch(offer.0);
        }
        let Some(message) = self.matching.remove_message(offer.0) else { return };
        self.counters.messages_received += 1;
        let Unmatched { channel, peer, session, bytes, acknowledge, .. } = message;
        if let Content::Rendezvous(..) = message.content {
            // It ends with its session, so its session runs.
            self.free_charge(peer, session, Charge::Rendezvous);
            return self.emit_fin(peer, channel, message.message, Ok(()), 0);
        }
        if let Content::Staged(buffer) = message.content {
            self.outputs.push(Output::Release(buffer));
        }
        self.free_charge(peer, session, Charge::Eager { channel, payload_bytes: bytes });
        let taken = if acknowledge == Level::Unseen as u8 { 0 } else { bytes };
        self.acknowledge_waited(&message, taken);
    }

    /// Ends a receive that has no message yet; true where it had none, and completes as cancelled. Else it
    /// goes on.
    pub fn withdraw(&mut self, id: OperationId) -> bool {
        let Some(operation) = self.operations.get(id) else { return false };
        let Kind::Receive(state) = &operation.kind else { return false };
        let ReceiveStage::Posted { post } = state.stage else { return false };
        let (wanted, over) = (wanted(&state.receive), operation.ending.is_some());
        if over || !self.matching.withdraw(post, wanted) {
            return false;
        }
        self.finish(id, Err(ropewalk_base::error::Fault::Cancelled), 0);
        true
    }

    /// Whether a send waits for a session with its peer.
    pub fn is_unsent(&self, id: OperationId) -> bool {
        let operation = self.operations.get(id);
        operation.is_some_and(|operation| match &operation.kind {
            Kind::Send(SendState { stage: SendStage::Waiting { .. }, send, .. }) => {
                !self.is_up(send.peer)
            }
            _ => false,
        })
    }

    /// How a send is called on the wire: its peer, its channel, and its number, where it has one.
    pub fn sent_as(&self, id: OperationId) -> Option<(PeerId, Channel, Option<u64>)> {
        let Kind::Send(SendState { stage, send, message }) = &self.operations.get(id)?.kind else {
            return None;
        };
        let number = match stage {
            SendStage::Waiting { .. } => None,
            _ => Some(*message),
        };
        Some((send.peer, send.channel, number))
    }

    /// Whether a send that is under way has let go of its memory for good.
    pub fn is_buffered(&self, id: OperationId) -> bool {
        self.operations.get(id).is_some_and(|operation| {
            let acknowledge = matches!(
                operation.kind,
                Kind::Send(SendState { stage: SendStage::Acknowledge, .. })
            );
            acknowledge && operation.retained == 0
        })
    }
}
