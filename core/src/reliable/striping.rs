//! Over which link a span goes, where its session has several paths.

use ropewalk_base::verb::LinkId;

use crate::api::PeerId;
use crate::engine::Core;
use crate::session::{Controllers, Path, PathId, Session};

/// The link for a span: at first that of the path that was chosen for it, later the one over which it is at the peer
/// first, if that link's rail has no copy. And the link over which it goes at the same time, if it is redundant.
pub(super) fn links_for(
    session: &Session,
    span: u64,
    controllers: &Controllers,
) -> Option<(LinkId, Option<LinkId>)> {
    let control = session.paths.control()?;
    let Some(reliable) = session.reliable.as_ref().filter(|_| session.paths.are_several()) else {
        return Some((control, None));
    };
    let sent = &reliable.sent;
    let best = match sent.first_path(span) {
        Some(path) => session.paths.usable_link(path),
        None => session.paths.for_bytes(sent.bytes_of(span), controllers),
    };
    let link = best.filter(|link| sent.may_go(span, *link)).unwrap_or(control);
    let beside = sent.is_redundant(span).then(|| {
        let bytes = sent.bytes_of(span);
        session.paths.beside(link, bytes, controllers)
    });
    Some((link, beside.flatten()))
}

impl Core {
    /// Half of the window waits for a span: that goes over the fastest path, too.
    #[cold]
    pub(super) fn fill_hole(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let sent = session.reliable.as_ref().map(|reliable| &reliable.sent);
        let hole = sent.and_then(|sent| Some((sent, sent.oldest_hole()?)));
        let again = hole.and_then(|(sent, span)| {
            let link = session.paths.for_bytes(sent.bytes_of(span), &self.routes.controllers)?;
            (!sent.went_over(span, link)).then_some((span, link))
        });
        if let Some((span, link)) = again {
            self.transmit_over(id, span, link, false);
        }
    }

    /// The peer says over a link that a span came spoiled over a path. It goes again, unless it went elsewhere since: over
    /// another path if there is one.
    #[cold]
    pub(super) fn span_spoiled(&mut self, id: PeerId, link: LinkId, path: PathId, span: u64) {
        let Some(session) = self.peers.session(id) else { return };
        let Some(sent) = session.reliable.as_ref().map(|reliable| &reliable.sent) else { return };
        let over = session.paths.iter().find(|it| it.id() == path).and_then(Path::up);
        let Some(over) = over.filter(|over| sent.went_last_over(span, *over)) else { return };
        let best = session.paths.for_bytes(sent.bytes_of(span), &self.routes.controllers);
        let best = best.filter(|best| *best != over).unwrap_or(link);
        self.transmit_over(id, span, best, false);
    }

    /// A session has other paths than before: those that are new have their parts of controllers from now on.
    pub(crate) fn begin_parts(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session(id).filter(|it| it.reliable.is_some()) else {
            return;
        };
        for link in session.paths.without_part() {
            // Memory is no way that sessions share.
            let route = self.route_of(link).filter(|_| self.can_be_silent(link));
            let Some(session) = self.peers.session_mut(id) else { return };
            let sent = session.reliable.as_ref().map(|reliable| &reliable.sent);
            let in_flight = sent.map_or(0, |sent| sent.bytes_over(link));
            if let Some(part) = self.routes.controllers.join(route, in_flight, now) {
                session.paths.take_part(link, part);
            }
        }
        self.grade_paths(id);
    }
}
