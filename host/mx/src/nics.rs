//! NICs: the networks of this host as programs that use MX know them, and the places of peers.
//!
//! A NIC is an Ethernet interface, whose endpoints have their numbers on it, or a host's address with a
//! port for UDP: endpoint 0 listens at that port, endpoint 1 at the next one, and so on. MX's functions, and the words
//! that users type and read, call it a board.
//!
//! On a network with MXoE an agent discovers peers by itself. Other peers come from a table, one per line,
//! with a name and a place (`node2:0 udp://10.0.0.2:7100`, `node3:0 02:00:00:00:00:03`).

use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ropewalk_rail_ether::{Interface, interfaces, may_open as may_send_frames};
use ropewalk_wire::mxoe::{Dialect, Station};

use crate::agent::{self, AgentClient, AgentError, Map, Membership};
use crate::peer_table::{self, Peer};
use crate::place::{PORT, Place, endpoint_address};
use crate::wire;

/// URLs of NICs, in their order: `ether://eth0,udp://10.0.0.1:7100`.
pub const NICS_VARIABLE: &str = "ROPEWALK_MX_BOARDS";
/// The file with the table of peers.
pub const PEERS_VARIABLE: &str = "ROPEWALK_MX_PEERS";
/// The default path of that file.
pub const PEERS_FILE: &str = "/etc/ropewalk/mx-peers";

/// Endpoints of a NIC have numbers below. Open-MX has 32 unless it is told otherwise, and a byte for them.
pub const ENDPOINTS_MAX: u32 = 255;

/// A network of this host.
#[derive(Debug, Clone)]
pub struct Nic {
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
pub enum Protocol {
    /// Our own.
    Ours,
    /// MXoE, or any other protocol of the NIC.
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

/// The reason why a process has no NICs. Class: operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NicsError {
    #[error("{variable}: {0}", variable = NICS_VARIABLE)]
    List(String),
    /// The table of peers that the environment names.
    #[error("{variable}: {path}: {why}", variable = PEERS_VARIABLE)]
    Peers { path: String, why: String },
    /// The usual one.
    #[error("{path}: {0}", path = PEERS_FILE)]
    UsualPeers(String),
}

/// NICs of this host and the peers that are known.
#[derive(Debug, Default)]
pub struct Nics {
    pub nics: Vec<Nic>,
    pub peers: Vec<Peer>,
    /// There is a table of peers, which lists the peers that are there, except for NICs with MXoE.
    pub has_table: bool,
    asking: Asking,
}

impl Nic {
    fn at(place: Place, interface: String) -> Nic {
        Nic { place, interface, name: String::new(), is_foreign: false, said: String::new() }
    }

    /// The listen address of an endpoint of this NIC: the scheme of a module and its address.
    ///
    /// `silence`: the time for which a foreign host may leave messages unanswered, if the NIC does not set one.
    pub fn listen(
        &self,
        endpoint: u32,
        key: u32,
        silence: Duration,
    ) -> Option<(&'static str, String)> {
        let Nic { interface, said, .. } = self;
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

    /// The URL of an endpoint of another NIC on the same network, for callers from this NIC.
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
        self.is_foreign && !wire::is_for_all(&self.said)
    }

    /// The listen address at which an endpoint of it takes our own packets; the scheme is `ether`.
    pub fn listen_for_ours(&self, endpoint: u32) -> Option<String> {
        self.takes_ours().then(|| format!("{}/{endpoint}", self.interface))
    }

    /// The protocol to use with another card, by the agent's entry: its endpoints may take our own packets.
    pub fn protocol_of(&self, place: &Place) -> Protocol {
        let Place::Ether(_) = place else { return Protocol::Other };
        if !self.takes_ours() {
            return Protocol::Other;
        }
        match self.agent().and_then(|mut agent| agent.peer(place.nic_id()).ok().flatten()) {
            Some(peer) if peer.takes_ours() => Protocol::Ours,
            // Its beacon has come.
            Some(peer) if peer.serial.is_some() => Protocol::Other,
            _ => Protocol::Unknown,
        }
    }

    /// The URL of an endpoint of such a card that takes our own packets.
    pub fn url_of_ours(&self, place: &Place, endpoint: u32) -> Option<String> {
        let Place::Ether(station) = place else { return None };
        Some(format!("ether://{station}%{}/{endpoint}", self.interface))
    }

    /// As lists of NICs name it.
    pub fn own_url(&self) -> String {
        let url = match &self.place {
            Place::Ether(_) if self.is_foreign => format!("mxoe://{}", self.interface),
            Place::Ether(_) => format!("ether://{}", self.interface),
            Place::Udp(address) => return format!("udp://{address}"),
        };
        if self.said.is_empty() { url } else { format!("{url}?{}", self.said) }
    }

