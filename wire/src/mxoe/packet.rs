//! Packets as values: checked when read, whole when written.

use zerocopy::byteorder::{ByteOrder, U16, U32};
use zerocopy::{BigEndian, FromBytes, Immutable, IntoBytes, KnownLayout, LittleEndian, Unaligned};

use super::layouts::*;
use super::{
    Dialect, HEADER_BYTES_MAX, HOST_NAME_BYTES_MAX, INDEX_BYTES, Mode, Order, PULL_MAGIC,
    SMALL_BYTES_MAX, Sequence, TINY_BYTES_MAX, Type,
};

/// A packet, and where it has one its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// For raw endpoints: the bytes after the type.
    Raw(&'a [u8]),
    HostQuery(HostQuery),
    HostReply(HostReply<'a>),
    Ack(Ack),
    Connect(Connect),
    ConnectReply(ConnectReply),
    Tiny(Message, &'a [u8]),
    Small(Message, &'a [u8]),
    Medium(Fragment, &'a [u8]),
    Rendezvous(Rendezvous),
    Pull(Pull),
    PullReply(PullReply, &'a [u8]),
    Notify(Notify),
    NackLib(NackLib),
    NackMcp(NackMcp),
}

/// The beginning of every message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The endpoint that it is for, and the one that it comes from.
    pub to: u8,
    pub from: u8,
    /// The receiver's session.
    pub session: u32,
    pub sequence: Sequence,
    /// Everything before this was received.
    pub acknowledged: Sequence,
    pub match_info: u64,
}

/// A piece of a medium message. Every one carries all that matching needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    pub message: Message,
    /// Bytes of the whole message.
    pub total_bytes: u32,
    /// The number of the piece, from 0, and its place in the message.
    pub fragment: u8,
    pub offset: u32,
}

/// A large message is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rendezvous {
    pub message: Message,
    pub total_bytes: u32,
    /// Its place at the sender: the number of a region, how often that number was used, and an offset in the region.
    pub region: u8,
    pub region_sequence: u8,
    pub region_offset: u16,
}

/// Asks for a block of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull {
    pub to: u8,
    pub from: u8,
    /// The owner's.
    pub session: u32,
    /// Of the whole transfer.
    pub total_bytes: u32,
    pub region: u32,
    pub region_sequence: u8,
    pub region_offset: u32,
    /// The asker's name for the transfer.
    pub handle: u32,
    /// The asker's endpoint, hidden: see [`Pull::magic_of`].
    pub magic: u32,
    /// The position of its first byte in the block's first frame: 0 but in the first block.
    pub first_offset: u32,
    pub block_bytes: u32,
    /// The number of the block's first frame.
    pub frame: u32,
}

/// A piece of what was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullReply {
    /// The number of the frame, modulo 256.
    pub frame: u8,
    /// The place of its bytes, from the transfer's beginning.
    pub offset: u32,
    pub handle: u32,
    pub magic: u32,
}

/// The end of a large message, told by its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notify {
    pub to: u8,
    pub from: u8,
    pub session: u32,
    pub sequence: Sequence,
    pub acknowledged: Sequence,
    /// Bytes that were taken.
    pub bytes: u32,
    pub region: u8,
    pub region_sequence: u8,
}

/// Asks for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    pub to: u8,
    pub from: u8,
    /// The receiver's index in the sender's table.
    pub index: u16,
    /// The sender's.
    pub session: u32,
    pub key: u32,
    /// The first number that the sender expects.
    pub receive_next: Sequence,
    /// The number of this attempt.
    pub connect: u8,
}

/// Answers a [`Connect`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectReply {
    pub to: u8,
    pub from: u8,
    pub index: u16,
    /// Of the one who asked, as it was given.
    pub asker: u32,
    /// The sender's.
    pub session: u32,
    pub receive_next: Sequence,
    pub connect: u8,
    /// 0: accepted; 11: the key is wrong.
    pub status: u8,
}

/// Everything before a number was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    pub to: u8,
    pub from: u8,
    pub session: u32,
    pub acknowledged: Sequence,
    /// Of this acknowledgement, from 1: a later one has a greater.
    pub number: u32,
}

/// Why something was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nack {
    /// There is no such endpoint.
    BadEndpoint,
    /// It is not open.
    Closed,
    BadSession,
    BadRegion,
    Other(u8),
}

