//! The words between the core and whoever drives it.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::SuspicionCounts;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::{BufferId, Change, Slice, Update};
use ropewalk_base::payload::LinkKeys;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Header, LinkId, RemoteKey, RemoteLayout, Verb};

use crate::apm::{PathEvent, Policy};
pub use crate::plant::Plant;

/// The result of posting a message.
#[derive(Debug, Clone, Copy)]
#[must_use = "the frame of an inline message is not in the outputs"]
pub enum Sending {
    /// It leaves within its post: `Core::inline_frame` has its frame, for the rail at once; the rail's answer goes to
    /// `Core::inline_sent`, with this message.
    Inline(Send),
    /// It is an operation, which may be over.
    Operation,
}

/// A peer of this endpoint, reached or not. Several may turn out to be one and the same endpoint;
/// then they are aliases and match each other's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub SlotId);

/// An operation. The driver hands the numbers out; one that completed may be used again with a new
/// generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperationId(pub SlotId);

/// The link of an endpoint to itself: the driver hands its frames to [`Core::place`] again.
///
/// [`Core::place`]: crate::Core::place
pub const LOOP_LINK: LinkId = LinkId { rail: u8::MAX, slot: SlotId { index: 0, generation: 1 } };

/// Messages of different channels never match each other and have no order among each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Channel {
    /// Matched by 64 bits.
    Tagged = 0,
    /// Matched by 64 bits, apart from `Tagged` (libfabric uses all bits of both).
    Untagged = 1,
    /// Nobody posts for them: BMI's unexpected messages.
    Request = 2,
}

/// How many channels there are.
pub const CHANNELS: usize = 3;

impl Channel {
    /// From its number on the wire.
    pub fn from_u8(value: u8) -> Option<Channel> {
        match value {
            0 => Some(Channel::Tagged),
            1 => Some(Channel::Untagged),
            2 => Some(Channel::Request),
            _ => None,
        }
    }
}

/// When a send is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Level {
    /// The memory may be used again. Says nothing about the peer.
    Buffered = 0,
    /// All bytes are at the peer.
    Delivered = 1,
    /// A receive of the peer took the message.
    Matched = 2,
    /// The same, and before that nobody at the peer sees a byte: who is [offered](crate::Core::next_offer) it is told its
    /// length alone, and where it is dropped nothing of it was taken.
    Unseen = 3,
}

impl Level {
    /// Whether a message with this level, as a frame has it, is complete when a receive took it.
    #[inline]
    pub(crate) fn waits_for_match(asked: u8) -> bool {
        asked == Level::Matched as u8 || asked == Level::Unseen as u8
    }
}

/// How a receive treats a message that is longer than its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Oversize {
    /// Take what fits, complete with `Truncated`, tell both lengths.
    Truncate,
    /// Fail with `Oversize`; the message stays the first one.
    Refuse,
}

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Send {
    pub peer: PeerId,
    pub channel: Channel,
    pub bits: u64,
    pub payload: Slice,
    pub level: Level,
}

/// A receive to post; not on channel `Request`.
#[derive(Debug, Clone, Copy)]
pub struct Receive {
    pub channel: Channel,
    /// From this peer only, or from any.
    pub source: Option<PeerId>,
    pub bits: u64,
    /// The bits that have to agree.
    pub mask: u64,
    pub into: Slice,
    pub oversize: Oversize,
}

/// The direction of a remote access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Get,
    Put,
}

