//! One endpoint without threads and descriptors: a core, a simulated rail and buffers between them.

use std::collections::BTreeMap;

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::{BufferId, BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Ordered, Placement, RemoteKey, Token, Verb};
use ropewalk_core::{
    Called, Channel, Completion, Config, Core, Identity, Level, Next, OperationId, Output,
    Oversize, PeerId, Receive, Send, Sending,
};
use ropewalk_rail::{Rail, Report};
use ropewalk_sim::{SimConfig, SimNetwork, SimRail};

/// An event for an endpoint's user.
#[derive(Debug)]
pub enum Heard {
    /// An operation ended: its number with the user, and the bytes that it received.
    Ended { user: u64, outcome: Result<(), Fault>, bytes: Vec<u8>, from: Option<usize> },
    /// A request, with the peer and session needed to return its credit.
    Request { from: usize, bytes: Vec<u8>, peer: PeerId, session: u32 },
}

pub struct Node {
    pub core: Core,
    rail: SimRail,
    buffers: BufferTable,
    pool: Pool,
    peers: BTreeMap<usize, PeerId>,
    /// Addresses by the peer's slot, as they were looked up.
    addresses: BTreeMap<PeerId, String>,
    operations: Vec<(u32, u64, BufferId, bool)>,
    free: Vec<u32>,
    pub heard: Vec<Heard>,
}

/// The receiver of the rail's reports while it is polled.
struct Upper<'a> {
    core: &'a mut Core,
    buffers: &'a mut BufferTable,
    pool: &'a Pool,
}

impl Report for Upper<'_> {
    fn buffers(&self) -> &BufferTable {
        self.buffers
    }
    fn link_up(&mut self, link: LinkId, accepted: bool) {
        self.core.link_up(link, accepted);
    }
    fn link_down(&mut self, link: LinkId, fault: Fault) {
        self.core.link_down(link, fault);
    }
    fn place(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        match self.core.place(link, header, payload_bytes) {
            Placement::Stage { bytes, token } => {
                let memory = Memory::pooled(self.pool.take(bytes as usize).expect("room"));
                let buffer = self.buffers.insert(memory).expect("room");
                Placement::Into { slice: self.core.staged(token, buffer, bytes), token }
            }
            placement => placement,
        }
    }
    fn received(&mut self, _link: LinkId, token: Token) {
        let greeting = self.core.wants(token).filter(|wants| wants.greeting);
        let mut bytes = vec![0; greeting.map_or(0, |wants| wants.slice.len as usize)];
        if let Some(wants) = greeting {
            self.buffers.read(wants.slice, &mut bytes);
        }
        self.core.received(token, &bytes);
    }
    fn done(&mut self, token: Token) {
        self.core.done(token);
    }
    fn failed(&mut self, token: Token, fault: Fault) {
        self.core.failed(token, fault);
    }
    fn revoked(&mut self, link: LinkId, key: RemoteKey) {
        self.core.revoked(link, key);
    }
}

pub fn name(number: usize) -> String {
    format!("n{number}")
}

