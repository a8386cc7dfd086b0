//! The settings that both ends of a wire have to share. Nothing in a packet names them: two hosts with
//! different ones misread each other in silence, so that they belong to an interface's configuration.

use ropewalk_base::error::Fault;

use super::ethernet::ETHERNET_BYTES;

/// Whose layouts and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Open-MX's own, for any size of frame.
    Native,
    /// Those of native MXoE hosts: pieces of 4 KiB, eight at a time.
    Compatible,
}

/// Byte order of all fields but the EtherType and those of beacons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The network's, which nearly everybody uses.
    Big,
    /// That of hosts which were built to swap nothing.
    Little,
}

impl Order {
    /// Not this one.
    #[must_use]
    pub const fn other(self) -> Order {
        match self {
            Order::Big => Order::Little,
            Order::Little => Order::Big,
        }
    }
}

/// Bytes of a compatible frame: the Ethernet header, a medium fragment's and 4 KiB.
const COMPATIBLE_FRAME_BYTES: u16 = 4144;
/// Bytes before a medium fragment's payload, and before a pull reply's, from the frame's beginning.
const MEDIUM_HEADER_BYTES: u16 = 48;
const REPLY_HEADER_BYTES: u16 = 32;
/// Shortest and longest frame that native mode can be set to.
const NATIVE_FRAME_BYTES: std::ops::RangeInclusive<u16> = 256..=65_000;
/// Pieces of a fragment's length: the steps of native mode.
const FRAGMENT_STEPS: [u16; 2] = [4096, 8192];

/// The dialect on a wire: mode, byte order and longest frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dialect {
    mode: Mode,
    order: Order,
    /// Longest frame, its Ethernet header included; Open-MX calls it the MTU.
    frame_bytes_max: u16,
}

impl Dialect {
    /// Open-MX's own, in frames of at most so many bytes, Ethernet header included.
    pub fn native(frame_bytes_max: u16, order: Order) -> Result<Dialect, Fault> {
        if !NATIVE_FRAME_BYTES.contains(&frame_bytes_max) {
            return Err(Fault::Invalid);
        }
        Ok(Dialect { mode: Mode::Native, order, frame_bytes_max })
    }

    /// That of native MXoE hosts; always in the network's order.
    pub const fn compatible() -> Dialect {
        let frame_bytes_max = COMPATIBLE_FRAME_BYTES;
        Dialect { mode: Mode::Compatible, order: Order::Big, frame_bytes_max }
    }

    /// Whose layouts.
    pub const fn mode(self) -> Mode {
        self.mode
    }

    /// Byte order of the fields.
    pub const fn order(self) -> Order {
        self.order
    }

    /// Longest frame, its Ethernet header included.
    pub const fn frame_bytes_max(self) -> usize {
        self.frame_bytes_max as usize
    }

    /// Longest body.
    pub const fn body_bytes_max(self) -> usize {
        self.frame_bytes_max() - ETHERNET_BYTES
    }

    /// Payload of every fragment of a medium message but the last.
    pub fn fragment_bytes(self) -> u32 {
        let room = self.frame_bytes_max - MEDIUM_HEADER_BYTES;
        let bytes = match self.mode {
            Mode::Compatible => 4096,
            Mode::Native if room <= FRAGMENT_STEPS[0] => room,
            Mode::Native if room >= FRAGMENT_STEPS[1] => FRAGMENT_STEPS[1],
            Mode::Native => FRAGMENT_STEPS[0],
        };
        u32::from(bytes)
    }

    /// Fragments of a medium message, at most.
    pub const fn fragments_max(self) -> u32 {
        match self.mode {
            Mode::Native => 32,
            Mode::Compatible => 8,
        }
    }

    /// Longest message that goes in fragments.
    pub fn medium_bytes_max(self) -> u32 {
        self.fragment_bytes() * self.fragments_max()
    }

    /// Payload of every reply to a pull but the last.
    pub fn reply_bytes(self) -> u32 {
        match self.mode {
            Mode::Native => u32::from(self.frame_bytes_max - REPLY_HEADER_BYTES),
            Mode::Compatible => 4096,
        }
    }

    /// Replies to one pull, at most.
    pub const fn replies_per_block(self) -> u32 {
        match self.mode {
            Mode::Native => 32,
            Mode::Compatible => 8,
        }
    }

    /// Log2 of the distance between fragments where a fragment names it.
    pub(super) const fn pipeline(self) -> u8 {
        match self.mode {
            Mode::Native => 0,
            Mode::Compatible => 12,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_the_lengths_of_open_mx() {
        let of = |frame| {
            let dialect = Dialect::native(frame, Order::Big).unwrap();
            (dialect.fragment_bytes(), dialect.reply_bytes(), dialect.medium_bytes_max())
        };
        assert_eq!(of(1500), (1452, 1468, 46_464));
        assert_eq!(of(9000), (8192, 8968, 262_144));
        assert_eq!(of(4144), (4096, 4112, 131_072));
        assert_eq!(of(8239), (4096, 8207, 131_072));
        assert_eq!(of(8240), (8192, 8208, 262_144));
        let compatible = Dialect::compatible();
        assert_eq!((compatible.fragment_bytes(), compatible.reply_bytes()), (4096, 4096));
        assert_eq!((compatible.medium_bytes_max(), compatible.replies_per_block()), (32_768, 8));
        assert!(Dialect::native(200, Order::Big).is_err());
    }
}
