//! Writes: memory that is offered, and pulled by the side whose region it is for.
//!
//! Invariants: the other side takes [`TAKINGS_MAX`] offers at a time, and no more are told that it has not said the end of,
//! whether their writes were stopped since or not; those beyond wait for their turn.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

use hashbrown::HashMap;
use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;
use ropewalk_wire::packets::{OfferRecord, RecordKind, TakenRecord};
use zerocopy::IntoBytes;

use super::access::{Exposed, Purpose, Source};
use super::link::Stage;
use super::machine::Machine;
use super::stream::prefix_of;

/// Offers of one peer that are not over.
const TAKINGS_MAX: usize = 8192;

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
    /// Those that were not told yet; some may be gone.
    untold: VecDeque<u64>,
    /// Those that were told, and taken back since.
    withdrawn: HashSet<u64>,
    /// How many were told and are not over at the other side.
    told: usize,
}

impl Offers {
    pub fn get(&self, number: u64) -> Option<&Offer> {
        self.by_number.get(&number)
    }

    fn push(&mut self, number: u64, offer: Offer) {
        self.by_number.insert(number, offer);
        self.untold.push_back(number);
    }

    /// The next one to be told.
    fn next(&mut self) -> Option<(u64, &Offer)> {
        while self.told < TAKINGS_MAX
            && let Some(number) = self.untold.pop_front()
        {
            if let Some(offer) = self.by_number.get_mut(&number) {
                offer.is_told = true;
                self.told += 1;
                return self.by_number.get(&number).map(|offer| (number, offer));
            }
        }
        None
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
    pub(super) fn offer(
        &mut self,
        id: SlotId,
        access: SlotId,
        key: RemoteKey,
        offset: u64,
        slice: Slice,
    ) {
        let (number, secret) = (self.random.next_u64(), self.random.next_u64());
        let Some(state) = self.links.get_mut(id) else { return };
        let offer = Offer { secret, slice, access, key, offset, is_told: false };
        state.offers.push(number, offer);
        if let Some(access) = self.accesses.get_mut(access) {
            access.left += 1;
            access.offers.push(number);
        }
        self.tell_offers(id);
    }

    /// Tells of as many offers as the other side takes.
    fn tell_offers(&mut self, id: SlotId) {
        while let Some(state) = self.links.get_mut(id)
            && let Some((number, offer)) = state.offers.next()
        {
            let record = OfferRecord {
                prefix: prefix_of(RecordKind::Offer, size_of::<OfferRecord>()),
                offer: number.into(),
                secret: offer.secret.into(),
                key_slot: offer.key.slot.to_u64().into(),
                key_secret: offer.key.secret.into(),
                offset: offer.offset.into(),
                total_bytes: offer.slice.len.into(),
            };
            self.tell(id, record.as_bytes());
        }
    }

    /// The other side offers bytes for a region.
    pub(super) fn offered(&mut self, id: SlotId, record: &OfferRecord) {
        let Some(state) = self.links.get(id) else { return };
        if state.stage == Stage::Closing {
            // Nobody takes it; it ends with the link.
            return;
        }
        let (offer, region) = (record.offer.get(), record.key_slot.get());
        if state.takings.len() >= TAKINGS_MAX || state.takings.contains_key(&offer) {
            return self.violated(id);
        }
        let (offset, len) = (record.offset.get(), record.total_bytes.get());
        let legal = |exposed: &&Exposed| {
            exposed.secret == record.key_secret.get()
                && exposed.writable
                && offset.checked_add(len).is_some_and(|end| end <= exposed.slice.len)
        };
        match state.exposed.get(&region).filter(legal) {
            Some(exposed) if len > 0 => {
                let into = exposed.slice.part(offset, len);
                let source = Source { slot: offer, secret: record.secret.get(), offered: true };
                if !self.read(id, source, 0, into, Purpose::Take { offer, region }) {
                    self.take_over(id, offer, GIVEN_UP);
                }
            }
            Some(_) => self.take_over(id, offer, TAKEN),
            None => self.take_over(id, offer, BAD_KEY),
        }
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