/// The kinds of remote access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Get,
    Put,
    /// Elements of the region, without gaps, are combined with those of the memory. With `fetch` the memory has a second
    /// half, which takes what they were; where the operator takes no elements it is that half alone.
    Update {
        update: Update,
        fetch: bool,
    },
    Atomic(Atomic),
    /// Takes the region's lock, to have it alone or with others. Completes once it has it; the completion's `bits` are 1 where
    /// a session ended while it had the lock, so that what it protects may be half changed. Given up, it lets the lock go.
    Lock {
        exclusive: bool,
    },
    /// Takes the region's lock, puts, and gives the lock back, in one exchange, where nobody has or wants it: then the
    /// completion's `bits` are 2. Else nothing was put, and it completes as a [`Action::Lock`] does. At most
    /// [`LOCKED_PUT_BYTES_MAX`](ropewalk_base::limits::LOCKED_PUT_BYTES_MAX) bytes.
    LockedPut {
        exclusive: bool,
    },
    /// Short puts, in one frame: the memory has records of where they go and what they put
    /// ([`Change::Records`]), of at most
    /// [`RECORDS_BYTES_MAX`](ropewalk_base::limits::RECORDS_BYTES_MAX) bytes. If one of them does not lie in the region none is
    /// put.
    Records,
    /// Puts, and tells the peer of it: a word of the region grows after all that we began before with this peer, as by an
    /// [`Atomic::token`], and after these bytes. Both are one frame. Completes once it is applied; else once the memory is free,
    /// and [`Output::Refused`] tells of a refusal. At most
    /// [`LOCKED_PUT_BYTES_MAX`](ropewalk_base::limits::LOCKED_PUT_BYTES_MAX) bytes.
    Notify {
        raise: Raise,
        applied: bool,
    },
    /// Puts, and tells the peer of it: an event with this data, at whoever takes the events of the region
    /// ([`Exposing::events`]), once these bytes are at their place and all is applied that we began before with this peer.
    /// There may be no bytes. Those of one endpoint come at a peer in the order of their posts, each once.
    Immediate {
        data: u64,
    },
    /// Gives back the lock that this operation took, after all that was begun before with this peer. Completes once that is
    /// on its way.
    Unlock {
        lock: OperationId,
    },
}

/// How a word of a region grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raise {
    /// Of 8 bytes, counted from the end of the region: 0 is the last one.
    pub word: u32,
    pub value: u64,
    /// It grows to the value, if it is less; else by the value.
    pub to: bool,
}

/// An operation on one element of a region; it needs no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic {
    /// One element is combined, or compared and swapped. Not of more than 8 bytes.
    pub change: Change,
    /// The completion's `bits` have what the element was, in the first bytes of a little-endian number.
    pub fetch: bool,
    /// It tells the peer something: it takes effect after all that we began before with this peer, and whoever waits for
    /// words of that region is woken. It completes once it is on its way, and fetches nothing. It does not wait for puts that
    /// go with requests for locks: these may wait for others.
    pub token: bool,
}

impl From<Direction> for Action {
    fn from(direction: Direction) -> Action {
        match direction {
            Direction::Get => Action::Get,
            Direction::Put => Action::Put,
        }
    }
}

/// A remote access to start.
#[derive(Debug, Clone)]
pub struct Access {
    pub action: Action,
    pub peer: PeerId,
    pub key: RemoteKey,
    pub remote: RemoteLayout,
    /// All of it is read or written; a list layout's bytes are as many.
    pub local: Slice,
    pub terms: Terms,
}

/// The order and the end of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Terms {
    /// It begins when all accesses to this peer that were posted before are applied, whatever their kind. Others that are posted
    /// later wait behind it.
    pub fenced: bool,
    /// It completes once its memory is free and its bytes are on their way; else once it is applied. Where the peer refuses it
    /// after that, [`Output::Refused`] says so. Fetches, locks and puts with immediate data ignore this.
    pub local: bool,
    /// Of one that is `local`: the peer says that it is applied with the next thing that it says, or after 5 ms. A fence behind
    /// it may wait for so long.
    pub quiet: bool,
    /// Others follow at once: it may leave together with them.
    pub more: bool,
}

impl Terms {
    /// Whether the peer is to say at once that it is applied.
    pub(crate) fn tells(self) -> bool {
        !(self.local && self.quiet)
    }
}

/// The peers that may access a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// Every peer that is told the key.
    Everybody,
    /// This peer, for its present session only.
    One(PeerId),
    /// The members of a group ([`Core::add_group`](crate::Core::add_group)).
    Group(GroupId),
}

/// A group of peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub SlotId);

/// A member of a group. Endpoints say their numbers themselves: a group guards against mistakes, not against strangers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// The endpoint that answered at the address of this peer. Before one did nobody is recognized as this member.
    Peer(PeerId),
    /// The endpoint with this number.
    Endpoint(EndpointId),
}

/// The name of a region: a number by which peers may use it, to whom nobody told a key ([`RemoteKey::named`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// None: who was told the key uses it.
    Nameless,
    /// This one, if no other region has it.
    Given(u64),
    /// One that no other region has.
    Chosen,
}

