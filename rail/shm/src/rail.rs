//! The rail: its links, its bell, and its part of the `Rail` contract.
//!
//! Invariants: a poll does a bounded amount of work for each link and serves all of them; system
//! calls for news (deaths, connects) are made after sleep and every `EVENTS_AFTER`, not in every
//! poll; nothing is allocated for a frame, an access or an exposure once queues have grown.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::FRAME_PAYLOAD_BYTES_MAX;
use ropewalk_base::memory::BufferTable;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, LinkId, Ordered, RailCounters, Token, Verb};
use ropewalk_rail::{Rail, Report, Sight};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec};

use crate::link::{Common, Link, Parts, Presence};
use crate::local::{self, Inbox, Letter, Peer};
use crate::mapping::{Mapping, Sharing};
use crate::meeting::{self, Host, MEETING_PATIENCE, Meeting, Outcome, Stage};
use crate::native::{Access, PeerMemory, Scratch};
use crate::rest::Rest;
use crate::segment::{BOARD_BYTES, Board, SEGMENT_BYTES, Segment, Side};
use crate::socket::{self, Name};
use crate::{LOCAL_PREFIX, ShmConfig, ShmError};

/// Links of one rail, those that are being made included.
const LINKS_MAX: usize = 16 * 1024;
/// Attempts under way at once; further ones are turned away.
const MEETINGS_MAX: usize = 256;
/// Bytes that native accesses move in one poll: about 100 us.
const NATIVE_BUDGET: u64 = 1024 * 1024;
/// How often the kernel is asked for news while the rail is polled without sleep.
const EVENTS_AFTER: Duration = Duration::from_micros(200);
/// The same in polls, for callers whose clock stands still.
const EVENTS_AFTER_POLLS: u32 = 4096;
const EVENTS_PER_POLL: usize = 64;
const ACCEPTS_PER_POLL: usize = 64;

