//! The probes of an arming: they go over the path that is proven, and so do their answers.
//!
//! The side that began the arming probes; its load is the first probe. A probe and its answer prove both directions; when all came back the other side is
//! told. The last probe of a round is long, and so is its answer: longer than a packet of any Ethernet. Over a path that
//! passes short packets alone it does not come through.
//!
//! Invariants: a probe is answered over the link that it came on, by as many bytes; a payload is staged only where it belongs
//! to the arming that is known, one of a link at a time, so frames that are made up cost next to no memory.

use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{LinkId, Placement, Token, Urgency};
use ropewalk_wire::frame::{self, Body, Envelope, PROVE_BYTES_MAX, Prefix, ProveBody};

use crate::api::PeerId;
use crate::apm::PathId;
use crate::apm::load::ArmingId;
use crate::engine::Core;
use crate::incoming::IncomingKind;

/// The contents of a frame of this kind.
const PROBE: u8 = 0;
const ANSWER: u8 = 1;
const ALL_ANSWERED: u8 = 2;

impl Core {
    /// The bytes of long probes, whatever they are: they live as long as the endpoint. Without them all probes are short.
    #[must_use]
    pub fn with_probe_bytes(self, bytes: Slice) -> Core {
        assert!(bytes.len <= u64::from(PROVE_BYTES_MAX), "a probe has a limit");
        Core { probe_bytes: bytes, ..self }
    }

    /// Sends a probe over a path.
    pub(super) fn emit_prove(
        &mut self,
        id: PeerId,
        path: PathId,
        arming: ArmingId,
        number: u8,
        round: u8,
        is_long: bool,
    ) {
        let Some(session) = self.peers.session(id) else { return };
        let link = session.paths.views().find(|view| view.path == path).and_then(|view| view.link);
        let Some(link) = link else { return };
        let bytes = if is_long { self.long_bytes(link) } else { 0 };
        let body = ProveBody {
            arming: arming.number.into(),
            arming_by: arming.by.to_wire(),
            number,
            is_answer: PROBE,
            round,
        };
        self.emit_prove_on(id, link, body, bytes);
    }

    /// Bytes of a long probe over a link.
    fn long_bytes(&self, link: LinkId) -> u32 {
        let most = self.rails.of(link).map_or(0, |rail| rail.frame_payload_bytes_max);
        most.min(self.probe_bytes.len as u32)
    }

    fn emit_prove_on(&mut self, id: PeerId, link: LinkId, body: ProveBody, payload_bytes: u32) {
        if payload_bytes == 0 {
            return self.emit_on_session(id, link, Body::Prove(body));
        }
        let Some(session) = self.peers.session(id) else { return };
        let Some(state) = self.links.get_mut(link) else { return };
        state.packet += 1;
        let packet = state.packet as u32;
        let session = session.name();
        let envelope = Envelope { session, payload_bytes, packet, ..Envelope::default() };
        let slice = self.probe_bytes.part(0, payload_bytes.into());
        // The bytes live as long as the endpoint: nobody waits for the rail to let go of them.
        *self.outputs.push_frame(link, slice, Urgency::Urgent, Token::NONE) =
            frame::encode(envelope, &Body::Prove(body));
    }

    /// The header of a probe, or of an answer, is here.
    pub(crate) fn place_prove(
        &mut self,
        id: PeerId,
        link: LinkId,
        prefix: &Prefix,
        body: &ProveBody,
    ) -> Placement {
        let Some(arming) = ArmingId::from_wire(body.arming_by, body.arming.get()) else {
            return self.violation("a frame about paths names a side that there is not");
        };
        let bytes = prefix.payload_bytes.get();
        if bytes > PROVE_BYTES_MAX {
            return self.violation("a probe over the limit");
        }
        if bytes == 0 {
            self.arrive_prove(id, link, *body, 0);
            return Placement::Drop;
        }
        let coming = self.incoming.of(link);
        let is_one_coming = coming.into_iter().any(|slot| {
            let kind = self.incoming.get(slot).map(|incoming| incoming.kind);
            matches!(kind, Some(IncomingKind::Prove { .. }))
        });
        if is_one_coming || !self.is_loaded_over(id, link, arming) {
            return Placement::Drop;
        }
        self.place_into(link, Some(id), prefix, Slice::NONE, IncomingKind::Prove { body: *body })
    }

