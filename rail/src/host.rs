//! Under which addresses others reach a listener: of the wildcard address, those of all interfaces.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ptr;

/// A port to ask for the way to a host; nothing is sent there.
const DISCARD_PORT: u16 = 9;

/// Addresses as peers may use them: first the addresses that most peers can use, loopback last.
pub fn reachable(bound: SocketAddr) -> Vec<String> {
    reachable_by(bound, None)
}

/// The same of a listener that is bound to the interface of this name.
pub fn reachable_by(bound: SocketAddr, interface: Option<&str>) -> Vec<String> {
    if !bound.ip().is_unspecified() {
        return vec![bound.to_string()];
    }
    let named = |it: &(String, IpAddr)| interface.is_none_or(|name| it.0 == name);
    let mut hosts: Vec<IpAddr> = interfaces().into_iter().filter(named).map(|it| it.1).collect();
    hosts.retain(|host| bound.is_ipv6() || host.is_ipv4());
    if hosts.is_empty() && interface.is_none() {
        hosts.push(if bound.is_ipv4() {
            IpAddr::V4(Ipv4Addr::LOCALHOST)
        } else {
            IpAddr::V6(Ipv6Addr::LOCALHOST)
        });
    }
    hosts.sort_by_key(|host| (host.is_loopback(), host.is_ipv6(), *host));
    hosts.dedup();
    hosts.into_iter().map(|host| SocketAddr::new(host, bound.port()).to_string()).collect()
}

/// The interface of this host that has an address, and is up.
pub fn interface_of(address: IpAddr) -> Option<String> {
    interfaces().into_iter().find(|it| it.1 == address).map(|it| it.0)
}

/// The interface, and the source address, by which the kernel would send to a host now. `None` where there is no way, or
/// where the host is this one. Nothing is sent.
pub fn way_to(host: IpAddr) -> Option<(String, IpAddr)> {
    let any: IpAddr = match host {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((host, DISCARD_PORT)).ok()?;
    let source = socket.local_addr().ok()?.ip();
    let (name, _) = interfaces().into_iter().find(|(_, address)| *address == source)?;
    (source != host && !source.is_loopback()).then_some((name, source))
}

/// Whether descriptors or memory of the kernel were used up: later there may be some again.
pub fn is_shortage(error: &std::io::Error) -> bool {
    let short = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
    error.raw_os_error().is_some_and(|number| short.contains(&number))
}

/// Whether an error of a send or a receive, by its number, says that the path to the peer is broken.
pub fn is_of_path(number: i32) -> bool {
    let of_path = [
        libc::ENETDOWN,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::ENODEV,
        libc::ENXIO,
        libc::EADDRNOTAVAIL,
        libc::ETIMEDOUT,
        // What a filter drops, and what a route refuses.
        libc::EPERM,
        libc::EACCES,
        libc::EINVAL,
    ];
    of_path.contains(&number)
}

/// Addresses of all interfaces that are up, with their names, without addresses that are valid on one wire only.
fn interfaces() -> Vec<(String, IpAddr)> {
    let mut first = ptr::null_mut();
    let mut found = Vec::new();
    // SAFETY: on success `first` is set to a list that is ours until `freeifaddrs`.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return found;
    }
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which is not freed yet.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: the name is a string of the list, which ends with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let name = name.to_string_lossy().into_owned();
        // SAFETY: the address is not null, belongs to the list, and its family determines its type.
        found.extend(unsafe { address_of(entry.ifa_addr) }.map(|address| (name, address)));
    }
    // SAFETY: the list came from `getifaddrs`, and nothing of it is used from here on.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// `address` points to a socket address of the length that its family has.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: every socket address begins with its family (the caller vouches for the rest).
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in; it may lie unaligned.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6; it may lie unaligned.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let host = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            (!host.is_unicast_link_local()).then_some(IpAddr::V6(host))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_an_address_is_found() {
        assert_eq!(interface_of("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(interface_of("192.0.2.77".parse().unwrap()), None);
    }

    #[test]
    fn there_is_no_way_to_this_host_itself() {
        for host in ["127.0.0.1", "127.0.0.2", "::1"] {
            assert_eq!(way_to(host.parse().unwrap()), None, "{host}");
        }
    }

    #[test]
    fn the_wildcard_stands_for_interfaces_and_a_host_for_itself() {
        assert_eq!(reachable("127.0.0.1:7".parse().unwrap()), ["127.0.0.1:7"]);
        assert_eq!(reachable("[::1]:7".parse().unwrap()), ["[::1]:7"]);
        let all = reachable("0.0.0.0:7000".parse().unwrap());
        assert_eq!(all.last().map(String::as_str), Some("127.0.0.1:7000"));
        assert!(all.iter().all(|address| !address.starts_with("0.0.0.0")));
        let only = |name| reachable_by("0.0.0.0:7000".parse().unwrap(), Some(name));
        assert!(only("lo").iter().all(|address| all.contains(address)));
        assert!(only("nosuch0").is_empty());
    }
}
