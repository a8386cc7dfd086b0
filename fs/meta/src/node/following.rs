//! A standby: it looks for the active server, takes what it lacks, and follows.
//!
//! Invariants:
//! * what the active server lacks is given up before anything is taken from it: it was never acknowledged;
//! * nothing is confirmed that the own files do not have;
//! * an operation on the disk comes to its end, also where this server is elected meanwhile.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::task::race;
use ropewalk_rpc::Connection;
use ropewalk_store::{JournaledStore, MetaStore, Position, StoreCopy, StoreError, Value};
use ropewalk_wire::fs::head::{REPLY_BYTES_MAX, Service};
use ropewalk_wire::fs::standby::{
    FEED_BYTES, NodeRole, Reached, StandbyReply, StandbyRequest, StandbyResult, TermBegin,
};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::feed::known;
use super::{MetaNode, find};
use crate::history::Terms;
use crate::server::MetaError;
use crate::store_rows::StoreRows;

/// The pause before the servers are asked again of which none was active.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest record: a follower keeps no more of one that comes in parts.
const RECORD_BYTES_MAX: u64 = 1 << 30;

/// Why a server is not followed any more.
enum Parted {
    /// It does not answer, or is not the active one.
    Away,
    /// This server was elected, or stops.
    Called,
    /// It lacks a record that comes next.
    Cut,
    /// The own disk is full.
    Full(StoreError),
    Failed(MetaError),
}

impl<E: Into<MetaError>> From<E> for Parted {
    fn from(error: E) -> Parted {
        match error.into() {
            MetaError::Store(error) if error.is_full() => Parted::Full(error),
            error => Parted::Failed(error),
        }
    }
}

/// A server that is followed.
struct Leader {
    connection: Connection,
    term: u64,
}

impl MetaNode {
    /// Follows whoever is active, until this server is elected or stops.
    pub(super) async fn follow(self: &Rc<Self>) -> Result<(), MetaError> {
        loop {
            for connection in self.others.values() {
                let followed = self.follow_one(connection).await;
                self.follows.set(None);
                match followed {
                    Err(Parted::Away | Parted::Cut) | Ok(()) => {}
                    Err(Parted::Called) => return Ok(()),
                    Err(Parted::Full(error)) => {
                        self.lines.say(&format!("follows no more: {error}"));
                        self.world.sleep(self.node.lease).await;
                    }
                    Err(Parted::Failed(error)) => return Err(error),
                }
            }
            let called = self.candidacy.changed.notified();
            if self.is_called() {
                return Ok(());
            }
            let _ = race(called, self.world.sleep(PAUSE)).await;
        }
    }

    fn is_called(&self) -> bool {
        self.stopping.get() || self.candidacy.won().is_some() || self.candidacy.has_failed()
    }

