//! The client's side: calls through slots, sent again until they are answered.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, Origin};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::task::{Either, Notify, Semaphore, race};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_net::context::Completed;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Channel, Level, PeerId};
use ropewalk_wire::fs::head::{
    CALL_BYTES_MAX, CallHead, HEAD_BYTES, REPLY_BYTES_MAX, ReplyHead, SLOTS_MAX, Service, Status,
};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::{Acceptance, Capability, SEAL_BYTES, TAG_BYTES};
use ropewalk_wire::fs::{decode, encode};

use crate::gate::Gate;
use crate::trust::{Caller, Proof};

/// Why a call has no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    #[error("the server does not know this session any more")]
    NoSession,
    #[error("the session was fenced: its leases were given to others")]
    Fenced,
    #[error("the server refuses the call's number; this is a bug: please report it")]
    BadSequence,
    #[error(
        "the server and this program do not understand each other: run the same version of \
         Ropewalk on both sides"
    )]
    Malformed,
    #[error("the server did not answer within the limit")]
    TimedOut,
    #[error("the server that answers belongs to another cluster: {0}")]
    OtherCluster(ClusterId),
    #[error(
        "one side does not know the cluster's secret: compare the files 'cluster' of both hosts"
    )]
    Untrusted,
    #[error(
        "this program and the server did not prove who they are: give both key files of one cluster \
         (--key-file), and compare the clocks of both hosts"
    )]
    OtherKeys,
    #[error(
        "only servers of the cluster may make this call, and this program does not know the \
         cluster's secret"
    )]
    Unproven,
    #[error("the server is not in a group of the call by its map, which has epoch {0}")]
    OtherMap(u32),
    #[error("the server has met a metadata server of a newer term than this one")]
    OlderTerm,
    #[error("the capability that the call shows has expired, or is of former terms")]
    OldCapability,
    #[error("the call does not fit a message")]
    TooLong,
    #[error("too many calls are under way for this process's memory")]
    NoMemory,
}

/// The patience, name and proof of a connection.
#[derive(Clone)]
pub struct Options {
    /// The time a call waits for a server that is down, before it fails with `TimedOut`.
    pub limit: Duration,
    /// Told once for each wait that lasts longer than a second: the server's name.
    pub on_wait: Rc<dyn Fn(&str)>,
    /// The server's name, for people.
    pub name: String,
    /// Before there is a session a call fails at once where another cluster's server answers. Without, and
    /// later, its address may have gone to a stranger while the server got another one, or is down.
    pub refuses_strangers: bool,
    /// The proof of membership that each call carries. Replies have to prove it, too.
    pub proof: Option<Proof>,
    /// The term in which a metadata server makes calls outside of sessions.
    pub term: Term,
    /// Stops calls, and counts them, where several connections are to rest together.
    pub gate: Option<Rc<Gate>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limit: Duration::from_secs(60),
            on_wait: Rc::new(|_| ()),
            name: String::new(),
            refuses_strangers: false,
            proof: None,
            term: Term::default(),
            gate: None,
        }
    }
}

/// A reply: its head, and its body within the buffer in which it arrived.
#[derive(Debug)]
pub struct Reply {
    pub head: ReplyHead,
    buffer: PoolBuffer,
    bytes: usize,
}

impl Reply {
    /// The body, to be decoded by the caller.
    pub fn body(&self) -> &[u8] {
        &self.buffer[HEAD_BYTES..self.bytes]
    }
}

/// Calls to one server, or to the one of several servers that serves. Cloning gives another handle.
#[derive(Clone)]
pub struct Connection {
    inner: Rc<Inner>,
}

struct Inner {
    world: World,
    endpoint: LocalEndpoint,
    /// The servers that may serve, and the one that is called now.
    peers: Vec<PeerId>,
    turn: Cell<usize>,
    /// Those of several servers that did not answer the last call in time, each with the time that it gets for the next one.
    silent: RefCell<BTreeMap<usize, Duration>>,
    /// Told when another server is called.
    turned: Notify,
    /// The newest version that each server speaks, once it has said so.
    spoken: RefCell<BTreeMap<usize, u16>>,
    pool: Pool,
    options: Options,
    session: Cell<u64>,
    epoch: Cell<u32>,
    token: Cell<u64>,
    /// The newest term of the metadata server that was proven: replies of older ones are dropped.
    term: Cell<Term>,
    /// An answer was dropped, and none was taken since.
    outdated: Cell<bool>,
    /// The channel in which calls prove themselves, once it was begun, and the server at its end.
    channel: RefCell<Option<(PeerId, Rc<Caller>)>>,
    slots: Rc<Slots>,
    next_bits: Cell<u64>,
    /// When a call of a program was given up, where the server has answered none since.
    gave_up: Cell<Option<Time>>,
}