    /// The dialect of MXoE on this NIC, for an interface with this MTU; `None` if no MXoE is spoken there.
    pub fn dialect(&self, mtu: usize) -> Option<Dialect> {
        wire::dialect(&self.said, mtu).ok().filter(|_| self.is_foreign)
    }

    /// The address of its raw endpoint; `None` if no MXoE is spoken there.
    pub fn raw(&self) -> Option<String> {
        self.is_foreign.then(|| format!("{}?{}", self.interface, self.said))
    }

    /// The agent of its interface, where there is one.
    fn agent(&self) -> Option<AgentClient> {
        let name = Some(&self.interface).filter(|name| !name.is_empty())?;
        let interface = interfaces().into_iter().find(|it| it.name == *name)?;
        AgentClient::of(interface.index)
    }

    /// Whether a card is absent as far as its agent knows. The agent then has the card asked. `None` if the answer
    /// is not known yet. A card that is there answers within [`SEEK_EVERY`], unless the answer is lost.
    pub fn is_missing(&self, nic_id: u64) -> Result<Option<bool>, AgentError> {
        let Some(mut agent) = self.agent().filter(|_| self.is_foreign) else { return Ok(None) };
        if agent.peer(nic_id)?.is_some() || nic_id == self.place.nic_id() {
            return Ok(Some(false));
        }
        agent.seek(nic_id)?;
        Ok((agent.age()? >= SETTLED_AFTER).then_some(true))
    }

    /// Makes this process one of those that may be the agent of its interface.
    fn join(&self) -> Option<Membership> {
        let interface = interfaces().into_iter().find(|it| it.name == self.interface)?;
        let dialect = self.dialect(interface.mtu)?;
        may_send_frames().then(|| agent::join(&interface, dialect, None))?
    }

    /// The name that other hosts use for it: the agent's, if there is an agent.
    fn current_name(&self) -> String {
        let told = || self.agent()?.name_of(self.place.nic_id()).ok()?;
        let told = Some(self.is_foreign).filter(|it| *it).and_then(|_| told());
        told.unwrap_or_else(|| self.name.clone())
    }

    /// The node of memory that its card is next to; `None` where that is not known.
    pub fn numa_node(&self) -> Option<u32> {
        Some(&self.interface)
            .filter(|name| !name.is_empty())
            .and_then(|it| ropewalk_rail_ether::numa_node(it))
    }

    /// The last statement of a mapper about its network; `None` if there was no mapper.
    pub fn map(&self) -> Option<Map> {
        self.agent()?.map().ok()?
    }

    /// The name by which processes of this host find an endpoint of it in shared memory.
    pub fn shared_name(nic_id: u64, endpoint: u32) -> String {
        format!("mx-{nic_id:012x}-{endpoint}")
    }

    /// The user that has that endpoint of this host in shared memory, and whether that is our own one.
    pub fn shared_user(nic_id: u64, endpoint: u32) -> Option<(u32, bool)> {
        let user = ropewalk_rail_shm::user_of(&Nic::shared_name(nic_id, endpoint))?;
        Some((user, user == rustix::process::geteuid().as_raw()))
    }
}

impl Nics {
    /// The NICs that the environment names, or else those that are there.
    pub fn find() -> Result<Nics, NicsError> {
        let host = host_name();
        let mut nics = match variable(NICS_VARIABLE) {
            Some(text) => listed(&text).map_err(NicsError::List)?,
            None => usual(),
        };
        for (number, nic) in nics.iter_mut().enumerate() {
            nic.name = format!("{host}:{number}");
        }
        let (peers, has_table) = match variable(PEERS_VARIABLE) {
            Some(path) => {
                let bytes = std::fs::read(&path).map_err(|error| error.to_string());
                let peers = bytes.and_then(|bytes| peer_table::parse(&bytes));
                (peers.map_err(|why| NicsError::Peers { path, why })?, true)
            }
            None => match std::fs::read(PEERS_FILE) {
                Ok(bytes) => (peer_table::parse(&bytes).map_err(NicsError::UsualPeers)?, true),
                Err(_) => (Vec::new(), false),
            },
        };
        Ok(Nics { nics, peers, has_table, ..Nics::default() })
    }

    /// The number of the NIC with this `nic_id`; `None` if this host has none.
    pub fn number_of(&self, nic_id: u64) -> Option<u32> {
        self.nics.iter().position(|nic| nic.place.nic_id() == nic_id).map(|index| index as u32)
    }

