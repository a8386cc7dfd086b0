//! One socket for all endpoints of this process on an interface; where AF_XDP is wanted and can be had, one of
//! those beside it.
//!
//! The endpoint that finds the ring free looks at it, and processes its own packets in place. It copies those of
//! others to their inboxes.
//!
//! Invariants:
//! * a frame that the kernel let through is shown to its endpoint, put into its inbox, or counted as dropped, except
//!   for packets between hosts;
//! * the kernel lets packets through for exactly the endpoints that are here, and packets of one that stays
//!   are let through while others come and go;
//! * the socket is closed with the last endpoint, and belongs to one process: one that was forked off has a
//!   socket of its own for its own endpoints.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ropewalk_base::verb::PacketDrops;
use ropewalk_rail::packet::Packet;
use ropewalk_rail::port::Received;
use ropewalk_wire::mxoe::{
    ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, INDEX_BYTES, Station, Type,
};

use crate::config::{EtherError, Protocol, SocketKind, Sockets};
use crate::filter::{endpoint_of, program};
use crate::inbox::Inbox;
use crate::interface::Interface;
use crate::numbers::Numbers;
use crate::ring::{Reader, Ring};
use crate::socket::{self, Takes};
use crate::watch::Watch;
use crate::xdp::{self, Xdp, XdpError};

/// Longest body, for any MTU of the interface.
pub const BODY_BYTES_MAX: usize = 9000;

/// The time for which the kernel may say that a queue belongs to somebody who is gone. A port that insists on the
/// queue waits for the first time, and one that does without waits for the second.
const GIVEN_BACK: Duration = Duration::from_secs(3);
const GIVEN_BACK_SOON: Duration = Duration::from_millis(200);

/// The identity of a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    process: u32,
    /// Of the network namespace: its numbers of interfaces mean nothing in another.
    namespace: (u64, u64),
    index: u32,
    /// An interface that has got another address is another one to its peers.
    station: Station,
    protocol: Protocol,
    /// Endpoints that ask for different sockets do not share them.
    sockets: Sockets,
}

impl Key {
    fn of(interface: &Interface, protocol: Protocol, sockets: Sockets) -> Key {
        // Threads of a process can be in several.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net");
        Key {
            process: std::process::id(),
            namespace: namespace.map_or((0, 0), |it| (it.dev(), it.ino())),
            index: interface.index,
            station: interface.station,
            protocol,
            sockets,
        }
    }
}

/// Endpoints that are here.
#[derive(Debug)]
pub struct Members {
    inboxes: Box<[Option<Arc<Inbox>>; 256]>,
    numbers: Numbers,
    xdp: Option<xdp::Receiver>,
}

/// The socket, and the endpoints that share it.
#[derive(Debug)]
pub struct Hub {
    key: Key,
    ring: Ring<Members>,
    socket: OwnedFd,
    beside: Beside,
    watch: Watch,
    body_bytes: usize,
    /// Looks at the ring, and those that found it empty in the end.
    looks: AtomicU64,
    sweeps: AtomicU64,
    /// The interface is not there any more.
    gone: AtomicBool,
    no_room: AtomicU64,
    strangers: AtomicU64,
    malformed: AtomicU64,
    wrong_type: AtomicU64,
}

/// The socket beside the packet socket.
#[derive(Debug)]
enum Beside {
    Nothing,
    /// Nothing, though it was wished for.
    Refused(XdpError),
    Xdp(Xdp),
}

/// The result of a look at the ring.
#[derive(Debug, Clone, Copy)]
pub struct Looked {
    pub received: Received,
    /// Whether there was anything for the endpoint that looked.
    pub any: bool,
}

static HUBS: Mutex<Vec<Weak<Hub>>> = Mutex::new(Vec::new());

