//! Which frames the kernel lets through, and which endpoint a frame is for: the same in both places.

use ropewalk_wire::mxoe::Station;

use crate::numbers::Numbers;

/// Where a body has the number of the endpoint that it is for: packets of ours, and most of MXoE's.
const ENDPOINT_AT: usize = 3;
/// The same in a frame.
const ENDPOINT_AT_FRAME: u32 = 17;

/// The endpoint that a body is for.
pub fn endpoint_of(body: &[u8]) -> Option<u8> {
    body.get(ENDPOINT_AT).copied()
}

const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const NUMBER: u32 = libc::BPF_LD | libc::BPF_IMM;
const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const SHIFT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const SHIFT_BY_X: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_X;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A program that lets through what is for this station and one of these endpoints, and nothing else. The
/// kernel runs it for each frame of our EtherType, however many endpoints there are: their numbers are bits
/// of eight words, one of which is looked at.
pub fn program(station: Station, endpoints: &Numbers) -> Vec<libc::sock_filter> {
    let [a, b, c, d, e, f] = station.0;
    let high = u32::from_be_bytes([a, b, c, d]);
    let low = u32::from(u16::from_be_bytes([e, f]));
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let equal = |k, jt, jf| libc::sock_filter { code: IF_EQUAL as u16, jt, jf, k };
    let drop = statement(RETURN, 0);
    let mut program = vec![
        statement(WORD, 0),
        equal(high, 1, 0),
        drop,
        statement(HALF, 4),
        equal(low, 1, 0),
        drop,
        statement(BYTE, ENDPOINT_AT_FRAME),
        statement(AND, 31),
        statement(TO_X, 0),
        statement(BYTE, ENDPOINT_AT_FRAME),
        statement(SHIFT, 5),
    ];
    for (index, word) in endpoints.words().into_iter().enumerate().filter(|(_, word)| *word != 0) {
        program.extend([
            equal(index as u32, 0, 6),
            statement(NUMBER, word),
            statement(SHIFT_BY_X, 0),
            statement(AND, 1),
            equal(1, 0, 1),
            statement(RETURN, u32::MAX),
            drop,
        ]);
    }
    program.push(drop);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a program, for the instructions that are used here.
    fn accepts(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        let (mut at, mut a, mut x) = (0, 0u32, 0u32);
        loop {
            let it = program[at];
            at += 1;
            let k = it.k as usize;
            match u32::from(it.code) {
                WORD => a = u32::from_be_bytes(frame[k..k + 4].try_into().unwrap()),
                HALF => a = u16::from_be_bytes(frame[k..k + 2].try_into().unwrap()).into(),
                // Behind the end: the kernel drops.
                BYTE => match frame.get(k) {
                    Some(byte) => a = (*byte).into(),
                    None => return false,
                },
                NUMBER => a = it.k,
                TO_X => x = a,
                AND => a &= it.k,
                SHIFT => a >>= it.k,
                SHIFT_BY_X => a >>= x,
                IF_EQUAL => at += usize::from(if a == it.k { it.jt } else { it.jf }),
                RETURN => return it.k != 0,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn exactly_what_is_for_these_endpoints_passes() {
        let station: Station = "02:00:5e:00:00:01".parse().unwrap();
        let sets: [&[u8]; 5] = [&[], &[0], &[7, 8, 254], &[31, 32, 63, 64, 128, 255], &[100]];
        for set in sets.into_iter().map(|set| set.to_vec()).chain([(0..=255).collect()]) {
            let mut numbers = Numbers::default();
            set.iter().for_each(|number| numbers.insert(*number));
            let program = program(station, &numbers);
            for number in 0..=255u8 {
                let mut frame = [0; 60];
                frame[..6].copy_from_slice(&station.0);
                frame[17] = number;
                assert_eq!(accepts(&program, &frame), set.contains(&number), "{set:?} {number}");
                frame[5] ^= 1;
                assert!(!accepts(&program, &frame), "for another station");
                frame[5] ^= 1;
                frame[0] ^= 1;
                assert!(!accepts(&program, &frame), "for another station");
            }
            assert!(
                !accepts(&program, &[2, 0, 0x5e, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
                "too short"
            );
        }
    }
}
