//! Routes: a rail of ours and a remote host. All sessions with peers on that host that have a path by that rail share one
//! stream of probes, one controller ([`Controllers`]), and what one of them learns of the route.
//!
//! What is learned of a route proves nothing of another session's path: that one is probed at once, or left until it answers.
//!
//! Invariants: a route costs one standing probe in each interval, however many sessions use it; news of a route goes to its
//! sessions once in 25 ms at most; the table is bounded by the rails and hosts that were probed in the last minute.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::LinkStage;
use crate::api::PeerId;
use crate::engine::Core;
use crate::session::{Controllers, PathCause, Route as Key};

/// How often news of a route are told.
const NEWS_EVERY: Duration = Duration::from_millis(25);
/// News of a dead path makes paths of others suspect: they are told more rarely, and spare those that delivered just now.
const DEAD_EVERY: Duration = Duration::from_secs(1);
const JUST_NOW: Duration = Duration::from_millis(100);
/// What was not used for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// With more routes than that, those that are not used are looked for.
const ROUTES_KEPT: usize = 64;

#[derive(Debug, Clone, Copy, Default)]
struct Route {
    probed_at: Option<Time>,
    /// When its sessions were told last that it may be broken, and that it is well.
    broken_at: Option<Time>,
    dead_at: Option<Time>,
    mended_at: Option<Time>,
}

/// The routes of all sessions with several paths.
#[derive(Debug)]
pub(crate) struct Routes {
    routes: BTreeMap<Key, Route>,
    swept_at: usize,
    /// The rate and the room of each route.
    pub controllers: Controllers,
}

/// What a session learned of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteNews {
    Suspect,
    Dead,
    Well,
}

fn is_past(at: Option<Time>, every: Duration, now: Time) -> bool {
    at.is_none_or(|at| now.since(at) >= every)
}

impl Routes {
    pub fn new() -> Routes {
        let controllers = Controllers::new();
        Routes { routes: BTreeMap::new(), swept_at: ROUTES_KEPT, controllers }
    }

    fn route(&mut self, key: Key, now: Time) -> &mut Route {
        if self.routes.len() >= self.swept_at && !self.routes.contains_key(&key) {
            let is_kept = |route: &Route| !is_past(route.probed_at, FORGET_AFTER, now);
            self.routes.retain(|_, route| is_kept(route));
            self.swept_at = (self.routes.len() * 2).max(ROUTES_KEPT);
        }
        self.routes.entry(key).or_default()
    }

    /// Whether the stream of probes of a route has no probe of this interval yet: then this is it.
    fn take_probe(&mut self, key: Key, every: Duration, now: Time) -> bool {
        let route = self.route(key, now);
        // Timers go off a little early or late.
        let is_due = is_past(route.probed_at, every * 3 / 4, now);
        if is_due {
            route.probed_at = Some(now);
        }
        is_due
    }

    /// Whether such news of a route is to be told now.
    fn take_news(&mut self, key: Key, news: RouteNews, now: Time) -> bool {
        let route = self.route(key, now);
        let told = match news {
            RouteNews::Well => &mut route.mended_at,
            RouteNews::Suspect => &mut route.broken_at,
            RouteNews::Dead => &mut route.dead_at,
        };
        let every = if news == RouteNews::Dead { DEAD_EVERY } else { NEWS_EVERY };
        let is_due = is_past(*told, every, now);
        if is_due {
            *told = Some(now);
        }
        is_due
    }
}

impl Core {
    /// Whether the silence of a link tells anything: shared memory and the link to oneself are never silent for want of a
    /// path.
    pub(crate) fn can_be_silent(&self, link: LinkId) -> bool {
        self.rails.of(link).is_some_and(|rail| !rail.same_host_only)
    }

    /// The host at the other end of a link, as far as it says so.
    pub(crate) fn route_of(&self, link: LinkId) -> Option<Key> {
        let host = self.links.get(link)?.hello?.host.get();
        (host != 0).then_some((link.rail, host))
    }

    /// Whether a session whose paths are looked at this often has to probe a link itself.
    pub(crate) fn takes_probe(&mut self, link: LinkId, every: Duration) -> bool {
        let now = self.now;
        let Some(key) = self.route_of(link) else { return true };
        self.routes.take_probe(key, every, now)
    }

    /// A session learned something of the route of a link: the paths of others over it are left, or probed.
    pub(crate) fn share_news(&mut self, id: PeerId, link: LinkId, news: RouteNews) {
        let now = self.now;
        let Some(key) = self.route_of(link) else { return };
        if !self.routes.take_news(key, news, now) {
            return;
        }
        let shares = |(other, state): (LinkId, &super::Link)| {
            let is_up = other.rail == link.rail && state.stage == LinkStage::Up;
            let peer = state.peer.filter(|peer| is_up && *peer != id)?;
            (self.route_of(other) == Some(key)).then_some((peer, other))
        };
        let others: Vec<(PeerId, LinkId)> = self.links.iter().filter_map(shares).collect();
        for (peer, other) in others {
            self.hear_news(peer, other, news);
        }
    }

    fn hear_news(&mut self, id: PeerId, link: LinkId, news: RouteNews) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        if !session.paths.are_several() || !session.paths.is_up_over(link) {
            return;
        }
        match news {
            RouteNews::Dead if !session.paths.has_delivered(link, now, JUST_NOW) => {
                self.suspect_path(id, link, PathCause::Route);
            }
            RouteNews::Well => {
                session.paths.probe_soon(link, now);
                self.wake_by(id, now);
            }
            RouteNews::Suspect | RouteNews::Dead if session.paths.is_suspect(link) => {}
            RouteNews::Suspect | RouteNews::Dead => {
                let due = session.paths.asked(link, now);
                self.emit_probe(id, link, false);
                self.wake_by(id, due);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn sessions_over_one_route_share_its_probes() {
        let mut routes = Routes::new();
        let every = Duration::from_millis(100);
        // Ten sessions, each of which looks each 100 ms.
        let looks = (0..1000).filter(|milli| routes.take_probe((1, 7), every, at(*milli)));
        assert_eq!(looks.count(), 14);
        let looks = (1000..2000).step_by(100);
        let looks: Vec<u64> = looks
            .flat_map(|base| [base, base + 1, base + 2])
            .filter(|milli| routes.take_probe((0, 7), every, at(*milli)))
            .collect();
        assert_eq!(looks, (1000..2000).step_by(100).collect::<Vec<_>>());
        assert!(routes.take_probe((0, 8), every, at(1901)), "another host");
    }

    #[test]
    fn news_is_told_once_in_a_while_and_old_routes_are_forgotten() {
        let mut routes = Routes::new();
        let told = |routes: &mut Routes, news, millis| routes.take_news((0, 1), news, at(millis));
        assert!(told(&mut routes, RouteNews::Suspect, 0));
        assert!(!told(&mut routes, RouteNews::Suspect, 24));
        assert!(told(&mut routes, RouteNews::Well, 24), "that is other news");
        assert!(told(&mut routes, RouteNews::Dead, 24), "and this is worse");
        assert!(
            !told(&mut routes, RouteNews::Dead, 1000) && told(&mut routes, RouteNews::Dead, 1024)
        );
        for host in 0..10_000 {
            routes.take_probe((0, host), NEWS_EVERY, at(1000 * host));
        }
        assert!(routes.routes.len() <= 2 * 64, "{}", routes.routes.len());
    }
}
