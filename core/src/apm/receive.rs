//! What a machine does with the peer's messages: what they say is noted, then the table decides.

use super::cause::{ArmCause, MoveCause};
use super::load::ArmingId;
use super::machine::{Given, Migration};
use super::message::{Drain, Message};
use super::migrate::Move;
use super::path::PathId;
use super::roles::DrainedBy;
use super::state::{Event, Rule};
use super::table;

impl Migration {
    /// A message of the peer's, and the path that it took. The receiver of spans has dropped copies.
    ///
    /// # Errors
    /// The rule by which the table refuses. Late messages are usual: the driver counts them and goes on.
    pub fn handle_message(&mut self, over: PathId, message: Message) -> Result<(), Rule> {
        let given = Given { over: Some(over), ..Given::NOTHING };
        let answer = match message {
            Message::Load { arming, path, newest, replaces } => {
                let given = Given { arming: Some(arming), path: Some(path), replaces, ..given };
                self.handle_load(given, newest)
            }
            Message::Loaded { arming } => {
                let given = Given { arming: Some(arming), ..given };
                self.prove(Event::AnswerReceived, &given, |arming| arming.hear(over))
            }
            Message::Refused { arming, rule } => {
                let arm_cause = ArmCause::Refused(rule);
                let given = Given { arming: Some(arming), refused: Some(rule), arm_cause, ..given };
                self.step(Event::AnswerReceived, &given)
            }
            Message::Migrate(migration) => self.handle_migrate(migration),
            Message::Withdraw { arming, drain } => self.handle_withdraw(arming, drain),
        };
        self.finish();
        answer
    }

    fn handle_load(&mut self, given: Given, newest: Option<Move>) -> Result<(), Rule> {
        let (Some(arming), Some(over), Some(path)) = (given.arming, given.over, given.path) else {
            return Err(Rule::Stale);
        };
        if arming.by == self.side {
            return Err(Rule::Stale);
        }
        if let Some(newest) = newest {
            // It may be older than what is known; then the load is, too.
            let _ = self.handle_migrate(newest);
        }
        if let Some(rule) = table::refusal(self.connection, self.state, Event::LoadReceived) {
            return Err(rule);
        }
        if arming.number > self.heard {
            self.roles.bring_up(path, DrainedBy::Peer);
        }
        if let Some(current) = self.arming.as_mut().filter(|current| current.id == arming) {
            current.hear(over);
        }
        let unfit = self.roles.fit_for_alternate(path).err();
        let answer = self.step(Event::LoadReceived, &Given { unfit, migration: newest, ..given });
        self.heard = self.heard.max(arming.number);
        answer?;
        self.leave_bad_primary();
        Ok(())
    }

    pub(super) fn handle_migrate(&mut self, migration: Move) -> Result<(), Rule> {
        let unfit = self.roles.get(migration.primary).is_none().then_some(Rule::UnknownPath);
        let given = Given {
            migration: Some(migration),
            unfit,
            arm_cause: ArmCause::Overtaken,
            move_cause: MoveCause::Decided(migration.by),
            ..Given::NOTHING
        };
        self.step(Event::MigrateReceived, &given)
    }

    fn handle_withdraw(
        &mut self,
        arming: Option<ArmingId>,
        drain: Option<Drain>,
    ) -> Result<(), Rule> {
        let event = Event::WithdrawReceived;
        if let Some(rule) = table::refusal(self.connection, self.state, event) {
            return Err(rule);
        }
        let changes = drain.is_some_and(|drain| self.roles.hear_drain(drain));
        let drained = drain.filter(|drain| drain.is_drained && changes).map(|drain| drain.path);
        let arm_cause = match drained {
            Some(_) => ArmCause::Drained,
            None => ArmCause::Withdrawn,
        };
        let given = Given { arming, path: drained, arm_cause, ..Given::NOTHING };
        let answer = match (arming, drain) {
            // An order that changes nothing in the machine is none that it refuses.
            (None, Some(_)) if drained.is_none() => Ok(()),
            _ => self.step(event, &given),
        };
        if let Some(arming) = arming.filter(|arming| arming.by != self.side) {
            self.heard = self.heard.max(arming.number);
        }
        match drain.filter(|_| changes) {
            Some(drain) if drain.is_drained => self.leave_bad_primary(),
            // Its alternate may be this one now; where no path was left it carries from now on.
            Some(drain) if !self.roles.is_drained(drain.path) => {
                let given = Given { path: Some(drain.path), ..Given::NOTHING };
                let _ = self.step(Event::PathMended, &given);
            }
            _ => {}
        }
        answer
    }
}
