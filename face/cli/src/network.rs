//! Networks: the places where servers listen, the addresses that can be called, and the rails that a process
//! begins with. Rails come from the modules of the message layer, by the scheme of an address. The rails that a
//! process calls by are opened when it calls.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use ropewalk_net::Address;
use ropewalk_net::modules::{self, Listen as At};
use ropewalk_rail::Rail;
use ropewalk_rail::binding::Binding;
use ropewalk_rpc::servers;

use crate::security;

/// The usual address on which a metadata server listens, and at which clients look for it.
pub const LISTEN: &str = "tcp://127.0.0.1:7700";
/// The scheme of an address that names none.
const USUAL: &str = "tcp";

/// A place where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// An address and a port of this host, and the interface and source address of its sockets; port 0: any that is
    /// free.
    Socket { scheme: String, address: SocketAddr, local: Binding },
    /// A place that the module of the scheme understands: `eth0/3`, a name for shared memory.
    Named { scheme: String, place: String },
}

impl Listen {
    fn scheme(&self) -> &str {
        match self {
            Listen::Socket { scheme, .. } | Listen::Named { scheme, .. } => scheme,
        }
    }

    /// Whether other hosts can reach it.
    fn is_open(&self) -> bool {
        match self {
            Listen::Socket { address, .. } => !address.ip().is_loopback(),
            Listen::Named { scheme, .. } => scheme != "shm",
        }
    }

    /// A place beside it that is free.
    fn beside(&self) -> Listen {
        match self.clone() {
            Listen::Socket { scheme, mut address, local } => {
                address.set_port(0);
                Listen::Socket { scheme, address, local }
            }
            Listen::Named { scheme, place } => {
                let interface = place.split('/').next().unwrap_or_default();
                let place = if scheme == "ether" { interface } else { "" };
                Listen::Named { scheme, place: place.to_string() }
            }
        }
    }

    /// The address that this says to whoever calls, if it does.
    pub fn to_call(&self) -> Option<String> {
        match self {
            Listen::Socket { address, .. } if address.port() == 0 => None,
            Listen::Socket { scheme, address, .. } => Some(format!("{scheme}://{address}")),
            Listen::Named { scheme, place } if scheme != "shm" || place.is_empty() => None,
            listen => Some(listen.to_string()),
        }
    }

    fn open(&self) -> anyhow::Result<Box<dyn Rail>> {
        let (scheme, place) = match self {
            Listen::Socket { scheme, address, local } => (scheme, placed(address, local)),
            Listen::Named { scheme, place } => (scheme, place.clone()),
        };
        Ok(modules::open(scheme, &At::At { address: &place, exactly: true })?)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Socket { scheme, address, local } => {
                write!(f, "{scheme}://{}", placed(address, local))
            }
            Listen::Named { scheme, place } => write!(f, "{scheme}://{place}"),
        }
    }
}

/// A place of sockets, as people write it.
fn placed(address: &SocketAddr, local: &Binding) -> String {
    if local.is_free() { address.to_string() } else { format!("{address}?{local}") }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let (scheme, place) = text.split_once("://").unwrap_or((USUAL, text));
        let scheme = scheme.to_ascii_lowercase();
        if !modules::schemes().contains(&scheme.as_str()) {
            return Err(no_network(&scheme));
        }
        if scheme != "tcp" && scheme != "udp" {
            return Ok(Listen::Named { scheme, place: place.to_string() });
        }
        let (place, settings) = place.split_once('?').unwrap_or((place, ""));
        let local = Binding::parse(settings).map_err(|error| error.to_string())?;
        let address = place.parse().map_err(|_| {
            let bare = place.trim_start_matches('[').trim_end_matches(']');
            let said = match (bare.parse::<IpAddr>(), place.rsplit_once(':')) {
                (Ok(host), _) => {
                    let try_this = SocketAddr::new(host, PORT);
                    return format!("the port is missing: write {scheme}://{try_this}");
                }
                (_, Some((host, port))) if port.parse::<u16>().is_ok() => {
                    format!("'{host}' is not a numeric address")
                }
                (_, Some((_, port))) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                    format!("'{port}' is not a port (0 to 65535)")
                }
                _ => "an address and a port are needed".to_string(),
            };
            format!("{said}; write it like 127.0.0.1:7700 or [::1]:7700")
        })?;
        Ok(Listen::Socket { scheme, address, local })
    }
}

