//! Handshakes that are taken, and those that are refused.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// A clock and a source of numbers that repeat.
struct Fixed {
    seconds: u64,
    drawn: AtomicU64,
}

impl World for Fixed {
    fn chance(&self) -> Secret {
        let drawn = self.drawn.fetch_add(1, Ordering::Relaxed);
        Secret::new([7; 32]).derive("test", &drawn.to_le_bytes())
    }

    fn unix_seconds(&self) -> u64 {
        self.seconds
    }
}

const NOW: u64 = 1_800_000_000;
const DAY: u64 = 86_400;
const CALL: &[u8] = b"what the caller says";
const ANSWER: &[u8] = b"what the other side says";

fn guard_at(ring: Keyring, seconds: u64, seed: u64) -> Guard {
    Guard::new(ring, Box::new(Fixed { seconds, drawn: AtomicU64::new(seed) }))
}

fn guard(ring: Keyring, seed: u64) -> Guard {
    guard_at(ring, NOW, seed << 32)
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn cluster(byte: u8) -> PskKeys {
    PskKeys::new(Secret::new([byte; 32]), None)
}

fn derived(keys: &PskKeys, node: &str) -> Keyring {
    Keyring::Derived(keys.derive(&name(node)), name(node))
}

fn authority(byte: u8) -> Authority {
    Authority::new(Secret::new([byte; 32]))
}

fn signed(by: &Authority, node: &str, epoch: u32) -> NodeKeys {
    let private = Secret::new([node.len() as u8 + 40; 32]);
    by.sign(name(node), private, epoch, (NOW - DAY, NOW + DAY))
}

fn answer(guard: &Guard, block: &[u8], greeting: &[u8]) -> Result<(Vec<u8>, Proven), Untrusted> {
    guard.reply(guard.hear(block, greeting)?, ANSWER)
}

type Judged = Result<(Proven, Proven), Untrusted>;

/// One handshake: what the caller has proven of the other side, and the other way round.
fn meet(caller: &Guard, other: &Guard, known: Option<&NodeName>) -> Judged {
    let (block, calling) = caller.call(known, CALL)?;
    let (reply, of_caller) = answer(other, &block, CALL)?;
    let of_other = caller.answered(calling, &reply, ANSWER)?;
    Ok((of_other, of_caller))
}

fn is_good(caller: Keyring, other: Keyring) -> (Option<NodeName>, Option<NodeName>) {
    let (of_other, of_caller) = meet(&guard(caller, 1), &guard(other, 2), None).unwrap();
    assert_eq!(of_other.key, of_caller.key);
    (of_other.node, of_caller.node)
}

fn refusal(caller: Keyring, other: Keyring) -> Untrusted {
    meet(&guard(caller, 1), &guard(other, 2), None).unwrap_err()
}

#[test]
fn members_of_one_cluster_agree_on_a_key_that_differs_each_time() {
    let (a, b) = (guard(Keyring::Cluster(cluster(1)), 1), guard(Keyring::Cluster(cluster(1)), 2));
    let (first, _) = meet(&a, &b, None).unwrap();
    let (second, of_caller) = meet(&a, &b, None).unwrap();
    assert!(first.key != second.key && second.key == of_caller.key);
    assert_eq!((second.node, of_caller.node), (None, None));
}

#[test]
fn a_node_with_a_derived_key_is_known_to_members_and_to_nobody_else() {
    let (keys, other) = (cluster(1), cluster(2));
    let member = || Keyring::Cluster(cluster(1));
    assert_eq!(is_good(derived(&keys, "n1"), member()), (None, Some(name("n1"))));
    assert_eq!(refusal(derived(&keys, "n1"), derived(&keys, "n2")), Untrusted::WrongKey);
    assert_eq!(refusal(derived(&other, "n1"), member()), Untrusted::WrongKey);
    // A stolen key of one node does not make its holder another one.
    let posed = Keyring::Derived(keys.derive(&name("n1")), name("n2"));
    assert_eq!(refusal(posed, member()), Untrusted::WrongKey);
    // A member calls the node back under its name, and not without.
    let (of_other, _) =
        meet(&guard(member(), 1), &guard(derived(&keys, "n1"), 2), Some(&name("n1"))).unwrap();
    assert_eq!(of_other.node, Some(name("n1")));
    assert_eq!(refusal(member(), derived(&keys, "n1")), Untrusted::WrongKey);
    // A member has no name: one that is called by a name refuses, and does not take the caller for that node.
    let called = meet(&guard(member(), 1), &guard(member(), 2), Some(&name("n1")));
    assert_eq!(called.unwrap_err(), Untrusted::WrongKey);
}

#[test]
fn what_a_node_has_proven_stands_until_it_is_revoked_or_expires() {
    let by = authority(1);
    let keys = |epoch_min| signed(&by, "server", 5).refusing_below(epoch_min);
    let server = guard(Keyring::Node(keys(5)), 2);
    let caller = guard(Keyring::Node(signed(&by, "n1", 5)), 1);
    let (_, of_caller) = meet(&caller, &server, None).unwrap();
    let standing = of_caller.standing.unwrap();
    assert_eq!((server.stands(&standing), server.changes()), (Ok(()), 0));
    assert_eq!(standing.ends_at(), NOW + DAY + 301);
    for (seconds, expected) in
        [(NOW + DAY + 300, Ok(())), (NOW + DAY + 301, Err(Untrusted::Expired))]
    {
        assert_eq!(guard_at(Keyring::Node(keys(5)), seconds, 3).stands(&standing), expected);
    }
    let other = Keyring::Node(signed(&authority(2), "server", 5));
    let both = Keyring::Node(signed(&authority(2), "server", 5).trusting(&by));
    let steps = [
        (Keyring::Node(keys(6)), Err(Untrusted::Revoked)),
        (both, Ok(())),
        (other, Err(Untrusted::Unsigned)),
        (Keyring::Cluster(cluster(1)), Err(Untrusted::WrongKey)),
    ];
    for (count, (ring, expected)) in (1..).zip(steps) {
        server.replace(ring);
        assert_eq!((server.stands(&standing), server.changes()), (expected, count));
    }
}

#[test]
fn a_host_without_a_token_costs_keyed_hashes_alone() {
    let (caller, other) =
        (guard(Keyring::Cluster(cluster(1)), 1), guard(Keyring::Cluster(cluster(1)), 2));
    let (block, _) = caller.call(None, CALL).unwrap();
    assert_eq!(other.hear_if(&block, CALL, || false).err(), Some(Untrusted::TooMany));
    // A stranger is not counted.
    let stranger = guard(Keyring::Cluster(cluster(2)), 3);
    let asked = stranger.hear_if(&block, CALL, || unreachable!("it has no key"));
    assert_eq!(asked.err(), Some(Untrusted::WrongKey));
}

#[test]
fn another_key_is_refused_whichever_side_has_it() {
    let member = |byte| Keyring::Cluster(cluster(byte));
    assert_eq!(refusal(member(1), member(2)), Untrusted::WrongKey);
    let own = |by: u8| Keyring::Node(signed(&authority(by), "n1", 1));
    assert_eq!(refusal(own(1), own(2)), Untrusted::WrongKey);
    assert_eq!(refusal(own(1), member(1)), Untrusted::WrongKey);
    assert_eq!(refusal(member(1), own(1)), Untrusted::WrongKey);
    assert_eq!(refusal(Keyring::Authority(authority(1)), own(1)), Untrusted::NoEndpointKey);
    assert_eq!(refusal(own(1), Keyring::Authority(authority(1))), Untrusted::WrongKey);
}

#[test]
fn nodes_prove_the_names_that_the_cluster_signed() {
    let own = |node: &str| Keyring::Node(signed(&authority(1), node, 1));
    assert_eq!(is_good(own("n1"), own("server")), (Some(name("server")), Some(name("n1"))));
}

#[test]
fn expired_early_and_revoked_certificates_are_refused_on_both_sides() {
    let by = authority(1);
    let sign = |node: &str, epoch, from, until| {
        let private = Secret::new([node.len() as u8; 32]);
        by.sign(name(node), private, epoch, (from, until))
    };
    let good = || sign("server", 5, NOW - DAY, NOW + DAY).refusing_below(5);
    let cases = [
        (sign("n1", 5, NOW - DAY, NOW - 301), Untrusted::Expired),
        (sign("n1", 5, NOW + 301, NOW + DAY), Untrusted::Early),
        (sign("n1", 4, NOW - DAY, NOW + DAY), Untrusted::Revoked),
    ];
    for (bad, why) in cases {
        let (bad, good) = (Keyring::Node(bad), Keyring::Node(good()));
        assert_eq!(refusal(bad.clone(), good.clone()), why);
        assert_eq!(refusal(good, bad), why);
    }
    // Clocks may be five minutes apart.
    for apart in [sign("n1", 5, NOW - DAY, NOW - 300), sign("n1", 5, NOW + 300, NOW + DAY)] {
        is_good(Keyring::Node(apart), Keyring::Node(good()));
    }
    // Further apart the two sides do not believe each other.
    let (a, b) = (guard_at(Keyring::Node(good()), NOW, 1), guard_at(Keyring::Node(good()), 0, 9));
    assert_eq!(meet(&a, &b, None).unwrap_err(), Untrusted::Early);
}

#[test]
fn a_certificate_is_of_no_use_to_another_key_and_cannot_be_changed() {
    let by = authority(1);
    let good = signed(&by, "server", 1);
    let mut stolen = signed(&by, "n1", 1);
    stolen.certificate = good.certificate.clone();
    assert_eq!(refusal(Keyring::Node(stolen), Keyring::Node(good.clone())), Untrusted::Unsigned);
    let mut renamed = signed(&by, "n1", 1);
    renamed.certificate.name = name("n2");
    assert_eq!(refusal(Keyring::Node(renamed), Keyring::Node(good.clone())), Untrusted::Unsigned);
    // One who has the door's secret, and signs with another key.
    let mut forged = signed(&authority(2), "n1", 1);
    forged.trusted = good.trusted.clone();
    assert_eq!(refusal(Keyring::Node(forged), Keyring::Node(good)), Untrusted::Unsigned);
}

/// Kinds of rings whose handshakes have different shapes.
fn pairs() -> [(Keyring, Keyring); 3] {
    let (keys, by) = (cluster(1), authority(1));
    [
        (Keyring::Cluster(cluster(1)), Keyring::Cluster(cluster(1))),
        (derived(&keys, "n1"), Keyring::Cluster(cluster(1))),
        (Keyring::Node(signed(&by, "n1", 1)), Keyring::Node(signed(&by, "server", 1))),
    ]
}

#[test]
fn no_bit_of_a_block_or_a_greeting_can_be_changed_nor_can_it_be_cut() {
    for (caller, other) in pairs() {
        let (caller, other) = (guard(caller, 1), guard(other, 2));
        let (block, _) = caller.call(None, CALL).unwrap();
        for bit in 0..block.len() * 8 {
            let mut spoiled = block.clone();
            spoiled[bit / 8] ^= 1 << (bit % 8);
            answer(&other, &spoiled, CALL).unwrap_err();
        }
        for length in 0..block.len() {
            answer(&other, &block[..length], CALL).unwrap_err();
        }
        for longer in [1, 16, 600] {
            let longer = [block.as_slice(), &vec![0; longer]].concat();
            answer(&other, &longer, CALL).unwrap_err();
        }
        answer(&other, &block, b"another greeting").unwrap_err();
        let tried = |spoil: &dyn Fn(&mut Vec<u8>), greeting: &[u8]| {
            let (block, calling) = caller.call(None, CALL).unwrap();
            let (mut reply, _) = answer(&other, &block, CALL).unwrap();
            spoil(&mut reply);
            caller.answered(calling, &reply, greeting).map(|_| reply.len())
        };
        let length = tried(&|_| (), ANSWER).unwrap();
        // The open head of an answer repeats what the caller said, and nothing depends on it.
        for bit in 8 * 8..length * 8 {
            tried(&|answer| answer[bit / 8] ^= 1 << (bit % 8), ANSWER).unwrap_err();
        }
        for cut in 0..length {
            tried(&|answer| answer.truncate(cut), ANSWER).unwrap_err();
        }
        tried(&|_| (), b"another greeting").unwrap_err();
    }
}

#[test]
fn an_old_block_does_not_give_its_sender_the_key() {
    for (caller, other) in pairs() {
        let (caller, other) = (guard(caller, 1), guard(other, 2));
        let (block, calling) = caller.call(None, CALL).unwrap();
        let (reply, first) = answer(&other, &block, CALL).unwrap();
        let (again, second) = answer(&other, &block, CALL).unwrap();
        assert!(reply != again && first.key != second.key);
        // An answer to another call is none to this one.
        let (_, later) = caller.call(None, CALL).unwrap();
        caller.answered(later, &reply, ANSWER).unwrap_err();
        assert_eq!(caller.answered(calling, &reply, ANSWER).unwrap().key, first.key);
    }
}

#[test]
fn a_block_sent_back_to_its_sender_proves_nothing() {
    for (caller, _) in pairs() {
        let caller = guard(caller, 1);
        let (block, calling) = caller.call(None, CALL).unwrap();
        caller.answered(calling, &block, CALL).unwrap_err();
    }
}

#[test]
fn keys_are_replaced_while_both_count() {
    let old = cluster(1);
    let both = old.rotate(Secret::new([2; 32]));
    let new = cluster(2);
    let ring = |keys: &PskKeys| Keyring::Cluster(keys.clone());
    // Everybody accepts both first, then calls by the new one, then forgets the old one.
    let steps = [ring(&old), ring(&both.swapped()), ring(&both), ring(&new)];
    for step in steps.windows(2) {
        for (caller, other) in [(0, 1), (1, 0), (1, 1)] {
            is_good(step[caller].clone(), step[other].clone());
        }
    }
    assert_eq!(refusal(ring(&old), ring(&new)), Untrusted::WrongKey);
    let node = |keys: &PskKeys| derived(keys, "n1");
    is_good(node(&both.swapped()), ring(&old));
    is_good(node(&both), ring(&both.swapped()));
    let (first, second) = (authority(1), authority(2));
    let late = Keyring::Node(signed(&first, "n1", 1).trusting(&second));
    let early = Keyring::Node(signed(&second, "server", 1).trusting(&first));
    is_good(late.clone(), early.clone());
    is_good(early, late);
    let guard = guard(Keyring::Cluster(cluster(1)), 1);
    guard.replace(Keyring::Cluster(cluster(2)));
    let other = super::tests::guard(Keyring::Cluster(cluster(2)), 2);
    meet(&guard, &other, None).unwrap();
}

#[test]
fn files_say_what_rings_have() {
    let (keys, by) = (cluster(1), authority(1));
    let rings = [
        Keyring::Cluster(keys.rotate(Secret::new([2; 32]))),
        derived(&keys, "n1"),
        Keyring::Authority(authority(3)),
        Keyring::Node(signed(&by, "n1", 7).trusting(&authority(2)).refusing_below(5)),
    ];
    for ring in rings {
        let text = ring.to_text();
        assert_eq!(Keyring::parse(&text).as_ref(), Ok(&ring));
        assert!(text.len() < 2048, "no part of it moves while it is written");
        let lines: Vec<&str> = text.lines().collect();
        for left_out in 0..lines.len() {
            let mut lines = lines.clone();
            let line = lines.remove(left_out);
            let rest = Keyring::parse(&lines.join("\n"));
            // One of two keys may be missing.
            let is_spare = line.starts_with("trust ") || text.matches("\nkey ").count() == 2;
            assert!(rest.is_err() || is_spare && rest != Ok(ring.clone()), "{line}");
        }
        for end in 0..text.len() - 1 {
            assert!(Keyring::parse(&text[..end]) != Ok(ring.clone()));
        }
    }
}

#[test]
fn files_that_are_none_are_refused_without_their_secrets() {
    let key = "ab".repeat(32);
    let bad = [
        String::new(),
        "ropewalk key 2 cluster\n".into(),
        "ropewalk key 1 magic\nkey 00\n".into(),
        format!("ropewalk key 1 cluster\nkey {key}\nkey {key}\nkey {key}\n"),
        format!("ropewalk key 1 cluster\nkey {}\n", &key[1..]),
        format!("ropewalk key 1 cluster\nkey {}\n", key.to_uppercase()),
        format!("ropewalk key 1 cluster\nkey {key}\nname n1\n"),
        format!("ropewalk key 1 derived\nkey {key}\nname A B\n"),
        format!("ropewalk key 1 cluster\nlock {key}\n"),
        format!("ropewalk key 1 cluster\nkey {key}{}\n", " ".repeat(FILE_BYTES_MAX)),
    ];
    for text in bad {
        let error = Keyring::parse(&text).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("abab"), "{error}");
    }
    let mut node = signed(&authority(1), "n1", 1);
    node.private = Secret::new([9; 32]);
    let text = Keyring::Node(node).to_text();
    assert_eq!(Keyring::parse(&text), Err(FileError::Mismatch));
}

