//! Large messages of ours: regions that partners read, until they say that they have what they want.
//!
//! A region has one of 256 numbers, and a count of its uses that packets name beside it. Invariants: a partner
//! reads what was announced to it, under the count of that announce, until its end was told; a number whose
//! message was given up rests until its partner's session is over, since eight bits of count come around.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{ForeignEnd, Ordered, RemoteKey};
use ropewalk_wire::mxoe::{Nack, Packet, Pull, PullReply, REGION_SEQUENCE_FIRST};

use super::machine::{Event, Mxoe, nack_of};
use super::sending::Named;
use crate::driver::Driven;
use crate::memory::Bytes;

/// Regions of sends at a time: half of the numbers, as with Open-MX.
const REGIONS_MAX: usize = 128;
/// Blocks of one partner that wait for being served. It asks again for more.
const SERVING_MAX: usize = 64;

/// A number and its present use.
#[derive(Debug)]
pub(super) struct Region {
    sequence: u8,
    used: Option<Used>,
}

#[derive(Debug)]
struct Used {
    link: SlotId,
    /// Nothing where it was given up.
    slice: Option<Slice>,
    key_slot: u64,
    named: Named,
}

impl Region {
    /// The name of the message that has the region, as long as the partner may read it.
    pub fn named(&self) -> Option<Named> {
        self.used.as_ref().filter(|used| used.slice.is_some()).map(|used| used.named)
    }
}

/// A block to be sent.
#[derive(Debug)]
pub(super) struct Serving {
    handle: u32,
    magic: u32,
    region: u8,
    /// The rest of the block: the region's bytes, the place of the first one in the message, the frame, and the most
    /// bytes of that frame.
    left: Slice,
    offset: u32,
    frame: u32,
    room: u32,
}

