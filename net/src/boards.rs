//! Boards: the networks of this host as programs that use MX know them, and the places of peers.
//!
//! A board is an Ethernet interface, whose endpoints have their numbers on it, or a host's address with a
//! port for UDP: endpoint 0 listens at that port, endpoint 1 at the next one, and so on.
//!
//! On a network with MXoE an agent discovers peers by itself. Other peers come from a table, one per line,
//! with a name and a place (`node2:0 udp://10.0.0.2:7100`, `node3:0 02:00:00:00:00:03`).

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ropewalk_wire::mxoe::{Dialect, Station};

use crate::agent::{self, AgentClient, AgentError, Map, Membership};
use crate::modules;

/// URLs of boards, in their order: `ether://eth0,udp://10.0.0.1:7100`.
pub const BOARDS_VARIABLE: &str = "ROPEWALK_MX_BOARDS";
/// The file with the table of peers.
pub const PEERS_VARIABLE: &str = "ROPEWALK_MX_PEERS";
/// The default path of that file.
pub const PEERS_FILE: &str = "/etc/ropewalk/mx-peers";

/// Endpoints of a board have numbers below. Open-MX has 32 unless it is told otherwise, and a byte for them.
pub const ENDPOINTS_MAX: u32 = 255;

/// The port of endpoint 0 where no other is named.
const PORT: u16 = 7100;

/// The place of a board's endpoints: a station on Ethernet, or an address of UDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Ether(Station),
    Udp(SocketAddr),
}

/// A network of this host.
#[derive(Debug, Clone)]
pub struct Board {
    pub place: Place,
    /// The interface, for the kernel; empty over UDP.
    pub interface: String,
    /// As it is called where nobody says otherwise.
    pub name: String,
    /// MXoE is spoken there, with all others.
    pub is_foreign: bool,
    /// The options of the wire and of the sockets, in the syntax of an address's query.
    pub said: String,
}

/// The protocol that is spoken with a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Our own.
    Ours,
    /// MXoE, or any other protocol of the board.
    Other,
    /// Nobody has heard its beacon yet.
    Unknown,
}

/// The age at which an agent has heard of all cards that are there. They answer its beacons. There is one beacon
/// each second then, and one may be lost.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// The interval at which an agent is asked again that has just started.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The time that a card has to answer that it is there.
pub const SEEK_EVERY: Duration = Duration::from_millis(50);
/// The number of times that a card may not answer before it counts as absent.
pub const SEEKS: u32 = 4;

/// This process as one of those that may be the agents of its interfaces, though it has no endpoint there, as long
/// as this value lives; with the time of its start.
#[derive(Debug, Default)]
struct Asking(OnceLock<(Instant, Vec<Membership>)>);

/// A host that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: String,
    pub place: Place,
}

/// The reason why a process has no boards. Class: operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BoardsError {
    #[error("{variable}: {0}", variable = BOARDS_VARIABLE)]
    List(String),
    /// The table of peers that the environment names.
    #[error("{variable}: {path}: {why}", variable = PEERS_VARIABLE)]
    Peers { path: String, why: String },
    /// The usual one.
    #[error("{path}: {0}", path = PEERS_FILE)]
    UsualPeers(String),
}

/// Boards of this host and the peers that are known.
#[derive(Debug, Default)]
pub struct Boards {
    pub boards: Vec<Board>,
    pub peers: Vec<Peer>,
    /// There is a table of peers, which lists the peers that are there, except for boards with MXoE.
    pub has_table: bool,
    asking: Asking,
}

impl Place {
    /// The number of the card that stands for the place.
    pub fn nic(&self) -> u64 {
        match self {
            Place::Ether(station) => station.nic_id(),
            Place::Udp(address) => nic_of_address(*address),
        }
    }

    /// The URL of one of its endpoints, for callers.
    pub fn url(&self, endpoint: u32) -> Option<String> {
        match self {
            Place::Ether(station) => Some(format!("ether://{station}/{endpoint}")),
            Place::Udp(address) => Some(format!("udp://{}", endpoint_address(*address, endpoint)?)),
        }
    }
}

fn endpoint_address(base: SocketAddr, endpoint: u32) -> Option<SocketAddr> {
    let port = base.port().checked_add(u16::try_from(endpoint).ok()?)?;
    Some(SocketAddr::new(base.ip(), port))
}

