//! Loads of sessions whose other paths rest: these are woken, and the load begins when one is up.
//!
//! A session that rests as a whole is called for; its paths join anew then, under other numbers. One with a path that is up
//! seeks the others. Where the peer is the side that adds paths it is asked to, by a `Load` of an arming of number 0, which no
//! machine gives: over the path that is up, each 100 ms.
//!
//! Invariant: such a load ends, at the latest two seconds after the session has a path.

use std::time::Duration;

use ropewalk_base::time::Time;

use crate::api::PeerId;
use crate::apm::cause::ArmCause;
use crate::apm::load::ArmingId;
use crate::apm::{
    By, Connection, Message, Migration, MigrationState, Outcome, PathId, Request, Rule, Ticket,
    Wanted,
};
use crate::engine::Core;
use crate::session::{Paths, Session};

/// How long a path that was woken may take to come up, once the session has one.
const PATIENCE: Duration = Duration::from_secs(2);
/// After what time it is looked again, and the peer asked again.
const AGAIN: Duration = Duration::from_millis(100);
/// The number of an arming that is none: its sender wants the paths that rest.
const NO_ARMING: u32 = 0;

/// A load that waits for a path that rested.
#[derive(Debug)]
pub(crate) struct Waking {
    pub ticket: Ticket,
    /// When it is given up, since the session has a path; `None` before.
    until: Option<Time>,
    look_at: Time,
    ask_at: Time,
}

impl Waking {
    /// When it is looked whether the path is there. To be asked only while the session has a path.
    pub fn due(&self) -> Time {
        self.until.map_or(self.look_at, |until| until.min(self.look_at))
    }

    /// Something happened to the paths of the session.
    pub fn look(&mut self, now: Time) {
        self.look_at = self.look_at.min(now);
    }
}

impl Core {
    /// Keeps a load of a session whose other paths rest, or have not joined since it rested, and wakes them. False where
    /// the machine is to answer.
    pub(crate) fn load_rested(&mut self, id: PeerId, ticket: Ticket) -> bool {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id).filter(|it| it.awaits_paths()) else {
            return false;
        };
        let Some(migrating) = session.migrating_mut() else { return false };
        if !migrating.machine.lacks_alternate() {
            return false;
        }
        if migrating.waking.is_some() {
            self.end_request(id, ticket, Outcome::Refused(Rule::Loading));
            return true;
        }
        migrating.waking = Some(Waking { ticket, until: None, look_at: now, ask_at: now });
        match session.paths.is_resting() {
            true => self.want_session(id),
            false => self.wake_by(id, now),
        }
        true
    }

    /// Looks after such a load of a session that has a path.
    pub(super) fn run_waking(&mut self, id: PeerId) {
        let now = self.now;
        let Some(migrating) = self.migrating_mut(id) else { return };
        let Some(waking) = migrating.waking.as_mut().filter(|it| it.due() <= now) else { return };
        let until = *waking.until.get_or_insert(now + PATIENCE);
        waking.look_at = now + AGAIN;
        if self.begin_woken(id) {
            return;
        }
        if until <= now {
            let waking = self.migrating_mut(id).and_then(|it| it.waking.take());
            if let Some(waking) = waking {
                self.end_request(id, waking.ticket, Outcome::Failed(ArmCause::NoneCameUp));
            }
            return;
        }
        self.seek_rested(id);
    }

    /// The paths that rest are sought from now on, by the side that adds them.
    fn seek_rested(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let resting = resting_path(session);
        let Some(bundle) = session.bundle_mut() else { return };
        bundle.seek(now);
        let (adds, due) = (bundle.adds(), bundle.due());
        self.wake_by(id, due);
        let Some(path) = resting.filter(|_| !adds) else { return };
        let Some(migrating) = self.migrating_mut(id) else { return };
        let machine = &migrating.machine;
        let arming = ArmingId { by: machine.side(), number: NO_ARMING };
        let message = Message::Load { arming, path, newest: machine.newest(), replaces: false };
        let Some(waking) = migrating.waking.as_mut().filter(|it| it.ask_at <= now) else { return };
        waking.ask_at = now + AGAIN;
        if let Some(link) = self.peers.session(id).and_then(|session| session.paths.control()) {
            self.emit_on_session(id, link, message.to_body());
        }
    }

    /// The peer wants the paths that rest. False if the message says something else.
    pub(super) fn asked_to_seek(&mut self, id: PeerId, message: &Message) -> bool {
        let now = self.now;
        if !matches!(message, Message::Load { arming, .. } if arming.number == NO_ARMING) {
            return false;
        }
        if let Some(session) = self.peers.session_mut(id).filter(|it| it.paths.has_resting())
            && let Some(bundle) = session.bundle_mut()
        {
            bundle.seek(now);
            let due = bundle.due();
            self.wake_by(id, due);
        }
        true
    }

    /// Begins a load that waited, where a path is there for it, or it is done already. True if it waits no more.
    fn begin_woken(&mut self, id: PeerId) -> bool {
        let Some(session) = self.peers.session_mut(id) else { return true };
        let Some(machine) = session.bundle().and_then(|it| it.migrating.as_ref()) else {
            return true;
        };
        let wanted = wanted(&machine.machine, &session.paths);
        let Some(migrating) = session.migrating_mut() else { return true };
        let Some(ticket) = migrating.waking.as_ref().map(|it| it.ticket) else { return true };
        let machine = &mut migrating.machine;
        if machine.connection() != Connection::Rts {
            return false;
        }
        match (machine.state(), machine.arming()) {
            (MigrationState::Armed, Some(arming)) => {
                migrating.waking = None;
                self.end_request(id, ticket, Outcome::Armed { path: arming.path });
                return true;
            }
            // One of the policy's is waited for.
            (MigrationState::Rearm, _) if !machine.adopt_load(ticket, By::Event) => return false,
            (MigrationState::Rearm, _) => {}
            _ => {
                let Some(wanted) = wanted else { return false };
                if let Some(wanted) = wanted {
                    let specified = machine.request(Request::Specify(wanted), By::Poll);
                    if let Some(Outcome::Refused(_)) = machine.poll(specified) {
                        return false;
                    }
                }
                machine.request_as(ticket, Request::Load, By::Event);
            }
        }
        migrating.waking = None;
        self.carry_out(id);
        true
    }
}

/// The path that a load of this session waits for, where that rests; else one that does.
fn resting_path(session: &Session) -> Option<PathId> {
    let alternate = session.bundle()?.migrating.as_ref()?.machine.roles().alternate();
    let resting = || session.paths.views().filter(|view| view.rests).map(|view| view.path);
    resting().find(|path| Some(*path) == alternate).or_else(|| resting().next())
}

/// The specification that goes before a load that waited: `Some(None)` where it is done, and `None` where the path is not there
/// yet. A session that rested as a whole gave its paths other numbers: then it is one over the rail of the former alternate.
fn wanted(machine: &Migration, paths: &Paths) -> Option<Option<Wanted>> {
    let roles = machine.roles();
    let Some(alternate) = roles.alternate() else { return Some(Some(Wanted::default())) };
    if paths.views().any(|view| view.path == alternate) {
        return (!machine.lacks_alternate()).then_some(None);
    }
    let rail_of = |path| roles.get(path).map(|entry| entry.record.local_rail);
    let primary = roles.primary().and_then(rail_of);
    let local_rail = rail_of(alternate).filter(|rail| Some(*rail) != primary);
    Some(Some(Wanted { local_rail, ..Wanted::default() }))
}
