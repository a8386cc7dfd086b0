//! Writes: memory that is offered, and pulled by the side whose region it is for.
//!
//! Invariants:
//! * the other side takes [`TAKINGS_MAX`] offers at a time. We never tell more offers whose ends it has not told,
//!   whether their writes were stopped since or not; further offers wait for their turn;
//! * the offers of a list are told behind each other or not at all, and judged when the last one is here: if one of
//!   them is refused, all are, and nothing is written.

use std::collections::VecDeque;
use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed, HashSet};
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;
use ropewalk_wire::packets::{OfferRecord, RecordKind, TakenRecord, WithdrawnRecord};
use zerocopy::IntoBytes;

use super::link::Stage;
use super::machine::Machine;
use super::stream::prefix_of;
use super::transfers::{Purpose, READINGS_MAX, Source};

/// Offers of one peer that are not over.
const TAKINGS_MAX: usize = 8192;
/// Offers of all peers in lists that are not complete: further ones are refused, but for a few of each peer.
const LISTED_ALL: usize = 1 << 18;
const LISTED_ALONE: usize = 32;
/// Ends of offers that were not sent yet, for all peers: beyond that a peer has so many or is cut off.
const UNTOLD_ALL: usize = 1 << 18;
const UNTOLD_ALONE: usize = 256;

const _: () = assert!(REMOTE_SEGMENTS_MAX <= TAKINGS_MAX, "any list is told at once");

/// The status at the end of an offer; a refusal carries `BAD_KEY`.
pub(super) const TAKEN: u8 = 0;
pub(super) const BAD_KEY: u8 = 1;
pub(super) const GIVEN_UP: u8 = 2;
const NO_ROOM: u8 = 3;

/// The state of the other side's offers, beside those that are pulled.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// Those of a list of which more is to come, and how many more.
    pub records: Vec<OfferRecord>,
    following: u32,
    /// There is no room for the list that is told.
    is_refused: bool,
    /// Ends that were not sent yet.
    pub untold: usize,
}

impl Listed {
    fn all(&self) -> usize {
        self.records.len() + self.untold
    }
}

/// Memory that the other side is to pull.
#[derive(Debug)]
pub(super) struct Offer {
    pub secret: u64,
    pub slice: Slice,
    pub access: SlotId,
    /// The destination of its bytes.
    key: RemoteKey,
    offset: u64,
    is_told: bool,
}

/// One that was not told yet, and how many of its list follow.
#[derive(Debug, Clone, Copy)]
struct Untold {
    number: u64,
    following: u32,
}

/// The offers of one link.
#[derive(Debug)]
pub(super) struct Offers {
    by_number: HashMap<u64, Offer>,
    /// Those that were not told yet, list behind list; some may be gone.
    untold: VecDeque<Untold>,
    /// Those that were told, and taken back since.
    withdrawn: HashSet<u64>,
    /// The number of offers that were told and are not over at the other side.
    told: usize,
}

impl Offers {
    pub fn new(hash: HashSeed) -> Offers {
        let (by_number, withdrawn) =
            (HashMap::with_hasher(hash.clone()), HashSet::with_hasher(hash));
        Offers { by_number, untold: VecDeque::new(), withdrawn, told: 0 }
    }

    pub fn get(&self, number: u64) -> Option<&Offer> {
        self.by_number.get(&number)
    }

    /// One of a list of which that many follow.
    fn push(&mut self, number: u64, following: u32, offer: Offer) {
        self.by_number.insert(number, offer);
        self.untold.push_back(Untold { number, following });
    }

    /// Admits the offers that are told next, all of one write; their number, 0 if none.
    fn admit(&mut self) -> usize {
        while let Some(first) = self.untold.front() {
            let count = first.following as usize + 1;
            if self.by_number.contains_key(&first.number) {
                let has_room = self.told + count <= TAKINGS_MAX;
                self.told += if has_room { count } else { 0 };
                return if has_room { count } else { 0 };
            }
            // One that was taken back before it was told is gone as a whole.
            self.untold.drain(..count);
        }
        0
    }

    /// One of those, which is told.
    fn tell(&mut self) -> Option<(Untold, &Offer)> {
        let next = self.untold.pop_front()?;
        let offer = self.by_number.get_mut(&next.number)?;
        offer.is_told = true;
        Some((next, offer))
    }

    /// Takes one back; whether the other side was told of it.
    pub fn withdraw(&mut self, number: u64) -> bool {
        let Some(offer) = self.by_number.remove(&number) else { return false };
        if offer.is_told {
            self.withdrawn.insert(number);
        }
        offer.is_told
    }

    /// The other side is done with an offer; the offer, unless it was taken back.
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
    /// Offers parts of our memory, that many, to places in a region of the other side.
    pub(super) fn offer(
        &mut self,
        id: SlotId,
        access: SlotId,
        key: RemoteKey,
        count: u32,
        parts: impl Iterator<Item = (u64, Slice)>,
    ) {
        let Some(state) = self.links.get_mut(id) else { return };
        let Some(owner) = self.accesses.get_mut(access) else { return };
        owner.left += count;
        for (following, (offset, slice)) in (0..count).rev().zip(parts) {
            let (number, secret) = (self.random.next_u64(), self.random.next_u64());
            owner.offers.push(number);
            let offer = Offer { secret, slice, access, key, offset, is_told: false };
            state.offers.push(number, following, offer);
        }
        self.tell_offers(id);
    }

