//! The protection of a link: its packets are sealed from the caller's proof on.
//!
//! The stream changes at a number: the packets up to the one that ends the greeting go in clear, also when they go again, and
//! all later ones are sealed. Acknowledgements, asks and pieces are sealed as soon as a side has the keys. Each sealed packet
//! has a number of its own, which counts once.
//!
//! Invariants: of a protected link nothing in clear is believed, but that a packet of the greeting came again; a packet that goes
//! again is sealed anew, under another number; a forged reset ends no link whose peer answers.

use std::hash::Hash;

use ropewalk_base::payload::{LinkKeys, PayloadMode, Sealing};
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_seal::{Opener, Sealer, TAG_BYTES, Window};
use ropewalk_wire::packets::{self, Packet, SEAL_BYTES, SEALED_HEAD_BYTES};

use super::link::Link;
use super::link_seal::{LinkSeal, Sealed};
use super::machine::Machine;
use super::sending::is_after;
use crate::driver::Driven;
use crate::memory::Bytes;
use crate::protocol::LinkEvents;

impl<S> Link<S> {
    /// Whether both sides still greet.
    pub(super) fn is_undecided(&self) -> bool {
        !self.is_plain && self.seal.0.is_none()
    }

    /// What arrives is sealed from here on.
    fn open_with(&mut self, keys: &LinkKeys) {
        self.seal = LinkSeal(Some(Box::new(Sealed {
            opener: Opener::new(keys.mode, keys.cipher, keys.receive.clone()),
            window: Window::new(),
            sealer: None,
            first: self.receiving.next(),
            plain_secret: self.secret,
            is_readable: keys.mode == PayloadMode::Auth,
            doubted_at: Time::NEVER,
        })));
        self.out.end_packet();
        // The peer has sent nothing in clear behind its part of the greeting.
        self.receiving.forget_early();
        // What is asked for and what answers has to leave room for the seal, as the stream does.
        self.packet_bytes -= SEAL_BYTES as u16;
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// Protects a link: see `Rail::seal`.
    pub fn seal(&mut self, id: SlotId, keys: &LinkKeys, memory: &dyn Bytes) {
        let has_sealer =
            |state: &Link<S>| state.seal.sealed().is_some_and(|it| it.sealer.is_some());
        if self.links.get(id).is_none_or(has_sealer) {
            // Never anew: its numbers would come again.
            return;
        }
        // What was ordered before leaves in packets of its own.
        self.cut_all(id, memory);
        let secret = self.random.next_u64() as u32 | 1;
        if self.links.get(id).is_some_and(|state| state.seal.sealed().is_none()) {
            self.install(id, keys);
        }
        let Some(state) = self.links.get_mut(id) else { return };
        if let Some(sealed) = state.seal.sealed_mut() {
            sealed.sealer = Some(Sealer::new(keys.mode, keys.cipher, keys.send.clone()));
            state.secret = secret;
        }
    }

    /// What arrives over a link is sealed from here on.
    fn install(&mut self, id: SlotId, keys: &LinkKeys) {
        let Some(state) = self.links.get_mut(id) else { return };
        self.early_bytes -= state.early_bytes();
        state.early.clear();
        state.open_with(keys);
    }

    /// Asks whether what follows on a link is sealed, where that is not known.
    pub(super) fn ask_seal(&mut self, id: SlotId, above: &mut dyn LinkEvents<S>) {
        let Some(state) = self.links.get_mut(id) else { return };
        if !state.is_undecided() {
            return;
        }
        match above.sealing(id) {
            Sealing::Undecided => {}
            Sealing::Plain => state.is_plain = true,
            // Records of ours that answer what follows would else leave in clear.
            Sealing::Sealed(keys) if keys.has_greeted => self.seal(id, &keys, above),
            Sealing::Sealed(keys) => self.install(id, &keys),
        }
    }

    /// Whether another record may begin in a packet in clear. No greeting of a protected link is followed by one.
    pub(super) fn may_begin(&mut self, id: SlotId, above: &mut dyn LinkEvents<S>) -> bool {
        self.ask_seal(id, above);
        let is_protected = self.is_protected(id);
        self.counters.unprotected += u64::from(is_protected);
        !is_protected
    }

    /// Whether a link is protected.
    pub(super) fn is_protected(&self, id: SlotId) -> bool {
        self.links.get(id).is_some_and(|state| state.seal.sealed().is_some())
    }

    /// Seals the packet of a link that was written, if it is to be.
    pub(super) fn sealed_packet(
        &mut self,
        id: SlotId,
        leaving: Leaving,
        out: &mut [u8],
    ) -> Leaving {
        let state = self.links.get_mut(id).and_then(|state| state.seal.sealed_mut());
        let Some(sealer) = state.and_then(|sealed| sealed.sealer.as_mut()) else { return leaving };
        self.counters.bytes_copied += leaving.kept.as_ref().map_or(0, |kept| kept.len() as u64);
        let len = leaving.join(out);
        let number = sealer.next();
        let end = packets::enclose(out, len, number);
        let tag = sealer.seal(number, SEALED_HEAD_BYTES, &mut out[..end]);
        out[end..end + TAG_BYTES].copy_from_slice(&tag);
        Leaving::whole(end + TAG_BYTES)
    }

    /// A sealed packet of a link came: its content goes to `scratch`. `None`: it is not genuine, or came before.
    pub(super) fn open_packet<'s>(
        &mut self,
        id: SlotId,
        number: u64,
        whole: &[u8],
        scratch: &'s mut Vec<u8>,
    ) -> Option<Packet<'s>> {
        let now = self.driver.now;
        let state = self.links.get_mut(id)?;
        let Some(sealed) = state.seal.sealed_mut() else {
            // It has overtaken the end of the greeting, and goes again.
            self.counters.too_early += 1;
            return None;
        };
        if !sealed.window.is_new(number) {
            self.counters.replayed += 1;
            return None;
        }
        scratch.clear();
        scratch.extend_from_slice(whole);
        let Ok(text) = sealed.opener.open(number, SEALED_HEAD_BYTES, scratch) else {
            self.counters.forged += 1;
            return None;
        };
        sealed.window.take(number);
        sealed.doubted_at = Time::NEVER;
        state.heard_at = now;
        let packet = packets::parse_enclosed(&scratch[SEALED_HEAD_BYTES..][..text]);
        if packet.is_none() {
            self.violated(id);
        }
        packet
    }

    /// A packet in clear came over a link that is protected: nothing of it is believed.
    #[cold]
    pub(super) fn hear_plain(&mut self, id: SlotId, packet: &Packet<'_>) {
        let now = self.driver.now;
        let Some(state) = self.links.get_mut(id) else { return };
        let Some(sealed) = state.seal.sealed() else { return };
        if let Packet::Stream(body, _) = packet {
            let number = body.number.get();
            if is_after(sealed.first, number) {
                // A packet of the greeting, whose acknowledgement was lost. Anybody may have sent it: it says nothing of
                // the way.
                self.counters.doubled += 1;
                state.receiving.owe(now);
                return self.touch(id);
            }
        }
        self.counters.unprotected += 1;
    }
}
