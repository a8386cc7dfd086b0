//! Drives the machine of a session with several paths: what is found out about them and what the peer says go in; frames,
//! probes of an arming, the path that carries, and events come out.
//!
//! Health decides before roles: `Paths` leaves a path that is suspect at once, whatever the machine says.
//!
//! Invariant: after each finding the machine's view of each path is that of the session, and a drained path carries nothing
//! but control frames and probes.

use ropewalk_base::verb::{LinkId, Token};
use ropewalk_wire::frame::{Arrived, Body, Envelope};

use crate::api::{PeerId, Plant};
use crate::apm::cause::{ArmCause, MoveCause};
use crate::apm::load::{Arming, ArmingId};
use crate::apm::path::{Family, Health};
use crate::apm::roles::DrainedBy;
use crate::apm::{
    By, Event, Message, Outcome, Output as Order, PathEvent, PathId, PathRecord, Request, Rule,
    Side, Wanted, What,
};
use crate::engine::Core;
use crate::session::{Left, Migrating, PathView, Paths, ProofStep};

impl Core {
    /// Tells the machine of a session how its paths are, and adds those that it does not know. The machine is made when there
    /// is a second one.
    pub(crate) fn sync_paths(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let several = session.paths.are_several();
        let Some(bundle) = session.bundle().filter(|it| several || it.migrating.is_some()) else {
            return;
        };
        if bundle.migrating.as_ref().is_some_and(|it| is_known(it, &session.paths)) {
            return;
        }
        let side = if bundle.is_lower() { Side::Lower } else { Side::Higher };
        let is_new = bundle.migrating.is_none();
        let views: Vec<PathView> = session.paths.views().collect();
        let records: Vec<PathRecord> = views.iter().map(|view| self.record_of(view)).collect();
        if is_new
            && let Some(session) = self.peers.session_mut(id)
            && let Some(bundle) = session.bundle_mut()
        {
            bundle.migrating = Some(Box::new(Migrating::new(id, side)));
        }
        let any_good = views.iter().any(|view| view.is_good);
        for (view, record) in views.iter().zip(records) {
            self.sync_path(id, view, record, any_good);
        }
        let Some(machine) = self.machine_mut(id) else { return };
        let known = machine.roles().entries().iter().map(|entry| entry.record.id);
        let gone: Vec<PathId> =
            known.filter(|path| views.iter().all(|view| view.path != *path)).collect();
        for path in gone {
            self.note_path_health(id, path, Health::Failed, true);
            if let Some(machine) = self.machine_mut(id) {
                machine.forget_path(path);
            }
        }
        self.carry_out(id);
        if is_new {
            self.begin_early(id);
        }
    }

    fn sync_path(&mut self, id: PeerId, view: &PathView, record: PathRecord, any_good: bool) {
        let Some(machine) = self.machine_mut(id) else { return };
        let before = machine.roles().health(view.path);
        let changes = match before {
            None => {
                machine.add_path(record) && machine.roles().is_drained_by(view.path, DrainedBy::Us)
            }
            Some(_) if view.link.is_none() => false,
            Some(_) => machine.renew_path(record),
        };
        if changes {
            let is_drained = machine.roles().is_drained_by(view.path, DrainedBy::Us);
            self.note_drain(id, view.path, is_drained);
        }
        if before.is_none() || changes {
            self.carry_out(id);
        }
        if let Some(machine) = self.machine_mut(id) {
            machine.note_score(view.path, view.score);
        }
        let before = before.unwrap_or(Health::Good);
        self.note_path_health(id, view.path, health_of(view, before, any_good), !view.rests);
    }

    /// The machine learns how a path is, if that is news. `tells`: users do, too. For the machine a path that rests has
    /// failed, which is a fault in nobody's eyes.
    fn note_path_health(&mut self, id: PeerId, path: PathId, health: Health, tells: bool) {
        let now = self.now;
        let Some(machine) = self.machine_mut(id) else { return };
        let Some(before) = machine.roles().health(path).filter(|before| *before != health) else {
            return;
        };
        // The table refuses what makes no difference now; it is noted all the same.
        let _ = match health {
            Health::Good => machine.handle_mended(path),
            Health::Suspect => machine.handle_suspect(path),
            Health::Failed => machine.handle_failed(path),
        };
        match health {
            Health::Suspect => self.tell_of_path(PathEvent::new(id, What::Suspect { path }, now)),
            Health::Failed if !tells => {}
            Health::Failed => self.tell_of_path(PathEvent::new(id, What::Failed { path }, now)),
            Health::Good if before == Health::Failed => {
                // A new link: what it failed at before says nothing.
                self.migrating_mut(id).into_iter().for_each(|it| it.forget_rest(path));
            }
            Health::Good => {}
        }
        self.carry_out(id);
    }