    /// Whether this arming is under way, or complete, for the path of this link.
    fn is_loaded_over(&self, id: PeerId, link: LinkId, arming: ArmingId) -> bool {
        let loaded = || {
            let session = self.peers.session(id)?;
            let path = session.paths.views().find(|view| view.link == Some(link))?.path;
            let known = self.machine(id)?.arming()?;
            Some(known.id == arming && known.path == path)
        };
        loaded().unwrap_or(false)
    }

    /// A probe, or an answer, is here with all of its bytes.
    pub(crate) fn arrive_prove(&mut self, id: PeerId, link: LinkId, body: ProveBody, bytes: u32) {
        let now = self.now;
        let Some(arming) = ArmingId::from_wire(body.arming_by, body.arming.get()) else { return };
        let is_loaded = self.is_loaded_over(id, link, arming);
        let long_bytes = self.long_bytes(link);
        let is_long = bytes > 0 || long_bytes == 0;
        if body.is_answer == PROBE {
            let answer = ProveBody { is_answer: ANSWER, ..body };
            self.emit_prove_on(id, link, answer, bytes.min(long_bytes));
        }
        let proof = self.migrating_mut(id).and_then(|it| it.proof.as_mut());
        let Some(proof) = proof.filter(|proof| is_loaded && proof.arming == arming) else { return };
        let has_carried = match body.is_answer {
            ANSWER => proof.has_asked(body.number, body.round),
            told => told == ALL_ANSWERED,
        };
        let is_good = match body.is_answer {
            PROBE => {
                proof.hear(is_long, now);
                false
            }
            ANSWER => proof.answered(body.number, body.round, bytes >= long_bytes),
            ALL_ANSWERED => proof.told_good(),
            _ => false,
        };
        if has_carried {
            self.note_carried(id, link);
        }
        if is_good {
            let told = ProveBody { is_answer: ALL_ANSWERED, ..body };
            self.end_probes(id, link, arming, Some(told).filter(|_| body.is_answer == ANSWER));
        }
    }

    /// Something that was asked over a link came back over it: no standing probe has to ask that now.
    pub(super) fn note_carried(&mut self, id: PeerId, link: LinkId) {
        let now = self.now;
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.note_carried(link, now);
        }
    }

    /// The peer answered the load of an arming over a path: if that is the one which is proven, the load was a probe.
    pub(super) fn load_answered(
        &mut self,
        id: PeerId,
        link: LinkId,
        path: PathId,
        arming: ArmingId,
    ) {
        let proof = self.migrating_mut(id).and_then(|it| it.proof.as_mut());
        let proof = proof.filter(|proof| proof.arming == arming && proof.path == path);
        if !proof.is_some_and(|proof| proof.load_answered()) {
            return;
        }
        let (number, arming_by) = (arming.number.into(), arming.by.to_wire());
        let is_answer = ALL_ANSWERED;
        let told = ProveBody { arming: number, arming_by, number: 0, is_answer, round: 0 };
        self.end_probes(id, link, arming, Some(told));
    }

    /// All probes are answered; the peer is told so over the path, unless it said so.
    fn end_probes(&mut self, id: PeerId, link: LinkId, arming: ArmingId, told: Option<ProveBody>) {
        if let Some(told) = told {
            self.emit_prove_on(id, link, told, 0);
        }
        if let Some(machine) = self.machine_mut(id) {
            let _ = machine.handle_probes(arming, Ok(()));
            self.carry_out(id);
        }
    }
}