/// `02` and 40 bits made of address and port.
fn nic_of_address(address: SocketAddr) -> u64 {
    let ip = match address.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    // FNV-1a: spreads few bytes well, and never changes.
    let bytes = ip.octets().into_iter().chain(address.port().to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    0x02 << 40 | (hash ^ hash >> 40) & 0xff_ffff_ffff
}

impl FromStr for Place {
    type Err = String;

    /// `udp://10.0.0.1:7100`, `udp://[fd00::1]`, `02:00:00:00:00:01`, `ether://02:00:00:00:00:01`.
    fn from_str(text: &str) -> Result<Place, String> {
        let bad = || {
            format!(
                "'{text}' is not an address; write it like udp://10.0.0.1:7100 or \
                 02:00:00:00:00:01"
            )
        };
        if let Some(address) = text.strip_prefix("udp://") {
            let address = address.trim_end_matches('/');
            let alone = || address.trim_matches(['[', ']']).parse().ok();
            let host = || alone().map(|ip: IpAddr| SocketAddr::new(ip, PORT));
            let address: Option<SocketAddr> = address.parse().ok().or_else(host);
            return address
                .filter(|address| address.port() != 0 && !address.ip().is_unspecified())
                .map(Place::Udp)
                .ok_or_else(bad);
        }
        let station = text.strip_prefix("ether://").unwrap_or(text).trim_end_matches('/');
        station.parse().map(Place::Ether).map_err(|_| bad())
    }
}

impl Board {
    fn at(place: Place, interface: String) -> Board {
        Board { place, interface, name: String::new(), is_foreign: false, said: String::new() }
    }

    /// The listen address of an endpoint of this board: the scheme of a module and its address.
    ///
    /// `silence`: the time for which a foreign host may leave messages unanswered, if the board does not set one.
    pub fn listen(
        &self,
        endpoint: u32,
        key: u32,
        silence: Duration,
    ) -> Option<(&'static str, String)> {
        let Board { interface, said, .. } = self;
        match &self.place {
            Place::Ether(_) if self.is_foreign => {
                let silence = silence.as_secs_f64();
                let wire = format!("key={key}&silence={silence}&{said}");
                Some(("mxoe", format!("{interface}/{endpoint}?{wire}")))
            }
            Place::Ether(_) => Some(("ether", format!("{interface}/{endpoint}?{said}"))),
            Place::Udp(address) => Some(("udp", endpoint_address(*address, endpoint)?.to_string())),
        }
    }

    /// The URL of an endpoint of another board on the same network, for callers from this board.
    pub fn url(&self, place: &Place, endpoint: u32, key: u32) -> Option<String> {
        match place {
            Place::Ether(station) if self.is_foreign => {
                Some(format!("mxoe://{station}%{}/{endpoint}?key={key}", self.interface))
            }
            place => place.url(endpoint),
        }
    }

    /// Whether its endpoints take our own packets beside MXoE, from hosts of ours.
    pub fn takes_ours(&self) -> bool {
        self.is_foreign && !modules::is_for_all(&self.said)
    }

    /// The listen address at which an endpoint of it takes our own packets; the scheme is `ether`.
    pub fn listen_for_ours(&self, endpoint: u32) -> Option<String> {
        self.takes_ours().then(|| format!("{}/{endpoint}", self.interface))
    }

    /// The protocol to use with another card, by the agent's entry: its endpoints may take our own packets.
    pub fn language_of(&self, place: &Place) -> Language {
        let Place::Ether(_) = place else { return Language::Other };
        if !self.takes_ours() {
            return Language::Other;
        }
        match self.agent().and_then(|mut agent| agent.peer(place.nic()).ok().flatten()) {
            Some(peer) if peer.takes_ours() => Language::Ours,
            // Its beacon has come.
            Some(peer) if peer.serial.is_some() => Language::Other,
            _ => Language::Unknown,
        }
    }

    /// The URL of an endpoint of such a card that takes our own packets.
    pub fn url_of_ours(&self, place: &Place, endpoint: u32) -> Option<String> {
        let Place::Ether(station) = place else { return None };
        Some(format!("ether://{station}%{}/{endpoint}", self.interface))
    }

    /// As lists of boards name it.
    pub fn own_url(&self) -> String {
        let url = match &self.place {
            Place::Ether(_) if self.is_foreign => format!("mxoe://{}", self.interface),
            Place::Ether(_) => format!("ether://{}", self.interface),
            Place::Udp(address) => return format!("udp://{address}"),
        };
        if self.said.is_empty() { url } else { format!("{url}?{}", self.said) }
    }

    /// The dialect of MXoE on this board, for an interface with this MTU; `None` if no MXoE is spoken there.
    pub fn dialect(&self, mtu: usize) -> Option<Dialect> {
        modules::dialect(&self.said, mtu).ok().filter(|_| self.is_foreign)
    }

    /// The address of its raw endpoint; `None` if no MXoE is spoken there.
    pub fn raw(&self) -> Option<String> {
        self.is_foreign.then(|| format!("{}?{}", self.interface, self.said))
    }

    /// The agent of its interface, where there is one.
    fn agent(&self) -> Option<AgentClient> {
        let name = Some(&self.interface).filter(|name| !name.is_empty())?;
        let interface = modules::interfaces().into_iter().find(|it| it.name == *name)?;
        AgentClient::of(interface.index)
    }

    /// Whether a card is absent as far as its agent knows. The agent then has the card asked. `None` if the answer
    /// is not known yet. A card that is there answers within [`SEEK_EVERY`], unless the answer is lost.
    pub fn is_missing(&self, nic: u64) -> Result<Option<bool>, AgentError> {
        let Some(mut agent) = self.agent().filter(|_| self.is_foreign) else { return Ok(None) };
        if agent.peer(nic)?.is_some() || nic == self.place.nic() {
            return Ok(Some(false));
        }
        agent.seek(nic)?;
        Ok((agent.age()? >= SETTLED_AFTER).then_some(true))
    }

    /// Makes this process one of those that may be the agent of its interface.
    fn join(&self) -> Option<Membership> {
        let interface = modules::interfaces().into_iter().find(|it| it.name == self.interface)?;
        let dialect = self.dialect(interface.mtu)?;
        modules::may_send_frames().then(|| agent::join(&interface, dialect, None))?
    }

    /// The name that other hosts use for it: the agent's, if there is an agent.
    fn current_name(&self) -> String {
        let told = || self.agent()?.name_of(self.place.nic()).ok()?;
        let told = Some(self.is_foreign).filter(|it| *it).and_then(|_| told());
        told.unwrap_or_else(|| self.name.clone())
    }

    /// The node of memory that its card is next to; `None` where that is not known.
    pub fn numa_node(&self) -> Option<u32> {
        Some(&self.interface).filter(|name| !name.is_empty()).and_then(|it| modules::numa_node(it))
    }

    /// The last statement of a mapper about its network; `None` if there was no mapper.
    pub fn map(&self) -> Option<Map> {
        self.agent()?.map().ok()?
    }

    /// The name by which processes of this host find an endpoint of it in shared memory.
    pub fn shared_name(nic: u64, endpoint: u32) -> String {
        format!("mx-{nic:012x}-{endpoint}")
    }

    /// The user that has that endpoint of this host in shared memory, and whether that is our own one.
    pub fn shared_user(nic: u64, endpoint: u32) -> Option<(u32, bool)> {
        let user = modules::user_of_memory(&Board::shared_name(nic, endpoint))?;
        Some((user, user == rustix::process::geteuid().as_raw()))
    }
}

impl Boards {
    /// The boards that the environment names, or else those that are there.
    pub fn find() -> Result<Boards, BoardsError> {
        let host = host_name();
        let mut boards = match variable(BOARDS_VARIABLE) {
            Some(text) => listed(&text).map_err(BoardsError::List)?,
            None => usual(),
        };
        for (number, board) in boards.iter_mut().enumerate() {
            board.name = format!("{host}:{number}");
        }
        let (peers, has_table) = match variable(PEERS_VARIABLE) {
            Some(path) => {
                let bytes = std::fs::read(&path).map_err(|error| error.to_string());
                let peers = bytes.and_then(|bytes| table(&bytes));
                (peers.map_err(|why| BoardsError::Peers { path, why })?, true)
            }
            None => match std::fs::read(PEERS_FILE) {
                Ok(bytes) => (table(&bytes).map_err(BoardsError::UsualPeers)?, true),
                Err(_) => (Vec::new(), false),
            },
        };
        Ok(Boards { boards, peers, has_table, ..Boards::default() })
    }

    /// The board of this card.
    pub fn board_of(&self, nic: u64) -> Option<u32> {
        self.boards.iter().position(|board| board.place.nic() == nic).map(|index| index as u32)
    }

    /// The place of a card, for callers from this board. `None` if the card is unknown, or if two cards have
    /// this number.
    pub fn place_of(&self, nic: u64, from: &Board) -> Option<Place> {
        let own = self.boards.iter().map(|board| &board.place);
        let mut found = own.chain(self.peers.iter().map(|peer| &peer.place));
        let first = found.find(|place| place.nic() == nic);
        if let Some(first) = first {
            let alone = found.all(|place| place.nic() != nic || place == first);
            return alone.then(|| first.clone());
        }
        // Without a table everybody on the wire may be called. With MXoE a table gives names alone: the agent finds
        // the cards that are there.
        let wired = matches!(from.place, Place::Ether(_));
        let is_open = from.is_foreign || !self.has_table;
        station_of(nic).filter(|_| wired && is_open).map(Place::Ether)
    }

    /// The card of this name: one of our own, one that an agent has found, or one of the table. If an agent has just
    /// started, the call waits for the cards that the agent may still hear of.
    pub fn nic_of_name(&self, name: &str) -> Option<u64> {
        let own = self.boards.iter().find(|board| board.current_name() == name);
        if let Some(own) = own {
            return Some(own.place.nic());
        }
        // Of a name that several have the table may say whose it is.
        let listed = || self.peers.iter().find(|peer| peer.name == name);
        let listed = || listed().map(|peer| peer.place.nic());
        let nic =
            |_, agent: &mut AgentClient| Ok(agent.nic_of(name)?.map_or(Told::Nothing, Told::This));
        self.told_by_agents(nic, listed)
    }

    /// The name of this card, as above.
    pub fn name_of_nic(&self, nic: u64) -> Option<String> {
        let own = self.boards.iter().find(|board| board.place.nic() == nic);
        if let Some(own) = own {
            return Some(own.current_name());
        }
        let listed = || self.peers.iter().find(|peer| peer.place.nic() == nic);
        let listed = || listed().map(|peer| peer.name.clone());
        // One that was there before the agent, and knows of it, need not say so by itself.
        let mut seeks = vec![(0, None::<Instant>); self.boards.len()];
        let name = |board: usize, agent: &mut AgentClient| {
            if let Some(name) = agent.name_of(nic)? {
                return Ok(Told::This(name));
            }
            let (count, at) = &mut seeks[board];
            if *count >= SEEKS || station_of(nic).is_none() || agent.peer(nic)?.is_some() {
                return Ok(Told::Nothing);
            }
            if at.is_none_or(|at| at.elapsed() >= SEEK_EVERY) {
                (*count, *at) = (*count + 1, Some(Instant::now()));
                agent.seek(nic)?;
            }
            Ok(Told::NotYet)
        };
        self.told_by_agents(name, listed)
    }

    /// The answer of an agent, or else of the table. An agent that has just started is asked again for a moment.
    fn told_by_agents<T>(
        &self,
        mut ask: impl FnMut(usize, &mut AgentClient) -> Result<Told<T>, AgentError>,
        listed: impl Fn() -> Option<T>,
    ) -> Option<T> {
        let foreign = || self.boards.iter().filter(|board| board.is_foreign);
        let since = foreign().next().map(|_| self.ask_agents());
        loop {
            let mut is_settled = true;
            for (number, board) in self.boards.iter().enumerate() {
                let age = match board.agent() {
                    Some(mut agent) => match ask(number, &mut agent) {
                        Ok(Told::This(found)) => return Some(found),
                        Ok(Told::Nothing) => agent.age().unwrap_or(Duration::MAX),
                        Ok(Told::NotYet) => Duration::ZERO,
                        Err(_) => Duration::MAX,
                    },
                    None => since.map_or(Duration::MAX, |since| since.elapsed()),
                };
                is_settled &= !board.is_foreign || age >= SETTLED_AFTER;
            }
            if let Some(found) = listed() {
                return Some(found);
            }
            if is_settled {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Makes sure that there are agents where MXoE is spoken; since when.
    fn ask_agents(&self) -> Instant {
        let members = || self.boards.iter().filter(|it| it.is_foreign).filter_map(Board::join);
        self.asking.0.get_or_init(|| (Instant::now(), members().collect())).0
    }
}

/// An agent's answer.
enum Told<T> {
    This(T),
    Nothing,
    /// A card was asked, and may answer yet.
    NotYet,
}

/// The address of a card of this number; `None` where none can have it.
fn station_of(nic: u64) -> Option<Station> {
    Station::from_nic_id(nic).filter(|station| nic != 0 && station.0[0] & 1 == 0)
}

/// Boards as the environment lists them.
fn listed(text: &str) -> Result<Vec<Board>, String> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    let boards: Vec<Board> = words.map(board).collect::<Result<_, _>>()?;
    if boards.is_empty() {
        return Err(format!("'{text}' is not a board; write it like ether://eth0"));
    }
    Ok(boards)
}

/// A board by its URL.
fn board(url: &str) -> Result<Board, String> {
    let foreign = url.strip_prefix("mxoe://");
    let Some(rest) = foreign.or(url.strip_prefix("ether://")) else {
        let like = "ether://eth0, mxoe://eth0 or udp://10.0.0.1:7100";
        let place = Place::from_str(url);
        return match place.map_err(|_| format!("'{url}' is not a board; write it like {like}"))? {
            Place::Ether(_) => Err(format!(
                "'{url}' is an address of a card: name an interface of this host, like \
                 ether://eth0"
            )),
            place => Ok(Board::at(place, String::new())),
        };
    };
    let (interface, said) = rest.split_once('?').unwrap_or((rest, ""));
    let interface = interface.trim_end_matches('/');
    let found = modules::interfaces().into_iter().find(|it| it.name == interface);
    let found = found.ok_or_else(|| {
        format!("{url}: there is no interface {interface}; `ip link` lists the interfaces")
    })?;
    if !found.is_ethernet || found.is_loopback {
        return Err(format!("{url}: {interface} is not an Ethernet interface"));
    }
    modules::check_wire(foreign.is_some(), said, found.mtu)
        .map_err(|error| format!("{url}: {error}"))?;
    let (is_foreign, said) = (foreign.is_some(), said.to_string());
    Ok(Board { is_foreign, said, ..on_interface(&found) })
}

fn on_interface(interface: &modules::Interface) -> Board {
    Board::at(Place::Ether(interface.station), interface.name.clone())
}

/// Boards without a word of the user: interfaces in the order of their numbers, without loopback; where raw
/// frames need a right that is missing, UDP.
fn usual() -> Vec<Board> {
    if modules::may_send_frames() {
        let all = modules::interfaces();
        let usable = all.iter().filter(|it| it.is_up && it.is_ethernet && !it.is_loopback);
        let found: Vec<Board> = usable.map(on_interface).collect();
        if !found.is_empty() {
            return found;
        }
    }
    let place = Place::Udp(modules::reachable_address(PORT));
    vec![Board::at(place, String::new())]
}

/// The byte order mark that editors of some systems put before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The table of peers: a name and a place on each line, `#` begins a comment.
fn table(bytes: &[u8]) -> Result<Vec<Peer>, String> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut peers = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        // Comments are not read, in whatever encoding they are.
        let line = line.split(|byte| *byte == b'#').next().unwrap_or_default();
        let line = std::str::from_utf8(line).map_err(|_| {
            format!(
                "line {number}: a name or an address is not valid UTF-8; `iconv -f ENCODING -t \
                 UTF-8` converts other texts"
            )
        })?;
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(name), Some(place), None) => {
                let place = place.parse().map_err(|error| format!("line {number}: {error}"))?;
                peers.push(Peer { name: name.to_string(), place });
            }
            _ => {
                return Err(format!(
                    "line {number}: give a name and an address, like node2:0 udp://10.0.0.2:7100"
                ));
            }
        }
    }
    Ok(peers)
}

