//! Connects: asking, answering, and the sessions and numbers that come of it.

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{Connect, ConnectReply, Nack, Packet, SESSION_UNKNOWN, Sequence};

use super::driver::{Driver, status_of};
use super::library::{End, Key, Library};
use super::partner::{Connecting, Partner};
use super::{Address, CONNECT_AFTER, Event, Kind, Request, Status};

/// The status of a connect reply when the key is wrong.
const STATUS_BAD_KEY: u8 = 11;

impl Library {
    pub fn connect(&mut self, to: Address, key: u32, driver: &mut Driver, now: Time) -> Request {
        let request = self.request();
        let Some(index) = driver.index_of(to.station) else {
            self.fail(request, Kind::Connect, Status::EndpointUnknown, to);
            return request;
        };
        let name = (index, to.endpoint);
        let partner = self.partners.entry(name).or_insert_with(Partner::new);
        let number = partner.connect_next;
        partner.connect_next = number.wrapping_add(1);
        partner.connects.push_back(Connecting { request, number, key, sent: now, resends: 0 });
        self.ask(name, number, key, driver);
        request
    }

    fn ask(&mut self, name: Key, number: u8, key: u32, driver: &mut Driver) {
        let Some(partner) = self.partners.get(&name) else { return };
        let (index, endpoint) = name;
        let connect = Connect {
            to: endpoint,
            from: self.endpoint,
            index,
            session: self.session,
            key,
            receive_next: partner.match_next,
            connect: number,
        };
        driver.transmit(index, &Packet::Connect(connect));
    }

    /// Sends connects again; those that went too often end.
    pub fn ask_again(&mut self, name: Key, driver: &mut Driver, now: Time) {
        let Some(partner) = self.partners.get_mut(&name) else { return };
        let (mut again, mut over) = (Vec::new(), Vec::new());
        let resends_max = self.resends_max;
        partner.connects.retain_mut(|connect| {
            if connect.sent + CONNECT_AFTER > now {
                return true;
            }
            (connect.sent, connect.resends) = (now, connect.resends + 1);
            if connect.resends > resends_max {
                over.push(connect.request);
                return false;
            }
            again.push((connect.number, connect.key));
            true
        });
        let peer = Library::address(name, driver);
        for request in over {
            self.fail(request, Kind::Connect, Status::Timeout, peer);
        }
        for (number, key) in again {
            self.counters.resent += 1;
            self.ask(name, number, key, driver);
        }
    }

    /// A peer connects to us. The connect is always answered, and believed also if the key is wrong.
    pub fn asked(&mut self, name: Key, asked: Connect, driver: &mut Driver) {
        let partner = self.partners.entry(name).or_insert_with(Partner::new);
        if partner.back_session != asked.session {
            if partner.back_session != SESSION_UNKNOWN {
                self.clean_up(name, End::Restarted, driver);
            }
            // Also if the session was only unset: packets received so far are expected once more.
            let Some(partner) = self.partners.get_mut(&name) else { return };
            partner.reset_receiving();
        }
        let Some(partner) = self.partners.get_mut(&name) else { return };
        if partner.true_session != asked.session {
            (partner.send_next, partner.send_acked) = (asked.receive_next, asked.receive_next);
            partner.ack_seen = 0;
        }
        (partner.true_session, partner.back_session) = (asked.session, asked.session);
        let (index, to) = name;
        let reply = ConnectReply {
            to,
            from: self.endpoint,
            index,
            asker: asked.session,
            session: self.session,
            receive_next: partner.match_next,
            connect: asked.connect,
            status: if asked.key == self.key { 0 } else { STATUS_BAD_KEY },
        };
        driver.transmit(index, &Packet::ConnectReply(reply));
    }

    /// Our connect is answered. Only the session for messages is set; the other waits for their connect.
    pub fn answered(&mut self, name: Key, reply: ConnectReply, driver: &mut Driver) {
        let Some(partner) = self.partners.get_mut(&name) else { return };
        let number = reply.connect;
        let position = partner.connects.iter().position(|connect| connect.number == number);
        let Some(position) = position.filter(|_| reply.asker == self.session) else {
            self.counters.dropped += 1;
            return;
        };
        let Some(connect) = partner.connects.remove(position) else { return };
        let peer = Library::address(name, driver);
        if reply.status != 0 {
            self.fail(connect.request, Kind::Connect, Status::BadKey, peer);
            return;
        }
        if ![SESSION_UNKNOWN, reply.session].contains(&partner.back_session) {
            self.clean_up(name, End::Restarted, driver);
        }
        let Some(partner) = self.partners.get_mut(&name) else { return };
        if partner.true_session != reply.session {
            (partner.send_next, partner.send_acked) = (reply.receive_next, reply.receive_next);
            partner.true_session = reply.session;
            partner.ack_seen = 0;
        }
        self.events.push(Event {
            request: connect.request,
            kind: Kind::Connect,
            status: Status::Success,
            peer,
            match_info: 0,
            bytes: 0,
            transferred: 0,
            data: Vec::new(),
        });
    }

    /// Something of ours was refused: the message with that number, or else the oldest connect.
    pub fn nacked(&mut self, name: Key, reason: Nack, sequence: Sequence, driver: &mut Driver) {
        let Some(partner) = self.partners.get_mut(&name) else { return };
        let status = status_of(reason);
        let named = sequence.bits() == partner.send_next.bits();
        let position = partner.unacked.iter().position(|posted| posted.sequence == sequence);
        if let Some(position) = position.filter(|_| named) {
            let posted = partner.unacked.remove(position);
            self.refused(name, posted, status, driver);
        } else if let Some(connect) = partner.connects.pop_front() {
            let peer = Library::address(name, driver);
            self.fail(connect.request, Kind::Connect, status, peer);
        }
    }
}
