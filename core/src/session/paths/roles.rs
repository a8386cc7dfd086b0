//! What migration decides of paths, and what it sees of them.

use std::cmp::Reverse;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, PathId, Paths};
use crate::apm;
use crate::session::quality::SCORE_GAIN;

/// A path as migration sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathView {
    pub path: apm::PathId,
    /// Our rail.
    pub rail: u8,
    /// Where it is up.
    pub link: Option<LinkId>,
    /// It has no link, and needs none as long as nobody sends.
    pub rests: bool,
    pub is_suspect: bool,
    /// It is neither suspect nor held back.
    pub is_good: bool,
    /// When it last delivered, or since when something is awaited.
    pub heard_at: Time,
    /// 0 to 1000, of its route.
    pub score: u16,
}

impl Paths {
    pub fn views(&self) -> impl Iterator<Item = PathView> {
        self.iter().map(|path| PathView {
            path: apm::PathId(path.id.name()),
            rail: path.rail,
            link: path.up(),
            rests: path.rests(),
            is_suspect: path.up().is_some() && path.health.is_suspect(),
            is_good: path.up().is_some() && path.health.is_good(),
            heard_at: path.health.silent_since(),
            score: path.health.score(),
        })
    }

    /// The path that carries as long as it is good.
    pub fn prefer(&mut self, name: u32) {
        self.preferred = PathId::named(name);
    }

    /// Paths carry nothing but control frames and probes where that holds.
    pub fn keep_out(&mut self, is_drained: impl Fn(apm::PathId) -> bool) {
        for path in self.iter_mut() {
            path.is_drained = is_drained(apm::PathId(path.id.name()));
        }
    }

    /// The path that is used: the preferred one if it is good, and no other one is much better. Else of the good ones, else
    /// of those that are not suspect, else of all, the first one with the highest score. One that stands by only where no
    /// better one is up, and one that is drained only where there is no other.
    #[inline]
    pub(super) fn chosen(&self) -> Option<&Path> {
        let preferred = match self.first.id == self.preferred {
            true => Some(&self.first),
            false => self.more.iter().find(|path| path.id == self.preferred),
        };
        let best = preferred.filter(|path| path.is_usable() && path.health.is_unbeaten());
        best.or_else(|| self.chosen_instead())
    }

    /// The same where the preferred one is not good, or another one may be much better.
    #[inline(never)]
    fn chosen_instead(&self) -> Option<&Path> {
        let up = || self.iter().filter(|path| path.up().is_some());
        let is_preferred =
            |path: &&Path| path.id == self.preferred && !path.is_drained && path.health.is_good();
        let preferred = up().find(is_preferred);
        if preferred.is_some_and(|path| path.health.is_unbeaten()) {
            return preferred;
        }
        let rank = |path: &&Path| {
            let health = &path.health;
            let is_bad = (health.is_suspect(), health.is_standby(), !health.is_good());
            (path.is_drained, is_bad, Reverse(health.score()))
        };
        let best = up().min_by_key(rank)?;
        let stays = |path: &&Path| best.health.score() < path.health.score() + SCORE_GAIN;
        preferred.filter(stays).or(Some(best))
    }
}