/// A variable, where it is set and not empty.
fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_string() } else { name.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_addresses_with_or_without_a_port_or_stations() {
        let url = |text: &str, endpoint| text.parse::<Place>().unwrap().url(endpoint).unwrap();
        assert_eq!(url("udp://10.0.0.1:7200", 3), "udp://10.0.0.1:7203");
        assert_eq!(url("udp://10.0.0.1", 0), "udp://10.0.0.1:7100");
        assert_eq!(url("udp://[fd00::1]/", 1), "udp://[fd00::1]:7101");
        assert_eq!(url("02:00:00:00:00:0a", 31), "ether://02:00:00:00:00:0a/31");
        assert_eq!("udp://10.0.0.1:65530".parse::<Place>().unwrap().url(9), None);
        for bad in ["eth0", "udp://node1", "udp://0.0.0.0:1", "udp://10.0.0.1:0", ""] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_card_has_the_number_of_its_station_or_one_made_of_its_address() {
        let nic = |text: &str| text.parse::<Place>().unwrap().nic();
        assert_eq!(nic("02:00:00:00:00:01"), 0x0200_0000_0001);
        let own = nic("udp://10.0.0.1:7100");
        assert_eq!(own >> 40, 0x02);
        assert!(own != nic("udp://10.0.0.1:7101") && own != nic("udp://10.0.0.2:7100"));
        assert_eq!(own, nic("udp://[::ffff:10.0.0.1]:7100"));
    }

    fn card(nic: u64) -> Place {
        Place::Ether(Station::from_nic_id(nic).unwrap())
    }

    #[test]
    fn a_table_forbids_nobody_where_mxoe_is_spoken() {
        let [ours, mapped, stranger] = [1, 2, 3].map(|number| card(0x0200_0000_0000 + number));
        let ours = Board::at(ours, "eth0".to_string());
        let foreign = Board { is_foreign: true, ..ours.clone() };
        let over_udp = Board::at("udp://10.0.0.1".parse().unwrap(), String::new());
        let peers = vec![Peer { name: "node2:0".to_string(), place: mapped.clone() }];
        let all = vec![ours.clone(), foreign.clone(), over_udp.clone()];
        let mut boards = Boards { boards: all, peers, has_table: true, ..Boards::default() };
        for from in [&ours, &foreign, &over_udp] {
            assert_eq!(boards.place_of(mapped.nic(), from), Some(mapped.clone()), "{from:?}");
        }
        let found = [&ours, &foreign, &over_udp].map(|from| boards.place_of(stranger.nic(), from));
        assert_eq!(found, [None, Some(stranger.clone()), None]);
        for nobody in [0, 0x0300_0000_0001] {
            assert_eq!(boards.place_of(nobody, &foreign), None, "no card has that number");
        }
        boards.has_table = false;
        assert_eq!(boards.place_of(stranger.nic(), &ours), Some(stranger));
    }

    #[test]
    fn a_table_has_names_and_places_and_says_which_line_is_wrong() {
        let peers =
            table(b"# all\nnode1:0 udp://10.0.0.1 # first\n\nnode2:0 02:0:0:0:0:2\r\n").unwrap();
        assert_eq!(peers.len(), 2);
        let mut boards = Boards { peers, has_table: true, ..Boards::default() };
        let nic = boards.nic_of_name("node2:0").unwrap();
        assert_eq!((nic, boards.name_of_nic(nic).as_deref()), (0x0200_0000_0002, Some("node2:0")));
        let from = Board::at(card(0x0200_0000_0001), "eth0".to_string());
        assert_eq!(boards.place_of(nic, &from), Some(boards.peers[1].place.clone()));
        assert_eq!(boards.nic_of_name("node2"), None, "names match as a whole");
        assert_eq!(boards.place_of(0x0200_0000_0003, &from), None);
        // Two places of one number: nobody knows which one is meant.
        let place = boards.peers[0].place.clone();
        let other = Peer { name: "twin".to_string(), place };
        boards.peers.push(other.clone());
        let found = boards.place_of(other.place.nic(), &from);
        assert_eq!(found, Some(other.place), "the same place twice");
        assert!(table(b"node1").unwrap_err().contains("line 1"));
        assert!(table(b"\nnode1 there").unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_table_is_written_in_utf_8_but_for_comments() {
        let peers = table(b"\xef\xbb\xbfnode1:0 udp://10.0.0.1 # Z\xfcrich\n# \xff\n").unwrap();
        assert_eq!((peers.len(), peers[0].name.as_str()), (1, "node1:0"));
        let peers = table("z\u{fc}rich:0 udp://10.0.0.1".as_bytes()).unwrap();
        assert_eq!(peers[0].name, "z\u{fc}rich:0");
        let error = table(b"node1:0 udp://10.0.0.1\nz\xfcrich:0 udp://10.0.0.2\n").unwrap_err();
        assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
        // UTF-16.
        assert!(table(b"\xff\xfen\0o\0d\0e\0").unwrap_err().contains("line 1"));
    }
}
