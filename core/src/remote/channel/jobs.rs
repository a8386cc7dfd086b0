//! A peer's updates and atomics: judged, executed by the driver one after the other, and answered.
//!
//! A job is executed as soon as its bytes are here, before the driver does anything else with its rail: see
//! [`Core::next_job`]. A token is held until all operations that it follows are over.

use std::collections::VecDeque;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::UPDATE_BYTES_MAX;
use ropewalk_base::memory::{BufferId, Change, Element, Job, Operator, Places, Slice, Update};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey, Strided};
use ropewalk_wire::frame::{
    AtomicBody, COMPARE_SWAP, FETCH, MORE, Prefix, RECORDS, StridedBody, TELL, TOKEN, UpdateBody,
};

use super::answers::Answer;
use super::numbers::Known;
use super::puts::PutFrame;
use super::taken::{Effect, Held, Notice};
use super::whole::Whole;
use crate::api::*;
use crate::credit::{Charge, update_charges};
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};

/// A frame of a peer's update, judged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpdateFrame {
    pub region: SlotId,
    pub number: u64,
    /// Where the elements of this frame lie in the region, and how many they are.
    place: Place,
    count: u32,
    update: Update,
    /// Of the frame: `TELL`, `FETCH`, `MORE`.
    flags: u16,
}

impl UpdateFrame {
    fn fetches(&self) -> bool {
        self.flags & FETCH != 0
    }
}

/// Where elements lie in a region.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Without gaps, from this offset on.
    Flat(u64),
    /// In instances of a datatype: [`OneSided::strided`](super::OneSided::strided) has more.
    Strided,
    /// Where they say themselves.
    Records,
}

/// A frame with elements, as it says of itself.
#[derive(Debug, Clone, Copy)]
struct Asked {
    key: RemoteKey,
    number: u64,
    operator: u8,
    element: u8,
    flags: u16,
    count: u32,
    whole: Whole,
    /// Where among them are those of the frame, and how many there are.
    within: u32,
    total: u32,
}

impl Asked {
    fn fetches(&self) -> bool {
        self.flags & FETCH != 0
    }
}

/// Something that the driver is to execute.
#[derive(Debug)]
pub(crate) struct Ready {
    peer: PeerId,
    session: u32,
    number: u64,
    region: SlotId,
    job: Job,
    /// Staged elements.
    source: Slice,
    /// Bytes of the elements as they were, for the answer.
    result_bytes: u32,
    tells: bool,
    /// An atomic that fetches.
    fetches: bool,
    raises: bool,
    /// See [`Notice::is_refused`].
    is_refused: bool,
    /// The region's owner may want to know; `None`: another piece of the same operation follows.
    served: Option<Served>,
    /// It stores bytes of which a copy was verified apart: all of the source's buffer.
    stores: Option<Stored>,
}

/// Bytes that were verified before they went to their place, and what they are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stored {
    /// A frame of a put, with so many bytes.
    Put(PutFrame, u32),
    /// A put that came with the request for its lock.
    Locked { region: SlotId, cookie: u64 },
}

/// Jobs that may be executed, and the one that is.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    ready: VecDeque<Ready>,
    running: Option<Ready>,
}

/// A job for the driver.
#[derive(Debug)]
pub struct Task<'a> {
    pub job: &'a Job,
    /// The elements; nothing where it has none.
    pub source: Slice,
    /// Bytes of the buffer for the elements' former values; 0: nobody wants them.
    pub result_bytes: u32,
}

impl Core {
    /// Elements of a peer's arrive, to be combined with some of ours.
    pub(crate) fn arrive_update(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: UpdateBody,
    ) -> Placement {
        let asked = Asked {
            key: self.key_of(body.key_slot, body.key_secret),
            number: body.number.get(),
            operator: body.operator,
            element: body.element,
            flags: body.flags.get(),
            count: body.count.get(),
            whole: match body.flags.get() & RECORDS {
                0 => Whole::Flat(body.offset.get()),
                _ => Whole::Records,
            },
            within: body.within.get(),
            total: body.total.get(),
        };
        self.take_elements(link, id, prefix, &asked)
    }

