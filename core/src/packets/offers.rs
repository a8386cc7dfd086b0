//! Writes: memory that is offered, and pulled by the side whose region it is for.
//!
//! Invariants:
//! * the other side takes [`TAKINGS_MAX`] offers at a time, and no more are told that it has not said the end of, whether
//!   their writes were stopped since or not; those beyond wait for their turn;
//! * the offers of a list are told behind each other or not at all, and judged when the last one is here: where one of
//!   them is refused all are, and nothing is written.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

use hashbrown::HashMap;
use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;
use ropewalk_wire::packets::{OfferRecord, RecordKind, TakenRecord};
use zerocopy::IntoBytes;

use super::access::{Purpose, Source};
use super::link::Stage;
use super::machine::Machine;
use super::stream::prefix_of;

/// Offers of one peer that are not over.
const TAKINGS_MAX: usize = 8192;

const _: () = assert!(REMOTE_SEGMENTS_MAX <= TAKINGS_MAX, "any list is told at once");

/// What the end of an offer says; a refusal says the second.
pub(super) const TAKEN: u8 = 0;
pub(super) const BAD_KEY: u8 = 1;
pub(super) const GIVEN_UP: u8 = 2;

/// Memory that the other side is to pull.
#[derive(Debug)]
pub(super) struct Offer {
    pub secret: u64,
    pub slice: Slice,
    pub access: SlotId,
    /// Where it is for.
    key: RemoteKey,
    offset: u64,
    is_told: bool,
}

/// The offers of one link.
#[derive(Debug, Default)]
pub(super) struct Offers {
    by_number: HashMap<u64, Offer>,
    /// Those that were not told yet, as lists; some may be gone.
    untold: VecDeque<Vec<u64>>,
    /// Those that were told, and taken back since.
    withdrawn: HashSet<u64>,
    /// How many were told and are not over at the other side.
    told: usize,
}

impl Offers {
    pub fn get(&self, number: u64) -> Option<&Offer> {
        self.by_number.get(&number)
    }

    /// The offers of one write.
    fn push(&mut self, list: Vec<(u64, Offer)>) {
        self.untold.push_back(list.iter().map(|(number, _)| *number).collect());
        self.by_number.extend(list);
    }

    /// The next ones to be told, of one write.
    fn next(&mut self) -> Option<Vec<u64>> {
        // One that was taken back before it was told is gone as a whole.
        while self.untold.front().is_some_and(|list| !self.has(list)) {
            self.untold.pop_front();
        }
        let list = self.untold.pop_front_if(|list| self.told + list.len() <= TAKINGS_MAX)?;
        self.told += list.len();
        for number in &list {
            if let Some(offer) = self.by_number.get_mut(number) {
                offer.is_told = true;
            }
        }
        Some(list)
    }

    fn has(&self, list: &[u64]) -> bool {
        list.iter().all(|number| self.by_number.contains_key(number))
    }

    /// Takes one back; whether there was such a one.
    pub fn withdraw(&mut self, number: u64) -> bool {
        let Some(offer) = self.by_number.remove(&number) else { return false };
        if offer.is_told {
            self.withdrawn.insert(number);
        }
        true
    }

