//! The place of the other side: an address, or the name of a board that an agent knows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ropewalk_host_mx::agent::{AgentClient, AgentError};
use ropewalk_net::{Address, PeerId, modules};
use ropewalk_rail::{Account, Rail, names};
use ropewalk_rail_ether::{Interface, interfaces, parse_address};
use ropewalk_wire::mxoe::Station;

use super::serve::BOARD;
use super::side::{Side, board};
use crate::report::complain;
use crate::stop::Stop;

/// An agent that has just begun knows everybody within seconds.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(50);

/// The user's name for the other side.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Called {
    /// An address, with its schemes.
    Address(String),
    /// A board by its name, and the endpoint there with what follows it.
    Name(String, String),
}

fn called(text: &str) -> anyhow::Result<Called> {
    if text.contains("://") {
        return Ok(Called::Address(text.to_string()));
    }
    let (name, endpoint) = text.rsplit_once('/').filter(|it| !it.0.is_empty()).with_context(|| {
        format!(
            "'{text}' is not the address of a peer; write it like node2:0/0, 02:00:00:00:00:07/0 \
             or udp://10.0.0.1:7100")
    })?;
    let number = endpoint.split_once('?').map_or(endpoint, |it| it.0);
    if number.parse::<u8>().is_err() {
        bail!("'{number}' is not the number of an endpoint; write the peer like node2:0/0");
    }
    let station = name.split_once('%').map_or(name, |it| it.0);
    Ok(match station.parse::<Station>() {
        Ok(_) => Called::Address(format!("mxoe://{text}")),
        // Boards are called HOST:NUMBER, and most hosts have one.
        Err(_) if name.contains(':') => Called::Name(name.to_string(), endpoint.to_string()),
        Err(_) => Called::Name(format!("{name}:0"), endpoint.to_string()),
    })
}

/// Whether an address is one at which somebody can be, as far as it tells by itself.
fn check(address: &Address) -> anyhow::Result<()> {
    for (scheme, place) in address.parts() {
        let (place, said) = place.split_once('?').unwrap_or((place, ""));
        let example = match scheme {
            "ether" | "mxoe" => "02:00:00:00:00:07/0",
            _ => "10.0.0.1:7100",
        };
        if !modules::makes_sense(scheme, place) {
            bail!("'{place}' is not an address of {scheme}://; write it like {scheme}://{example}");
        }
        let station = parse_address(place).map(|(station, _)| station);
        if matches!(scheme, "ether" | "mxoe") && station.is_some_and(|it| it.0[0] & 1 == 1) {
            bail!("'{place}' is a multicast address; give the address of one card");
        }
        if !said.is_empty() && (scheme != "mxoe" || !is_key(said)) {
            bail!(
                "'{said}' is not a valid setting in the address of a peer; mxoe:// takes \
                 ?key=NUMBER"
            );
        }
    }
    Ok(())
}

fn is_key(said: &str) -> bool {
    let key = said.strip_prefix("key=");
    key.is_some_and(|key| match key.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).is_ok(),
        None => key.parse::<u32>().is_ok(),
    })
}

/// Whether an address can be reached by a rail of this scheme that is there: it would be measured by another one
/// that the user has not said.
fn check_way(address: &Address, scheme: &str, card: Option<&Interface>) -> anyhow::Result<()> {
    let Some((_, place)) = address.parts().find(|part| part.0 == scheme) else {
        bail!(
            "--board uses {scheme}://, but the peer's address is {address}: use the same scheme \
             for both"
        );
    };
    let station = place.split('/').next().unwrap_or_default();
    match (station.split_once('%'), card) {
        (Some((_, named)), Some(card)) if named != card.name => {
            bail!(
                "--board uses the interface {}, but the peer's address names %{named}: use the \
                 same interface for both",
                card.name
            )
        }
        _ => Ok(()),
    }
}

/// Frames do not go from a card to itself: an error where that is the only way.
fn check_other(address: &Address, own: &Account, card: &Interface) -> anyhow::Result<()> {
    let place = |at: &str| parse_address(at.split_once('?').map_or(at, |it| it.0));
    let is_there = |(scheme, at): (&str, &str)| {
        let station = place(at).map(|(station, _)| station);
        matches!(scheme, "ether" | "mxoe") && station == Some(card.station)
    };
    let is_itself = |(scheme, at): (&str, &str)| {
        scheme == own.scheme && place(at) == Some((card.station, own.endpoint))
    };
    if address.parts().any(is_itself) {
        bail!("this is the command's own address: give the address of the other side");
    }
    if address.parts().all(is_there) {
        bail!(
            "{} is also the card of this command ({}), and a card does not receive its own frames: \
             start the other side on another card, in another network namespace or on another host",
            card.station,
            card.name
        );
    }
    Ok(())
}

/// Whether the host of an address is known, and there is a way to it, as far as this host knows: the network
/// would only say that nobody answers.
fn check_host(scheme: &str, place: &str) -> anyhow::Result<()> {
    if !matches!(scheme, "udp" | "tcp") {
        return Ok(());
    }
    let found: Vec<SocketAddr> = match names::parse(place) {
        Some(names::Target::Numeric(address)) => vec![address],
        _ => {
            let found = place.to_socket_addrs();
            found.map_err(|error| anyhow!("{scheme}://{place}: {error}"))?.collect()
        }
    };
    let mut why = None;
    for address in found {
        let own: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        match UdpSocket::bind((own, 0)).and_then(|socket| socket.connect(address)) {
            Ok(()) => return Ok(()),
            Err(error) => why = Some(error),
        }
    }
    let why = why.map_or("the host has no address".to_string(), |error| error.to_string());
    bail!("{scheme}://{place}: {why}")
}

