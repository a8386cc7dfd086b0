//! Requests about the paths of a session: which one is the alternate, its load, the move to it, and what operators want.
//!
//! A session with several paths has a machine (`crate::apm`), which answers. Before that the table answers for a connection
//! that nobody has, that is being set up, or that has one path. A request says at once how it ends, but a load.
//!
//! A path is known by its [`PathId`] in its session: [`Core::roles_of`] has all of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_base::verb::LinkId;

use crate::api::{Output, PeerId};
use crate::apm::{
    By, Connection, Migration, MigrationState, Outcome, PathEvent, PathId, Request, Roles, Rule,
    Ticket, Wanted, What,
};
use crate::engine::Core;

/// Ends of loads that are kept for those who poll. Beyond that the oldest is dropped.
const ENDS_MAX: usize = 1 << 16;
/// Loads of one peer that are kept until it has several paths.
const EARLY_MAX: usize = 64;

/// Requests of an endpoint that have not ended, or whose ends nobody has asked for.
#[derive(Debug, Default)]
pub(crate) struct PathRequests {
    tickets: u64,
    /// Those whose caller polls.
    polled: BTreeSet<Ticket>,
    ends: BTreeMap<Ticket, Outcome>,
    /// The tickets of `ends`, the oldest first; those that were taken, too.
    ended: VecDeque<Ticket>,
    /// Loads of peers whose connection is being set up.
    early: BTreeMap<PeerId, Vec<Ticket>>,
}

impl PathRequests {
    fn ticket(&mut self, by: By) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        if by == By::Poll {
            self.polled.insert(ticket);
        }
        ticket
    }

    /// Keeps the end of a request whose caller polls; false if the caller waits for an event.
    fn keep(&mut self, ticket: Ticket, outcome: Outcome) -> bool {
        if !self.polled.remove(&ticket) {
            return false;
        }
        while self.ended.len() >= ENDS_MAX {
            let oldest = self.ended.pop_front();
            oldest.map(|oldest| self.ends.remove(&oldest));
        }
        self.ended.push_back(ticket);
        self.ends.insert(ticket, outcome);
        true
    }
}

/// The states of the migration of a connection, as in docs/spec/apm.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathState {
    pub connection: Connection,
    pub migration: MigrationState,
}

impl Core {
    /// Names the alternate path of a peer: local rail, remote address and label, each given or chosen by failure domain.
    /// Legal in MIGRATED. Returns the path.
    ///
    /// # Errors
    /// The rule that refuses: the connection's state, or what the path breaks ([`Rule::NoRoute`], [`Rule::IsPrimary`],
    /// [`Rule::IsDrained`], [`Rule::Family`], [`Rule::Mtu`], [`Rule::SameFailureDomain`], [`Rule::AlternateFailed`]).
    pub fn specify_path(&mut self, peer: PeerId, wanted: Wanted) -> Result<PathId, Rule> {
        match self.ask_of_paths(peer, Request::Specify(wanted), Rule::NoRoute)? {
            Outcome::Specified { path } => Ok(path),
            _ => Err(Rule::NoRoute),
        }
    }

    /// Loads the specified alternate of a peer: proves it, until it is ARMED. The end comes as an event
    /// ([`What::Done`]) or to [`Core::poll_load`], also if it is a refusal. Legal in MIGRATED.
    ///
    /// While the connection is being set up the load is kept. It begins when there is a second path, which is specified then.
    /// Paths that rest, since the session is idle, are woken, and the load begins when the alternate is up.
    pub fn load_path(&mut self, peer: PeerId, by: By) -> Ticket {
        let id = self.resolve(peer);
        let ticket = self.path_requests.ticket(by);
        if self.load_rested(id, ticket) {
            return ticket;
        }
        if let Some(machine) = self.machine_mut(id) {
            machine.request_as(ticket, Request::Load, By::Event);
            self.carry_out(id);
            return ticket;
        }
        match self.state_without_paths(id) {
            Connection::Init => {
                let early = self.path_requests.early.entry(id).or_default();
                if early.len() < EARLY_MAX {
                    early.push(ticket);
                } else {
                    self.end_request(id, ticket, Outcome::Refused(Rule::Loading));
                }
            }
            Connection::Reset => {
                self.end_request(id, ticket, Outcome::Refused(Rule::NoConnection));
            }
            _ => self.end_request(id, ticket, Outcome::Refused(Rule::NoAlternate)),
        }
        ticket
    }