/// How memory is exposed.
///
/// A name is no secret, and any peer may try any number: who may use a region that has one is decided by the audience and
/// the right to write alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exposing {
    pub writable: bool,
    pub audience: Audience,
    pub naming: Naming,
    /// Peers may put with immediate data, for [`Output::Written`].
    pub events: bool,
    /// [`Output::Served`] tells each operation of peers. Rails do nothing to such a region by themselves, since they count nothing.
    pub counts: bool,
}

/// Something that a peer did to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Served {
    Get,
    Put,
    /// An update, or an atomic.
    Update,
}

impl Exposing {
    /// Without a name.
    pub fn to(audience: Audience, writable: bool) -> Exposing {
        let naming = Naming::Nameless;
        Exposing { writable, audience, naming, events: false, counts: false }
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    pub operation: OperationId,
    /// Success, with `Truncated` and others as faults.
    pub outcome: Result<(), Fault>,
    /// Bytes moved. Sends that were announced, or that wait for their match: what the receiver took, also
    /// where its receive was shorter than the message.
    pub bytes: u64,
    /// The message's whole length.
    pub message_bytes: u64,
    /// Receives: who sent it; others: the peer.
    pub peer: Option<PeerId>,
    /// Receives: the message's match bits. Atomics: what the element was.
    pub bits: u64,
}

/// The kind of the core's next output; see [`Core::next_output`].
///
/// [`Core::next_output`]: crate::Core::next_output
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A frame for the rail of its link: [`Core::frame`] has it. The rail's answer goes to
    /// [`Core::ordered`].
    ///
    /// [`Core::frame`]: crate::Core::frame
    /// [`Core::ordered`]: crate::Core::ordered
    Frame,
    /// A frame likewise, which need not leave before the driver's next pass: its link has enough to do.
    PatientFrame,
    /// An operation ended: [`Core::completion`] has it.
    ///
    /// [`Core::completion`]: crate::Core::completion
    Completed,
    /// Something that is rarer: [`Core::take_output`] has it.
    ///
    /// [`Core::take_output`]: crate::Core::take_output
    Other,
}

/// The rarer things that the core wants done or known.
#[derive(Debug)]
pub enum Output {
    /// Send this greeting: put its payload into a buffer, which is released like staged ones, and call
    /// `greeting_staged` with it, which gives the frame for the rail.
    Greet { link: LinkId, header: Box<Header>, payload: Vec<u8> },
    /// Let the rail of this link protect it, behind the frames that were ordered before.
    Seal { link: LinkId, keys: Box<LinkKeys> },
    /// An order for the rail of the verb's link. Its answer goes to [`Core::ordered`], or for those that
    /// have a rail let go to [`Core::took_back`].
    ///
    /// [`Core::ordered`]: crate::Core::ordered
    /// [`Core::took_back`]: crate::Core::took_back
    Verb(Verb),
    /// Copy bytes within the buffer table.
    Copy { from: Slice, to: Slice },
    /// The staged buffer is not needed any more.
    Release(BufferId),
    /// Copy these bytes to a buffer of the endpoint's own (released like staged ones), and call `kept`:
    /// their user wants the memory back, but the peer may need them once more.
    Keep { peer: PeerId, span: u64, from: Slice },
    /// A request arrived; its bytes (staged, if there are any) now belong to the driver, which calls
    /// `request_taken` when its user has it.
    Request { peer: PeerId, session: u32, bits: u64, payload: Option<(BufferId, u32)> },
    /// Make a link to the peer over its `attempt`-th address, then call `connecting`, or
    /// `unreachable` where there is none left.
    Connect { peer: PeerId, attempt: u32 },
    /// The peer is on this host: try a rail that shares memory, then call `connecting_upgrade` or
    /// `no_upgrade`.
    Upgrade { peer: PeerId, link: LinkId },
    /// Make one more link to the peer: over the first of its addresses, from the `attempt`-th one on, by a rail that is not
    /// among `rails` (bit n: the rail with index n). Then call `joining`, or `no_way_to_join` where there is none left.
    Join { peer: PeerId, attempt: u32, rails: u64 },
    /// The link is one of several paths now: tune it for that, where its rail can.
    Tune { link: LinkId },
    /// Nothing comes over this link: call `path_health` with what its rail says of it.
    AskHealth { link: LinkId },
    /// What has the rail of this link counted? Call `path_measured` with what it says.
    Measure { link: LinkId },
    /// The path of this link is dead: end it at once, whether its peer can be told or not.
    Abandon { link: LinkId },
    /// A session with the peer began.
    PeerUp { peer: PeerId },
    /// The session with the peer ended.
    PeerDown { peer: PeerId, fault: Fault },
    /// A foreign peer says whether a key that it was shown is right.
    KeyJudged { peer: PeerId, key: u32, right: bool },
    /// Something happened to the paths of a peer.
    Path(PathEvent),
    /// Two peers are one endpoint: `alias` now stands for `peer`.
    Aliased { alias: PeerId, peer: PeerId },
    /// Somebody changed a word of a region, and wants to be heard by who waits for it.
    Raised,
    /// A peer put so many bytes into a region, and has data for whoever takes its events. The driver calls
    /// `event_taken` when its user has it.
    Written { peer: PeerId, session: u32, key: RemoteKey, bytes: u64, data: u64 },
    /// A peer refused something of ours that was complete before the peer had taken it: [`Terms::local`], a token, or a put with
    /// a notice that nobody waits for. One in several pieces may be told several times.
    Refused { peer: PeerId, operation: OperationId, fault: Fault },
    /// A peer did something to a region that counts.
    Served { key: RemoteKey, what: Served },
    /// The region of this key is held by nobody any more.
    Unexposed { key: RemoteKey },
}