    /// A path has a link again.
    pub(super) fn path_joined(&mut self, id: PeerId, path: PathId) {
        if let Some(machine) = self.machine_mut(id) {
            machine.handle_joined(path);
        }
        self.sync_paths(id);
    }

    /// Traffic is about to leave the path of this link, since it is bad. Returns what is known of it, for
    /// [`Core::note_left`].
    pub(crate) fn leaving(&self, id: PeerId, link: LinkId) -> Option<Left> {
        let session = self.peers.session(id)?;
        session.bundle()?.migrating.as_ref()?;
        let view = session.paths.views().find(|view| view.link == Some(link))?;
        if view.is_suspect {
            return None;
        }
        let silent_for = self.now.since(view.heard_at.min(self.now));
        Some(Left { path: view.path, silent_for, resent_bytes: 0 })
    }

    /// Traffic left a path.
    pub(crate) fn note_left(&mut self, id: PeerId, left: Option<Left>, resent_bytes: u64) {
        if let Some(left) = left
            && let Some(migrating) = self.migrating_mut(id)
        {
            migrating.left = Some(Left { resent_bytes, ..left });
        }
    }

    /// A session ends, and its machine with it: whoever waits for something hears so.
    pub(crate) fn migration_over(&mut self, id: PeerId, migrating: Option<Box<Migrating>>) {
        if let Some(mut migrating) = migrating {
            if let Some(waking) = migrating.waking.take() {
                let over = Outcome::Failed(ArmCause::ConnectionOver);
                self.end_request(id, waking.ticket, over);
            }
            let _ = migrating.machine.handle_end(Event::ConnectionError);
            while let Some(order) = migrating.machine.next_output() {
                if let Order::Notice(notice) = order {
                    self.notice(id, notice.what, None);
                }
            }
        }
        self.end_early_loads(id, Outcome::Failed(ArmCause::ConnectionOver));
    }

    /// Does what is due for the migration of a session.
    pub(super) fn run_migration(&mut self, id: PeerId) {
        let now = self.now;
        self.run_waking(id);
        while let Some(path) = self.migrating_mut(id).and_then(|it| it.take_rested(now)) {
            let Some(machine) = self.machine_mut(id) else { return };
            if machine.roles().health(path) == Some(Health::Good) {
                let _ = machine.handle_mended(path);
                self.carry_out(id);
            }
        }
        while let Some(migrating) = self.migrating_mut(id)
            && let Some(step) = migrating.next_step(now)
        {
            let Some((arming, path)) = migrating.proof.as_ref().map(|it| (it.arming, it.path))
            else {
                return;
            };
            match step {
                ProofStep::Probe { number, round, is_long } => {
                    self.emit_prove(id, path, arming, number, round, is_long);
                }
                ProofStep::LoadAgain => self.load_again(id),
                ProofStep::Spent(fault) => {
                    let _ = migrating.machine.handle_probes(arming, Err(fault));
                    self.carry_out(id);
                }
            }
        }
    }

    /// The peer did not answer a load over one of its two paths.
    fn load_again(&mut self, id: PeerId) {
        let Some(machine) = self.machine(id) else { return };
        let Some(arming) = machine.arming() else { return };
        let (newest, Arming { id: number, path, replaces, .. }) = (machine.newest(), arming);
        let load = Message::Load { arming: number, path, newest, replaces }.to_body();
        let primary = machine.roles().primary().filter(|_| !arming.heard_on_primary);
        let alternate = Some(arming.path).filter(|_| !arming.heard_on_alternate);
        for path in [alternate, primary].into_iter().flatten() {
            self.emit_over(id, path, load);
        }
    }

