//! One socket for all endpoints of this process on an interface.
//!
//! The endpoint that finds the ring free looks at it, and deals with its own packets where they lie. Those of
//! others it copies to their inboxes.
//!
//! Invariants:
//! * a frame that the kernel let through is shown to its endpoint, put into its inbox, or counted as dropped;
//! * the kernel lets packets through for exactly the endpoints that are here, and packets of one that stays
//!   are let through while others come and go;
//! * the socket is closed with the last endpoint, and belongs to one process: one that was forked off has a
//!   socket of its own for its own endpoints.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ropewalk_base::verb::PacketDrops;
use ropewalk_rail::port::Received;
use ropewalk_wire::mxoe::{ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};

use crate::config::{EtherError, Language};
use crate::filter::{endpoint_of, program};
use crate::inbox::Inbox;
use crate::interface::Interface;
use crate::numbers::Numbers;
use crate::ring::{Reader, Ring};
use crate::socket;
use crate::watch::Watch;

/// Longest body, whatever the interface takes.
pub const BODY_BYTES_MAX: usize = 9000;

/// What a hub is for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    process: u32,
    /// Of the network namespace: its numbers of interfaces mean nothing in another.
    namespace: (u64, u64),
    index: u32,
    /// An interface that has got another address is another one to its peers.
    station: Station,
    language: Language,
}

impl Key {
    fn of(interface: &Interface, language: Language) -> Key {
        // Threads of a process can be in several.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net");
        Key {
            process: std::process::id(),
            namespace: namespace.map_or((0, 0), |it| (it.dev(), it.ino())),
            index: interface.index,
            station: interface.station,
            language,
        }
    }
}

/// Endpoints that are here.
#[derive(Debug)]
pub struct Members {
    inboxes: Box<[Option<Arc<Inbox>>; 256]>,
    numbers: Numbers,
}

/// The socket, and those who share it.
#[derive(Debug)]
pub struct Hub {
    key: Key,
    ring: Ring<Members>,
    socket: OwnedFd,
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

/// What a look at the ring brought.
#[derive(Debug, Clone, Copy)]
pub struct Looked {
    pub received: Received,
    /// Whether there was anything for the one who looked.
    pub any: bool,
}

static HUBS: Mutex<Vec<Weak<Hub>>> = Mutex::new(Vec::new());

/// Counts something that only the holder of the ring's lock counts.
fn count(what: &AtomicU64) {
    what.store(what.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
}

impl Hub {
    /// The hub of this process on an interface, for packets of a language.
    pub fn on(interface: &Interface, language: Language) -> Result<Arc<Hub>, EtherError> {
        let key = Key::of(interface, language);
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|hub| hub.strong_count() > 0);
        let mut living = hubs.iter().filter_map(Weak::upgrade);
        if let Some(hub) = living.find(|hub| hub.key == key && socket::is_bound(hub.socket())) {
            return Ok(hub);
        }
        let hub = Hub::open(key, interface).map_err(|cause| match socket::is_right(&cause) {
            true => EtherError::NotPermitted(interface.name.clone()),
            false => EtherError::Socket { interface: interface.name.clone(), cause },
        })?;
        let hub = Arc::new(hub);
        hubs.push(Arc::downgrade(&hub));
        Ok(hub)
    }

    fn open(key: Key, interface: &Interface) -> std::io::Result<Hub> {
        let socket = socket::open()?;
        let fd = socket.as_fd();
        let members =
            Members { inboxes: Box::new([const { None }; 256]), numbers: Numbers::default() };
        socket::filter(fd, program(key.station, key.language, &members.numbers))?;
        // Frames that leave are not shown to those who sent them, where the kernel knows of that.
        let _ = socket::set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        let frame_bytes = interface.mtu.min(BODY_BYTES_MAX) + ETHERNET_BYTES;
        let ring = Ring::new(fd, frame_bytes, members)?;
        socket::bind(fd, interface, ETHERTYPE)?;
        Ok(Hub {
            key,
            body_bytes: (ring.frame_bytes() - ETHERNET_BYTES).min(BODY_BYTES_MAX),
            ring,
            socket,
            watch: Watch::new()?,
            looks: AtomicU64::new(0),
            sweeps: AtomicU64::new(0),
            gone: AtomicBool::new(false),
            no_room: AtomicU64::new(0),
            strangers: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            wrong_type: AtomicU64::new(0),
        })
    }

    /// Whose packets it is for.
    pub fn language(&self) -> Language {
        self.key.language
    }

    /// What packets leave by; anybody may at any time.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Longest body that it takes, and how many of them.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    pub fn slots(&self) -> usize {
        self.ring.slots()
    }

