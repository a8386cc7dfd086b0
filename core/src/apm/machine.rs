//! The machine of one association: requests, findings about paths and messages of the peer in; messages, orders and
//! notices out.
//!
//! It has no clock: the driver says when probes are spent. It keeps its peer's id, and knows no handle and no key; so
//! none of these changes when traffic moves.
//!
//! Invariants
//! * An arming exists exactly in REARM and ARMED.
//! * ARMED is reached only when the peer was heard over both paths (over the alternate, if the primary failed), probes
//!   are good, and eager data from before the arming is acknowledged.
//! * A refused event leaves the states, the roles and the outputs as they were.

use std::collections::VecDeque;

use super::cause::{ArmCause, MoveCause, ProbeFault};
use super::load::{Arming, ArmingId};
use super::message::Message;
use super::migrate::Move;
use super::notice::{Notice, What};
use super::output::Output;
use super::path::{Health, PathId, PathRecord, Side};
use super::request::{By, Kept, Outcome, Ticket};
use super::roles::{DrainedBy, Roles, WEIGHT_MAX};
use super::specify::{Wanted, choose};
use super::state::{Connection, Event, MigrationState, Rule};
use super::table;
use crate::api::PeerId;

/// The requests of a caller to a connection, at any time and from any thread that reaches the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    Specify(Wanted),
    Load,
    Migrate,
    Drain(PathId),
    Up(PathId),
    /// 0 to 1000; a higher one is preferred.
    Weight(PathId, u16),
}

/// The migration of one association.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Migration {
    pub(super) peer: PeerId,
    pub(super) side: Side,
    pub(super) connection: Connection,
    pub(super) state: MigrationState,
    pub(super) roles: Roles,
    /// The newest migration that either side decided; none in a fresh association.
    pub(super) newest: Option<Move>,
    pub(super) arming: Option<Arming>,
    /// Armings that this side began, and the newest of the peer's that this side heard of.
    pub(super) begun: u32,
    pub(super) heard: u32,
    /// The load that has not ended, and whether it is kept until the connection sends.
    pub(super) load: Option<(Ticket, By)>,
    pub(super) load_kept: bool,
    /// A number of 32 bits is used up; the association has to end.
    pub(super) spent: bool,
    /// The load that is asked for now takes the place of another one.
    pub(super) loads_in_place: bool,
    tickets: u64,
    kept: Kept,
    sends_over: Option<PathId>,
    pub(super) outputs: VecDeque<Output>,
}

/// The details of an event beside its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Given {
    pub path: Option<PathId>,
    /// The rule that these data break.
    pub unfit: Option<Rule>,
    pub weight: u16,
    pub arming: Option<ArmingId>,
    /// The path that a message took.
    pub over: Option<PathId>,
    /// The rule of a `REFUSED`.
    pub refused: Option<Rule>,
    /// A `LOAD` takes the place of whatever arming there is.
    pub replaces: bool,
    pub migration: Option<Move>,
    pub arm_cause: ArmCause,
    pub move_cause: MoveCause,
}

impl Given {
    pub(super) const NOTHING: Given = Given {
        path: None,
        unfit: None,
        weight: 0,
        arming: None,
        over: None,
        refused: None,
        replaces: false,
        migration: None,
        arm_cause: ArmCause::ConnectionOver,
        move_cause: MoveCause::Manual,
    };
}

impl Migration {
    /// The machine of a connection that nobody calls yet.
    pub fn new(peer: PeerId, side: Side) -> Migration {
        Migration {
            peer,
            side,
            connection: Connection::Reset,
            state: MigrationState::Migrated,
            roles: Roles::default(),
            newest: None,
            arming: None,
            begun: 0,
            heard: 0,
            load: None,
            load_kept: false,
            spent: false,
            loads_in_place: false,
            tickets: 0,
            kept: Kept::default(),
            sends_over: None,
            outputs: VecDeque::new(),
        }
    }

    pub fn peer(&self) -> PeerId {
        self.peer
    }

    pub fn side(&self) -> Side {
        self.side
    }

    pub fn connection(&self) -> Connection {
        self.connection
    }

    pub fn state(&self) -> MigrationState {
        self.state
    }

    pub fn roles(&self) -> &Roles {
        &self.roles
    }

