//! Writing packets: every field that a reader may look at, and zeroes in all others.

use super::*;

/// The header as it is written, piece by piece.
struct Writer<'a> {
    out: &'a mut [u8; HEADER_BYTES_MAX],
    len: usize,
}

impl Writer<'_> {
    fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, layout: &T) {
        let bytes = layout.as_bytes();
        self.out[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// See [`Packet::emit`].
pub(super) fn emit<O: ByteOrder + 'static>(
    packet: &Packet<'_>,
    index: u16,
    dialect: Dialect,
    out: &mut [u8; HEADER_BYTES_MAX],
) -> usize {
    let mut writer = Writer { out, len: 0 };
    writer.put(&U16::<O>::new(index));
    match packet {
        Packet::Raw(_) => writer.put(&[Type::Raw as u8]),
        Packet::HostQuery(HostQuery { index, magic }) => {
            writer.put(&host::<O>(Type::HostQuery, 0, *index, *magic));
        }
        Packet::HostReply(HostReply { index, magic, name }) => {
            // The zero byte at the name's end is the writer's of the payload.
            let bytes = name.len().min(HOST_NAME_BYTES_MAX - 1) as u8 + 1;
            writer.put(&host::<O>(Type::HostReply, bytes, *index, *magic));
        }
        Packet::Ack(ack) => writer.put(&acknowledgement::<O>(ack)),
        Packet::Connect(connect) => writer.put(&asking::<O>(connect)),
        Packet::ConnectReply(reply) => writer.put(&answering::<O>(reply)),
        Packet::Tiny(message, bytes) => {
            writer.put(&begin::<O>(Type::Tiny, message, short::<O>(bytes.len())));
        }
        Packet::Small(message, bytes) => {
            writer.put(&begin::<O>(Type::Small, message, short::<O>(bytes.len())));
        }
        Packet::Medium(fragment, bytes) => {
            let length = match dialect.mode() {
                Mode::Native => U32::<O>::new(fragment.total_bytes).to_bytes(),
                Mode::Compatible => short::<O>(fragment.total_bytes as usize),
            };
            writer.put(&begin::<O>(Type::Medium, &fragment.message, length));
            writer.put(&MediumPacket::<O> {
                fragment_bytes: (bytes.len() as u16).into(),
                fragment: fragment.fragment,
                pipeline: dialect.pipeline(),
                checksum: 0.into(),
                pad: 0.into(),
            });
        }
        Packet::Rendezvous(announced) => {
            let length = short::<O>(size_of::<RendezvousPacket<O>>());
            writer.put(&begin::<O>(Type::Rendezvous, &announced.message, length));
            writer.put(&RendezvousPacket::<O> {
                total_bytes: announced.total_bytes.into(),
                region: announced.region,
                region_sequence: announced.region_sequence,
                region_offset: announced.region_offset.into(),
            });
        }
        Packet::Pull(pull) if dialect.mode() == Mode::Native => writer.put(&native::<O>(pull)),
        Packet::Pull(pull) => writer.put(&compatible::<O>(pull)),
        Packet::PullReply(reply, bytes) => writer.put(&PullReplyPacket::<O> {
            kind: Type::PullReply as u8,
            frame: reply.frame,
            frame_bytes: (bytes.len() as u16).into(),
            offset: reply.offset.into(),
            handle: reply.handle.into(),
            magic: reply.magic.into(),
        }),
        Packet::Notify(notify) => writer.put(&told::<O>(notify)),
        Packet::NackLib(nack) => writer.put(&refused::<O>(nack)),
        Packet::NackMcp(nack) => writer.put(&pull_refused::<O>(nack)),
    }
    writer.len
}

fn short<O: ByteOrder + 'static>(len: usize) -> [u8; 4] {
    let [a, b] = U16::<O>::new(len as u16).to_bytes();
    [a, b, 0, 0]
}

fn begin<O: ByteOrder + 'static>(
    kind: Type,
    message: &Message,
    length: [u8; 4],
) -> MessagePacket<O> {
    MessagePacket {
        kind: kind as u8,
        to: message.to,
        from: message.from,
        generation: 0,
        length,
        sequence: message.sequence.0.into(),
        acknowledged: message.acknowledged.0.into(),
        match_high: ((message.match_info >> 32) as u32).into(),
        match_low: (message.match_info as u32).into(),
        session: message.session.into(),
    }
}

fn host<O: ByteOrder + 'static>(
    kind: Type,
    name_bytes: u8,
    index: u16,
    magic: u32,
) -> HostPacket<O> {
    HostPacket {
        kind: kind as u8,
        name_bytes,
        index: index.into(),
        pad: 0.into(),
        magic: magic.into(),
        pad_end: 0.into(),
    }
}