/// Terms of a call within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// The call goes in the name of this session and of no later one: `NoSession` where it went before the call could
    /// leave. None: in the name of the session that there is.
    pub session: Option<u64>,
    /// The capability for the file, where the session is bound.
    pub capability: Option<Capability>,
    /// The epoch of the map by which the server was chosen; 0 where none is needed.
    pub map: u32,
}

/// The slots of a session at one server. Connections to the server at several addresses share them: it knows the last number
/// of each, whatever address that came by.
struct Slots {
    /// Counts sessions: slots of an older one are not put back.
    round: Cell<u64>,
    permits: Semaphore,
    free: RefCell<VecDeque<Slot>>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    index: u16,
    sequence: u64,
    /// Its last call was given up, and may still wait at the server.
    given_up: bool,
}

/// Room for the body of most replies; a longer one is asked for again with room for any.
const REPLY_BYTES: usize = 40 * 1024;
/// Memory for calls and replies under way of one connection.
const POOL_BYTES: usize = 64 << 20;
const BACKOFF_MIN: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// A call without an answer is sent again after this long, although the link looks well.
const RESEND: Duration = Duration::from_secs(10);
/// The same, where another server may be the one that serves. One that works at a call for longer gets a copy of it, and knows
/// that.
const RESEND_AMONG: Duration = Duration::from_millis(500);
/// The same of a server that did not answer for so long: the one that takes its place is asked again soon. A quarter more each
/// time, until it is as long as before: it may be far away, or busy.
const RESEND_SILENT: Duration = Duration::from_millis(60);
/// The longest pause before the next one of several servers is asked: one may be about to take over.
const BACKOFF_AMONG: Duration = Duration::from_millis(100);
const TELL_AFTER: Duration = Duration::from_secs(1);
/// A call that begins so soon after another one was given up most likely belongs to the same system call, of
/// which the kernel makes several requests, or to the same program. It gets no second wait.
const MOMENT: Duration = Duration::from_millis(100);
/// The time such a call waits: enough for a server that is there again.
const SHORT: Duration = Duration::from_millis(10);

impl Connection {
    /// A connection without a session.
    pub fn new(
        world: &World,
        endpoint: &LocalEndpoint,
        peer: PeerId,
        options: Options,
    ) -> Connection {
        Connection::among(world, endpoint, vec![peer], options)
    }

    /// A connection without a session to the one of these servers that serves. They are tried in turn; the calls that went to one
    /// go to the next, in the same session.
    ///
    /// # Panics
    /// There is no server.
    pub fn among(
        world: &World,
        endpoint: &LocalEndpoint,
        peers: Vec<PeerId>,
        options: Options,
    ) -> Connection {
        assert!(!peers.is_empty(), "a connection without a server");
        // The reply to a call that was given up is for nobody, and must not hold the server's credit.
        endpoint.endpoint().drop_unawaited(Channel::Tagged);
        let slots = Rc::new(Slots {
            round: Cell::new(0),
            permits: Semaphore::new(usize::from(SLOTS_MAX)),
            free: RefCell::new(fresh_slots(0)),
        });
        Connection::with_slots(world, endpoint, peers, options, slots)
    }

    /// A connection to the same server at another address, in the same session. Calls that are under way keep their slots.
    pub fn moved(&self, peer: PeerId, options: Options) -> Connection {
        let Inner { world, endpoint, slots, .. } = &*self.inner;
        let moved = Connection::with_slots(world, endpoint, vec![peer], options, slots.clone());
        moved.inner.session.set(self.inner.session.get());
        moved.inner.epoch.set(self.inner.epoch.get());
        moved.inner.token.set(self.inner.token.get());
        moved.inner.term.set(self.inner.term.get());
        moved
    }

