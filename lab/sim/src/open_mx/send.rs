//! Sending: messages small and large, unacknowledged messages and their resends, and acknowledgements.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{
    Ack, Fragment, Message, Mode, Notify, Packet, Rendezvous, SESSION_UNKNOWN, SMALL_BYTES_MAX,
    Sequence, TINY_BYTES_MAX,
};

use super::driver::Driver;
use super::library::{End, Key, Library};
use super::partner::{Partner, after};
use super::{Address, Event, Kind, REGIONS_SENDING, RESEND_AFTER, Request, Status, ZOMBIES_MAX};

/// Something that gets a number.
#[derive(Debug)]
pub(super) enum What {
    Eager { match_info: u64, bytes: Vec<u8> },
    Rendezvous { match_info: u64, total_bytes: u32, region: u8, region_sequence: u8 },
    Notify { bytes: u32, region: u8, region_sequence: u8 },
}

/// ... and waits for it; with the event that is reported of it.
#[derive(Debug)]
pub(super) struct Ready {
    pub what: What,
    pub event: Option<Event>,
}

/// ... and has it.
#[derive(Debug)]
pub(super) struct Posted {
    pub sequence: Sequence,
    what: What,
    session: u32,
    /// The event that is reported on acknowledgement.
    event: Option<Event>,
    /// It was reported before that.
    zombie: bool,
    pub sent: Time,
    resends: u32,
}

/// A large message.
#[derive(Debug)]
pub(super) struct Large {
    partner: Key,
    region_sequence: u8,
    request: Request,
    match_info: u64,
    bytes: u32,
    acked: bool,
    notified: Option<u32>,
}

/// A message that waits for a region, or behind one that does.
#[derive(Debug)]
pub(super) struct Starved {
    partner: Key,
    event: Event,
    bytes: Vec<u8>,
    synchronous: bool,
}

impl Library {
    pub fn send(
        &mut self,
        to: Address,
        match_info: u64,
        bytes: Vec<u8>,
        synchronous: bool,
        driver: &mut Driver,
        now: Time,
    ) -> Request {
        let request = self.request();
        let known = driver.index_of(to.station).map(|index| (index, to.endpoint)).filter(|key| {
            let partner = self.partners.get(key);
            partner.is_some_and(|partner| partner.true_session != SESSION_UNKNOWN)
        });
        let Some(partner) = known else {
            self.fail(request, Kind::Send, Status::EndpointUnreachable, to);
            return request;
        };
        let len = bytes.len() as u32;
        let event = Event {
            request,
            kind: Kind::Send,
            status: Status::Success,
            peer: to,
            match_info,
            bytes: len,
            transferred: len,
            data: Vec::new(),
        };
        self.starved.push_back(Starved { partner, event, bytes, synchronous });
        self.send_starved(driver, now);
        request
    }

    /// Those that wait for regions go in their order, until one must wait on.
    fn send_starved(&mut self, driver: &mut Driver, now: Time) {
        while let Some(first) = self.starved.front() {
            let most = self.rendezvous_bytes.min(self.dialect.medium_bytes_max() as usize);
            let is_large = first.synchronous || first.bytes.len() > most;
            if is_large && self.large.len() >= REGIONS_SENDING {
                return;
            }
            let Some(Starved { partner, event, bytes, .. }) = self.starved.pop_front() else {
                return;
            };
            let match_info = event.match_info;
            if !is_large {
                let ready = Ready { what: What::Eager { match_info, bytes }, event: Some(event) };
                self.post(partner, ready, driver, now);
                continue;
            }
            let total_bytes = event.bytes;
            let free = driver.register(bytes);
            let (region, region_sequence) = free.expect("there are more regions than sends take");
            let large = Large {
                partner,
                region_sequence,
                request: event.request,
                match_info,
                bytes: total_bytes,
                acked: false,
                notified: None,
            };
            self.large.insert(region, large);
            let what = What::Rendezvous { match_info, total_bytes, region, region_sequence };
            self.post(partner, Ready { what, event: None }, driver, now);
        }
    }

    /// Gives something a number and sends it, or lets it wait for one.
    pub fn post(&mut self, key: Key, ready: Ready, driver: &mut Driver, now: Time) {
        let Some(partner) = self.partners.get_mut(&key) else {
            self.events.extend(ready.event);
            return;
        };
        if partner.is_throttled() || !partner.throttled.is_empty() {
            partner.throttled.push_back(ready);
        } else {
            self.post_now(key, ready, driver, now);
        }
    }

