//! The packets as bytes: from the type on, which is byte 16 of a frame, up to the payload.
//!
//! The order of a field's bytes is the parameter `O`; `pad` is never read. A packet that differs between both modes has
//! two layouts.

use zerocopy::byteorder::{ByteOrder, U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } $bytes:literal)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name<O: ByteOrder> { $($(#[$field_doc])* pub $field: $type,)* }
            const _: () = assert!(size_of::<$name<zerocopy::BigEndian>>() == $bytes);
        )*
    };
}

layouts! {
    /// TINY and SMALL, whole; the first part of MEDIUM and RNDV.
    MessagePacket {
        kind: u8,
        to: u8,
        from: u8,
        generation: u8,
        /// Length: 16 bits and a checksum of debug builds, or 32 bits in a native MEDIUM.
        length: [u8; 4],
        sequence: U16<O>,
        acknowledged: U16<O>,
        match_high: U32<O>,
        match_low: U32<O>,
        /// The receiver's.
        session: U32<O>,
    } 24
    /// The rest of a MEDIUM packet.
    MediumPacket {
        fragment_bytes: U16<O>,
        fragment: u8,
        /// Compatible: log2 of the distance between fragments. Native: a pad.
        pipeline: u8,
        checksum: U16<O>,
        pad: U16<O>,
    } 8
    /// The rest of an RNDV packet.
    RendezvousPacket {
        total_bytes: U32<O>,
        region: u8,
        region_sequence: u8,
        region_offset: U16<O>,
    } 8
    /// PULL, as Open-MX has it.
    PullNativePacket {
        kind: u8,
        to: u8,
        from: u8,
        generation: u8,
        session: U32<O>,
        total_bytes: U32<O>,
        region: U32<O>,
        region_sequence: u8,
        pad: [u8; 3],
        region_offset: U32<O>,
        handle: U32<O>,
        magic: U32<O>,
        first_offset: U32<O>,
        block_bytes: U32<O>,
        frame: U32<O>,
    } 44
    /// PULL, as native MXoE has it.
    PullCompatiblePacket {
        kind: u8,
        to: u8,
        from: u8,
        generation: u8,
        session: U32<O>,
        total_bytes: U32<O>,
        region: u8,
        region_sequence: u8,
        region_offset: U16<O>,
        handle: U32<O>,
        magic: U32<O>,
        first_offset: U16<O>,
        block_bytes: U16<O>,
        frame: U32<O>,
    } 32
    /// PULL_REPLY.
    PullReplyPacket {
        kind: u8,
        /// The number of the frame, modulo 256.
        frame: u8,
        frame_bytes: U16<O>,
        offset: U32<O>,
        handle: U32<O>,
        magic: U32<O>,
    } 16
    /// NOTIFY.
    NotifyPacket {
        kind: u8,
        to: u8,
        from: u8,
        generation: u8,
        session: U32<O>,
        bytes: U32<O>,
        region: u8,
        region_sequence: u8,
        pad: [u8; 4],
        sequence: U16<O>,
        acknowledged: U16<O>,
        pad_end: U16<O>,
    } 24
    /// CONNECT, asking and answering.
    ConnectPacket {
        kind: u8,
        to: u8,
        from: u8,
        generation: u8,
        /// Of what follows the head: 16.
        length: u8,
        pad: [u8; 3],
        sequence: U16<O>,
        /// The receiver's index in the sender's table; the receiver names itself by it from then on.
        index: U16<O>,
        pad_middle: U32<O>,
        /// The session of the one who asks.
        asker: U32<O>,
        /// The key that is asked with; in an answer the session of the one who answers.
        key_or_session: U32<O>,
        /// The number that the sender expects first.
        receive_next: U16<O>,
        is_reply: u8,
        connect: u8,
        status: u8,
        pad_end: [u8; 3],
    } 32
    /// TRUC with an acknowledgement in it.
    AckPacket {
        kind: u8,
        to: u8,
        from: u8,
        generation: u8,
        length: u8,
        pad: [u8; 3],
        session: U32<O>,
        /// 0x55.
        subtype: u8,
        pad_middle: u8,
        acknowledged: U16<O>,
        session_again: U32<O>,
        number: U32<O>,
        acknowledged_again: U16<O>,
        resent: u8,
        pad_end: u8,
    } 28
    /// NACK_LIB.
    NackLibPacket {
        kind: u8,
        /// The endpoint that was addressed.
        from: u8,
        generation: u8,
        reason: u8,
        pad: U32<O>,
        pad_middle: u8,
        to: u8,
        index: U16<O>,
        sequence: U16<O>,
        pad_end: U16<O>,
    } 16
    /// NACK_MCP.
    NackMcpPacket {
        kind: u8,
        endpoint: u8,
        generation: u8,
        reason: u8,
        pad: U32<O>,
        handle: U32<O>,
        magic: U32<O>,
    } 16
    /// HOST_QUERY and HOST_REPLY; a name follows the latter.
    HostPacket {
        kind: u8,
        /// HOST_REPLY: bytes of the name, with the zero byte at its end.
        name_bytes: u8,
        /// The receiver's index in the sender's table.
        index: U16<O>,
        pad: U32<O>,
        magic: U32<O>,
        pad_end: U32<O>,
    } 16
    /// The fields of a discovery beacon after 16 bytes of a RAW packet; always in the network's order.
    BeaconPacket {
        nic_high: U32<O>,
        nic_low: U32<O>,
        /// Chosen at random when the sender began.
        serial: U32<O>,
    } 12
}

/// The mark of an acknowledgement in a TRUC.
pub const ACK_SUBTYPE: u8 = 0x55;
/// The length that CONNECT and TRUC packets state for themselves.
pub const CONTROL_BYTES: u8 = 16;