    fn with_slots(
        world: &World,
        endpoint: &LocalEndpoint,
        peers: Vec<PeerId>,
        options: Options,
        slots: Rc<Slots>,
    ) -> Connection {
        Connection {
            inner: Rc::new(Inner {
                world: world.clone(),
                endpoint: endpoint.clone(),
                peers,
                turn: Cell::new(0),
                silent: RefCell::default(),
                turned: Notify::new(),
                spoken: RefCell::default(),
                pool: Pool::with_budget(POOL_BYTES),
                options,
                session: Cell::new(0),
                epoch: Cell::new(0),
                token: Cell::new(0),
                term: Cell::default(),
                outdated: Cell::new(false),
                channel: RefCell::default(),
                slots,
                next_bits: Cell::new(world.random_u64()),
                gave_up: Cell::new(None),
            }),
        }
    }

    /// The server that is called now, as the message layer names it.
    pub fn peer(&self) -> PeerId {
        self.inner.peers[self.inner.turn.get()]
    }

    /// Whether this is a server that may serve.
    pub fn is_peer(&self, peer: PeerId) -> bool {
        let same = |known: &PeerId| self.inner.endpoint.endpoint().same_peer(peer, *known);
        self.inner.peers.iter().any(same)
    }

    /// This server did not serve: the next call goes to the next one. Calls that fail together turn once.
    fn turn_from(&self, peer: PeerId) {
        if self.peer() == peer {
            let next = self.inner.turn.get() + 1;
            self.inner.turn.set(next % self.inner.peers.len());
            if self.inner.peers.len() > 1 {
                self.inner.turned.notify_all();
            }
        }
    }

    /// The newest version that the server which is called now speaks; `None`: it has not said so yet.
    pub fn newest(&self) -> Option<u16> {
        self.inner.spoken.borrow().get(&self.inner.turn.get()).copied()
    }

    /// Whether the link to the server that is called now, which has answered before, is lost.
    pub fn is_linkless(&self) -> bool {
        let endpoint = self.inner.endpoint.endpoint();
        self.newest().is_some() && endpoint.peer_rail(self.peer()).is_none()
    }

    /// Completes when calls go to another one of several servers: the one before did not serve, or did not answer.
    pub fn turned(&self) -> impl Future<Output = ()> + use<> {
        self.inner.turned.notified()
    }

    /// The session that calls carry, or 0.
    pub fn session(&self) -> u64 {
        self.inner.session.get()
    }

    /// From now on calls carry this session, with the token by which servers know whose it is; its slots
    /// begin anew.
    pub fn set_session(&self, session: u64, epoch: u32, token: u64) {
        self.inner.session.set(session);
        self.inner.epoch.set(epoch);
        self.inner.token.set(token);
        let slots = &self.inner.slots;
        slots.round.set(slots.round.get() + 1);
        *slots.free.borrow_mut() = fresh_slots(0);
    }

    /// Calls in the session have numbers behind this one: another process made calls up to it.
    pub fn go_on_from(&self, sequence: u64) {
        *self.inner.slots.free.borrow_mut() = fresh_slots(sequence);
    }

    /// The highest number of a call in the slots that no call uses now.
    pub fn sequence(&self) -> u64 {
        let free = self.inner.slots.free.borrow();
        free.iter().map(|slot| slot.sequence).max().unwrap_or(0)
    }

    /// The newest term of the metadata server that was proven.
    pub fn term(&self) -> Term {
        self.inner.term.get()
    }

    /// A metadata server has proven that it serves in this term. From now on answers of an older term are as none.
    pub fn saw_term(&self, term: Term) {
        if term.is_ahead_of(self.inner.term.get()) {
            self.inner.term.set(term);
        }
    }

    /// The time a call that begins now waits for a server that is down.
    pub fn patience(&self) -> Duration {
        let limit = self.inner.options.limit;
        if self.gave_up_lately() { limit.min(SHORT) } else { limit }
    }

    /// Notes that a program waited here in vain since `begin`: where its patience ended, calls that
    /// follow at once do not wait as long again.
    pub fn give_up(&self, begin: Time) {
        let now = self.inner.world.now();
        // Those calls themselves are no reason: else a program in a loop would never wait again.
        if now.since(begin) >= self.inner.options.limit {
            self.inner.gave_up.set(Some(now));
        }
    }

