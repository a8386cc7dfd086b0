//! The session with the metadata server: opening, renewing, losing, reclaiming, and its callbacks.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{Either, join_all, race};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_net::endpoint::PeerEvent;
use ropewalk_rpc::{Answer, CallError, Handler, Incoming, Marks, Responder, Server};
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::meta::{Callback, LeaseMode, MetaReply, MetaRequest};
use ropewalk_wire::fs::session::{SessionReply, SessionRequest, SessionResult};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::LIMITED;
use ropewalk_wire::fs::value::{Bytes, Errno, Timestamp};
use ropewalk_wire::fs::{decode, encode};

use crate::client::{Client, Inner};
use crate::clock::left;
use crate::error::ClientError;
use crate::inode::Inode;

/// Leases and opens that are reclaimed at a time: calls of programs that wait find a slot, too.
const RECLAIMS_AT_ONCE: usize = 32;

impl Client {
    pub(crate) async fn open_session(&self) -> Result<(), ClientError> {
        let inner = &*self.inner;
        let address = || inner.address.clone();
        let name = Bytes(inner.config.name.as_bytes());
        let request = SessionRequest::Open { client: inner.number, name };
        let sent = inner.world.now();
        let answer = self.session_call(&request).await;
        let (reply, boot) = answer.map_err(|error| self.no_session_for(error))?;
        match reply {
            Ok(SessionReply::Opened { root, .. })
                if inner.root.get().is_some_and(|known| known != root) =>
            {
                // The same numbers would name other files.
                (inner.config.log)(
                    "this client has another export now, with another root: unmount, and mount again",
                );
                Err(ClientError::OtherExport { address: address() })
            }
            Ok(opened @ SessionReply::Opened { .. }) => {
                inner.sequence_begin.set(0);
                self.has_session(opened, boot, sent);
                inner.reclaimed.set(boot);
                inner.boot.set(boot);
                Ok(())
            }
            Ok(_) => Err(ClientError::Version { address: address() }),
            Err(Errno::EUSERS) => Err(ClientError::TooManySessions { address: address() }),
            Err(Errno::EACCES) => Err(ClientError::NotLetIn { address: address() }),
            Err(errno) => Err(ClientError::Refused { address: address(), errno }),
        }
    }

    /// A call about the session itself had no reply.
    pub(crate) fn no_session_for(&self, error: CallError) -> ClientError {
        let address = self.inner.address.clone();
        match error {
            CallError::Malformed => ClientError::Version { address },
            CallError::OtherCluster(found) => {
                let own = self.inner.endpoint.endpoint().identity().cluster;
                ClientError::OtherCluster { address, found, own }
            }
            CallError::OtherKeys => ClientError::OtherKeys { address },
            _ => ClientError::Unreachable { address },
        }
    }

    /// The metadata server answered that this client has a session.
    pub(crate) fn has_session(&self, opened: SessionReply, boot: u64, sent: Time) {
        let SessionReply::Opened {
            session,
            root,
            epoch,
            token,
            recognition,
            term_milliseconds,
            now,
        } = opened
        else {
            return;
        };
        let inner = &*self.inner;
        inner.endpoint.endpoint().join_cluster_of(inner.meta.peer());
        inner.recognition.learn(recognition);
        inner.root.set(Some(root));
        inner.meta.set_session(session, epoch, token);
        inner.epoch.set(epoch);
        inner.token.set(token);
        inner.limited.set(token & LIMITED != 0);
        // As proven as the secret that came with it.
        inner.meta.saw_term(Term(boot));
        inner.term.set(Duration::from_millis(u64::from(term_milliseconds)));
        self.heard(sent, now);
        for server in inner.servers.borrow().values() {
            server.connection.set_session(session, epoch, token);
        }
    }

