//! The rail's part of the `Rail` contract.

use std::os::fd::{AsFd, BorrowedFd};

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::limits::{EAGER_BYTES, FRAME_PAYLOAD_BYTES_MAX};
use ropewalk_base::memory::BufferTable;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, LinkId, Ordered, RailCounters, Token, Verb};
use ropewalk_rail::{Owner, Rail, Report, Sight};

use crate::LOCAL_PREFIX;
use crate::link::Presence;
use crate::meeting::{self, Meeting, Outcome, Stage};
use crate::native::Access;
use crate::rail::{Entry, NATIVE_BUDGET, ShmRail};
use crate::socket::{self, Name};

/// The interval at which the kernel is asked for news, in polls, for callers whose clock stands still.
const EVENTS_AFTER_POLLS: u32 = 4096;

impl Rail for ShmRail {
    fn scheme(&self) -> &'static str {
        "shm"
    }

    fn attach(&mut self, index: u8) {
        assert!(self.links.is_empty(), "a rail learns its index before it has links");
        self.index = index;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read: true,
            native_write: true,
            frame_payload_bytes_max: FRAME_PAYLOAD_BYTES_MAX,
            eager_bytes: EAGER_BYTES,
            preference: 100,
            same_host_only: true,
            foreign: false,
        }
    }

    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    fn connect(&mut self, address: &str, now: Time) -> Result<LinkId, Fault> {
        let local = address.strip_prefix(LOCAL_PREFIX);
        let name = Name::parse(local.unwrap_or(address)).ok_or(Fault::Invalid)?;
        let meeting = Meeting { since: now, stage: Stage::Failed };
        let slot = self.links.insert(Entry::Meeting(Box::new(meeting))).map_err(|_| Fault::Busy)?;
        self.meetings.push(slot);
        let outcome = match local {
            Some(name) => self.connect_local(slot, name),
            None => meeting::connect(name, &self.host(), now),
        };
        if let Outcome::Waits(stage) = &outcome {
            self.watch(slot, stage);
        }
        self.settle(slot, outcome, false);
        self.rouse();
        Ok(self.link_id(slot))
    }

    #[inline]
    fn send(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        let Self { links, common, .. } = self;
        match links.get_mut(frame.link.slot) {
            Some(Entry::Up(link)) => {
                let answer = link.send(frame, buffers, common);
                if answer != Ordered::Released {
                    self.attend(frame.link.slot);
                }
                answer
            }
            _ => self.order_beside(frame.link, false),
        }
    }

    fn order(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        let (Verb::Read { link, .. }
        | Verb::Write { link, .. }
        | Verb::Expose { link, .. }
        | Verb::Revoke { link, .. }
        | Verb::DetachSend { link, .. }
        | Verb::SkipSend { link, .. }
        | Verb::CancelAccess { link, .. }
        | Verb::CancelReceive { link, .. }
        | Verb::Close { link }) = verb;
        let Self { links, common, .. } = self;
        let Some(Entry::Up(found)) = links.get_mut(link.slot) else {
            return self.order_beside(*link, matches!(verb, Verb::Close { .. }));
        };
        let answer = match verb {
            Verb::Read { key, remote, local, token, help, .. } => {
                let mut access = Access::new(*key, remote.clone(), *local, *token, false);
                access.help = *help;
                found.access(access, buffers, common)
            }
            Verb::Write { key, remote, local, token, .. } => {
                let access = Access::new(*key, remote.clone(), *local, *token, true);
                found.access(access, buffers, common)
            }
            Verb::Expose { key, region, writable, .. } => {
                found.expose(*key, *region, *writable, buffers)
            }
            Verb::Revoke { key, .. } => found.revoke(*key, common),
            Verb::DetachSend { token, later, .. } => {
                let_go(*token != Token::NONE && found.detach(*token, *later, buffers))
            }
            Verb::SkipSend { token, .. } => {
                let_go(*token != Token::NONE && found.detach(*token, Token::NONE, buffers))
            }
            Verb::CancelAccess { token, .. } => let_go(found.stop(*token)),
            // A payload lands with its header.
            Verb::CancelReceive { .. } => let_go(false),
            Verb::Close { .. } => {
                found.close(common);
                Ordered::Released
            }
        };
        if !found.is_quiet() {
            self.attend(link.slot);
        }
        answer
    }

    fn poll(&mut self, now: Time, report: &mut dyn Report) -> bool {
        let mut worked = false;
        self.polls += 1;
        self.now = now;
        if self.events_due || now >= self.events_by || self.polls >= EVENTS_AFTER_POLLS {
            worked |= self.take_events(now);
        }
        if self.inbox.is_filled() {
            self.take_letters();
            worked = true;
        }
        if !self.meetings.is_empty() {
            self.tend_meetings(now);
        }
        // New links before their first frames, and ends after their last.
        worked |= self.report_changes(report);
        self.common.native_budget = NATIVE_BUDGET;
        worked |= self.poll_links(now, report);
        if self.attention.is_due(now) {
            self.rest_idle(now);
        }
        worked | self.report_changes(report)
    }

    fn look(&self) -> Sight {
        let news = self.events_due || !self.meetings.is_empty() || self.inbox.is_filled();
        if news || !self.ups.is_empty() || !self.downs.is_empty() {
            return Sight::Blind;
        }
        let mut sight = Sight::Nothing;
        for slot in self.attention.links() {
            let Some(Entry::Up(link)) = self.links.get(*slot) else { return Sight::Blind };
            if !link.is_quiet() {
                return Sight::Blind;
            }
            if link.has_frames() {
                sight = Sight::Work;
            }
        }
        sight
    }

    fn arm(&mut self) -> bool {
        self.common.rest.begin(&self.common.counters);
        let Self { links, attention, .. } = self;
        let mut has_work = |slot: &SlotId| match links.get_mut(*slot) {
            Some(Entry::Up(link)) => link.has_work(),
            _ => false,
        };
        // A frame that arrived over a resting link has rung the link's bell.
        let work = attention.links().iter().any(&mut has_work) || self.has_news();
        if work {
            self.common.rest.end();
        }
        !work
    }

    fn disarm(&mut self) {
        self.common.rest.end();
        self.events_due = true;
    }

    fn disarm_quiet(&mut self) {
        self.common.rest.end();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn deadline(&self) -> Option<Time> {
        let watched = self.attention.links().iter().chain(&self.meetings);
        let deadlines = watched.filter_map(|slot| match self.links.get(*slot)? {
            Entry::Meeting(meeting) => Some(meeting.deadline()),
            Entry::Up(link) => link.deadline(),
        });
        deadlines.min()
    }

    fn counters(&self) -> RailCounters {
        self.common.counters
    }

    fn health(&mut self, link: LinkId, now: Time) -> Option<Health> {
        let is_up =
            link.rail == self.index && matches!(self.links.get(link.slot), Some(Entry::Up(_)));
        is_up.then(|| Health::of_memory(now))
    }

    /// A peer with shared memory is on this host.
    fn peer_host(&self, link: LinkId) -> Option<String> {
        self.links.get(link.slot).map(|_| "127.0.0.1".to_string())
    }

    /// A peer with shared memory is on this host. If the kernel does not name its user, nobody knows the user.
    fn peer_owner(&self, link: LinkId) -> Owner {
        let Some(Entry::Up(link)) = self.links.get(link.slot) else { return Owner::Untold };
        match &link.parts().presence {
            Presence::Socket { socket, .. } => match socket::peer_of(socket) {
                Some((_, user)) => Owner::User(user.as_raw()),
                None => Owner::Untold,
            },
            Presence::Local(_) => Owner::User(rustix::process::geteuid().as_raw()),
        }
    }
}

fn let_go(held: bool) -> Ordered {
    if held { Ordered::Released } else { Ordered::Refused(Fault::Invalid) }
}
