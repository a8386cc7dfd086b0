//! Controllers: one model for each pair of rails and remote host, its quality, and the sessions whose paths share it.
//!
//! A path holds its part of a controller: what it has in flight. The rate, the least round trip and the bound of the bytes
//! in flight belong to the controller. A session with something to send may always have an equal part of that bound in
//! flight. What others leave of theirs is for whoever needs more.
//!
//! A few short spans tell nothing of a rate, and hardly delay anything. So a path has them aside, and its controller counts
//! them from when they are many, or something long goes.
//!
//! Invariants: what a controller has in flight is the sum of what its parts have told it; a part has told it all, or has less
//! than [`TELLING`] aside and has told it nothing; a controller ends with its last part; a session with nothing in flight may
//! always send, so that nobody has to be called when another session ends or goes idle.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::health::Health;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;

use super::counting::Counting;
use super::model::{Acknowledged, PathModel, TELLING};
use super::quality::{PathGrade, PathQuality, Quality};

/// Controllers of one endpoint at most; a path beyond has none, and always has room.
const CONTROLLERS_MAX: usize = 1 << 20;
/// Routes that nobody uses, and that did badly when they were used.
const LEFT_MAX: usize = 64;

/// A rail of ours, and the number of a remote host.
pub(crate) type Route = (u8, u64);

/// All controllers of an endpoint.
#[derive(Debug)]
pub(crate) struct Controllers {
    controllers: Slots<Controller>,
    by_route: BTreeMap<Route, SlotId>,
    /// What is known of routes that lost packets, and have no path for a while.
    left: BTreeMap<Route, Quality>,
}

#[derive(Debug)]
struct Controller {
    /// `None`: nobody else can share it.
    route: Option<Route>,
    model: PathModel,
    quality: Quality,
    /// Paths that have a part of it, and those of them that have enough in flight to need an equal part.
    parts: u32,
    busy: u32,
}

/// The part that a path has of a controller.
#[derive(Debug)]
pub(crate) struct Part {
    of: SlotId,
    /// Bytes in flight over this path that the controller counts.
    told: u64,
    /// Bytes in flight that it does not count, and since when there are such.
    aside: u64,
    aside_since: Time,
    counting: Counting,
}

impl Part {
    /// Bytes of the path's spans that are neither acknowledged nor given up.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.told + self.aside
    }

    /// Whether acknowledged spans of so many bytes were aside, and are all that is in flight.
    #[inline]
    pub fn is_aside(&self, bytes: u64) -> Option<bool> {
        (self.told == 0).then_some(self.aside == bytes)
    }

    /// A short span goes over the path. False, and nothing is noted, where its controller has to hear of it.
    #[inline]
    pub fn put_aside(&mut self, bytes: u64, now: Time) -> bool {
        if self.told > 0 || self.aside + bytes >= TELLING {
            return false;
        }
        if self.aside == 0 {
            self.aside_since = now;
        }
        self.aside += bytes;
        self.counting.sent();
        true
    }

    /// Spans of the path are acknowledged. False, and nothing is noted, where its controller has to hear of it.
    #[inline]
    pub fn take_aside(&mut self, bytes: u64) -> bool {
        self.aside = self.aside.saturating_sub(bytes);
        self.told == 0
    }

    fn is_busy(&self) -> bool {
        self.told >= TELLING
    }

    /// Whether the rail of the path is to be asked now what it has counted. `is_bad`: the route does badly.
    pub fn take_question(&mut self, is_bad: bool, now: Time) -> bool {
        self.counting.take_question(is_bad, now)
    }

    /// The peer says that a frame which went over the path was spoiled.
    pub fn note_spoiled(&mut self) {
        self.counting.spoiled();
    }

    /// A frame that came over the path was spoiled.
    pub fn note_corrupt(&mut self) {
        self.counting.corrupt();
    }
}

