//! Packets as a driver leaves them: the fields are right, and the pads hold the old content of the memory.

use ropewalk_base::random::Random;
use ropewalk_wire::mxoe::{
    Dialect, ETHERNET_BYTES, FRAME_BYTES_MIN, HEADER_BYTES_MAX, Mode, Packet,
};

/// Writes bodies.
#[derive(Debug)]
pub(super) struct Writer {
    dialect: Dialect,
    garbage: Random,
}

impl Writer {
    pub fn new(dialect: Dialect, garbage: Random) -> Writer {
        Writer { dialect, garbage }
    }

    /// A body: the header and the bytes behind it, padded to the shortest frame.
    pub fn body(&mut self, index: u16, packet: &Packet<'_>) -> Vec<u8> {
        let mut header = [0; HEADER_BYTES_MAX];
        let len = packet.emit(index, self.dialect, &mut header);
        let mut body = header[..len].to_vec();
        for (begin, end) in pads(packet, self.dialect.mode()) {
            for at in *begin..*end {
                body[at - ETHERNET_BYTES] = self.garbage.next_u64() as u8;
            }
        }
        let mut shortest = FRAME_BYTES_MIN - ETHERNET_BYTES;
        match packet {
            Packet::Tiny(_, bytes)
            | Packet::Small(_, bytes)
            | Packet::Medium(_, bytes)
            | Packet::PullReply(_, bytes) => body.extend_from_slice(bytes),
            Packet::HostReply(reply) => {
                body.extend_from_slice(reply.name);
                body.push(0);
                shortest += reply.name.len() + 1;
            }
            _ => {}
        }
        while body.len() < shortest {
            body.push(self.garbage.next_u64() as u8);
        }
        body
    }
}

/// The ranges of unset bytes in a header: begin and end, counted from the frame's beginning.
fn pads(packet: &Packet<'_>, mode: Mode) -> &'static [(usize, usize)] {
    match (packet, mode) {
        (Packet::Tiny(..) | Packet::Small(..) | Packet::Rendezvous(_), _) => &[(19, 20), (22, 24)],
        (Packet::Medium(..), Mode::Native) => &[(19, 20), (43, 48)],
        (Packet::Medium(..), Mode::Compatible) => &[(19, 20), (22, 24), (44, 48)],
        (Packet::Pull(_), Mode::Native) => &[(19, 20), (33, 36)],
        (Packet::Pull(_), Mode::Compatible) => &[(19, 20)],
        (Packet::Notify(_), _) => &[(19, 20), (30, 34), (38, 40)],
        (Packet::Connect(_), _) => &[(19, 20), (21, 24), (28, 32), (44, 48)],
        (Packet::ConnectReply(_), _) => &[(19, 20), (21, 24), (28, 32), (45, 48)],
        (Packet::Ack(_), _) => &[(19, 20), (21, 24), (29, 30), (43, 44)],
        (Packet::NackLib(_), _) => &[(18, 19), (20, 25), (30, 32)],
        (Packet::NackMcp(_), _) => &[(18, 19), (20, 24)],
        (Packet::HostQuery(_), _) => &[(17, 18), (20, 24), (28, 32)],
        (Packet::HostReply(_), _) => &[(20, 24), (28, 32)],
        (Packet::Raw(_) | Packet::PullReply(..), _) => &[],
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::mxoe::*;

    use super::*;

    #[test]
    fn pads_are_garbage_and_nothing_else_is() {
        let message = Message {
            to: 1,
            from: 2,
            session: 3,
            sequence: Sequence(4),
            acknowledged: Sequence(5),
            match_info: 6,
        };
        let notify = Notify {
            to: 1,
            from: 2,
            session: 3,
            sequence: Sequence(4),
            acknowledged: Sequence(5),
            bytes: 6,
            region: 7,
            region_sequence: 8,
        };
        let reply = HostReply { index: 1, magic: HOST_QUERY_MAGIC, name: b"a:0" };
        for dialect in [Dialect::native(1500, Order::Little).unwrap(), Dialect::compatible()] {
            for packet in
                [Packet::Tiny(message, b"abc"), Packet::Notify(notify), Packet::HostReply(reply)]
            {
                let mut writer = Writer::new(dialect, Random::from_seed(1));
                let [first, second] = [1, 1].map(|index| writer.body(index, &packet));
                assert_ne!(first, second, "{packet:?}");
                assert_eq!(Packet::parse(&first, dialect), Ok((1, packet)));
                assert!(first.len() + ETHERNET_BYTES >= FRAME_BYTES_MIN);
            }
        }
    }
}
