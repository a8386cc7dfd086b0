//! A host that runs Open-MX: an independent implementation of its behaviour on the wire, with its habits and its
//! defects. Our MXoE protocol is tested against it.
//!
//! * [`Host`]: one endpoint of one host, without sockets and without a clock;
//! * `driver`: the half that Open-MX has in the kernel: the peer table, the ring of received events, names, nacks,
//!   answers to pulls. It works at any time;
//! * `pull`: the transfers that the driver fetches;
//! * `library`: the half that runs in the process: partners, messages, connects. It works only when the user
//!   calls; its parts are `partner`, `connect`, `send` and `receive`;
//! * `frame`: the packets' bytes, with old bytes in every pad.
//!
//! Invariants: nothing here is shared with our own packet machine but the layouts of the packets; no packet, whatever
//! its content, makes it panic; a host is a function of its configuration and of the calls.
//!
//! # Defects that are meant
//!
//! * A first CONNECT from a peer that was sent to already sets the receive numbers back, and earlier packets are
//!   expected again. A CONNECT of ours that follows one of theirs gets no new numbers.
//! * A host that has connected in one direction only acknowledges, pulls and notifies with session ffffffff.
//! * [`Host::disconnect`] forgets a partner while the peer keeps its state: later packets of the peer are held for
//!   ever.
//! * The owner of a region does not look at its sequence in a pull, and believes the index that a packet carries:
//!   the station that it came from counts in CONNECT and in packets for names only.
//! * After a restart the handles of pulls begin anew, so that an old reply can fit.
//! * A nack with sequence 0, as connects get, fails a message of number 0 if there is one.
//!
//! # Choices where the description leaves something open
//!
//! * While the user computes, the driver goes on: it answers pulls, fetches, sends nacks, and fills the ring.
//! * A message keeps the session that it was first sent with, also when it is sent again; the acknowledgement in it
//!   is always the newest.
//! * A sequence whose session bits are wrong, or an acknowledgement whose bits are, spoils the whole packet.
//! * Packets from an endpoint that is no partner are dropped by the library.
//! * A peer that restarted, that was given up, or that was disconnected from loses everything alike: sends and
//!   transfers end as unreachable, unexpected messages are gone, sessions are unknown. Only for a restart
//!   pending connects go on. Given up: the bits advance, and the numbers become the old ones xor 0x30f0
//!   (receiving) and 0x0f0f (sending), the lower 14 bits of what is described.
//! * The counter of acknowledgements begins anew with a peer's session; our own goes on.
//! * A refused CONNECT changes nothing at the side that asked.
//! * The total in a pull is the wanted part of the message, not its length. A pull is given up when nothing new came
//!   for as long as messages are resent.
//! * A message of which nothing is wanted is notified in the round that matches it, behind all packets of that
//!   round: in the captures a copy that came together with it is not acknowledged for itself.
//! * Regions are the lowest that are free, and only sends count their uses: in the captures pulls between
//!   two sends do not. Handles go round.
//! * What is passed over: messages to oneself, raw endpoints, context ids, the handler of unexpected messages,
//!   ticks (timers are exact), and checksums, which release builds do not have.

mod connect;
mod driver;
mod frame;
mod library;
mod partner;
mod pull;
mod receive;
mod send;

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{Dialect, Station};

use driver::Driver;
use library::Library;

/// A message that is not acknowledged is sent again after this time, whole, however often.
pub const RESEND_AFTER: Duration = Duration::from_millis(500);
/// A connect that is not answered is sent again.
pub const CONNECT_AFTER: Duration = Duration::from_millis(500);
/// A message is acknowledged after this time where no other packet has carried the news.
pub const ACK_AFTER: Duration = Duration::from_micros(15_625);
/// ... or at once when so many wait.
pub const OWED_MAX: u16 = 4;
/// A transfer that gets nothing asks for its blocks again.
pub const PULL_AFTER: Duration = Duration::from_secs(1);
/// Names are asked for so often.
pub const NAME_AFTER: Duration = Duration::from_secs(5);
/// Blocks that a transfer asks for at a time.
pub const BLOCKS_MAX: usize = 4;
/// Messages beyond the next that are kept.
pub const EARLY_MAX: u16 = 255;
/// Messages that are not acknowledged.
pub const UNACKED_MAX: u16 = 8191;
/// Slots of the ring of events between the driver and the library. A full ring drops further events.
pub const RING_SLOTS: usize = 1024;
/// Endpoints of a host.
pub const ENDPOINTS: u8 = 32;
/// Regions of an endpoint, and how many of them sends may have.
pub const REGIONS: usize = 256;
pub const REGIONS_SENDING: usize = 128;
/// Sends that are complete for the user and not yet acknowledged.
pub const ZOMBIES_MAX: u32 = 512;

