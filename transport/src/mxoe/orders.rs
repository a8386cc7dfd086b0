//! Orders of the layer above: frames, of which the meaning goes, and others.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{FrameOrder, Ordered, RemoteLayout, Token, Verb};
use ropewalk_wire::frame::{self, Arrived};

use super::machine::{Event, Mxoe};
use super::sending::{Kept, Named, Told, Waiting};
use crate::driver::Driven;
use crate::memory::Bytes;
use crate::memory::Payload;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// A frame for a partner, as the core writes it: what it means goes.
    pub fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered {
        let id = frame.link.slot;
        let Some(state) = self.partners.get_mut(id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        if !state.is_up() {
            return Ordered::Refused(Fault::Closed);
        }
        let header = frame.header.as_bytes();
        let short = frame::decode_short(header).map(|short| short.expand());
        let body = match &short {
            Some((_, body)) => Arrived::Eager(body),
            None => match frame::decode(header) {
                Ok((_, body)) => body,
                Err(_) => return Ordered::Refused(Fault::Invalid),
            },
        };
        let answer = match body {
            Arrived::Eager(body) => {
                let bytes = frame.payload.len;
                if bytes > self.config.dialect.medium_bytes_max().into() {
                    return Ordered::Refused(Fault::Oversize);
                }
                let named = Named { channel: body.channel, number: body.message.get() };
                let tells = body.acknowledge != 0;
                let (bits, payload) = (body.bits.get(), Payload::Held(frame.payload));
                let token = frame.token;
                let waiting = Waiting::Eager { bits, payload, token, named, tells };
                state.sending.waiting.push_back(waiting);
                Ordered::Pending
            }
            Arrived::Rts(body) => {
                let Ok(bytes) = u32::try_from(body.total_bytes.get()) else {
                    return Ordered::Refused(Fault::Oversize);
                };
                let named = Named { channel: body.channel, number: body.message.get() };
                let (bits, key_slot) = (body.bits.get(), body.key_slot.get());
                let waiting = Waiting::Announce { bits, bytes, key_slot, named };
                state.sending.waiting.push_back(waiting);
                Ordered::Released
            }
            Arrived::Fin(body) => {
                if let Some((region, region_sequence)) = state.announced.remove(&body.message.get())
                {
                    let bytes = body.bytes.get() as u32;
                    state.sending.ends.push_back(Told { bytes, region, region_sequence });
                }
                self.has_room(id);
                Ordered::Released
            }
            // There is room again.
            Arrived::Credit(_) => {
                self.has_room(id);
                Ordered::Released
            }
            // Nobody there has a word for it: a region that is not there any more says enough.
            Arrived::Abort(_) | Arrived::Goodbye => Ordered::Released,
            _ => Ordered::Refused(Fault::Invalid),
        };
        self.number(id, memory);
        self.touch(id);
        self.answer_at_once(frame.token, answer)
    }

    /// An order that was over before it was answered is answered with that.
    fn answer_at_once(&mut self, token: Token, answer: Ordered) -> Ordered {
        let ended = |event: &Event| matches!(event, Event::Ended { token: ended, outcome: Ok(()) } if *ended == token);
        if answer != Ordered::Pending {
            return answer;
        }
        match token == Token::NONE || self.driver.take_last(ended) {
            true => Ordered::Released,
            false => Ordered::Pending,
        }
    }

    /// Gives numbers to messages that wait, as far as there is room.
    pub(super) fn number(&mut self, id: SlotId, memory: &dyn Bytes) {
        loop {
            let now = self.driver.now;
            let Some(state) = self.partners.get_mut(id) else { return };
            // Nothing has a number before the partner knows our session: it would not hear it.
            if state.is_held() {
                return;
            }
            if let Some(Told { bytes, region, region_sequence }) = state.sending.next_end() {
                state.sending.push(Kept::Notify { bytes, region, region_sequence }, now);
                continue;
            }
            if !state.sending.has_room() {
                return;
            }
            let Some(waiting) = state.sending.waiting.pop_front() else { return };
            let kept = match waiting {
                Waiting::Eager { bits, payload, token, named, tells } => {
                    let bytes = payload.into_shared(self.spare.pop(), memory);
                    if token != Token::NONE {
                        self.driver.tell(Event::Ended { token, outcome: Ok(()) });
                    }
                    Kept::Eager { bits, bytes, told: tells.then_some(named) }
                }
                Waiting::Announce { bits, bytes, key_slot, named } => {
                    match self.claim_region(id, key_slot, named) {
                        Ok((region, region_sequence)) => {
                            Kept::Announce { bits, bytes, region, region_sequence }
                        }
                        Err(Fault::Busy) => {
                            // It keeps its turn: a region is free when another message is over.
                            let waiting = Waiting::Announce { bits, bytes, key_slot, named };
                            let Some(state) = self.partners.get_mut(id) else { return };
                            state.sending.waiting.push_front(waiting);
                            return self.await_region(id);
                        }
                        // It was given up before it had a number.
                        Err(_) => continue,
                    }
                }
            };
            self.counters.messages_sent += 1;
            let Some(state) = self.partners.get_mut(id) else { return };
            state.sending.push(kept, now);
        }
    }

    /// Carries out an order that is no frame, as a rail does.
    pub fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered {
        match verb {
            Verb::Read { link, key, remote: RemoteLayout::At(0), local, token, .. } => {
                self.pull(link.slot, *key, *local, *token)
            }
            Verb::Read { .. } | Verb::Write { .. } => Ordered::Refused(Fault::NotPermitted),
            Verb::Expose { link, key, region, .. } => {
                let Some(state) = self.partners.get_mut(link.slot) else {
                    return Ordered::Refused(Fault::PeerReset);
                };
                state.exposed.insert(key.slot.to_u64(), (key.secret, *region));
                Ordered::Released
            }
            Verb::Revoke { link, key } => self.revoke(link.slot, *key),
            Verb::DetachSend { link, token, later } => {
                self.detach(link.slot, *token, *later, memory)
            }
            Verb::SkipSend { link, token } => self.detach(link.slot, *token, Token::NONE, memory),
            Verb::CancelAccess { token, .. } => self.stop(*token),
            Verb::CancelReceive { link, token } => {
                let state = self.partners.get_mut(link.slot);
                match state.and_then(|state| state.receiving.placed(*token)) {
                    Some(partial) => {
                        partial.place = None;
                        Ordered::Released
                    }
                    None => Ordered::Refused(Fault::Invalid),
                }
            }
            Verb::Close { link } => self.close(link.slot),
        }
    }

    fn detach(&mut self, id: SlotId, wanted: Token, later: Token, memory: &dyn Bytes) -> Ordered {
        let waiting = self.partners.get_mut(id).map(|state| &mut state.sending.waiting);
        for waiting in waiting.into_iter().flatten() {
            if let Waiting::Eager { payload, token, .. } = waiting
                && *token == wanted
                && let Payload::Held(slice) = *payload
            {
                *payload = Payload::Own(Payload::Held(slice).into_bytes(memory));
                *token = later;
                return Ordered::Released;
            }
        }
        Ordered::Refused(Fault::Invalid)
    }
}
