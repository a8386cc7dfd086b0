//! Calls: from the message to the shard, and their replies back.
//!
//! Invariants:
//! * a call is executed only when the store has room for the changes that it may commit;
//! * calls are executed in the order in which they came;
//! * a call that waits has its responder under its ticket, at most one for each slot.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ropewalk_base::ids::{EndpointId, Incarnation, Origin};
use ropewalk_base::level::Level;
use ropewalk_net::PeerId;
use ropewalk_rpc::trust::{is_same_tag, moved, recognised};
use ropewalk_rpc::{Answer, Handler, Incoming, Responder, Secret};
use ropewalk_store::error::bytes;
use ropewalk_store::{MetaStore, Room, StoreError};
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::meta::{MetaRequest, MetaResult};
use ropewalk_wire::fs::session::{SessionReply, SessionRequest, SessionResult};
use ropewalk_wire::fs::trust::Member;
use ropewalk_wire::fs::upgrade::NEEDED_VERSION;
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::MetaServer;
use super::admission::Turned;
use super::counters;
use super::release::Held;
use super::status;
use crate::sessions::SessionOwner;
use crate::shard::{Admission, Call, Completed, Opening, Outcome, Reply};

/// The time after a start for which sessions wait for the first heartbeats of all data servers.
const CONFIRMATION_LIMIT: Duration = Duration::from_millis(500);
/// The pause before a full disk is asked again.
const FULL_RETRY: Duration = Duration::from_millis(100);

/// A call that was not looked at yet.
pub(super) struct Arrived {
    incoming: Incoming,
    pub responder: Responder,
}

struct Waiter {
    session: u64,
    slot: u16,
    responder: Responder,
}

/// Calls that the shard lets wait, by ticket.
#[derive(Default)]
pub(super) struct Waiting {
    calls: BTreeMap<u64, Waiter>,
    /// The ticket of each slot of a session.
    slots: BTreeMap<(u64, u16), u64>,
}

impl Waiting {
    fn insert(&mut self, ticket: u64, session: u64, slot: u16, responder: Responder) {
        if session != 0 {
            self.slots.insert((session, slot), ticket);
        }
        self.calls.insert(ticket, Waiter { session, slot, responder });
    }

    fn take(&mut self, ticket: u64) -> Option<Responder> {
        let waiter = self.calls.remove(&ticket)?;
        let slot = (waiter.session, waiter.slot);
        if self.slots.get(&slot) == Some(&ticket) {
            self.slots.remove(&slot);
        }
        Some(waiter.responder)
    }

    /// Takes all calls out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Responder> + use<> {
        self.slots.clear();
        std::mem::take(&mut self.calls).into_values().map(|waiter| waiter.responder)
    }

    /// Takes the call of a slot out, which a newer one replaces.
    fn take_slot(&mut self, session: u64, slot: u16) -> Option<Responder> {
        let ticket = *self.slots.get(&(session, slot))?;
        self.take(ticket)
    }

    fn take_session(&mut self, session: u64) -> Vec<Responder> {
        let slots = self.slots.range((session, 0)..=(session, u16::MAX));
        let tickets: Vec<u64> = slots.map(|(_, ticket)| *ticket).collect();
        tickets.into_iter().filter_map(|ticket| self.take(ticket)).collect()
    }
}

/// Sessions as they were opened in this life of the server, by client: a request to open that comes
/// once more, late, must not end the session that it opened.
#[derive(Default)]
pub(super) struct Openings {
    clients: BTreeMap<(u128, Origin), (u64, Opening)>,
}

impl Openings {
    pub fn forget(&mut self, session: u64) {
        self.clients.retain(|_, (_, opening)| opening.session != session);
    }
}

impl Handler for MetaServer {
    fn secret(&self) -> Option<Secret> {
        Some(self.config.secret.clone())
    }

    fn saw_pretender(&self, member: Member, peer: PeerId) {
        self.note_pretender(member, peer);
    }

    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        let mut arrived = Arrived { incoming, responder };
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            drop(backlog);
            let room = pin!(self.store.ready()).poll(&mut Context::from_waker(Waker::noop()));
            match room {
                Poll::Ready(room) => {
                    self.note_room(room.err().as_ref());
                    return self.serve(arrived);
                }
                Poll::Pending => backlog = self.backlog.borrow_mut(),
            }
        }
        arrived.responder.note_arrival(self.world.now());
        let (peer, bytes) = (arrived.incoming.peer, arrived.incoming.occupied_bytes());
        // One that is dropped is sent again by its client.
        if backlog.push(peer, bytes, arrived) {
            drop(backlog);
            self.backlog_added.notify_all();
        }
    }
}