impl Node {
    pub fn new(
        network: &SimNetwork,
        number: usize,
        life: u64,
        config: Config,
        rail: SimConfig,
    ) -> Node {
        let mut rail = network.rail(&name(number), rail);
        rail.attach(0);
        let pool = Pool::with_budget(1 << 30);
        let mut buffers = BufferTable::with_limit(1 << 20);
        let address = match rail.addresses().is_empty() {
            true => String::new(),
            false => format!("sim://{}", name(number)),
        };
        let greeting = pool.copy_of(address.as_bytes()).expect("room");
        let buffer = buffers.insert(Memory::pooled(greeting)).expect("room");
        let greeting = Slice { buffer, offset: 0, len: address.len() as u64 };
        let identity = Identity {
            endpoint: EndpointId(number as u128 + 1),
            incarnation: Incarnation(life),
            cluster: ClusterId(1),
            host: 0,
        };
        let random = Random::from_seed(number as u64 * 1000 + life);
        let core = Core::new(config, identity, vec![rail.capabilities()], greeting, random)
            .with_schemes(vec!["sim"]);
        Node {
            core,
            rail,
            buffers,
            pool,
            peers: BTreeMap::new(),
            addresses: BTreeMap::new(),
            operations: Vec::new(),
            free: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// Looks another endpoint up once.
    pub fn peer(&mut self, other: usize) -> PeerId {
        let Node { core, peers, addresses, .. } = self;
        *peers.entry(other).or_insert_with(|| {
            let peer = core.add_peer(true).expect("room");
            addresses.insert(peer, name(other));
            peer
        })
    }

    fn operation(&mut self, user: u64, bytes: &[u8], receives: bool) -> (OperationId, Slice) {
        let buffer = match bytes.is_empty() {
            true => BufferId(SlotId { index: 0, generation: 0 }),
            false => {
                let memory = Memory::pooled(self.pool.copy_of(bytes).expect("room"));
                self.buffers.insert(memory).expect("room")
            }
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.operations.push((0, 0, buffer, false));
            self.operations.len() as u32 - 1
        });
        let entry = &mut self.operations[index as usize];
        *entry = (entry.0 + 1, user, buffer, receives);
        let id = OperationId(SlotId { index, generation: entry.0 });
        (id, Slice { buffer, offset: 0, len: bytes.len() as u64 })
    }

    pub fn send(&mut self, to: usize, channel: Channel, bytes: &[u8], level: Level, user: u64) {
        let peer = self.peer(to);
        self.send_to(peer, channel, 7, bytes, level, user);
    }

    /// The same to a peer by its number.
    pub fn send_to(
        &mut self,
        peer: PeerId,
        channel: Channel,
        bits: u64,
        bytes: &[u8],
        level: Level,
        user: u64,
    ) {
        let (id, payload) = self.operation(user, bytes, false);
        let send = Send { peer, channel, bits, payload, level };
        if let Sending::Inline(send) = self.core.post_send(id, send) {
            let answer = self.rail.send(self.core.inline_frame(), &self.buffers);
            if self.core.inline_sent(id, send, answer).is_some() {
                self.ended(id, Ok(()), 0, None);
            }
        }
        self.drain();
    }

    pub fn receive(&mut self, from: Option<usize>, len: usize, user: u64) {
        let source = from.map(|from| self.peer(from));
        self.receive_from(source, 0, 0, len, user);
    }

    /// The same from a peer by its number, of messages with these bits.
    pub fn receive_from(
        &mut self,
        source: Option<PeerId>,
        bits: u64,
        mask: u64,
        len: usize,
        user: u64,
    ) {
        let (id, into) = self.operation(user, &vec![0; len], true);
        let (channel, oversize) = (Channel::Tagged, Oversize::Truncate);
        self.core.post_receive(id, Receive { channel, source, bits, mask, into, oversize });
        self.drain();
    }

    /// Forgets one name of another endpoint that has others.
    pub fn forget_name(&mut self, name: PeerId) {
        self.core.forget_name(name);
        self.drain();
    }

    pub fn request_taken(&mut self, peer: PeerId, session: u32, bytes: usize) {
        self.core.request_taken(peer, session, bytes as u32);
        self.drain();
    }

    /// Looks another endpoint up once more.
    pub fn peer_again(&mut self, other: usize) -> PeerId {
        self.peers.remove(&other);
        self.peer(other)
    }

    /// Forgets another endpoint.
    pub fn forget(&mut self, other: usize) {
        let peer = self.peers.remove(&other).expect("it was looked up");
        self.core.forget_peer(peer);
        self.drain();
    }

    /// Whether a poll would find something.
    pub fn is_ready(&mut self) -> bool {
        !self.rail.arm()
    }

    pub fn poll(&mut self, now: Time) {
        let Node { core, rail, buffers, pool, .. } = self;
        rail.poll(now, &mut Upper { core, buffers, pool });
        self.drain();
    }

    pub fn advance(&mut self, now: Time) {
        self.core.advance(now);
        self.drain();
    }

    /// Links of the rail, whatever their state.
    pub fn rail_links(&self) -> u64 {
        let counters = self.rail.counters();
        counters.links_up - counters.links_down
    }

    fn drain(&mut self) {
        while let Some(next) = self.core.next_output() {
            match next {
                Next::Frame | Next::PatientFrame => {
                    let frame = self.core.frame();
                    let token = frame.token;
                    let answer = self.rail.send(frame, &self.buffers);
                    self.core.ordered(token, answer);
                }
                Next::Completed => {
                    let Completion { operation, outcome, bytes, peer, .. } =
                        *self.core.completion();
                    let from = peer.and_then(|peer| self.number_of(peer));
                    self.ended(operation, outcome, bytes, from);
                }
                Next::Other => self.act(),
            }
        }
    }

    fn number_of(&self, peer: PeerId) -> Option<usize> {
        self.core.peer_endpoint(peer).map(|endpoint| endpoint as usize - 1)
    }

    fn ended(
        &mut self,
        id: OperationId,
        outcome: Result<(), Fault>,
        bytes: u64,
        from: Option<usize>,
    ) {
        let (generation, user, buffer, receives) = self.operations[id.0.index as usize];
        assert_eq!(generation, id.0.generation, "an operation ends once");
        self.free.push(id.0.index);
        let memory = self.buffers.remove(buffer);
        let received = memory.filter(|_| receives).and_then(Memory::into_pooled);
        let bytes = received.map_or(Vec::new(), |memory| memory[..bytes as usize].to_vec());
        self.heard.push(Heard::Ended { user, outcome, bytes, from });
    }

    fn act(&mut self) {
        match self.core.take_output() {
            Output::Raised
            | Output::Written { .. }
            | Output::Served { .. }
            | Output::Refused { .. } => {
                unreachable!("nobody uses exposed memory")
            }
            Output::Greet { .. } | Output::Seal { .. } => unreachable!("nobody has keys"),
            Output::Verb(verb) => {
                let token = match &verb {
                    Verb::Read { token, .. } | Verb::Write { token, .. } => *token,
                    _ => Token::NONE,
                };
                let answer = self.rail.order(&verb, &self.buffers);
                match (&verb, answer) {
                    (Verb::Revoke { link, key }, Ordered::Refused(_)) => {
                        self.core.revoked(*link, *key);
                    }
                    (
                        Verb::DetachSend { .. }
                        | Verb::SkipSend { .. }
                        | Verb::CancelAccess { .. }
                        | Verb::CancelReceive { .. },
                        answer,
                    ) => {
                        self.core.took_back(&verb, answer);
                    }
                    _ => self.core.ordered(token, answer),
                }
            }
            Output::Copy { from, to } => {
                self.buffers.copy(from, to);
            }
            Output::Release(buffer) => drop(self.buffers.remove(buffer)),
            Output::Keep { .. } => unreachable!("sessions are not kept over lost links here"),
            Output::Request { peer, session, payload, .. } => {
                // Of one whose session is over already nobody knows it.
                let from = self.number_of(peer).unwrap_or(usize::MAX);
                let memory = payload.and_then(|(buffer, _)| self.buffers.remove(buffer));
                let pooled = memory.and_then(Memory::into_pooled);
                let bytes = pooled.map_or(Vec::new(), |memory| memory.to_vec());
                self.heard.push(Heard::Request { from, bytes, peer, session });
            }
            Output::Connect { peer, attempt } => self.connect(peer, attempt),
            Output::Upgrade { peer, link } => self.core.no_upgrade(peer, link),
            Output::Join { .. } | Output::Abandon { .. } => {
                unreachable!("sessions have one path here")
            }
            Output::Aliased { alias, peer } => {
                if let Some(address) = self.addresses.get(&alias).cloned() {
                    self.addresses.entry(peer).or_insert(address);
                }
            }
            Output::PeerUp { .. }
            | Output::KeyJudged { .. }
            | Output::PeerDown { .. }
            | Output::Unexposed { .. }
            | Output::Path(_)
            | Output::Tune { .. } => {}
            Output::AskHealth { link } => self.core.path_health(link, None),
            Output::Measure { link } => self.core.path_measured(link, None),
        }
    }

    fn connect(&mut self, peer: PeerId, attempt: u32) {
        let told = || String::from_utf8_lossy(self.core.peer_addresses(peer)).to_string();
        let address = self.addresses.get(&peer).cloned().unwrap_or_else(told);
        let address = address.trim_start_matches("sim://");
        let link = (attempt == 0).then(|| self.rail.connect(address, self.core.now()));
        match link {
            Some(Ok(link)) => {
                let called = Called { way: 0, is_alone: true, is_told: false };
                self.core.connecting(peer, link, called)
            }
            _ => self.core.unreachable(peer),
        }
    }
}
