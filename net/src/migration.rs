//! Path migration: the paper's three modules, what operators want of paths, and events. Any thread may call all of it.
//!
//! * [`Endpoint::specify_path`]: which path is the alternate; [`Endpoint::specify_path_by`]: by names of its ends.
//! * [`Endpoint::load_paths`]: its proof, for a list of peers; each ends with an event, or is polled by
//!   [`Endpoint::poll_loads`].
//! * [`Endpoint::migrate_path`]: the move to it.
//! * [`Endpoint::drain_path`], [`Endpoint::up_path`], [`Endpoint::weigh_path`]: by hand.
//! * [`Endpoint::next_path_event`]: ARMED, ARM_FAILED, DISARMED, MIGRATED with its cause, NO_PATH and the others.
//! * [`Endpoint::path_state`], [`Endpoint::path_entries`]: how things are.
//!
//! An asynchronous policy (`CoreConfig::path_policy`) asks for the first three by itself; by default it keeps an alternate
//! armed. docs/spec/apm.md has the states, the events, and the rules that refuse.
//!
//! ```no_run
//! # use ropewalk_net::{Context, Endpoint, PeerId, migration::*};
//! # use std::time::Duration;
//! # fn example(endpoint: &Endpoint, context: &Context, peers: &[PeerId]) -> Result<(), Rule> {
//! endpoint.specify_path(peers[0], Wanted { strict: true, ..Wanted::default() })?;
//! let mut loads = endpoint.load_paths(peers, By::Poll);
//! while endpoint.poll_loads(&mut loads) > 0 {
//!     endpoint.wait(context, Duration::from_millis(1));
//! }
//! endpoint.migrate_path(peers[0])?;
//! # Ok(())
//! # }
//! ```

pub use ropewalk_core::PathState;
pub use ropewalk_core::apm::cause::{ArmCause, MoveCause, ProbeFault};
pub use ropewalk_core::apm::path::{Family, Health, PathId, PathRecord};
pub use ropewalk_core::apm::roles::{Entry as PathEntry, Role};
pub use ropewalk_core::apm::{
    By, Connection, LoadList, MigrationState, Outcome, PathEvent, Policy, Rule, Side, Ticket,
    Wanted, What,
};

pub use crate::ends::{EndsError, PathEnds};

use crate::context::Context;
use crate::endpoint::Endpoint;
use crate::engine::News;
use ropewalk_core::PeerId;

impl Endpoint {
    /// Names the alternate path of a peer: each part of it given, or chosen by failure domain. Legal in MIGRATED. Returns
    /// the path.
    ///
    /// # Errors
    /// The rule that refuses: the connection's state, or what the path breaks.
    pub fn specify_path(&self, peer: PeerId, wanted: Wanted) -> Result<PathId, Rule> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine.core.specify_path(peer, wanted);
        engine.drain();
        drop(engine);
        self.wake_service();
        answer
    }

    /// Loads the specified alternates of these peers: proves each, until it is ARMED. Each peer's load ends for itself, also
    /// by a refusal: with an event [`What::Done`] that has the ticket, or for [`Endpoint::poll_loads`].
    ///
    /// Legal as soon as the peer is called: then it begins when the connection has a second path.
    pub fn load_paths(&self, peers: &[PeerId], by: By) -> LoadList {
        let mut engine = self.locked();
        engine.tell_time();
        let loads = LoadList::begin(peers, |peer| engine.core.load_path(peer, by));
        engine.drain();
        drop(engine);
        self.wake_service();
        loads
    }

    /// Asks for the ends of loads that were begun with [`By::Poll`]; returns how many have not ended.
    pub fn poll_loads(&self, loads: &mut LoadList) -> usize {
        let mut engine = self.locked();
        loads.poll(|_, ticket| engine.core.poll_load(ticket))
    }

    /// Moves to the armed alternate of a peer now; the peer follows. Legal in ARMED. Returns the path.
    ///
    /// # Errors
    /// The rule that refuses, mostly [`Rule::NotArmed`].
    pub fn migrate_path(&self, peer: PeerId) -> Result<PathId, Rule> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine.core.migrate_path(peer);
        engine.drain();
        drop(engine);
        self.wake_service();
        answer
    }

    /// Keeps a path out of use, on both sides, until [`Endpoint::up_path`]. What is under way over it ends there.
    ///
    /// # Errors
    /// The rule that refuses: [`Rule::UnknownPath`], [`Rule::IsDrained`], or [`Rule::LastPath`] where no other path is
    /// proven.
    pub fn drain_path(&self, peer: PeerId, path: PathId) -> Result<(), Rule> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine.core.drain_path(peer, path);
        engine.drain();
        drop(engine);
        self.wake_service();
        answer
    }

    /// Takes a drain of this side back.
    ///
    /// # Errors
    /// The rule that refuses: [`Rule::UnknownPath`], [`Rule::NotDrained`].
    pub fn up_path(&self, peer: PeerId, path: PathId) -> Result<(), Rule> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine.core.up_path(peer, path);
        engine.drain();
        drop(engine);
        self.wake_service();
        answer
    }

    /// Weighs a path, 0 to 1000: of several fit alternates the heavier one is chosen.
    ///
    /// # Errors
    /// The rule that refuses: [`Rule::UnknownPath`], [`Rule::WeightRange`].
    pub fn weigh_path(&self, peer: PeerId, path: PathId, weight: u16) -> Result<(), Rule> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine.core.weigh_path(peer, path, weight);
        engine.drain();
        drop(engine);
        self.wake_service();
        answer
    }

    /// The states of a peer's connection and of its migration.
    pub fn path_state(&self, peer: PeerId) -> PathState {
        self.locked().core.path_state(peer)
    }

    /// The paths of a peer with their roles, by id. Empty where it never had several.
    pub fn path_entries(&self, peer: PeerId) -> Vec<(PathEntry, Role)> {
        let engine = self.locked();
        let roles = engine.core.roles_of(peer);
        let entries = roles.into_iter().flat_map(|roles| {
            let role = |entry: &PathEntry| roles.role(entry.record.id);
            roles.entries().iter().filter_map(move |entry| Some((entry.clone(), role(entry)?)))
        });
        entries.collect()
    }

    /// The next event of a path that nobody took; the latest 4096 are kept.
    pub fn next_path_event(&self) -> Option<PathEvent> {
        self.locked().path_events.pop()
    }

    /// Events that are gone since nobody took them.
    pub fn path_events_lost(&self) -> u64 {
        self.locked().path_events.lost()
    }

    /// The number of path events so far: a caller that has seen them all need not ask for more.
    pub fn path_event_count(&self) -> u64 {
        self.shared.signals.path_events()
    }

    /// From now on this context is rung when something happens to a path. [`Endpoint::wait_for`] sleeps until then, with a
    /// look at [`Endpoint::path_event_count`] as its news.
    pub fn tell_of_path_events(&self, context: &Context) {
        self.locked().contexts.tell_of(News::PathEvents, &context.queue);
    }
}
