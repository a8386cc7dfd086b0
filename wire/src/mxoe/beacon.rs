//! Beacons: RAW packets of 64 bytes by which interfaces find each other.
//!
//! Their fields are in the network's order, whatever the order of all other fields on the wire: on hosts with Open-MX a
//! program of its own writes them, which knows nothing of the driver's.
//!
//! Between ours a beacon's tail, which Open-MX leaves zero and never reads, says that more is understood
//! than MXoE. Nowhere else does a foreign host keep a place that is safe for that: pads carry old bytes.

use ropewalk_base::checksum::crc32c;
use zerocopy::{BigEndian, FromBytes, IntoBytes};

use super::ethernet::Station;
use super::layouts::BeaconPacket;
use super::{INDEX_BYTES, Order};

/// Bytes of a beacon's body: those of the frame without the Ethernet header.
pub const BEACON_BYTES: usize = 50;
/// The offsets in the body at which the beacon's own fields and its tail begin.
const FIELDS: usize = INDEX_BYTES + 16;
const TAIL: usize = FIELDS + size_of::<BeaconPacket<BigEndian>>();
/// The first bytes of the tail in our beacons.
const MARK: [u8; 4] = *b"Rope";

/// The content of a beacon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beacon {
    pub station: Station,
    /// Chosen at random when the sender began: another one means that it began again.
    pub serial: u32,
    /// The sender is one of ours.
    pub ours: Option<Announcement>,
}

/// The content of the tail in our beacons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Of the packets that only ours understand.
    pub version: u16,
    /// Bits of what is understood beyond that version.
    pub features: u16,
    /// Identifies host and network namespace, so that peers who share memory know each other.
    pub host: u64,
}

impl Beacon {
    /// From what follows the type of a RAW packet; `None` where it is something else for raw endpoints.
    pub fn parse(rest: &[u8]) -> Option<Beacon> {
        // `rest` begins behind index and type.
        let fields = rest.get(FIELDS - INDEX_BYTES - 1..)?;
        let (fields, _) = BeaconPacket::<BigEndian>::ref_from_prefix(fields).ok()?;
        let (high, low, serial) =
            (fields.nic_high.get(), fields.nic_low.get(), fields.serial.get());
        // Mappers of native MX send RAW packets, too: a beacon has zeroes before its fields.
        let zeroes = rest[..FIELDS - INDEX_BYTES - 1].iter().all(|byte| *byte == 0);
        let station = Station::from_nic_id(u64::from(high) << 32 | u64::from(low))?;
        let tail = rest.get(TAIL - INDEX_BYTES - 1..)?;
        zeroes.then(|| Beacon { station, serial, ours: Announcement::parse(tail) })
    }

    /// Its body, which needs no padding.
    pub fn emit(&self) -> [u8; BEACON_BYTES] {
        let mut body = [0; BEACON_BYTES];
        body[INDEX_BYTES] = super::Type::Raw as u8;
        let nic = self.station.nic_id();
        let (nic_high, nic_low) = (((nic >> 32) as u32).into(), (nic as u32).into());
        let fields = BeaconPacket::<BigEndian> { nic_high, nic_low, serial: self.serial.into() };
        body[FIELDS..TAIL].copy_from_slice(fields.as_bytes());
        if let Some(ours) = self.ours {
            body[TAIL..].copy_from_slice(&ours.emit());
        }
        body
    }
}

impl Announcement {
    /// Feature: endpoints of MX that speak MXoE with others take our own packets as well, under the same numbers.
    pub const TAKES_OURS: u16 = 1;
    /// Feature: the fields of its MXoE are in the order [`Order::Little`].
    const SPEAKS_LITTLE: u16 = 2;

    /// Of a host whose MXoE has its fields in this order.
    #[must_use]
    pub fn in_order(mut self, order: Order) -> Announcement {
        match order {
            Order::Big => self.features &= !Announcement::SPEAKS_LITTLE,
            Order::Little => self.features |= Announcement::SPEAKS_LITTLE,
        }
        self
    }

    /// The order of the fields of its MXoE.
    pub fn order(self) -> Order {
        if self.features & Announcement::SPEAKS_LITTLE == 0 { Order::Big } else { Order::Little }
    }

    fn parse(tail: &[u8]) -> Option<Announcement> {
        let tail: &[u8; BEACON_BYTES - TAIL] = tail.first_chunk()?;
        let [a, b, c, d, v0, v1, f0, f1, host @ .., s0, s1, s2, s3] = *tail;
        let sound = [a, b, c, d] == MARK
            && crc32c(&tail[..tail.len() - 4]) == u32::from_be_bytes([s0, s1, s2, s3]);
        sound.then(|| Announcement {
            version: u16::from_be_bytes([v0, v1]),
            features: u16::from_be_bytes([f0, f1]),
            host: u64::from_be_bytes(host),
        })
    }

    fn emit(self) -> [u8; BEACON_BYTES - TAIL] {
        let mut tail = [0; BEACON_BYTES - TAIL];
        tail[..4].copy_from_slice(&MARK);
        tail[4..6].copy_from_slice(&self.version.to_be_bytes());
        tail[6..8].copy_from_slice(&self.features.to_be_bytes());
        tail[8..16].copy_from_slice(&self.host.to_be_bytes());
        let sum = crc32c(&tail[..16]);
        tail[16..].copy_from_slice(&sum.to_be_bytes());
        tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mxoe::{Dialect, Packet};

    fn beacon(ours: Option<Announcement>) -> Beacon {
        Beacon { station: "02:00:00:00:00:01".parse().unwrap(), serial: 0x327b_23c6, ours }
    }

    fn read(body: &[u8], order: Order) -> Option<Beacon> {
        let dialect = Dialect::native(1500, order).unwrap();
        let Ok((_, Packet::Raw(rest))) = Packet::parse(body, dialect) else { return None };
        Beacon::parse(rest)
    }

    #[test]
    fn a_beacon_says_the_same_in_whatever_order_the_rest_is_written() {
        let body = beacon(None).emit();
        // Bytes 32 to 43 of the frame, as Open-MX's daemon writes them.
        let expected = [0, 0, 2, 0, 0, 0, 0, 1, 0x32, 0x7b, 0x23, 0xc6];
        assert_eq!(body[FIELDS..TAIL], expected);
        for order in [Order::Big, Order::Little] {
            assert_eq!(read(&body, order), Some(beacon(None)));
            let ours = Announcement { version: 1, features: 1, host: 5 }.in_order(order);
            let heard = read(&beacon(Some(ours)).emit(), order.other()).and_then(|it| it.ours);
            assert_eq!(heard.map(Announcement::order), Some(order));
            assert_eq!(ours.in_order(Order::Big).features, 1);
        }
    }

    #[test]
    fn a_beacon_reads_as_it_was_written() {
        let ours = Announcement { version: 1, features: 0x8001, host: 77 << 40 };
        for order in [Order::Big, Order::Little] {
            for beacon in [beacon(None), beacon(Some(ours))] {
                assert_eq!(read(&beacon.emit(), order), Some(beacon));
            }
        }
    }

    #[test]
    fn other_tails_and_other_raw_packets_are_told_apart() {
        let ours = Announcement { version: 1, features: 0, host: 1 };
        let mut body = beacon(Some(ours)).emit();
        body[BEACON_BYTES - 1] ^= 1;
        assert_eq!(read(&body, Order::Big), Some(beacon(None)));
        let mut mapper = beacon(None).emit();
        mapper[7] = 1;
        assert_eq!(read(&mapper, Order::Big), None);
        assert_eq!(read(&mapper[..49], Order::Big), None);
    }
}
