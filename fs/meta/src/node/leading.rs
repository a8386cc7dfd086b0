//! A term of this server: from its victory to its end.
//!
//! Invariants:
//! * nobody is served before each server that may be elected has all that this one has, or may be elected no more;
//! * who may be elected is changed by a majority of voters first, where a server leaves, and in the store first, where one comes;
//! * when the term ends, nothing holds the store any more: what others lack of it has to go.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::task::race;
use ropewalk_base::time::Time;
use ropewalk_store::superblock::Expect;
use ropewalk_store::{JournaledStore, MetaStore};

use super::feed::Feed;
use super::{MetaNode, find, terms_of};
use crate::history::Start;
use crate::server::{MetaError, MetaServer, Seat, bind};

/// A standby that is not waited for is forgotten after so long.
const FORGOTTEN: Duration = Duration::from_secs(30);
/// The time that a standby gets to take the last records before the active server gives its term up.
const HAND_OVER: Duration = Duration::from_millis(300);

impl MetaNode {
    /// Serves until the term ends, and gives it up if it is this server that cannot go on.
    pub(super) async fn lead(self: &Rc<Self>, term: u64) -> Result<(), MetaError> {
        let led = self.lead_term(term).await;
        if self.candidacy.won() == Some(term) {
            self.candidacy.release();
        }
        match led {
            Err(MetaError::Store(error)) if error.is_full() => {
                self.lines.say(&format!("gives its term up: {error}"));
                self.world.sleep(self.node.lease).await;
                Ok(())
            }
            led => led,
        }
    }

