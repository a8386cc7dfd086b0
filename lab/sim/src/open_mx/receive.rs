//! Receiving: numbers put in order, messages matched with receives, pieces put together, large ones fetched.

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::Sequence;

use super::driver::{Body, Driver, Sequenced};
use super::library::{Key, Library};
use super::partner::{Place, after};
use super::pull::{Fetched, Wanted};
use super::send::{Ready, What};
use super::{Event, Kind, Request, Status};

/// A receive that nothing matched so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posting {
    pub request: Request,
    match_info: u64,
    mask: u64,
    room: u32,
}

/// A message, from its first packet on until it is with the user.
#[derive(Debug)]
pub(super) struct Incoming {
    partner: Key,
    match_info: u64,
    bytes: u32,
    content: Content,
    /// The receive that takes it; without one it is unexpected.
    taken_by: Option<Posting>,
}

#[derive(Debug)]
enum Content {
    /// With a bit for each fragment, and how many bytes came.
    Eager {
        data: Vec<u8>,
        fragments: u32,
        received: u32,
    },
    Large {
        region: u8,
        region_sequence: u8,
        region_offset: u16,
    },
}

/// A message that is fetched.
#[derive(Debug)]
pub(super) struct Pulling {
    partner: Key,
    request: Request,
    match_info: u64,
    /// Of the message, and how many of them are wanted.
    bytes: u32,
    wanted: u32,
    region: u8,
    region_sequence: u8,
    region_offset: u16,
}

impl Incoming {
    /// Begins a message with its first packet; `None` if the packet is no message.
    fn begin(partner: Key, body: Body) -> Option<Incoming> {
        let of = |match_info, bytes, content| Incoming {
            partner,
            match_info,
            bytes,
            content,
            taken_by: None,
        };
        Some(match body {
            Body::Notify { .. } => return None,
            Body::Whole { match_info, bytes: data } => {
                let received = data.len() as u32;
                of(match_info, received, Content::Eager { data, fragments: 1, received })
            }
            Body::Fragment { match_info, total_bytes, number, offset, bytes } => {
                let data = vec![0; total_bytes as usize];
                let content = Content::Eager { data, fragments: 0, received: 0 };
                let mut incoming = of(match_info, total_bytes, content);
                incoming.add(number, offset, &bytes);
                incoming
            }
            Body::Rendezvous {
                match_info,
                total_bytes,
                region,
                region_sequence,
                region_offset,
            } => {
                let content = Content::Large { region, region_sequence, region_offset };
                of(match_info, total_bytes, content)
            }
        })
    }

    fn is_complete(&self) -> bool {
        match &self.content {
            Content::Eager { received, .. } => *received >= self.bytes,
            Content::Large { .. } => true,
        }
    }

    /// Puts a piece where it belongs, once.
    fn add(&mut self, number: u8, offset: u32, bytes: &[u8]) {
        let Content::Eager { data, fragments, received } = &mut self.content else { return };
        let bit = 1u32.checked_shl(number.into()).unwrap_or(0);
        let begin = offset as usize;
        if *fragments & bit == 0
            && let Some(place) = data.get_mut(begin..begin + bytes.len())
        {
            place.copy_from_slice(bytes);
            *fragments |= bit;
            *received += bytes.len() as u32;
        }
    }
}

impl Library {
    /// Posts a receive: the oldest unexpected message that fits, or the row.
    pub fn receive(
        &mut self,
        match_info: u64,
        mask: u64,
        room: u32,
        driver: &mut Driver,
        now: Time,
    ) -> Request {
        let request = self.request();
        let posting = Posting { request, match_info, mask, room };
        let fits = |it: &Incoming| it.taken_by.is_none() && it.match_info & mask == match_info;
        let found = self.incoming.iter_mut().find(|(_, incoming)| fits(incoming));
        let Some((id, incoming)) = found else {
            self.posted.push_back(posting);
            return request;
        };
        let id = *id;
        incoming.taken_by = Some(posting);
        self.go_on(id, driver, now);
        request
    }