/// All numbers, unused.
pub(super) fn table() -> Vec<Region> {
    (0..256).map(|_| Region { sequence: REGION_SEQUENCE_FIRST, used: None }).collect()
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// A number for an announce. `Busy` where none is free, `BadKey` where there is nothing to read.
    pub(super) fn claim_region(
        &mut self,
        id: SlotId,
        key_slot: u64,
        named: Named,
    ) -> Result<(u8, u8), Fault> {
        let state = self.partners.get_mut(id).ok_or(Fault::PeerReset)?;
        let (_, slice) = *state.exposed.get(&key_slot).ok_or(Fault::BadKey)?;
        let free = self.regions.iter().take(REGIONS_MAX).position(|region| region.used.is_none());
        let number = free.ok_or(Fault::Busy)?;
        let region = &mut self.regions[number];
        region.used = Some(Used { link: id, slice: Some(slice), key_slot, named });
        state.regions += 1;
        Ok((number as u8, region.sequence))
    }

    fn free_region(&mut self, number: u8) {
        let region = &mut self.regions[usize::from(number)];
        let used = region.used.take();
        if let Some(state) = used.and_then(|used| self.partners.get_mut(used.link)) {
            state.regions -= 1;
        }
        region.sequence = region.sequence.wrapping_add(1);
        // All links that wait for a number try again; a link that finds none waits on.
        for id in std::mem::take(&mut self.awaiting_region) {
            if let Some(state) = self.partners.get_mut(id) {
                state.awaits_region = false;
                self.touch(id);
            }
        }
    }

    /// A partner's next message waits for a number.
    pub(super) fn await_region(&mut self, id: SlotId) {
        let Some(state) = self.partners.get_mut(id) else { return };
        if !std::mem::replace(&mut state.awaits_region, true) {
            self.awaiting_region.push(id);
            self.counters.awaited_region += 1;
        }
    }

    /// The partner is done with a large message.
    pub(super) fn notified(&mut self, id: SlotId, bytes: u32, number: u8, sequence: u8) {
        let region = &self.regions[usize::from(number)];
        let used = region.used.as_ref().filter(|used| used.link == id);
        let Some(used) = used.filter(|_| region.sequence == sequence) else {
            return self.counters.doubled += 1;
        };
        let Named { channel, number: message } = used.named;
        let whole = used.slice.map_or(0, |slice| slice.len);
        let end = ForeignEnd { channel, number: message, bytes: u64::from(bytes).min(whole) };
        if used.slice.is_some() {
            self.counters.bytes_native += end.bytes;
            self.driver.tell(Event::Finished { link: id, end });
        }
        self.free_region(number);
        if let Some(state) = self.partners.get_mut(id) {
            state.serving.retain(|it| it.region != number);
        }
    }

    /// Nobody reads the memory of a key any more.
    pub(super) fn revoke(&mut self, id: SlotId, key: RemoteKey) -> Ordered {
        let key_slot = key.slot.to_u64();
        let Some(state) = self.partners.get_mut(id) else { return Ordered::Refused(Fault::BadKey) };
        if state.exposed.get(&key_slot).is_none_or(|(secret, _)| *secret != key.secret) {
            return Ordered::Refused(Fault::BadKey);
        }
        state.exposed.remove(&key_slot);
        for (number, region) in self.regions.iter_mut().enumerate() {
            if let Some(used) = &mut region.used
                && used.link == id
                && used.key_slot == key_slot
            {
                used.slice = None;
                state.serving.retain(|it| usize::from(it.region) != number);
            }
        }
        self.driver.tell(Event::Revoked { link: id, key });
        Ordered::Released
    }

    /// The numbers that a partner's messages had are free: its session is over.
    pub(super) fn forget_regions(&mut self, id: SlotId) {
        for number in 0..self.regions.len() {
            if self.regions[number].used.as_ref().is_some_and(|used| used.link == id) {
                self.free_region(number as u8);
            }
        }
    }

    /// A partner asks for a block.
    pub(super) fn asked(&mut self, from: S, pull: Pull) {
        let Some(id) = self.partner_of(from, pull.from, pull.session) else {
            if self.is_refused(from, pull.from, pull.session) {
                let index = ropewalk_wire::mxoe::INDEX_UNKNOWN;
                self.refuse(from, index, nack_of(&pull, Nack::BadSession));
            }
            return;
        };
        let reply_bytes = self.config.dialect.reply_bytes();
        let per_block = self.config.dialect.replies_per_block();
        let Some(state) = self.partners.get_mut(id) else { return };
        let region =
            u8::try_from(pull.region).ok().map(|number| &self.regions[usize::from(number)]);
        let used = region.filter(|it| it.sequence == pull.region_sequence);
        let used = used.and_then(|it| it.used.as_ref()).filter(|used| used.link == id);
        let Some(slice) = used.and_then(|used| used.slice) else {
            let index = state.index;
            return self.refuse(from, index, nack_of(&pull, Nack::BadRegion));
        };
        let frames = (u64::from(pull.first_offset) + u64::from(pull.block_bytes))
            .div_ceil(reply_bytes.into());
        // Its place in the message; we announce every region from its beginning.
        let lead = u64::from(pull.region_offset % reply_bytes);
        let begin = (u64::from(pull.frame) * u64::from(reply_bytes) + u64::from(pull.first_offset))
            .checked_sub(lead);
        let legal = begin.filter(|begin| {
            let end = begin + u64::from(pull.block_bytes) + u64::from(pull.region_offset);
            pull.block_bytes > 0
                && pull.first_offset < reply_bytes
                && frames <= per_block.into()
                && end <= slice.len
        });
        let Some(begin) = legal else { return self.counters.misplaced += 1 };
        if state.serving.len() >= SERVING_MAX {
            return self.counters.beyond += 1;
        }
        let from = begin + u64::from(pull.region_offset);
        state.serving.push_back(Serving {
            handle: pull.handle,
            magic: pull.magic,
            region: pull.region as u8,
            left: slice.part(from, pull.block_bytes.into()),
            offset: begin as u32,
            frame: pull.frame,
            room: reply_bytes - pull.first_offset,
        });
        self.touch(id);
    }

    /// The next piece that a partner asked for.
    pub(super) fn next_reply(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<usize> {
        let dialect = self.config.dialect;
        let state = self.partners.get_mut(id)?;
        let serving = state.serving.front_mut()?;
        let bytes = serving.left.len.min(serving.room.into());
        let packet = PullReply {
            frame: serving.frame as u8,
            offset: serving.offset,
            handle: serving.handle,
            magic: serving.magic,
        };
        let part = serving.left.part(0, bytes);
        serving.left = serving.left.part(bytes, serving.left.len - bytes);
        serving.offset += bytes as u32;
        serving.frame = serving.frame.wrapping_add(1);
        serving.room = dialect.reply_bytes();
        if serving.left.len == 0 {
            state.serving.pop_front();
        }
        // The header names its payload's length, not the bytes: those are in their place already.
        let end = dialect.body_bytes_max();
        let begin = ropewalk_wire::mxoe::PULL_REPLY_BYTES;
        let payload = &mut out[begin..end][..bytes as usize];
        memory.read(part, payload);
        let mut header = [0; ropewalk_wire::mxoe::HEADER_BYTES_MAX];
        let len = Packet::PullReply(packet, payload).emit(0, dialect, &mut header);
        debug_assert_eq!(len, begin, "a reply's header has one length");
        out[..len].copy_from_slice(&header[..len]);
        Some(len + bytes as usize)
    }
}