    /// Whether a program's patience ended just now, and the server has answered nothing since.
    pub fn gave_up_lately(&self) -> bool {
        let now = self.inner.world.now();
        self.inner.gave_up.get().is_some_and(|gave_up| now < gave_up + MOMENT)
    }

    /// A call within the session.
    pub async fn call(&self, service: Service, body: &[u8]) -> Result<Reply, CallError> {
        self.call_with(service, body, REPLY_BYTES).await
    }

    /// A call on these terms.
    pub async fn call_as(
        &self,
        terms: Terms,
        service: Service,
        body: &[u8],
    ) -> Result<Reply, CallError> {
        self.call_in(terms, service, body, REPLY_BYTES).await
    }

    /// A call within the session whose reply's body most likely fits `reply_bytes` bytes.
    pub async fn call_with(
        &self,
        service: Service,
        body: &[u8],
        reply_bytes: usize,
    ) -> Result<Reply, CallError> {
        self.call_in(Terms::default(), service, body, reply_bytes).await
    }

    async fn call_in(
        &self,
        Terms { session, capability, map }: Terms,
        service: Service,
        body: &[u8],
        reply_bytes: usize,
    ) -> Result<Reply, CallError> {
        let inner = &*self.inner;
        if body.len() > CALL_BYTES_MAX {
            // Before a slot's number is used up for it.
            return Err(CallError::TooLong);
        }
        let slots = &*inner.slots;
        let _under_way = inner.options.gate.as_ref().map(|gate| gate.note());
        let _permit = slots.permits.acquire().await;
        if session.is_some_and(|session| session != inner.session.get()) {
            return Err(CallError::NoSession);
        }
        let round = slots.round.get();
        let taken = slots.free.borrow_mut().pop_front();
        let Some(mut slot) = taken else {
            unreachable!("a permit stands for a free slot");
        };
        slot.sequence += 1;
        slot.given_up = false;
        let mut guard = SlotGuard { slots, round, slot, answered: false };
        let head = CallHead {
            session: inner.session.get(),
            slot: slot.index,
            sequence: slot.sequence,
            reply_bits: self.next_bits(),
            epoch: inner.epoch.get(),
            token: inner.token.get(),
            capability,
            map,
            ..CallHead::free(service)
        };
        // A change that a lease allows is part of no other call: its bytes get all the time there is.
        let patience = if session.is_some() { inner.options.limit } else { self.patience() };
        let begin = inner.world.now();
        let reply = self.exchange(head, body, reply_bytes, patience).await;
        guard.answered = reply.is_ok();
        if matches!(reply, Err(CallError::TimedOut)) {
            self.give_up(begin);
        }
        reply
    }

    /// A call outside of any session and slot; it may take effect more than once.
    pub async fn call_free(&self, service: Service, body: &[u8]) -> Result<Reply, CallError> {
        self.call_free_with(service, body, REPLY_BYTES).await
    }

    /// As [`Connection::call_free`], by the map of this epoch.
    pub async fn call_free_by(
        &self,
        map: u32,
        service: Service,
        body: &[u8],
    ) -> Result<Reply, CallError> {
        let head = CallHead { map, ..self.free_head(service) };
        self.exchange(head, body, REPLY_BYTES, self.inner.options.limit).await
    }

    fn free_head(&self, service: Service) -> CallHead {
        let (reply_bits, epoch) = (self.next_bits(), self.inner.epoch.get());
        // Calls about the session itself are its own, too.
        let (token, term) = (self.inner.token.get(), self.inner.options.term.0);
        CallHead { reply_bits, epoch, token, term, ..CallHead::free(service) }
    }

    /// As [`Connection::call_free`], where the reply's body most likely fits `reply_bytes` bytes.
    pub async fn call_free_with(
        &self,
        service: Service,
        body: &[u8],
        reply_bytes: usize,
    ) -> Result<Reply, CallError> {
        let head = self.free_head(service);
        self.exchange(head, body, reply_bytes, self.inner.options.limit).await
    }

    fn next_bits(&self) -> u64 {
        let bits = self.inner.next_bits.get().wrapping_add(1);
        self.inner.next_bits.set(bits);
        bits
    }

