//! The interface of a rail: the only layer with sockets, rings and registration. A rail knows no protocol.
//!
//! A rail carries *frames* (a header of at most 104 bytes, whose meaning it does not know beyond
//! the lengths in [`frame_lengths`], and a payload) over *links*, and moves memory natively where
//! the medium can. `net` owns rails, hands them the orders of the core, and polls them.
//!
//! Invariants that every rail keeps, and that the conformance suite checks:
//! * `place` (or `place_whole`, by way of `arrived`) is called once per frame, in the order of arrival,
//!   with the complete header. It is called before any byte of the payload is moved beyond those that were
//!   read together with the header;
//! * after `Placement::Into` the rail reports `received` (or `unplaced`) exactly once, or `link_down` for the link;
//! * after `Ordered::Pending` the rail reports `done` or `failed` exactly once, at the latest before
//!   the `link_down` of the link; after that it holds no reference to the order's buffers;
//! * `link_down` is the last word about a link; it comes for links closed by us, too, and before
//!   its slot goes to another link;
//! * after `revoked` no peer and no rail writes the region any more, and nobody is given bytes as its
//!   own that were read from it later;
//! * no peer, however slow or stopped, keeps a rail from letting go of memory that the peer only reads,
//!   or that the rail itself reads and writes: see [`Rail::order`];
//! * nothing blocks; bytes from a peer never panic and never allocate more than a constant.

use std::os::fd::BorrowedFd;

use ropewalk_base::error::Fault;
use ropewalk_base::health::{Health, Suspicion};
use ropewalk_base::memory::{BufferTable, Segment};
use ropewalk_base::payload::{Cipher, LinkKeys, Sealing};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, FrameOrder, LinkId, Ordered, Placement, RailCounters, RemoteKey, Token, Verb,
};

use crate::foreign::{ForeignRail, ForeignReport};

pub mod address;
pub mod binding;
pub mod conformance;
pub mod foreign;
pub mod host;
pub mod interfaces;
pub mod names;
pub mod packet;
pub mod port;

/// A counter: its name, which stays the same between versions, and its value.
pub type Count = (&'static str, u64);

/// The counters of a rail of packets, under names for people, and the rail's scheme, interface and endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub scheme: &'static str,
    /// The number of the interface in its network namespace; `None` where it is on none in particular.
    pub interface: Option<u32>,
    /// The endpoint at its station, by its number.
    pub endpoint: u8,
    pub counts: Vec<Count>,
    /// The counters of the socket, which endpoints of a process may share.
    pub socket: Vec<Count>,
}

/// A network, as the layers above see it.
pub trait Rail: Send {
    /// The scheme of its addresses: `tcp`, `shm`, `sim`.
    fn scheme(&self) -> &'static str;

    /// Tells the rail its index within the endpoint, before anything else: the `rail` of its links.
    fn attach(&mut self, index: u8);

    /// The guarantees of its links.
    fn capabilities(&self) -> Capabilities;

    /// The addresses (without scheme) under which peers reach this rail; the most general first.
    /// Empty where it only connects.
    fn addresses(&self) -> Vec<String>;

    /// Begins a link to `address` (without scheme). `link_up` or `link_down` is reported later. `Busy`,
    /// here or there, where only descriptors or the like are missing for the moment.
    fn connect(&mut self, address: &str, now: Time) -> Result<LinkId, Fault>;