/// Work on a received payload that the driver does before the core takes note of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// The payload's place.
    pub slice: Slice,
    /// The checksum that its bytes must have, else `received_corrupt` is called.
    pub checksum: Option<u32>,
    /// The bytes themselves are wanted, as an argument of `received`.
    pub greeting: bool,
}

/// The identity of this endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub endpoint: EndpointId,
    pub incarnation: Incarnation,
    pub cluster: ClusterId,
    /// Host and network namespace as a number; 0 where unknown.
    pub host: u64,
}

/// How the driver calls a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Called {
    /// The number of the way: of the rail and the address.
    pub way: u32,
    /// There is no other way.
    pub is_alone: bool,
    /// The peer told the address, and nobody looked it up: whoever else answers there is not meant.
    pub is_told: bool,
}

/// The fate of operations when a link is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// They fail with `PeerReset`, unless the session may have several paths ([`Config::paths_max`]).
    Fail,
    /// The session goes on over a new link: nothing is lost, repeated or reordered.
    Resume,
}

/// Sizes and times of the protocol.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub mode: Mode,
    /// Longer messages are announced, in bytes. At most `EAGER_BYTES_MAX`; `None`: what each rail wants.
    pub eager_bytes_max: Option<u32>,
    /// If that is `None`: messages of up to so many bytes leave at once, even if a rail wants less.
    pub eager_bytes_min: u32,
    /// Bytes that all peers together may have sent and nobody has matched.
    pub eager_pool_bytes: u64,
    /// Bytes that one peer may have sent so, at first and at most. More than 1 MiB only of messages that wait
    /// for their receives.
    pub eager_window_bytes: u32,
    pub eager_window_bytes_max: u32,
    /// The most for a peer whose long messages find their receives posted: room for two of the longest.
    pub eager_window_bytes_posted: u32,
    /// Announced messages of one peer that nobody has matched.
    pub rts_window: u32,
    /// Peers, at most.
    pub peers_max: usize,
    /// Links that carry sessions: where there are more, idle ones are closed and made again when they are
    /// needed, which nobody notices. Not a hard limit: busy links stay, and those whose two sides cannot
    /// both call each other (`Counters::links_over`).
    pub links_max: usize,
    /// Paths of one session at a time, at most, each over rails of its own on both sides. Where both sides take more than
    /// one, a session goes on as in mode `Resume`. 0: `net` finds out
    /// whether rails may fail alone; otherwise as 1: a session has no further ones. At most 64.
    pub paths_max: usize,
    /// What is asked for when an alternate path is armed, and when traffic has moved. An application that wants to decide
    /// by itself takes [`Policy::Nothing`], and acts on [`Output::Path`].
    pub path_policy: Policy,
    /// Operations, at most.
    pub operations_max: usize,
    /// Regions, at most.
    pub regions_max: usize,
    /// Resume: first re-sending time-out. The time after which a peer without a link is given up, and one
    /// that does not say whether a link may be closed.
    pub resend_after: Duration,
    pub give_up_after: Duration,
    /// How long a session that outlives its links is without a usable path before it ends, and with it each operation; 0: it
    /// ends with its last link. `None`: as `give_up_after`.
    pub path_wait: Option<Duration>,
    /// Nothing of a session that ended reaches the next one with the same endpoint: a peer that calls us
    /// again has a new number, messages that wait for a receive go, and each name of a peer leads to whoever
    /// answers at its address.
    pub separate_sessions: bool,
    /// For tests of tests.
    pub plant: Plant,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mode: Mode::Fail,
            eager_bytes_max: None,
            eager_bytes_min: 0,
            eager_pool_bytes: 256 << 20,
            eager_window_bytes: 64 << 10,
            eager_window_bytes_max: 1 << 20,
            eager_window_bytes_posted: (2 << 20) + 1024,
            rts_window: 1024,
            peers_max: 4096,
            links_max: usize::MAX,
            paths_max: 0,
            path_policy: Policy::KeepArmed,
            operations_max: 1 << 20,
            regions_max: 1 << 18,
            resend_after: Duration::from_millis(5),
            give_up_after: Duration::from_secs(30),
            path_wait: None,
            separate_sessions: false,
            plant: Plant::Nothing,
        }
    }
}