    /// Sends until a reply is there, or patience ends.
    async fn exchange(
        &self,
        mut head: CallHead,
        body: &[u8],
        mut reply_bytes: usize,
        mut patience: Duration,
    ) -> Result<Reply, CallError> {
        let inner = &*self.inner;
        let _under_way = inner.options.gate.as_ref().map(|gate| gate.note());
        let begin = inner.world.now();
        let mut backoff = BACKOFF_MIN;
        let mut told = false;
        // Servers that this program has no business with.
        let mut strangers = BTreeSet::new();
        let is_alone = inner.peers.len() == 1;
        let longest = if is_alone { BACKOFF_MAX } else { BACKOFF_AMONG };
        loop {
            if let Some(gate) = &inner.options.gate {
                gate.pass().await;
            }
            // A server that works at a call for longer than the patience is not down.
            let turn = inner.turn.get();
            let resend = if patience > SHORT { self.resend_after(turn) } else { patience };
            let peer = inner.peers[turn];
            let outcome = self.attempt(peer, head, body, reply_bytes, resend).await;
            self.note_silence(turn, resend, &outcome);
            if let Ok(reply) = &outcome {
                inner.spoken.borrow_mut().insert(turn, reply.head.newest);
            }
            let outcome = outcome.and_then(|reply| self.in_term(reply));
            if let Ok(reply) = &outcome
                && !matches!(reply.head.status, Status::Unavailable | Status::Unproven)
            {
                inner.gave_up.set(None);
            }
            match outcome {
                Ok(reply) => match reply.head.status {
                    Status::Done => return Ok(reply),
                    Status::NoSession => return Err(CallError::NoSession),
                    Status::Fenced => return Err(CallError::Fenced),
                    Status::BadSequence => return Err(CallError::BadSequence),
                    Status::Malformed => return Err(CallError::Malformed),
                    Status::OtherMap => return Err(CallError::OtherMap(reply.head.map)),
                    Status::OlderTerm => return Err(CallError::OlderTerm),
                    Status::OldCapability => return Err(CallError::OldCapability),
                    // In a channel that the server does not know (any more): another one is begun.
                    Status::Unproven if inner.options.proof.is_some() && !reply.head.sealed => {}
                    Status::Unproven => return Err(CallError::Unproven),
                    Status::Unavailable | Status::Starting => self.turn_from(peer),
                },
                Err(Attempt::Truncated) if reply_bytes < REPLY_BYTES_MAX => {
                    // The server has the reply still, or executes a call without effects again.
                    (reply_bytes, head.retry) = (REPLY_BYTES_MAX, true);
                    continue;
                }
                Err(Attempt::Truncated) => return Err(CallError::TooLong),
                Err(Attempt::Final(error)) => {
                    let is_stranger = matches!(
                        error,
                        CallError::OtherCluster(_) | CallError::Untrusted | CallError::OtherKeys
                    );
                    strangers.insert(turn);
                    if !is_stranger || strangers.len() >= inner.peers.len() {
                        return Err(error);
                    }
                    self.turn_from(peer);
                }
                Err(Attempt::Silent | Attempt::Lost) => self.turn_from(peer),
            }
            head.retry = true;
            if inner.gave_up.get().is_none() {
                // It answers somebody: there is something to wait for.
                patience = inner.options.limit;
            }
            let left = self.wait_more(begin, patience, &mut told)?;
            inner.world.sleep(backoff.min(left)).await;
            backoff = (backoff * 2).min(longest);
        }
    }

    /// The time after which a call to the server with this turn is sent again.
    fn resend_after(&self, turn: usize) -> Duration {
        match self.inner.peers.len() {
            1 => RESEND,
            _ => self.inner.silent.borrow().get(&turn).copied().unwrap_or(RESEND_AMONG),
        }
    }

    /// Whether a server answered a call within this time. Calls that wait together have the same.
    fn note_silence(&self, turn: usize, waited: Duration, outcome: &Result<Reply, Attempt>) {
        let mut silent = self.inner.silent.borrow_mut();
        match outcome {
            Ok(_) => drop(silent.remove(&turn)),
            Err(Attempt::Silent) if waited >= RESEND_AMONG => {
                silent.insert(turn, RESEND_SILENT);
            }
            Err(Attempt::Silent) if waited >= RESEND_SILENT => {
                silent.insert(turn, (waited * 5 / 4).min(RESEND_AMONG));
            }
            Err(_) => {}
        }
    }

