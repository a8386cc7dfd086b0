//! Requests of an endpoint: the user takes them.

use crate::endpoint::Endpoint;
use crate::engine::{Command, Request};

impl Endpoint {
    /// The next request, if one arrived. From here on its memory is the taker's: it counts neither against the
    /// peer's credit nor against the staging memory. So a taker that keeps requests costs no peer its link, but has
    /// to bound the requests that it keeps.
    pub fn next_request(&self) -> Option<Request> {
        let mut request = self.take_request()?;
        self.release_request(&mut request);
        Some(request)
    }

    /// The number of requests that have ever arrived.
    pub fn requests_arrived(&self) -> usize {
        self.shared.requests.arrived()
    }

    /// The next request, for a caller that sorts requests before somebody takes them. It counts against its peer's
    /// credit, which bounds such requests, until [`Endpoint::release_request`].
    pub fn take_request(&self) -> Option<Request> {
        self.shared.requests.pop()
    }

    /// The user has the request now: see [`Endpoint::next_request`].
    pub fn release_request(&self, request: &mut Request) {
        if !std::mem::replace(&mut request.charged, false) {
            return;
        }
        if let Some(payload) = &mut request.payload {
            payload.make_over();
        }
        self.leave(Command::RequestTaken {
            peer: request.peer,
            session: request.session,
            bytes: request.bytes,
        });
    }
}