    pub(crate) async fn session_call(
        &self,
        request: &SessionRequest<'_>,
    ) -> Result<(SessionResult, u64), CallError> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let reply = self.inner.meta.call_free(Service::Session, &body).await?;
        match decode::<SessionResult>(reply.body()) {
            Ok(result) => {
                self.saw_marks(&reply.head);
                Ok((result, reply.head.boot))
            }
            Err(_) => Err(CallError::Malformed),
        }
    }

    /// The server does not know `lost` any more: everything that it covered is gone.
    pub(crate) async fn lost_session(&self, lost: u64) -> Result<(), Errno> {
        let _guard = self.inner.session_lock.acquire().await;
        // A process that takes a session over has none before it has that one.
        if self.inner.meta.session() != lost || lost == 0 {
            return Ok(());
        }
        if self.inner.stopped.get() {
            // It was closed, by us: a late call belongs to nobody any more.
            return Err(Errno::EIO);
        }
        if self.inner.meta.gave_up_lately() {
            // The task that had the turn before waited for this in vain, and we for its end.
            return Err(self.gave_up(CallError::TimedOut));
        }
        self.await_own_cluster(lost).await?;
        (self.inner.config.log)(
            "the session with the metadata server ended; this client opens a new one",
        );
        let inodes: Vec<_> = self.inner.inodes.borrow().values().cloned().collect();
        let is_nameless = |inode: &&Rc<Inode>| {
            let attributes = inode.state.borrow().attributes;
            inode.opened().is_some() && attributes.is_some_and(|it| it.link_count == 0)
        };
        let nameless = inodes.iter().filter(is_nameless).count();
        if nameless > 0 {
            (self.inner.config.log)(&format!(
                "{nameless} deleted files that were still open are lost with the session"
            ));
        }
        for inode in inodes {
            inode.lose_lease();
            inode.capability.set(None);
            // Data servers refuse from now on requests in the name of this session.
            inode.in_doubt.set(false);
            self.forget_above(&inode);
        }
        self.lose_locks();
        self.inner.entries.borrow_mut().clear();
        let begin = self.inner.world.now();
        self.open_session().await.map_err(|_| {
            self.inner.meta.give_up(begin);
            Errno::EIO
        })
    }

    /// Renews the session while the client lives.
    pub(crate) fn keep_session(&self) {
        let weak = Rc::downgrade(&self.inner);
        self.inner.world.spawn(async move {
            while let Some(inner) = weak.upgrade() {
                if inner.stopped.get() {
                    return;
                }
                let pause = inner.term.get() / 4;
                let world = inner.world.clone();
                drop(inner);
                world.sleep(pause).await;
                let Some(inner) = weak.upgrade() else { return };
                Client { inner }.renew().await;
            }
        });
    }

    /// Tells the server that the client lives, and learns whether the server is still the same.
    pub(crate) async fn renew(&self) {
        // One at a time: it is sent again until it is answered, and each link that is lost on the
        // way asks for one.
        if self.inner.renewing.replace(true) {
            return;
        }
        let session = self.inner.meta.session();
        let request = SessionRequest::Renew { session };
        let sent = self.inner.world.now();
        match self.session_call(&request).await {
            Ok((Ok(SessionReply::Renewed { now }), boot)) => {
                if self.inner.meta.session() == session {
                    self.heard(sent, now);
                }
                self.saw_boot(boot);
            }
            Ok((Ok(_), _)) => {}
            Ok((Err(_), _)) => {
                // A failure shows at the next operation; the next renewal tries again.
                let _ = self.lost_session(session).await;
            }
            Err(_) => {}
        }
        self.inner.renewing.set(false);
        self.inner.renewed.notify_all();
    }

    /// The server answered a request of that time: it keeps our session for a term from then on.
    fn heard(&self, sent: Time, server: Timestamp) {
        let inner = &*self.inner;
        inner.sure_until.set(sent + inner.term.get());
        inner.server_clock.told(sent, inner.world.now(), server);
    }

    /// The time for which the server keeps our leases and locks, whatever happens to the network or to us.
    pub fn sure_for(&self) -> Duration {
        left(self.inner.sure_until.get(), self.inner.world.now())
    }

    /// Makes sure that the session lives, if nobody heard of it for a term. A client that stood still for so
    /// long trusts nothing that it remembers before the server said that it may.
    pub(crate) async fn sure_session(&self) -> Result<(), Errno> {
        self.sure_session_for(false).await
    }

    /// As [`Client::sure_session`]. `only`: for an operation that nobody repeats, which waits for a
    /// whole patience also where somebody gave up just now.
    pub(crate) async fn sure_session_for(&self, only: bool) -> Result<(), Errno> {
        let inner = &*self.inner;
        let is_sure = || inner.world.now() < inner.sure_until.get();
        if is_sure() {
            return Ok(());
        }
        // One patience for any number of renewals by any task: a renewal may be nearly over, in vain, when
        // this one begins to wait for it.
        let begin = inner.world.now();
        let patience = if only { inner.config.patience } else { inner.meta.patience() };
        let mut asked = false;
        while !is_sure() {
            if inner.stopped.get() {
                return Ok(());
            }
            let renewed = inner.renewed.notified();
            let left = left(begin + patience, inner.world.now());
            if left.is_zero() {
                inner.meta.give_up(begin);
                return Err(self.gave_up(CallError::TimedOut));
            }
            if !inner.renewing.get() {
                if std::mem::replace(&mut asked, true) {
                    return Err(Errno::EIO);
                }
                // It goes on when this one has given up, or is dropped.
                let client = self.clone();
                inner.world.spawn(async move { client.renew().await });
            }
            let _ = race(renewed, inner.world.sleep(left)).await;
        }
        Ok(())
    }

    /// A reply of another life of the server: our leases and locks are reclaimed.
    pub(crate) fn saw_boot(&self, boot: u64) {
        let before = self.inner.boot.replace(boot);
        if before != boot && before != 0 {
            let client = self.clone();
            self.inner.world.spawn(async move { client.reclaim().await });
        }
    }

    /// Takes up after the server's restart the leases and locks of this session.
    async fn reclaim(&self) {
        let _guard = self.inner.session_lock.acquire().await;
        while self.inner.reclaimed.get() != self.inner.boot.get() {
            let boot = self.inner.boot.get();
            self.prove_term(boot).await;
            self.reclaim_all(boot).await;
            // If the server was restarted again meanwhile, it knows nothing of what it was told before. If
            // only a link was lost, it knows all of it, and the rest is not told again: the server takes no
            // more once it has heard that this is all.
            while self.inner.boot.get() == boot && self.inner.reclaimed.get() != boot {
                self.inner.entries.borrow_mut().clear();
                if !self.end_reclaim(boot).await {
                    return;
                }
            }
        }
    }

    /// Says that this is all, to this life of the server. False where the session is lost.
    async fn end_reclaim(&self, boot: u64) -> bool {
        // This must not be sent again to a later life, which would take it for its own.
        let down = self.inner.down.notified();
        let done = self.ask_in_grace(&MetaRequest::ReclaimDone, |_| Ok(()));
        match race(done, down).await {
            Either::Left(_) if self.inner.boot.get() == boot => self.inner.reclaimed.set(boot),
            Either::Left(_) => {}
            Either::Right(()) => {
                let session = self.inner.meta.session();
                match self.session_call(&SessionRequest::Renew { session }).await {
                    Ok((Ok(_), boot)) => self.saw_boot(boot),
                    // Leases and locks that are not reclaimed are lost with the session, as the next call
                    // finds.
                    _ => return false,
                }
            }
        }
        true
    }

    async fn reclaim_all(&self, boot: u64) {
        let inodes: Vec<_> = self.inner.inodes.borrow().values().cloned().collect();
        for some in inodes.chunks(RECLAIMS_AT_ONCE) {
            join_all(some.iter().map(|inode| self.reclaim_one(boot, inode))).await;
            if self.inner.boot.get() != boot {
                return;
            }
        }
    }

    async fn reclaim_one(&self, boot: u64, inode: &Rc<Inode>) {
        let (mode, open) = (inode.mode(), inode.opened());
        if mode == LeaseMode::None && open.is_none() {
            return;
        }
        let request = MetaRequest::Reclaim { inode: inode.number, mode, open };
        let answer = self
            .ask_in_grace(&request, |reply| match reply {
                MetaReply::Attributes { attributes, grant } => Ok((attributes, grant)),
                _ => Err(Errno::EPROTO),
            })
            .await;
        if self.inner.boot.get() != boot {
            return;
        }
        let reclaimed = answer.is_ok_and(|(attributes, grant)| inode.reclaimed(attributes, grant));
        if !reclaimed {
            inode.lose_lease();
            self.forget_above(inode);
        }
    }

    /// Caches above us forget an inode whose lease is gone, as soon as they can. Nobody waits for it
    /// here: the kernel waits for its own requests first, and those wait for the session.
    fn forget_above(&self, inode: &Rc<Inode>) {
        let forgotten = self.invalidate().inode(inode.number);
        let inode = inode.clone();
        let (times, pending) = inode.orphans.get();
        inode.orphans.set((times + 1, pending + 1));
        self.inner.world.spawn(async move {
            forgotten.await;
            let (times, pending) = inode.orphans.get();
            inode.orphans.set((times, pending - 1));
        });
    }

    async fn ask_in_grace<T>(
        &self,
        request: &MetaRequest<'_>,
        read: impl FnOnce(MetaReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let reply = self.inner.meta.call(Service::Meta, &body).await;
        let reply = reply.map_err(|error| self.gave_up(error))?;
        self.saw_marks(&reply.head);
        self.saw_boot(reply.head.boot);
        match decode(reply.body()) {
            Ok(Ok(reply)) => read(reply),
            Ok(Err(errno)) => Err(errno),
            Err(_) => Err(Errno::EPROTO),
        }
    }

    /// Takes callbacks of the metadata server.
    pub(crate) fn serve_callbacks(&self) {
        let handler = Rc::new(Callbacks { inner: Rc::downgrade(&self.inner) });
        Server::start(&self.inner.world, self.inner.endpoint.clone(), handler);
    }

    /// Notices when the link to the metadata server is lost, or calls go to another one. Not without a session, which is
    /// then asked for.
    pub(crate) fn watch_server(&self) {
        let weak = Rc::downgrade(&self.inner);
        let world: World = self.inner.world.clone();
        let endpoint = self.inner.endpoint.clone();
        // A lost link may mean that the server was restarted, or that another one took over: it waits for our reclaims.
        world.spawn(async move {
            loop {
                let Some(turned) = weak.upgrade().map(|inner| inner.meta.turned()) else { return };
                let event = race(endpoint.event(), turned).await;
                let Some(inner) = weak.upgrade() else { return };
                let is_ours = match event {
                    Either::Left(PeerEvent::Down(peer, _)) => inner.meta.is_peer(peer),
                    Either::Left(_) => false,
                    Either::Right(()) => true,
                };
                if is_ours && !inner.stopped.get() {
                    inner.down.notify_all();
                    let client = Client { inner };
                    client.inner.world.clone().spawn(async move { client.renew().await });
                }
            }
        });
    }

    /// Ends the session in good order: changes are reported, leases given back.
    pub async fn stop(&self) {
        if self.inner.stopped.replace(true) {
            return;
        }
        self.report_all().await;
        let request = SessionRequest::Close { session: self.inner.meta.session() };
        // A server that is gone ends the session by its term.
        let _ = self.session_call(&request).await;
    }
}

