//! Connecting: a question over the channel of requests, with the key that the other side wants, and its answer.
//! On a NIC where MXoE is spoken the rail's own CONNECT takes the place of both. Hosts of ours that are known by their
//! beacons are the exception: they are asked over our own packets, which have checksums.
//!
//! Before one side has heard the other's beacon, the two may connect each in its own way. Each side then sends
//! over the path that came up first, so that its messages stay in order. It receives over both paths.
//!
//! Questions are asked and answered by the endpoint's keeper ([`crate::keeper`]).

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Once;
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::slots::SlotId;
use ropewalk_host_mx::nics::{Nic, Protocol};
use ropewalk_net::{Address, Channel, Level, OperationId, PeerId, Posted, Request as Letter};
use ropewalk_wire::mxoe::Station;

use crate::codes::*;
use crate::endpoint::{Ep, State};
use crate::question::{BYTES, Message, QUESTION, REPLY};
use crate::requests::{Kind, Request};

/// A question that found nobody is asked again after.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// The time after the opening of an endpoint within which other hosts' beacons may arrive. They answer our
/// first one.
const BEACONS_WITHIN: Duration = Duration::from_millis(300);
/// An endpoint of this host that existed this often and was not reached counts as unreachable.
const MISSES_MAX: u32 = 3;
/// Marks messages of connections.
const BITS: u64 = 0x5257_4d58_0000_0001;
/// Operations of answers have this number, which no question has.
const ANSWER: u64 = u64::MAX;

/// Questions that were not answered.
#[derive(Debug, Default)]
pub struct Connects {
    asked: BTreeMap<u32, Connect>,
    next: u32,
}

#[derive(Debug)]
struct Connect {
    request: SlotId,
    partner: SlotId,
    peer: PeerId,
    key: u32,
    deadline: Instant,
    /// It is asked in MXoE, whose own CONNECT is the question.
    is_foreign: bool,
    /// The MXoE address to ask if the peer does not answer our own packets.
    otherwise: Option<String>,
    /// The peer is on this host, so it exists now or not at all.
    is_local: bool,
    /// The number of times that a local peer existed and was not reached.
    misses: u32,
    again_at: Option<Instant>,
    operation: Option<OperationId>,
}

impl Ep {
    /// Begins to connect; the request that waits for it. `hidden`: nobody but the caller sees it.
    #[expect(clippy::too_many_arguments, reason = "what a connect is")]
    pub fn iconnect(
        &self,
        state: &mut State,
        place: (u64, u32),
        ours: Option<String>,
        key: u32,
        match_info: u64,
        context: *mut c_void,
        limit: Option<Duration>,
        hidden: bool,
    ) -> Result<SlotId, Code> {
        let mut request = Request::new(Kind::Connect, context, match_info);
        request.hidden = hidden;
        let (nic_id, number) = place;
        if number >= 255 {
            return Err(BAD_ENDPOINT_ID);
        }
        if nic_id == self.nic_id && number == u32::from(self.number) {
            request.outcome.source = self.own_address(state);
            let id = state.requests.add(request).ok_or(NO_RESOURCES)?;
            state.requests.end(id, SUCCESS, true);
            return Ok(id);
        }
        let (usual, is_local) = self.urls_of(nic_id, number, key)?;
        let id = state.partners.at(nic_id, number as u8).ok_or(NO_RESOURCES)?;
        let up = state.partners.get(id).filter(|partner| partner.is_up);
        let is_foreign = match up {
            Some(up) => up.is_foreign,
            None => self.is_foreign && !is_local && ours.is_none(),
        };
        if self.is_foreign && !is_local && ours.is_none() && up.is_none() {
            state.searches.begin(nic_id);
        }
        let (urls, otherwise) = match ours.filter(|_| up.is_none() && !is_local) {
            Some(ours) => (ours, Some(usual)),
            None => (usual, None),
        };
        let partner = id;
        let peer = self.peer_to_ask(state, partner, &urls, is_foreign)?;
        let limit = limit.or(state.timeout).unwrap_or(self.process.options.give_up_after);
        let deadline = Instant::now() + limit;
        request.limit_to(Some(limit));
        let request = state.requests.add(request).ok_or(NO_RESOURCES)?;
        let (again_at, operation) = (None, None);
        let connect = Connect {
            request,
            partner,
            peer,
            key,
            deadline,
            is_local,
            misses: 0,
            is_foreign,
            otherwise,
            again_at,
            operation,
        };
        state.connects.next = state.connects.next.wrapping_add(1);
        let number = state.connects.next;
        state.connects.asked.insert(number, connect);
        self.ask(state, number);
        // The keeper has to know of the deadline.
        self.rouse();
        Ok(request)
    }