    /// The newest migration that counts; none before the first.
    pub fn newest(&self) -> Option<Move> {
        self.newest
    }

    /// The arming under way or complete.
    pub fn arming(&self) -> Option<Arming> {
        self.arming
    }

    /// The next order to the driver, which takes all after each call.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// The end of a request that was made with [`By::Poll`]; told once, `None` as long as it is under way. A machine
    /// keeps the 64 newest ends.
    pub fn poll(&mut self, ticket: Ticket) -> Option<Outcome> {
        self.kept.take(ticket)
    }

    /// Adds a path as a member; the first path is primary. A path that came back has its old id, and is told by
    /// [`Migration::handle_mended`].
    ///
    /// False if the association gave the id before; nothing changes then.
    pub fn add_path(&mut self, record: PathRecord) -> bool {
        let added = self.roles.add(record);
        if added {
            self.tell(What::Added { path: record.id });
            if self.roles.is_drained_by(record.id, DrainedBy::Us) {
                self.tell_drain(record.id);
            }
        }
        self.finish();
        added
    }

    /// A path has got other ends. True if this side drains it from now on, or drains it no more.
    pub fn renew_path(&mut self, record: PathRecord) -> bool {
        let changes = self.roles.renew(record);
        if changes {
            self.tell_drain(record.id);
        }
        self.finish();
        changes
    }

    /// Tells the peer what this side's operator wants of a path.
    fn tell_drain(&mut self, path: PathId) {
        if let Some(drain) = self.roles.drain_of(path) {
            let message = Message::Withdraw { arming: None, drain: Some(drain) };
            self.outputs.push_back(Output::Send { message, over: None });
        }
    }

    /// The connection is being set up, or its send queue is drained or runs again. All other changes of a connection
    /// are events: [`Migration::handle_end`], and paths that are gone or mended.
    ///
    /// # Errors
    /// [`Rule::NotYet`] if the order is not RESET, INIT, RTR, RTS, then SQD and RTS in turn.
    pub fn set_connection(&mut self, connection: Connection) -> Result<(), Rule> {
        use Connection::*;
        match (self.connection, connection) {
            (Reset, Init) | (Init, Rtr) | (Rtr | Sqd, Rts) | (Rts, Sqd) => {}
            _ => return Err(Rule::NotYet),
        }
        self.connection = connection;
        if connection == Rts {
            self.announce();
            if std::mem::take(&mut self.load_kept) {
                self.begin_kept_load();
            }
            self.leave_bad_primary();
        }
        self.finish();
        Ok(())
    }