/// A message or connect was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NackLib {
    /// The endpoint that was addressed, and the one that did.
    pub from: u8,
    pub to: u8,
    pub reason: Nack,
    /// The index in the head of what is refused.
    pub index: u16,
    /// Of what is refused; 0 for connects.
    pub sequence: Sequence,
}

/// A pull was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NackMcp {
    pub endpoint: u8,
    pub reason: Nack,
    pub handle: u32,
    pub magic: u32,
}

/// Asks a host for its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostQuery {
    /// The receiver's index in the sender's table.
    pub index: u16,
    pub magic: u32,
}

/// A host's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostReply<'a> {
    pub index: u16,
    /// Of the query.
    pub magic: u32,
    /// Without the zero byte at its end.
    pub name: &'a [u8],
}

/// Why bytes are no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("nobody knows packets of type {0:#04x}")]
    Type(u8),
    #[error("the packet ends too early")]
    Short,
    #[error("the packet is longer than its type allows, or names a place outside of its message")]
    Long,
    #[error("the packet has a field that no sender writes")]
    Field,
}

impl Nack {
    fn from_u8(value: u8) -> Nack {
        match value {
            1 => Nack::BadEndpoint,
            2 => Nack::Closed,
            3 => Nack::BadSession,
            4 => Nack::BadRegion,
            other => Nack::Other(other),
        }
    }

    /// Its number on the wire.
    pub fn to_u8(self) -> u8 {
        match self {
            Nack::BadEndpoint => 1,
            Nack::Closed => 2,
            Nack::BadSession => 3,
            Nack::BadRegion => 4,
            Nack::Other(other) => other,
        }
    }
}

impl Pull {
    /// The magic that hides the asker's endpoint.
    pub fn magic_of(endpoint: u8) -> u32 {
        PULL_MAGIC ^ u32::from(endpoint)
    }

    /// The endpoint behind a magic; `None` where there is none.
    pub fn endpoint_of(magic: u32) -> Option<u8> {
        u8::try_from(magic ^ PULL_MAGIC).ok()
    }
}

/// The endpoint of the receiving host that a body is for, without a look at more of it; for filters and tables of
/// processes. `None` if the body is for the host.
pub fn endpoint_of(body: &[u8], order: Order) -> Option<u8> {
    let low_byte = |at: usize| {
        let at = if order == Order::Big { at + 3 } else { at };
        body.get(at).map(|byte| byte ^ PULL_MAGIC as u8)
    };
    match Type::from_u8(*body.get(INDEX_BYTES)?)? {
        Type::Raw | Type::HostQuery | Type::HostReply => None,
        Type::PullReply | Type::NackMcp => low_byte(INDEX_BYTES + 12),
        Type::NackLib => body.get(INDEX_BYTES + 9).copied(),
        _ => body.get(INDEX_BYTES + 1).copied(),
    }
}

/// A layout at the beginning of `bytes`, and what follows it.
fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    bytes: &[u8],
) -> Result<(&T, &[u8]), PacketError> {
    T::ref_from_prefix(bytes).map_err(|_| PacketError::Short)
}

/// The first `len` bytes.
fn payload(bytes: &[u8], len: usize) -> Result<&[u8], PacketError> {
    bytes.get(..len).ok_or(PacketError::Short)
}

impl<'a> Packet<'a> {
    /// The index in a body's head, and its packet. Bytes behind a payload are passed over.
    pub fn parse(body: &'a [u8], dialect: Dialect) -> Result<(u16, Packet<'a>), PacketError> {
        match dialect.order() {
            Order::Big => parse::<BigEndian>(body, dialect),
            Order::Little => parse::<LittleEndian>(body, dialect),
        }
    }

    /// Writes index and header, and says how long they are; the payload follows them on the wire.
    pub fn emit(&self, index: u16, dialect: Dialect, out: &mut [u8; HEADER_BYTES_MAX]) -> usize {
        match dialect.order() {
            Order::Big => emit::<BigEndian>(self, index, dialect, out),
            Order::Little => emit::<LittleEndian>(self, index, dialect, out),
        }
    }
}