/// Counts something that only the holder of the ring's lock counts.
fn count(what: &AtomicU64) {
    what.store(what.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
}

impl Hub {
    /// The hub of this process on an interface, for packets of a protocol.
    pub fn on(
        interface: &Interface,
        protocol: Protocol,
        sockets: Sockets,
    ) -> Result<Arc<Hub>, EtherError> {
        let key = Key::of(interface, protocol, sockets);
        let begin = Instant::now();
        let patience = match sockets.kind {
            SocketKind::Packet => Duration::ZERO,
            SocketKind::Xdp => GIVEN_BACK,
            SocketKind::Auto => GIVEN_BACK_SOON,
        };
        let (mut hubs, beside) = loop {
            let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
            hubs.retain(|hub| hub.strong_count() > 0);
            let mut living = hubs.iter().filter_map(Weak::upgrade);
            if let Some(hub) = living.find(|hub| hub.key == key && socket::is_bound(hub.socket())) {
                return Ok(hub);
            }
            match beside(&key, interface) {
                // Others need not wait for that.
                (Beside::Refused(error), _)
                    if error.is_of_the_past() && begin.elapsed() < patience =>
                {
                    drop(hubs);
                    std::thread::sleep(Duration::from_millis(1));
                }
                beside => break (hubs, beside),
            }
        };
        let hub =
            Hub::open(key, interface, beside).map_err(|cause| match socket::is_right(&cause) {
                true => EtherError::NotPermitted(interface.name.clone()),
                false => EtherError::Socket { interface: interface.name.clone(), cause },
            })?;
        if let (SocketKind::Xdp, Beside::Refused(error)) = (sockets.kind, &hub.beside) {
            let (interface, why) = (interface.name.clone(), error.to_string());
            return Err(EtherError::Xdp { interface, why });
        }
        let hub = Arc::new(hub);
        hubs.push(Arc::downgrade(&hub));
        Ok(hub)
    }

    fn open(
        key: Key,
        interface: &Interface,
        (beside, xdp): (Beside, Option<xdp::Receiver>),
    ) -> std::io::Result<Hub> {
        let socket = socket::open()?;
        let fd = socket.as_fd();
        let numbers = Numbers::default();
        socket::filter(fd, program(key.station, key.protocol, &numbers))?;
        // Frames that leave are not shown to their senders, if the kernel has this option.
        let _ = socket::set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        let frame_bytes = interface.mtu.min(BODY_BYTES_MAX) + ETHERNET_BYTES;
        let mut sockets = vec![socket.try_clone()?];
        if let Beside::Xdp(xdp) = &beside {
            sockets.push(xdp.socket().try_clone_to_owned()?);
        }
        let inboxes = Box::new([const { None }; 256]);
        let members = Members { inboxes, numbers, xdp };
        let ring = Ring::new(fd, frame_bytes, members)?;
        socket::bind(fd, interface, ETHERTYPE)?;
        Ok(Hub {
            key,
            body_bytes: (ring.frame_bytes() - ETHERNET_BYTES).min(BODY_BYTES_MAX),
            ring,
            socket,
            beside,
            watch: Watch::new(sockets)?,
            looks: AtomicU64::new(0),
            sweeps: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            no_room: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            wrong_type: AtomicU64::new(0),
        })
    }

    /// The protocol of its packets.
    pub fn protocol(&self) -> Protocol {
        self.key.protocol
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn xdp(&self) -> Option<&Xdp> {
        match &self.beside {
            Beside::Xdp(xdp) => Some(xdp),
            Beside::Nothing | Beside::Refused(_) => None,
        }
    }

    /// Whether frames come by AF_XDP.
    pub fn has_xdp(&self) -> bool {
        self.xdp().is_some()
    }

    /// The reason why they do not, though that was wished for.
    pub fn refused(&self) -> Option<String> {
        match &self.beside {
            Beside::Refused(error) => Some(error.to_string()),
            Beside::Nothing | Beside::Xdp(_) => None,
        }
    }

    /// Sends frames; their written parts are in `bytes`. Returns the number that left. Anybody may
    /// call this at any time.
    pub fn send(&self, bytes: &[u8], frames: &[Packet]) -> std::io::Result<usize> {
        match self.xdp().and_then(|xdp| xdp.send(bytes, frames)) {
            Some(result) => result.map(|()| frames.len()),
            None => socket::send(self.socket(), bytes, frames),
        }
    }

    /// Has frames leave for which the kernel had no room after all; whether there are none.
    pub fn flush(&self) -> bool {
        self.xdp().is_none_or(Xdp::flush)
    }

    /// The limits of its interface at present; `None` if the interface has been removed.
    pub fn takes(&self, interface: u32) -> Option<Takes> {
        socket::takes(self.socket(), interface).ok()
    }

    /// Longest body that it takes, and how many of them.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    pub fn slots(&self) -> usize {
        self.xdp().map_or(usize::MAX, Xdp::slots).min(self.ring.slots())
    }

    /// Lets packets come for an endpoint, which is the caller's by its claim.
    pub fn enter(&self, endpoint: u8, inbox: Arc<Inbox>) -> std::io::Result<()> {
        let mut reader = self.ring.lock();
        reader.with.numbers.insert(endpoint);
        // The inbox first: packets that the filter then lets through find it.
        reader.with.inboxes[usize::from(endpoint)] = Some(inbox);
        let result = self.filter(&reader.with.numbers);
        if result.is_err() {
            reader.with.remove(endpoint);
        }
        result
    }

    /// No more packets for an endpoint.
    pub fn leave(&self, endpoint: u8) {
        // A process that was forked off has the parent's socket and the parent's epoll sets, and leaves them as they
        // are.
        if self.key.process != std::process::id() {
            return;
        }
        self.watch.leave(endpoint, self.looks());
        let mut reader = self.ring.lock();
        reader.with.remove(endpoint);
        let numbers = &reader.with.numbers;
        // If the kernel has no memory, the packets continue to arrive, and are counted.
        let _ = self.filter_packets(numbers);
        if let Some(xdp) = self.xdp()
            && xdp.tell(numbers).is_err()
        {
            // The right to it was given away. Frames for the number's next owner may not end here: all go by the
            // packet socket from now on.
            xdp.detach();
        }
    }

    /// The kernel exchanges filters in one step: each frame passes the old one or the new one.
    fn filter(&self, numbers: &Numbers) -> std::io::Result<()> {
        self.filter_packets(numbers)?;
        self.xdp().map_or(Ok(()), |xdp| xdp.tell(numbers))
    }

    fn filter_packets(&self, numbers: &Numbers) -> std::io::Result<()> {
        socket::filter(self.socket(), program(self.key.station, self.key.protocol, numbers))
    }

    /// The ring, where nobody else looks at it.
    pub fn try_lock(&self) -> Option<Reader<'_, Members>> {
        self.ring.try_lock()
    }

    /// Whether a look without the lock sees a frame; another thread may be processing it already.
    pub fn has_frame(&self) -> bool {
        self.ring.has_frame() || self.xdp().is_some_and(Xdp::has_frame)
    }

    /// The number of times that a thread has found the ring empty. All earlier frames are in their inboxes.
    pub fn sweeps(&self) -> u64 {
        self.sweeps.load(Ordering::Acquire)
    }

    /// Goes through at most `max` frames.
    pub fn look(
        &self,
        mut reader: Reader<'_, Members>,
        own: u8,
        max: usize,
        to: &mut dyn FnMut(Station, &[u8]),
    ) -> Looked {
        let (mut packets, mut any, mut is_losing) = (0, false, false);
        let protocol = self.key.protocol;
        let mut deal = |inboxes: &[Option<Arc<Inbox>>; 256], frame: &[u8]| {
            match addressed(frame, protocol) {
                Some((from, endpoint, body)) if endpoint == own => {
                    any = true;
                    to(from, body);
                }
                Some((from, endpoint, body)) => match &inboxes[usize::from(endpoint)] {
                    // One that is full counts for itself.
                    Some(inbox) => drop(inbox.put(from, body)),
                    None => count(&self.strangers),
                },
                None if frame.len() < FRAME_BYTES_MIN => count(&self.malformed),
                // Packets between hosts are for an agent, which has seen them.
                None if is_of_hosts(frame, protocol) => {}
                None => count(&self.wrong_type),
            }
        };
        let mut empty = false;
        while packets < max && !empty {
            empty = true;
            let Members { inboxes, xdp, .. } = &mut *reader.with;
            if let Some(xdp) = xdp
                && xdp.show(&mut |frame| deal(inboxes, frame))
            {
                (packets, empty) = (packets + 1, false);
            }
            if let Some(slot) = reader.show(&mut |members, frame| deal(&members.inboxes, frame)) {
                (packets, empty) = (packets + 1, false);
                is_losing |= slot.is_losing;
                if slot.is_cut {
                    count(&self.malformed);
                }
            }
        }
        count(&self.looks);
        if empty {
            count(&self.sweeps);
            if let Some(xdp) = self.xdp() {
                xdp.found_nothing();
            }
        }
        if is_losing {
            self.ask_after_drops();
        }
        Looked { received: Received { packets, empty }, any }
    }

    fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// An endpoint sleeps on this set from now on.
    pub fn attach(&self, endpoint: u8, set: BorrowedFd<'_>) -> std::io::Result<()> {
        self.watch.enter(endpoint, set)
    }

    /// An endpoint goes to sleep (see [`Watch::sleep`]).
    pub fn sleep(&self, endpoint: u8, eager: bool) -> bool {
        self.watch.sleep(endpoint, eager, self.looks())
    }

    /// An endpoint has been awake for many packets.
    pub fn busy(&self, endpoint: u8) {
        self.watch.busy(endpoint, self.looks());
    }

    /// An endpoint is awake.
    pub fn wake(&self, endpoint: u8) {
        self.watch.wake(endpoint, self.looks());
    }

    /// Takes the kernel's error for the interface, which would wake the watcher until it is read: the interface is
    /// down, and perhaps gone for good. One that comes up again goes on by itself.
    pub fn take_error(&self) {
        if let Some(xdp) = self.xdp() {
            // The packet socket's error is enough.
            let _ = rustix::net::sockopt::socket_error(xdp.socket());
        }
        if let Ok(Err(_)) = rustix::net::sockopt::socket_error(&self.socket)
            && !socket::is_bound(self.socket())
        {
            self.set_gone();
        }
    }

    /// The interface was removed; one of the same name that is made later is another one.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// As `is_gone`, but asks the kernel: of an interface that was taken down before it was removed it tells nothing
    /// by itself.
    pub fn is_gone_by_now(&self) -> bool {
        if !socket::is_bound(self.socket()) {
            self.set_gone();
        }
        self.is_gone()
    }

    /// The kernel counts from the last question on.
    fn ask_after_drops(&self) {
        self.no_room.fetch_add(socket::dropped(self.socket()), Ordering::Relaxed);
    }

    /// The drops of all endpoints together.
    pub fn drops(&self) -> PacketDrops {
        self.ask_after_drops();
        PacketDrops {
            no_room: self.no_room.load(Ordering::Relaxed) + self.xdp().map_or(0, Xdp::dropped),
            strangers: self.strangers.load(Ordering::Relaxed),
            malformed: self.malformed.load(Ordering::Relaxed),
            wrong_type: self.wrong_type.load(Ordering::Relaxed),
            ..PacketDrops::default()
        }
    }
}

