//! The process that is the agent: the protocol of the agent, its socket, and its clients.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::Teller;
use ropewalk_rail_ether::{AgentSocket, Claims, EtherError, RAW_ENDPOINT};
use ropewalk_transport::mxoe::{Agent, AgentConfig, Named, Peer};
use ropewalk_wire::mxoe::{INDEX_UNKNOWN, Station};
use ropewalk_wire::packets;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Resource, Uid, getrlimit};

use super::known::KnownPeer;
use super::protocol::{ANSWER_BYTES_MAX, Answer, PEER_BYTES_MAX, QUESTION_BYTES_MAX, Question};
use super::{Keeper, RawTeller, usual_name};
use crate::local;

/// Connections at a time: so many, but of the descriptors that this process may have a part only, and half of them of
/// one user who is neither root nor ours.
const CLIENTS_MAX: usize = 1024;
const DESCRIPTORS_PER_CLIENT: u64 = 4;
/// The time for which a client may be connected without saying anything.
const SILENT_FOR: Duration = Duration::from_secs(5);
/// The interval at which the agent checks whether an interface that is down still exists.
const DOWN_FOR: Duration = Duration::from_secs(1);
/// Packets that are looked at before the clients get their turn.
const PACKETS_PER_PASS: usize = 256;
/// The time for which the agent accepts no client after it ran out of descriptors.
const DEAF_FOR: Duration = Duration::from_millis(100);

/// Somebody of this host who is connected.
struct Client {
    socket: OwnedFd,
    holds: BTreeSet<u8>,
    user: Option<Uid>,
    may_change: bool,
    /// The time since which it has said nothing; `None`: it has said something.
    silent_since: Option<Instant>,
}

struct Service<'a> {
    keeper: &'a Keeper,
    agent: Agent,
    socket: AgentSocket,
    claims: Claims,
    listener: OwnedFd,
    clients: Vec<Client>,
    /// Endpoints that the socket does not see.
    hidden: BTreeSet<u8>,
    /// Somebody has the raw endpoint.
    is_mapped: bool,
    start: Instant,
    deaf_until: Option<Instant>,
}

/// Is the agent until this process has no endpoint any more. An error: there cannot be one.
pub fn serve(keeper: &Keeper, listener: OwnedFd) -> Result<(), EtherError> {
    let socket = AgentSocket::open(&keeper.interface, keeper.dialect.order())?;
    let name = keeper.state().name.clone();
    let config = AgentConfig {
        station: keeper.interface.station,
        dialect: keeper.dialect,
        name: name.unwrap_or_else(|| usual_name(&keeper.interface)),
        host: ropewalk_net::host::host_number(),
    };
    let random = Random::from_seed(ropewalk_net::host::random_seed());
    let mut service = Service {
        keeper,
        agent: Agent::new(config, random, Time::ZERO),
        claims: socket.claims(),
        socket,
        listener,
        clients: Vec::new(),
        hidden: BTreeSet::new(),
        is_mapped: false,
        start: Instant::now(),
        deaf_until: None,
    };
    service.begin();
    service
        .run()
        .map_err(|cause| EtherError::Socket { interface: keeper.interface.name.clone(), cause })
}

/// Connections that this process can afford.
fn clients_max() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / DESCRIPTORS_PER_CLIENT).unwrap_or(CLIENTS_MAX).min(CLIENTS_MAX)
}

/// The sources that have something to read.
#[derive(Default)]
struct Ready {
    packets: bool,
    bell: bool,
    newcomer: bool,
    /// Somebody asks for the counters of this process's raw endpoint.
    asked: bool,
    clients: Vec<usize>,
}