/// An endpoint, by where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub station: Station,
    pub endpoint: u8,
}

/// The configuration of a host.
#[derive(Debug, Clone)]
pub struct HostConfig {
    pub station: Station,
    pub endpoint: u8,
    /// Of the endpoint: a number that no other opening of it has had.
    pub session: u32,
    /// The key that a connecting peer must present.
    pub key: u32,
    pub dialect: Dialect,
    /// The peer table, by index. A host is number 0 in its own as a rule.
    pub peers: Vec<Station>,
    pub name: String,
    /// Whether it asks for the names of its peers, by which it also learns its index in their tables.
    pub asks_names: bool,
    /// Messages beyond this go as large ones.
    pub rendezvous_bytes: usize,
    /// The number of resends before the peer is given up.
    pub resends_max: u32,
    /// The seed of the bytes in the pads.
    pub seed: u64,
}

impl HostConfig {
    /// The defaults of Open-MX.
    pub fn new(station: Station, endpoint: u8, session: u32, dialect: Dialect) -> HostConfig {
        HostConfig {
            station,
            endpoint,
            session,
            key: 0,
            dialect,
            peers: vec![station],
            name: "localhost".to_string(),
            asks_names: false,
            rendezvous_bytes: 32_768,
            resends_max: 1000,
            seed: u64::from(session),
        }
    }
}

/// A request's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request(pub u64);

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Connect,
    Send,
    Receive,
}

/// The result of a request; the numbers are those of MX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Success = 0,
    Timeout = 4,
    Truncated = 5,
    EndpointUnknown = 7,
    EndpointClosed = 8,
    EndpointUnreachable = 9,
    BadSession = 10,
    BadKey = 11,
    BadEndpoint = 12,
    BadRegion = 13,
}

/// The end of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub request: Request,
    pub kind: Kind,
    pub status: Status,
    pub peer: Address,
    pub match_info: u64,
    /// Of the message, and how many of them were moved.
    pub bytes: u32,
    pub transferred: u32,
    /// The received bytes.
    pub data: Vec<u8>,
}

/// Counters of dropped, refused and resent packets, and of acknowledgements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Packets that are none, name nobody or fit nothing.
    pub dropped: u64,
    /// Packets that the ring had no room for.
    pub ring_full: u64,
    /// Packets that were refused with a nack.
    pub refused: u64,
    /// Messages and connects that were sent again, and blocks that were asked for again.
    pub resent: u64,
    pub blocks_again: u64,
    /// Messages that came again, or from too far ahead.
    pub obsolete: u64,
    /// Acknowledgements that went by themselves.
    pub acks: u64,
}

/// One endpoint of a host with Open-MX. See the module.
#[derive(Debug)]
pub struct Host {
    config: HostConfig,
    driver: Driver,
    library: Library,
    now: Time,
    computes_until: Time,
}

impl Host {
    /// With everything at its beginning.
    pub fn new(config: HostConfig) -> Host {
        let driver = Driver::new(&config, Random::from_seed(config.seed));
        let library = Library::new(&config);
        Host { config, driver, library, now: Time::ZERO, computes_until: Time::ZERO }
    }

    /// The address of its endpoint.
    pub fn address(&self) -> Address {
        Address { station: self.config.station, endpoint: self.config.endpoint }
    }

    /// The session of its endpoint.
    pub fn session(&self) -> u32 {
        self.config.session
    }

    /// The counters of the driver and the library together.
    pub fn counters(&self) -> Counters {
        let (mut all, library) = (self.driver.counters, self.library.counters);
        all.dropped += library.dropped;
        all.resent += library.resent;
        all.obsolete += library.obsolete;
        all.acks += library.acks;
        all
    }