    fn post_now(&mut self, key: Key, ready: Ready, driver: &mut Driver, now: Time) {
        let Some(partner) = self.partners.get_mut(&key) else { return };
        let sequence = partner.send_next;
        partner.send_next = after(sequence, 1);
        let is_notify = matches!(ready.what, What::Notify { .. });
        let session = if is_notify { partner.back_session } else { partner.true_session };
        let Ready { what, mut event } = ready;
        let zombie = !is_notify && event.is_some() && self.zombies < ZOMBIES_MAX;
        self.zombies += u32::from(zombie);
        let early = if zombie || is_notify { event.take() } else { None };
        let posted = Posted { sequence, what, session, event, zombie, sent: now, resends: 0 };
        partner.unacked.push_back(posted);
        let last = partner.unacked.len() - 1;
        self.emit(key, last, driver);
        self.events.extend(early);
    }

    /// Sends one of those that are not acknowledged, with the newest acknowledgement of ours.
    fn emit(&mut self, key: Key, position: usize, driver: &mut Driver) {
        let Some(partner) = self.partners.get_mut(&key) else { return };
        let acknowledged = partner.acknowledges();
        let Some(posted) = partner.unacked.get(position) else { return };
        let (to, from) = (key.1, self.endpoint);
        let Posted { sequence, session, .. } = *posted;
        let message =
            |match_info: u64| Message { to, from, session, sequence, acknowledged, match_info };
        match &posted.what {
            What::Eager { match_info, bytes } if bytes.len() <= TINY_BYTES_MAX => {
                driver.transmit(key.0, &Packet::Tiny(message(*match_info), bytes));
            }
            What::Eager { match_info, bytes } if bytes.len() <= SMALL_BYTES_MAX => {
                driver.transmit(key.0, &Packet::Small(message(*match_info), bytes));
            }
            What::Eager { match_info, bytes } => {
                let piece_bytes = self.dialect.fragment_bytes();
                for (number, piece) in (0u8..).zip(bytes.chunks(piece_bytes as usize)) {
                    let fragment = Fragment {
                        message: message(*match_info),
                        total_bytes: bytes.len() as u32,
                        fragment: number,
                        offset: u32::from(number) * piece_bytes,
                    };
                    driver.transmit(key.0, &Packet::Medium(fragment, piece));
                }
            }
            What::Rendezvous { match_info, total_bytes, region, region_sequence } => {
                let rendezvous = Rendezvous {
                    message: message(*match_info),
                    total_bytes: *total_bytes,
                    region: *region,
                    region_sequence: *region_sequence,
                    region_offset: 0,
                };
                driver.transmit(key.0, &Packet::Rendezvous(rendezvous));
            }
            What::Notify { bytes, region, region_sequence } => {
                let (bytes, region, region_sequence) = (*bytes, *region, *region_sequence);
                let notify = Notify {
                    to,
                    from,
                    session,
                    sequence,
                    acknowledged,
                    bytes,
                    region,
                    region_sequence,
                };
                driver.transmit(key.0, &Packet::Notify(notify));
                // Old hosts with native MX do not read the acknowledgement in it.
                partner.ack_now = self.dialect.mode() == Mode::Compatible;
            }
        }
    }

    /// Everything before a number arrived at the partner.
    pub fn acknowledged(&mut self, key: Key, ack: Sequence, driver: &mut Driver) {
        let Some(partner) = self.partners.get_mut(&key) else { return };
        let news = ack.ahead_of(partner.send_acked);
        if ack.bits() != partner.send_next.bits() || news == 0 || news > partner.outstanding() {
            return;
        }
        partner.send_acked = ack;
        let is_done = |it: &Posted| (1..=1 << 13).contains(&ack.ahead_of(it.sequence));
        let (done, rest): (Vec<Posted>, Vec<Posted>) = partner.unacked.drain(..).partition(is_done);
        partner.unacked = rest.into();
        for posted in done {
            self.zombies -= u32::from(posted.zombie);
            self.events.extend(posted.event);
            if let What::Rendezvous { region, region_sequence, .. } = posted.what {
                if let Some(large) = self.large.get_mut(&region) {
                    large.acked |= large.region_sequence == region_sequence;
                }
                self.finish_large(region, driver);
            }
        }
    }

    /// The receiver of a large message has taken what it wanted.
    pub fn notified(
        &mut self,
        key: Key,
        bytes: u32,
        region: u8,
        sequence: u8,
        driver: &mut Driver,
    ) {
        let named = |it: &&mut Large| it.partner == key && it.region_sequence == sequence;
        match self.large.get_mut(&region).filter(named) {
            Some(large) if large.notified.is_none() => {
                large.notified = Some(bytes);
                self.finish_large(region, driver);
            }
            // It was told before.
            _ => self.counters.obsolete += 1,
        }
    }

    fn finish_large(&mut self, region: u8, driver: &mut Driver) {
        let over = |it: &Large| it.notified.filter(|_| it.acked);
        if let Some(bytes) = self.large.get(&region).and_then(over) {
            self.end_large(region, Ok(bytes), driver);
        }
    }

