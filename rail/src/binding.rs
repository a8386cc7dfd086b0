//! The local side of a rail's sockets: the interface and the source address to which they are bound.
//!
//! An address to listen at says it behind `?`: `tcp://10.0.0.1:7000?interface=eth1&source=10.0.0.1`. Without it the
//! kernel's routes choose the interface and the source address of each call.
//!
//! A source address alone chooses no interface: the kernel may send its packets by any.
//!
//! `entropy=40001` is the source port of its packets, or of its calls where they are of TCP. Switches with several equal ways
//! choose one by the ports; so two rails on one interface that differ in it have a way each.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use crate::interfaces::{LocalSide, Named};

/// Port for a question about routes: nothing is sent.
const DISCARD: u16 = 9;

/// The reason why sockets cannot be bound as an address says. Class: node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BindingError {
    #[error(
        "'{0}' is not a valid setting for sockets; valid are interface=NAME, source=ADDRESS and \
         entropy=PORT, with & between, as in tcp://10.0.0.1:7000?interface=eth1&source=10.0.0.1"
    )]
    Setting(String),
    #[error("no interface is named '{0}'; `ip link` lists the interfaces")]
    NoInterface(String),
    #[error(
        "this process may not bind sockets to the interface {0}: before Linux 5.7 that needs the \
         capability CAP_NET_RAW; give it to the program, or name a source address, too \
         (interface={0}&source=ADDRESS), which then serves alone"
    )]
    NotPermitted(String),
    #[error(
        "no interface of this host has the source address {0}; `ip address` lists the addresses"
    )]
    NoSource(IpAddr),
    #[error(
        "{listen} and the source address {source_address} are not both of IPv4 or both of IPv6"
    )]
    Families { listen: IpAddr, source_address: IpAddr },
    #[error(
        "{0} has no entropy: its packets have no source port by which switches choose a way; use \
         tcp or udp, or leave entropy= out"
    )]
    NoEntropy(String),
    #[error(
        "the port {port} and entropy={entropy} differ: a socket of UDP sends from the port at which \
         it listens; name one of both, or port 0"
    )]
    TwoPorts { port: u16, entropy: u16 },
    #[error("cannot bind a socket to {binding}: {cause}")]
    System { binding: String, cause: String },
}

/// The local side that an address names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Binding {
    interface: Option<Interface>,
    source: Option<IpAddr>,
    /// 0 where the kernel chooses the port.
    entropy: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Interface {
    name: String,
    /// Of the interface that had this name when the binding was made; 0 until then.
    index: u32,
    /// The kernel lets this process bind sockets to it.
    is_permitted: bool,
}

impl Binding {
    /// Reads the text behind `?`; an empty one binds nothing.
    pub fn parse(text: &str) -> Result<Binding, BindingError> {
        let mut binding = Binding::default();
        for setting in text.split('&').filter(|setting| !setting.is_empty()) {
            let wrong = || BindingError::Setting(setting.to_string());
            match setting.split_once('=').ok_or_else(wrong)? {
                ("interface", name) if !name.is_empty() => {
                    let name = name.to_string();
                    binding.interface = Some(Interface { name, index: 0, is_permitted: false });
                }
                ("source", address) => {
                    let address: IpAddr = address.parse().map_err(|_| wrong())?;
                    if address.is_unspecified() || address.is_multicast() {
                        return Err(wrong());
                    }
                    binding.source = Some(address);
                }
                ("entropy", port) => match port.parse() {
                    Ok(port) if port > 0 => binding.entropy = port,
                    _ => return Err(wrong()),
                },
                _ => return Err(wrong()),
            }
        }
        Ok(binding)
    }

    /// Finds the interface and the address, and sees whether sockets may be bound to them. Where the interface may not be
    /// used so, the source address serves alone.
    pub fn find(mut self) -> Result<Binding, BindingError> {
        if let Some(interface) = &mut self.interface {
            let socket = scout(AddressFamily::INET).or_else(|_| scout(AddressFamily::INET6));
            let socket = socket.map_err(|errno| failed(&interface.name, errno))?;
            interface.index = netdevice::name_to_index(&socket, &interface.name)
                .map_err(|_| BindingError::NoInterface(interface.name.clone()))?;
            match bind_to_interface(socket.as_fd(), interface) {
                Ok(()) => interface.is_permitted = true,
                Err(Errno::PERM | Errno::ACCESS) if self.source.is_some() => {}
                Err(Errno::PERM | Errno::ACCESS) => {
                    return Err(BindingError::NotPermitted(interface.name.clone()));
                }
                Err(errno) => return Err(failed(&interface.name, errno)),
            }
        }
        if let Some(source) = self.source {
            let family = if source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let socket = scout(family).map_err(|errno| failed(&self.to_string(), errno))?;
            self.bind_interface(socket.as_fd())
                .map_err(|errno| failed(&self.to_string(), errno))?;
            match rustix::net::bind(&socket, &self.with_scope(source, 0)) {
                Ok(()) => {}
                Err(Errno::ADDRNOTAVAIL) => return Err(BindingError::NoSource(source)),
                Err(errno) => return Err(failed(&self.to_string(), errno)),
            }
        }
        Ok(self)
    }