    /// The peer number, in the layer below, of a partner that we want to reach, over MXoE or not.
    fn peer_to_ask(
        &self,
        state: &mut State,
        id: SlotId,
        urls: &str,
        is_foreign: bool,
    ) -> Result<PeerId, Code> {
        let partner = state.partners.get(id).ok_or(NO_RESOURCES)?;
        if let Some(peer) = partner.peer.filter(|_| partner.is_up) {
            return Ok(peer);
        }
        // A foreign one is asked with a key that is part of the address.
        let called = partner.called.filter(|peer| self.net.is_known(*peer) && !is_foreign);
        let peer = match called {
            Some(peer) => peer,
            None => {
                let address = Address::parse(urls).map_err(|_| NIC_NOT_FOUND)?;
                self.net.lookup(&address).map_err(|_| NO_RESOURCES)?
            }
        };
        state.partners.name(peer, id);
        if let Some(partner) = state.partners.get_mut(id) {
            (partner.peer, partner.is_foreign) = (Some(peer), is_foreign);
            partner.called = Some(peer).filter(|_| !is_foreign);
        }
        Ok(peer)
    }

    /// Whether endpoints of a card are reached through memory.
    fn is_shared(&self, nic_id: u64) -> bool {
        self.shares && self.process.nics.number_of(nic_id).is_some()
    }

    /// The URL at which an endpoint takes our own packets, though this NIC speaks MXoE. An endpoint that was
    /// just opened waits for a moment until beacons have come.
    pub fn url_of_ours(&self, (nic_id, number): (u64, u32)) -> Option<String> {
        let nics = &self.process.nics;
        let own = nics.nics.get(self.nic_number as usize).filter(|nic| nic.takes_ours())?;
        if self.is_shared(nic_id) || self.is_up((nic_id, number)) {
            return None;
        }
        let place = nics.place_of(nic_id, own)?;
        loop {
            match own.protocol_of(&place) {
                Protocol::Ours => return own.url_of_ours(&place, number),
                Protocol::Unknown if self.opened_at.elapsed() < BEACONS_WITHIN => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Protocol::Unknown | Protocol::Other => return None,
            }
        }
    }

    fn is_up(&self, (nic_id, number): (u64, u32)) -> bool {
        let state = self.lock();
        let found =
            u8::try_from(number).ok().and_then(|number| state.partners.find_at(nic_id, number));
        found.and_then(|id| state.partners.get(id)).is_some_and(|partner| partner.is_up)
    }

    /// The URL of an endpoint of a card, and whether it is on this host.
    fn urls_of(&self, nic_id: u64, number: u32, key: u32) -> Result<(String, bool), Code> {
        if self.is_shared(nic_id) {
            return Ok((format!("shm://{}", Nic::shared_name(nic_id, number)), true));
        }
        let nics = &self.process.nics;
        let own = nics.nics.get(self.nic_number as usize).ok_or(BOARD_UNKNOWN)?;
        let place = nics.place_of(nic_id, own).ok_or(NIC_NOT_FOUND)?;
        own.url(&place, number, key).map(|url| (url, false)).ok_or(BAD_ENDPOINT_ID)
    }

