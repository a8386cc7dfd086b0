//! One step of the machine: the cell's first branch whose condition holds, and its actions.

use super::cause::ArmCause;
use super::cell::{Action, Branch, When};
use super::load::{Arming, ArmingId};
use super::machine::{Given, Migration};
use super::message::Message;
use super::migrate::Move;
use super::notice::What;
use super::output::Output;
use super::path::{Health, PathId, Side};
use super::request::Outcome;
use super::roles::{DrainedBy, Roles};
use super::state::{Connection, Event, MigrationState, Rule};
use super::table;

/// What the actions of one step leave to those after them.
struct Step {
    event: Event,
    /// The migration's state before.
    was: MigrationState,
    /// The primary path before.
    from: Option<PathId>,
    /// The arming that ended, if the peer may know of it.
    ended: Option<ArmingId>,
}

impl Migration {
    /// Passes an event through the table.
    ///
    /// # Errors
    /// The rule that refuses; nothing changed then.
    pub(super) fn step(&mut self, event: Event, given: &Given) -> Result<(), Rule> {
        let cell = table::cell(self.connection, self.state, event);
        let branch = cell.iter().find(|branch| self.holds(branch.when(), event, given));
        match branch.expect("the last branch of a cell holds always") {
            Branch::Unfit => Err(given.unfit.expect("the condition of this branch")),
            Branch::Refuse { rule, .. } => Err(*rule),
            Branch::Go { connection, migration, actions, .. } => {
                let mut step =
                    Step { event, was: self.state, from: self.roles.primary(), ended: None };
                self.connection = connection.unwrap_or(self.connection);
                self.state = migration.unwrap_or(self.state);
                for action in *actions {
                    self.act(*action, given, &mut step);
                }
                Ok(())
            }
        }
    }

    fn holds(&self, when: When, event: Event, given: &Given) -> bool {
        let current = self.arming.map(|arming| arming.id);
        let names_current = current.is_some() && given.arming == current;
        let is_primary = given.path.is_some() && given.path == self.roles.primary();
        match when {
            When::Always => true,
            When::Unfit => given.unfit.is_some(),
            When::Again => names_current,
            When::Stale => self.is_stale(event, given, names_current),
            When::Crossed => {
                let is_ours = current.is_some_and(|arming| arming.by == self.side);
                self.side == Side::Lower && is_ours && !given.replaces
            }
            When::Denied => given.refused.is_some(),
            When::Ends => {
                let drained = self.arming.is_some_and(|arming| Some(arming.path) == given.path);
                names_current || drained
            }
            When::Complete => {
                let failed = |path| self.roles.health(path) == Some(Health::Failed);
                let primary_failed = self.roles.primary().is_some_and(failed);
                let concerned = names_current || event == Event::PrimaryFailed;
                concerned && self.arming.is_some_and(|arming| arming.is_complete(primary_failed))
            }
            When::IsPrimary => is_primary,
            When::IsOnly => is_primary && self.roles.spare().is_none(),
            When::IsAlternate => {
                given.path.is_some_and(|path| self.arming.is_some_and(|it| it.path == path))
            }
            When::Spare => self.roles.spare().is_some(),
            When::Usable => given.path.is_some_and(|path| {
                let is_good = self.roles.health(path) == Some(Health::Good);
                let drained_here = self.roles.is_drained_by(path, DrainedBy::Us);
                let brought_up = event == Event::Up || !drained_here;
                is_good && brought_up && !self.roles.is_drained_by(path, DrainedBy::Peer)
            }),
        }
    }

