//! The program that the kernel runs for each incoming frame: it selects the frames for the socket.
//!
//! Invariant: a frame that is not certainly for an endpoint of the owner goes on as if nobody were here.

use ropewalk_wire::mxoe::{ETHERTYPE, Order, Station, Type};

use crate::config::Protocol;
use crate::filter::{ENDPOINT_AT, MAGIC, MAGIC_AT, OURS, REFUSED_AT, TYPE_AT};

/// An instruction as the kernel reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u8,
    /// The destination register in the lower half, and the source register in the upper half.
    pub registers: u8,
    pub offset: i16,
    pub value: i32,
}

/// The parameters of a program.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub station: Station,
    pub protocol: Protocol,
    /// Longest frame that the socket takes.
    pub frame_bytes_max: usize,
    /// Descriptors of two maps: a byte for each endpoint, and the socket of each queue.
    pub endpoints: i32,
    pub sockets: i32,
}

/// Results, of those that the kernel knows.
pub const PASS: i32 = 2;
/// A function of the kernel: to a map's socket.
const REDIRECT_MAP: i32 = 51;
/// The meaning of a descriptor in an instruction: a map, or the memory in it.
const MAP: u8 = 1;
const MAP_VALUE: u8 = 2;

const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_WIDE: u8 = 0x18;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const AND: u8 = 0x57;
const XOR: u8 = 0xa7;
const ALWAYS: u8 = 0x05;
const IF_EQUAL: u8 = 0x15;
const IF_OTHER: u8 = 0x55;
/// Of the lower 32 bits.
const IF_OTHER_WORD: u8 = 0x56;
const IF_GREATER_REGISTER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// The offsets of the context's members: the frame's begin and end, and the number of the queue.
const BEGIN: i16 = 0;
const END: i16 = 4;
const QUEUE: i16 = 16;
/// All that is looked at lies before.
const LOOKED_AT: i32 = MAGIC_AT as i32 + 4;

/// Instructions, those among them that leave to the end where frames pass.
#[derive(Default)]
struct Program {
    instructions: Vec<Instruction>,
    leave: Vec<usize>,
}

impl Program {
    fn add(&mut self, code: u8, to: u8, from: u8, offset: i16, value: i32) {
        self.instructions.push(Instruction { code, registers: to | from << 4, offset, value });
    }

    /// Lets the frame pass if this condition holds of a register.
    fn pass_if(&mut self, code: u8, register: u8, from: u8, value: i32) {
        self.leave.push(self.instructions.len());
        self.add(code, register, from, 0, value);
    }