    /// Sends a question.
    fn ask(&self, state: &mut State, number: u32) {
        let Some(connect) = state.connects.asked.get_mut(&number) else { return };
        let Some(partner) = state.partners.get(connect.partner) else { return };
        connect.again_at = None;
        if partner.is_up && connect.is_foreign != partner.is_foreign {
            // It came by the other way meanwhile.
            connect.is_foreign = partner.is_foreign;
            connect.peer = partner.peer.unwrap_or(connect.peer);
        }
        if connect.is_foreign {
            let (peer, is_up) = (connect.peer, partner.is_up);
            if !is_up {
                return self.net.connect(peer);
            }
            // Its keeper judges the key each time.
            if self.net.show_key(partner.peer.unwrap_or(peer), connect.key).is_err() {
                connect.again_at = Some(Instant::now() + AGAIN_AFTER);
            }
            return;
        }
        let message = Message {
            kind: QUESTION,
            status: 0,
            number,
            key: connect.key,
            session: self.session,
            from: (self.nic_id, self.number.into()),
            to: (partner.nic_id, partner.endpoint.into()),
        };
        match self.send(connect.peer, &message, number.into()) {
            Ok(operation) => connect.operation = operation,
            Err(_) => connect.again_at = Some(Instant::now() + AGAIN_AFTER),
        }
    }

    fn send(
        &self,
        peer: PeerId,
        message: &Message,
        user: u64,
    ) -> Result<Option<OperationId>, Fault> {
        let mut buffer = self.pool.take(BYTES).ok_or(Fault::Busy)?;
        message.write(&mut buffer);
        let (memory, level) = (Memory::pooled(buffer), Level::Buffered);
        let channel = Channel::Request;
        match self.net.post_send(&self.control, peer, channel, BITS, memory, level, user) {
            Ok(Posted::Done(completed)) => completed.outcome.map(|()| None),
            Ok(Posted::Pending(id)) => Ok(Some(id)),
            Err((_, fault)) => Err(fault),
        }
    }

    /// Takes questions, answers, and what became of those that were sent.
    pub fn take_letters(&self, state: &mut State) {
        while let Some(completed) = self.net.take(&self.control) {
            let number = completed.user as u32;
            if completed.user != ANSWER && completed.outcome.is_err() {
                self.unasked(state, number);
            }
        }
        while let Some(letter) = self.net.next_request() {
            // The end of a session that preceded this message is handled first.
            self.take_events(state);
            match Message::read(letter.bytes()).filter(|_| letter.bits == BITS) {
                Some(message) if message.kind == QUESTION => {
                    self.asked(state, &letter, &message);
                }
                Some(message) if message.kind == REPLY => {
                    self.answered(state, &letter, &message);
                }
                // Not for us.
                _ => {}
            }
        }
    }

    /// A question did not get to anybody.
    fn unasked(&self, state: &mut State, number: u32) {
        let Some(connect) = state.connects.asked.get_mut(&number) else { return };
        connect.operation = None;
        // Unless it is another one by now, which is asked again.
        let partner = state.partners.get(connect.partner);
        let is_up = partner.is_some_and(|partner| partner.is_up);
        if connect.is_local && !is_up {
            let place = partner.map(|partner| (partner.nic_id, partner.endpoint));
            let absent =
                place.map(|(nic_id, number)| self.why_absent(nic_id, number, connect.misses));
            if let Some(code) = absent.unwrap_or(Some(ENDPOINT_CLOSED)) {
                return self.connected(state, number, code);
            }
            connect.misses += 1;
        }
        let pause = if connect.otherwise.is_some() { Duration::ZERO } else { AGAIN_AFTER };
        connect.again_at = Some(Instant::now() + pause);
    }