    /// Whether the kernel's routes choose the interface and the source address, and it chooses the port.
    pub fn is_free(&self) -> bool {
        self.interface.is_none() && self.source.is_none() && self.entropy == 0
    }

    /// The source port; 0 where the kernel chooses it.
    pub fn entropy(&self) -> u16 {
        self.entropy
    }

    /// Refuses a source port, for rails that have none.
    pub fn without_entropy(self, scheme: &str) -> Result<Binding, BindingError> {
        match self.entropy {
            0 => Ok(self),
            _ => Err(BindingError::NoEntropy(scheme.to_string())),
        }
    }

    /// The address of a socket that sends from the port at which it listens.
    pub fn send_from(&self, listen: SocketAddr) -> Result<SocketAddr, BindingError> {
        match (listen.port(), self.entropy) {
            (_, 0) => Ok(listen),
            (port, entropy) if port == 0 || port == entropy => {
                let mut from = listen;
                from.set_port(entropy);
                Ok(from)
            }
            (port, entropy) => Err(BindingError::TwoPorts { port, entropy }),
        }
    }

    /// The number and the name of the interface, where it names one.
    pub fn interface(&self) -> Option<(u32, &str)> {
        self.interface.as_ref().map(|interface| (interface.index, interface.name.as_str()))
    }

    /// The address to listen at, where an address to listen at was chosen: of all addresses the source address.
    pub fn listen_at(&self, chosen: SocketAddr) -> Result<SocketAddr, BindingError> {
        let Some(source) = self.source else { return Ok(chosen) };
        if source.is_ipv4() != chosen.is_ipv4() {
            return Err(BindingError::Families { listen: chosen.ip(), source_address: source });
        }
        let all = chosen.ip().is_unspecified();
        Ok(if all { self.with_scope(source, chosen.port()) } else { chosen })
    }

    /// The address of a socket that only calls.
    pub fn call_from(&self) -> Option<SocketAddr> {
        self.source.map(|source| self.with_scope(source, 0))
    }

    /// Binds a socket that has no address to the interface.
    pub fn bind_interface(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        match &self.interface {
            Some(interface) if interface.is_permitted => bind_to_interface(socket, interface),
            _ => Ok(()),
        }
    }

    /// Binds a socket that is about to call a peer to the source address. The kernel chooses the port with the call, so
    /// that it may be one that others use for other peers. `AFNOSUPPORT` if the peer has no address of that family.
    pub fn bind_caller(&self, socket: BorrowedFd<'_>, peer: &SocketAddr) -> Result<(), Errno> {
        if self.entropy > 0 {
            let any: IpAddr = match peer {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let source = self.source.unwrap_or(any);
            if source.is_ipv4() != peer.is_ipv4() {
                return Err(Errno::AFNOSUPPORT);
            }
            // Calls to several peers have one source port, and so has the next call after one that ended.
            rustix::net::sockopt::set_socket_reuseaddr(socket, true)?;
            return rustix::net::bind(socket, &self.with_scope(source, self.entropy));
        }
        let Some(source) = self.source else { return Ok(()) };
        if source.is_ipv4() != peer.is_ipv4() {
            return Err(Errno::AFNOSUPPORT);
        }
        // A kernel that does not know it takes a port for the socket alone.
        let _ = set(socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        rustix::net::bind(socket, &self.with_scope(source, 0))
    }

    /// The side to follow for changes: `None` where nothing is bound.
    pub fn side(&self) -> Option<LocalSide<'_>> {
        if self.interface.is_none() && self.source.is_none() {
            return None;
        }
        let interface = self.interface.as_ref().map(|interface| Named::Index(interface.index));
        Some(LocalSide { interface, source: self.source, follows_routes: true })
    }

    /// Whether the kernel has a route to a host for sockets that are bound like this. Takes some system calls. A socket that
    /// is bound to an interface needs no route: the kernel takes a host without one for a neighbour.
    pub fn reaches(&self, host: IpAddr) -> bool {
        let host = host.to_canonical();
        let own: IpAddr = match host {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let own = self.source.filter(|source| source.is_ipv4() == own.is_ipv4()).unwrap_or(own);
        let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        // Without a descriptor nothing is known.
        let Ok(socket) = scout(family) else { return true };
        let bound = self
            .bind_interface(socket.as_fd())
            .and_then(|()| rustix::net::bind(&socket, &self.with_scope(own, 0)));
        // An address that is gone is another matter.
        bound.is_err() || UdpSocket::from(socket).connect(self.with_scope(host, DISCARD)).is_ok()
    }

    /// Addresses that are valid on one wire only mean that of the interface.
    fn with_scope(&self, host: IpAddr, port: u16) -> SocketAddr {
        match host {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                let scope = self.interface.as_ref().map_or(0, |interface| interface.index);
                SocketAddrV6::new(v6, port, 0, scope).into()
            }
            host => SocketAddr::new(host, port),
        }
    }
}

impl fmt::Display for Binding {
    /// As [`Binding::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(interface) = &self.interface {
            write!(f, "interface={}", interface.name)?;
        }
        if let Some(source) = self.source {
            let between = if self.interface.is_some() { "&" } else { "" };
            write!(f, "{between}source={source}")?;
        }
        if self.entropy > 0 {
            let between = if self.interface.is_some() || self.source.is_some() { "&" } else { "" };
            write!(f, "{between}entropy={}", self.entropy)?;
        }
        Ok(())
    }
}

