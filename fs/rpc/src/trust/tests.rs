use ropewalk_base::ids::{EndpointId, Incarnation};
use ropewalk_wire::fs::trust::Role;

use super::*;

const DATA: Member = Member { role: Role::Data, number: 3 };

fn origin(number: u64) -> Origin {
    Origin { endpoint: EndpointId(u128::from(number)), incarnation: Incarnation(number) }
}

fn secret(byte: u8) -> Secret {
    Secret::new([byte; SECRET_BYTES])
}

fn seconds(seconds: u64) -> Time {
    Time(seconds * 1_000_000_000)
}

fn proof(byte: u8) -> Proof {
    Proof { secret: secret(byte), member: DATA }
}

fn gate() -> Gate {
    Gate::new(secret(1), origin(100), 7)
}

/// A channel from `caller` to the gate.
fn channel(gate: &Gate, caller: u64, nonce: u128, now: Time) -> Caller {
    let word = proof(1).introduce(origin(caller), nonce);
    let answer = gate.accept(origin(caller), &word, now).expect("it is a member");
    proof(1).accepted((origin(caller), origin(100)), nonce, &answer).expect("so is the gate")
}

fn sealed(channel: &Caller, message: &[u8]) -> (Vec<u8>, Seal, u64) {
    let mut bytes = message.to_vec();
    let counter = channel.seal(&mut bytes);
    let (message, seal) = Seal::split(&bytes).expect("it has one");
    (message.to_vec(), seal, counter)
}

#[test]
fn a_member_is_let_in_once_a_call_and_knows_its_reply() {
    let (gate, now) = (gate(), seconds(5));
    let caller = channel(&gate, 1, 11, now);
    let (message, seal, counter) = sealed(&caller, b"reap");
    let proven = gate.admit(origin(1), &message, &seal, now).expect("it is let in");
    assert_eq!(proven.member, DATA);
    let tag = proven.key.tag_reply(proven.counter, b"done");
    assert!(caller.is_answer(counter, b"done", &tag));
    assert!(
        !caller.is_answer(counter, b"fail", &tag) && !caller.is_answer(counter + 1, b"done", &tag)
    );
    assert!(gate.admit(origin(1), &message, &seal, now).is_none(), "once more");
    // Another order is no replay.
    let (early, late) = (sealed(&caller, b"a"), sealed(&caller, b"b"));
    assert!(gate.admit(origin(1), &late.0, &late.1, now).is_some());
    assert!(gate.admit(origin(1), &early.0, &early.1, now).is_some());
    assert!(gate.admit(origin(1), &early.0, &early.1, now).is_none());
}

#[test]
fn nothing_else_is_let_in() {
    let (gate, now) = (gate(), seconds(5));
    let caller = channel(&gate, 1, 11, now);
    let (message, seal, _) = sealed(&caller, b"reap");
    let refused = |from, message: &[u8], seal: Seal, now| {
        assert!(gate.admit(origin(from), message, &seal, now).is_none());
    };
    refused(2, &message, seal, now);
    refused(1, b"fence", seal, now);
    refused(1, &message, Seal { counter: 2, ..seal }, now);
    refused(1, &message, Seal { nonce: 12, ..seal }, now);
    refused(1, &message, Seal { time: seal.time + 1, ..seal }, now);
    let metadata = Member { role: Role::Metadata, number: 3 };
    refused(1, &message, Seal { member: metadata, ..seal }, now);
    // Too late to begin a channel, and before it was accepted.
    refused(1, &message, seal, seconds(40));
    refused(1, &message, seal, seconds(4));
    assert!(gate.channels.borrow().is_empty());
    // Another life of the server, and another server.
    for (own, random) in [(100, 8), (101, 7)] {
        let other = Gate::new(secret(1), origin(own), random);
        assert!(other.admit(origin(1), &message, &seal, now).is_none());
    }
    assert!(gate.admit(origin(1), &message, &seal, now).is_some());
}

