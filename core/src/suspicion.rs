//! Signs of broken paths, as rails tell of them. They are counted so far, and nothing follows from them.

use ropewalk_base::health::Suspicion;
use ropewalk_base::verb::LinkId;

use crate::engine::Core;

impl Core {
    /// A rail suspects the path of a link.
    #[cold]
    pub fn suspect(&mut self, link: LinkId, cause: Suspicion) {
        if self.links.get(link).is_some() {
            self.counters.suspected.note(cause);
        }
    }
}
