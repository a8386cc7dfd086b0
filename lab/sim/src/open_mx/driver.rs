//! The half of Open-MX that is in the kernel: it knows peers by their index, puts what came for the library into a
//! ring, refuses what is for nobody, answers pulls out of regions, and fetches. It never waits for the user.

use std::collections::VecDeque;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{
    Ack, Connect, ConnectReply, Dialect, Fragment, HOST_QUERY_MAGIC, HostQuery, HostReply,
    INDEX_UNKNOWN, Message, Nack, NackLib, NackMcp, Packet, Pull, PullReply, REGION_SEQUENCE_FIRST,
    Rendezvous, Sequence, Station,
};

use super::frame::Writer;
use super::pull::Pulls;
use super::{
    Counters, ENDPOINTS, HostConfig, NAME_AFTER, REGIONS, RESEND_AFTER, RING_SLOTS, Status,
};

/// Something for the library.
#[derive(Debug)]
pub(super) struct Arrival {
    /// The sender's index in our table, and its endpoint.
    pub peer: u16,
    pub endpoint: u8,
    pub what: News,
}

#[derive(Debug)]
pub(super) enum News {
    Sequenced(Sequenced),
    Ack(Ack),
    Connect(Connect),
    ConnectReply(ConnectReply),
    /// Why, and which message.
    Nack(Nack, Sequence),
}

/// Something that has a number.
#[derive(Debug)]
pub(super) struct Sequenced {
    pub sequence: Sequence,
    pub acknowledged: Sequence,
    pub body: Body,
}

#[derive(Debug)]
pub(super) enum Body {
    Whole {
        match_info: u64,
        bytes: Vec<u8>,
    },
    Fragment {
        match_info: u64,
        total_bytes: u32,
        number: u8,
        offset: u32,
        bytes: Vec<u8>,
    },
    Rendezvous {
        match_info: u64,
        total_bytes: u32,
        region: u8,
        region_sequence: u8,
        region_offset: u16,
    },
    Notify {
        bytes: u32,
        region: u8,
        region_sequence: u8,
    },
}

/// A line of the peer table.
#[derive(Debug)]
struct Peer {
    station: Station,
    /// Our index in the peer's table.
    reverse: u16,
    named: bool,
}