impl Controller {
    /// Changes what a part has in flight, and counts who is busy.
    fn set(&mut self, part: &mut Part, told: u64) {
        let was_busy = part.is_busy();
        part.told = told;
        self.busy = self.busy + u32::from(part.is_busy()) - u32::from(was_busy);
    }

    /// Sessions that share it while this one sends.
    fn sharers(&self, part: &Part) -> u32 {
        self.busy + u32::from(!part.is_busy())
    }
}

impl Controllers {
    pub fn new() -> Controllers {
        Controllers {
            controllers: Slots::with_limit(CONTROLLERS_MAX),
            by_route: BTreeMap::new(),
            left: BTreeMap::new(),
        }
    }

    /// A path, over which so many bytes are under way, gets its part of the controller of this route; of one of its own
    /// where there is no route.
    pub fn join(&mut self, route: Option<Route>, in_flight: u64, now: Time) -> Option<Part> {
        let known = route.and_then(|route| self.by_route.get(&route).copied());
        let of = match known {
            Some(of) => of,
            None => {
                let model = PathModel::new(0, now);
                let left = route.and_then(|route| self.left.remove(&route));
                let quality = left.and_then(|mut left| left.is_worth_keeping(now).then_some(left));
                let quality = quality.unwrap_or_else(Quality::new);
                let controller = Controller { route, model, quality, parts: 0, busy: 0 };
                let of = self.controllers.insert(controller).ok()?;
                if let Some(route) = route {
                    self.by_route.insert(route, of);
                }
                of
            }
        };
        let controller = self.controllers.get_mut(of)?;
        controller.parts += 1;
        let counting = Counting::default();
        let mut part = Part { of, told: 0, aside: 0, aside_since: now, counting };
        controller.model.add_in_flight(in_flight);
        controller.set(&mut part, in_flight);
        Some(part)
    }

    /// A path is over, or has another link: what it had in flight counts no more.
    pub fn leave(&mut self, mut part: Part) {
        let Some(controller) = self.controllers.get_mut(part.of) else { return };
        controller.model.give_up(part.told);
        controller.set(&mut part, 0);
        controller.parts -= 1;
        if controller.parts == 0 {
            let Some(ended) = self.controllers.remove(part.of) else { return };
            let Some(route) = ended.route else { return };
            self.by_route.remove(&route);
            if ended.quality.shown().grade > PathGrade::Good {
                if self.left.len() >= LEFT_MAX {
                    self.left.pop_first();
                }
                self.left.insert(route, ended.quality);
            }
        }
    }

    /// The quality of a part's route.
    pub fn quality(&self, part: &Part) -> PathQuality {
        self.controllers.get(part.of).map_or_else(PathQuality::default, |it| it.quality.shown())
    }

    /// The round trip of a part's route, as it was when its quality was judged last.
    pub fn round_trip(&self, part: &Part) -> Option<Duration> {
        self.controllers.get(part.of)?.quality.round_trip()
    }

    /// The rail of a part's path says what it has counted. `least_beside`: the least round trip of the other paths of its
    /// session.
    pub fn measured(
        &mut self,
        part: &mut Part,
        health: Option<&Health>,
        least_beside: Option<Duration>,
        now: Time,
    ) {
        let Some(controller) = self.controllers.get_mut(part.of) else { return };
        let by_rail = || health?.round_trips.map(|trips| trips.least);
        let round_trip = controller.model.round_trip().or_else(by_rail);
        controller.quality.note_round_trips(round_trip, least_beside);
        if let Some(counted) = part.counting.take(health) {
            controller.quality.note(counted, now);
        }
    }

    /// A span that went over a path at that time goes again. It is lost where the peer has what went later: else the peer may
    /// sleep.
    pub fn note_sent_again(&self, part: &mut Part, sent_at: Time) {
        let model = self.controllers.get(part.of).map(|controller| &controller.model);
        if model.is_some_and(|model| model.delivered_until() > sent_at) {
            part.counting.lost();
        }
    }