/// The usual places on which a metadata server listens.
pub fn usual() -> Vec<Listen> {
    vec![LISTEN.parse().expect("it is one")]
}

/// The first list that is not empty; else the usual places.
pub fn first(lists: &[&[Listen]]) -> Vec<Listen> {
    let said = lists.iter().find(|list| !list.is_empty());
    said.map_or_else(usual, |list| list.to_vec())
}

/// Free places beside all of these.
pub fn beside(listen: &[Listen]) -> Vec<Listen> {
    listen.iter().map(Listen::beside).collect()
}

/// A list as people write it.
pub fn list(listen: &[Listen]) -> String {
    let texts: Vec<String> = listen.iter().map(Listen::to_string).collect();
    texts.join(",")
}

/// The rails of a server. Peers try its addresses in this order: those of this host by memory first.
pub fn server_rails(listen: &[Listen], insecure: bool) -> anyhow::Result<Vec<Box<dyn Rail>>> {
    let is_exposed = |listen: &&Listen| {
        listen.is_open() && !insecure && !security::is_protected(listen.scheme())
    };
    if let Some(open) = listen.iter().find(is_exposed) {
        match security::is_keyed() {
            true => bail!(
                "{open} can be reached by other hosts, and payload mode crc does not keep those on the way \
                 from changing what is read and written: use --payload secure or auth, listen on \
                 127.0.0.1 or [::1], or allow it by --insecure"
            ),
            false => bail!(
                "{open} can be reached by other hosts, and the servers do not authenticate clients: \
                 give --key-file, listen on 127.0.0.1 or [::1], or allow it by --insecure"
            ),
        }
    }
    let memory = Listen::Named { scheme: "shm".to_string(), place: String::new() };
    let memory = listen.iter().all(|listen| listen.scheme() != "shm").then_some(memory);
    memory.iter().chain(listen).map(Listen::open).collect()
}

/// The others that can get in if a cluster listens at these places, one sentence each. The kernel tells a
/// server the user of a process that calls it by TCP from its own host. Nobody tells a server more.
pub fn who_gets_in(listen: &[Listen]) -> Vec<String> {
    if security::is_keyed() {
        let who = "whoever has a key of the cluster can use it, and a host with a key speaks for \
                   its users";
        let mut sentences = vec![who.to_string()];
        let bare = |at: &&Listen| at.is_open() && !security::is_protected(at.scheme());
        sentences.extend(listen.iter().filter(bare).map(|at| {
            format!(
                "whoever can change packets on the way to {at} can change what is read and written"
            )
        }));
        return sentences;
    }
    let told = ropewalk_net::host::tells_users();
    let mut sentences: Vec<String> = Vec::new();
    for at in listen {
        let who = match at {
            _ if at.is_open() => format!("everybody who reaches {at}"),
            Listen::Named { .. } => continue,
            Listen::Socket { scheme, .. } if scheme == "tcp" && told => {
                let own = "other users of this host can use the cluster over tcp, each with their \
                     own rights";
                sentences.push(own.to_string());
                continue;
            }
            Listen::Socket { scheme, .. } if scheme == "tcp" => {
                let nobody = "no user of this host can connect over tcp: the kernel does not tell \
                     the servers which user connects";
                sentences.push(nobody.to_string());
                continue;
            }
            Listen::Socket { scheme, .. } => format!("every user of this host (over {scheme})"),
        };
        sentences.push(format!("{who} can use the cluster, and act as any user, also as root"));
    }
    sentences.sort_unstable();
    sentences.dedup();
    sentences
}

/// The rails of a process that only connects, before it has called anybody.
pub fn client_rails() -> anyhow::Result<Vec<Box<dyn Rail>>> {
    Ok(vec![modules::open("shm", &At::No)?])
}

/// The port of a metadata server of which none is said.
const PORT: u16 = 7700;

/// The addresses of metadata servers as people write them, with what they leave out: `tcp://` and the port 7700.
/// Fails where nothing can come of it.
pub fn complete_address(address: &str) -> anyhow::Result<String> {
    let servers = address.split(servers::BETWEEN).filter(|server| !server.trim().is_empty());
    let servers: Vec<String> = servers.map(complete_server).collect();
    if servers.is_empty() {
        check_address("")?;
    }
    servers.iter().try_for_each(|server| check_address(server))?;
    let completed = servers.join(&servers::BETWEEN.to_string());
    servers::addresses(&completed)?;
    Ok(completed)
}