    /// The place of a card, for callers from this NIC. `None` if the card is unknown, or if two cards have
    /// this number.
    pub fn place_of(&self, nic_id: u64, from: &Nic) -> Option<Place> {
        let own = self.nics.iter().map(|nic| &nic.place);
        let mut found = own.chain(self.peers.iter().map(|peer| &peer.place));
        let first = found.find(|place| place.nic_id() == nic_id);
        if let Some(first) = first {
            let alone = found.all(|place| place.nic_id() != nic_id || place == first);
            return alone.then(|| first.clone());
        }
        // Without a table everybody on the wire may be called. With MXoE a table gives names alone: the agent finds
        // the cards that are there.
        let wired = matches!(from.place, Place::Ether(_));
        let is_open = from.is_foreign || !self.has_table;
        station_of(nic_id).filter(|_| wired && is_open).map(Place::Ether)
    }

    /// The card of this name: one of our own, one that an agent has found, or one of the table. If an agent has just
    /// started, the call waits for the cards that the agent may still hear of.
    pub fn nic_id_of_name(&self, name: &str) -> Option<u64> {
        let own = self.nics.iter().find(|nic| nic.current_name() == name);
        if let Some(own) = own {
            return Some(own.place.nic_id());
        }
        // Of a name that several have the table may say whose it is.
        let listed = || self.peers.iter().find(|peer| peer.name == name);
        let listed = || listed().map(|peer| peer.place.nic_id());
        let nic_id = |_, agent: &mut AgentClient| {
            Ok(agent.nic_id_of(name)?.map_or(Told::Nothing, Told::This))
        };
        self.told_by_agents(nic_id, listed)
    }

