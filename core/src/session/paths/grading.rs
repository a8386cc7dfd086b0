//! The quality of the routes of paths: what is counted of it, and what the session has learned of it.

use ropewalk_base::health::Health;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, Paths};
use crate::session::controllers::{Controllers, Part};
use crate::session::quality::{PathGrade, PathQuality};

impl Paths {
    /// A link whose rail is to be asked now what it has counted; `is_busy`: the session has traffic. Without it nothing is
    /// learned of a route that does well.
    pub fn next_question(&mut self, is_busy: bool, now: Time) -> Option<LinkId> {
        for path in self.iter_mut() {
            let Some(link) = path.up() else { continue };
            let is_bad = path.health.grade() > PathGrade::Good;
            let part = path.part.as_mut().filter(|_| is_busy || is_bad);
            if part.is_some_and(|part| part.take_question(is_bad, now)) {
                return Some(link);
            }
        }
        None
    }

    /// Its answer.
    pub fn measured(
        &mut self,
        link: LinkId,
        health: Option<&Health>,
        controllers: &mut Controllers,
        now: Time,
    ) {
        let others = self.iter().filter(|path| path.link() != Some(link)).filter_map(Path::part);
        let least_beside = others.filter_map(|part| controllers.round_trip(part)).min();
        if let Some(part) = self.part_over(link) {
            controllers.measured(part, health, least_beside, now);
        }
    }

    /// A span that went over a link at that time goes again.
    pub fn note_sent_again(&mut self, link: LinkId, sent_at: Time, controllers: &Controllers) {
        if let Some(part) = self.part_over(link) {
            controllers.note_sent_again(part, sent_at);
        }
    }

    /// A frame that came over a link was spoiled.
    pub fn note_corrupt(&mut self, link: LinkId) {
        self.part_over(link).into_iter().for_each(Part::note_corrupt);
    }

    /// The peer says that a frame which went over a link was spoiled.
    pub fn note_spoiled(&mut self, link: LinkId) {
        self.part_over(link).into_iter().for_each(Part::note_spoiled);
    }

    /// The session learns what its routes do. A link whose route has another grade than before, and its quality.
    pub fn next_graded(&mut self, controllers: &Controllers) -> Option<(LinkId, PathQuality)> {
        for path in self.iter_mut() {
            let (Some(part), Some(link)) = (&path.part, path.up()) else { continue };
            let quality = controllers.quality(part);
            let PathQuality { score, grade, .. } = quality;
            let before = path.health.grade();
            if (path.health.score(), before) != (score, grade) {
                path.health.set_quality(score, grade);
            }
            if before != grade {
                return Some((link, quality));
            }
        }
        None
    }

    fn part_over(&mut self, link: LinkId) -> Option<&mut Part> {
        self.of_link(link)?.part.as_deref_mut()
    }
}

#[cfg(test)]
mod tests;
