//! The rail itself: its links, the epoll set, and the pass that serves them.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::limits::{EAGER_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, QUEUED_FRAMES_MAX};
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::payload::{Cipher, LinkKeys};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, FrameOrder, Header, LinkId, Ordered, RailCounters, Token, Urgency, Verb,
};
use ropewalk_rail::interfaces::LocalWatch;
use ropewalk_rail::names::{Lookups, Target, parse};
use ropewalk_rail::{Owner, Rail, RailOption, Report, Sight, is_consistent};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::config::{TcpConfig, TcpError};
use crate::health;
use crate::link::{Link, State};
use crate::outgoing::Outgoing;
use crate::path;
use crate::receive::BUFFER_BYTES;
use crate::sealed::{LinkSeal, Sealed, Spares};
use crate::send;
use crate::socket::{self, Listener};
use crate::stall::{Stall, Stalls};
use crate::timers::Timers;

/// Names of news of interfaces, of the listener and of the look-ups in the epoll set; no link has them, since a
/// generation is neither 0 nor used up to the last.
pub(crate) const INTERFACES: u64 = 0;
pub(crate) const LISTENER: u64 = 1;
pub(crate) const LOOKUPS: u64 = u64::MAX;
/// Passes without any work after which the kernel is asked less often, and then for all links.
pub(crate) const QUIET_PASSES: u32 = 256;

/// Counters beyond those that all rails have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpStatistics {
    /// The number of pauses in accepting because descriptors or memory ran out.
    pub accept_pauses: u64,
    /// Connections hung up because there were too many links.
    pub accepts_refused: u64,
    /// Accepted links that were closed since no complete header came in time.
    pub silent_links: u64,
    /// Links that broke since their peers left too much unread.
    pub unread_links: u64,
    /// Looks at whether a link that is one of several paths is acknowledged: a system call each.
    pub stall_looks: u64,
    /// Links that broke since somebody on the way changed, repeated or made up sealed bytes.
    pub forged_records: u64,
}

/// Links over TCP.
#[derive(Debug)]
pub struct TcpRail {
    pub(crate) config: TcpConfig,
    pub(crate) index: u8,
    pub(crate) epoll: OwnedFd,
    pub(crate) listener: Option<Listener>,
    pub(crate) accept_again: Option<Time>,
    pub(crate) lookups: Lookups,
    pub(crate) links: Slots<Link>,
    /// Links that ended outside of a poll; reported by the next one.
    pub(crate) stillborn: Vec<(SlotId, Fault)>,
    /// Links with frames that were kept for those behind them.
    pub(crate) held: Vec<SlotId>,
    /// Somebody may sleep on the epoll set.
    armed: bool,
    /// The link that had all recent traffic: read without asking the epoll set first.
    pub(crate) hot: Option<SlotId>,
    pub(crate) last_traffic: Option<SlotId>,
    /// The next pass looks at the hot link before it asks the epoll set.
    pub(crate) guesses: bool,
    /// Passes since something happened.
    pub(crate) quiet_passes: u32,
    pub(crate) passes_since_wait: u32,
    /// Links that wait for room in their sockets.
    pub(crate) waiting_for_room: usize,
    pub(crate) buffer: Box<[u8]>,
    /// The same for links that are protected; empty until there is one.
    pub(crate) sealed_buffer: Vec<u8>,
    pub(crate) spares: Spares,
    /// Tells of changes of the local side, where the sockets are bound to one.
    pub(crate) watch: LocalWatch,
    pub(crate) connects: Timers,
    pub(crate) greetings: Timers,
    pub(crate) closes: Timers,
    pub(crate) stalls: Stalls,
    pub(crate) now: Time,
    pub(crate) counters: RailCounters,
    pub(crate) statistics: TcpStatistics,
}