    /// The same for elements in instances of a datatype.
    pub(crate) fn arrive_strided(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &StridedBody,
    ) -> Placement {
        let (layout, address) = (body.layout, body.address.get());
        let (instances, from) = (body.instances.get(), body.from.get());
        let count = body.count.get();
        let asked = Asked {
            key: self.key_of(body.key_slot, body.key_secret),
            number: body.number.get(),
            operator: body.operator,
            element: body.element,
            flags: body.flags.get(),
            count,
            whole: Whole::Strided { layout, address, instances, from },
            within: 0,
            total: count,
        };
        self.take_elements(link, id, prefix, &asked)
    }

    fn take_elements(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        asked: &Asked,
    ) -> Placement {
        let payload = prefix.payload_bytes.get();
        let Asked { number, count, within, total, flags, .. } = *asked;
        let Some(session) = self.peers.session_mut(id) else { return Placement::Drop };
        let one_sided = session.one_sided();
        let known = one_sided.taken.known(number);
        if known == Known::Beyond {
            return self.violation("an operation too far ahead of others");
        }
        let again = match self.config.plant {
            Plant::AtomicTwice => true,
            Plant::RecordsTwice => flags & RECORDS != 0,
            _ => false,
        };
        let is_given_up = known == Known::Done && !again;
        if let Whole::Strided { layout, .. } = asked.whole
            && one_sided.learned.get(layout).is_none()
            && !is_given_up
        {
            return self.violation("a layout that nobody told");
        }
        let update = update_of(asked.element, asked.operator);
        let takes = update.is_none_or(|it| it.operator() != Operator::Nothing);
        let fetches = asked.fetches();
        let inside = within.checked_add(count).is_some_and(|end| end <= total);
        let sent = update.map_or(u64::from(payload), |it| u64::from(count) * it.sent(1) as u64);
        let is_whole = u64::from(payload) == if takes { sent } else { 0 };
        if count == 0 || !inside || !is_whole || sent > u64::from(UPDATE_BYTES_MAX) {
            return self.violation("an update with other elements than it says");
        }
        let sent = sent as u32;
        let charges = update_charges(sent.into(), takes, fetches);
        if !charges.into_iter().flatten().all(|charge| self.charge(id, charge)) {
            return self.violation("more elements than there was credit for");
        }
        let session = prefix.session.get();
        let judged = match update.filter(|_| !is_given_up) {
            Some(update) => self.judge_update(id, update, asked),
            None => Err(Fault::Invalid),
        };
        let place = match judged {
            Ok((place, strided)) => {
                self.keep_strided(id, number, strided);
                place
            }
            Err(fault) => {
                charges.into_iter().flatten().for_each(|it| self.free_charge(id, session, it));
                self.operation_over(id, number, Err(fault), true);
                return Placement::Drop;
            }
        };
        let update = update.expect("an update of a known kind was judged");
        let region = asked.key.slot;
        let frame = UpdateFrame { region, number, place, count, update, flags };
        if takes {
            return self.place_into(
                link,
                Some(id),
                prefix,
                Slice::NONE,
                IncomingKind::Update(frame),
            );
        }
        self.update_ready(id, session, &frame, Slice::NONE);
        Placement::Drop
    }

