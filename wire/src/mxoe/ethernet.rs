//! The 14 bytes in front of a body, and the stations that they name.

use std::fmt;
use std::str::FromStr;

/// Bytes of the header.
pub const ETHERNET_BYTES: usize = 14;
/// The EtherType of MXoE.
pub const ETHERTYPE: u16 = 0x86df;
/// Shortest frame, without its check sequence: shorter ones are padded.
pub const FRAME_BYTES_MIN: usize = 60;

/// The address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Station(pub [u8; 6]);

impl Station {
    /// Everybody.
    pub const BROADCAST: Station = Station([0xff; 6]);

    /// The same as a number, the first byte most significant: the id of a network card in MX.
    pub fn nic_id(self) -> u64 {
        self.0.iter().fold(0, |id, byte| id << 8 | u64::from(*byte))
    }

    /// From the number; `None` where it has more than 48 bits.
    pub fn from_nic_id(id: u64) -> Option<Station> {
        let [0, 0, bytes @ ..] = id.to_be_bytes() else { return None };
        Some(Station(bytes))
    }
}

impl fmt::Display for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A text that is no address of an interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address of an interface; write one like 02:00:00:00:00:01")]
pub struct StationError(String);

impl FromStr for Station {
    type Err = StationError;

    fn from_str(text: &str) -> Result<Station, StationError> {
        let bad = || StationError(text.to_string());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(bad)?;
            let digits = part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits).ok_or_else(bad)?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Station(bytes)) }
    }
}

/// Destination and source of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ethernet {
    pub destination: Station,
    pub source: Station,
    pub ethertype: u16,
}

impl Ethernet {
    /// Header and body of a frame; `None` where it is too short.
    pub fn split(frame: &[u8]) -> Option<(Ethernet, &[u8])> {
        let (header, body) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, high, low] = *header;
        let ethernet = Ethernet {
            destination: Station([d0, d1, d2, d3, d4, d5]),
            source: Station([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([high, low]),
        };
        Some((ethernet, body))
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; ETHERNET_BYTES] {
        let mut bytes = [0; ETHERNET_BYTES];
        bytes[..6].copy_from_slice(&self.destination.0);
        bytes[6..12].copy_from_slice(&self.source.0);
        bytes[12..].copy_from_slice(&self.ethertype.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_is_text_number_and_bytes() {
        let station: Station = "02:00:00:00:00:01".parse().unwrap();
        assert_eq!(station.nic_id(), 0x0200_0000_0001);
        assert_eq!(Station::from_nic_id(0x0200_0000_0001), Some(station));
        assert_eq!(station.to_string(), "02:00:00:00:00:01");
        assert_eq!(Station::from_nic_id(1 << 48), None);
        for bad in
            ["", "02", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:+1", "0200::"]
        {
            assert!(bad.parse::<Station>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_header_is_its_bytes() {
        let frame: Vec<u8> = (0..20).collect();
        let (ethernet, body) = Ethernet::split(&frame).unwrap();
        assert_eq!(ethernet.to_bytes(), frame[..14]);
        assert_eq!(body, &frame[14..]);
        assert!(Ethernet::split(&frame[..13]).is_none());
    }
}