impl MetaServer {
    /// Notes the store's room. On a disk that is nearly full the shard refuses requests that take room and
    /// serves the rest. On a full disk it refuses requests that would change anything.
    pub(super) fn note_room(self: &Rc<Self>, error: Option<&StoreError>) {
        let full = error.filter(|error| error.is_full());
        if let Some(error) = error.filter(|_| full.is_none()) {
            self.fail(error);
        }
        let room = self.store.room();
        let admission = match (full, room) {
            (Some(_), _) => Admission::Nothing,
            (None, Room::Ample) => Admission::All,
            (None, Room::Short { .. }) => Admission::NoGrowth,
            (None, Room::Tight { .. }) => Admission::Freeing,
        };
        if admission == self.admission.replace(admission) {
            return;
        }
        self.tell_room(room, full);
        let now = self.now();
        if let Some(mut shard) = self.shard() {
            shard.set_admission(admission, now);
        }
        self.drain();
    }

    fn tell_room(&self, room: Room, full: Option<&StoreError>) {
        let directory = self.config.directory.display();
        (self.config.log)(&match (full, room) {
            (Some(error), _) => {
                format!("{}{error}; nothing changes until then", Level::Error.mark())
            }
            (None, Room::Ample) => {
                format!("{}there is room for new files in {directory} again", Level::Note.mark())
            }
            (None, Room::Short { missing }) => format!(
                "the disk of {directory} is nearly full: nothing new is created until {} more are \
                 free there; files can still be removed and truncated",
                bytes(missing)
            ),
            (None, Room::Tight { missing }) => format!(
                "the disk of {directory} is full, and half of the reserve for removals is used: \
                 the server only does what frees space until {} more are free there",
                bytes(missing)
            ),
        });
    }

    /// Waits until the shard may commit; false where the store failed.
    pub(super) async fn wait_for_room(self: &Rc<Self>) -> bool {
        loop {
            let room = self.store.ready().await;
            self.note_room(room.as_ref().err());
            match room {
                Ok(()) => return true,
                Err(error) if error.is_full() => self.world.sleep(FULL_RETRY).await,
                Err(_) => return false,
            }
        }
    }

    /// Serves the calls that came while the store had no room.
    pub(super) async fn serve_backlog(self: Rc<Self>) {
        loop {
            let added = self.backlog_added.notified();
            if self.backlog.borrow().is_empty() {
                added.await;
                continue;
            }
            let room = self.store.ready().await;
            self.note_room(room.err().as_ref());
            let arrived = self.backlog.borrow_mut().pop();
            if let Some(arrived) = arrived {
                self.serve(arrived);
            }
        }
    }

    fn serve(self: &Rc<Self>, arrived: Arrived) {
        let Arrived { incoming, responder } = arrived;
        if self.failure.borrow().is_some() || self.shard().is_none() {
            return self.send(responder, Status::Unavailable, Vec::new());
        }
        match incoming.head.service {
            Service::Meta if incoming.head.session != 0 && !self.is_confirmed() => {
                self.send(responder, Status::Starting, Vec::new());
            }
            Service::Meta => self.serve_meta(incoming, responder),
            Service::Session if !self.is_confirmed() => {
                self.send(responder, Status::Starting, Vec::new());
            }
            Service::Session => self.serve_session(&incoming, responder),
            Service::Standby => self.serve_standby(&incoming, responder),
            Service::Data | Service::Callback | Service::Trust | Service::Election => {
                self.send(responder, Status::Malformed, Vec::new());
            }
        }
        self.drain();
    }

    /// Whether sessions are served. A data server that met a newer start of this store says so in its first
    /// heartbeat. Before that, an older copy could acknowledge changes of clients, and they would be lost
    /// with it. Data servers that are down are not waited for.
    fn is_confirmed(&self) -> bool {
        if !self.confirmed.get() {
            let heard = self.shard().is_none_or(|shard| shard.pools.all_heard());
            let waited = self.world.now().since(self.started) >= CONFIRMATION_LIMIT;
            self.confirmed.set(heard || waited);
        }
        self.confirmed.get()
    }

