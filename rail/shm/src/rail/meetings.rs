//! Meetings of a rail: links that are being made, until they are up or given up.

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::link::{Link, Parts, Presence};
use crate::meeting::{self, MEETING_PATIENCE, Meeting, Outcome, Stage};
use crate::rail::{Entry, PROCESS, RING, ShmRail};
use crate::socket;

/// Attempts under way at once; further ones are turned away.
const MEETINGS_MAX: usize = 256;
const ACCEPTS_PER_POLL: usize = 64;

impl ShmRail {
    /// Takes the connects that came to the listener.
    pub(super) fn accept(&mut self, now: Time) -> bool {
        let mut worked = false;
        for _ in 0..ACCEPTS_PER_POLL {
            let Some(Ok(socket)) = self.listener.as_ref().map(socket::accept) else { break };
            worked = true;
            self.common.counters.system_calls += 1;
            if self.meetings.len() >= MEETINGS_MAX {
                continue;
            }
            let Some(stage) = meeting::accept(socket) else {
                self.common.counters.violations += 1;
                continue;
            };
            let entry = Entry::Meeting(Box::new(Meeting { since: now, stage: Stage::Failed }));
            if let Ok(slot) = self.links.insert(entry) {
                self.meetings.push(slot);
                self.watch(slot, &stage);
                self.settle(slot, Outcome::Waits(stage), true);
            }
        }
        worked
    }

    /// Puts the socket of a meeting into the epoll set; a link keeps it there.
    pub(super) fn watch(&mut self, slot: SlotId, stage: &Stage) {
        let (Stage::Hello { socket, .. } | Stage::Welcome { socket, .. }) = stage else { return };
        let name = EventData::new_u64(slot.to_u64());
        if epoll::add(&self.epoll, socket, name, EventFlags::IN | EventFlags::RDHUP).is_err() {
            self.downs.push((slot, Fault::Busy));
        }
    }

    /// Takes note of how a meeting went on.
    pub(super) fn settle(&mut self, slot: SlotId, outcome: Outcome, accepted: bool) {
        match outcome {
            Outcome::Waits(stage) => {
                if let Some(Entry::Meeting(meeting)) = self.links.get_mut(slot) {
                    meeting.stage = stage;
                }
            }
            Outcome::Up(parts) => self.link_up(slot, *parts, accepted),
            Outcome::Failed(fault) if accepted => {
                // Nobody was told of it. Strangers and the dying are no news but to the counters.
                self.common.counters.violations += u64::from(fault == Fault::Protocol);
                self.links.remove(slot);
                self.met(slot);
            }
            Outcome::Failed(fault) => self.downs.push((slot, fault)),
        }
    }

    pub(super) fn link_up(&mut self, slot: SlotId, parts: Parts, accepted: bool) {
        if let Presence::Socket { process: Some(process), .. } = &parts.presence {
            // A process that cannot be watched is still watched by its socket.
            let name = EventData::new_u64(slot.to_u64() | PROCESS);
            let _ = epoll::add(&self.epoll, process, name, EventFlags::IN);
        }
        let name = EventData::new_u64(slot.to_u64() | RING);
        let edge = EventFlags::IN | EventFlags::ET;
        if epoll::add(&self.epoll, &*parts.own_bell, name, edge).is_err() {
            // Without its bell the link could not be waited for.
            return self.downs.push((slot, Fault::Busy));
        }
        let mut link = Box::new(Link::new(self.link_id(slot), parts));
        link.note_active(self.now);
        let entry = self.links.get_mut(slot).expect("a meeting has a slot until it is over");
        *entry = Entry::Up(link);
        self.met(slot);
        self.attention.add(slot);
        self.common.counters.links_up += 1;
        self.ups.push((slot, accepted));
    }

    /// A meeting is over.
    pub(super) fn met(&mut self, slot: SlotId) {
        self.meetings.retain(|other| *other != slot);
    }

    /// Handles attempts that are due again, and attempts that took too long.
    #[cold]
    pub(super) fn tend_meetings(&mut self, now: Time) {
        let due: Vec<(SlotId, bool)> = self
            .meetings
            .iter()
            .filter_map(|slot| match self.links.get(*slot) {
                Some(Entry::Meeting(meeting)) if meeting.deadline() <= now => {
                    Some((*slot, now >= meeting.since + MEETING_PATIENCE))
                }
                _ => None,
            })
            .collect();
        for (slot, late) in due {
            let Some(Entry::Meeting(meeting)) = self.links.get_mut(slot) else { continue };
            let stage = std::mem::replace(&mut meeting.stage, Stage::Failed);
            let accepted = matches!(stage, Stage::Hello { .. } | Stage::Confirm { .. });
            match stage {
                Stage::Retry { name, .. } if !late => {
                    let outcome = meeting::connect(name, &self.host(), now);
                    if let Outcome::Waits(stage) = &outcome {
                        self.watch(slot, stage);
                    }
                    self.settle(slot, outcome, false);
                }
                // Already on the list of those to report.
                Stage::Failed => {}
                _ => self.settle(slot, Outcome::Failed(Fault::Unreachable), accepted),
            }
        }
    }
}