    /// The name of this card, as above.
    pub fn name_of_nic(&self, nic_id: u64) -> Option<String> {
        let own = self.nics.iter().find(|nic| nic.place.nic_id() == nic_id);
        if let Some(own) = own {
            return Some(own.current_name());
        }
        let listed = || self.peers.iter().find(|peer| peer.place.nic_id() == nic_id);
        let listed = || listed().map(|peer| peer.name.clone());
        // One that was there before the agent, and knows of it, need not say so by itself.
        let mut seeks = vec![(0, None::<Instant>); self.nics.len()];
        let name = |nic: usize, agent: &mut AgentClient| {
            if let Some(name) = agent.name_of(nic_id)? {
                return Ok(Told::This(name));
            }
            let (count, at) = &mut seeks[nic];
            if *count >= SEEKS || station_of(nic_id).is_none() || agent.peer(nic_id)?.is_some() {
                return Ok(Told::Nothing);
            }
            if at.is_none_or(|at| at.elapsed() >= SEEK_EVERY) {
                (*count, *at) = (*count + 1, Some(Instant::now()));
                agent.seek(nic_id)?;
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
        let foreign = || self.nics.iter().filter(|nic| nic.is_foreign);
        let since = foreign().next().map(|_| self.ask_agents());
        loop {
            let mut is_settled = true;
            for (number, nic) in self.nics.iter().enumerate() {
                let age = match nic.agent() {
                    Some(mut agent) => match ask(number, &mut agent) {
                        Ok(Told::This(found)) => return Some(found),
                        Ok(Told::Nothing) => agent.age().unwrap_or(Duration::MAX),
                        Ok(Told::NotYet) => Duration::ZERO,
                        Err(_) => Duration::MAX,
                    },
                    None => since.map_or(Duration::MAX, |since| since.elapsed()),
                };
                is_settled &= !nic.is_foreign || age >= SETTLED_AFTER;
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
        let members = || self.nics.iter().filter(|it| it.is_foreign).filter_map(Nic::join);
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
fn station_of(nic_id: u64) -> Option<Station> {
    Station::from_nic_id(nic_id).filter(|station| nic_id != 0 && station.0[0] & 1 == 0)
}

/// NICs as the environment lists them.
fn listed(text: &str) -> Result<Vec<Nic>, String> {
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    let nics: Vec<Nic> = words.map(nic).collect::<Result<_, _>>()?;
    if nics.is_empty() {
        return Err(format!("'{text}' is not a board; write it like ether://eth0"));
    }
    Ok(nics)
}

/// A NIC by its URL.
fn nic(url: &str) -> Result<Nic, String> {
    let foreign = url.strip_prefix("mxoe://");
    let Some(rest) = foreign.or(url.strip_prefix("ether://")) else {
        let like = "ether://eth0, mxoe://eth0 or udp://10.0.0.1:7100";
        let place = Place::from_str(url);
        return match place.map_err(|_| format!("'{url}' is not a board; write it like {like}"))? {
            Place::Ether(_) => Err(format!(
                "'{url}' is an address of a card: name an interface of this host, like ether://eth0"
            )),
            place => Ok(Nic::at(place, String::new())),
        };
    };
    let (interface, said) = rest.split_once('?').unwrap_or((rest, ""));
    let interface = interface.trim_end_matches('/');
    let found = interfaces().into_iter().find(|it| it.name == interface);
    let found = found.ok_or_else(|| {
        format!("{url}: there is no interface {interface}; `ip link` lists the interfaces")
    })?;
    if !found.is_ethernet || found.is_loopback {
        return Err(format!("{url}: {interface} is not an Ethernet interface"));
    }
    wire::check(foreign.is_some(), said, found.mtu).map_err(|error| format!("{url}: {error}"))?;
    let (is_foreign, said) = (foreign.is_some(), said.to_string());
    Ok(Nic { is_foreign, said, ..on_interface(&found) })
}

fn on_interface(interface: &Interface) -> Nic {
    Nic::at(Place::Ether(interface.station), interface.name.clone())
}

/// NICs without a word of the user: interfaces in the order of their numbers, without loopback; where raw
/// frames need a right that is missing, UDP.
fn usual() -> Vec<Nic> {
    if may_send_frames() {
        let all = interfaces();
        let usable = all.iter().filter(|it| it.is_up && it.is_ethernet && !it.is_loopback);
        let found: Vec<Nic> = usable.map(on_interface).collect();
        if !found.is_empty() {
            return found;
        }
    }
    let place = Place::Udp(reachable_address());
    vec![Nic::at(place, String::new())]
}

/// An address of this host with the port of endpoint 0, one that most peers can use.
fn reachable_address() -> SocketAddr {
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), PORT);
    let found = ropewalk_rail::host::reachable(any);
    let first = found.first().and_then(|address| address.parse().ok());
    first.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT))
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

    fn card(nic_id: u64) -> Place {
        Place::Ether(Station::from_nic_id(nic_id).unwrap())
    }

    #[test]
    fn a_table_forbids_nobody_where_mxoe_is_spoken() {
        let [ours, mapped, stranger] = [1, 2, 3].map(|number| card(0x0200_0000_0000 + number));
        let ours = Nic::at(ours, "eth0".to_string());
        let foreign = Nic { is_foreign: true, ..ours.clone() };
        let over_udp = Nic::at("udp://10.0.0.1".parse().unwrap(), String::new());
        let peers = vec![Peer { name: "node2:0".to_string(), place: mapped.clone() }];
        let all = vec![ours.clone(), foreign.clone(), over_udp.clone()];
        let mut nics = Nics { nics: all, peers, has_table: true, ..Nics::default() };
        for from in [&ours, &foreign, &over_udp] {
            assert_eq!(nics.place_of(mapped.nic_id(), from), Some(mapped.clone()), "{from:?}");
        }
        let found = [&ours, &foreign, &over_udp].map(|from| nics.place_of(stranger.nic_id(), from));
        assert_eq!(found, [None, Some(stranger.clone()), None]);
        for nobody in [0, 0x0300_0000_0001] {
            assert_eq!(nics.place_of(nobody, &foreign), None, "no card has that number");
        }
        nics.has_table = false;
        assert_eq!(nics.place_of(stranger.nic_id(), &ours), Some(stranger));
    }

    #[test]
    fn a_table_has_names_and_places_and_says_which_line_is_wrong() {
        let peers =
            peer_table::parse(b"# all\nnode1:0 udp://10.0.0.1 # first\n\nnode2:0 02:0:0:0:0:2\r\n")
                .unwrap();
        assert_eq!(peers.len(), 2);
        let mut nics = Nics { peers, has_table: true, ..Nics::default() };
        let nic_id = nics.nic_id_of_name("node2:0").unwrap();
        assert_eq!(
            (nic_id, nics.name_of_nic(nic_id).as_deref()),
            (0x0200_0000_0002, Some("node2:0"))
        );
        let from = Nic::at(card(0x0200_0000_0001), "eth0".to_string());
        assert_eq!(nics.place_of(nic_id, &from), Some(nics.peers[1].place.clone()));
        assert_eq!(nics.nic_id_of_name("node2"), None, "names match as a whole");
        assert_eq!(nics.place_of(0x0200_0000_0003, &from), None);
        // Two places of one number: nobody knows which one is meant.
        let place = nics.peers[0].place.clone();
        let other = Peer { name: "twin".to_string(), place };
        nics.peers.push(other.clone());
        let found = nics.place_of(other.place.nic_id(), &from);
        assert_eq!(found, Some(other.place), "the same place twice");
        assert!(peer_table::parse(b"node1").unwrap_err().contains("line 1"));
        assert!(peer_table::parse(b"\nnode1 there").unwrap_err().contains("line 2"));
    }
}