    /// Whether a peer may do that, to all of it: where the elements of the frame lie.
    fn judge_update(
        &self,
        id: PeerId,
        update: Update,
        asked: &Asked,
    ) -> Result<(Place, Option<Strided>), Fault> {
        let extent = update.extent() as u64;
        let writes = update.operator() != Operator::Nothing;
        match asked.whole {
            Whole::Flat(offset) => {
                let len = u64::from(asked.total) * extent;
                self.check_key(id, asked.key, offset, len, writes).ok_or(Fault::BadKey)?;
                Ok((Place::Flat(offset + u64::from(asked.within) * extent), None))
            }
            Whole::Records => {
                let are_bytes = update.element() == Element::Byte && !asked.fetches();
                let stores = update.operator() == Operator::Replace && are_bytes;
                if !stores || asked.within != 0 || asked.count != asked.total {
                    return Err(Fault::Invalid);
                }
                self.check_key(id, asked.key, 0, 0, true).ok_or(Fault::BadKey)?;
                Ok((Place::Records, None))
            }
            Whole::Strided { layout, address, instances, from } => {
                let learned = self.peers.session(id).and_then(|it| it.one_sided.as_ref());
                let shape = learned.and_then(|it| it.learned.get(layout)).ok_or(Fault::Invalid)?;
                if writes && !shape.is_plainly_apart(instances) {
                    return Err(Fault::Invalid);
                }
                let strided = Strided { shape: shape.clone(), address, count: instances, from };
                let bytes = u64::from(asked.count) * extent;
                let range = strided.range(bytes).ok_or(Fault::BadKey)?;
                let len = range.end - range.start;
                self.check_key(id, asked.key, range.start, len, writes).ok_or(Fault::BadKey)?;
                Ok((Place::Strided, Some(strided)))
            }
        }
    }

    /// Keeps the place of elements until they are here.
    fn keep_strided(&mut self, id: PeerId, number: u64, strided: Option<Strided>) {
        if let (Some(session), Some(strided)) = (self.peers.session_mut(id), strided) {
            session.one_sided().strided.push((number, strided));
        }
    }

    fn take_strided(&mut self, id: PeerId, number: u64) -> Option<Strided> {
        let strided = &mut self.peers.session_mut(id)?.one_sided.as_mut()?.strided;
        let at = strided.iter().position(|kept| kept.0 == number)?;
        Some(strided.swap_remove(at).1)
    }

    /// The elements of an update are here.
    pub(crate) fn update_received(&mut self, incoming: &Incoming, frame: UpdateFrame) {
        let again = match self.config.plant {
            Plant::AtomicTwice => true,
            Plant::RecordsTwice => matches!(frame.place, Place::Records),
            _ => false,
        };
        let peer = incoming.peer.filter(|id| {
            let session = self.peers.session_mut(*id);
            // The peer may have given it up meanwhile.
            session
                .is_some_and(|it| again || it.one_sided().taken.known(frame.number) == Known::Open)
        });
        let is_there = self.regions.get(frame.region).is_some_and(|region| !region.closing);
        match peer {
            Some(id) if is_there => self.update_ready(id, incoming.session, &frame, incoming.slice),
            _ => {
                self.update_lost(incoming, frame);
                if let Some(id) = peer {
                    self.operation_over(id, frame.number, Err(Fault::BadKey), true);
                }
            }
        }
    }

    /// A job uses a region: its memory.
    fn retain_region(&mut self, slot: SlotId) -> Option<Slice> {
        let region = self.regions.get_mut(slot)?;
        region.retained += 1;
        Some(region.slice)
    }

    /// The elements of an update do not arrive, or come to nothing.
    pub(crate) fn update_lost(&mut self, incoming: &Incoming, frame: UpdateFrame) {
        if incoming.slice.buffer != Slice::NONE.buffer {
            self.outputs.push(Output::Release(incoming.slice.buffer));
        }
        if let Some(id) = incoming.peer {
            self.free_elements(id, incoming.session, &frame);
        }
    }

    /// Elements, and those of an answer, take no room any more.
    fn free_elements(&mut self, id: PeerId, session: u32, frame: &UpdateFrame) {
        if matches!(frame.place, Place::Strided) && self.peers.has_session(id, session) {
            self.take_strided(id, frame.number);
        }
        let sent = frame.update.sent(frame.count as usize) as u32;
        let takes = frame.update.operator() != Operator::Nothing;
        for charge in update_charges(sent.into(), takes, frame.fetches()).into_iter().flatten() {
            self.free_charge(id, session, charge);
        }
    }