    fn end_large(&mut self, region: u8, outcome: Result<u32, Status>, driver: &mut Driver) {
        let Some(large) = self.large.remove(&region) else { return };
        driver.deregister(region);
        let status = match outcome {
            Ok(bytes) if bytes < large.bytes => Status::Truncated,
            Ok(_) => Status::Success,
            Err(status) => status,
        };
        self.events.push(Event {
            request: large.request,
            kind: Kind::Send,
            status,
            peer: Library::address(large.partner, driver),
            match_info: large.match_info,
            bytes: large.bytes,
            transferred: outcome.unwrap_or(0).min(large.bytes),
            data: Vec::new(),
        });
    }

    /// A message was refused.
    pub fn refused(
        &mut self,
        key: Key,
        posted: Option<Posted>,
        status: Status,
        driver: &mut Driver,
    ) {
        let Some(posted) = posted else { return };
        self.zombies -= u32::from(posted.zombie);
        if let Some(event) = posted.event {
            self.events.push(Event { status, transferred: 0, ..event });
        }
        if let What::Rendezvous { region, region_sequence, .. } = posted.what {
            let mine = |it: &&Large| it.partner == key && it.region_sequence == region_sequence;
            if self.large.get(&region).filter(mine).is_some() {
                self.end_large(region, Err(status), driver);
            }
        }
    }

    /// Sends what is not acknowledged again, and gives up those who never answer.
    pub fn resend(&mut self, driver: &mut Driver, now: Time) {
        let keys: Vec<Key> = self.partners.keys().copied().collect();
        for key in keys {
            self.ask_again(key, driver, now);
            let Some(partner) = self.partners.get_mut(&key) else { continue };
            let mut due = Vec::new();
            let mut gone = false;
            for (position, posted) in partner.unacked.iter_mut().enumerate() {
                if posted.sent + RESEND_AFTER <= now {
                    (posted.sent, posted.resends) = (now, posted.resends + 1);
                    gone |= posted.resends > self.resends_max;
                    due.push(position);
                }
            }
            if gone {
                self.clean_up(key, End::GivenUp, driver);
                continue;
            }
            for position in due {
                self.counters.resent += 1;
                self.emit(key, position, driver);
            }
        }
    }

    /// Sends what waited for numbers and regions.
    pub fn send_delayed(&mut self, driver: &mut Driver, now: Time) {
        let keys: Vec<Key> = self.partners.keys().copied().collect();
        for key in keys {
            while let Some(partner) = self.partners.get_mut(&key)
                && !partner.is_throttled()
                && let Some(ready) = partner.throttled.pop_front()
            {
                self.post_now(key, ready, driver, now);
            }
        }
        self.send_starved(driver, now);
    }

    /// Acknowledges what nothing else has acknowledged in time.
    pub fn send_acks(&mut self, driver: &mut Driver, now: Time) {
        let due = |(key, partner): (&Key, &Partner)| (partner.ack_at() <= now).then_some(*key);
        let keys: Vec<Key> = self.partners.iter().filter_map(due).collect();
        for key in keys {
            self.send_ack(key, driver);
        }
    }

    /// All that is owed, at the end.
    pub fn acknowledge_all(&mut self, driver: &mut Driver) {
        self.send_acks(driver, Time::NEVER - Duration::from_nanos(1));
    }

    fn send_ack(&mut self, key: Key, driver: &mut Driver) {
        let Some(partner) = self.partners.get_mut(&key) else { return };
        let acknowledged = partner.acknowledges();
        partner.ack_sent = partner.ack_sent.wrapping_add(1);
        let ack = Ack {
            to: key.1,
            from: self.endpoint,
            session: partner.back_session,
            acknowledged,
            number: partner.ack_sent,
        };
        self.counters.acks += 1;
        driver.transmit(key.0, &Packet::Ack(ack));
    }

    /// Fails everything that goes to a partner.
    pub fn stop_sending(&mut self, key: Key, driver: &mut Driver) {
        let status = Status::EndpointUnreachable;
        let Some(partner) = self.partners.get_mut(&key) else { return };
        let posted = std::mem::take(&mut partner.unacked);
        let throttled = std::mem::take(&mut partner.throttled);
        for posted in posted {
            self.refused(key, Some(posted), status, driver);
        }
        let failed = |event: Event| Event { status, transferred: 0, ..event };
        for ready in throttled {
            // The event of an unsent notify keeps its status: the transfer of the data has ended.
            let is_notify = matches!(ready.what, What::Notify { .. });
            let event = ready.event.map(|event| if is_notify { event } else { failed(event) });
            self.events.extend(event);
        }
        let (gone, rest): (Vec<Starved>, Vec<Starved>) =
            self.starved.drain(..).partition(|starved| starved.partner == key);
        self.starved = rest.into();
        self.events.extend(gone.into_iter().map(|starved| failed(starved.event)));
        let of = |(region, large): (&u8, &Large)| (large.partner == key).then_some(*region);
        let regions: Vec<u8> = self.large.iter().filter_map(of).collect();
        for region in regions {
            self.end_large(region, Err(status), driver);
        }
    }
}