    async fn follow_one(self: &Rc<Self>, connection: &Connection) -> Result<(), Parted> {
        let (position, terms, newest) = self.known().await?;
        let request = StandbyRequest::Join { history: self.boot.get().history, position, terms };
        let connection = connection.clone();
        let mut leader = Leader { connection, term: 0 };
        let body = self.ask(&leader, &request).await?;
        let (term, history, common) = match decode::<StandbyResult<'_>>(&body) {
            Ok(Ok(StandbyReply::Joined { term, history, common })) => (term, history, common),
            Ok(Err(Errno::EXDEV)) => {
                self.lines.say(&format!(
                    "the metadata in {} are of another file system than those of the active server: \
                     to have this server follow it, empty the directory",
                    self.config.directory.display()
                ));
                self.world.sleep(self.node.lease).await;
                return Err(Parted::Away);
            }
            _ => return Err(Parted::Away),
        };
        // One that does not know yet that its term is over must not take anything back.
        if term < newest.max(self.keeper.record().term) {
            return Err(Parted::Away);
        }
        leader.term = term;
        self.candidacy.heard(term);
        self.follows.set(Some((term, NodeRole::Copies)));
        self.take_history(history).await?;
        let store = match common {
            Some(last) => self.go_back(last).await?,
            None => None,
        };
        let store = match store {
            Some(store) => store,
            None => self.copy(&leader).await?,
        };
        self.follows.set(Some((term, NodeRole::Follows)));
        self.lines.say(&format!(
            "{}follows the active metadata server from record {}",
            Level::Note.mark(),
            store.position()
        ));
        let parted = self.pull(&leader, &store).await;
        drop(store);
        if let Err(Parted::Cut) = parted {
            self.copy(&leader).await?;
            return Ok(());
        }
        parted
    }

    /// The last record of the own store, the terms of its rows, and the number of the newest one; nothing, where there is no whole
    /// store.
    async fn known(&self) -> Result<(u64, Vec<TermBegin>, u64), Parted> {
        let fail = |cause| MetaError::Rows { path: self.config.directory.clone(), cause };
        let stored = self.stored.borrow().clone();
        let (position, terms) = match stored {
            Some(store) => {
                (store.position(), Terms::read(&StoreRows::new(store.clone())).map_err(fail)?)
            }
            None => match find(&self.world, &self.config, self.boot.get()).await {
                Ok(found) => (found.position(), Terms::found(&found).map_err(fail)?),
                Err(StoreError::Unfinished { .. }) => return Ok((0, Vec::new(), 0)),
                Err(error) => return Err(error.into()),
            },
        };
        let (terms, newest) = (terms.known(), terms.newest());
        let terms = terms.iter().map(|term| TermBegin { id: term.id, begin: term.begin });
        Ok((position.0, terms.collect(), newest))
    }

    /// The superblock says whose history this store holds.
    async fn take_history(&self, history: u128) -> Result<(), MetaError> {
        let mut boot = self.boot.get();
        if boot.history == history {
            return Ok(());
        }
        let Some(mut keeper) = self.claimed.borrow().as_ref().map(|it| it.keeper()) else {
            return Ok(());
        };
        let disk = self.world.disk();
        let taken = self.world.offload(move || keeper.follow(&*disk, history).map(|()| keeper));
        let keeper = taken.await.ok_or(MetaError::ShuttingDown)??;
        if let Some(claimed) = &mut *self.claimed.borrow_mut() {
            claimed.take(keeper);
        }
        boot.history = history;
        self.boot.set(boot);
        Ok(())
    }

    /// The own store, without what lies behind `last`; None where it has to be copied.
    async fn go_back(&self, last: u64) -> Result<Option<JournaledStore>, Parted> {
        let stored = self.stored.borrow().clone();
        if let Some(store) = stored.filter(|store| store.position().0 == last) {
            return Ok(Some(store));
        }
        self.close().await?;
        let found = find(&self.world, &self.config, self.boot.get()).await?;
        match found.begin(Some(Position(last))).await {
            Ok(store) => {
                *self.stored.borrow_mut() = Some(store.clone());
                Ok(Some(store))
            }
            Err(StoreError::Beyond { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the own store up, and copies the active server's.
    async fn copy(&self, leader: &Leader) -> Result<JournaledStore, Parted> {
        let (copy, position) = loop {
            let body = self.ask(leader, &StandbyRequest::Copy { term: leader.term }).await?;
            match decode::<StandbyResult<'_>>(&body) {
                Ok(Ok(StandbyReply::Copying { copy, position })) => break (copy, position),
                // Those who elect have to know first that this server lacks something.
                Ok(Err(Errno::EAGAIN)) if !self.is_called() => self.world.sleep(PAUSE).await,
                _ => return Err(Parted::Away),
            }
        };
        (self.config.log)(&format!(
            "{}copies the rows of the active metadata server into {}",
            Level::Note.mark(),
            self.config.directory.display()
        ));
        self.close().await?;
        let (directory, boot) = (&self.config.directory, self.boot.get());
        let (world, config) = (&self.world, self.config.store);
        let made = StoreCopy::begin(world, directory, boot, config, Position(position)).await?;
        let mut held: Option<(Vec<u8>, Vec<u8>)> = None;
        for part in 0.. {
            let request = StandbyRequest::Rows { term: leader.term, copy, part };
            let body = self.ask(leader, &request).await?;
            let Ok(Ok(StandbyReply::Rows { rows, end })) = decode::<StandbyResult<'_>>(&body)
            else {
                return Err(Parted::Away);
            };
            let mut whole = Vec::new();
            for row in rows {
                match &mut held {
                    Some((key, value)) if key == row.key.0 => value.extend_from_slice(row.value.0),
                    _ => whole.extend(held.replace((row.key.0.to_vec(), row.value.0.to_vec()))),
                }
            }
            if end {
                whole.extend(held.take());
            }
            let rows = whole.into_iter().map(|(key, value)| (key, Value::from(value)));
            made.add(rows.collect()).await?;
            if end {
                break;
            }
        }
        let store = made.finish().await?.begin(None).await?;
        *self.stored.borrow_mut() = Some(store.clone());
        Ok(store)
    }

    /// Takes records for as long as there are any to come.
    async fn pull(self: &Rc<Self>, leader: &Leader, store: &JournaledStore) -> Result<(), Parted> {
        let mut part: Vec<u8> = Vec::new();
        loop {
            let (from, offset) = (store.position().0 + 1, part.len() as u64);
            let (term, reached) = (leader.term, reached(store));
            let request = StandbyRequest::Pull { term, from, offset, reached };
            let body = self.ask(leader, &request).await?;
            match decode::<StandbyResult<'_>>(&body) {
                Ok(Ok(StandbyReply::Records { records, sync, has_all })) => {
                    self.candidacy.heard(term);
                    part.clear();
                    for (position, record) in (from..).zip(&records) {
                        store.ready().await?;
                        store.accept(Position(position), record.0)?;
                    }
                    self.sync(leader, store, sync);
                    if has_all {
                        self.keeper.note_whole(self.boot.get().era).await?;
                    }
                }
                Ok(Ok(StandbyReply::Part { bytes, length, sync })) => {
                    if length > RECORD_BYTES_MAX || bytes.0.len() > FEED_BYTES {
                        return Err(Parted::Away);
                    }
                    self.candidacy.heard(term);
                    part.extend_from_slice(bytes.0);
                    if part.len() as u64 >= length {
                        store.ready().await?;
                        store.accept(Position(from), &std::mem::take(&mut part))?;
                    }
                    self.sync(leader, store, sync);
                }
                Ok(Ok(StandbyReply::Cut)) => return Err(Parted::Cut),
                _ => return Err(Parted::Away),
            }
            store.journal().flush();
            // A segment may have to be made first.
            store.journal().wait_own_written(store.position()).await?;
        }
    }

    /// Makes records durable that somebody waits for, and says so.
    fn sync(self: &Rc<Self>, leader: &Leader, store: &JournaledStore, sync: u64) {
        let last = Position(sync.min(store.position().0));
        if last <= store.journal().own().durable {
            return;
        }
        let (this, store) = (self.clone(), store.clone());
        let (connection, term) = (leader.connection.clone(), leader.term);
        self.world.spawn(async move {
            if store.journal().wait_own_durable(last).await.is_err() {
                return;
            }
            let reached = reached(&store);
            drop(store);
            let leader = Leader { connection, term };
            let _ = this.ask(&leader, &StandbyRequest::Confirm { term, reached }).await;
        });
    }

    /// Asks the active server, until it answers or this one is called.
    async fn ask(&self, leader: &Leader, request: &StandbyRequest) -> Result<Vec<u8>, Parted> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let called = self.candidacy.changed.notified();
        if self.is_called() {
            return Err(Parted::Called);
        }
        let call = leader.connection.call_free_with(Service::Standby, &body, REPLY_BYTES_MAX);
        let call = pin!(self.world.timeout(self.node.lease, call));
        match race(call, called).await.left() {
            Some(Some(Ok(reply))) => Ok(reply.body().to_vec()),
            Some(_) => Err(Parted::Away),
            None if self.is_called() => Err(Parted::Called),
            None => Err(Parted::Away),
        }
    }
}

fn reached(store: &JournaledStore) -> Reached {
    known(store).1
}