    /// Where the elements of a frame lie in its region; `None` where nobody knows any more.
    fn places_of(&mut self, id: PeerId, frame: &UpdateFrame, region: Slice) -> Option<Places> {
        let bytes = u64::from(frame.count) * frame.update.extent() as u64;
        match frame.place {
            Place::Flat(offset) => Some(Places::One(region.part(offset, bytes))),
            Place::Records => Some(Places::One(region)),
            Place::Strided => {
                let Strided { shape, address, count, from } =
                    self.take_strided(id, frame.number)?;
                Some(Places::Shaped { region, address, shape, count, from, bytes })
            }
        }
    }

    fn update_ready(&mut self, peer: PeerId, session: u32, frame: &UpdateFrame, source: Slice) {
        let UpdateFrame { region, number, count, update, flags, .. } = *frame;
        let (tells, fetches) = (flags & TELL != 0, frame.fetches());
        let Some(slice) = self.retain_region(region) else { return };
        let Some(places) = self.places_of(peer, frame, slice) else {
            self.release_region(region);
            if source.buffer != Slice::NONE.buffer {
                self.outputs.push(Output::Release(source.buffer));
            }
            self.free_elements(peer, session, frame);
            return self.operation_over(peer, number, Err(Fault::Invalid), true);
        };
        let result_bytes = if fetches { update.sent(count as usize) as u32 } else { 0 };
        // Bytes that take the place of others are copied in long pieces.
        let stores = update.operator() == Operator::Replace && update.extent() == 1 && !fetches;
        let reads = update.operator() == Operator::Nothing && update.extent() == 1;
        let served = match (stores, reads) {
            (true, _) => Served::Put,
            (_, true) => Served::Get,
            _ => Served::Update,
        };
        let change = match (frame.place, stores) {
            (Place::Records, _) => Change::Records,
            (_, true) => Change::Store,
            (_, false) => Change::Update(update),
        };
        self.jobs.ready.push_back(Ready {
            peer,
            session,
            number,
            region,
            job: Job { change, places },
            source,
            result_bytes,
            tells,
            fetches: false,
            raises: false,
            is_refused: false,
            served: (flags & MORE == 0).then_some(served),
            stores: None,
        });
    }

    /// A peer changes one element. False: it breaks the protocol.
    pub(crate) fn arrive_atomic(&mut self, id: PeerId, body: &AtomicBody) -> bool {
        if body.flags.get() & TOKEN != 0 {
            return self.take_token(id, Held::Atomic(*body));
        }
        let Some(session) = self.peers.session_mut(id) else { return true };
        match session.one_sided().taken.known(body.number.get()) {
            Known::Open => self.atomic_ready(id, body),
            Known::Done if self.config.plant == Plant::AtomicTwice => self.atomic_ready(id, body),
            Known::Done => {}
            Known::Beyond => return false,
        }
        true
    }

    /// Something that takes effect after all that its sender did before. False: it breaks the protocol.
    pub(in crate::remote) fn take_token(&mut self, id: PeerId, token: Held) -> bool {
        let number = token.number();
        let is_early = self.config.plant == Plant::TokenEarly;
        let Some(session) = self.peers.session_mut(id) else { return true };
        let taken = &mut session.one_sided().taken;
        match taken.known(number) {
            Known::Open if number == taken.applied() + 1 || is_early => {
                self.let_token_go(id, token)
            }
            Known::Open => return taken.hold(token),
            Known::Done => {}
            Known::Beyond => return false,
        }
        true
    }