impl TcpRail {
    /// A rail as configured; listening from here on, where it is to.
    pub fn open(config: TcpConfig) -> Result<TcpRail, TcpError> {
        let failed = |errno: Errno| TcpError::Descriptors(errno.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let listener = config.listen.map(|address| socket::listen(address, &config)).transpose()?;
        let lookups = Lookups::new().map_err(failed)?;
        let watch = |fd: BorrowedFd<'_>, name| {
            epoll::add(&epoll, fd, EventData::new_u64(name), EventFlags::IN).map_err(failed)
        };
        watch(lookups.bell(), LOOKUPS)?;
        if let Some(listener) = &listener {
            watch(listener.socket.as_fd(), LISTENER)?;
        }
        // Where the kernel does not tell, nothing is suspected.
        let side = config.local.side();
        let watch = side.and_then(|side| LocalWatch::open(&side, epoll.as_fd()).ok());
        Ok(TcpRail {
            index: 0,
            watch: watch.unwrap_or_default(),
            epoll,
            listener,
            accept_again: None,
            lookups,
            links: Slots::with_limit(config.links_max),
            stillborn: Vec::new(),
            held: Vec::new(),
            armed: false,
            hot: None,
            last_traffic: None,
            guesses: false,
            quiet_passes: 0,
            passes_since_wait: u32::MAX,
            waiting_for_room: 0,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            sealed_buffer: Vec::new(),
            spares: Spares::default(),
            connects: Timers::new(config.connect_timeout),
            greetings: Timers::new(config.greeting_timeout),
            closes: Timers::new(config.close_timeout),
            stalls: Stalls::new(),
            now: Time::ZERO,
            counters: RailCounters::default(),
            statistics: TcpStatistics::default(),
            config,
        })
    }