    /// The model of a part's controller.
    #[inline]
    pub fn model(&self, part: &Part) -> Option<&PathModel> {
        self.controllers.get(part.of).map(|controller| &controller.model)
    }

    /// Whether a path may have so many bytes more in flight.
    pub fn has_room(&self, part: &Part, bytes: u64, now: Time) -> bool {
        let Some(controller) = self.controllers.get(part.of) else { return true };
        let (most, all) = (controller.model.most(now), controller.model.in_flight());
        let equal = most / u64::from(controller.sharers(part));
        part.told == 0 || all + bytes <= most || part.told + bytes <= equal
    }

    /// The time until so many bytes more of this path are at the peer, where the others go on as they do.
    pub fn finish_all(&self, part: &Part, bytes: u64) -> Duration {
        let Some(controller) = self.controllers.get(part.of) else { return Duration::ZERO };
        controller.model.finish(bytes.saturating_mul(controller.sharers(part).into()))
    }

    /// How long the longest span of a path may take, which waits for a span of each other session.
    pub fn span_time(&self, part: &Part) -> Duration {
        let Some(controller) = self.controllers.get(part.of) else { return Duration::ZERO };
        controller.model.span_time().saturating_mul(controller.sharers(part))
    }

    /// From when on a wait over a path counts, which began at `since`. A route delivers in order, and spans that other
    /// sessions sent before come first. While these come, the route does well.
    pub fn awaited_since(&self, part: &Part, since: Time) -> Time {
        let model = self.model(part).filter(|model| model.delivered_until() < since);
        model.map_or(since, |model| since.max(model.delivered_at()))
    }

    /// A span of so many bytes goes over a path.
    pub fn send(&mut self, part: &mut Part, bytes: u64, now: Time) {
        if part.put_aside(bytes, now) {
            return;
        }
        let Some(controller) = self.controllers.get_mut(part.of) else { return };
        let aside = std::mem::take(&mut part.aside);
        if aside > 0 {
            controller.model.send(aside, part.aside_since);
        }
        controller.model.send(bytes, now);
        part.counting.sent();
        controller.set(part, part.told + aside + bytes);
    }

    /// Spans of a path are acknowledged.
    pub fn acknowledge(&mut self, part: &mut Part, acknowledged: &Acknowledged, now: Time) {
        let Some(controller) = self.controllers.get_mut(part.of) else { return };
        if part.take_aside(acknowledged.bytes) {
            controller.model.measure(acknowledged.sent, now);
            return;
        }
        let bytes = acknowledged.bytes.min(part.told);
        controller.model.acknowledge(&Acknowledged { bytes, ..*acknowledged }, now);
        controller.set(part, part.told - bytes);
    }

    /// What a path has in flight goes over others. What its controller knew tells nothing any more, unless other sessions
    /// have something under way there: whether that arrives is theirs to see.
    pub fn give_up(&mut self, part: &mut Part) {
        let Some(controller) = self.controllers.get_mut(part.of) else { return };
        controller.model.give_up(part.told);
        controller.set(part, 0);
        part.aside = 0;
        if controller.model.in_flight() == 0 {
            controller.model.forget();
        }
    }

    /// Asserts what always holds, where these are all parts.
    pub fn check<'a>(&self, parts: impl Iterator<Item = &'a Part>) {
        let mut found: BTreeMap<SlotId, (u32, u32, u64)> = BTreeMap::new();
        for part in parts {
            let sum = found.entry(part.of).or_default();
            assert!(part.aside < TELLING && (part.aside == 0 || part.told == 0), "{part:?}");
            *sum = (sum.0 + 1, sum.1 + u32::from(part.is_busy()), sum.2 + part.told);
        }
        assert_eq!(found.len(), self.controllers.len(), "each controller has a part");
        for (id, controller) in self.controllers.iter() {
            let noted = (controller.parts, controller.busy, controller.model.in_flight());
            assert_eq!(found.get(&id), Some(&noted), "parts of {:?}", controller.route);
        }
    }
}

#[cfg(test)]
mod tests;
