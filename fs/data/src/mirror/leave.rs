//! Groups that this server leaves, or lets another member order.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::join;
use ropewalk_base::time::Time;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::meta::{HAND_ON_VERSION, STEP_GROUPS_MAX, Step};
use ropewalk_wire::fs::value::Bytes;

use crate::server::Inner;

/// A server that stops waits so long for the metadata server's answer.
const LEAVE_LIMIT: Duration = Duration::from_millis(500);
/// Groups that have not changed for so long go to the server that is to order them.
const QUIET: Duration = Duration::from_secs(5);
/// They are not served meanwhile, so changes that are under way have so long to end; else the groups stay for now.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);
/// The least pause between two looks for such groups; the most is twice that.
const LOOK: Duration = Duration::from_secs(2);
/// The pause before the metadata server is asked once more.
const PAUSE: Duration = Duration::from_millis(200);

impl Inner {
    /// Leaves groups, and hands them on, until this server stops.
    pub(crate) async fn let_groups_go(self: Rc<Self>) {
        join(self.clone().leave_on_order(), self.hand_on_groups()).await;
    }

    /// Leaves the groups that the map says this server is to leave, until it stops.
    async fn leave_on_order(self: Rc<Self>) {
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
        self.step_back(groups, (self.server, false)).await;
    }

    /// Hands groups on to the servers that are to order them, when these are in step again, until this server stops. Otherwise a server
    /// that was started again would order nothing, and another one twice as much.
    async fn hand_on_groups(self: Rc<Self>) {
        while !self.stopping.get() {
            // Where several servers hand groups on at once, their heir does not know who was a member in between, and waits.
            let more = self.world.random_u64() % LOOK.as_micros() as u64;
            self.world.sleep(LOOK + Duration::from_micros(more)).await;
            let before = Time(self.world.now().0.saturating_sub(QUIET.as_nanos() as u64));
            let speaks = self.herald.as_ref().is_some_and(|it| it.speaks(HAND_ON_VERSION));
            let found = || self.groups.borrow().to_hand_on(before).filter(|_| speaks);
            let Some((home, mut groups)) = found() else { continue };
            if self.is_linkless(home) {
                continue;
            }
            self.groups.borrow_mut().rest(&groups);
            // No change of this server is under way then that another one does not have.
            let ended = self.world.timeout(DRAIN_LIMIT, self.mirror.locks.rest());
            let has_ended = ended.await.is_some();
            // They may have changed meanwhile.
            let still = found().filter(|(it, _)| *it == home).filter(|_| has_ended);
            groups.retain(|group| still.iter().any(|(_, still)| still.contains(group)));
            self.groups.borrow_mut().withhold(&groups);
            self.groups.borrow_mut().rest(&[]);
            self.step_back(&groups, (home, true)).await;
        }
    }

    /// Tells the metadata server of groups that this server withholds, until it knows a later change of each: `server` is in step, or is
    /// not.
    async fn step_back(&self, groups: &[Group], (server, in_step): (u32, bool)) {
        let Some(herald) = &self.herald else { return };
        loop {
            let groups = self.groups.borrow().withheld(groups);
            if groups.is_empty() || self.stopping.get() {
                return;
            }
            let map = self.groups.borrow().epoch();
            let numbers = Step::numbers(&groups);
            let (named, by) = (Bytes(&numbers), self.server);
            herald.set_step(Step { groups: named, by, map, server, in_step }).await;
            self.fetch_map(herald).await;
            if !self.groups.borrow().withheld(&groups).is_empty() {
                self.world.sleep(PAUSE).await;
            }
        }
    }
}