    /// The address at which it listens.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|listener| listener.address)
    }

    /// Counters beyond those that all rails have.
    pub fn statistics(&self) -> TcpStatistics {
        self.statistics
    }

    pub(crate) fn id(&self, slot: SlotId) -> LinkId {
        LinkId { rail: self.index, slot }
    }

    /// Tells the epoll set whether to wait for room in the socket, too.
    pub(crate) fn watch_room(&mut self, slot: SlotId, wanted: bool) {
        let Some(link) = self.links.get_mut(slot) else { return };
        let Some(socket) = &link.socket else { return };
        let room = if wanted { EventFlags::OUT } else { EventFlags::empty() };
        let name = EventData::new_u64(slot.to_u64());
        self.counters.system_calls += 1;
        // The socket is in the set as long as it lives, so that this cannot fail.
        let _ = epoll::modify(&self.epoll, socket, name, EventFlags::IN | room);
        self.waiting_for_room += usize::from(wanted);
        self.waiting_for_room -= usize::from(link.wants_room);
        link.wants_room = wanted;
    }

    /// Begins a connect to the next address of the link's peer.
    pub(crate) fn dial(&mut self, slot: SlotId) -> Result<(), Fault> {
        let link = self.links.get_mut(slot).ok_or(Fault::Invalid)?;
        while let Some(address) = link.candidates.pop() {
            self.counters.system_calls += 3;
            let socket = match socket::connect(&address, &self.config) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    return Err(Fault::Busy);
                }
                Err(_) => continue,
            };
            let name = EventData::new_u64(slot.to_u64());
            let interest = EventFlags::IN | EventFlags::OUT;
            epoll::add(&self.epoll, &socket, name, interest).map_err(|_| Fault::Busy)?;
            link.state = State::Connecting;
            link.socket = Some(socket);
            return Ok(());
        }
        Err(Fault::Unreachable)
    }

    /// Ends a link outside of a poll. The kernel knows nothing of it, so the bell of the look-ups wakes a sleeper.
    fn end_early(&mut self, slot: SlotId, fault: Fault) {
        self.stillborn.push((slot, fault));
        if self.armed {
            self.counters.system_calls += 1;
            self.lookups.ring();
        }
    }

    fn order_close(&mut self, id: LinkId) -> Ordered {
        let Some(link) = self.links.get_mut(id.slot).filter(|_| id.rail == self.index) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        match link.state {
            State::Resolving | State::Connecting => self.end_early(id.slot, Fault::Closed),
            State::Up => {
                link.state = State::Flushing;
                let mark = link.progress;
                self.closes.set(self.now, id.slot, mark);
                let links = &self.links;
                self.closes.sweep(links.len(), |timer| links.get(timer.link).is_some());
                self.finish_sending(id.slot);
            }
            State::Ending | State::Flushing | State::Lingering => {}
        }
        Ordered::Released
    }

    fn find(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.get_mut(id.slot).filter(|_| id.rail == self.index)
    }

    /// Lets go of the payload of a frame that waits.
    fn detach(&mut self, id: LinkId, token: Token, later: Token, buffers: &BufferTable) -> bool {
        let frame = self.find(id).and_then(|link| link.outbound.find(token));
        let Some(frame) = frame.filter(|_| token != Token::NONE) else { return false };
        let detached = frame.detach(buffers);
        if detached {
            frame.token = later;
        }
        detached
    }

    /// Forgets a frame that waits, or lets go of its payload where a part has left.
    fn skip(&mut self, id: LinkId, token: Token, buffers: &BufferTable) -> bool {
        let found = self.find(id).filter(|_| token != Token::NONE);
        if !found.is_some_and(|link| link.outbound.forget(token)) {
            return self.detach(id, token, Token::NONE, buffers);
        }
        self.finish_sending(id.slot);
        true
    }

    /// Skips the rest of a payload that is still to come.
    fn unplace(&mut self, id: LinkId, token: Token) -> bool {
        let incoming = self.find(id).and_then(|link| link.inbound.payload.as_mut());
        let Some(incoming) = incoming.filter(|incoming| incoming.token == Some(token)) else {
            return false;
        };
        incoming.token = None;
        incoming.place.len = incoming.place.len.min(u64::from(incoming.done));
        true
    }

    /// Tells the peer of a closed link that nothing more comes, once nothing waits.
    ///
    /// The socket stays until the peer hangs up: closing it while unread bytes lie in it would reset the connection,
    /// and the peer might lose the last frames.
    pub(crate) fn finish_sending(&mut self, slot: SlotId) {
        let Some(link) = self.links.get_mut(slot) else { return };
        if link.state == State::Flushing && link.is_drained() {
            link.state = State::Lingering;
            self.counters.system_calls += 1;
            if let Some(socket) = &link.socket {
                // Fails only where the connection is gone, which the next read tells.
                let _ = rustix::net::shutdown(socket, Shutdown::Write);
            }
        }
    }

    /// Sends a frame, or queues it; one that is `followed` by others waits for them.
    fn take(&mut self, frame: &FrameOrder, buffers: &BufferTable, followed: bool) -> Ordered {
        let FrameOrder { link: id, header, payload, urgency, token } = frame;
        let (id, payload, urgency, token) = (*id, *payload, urgency.at_once(), *token);
        if !is_legal(header, payload, buffers) {
            return Ordered::Refused(Fault::Invalid);
        }
        let Some(link) = self.links.get_mut(id.slot).filter(|_| id.rail == self.index) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        let mut sent = 0;
        match link.state {
            State::Flushing | State::Lingering => return Ordered::Refused(Fault::Closed),
            State::Ending => return Ordered::Refused(Fault::PeerReset),
            State::Up if link.is_drained() && followed => self.held.push(id.slot),
            State::Up if link.is_drained() => {
                let counters = &mut self.counters;
                sent = match link.seal.seals() {
                    true => {
                        let frame = outgoing(header, payload, token, 0, true);
                        send::seal_now(link, frame, buffers, counters, &mut self.spares)
                    }
                    false => send::send_now(link, header, payload, buffers, counters),
                };
                if let Some(stall) = &mut link.stall {
                    self.stalls.sent(id.slot, stall, self.now);
                }
                let is_whole = sent == header.as_bytes().len() + payload.len as usize;
                if !is_whole {
                    link.outbound.partial = (sent > 0).then_some(urgency);
                }
                if !is_whole || link.seal.has_waiting() {
                    self.watch_room(id.slot, true);
                }
                if is_whole {
                    self.counters.frames_sent += 1;
                    return Ordered::Released;
                }
            }
            State::Up
                if urgency == Urgency::Urgent
                    && link.outbound.urgent.len() >= QUEUED_FRAMES_MAX =>
            {
                link.state = State::Ending;
                self.statistics.unread_links += 1;
                self.end_early(id.slot, Fault::PeerReset);
                return Ordered::Refused(Fault::PeerReset);
            }
            State::Up | State::Resolving | State::Connecting => {}
        }
        if let Some(link) = self.links.get_mut(id.slot) {
            let frame = outgoing(header, payload, token, sent, link.seal.seals());
            link.outbound.queue(urgency).push_back(frame);
        }
        Ordered::Pending
    }
}

impl Drop for TcpRail {
    /// Its port is free from here on, also where a child of this process was forked with its sockets.
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            let _ = rustix::net::shutdown(&listener.socket, Shutdown::Both);
        }
    }
}

fn outgoing(
    header: &Header,
    payload: Slice,
    token: Token,
    sent: usize,
    is_sealed: bool,
) -> Outgoing {
    Outgoing { header: *header, payload, token, sent: sent as u32, copy: None, is_sealed }
}

