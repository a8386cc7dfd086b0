//! The rail: its links and its bell. `contract` is what the engine orders, `news` what the kernel tells; `meetings`
//! and `letters` make links with other processes and within this one.
//!
//! Invariants: a poll does a bounded amount of work for each link and serves all of them; system
//! calls for news (deaths, connects) are made after sleep and every `news::EVENTS_AFTER`, not in
//! every poll; nothing is allocated for a frame, an access or an exposure once queues have grown.

mod contract;
mod letters;
mod meetings;
mod news;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Ordered, RailCounters};
use ropewalk_rail::Report;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::attention::Attention;
use crate::link::{Common, Link};
use crate::local::{self, Inbox, Letter};
use crate::mapping::{Mapping, Sharing};
use crate::meeting::{Host, Meeting};
use crate::native::Scratch;
use crate::random::random;
use crate::rest::Rest;
#[cfg(test)]
use crate::segment::Segment;
use crate::segment::{BOARD_BYTES, Board};
use crate::socket::{self, Name};
use crate::{LOCAL_PREFIX, ShmConfig, ShmError};

/// Links of one rail, including links that are being made.
const LINKS_MAX: usize = 16 * 1024;
/// Bytes that native accesses move in one poll: about 100 us.
const NATIVE_BUDGET: u64 = 1024 * 1024;

/// Names of the rail's own descriptors in its epoll set; names of links are above 2^32.
const BELL: u64 = 0;
const LISTENER: u64 = 1;
/// Set in the names of a link's process descriptor and of its bell; slots never reach them.
const PROCESS: u64 = 1 << 31;
const RING: u64 = 1 << 30;
const _: () = assert!((LINKS_MAX as u64) < RING);

enum Entry {
    Meeting(Box<Meeting>),
    Up(Box<Link>),
}

/// The shared-memory rail of one endpoint.
pub struct ShmRail {
    index: u8,
    addresses: Vec<String>,
    /// Its name within the process, to be given back.
    local_name: Option<String>,
    inbox: Arc<Inbox>,
    board_memory: OwnedFd,
    listener: Option<OwnedFd>,
    epoll: OwnedFd,
    probe: Box<u64>,
    links: Slots<Entry>,
    attention: Attention,
    resting: usize,
    meetings: Vec<SlotId>,
    common: Common,
    /// Links that went down and are not reported yet.
    downs: Vec<(SlotId, Fault)>,
    /// Links that came up and are not reported yet, and whether the peer began them.
    ups: Vec<(SlotId, bool)>,
    events_by: Time,
    /// Of the last poll.
    now: Time,
    polls: u32,
    /// Ask the kernel for news in the next poll.
    events_due: bool,
}

impl ShmRail {
    /// Opens a rail.
    pub fn open(config: ShmConfig) -> Result<ShmRail, ShmError> {
        let resources = |cause: rustix::io::Errno| ShmError::Resources { cause: cause.into() };
        if config.allow_attach {
            crate::attach::allow();
        }
        let (board, board_memory) =
            Mapping::create(BOARD_BYTES, Sharing::ReadOnly).map_err(resources)?;
        let board = Arc::new(Board(board));
        let bell = Arc::new(local::bell().map_err(resources)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(resources)?;
        epoll::add(&epoll, &*bell, EventData::new_u64(BELL), EventFlags::IN).map_err(resources)?;
        let inbox = Arc::new(Inbox::new(Arc::clone(&bell), Arc::clone(&board)));
        let mut rail = ShmRail {
            index: 0,
            addresses: Vec::new(),
            local_name: None,
            inbox,
            board_memory,
            listener: None,
            epoll,
            probe: Box::new(random()),
            links: Slots::with_limit(LINKS_MAX),
            attention: Attention::default(),
            resting: 0,
            meetings: Vec::new(),
            common: Common {
                counters: RailCounters::default(),
                scratch: Scratch::default(),
                native_budget: NATIVE_BUDGET,
                rest: Rest::new(board, bell),
                attach: config.attach,
            },
            downs: Vec::new(),
            ups: Vec::new(),
            events_by: Time::ZERO,
            now: Time::ZERO,
            polls: 0,
            events_due: true,
        };
        if let Some(name) = config.name {
            rail.listen(name, config.within_process)?;
        }
        Ok(rail)
    }

    fn listen(&mut self, text: String, within_process: bool) -> Result<(), ShmError> {
        let own = Name::parse(&text).filter(|name| name.name == text);
        let Some(name) = own else { return Err(ShmError::BadName { name: text }) };
        if within_process {
            if !local::register(&text, &self.inbox) {
                return Err(ShmError::NameInUse { name: text });
            }
            self.addresses.push(format!("{LOCAL_PREFIX}{text}"));
            self.local_name = Some(text);
            return Ok(());
        }
        let listener = match socket::listen(&name) {
            Ok(listener) => listener,
            Err(rustix::io::Errno::ADDRINUSE) => return Err(ShmError::NameInUse { name: text }),
            Err(cause) => return Err(ShmError::Resources { cause: cause.into() }),
        };
        epoll::add(&self.epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)
            .map_err(|cause| ShmError::Resources { cause: cause.into() })?;
        self.listener = Some(listener);
        self.addresses.push(text);
        Ok(())
    }

    /// The shared memory of a link, for tests that scribble in it.
    #[cfg(test)]
    pub(crate) fn segment_of(&self, link: LinkId) -> Arc<Segment> {
        match self.links.get(link.slot) {
            Some(Entry::Up(link)) => Arc::clone(&link.parts().segment),
            _ => panic!("the link is up"),
        }
    }

    /// Has a link believe that its peer is this process, without being told when it ends.
    #[cfg(test)]
    pub(crate) fn mistake_peer(&mut self, link: LinkId, other: std::os::fd::OwnedFd) {
        match self.links.get_mut(link.slot) {
            Some(Entry::Up(link)) => link.mistake_peer(other),
            _ => panic!("the link is up"),
        }
    }

    fn link_id(&self, slot: SlotId) -> LinkId {
        LinkId { rail: self.index, slot }
    }

    fn host(&self) -> Host<'_> {
        Host {
            board: &self.board_memory,
            asymmetric: self.common.rest.asymmetric,
            probe: &self.probe,
        }
    }

