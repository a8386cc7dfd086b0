//! Inputs of a fuzzer to a guard, and its keys in place of a key file.
//!
//! The keys, the clock and chance are the same each time, so there is one good block of each kind: whatever else is
//! accepted was forged.

use std::sync::OnceLock;

use crate::guard::{Guard, World};
use crate::keyring::{Authority, Keyring, PskKeys};
use crate::name::NodeName;
use crate::secret::{Secret, SessionKey};

const CALL: &[u8] = b"what the caller says";
const ANSWER: &[u8] = b"what the other side says";
const NOW: u64 = 1_800_000_000;

struct Still;

impl World for Still {
    fn chance(&self) -> Secret {
        Secret::new([9; 32])
    }

    fn unix_seconds(&self) -> u64 {
        NOW
    }
}

/// A caller and another side of each kind.
fn pair(kind: u8) -> [Guard; 2] {
    let cluster = || PskKeys::new(Secret::new([1; 32]), Some(Secret::new([2; 32])));
    let name = |text| NodeName::new(text).expect("a name");
    let own = |node: &'static str, byte| {
        let authority = Authority::new(Secret::new([3; 32]));
        Keyring::Node(authority.sign(name(node), Secret::new([byte; 32]), 1, (NOW, NOW)))
    };
    let rings = match kind % 3 {
        0 => [Keyring::Cluster(cluster()), Keyring::Cluster(cluster())],
        1 => [
            Keyring::Derived(cluster().derive(&name("n1")), name("n1")),
            Keyring::Cluster(cluster()),
        ],
        _ => [own("n1", 4), own("n2", 5)],
    };
    rings.map(|ring| Guard::new(ring, Box::new(Still)))
}

/// The good blocks of one kind.
struct Good {
    call: Vec<u8>,
    reply: Vec<u8>,
    key: SessionKey,
}

fn good(kind: u8) -> &'static Good {
    static GOOD: [OnceLock<Good>; 3] = [const { OnceLock::new() }; 3];
    GOOD[usize::from(kind % 3)].get_or_init(|| {
        let [caller, other] = pair(kind);
        let (call, _) = caller.call(None, CALL).expect("it has keys");
        let heard = other.hear(&call, CALL).expect("the good call is taken");
        let (reply, proven) = other.reply(heard, ANSWER).expect("and answered");
        Good { call, reply, key: proven.key }
    })
}

/// The first byte chooses the kind of keys and the message, the rest is the block.
pub fn handshake(bytes: &[u8]) {
    let Some((choice, block)) = bytes.split_first() else { return };
    let Good { reply, key, .. } = good(choice / 2);
    let [caller, other] = pair(choice / 2);
    if choice % 2 == 0 {
        if other.hear(block, CALL).is_ok() {
            // A member takes the calls of members, and those of nodes with derived keys.
            assert!((0..3).any(|kind| good(kind).call == block), "a forged call was taken");
        }
        return;
    }
    let (_, calling) = caller.call(None, CALL).expect("it has keys");
    if let Ok(ours) = caller.answered(calling, block, ANSWER) {
        // The open head of an answer is not covered: nothing depends on it.
        assert_eq!(block.get(8..), reply.get(8..), "a forged answer was taken");
        assert!(ours.key == *key, "both sides have one key");
    }
}

/// Good inputs of [`handshake`].
pub fn handshakes() -> Vec<Vec<u8>> {
    let of_kind = |kind: u8| {
        let Good { call, reply, .. } = good(kind);
        [[&[kind * 2], call.as_slice()].concat(), [&[kind * 2 + 1], reply.as_slice()].concat()]
    };
    (0..3).flat_map(of_kind).collect()
}

/// The text of a key file.
pub fn key_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(ring) = Keyring::parse(text) else { return };
    assert_eq!(Keyring::parse(&ring.to_text()).as_ref(), Ok(&ring), "the journey changes it");
    assert!(!ring.describe().is_empty(), "it is described");
}

/// Good inputs of [`key_file`].
pub fn key_files() -> Vec<Vec<u8>> {
    let authority = Authority::new(Secret::new([3; 32]));
    let name = NodeName::new("n1").expect("a name");
    let keys = PskKeys::new(Secret::new([1; 32]), Some(Secret::new([2; 32])));
    let own = authority.sign(name.clone(), Secret::new([4; 32]), 7, (NOW, NOW));
    let rings = [
        Keyring::Derived(keys.derive(&name), name),
        Keyring::Cluster(keys),
        Keyring::Node(own.trusting(&Authority::new(Secret::new([6; 32])))),
        Keyring::Authority(authority),
    ];
    rings.iter().map(|ring| ring.to_text().as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_inputs_are_taken() {
        handshakes().iter().for_each(|input| handshake(input));
        key_files().iter().for_each(|input| key_file(input));
        for kind in 0..3 {
            let [caller, other] = pair(kind);
            let (call, _) = caller.call(None, CALL).expect("it has keys");
            other.hear(&call, CALL).expect("the good call is taken");
        }
        assert!(
            key_files()
                .iter()
                .all(|text| Keyring::parse(std::str::from_utf8(text).unwrap()).is_ok())
        );
    }
}