    async fn lead_term(self: &Rc<Self>, term: u64) -> Result<(), MetaError> {
        let stored = self.stored.borrow_mut().take();
        let (store, followed) = match stored {
            Some(store) => (store, true),
            None => (self.own_store().await?, false),
        };
        let world = &self.world;
        let patience = self.node.lease / 8;
        let history = self.boot.get().history;
        let alone = self.node.alone;
        let feed = Rc::new(Feed::new(world, store.clone(), (term, history), patience, alone));
        feed.hasty.set(self.config.reply_before_standby);
        feed.set_members(&self.candidacy.electable(), self.config.server.0);
        *self.feed.borrow_mut() = Some(feed.clone());
        (self.config.log)(&format!(
            "{}this is the active metadata server now, in term {term}, from record {}",
            Level::Note.mark(),
            store.position()
        ));
        let serving = self.serve(store.clone(), term, followed);
        let watching = self.watch(term, &feed, &store);
        let served = race(watching, serving).await.right();
        self.serves.set(false);
        let active = self.active.borrow_mut().take();
        if let Some(server) = &active {
            server.retire();
        }
        if self.candidacy.won() == Some(term) {
            self.hand_over(&feed, &store).await;
        }
        self.feed.borrow_mut().take();
        self.dumps.end();
        feed.end();
        (self.config.log)("this server is not the active metadata server any more");
        drop((active, feed));
        store.close().await?;
        match served {
            Some(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// The store of a server that did not follow in this life.
    async fn own_store(&self) -> Result<JournaledStore, MetaError> {
        let found = find(&self.world, &self.config, self.boot.get()).await?;
        let is_empty = terms_of(&found, &self.config)?.newest() == 0;
        let may_format = self.candidacy.is_first() && self.config.expect != Expect::Existing;
        if is_empty && !may_format {
            return Err(MetaError::Emptied { path: self.config.directory.clone() });
        }
        Ok(found.begin(None).await?)
    }

    /// Serves from this store. Does not come to an end by itself.
    async fn serve(
        self: &Rc<Self>,
        store: JournaledStore,
        term: u64,
        followed: bool,
    ) -> Result<(), MetaError> {
        let mut config = self.config.clone();
        config.shard.format = self.candidacy.is_first() && config.expect != Expect::Existing;
        let candidacy = self.candidacy.clone();
        let elected = Some(u32::try_from(term).unwrap_or(u32::MAX));
        let starts = self.claimed.borrow().as_ref().map(|it| it.starts).unwrap_or_default();
        let seat = Seat {
            store,
            boot: self.boot.get(),
            starts,
            start: Start { elected, whole: self.keeper.whole(), begin: 0 },
            may_act: Rc::new(move || candidacy.may_act()),
            // It has followed a server that was elected, to the end.
            confirmed: followed,
        };
        let server = MetaServer::begin(&self.world, self.endpoint.clone(), config, seat).await?;
        // From now on somebody has to end it.
        *self.active.borrow_mut() = Some(server);
        let keeper = self.claimed.borrow().as_ref().map(|claimed| claimed.keeper());
        if let Some(keeper) = keeper {
            bind(&self.world, keeper, &self.config).await?;
        }
        self.keeper.note_whole(self.boot.get().era).await?;
        self.serves.set(true);
        std::future::pending().await
    }

    /// Looks after the standby servers until the term ends or is to be given up.
    async fn watch(&self, term: u64, feed: &Feed, store: &JournaledStore) {
        let began = self.world.now();
        let tick = self.node.lease / 16;
        let mut told = BTreeSet::new();
        loop {
            let (changed, moved) = (feed.changed.notified(), self.candidacy.changed.notified());
            let switched = self.switched.notified();
            let failed = self.active.borrow().as_ref().is_some_and(|it| it.failure().is_some());
            let failed = failed || self.candidacy.has_failed();
            if self.candidacy.won() != Some(term) || failed || store.journal().failed().is_some() {
                return;
            }
            if self.switch.replace(false) && (self.stopping.get() || self.has_standby()) {
                return;
            }
            let set = self.candidacy.set();
            feed.set_members(&self.candidacy.electable(), self.config.server.0);
            let wanted = self.wanted_set(feed, &set, began);
            if wanted == set && self.world.now().since(began) >= self.grace() {
                self.tell_standbys(&mut told, &set);
            }
            if wanted != set && self.candidacy.propose(wanted) {
                feed.set_members(&self.candidacy.electable(), self.config.server.0);
            }
            let news = race(race(changed, moved), switched);
            let _ = race(news, self.world.sleep(tick)).await;
        }
    }

    /// The time from the beginning of a term for which servers of the set may be silent.
    fn grace(&self) -> Duration {
        if self.candidacy.was_handed_over() { self.node.lease } else { self.node.lease / 32 }
    }

    /// Logs which servers may take over, each time that this changes.
    fn tell_standbys(&self, told: &mut BTreeSet<u32>, set: &BTreeSet<u32>) {
        let own = self.config.server.0;
        for server in set.difference(told).filter(|server| **server != own) {
            let note = Level::Note.mark();
            (self.config.log)(&format!("{note}metadata server {server} may take over from now on"));
        }
        for server in told.difference(set).filter(|server| **server != own) {
            (self.config.log)(&format!("metadata server {server} may not take over any more"));
        }
        told.clone_from(set);
    }

    /// The servers that should be elected: those that have all, without those that went away.
    fn wanted_set(&self, feed: &Feed, set: &BTreeSet<u32>, began: Time) -> BTreeSet<u32> {
        let mut wanted = set.clone();
        let electable = self.candidacy.electable();
        // As long as the other one may take to notice that it has lost its term.
        let patience = self.node.lease * 3 / 8;
        let standings = feed.standings();
        for standing in &standings {
            let is_away = standing.silence > patience;
            if electable.contains(&standing.server) {
                if standing.leaves || (self.node.alone && is_away) {
                    wanted.remove(&standing.server);
                }
            } else if standing.has_all && !is_away {
                wanted.insert(standing.server);
            } else if standing.silence > FORGOTTEN {
                feed.forget(standing.server);
            } else if is_away {
                feed.wait_no_more(standing.server);
            }
        }
        // Those that were never heard of in this term: a server that gave its term up comes soon, any other one is dead.
        if self.node.alone && self.world.now().since(began) >= self.grace() {
            let heard = |server: &u32| standings.iter().any(|it| it.server == *server);
            wanted.retain(|server| *server == self.config.server.0 || heard(server));
        }
        wanted
    }

    /// Gives the term up, once a standby has all that this server has.
    async fn hand_over(&self, feed: &Feed, store: &JournaledStore) {
        let until = self.world.now() + HAND_OVER;
        let is_served = || {
            let standings = feed.standings();
            standings.is_empty() || standings.iter().any(|it| it.reach.written >= store.position())
        };
        while !is_served() && self.world.now() < until {
            self.world.sleep(self.node.lease / 500).await;
        }
        self.candidacy.release();
    }
}
