//! The options of a user of the port, and the errors of opening it.

use ropewalk_wire::mxoe::Order;

/// The configuration of an [`EtherPort`](crate::EtherPort).
#[derive(Debug, Clone, Default)]
pub struct EtherConfig {
    /// The interface; `None`: the one that is up and no loopback, where there is one only.
    pub interface: Option<String>,
    /// The number of the endpoint on it; `None`: the smallest that nobody has.
    pub endpoint: Option<u8>,
    /// Peers may call.
    pub listens: bool,
    /// The protocol that is spoken there.
    pub protocol: Protocol,
    /// The sockets that send and receive frames.
    pub sockets: Sockets,
}

/// The sockets that send and receive frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sockets {
    pub kind: SocketKind,
    /// The queue of the card that AF_XDP takes frames from; those of others go by the packet socket.
    pub queue: u32,
    /// The number of microseconds for which AF_XDP polls the card busily; 0: not at all.
    pub poll_us: u32,
}

/// See [`Sockets`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum SocketKind {
    /// A packet socket: AF_PACKET, on any card.
    #[default]
    Packet,
    /// AF_XDP beside it, or an error.
    Xdp,
    /// AF_XDP where it can be had, and a packet socket alone elsewhere.
    Auto,
}

impl Sockets {
    /// Sets the value of `socket=xdp`, `queue=N` or `poll=MICROSECONDS`; `None` for any other text.
    pub fn set(&mut self, part: &str) -> Option<()> {
        match part.split_once('=')? {
            ("socket", "packet") => self.kind = SocketKind::Packet,
            ("socket", "xdp") => self.kind = SocketKind::Xdp,
            ("socket", "auto") => self.kind = SocketKind::Auto,
            ("queue", queue) => self.queue = queue.parse().ok().filter(|it| *it < QUEUES)?,
            ("poll", time) => self.poll_us = time.parse().ok().filter(|it| *it <= POLL_US_MAX)?,
            _ => return None,
        }
        Some(())
    }

    /// Sets all that is said, with `&` between.
    pub fn read(mut self, text: &str) -> Result<Sockets, EtherError> {
        for part in text.split('&').filter(|part| !part.is_empty()) {
            self.set(part).ok_or_else(|| EtherError::BadSockets(part.to_string()))?;
        }
        Ok(self)
    }
}

/// Queues that a card may have, and the longest time of busy polling: a second.
const QUEUES: u32 = 4096;
const POLL_US_MAX: u32 = 1_000_000;

/// The protocol of a port's packets. Endpoints of different protocols have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    /// The packets of `wire::packets`.
    #[default]
    Ours,
    /// The packets of `wire::mxoe`, in this byte order.
    Mxoe(Order),
}

impl Protocol {
    /// The scheme of addresses of its endpoints.
    pub fn scheme(self) -> &'static str {
        match self {
            Protocol::Ours => "ether",
            Protocol::Mxoe(_) => "mxoe",
        }
    }
}

/// Numbers that endpoints of an interface can have.
pub const ENDPOINTS: std::ops::Range<u8> = 0..255;
/// The number that the raw endpoint of an interface is claimed by; no packet goes to it.
pub const RAW_ENDPOINT: u8 = ENDPOINTS.end;

