//! Bodies of frames of messages.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

layouts! {
    /// A message that comes without being announced, or its first fragment.
    EagerBody {
        bits: U64,
        message: U64,
        channel: u8,
        /// The acknowledgement that the sender waits for (`Acknowledge`).
        acknowledge: u8,
        reserved: [u8; 2],
        /// Bytes of the message that follow in `Fragment` frames.
        more_bytes: U32,
    } 24
    /// Further bytes of a message whose first fragment came before.
    FragmentBody {
        message: U64,
        /// From the beginning of the message: fragments follow each other without a gap.
        offset: U64,
        channel: u8,
        reserved: [u8; 7],
    } 24
    /// A large message: the receiver gets it when it knows where it belongs.
    RtsBody {
        bits: U64,
        message: U64,
        channel: u8,
        /// 1: the sender has no session with anybody else, and would gladly send the bytes itself.
        alone: u8,
        reserved: [u8; 6],
        total_bytes: U64,
        key_slot: U64,
        key_secret: U64,
    } 48
    /// The end of a message whose sender waits: announced, or with an acknowledgement asked for.
    FinBody {
        message: U64,
        channel: u8,
        status: u8,
        reserved: [u8; 6],
        /// Bytes that the receiver took.
        bytes: U64,
    } 24
    /// The sender gives up a message that it announced, or that it has not sent to its end.
    AbortBody {
        message: U64,
        channel: u8,
        reserved: [u8; 7],
    } 16
}

impl EagerBody {
    /// Of a message that comes whole.
    #[inline]
    pub fn whole(bits: u64, message: u64, channel: u8, acknowledge: u8) -> EagerBody {
        EagerBody {
            bits: bits.into(),
            message: message.into(),
            channel,
            acknowledge,
            reserved: [0; 2],
            more_bytes: 0.into(),
        }
    }
}