#[test]
fn nothing_shows_a_key() {
    let by = authority(0xab);
    let rings = [
        Keyring::Cluster(cluster(0xab)),
        derived(&cluster(0xab), "n1"),
        Keyring::Authority(authority(0xab)),
    ];
    for ring in &rings {
        let shown = format!("{ring:?}");
        assert!(!shown.contains("171") && !shown.contains("abab"), "{shown}");
    }
    let shown = format!("{:?}", signed(&by, "n1", 1).private);
    assert_eq!(shown, "Secret(..)");
    let (_, proven) = meet(&guard(rings[0].clone(), 1), &guard(rings[0].clone(), 2), None).unwrap();
    assert_eq!(format!("{proven:?}"), "Proven { key: SessionKey(..), node: None, standing: None }");
}

#[test]
fn certificates_are_decoded_as_they_were_encoded() {
    let certificate = signed(&authority(1), "n1", 7).certificate;
    let bytes = certificate.encode();
    assert_eq!(Certificate::decode(&bytes), Some(certificate));
    for length in 0..bytes.len() {
        assert_eq!(Certificate::decode(&bytes[..length]), None);
    }
    assert_eq!(Certificate::decode(&[bytes.as_slice(), &[0]].concat()), None);
    for text in ["", "N1", "a b", "é", &"a".repeat(65)] {
        assert_eq!(NodeName::new(text), Err(NameError));
    }
}