    /// Something with a number came.
    pub fn sequenced(&mut self, key: Key, packet: Sequenced, driver: &mut Driver, now: Time) {
        let Some(partner) = self.partners.get_mut(&key) else {
            self.counters.dropped += 1;
            return;
        };
        let place = partner.place(packet.sequence);
        if place == Place::Foreign || packet.acknowledged.bits() != partner.send_next.bits() {
            self.counters.obsolete += 1;
            return;
        }
        self.acknowledged(key, packet.acknowledged, driver);
        let Some(partner) = self.partners.get_mut(&key) else { return };
        match place {
            Place::Early => return partner.keep_early(packet),
            Place::Obsolete { last } => {
                partner.ack_now |= last;
                self.counters.obsolete += 1;
                return;
            }
            Place::Next | Place::Before | Place::Foreign => self.take(key, packet, driver, now),
        }
        while let Some(early) = self.partners.get_mut(&key).and_then(|it| it.take_early()) {
            self.take(key, early, driver, now);
        }
        if let Some(partner) = self.partners.get_mut(&key) {
            let early = std::mem::take(&mut partner.early);
            let waits = |it: &Sequenced| partner.place(it.sequence) == Place::Early;
            partner.early = early.into_iter().filter(waits).collect();
        }
    }

    /// Takes the next packet to be matched, or a fragment of a matched message.
    fn take(&mut self, key: Key, packet: Sequenced, driver: &mut Driver, now: Time) {
        let Sequenced { sequence, body, .. } = packet;
        let Some(partner) = self.partners.get_mut(&key) else { return };
        if partner.place(sequence) != Place::Next {
            return self.take_piece(key, sequence, body, driver, now);
        }
        partner.match_next = after(sequence, 1);
        if let Body::Notify { bytes, region, region_sequence } = body {
            partner.settle(now);
            return self.notified(key, bytes, region, region_sequence, driver);
        }
        let Some(mut incoming) = Incoming::begin(key, body) else { return };
        let id = self.next_incoming;
        self.next_incoming += 1;
        if !incoming.is_complete() {
            partner.partial.push_back((sequence, id));
        }
        partner.settle(now);
        let fits = |it: &Posting| incoming.match_info & it.mask == it.match_info;
        let position = self.posted.iter().position(fits);
        incoming.taken_by = position.and_then(|position| self.posted.remove(position));
        self.incoming.insert(id, incoming);
        self.go_on(id, driver, now);
    }

    /// A piece of a message that is matched, or a copy of something.
    fn take_piece(
        &mut self,
        key: Key,
        sequence: Sequence,
        body: Body,
        driver: &mut Driver,
        now: Time,
    ) {
        let Some(partner) = self.partners.get_mut(&key) else { return };
        let position = partner.partial.iter().position(|(partial, _)| *partial == sequence);
        let (Some(position), Body::Fragment { number, offset, bytes, .. }) = (position, body)
        else {
            self.counters.obsolete += 1;
            return;
        };
        let (_, id) = partner.partial[position];
        let Some(incoming) = self.incoming.get_mut(&id) else { return };
        incoming.add(number, offset, &bytes);
        if incoming.is_complete() {
            partner.partial.remove(position);
            partner.settle(now);
            self.go_on(id, driver, now);
        }
    }