    fn atomic_ready(&mut self, id: PeerId, body: &AtomicBody) {
        let number = body.number.get();
        let change = match (body.operator, Element::numbered(body.element)) {
            (COMPARE_SWAP, Some(element)) if element.is_comparable() => Some((
                Change::Swap { element, expected: body.compare, desired: body.operand },
                true,
            )),
            _ => update_of(body.element, body.operator).filter(|it| it.sent(1) <= 8).map(|it| {
                let change = Change::One { update: it, operand: body.operand };
                (change, it.operator() != Operator::Nothing)
            }),
        };
        let Some((change, writes)) = change else {
            return self.operation_over(id, number, Err(Fault::Invalid), true);
        };
        let bytes = match change {
            Change::Swap { element, .. } => element.shape().extent,
            Change::One { update, .. } => update.extent(),
            Change::Store | Change::Records | Change::Update(_) => 0,
        };
        let key = self.key_of(body.key_slot, body.key_secret);
        let slice = self.check_key(id, key, body.offset.get(), bytes as u64, writes);
        let (Some(slice), Some(session)) = (slice, self.peers.session(id)) else {
            return self.operation_over(id, number, Err(Fault::BadKey), true);
        };
        let (session, flags) = (session.name(), body.flags.get());
        self.retain_region(key.slot);
        self.jobs.ready.push_back(Ready {
            peer: id,
            session,
            number,
            region: key.slot,
            job: Job { change, places: Places::One(slice) },
            source: Slice::NONE,
            result_bytes: 0,
            tells: flags & TELL != 0,
            fetches: flags & FETCH != 0,
            raises: flags & TOKEN != 0,
            is_refused: false,
            served: Some(Served::Update),
            stores: None,
        });
    }

    /// A put is at its place, and all before it: its word grows.
    fn notice_ready(&mut self, id: PeerId, notice: &Notice) {
        let Notice { region, number, tells, is_refused, effect } = *notice;
        let Effect::Growth { value, word, to } = effect else {
            return self.event_ready(id, notice);
        };
        let place = self.word_of(region, word);
        let (Some(word), Some(session)) = (place, self.peers.session(id)) else {
            return self.operation_over(id, number, Err(Fault::BadKey), true);
        };
        let session = session.name();
        let operator = if to { Operator::Max } else { Operator::Sum };
        let update = Update::new(Element::U64, operator).expect("integers take both");
        let change = Change::One { update, operand: value.to_le_bytes() };
        self.retain_region(region);
        self.jobs.ready.push_back(Ready {
            peer: id,
            session,
            number,
            region,
            job: Job { change, places: Places::One(word) },
            source: Slice::NONE,
            result_bytes: 0,
            tells,
            fetches: false,
            raises: true,
            is_refused,
            served: Some(Served::Put),
            stores: None,
        });
    }

    /// Tokens that were held take effect: all that they follow is over.
    pub(super) fn let_tokens_go(&mut self, id: PeerId) {
        while let Some(session) = self.peers.session_mut(id) {
            let Some(token) = session.one_sided().taken.next_token() else { return };
            self.let_token_go(id, token);
        }
    }

    fn let_token_go(&mut self, id: PeerId, token: Held) {
        match token {
            Held::Atomic(body) => self.atomic_ready(id, &body),
            Held::Release(body) => self.lock_released(id, &body),
            Held::Notice(notice) => self.notice_ready(id, &notice),
        }
    }

    /// Whether there is a job to execute.
    #[inline]
    pub fn has_jobs(&self) -> bool {
        !self.jobs.ready.is_empty()
    }