    /// The other side is done with one; what it was, unless it was taken back.
    fn over(&mut self, number: u64) -> Option<Offer> {
        let offer = match self.by_number.get(&number).is_some_and(|offer| offer.is_told) {
            true => self.by_number.remove(&number),
            false => None,
        };
        if offer.is_some() || self.withdrawn.remove(&number) {
            self.told -= 1;
        }
        offer
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// Offers parts of our memory to places in a region of the other side.
    pub(super) fn offer(
        &mut self,
        id: SlotId,
        access: SlotId,
        key: RemoteKey,
        parts: impl Iterator<Item = (u64, Slice)>,
    ) {
        let list: Vec<(u64, Offer)> = parts
            .map(|(offset, slice)| {
                let (number, secret) = (self.random.next_u64(), self.random.next_u64());
                (number, Offer { secret, slice, access, key, offset, is_told: false })
            })
            .collect();
        let Some(state) = self.links.get_mut(id) else { return };
        if let Some(access) = self.accesses.get_mut(access) {
            access.left += list.len() as u32;
            access.offers.extend(list.iter().map(|(number, _)| *number));
        }
        state.offers.push(list);
        self.tell_offers(id);
    }

    /// Tells of as many offers as the other side takes.
    fn tell_offers(&mut self, id: SlotId) {
        while let Some(list) = self.links.get_mut(id).and_then(|state| state.offers.next()) {
            for (following, number) in (0..list.len() as u32).rev().zip(list) {
                let state = self.links.get(id);
                let Some(offer) = state.and_then(|state| state.offers.get(number)) else {
                    continue;
                };
                let record = OfferRecord {
                    prefix: prefix_of(RecordKind::Offer, size_of::<OfferRecord>()),
                    offer: number.into(),
                    secret: offer.secret.into(),
                    key_slot: offer.key.slot.to_u64().into(),
                    key_secret: offer.key.secret.into(),
                    offset: offer.offset.into(),
                    total_bytes: offer.slice.len.into(),
                    following: following.into(),
                    reserved: 0.into(),
                };
                self.tell(id, record.as_bytes());
            }
        }
    }

    /// The other side offers bytes for a region.
    pub(super) fn offered(&mut self, id: SlotId, record: &OfferRecord) {
        let Some(state) = self.links.get_mut(id) else { return };
        if state.stage == Stage::Closing {
            // Nobody takes it; it ends with the link.
            return;
        }
        let following = record.following.get();
        let is_next = match state.listed.last() {
            Some(last) => following.checked_add(1) == Some(last.following.get()),
            None => (following as usize) < REMOTE_SEGMENTS_MAX,
        };
        if !is_next || state.takings.len() + state.listed.len() >= TAKINGS_MAX {
            return self.violated(id);
        }
        state.listed.push(*record);
        if following > 0 {
            return;
        }
        let list = std::mem::take(&mut state.listed);
        let is_legal = list.iter().all(|record| self.place_of(id, record).is_some());
        for record in &list {
            let (offer, region) = (record.offer.get(), record.key_slot.get());
            if self.links.get(id).is_none_or(|state| state.takings.contains_key(&offer)) {
                return self.violated(id);
            }
            match self.place_of(id, record).filter(|_| is_legal) {
                Some(into) if into.len > 0 => {
                    let source = Source { slot: offer, secret: record.secret.get(), offered: true };
                    if !self.read(id, source, 0, into, Purpose::Take { offer, region }) {
                        self.take_over(id, offer, GIVEN_UP);
                    }
                }
                Some(_) => self.take_over(id, offer, TAKEN),
                None => self.take_over(id, offer, BAD_KEY),
            }
        }
    }

    /// Where the bytes of an offer belong, if they may go there.
    fn place_of(&self, id: SlotId, record: &OfferRecord) -> Option<Slice> {
        let exposed = self.links.get(id)?.exposed.get(&record.key_slot.get())?;
        let (offset, len) = (record.offset.get(), record.total_bytes.get());
        let is_legal = exposed.secret == record.key_secret.get()
            && exposed.writable
            && offset.checked_add(len).is_some_and(|end| end <= exposed.slice.len);
        is_legal.then(|| exposed.slice.part(offset, len))
    }

    /// Says that an offer is over.
    pub(super) fn take_over(&mut self, id: SlotId, offer: u64, status: u8) {
        let prefix = prefix_of(RecordKind::Taken, size_of::<TakenRecord>());
        let record = TakenRecord { prefix, offer: offer.into(), status, reserved: [0; 7] };
        self.tell(id, record.as_bytes());
    }

    /// An offer of ours is over.
    pub(super) fn offer_taken(&mut self, id: SlotId, record: &TakenRecord) {
        let Some(state) = self.links.get_mut(id) else { return };
        let number = record.offer.get();
        if let Some(offer) = state.offers.over(number) {
            state.serving.retain(|it| !it.source.offered || it.source.slot != number);
            let outcome = match record.status {
                TAKEN => Ok(()),
                _ => Err(Fault::BadKey),
            };
            if outcome.is_ok() {
                self.counters.bytes_native += offer.slice.len;
            }
            self.segment_over(offer.access, outcome);
        }
        self.tell_offers(id);
    }
}