/// This side, and whoever waits at `to`.
pub fn meet(to: &str, own: Option<&str>, stop: &Stop) -> anyhow::Result<(Side, PeerId)> {
    let called = called(to)?;
    if let Called::Address(text) = &called {
        check(&Address::parse(text)?)?;
    }
    let rail = match (own, &called) {
        (Some(own), _) => board(own)?,
        (None, Called::Address(text)) => rail_to(&Address::parse(text)?)?,
        (None, Called::Name(..)) => board(BOARD)?,
    };
    let (account, scheme) = (rail.account(), rail.scheme());
    let interface = account.as_ref().and_then(|account| account.interface);
    let side = Side::open(rail, stop.clone())?;
    let address = match called {
        Called::Address(text) => text,
        Called::Name(name, endpoint) => {
            let interface = interface.context(
                "only mxoe:// finds hosts by name: give --board mxoe://INTERFACE, or the peer's \
                 address",
            )?;
            format!("mxoe://{}/{endpoint}", find(&name, interface, stop)?)
        }
    };
    let address = Address::parse(&address)?;
    let card = interface.and_then(|index| interfaces().into_iter().find(|it| it.index == index));
    if own.is_some() {
        check_way(&address, scheme, card.as_ref())?;
    }
    if let (Some(account), Some(card)) = (account, card) {
        check_other(&address, &account, &card)?;
    }
    let ways: Vec<_> = address.parts().map(|(scheme, place)| check_host(scheme, place)).collect();
    if ways.iter().all(Result::is_err) {
        ways.into_iter().collect::<anyhow::Result<()>>()?;
    }
    side.endpoint.reach(&address)?;
    let peer = side.endpoint.lookup(&address).map_err(|fault| anyhow!("{to}: {fault}"))?;
    Ok((side, peer))
}

/// A rail that reaches one of the ways of an address.
fn rail_to(address: &Address) -> anyhow::Result<Box<dyn Rail>> {
    let mut refused = None;
    for (scheme, place) in address.parts() {
        match modules::open_to_call(scheme, place) {
            Ok(rail) => return Ok(rail),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.map_or_else(|| anyhow!("the address is empty"), Into::into))
}

/// The card of this name, as the agent of an interface knows it.
fn find(name: &str, interface: u32, stop: &Stop) -> anyhow::Result<Station> {
    let begin = Instant::now();
    let mut said = false;
    while begin.elapsed() < PATIENCE {
        stop.check()?;
        // It has begun with our endpoint, perhaps a moment ago. Our own board is nobody to measure with.
        if let Some(mut agent) = AgentClient::of(interface) {
            let others = agent.peers()?.into_iter().filter(|peer| !peer.is_own);
            let mut called = others.filter(|peer| peer.name.as_deref() == Some(name));
            match (called.next(), called.next()) {
                (None, _) => {}
                (Some(peer), None) => return Ok(peer.station),
                (Some(_), Some(_)) => return Err(AgentError::Several.into()),
            }
        }
        if !std::mem::replace(&mut said, true) {
            complain!("looking for {name}");
        }
        std::thread::sleep(LOOK);
    }
    bail!("no host with the name {name} was found; `ropewalk mx peers` lists the hosts")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_peer_can_be_at_is_said_before_it_is_called() {
        ropewalk_host_mx::module::register();
        let check = |text: &str| check(&Address::parse(text).unwrap()).map_err(|it| it.to_string());
        for good in ["udp://10.0.0.1:7", "mxoe://02:00:00:00:00:07%eth1/3?key=0x10", "shm://there"]
        {
            assert_eq!(check(good), Ok(()));
        }
        for (bad, why) in [
            ("udp://10.0.0.1", "like udp://10.0.0.1:7100"),
            ("ether://eth0/x", "like ether://02:00:00:00:00:07/0"),
            ("mxoe://02:00:00:00:00:07/300", "like mxoe://02:00:00:00:00:07/0"),
            ("mxoe://02:00:00:00:00:07/3?key=x", "?key=NUMBER"),
            ("ether://02:00:00:00:00:07/3?key=1", "?key=NUMBER"),
            ("ether://ff:ff:ff:ff:ff:ff/0", "multicast"),
            ("mxoe://01:00:5e:00:00:01/0", "multicast"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_peer_is_an_address_or_the_name_of_a_board() {
        let address = |text: &str| Called::Address(text.to_string());
        let name = |name: &str, end: &str| Called::Name(name.to_string(), end.to_string());
        let read = |text: &str| called(text).ok();
        assert_eq!(read("udp://10.0.0.1:7"), Some(address("udp://10.0.0.1:7")));
        let station = "02:00:00:00:00:07/3";
        assert_eq!(read(station), Some(address(&format!("mxoe://{station}"))));
        let through = "02:00:00:00:00:07%eth1/3?key=5";
        assert_eq!(read(through), Some(address(&format!("mxoe://{through}"))));
        assert_eq!(read("node2:1/4"), Some(name("node2:1", "4")));
        assert_eq!(read("node2/4?key=0x10"), Some(name("node2:0", "4?key=0x10")));
        assert_eq!([read("node2"), read("node2/x"), read("/3"), read("")], [const { None }; 4]);
        let error = called("node2").unwrap_err().to_string();
        assert!(error.contains("node2:0/0"), "{error}");
    }
}