    /// A job that may be executed now. The driver does so at once, and tells the outcome by [`Core::job_done`] before
    /// anything else. It asks after each placement and each payload that has come to its place.
    pub fn next_job(&mut self) -> Option<Task<'_>> {
        let ready = self.jobs.ready.pop_front()?;
        let Ready { job, source, result_bytes, .. } = self.jobs.running.insert(ready);
        Some(Task { job, source: *source, result_bytes: *result_bytes })
    }

    /// The job was executed, or could not be. `outcome` has the element before it; `result` is a buffer with all of them.
    pub fn job_done(&mut self, outcome: Result<[u8; 8], Fault>, result: Option<BufferId>) {
        let Some(mut done) = self.jobs.running.take() else { return };
        if let Some(stored) = done.stores.take() {
            return self.stored(&done, stored, outcome);
        }
        let Ready { peer, session, number, region, source, result_bytes, served, .. } = done;
        if let (Ok(_), Some(served)) = (outcome, served) {
            self.note_served(region, served);
        }
        let takes = source.buffer != Slice::NONE.buffer;
        if takes {
            self.outputs.push(Output::Release(source.buffer));
        }
        self.release_region(region);
        if let Change::Update(_) | Change::Store | Change::Records = done.job.change {
            for charge in update_charges(source.len, takes, false).into_iter().flatten() {
                self.free_charge(peer, session, charge);
            }
        }
        let outcome = match (outcome, result) {
            (Ok(_), None) if result_bytes > 0 => Err(Fault::Busy),
            (outcome, _) => outcome,
        };
        if let (Ok(_), Some(buffer)) = (outcome, result) {
            self.counters.updates_served += 1;
            return self.answer_elements(
                peer,
                session,
                Answer { number, buffer, bytes: result_bytes },
            );
        }
        self.outputs.extend_releases(result);
        if result_bytes > 0 {
            self.free_charge(peer, session, Charge::Update { payload_bytes: result_bytes.into() });
        }
        match outcome {
            Ok(value) => {
                self.counters.updates_served += 1;
                if done.raises {
                    self.outputs.push(Output::Raised);
                }
                match done.fetches {
                    true => self.answer_value(peer, number, value),
                    false if done.is_refused => self.refuse_gone(peer, number),
                    false => self.operation_over(peer, number, Ok(()), done.tells),
                }
            }
            Err(fault) => self.operation_over(peer, number, Err(fault), true),
        }
    }

    /// Bytes are to be stored from a copy that is whole. Their place may have gone away: so it is a job.
    pub(crate) fn store_later(&mut self, place: &Incoming, stored: Stored, copy: Slice) {
        let Incoming { peer: Some(peer), session, slice: to, .. } = *place else {
            self.release_copy(copy);
            return match stored {
                Stored::Put(put, bytes) => self.put_received(None, put, bytes),
                Stored::Locked { region, cookie } => {
                    let lost = Err(Fault::PeerReset);
                    self.locked_put_over(None, place.session, (region, cookie), lost);
                }
            };
        };
        let (region, number) = match stored {
            Stored::Put(put, _) => (put.region, put.number),
            Stored::Locked { region, .. } => (region, 0),
        };
        self.jobs.ready.push_back(Ready {
            peer,
            session,
            number,
            region,
            job: Job { change: Change::Store, places: Places::One(to) },
            source: copy.part(0, to.len),
            result_bytes: 0,
            tells: false,
            fetches: false,
            raises: false,
            is_refused: false,
            served: None,
            stores: Some(stored),
        });
    }

    /// A session ended: bytes of its puts under a lock that are here, and not stored yet, are not stored.
    pub(in crate::remote) fn drop_locked_puts(&mut self, id: PeerId, session: u32) {
        let is_put =
            |it: &Ready| it.session == session && matches!(it.stores, Some(Stored::Locked { .. }));
        if !self.jobs.ready.iter().any(is_put) {
            return;
        }
        let ready = std::mem::take(&mut self.jobs.ready);
        let is_its = |it: &Ready| is_put(it) && self.resolve(it.peer) == id;
        let (dropped, kept): (Vec<Ready>, Vec<Ready>) = ready.into_iter().partition(is_its);
        self.jobs.ready = kept.into();
        for put in dropped {
            self.release_copy(put.source);
            self.release_region(put.region);
        }
    }

    fn stored(&mut self, done: &Ready, stored: Stored, outcome: Result<[u8; 8], Fault>) {
        self.release_copy(done.source);
        match (stored, outcome) {
            (Stored::Put(put, bytes), Ok(_)) => self.put_received(Some(done.peer), put, bytes),
            (Stored::Put(put, _), Err(_)) => {
                self.put_unplaced(done.peer, put);
                self.release_region(put.region);
            }
            (Stored::Locked { region, cookie }, outcome) => {
                let outcome = outcome.map(drop);
                self.locked_put_over(Some(done.peer), done.session, (region, cookie), outcome);
            }
        }
    }
}

fn update_of(element: u8, operator: u8) -> Option<Update> {
    Update::new(Element::numbered(element)?, Operator::numbered(operator)?)
}
