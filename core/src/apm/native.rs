//! Hardware that migrates by itself, and its fall-back.
//!
//! A device is asked first. Where it refuses, which is an ordinary answer, the machine does the same in software. The
//! states, the table, the requests and the notices are one and the same in both cases.
//!
//! Invariant: of an arming that the device has, no message and no probe leaves; of any other one, the device knows
//! nothing.

use thiserror::Error;

use super::cause::ArmCause;
use super::load::ArmingId;
use super::machine::{Given, Migration, Request};
use super::message::Message;
use super::migrate::Move;
use super::output::Output;
use super::path::{PathRecord, Side};
use super::request::{By, Ticket};
use super::state::{Event, MigrationState, Rule};

/// A connection of a device that can move between two paths by itself, as InfiniBand's can.
pub trait NativeMigration {
    /// Gives the device the alternate path.
    ///
    /// # Errors
    /// The device cannot do that; the same holds for the other calls.
    fn specify(&mut self, path: &PathRecord) -> Result<(), NativeRefusal>;

    /// Begins to load the alternate (REARM). Its end is an event.
    fn load(&mut self) -> Result<(), NativeRefusal>;

    /// Moves to the loaded alternate now.
    fn migrate(&mut self) -> Result<(), NativeRefusal>;

    /// The device's own state. A device without an ARMED event has to be asked.
    fn query(&mut self) -> MigrationState;

    /// The next event since the last call.
    fn next_event(&mut self) -> Option<NativeEvent>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum NativeRefusal {
    /// The port or the network has no automatic path migration: Ethernet (RoCE) and its emulation.
    #[error("the device has no automatic path migration on this port")]
    Unsupported,
    /// The device has it, and does not take this path.
    #[error("the device does not take this path as an alternate")]
    Invalid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NativeEvent {
    /// The device moved, by a fault or because the peer's device did.
    Migrated,
    /// The alternate could not be loaded, or the device could not move to it.
    Failed,
}

/// A machine beside a device.
#[derive(Debug)]
pub struct WithDevice<D> {
    device: D,
    machine: Migration,
    /// Whether the device took the specified alternate.
    specified: bool,
    /// The arming that the device has.
    arming: Option<ArmingId>,
}

impl<D: NativeMigration> WithDevice<D> {
    pub fn new(device: D, machine: Migration) -> WithDevice<D> {
        WithDevice { device, machine, specified: false, arming: None }
    }

    /// The machine, for all that is no request: messages, findings about paths, outputs.
    pub fn machine(&mut self) -> &mut Migration {
        &mut self.machine
    }

    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Whether the device has the arming under way or complete.
    pub fn is_native(&self) -> bool {
        self.arming.is_some() && self.arming == self.machine.arming().map(|arming| arming.id)
    }

    /// As [`Migration::request`].
    pub fn request(&mut self, request: Request, by: By) -> Ticket {
        if request == Request::Migrate && self.is_armed_natively() && self.device.migrate().is_err()
        {
            self.give_up();
        }
        let moves = self.is_armed_natively();
        let ticket = self.machine.request(request, by);
        match request {
            Request::Specify(_) => self.specified = self.offer(),
            Request::Load if self.specified => self.load(),
            Request::Migrate if moves => {
                self.keep_back(|message| matches!(message, Message::Migrate(_)));
                // Both sides know it from their devices, so both count it as the lower endpoint's.
                self.machine.credit_lower();
            }
            _ => {}
        }
        ticket
    }

    /// Takes the device's news. The driver calls it when the device says that there is an event, and while a load is
    /// under way.
    pub fn poll_device(&mut self) {
        while let Some(event) = self.device.next_event() {
            if self.is_native() {
                match event {
                    NativeEvent::Migrated => self.follow(),
                    NativeEvent::Failed => self.give_up(),
                }
            }
        }
        let loading = self.is_native() && self.machine.state() == MigrationState::Rearm;
        if loading && self.device.query() == MigrationState::Armed {
            self.ignore(Migration::handle_native_armed);
        }
    }

    fn is_armed_natively(&self) -> bool {
        self.is_native() && self.machine.state() == MigrationState::Armed
    }

    fn offer(&mut self) -> bool {
        let roles = self.machine.roles();
        let alternate = roles.alternate().and_then(|path| roles.get(path));
        let record = alternate.map(|entry| entry.record);
        record.is_some_and(|record| self.device.specify(&record).is_ok())
    }

    /// Leaves the arming that just began to the device, if it takes it.
    fn load(&mut self) {
        let Some(arming) = self.machine.arming().filter(|arming| arming.announced) else { return };
        if self.machine.state() != MigrationState::Rearm
            || self.is_native()
            || self.device.load().is_err()
        {
            return;
        }
        self.arming = Some(arming.id);
        self.keep_back(|message| matches!(message, Message::Load { .. }));
        self.machine.outputs.retain(|output| !matches!(output, Output::Prove { .. }));
    }

    /// The device could not: the arming ends, and the next one is the machine's own.
    fn give_up(&mut self) {
        self.specified = false;
        self.ignore(Migration::handle_native_failed);
        self.keep_back(|message| matches!(message, Message::Withdraw { .. }));
        self.arming = None;
    }

    fn follow(&mut self) {
        self.ignore(Migration::handle_native_migrated);
        self.arming = None;
    }

    /// The table refuses a device's news only if the connection ended meanwhile.
    fn ignore(&mut self, handle: impl FnOnce(&mut Migration) -> Result<(), Rule>) {
        let _ = handle(&mut self.machine);
    }

    fn keep_back(&mut self, is_native: impl Fn(&Message) -> bool) {
        self.machine
            .outputs
            .retain(|output| !matches!(output, Output::Send { message, .. } if is_native(message)));
    }
}

/// A device's news, as events of the table.
impl Migration {
    /// A device loaded the alternate and vouches for it.
    fn handle_native_armed(&mut self) -> Result<(), Rule> {
        let given = Given { arming: self.arming.map(|arming| arming.id), ..Given::NOTHING };
        let answer = self.prove(Event::ProbesGood, &given, |arming| {
            arming.heard_on_primary = true;
            arming.heard_on_alternate = true;
            arming.probes_good = true;
            arming.acknowledged = true;
        });
        self.finish();
        answer
    }

    /// A device could not load the alternate, or not move to it.
    fn handle_native_failed(&mut self) -> Result<(), Rule> {
        let arm_cause = ArmCause::StandbyBad;
        let given =
            Given { arming: self.arming.map(|arming| arming.id), arm_cause, ..Given::NOTHING };
        if self.state == MigrationState::Armed {
            self.step(Event::StandbyBad, &given)?;
        }
        let answer = self.step(Event::ProbesSpent, &given);
        self.finish();
        answer
    }

    /// A device moved to the alternate, and the peer's device with it. Its word counts as a `MIGRATE`, and as the lower
    /// endpoint's on both sides.
    fn handle_native_migrated(&mut self) -> Result<(), Rule> {
        let primary = self.arming.ok_or(Rule::NotArmed)?.path;
        let counter = self.newest.map_or(0, |newest| newest.counter).saturating_add(1);
        let alternate = self.roles.primary();
        let answer = self.handle_migrate(Move { counter, by: Side::Lower, primary, alternate });
        self.finish();
        answer
    }

    /// A migration that devices carried out is the same one on both sides.
    fn credit_lower(&mut self) {
        if let Some(newest) = &mut self.newest {
            newest.by = Side::Lower;
        }
    }
}