    /// Gives a message to its receive where it has one and is complete; fetches it where it is large.
    fn go_on(&mut self, id: u64, driver: &mut Driver, now: Time) {
        let Some(incoming) = self.incoming.get(&id) else { return };
        let (true, Some(posting)) = (incoming.is_complete(), incoming.taken_by) else { return };
        let Some(incoming) = self.incoming.remove(&id) else { return };
        let Incoming { partner, match_info, bytes, content, .. } = incoming;
        let wanted = bytes.min(posting.room);
        match content {
            Content::Eager { mut data, .. } => {
                data.truncate(wanted as usize);
                self.events.push(Event {
                    request: posting.request,
                    kind: Kind::Receive,
                    status: if wanted < bytes { Status::Truncated } else { Status::Success },
                    peer: Library::address(partner, driver),
                    match_info,
                    bytes,
                    transferred: wanted,
                    data,
                });
            }
            Content::Large { region, region_sequence, region_offset } => {
                let request = posting.request;
                let pulling = Pulling {
                    partner,
                    request,
                    match_info,
                    bytes,
                    wanted,
                    region,
                    region_sequence,
                    region_offset,
                };
                self.pulling.insert(id, pulling);
                if wanted == 0 {
                    // The notify follows in the same round, behind everything that came with it.
                    driver.pulls.fetched.push_back(Fetched { tag: id, outcome: Ok(Vec::new()) });
                } else {
                    self.waiting.push_back(id);
                    self.pull_waiting(driver, now);
                }
            }
        }
    }

    /// Begins transfers as long as there are handles.
    pub fn pull_waiting(&mut self, driver: &mut Driver, now: Time) {
        while let Some(tag) = self.waiting.front().copied() {
            if let Some(pulling) = self.pulling.get(&tag)
                && let Some(partner) = self.partners.get(&pulling.partner)
            {
                let wanted = Wanted {
                    tag,
                    peer: pulling.partner.0,
                    endpoint: pulling.partner.1,
                    session: partner.back_session,
                    region: pulling.region,
                    region_sequence: pulling.region_sequence,
                    region_offset: pulling.region_offset,
                    bytes: pulling.wanted,
                };
                if !driver.pulls.begin(wanted, now) {
                    break;
                }
            }
            self.waiting.pop_front();
        }
        driver.send_pulls();
    }

    /// A transfer ended: the sender is told, and when that has a number the user.
    pub fn fetched(&mut self, fetched: Fetched, driver: &mut Driver, now: Time) {
        let Some(pulling) = self.pulling.remove(&fetched.tag) else { return };
        let (status, data) = match fetched.outcome {
            Ok(data) if pulling.wanted < pulling.bytes => (Status::Truncated, data),
            Ok(data) => (Status::Success, data),
            Err(status) => (status, Vec::new()),
        };
        let bytes = data.len() as u32;
        let event = Event {
            request: pulling.request,
            kind: Kind::Receive,
            status,
            peer: Library::address(pulling.partner, driver),
            match_info: pulling.match_info,
            bytes: pulling.bytes,
            transferred: bytes,
            data,
        };
        let (region, region_sequence) = (pulling.region, pulling.region_sequence);
        let what = What::Notify { bytes, region, region_sequence };
        self.post(pulling.partner, Ready { what, event: Some(event) }, driver, now);
    }

    /// Fails everything that comes from a partner, and drops what nobody wanted so far.
    pub fn stop_receiving(&mut self, key: Key, driver: &mut Driver) {
        let peer = Library::address(key, driver);
        let status = Status::EndpointUnreachable;
        let of = |(id, it): (&u64, &Pulling)| (it.partner == key).then_some(*id);
        let pulled: Vec<u64> = self.pulling.iter().filter_map(of).collect();
        for tag in pulled {
            driver.pulls.abort(tag);
            self.waiting.retain(|waiting| *waiting != tag);
            if let Some(pulling) = self.pulling.remove(&tag) {
                self.fail(pulling.request, Kind::Receive, status, peer);
            }
        }
        let of = |(id, it): (&u64, &Incoming)| (it.partner == key).then_some(*id);
        let incoming: Vec<u64> = self.incoming.iter().filter_map(of).collect();
        for id in incoming {
            if let Some(posting) = self.incoming.remove(&id).and_then(|it| it.taken_by) {
                self.fail(posting.request, Kind::Receive, status, peer);
            }
        }
    }
}