#[test]
fn who_does_not_know_the_secret_is_noticed_on_both_sides() {
    let (gate, now) = (gate(), seconds(5));
    let word = proof(2).introduce(origin(1), 11);
    assert!(gate.accept(origin(1), &word, now).is_none());
    // A server that is none.
    let word = proof(1).introduce(origin(1), 11);
    let other = Gate::new(secret(2), origin(100), 7);
    assert!(other.accept(origin(1), &word, now).is_none());
    let answer = gate.accept(origin(1), &word, now).expect("it is a member");
    assert!(proof(1).accepted((origin(1), origin(101)), 11, &answer).is_none());
    let forged = Acceptance { tag: [0; 32], ..answer };
    assert!(proof(1).accepted((origin(1), origin(100)), 11, &forged).is_none());
    assert_eq!(format!("{:?}", secret(1)), "Secret(..)");
}

#[test]
fn channels_are_bounded_and_one_that_was_forgotten_does_not_come_back() {
    let gate = gate();
    let first = channel(&gate, 1, 0, seconds(5));
    let (message, seal, _) = sealed(&first, b"reap");
    assert!(gate.admit(origin(1), &message, &seal, seconds(5)).is_some());
    for nonce in 1..CHANNELS_MAX as u128 {
        let (message, seal, _) = sealed(&channel(&gate, 1, nonce, seconds(6)), b"reap");
        assert!(gate.admit(origin(1), &message, &seal, seconds(6)).is_some());
    }
    let more = sealed(&channel(&gate, 1, 9999, seconds(7)), b"reap");
    assert!(gate.admit(origin(1), &more.0, &more.1, seconds(7)).is_none(), "all are young");
    let more = sealed(&channel(&gate, 1, 9999, seconds(36)), b"reap");
    assert!(gate.admit(origin(1), &more.0, &more.1, seconds(36)).is_some());
    assert_eq!(gate.channels.borrow().len(), CHANNELS_MAX);
    assert!(gate.admit(origin(1), &message, &seal, seconds(36)).is_none(), "it is over");
}

#[test]
fn tokens_and_rights_are_good_for_what_they_were_made_for() {
    let grantor = Grantor::new(&secret(1));
    for limited in [false, true] {
        let token = grantor.token(5, origin(1), limited);
        assert_eq!(grantor.check_token(5, origin(1), token), Some(limited));
        assert_eq!(grantor.check_token(5, origin(1), token ^ 1), None, "no other limits");
        assert_eq!(grantor.check_token(6, origin(1), token), None);
        assert_eq!(grantor.check_token(5, origin(2), token), None);
        assert_eq!(Grantor::new(&secret(2)).check_token(5, origin(1), token), None);
    }
}

#[test]
fn a_capability_is_good_for_what_it_was_made_for() {
    let grantor = Grantor::new(&secret(1));
    let good = grantor.capability(5, (77, 2), (true, false), 1000);
    assert!(grantor.check_capability(5, (77, 2), &good));
    for (session, file) in [(6, (77, 2)), (5, (78, 2)), (5, (77, 3))] {
        assert!(!grantor.check_capability(session, file, &good), "{session} {file:?}");
    }
    assert!(!Grantor::new(&secret(2)).check_capability(5, (77, 2), &good));
    let flipped = |at: usize, bits| {
        let mut tag = good.tag;
        tag[at] ^= bits;
        tag
    };
    let forged = [
        Capability { writes: true, ..good },
        Capability { reads: false, ..good },
        Capability { expires: 1001, ..good },
        Capability { tag: flipped(0, 1), ..good },
        Capability { tag: flipped(15, 128), ..good },
    ];
    for forged in forged {
        assert!(!grantor.check_capability(5, (77, 2), &forged), "{forged:?}");
    }
}

/// No forged one of a million is taken, and a check costs no message and about a microsecond.
#[test]
fn a_million_forged_capabilities_are_refused() {
    let grantor = Grantor::new(&secret(1));
    let good = grantor.capability(5, (77, 2), (true, true), 1000);
    let begin = std::time::Instant::now();
    let taken = (1..=1_000_000_u128)
        .filter(|at| {
            let bits = at.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let tag = (u128::from_le_bytes(good.tag) ^ bits).to_le_bytes();
            grantor.check_capability(5, (77, 2), &Capability { tag, ..good })
        })
        .count();
    assert_eq!(taken, 0);
    println!("{:?} for a check", begin.elapsed() / 1_000_000);
}