    /// Names the alternate of a peer and loads it, in place of one that is armed or being armed. Returns the path, and the
    /// ticket under which the load ends.
    ///
    /// # Errors
    /// The rule that refuses, as that of [`Core::specify_path`]; the alternate stays as it was then.
    pub fn replace_path(
        &mut self,
        peer: PeerId,
        wanted: Wanted,
        by: By,
    ) -> Result<(PathId, Ticket), Rule> {
        let id = self.resolve(peer);
        if self.machine(id).is_none() {
            return Err(match self.state_without_paths(id) {
                Connection::Reset => Rule::NoConnection,
                _ => Rule::NoRoute,
            });
        }
        let ticket = self.path_requests.ticket(by);
        let machine = self.machine_mut(id).ok_or(Rule::NoConnection)?;
        let replaced = machine.replace(ticket, wanted, By::Event);
        self.carry_out(id);
        if replaced.is_err() {
            self.path_requests.polled.remove(&ticket);
        }
        replaced.map(|path| (path, ticket))
    }

    /// The end of a load that was asked for with [`By::Poll`]; told once. `None` while it is under way.
    pub fn poll_load(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.path_requests.ends.remove(&ticket)
    }

    /// Moves this side's direction to the armed alternate of a peer; the peer follows. Legal in ARMED. Returns the path.
    ///
    /// # Errors
    /// The rule that refuses, mostly [`Rule::NotArmed`].
    pub fn migrate_path(&mut self, peer: PeerId) -> Result<PathId, Rule> {
        match self.ask_of_paths(peer, Request::Migrate, Rule::NotArmed)? {
            Outcome::Migrated { path } => Ok(path),
            _ => Err(Rule::NotArmed),
        }
    }

    /// Keeps a path of a peer out of use, on both sides, until [`Core::up_path`]: it carries probes and control frames only.
    ///
    /// # Errors
    /// The rule that refuses: [`Rule::UnknownPath`], [`Rule::IsDrained`], or [`Rule::LastPath`] where no other one is
    /// proven.
    pub fn drain_path(&mut self, peer: PeerId, path: PathId) -> Result<(), Rule> {
        let without = self.first_or(path, Rule::LastPath);
        self.ask_of_paths(peer, Request::Drain(path), without)?;
        self.note_drain(peer, path, true);
        Ok(())
    }

    /// Takes a drain of this side back.
    ///
    /// # Errors
    /// The rule that refuses: [`Rule::UnknownPath`], [`Rule::NotDrained`].
    pub fn up_path(&mut self, peer: PeerId, path: PathId) -> Result<(), Rule> {
        let without = self.first_or(path, Rule::NotDrained);
        self.ask_of_paths(peer, Request::Up(path), without)?;
        self.note_drain(peer, path, false);
        Ok(())
    }

    /// Weighs a path: 0 to 1000, 1000 if nobody did. Of several fit alternates the heavier one is chosen.
    ///
    /// # Errors
    /// The rule that refuses: [`Rule::UnknownPath`], [`Rule::WeightRange`].
    pub fn weigh_path(&mut self, peer: PeerId, path: PathId, weight: u16) -> Result<(), Rule> {
        self.ask_of_paths(peer, Request::Weight(path, weight), Rule::UnknownPath).map(drop)
    }