/// AF_XDP and its receiver for a hub that is about to be opened, if that is wished for; or the reason for its absence.
fn beside(key: &Key, interface: &Interface) -> (Beside, Option<xdp::Receiver>) {
    if key.sockets.kind == SocketKind::Packet {
        return (Beside::Nothing, None);
    }
    let opening = xdp::Opening {
        interface: interface.index,
        station: interface.station,
        protocol: key.protocol,
        frame_bytes: interface.mtu + ETHERNET_BYTES,
        sockets: key.sockets,
    };
    match xdp::open(&opening) {
        Ok((xdp, receiver)) => (Beside::Xdp(xdp), Some(receiver)),
        Err(error) => (Beside::Refused(error), None),
    }
}

impl Members {
    fn remove(&mut self, endpoint: u8) {
        self.numbers.remove(endpoint);
        self.inboxes[usize::from(endpoint)] = None;
    }
}

/// Whether a frame is for a host and none of its endpoints; the kernel takes it for one's where it looks like that.
fn is_of_hosts(frame: &[u8], protocol: Protocol) -> bool {
    let kind = Ethernet::split(frame).and_then(|(_, body)| Type::from_u8(*body.get(INDEX_BYTES)?));
    let hosts = matches!(kind, Some(Type::Raw | Type::HostQuery | Type::HostReply));
    hosts && matches!(protocol, Protocol::Mxoe(_))
}

/// The source of a frame, the endpoint that it is for, and its body.
fn addressed(frame: &[u8], protocol: Protocol) -> Option<(Station, u8, &[u8])> {
    let (ethernet, body) = Ethernet::split(frame)?;
    let endpoint = endpoint_of(body, protocol).filter(|_| ethernet.ethertype == ETHERTYPE)?;
    Some((ethernet.source, endpoint, body))
}