/// Whether header and payload agree, and the payload lies in its memory.
fn is_legal(header: &Header, payload: Slice, buffers: &BufferTable) -> bool {
    let agreed = is_consistent(header.as_bytes(), payload.len);
    let end = payload.offset.checked_add(payload.len);
    let inside = || buffers.get(payload.buffer).zip(end).is_some_and(|(m, end)| end <= m.len());
    agreed && (payload.len == 0 || inside())
}

impl Rail for TcpRail {
    fn scheme(&self) -> &'static str {
        "tcp"
    }

    fn attach(&mut self, index: u8) {
        self.index = index;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            intact: false,
            native_read: false,
            native_write: false,
            frame_payload_bytes_max: FRAME_PAYLOAD_BYTES_MAX,
            eager_bytes: EAGER_BYTES_MAX,
            preference: 50,
            same_host_only: false,
            foreign: false,
        }
    }

    fn addresses(&self) -> Vec<String> {
        match &self.listener {
            None => Vec::new(),
            Some(_) if !self.config.advertise.is_empty() => self.config.advertise.clone(),
            Some(listener) => {
                let interface = self.config.local.interface().map(|(_, name)| name);
                ropewalk_rail::host::reachable_by(listener.address, interface)
            }
        }
    }

    fn bound_to(&self) -> Option<String> {
        let local = &self.config.local;
        (!local.is_free()).then(|| local.to_string())
    }

    fn entropy(&self) -> u16 {
        self.config.local.entropy()
    }

    fn connect(&mut self, address: &str, now: Time) -> Result<LinkId, Fault> {
        self.now = now;
        let target = parse(address).ok_or(Fault::Invalid)?;
        let link = Link::new(State::Resolving, None);
        let slot = self.links.insert(link).map_err(|_| Fault::Busy)?;
        let begun = match target {
            Target::Numeric(numeric) => {
                let link = self.links.get_mut(slot).expect("inserted just now");
                link.candidates.push(numeric);
                self.dial(slot)
            }
            Target::Name(host, port) => self.lookups.begin(slot.to_u64(), host, port),
        };
        match begun {
            Ok(()) => self.connects.set(now, slot, 0),
            // The caller is told by the poll that follows, as with peers that are far away.
            Err(Fault::Unreachable) => self.end_early(slot, Fault::Unreachable),
            Err(fault) => {
                self.links.remove(slot);
                return Err(fault);
            }
        }
        let links = &self.links;
        let young = |slot| links.get(slot).is_some_and(|link| !link.was_up());
        self.connects.sweep(links.len(), |timer| young(timer.link));
        Ok(self.id(slot))
    }

    fn send(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        self.take(frame, buffers, false)
    }

    fn send_followed(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        self.take(frame, buffers, true)
    }

    fn push(&mut self, report: &mut dyn Report) -> bool {
        let mut any = false;
        while let Some(slot) = self.held.pop() {
            any |= self.flush(slot, report);
        }
        any
    }

    fn order(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        let let_go = match verb {
            Verb::Close { link } => return self.order_close(*link),
            Verb::DetachSend { link, token, later } => self.detach(*link, *token, *later, buffers),
            Verb::SkipSend { link, token } => self.skip(*link, *token, buffers),
            Verb::CancelReceive { link, token } => self.unplace(*link, *token),
            Verb::Read { .. }
            | Verb::Write { .. }
            | Verb::CancelAccess { .. }
            | Verb::Expose { .. }
            | Verb::Revoke { .. } => return Ordered::Refused(Fault::NotPermitted),
        };
        if let_go { Ordered::Released } else { Ordered::Refused(Fault::Invalid) }
    }

    fn protects(&self) -> Option<Cipher> {
        let hardware = ropewalk_seal::hardware_aes();
        Some(if hardware { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 })
    }

    fn seal(&mut self, id: LinkId, keys: &LinkKeys, _: &BufferTable) {
        let Some(link) = self.find(id) else { return };
        let is_between = link.inbound.payload.is_none() && link.inbound.header_bytes == 0;
        if link.seal.sealed().is_none() {
            link.seal = LinkSeal::Sealed(Box::new(Sealed::new(keys)));
            if !is_between {
                // The peer has sealed nothing of this, so it is not the peer's.
                link.state = State::Ending;
                self.counters.violations += 1;
                return self.end_early(id.slot, Fault::Protocol);
            }
        }
        if let Some(sealed) = link.seal.sealed() {
            sealed.begin_sending(keys);
        }
    }

    fn poll(&mut self, now: Time, report: &mut dyn Report) -> bool {
        let any = self.pass(now, report);
        self.quiet_passes = if any { 0 } else { self.quiet_passes.saturating_add(1) };
        any
    }

    fn drain(&mut self, now: Time, report: &mut dyn Report) -> bool {
        self.passes_since_wait = u32::MAX;
        self.guesses = false;
        self.poll(now, report)
    }

    /// Only the kernel knows whether there is work; while it has been saying no it is asked less often.
    fn look(&self) -> Sight {
        let recent = self.quiet_passes < QUIET_PASSES || self.waiting_for_room > 0;
        if recent || !self.stillborn.is_empty() { Sight::Blind } else { Sight::Nothing }
    }

    fn arm(&mut self) -> bool {
        // After the sleep the epoll set knows who woke us; the hot link is a guess, and a good one where there is
        // no other.
        self.passes_since_wait = u32::MAX;
        self.guesses = self.links.len() == 1;
        self.armed = self.stillborn.is_empty() && self.held.is_empty() && self.watch.arm();
        self.armed
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.watch.disarm(false);
    }

    fn disarm_quiet(&mut self) {
        self.armed = false;
        self.watch.disarm(true);
        self.guesses = false;
        self.quiet_passes = QUIET_PASSES;
    }

    fn is_receiving(&self) -> bool {
        let link = self.last_traffic.and_then(|slot| self.links.get(slot));
        link.is_some_and(|link| link.inbound.payload.is_some() || link.seal.is_in_record())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn owes(&self) -> bool {
        self.links.iter().any(|(_, link)| {
            let sends = !matches!(link.state, State::Resolving | State::Connecting);
            sends && (!link.is_drained() || link.socket().is_some_and(socket::owes))
        })
    }

    fn deadline(&self) -> Option<Time> {
        let timers = [&self.connects, &self.greetings, &self.closes];
        let next = timers.into_iter().filter_map(Timers::next);
        let stall = Some(self.stalls.due()).filter(|due| *due != Time::NEVER);
        next.chain(self.accept_again).chain(stall).min()
    }

    fn counters(&self) -> RailCounters {
        let system_calls = self.counters.system_calls + self.watch.looks();
        RailCounters { system_calls, ..self.counters }
    }

    fn tune_as_path(&mut self, link: LinkId) -> bool {
        let Some(link) = self.find(link).filter(|link| link.was_up()) else { return false };
        let Some(socket) = link.socket() else { return false };
        let is_quick = path::tune(socket);
        link.stall.get_or_insert_with(|| Box::new(Stall::new(is_quick)));
        self.counters.system_calls += path::OPTIONS;
        true
    }

    fn abandon(&mut self, id: LinkId) -> bool {
        let Some(link) = self.find(id) else { return false };
        if link.state != State::Ending {
            link.state = State::Ending;
            if let Some(socket) = link.socket() {
                path::forget_unsent(socket);
                self.counters.system_calls += 1;
            }
            self.end_early(id.slot, Fault::Closed);
        }
        true
    }

    fn health(&mut self, link: LinkId, now: Time) -> Option<Health> {
        let link = self.links.get(link.slot).filter(|_| link.rail == self.index)?;
        if !link.was_up() {
            return None;
        }
        self.counters.system_calls += 2;
        health::of(link, now)
    }

    fn peer_host(&self, link: LinkId) -> Option<String> {
        let socket = self.links.get(link.slot)?.socket.as_ref()?;
        socket::peer_host(socket.as_fd())
    }

    fn peer_owner(&self, link: LinkId) -> Owner {
        let socket = self.links.get(link.slot).and_then(|link| link.socket.as_ref());
        socket.map_or(Owner::Untold, |socket| socket::peer_owner(socket.as_fd()))
    }

    fn set(&mut self, option: RailOption) -> bool {
        match option {
            RailOption::SendBufferBytes(bytes) => {
                self.config.send_buffer_bytes = NonZeroU32::new(bytes).map(NonZeroU32::get);
            }
            RailOption::ReceiveBufferBytes(bytes) => {
                self.config.receive_buffer_bytes = NonZeroU32::new(bytes).map(NonZeroU32::get);
            }
            _ => return false,
        }
        if let Some(listener) = &mut self.listener {
            listener.resize(&self.config);
        }
        true
    }
}