    #[inline]
    fn report_changes(&mut self, report: &mut dyn Report) -> bool {
        let changed = !self.ups.is_empty() || !self.downs.is_empty();
        if changed {
            self.report_all_changes(report);
        }
        changed
    }

    #[cold]
    fn report_all_changes(&mut self, report: &mut dyn Report) {
        for (slot, accepted) in std::mem::take(&mut self.ups) {
            if matches!(self.links.get(slot), Some(Entry::Up(link)) if link.is_far()) {
                // Measured here, since nobody waits for bytes yet.
                self.common.attach.pays();
            }
            report.link_up(self.link_id(slot), accepted);
        }
        for (slot, fault) in std::mem::take(&mut self.downs) {
            let id = self.link_id(slot);
            match self.links.remove(slot) {
                Some(Entry::Up(mut link)) => {
                    self.resting -= usize::from(link.is_resting());
                    self.attention.forget(slot);
                    link.fail_all(report);
                }
                Some(Entry::Meeting(_)) => self.met(slot),
                // Named twice, by two kinds of news.
                None => continue,
            }
            self.common.counters.links_down += 1;
            report.link_down(id, fault);
        }
    }

    /// A link may have ended, or come up, outside of a poll: see `rest`.
    fn rouse(&mut self) {
        let news = self.has_news();
        self.common.rest.rouse(&mut self.common.counters, || news);
    }

    /// Whether there is something to report, or a letter to read.
    fn has_news(&self) -> bool {
        self.inbox.is_filled() || !self.ups.is_empty() || !self.downs.is_empty()
    }

    /// An order for a link that is not up.
    #[cold]
    fn order_beside(&mut self, link: LinkId, closes: bool) -> Ordered {
        match self.links.get(link.slot) {
            Some(_) if closes => {
                self.downs.push((link.slot, Fault::Closed));
                self.rouse();
                Ordered::Released
            }
            Some(_) => Ordered::Refused(Fault::Unreachable),
            None => Ordered::Refused(Fault::PeerReset),
        }
    }

    fn poll_links(&mut self, now: Time, report: &mut dyn Report) -> bool {
        let Self { links, common, downs, attention, .. } = self;
        let mut worked = false;
        for &slot in attention.links() {
            let Some(Entry::Up(link)) = links.get_mut(slot) else { continue };
            if link.poll(report, common) {
                link.note_active(now);
                worked = true;
            }
            if link.is_quiet() {
                continue;
            }
            worked |= link.work(report, common);
            if link.is_ending()
                && let Some(fault) = link.ended(now)
            {
                downs.push((slot, fault));
            }
        }
        worked
    }
}

impl Drop for ShmRail {
    fn drop(&mut self) {
        if let Some(name) = self.local_name.take() {
            local::unregister(&name);
        }
        for letter in self.inbox.close() {
            if let Letter::Connect { from, .. } | Letter::Accepted { from, .. } = letter {
                from.inbox.post(Letter::Gone { link: from.link });
            }
        }
        for (_, entry) in self.links.iter_mut() {
            if let Entry::Up(link) = entry {
                link.abandon();
            }
        }
    }
}