    /// Sends a frame. `buffers` resolves its payload.
    ///
    /// A frame that cannot go at once is queued by the rail (`Pending`). The core bounds the frames with a payload.
    /// Its windows bound the frames that a reading peer can make it answer. A peer that does not read is the rail's
    /// to notice: a link with [`QUEUED_FRAMES_MAX`] urgent frames in its queue breaks at the next one.
    ///
    /// [`QUEUED_FRAMES_MAX`]: ropewalk_base::limits::QUEUED_FRAMES_MAX
    fn send(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered;

    /// [`Rail::send`] for a frame that is followed by others of the same link: a rail may keep it, and all
    /// that are sent after it, until [`Rail::push`], to send many at a time.
    fn send_followed(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        self.send(frame, buffers)
    }

    /// Sends the frames that [`Rail::send_followed`] kept, and reports the frames that have left. False if there
    /// were none. Called before the next poll, and before any frame has to leave.
    fn push(&mut self, report: &mut dyn Report) -> bool {
        let _ = report;
        false
    }

    /// Carries out another order. `buffers` resolves its slices.
    ///
    /// A revocation is refused only where the link holds nothing under that key: not while it is
    /// closing and its peer still in the region. It waits for a peer that writes to the region at this
    /// very moment, and for none that reads.
    ///
    /// `DetachSend`, `SkipSend`, `CancelAccess` and `CancelReceive` are answered with `Released`, and the memory is free, or refused:
    /// then the rail holds no such thing on that link, or its report is on its way, whatever the peer
    /// does. They work on links that are closing, too.
    fn order(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered;

    /// [`Rail::order`] of one that others may follow at once, before [`Rail::push`].
    fn order_followed(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        self.order(verb, buffers)
    }

    /// The cipher by which it can protect its links fast. `None`: it cannot protect them.
    fn protects(&self) -> Option<Cipher> {
        None
    }

    /// Protects a link with these keys: frames that are ordered from here on leave sealed, and what arrives has to be
    /// sealed. Frames that were ordered before leave as they are; `buffers` resolves their payloads. Only for rails that [protect](Rail::protects).
    fn seal(&mut self, link: LinkId, keys: &LinkKeys, buffers: &BufferTable) {
        let _ = buffers;
        unreachable!("{link:?}, {}: this rail protects nothing", keys.mode);
    }

    /// Makes progress: receives, sends queued frames, accepts. Returns true if anything happened. One call does a
    /// bounded amount of work and serves all its links in turn.
    fn poll(&mut self, now: Time, report: &mut dyn Report) -> bool;

    /// [`Rail::poll`] for a caller who is about to judge the silence of peers: it passes over no link, where a usual
    /// poll may do so to save system calls.
    fn drain(&mut self, now: Time, report: &mut dyn Report) -> bool {
        self.poll(now, report)
    }

    /// The work that a poll would find now, apart from timers. The look makes no system call; it is for
    /// callers that poll at a stretch. A caller still polls now and then, since a look does not see news of
    /// the kernel.
    fn look(&self) -> Sight {
        Sight::Blind
    }

    /// Prepares for sleep: after `true` the descriptor becomes readable as soon as there is work, also
    /// work that came before this call, and work that an order leaves for the next poll (another thread
    /// may give orders meanwhile); after `false` the rail must be polled first.
    fn arm(&mut self) -> bool;

    /// The sleep is over: peers need not ring any more until the next `arm`.
    fn disarm(&mut self);

    /// Like [`Rail::disarm`], where the descriptor was not readable when the sleep had lasted long enough:
    /// the kernel has no news.
    fn disarm_quiet(&mut self) {
        self.disarm();
    }

    /// Readable while there is work and the rail is armed; to be put into an epoll set once, level
    /// triggered. `None` for rails without one (`sim`).
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Whether it has something that it took, that is not at its peer, and that would be lost with the rail.
    fn owes(&self) -> bool {
        false
    }

    /// When the rail wants to be polled even without an event.
    fn deadline(&self) -> Option<Time>;

    /// Its counters.
    fn counters(&self) -> RailCounters;

    /// All that it counts, for people, where it carries packets; see [`Account`].
    fn account(&self) -> Option<Account> {
        None
    }

    /// The interface or the source address to which its sockets are bound, as one writes it behind the address:
    /// `interface=eth1`. `None` where the kernel's routes choose.
    fn bound_to(&self) -> Option<String> {
        None
    }

    /// The source port of its packets or calls, which the user chose so that switches choose another way; 0 where nobody did.
    fn entropy(&self) -> u16 {
        0
    }

    /// Tunes a link that is up for a session that has other paths beside it: what is lost goes again soon, and little waits
    /// where it cannot be taken back. It stays so. False where there is nothing to tune.
    fn tune_as_path(&mut self, link: LinkId) -> bool {
        let _ = link;
        false
    }

    /// Ends a link whose path counts as dead. Unlike [`Verb::Close`] it waits for nobody: frames that have not left are
    /// dropped, orders under way fail, and the next poll reports `link_down` with `Closed`. False where the rail cannot,
    /// or has no such link.
    fn abandon(&mut self, link: LinkId) -> bool {
        let _ = link;
        false
    }

    /// The health of a link that is up, at this moment. May ask the kernel: not for each message. `None` where there is
    /// no such link, or the rail measures nothing.
    fn health(&mut self, link: LinkId, now: Time) -> Option<Health> {
        let _ = (link, now);
        None
    }

    /// The host at the other end of a link that is up, without a port, as people and lists of rights
    /// write it: `10.1.2.3`, `fd00::7`. `None` where the rail has no such name.
    fn peer_host(&self, link: LinkId) -> Option<String> {
        let _ = link;
        None
    }

    /// The owner of the process at the other end of a link. May ask the kernel.
    fn peer_owner(&self, link: LinkId) -> Owner {
        let _ = link;
        Owner::Unknown
    }

    /// Its further part, where it may have foreign peers.
    fn foreign(&mut self) -> Option<&mut dyn ForeignRail> {
        None
    }

    /// Whether a payload has arrived in part: its rest is on its way, and nobody waits long for it.
    fn is_receiving(&self) -> bool {
        false
    }

    /// Sets an option while the rail runs. False if the rail has no such option.
    fn set(&mut self, option: RailOption) -> bool {
        let _ = option;
        false
    }
}

/// The owner of the process at the other end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Nobody vouches for users there: it is on another host, or the rail cannot ask the kernel.
    Unknown,
    /// It is or may be on this host, and the kernel does not say whose it is.
    Untold,
    /// This user's, as the kernel says.
    User(u32),
}

/// An option that users may set while a rail runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RailOption {
    /// Bytes of the kernel's send buffer, of links that are made from now on; 0: as the system chooses.
    SendBufferBytes(u32),
    /// Bytes of the kernel's receive buffer, of links that are made from now on; 0: as the system chooses.
    ReceiveBufferBytes(u32),
}