    // Calls of the user. A call happens at the time of the last packet or advance. A caller whose clock has gone on
    // since then advances first. Each call ends a computation.

    /// Asks for a connection; the event names the peer.
    pub fn connect(&mut self, to: Address, key: u32) -> Request {
        self.computes_until = Time::ZERO;
        self.library.connect(to, key, &mut self.driver, self.now)
    }

    /// Forgets a partner, and fails all operations under way with it.
    pub fn disconnect(&mut self, from: Address) {
        self.computes_until = Time::ZERO;
        self.library.disconnect(from, &mut self.driver);
    }

    /// Sends a message to a partner: someone to whom, or from whom, there is a connection.
    pub fn send(
        &mut self,
        to: Address,
        match_info: u64,
        bytes: Vec<u8>,
        synchronous: bool,
    ) -> Request {
        self.computes_until = Time::ZERO;
        self.library.send(to, match_info, bytes, synchronous, &mut self.driver, self.now)
    }

    /// Waits for a message whose bits under `mask` are those of `match_info`.
    pub fn receive(&mut self, match_info: u64, mask: u64, room: u32) -> Request {
        assert_eq!(match_info & !mask, 0, "MX refuses bits outside of the mask");
        self.computes_until = Time::ZERO;
        self.library.receive(match_info, mask, room, &mut self.driver, self.now)
    }

    /// Takes a receive back that nothing has matched, or a connect that nobody answered. No event follows where
    /// it says so.
    pub fn cancel(&mut self, request: Request) -> bool {
        self.computes_until = Time::ZERO;
        self.library.cancel(request)
    }

    /// The requests that ended since the last call, in order.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.library.events)
    }

    /// From now on the user calls nothing until that time, or until one of the calls above.
    pub fn computes_until(&mut self, time: Time) {
        self.computes_until = time;
    }

    /// The process ends and begins anew, with another session: everything but the peer table is forgotten.
    pub fn restart(&mut self, session: u32) {
        self.config.session = session;
        self.driver.reopen(session);
        self.library = Library::new(&self.config);
        self.computes_until = Time::ZERO;
    }

    /// The host begins anew: it also has to learn again which index it has with its peers.
    pub fn reboot(&mut self, session: u32) {
        self.restart(session);
        self.driver.forget_peers();
    }

    /// Closes the endpoint: owed acknowledgements are sent, the rest is forgotten, and packets are refused.
    pub fn close(&mut self) {
        self.library.acknowledge_all(&mut self.driver);
        self.driver.close();
        let events = self.take_events();
        self.library = Library { events, ..Library::new(&self.config) };
    }

    // The wire.

    /// A frame came, from byte 14 on. The library looks at it at the next [`Host::advance`].
    pub fn packet(&mut self, from: Station, body: &[u8], now: Time) {
        self.now = self.now.max(now);
        self.driver.packet(from, body, self.now);
    }

    /// From now on it asks nobody for a name: those that it has were told it before.
    pub fn hold_names(&mut self) {
        self.driver.name_all();
    }

    /// The beacon by which its daemon makes it known to everybody.
    pub fn beacon(&self) -> Vec<u8> {
        Driver::daemon_says(self.config.station, self.config.session)
    }

    /// It is `now`: timers, and a round of progress where the user does not compute. Belongs behind every
    /// batch of packets, too.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.driver.advance(self.now);
        if self.now >= self.computes_until {
            self.library.round(&mut self.driver, self.now);
        }
    }

    /// A frame that goes to a station, from byte 14 on and padded.
    #[allow(clippy::should_implement_trait, reason = "what a port asks for, as of our machine")]
    pub fn next(&mut self) -> Option<(Station, Vec<u8>)> {
        self.driver.out.pop_front()
    }

    /// When [`Host::advance`] has something to do, at the latest.
    pub fn deadline(&self) -> Time {
        let waiting = if self.driver.has_news() { self.now } else { Time::NEVER };
        let library = waiting.min(self.library.deadline(self.now)).max(self.computes_until);
        self.driver.deadline().min(library)
    }
}