    /// A descriptor takes the room of two instructions.
    fn load_descriptor(&mut self, to: u8, kind: u8, descriptor: i32) {
        self.add(LOAD_WIDE, to, kind, 0, descriptor);
        self.add(0, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        let end = self.instructions.len();
        for at in self.leave {
            self.instructions[at].offset = (end - at - 1) as i16;
        }
        let last = |code, value| Instruction { code, registers: 0, offset: 0, value };
        self.instructions.extend([last(SET, PASS), last(EXIT, 0)]);
        self.instructions
    }
}

/// The offset of the endpoint in a packet of MXoE, and the mask that hides it; `None` if the packet is for the host.
fn place(kind: Type, order: Order) -> Option<(u32, u32)> {
    match kind {
        Type::Raw | Type::HostQuery | Type::HostReply => None,
        Type::PullReply | Type::NackMcp if order == Order::Big => Some((MAGIC_AT + 3, MAGIC)),
        Type::PullReply | Type::NackMcp => Some((MAGIC_AT, MAGIC)),
        Type::NackLib => Some((REFUSED_AT, 0)),
        _ => Some((ENDPOINT_AT, 0)),
    }
}

/// A program that sends the frames that are for these endpoints and fit to the socket of their queue. It lets all
/// else pass: frames for other endpoints and protocols, for the agent, and frames whose queue has no socket.
pub fn program(wanted: &Wanted) -> Vec<Instruction> {
    let Wanted { station, protocol, frame_bytes_max, endpoints, sockets } = *wanted;
    let [a, b, c, d, e, f] = station.0;
    let mut program = Program::default();
    // Registers: 2 the frame's begin, 3 its end, 5 the value read last, 6 the context, 7 the endpoint.
    program.add(MOVE, 6, 1, 0, 0);
    program.add(LOAD_WORD, 2, 1, BEGIN, 0);
    program.add(LOAD_WORD, 3, 1, END, 0);
    program.add(MOVE, 4, 2, 0, 0);
    program.add(ADD, 4, 0, 0, LOOKED_AT);
    program.pass_if(IF_GREATER_REGISTER, 4, 3, 0);
    program.add(MOVE, 4, 2, 0, 0);
    program.add(ADD, 4, 0, 0, frame_bytes_max as i32);
    program.pass_if(IF_GREATER_REGISTER, 3, 4, 0);
    program.add(LOAD_WORD, 5, 2, 0, 0);
    program.pass_if(IF_OTHER_WORD, 5, 0, i32::from_ne_bytes([a, b, c, d]));
    program.add(LOAD_HALF, 5, 2, 4, 0);
    program.pass_if(IF_OTHER, 5, 0, u16::from_ne_bytes([e, f]).into());
    program.add(LOAD_HALF, 5, 2, 12, 0);
    program.pass_if(IF_OTHER, 5, 0, u16::from_ne_bytes(ETHERTYPE.to_be_bytes()).into());
    program.add(LOAD_BYTE, 5, 2, TYPE_AT as i16, 0);
    match protocol {
        Protocol::Ours => {
            program.add(AND, 5, 0, 0, OURS as i32);
            program.pass_if(IF_OTHER, 5, 0, OURS as i32);
            program.add(LOAD_BYTE, 7, 2, ENDPOINT_AT as i16, 0);
        }
        Protocol::Mxoe(order) => find_mxoe(&mut program, order),
    }
    program.load_descriptor(1, MAP_VALUE, endpoints);
    program.add(ADD_REGISTER, 1, 7, 0, 0);
    program.add(LOAD_BYTE, 1, 1, 0, 0);
    program.pass_if(IF_EQUAL, 1, 0, 0);
    program.load_descriptor(1, MAP, sockets);
    program.add(LOAD_WORD, 2, 6, QUEUE, 0);
    program.add(SET, 3, 0, 0, PASS);
    program.add(CALL, 0, 0, 0, REDIRECT_MAP);
    program.add(EXIT, 0, 0, 0, 0);
    program.finish()
}

/// Instructions that find the endpoint of a packet of MXoE, whose type was read.
fn find_mxoe(program: &mut Program, order: Order) {
    let mut found = Vec::new();
    for kind in (0..=u8::MAX).filter_map(Type::from_u8) {
        let Some((at, hidden_by)) = place(kind, order) else { continue };
        program.add(IF_OTHER, 5, 0, 3, kind as i32);
        program.add(LOAD_BYTE, 7, 2, at as i16, 0);
        program.add(XOR, 7, 0, 0, hidden_by as i32);
        found.push(program.instructions.len());
        program.add(ALWAYS, 0, 0, 0, 0);
    }
    program.pass_if(ALWAYS, 0, 0, 0);
    let end = program.instructions.len();
    for at in found {
        program.instructions[at].offset = (end - at - 1) as i16;
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::mxoe::ETHERNET_BYTES;

    use super::*;
    use crate::filter::endpoint_of;

    /// The addresses of the context, the frame and the map of endpoints in an invented machine.
    const CONTEXT: u64 = 1 << 32;
    const FRAME: u64 = 2 << 32;
    const ENDPOINTS: u64 = 3 << 32;
    const BYTES_MAX: usize = 100;
    /// The result of a redirection.
    const REDIRECT: u64 = 4;

    /// Runs a program as the kernel does, for the instructions that are used here.
    fn run(program: &[Instruction], frame: &[u8], own: &[u8]) -> u64 {
        let mut registers = [0u64; 11];
        registers[1] = CONTEXT;
        let load = |at: u64, bytes: u64| -> u64 {
            let byte = |at: u64| match at >> 32 {
                2 => frame[(at - FRAME) as usize],
                3 => own.contains(&((at - ENDPOINTS) as u8)).into(),
                _ => panic!("a read at {at:#x}"),
            };
            match at - CONTEXT {
                0 => return FRAME,
                4 => return FRAME + frame.len() as u64,
                16 => return 0,
                _ => {}
            }
            let mut value = [0; 8];
            for (index, to) in (0..bytes).zip(&mut value) {
                *to = byte(at + index);
            }
            // In the order of this machine.
            if cfg!(target_endian = "big") {
                value.rotate_right(8 - bytes as usize);
            }
            u64::from_ne_bytes(value)
        };
        let mut at = 0;
        loop {
            let it = program[at];
            at += 1;
            let (to, from) =
                (usize::from(it.registers & 15), registers[usize::from(it.registers >> 4)]);
            let (own, value) = (registers[to], i64::from(it.value) as u64);
            let from_memory = from.wrapping_add(it.offset as u64);
            let jumps = match it.code {
                IF_EQUAL => own == value,
                IF_OTHER => own != value,
                IF_OTHER_WORD => own as u32 != it.value as u32,
                IF_GREATER_REGISTER => own > from,
                ALWAYS => true,
                _ => false,
            };
            if jumps {
                at = at.wrapping_add_signed(it.offset.into());
            }
            registers[to] = match it.code {
                LOAD_BYTE => load(from_memory, 1),
                LOAD_HALF => load(from_memory, 2),
                LOAD_WORD => load(from_memory, 4),
                LOAD_WIDE => {
                    at += 1;
                    if it.registers >> 4 == MAP_VALUE { ENDPOINTS } else { 0 }
                }
                MOVE => from,
                SET => value,
                ADD => own.wrapping_add(value),
                ADD_REGISTER => own.wrapping_add(from),
                AND => own & value,
                XOR => own ^ value,
                CALL if it.value == REDIRECT_MAP => REDIRECT,
                EXIT => return registers[0],
                _ => own,
            };
        }
    }

    fn of(station: Station, protocol: Protocol) -> Vec<Instruction> {
        let (endpoints, sockets) = (1, 2);
        program(&Wanted { station, protocol, frame_bytes_max: BYTES_MAX, endpoints, sockets })
    }

    #[test]
    fn exactly_what_is_for_endpoints_of_the_owner_leaves_the_way_of_all_others() {
        let station: Station = "02:00:5e:00:00:01".parse().unwrap();
        let own = [0, 7, 34, 255];
        let protocols = [Protocol::Ours, Protocol::Mxoe(Order::Big), Protocol::Mxoe(Order::Little)];
        let mut redirected = 0;
        for protocol in protocols {
            let program = of(station, protocol);
            for kind in 0..=255u8 {
                for number in 0..=255u8 {
                    let mut frame: Vec<u8> = (0..60).map(|at| at ^ number).collect();
                    frame[..6].copy_from_slice(&station.0);
                    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
                    frame[16] = kind;
                    let endpoint = endpoint_of(&frame[ETHERNET_BYTES..], protocol);
                    let wanted = endpoint.is_some_and(|it| own.contains(&it));
                    let result = run(&program, &frame, &own);
                    assert_eq!(result == REDIRECT, wanted, "{protocol:?} {kind:#x} {number}");
                    assert!(wanted || result == PASS as u64);
                    redirected += u32::from(wanted);
                }
            }
        }
        assert!(redirected > 3 * 10 * 4, "{redirected}");
    }

    #[test]
    fn what_is_for_others_or_too_long_or_too_short_passes() {
        let station: Station = "02:00:5e:00:00:01".parse().unwrap();
        let program = of(station, Protocol::Ours);
        let mut frame = [0; BYTES_MAX + 1];
        frame[..6].copy_from_slice(&station.0);
        frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        (frame[16], frame[17]) = (0xc1, 9);
        let result = |frame: &[u8]| run(&program, frame, &[9]);
        assert_eq!(result(&frame[..BYTES_MAX]), REDIRECT);
        assert_eq!(result(&frame), PASS as u64, "it would not fit");
        assert_eq!(result(&frame[..31]), PASS as u64, "it is cut");
        for at in (0..6).chain(12..14) {
            let mut other = frame;
            other[at] ^= 1;
            assert_eq!(result(&other[..60]), PASS as u64, "byte {at}");
        }
    }
}
