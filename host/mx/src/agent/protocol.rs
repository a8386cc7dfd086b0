//! The protocol between the processes of a host and the agent. Each question and each answer is one packet: a
//! kind and fields at fixed offsets, in the byte order of the host, which both sides share.
//!
//! Invariant: the parser checks every read against the bytes that are there.

use std::time::Duration;

use ropewalk_transport::mxoe::Map;
use ropewalk_wire::mxoe::{Announcement, HOST_NAME_BYTES_MAX, Order, Station};

use super::known::KnownPeer;

/// Longest question and answer.
pub const QUESTION_BYTES_MAX: usize = 9 + HOST_NAME_BYTES_MAX;
pub const ANSWER_BYTES_MAX: usize = 32 << 10;

/// A question or notice to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question<'a> {
    /// This process has an endpoint, or has it no more.
    Hold(u8),
    Release(u8),
    /// Peers from an index on.
    Peers(u16),
    /// The card of this name; the name of this card.
    NicIdOf(&'a str),
    NameOf(u64),
    /// The interface shall be called so.
    SetName(&'a str),
    /// The counters of the agent.
    Counts,
    /// A mapper: this card is present, perhaps with this name; it is absent; the state of the map.
    AddPeer(u64, Option<&'a str>),
    RemovePeer(u64),
    SetMap(Map),
    /// The last statement of a mapper about the map.
    Map,
    /// The agent's entry for this card.
    Peer(u64),
    /// The time since the agent started.
    Age,
    /// This card is looked for.
    Seek(u64),
}

/// An answer of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// In the order of their indices; none: that was all.
    Peers(Vec<KnownPeer>),
    Nobody,
    /// Several have that name.
    Several,
    NicId(u64),
    Name(String),
    /// It is done.
    Done,
    /// Only root and the user that runs the agent may ask for that.
    NotPermitted,
    /// Unasked, to clients that hold endpoints: somebody has set this name for the interface.
    Called(String),
    /// A counter a line.
    Counts(String),
    Map(Map),
    /// In milliseconds.
    Age(u64),
}

impl<'a> Question<'a> {
    pub fn parse(bytes: &'a [u8]) -> Option<Question<'a>> {
        let (kind, rest) = bytes.split_first()?;
        let text = std::str::from_utf8;
        let fits = |it: &&str| it.len() < HOST_NAME_BYTES_MAX;
        let name = || text(rest).ok().filter(fits);
        Some(match kind {
            1 => Question::Hold(*rest.first()?),
            2 => Question::Release(*rest.first()?),
            3 => Question::Peers(u16::from_ne_bytes(*rest.first_chunk()?)),
            4 => Question::NicIdOf(name()?),
            5 => Question::NameOf(u64::from_ne_bytes(*rest.first_chunk()?)),
            6 => Question::SetName(name()?),
            7 => Question::Counts,
            8 => {
                let (nic_id, name) = rest.split_first_chunk()?;
                let name = text(name).ok().filter(fits)?;
                Question::AddPeer(
                    u64::from_ne_bytes(*nic_id),
                    Some(name).filter(|it| !it.is_empty()),
                )
            }
            9 => Question::RemovePeer(u64::from_ne_bytes(*rest.first_chunk()?)),
            10 => Question::SetMap(parse_map(rest)?),
            11 => Question::Map,
            12 => Question::Peer(u64::from_ne_bytes(*rest.first_chunk()?)),
            13 => Question::Age,
            14 => Question::Seek(u64::from_ne_bytes(*rest.first_chunk()?)),
            _ => return None,
        })
    }

    pub fn emit(&self) -> Vec<u8> {
        match self {
            Question::Hold(endpoint) => vec![1, *endpoint],
            Question::Release(endpoint) => vec![2, *endpoint],
            Question::Peers(from) => [&[3], &from.to_ne_bytes()[..]].concat(),
            Question::NicIdOf(name) => [&[4], name.as_bytes()].concat(),
            Question::NameOf(nic_id) => [&[5], &nic_id.to_ne_bytes()[..]].concat(),
            Question::SetName(name) => [&[6], name.as_bytes()].concat(),
            Question::Counts => vec![7],
            Question::AddPeer(nic_id, name) => {
                [&[8], &nic_id.to_ne_bytes()[..], name.unwrap_or_default().as_bytes()].concat()
            }
            Question::RemovePeer(nic_id) => [&[9], &nic_id.to_ne_bytes()[..]].concat(),
            Question::SetMap(map) => emit_map(10, map),
            Question::Map => vec![11],
            Question::Peer(nic_id) => [&[12], &nic_id.to_ne_bytes()[..]].concat(),
            Question::Age => vec![13],
            Question::Seek(nic_id) => [&[14], &nic_id.to_ne_bytes()[..]].concat(),
        }
    }
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        let (kind, mut rest) = bytes.split_first()?;
        let name = || String::from_utf8_lossy(rest).into_owned();
        Some(match kind {
            1 => {
                let mut peers = Vec::new();
                while !rest.is_empty() {
                    peers.push(take_peer(&mut rest)?);
                }
                Answer::Peers(peers)
            }
            2 => Answer::Nobody,
            3 => Answer::Several,
            4 => Answer::NicId(u64::from_ne_bytes(*rest.first_chunk()?)),
            5 => Answer::Name(name()),
            6 => Answer::Done,
            7 => Answer::NotPermitted,
            8 => Answer::Called(name()),
            9 => Answer::Counts(name()),
            10 => Answer::Map(parse_map(rest)?),
            11 => Answer::Age(u64::from_ne_bytes(*rest.first_chunk()?)),
            _ => return None,
        })
    }

    pub fn emit(&self) -> Vec<u8> {
        match self {
            Answer::Peers(peers) => {
                let mut bytes = vec![1];
                peers.iter().for_each(|peer| put_peer(peer, &mut bytes));
                bytes
            }
            Answer::Nobody => vec![2],
            Answer::Several => vec![3],
            Answer::NicId(nic_id) => [&[4], &nic_id.to_ne_bytes()[..]].concat(),
            Answer::Name(name) => [&[5], name.as_bytes()].concat(),
            Answer::Done => vec![6],
            Answer::NotPermitted => vec![7],
            Answer::Called(name) => [&[8], name.as_bytes()].concat(),
            Answer::Counts(lines) => [&[9], lines.as_bytes()].concat(),
            Answer::Map(map) => emit_map(10, map),
            Answer::Age(ms) => [&[11], &ms.to_ne_bytes()[..]].concat(),
        }
    }
}

fn parse_map(mut bytes: &[u8]) -> Option<Map> {
    let mapper = u64::from_ne_bytes(take(&mut bytes)?);
    let version = u32::from_ne_bytes(take(&mut bytes)?);
    let hosts = u32::from_ne_bytes(take(&mut bytes)?);
    let [complete] = take(&mut bytes)?;
    Some(Map { mapper, version, hosts, is_complete: complete != 0 })
}

fn emit_map(kind: u8, map: &Map) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend(map.mapper.to_ne_bytes());
    bytes.extend(map.version.to_ne_bytes());
    bytes.extend(map.hosts.to_ne_bytes());
    bytes.push(map.is_complete.into());
    bytes
}