/// The memory of a large message.
#[derive(Debug, Default)]
struct Region {
    bytes: Option<Vec<u8>>,
    uses: u8,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Driver {
    endpoint: u8,
    session: u32,
    open: bool,
    dialect: Dialect,
    name: String,
    asks_names: bool,
    resends_max: u32,
    names_at: Time,
    peers: Vec<Peer>,
    writer: Writer,
    regions: Vec<Region>,
    pub pulls: Pulls,
    pub ring: VecDeque<Arrival>,
    pub out: VecDeque<(Station, Vec<u8>)>,
    pub counters: Counters,
}

impl Driver {
    pub fn new(config: &HostConfig, garbage: Random) -> Driver {
        let peer = |station: &Station| Peer {
            station: *station,
            reverse: INDEX_UNKNOWN,
            named: *station == config.station,
        };
        Driver {
            endpoint: config.endpoint,
            session: config.session,
            open: true,
            dialect: config.dialect,
            name: config.name.clone(),
            asks_names: config.asks_names,
            resends_max: config.resends_max,
            names_at: Time::ZERO,
            peers: config.peers.iter().map(peer).collect(),
            writer: Writer::new(config.dialect, garbage),
            regions: regions(),
            pulls: pulls(config.endpoint, config.dialect, config.resends_max),
            ring: VecDeque::new(),
            out: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// The endpoint is opened by another process.
    pub fn reopen(&mut self, session: u32) {
        self.close();
        self.open = true;
        self.session = session;
    }

    pub fn close(&mut self) {
        self.open = false;
        self.regions = regions();
        self.pulls = pulls(self.endpoint, self.dialect, self.resends_max);
        self.ring.clear();
    }

    pub fn name_all(&mut self) {
        self.peers.iter_mut().for_each(|peer| peer.named = true);
    }

    pub fn forget_peers(&mut self) {
        for peer in &mut self.peers {
            peer.reverse = INDEX_UNKNOWN;
        }
    }

    /// The daemon's message about this interface, whose address is `station`. The daemon is a separate program: it
    /// writes numbers in network order whatever order the driver was built for.
    pub fn daemon_says(station: Station, serial: u32) -> Vec<u8> {
        let mut body = vec![0; 50];
        body[2] = 1;
        body[20..26].copy_from_slice(&station.0);
        body[26..30].copy_from_slice(&serial.to_be_bytes());
        body
    }

    /// The daemon adds whom it hears of to the table.
    fn daemon_hears(&mut self, rest: &[u8]) {
        let nic = rest.get(15..23).and_then(|nic| <[u8; 8]>::try_from(nic).ok());
        let Some([0, 0, station @ ..]) = nic else { return };
        let station = Station(station);
        if rest[..15].iter().all(|byte| *byte == 0) && self.index_of(station).is_none() {
            let (reverse, named) = (INDEX_UNKNOWN, false);
            self.peers.push(Peer { station, reverse, named });
        }
    }

    pub fn index_of(&self, station: Station) -> Option<u16> {
        let index = self.peers.iter().position(|peer| peer.station == station)?;
        u16::try_from(index).ok()
    }

    pub fn station_of(&self, peer: u16) -> Option<Station> {
        self.peers.get(usize::from(peer)).map(|peer| peer.station)
    }

    pub fn has_news(&self) -> bool {
        !self.ring.is_empty() || !self.pulls.fetched.is_empty()
    }

    /// Makes a region of bytes to send; its number, and the count of its uses.
    pub fn register(&mut self, bytes: Vec<u8>) -> Option<(u8, u8)> {
        let number = self.regions.iter().position(|region| region.bytes.is_none())?;
        let region = &mut self.regions[number];
        region.bytes = Some(bytes);
        region.uses = region.uses.wrapping_add(1);
        Some((number as u8, region.uses))
    }

    pub fn deregister(&mut self, region: u8) {
        self.regions[usize::from(region)].bytes = None;
    }

    /// Sends to a peer.
    pub fn transmit(&mut self, peer: u16, packet: &Packet<'_>) {
        let Some(Peer { station, reverse, .. }) = self.peers.get(usize::from(peer)) else { return };
        // In these the index is never set.
        let unset =
            matches!(packet, Packet::PullReply(..) | Packet::HostQuery(_) | Packet::HostReply(_));
        let body = self.writer.body(if unset { 0 } else { *reverse }, packet);
        self.out.push_back((*station, body));
    }

    /// Timers, none of which waits for the user.
    pub fn advance(&mut self, now: Time) {
        self.pulls.advance(now);
        self.send_pulls();
        if self.asks_names && self.names_at <= now {
            self.names_at = now + NAME_AFTER;
            for index in 0..self.peers.len() as u16 {
                if !self.peers[usize::from(index)].named {
                    let query = HostQuery { index, magic: HOST_QUERY_MAGIC };
                    self.transmit(index, &Packet::HostQuery(query));
                }
            }
        }
    }

    pub fn deadline(&self) -> Time {
        let asks = self.asks_names && self.peers.iter().any(|peer| !peer.named);
        self.pulls.deadline().min(if asks { self.names_at } else { Time::NEVER })
    }

    pub fn send_pulls(&mut self) {
        for (peer, pull) in std::mem::take(&mut self.pulls.orders) {
            self.transmit(peer, &Packet::Pull(pull));
        }
        self.counters.blocks_again += std::mem::take(&mut self.pulls.blocks_again);
    }

    pub fn packet(&mut self, from: Station, body: &[u8], now: Time) {
        let taken = match Packet::parse(body, self.dialect) {
            Ok((index, packet)) => self.dispatch(from, index, packet, now),
            Err(_) => None,
        };
        if taken.is_none() {
            self.counters.dropped += 1;
        }
    }

    /// `None` if it is dropped without a word.
    fn dispatch(&mut self, from: Station, index: u16, packet: Packet<'_>, now: Time) -> Option<()> {
        match packet {
            Packet::Raw(rest) => {
                self.daemon_hears(rest);
                Some(())
            }
            Packet::HostQuery(query) => {
                let peer = self.index_of(from)?;
                self.peers[usize::from(peer)].reverse = query.index;
                let name = self.name.clone();
                let reply = HostReply { index: peer, magic: query.magic, name: name.as_bytes() };
                self.transmit(peer, &Packet::HostReply(reply));
                Some(())
            }
            Packet::HostReply(reply) => {
                let peer = self.index_of(from).filter(|_| reply.magic == HOST_QUERY_MAGIC)?;
                let peer = &mut self.peers[usize::from(peer)];
                (peer.reverse, peer.named) = (reply.index, true);
                Some(())
            }
            Packet::Connect(Connect { to, from: endpoint, index, .. })
            | Packet::ConnectReply(ConnectReply { to, from: endpoint, index, .. }) => {
                let peer = self.index_of(from)?;
                self.peers[usize::from(peer)].reverse = index;
                let news = match packet {
                    Packet::Connect(asked) => News::Connect(asked),
                    Packet::ConnectReply(reply) => News::ConnectReply(reply),
                    _ => return None,
                };
                if let Err(reason) = self.addressed(to) {
                    return self.refuse(peer, to, endpoint, reason, Sequence(0));
                }
                self.push(peer, endpoint, news)
            }
            Packet::NackLib(NackLib { from: endpoint, to, reason, sequence, .. }) => {
                let peer = self.known(index).or_else(|| self.by_station(from, index))?;
                self.addressed(to).ok()?;
                self.push(peer, endpoint, News::Nack(reason, sequence))
            }
            Packet::NackMcp(nack) => {
                self.known(index).or_else(|| self.by_station(from, index))?;
                self.refused(nack)
            }
            Packet::PullReply(reply, bytes) => {
                let mine = Pull::endpoint_of(reply.magic) == Some(self.endpoint);
                let taken = mine && self.open && self.pulls.reply(reply, bytes, now);
                self.send_pulls();
                taken.then_some(())
            }
            Packet::Pull(pull) => self.answer(self.known(index)?, pull),
            Packet::Ack(ack) => {
                let peer = self.known(index)?;
                self.addressed(ack.to).ok()?;
                (ack.session == self.session).then_some(())?;
                self.push(peer, ack.from, News::Ack(ack))
            }
            Packet::Tiny(message, _)
            | Packet::Small(message, _)
            | Packet::Medium(Fragment { message, .. }, _)
            | Packet::Rendezvous(Rendezvous { message, .. }) => {
                self.sequenced(index, message, packet)
            }
            Packet::Notify(notify) => {
                let (to, from, session) = (notify.to, notify.from, notify.session);
                let (sequence, acknowledged) = (notify.sequence, notify.acknowledged);
                let message = Message { to, from, session, sequence, acknowledged, match_info: 0 };
                self.sequenced(index, message, packet)
            }
        }
    }

    /// The peer of an index; whether the packet came from there nobody checks.
    fn known(&self, index: u16) -> Option<u16> {
        (usize::from(index) < self.peers.len()).then_some(index)
    }

    fn by_station(&self, from: Station, index: u16) -> Option<u16> {
        self.index_of(from).filter(|_| index == INDEX_UNKNOWN)
    }

    fn addressed(&self, endpoint: u8) -> Result<(), Nack> {
        match endpoint {
            ENDPOINTS.. => Err(Nack::BadEndpoint),
            it if it != self.endpoint || !self.open => Err(Nack::Closed),
            _ => Ok(()),
        }
    }

    fn sequenced(&mut self, index: u16, message: Message, packet: Packet<'_>) -> Option<()> {
        let peer = self.known(index)?;
        let Message { to, from, session, sequence, acknowledged, match_info } = message;
        let right = || if session == self.session { Ok(()) } else { Err(Nack::BadSession) };
        if let Err(reason) = self.addressed(to).and_then(|()| right()) {
            return self.refuse(peer, to, from, reason, sequence);
        }
        let body = match packet {
            Packet::Tiny(_, bytes) | Packet::Small(_, bytes) => {
                Body::Whole { match_info, bytes: bytes.to_vec() }
            }
            Packet::Medium(piece, bytes) => Body::Fragment {
                match_info,
                total_bytes: piece.total_bytes,
                number: piece.fragment,
                offset: piece.offset,
                bytes: bytes.to_vec(),
            },
            Packet::Rendezvous(announced) => Body::Rendezvous {
                match_info,
                total_bytes: announced.total_bytes,
                region: announced.region,
                region_sequence: announced.region_sequence,
                region_offset: announced.region_offset,
            },
            Packet::Notify(notify) => Body::Notify {
                bytes: notify.bytes,
                region: notify.region,
                region_sequence: notify.region_sequence,
            },
            _ => return None,
        };
        self.push(peer, from, News::Sequenced(Sequenced { sequence, acknowledged, body }))
    }

    fn push(&mut self, peer: u16, endpoint: u8, what: News) -> Option<()> {
        if self.ring.len() >= RING_SLOTS {
            self.counters.ring_full += 1;
        } else {
            self.ring.push_back(Arrival { peer, endpoint, what });
        }
        Some(())
    }

    /// `to` is the endpoint that was addressed.
    fn refuse(
        &mut self,
        peer: u16,
        to: u8,
        from: u8,
        reason: Nack,
        sequence: Sequence,
    ) -> Option<()> {
        self.counters.refused += 1;
        let index = self.peers[usize::from(peer)].reverse;
        let nack = NackLib { from: to, to: from, reason, index, sequence };
        self.transmit(peer, &Packet::NackLib(nack));
        Some(())
    }

    fn refused(&mut self, nack: NackMcp) -> Option<()> {
        let mine = Pull::endpoint_of(nack.magic) == Some(self.endpoint);
        let status = status_of(nack.reason);
        (mine && self.open && self.pulls.refused(nack.handle, status)).then_some(())
    }

    /// Sends what a pull asks for, out of a region whose sequence nobody looks at.
    fn answer(&mut self, peer: u16, pull: Pull) -> Option<()> {
        let region = usize::try_from(pull.region).ok().and_then(|it| self.regions.get(it));
        let region = region.and_then(|region| region.bytes.as_deref());
        let reason = match (self.addressed(pull.to), region) {
            (Err(reason), _) => Err(reason),
            (Ok(()), _) if pull.session != self.session => Err(Nack::BadSession),
            (Ok(()), None) => Err(Nack::BadRegion),
            (Ok(()), Some(bytes)) => Ok(bytes),
        };
        let (handle, magic) = (pull.handle, pull.magic);
        let packets: Vec<(PullReply, Vec<u8>)> = match reason {
            Ok(bytes) => replies(bytes, pull, self.dialect)?,
            Err(reason) => {
                self.counters.refused += 1;
                // In byte 17 is the endpoint of the one who pulls.
                let nack = NackMcp { endpoint: pull.from, reason, handle, magic };
                self.transmit(peer, &Packet::NackMcp(nack));
                return Some(());
            }
        };
        for (reply, bytes) in packets {
            self.transmit(peer, &Packet::PullReply(reply, &bytes));
        }
        Some(())
    }
}

/// The replies to a pull. `None` if the pull asks for too much, or for bytes outside of the region.
fn replies(region: &[u8], pull: Pull, dialect: Dialect) -> Option<Vec<(PullReply, Vec<u8>)>> {
    let piece = u64::from(dialect.reply_bytes());
    let (first, len) = (u64::from(pull.first_offset), u64::from(pull.block_bytes));
    let frames = (first + len).div_ceil(piece);
    if frames > dialect.replies_per_block().into() || first >= piece || len == 0 {
        return None;
    }
    let base = u64::from(pull.region_offset);
    let begin = (u64::from(pull.frame) * piece + first).checked_sub(base % piece)?;
    if begin + len > u64::from(u32::MAX) || base + begin + len > region.len() as u64 {
        return None;
    }
    let mut all = Vec::new();
    let (mut at, end) = (begin, begin + len);
    while at < end {
        let room = if at == begin { piece - first } else { piece };
        let bytes = room.min(end - at);
        let place = (base + at) as usize..(base + at + bytes) as usize;
        let reply = PullReply {
            frame: pull.frame.wrapping_add(all.len() as u32) as u8,
            offset: at as u32,
            handle: pull.handle,
            magic: pull.magic,
        };
        all.push((reply, region[place].to_vec()));
        at += bytes;
    }
    Some(all)
}

/// The status that a nack gives to a request.
pub(super) fn status_of(reason: Nack) -> Status {
    match reason {
        Nack::BadEndpoint => Status::BadEndpoint,
        Nack::Closed => Status::EndpointClosed,
        Nack::BadRegion => Status::BadRegion,
        Nack::BadSession | Nack::Other(_) => Status::BadSession,
    }
}

fn regions() -> Vec<Region> {
    // The first use makes it the first number.
    let uses = REGION_SEQUENCE_FIRST - 1;
    (0..REGIONS).map(|_| Region { bytes: None, uses }).collect()
}

fn pulls(endpoint: u8, dialect: Dialect, resends_max: u32) -> Pulls {
    Pulls::new(endpoint, dialect, RESEND_AFTER * resends_max)
}
