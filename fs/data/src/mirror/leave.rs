//! Groups that this server leaves.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::meta::{STEP_GROUPS_MAX, Step};
use ropewalk_wire::fs::value::Bytes;

use crate::server::Inner;

/// A server that stops waits so long for the metadata server's answer.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);
/// The pause before the metadata server is asked once more.
const PAUSE: Duration = Duration::from_millis(200);

impl Inner {
    /// Leaves the groups that the map says this server is to leave, until it stops.
    pub(crate) async fn leave_on_order(self: Rc<Self>) {
        while !self.stopping.get() {
            let changed = self.mirror.changed.notified();
            let groups = self.groups.borrow().to_leave();
            if groups.is_empty() {
                changed.await;
                continue;
            }
            for some in groups.chunks(STEP_GROUPS_MAX) {
                self.leave_groups(some).await;
            }
        }
    }

    /// Leaves all groups of several members, since this server stops. It serves nobody in them from now on, so the others go on as soon as
    /// the metadata server knows; without its answer they wait for the end of silence, as if this server had died.
    pub(crate) async fn leave_all(&self) {
        let Some(herald) = self.herald.as_ref().filter(|_| self.groups.borrow().has_mirrored())
        else {
            return;
        };
        self.groups.borrow_mut().leave_all();
        let (by, map) = (self.server, self.groups.borrow().epoch());
        let step = Step { groups: Bytes(&[]), by, map, server: by, in_step: false };
        let _ = self.world.timeout(LEAVE_LIMIT, herald.set_step(step)).await;
    }

    /// Leaves groups that this server orders. It serves nobody in them from now on: another server may acknowledge writes as soon
    /// as the metadata server knows. Only a later change of a group ends that: where nobody else lives, the metadata server makes
    /// one that leaves everything as it was, so that no copy of this word counts later.
    pub(super) async fn leave_groups(&self, groups: &[Group]) {
        self.groups.borrow_mut().withhold(groups);
        let Some(herald) = &self.herald else { return };
        loop {
            let groups = self.groups.borrow().withheld(groups);
            if groups.is_empty() || self.stopping.get() {
                return;
            }
            let map = self.groups.borrow().epoch();
            let numbers = Step::numbers(&groups);
            let (named, by) = (Bytes(&numbers), self.server);
            herald.set_step(Step { groups: named, by, map, server: by, in_step: false }).await;
            self.fetch_map(herald).await;
            if !self.groups.borrow().withheld(&groups).is_empty() {
                self.world.sleep(PAUSE).await;
            }
        }
    }
}