/// Bits of a peer: its known properties.
const HAS_REVERSE: u8 = 1;
const HAS_SERIAL: u8 = 2;
const IS_OURS: u8 = 4;
const HAS_NAME: u8 = 8;
const IS_OWN: u8 = 16;
const IS_LITTLE: u8 = 32;
const HAS_ORDER: u8 = 64;

/// Bytes of a peer, at most.
pub const PEER_BYTES_MAX: usize = 38 + HOST_NAME_BYTES_MAX;

fn put_peer(peer: &KnownPeer, bytes: &mut Vec<u8>) {
    let bit = |is: bool, bit| if is { bit } else { 0 };
    let known = bit(peer.reverse.is_some(), HAS_REVERSE)
        | bit(peer.serial.is_some(), HAS_SERIAL)
        | bit(peer.ours.is_some(), IS_OURS)
        | bit(peer.name.is_some(), HAS_NAME)
        | bit(peer.is_own, IS_OWN)
        | bit(peer.order.is_some(), HAS_ORDER)
        | bit(peer.order == Some(Order::Little), IS_LITTLE);
    let ours = peer.ours.unwrap_or(Announcement { version: 0, features: 0, host: 0 });
    // As a name that is not text takes more bytes as one.
    let name = peer.name.as_deref().unwrap_or_default();
    let name = &name[..name.floor_char_boundary(HOST_NAME_BYTES_MAX)];
    bytes.push(known);
    bytes.extend(peer.index.to_ne_bytes());
    bytes.extend(peer.reverse.unwrap_or_default().to_ne_bytes());
    bytes.extend(peer.station.nic_id().to_ne_bytes());
    bytes.extend(peer.serial.unwrap_or_default().to_ne_bytes());
    bytes.extend(ours.version.to_ne_bytes());
    bytes.extend(ours.features.to_ne_bytes());
    bytes.extend(ours.host.to_ne_bytes());
    bytes.extend((peer.age.as_millis() as u64).to_ne_bytes());
    bytes.push(name.len() as u8);
    bytes.extend(name.as_bytes());
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn take_peer(bytes: &mut &[u8]) -> Option<KnownPeer> {
    let [known] = take(bytes)?;
    let has = |bit| known & bit != 0;
    let index = u16::from_ne_bytes(take(bytes)?);
    let reverse = u16::from_ne_bytes(take(bytes)?);
    let station = Station::from_nic_id(u64::from_ne_bytes(take(bytes)?))?;
    let serial = u32::from_ne_bytes(take(bytes)?);
    let version = u16::from_ne_bytes(take(bytes)?);
    let features = u16::from_ne_bytes(take(bytes)?);
    let host = u64::from_ne_bytes(take(bytes)?);
    let age = Duration::from_millis(u64::from_ne_bytes(take(bytes)?));
    let [len] = take(bytes)?;
    let (name, rest) = bytes.split_at_checked(len.into())?;
    *bytes = rest;
    Some(KnownPeer {
        index,
        station,
        reverse: has(HAS_REVERSE).then_some(reverse),
        serial: has(HAS_SERIAL).then_some(serial),
        ours: has(IS_OURS).then_some(Announcement { version, features, host }),
        order: has(HAS_ORDER).then_some(if has(IS_LITTLE) { Order::Little } else { Order::Big }),
        name: has(HAS_NAME).then(|| String::from_utf8_lossy(name).into_owned()),
        is_own: has(IS_OWN),
        age,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: Map = Map { mapper: 1 << 40, version: 2, hosts: 3, is_complete: true };

    #[test]
    fn questions_read_as_they_were_written_and_nothing_else_does() {
        let long = "n".repeat(79);
        let questions = [
            Question::Hold(3),
            Question::Release(255),
            Question::Peers(0x1234),
            Question::NicIdOf("node1:0"),
            Question::NameOf(7 << 40),
            Question::SetName("ä"),
            Question::Counts,
            Question::AddPeer(5, None),
            Question::AddPeer(6 << 40, Some(&long)),
            Question::RemovePeer(7),
            Question::SetMap(MAP),
            Question::Age,
            Question::Seek(9 << 40),
            Question::Map,
            Question::Peer(8 << 40),
        ];
        for question in questions {
            let bytes = question.emit();
            assert_eq!(Question::parse(&bytes), Some(question));
            assert!(bytes.len() <= QUESTION_BYTES_MAX);
            assert_eq!(
                Question::parse(&bytes[..1]).is_some(),
                matches!(bytes[0], 4 | 6 | 7 | 11 | 13)
            );
        }
        assert_eq!(Question::parse(&[]), None);
        assert_eq!(Question::parse(&[99, 1]), None);
        assert_eq!(Question::parse(&[&[8; 9][..], &[b'n'; 80]].concat()), None);
        assert_eq!(Question::parse(&[4, 0xff]), None);
    }

    #[test]
    fn answers_read_as_they_were_written_and_nothing_else_does() {
        let peer = KnownPeer {
            index: 7,
            station: "02:00:00:00:00:01".parse().unwrap(),
            reverse: Some(3),
            serial: None,
            ours: Some(Announcement { version: 1, features: 2, host: 3 }),
            order: None,
            name: Some("n".repeat(79)),
            is_own: false,
            age: Duration::from_millis(1234),
        };
        let other = KnownPeer {
            name: None,
            reverse: None,
            is_own: true,
            order: Some(Order::Little),
            ..peer.clone()
        };
        let answers = [
            Answer::Peers(vec![peer, other]),
            Answer::Peers(Vec::new()),
            Answer::Nobody,
            Answer::Several,
            Answer::NicId(5),
            Answer::Age(1 << 50),
            Answer::Name("a".into()),
            Answer::Done,
            Answer::NotPermitted,
            Answer::Called("b".into()),
            Answer::Counts("a 1\n".into()),
            Answer::Map(Map { is_complete: false, ..MAP }),
        ];
        for answer in answers {
            let bytes = answer.emit();
            assert_eq!(Answer::parse(&bytes).as_ref(), Some(&answer));
            if let Answer::Peers(peers) = &answer {
                assert!(bytes.len() <= 1 + peers.len() * PEER_BYTES_MAX);
                assert!(peers.is_empty() || Answer::parse(&bytes[..bytes.len() - 1]).is_none());
            }
        }
        assert_eq!(Answer::parse(&[0]), None);
    }
}