fn parse<O: ByteOrder + 'static>(
    body: &[u8],
    dialect: Dialect,
) -> Result<(u16, Packet<'_>), PacketError> {
    let (index, rest) = take::<U16<O>>(body)?;
    let kind = *rest.first().ok_or(PacketError::Short)?;
    let packet = match Type::from_u8(kind).ok_or(PacketError::Type(kind))? {
        Type::Raw => Packet::Raw(&rest[1..]),
        Type::HostQuery | Type::HostReply => host::<O>(rest)?,
        Type::Truc => Packet::Ack(ack::<O>(rest)?),
        Type::Connect => connect::<O>(rest)?,
        Type::Tiny => {
            let (message, bytes) = short_message::<O>(rest, TINY_BYTES_MAX)?;
            Packet::Tiny(message, bytes)
        }
        Type::Small => {
            let (message, bytes) = short_message::<O>(rest, SMALL_BYTES_MAX)?;
            Packet::Small(message, bytes)
        }
        Type::Medium => fragment::<O>(rest, dialect)?,
        Type::Rendezvous => Packet::Rendezvous(rendezvous::<O>(rest)?),
        Type::Pull => Packet::Pull(pull::<O>(rest, dialect)?),
        Type::PullReply => {
            let (packet, rest) = take::<PullReplyPacket<O>>(rest)?;
            let bytes = payload(rest, packet.frame_bytes.get().into())?;
            let (frame, offset) = (packet.frame, packet.offset.get());
            let (handle, magic) = (packet.handle.get(), packet.magic.get());
            Packet::PullReply(PullReply { frame, offset, handle, magic }, bytes)
        }
        Type::Notify => Packet::Notify(notify::<O>(rest)?),
        Type::NackLib => {
            let (packet, _) = take::<NackLibPacket<O>>(rest)?;
            Packet::NackLib(NackLib {
                from: packet.from,
                to: packet.to,
                reason: Nack::from_u8(packet.reason),
                index: packet.index.get(),
                sequence: Sequence(packet.sequence.get()),
            })
        }
        Type::NackMcp => {
            let (packet, _) = take::<NackMcpPacket<O>>(rest)?;
            let (reason, endpoint) = (Nack::from_u8(packet.reason), packet.endpoint);
            let (handle, magic) = (packet.handle.get(), packet.magic.get());
            Packet::NackMcp(NackMcp { endpoint, reason, handle, magic })
        }
    };
    Ok((index.get(), packet))
}

fn host<O: ByteOrder + 'static>(rest: &[u8]) -> Result<Packet<'_>, PacketError> {
    let (packet, rest) = take::<HostPacket<O>>(rest)?;
    let (index, magic) = (packet.index.get(), packet.magic.get());
    if packet.kind == Type::HostQuery as u8 {
        return Ok(Packet::HostQuery(HostQuery { index, magic }));
    }
    let len = usize::from(packet.name_bytes);
    if len > HOST_NAME_BYTES_MAX {
        return Err(PacketError::Long);
    }
    let name = match payload(rest, len)? {
        [name @ .., 0] if !name.contains(&0) => name,
        _ => return Err(PacketError::Field),
    };
    Ok(Packet::HostReply(HostReply { index, magic, name }))
}

fn ack<O: ByteOrder + 'static>(rest: &[u8]) -> Result<Ack, PacketError> {
    let (packet, _) = take::<AckPacket<O>>(rest)?;
    let twice = packet.session.get() == packet.session_again.get();
    if packet.subtype != ACK_SUBTYPE || !twice {
        return Err(PacketError::Field);
    }
    Ok(Ack {
        to: packet.to,
        from: packet.from,
        session: packet.session.get(),
        acknowledged: Sequence(packet.acknowledged.get()),
        number: packet.number.get(),
    })
}

fn connect<O: ByteOrder + 'static>(rest: &[u8]) -> Result<Packet<'_>, PacketError> {
    let (packet, _) = take::<ConnectPacket<O>>(rest)?;
    let (to, from, index) = (packet.to, packet.from, packet.index.get());
    let receive_next = Sequence(packet.receive_next.get());
    let (asker, second, connect) =
        (packet.asker.get(), packet.key_or_session.get(), packet.connect);
    Ok(match packet.is_reply {
        0 => {
            let (session, key) = (asker, second);
            Packet::Connect(Connect { to, from, index, session, key, receive_next, connect })
        }
        1 => {
            let (session, status) = (second, packet.status);
            Packet::ConnectReply(ConnectReply {
                to,
                from,
                index,
                asker,
                session,
                receive_next,
                connect,
                status,
            })
        }
        _ => return Err(PacketError::Field),
    })
}

fn message<O: ByteOrder + 'static>(packet: &MessagePacket<O>) -> Message {
    Message {
        to: packet.to,
        from: packet.from,
        session: packet.session.get(),
        sequence: Sequence(packet.sequence.get()),
        acknowledged: Sequence(packet.acknowledged.get()),
        match_info: u64::from(packet.match_high.get()) << 32 | u64::from(packet.match_low.get()),
    }
}

