//! MXoE: messages of MX over Ethernet, as Open-MX and native MXoE hosts speak it.
//!
//! * [`dialect`]: the settings that both ends must share, for nothing on the wire names them;
//! * [`layouts`]: the packets as bytes, in either byte order;
//! * [`packet`]: the packets as values, read and written;
//! * [`sequence`]: 14-bit numbers with 2 bits of session;
//! * [`beacon`]: the announcement of an interface, and between ours also of its owner.
//!
//! A frame is an Ethernet header ([`Ethernet`]) and a *body* that begins at byte 14 with the sender's
//! index in the receiver's table of peers. Everything here works on bodies: behind UDP a datagram is a
//! body. Offsets in comments count from the frame's beginning, as in captures.
//!
//! Invariants: a value is read only after a check against the bytes that are there; no pad byte is ever read, since
//! Open-MX leaves old bytes in them, and every one is written as zero; a written packet reads as itself.

pub mod beacon;
pub mod dialect;
mod ethernet;
pub mod layouts;
pub mod packet;
pub mod sequence;

pub use beacon::{Announcement, Beacon};
pub use dialect::{Dialect, Mode, Order};
pub use ethernet::{ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};
pub use packet::{
    Ack, Connect, ConnectReply, Fragment, HostQuery, HostReply, Message, Nack, NackLib, NackMcp,
    Notify, Packet, PacketError, Pull, PullReply, Rendezvous, endpoint_of,
};
pub use sequence::Sequence;

/// Bytes of a body before the packet's type: the index of the sender in the receiver's table.
pub const INDEX_BYTES: usize = 2;
/// The index of a peer whose index is not known.
pub const INDEX_UNKNOWN: u16 = 0xffff;
/// A session that is not known; no endpoint's own.
pub const SESSION_UNKNOWN: u32 = 0xffff_ffff;
/// Longest body of a header, of any type: everything before a payload, the index included.
pub const HEADER_BYTES_MAX: usize = INDEX_BYTES + 44;
/// Bytes of a body before a pull reply's payload.
pub const PULL_REPLY_BYTES: usize = INDEX_BYTES + 16;
/// Longest payload of a tiny and of a small message, in bytes.
pub const TINY_BYTES_MAX: usize = 32;
pub const SMALL_BYTES_MAX: usize = 128;
/// Bytes of a packet for raw endpoints, with its Ethernet header.
pub const RAW_BYTES_MAX: usize = 1024;
/// Longest host name, with the zero byte at its end.
pub const HOST_NAME_BYTES_MAX: usize = 80;
/// The sequence number of the first use of a region.
pub const REGION_SEQUENCE_FIRST: u8 = 23;
/// Magic of the first host query; each time that names are forgotten it is one more.
pub const HOST_QUERY_MAGIC: u32 = 0x1305_2008;

/// The number of an endpoint, hidden in what a pull's replies carry back.
pub const PULL_MAGIC: u32 = 0x2107_1980;

/// Types of packets: the byte after the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    Raw = 1,
    HostQuery = 3,
    HostReply = 4,
    Truc = 0x23,
    Connect = 0x24,
    Tiny = 0x25,
    Small = 0x26,
    Medium = 0x27,
    Rendezvous = 0x28,
    Pull = 0x29,
    PullReply = 0x2a,
    Notify = 0x2b,
    NackLib = 0x2c,
    NackMcp = 0x2d,
}

impl Type {
    /// From its byte; `None` for those that nobody has to understand.
    pub fn from_u8(value: u8) -> Option<Type> {
        use Type::*;
        let all = [
            Raw, HostQuery, HostReply, Truc, Connect, Tiny, Small, Medium, Rendezvous, Pull,
            PullReply, Notify, NackLib, NackMcp,
        ];
        all.into_iter().find(|it| *it as u8 == value)
    }
}