/// The reason why the port could not be opened. Class: node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtherError {
    #[error("there is no interface {0}; `ip link` lists the interfaces")]
    NoInterface(String),
    #[error("no Ethernet interface is up; bring one up with `ip link set NAME up`")]
    NoneUp,
    #[error(
        "there are several interfaces, {names}: name one of them. Listen at an address like \
         {scheme}://{first}/3, and call one like {scheme}://02:00:00:00:00:01%{first}/3",
        first = .names.split(", ").next().unwrap_or_default()
    )]
    Several { names: String, scheme: &'static str },
    #[error("{0} is not an Ethernet interface")]
    NoEthernet(String),
    #[error(
        "the MTU of {interface} is {mtu}, but packets need 256 bytes; raise it with `ip link set \
         {interface} mtu 1500`"
    )]
    TooNarrow { interface: String, mtu: usize },
    #[error("{0} is down; bring it up with `ip link set {0} up`")]
    Down(String),
    #[error(
        "raw frames on {0} need the capability CAP_NET_RAW: run as root, or give it to the program \
         (`setcap cap_net_raw+ep PROGRAM`), or use udp://, which does not need it"
    )]
    NotPermitted(String),
    #[error(
        "endpoint {endpoint} of {interface} belongs to another process; choose another number, or \
         leave it out"
    )]
    Taken { interface: String, endpoint: u8 },
    #[error(
        "a program of user {user}, who is neither root nor this user, holds the name of endpoint \
         {endpoint} of {interface} (`ss -xp` shows it); choose another endpoint, or end that \
         program"
    )]
    Held { interface: String, endpoint: u8, user: u32 },
    #[error("another process has the raw endpoint of {0}, and an interface has only one")]
    RawTaken(String),
    #[error("all 255 endpoints of {0} are in use")]
    AllTaken(String),
    #[error(
        "'{0}' is not an interface with an endpoint from 0 to 254; write it like eth0 or eth0/3"
    )]
    BadAddress(String),
    #[error(
        "'{0}' is not a valid setting for sockets; valid are socket=packet, xdp or auto, queue=N, \
         and poll=MICROSECONDS"
    )]
    BadSockets(String),
    #[error("cannot use AF_XDP on {interface}: {why}; socket=packet does not need it")]
    Xdp { interface: String, why: String },
    #[error("cannot open a socket on {interface}: {cause}")]
    Socket { interface: String, cause: std::io::Error },
}

impl EtherConfig {
    /// To call this address: through the interface that it names, `02:00:00:00:00:01%eth0/3`, or the only one.
    pub fn calling(address: &str) -> EtherConfig {
        let station = address.trim_end_matches('/').rsplit_once('/').map_or(address, |it| it.0);
        let interface = station.split_once('%').map(|(_, interface)| interface.to_string());
        EtherConfig { interface, ..EtherConfig::default() }
    }

    /// Listening at `eth0`, `eth0/3`, or nothing, which is the only interface.
    pub fn listening(address: &str) -> Result<EtherConfig, EtherError> {
        let bad = || EtherError::BadAddress(address.to_string());
        let (interface, endpoint) = match address.split_once('/') {
            Some((interface, "")) => (interface, None),
            Some((interface, number)) => {
                let number: u8 = number.parse().map_err(|_| bad())?;
                (interface, Some(number).filter(|it| ENDPOINTS.contains(it)))
            }
            None => (address, None),
        };
        let named = address.split_once('/').is_some_and(|(_, number)| !number.is_empty());
        if named && endpoint.is_none() {
            return Err(bad());
        }
        let interface = (!interface.is_empty()).then(|| interface.to_string());
        Ok(EtherConfig { interface, endpoint, listens: true, ..EtherConfig::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_an_interface_and_perhaps_an_endpoint() {
        let read = |text: &str| {
            let config = EtherConfig::listening(text).ok()?;
            Some((config.interface.unwrap_or_default(), config.endpoint))
        };
        assert_eq!(read("eth0"), Some(("eth0".into(), None)));
        assert_eq!(read("eth0/"), Some(("eth0".into(), None)));
        assert_eq!(read("eth0/3"), Some(("eth0".into(), Some(3))));
        assert_eq!(read("/7"), Some((String::new(), Some(7))));
        assert_eq!(read(""), Some((String::new(), None)));
        assert_eq!([read("eth0/255"), read("eth0/x"), read("eth0/3/4")], [None, None, None]);
    }

    #[test]
    fn sockets_are_said_in_words() {
        let read = |text| Sockets::default().read(text);
        assert_eq!(read("").unwrap(), Sockets::default());
        let wanted = Sockets { kind: SocketKind::Auto, queue: 3, poll_us: 50 };
        assert_eq!(read("socket=auto&queue=3&poll=50").unwrap(), wanted);
        assert_eq!(wanted.read("socket=xdp").unwrap(), Sockets { kind: SocketKind::Xdp, ..wanted });
        assert_eq!(wanted.read("socket=packet").unwrap().kind, SocketKind::Packet);
        for bad in ["socket", "socket=raw", "queue=-1", "queue=4096", "poll=x", "key=1"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("socket=packet"), "{error}");
        }
    }

    #[test]
    fn an_address_to_call_may_name_the_interface_of_the_caller() {
        let through = |text| EtherConfig::calling(text).interface;
        assert_eq!(through("02:00:00:00:00:01%eth1/3"), Some("eth1".into()));
        assert_eq!(through("02:00:00:00:00:01%eth1/3/"), Some("eth1".into()));
        assert_eq!(through("02:00:00:00:00:01/3"), None);
    }
}
