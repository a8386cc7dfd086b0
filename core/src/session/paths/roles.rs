//! What migration decides of paths, and what it sees of them.

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, PathId, Paths};
use crate::apm;

/// A path as migration sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathView {
    pub path: apm::PathId,
    /// Our rail.
    pub rail: u8,
    /// Where it is up.
    pub link: Option<LinkId>,
    pub is_suspect: bool,
    /// It is neither suspect nor held back.
    pub is_good: bool,
    /// When it last delivered, or since when something is awaited.
    pub heard_at: Time,
}

impl Paths {
    pub fn views(&self) -> impl Iterator<Item = PathView> {
        self.iter().map(|path| PathView {
            path: apm::PathId(path.id.name()),
            rail: path.rail,
            link: path.up(),
            is_suspect: path.up().is_some() && path.health.is_suspect(),
            is_good: path.up().is_some() && path.health.is_good(),
            heard_at: path.health.silent_since(),
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

    /// The path that is used: the preferred one if it is good, else the first good one, else the first one that is not
    /// suspect, else any. One that is drained only where there is no other.
    pub(super) fn chosen(&self) -> Option<&Path> {
        let up = || self.iter().filter(|path| path.up().is_some());
        let used = || up().filter(|path| !path.is_drained);
        let good = || used().filter(|path| path.health.is_good());
        let preferred = good().find(|path| path.id == self.preferred);
        preferred
            .or_else(|| good().next())
            .or_else(|| used().find(|path| !path.health.is_suspect()))
            .or_else(|| used().next())
            .or_else(|| up().next())
    }
}