/// The work of a rail as far as it shows without a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sight {
    /// There is none, or it can wait for the next poll that is made without a look.
    Nothing,
    /// There is some, and it does not depend on the time.
    Work,
    /// It cannot tell: only a poll at the present time does.
    Blind,
}

/// The receiver of a rail's reports; the rail calls it only from within [`Rail::poll`] and [`Rail::push`].
pub trait Report {
    /// Resolves the slices of placements.
    fn buffers(&self) -> &BufferTable;

    /// A link can carry frames. `accepted`: the peer began it.
    fn link_up(&mut self, link: LinkId, accepted: bool);

    /// A link that was accepted comes from this host, where its rail knows that: what identifies the host, or its network.
    fn link_from(&mut self, _link: LinkId, _host: &[u8]) {}

    /// A link is gone, or a connect failed: the last word about it.
    fn link_down(&mut self, link: LinkId, fault: Fault);

    /// A header arrived. Answers `Into`, `Drop` or `Violation` (never `Stage`: the layer above has
    /// turned that into `Into`). For a frame without payload the answer `Into` is not given.
    fn place(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement;

    /// [`Report::place`] for a frame whose payload arrived with its header: where the answer is `Into`,
    /// the bytes go there and `received` is reported before anything else is.
    fn place_whole(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        self.place(link, header, payload_bytes)
    }

    /// A frame arrived whole: placed, copied and received in one go. False where it breaks the protocol.
    ///
    /// # Safety
    /// `payload` is mapped, and lies outside of every memory of `buffers`.
    unsafe fn arrived(&mut self, link: LinkId, header: &[u8], payload: Segment) -> bool {
        match self.place_whole(link, header, payload.len() as u32) {
            Placement::Into { slice, token } => {
                // SAFETY: the caller vouches for the payload.
                match unsafe { self.buffers().fill(slice, payload) } {
                    Ok(()) => self.received(link, token),
                    Err(_) => self.unplaced(link, token),
                }
                true
            }
            Placement::Drop => true,
            Placement::Violation(_) => false,
            Placement::Stage { .. } => unreachable!("the layer above turns staging into a place"),
        }
    }

    /// Whether what follows on a link is sealed. A rail that [protects](Rail::protects) its links asks before it takes
    /// anything of a frame, until the answer is another one than [`Sealing::Undecided`].
    fn sealing(&mut self, _link: LinkId) -> Sealing {
        Sealing::Plain
    }

    /// All payload bytes of a placement arrived.
    fn received(&mut self, link: LinkId, token: Token);

    /// The same, in place of it, where some bytes have no place: the memory has gone away under the placement.
    fn unplaced(&mut self, link: LinkId, token: Token) {
        unreachable!("{link:?}, {token:?}: whose memory goes away hears of it");
    }

    /// An order that was `Pending` is done (see [`Ordered::Released`]).
    fn done(&mut self, token: Token);

    /// An order that was `Pending` failed; its effect at the peer is unknown.
    fn failed(&mut self, token: Token, fault: Fault);

    /// There is no descriptor, or no other resource, for a link that a peer began: the link waits until another one
    /// is gone.
    fn crowded(&mut self) {}

    /// There is a sign that the path of a link is broken. The link is up, and may live on; for each beginning of such a
    /// fault this is told once.
    fn suspect(&mut self, link: LinkId, cause: Suspicion) {
        let _ = (link, cause);
    }

    /// The region is held by nobody any more.
    fn revoked(&mut self, link: LinkId, key: RemoteKey);

    /// The receiver of reports about foreign peers; `None`: there are to be none.
    fn foreign(&mut self) -> Option<&mut dyn ForeignReport> {
        None
    }
}

/// Bytes of a frame's header that every rail has to read to find the lengths.
pub const FRAME_PREFIX_BYTES: usize = 8;

/// Whether a header that is to be sent tells its own length and that of the payload beside it.
pub fn is_consistent(header: &[u8], payload_bytes: u64) -> bool {
    frame_lengths(header)
        .is_some_and(|(length, bytes)| length == header.len() && u64::from(bytes) == payload_bytes)
}

/// Header and payload length of the frame that begins with `prefix`: byte 1 is the header's length,
/// bytes 4 to 8 the payload's, little endian (`wire::frame`). `None` where they break the limits.
#[inline]
pub fn frame_lengths(prefix: &[u8]) -> Option<(usize, u32)> {
    use ropewalk_base::limits::{FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX};
    let header = usize::from(*prefix.get(1)?);
    let payload = u32::from_le_bytes(prefix.get(4..8)?.try_into().ok()?);
    let legal = (FRAME_PREFIX_BYTES..=HEADER_BYTES_MAX).contains(&header)
        && payload <= FRAME_PAYLOAD_BYTES_MAX;
    legal.then_some((header, payload))
}
