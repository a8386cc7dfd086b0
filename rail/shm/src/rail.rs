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
use ropewalk_base::limits::{EAGER_BYTES, FRAME_PAYLOAD_BYTES_MAX};
use ropewalk_base::memory::BufferTable;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, LinkId, Ordered, RailCounters, Token, Verb};
use ropewalk_rail::{Owner, Rail, Report, Sight};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::attention::Attention;
use crate::link::{Common, Link, Parts, Presence};
use crate::local::{self, Inbox, Letter, Peer};
use crate::mapping::{Mapping, Sharing};
use crate::meeting::{self, Host, MEETING_PATIENCE, Meeting, Outcome, Stage};
use crate::native::{Access, PeerMemory, Scratch};
use crate::rest::Rest;
use crate::segment::{BOARD_BYTES, Board, SEGMENT_BYTES, Segment, Side};
use crate::socket::{self, Name};
use crate::{LOCAL_PREFIX, ShmConfig, ShmError};

/// Links of one rail, including links that are being made.
const LINKS_MAX: usize = 16 * 1024;
/// Attempts under way at once; further ones are turned away.
const MEETINGS_MAX: usize = 256;
/// Bytes that native accesses move in one poll: about 100 us.
const NATIVE_BUDGET: u64 = 1024 * 1024;
/// The interval at which the kernel is asked for news while the rail is polled without sleep. The second one applies
/// while links rest, whose bells are such news.
const EVENTS_AFTER: Duration = Duration::from_micros(200);
const EVENTS_AFTER_RESTING: Duration = Duration::from_micros(20);
/// The same in polls, for callers whose clock stands still.
const EVENTS_AFTER_POLLS: u32 = 4096;
const EVENTS_PER_POLL: usize = 64;
const ACCEPTS_PER_POLL: usize = 64;

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
            probe: Box::new(meeting::random()),
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

    /// Takes the news of the kernel: rings, connects, notes, deaths.
    #[cold]
    fn take_events(&mut self, now: Time) -> bool {
        self.events_due = false;
        self.events_by = now + if self.resting > 0 { EVENTS_AFTER_RESTING } else { EVENTS_AFTER };
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
                name if name & RING != 0 => self.rung(SlotId::from_u64(name & !RING)),
                name => {
                    let slot = SlotId::from_u64(name & !PROCESS);
                    self.take_news(slot, name & PROCESS != 0);
                    self.attend(slot);
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
                self.met(slot);
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
    fn met(&mut self, slot: SlotId) {
        self.meetings.retain(|other| *other != slot);
    }

    /// A link's bell rang.
    fn rung(&mut self, slot: SlotId) {
        // If the link has no frames, the bell rang for a frame that was seen without it.
        if matches!(self.links.get(slot), Some(Entry::Up(link)) if link.has_frames()) {
            self.look_at(slot);
        }
    }

    /// Looks at a link that does not wait for frames alone.
    #[cold]
    fn attend(&mut self, slot: SlotId) {
        if matches!(self.links.get(slot), Some(Entry::Up(link)) if !link.is_quiet()) {
            self.look_at(slot);
        }
    }

    fn look_at(&mut self, slot: SlotId) {
        let now = self.now;
        if let Some(Entry::Up(link)) = self.links.get_mut(slot)
            && link.is_resting()
        {
            link.end_rest();
            link.note_active(now);
            self.resting -= 1;
            self.attention.add(slot);
        }
    }

    /// Sends links to rest on which nothing happened for a while, where there are many.
    #[cold]
    fn rest_idle(&mut self, now: Time) {
        let Self { links, attention, common, resting, .. } = self;
        attention.decide(now);
        let all = attention.links().len();
        let mut sent = 0;
        for slot in attention.links() {
            let Some(Entry::Up(link)) = links.get_mut(*slot) else { continue };
            let others = all - sent - 1;
            if link.is_quiet() && Attention::may_rest(now.since(link.active()), others) {
                link.begin_rest();
                sent += 1;
            }
        }
        if sent == 0 {
            return;
        }
        common.rest.barrier();
        attention.retain(|slot| {
            let Some(Entry::Up(link)) = links.get_mut(slot) else { return true };
            if link.is_resting() && link.has_frames() {
                // They came before the peer could know that it has to ring.
                link.end_rest();
                link.note_active(now);
            }
            *resting += usize::from(link.is_resting());
            !link.is_resting()
        });
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
                            Stage::Letter { segment, own_bell } => {
                                Some((Arc::clone(segment), Arc::clone(own_bell)))
                            }
                            _ => None,
                        },
                        _ => None,
                    };
                    match waiting {
                        Some((segment, own_bell)) => {
                            let parts = self.local_parts(segment, Side(0), own_bell, from);
                            self.link_up(link, parts, false);
                        }
                        // Given up meanwhile.
                        None => drop(from.inbox.post(Letter::Gone { link: from.link })),
                    }
                }
                Letter::Gone { link: slot } => match self.links.get_mut(slot) {
                    Some(Entry::Up(link)) => {
                        link.peer_gone();
                        self.attend(slot);
                    }
                    Some(Entry::Meeting(_)) => self.downs.push((slot, Fault::Unreachable)),
                    None => {}
                },
            }
        }
    }

    fn accept_local(&mut self, segment: Arc<Segment>, from: Peer) {
        let meeting = Meeting { since: Time::NEVER, stage: Stage::Failed };
        let entry = Entry::Meeting(Box::new(meeting));
        let (Ok(bell), Ok(slot)) = (local::bell(), self.links.insert(entry)) else {
            from.inbox.post(Letter::Gone { link: from.link });
            return;
        };
        self.meetings.push(slot);
        let bell = Arc::new(bell);
        let own = self.own_end(slot, &bell);
        from.inbox.post(Letter::Accepted { link: from.link, from: own });
        let parts = self.local_parts(segment, Side(1), bell, from);
        self.link_up(slot, parts, true);
    }

    /// A link of ours, for the rail at its other end.
    fn own_end(&self, link: SlotId, bell: &Arc<OwnedFd>) -> Peer {
        Peer { link, inbox: Arc::clone(&self.inbox), bell: Arc::clone(bell) }
    }

    fn local_parts(
        &self,
        segment: Arc<Segment>,
        side: Side,
        own_bell: Arc<OwnedFd>,
        peer: Peer,
    ) -> Parts {
        Parts {
            segment,
            side,
            board: Arc::clone(&peer.inbox.board),
            bell: Arc::clone(&peer.bell),
            own_bell,
            asymmetric: self.common.rest.asymmetric,
            memory: PeerMemory::Own,
            presence: Presence::Local(peer),
        }
    }

    fn connect_local(&mut self, slot: SlotId, name: &str) -> Outcome {
        let Some(inbox) = local::find(name) else { return Outcome::Failed(Fault::Unreachable) };
        let (Ok(mapping), Ok(own_bell)) = (Mapping::private(SEGMENT_BYTES), local::bell()) else {
            return Outcome::Failed(Fault::Busy);
        };
        let (segment, own_bell) = (Arc::new(Segment(mapping)), Arc::new(own_bell));
        let from = self.own_end(slot, &own_bell);
        if inbox.post(Letter::Connect { segment: Arc::clone(&segment), from }) {
            Outcome::Waits(Stage::Letter { segment, own_bell })
        } else {
            Outcome::Failed(Fault::Unreachable)
        }
    }

    /// Handles attempts that are due again, and attempts that took too long.
    #[cold]
    fn tend_meetings(&mut self, now: Time) {
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
        | Verb::Detach { link, .. }
        | Verb::Stop { link, .. }
        | Verb::Unplace { link, .. }
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