/// Always-on counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub messages_eager_sent: u64,
    pub messages_announced: u64,
    /// Fragments behind the first ones of messages that left at once.
    pub fragments_sent: u64,
    pub messages_received: u64,
    /// Messages that came before their receive, and their bytes that were staged.
    pub messages_unmatched: u64,
    /// Messages that nobody waited for, where such are dropped.
    pub messages_dropped: u64,
    pub bytes_unmatched: u64,
    pub gets: u64,
    pub puts: u64,
    /// Updates and atomics of ours, and those of peers that were executed.
    pub updates: u64,
    pub updates_served: u64,
    /// Events of puts with immediate data.
    pub events: u64,
    /// Regions that were registered for peers: exposed ones, and those of announced sends.
    pub regions_opened: u64,
    pub gets_served: u64,
    /// Puts, gets, updates and atomics of peers that came by frames and are over: each once, whatever its length.
    pub accesses_served: u64,
    /// Parts of gets that rails were told to read, and those that came back unread since their paths did not carry them.
    pub parts_read: u64,
    pub parts_returned: u64,
    pub frames_re_sent: u64,
    pub duplicates_dropped: u64,
    pub corrupt_dropped: u64,
    pub violations: u64,
    /// Resources that rails released early: payloads of frames, places, native accesses; and payloads that were
    /// copied since their peers had not acknowledged them.
    pub frames_detached: u64,
    pub places_given_up: u64,
    pub accesses_stopped: u64,
    pub spans_kept: u64,
    /// Spans that went over two paths at once.
    pub spans_redundant: u64,
    /// Spans whose placement was broken off, and that took effect by another copy.
    pub spans_taken_over: u64,
    pub sessions: u64,
    pub resets: u64,
    /// Sessions that lost their link since they were idle, and that got a new one.
    pub sessions_idle_closed: u64,
    pub sessions_resumed: u64,
    /// Paths that idle sessions left, since there were too many links, while another one stayed.
    pub paths_rested: u64,
    /// Links that became further paths of their sessions, those that proved nothing, and paths that lost their links
    /// while others carried on.
    pub paths_joined: u64,
    pub joins_refused: u64,
    /// Greetings, answers and proofs of peers that did not prove that they have keys of our cluster.
    pub untrusted: u64,
    /// Links whose payloads are protected.
    pub links_sealed: u64,
    pub paths_lost: u64,
    /// Paths from which traffic was moved since they delivered nothing, or their rails said so; and those of them that were
    /// given up.
    pub paths_suspected: u64,
    /// Paths of which peers said that they are broken.
    pub paths_suspected_by_peers: u64,
    pub paths_dead: u64,
    /// Frames about paths that were older than what is known, or that a rule refuses.
    pub path_frames_refused: u64,
    /// Peers that needed the link which we would have parked.
    pub idle_closes_refused: u64,
    /// Looks for idle links that left more than the limit.
    pub links_over: u64,
    /// Suspicions of rails that the path of a link is broken.
    pub suspected: SuspicionCounts,
}