fn complete_server(server: &str) -> String {
    let parts = server.split([',', ' ', '\t', '\n', '\r']).filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.map(complete_part).collect();
    parts.join(",")
}

fn complete_part(part: &str) -> String {
    let (scheme, place) = part.split_once("://").unwrap_or((USUAL, part));
    if !matches!(scheme, "tcp" | "udp") {
        return part.to_string();
    }
    let (place, options) = place.split_at(place.find('?').unwrap_or(place.len()));
    let place = place.trim_end_matches('/');
    let bare = place.trim_start_matches('[').trim_end_matches(']');
    let place = match bare.parse::<IpAddr>() {
        Ok(IpAddr::V6(host)) => format!("[{host}]:{PORT}"),
        _ if place.is_empty() || place.contains(':') => place.to_string(),
        _ => format!("{place}:{PORT}"),
    };
    format!("{scheme}://{place}{options}")
}

/// Fails where nothing can come of an address, however long one waits: no part of it has a network
/// that is known, and a name that resolves.
fn check_address(address: &str) -> anyhow::Result<()> {
    let parsed = Address::parse(address)
        .with_context(|| format!("'{address}' is not the address of a metadata server"))?;
    let mut wrong = None;
    for (scheme, place) in parsed.parts() {
        match check_part(scheme, place) {
            Ok(()) => return Ok(()),
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    wrong.map_or(Ok(()), Err)
}

fn no_network(scheme: &str) -> String {
    let known: Vec<String> = modules::schemes().iter().map(|it| format!("{it}://")).collect();
    format!("unknown scheme '{scheme}': use one of {}", known.join(", "))
}

fn check_part(scheme: &str, place: &str) -> anyhow::Result<()> {
    let url = format!("{scheme}://{place}");
    match scheme {
        _ if !modules::schemes().contains(&scheme) => bail!(no_network(scheme)),
        "tcp" | "udp" => {
            let (host, port) = place.rsplit_once(':').unwrap_or((place, ""));
            if port.is_empty() && !host.is_empty() {
                bail!("'{url}' has no port: write {scheme}://{host}:{PORT}");
            }
            if host.is_empty() || !port.parse().is_ok_and(|port: u16| port != 0) {
                bail!("'{url}' needs a host and a port; write it like {scheme}://node1:7700");
            }
            let found = place.to_socket_addrs().map_err(|error| {
                let text = error.to_string();
                let cause = text.rsplit(": ").next().unwrap_or_default().to_string();
                anyhow!("cannot resolve the host name '{host}' in '{url}': {cause}")
            })?;
            match found.count() {
                0 => bail!("the host '{host}' in '{url}' has no address"),
                _ => Ok(()),
            }
        }
        _ if modules::makes_sense(scheme, place) => Ok(()),
        "ether" => bail!(
            "'{url}' needs a MAC address and an endpoint; copy the address that the server \
             printed, like ether://02:00:00:00:00:01/3"
        ),
        _ => bail!(
            "'{url}' is not the address of a server; copy the address that the server printed"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_to_listen_at_is_a_url_or_an_address_of_tcp() {
        let read = |text: &str| text.parse::<Listen>().expect(text).to_string();
        assert_eq!(read("127.0.0.1:7700"), "tcp://127.0.0.1:7700");
        for url in ["tcp://[::1]:7700", "udp://0.0.0.0:7001", "ether://eth0/3", "shm://build"] {
            assert_eq!(read(url), url);
        }
        let bound = "tcp://10.0.0.1:7700?interface=eth1&source=10.0.0.1";
        assert_eq!(read(bound), bound);
        let bound: Listen = bound.parse().expect("as before");
        assert_eq!(bound.beside().to_string(), "tcp://10.0.0.1:0?interface=eth1&source=10.0.0.1");
        assert_eq!(bound.to_call().as_deref(), Some("tcp://10.0.0.1:7700"));
        let error = |text: &str| text.parse::<Listen>().expect_err("it is wrong");
        assert!(error("localhost:7700").contains("'localhost' is not a numeric address"));
        assert!(error("udp://7700").contains("an address and a port are needed"));
        assert!(error("10.0.0.1:7?device=eth1").contains("interface=NAME, source=ADDRESS"));
        assert!(error("gm://node:1").contains("unknown scheme 'gm'"));
        assert!(error("gm://node:1").contains("ether://"));
        assert!(error("mxoe://eth0/3").contains("unknown scheme 'mxoe'"));
    }

    #[test]
    fn what_people_leave_out_of_an_address_is_the_usual() {
        for (said, meant) in [
            ("127.0.0.1", "tcp://127.0.0.1:7700"),
            ("127.0.0.1:8", "tcp://127.0.0.1:8"),
            ("localhost", "tcp://localhost:7700"),
            ("::1", "tcp://[::1]:7700"),
            ("[::1]", "tcp://[::1]:7700"),
            ("[::1]:8", "tcp://[::1]:8"),
            ("udp://127.0.0.1", "udp://127.0.0.1:7700"),
            ("tcp://127.0.0.1:9/\n", "tcp://127.0.0.1:9"),
            ("127.0.0.1?node=n1", "tcp://127.0.0.1:7700?node=n1"),
            ("127.0.0.1, shm://here", "tcp://127.0.0.1:7700,shm://here"),
            (
                "127.0.0.1,[::1]; 127.0.0.1:8;",
                "tcp://127.0.0.1:7700,tcp://[::1]:7700;tcp://127.0.0.1:8",
            ),
        ] {
            assert_eq!(complete_address(said).expect(said), meant);
        }
        for wrong in ["gm://node1", "", " ; ", "127.0.0.1;gm://node1"] {
            assert!(complete_address(wrong).is_err(), "{wrong}");
        }
        let error = |text: &str| text.parse::<Listen>().expect_err("it has no port");
        assert_eq!(error("10.0.0.1"), "the port is missing: write tcp://10.0.0.1:7700");
        assert_eq!(error("udp://[::1]"), "the port is missing: write udp://[::1]:7700");
    }

    #[test]
    fn a_free_place_beside_another_keeps_the_network_and_the_interface() {
        let read = |text: &str| text.parse::<Listen>().expect(text);
        let beside = |text: &str| read(text).beside().to_string();
        assert_eq!(beside("udp://10.0.0.1:7001"), "udp://10.0.0.1:0");
        assert_eq!(beside("ether://eth0/3"), "ether://eth0");
        assert_eq!(beside("shm://build"), "shm://");
        let open = ["udp://10.0.0.1:0", "ether://eth0", "0.0.0.0:7", "[::1]:7", "shm://x"];
        assert_eq!(open.map(|text| read(text).is_open()), [true, true, true, false, false]);
        let call = ["udp://10.0.0.1:0", "udp://10.0.0.1:9", "ether://eth0/3", "shm://x", "shm://"];
        let call = call.map(|text| read(text).to_call().is_some());
        assert_eq!(call, [false, true, false, true, false]);
    }

    #[test]
    fn addresses_of_which_nothing_can_come_are_refused_with_their_cause() {
        let error = |address| check_address(address).expect_err("it is wrong").to_string();
        assert!(error("tcp://nohost.invalid:7700").contains("'nohost.invalid'"));
        assert!(error("tcp://nohost.invalid:7700").contains("cannot resolve the host name "));
        assert!(error("ftp://node:1").contains("unknown scheme 'ftp'"));
        for place in ["tcp://:7700", "tcp://node1:0", "tcp://node1:70000"] {
            assert!(error(place).contains("needs a host and a port"), "{place}");
        }
        assert!(error("tcp://node1").contains("has no port: write tcp://node1:7700"));
        assert!(error("udp://node1").contains("udp://node1:7700"));
        assert!(error("udp://nohost.invalid:7700").contains("cannot resolve the host name "));
        assert!(error("ether://eth0/3").contains("ether://02:00:00:00:00:01/3"));
        for good in ["tcp://127.0.0.1:1", "tcp://[::1]:7", "shm://x", "tcp://localhost:1"] {
            check_address(good).expect("something may come of it");
        }
        for good in ["udp://127.0.0.1:1", "udp://localhost:1", "ether://02:00:00:00:00:01/3"] {
            check_address(good).expect("something may come of it");
        }
        // One part is enough.
        check_address("tcp://nohost.invalid:7700,shm://here").expect("shared memory is one");
    }
}
