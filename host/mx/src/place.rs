//! The place of a NIC's endpoints on its network.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ropewalk_wire::mxoe::Station;

/// The port of endpoint 0 where no other is named.
pub const PORT: u16 = 7100;

/// The place of a NIC's endpoints: a station on Ethernet, or an address of UDP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Ether(Station),
    Udp(SocketAddr),
}

impl Place {
    /// The number of the card that stands for the place.
    pub fn nic_id(&self) -> u64 {
        match self {
            Place::Ether(station) => station.nic_id(),
            Place::Udp(address) => nic_id_of_address(*address),
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

/// The address of UDP at which an endpoint listens; `None` beyond the last port.
pub fn endpoint_address(base: SocketAddr, endpoint: u32) -> Option<SocketAddr> {
    let port = base.port().checked_add(u16::try_from(endpoint).ok()?)?;
    Some(SocketAddr::new(base.ip(), port))
}

/// `02` and 40 bits made of address and port.
fn nic_id_of_address(address: SocketAddr) -> u64 {
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
                "'{text}' is not an address; write it like udp://10.0.0.1:7100 or 02:00:00:00:00:01"
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
        let nic_id = |text: &str| text.parse::<Place>().unwrap().nic_id();
        assert_eq!(nic_id("02:00:00:00:00:01"), 0x0200_0000_0001);
        let own = nic_id("udp://10.0.0.1:7100");
        assert_eq!(own >> 40, 0x02);
        assert!(own != nic_id("udp://10.0.0.1:7101") && own != nic_id("udp://10.0.0.2:7100"));
        assert_eq!(own, nic_id("udp://[::ffff:10.0.0.1]:7100"));
    }
}