fn failed(binding: &str, errno: Errno) -> BindingError {
    let cause = io::Error::from(errno).to_string();
    BindingError::System { binding: binding.to_string(), cause }
}

/// A socket for questions to the kernel.
fn scout(family: AddressFamily) -> Result<std::os::fd::OwnedFd, Errno> {
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn bind_to_interface(socket: BorrowedFd<'_>, interface: &Interface) -> Result<(), Errno> {
    let index = interface.index as libc::c_int;
    match set(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index) {
        // Before Linux 5.1.
        Err(Errno::NOPROTOOPT) => {
            let name = interface.name.as_bytes();
            // SAFETY: the option takes bytes of this length, which live until the call returns.
            outcome(unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_BINDTODEVICE,
                    name.as_ptr().cast(),
                    name.len() as libc::socklen_t,
                )
            })
        }
        other => other,
    }
}

fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the option takes an int, which lives until the call returns.
    outcome(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    })
}

fn outcome(result: libc::c_int) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_is_read_as_it_is_written_and_nonsense_is_refused() {
        for text in [
            "",
            "interface=lo",
            "source=127.0.0.1",
            "interface=lo&source=::1",
            "entropy=7",
            "interface=lo&source=::1&entropy=65535",
        ] {
            assert_eq!(Binding::parse(text).unwrap().to_string(), text);
        }
        assert!(Binding::parse("").unwrap().is_free());
        let nonsense =
            ["interface", "interface=", "source=node1", "source=0.0.0.0", "source=", "mtu=9000"];
        let ports = ["entropy=", "entropy=0", "entropy=65536", "entropy=-1", "entropy=x"];
        for bad in nonsense.into_iter().chain(ports) {
            let error = Binding::parse(bad).unwrap_err().to_string();
            assert!(error.contains(bad) && error.contains("interface=NAME"), "{error}");
        }
    }

    #[test]
    fn interfaces_and_addresses_that_are_not_here_are_named() {
        let find = |text: &str| Binding::parse(text).unwrap().find();
        // Every network namespace has that interface, as its first one.
        let found = find("interface=lo&source=127.0.0.1").unwrap();
        assert_eq!(found.interface(), Some((1, "lo")));
        assert_eq!(found.side().unwrap().interface, Some(Named::Index(1)));
        let error = find("interface=nosuch0").unwrap_err();
        assert_eq!(error, BindingError::NoInterface("nosuch0".into()));
        // An address for documents.
        let error = find("source=192.0.2.7").unwrap_err();
        assert_eq!(error, BindingError::NoSource("192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn a_source_port_is_one_port_and_rails_without_one_refuse_it() {
        let binding = Binding::parse("source=127.0.0.1&entropy=7").unwrap();
        assert_eq!((binding.entropy(), binding.is_free()), (7, false));
        let from = |text: &str| binding.send_from(text.parse().unwrap()).map(|it| it.to_string());
        assert_eq!(from("127.0.0.1:0").unwrap(), "127.0.0.1:7");
        assert_eq!(from("127.0.0.1:7").unwrap(), "127.0.0.1:7");
        let error = from("127.0.0.1:8").unwrap_err();
        assert_eq!(error, BindingError::TwoPorts { port: 8, entropy: 7 });
        let error = binding.without_entropy("ether").unwrap_err().to_string();
        assert!(error.starts_with("ether has no entropy"), "{error}");
    }

    #[test]
    fn of_all_addresses_a_listener_has_the_source_address() {
        let binding = Binding::parse("source=127.0.0.2").unwrap();
        let at = |text: &str| binding.listen_at(text.parse().unwrap());
        assert_eq!(at("0.0.0.0:7").unwrap().to_string(), "127.0.0.2:7");
        assert_eq!(at("127.0.0.1:7").unwrap().to_string(), "127.0.0.1:7");
        assert!(matches!(at("[::]:7"), Err(BindingError::Families { .. })));
    }
}