impl Service<'_> {
    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    /// Takes over the statements of this process's mapper.
    fn begin(&mut self) {
        let mapped = self.keeper.state().mapped.clone();
        for question in mapped.questions() {
            let _ = self.map(question);
        }
    }

    fn run(&mut self) -> std::io::Result<()> {
        while !self.keeper.is_over() {
            self.hide();
            self.agent.advance(self.now());
            self.leave();
            let teller = self.keeper.state().teller.clone();
            let ready = self.wait(teller.as_deref())?;
            if ready.bell {
                self.keeper.heard();
            }
            if let Some(teller) = teller.filter(|_| ready.asked) {
                self.keeper.tell(&teller);
            }
            if ready.packets || self.socket.is_down() {
                self.receive()?;
            }
            // From the end, since clients that are gone are removed.
            for index in ready.clients.into_iter().rev() {
                if !self.listen_to(index) {
                    self.clients.swap_remove(index);
                }
            }
            if ready.newcomer {
                self.let_in();
            }
            self.clients.retain(|it| it.silent_since.is_none_or(|it| it.elapsed() < SILENT_FOR));
        }
        Ok(())
    }

    fn wait(&self, teller: Option<&RawTeller>) -> std::io::Result<Ready> {
        let now = Instant::now();
        let deaf = self.deaf_until.map_or(Duration::ZERO, |until| until - now);
        let due = self.agent.deadline().since(self.now());
        let due = if deaf > Duration::ZERO { due.min(deaf) } else { due };
        let due = if self.socket.is_down() { due.min(DOWN_FOR) } else { due };
        let silent = self.clients.iter().filter_map(|it| it.silent_since).min();
        let due = silent.map_or(due, |since| due.min(SILENT_FOR.saturating_sub(since.elapsed())));
        // Rounded up: a moment too early would be a turn for nothing.
        let due = Timespec::try_from(due + Duration::from_micros(50)).ok();
        let hears = if deaf > Duration::ZERO { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.keeper.bell, PollFlags::IN),
            PollFd::new(&self.listener, hears),
        ];
        let asks = teller.map(|it| it.listener.descriptor());
        fds.extend(asks.map(|it| PollFd::from_borrowed_fd(it, PollFlags::IN)));
        fds.extend(self.clients.iter().map(|it| PollFd::new(&it.socket, PollFlags::IN)));
        match poll(&mut fds, due.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Ready::default()),
            Err(error) => return Err(error.into()),
        }
        let mut said = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = || said.next().unwrap_or(false);
        let (packets, bell, newcomer) = (next(), next(), next());
        let asked = teller.is_some() && next();
        let clients = said.enumerate().filter_map(|(index, is)| is.then_some(index)).collect();
        Ok(Ready { packets, bell, newcomer, asked, clients })
    }

    /// Packets for endpoints that somebody has are none of the agent's business.
    fn hide(&mut self) {
        let mut taken = self.keeper.state().endpoints.clone();
        taken.extend(self.clients.iter().flat_map(|client| &client.holds));
        // Packets to that number are refused, whichever process has the raw endpoint: none is for it.
        self.is_mapped = taken.remove(&RAW_ENDPOINT);
        // If the kernel has no memory for a filter, the agent receives these packets and ignores them.
        if taken != self.hidden && self.socket.hide(taken.iter().copied()).is_ok() {
            self.hidden = taken;
        }
    }

    fn leave(&mut self) {
        while let Some((to, body)) = self.agent.next() {
            self.socket.send(to, &body);
        }
    }

    fn receive(&mut self) -> std::io::Result<()> {
        for _ in 0..PACKETS_PER_PASS {
            let now = self.now();
            let Some(heard) = self.socket.receive()? else { return Ok(()) };
            let mut is_taken = |endpoint| match endpoint {
                RAW_ENDPOINT => self.is_mapped,
                endpoint => self.claims.has(endpoint),
            };
            match packets::is_ours(heard.body) {
                true => {
                    let claims = &self.claims;
                    let mut is_taken = |endpoint| claims.has_ours(endpoint);
                    self.agent.called(heard.from, heard.to, heard.body, now, &mut is_taken);
                }
                false => self.agent.packet(heard.from, heard.to, heard.body, now, &mut is_taken),
            }
            self.leave();
        }
        Ok(())
    }

    fn let_in(&mut self) {
        self.deaf_until = None;
        match local::accept(&self.listener) {
            Ok(socket) => {
                let own = rustix::process::geteuid();
                let user = socket_peercred(&socket).map(|it| it.uid).ok();
                let may_change = user.is_some_and(|user| user.is_root() || user == own);
                let same = self.clients.iter().filter(|it| !may_change && it.user == user).count();
                let most = clients_max();
                if self.clients.len() < most && same < most.div_ceil(2) {
                    let (holds, silent_since) = (BTreeSet::new(), Some(Instant::now()));
                    self.clients.push(Client { socket, holds, user, may_change, silent_since });
                }
            }
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => self.deaf_until = Some(Instant::now() + DEAF_FOR),
        }
    }

    /// Receives one question, and answers it; false if the client is gone, or sent no known question.
    fn listen_to(&mut self, index: usize) -> bool {
        let mut buffer = [0; QUESTION_BYTES_MAX];
        let client = &mut self.clients[index];
        let question = match local::hear(&client.socket, &mut buffer, false) {
            Ok([]) => return false,
            Ok(bytes) => Question::parse(bytes),
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        };
        let Some(question) = question else { return false };
        client.silent_since = None;
        let answer = match question {
            Question::Hold(endpoint) => {
                if self.claims.has(endpoint) {
                    client.holds.insert(endpoint);
                }
                // A client that comes later learns the name, too.
                self.keeper.state().name.clone().map(Answer::Called)
            }
            Question::Release(endpoint) => {
                client.holds.remove(&endpoint);
                None
            }
            Question::SetName(_) if !client.may_change => Some(Answer::NotPermitted),
            Question::SetName(name) => Some(self.call(name)),
            Question::Peers(from) => Some(Answer::Peers(self.page(from))),
            Question::NicIdOf(name) => Some(match self.agent.named(name) {
                Named::Nobody => Answer::Nobody,
                Named::One(station) => Answer::NicId(station.nic_id()),
                Named::Several => Answer::Several,
            }),
            Question::NameOf(nic_id) => Some(self.name_of(nic_id)),
            Question::Peer(nic_id) => Some(self.peer(nic_id)),
            Question::Age => Some(Answer::Age(self.start.elapsed().as_millis() as u64)),
            Question::Seek(nic_id) => {
                let now = self.now();
                Station::from_nic_id(nic_id).into_iter().for_each(|it| self.agent.seek(it, now));
                Some(Answer::Done)
            }
            Question::Counts => Some(Answer::Counts(self.counts())),
            Question::Map => Some(self.agent.map().map_or(Answer::Nobody, Answer::Map)),
            Question::AddPeer(..) | Question::RemovePeer(_) | Question::SetMap(_)
                if !client.may_change =>
            {
                Some(Answer::NotPermitted)
            }
            question => Some(self.map(question)),
        };
        // A client that asks and does not read is disconnected.
        let client = &self.clients[index];
        answer.is_none_or(|it| local::say(&client.socket, &it.emit(), false).is_ok())
    }

    /// Carries out a mapper's statement.
    fn map(&mut self, question: Question<'_>) -> Answer {
        let now = self.now();
        let answer = |is_so| if is_so { Answer::Done } else { Answer::Nobody };
        match question {
            Question::AddPeer(nic_id, name) => answer(
                Station::from_nic_id(nic_id).is_some_and(|it| self.agent.add_peer(it, name, now)),
            ),
            Question::RemovePeer(nic_id) => {
                answer(Station::from_nic_id(nic_id).is_some_and(|it| self.agent.remove_peer(it)))
            }
            Question::SetMap(map) => {
                self.agent.set_map(map, now);
                Answer::Done
            }
            _ => Answer::Nobody,
        }
    }

    fn call(&mut self, name: &str) -> Answer {
        self.agent.set_name(name, self.now());
        let name = self.agent.name().to_string();
        self.keeper.state().name = Some(name.clone());
        // The client that becomes the next agent shall use this name.
        let called = Answer::Called(name).emit();
        for client in self.clients.iter().filter(|client| !client.holds.is_empty()) {
            let _ = local::say(&client.socket, &called, false);
        }
        Answer::Done
    }

    fn counts(&self) -> String {
        let it = self.agent.counters();
        crate::counts::emit_counts(&[
            ("packets.sent", it.sent),
            ("packets.received", it.received),
            ("beacons.sent", it.beacons_sent),
            ("beacons.received", it.beacons_received),
            ("queries.sent", it.queries_sent),
            ("replies.sent", it.replies_sent),
            ("nacks.sent", it.nacks_sent),
            ("throttled.answers", it.unanswered),
            ("dropped.wrong_length", it.wrong_length),
            ("dropped.wrong_type", it.wrong_type),
            ("dropped.wrong_field", it.malformed),
            ("dropped.other_order", it.other_order),
            ("dropped.wrong_station", it.astray),
            ("dropped.wrong_endpoint", it.bad_endpoint),
            ("dropped.no_endpoint", it.closed),
            ("dropped.unasked", it.unasked),
        ])
    }

    fn name_of(&self, nic_id: u64) -> Answer {
        let Some(station) = Station::from_nic_id(nic_id) else { return Answer::Nobody };
        if station == self.agent.station() {
            return Answer::Name(self.agent.name().to_string());
        }
        let name = self.agent.peer(station).and_then(|peer| peer.name.as_deref());
        name.map_or(Answer::Nobody, |name| Answer::Name(String::from_utf8_lossy(name).into_owned()))
    }

    fn peer(&self, nic_id: u64) -> Answer {
        let peer = Station::from_nic_id(nic_id).and_then(|station| self.agent.peer(station));
        peer.map_or(Answer::Nobody, |peer| Answer::Peers(vec![self.known(peer)]))
    }

    /// As many peers from this index on as an answer holds.
    fn page(&self, from: u16) -> Vec<KnownPeer> {
        let own = (from == 0).then(|| KnownPeer {
            index: 0,
            station: self.agent.station(),
            reverse: None,
            serial: Some(self.agent.serial()),
            ours: Some(self.agent.announcement()),
            order: Some(self.agent.order()),
            name: Some(self.agent.name().to_string()),
            is_own: true,
            age: Duration::ZERO,
        });
        let peers = self.agent.peers(from).map(|peer| self.known(peer));
        own.into_iter().chain(peers).take((ANSWER_BYTES_MAX - 1) / PEER_BYTES_MAX).collect()
    }

    fn known(&self, peer: &Peer) -> KnownPeer {
        KnownPeer {
            order: peer.order,
            index: peer.index,
            station: peer.station,
            reverse: Some(peer.reverse).filter(|index| *index != INDEX_UNKNOWN),
            serial: peer.serial,
            ours: peer.ours,
            name: peer.name.as_deref().map(|it| String::from_utf8_lossy(it).into_owned()),
            is_own: false,
            age: self.now().since(peer.heard),
        }
    }
}