    /// A reply, if no newer term of the metadata server is known. One that says no term counts.
    fn in_term(&self, reply: Reply) -> Result<Reply, Attempt> {
        let inner = &*self.inner;
        let behind = reply.head.boot != 0 && Term(reply.head.boot).is_behind(inner.term.get());
        inner.outdated.set(behind);
        if behind { Err(Attempt::Lost) } else { Ok(reply) }
    }

    /// The rest of the patience, or `TimedOut`. Reports a wait of more than a second once.
    fn wait_more(
        &self,
        begin: Time,
        patience: Duration,
        told: &mut bool,
    ) -> Result<Duration, CallError> {
        let inner = &*self.inner;
        let waited = inner.world.now().since(begin);
        if waited >= patience {
            return Err(CallError::TimedOut);
        }
        if waited >= TELL_AFTER && !std::mem::replace(told, true) {
            let name = &inner.options.name;
            match inner.endpoint.endpoint().stranger(self.peer()) {
                None if inner.outdated.get() => {
                    (inner.options.on_wait)(&format!("{name}, where an older copy of it answers"));
                }
                Some(found) => {
                    let named = format!("{name}, where another cluster ({found}) answers");
                    (inner.options.on_wait)(&named);
                }
                None => (inner.options.on_wait)(name),
            }
        }
        Ok(patience - waited)
    }

    /// Sends the call once and waits for its reply.
    async fn attempt(
        &self,
        peer: PeerId,
        mut head: CallHead,
        body: &[u8],
        reply_bytes: usize,
        resend: Duration,
    ) -> Result<Reply, Attempt> {
        let Some(proof) = &self.inner.options.proof else {
            let message = message_of(&head, body);
            return self.deliver(peer, &head, &message, reply_bytes, resend).await;
        };
        let channel = self.channel(peer, proof, resend).await?;
        head.sealed = true;
        let mut message = message_of(&head, body);
        let counter = channel.seal(&mut message);
        let mut reply =
            self.deliver(peer, &head, &message, reply_bytes + TAG_BYTES, resend).await?;
        if !reply.head.sealed {
            self.inner.channel.borrow_mut().take();
            // Anybody may have sent that reply: a server that truly lost the channel gets another
            // introduction.
            let unproven = reply.head.status == Status::Unproven;
            return if unproven { Ok(reply) } else { Err(Attempt::Lost) };
        }
        let (told, tag) = reply.buffer[..reply.bytes].split_at(reply.bytes - TAG_BYTES);
        if !channel.is_answer(counter, told, tag) {
            return Err(Attempt::Lost);
        }
        reply.bytes -= TAG_BYTES;
        Ok(reply)
    }

    /// The channel to the server, which is begun where there is none.
    async fn channel(
        &self,
        peer: PeerId,
        proof: &Proof,
        resend: Duration,
    ) -> Result<Rc<Caller>, Attempt> {
        let inner = &*self.inner;
        if let Some((end, channel)) = &*inner.channel.borrow()
            && *end == peer
        {
            return Ok(channel.clone());
        }
        let identity = inner.endpoint.endpoint().identity();
        let own = Origin { endpoint: identity.endpoint, incarnation: identity.incarnation };
        let nonce = inner.world.random_u128();
        let mut body = Vec::new();
        encode(&proof.introduce(own, nonce), &mut body);
        let head = CallHead { reply_bits: self.next_bits(), ..CallHead::free(Service::Trust) };
        let reply =
            self.deliver(peer, &head, &message_of(&head, &body), REPLY_BYTES, resend).await?;
        let untrusted = Attempt::Final(CallError::Untrusted);
        match reply.head.status {
            Status::Done => {}
            Status::Unproven => return Err(untrusted),
            Status::Malformed => return Err(Attempt::Final(CallError::Malformed)),
            _ => return Err(Attempt::Lost),
        }
        let answer =
            decode::<Acceptance>(reply.body()).map_err(|_| Attempt::Final(CallError::Malformed))?;
        let server = inner.endpoint.endpoint().peer_origin(peer).ok_or(Attempt::Lost)?;
        let channel = proof.accepted((own, server), nonce, &answer).ok_or(untrusted)?;
        let channel = Rc::new(channel);
        *inner.channel.borrow_mut() = Some((peer, channel.clone()));
        Ok(channel)
    }