/// Names of the rail's own descriptors in its epoll set; names of links are above 2^32.
const BELL: u64 = 0;
const LISTENER: u64 = 1;
/// Set in the name of a link's process descriptor; slots never reach it.
const PROCESS: u64 = 1 << 31;

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
    meetings: usize,
    common: Common,
    /// Links that went down and are not reported yet.
    downs: Vec<(SlotId, Fault)>,
    /// Links that came up and are not reported yet, and whether the peer began them.
    ups: Vec<(SlotId, bool)>,
    events_at: Time,
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
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(rustix::event::eventfd(0, flags).map_err(resources)?);
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
            probe: Box::new(meeting::random()),
            links: Slots::with_limit(LINKS_MAX),
            meetings: 0,
            common: Common {
                counters: RailCounters::default(),
                scratch: Scratch::default(),
                native_budget: NATIVE_BUDGET,
                rest: Rest::new(board, bell),
            },
            downs: Vec::new(),
            ups: Vec::new(),
            events_at: Time::ZERO,
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
            bell: &self.common.rest.bell,
            asymmetric: self.common.rest.asymmetric,
            probe: &self.probe,
        }
    }

    /// Takes the news of the kernel: rings, connects, notes, deaths.
    #[cold]
    fn take_events(&mut self, now: Time) -> bool {
        self.events_due = false;
        self.events_at = now;
        self.polls = 0;
        self.common.counters.system_calls += 1;
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_POLL];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&at_once)) else {
            return false;
        };
        let mut worked = false;
        self.events_due = events.len() == EVENTS_PER_POLL;
        for event in events.iter() {
            match event.data.u64() {
                BELL => {
                    self.common.counters.system_calls += 1;
                    let _ = rustix::io::read(&*self.common.rest.bell, &mut [0u8; 8]);
                }
                LISTENER => worked |= self.accept(now),
                name => {
                    let slot = SlotId::from_u64(name & !PROCESS);
                    self.take_news(slot, name & PROCESS != 0);
                    worked = true;
                }
            }
        }
        worked
    }

    fn accept(&mut self, now: Time) -> bool {
        let mut worked = false;
        for _ in 0..ACCEPTS_PER_POLL {
            let Some(Ok(socket)) = self.listener.as_ref().map(socket::accept) else { break };
            worked = true;
            self.common.counters.system_calls += 1;
            if self.meetings >= MEETINGS_MAX {
                continue;
            }
            let Some(stage) = meeting::accept(socket) else {
                self.common.counters.violations += 1;
                continue;
            };
            let entry = Entry::Meeting(Box::new(Meeting { since: now, stage: Stage::Failed }));
            if let Ok(slot) = self.links.insert(entry) {
                self.meetings += 1;
                self.watch(slot, &stage);
                self.settle(slot, Outcome::Waits(stage), true);
            }
        }
        worked
    }

    /// Puts the socket of a meeting into the epoll set; a link keeps it there.
    fn watch(&mut self, slot: SlotId, stage: &Stage) {
        let (Stage::Hello { socket, .. } | Stage::Welcome { socket, .. }) = stage else { return };
        let name = EventData::new_u64(slot.to_u64());
        if epoll::add(&self.epoll, socket, name, EventFlags::IN | EventFlags::RDHUP).is_err() {
            self.downs.push((slot, Fault::Busy));
        }
    }

    /// Something happened to a link's socket or process.
    fn take_news(&mut self, slot: SlotId, process: bool) {
        let Some(entry) = self.links.get_mut(slot) else { return };
        match entry {
            Entry::Up(link) => {
                let Presence::Socket { socket, process: pidfd } = &link.parts().presence else {
                    return;
                };
                let news = if process { socket::Received::Broken } else { socket::receive(socket) };
                match news {
                    socket::Received::Nothing => {}
                    socket::Received::Broken => {
                        // Level-triggered, an end would be news for ever.
                        let _ = epoll::delete(&self.epoll, socket);
                        if let Some(pidfd) = pidfd {
                            let _ = epoll::delete(&self.epoll, pidfd);
                        }
                        link.peer_gone();
                    }
                    socket::Received::Note(..) => link.break_off(Fault::Protocol),
                }
            }
            Entry::Meeting(meeting) => {
                let stage = std::mem::replace(&mut meeting.stage, Stage::Failed);
                let accepted = matches!(stage, Stage::Hello { .. } | Stage::Confirm { .. });
                let outcome = meeting::proceed(stage, &self.host());
                self.settle(slot, outcome, accepted);
            }
        }
    }

    /// Takes note of how a meeting went on.
    fn settle(&mut self, slot: SlotId, outcome: Outcome, accepted: bool) {
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
                self.meetings -= 1;
            }
            Outcome::Failed(fault) => self.downs.push((slot, fault)),
        }
    }

    fn link_up(&mut self, slot: SlotId, parts: Parts, accepted: bool) {
        if let Presence::Socket { process: Some(process), .. } = &parts.presence {
            // A process that cannot be watched is still watched by its socket.
            let name = EventData::new_u64(slot.to_u64() | PROCESS);
            let _ = epoll::add(&self.epoll, process, name, EventFlags::IN);
        }
        let link = Box::new(Link::new(self.link_id(slot), parts));
        let entry = self.links.get_mut(slot).expect("a meeting has a slot until it is over");
        *entry = Entry::Up(link);
        self.meetings -= 1;
        self.common.counters.links_up += 1;
        self.ups.push((slot, accepted));
    }

    /// Reads the letters of other rails of this process.
    #[cold]
    fn take_letters(&mut self) {
        for letter in self.inbox.take() {
            match letter {
                Letter::Connect { segment, from } => self.accept_local(segment, from),
                Letter::Accepted { link, from } => {
                    let waiting = match self.links.get(link) {
                        Some(Entry::Meeting(meeting)) => match &meeting.stage {
                            Stage::Letter { segment } => Some(Arc::clone(segment)),
                            _ => None,
                        },
                        _ => None,
                    };
                    match waiting {
                        Some(segment) => {
                            let parts = self.local_parts(segment, Side(0), from);
                            self.link_up(link, parts, false);
                        }
                        // Given up meanwhile.
                        None => drop(from.inbox.post(Letter::Gone { link: from.link })),
                    }
                }
                Letter::Gone { link } => match self.links.get_mut(link) {
                    Some(Entry::Up(link)) => link.peer_gone(),
                    Some(Entry::Meeting(_)) => self.downs.push((link, Fault::Unreachable)),
                    None => {}
                },
            }
        }
    }

    fn accept_local(&mut self, segment: Arc<Segment>, from: Peer) {
        let meeting = Meeting { since: Time::NEVER, stage: Stage::Failed };
        let Ok(slot) = self.links.insert(Entry::Meeting(Box::new(meeting))) else {
            from.inbox.post(Letter::Gone { link: from.link });
            return;
        };
        self.meetings += 1;
        let own = Peer { link: slot, inbox: Arc::clone(&self.inbox) };
        from.inbox.post(Letter::Accepted { link: from.link, from: own });
        let parts = self.local_parts(segment, Side(1), from);
        self.link_up(slot, parts, true);
    }

    fn local_parts(&self, segment: Arc<Segment>, side: Side, peer: Peer) -> Parts {
        Parts {
            segment,
            side,
            board: Arc::clone(&peer.inbox.board),
            bell: Arc::clone(&peer.inbox.bell),
            asymmetric: self.common.rest.asymmetric,
            memory: PeerMemory::Own,
            presence: Presence::Local(peer),
        }
    }

    fn connect_local(&mut self, slot: SlotId, name: &str) -> Outcome {
        let Some(inbox) = local::find(name) else { return Outcome::Failed(Fault::Unreachable) };
        let Ok(mapping) = Mapping::private(SEGMENT_BYTES) else {
            return Outcome::Failed(Fault::Busy);
        };
        let segment = Arc::new(Segment(mapping));
        let from = Peer { link: slot, inbox: Arc::clone(&self.inbox) };
        if inbox.post(Letter::Connect { segment: Arc::clone(&segment), from }) {
            Outcome::Waits(Stage::Letter { segment })
        } else {
            Outcome::Failed(Fault::Unreachable)
        }
    }

    /// Attempts that are due again, and those that took too long.
    #[cold]
    fn tend_meetings(&mut self, now: Time) {
        let due: Vec<(SlotId, bool)> = self
            .links
            .iter()
            .filter_map(|(slot, entry)| match entry {
                Entry::Meeting(meeting) => match meeting.deadline() {
                    at if at > now => None,
                    _ => Some((slot, now >= meeting.since + MEETING_PATIENCE)),
                },
                Entry::Up(_) => None,
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
            report.link_up(self.link_id(slot), accepted);
        }
        for (slot, fault) in std::mem::take(&mut self.downs) {
            let id = self.link_id(slot);
            match self.links.remove(slot) {
                Some(Entry::Up(mut link)) => link.fail_all(report),
                Some(Entry::Meeting(_)) => self.meetings -= 1,
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
        let Self { links, common, downs, .. } = self;
        let mut worked = false;
        for (slot, entry) in links.iter_mut() {
            let Entry::Up(link) = entry else { continue };
            worked |= link.poll(report, common);
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

fn let_go(held: bool) -> Ordered {
    if held { Ordered::Released } else { Ordered::Refused(Fault::Invalid) }
}

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
            checksummed: true,
            native_read: true,
            native_write: true,
            frame_payload_bytes_max: FRAME_PAYLOAD_BYTES_MAX,
            preference: 100,
            same_host_only: true,
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
        self.meetings += 1;
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
            Some(Entry::Up(link)) => link.send(frame, buffers, common),
            _ => self.order_beside(frame.link, false),
        }
    }

    fn order(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        let (Verb::Read { link, .. }
        | Verb::Write { link, .. }
        | Verb::Expose { link, .. }
        | Verb::Revoke { link, .. }
        | Verb::Detach { link, .. }
        | Verb::Stop { link, .. }
        | Verb::Unplace { link, .. }
        | Verb::Close { link }) = verb;
        let Self { links, common, .. } = self;
        let Some(Entry::Up(found)) = links.get_mut(link.slot) else {
            return self.order_beside(*link, matches!(verb, Verb::Close { .. }));
        };
        match verb {
            Verb::Read { key, remote, local, token, .. } => {
                let access = Access::new(*key, remote.clone(), *local, *token, false);
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
            Verb::Detach { token, later, .. } => {
                let_go(*token != Token::NONE && found.detach(*token, *later, buffers))
            }
            Verb::Stop { token, .. } => let_go(found.stop(*token)),
            // A payload lands with its header.
            Verb::Unplace { .. } => let_go(false),
            Verb::Close { .. } => {
                found.close(common);
                Ordered::Released
            }
        }
    }

    fn poll(&mut self, now: Time, report: &mut dyn Report) -> bool {
        let mut worked = false;
        self.polls += 1;
        let late = now.since(self.events_at) >= EVENTS_AFTER || self.polls >= EVENTS_AFTER_POLLS;
        if self.events_due || late {
            worked |= self.take_events(now);
        }
        if self.inbox.is_filled() {
            self.take_letters();
            worked = true;
        }
        if self.meetings > 0 {
            self.tend_meetings(now);
        }
        // New links before their first frames, and ends after their last.
        worked |= self.report_changes(report);
        self.common.native_budget = NATIVE_BUDGET;
        worked |= self.poll_links(now, report);
        worked | self.report_changes(report)
    }

    fn look(&self) -> Sight {
        let news = self.events_due || self.meetings > 0 || self.inbox.is_filled();
        if news || !self.ups.is_empty() || !self.downs.is_empty() {
            return Sight::Blind;
        }
        let mut sight = Sight::Nothing;
        for (_, entry) in self.links.iter() {
            let Entry::Up(link) = entry else { return Sight::Blind };
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
        let work = self.has_news()
            || self.links.iter_mut().any(|(_, entry)| match entry {
                Entry::Up(link) => link.has_work(),
                Entry::Meeting(_) => false,
            });
        if work {
            self.common.rest.end();
        }
        !work
    }

    fn disarm(&mut self) {
        self.common.rest.end();
        self.events_due = true;
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn deadline(&self) -> Option<Time> {
        let deadlines = self.links.iter().filter_map(|(_, entry)| match entry {
            Entry::Meeting(meeting) => Some(meeting.deadline()),
            Entry::Up(link) => link.deadline(),
        });
        deadlines.min()
    }

    fn counters(&self) -> RailCounters {
        self.common.counters
    }

    /// Who shares memory is on this host.
    fn peer_host(&self, link: LinkId) -> Option<String> {
        self.links.get(link.slot).map(|_| "127.0.0.1".to_string())
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