    /// Asks once more, over MXoE if that was not tried yet. The host may be one of ours, but this endpoint
    /// hears MXoE alone, or is closed.
    fn ask_again(&self, state: &mut State, number: u32) {
        let Some(connect) = state.connects.asked.get_mut(&number) else { return };
        let (partner, otherwise) = (connect.partner, connect.otherwise.take());
        let is_up = state.partners.get(partner).is_some_and(|partner| partner.is_up);
        if let Some(urls) = otherwise.filter(|_| !is_up)
            && let Ok(peer) = self.peer_to_ask(state, partner, &urls, true)
            && let Some(connect) = state.connects.asked.get_mut(&number)
        {
            (connect.peer, connect.is_foreign) = (peer, true);
        }
        self.ask(state, number);
    }

    /// The reason that an endpoint of this host is not reached through memory; `None` if it may be reached
    /// soon. `misses`: the number of earlier attempts that did not reach it, though it was there.
    fn why_absent(&self, nic_id: u64, number: u8, misses: u32) -> Option<Code> {
        let why = match Nic::shared_user(nic_id, number.into()) {
            None => return Some(ENDPOINT_CLOSED),
            // It may have been opened just now.
            Some((_, true)) if misses < MISSES_MAX => return None,
            Some((_, true)) => "cannot share memory with this process, since one of the programs \
                 has file capabilities (setcap)"
                .to_string(),
            Some((user, false)) => {
                format!(
                    "belongs to another user ({user}), and processes of different users share no \
                     memory"
                )
            }
        };
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            let nics = &self.process.nics.nics;
            let nic = nics.iter().find(|nic| nic.place.nic_id() == nic_id).map(Nic::own_url);
            let nic = nic.unwrap_or_default();
            eprintln!(
                "libmyriexpress: endpoint {number} of {nic} {why}; set ROPEWALK_MX_BOARDS to a \
                 board like udp://10.0.0.1 and OMX_DISABLE_SHARED=1 for both programs"
            );
        });
        Some(NO_PERMISSION)
    }

    /// The session with a partner ended: questions that were asked over it will not be answered.
    pub fn connection_lost(&self, state: &mut State, partner: SlotId) {
        let asked = &state.connects.asked;
        let such = |(number, connect): (&u32, &Connect)| {
            (connect.partner == partner && connect.operation.is_none()).then_some(*number)
        };
        let lost: Vec<u32> = asked.iter().filter_map(such).collect();
        lost.into_iter().for_each(|number| self.unasked(state, number));
        self.rouse();
    }

    /// A session with a foreign partner began.
    pub fn foreign_up(&self, state: &mut State, peer: PeerId) {
        let Some(name) = self.net.foreign_name(peer) else { return };
        let Ok(station) = name.station.parse::<Station>() else { return };
        let Some(id) = state.partners.at(station.nic_id(), name.endpoint) else { return };
        state.partners.name(peer, id);
        let mut before = None;
        if let Some(partner) = state.partners.get_mut(id) {
            // If another path to the partner exists already, messages continue there, in order.
            let is_same_life = partner.mxoe_life.goes_on_in(name.session);
            let other = partner.peer.filter(|_| partner.is_up && !partner.is_foreign);
            let other = other.filter(|other| self.net.peer_rail(*other).is_some());
            if other.is_none() || !is_same_life {
                before = other;
                (partner.peer, partner.session) = (Some(peer), name.session);
                (partner.is_up, partner.is_foreign) = (true, true);
            }
        }
        if let Some(before) = before {
            state.partners.unname(before);
            self.net.forget(before);
        }
        // Regardless of the side that connected, the key of each question decides about that question.
        self.asked_of(state, id).into_iter().for_each(|number| self.ask(state, number));
        self.announce();
    }

    /// A foreign partner says whether a key is right.
    pub fn key_judged(&self, state: &mut State, peer: PeerId, key: u32, right: bool) {
        let Some(partner) = state.partners.of_peer(peer) else { return };
        let code = if right { SUCCESS } else { BAD_CONNECTION_KEY };
        let mut numbers = self.asked_of(state, partner);
        numbers.retain(|it| state.connects.asked.get(it).is_some_and(|asked| asked.key == key));
        numbers.into_iter().for_each(|number| self.connected(state, number, code));
    }

    /// A foreign partner does not want a session with us, as it says itself.
    pub fn foreign_refusal(&self, state: &mut State, partner: SlotId, fault: Fault) {
        let code = match fault {
            Fault::NotPermitted => BAD_CONNECTION_KEY,
            Fault::Closed => ENDPOINT_CLOSED,
            _ => return,
        };
        for number in self.asked_of(state, partner) {
            self.connected(state, number, code);
        }
    }

    /// Questions to a foreign partner.
    fn asked_of(&self, state: &State, partner: SlotId) -> Vec<u32> {
        let asked = &state.connects.asked;
        let such = |(number, connect): (&u32, &Connect)| {
            (connect.partner == partner && connect.is_foreign).then_some(*number)
        };
        asked.iter().filter_map(such).collect()
    }

    /// Somebody connects to us.
    fn asked(&self, state: &mut State, letter: &Letter, message: &Message) {
        let own = (self.nic_id, u32::from(self.number));
        let status = match self.welcome(state, letter.peer, message) {
            _ if message.to != own => ENDPOINT_CLOSED,
            None => NO_RESOURCES,
            Some(_) if message.key != self.settings.key => BAD_CONNECTION_KEY,
            Some(_) => SUCCESS,
        };
        let answer = Message {
            kind: REPLY,
            status: status as u8,
            session: self.session,
            from: own,
            to: message.from,
            ..*message
        };
        // If the answer cannot be sent, the peer asks again.
        let _ = self.send(letter.peer, &answer, ANSWER);
    }

    /// Notes who a peer is.
    fn welcome(&self, state: &mut State, peer: PeerId, message: &Message) -> Option<SlotId> {
        let id = state.partners.at(message.from.0, message.from.1 as u8)?;
        let partner = state.partners.get_mut(id)?;
        if partner.is_own {
            return None;
        }
        let goes_on = partner.own_life.goes_on_in(message.session);
        if partner.is_up && partner.is_foreign && goes_on {
            // It was there in MXoE first.
            state.partners.name(peer, id);
            return Some(id);
        }
        // One that we are about to reach may be the same, of which nobody knows yet.
        let other_life = partner.session != 0 && partner.session != message.session;
        let before = partner.peer.filter(|before| !self.net.same_peer(*before, peer));
        let before = before.filter(|_| other_life);
        // Or it is being asked in MXoE, and was faster.
        if partner.peer.is_none() || before.is_some() || partner.is_foreign {
            partner.peer = Some(peer);
        }
        partner.session = message.session;
        (partner.is_up, partner.is_foreign) = (true, false);
        state.partners.name(peer, id);
        if let Some(before) = before {
            // Its former life: operations under way with it end.
            state.partners.unname(before);
            self.net.forget(before);
            // It is asked whatever its former life was asked.
            let asked = state.connects.asked.values_mut();
            for connect in asked.filter(|it| it.partner == id && !it.is_foreign) {
                (connect.peer, connect.again_at) = (peer, Some(Instant::now()));
            }
        }
        // And by this way what it was asked in MXoE.
        let asked = state.connects.asked.values_mut();
        for connect in asked.filter(|it| it.partner == id && it.is_foreign) {
            connect.again_at = Some(Instant::now());
        }
        Some(id)
    }

    /// Somebody answers.
    fn answered(&self, state: &mut State, letter: &Letter, message: &Message) {
        let Some(connect) = state.connects.asked.get(&message.number) else { return };
        // It may be asked in MXoE as well by now.
        let is_its = |it: PeerId| state.partners.of_peer(it) == Some(connect.partner);
        if !self.net.same_peer(connect.peer, letter.peer)
            && !is_its(letter.peer)
            && !is_its(self.net.resolve(letter.peer))
        {
            return;
        }
        let (id, peer) = (connect.partner, letter.peer);
        let code = Code::from(message.status);
        if code == SUCCESS {
            state.partners.name(peer, id);
            let partner = state.partners.get_mut(id);
            if let Some(partner) = partner.filter(|it| !(it.is_up && it.is_foreign)) {
                let _ = partner.own_life.goes_on_in(message.session);
                partner.session = message.session;
                (partner.is_up, partner.is_foreign) = (true, false);
                partner.peer = Some(peer);
            }
        }
        self.connected(state, message.number, code);
    }

    /// Questions to a card with which there is no session.
    pub fn unanswered(&self, state: &State, nic_id: u64) -> Vec<u32> {
        let asked = &state.connects.asked;
        let such = |(number, connect): (&u32, &Connect)| {
            let partner = state.partners.get(connect.partner)?;
            (partner.nic_id == nic_id && !partner.is_up).then_some(*number)
        };
        asked.iter().filter_map(such).collect()
    }

    /// A question is over.
    pub fn connected(&self, state: &mut State, number: u32, code: Code) {
        let Some(connect) = state.connects.asked.remove(&number) else { return };
        if let Some(operation) = connect.operation {
            self.net.cancel(operation);
        }
        if let Some(request) = state.requests.get_mut(connect.request)
            && code == SUCCESS
        {
            request.outcome.source = state.partners.address(self.place, connect.partner);
        }
        if let Some(request) = state.requests.get_mut(connect.request)
            && matches!(code, UNREACHABLE | TIMEOUT)
        {
            request.unreached = Some(connect.peer);
        }
        state.requests.end(connect.request, code, true);
        self.announce();
    }

    /// Gives a request of a connect up. True where it was under way.
    pub fn take_connect_back(&self, state: &mut State, request: SlotId) -> bool {
        let mut asked = state.connects.asked.iter();
        let found = asked.find(|(_, connect)| connect.request == request);
        let Some(number) = found.map(|(number, _)| *number) else { return false };
        let connect = state.connects.asked.remove(&number);
        if let Some(operation) = connect.and_then(|connect| connect.operation) {
            self.net.cancel(operation);
        }
        true
    }

    /// Gives up what was asked of a partner that is forgotten.
    pub fn drop_connects(&self, state: &mut State, partner: SlotId) {
        let asked = state.connects.asked.iter();
        let of = asked.filter(|(_, connect)| connect.partner == partner);
        let numbers: Vec<u32> = of.map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.connected(state, number, UNREACHABLE));
    }

    /// Sets how long a request may take from now on.
    pub fn set_limit(&self, state: &mut State, id: SlotId, limit: Option<Duration>) {
        if let Some(request) = state.requests.get_mut(id) {
            request.limit_to(limit);
        }
        let late = Instant::now() + limit.unwrap_or(self.process.options.give_up_after);
        let asked = state.connects.asked.values_mut();
        asked.filter(|connect| connect.request == id).for_each(|it| it.deadline = late);
        self.rouse();
    }

    /// Asks again, and gives up who was asked too long; when that is due the next time, `due` at the latest.
    pub fn run_connects(&self, state: &mut State, now: Instant, mut due: Instant) -> Instant {
        let numbers: Vec<u32> = state.connects.asked.keys().copied().collect();
        for number in numbers {
            let Some(connect) = state.connects.asked.get(&number) else { continue };
            let (deadline, again_at) = (connect.deadline, connect.again_at);
            if deadline <= now {
                self.connected(state, number, TIMEOUT);
                continue;
            }
            let mut again_at = again_at;
            if again_at.is_some_and(|again_at| again_at <= now) {
                self.ask_again(state, number);
                again_at = state.connects.asked.get(&number).and_then(|connect| connect.again_at);
            }
            due = due.min(deadline).min(again_at.unwrap_or(deadline));
        }
        due
    }
}