/// The 16-bit length of a message, in front of a checksum that only debug builds fill in.
fn short_length<O: ByteOrder + 'static>(length: [u8; 4]) -> u16 {
    U16::<O>::from_bytes([length[0], length[1]]).get()
}

fn short_message<O: ByteOrder + 'static>(
    rest: &[u8],
    max: usize,
) -> Result<(Message, &[u8]), PacketError> {
    let (packet, rest) = take::<MessagePacket<O>>(rest)?;
    let len = usize::from(short_length::<O>(packet.length));
    if len > max {
        return Err(PacketError::Long);
    }
    Ok((message(packet), payload(rest, len)?))
}

fn fragment<O: ByteOrder + 'static>(
    rest: &[u8],
    dialect: Dialect,
) -> Result<Packet<'_>, PacketError> {
    let (packet, rest) = take::<MessagePacket<O>>(rest)?;
    let (medium, rest) = take::<MediumPacket<O>>(rest)?;
    let bytes = payload(rest, medium.fragment_bytes.get().into())?;
    let number = u32::from(medium.fragment);
    let (total_bytes, offset) = match dialect.mode() {
        Mode::Native => {
            (U32::<O>::from_bytes(packet.length).get(), number * dialect.fragment_bytes())
        }
        // Senders may cut finer than we do, never so fine that a message has no end.
        Mode::Compatible if medium.pipeline > 15 => return Err(PacketError::Field),
        Mode::Compatible => (short_length::<O>(packet.length).into(), number << medium.pipeline),
    };
    let end = u64::from(offset) + bytes.len() as u64;
    if number >= 32 || end > total_bytes.into() || total_bytes > dialect.medium_bytes_max() {
        return Err(PacketError::Long);
    }
    let fragment =
        Fragment { message: message(packet), total_bytes, fragment: medium.fragment, offset };
    Ok(Packet::Medium(fragment, bytes))
}

fn rendezvous<O: ByteOrder + 'static>(rest: &[u8]) -> Result<Rendezvous, PacketError> {
    let (packet, rest) = take::<MessagePacket<O>>(rest)?;
    let (announced, _) = take::<RendezvousPacket<O>>(rest)?;
    Ok(Rendezvous {
        message: message(packet),
        total_bytes: announced.total_bytes.get(),
        region: announced.region,
        region_sequence: announced.region_sequence,
        region_offset: announced.region_offset.get(),
    })
}

fn pull<O: ByteOrder + 'static>(rest: &[u8], dialect: Dialect) -> Result<Pull, PacketError> {
    if dialect.mode() == Mode::Native {
        let (packet, _) = take::<PullNativePacket<O>>(rest)?;
        return Ok(Pull {
            to: packet.to,
            from: packet.from,
            session: packet.session.get(),
            total_bytes: packet.total_bytes.get(),
            region: packet.region.get(),
            region_sequence: packet.region_sequence,
            region_offset: packet.region_offset.get(),
            handle: packet.handle.get(),
            magic: packet.magic.get(),
            first_offset: packet.first_offset.get(),
            block_bytes: packet.block_bytes.get(),
            frame: packet.frame.get(),
        });
    }
    let (packet, _) = take::<PullCompatiblePacket<O>>(rest)?;
    Ok(Pull {
        to: packet.to,
        from: packet.from,
        session: packet.session.get(),
        total_bytes: packet.total_bytes.get(),
        region: packet.region.into(),
        region_sequence: packet.region_sequence,
        region_offset: packet.region_offset.get().into(),
        handle: packet.handle.get(),
        magic: packet.magic.get(),
        first_offset: packet.first_offset.get().into(),
        block_bytes: packet.block_bytes.get().into(),
        frame: packet.frame.get(),
    })
}

fn notify<O: ByteOrder + 'static>(rest: &[u8]) -> Result<Notify, PacketError> {
    let (packet, _) = take::<NotifyPacket<O>>(rest)?;
    Ok(Notify {
        to: packet.to,
        from: packet.from,
        session: packet.session.get(),
        sequence: Sequence(packet.sequence.get()),
        acknowledged: Sequence(packet.acknowledged.get()),
        bytes: packet.bytes.get(),
        region: packet.region,
        region_sequence: packet.region_sequence,
    })
}

mod write;
use write::emit;

#[cfg(test)]
mod tests;
