//! The choice of the kernel's messages that come: those of interfaces that are followed, of addresses where one is
//! followed, of routes, and all replies. A host of containers makes and removes interfaces all the time, and its sleepers
//! are to sleep on.
//!
//! A program of the kernel's classic packet filter, which sees one message, or several of a dump.

use super::netlink::{
    LINK_INDEX_AT, NLM_F_MULTI, RTM_DELADDR, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK,
};

/// Most interfaces in a program: all messages come where more are followed.
const LINKS_MAX: usize = 1000;

const KIND_AT: u32 = 4;
const FLAGS_AT: u32 = 6;
const ALL: u32 = u32::MAX;
const NONE: u32 = 0;

/// The interfaces that subscribers follow, and whether one of them follows an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Followed {
    /// Indices of interfaces, sorted.
    pub links: Vec<u32>,
    pub addresses: bool,
}

/// The program that lets these through; `None`: all have to be let through.
pub fn program(followed: &Followed) -> Option<Vec<libc::sock_filter>> {
    if followed.links.len() > LINKS_MAX {
        return None;
    }
    let step = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let load_half = |at| step(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, at, 0, 0);
    let load_word = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    let end = |verdict| step(libc::BPF_RET | libc::BPF_K, verdict, 0, 0);
    // The filter reads as networks write; the message is in this host's order.
    let half = |value: u16| u32::from(value.to_be());
    let skip_unless = |kind, value| step(libc::BPF_JMP | kind | libc::BPF_K, value, 0, 1);
    let go_if = |value, over| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, over, 0);

    let mut program = vec![
        load_half(FLAGS_AT),
        skip_unless(libc::BPF_JSET, half(NLM_F_MULTI)),
        end(ALL),
        load_half(KIND_AT),
    ];
    if !followed.addresses {
        for kind in [RTM_NEWADDR, RTM_DELADDR] {
            program.extend([skip_unless(libc::BPF_JEQ, half(kind)), end(NONE)]);
        }
    }
    program.extend([go_if(half(RTM_NEWLINK), 2), go_if(half(RTM_DELLINK), 1), end(ALL)]);
    program.push(load_word(LINK_INDEX_AT));
    for index in &followed.links {
        program.extend([skip_unless(libc::BPF_JEQ, index.to_be()), end(ALL)]);
    }
    program.push(end(NONE));
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::super::made::{
        DEL_ADDRESS, NEW_ADDRESS, NEW_LINK, UP, address, done, link, link_body, link_removed,
        message, route,
    };
    use super::*;

    /// The verdict of the kernel.
    fn passes(program: &[libc::sock_filter], bytes: &[u8]) -> bool {
        let (mut at, mut value) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            let (code, place) = (u32::from(code), k as usize);
            at += 1;
            if code == libc::BPF_LD | libc::BPF_H | libc::BPF_ABS {
                let Some(bytes) = bytes.get(place..place + 2) else { return false };
                value = u16::from_be_bytes(bytes.try_into().unwrap()).into();
            } else if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                let Some(bytes) = bytes.get(place..place + 4) else { return false };
                value = u32::from_be_bytes(bytes.try_into().unwrap());
            } else if code == libc::BPF_RET | libc::BPF_K {
                return k > 0;
            } else {
                let is_so = match code & 0xf0 {
                    libc::BPF_JSET => value & k != 0,
                    libc::BPF_JEQ => value == k,
                    other => panic!("{other}"),
                };
                at += usize::from(if is_so { jt } else { jf });
            }
        }
    }

    #[test]
    fn messages_of_followed_interfaces_and_replies_pass() {
        let followed = Followed { links: vec![2, 70_000], addresses: false };
        let program = program(&followed).unwrap();
        let passes = |bytes: &[u8]| passes(&program, bytes);
        for index in [2, 70_000] {
            assert!(passes(&link(index, UP, "e", 1500)) && passes(&link_removed(index)));
        }
        for index in [1, 3, 2 << 8, 0x0200_0000] {
            assert!(!passes(&link(index, UP, "e", 1500)) && !passes(&link_removed(index)));
        }
        assert!(!passes(&address(NEW_ADDRESS, 2, "10.0.0.1")));
        assert!(!passes(&address(DEL_ADDRESS, 2, "fd00::1")));
        assert!(passes(&route(Some(9))) && passes(&done(1)));
        let listed = link_body(0, 9, UP, &[]);
        assert!(passes(&message(NEW_LINK, NLM_F_MULTI, 1, &listed)), "it is part of a dump");
        assert!(!passes(&[0; 3]));
    }

    #[test]
    fn addresses_pass_where_somebody_follows_one() {
        let program = program(&Followed { links: vec![], addresses: true }).unwrap();
        assert!(passes(&program, &address(NEW_ADDRESS, 7, "10.0.0.1")));
        assert!(passes(&program, &address(DEL_ADDRESS, 7, "10.0.0.1")));
        assert!(!passes(&program, &link(7, UP, "e", 1500)));
    }

    #[test]
    fn the_longest_program_fits_the_kernel() {
        let longest = Followed { links: (1..=LINKS_MAX as u32).collect(), addresses: false };
        assert!(program(&longest).unwrap().len() <= 4096, "BPF_MAXINSNS");
        let longer = Followed { links: (0..=LINKS_MAX as u32).collect(), addresses: false };
        assert!(program(&longer).is_none());
    }
}