struct Callbacks {
    inner: std::rc::Weak<Inner>,
}

impl Handler for Callbacks {
    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        let answer = |status| Answer { status, body: Vec::new(), marks: Marks::default() };
        let Some(inner) = self.inner.upgrade() else { return };
        let client = Client { inner };
        // Also while calls go round: the term says which of them serves.
        let from_meta = client.inner.meta.is_peer(incoming.peer);
        let decoded = decode::<Callback>(incoming.body());
        let (true, Service::Callback, Ok(callback)) = (from_meta, incoming.head.service, decoded)
        else {
            return responder.send(answer(Status::Malformed));
        };
        if Term(incoming.head.term).is_behind(client.inner.meta.term()) {
            return responder.send(answer(Status::OlderTerm));
        }
        responder.send(answer(Status::Done));
        match callback {
            Callback::Recall { inode, number, keep } => {
                client.count(|counts| counts.recalls += 1);
                let world = client.inner.world.clone();
                world.spawn(async move { client.recalled(inode, number, keep).await });
            }
            Callback::Grown { inode, size, number } => {
                let world = client.inner.world.clone();
                world.spawn(async move { client.grown(inode, size, number).await });
            }
            Callback::TellUnlocked { inode, number } => {
                let world = client.inner.world.clone();
                world.spawn(async move { client.tell_unlocked(inode, number).await });
            }
            Callback::LockGranted { inode, owner, start } => {
                client.inner.granted.borrow_mut().push((inode, owner, start));
                client.inner.granted_notify.notify_all();
            }
        }
    }
}