fn acknowledgement<O: ByteOrder + 'static>(ack: &Ack) -> AckPacket<O> {
    AckPacket {
        kind: Type::Truc as u8,
        to: ack.to,
        from: ack.from,
        generation: 0,
        length: CONTROL_BYTES,
        pad: [0; 3],
        session: ack.session.into(),
        subtype: ACK_SUBTYPE,
        pad_middle: 0,
        acknowledged: ack.acknowledged.0.into(),
        session_again: ack.session.into(),
        number: ack.number.into(),
        acknowledged_again: ack.acknowledged.0.into(),
        resent: 0,
        pad_end: 0,
    }
}

fn asking<O: ByteOrder + 'static>(connect: &Connect) -> ConnectPacket<O> {
    ConnectPacket {
        kind: Type::Connect as u8,
        to: connect.to,
        from: connect.from,
        generation: 0,
        length: CONTROL_BYTES,
        pad: [0; 3],
        sequence: 0.into(),
        index: connect.index.into(),
        pad_middle: 0.into(),
        asker: connect.session.into(),
        key_or_session: connect.key.into(),
        receive_next: connect.receive_next.0.into(),
        is_reply: 0,
        connect: connect.connect,
        status: 0,
        pad_end: [0; 3],
    }
}

fn answering<O: ByteOrder + 'static>(reply: &ConnectReply) -> ConnectPacket<O> {
    let ConnectReply { to, from, index, asker, session, receive_next, connect, status } = *reply;
    // The same places, but that of the key.
    let asked = Connect { to, from, index, session: asker, key: session, receive_next, connect };
    ConnectPacket { is_reply: 1, status, ..asking(&asked) }
}

fn native<O: ByteOrder + 'static>(pull: &Pull) -> PullNativePacket<O> {
    PullNativePacket {
        kind: Type::Pull as u8,
        to: pull.to,
        from: pull.from,
        generation: 0,
        session: pull.session.into(),
        total_bytes: pull.total_bytes.into(),
        region: pull.region.into(),
        region_sequence: pull.region_sequence,
        pad: [0; 3],
        region_offset: pull.region_offset.into(),
        handle: pull.handle.into(),
        magic: pull.magic.into(),
        first_offset: pull.first_offset.into(),
        block_bytes: pull.block_bytes.into(),
        frame: pull.frame.into(),
    }
}

fn compatible<O: ByteOrder + 'static>(pull: &Pull) -> PullCompatiblePacket<O> {
    PullCompatiblePacket {
        kind: Type::Pull as u8,
        to: pull.to,
        from: pull.from,
        generation: 0,
        session: pull.session.into(),
        total_bytes: pull.total_bytes.into(),
        region: pull.region as u8,
        region_sequence: pull.region_sequence,
        region_offset: (pull.region_offset as u16).into(),
        handle: pull.handle.into(),
        magic: pull.magic.into(),
        first_offset: (pull.first_offset as u16).into(),
        block_bytes: (pull.block_bytes as u16).into(),
        frame: pull.frame.into(),
    }
}

fn told<O: ByteOrder + 'static>(notify: &Notify) -> NotifyPacket<O> {
    NotifyPacket {
        kind: Type::Notify as u8,
        to: notify.to,
        from: notify.from,
        generation: 0,
        session: notify.session.into(),
        bytes: notify.bytes.into(),
        region: notify.region,
        region_sequence: notify.region_sequence,
        pad: [0; 4],
        sequence: notify.sequence.0.into(),
        acknowledged: notify.acknowledged.0.into(),
        pad_end: 0.into(),
    }
}

fn refused<O: ByteOrder + 'static>(nack: &NackLib) -> NackLibPacket<O> {
    NackLibPacket {
        kind: Type::NackLib as u8,
        from: nack.from,
        generation: 0,
        reason: nack.reason.to_u8(),
        pad: 0.into(),
        pad_middle: 0,
        to: nack.to,
        index: nack.index.into(),
        sequence: nack.sequence.0.into(),
        pad_end: 0.into(),
    }
}

fn pull_refused<O: ByteOrder + 'static>(nack: &NackMcp) -> NackMcpPacket<O> {
    NackMcpPacket {
        kind: Type::NackMcp as u8,
        endpoint: nack.endpoint,
        generation: 0,
        reason: nack.reason.to_u8(),
        pad: 0.into(),
        handle: nack.handle.into(),
        magic: nack.magic.into(),
    }
}