    /// Tells of as many offers as the other side takes.
    fn tell_offers(&mut self, id: SlotId) {
        let mut left = 0;
        while let Some(state) = self.links.get_mut(id) {
            if left == 0 {
                left = state.offers.admit();
            }
            if left == 0 {
                break;
            }
            left -= 1;
            let Some((next, offer)) = state.offers.tell() else { continue };
            let record = OfferRecord {
                prefix: prefix_of(RecordKind::Offer, size_of::<OfferRecord>()),
                offer: next.number.into(),
                secret: offer.secret.into(),
                key_slot: offer.key.slot.to_u64().into(),
                key_secret: offer.key.secret.into(),
                offset: offer.offset.into(),
                total_bytes: offer.slice.len.into(),
                following: next.following.into(),
                reserved: 0.into(),
            };
            self.tell(id, record.as_bytes());
        }
    }

    /// The other side offers bytes for a region.
    pub(super) fn offered(&mut self, id: SlotId, record: &OfferRecord) {
        let Some(state) = self.links.get_mut(id) else { return };
        if state.stage == Stage::Closing {
            // Nobody takes it; it ends with the link.
            return;
        }
        let (offer, following) = (record.offer.get(), record.following.get());
        let is_next = match state.listed.following {
            0 => (following as usize) < REMOTE_SEGMENTS_MAX,
            awaited => following.checked_add(1) == Some(awaited),
        };
        if !is_next || state.takings.len() + state.listed.all() >= TAKINGS_MAX {
            return self.violated(id);
        }
        state.listed.following = following;
        let has_room = self.listed_all < LISTED_ALL || state.listed.records.len() < LISTED_ALONE;
        if !state.listed.is_refused && has_room {
            state.listed.records.push(*record);
            self.listed_all += 1;
        } else {
            self.take_over(id, offer, NO_ROOM);
            self.refuse_list(id);
        }
        if following == 0 {
            self.take_list(id);
        }
    }

    /// Says that what there is of a list is over: there is no room for it, and what follows is refused as well.
    fn refuse_list(&mut self, id: SlotId) {
        for record in self.take_listed(id) {
            self.take_over(id, record.offer.get(), NO_ROOM);
        }
        if let Some(state) = self.links.get_mut(id) {
            state.listed.is_refused = state.listed.following > 0;
        }
    }

    fn take_listed(&mut self, id: SlotId) -> Vec<OfferRecord> {
        let Some(state) = self.links.get_mut(id) else { return Vec::new() };
        let list = std::mem::take(&mut state.listed.records);
        self.listed_all -= list.len();
        list
    }

    /// All offers of a list are here.
    fn take_list(&mut self, id: SlotId) {
        // Reads of our own have the other half.
        let room = READINGS_MAX / 2;
        if self.links.get(id).is_some_and(|it| self.readings.len() + it.listed.records.len() > room)
        {
            return self.refuse_list(id);
        }
        let list = self.take_listed(id);
        if let Some(state) = self.links.get_mut(id) {
            state.listed.is_refused = false;
        }
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
                        self.take_over(id, offer, NO_ROOM);
                    }
                }
                Some(_) => self.take_over(id, offer, TAKEN),
                None => self.take_over(id, offer, BAD_KEY),
            }
        }
    }

    /// The place of an offer's bytes, if they may go there.
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
        let Some(state) = self.links.get_mut(id) else { return };
        state.listed.untold += 1;
        self.untold_all += 1;
        if state.listed.untold > UNTOLD_ALONE && self.untold_all > UNTOLD_ALL {
            // Somebody makes us answer and does not read.
            return self.violated(id);
        }
        self.tell(id, record.as_bytes());
    }

    /// Tells the peer to pull offers no further: a late piece of them shall not overwrite data that is written to their
    /// places next.
    pub(super) fn withdraw(&mut self, id: SlotId, offers: &[u64]) {
        let prefix = prefix_of(RecordKind::Withdrawn, size_of::<WithdrawnRecord>());
        for offer in offers {
            if self.links.get(id).is_some_and(|state| state.is_up()) {
                let record = WithdrawnRecord { prefix, offer: (*offer).into() };
                self.tell(id, record.as_bytes());
            }
        }
    }

    /// The other side has taken an offer back.
    pub(super) fn offer_withdrawn(&mut self, id: SlotId, offer: u64) {
        let taking = self.links.get(id).and_then(|state| state.takings.get(&offer).copied());
        // If not it is over, and that was told.
        if let Some(reading) = taking {
            self.end_taking(reading);
            self.take_over(id, offer, GIVEN_UP);
        }
    }

    /// An offer of ours is over.
    pub(super) fn offer_taken(&mut self, id: SlotId, record: &TakenRecord) {
        let Some(state) = self.links.get_mut(id) else { return };
        let number = record.offer.get();
        if let Some(offer) = state.offers.over(number) {
            state.serving.retain(|it| !it.source.offered || it.source.slot != number);
            let outcome = match record.status {
                TAKEN => Ok(()),
                NO_ROOM => Err(Fault::Busy),
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