    /// The peer acknowledged spans.
    pub(crate) fn old_spans_acknowledged(&mut self, id: PeerId) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(answered) = session.reliable.as_ref().map(|it| it.sent.answered()) else { return };
        let Some(migrating) = session.bundle_mut().and_then(|it| it.migrating.as_mut()) else {
            return;
        };
        let Some(proof) = &mut migrating.proof else { return };
        if proof.old_spans.take_if(|last| *last <= answered).is_some() {
            let arming = proof.arming;
            let _ = migrating.machine.handle_acknowledged(arming);
            self.carry_out(id);
        }
    }

    /// A frame about paths of the peer's machine. False where it says what no machine does.
    pub(crate) fn arrive_of_paths(&mut self, id: PeerId, link: LinkId, body: Arrived<'_>) -> bool {
        let message = match body {
            Arrived::Load(load) => Message::of_load(load),
            Arrived::LoadAnswer(answer) => Message::of_answer(answer),
            Arrived::Migrate(migrate) => Message::of_migrate(migrate),
            Arrived::Withdraw(withdraw) => Message::of_withdraw(withdraw),
            _ => None,
        };
        let Some(message) = message else { return false };
        if self.asked_to_seek(id, &message) {
            return true;
        }
        let Some(session) = self.peers.session(id) else { return true };
        let view = session.paths.views().find(|view| view.link == Some(link));
        let Some(over) = view.map(|view| view.path) else { return true };
        let Some(machine) = self.machine_mut(id) else { return true };
        if let Message::Load { path, .. } = message
            && machine.roles().get(path).is_none()
        {
            // It is joining: the peer asks again.
            return true;
        }
        let ordered = match message {
            Message::Withdraw { drain, .. } => drain.map(|drain| drain.path),
            // It may overtake the word that the path is drained no more.
            Message::Load { path, .. } => Some(path),
            _ => None,
        };
        let is_drained = |machine: &crate::apm::Migration| {
            ordered.is_some_and(|path| machine.roles().is_drained_by(path, DrainedBy::Peer))
        };
        let before = is_drained(machine);
        let is_refused = machine.handle_message(over, message).is_err();
        let after = is_drained(machine);
        if is_refused {
            self.counters.path_frames_refused += 1;
        }
        if let Some(path) = ordered.filter(|_| before != after) {
            self.note_drain(id, path, after);
        }
        self.carry_out(id);
        if let Message::Loaded { arming } = message {
            if !is_refused {
                self.note_carried(id, link);
            }
            self.load_answered(id, link, over, arming);
        }
        true
    }

    /// Does what the machine of a session wants.
    pub(crate) fn carry_out(&mut self, id: PeerId) {
        let now = self.now;
        while let Some(order) = self.machine_mut(id).and_then(|machine| machine.next_output()) {
            match order {
                Order::Send { message, over: Some(path) } => {
                    self.emit_over(id, path, message.to_body());
                }
                Order::Send { message, over: None } => self.emit_path_span(id, message),
                Order::Prove { arming, path } => self.begin_proof(id, arming, path),
                Order::EndProof { arming } => {
                    if let Some(migrating) = self.migrating_mut(id) {
                        migrating.proof.take_if(|proof| proof.arming == arming);
                    }
                }
                Order::SendOver(path) => {
                    if let Some(session) = self.peers.session_mut(id) {
                        session.paths.prefer(path.0);
                    }
                }
                Order::Notice(notice) => {
                    let policy = self.config.path_policy;
                    self.notice(id, notice.what, Some(policy));
                }
            }
        }
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(migrating) = session.migrating_mut() else { return };
        migrating.end_proof();
        migrating.waking.iter_mut().for_each(|waking| waking.look(now));
        session.keep_out_drained();
        let due = session.due();
        self.wake_by(id, due);
        self.pump(id);
    }

    /// Tells of something, and asks for what the policy wants then.
    fn notice(&mut self, id: PeerId, what: What, policy: Option<crate::apm::Policy>) {
        let now = self.now;
        if let What::Done { ticket, outcome } = what {
            return self.end_request(id, ticket, outcome);
        }
        let mut event = PathEvent::new(id, what, now);
        if let Some(migrating) = self.migrating_mut(id) {
            match what {
                What::Armed { path } => migrating.forget_rest(path),
                What::ArmFailed { path, cause } | What::Disarmed { path, cause } => {
                    let rests = matches!(
                        cause,
                        ArmCause::Probes(_) | ArmCause::Refused(_) | ArmCause::Withdrawn
                    );
                    if rests && migrating.machine.roles().get(path).is_some_and(|it| it.resting) {
                        migrating.rest(path, now);
                    }
                }
                What::Migrated { from, cause, .. } => {
                    let by_fault =
                        matches!(cause, MoveCause::PrimarySuspect | MoveCause::PrimaryFailed);
                    if let Some(left) = migrating.left.take_if(|left| by_fault && left.path == from)
                    {
                        event.detected_after = Some(left.silent_for);
                        event.resent_bytes = left.resent_bytes;
                    }
                }
                _ => {}
            }
        }
        self.tell_of_path(event);
        let forgets =
            self.config.plant == Plant::RearmForgotten && matches!(what, What::Migrated { .. });
        let Some(policy) = policy.filter(|_| !forgets) else { return };
        let Some(machine) = self.machine_mut(id) else { return };
        for request in policy.requests(&what) {
            machine.request(*request, By::Poll);
        }
    }

    fn begin_proof(&mut self, id: PeerId, arming: ArmingId, path: PathId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let sent = session.reliable.as_ref().map(|it| (it.sent.last(), it.sent.answered()));
        let old = sent.filter(|(last, answered)| last > answered).map(|(last, _)| last);
        let Some(migrating) = session.migrating_mut() else { return };
        migrating.begin_proof(arming, path, old, now);
        if old.is_none() {
            let _ = migrating.machine.handle_acknowledged(arming);
        }
    }

    /// Loads that were asked for before there was a second path.
    fn begin_early(&mut self, id: PeerId) {
        for ticket in self.take_early_loads(id) {
            let Some(machine) = self.machine_mut(id) else { return };
            // An arming that the policy began serves as well.
            let specified = machine.request(Request::Specify(Wanted::default()), By::Poll);
            let refused = match machine.poll(specified) {
                Some(Outcome::Refused(rule)) => Some(rule),
                _ => None,
            };
            match refused {
                Some(Rule::Loading) if machine.adopt_load(ticket, By::Event) => {}
                _ => machine.request_as(ticket, Request::Load, By::Event),
            }
            self.carry_out(id);
        }
    }

    /// Sends `MIGRATE` or `WITHDRAW`.
    fn emit_path_span(&mut self, id: PeerId, message: Message) {
        match message.to_body() {
            Body::Migrate(body) => self.emit_control(id, body),
            Body::Withdraw(body) => self.emit_control(id, body),
            other => debug_assert!(false, "{other:?} belongs to a path"),
        }
    }

    /// Sends a frame that is lost with its path.
    pub(super) fn emit_over(&mut self, id: PeerId, path: PathId, body: Body) {
        let Some(session) = self.peers.session(id) else { return };
        let link = session.paths.views().find(|view| view.path == path).and_then(|view| view.link);
        if let Some(link) = link {
            self.emit_on_session(id, link, body);
        }
    }

    pub(super) fn emit_on_session(&mut self, id: PeerId, link: LinkId, body: Body) {
        let Some(session) = self.peers.session(id) else { return };
        let envelope = Envelope { session: session.name(), ..Envelope::default() };
        self.emit_on(link, envelope, &body, None, Token::NONE);
    }

    pub(super) fn migrating_mut(&mut self, id: PeerId) -> Option<&mut Migrating> {
        self.peers.session_mut(id)?.migrating_mut()
    }

    /// A path shares its rail with others, and the peer's.
    fn record_of(&self, view: &PathView) -> PathRecord {
        let rail = self.rails.of_number(view.rail);
        let state = view.link.and_then(|link| self.links.get(link));
        // 0: the peer's rail of the first path is not told.
        let theirs = state.and_then(|it| it.their_rail).map_or(0, |rail| u32::from(rail) + 1);
        let label = self.rails.label(view.rail);
        let entropy = match state {
            // The first path's is not told to the side that was called.
            Some(state) if state.outbound => label.entropy,
            Some(state) => state.entropy,
            None => 0,
        };
        PathRecord {
            id: view.path,
            local_rail: view.rail,
            remote_address: theirs,
            entropy: entropy.into(),
            family: if self.rails.is_of_link_layer(view.rail) { Family::Link } else { Family::V4 },
            mtu_bytes: rail.map_or(0, |rail| rail.frame_payload_bytes_max),
            local_domain: label.domain,
            remote_domain: theirs,
        }
    }
}

/// How a path is that was so before.
fn health_of(view: &PathView, before: Health, any_good: bool) -> Health {
    match view.link {
        None => Health::Failed,
        Some(_) if view.is_suspect => Health::Suspect,
        // One that is held back is as it was, unless there is no other.
        Some(_) if !view.is_good && any_good => before,
        Some(_) => Health::Good,
    }
}

/// Whether the machine has nothing to learn.
fn is_known(migrating: &Migrating, paths: &Paths) -> bool {
    let roles = migrating.machine.roles();
    let any_good = paths.views().any(|view| view.is_good);
    let known = |view: PathView| {
        let Some(entry) = roles.get(view.path) else { return false };
        let has_ends = view.link.is_none() || entry.record.local_rail == view.rail;
        has_ends
            && entry.health == health_of(&view, entry.health, any_good)
            && entry.score == view.score
    };
    roles.entries().len() == paths.views().count() && paths.views().all(known)
}

#[cfg(test)]
mod tests;