    /// Asks for something. The end comes as [`What::Done`] or by [`Migration::poll`], for most requests at once; that of a
    /// load when the alternate is armed or the arming failed.
    pub fn request(&mut self, request: Request, by: By) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.request_as(ticket, request, by);
        ticket
    }

    /// The same under a ticket of the caller's, who gives no ticket twice and asks for no other ones.
    pub fn request_as(&mut self, ticket: Ticket, request: Request, by: By) {
        let (event, given) = self.judge(request);
        let result = self.step(event, &given);
        match (result, request) {
            (Err(rule), _) => self.end(ticket, by, Outcome::Refused(rule)),
            (Ok(()), Request::Load) => self.load = Some((ticket, by)),
            (Ok(()), Request::Specify(_)) => {
                let path = given.path.expect("a path was chosen");
                self.end(ticket, by, Outcome::Specified { path });
            }
            (Ok(()), Request::Migrate) => {
                let path = self.roles.primary().expect("it was promoted");
                self.end(ticket, by, Outcome::Migrated { path });
            }
            (Ok(()), Request::Drain(_) | Request::Up(_) | Request::Weight(..)) => {
                self.end(ticket, by, Outcome::Changed);
                self.leave_bad_primary();
            }
        }
        self.finish();
    }

    /// A load was asked for before the connection was known to have paths, and an arming is under way that nobody asked for:
    /// the load ends with it. False if there is no such arming.
    pub fn adopt_load(&mut self, ticket: Ticket, by: By) -> bool {
        let is_free = self.state == MigrationState::Rearm && self.load.is_none();
        if is_free {
            self.load = Some((ticket, by));
        }
        is_free
    }

    /// Makes another path the alternate and loads it, in place of one that is armed or being armed. Returns the path; the load
    /// ends under the ticket, of which [`Migration::request_as`] speaks.
    ///
    /// # Errors
    /// The rule that refuses: what the path breaks, or the connection's state. The alternate stays as it was then.
    pub fn replace(&mut self, ticket: Ticket, wanted: Wanted, by: By) -> Result<PathId, Rule> {
        let path = choose(&self.roles, &wanted)?;
        if let Some(rule) = table::refusal(self.connection, MigrationState::Migrated, Event::Load) {
            return Err(rule);
        }
        if self.state == MigrationState::Armed && self.roles.alternate() == Some(path) {
            self.end(ticket, by, Outcome::Armed { path });
            return Ok(path);
        }
        self.release_alternate();
        let specified = self.request(Request::Specify(wanted), By::Poll);
        if let Some(Outcome::Refused(rule)) = self.poll(specified) {
            return Err(rule);
        }
        self.loads_in_place = true;
        self.request_as(ticket, Request::Load, by);
        self.loads_in_place = false;
        Ok(path)
    }

    /// The probes of an arming are good both ways, at the full MTU, or their budget is spent.
    ///
    /// # Errors
    /// The rule by which the table refuses; the driver may ignore it.
    pub fn handle_probes(
        &mut self,
        arming: ArmingId,
        result: Result<(), ProbeFault>,
    ) -> Result<(), Rule> {
        let given = Given { arming: Some(arming), ..Given::NOTHING };
        let answer = match result {
            Ok(()) => self.prove(Event::ProbesGood, &given, |arming| arming.probes_good = true),
            Err(fault) => self
                .step(Event::ProbesSpent, &Given { arm_cause: ArmCause::Probes(fault), ..given }),
        };
        self.finish();
        answer
    }

    /// The peer acknowledged all eager data that was sent before the arming. If that was the last proof, the row of good
    /// probes arms the alternate.
    ///
    /// # Errors
    /// The rule by which the table refuses; the driver may ignore it.
    pub fn handle_acknowledged(&mut self, arming: ArmingId) -> Result<(), Rule> {
        let given = Given { arming: Some(arming), ..Given::NOTHING };
        let answer = self.prove(Event::ProbesGood, &given, |arming| arming.acknowledged = true);
        self.finish();
        answer
    }

    /// A path is suspected, as early as health says so. Of an armed path its standing probes are bad.
    ///
    /// # Errors
    /// The rule by which the table refuses; the driver may ignore it.
    pub fn handle_suspect(&mut self, path: PathId) -> Result<(), Rule> {
        self.handle_health(path, Health::Suspect)
    }

    /// A path failed for sure.
    ///
    /// # Errors
    /// The rule by which the table refuses; the driver may ignore it.
    pub fn handle_failed(&mut self, path: PathId) -> Result<(), Rule> {
        self.handle_health(path, Health::Failed)
    }

    /// A path is good again: a suspicion was false, or a failed path proved itself and its hold-down is over, or one that
    /// rests after a failed arming may be chosen again.
    ///
    /// # Errors
    /// The rule by which the table refuses; the driver may ignore it.
    pub fn handle_mended(&mut self, path: PathId) -> Result<(), Rule> {
        let entry = self.roles.get_mut(path).ok_or(Rule::UnknownPath)?;
        entry.health = Health::Good;
        entry.resting = false;
        let given = Given { path: Some(path), ..Given::NOTHING };
        let answer = self.step(Event::PathMended, &given);
        self.leave_bad_primary();
        self.finish();
        answer
    }

    /// A path joined again, and may be held back yet. The peer says anew whether its operator drains it, and so does this
    /// side.
    pub fn handle_joined(&mut self, path: PathId) {
        self.roles.bring_up(path, DrainedBy::Peer);
        if self.roles.is_drained_by(path, DrainedBy::Us) {
            self.tell_drain(path);
        }
        self.finish();
    }

    /// The packets of a path say this of it, 0 to [`super::roles::SCORE_MAX`]: from now on the alternate is chosen by that.
    pub fn note_score(&mut self, path: PathId, score: u16) {
        if let Some(entry) = self.roles.get_mut(path) {
            entry.score = score;
        }
    }

    /// A path is no more, for good. The primary one, and the alternate, stay known.
    pub fn forget_path(&mut self, path: PathId) {
        let is_named = |of: Option<PathId>| of == Some(path);
        let arming = self.arming.map(|arming| arming.path);
        if !is_named(self.roles.primary()) && !is_named(self.roles.alternate()) && !is_named(arming)
        {
            self.roles.forget(path);
        }
    }

    /// The connection failed, is reset, or has a peer that was started again. Paths belong to the association and are
    /// forgotten with it.
    ///
    /// # Errors
    /// [`Rule::NoConnection`]: there is none that could end so. [`Rule::NotYet`]: the event is no end.
    pub fn handle_end(&mut self, event: Event) -> Result<(), Rule> {
        let ends = matches!(event, Event::ConnectionError | Event::Reset | Event::NewIncarnation);
        if !ends {
            return Err(Rule::NotYet);
        }
        let answer = self.step(event, &Given::NOTHING);
        self.finish();
        answer
    }

    /// Steps after a proof of the arming under way was noted.
    pub(super) fn prove(
        &mut self,
        event: Event,
        given: &Given,
        note: impl FnOnce(&mut Arming),
    ) -> Result<(), Rule> {
        if let Some(rule) = table::refusal(self.connection, self.state, event) {
            return Err(rule);
        }
        if let Some(arming) = self.arming.as_mut().filter(|it| Some(it.id) == given.arming) {
            note(arming);
        }
        self.step(event, given)?;
        self.leave_bad_primary();
        Ok(())
    }

    fn handle_health(&mut self, path: PathId, health: Health) -> Result<(), Rule> {
        let entry = self.roles.get_mut(path).ok_or(Rule::UnknownPath)?;
        entry.health = health;
        let failed = health == Health::Failed;
        let given = Given { path: Some(path), ..Given::NOTHING };
        let answer = if self.roles.primary() == Some(path) {
            let (event, move_cause) = match failed {
                true => (Event::PrimaryFailed, MoveCause::PrimaryFailed),
                false => (Event::PrimarySuspect, MoveCause::PrimarySuspect),
            };
            let answer = self.step(event, &Given { move_cause, ..given });
            // A failed primary path may have been the last one that an arming waited for.
            self.leave_bad_primary();
            answer
        } else if let Some(arming) = self.arming.filter(|arming| arming.path == path) {
            let bad = Given { arm_cause: ArmCause::StandbyBad, ..given };
            let answer = self.step(Event::StandbyBad, &bad);
            match failed {
                true => self.step(
                    Event::ProbesSpent,
                    &Given { arming: Some(arming.id), arm_cause: ArmCause::PathFailed, ..given },
                ),
                false => answer,
            }
        } else {
            Ok(())
        };
        self.finish();
        answer
    }

    /// The event of a request, and what its data break.
    fn judge(&self, request: Request) -> (Event, Given) {
        let of = |path: PathId, broken: Option<Rule>| {
            let unknown = self.roles.get(path).is_none().then_some(Rule::UnknownPath);
            Given { path: Some(path), unfit: unknown.or(broken), ..Given::NOTHING }
        };
        match request {
            Request::Specify(wanted) => {
                let choice = choose(&self.roles, &wanted);
                let given = Given { path: choice.ok(), unfit: choice.err(), ..Given::NOTHING };
                (Event::Specify, given)
            }
            Request::Load => {
                (Event::Load, Given { unfit: self.unfit_for_load(), ..Given::NOTHING })
            }
            Request::Migrate => (Event::Migrate, Given::NOTHING),
            Request::Drain(path) => {
                let drained = self.roles.is_drained_by(path, DrainedBy::Us);
                let given = of(path, drained.then_some(Rule::IsDrained));
                let causes =
                    Given { arm_cause: ArmCause::Drained, move_cause: MoveCause::Drained, ..given };
                (Event::Drain, causes)
            }
            Request::Up(path) => {
                let drained = self.roles.is_drained_by(path, DrainedBy::Us);
                (Event::Up, of(path, (!drained).then_some(Rule::NotDrained)))
            }
            Request::Weight(path, weight) => {
                let given = of(path, (weight > WEIGHT_MAX).then_some(Rule::WeightRange));
                (Event::Weight, Given { weight, ..given })
            }
        }
    }

    /// Whether a load would find no path: the alternate has failed, or there is none, and no path that could be it.
    pub fn lacks_alternate(&self) -> bool {
        let lacks = match self.roles.alternate() {
            Some(path) => self.roles.health(path) == Some(Health::Failed),
            None => choose(&self.roles, &Wanted::default()).is_err(),
        };
        lacks && self.state == MigrationState::Migrated && self.load.is_none()
    }

    fn unfit_for_load(&self) -> Option<Rule> {
        if self.load_kept {
            return Some(Rule::Loading);
        }
        match self.roles.alternate().and_then(|path| self.roles.get(path)) {
            None => Some(Rule::NoAlternate),
            Some(entry) if entry.health == Health::Failed || entry.resting => {
                Some(Rule::AlternateFailed)
            }
            Some(_) => None,
        }
    }

    fn begin_kept_load(&mut self) {
        let given = Given { unfit: self.unfit_for_load(), ..Given::NOTHING };
        // An arming of the peer's that is under way serves as well.
        let peers = self.arming.is_some();
        match self.step(Event::Load, &given) {
            Err(rule) if !peers => self.end_load(Outcome::Refused(rule)),
            _ => {}
        }
    }

    /// Tells the end of the load that was under way, if there is one.
    pub(super) fn end_load(&mut self, outcome: Outcome) {
        if let Some((ticket, by)) = self.load.take() {
            self.end(ticket, by, outcome);
        }
    }

    fn end(&mut self, ticket: Ticket, by: By, outcome: Outcome) {
        match by {
            By::Event => self.tell(What::Done { ticket, outcome }),
            By::Poll => self.kept.keep(ticket, outcome),
        }
    }

    pub(super) fn tell(&mut self, what: What) {
        self.outputs.push_back(Output::Notice(Notice { peer: self.peer, what }));
    }

    /// Moves off a primary path that is failed, drained, or suspected while the alternate is armed. Called when this
    /// side learns something, not when it follows the peer: two sides with different views would move for ever.
    pub(super) fn leave_bad_primary(&mut self) {
        let Some(primary) = self.roles.primary() else { return };
        let (event, move_cause) = if self.roles.is_drained(primary) {
            (Event::PrimaryFailed, MoveCause::Drained)
        } else {
            match self.roles.health(primary) {
                Some(Health::Failed) => (Event::PrimaryFailed, MoveCause::PrimaryFailed),
                Some(Health::Suspect) => (Event::PrimarySuspect, MoveCause::PrimarySuspect),
                _ => return,
            }
        };
        let given = Given { path: Some(primary), move_cause, ..Given::NOTHING };
        let was = self.state;
        let stepped = self.step(event, &given);
        // A failed primary path may have completed the arming. Then the alternate takes over now.
        if stepped.is_ok() && was == MigrationState::Rearm && self.state == MigrationState::Armed {
            let _ = self.step(event, &given);
        }
    }

    /// Draws the consequences of the new state, after each input: whether a path is left, and which one carries new data.
    pub(super) fn finish(&mut self) {
        if std::mem::take(&mut self.spent) {
            let _ = self.step(Event::ConnectionError, &Given::NOTHING);
        }
        let sending = self.roles.sending();
        let carries = sending.is_some_and(|path| self.roles.is_good(path));
        let failed = self
            .roles
            .primary()
            .is_some_and(|path| self.roles.health(path) == Some(Health::Failed));
        match self.connection {
            Connection::Rts | Connection::Sqd
                if !carries && failed && self.state == MigrationState::Migrated =>
            {
                let given = Given { arm_cause: ArmCause::NoPath, ..Given::NOTHING };
                let _ = self.step(Event::LastPathGone, &given);
            }
            Connection::Pathless => {
                // Where there is no other one, also a path that joined and was not proven yet.
                let mut known = self.roles.entries().iter().map(|entry| entry.record.id);
                let joined = || known.find(|path| self.roles.is_good(*path));
                let path = sending.filter(|_| carries).or_else(joined);
                if path.is_some() {
                    let _ = self.step(Event::PathMended, &Given { path, ..Given::NOTHING });
                }
            }
            _ => {}
        }
        let sending = self.roles.sending();
        if sending != self.sends_over {
            self.sends_over = sending;
            self.outputs.extend(sending.map(Output::SendOver));
        }
    }
}
