//! The half of Open-MX that runs in the process: partners, requests, and the round of progress that looks at
//! everything in the order that Open-MX does.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{Dialect, SESSION_UNKNOWN, Station};

use super::driver::{Arrival, Driver, News};
use super::partner::Partner;
use super::receive::{Incoming, Posting, Pulling};
use super::send::{Large, Starved};
use super::{
    Address, CONNECT_AFTER, Counters, Event, HostConfig, Kind, RESEND_AFTER, Request, Status,
};

/// A partner: the index of its host, and its endpoint.
pub(super) type Key = (u16, u8);

/// Why a partner loses everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Restarted,
    GivenUp,
    Disconnected,
}

/// See the module. The fields of a part are described there.
#[derive(Debug)]
pub(super) struct Library {
    pub endpoint: u8,
    pub session: u32,
    pub key: u32,
    pub dialect: Dialect,
    pub rendezvous_bytes: usize,
    pub resends_max: u32,
    pub partners: BTreeMap<Key, Partner>,
    pub events: Vec<Event>,
    pub counters: Counters,
    pub next_request: u64,
    // Sending.
    pub large: BTreeMap<u8, Large>,
    pub starved: VecDeque<Starved>,
    pub zombies: u32,
    // Receiving.
    pub posted: VecDeque<Posting>,
    pub incoming: BTreeMap<u64, Incoming>,
    pub next_incoming: u64,
    pub pulling: BTreeMap<u64, Pulling>,
    /// Transfers that wait for a handle.
    pub waiting: VecDeque<u64>,
}

impl Library {
    pub fn new(config: &HostConfig) -> Library {
        Library {
            endpoint: config.endpoint,
            session: config.session,
            key: config.key,
            dialect: config.dialect,
            rendezvous_bytes: config.rendezvous_bytes,
            resends_max: config.resends_max,
            partners: BTreeMap::new(),
            events: Vec::new(),
            counters: Counters::default(),
            next_request: 1,
            large: BTreeMap::new(),
            starved: VecDeque::new(),
            zombies: 0,
            posted: VecDeque::new(),
            incoming: BTreeMap::new(),
            next_incoming: 1,
            pulling: BTreeMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// A round of progress.
    pub fn round(&mut self, driver: &mut Driver, now: Time) {
        for arrival in std::mem::take(&mut driver.ring) {
            self.arrived(arrival, driver, now);
        }
        while let Some(fetched) = driver.pulls.fetched.pop_front() {
            self.fetched(fetched, driver, now);
        }
        self.resend(driver, now);
        self.send_delayed(driver, now);
        self.pull_waiting(driver, now);
        self.send_acks(driver, now);
    }

    /// When a round has something to do that no packet brings.
    pub fn deadline(&self, now: Time) -> Time {
        let of = |partner: &Partner| {
            let messages = partner.unacked.iter().map(|posted| posted.sent + RESEND_AFTER);
            let connects = partner.connects.iter().map(|connect| connect.sent + CONNECT_AFTER);
            let ack = partner.ack_at().max(now);
            messages.chain(connects).chain([ack]).min().unwrap_or(Time::NEVER)
        };
        self.partners.values().map(of).min().unwrap_or(Time::NEVER)
    }

    pub fn request(&mut self) -> Request {
        self.next_request += 1;
        Request(self.next_request - 1)
    }

    /// Reports the end of something that moved no bytes.
    pub fn fail(&mut self, request: Request, kind: Kind, status: Status, peer: Address) {
        self.events.push(Event {
            request,
            kind,
            status,
            peer,
            match_info: 0,
            bytes: 0,
            transferred: 0,
            data: Vec::new(),
        });
    }

    pub fn address(key: Key, driver: &Driver) -> Address {
        // A partner is only made of a peer that the table has.
        let station = driver.station_of(key.0).unwrap_or(Station([0; 6]));
        Address { station, endpoint: key.1 }
    }

    fn arrived(&mut self, arrival: Arrival, driver: &mut Driver, now: Time) {
        let key = (arrival.peer, arrival.endpoint);
        match arrival.what {
            News::Sequenced(packet) => self.sequenced(key, packet, driver, now),
            News::Ack(ack) => {
                let Some(partner) = self.partners.get_mut(&key) else {
                    self.counters.dropped += 1;
                    return;
                };
                if ack.number > partner.ack_seen {
                    partner.ack_seen = ack.number;
                    self.acknowledged(key, ack.acknowledged, driver);
                }
            }
            News::Connect(asked) => self.asked(key, asked, driver),
            News::ConnectReply(reply) => self.answered(key, reply, driver),
            News::Nack(reason, sequence) => self.nacked(key, reason, sequence, driver),
        }
    }

    /// Everything that is under way with a partner ends.
    pub fn clean_up(&mut self, key: Key, end: End, driver: &mut Driver) {
        let peer = Library::address(key, driver);
        self.stop_sending(key, driver);
        self.stop_receiving(key, driver);
        let Some(partner) = self.partners.get_mut(&key) else { return };
        partner.reset_after(end);
        let connects = match end {
            End::Restarted => VecDeque::new(),
            End::GivenUp | End::Disconnected => std::mem::take(&mut partner.connects),
        };
        for connect in connects {
            self.fail(connect.request, Kind::Connect, Status::EndpointUnreachable, peer);
        }
    }

    /// Forgets a partner.
    pub fn disconnect(&mut self, from: Address, driver: &mut Driver) {
        if let Some(index) = driver.index_of(from.station) {
            self.clean_up((index, from.endpoint), End::Disconnected, driver);
            self.partners.remove(&(index, from.endpoint));
        }
    }

    /// Takes a request back that nothing has happened to.
    pub fn cancel(&mut self, request: Request) -> bool {
        let receives = self.posted.len();
        self.posted.retain(|posting| posting.request != request);
        let mut cancelled = self.posted.len() < receives;
        for partner in self.partners.values_mut() {
            let connects = partner.connects.len();
            partner.connects.retain(|connect| connect.request != request);
            cancelled |= partner.connects.len() < connects;
        }
        cancelled
    }
}

impl Partner {
    fn reset_after(&mut self, end: End) {
        self.true_session = SESSION_UNKNOWN;
        self.back_session = SESSION_UNKNOWN;
        self.ack_seen = 0;
        self.early.clear();
        self.partial.clear();
        // Matched messages are no longer acknowledged to the partner.
        self.acknowledges();
        self.fragment_next = self.match_next;
        if end == End::GivenUp {
            self.advance_bits();
        }
    }
}