    /// The states of a peer's connection and of its migration.
    pub fn path_state(&self, peer: PeerId) -> PathState {
        let id = self.resolve(peer);
        match self.machine(id) {
            Some(machine) => {
                PathState { connection: machine.connection(), migration: machine.state() }
            }
            None => PathState {
                connection: self.state_without_paths(id),
                migration: MigrationState::Migrated,
            },
        }
    }

    /// The paths of a peer with their roles; `None` where it never had several.
    pub fn roles_of(&self, peer: PeerId) -> Option<&Roles> {
        Some(self.machine(self.resolve(peer))?.roles())
    }

    /// The machine of a session that has, or had, several paths.
    pub(crate) fn machine(&self, id: PeerId) -> Option<&Migration> {
        let migrating = self.peers.session(id)?.bundle()?.migrating.as_ref()?;
        Some(&migrating.machine)
    }

    pub(crate) fn machine_mut(&mut self, id: PeerId) -> Option<&mut Migration> {
        let migrating = self.peers.session_mut(id)?.bundle_mut()?.migrating.as_mut()?;
        Some(&mut migrating.machine)
    }

    /// The state of a connection that has no machine.
    fn state_without_paths(&self, id: PeerId) -> Connection {
        match self.peers.get(id) {
            None => Connection::Reset,
            Some(peer) if peer.session.is_some() => Connection::Rts,
            Some(peer) if peer.calls.is_idle() => Connection::Reset,
            Some(_) => Connection::Init,
        }
    }

    /// `rule` for the path that each session begins with, which is known without a machine.
    fn first_or(&self, path: PathId, rule: Rule) -> Rule {
        if path == PathId(0) { rule } else { Rule::UnknownPath }
    }

    /// Puts a request to the machine, which says its end at once. `without`: the rule that refuses it where the connection
    /// has one path.
    fn ask_of_paths(
        &mut self,
        peer: PeerId,
        request: Request,
        without: Rule,
    ) -> Result<Outcome, Rule> {
        let id = self.resolve(peer);
        let Some(machine) = self.machine_mut(id) else {
            let setting_up = match request {
                Request::Specify(_) => without,
                _ => Rule::NotYet,
            };
            return Err(match self.state_without_paths(id) {
                Connection::Reset => Rule::NoConnection,
                Connection::Init => setting_up,
                _ => without,
            });
        };
        let ticket = machine.request(request, By::Poll);
        let outcome = machine.poll(ticket);
        self.carry_out(id);
        match outcome {
            Some(Outcome::Refused(rule)) => Err(rule),
            Some(outcome) => Ok(outcome),
            None => Err(without),
        }
    }

    /// Tells the end of a load to whoever asked for it.
    pub(super) fn end_request(&mut self, id: PeerId, ticket: Ticket, outcome: Outcome) {
        if !self.path_requests.keep(ticket, outcome) {
            self.tell_of_path(PathEvent::new(id, What::Done { ticket, outcome }, self.now));
        }
    }

    pub(super) fn tell_of_path(&mut self, event: PathEvent) {
        self.note_migration(&event);
        self.outputs.push(Output::Path(event));
    }

    /// Takes the loads that wait for paths of a peer, under whatever name they were asked for.
    pub(super) fn take_early_loads(&mut self, id: PeerId) -> Vec<Ticket> {
        if self.path_requests.early.is_empty() {
            return Vec::new();
        }
        let names = self.names_of(id);
        let early = &mut self.path_requests.early;
        names.iter().flat_map(|name| early.remove(name).unwrap_or_default()).collect()
    }

    /// Such loads end.
    pub(crate) fn end_early_loads(&mut self, id: PeerId, outcome: Outcome) {
        for ticket in self.take_early_loads(id) {
            self.end_request(id, ticket, outcome);
        }
    }

    /// The link of a path, if it is up.
    pub fn path_link(&self, peer: PeerId, path: PathId) -> Option<LinkId> {
        let session = self.peers.session(self.resolve(peer))?;
        session.paths.views().find(|view| view.path == path)?.link
    }
}