    /// Sends a message once and waits for its reply.
    async fn deliver(
        &self,
        peer: PeerId,
        head: &CallHead,
        message: &[u8],
        reply_bytes: usize,
        resend: Duration,
    ) -> Result<Reply, Attempt> {
        let inner = &*self.inner;
        let room = inner.pool.take(HEAD_BYTES + reply_bytes);
        let (Some(call), Some(room)) = (inner.pool.copy_of(message), room) else {
            return Err(Attempt::Final(CallError::NoMemory));
        };
        let bits = head.reply_bits;
        let memory = Memory::pooled(room);
        let receive = inner.endpoint.receive(Channel::Tagged, Some(peer), bits, memory);
        let memory = Memory::pooled(call);
        let send = inner.endpoint.send(peer, Channel::Request, 0, memory, Level::Buffered);
        let exchanged = async {
            // Waits, too, where the server stands still and gives no credit any more.
            match send.await.outcome {
                Ok(()) => read_reply(receive.await, head),
                Err(Fault::OtherCluster)
                    if inner.options.refuses_strangers && inner.session.get() == 0 =>
                {
                    let found = inner.endpoint.endpoint().stranger(peer).unwrap_or(ClusterId(0));
                    Err(Attempt::Final(CallError::OtherCluster(found)))
                }
                // Later its keys may be about to change: it is waited for.
                Err(Fault::Untrusted)
                    if inner.options.refuses_strangers && inner.session.get() == 0 =>
                {
                    Err(Attempt::Final(CallError::OtherKeys))
                }
                Err(Fault::Oversize) => Err(Attempt::Final(CallError::TooLong)),
                Err(_) => Err(Attempt::Lost),
            }
        };
        match race(exchanged, inner.world.sleep(resend)).await {
            Either::Left(outcome) => outcome,
            Either::Right(()) => Err(Attempt::Silent),
        }
    }
}

fn message_of(head: &CallHead, body: &[u8]) -> Vec<u8> {
    let seal = if head.sealed { SEAL_BYTES } else { 0 };
    let mut bytes = Vec::with_capacity(head.bytes() + body.len() + seal);
    head.encode(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

enum Attempt {
    /// The link was lost.
    Lost,
    /// No answer for long.
    Silent,
    /// The reply has no room.
    Truncated,
    Final(CallError),
}

fn read_reply(received: Completed, call: &CallHead) -> Result<Reply, Attempt> {
    match received.outcome {
        Ok(()) => {}
        Err(Fault::Truncated) => return Err(Attempt::Truncated),
        Err(_) => return Err(Attempt::Lost),
    }
    let bytes = received.bytes as usize;
    let Some(buffer) = received.memory.into_pooled() else { return Err(Attempt::Lost) };
    let decoded = ReplyHead::decode(&buffer[..bytes]).map(|(head, _)| head);
    match decoded {
        Ok(head) if head.sequence == call.sequence => Ok(Reply { head, buffer, bytes }),
        Ok(_) => Err(Attempt::Silent),
        Err(_) => Err(Attempt::Final(CallError::Malformed)),
    }
}

fn fresh_slots(sequence: u64) -> VecDeque<Slot> {
    (0..SLOTS_MAX).map(|index| Slot { index, sequence, given_up: false }).collect()
}

/// Puts a slot back when its call is over, answered or given up.
struct SlotGuard<'a> {
    slots: &'a Slots,
    round: u64,
    slot: Slot,
    answered: bool,
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        if self.round != self.slots.round.get() {
            return;
        }
        let mut free = self.slots.free.borrow_mut();
        if self.answered {
            // Used again soon: the server's memory of few slots is enough for quiet clients.
            let at = free.iter().take_while(|slot| slot.given_up).count();
            free.insert(at, self.slot);
        } else {
            // The server may still be at it, or never have heard of it; the next number of this slot
            // tells it to stop. So the next call takes it, before its caller changes what the one that
            // was given up would find.
            free.push_front(Slot { given_up: true, ..self.slot });
        }
    }
}
