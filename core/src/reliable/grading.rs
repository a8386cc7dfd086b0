//! The quality of paths: rails are asked what they have counted, and sessions act on what that says of their routes.

use ropewalk_base::health::Health;
use ropewalk_base::verb::LinkId;

use crate::api::{Output, PeerId};
use crate::engine::Core;

impl Core {
    /// Asks the rails of a session with several paths what they have counted, where it is time.
    pub(super) fn measure_paths(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let is_busy = session.bundle().is_some_and(|bundle| bundle.standing.is_busy());
        while let Some(link) = session.paths.next_question(is_busy, now) {
            self.outputs.push(Output::Measure { link });
        }
        // Another session may have learned something of the same routes.
        self.grade_paths(id);
    }

    /// The answer to [`Output::Measure`]; `None` where the rail measures nothing.
    pub fn path_measured(&mut self, link: LinkId, health: Option<&Health>) {
        let now = self.now;
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        let id = self.resolve(id);
        let Some(session) = self.peers.session_mut(id) else { return };
        session.paths.measured(link, health, &mut self.routes.controllers, now);
        self.grade_paths(id);
    }

    /// A session acts on the quality of its routes.
    pub(super) fn grade_paths(&mut self, id: PeerId) {
        let mut any = false;
        while let Some(session) = self.peers.session_mut(id)
            && let Some((link, quality)) = session.paths.next_graded(&self.routes.controllers)
        {
            any = true;
            self.note_graded(id, link, quality);
        }
        if any {
            self.sync_paths(id);
            self.pump(id);
        }
    }

    /// A span goes again, since it was not acknowledged: its last link may have lost it.
    pub(super) fn note_sent_again(&mut self, id: PeerId, span: u64) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let sent = session.reliable.as_ref().map(|reliable| &reliable.sent);
        let Some((link, sent_at)) = sent.and_then(|sent| sent.newest_over(span)) else { return };
        // Where a link loses nothing, its receiver had no room.
        if self.rails.of(link).is_some_and(|rail| !rail.reliable) {
            session.paths.note_sent_again(link, sent_at, &self.routes.controllers);
        }
    }

    /// A frame that came over a link was spoiled.
    #[cold]
    pub(crate) fn note_corrupt(&mut self, link: LinkId) {
        let Some(id) = self.links.get(link).and_then(|state| state.peer) else { return };
        let id = self.resolve(id);
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.note_corrupt(link);
        }
    }
}