    fn serve_meta(self: &Rc<Self>, incoming: Incoming, mut responder: Responder) {
        let Ok(request) = decode::<MetaRequest<'_>>(incoming.body()) else {
            return self.send(responder, Status::Malformed, Vec::new());
        };
        if let Err(turned) = self.admit(&incoming, &request) {
            return self.turn(responder, turned);
        }
        let (kind, now) = (counters::kind(&request), self.now());
        self.counters.count(kind, counters::carried(&request));
        responder.note_kind(kind as u16, now.time);
        if status::is_status(&request) {
            return self.answer_status(&request, responder);
        }
        if let MetaRequest::Heartbeat(beat) = request {
            return match self.is_contested(&beat) {
                true => self.start_contest(incoming, responder),
                false => {
                    let from = (incoming.peer, incoming.head);
                    self.serve_heartbeat(&beat, from, responder)
                }
            };
        }
        let head = incoming.head;
        let (session, slot, sequence) = (head.session, head.slot, head.sequence);
        let call = Call { session, slot, sequence, request, now };
        let outcome = match self.shard() {
            Some(mut shard) => shard.execute(call),
            None => Outcome::Refused(Status::Unavailable),
        };
        if let MetaRequest::Order(order) = &request {
            self.tell_order(order, &outcome);
        }
        match outcome {
            Outcome::Refused(status) => return self.send(responder, status, Vec::new()),
            Outcome::Denied(errno) => {
                let turned = Turned::Down(errno);
                // Another's name is a stranger's; other refusals tell a client of its session's terms.
                let turned = if errno == Errno::EPERM { self.stranger(turned) } else { turned };
                return self.turn(responder, turned);
            }
            Outcome::Reply(_) | Outcome::Wait(_) => {}
        }
        if session != 0 {
            self.saw_client(session, incoming.peer);
            drop(self.waiting.borrow_mut().take_slot(session, slot));
        }
        self.finish(responder, session, slot, outcome);
    }

    /// A call that waited is done.
    pub(super) fn complete(self: &Rc<Self>, done: Completed) {
        let responder = self.waiting.borrow_mut().take(done.ticket);
        if let Some(responder) = responder {
            self.finish(responder, done.session, done.slot, done.outcome);
        }
    }

    pub(super) fn finish(
        self: &Rc<Self>,
        responder: Responder,
        session: u64,
        slot: u16,
        outcome: Outcome,
    ) {
        match outcome {
            Outcome::Reply(Reply { bytes, position, durable }) => {
                let held = Held::Reply { responder, body: bytes };
                if durable && position > self.store.durable().0 {
                    self.until_durable.hold(position, held);
                } else {
                    self.when_written(position, held);
                }
            }
            Outcome::Wait(ticket) => {
                self.waiting.borrow_mut().insert(ticket, session, slot, responder);
            }
            Outcome::Refused(status) => self.send(responder, status, Vec::new()),
            Outcome::Denied(errno) => self.turn(responder, Turned::Down(errno)),
        }
    }

    /// Answers a call that its sender may not make.
    fn turn(&self, responder: Responder, turned: Turned) {
        match turned {
            Turned::Away(status) => self.send(responder, status, Vec::new()),
            Turned::Down(errno) => {
                let (result, mut body): (MetaResult<'_>, _) = (Err(errno), Vec::new());
                encode(&result, &mut body);
                self.send(responder, Status::Done, body);
            }
        }
    }

    /// Answers the calls of a session that ends while they wait.
    pub(super) fn refuse_waiting(&self, session: u64, status: Status) {
        let responders = self.waiting.borrow_mut().take_session(session);
        for responder in responders {
            self.send(responder, status, Vec::new());
        }
    }

    /// Sends a reply, if this server may still act: the last thing before it leaves.
    pub(super) fn send(&self, responder: Responder, status: Status, body: Vec<u8>) {
        let marks = self.marks();
        if let Some((kind, began)) = responder.counted() {
            self.counters.took(kind, self.world.now().since(began));
        }
        match self.may_act() {
            true => responder.send(Answer { status, body, marks }),
            false => {
                responder.send(Answer { status: Status::Unavailable, body: Vec::new(), marks })
            }
        }
    }

    fn serve_session(self: &Rc<Self>, incoming: &Incoming, mut responder: Responder) {
        let Ok(request) = decode::<SessionRequest<'_>>(incoming.body()) else {
            return self.send(responder, Status::Malformed, Vec::new());
        };
        let kind = counters::session_kind(&request);
        self.counters.count(kind, 0);
        responder.note_kind(kind as u16, self.world.now());
        if self.is_of_former_format(incoming) {
            return self.send(responder, Status::Malformed, Vec::new());
        }
        let (result, position): (SessionResult, u64) = match request {
            SessionRequest::Open { client, name } => {
                let bits = incoming.head.reply_bits;
                let opened = self.identity_of(incoming).and_then(|identity| {
                    let export = self.export_of(incoming, &identity)?;
                    let owner = SessionOwner::new(incoming.origin, identity, export);
                    self.open_session((client, name.0), owner, bits)
                });
                let opening = match opened {
                    Ok(opening) => opening,
                    Err(Turned::Away(status)) => {
                        return self.send(responder, status, Vec::new());
                    }
                    Err(Turned::Down(errno)) => {
                        let (result, mut body): (SessionResult, _) = (Err(errno), Vec::new());
                        encode(&result, &mut body);
                        return self.send(responder, Status::Done, body);
                    }
                };
                (Ok(self.opened(incoming, opening)), opening.position)
            }
            SessionRequest::Move { session, endpoint, incarnation, tag } => {
                let from = Origin {
                    endpoint: EndpointId(endpoint),
                    incarnation: Incarnation(incarnation),
                };
                match self.move_session(incoming, session, from, tag) {
                    Ok(opening) => (Ok(self.opened(incoming, opening)), opening.position),
                    Err(Turned::Away(status)) => {
                        return self.send(responder, status, Vec::new());
                    }
                    Err(Turned::Down(errno)) => (Err(errno), 0),
                }
            }
            SessionRequest::Renew { session } | SessionRequest::Close { session }
                if !self.may_end(session, incoming) =>
            {
                match request {
                    SessionRequest::Renew { .. } => (Err(Errno::ESTALE), 0),
                    _ => (Ok(SessionReply::Done), 0),
                }
            }
            SessionRequest::Renew { session } if !self.keeps_export(session, incoming) => {
                (Err(Errno::ESTALE), 0)
            }
            SessionRequest::Renew { session } => {
                self.note_version(session, incoming.head.newest);
                (self.renew(session, incoming.peer), 0)
            }
            SessionRequest::Recognise { session, nonce } => {
                let recognition = self.grantor.recognition(session, incoming.origin);
                let tag = recognised(recognition, nonce, self.term.term());
                (Ok(SessionReply::Recognised { tag }), 0)
            }
            SessionRequest::Close { session } => {
                // One that is not there was closed by the first copy of this, or ended by itself.
                (Ok(SessionReply::Done), self.close(session).unwrap_or(0))
            }
        };
        let mut body = Vec::new();
        encode(&result, &mut body);
        self.when_written(position, Held::Reply { responder, body });
    }

    /// The answer about a session that is the sender's from now on.
    fn opened(self: &Rc<Self>, incoming: &Incoming, opening: Opening) -> SessionReply {
        let Opening { session, epoch, .. } = opening;
        self.note_version(session, incoming.head.newest);
        self.saw_client(session, incoming.peer);
        let term = self.config.shard.term.as_millis();
        // A late copy of the request may come when its sender is known less well.
        let limited = self.is_bound(session);
        SessionReply::Opened {
            session,
            root: self.root_of(session),
            epoch,
            token: self.grantor.token(session, incoming.origin, limited),
            recognition: self.grantor.recognition(session, incoming.origin),
            term_milliseconds: u32::try_from(term).unwrap_or(u32::MAX),
            now: self.now().calendar,
        }
    }

    /// A process goes on with the session of another one of its client's. It proves by the recognition that the
    /// endpoint `from` told it of the session; it has to be the user whose session it is.
    fn move_session(
        self: &Rc<Self>,
        incoming: &Incoming,
        session: u64,
        from: Origin,
        tag: u128,
    ) -> Result<Opening, Turned> {
        let to = incoming.origin;
        let proof = moved(self.grantor.recognition(session, from), session, to);
        if !is_same_tag(proof, tag) {
            return Err(self.stranger(Turned::Down(Errno::ESTALE)));
        }
        let identity = self.identity_of(incoming)?;
        let export = self.export_of(incoming, &identity)?;
        let unavailable = || Turned::Away(Status::Unavailable);
        let now = self.now();
        let mut shard = self.shard().ok_or_else(unavailable)?;
        let found = shard.sessions.get(session).filter(|found| !found.row.fencing);
        let row = found.map(|found| &found.row).ok_or(Turned::Down(Errno::ESTALE))?;
        let (owner, epoch) = (row.owner.origin(), row.epoch);
        if !row.owner.identity.admits(&identity) || row.owner.export != export {
            return Err(Turned::Down(Errno::EACCES));
        }
        if owner == to {
            // It came once more.
            let position = shard.position();
            return Ok(Opening { session, epoch, position });
        }
        if owner != from {
            return Err(Turned::Down(Errno::ESTALE));
        }
        if self.admission.get() == Admission::Nothing {
            return Err(unavailable());
        }
        let moved = shard.move_session(session, to, now);
        drop(shard);
        let position = moved.map_err(|error| {
            self.fail(&error);
            unavailable()
        })?;
        self.clients.forget_token(session);
        drop(self.waiting.borrow_mut().take_session(session));
        self.openings.borrow_mut().forget(session);
        let position = position.ok_or(Turned::Down(Errno::ESTALE))?;
        Ok(Opening { session, epoch, position })
    }

    /// Whether a client may know pools of a format that is no more: nobody would ever answer what it asks by them.
    fn is_of_former_format(&self, incoming: &Incoming) -> bool {
        let is_old = incoming.head.newest < NEEDED_VERSION;
        is_old && self.shard().is_some_and(|shard| shard.was_lifted())
    }

    /// The client of a session speaks this version and those before.
    fn note_version(&self, session: u64, newest: u16) {
        if let Some(mut shard) = self.shard() {
            shard.note_client_version(session, newest);
        }
    }

    fn is_bound(&self, session: u64) -> bool {
        self.shard().is_none_or(|shard| shard.sessions.is_bound(session))
    }

    /// A session; unavailable where there can be none now, `EUSERS` where there are too many.
    fn open_session(
        self: &Rc<Self>,
        (client, name): (u128, &[u8]),
        owner: SessionOwner,
        bits: u64,
    ) -> Result<Opening, Turned> {
        let unavailable = || Turned::Away(Status::Unavailable);
        let asker = (client, owner.origin());
        if let Some((known, opening)) = self.openings.borrow().clients.get(&asker)
            && *known == bits
        {
            return Ok(*opening);
        }
        let now = self.now();
        if self.admission.get() == Admission::Nothing {
            return Err(unavailable());
        }
        let mut shard = self.shard().ok_or_else(unavailable)?;
        if let Err(errno) = shard.make_room(&owner, now) {
            self.lines.say(
                "refused a session: one user, or all users together, have the maximum number of \
                 sessions",
            );
            return Err(if errno == Errno::EAGAIN { unavailable() } else { Turned::Down(errno) });
        }
        let opened = shard.open_named_session((client, name), owner, now);
        drop(shard);
        let opening = opened.map_err(|error| {
            self.fail(&error);
            unavailable()
        })?;
        self.openings.borrow_mut().clients.insert(asker, (bits, opening));
        Ok(opening)
    }

    fn renew(self: &Rc<Self>, session: u64, peer: PeerId) -> SessionResult {
        let now = self.now();
        if self.shard().is_some_and(|mut shard| shard.renew_session(session, now)) {
            self.saw_client(session, peer);
            Ok(SessionReply::Renewed { now: now.calendar })
        } else {
            Err(Errno::ESTALE)
        }
    }

    /// The position of the session's end.
    fn close(&self, session: u64) -> Option<u64> {
        let now = self.now();
        let position = self.shard()?.close_session(session, now)?;
        self.refuse_waiting(session, Status::NoSession);
        self.forget_session(session);
        Some(position)
    }

    /// The session ended.
    pub(super) fn forget_session(&self, session: u64) {
        self.clients.forget(session);
        self.openings.borrow_mut().forget(session);
    }
}