    fn is_stale(&self, event: Event, given: &Given, names_current: bool) -> bool {
        let beaten = |migration: Option<Move>| match (self.newest, migration) {
            (Some(ours), Some(theirs)) => ours.beats(&theirs),
            (ours, theirs) => ours.is_some() && theirs.is_none(),
        };
        match event {
            Event::LoadReceived => {
                let number = given.arming.map_or(0, |arming| arming.number);
                number <= self.heard || beaten(given.migration)
            }
            Event::MigrateReceived => match (self.newest, given.migration) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(ours), Some(theirs)) => !theirs.beats(&ours),
            },
            Event::WithdrawReceived => !names_current && given.path.is_none(),
            _ => !names_current,
        }
    }

    fn act(&mut self, action: Action, given: &Given, step: &mut Step) {
        let cause = given.arm_cause;
        match action {
            Action::SetAlternate => self.with_path(given, |roles, path| {
                roles.set_alternate(path).expect("it was chosen among those that fit");
            }),
            Action::KeepLoad => self.load_kept = true,
            Action::BeginArming => self.begin_arming(),
            Action::AdoptArming => self.adopt_arming(given, step),
            Action::AnswerLoaded => self.answer(given, |arming| Message::Loaded { arming }),
            Action::AnswerRefused => {
                let rule = given.unfit.unwrap_or(Rule::Crossed);
                self.answer(given, |arming| Message::Refused { arming, rule });
            }
            Action::Arm => self.arm(),
            Action::Disarm => self.disarm(cause),
            Action::EndArming => self.end_arming(cause, step),
            Action::SendWithdraw => self.send_withdraw(given, step),
            Action::MarkDrained => {
                self.with_path(given, |roles, path| roles.drain(path, DrainedBy::Us));
            }
            Action::MarkUp => {
                self.with_path(given, |roles, path| roles.bring_up(path, DrainedBy::Us));
            }
            Action::SetWeight => self.with_path(given, |roles, path| {
                if let Some(entry) = roles.get_mut(path) {
                    entry.weight = given.weight;
                }
            }),
            Action::MoveToAlternate => {
                let path = self.arming.map(|arming| arming.path);
                self.move_to(path, step);
            }
            Action::MoveToSpare => self.move_to(self.roles.spare(), step),
            Action::MoveToPath => self.move_to(given.path, step),
            Action::SendMigrate => self.send_migrate(step),
            Action::Follow => self.follow(given, step),
            Action::TellMigrated => self.tell_migrated(given, step),
            Action::TellMended => self.with_told(given, |path| What::Mended { path }),
            Action::TellNoPath => self.tell(What::NoPath),
            Action::TellResumed => self.with_told(given, |path| What::Resumed { path }),
            Action::Clear => self.clear(),
        }
    }

    fn with_path(&mut self, given: &Given, change: impl FnOnce(&mut Roles, PathId)) {
        if let Some(path) = given.path {
            change(&mut self.roles, path);
        }
    }

    fn with_told(&mut self, given: &Given, what: impl FnOnce(PathId) -> What) {
        if let Some(path) = given.path {
            self.tell(what(path));
        }
    }

    fn send(&mut self, message: Message, over: Option<PathId>) {
        self.outputs.push_back(Output::Send { message, over });
    }

    fn answer(&mut self, given: &Given, message: impl FnOnce(ArmingId) -> Message) {
        if let Some(arming) = given.arming {
            self.send(message(arming), given.over);
        }
    }

    fn begin_arming(&mut self) {
        let path = self.roles.alternate().expect("a load needs an alternate");
        match self.begun.checked_add(1) {
            Some(number) => self.begun = number,
            None => self.spent = true,
        }
        let id = ArmingId { by: self.side, number: self.begun };
        self.arming = Some(Arming { replaces: self.loads_in_place, ..Arming::new(id, path) });
        self.announce();
    }

    fn adopt_arming(&mut self, given: &Given, step: &mut Step) {
        let (Some(id), Some(path), Some(over)) = (given.arming, given.path, given.over) else {
            return;
        };
        if step.was == MigrationState::Armed {
            self.tell_disarmed(ArmCause::Withdrawn);
        }
        self.drop_arming(step);
        if let Some(arming) = step.ended.filter(|arming| arming.by == self.side) {
            self.send(Message::Withdraw { arming: Some(arming), drain: None }, None);
        }
        self.roles.set_alternate(path).expect("an unfit load is refused");
        let mut arming = Arming::new(id, path);
        arming.hear(over);
        self.arming = Some(arming);
        self.announce();
    }

    /// Begins the proof of an arming, as soon as the connection sends.
    pub(super) fn announce(&mut self) {
        let sends = matches!(self.connection, Connection::Rts | Connection::Sqd);
        let Some(arming) = self.arming.as_mut().filter(|arming| sends && !arming.announced) else {
            return;
        };
        arming.announced = true;
        let Arming { id, path, replaces, .. } = *arming;
        if id.by == self.side {
            let load = Message::Load { arming: id, path, newest: self.newest, replaces };
            self.send(load, Some(path));
            self.send(load, self.roles.primary());
        }
        self.outputs.push_back(Output::Prove { arming: id, path });
    }

    fn arm(&mut self) {
        let Some(arming) = self.arming else { return };
        self.roles.prove(arming.path);
        self.tell(What::Armed { path: arming.path });
        self.end_load(Outcome::Armed { path: arming.path });
    }

    /// Back to REARM: the peer's agreement holds, the path has to prove itself again.
    fn disarm(&mut self, cause: ArmCause) {
        self.tell_disarmed(cause);
        if let Some(arming) = &mut self.arming {
            arming.probes_good = false;
            let Arming { id, path, .. } = *arming;
            self.outputs.push_back(Output::Prove { arming: id, path });
        }
    }

    fn tell_disarmed(&mut self, cause: ArmCause) {
        if let Some(arming) = self.arming {
            self.tell(What::Disarmed { path: arming.path, cause });
        }
    }

    fn end_arming(&mut self, cause: ArmCause, step: &mut Step) {
        let Some(arming) = self.arming else { return };
        let rests = matches!(
            cause,
            ArmCause::Probes(_) | ArmCause::PathFailed | ArmCause::Refused(_) | ArmCause::Withdrawn
        );
        if let Some(entry) = self.roles.get_mut(arming.path).filter(|_| rests) {
            entry.resting = true;
        }
        self.drop_arming(step);
        let path = arming.path;
        self.tell(match step.was {
            MigrationState::Armed => What::Disarmed { path, cause },
            _ => What::ArmFailed { path, cause },
        });
        self.end_load(Outcome::Failed(cause));
    }

    /// Ends the arming, under way or complete, so that another path may be specified. The `LOAD` that follows tells the peer.
    pub(super) fn release_alternate(&mut self) {
        let (event, was, from) = (Event::Specify, self.state, self.roles.primary());
        self.end_arming(ArmCause::Overtaken, &mut Step { event, was, from, ended: None });
        self.state = MigrationState::Migrated;
    }

    fn drop_arming(&mut self, step: &mut Step) {
        if let Some(arming) = self.arming.take() {
            if arming.announced {
                self.outputs.push_back(Output::EndProof { arming: arming.id });
            }
            let known = arming.announced || arming.id.by != self.side;
            step.ended = known.then_some(arming.id);
        }
    }

    fn send_withdraw(&mut self, given: &Given, step: &Step) {
        let ordered = given.path.filter(|_| matches!(step.event, Event::Drain | Event::Up));
        let drain = ordered.and_then(|path| self.roles.drain_of(path));
        if step.ended.is_some() || drain.is_some() {
            self.send(Message::Withdraw { arming: step.ended, drain }, None);
        }
    }

    fn move_to(&mut self, path: Option<PathId>, step: &mut Step) {
        self.drop_arming(step);
        if let Some(path) = path {
            self.roles.promote(path).expect("a path that is armed, spare or usable is not drained");
        }
    }

    fn send_migrate(&mut self, step: &Step) {
        let primary = self.roles.primary();
        let Some(primary) = primary.filter(|_| primary != step.from) else { return };
        let Some(counter) = self.newest.map_or(0, |newest| newest.counter).checked_add(1) else {
            self.spent = true;
            return;
        };
        let migration = Move { counter, by: self.side, primary, alternate: self.roles.alternate() };
        self.newest = Some(migration);
        self.send(Message::Migrate(migration), None);
    }

    fn follow(&mut self, given: &Given, step: &mut Step) {
        self.drop_arming(step);
        if let Some(migration) = given.migration {
            self.newest = Some(migration);
            let known = self.roles.follow(migration.primary, migration.alternate);
            known.expect("a migration to an unknown path is refused");
        }
    }

    fn tell_migrated(&mut self, given: &Given, step: &Step) {
        let (Some(from), Some(to)) = (step.from, self.roles.primary()) else { return };
        if from != to {
            let counter = self.newest.map_or(0, |newest| newest.counter);
            self.tell(What::Migrated { from, to, cause: given.move_cause, counter });
        }
    }

    fn clear(&mut self) {
        if let Some(arming) = self.arming.take().filter(|arming| arming.announced) {
            self.outputs.push_back(Output::EndProof { arming: arming.id });
        }
        self.roles = Roles::default();
        self.newest = None;
        (self.begun, self.heard) = (0, 0);
        self.load_kept = false;
        self.end_load(Outcome::Failed(ArmCause::ConnectionOver));
    }
}