    /// Lets packets come for an endpoint, which is the caller's by its claim.
    pub fn enter(&self, endpoint: u8, inbox: Arc<Inbox>) -> std::io::Result<()> {
        let mut reader = self.ring.lock();
        reader.with.numbers.insert(endpoint);
        // The inbox first: what is let through finds it.
        reader.with.inboxes[usize::from(endpoint)] = Some(inbox);
        let result = self.filter(&reader.with.numbers);
        if result.is_err() {
            reader.with.remove(endpoint);
        }
        result
    }

    /// No more packets for an endpoint.
    pub fn leave(&self, endpoint: u8) {
        self.watch.leave(endpoint, self.socket(), self.looks());
        let mut reader = self.ring.lock();
        reader.with.remove(endpoint);
        // A process that was forked off has the parent's socket, and leaves it as it is.
        if self.key.process == std::process::id() {
            // Where the kernel has no memory the packets go on coming, and are counted.
            let _ = self.filter(&reader.with.numbers);
        }
    }

    /// The kernel exchanges filters in one step: each frame passes the old one or the new one.
    fn filter(&self, numbers: &Numbers) -> std::io::Result<()> {
        socket::filter(self.socket(), program(self.key.station, self.key.language, numbers))
    }

    /// The ring, where nobody else looks at it.
    pub fn try_lock(&self) -> Option<Reader<'_, Members>> {
        self.ring.try_lock()
    }

    /// What a look without the lock sees: perhaps a frame that somebody else deals with already.
    pub fn has_frame(&self) -> bool {
        self.ring.has_frame()
    }

    /// How often somebody has found the ring empty. What lay there before is in its inbox.
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
        let language = self.key.language;
        let mut deal = |members: &mut Members, frame: &[u8]| match addressed(frame, language) {
            Some((from, endpoint, body)) if endpoint == own => {
                any = true;
                to(from, body);
            }
            Some((from, endpoint, body)) => match &members.inboxes[usize::from(endpoint)] {
                // One that is full counts for itself.
                Some(inbox) => drop(inbox.put(from, body)),
                None => count(&self.strangers),
            },
            None if has_type(frame) => count(&self.wrong_type),
            None => count(&self.malformed),
        };
        let mut empty = false;
        while packets < max && !empty {
            match reader.show(&mut deal) {
                Some(slot) => {
                    packets += 1;
                    is_losing |= slot.is_losing;
                    if slot.is_cut {
                        count(&self.malformed);
                    }
                }
                None => empty = true,
            }
        }
        count(&self.looks);
        if empty {
            count(&self.sweeps);
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
        self.watch.sleep(endpoint, eager, self.socket(), self.looks())
    }

    /// An endpoint is awake.
    pub fn wake(&self, endpoint: u8) {
        self.watch.wake(endpoint, self.socket(), self.looks());
    }

    /// Takes what the kernel has to say of the interface, which would wake the watcher until it is heard: it
    /// is down, and perhaps gone for good. One that comes up again goes on by itself.
    pub fn take_error(&self) {
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

    /// The kernel counts from the last question on.
    fn ask_after_drops(&self) {
        self.no_room.fetch_add(socket::dropped(self.socket()), Ordering::Relaxed);
    }

    /// What was dropped of all endpoints together.
    pub fn drops(&self) -> PacketDrops {
        self.ask_after_drops();
        PacketDrops {
            no_room: self.no_room.load(Ordering::Relaxed),
            strangers: self.strangers.load(Ordering::Relaxed),
            malformed: self.malformed.load(Ordering::Relaxed),
            wrong_type: self.wrong_type.load(Ordering::Relaxed),
            ..PacketDrops::default()
        }
    }
}

impl Members {
    fn remove(&mut self, endpoint: u8) {
        self.numbers.remove(endpoint);
        self.inboxes[usize::from(endpoint)] = None;
    }
}

/// Whether a frame is long enough for a type and all that may say whom it is for.
fn has_type(frame: &[u8]) -> bool {
    frame.len() >= FRAME_BYTES_MIN
}

/// From whom a frame is, and for which endpoint.
fn addressed(frame: &[u8], language: Language) -> Option<(Station, u8, &[u8])> {
    let (ethernet, body) = Ethernet::split(frame)?;
    let endpoint = endpoint_of(body, language).filter(|_| ethernet.ethertype == ETHERTYPE)?;
    Some((ethernet.source, endpoint, body))
}
