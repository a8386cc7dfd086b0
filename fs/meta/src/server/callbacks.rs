//! Callbacks to clients: recalls and granted locks.
//!
//! Invariants:
//! * a session's callbacks go to wherever its latest call came from;
//! * a client that cannot be reached loses them: a recall that stays unanswered ends its session,
//!   and a lock that was granted can be asked for again;
//! * no call of another client waits here.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ropewalk_net::PeerId;
use ropewalk_rpc::{Connection, Options};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::meta::Callback;

use super::MetaServer;

/// Callbacks of one client that are under way at a time.
const WORKERS_MAX: usize = 16;

/// The addresses of clients, and their callbacks.
#[derive(Default)]
pub(super) struct Clients {
    sessions: RefCell<BTreeMap<u64, Client>>,
}

#[derive(Default)]
struct Client {
    /// The peer of its latest call; none after a restart, until it calls.
    peer: Option<PeerId>,
    /// Made when there is something to tell: most clients are never told anything.
    connection: Option<Connection>,
    queue: VecDeque<Vec<u8>>,
    workers: usize,
    /// The token by which it proved that the session is its own.
    token: Option<u64>,
}

impl Clients {
    /// Whether this is the token by which a session was proven before.
    pub fn has_shown(&self, session: u64, token: u64) -> bool {
        let sessions = self.sessions.borrow();
        sessions.get(&session).is_some_and(|client| client.token == Some(token))
    }

    /// A session, which the shard knows, was proven by this token.
    pub fn note_token(&self, session: u64, token: u64) {
        self.sessions.borrow_mut().entry(session).or_default().token = Some(token);
    }

    /// A session goes on elsewhere: the token of its former owner proves nothing any more.
    pub fn forget_token(&self, session: u64) {
        if let Some(client) = self.sessions.borrow_mut().get_mut(&session) {
            client.token = None;
        }
    }

    pub fn forget(&self, session: u64) {
        self.sessions.borrow_mut().remove(&session);
    }
}

impl MetaServer {
    /// A session, which the shard knows, called from there.
    pub(super) fn saw_client(self: &Rc<Self>, session: u64, peer: PeerId) {
        let mut sessions = self.clients.sessions.borrow_mut();
        let client = sessions.entry(session).or_default();
        if client.peer.replace(peer) == Some(peer) {
            return;
        }
        client.connection = None;
        let waiting = client.queue.len();
        drop(sessions);
        for _ in 0..waiting.min(WORKERS_MAX) {
            self.start_worker(session);
        }
    }

    /// Tells a client something.
    pub(super) fn call_back(self: &Rc<Self>, session: u64, callback: &Callback) {
        let mut body = Vec::new();
        encode(callback, &mut body);
        self.clients.sessions.borrow_mut().entry(session).or_default().queue.push_back(body);
        self.start_worker(session);
    }

    fn start_worker(self: &Rc<Self>, session: u64) {
        let mut sessions = self.clients.sessions.borrow_mut();
        let Some(client) = sessions.get_mut(&session) else { return };
        if client.peer.is_none() || client.workers >= WORKERS_MAX {
            return;
        }
        client.workers += 1;
        drop(sessions);
        let server = self.clone();
        self.task(async move {
            while let Some((connection, body)) = server.next_callback(session) {
                // Unanswered within a term: the session is over or will be.
                drop(connection.call_free(Service::Callback, &body).await);
            }
        });
    }

    /// The next callback of a session; with none left one worker ends.
    fn next_callback(&self, session: u64) -> Option<(Connection, Vec<u8>)> {
        if !self.may_act() {
            return None;
        }
        let mut sessions = self.clients.sessions.borrow_mut();
        let client = sessions.get_mut(&session)?;
        match (client.queue.pop_front(), client.peer) {
            (Some(body), Some(peer)) => {
                let connection = client.connection.get_or_insert_with(|| {
                    let options = Options {
                        limit: self.config.shard.term,
                        name: format!("client of session {session:016x}"),
                        term: self.term.term(),
                        ..Options::default()
                    };
                    Connection::new(&self.world, &self.endpoint, peer, options)
                });
                Some((connection.clone(), body))
            }
            _ => {
                // The entry may be a newer one than the worker.
                client.workers = client.workers.saturating_sub(1);
                None
            }
        }
    }
}
