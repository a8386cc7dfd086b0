//! The key of a session, under which a link proves that it comes from the session's other side.
//!
//! Without keys of their own both sides tell a share in the session's own frames. So whoever read none of these cannot make
//! the key; whoever reads all frames can, as it can read and forge the frames themselves. With keys it comes from the
//! handshake of their greetings, and only these two have it.
//!
//! Invariants: a proof holds for one session, one link, one direction, and what it says of the path; proofs are
//! compared in constant time.

use std::fmt;

use hmac::{Hmac, Mac};
use ropewalk_base::payload::DirectionKey;
use ropewalk_wire::frame::{PROOF_BYTES, SHARE_BYTES};
use sha2::Sha256;

use super::SessionId;

/// What one side contributes.
pub(crate) type Share = [u8; SHARE_BYTES];
/// A proof of one link.
pub(crate) type Proof = [u8; PROOF_BYTES];

/// The key of one session.
#[derive(Clone)]
pub(crate) struct Key([u8; 32]);

/// Who proves something: the side that began the link, or the one that accepted it. A link becomes one more path, or carries
/// the session on in place of all that it had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prover {
    Caller,
    Acceptor,
    CarryingCaller,
    CarryingAcceptor,
    /// In place of `Confirm`, where both sides have keys.
    BeginningCaller,
}

/// Everything that a link's proof is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub prover: Prover,
    pub session: SessionId,
    /// The random numbers of both greetings.
    pub caller_nonce: u32,
    pub acceptor_nonce: u32,
    pub path: u32,
    pub counter: u32,
    /// The prover's rail.
    pub rail: u8,
    /// The caller's source port, where its user chose one; 0 from the acceptor.
    pub entropy: u16,
    /// The protection of payloads that both greetings named, the caller's first.
    pub modes: [u8; 2],
}

impl Key {
    /// The key that both sides make of their shares. `lower`: that of the side with the lower endpoint id.
    pub fn agreed(session: SessionId, lower: &Share, higher: &Share) -> Key {
        let mut mac = keyed(lower, b"ropewalk session key");
        mac.update(&session.name().to_le_bytes());
        mac.update(higher);
        Key(mac.finalize().into_bytes().into())
    }

    /// The key of a session whose sides have proven themselves: they made `bytes` in their handshake.
    pub fn proven(session: SessionId, bytes: &[u8; 32]) -> Key {
        let mut mac = keyed(bytes, b"ropewalk proven session key");
        mac.update(&session.name().to_le_bytes());
        Key(mac.finalize().into_bytes().into())
    }

    pub fn prove(&self, claim: &Claim) -> Proof {
        self.mac(claim).finalize().into_bytes().into()
    }

    pub fn holds(&self, claim: &Claim, proof: &Proof) -> bool {
        self.mac(claim).verify_slice(proof).is_ok()
    }

    /// The keys of a link: of what its caller sends, and of what the accepting side sends. `claim`: what the caller has
    /// proven; `salt`: what it told with that; `modes`: those of both greetings, the caller's first.
    pub fn link_keys(&self, claim: &Claim, salt: [u8; 4], modes: [u8; 2]) -> [DirectionKey; 2] {
        let proven = self.prove(claim);
        [&b"ropewalk link of the caller"[..], b"ropewalk link of the acceptor"].map(|direction| {
            let mut mac = keyed(&self.0, direction);
            mac.update(&proven);
            mac.update(&salt);
            mac.update(&modes);
            DirectionKey(mac.finalize().into_bytes().into())
        })
    }

    fn mac(&self, claim: &Claim) -> Hmac<Sha256> {
        let prover: &[u8] = match claim.prover {
            Prover::Caller => b"ropewalk join",
            Prover::Acceptor => b"ropewalk join answer",
            Prover::CarryingCaller => b"ropewalk carry on",
            Prover::CarryingAcceptor => b"ropewalk carry on answer",
            Prover::BeginningCaller => b"ropewalk begin",
        };
        let mut mac = keyed(&self.0, prover);
        let words = [
            claim.session.name(),
            claim.caller_nonce,
            claim.acceptor_nonce,
            claim.path,
            claim.counter,
        ];
        words.iter().for_each(|word| mac.update(&word.to_le_bytes()));
        mac.update(&[claim.rail]);
        mac.update(&claim.entropy.to_le_bytes());
        // Nobody on the way changes what the greetings said. Sides without keys say nothing.
        if claim.modes != [0; 2] {
            mac.update(&claim.modes);
        }
        mac
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn keyed(key: &[u8], purpose: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are taken");
    // Ended by a zero: no purpose is the beginning of another one with what follows it.
    mac.update(purpose);
    mac.update(&[0]);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        Claim {
            prover: Prover::Caller,
            session: SessionId::own(77),
            caller_nonce: 1,
            acceptor_nonce: 2,
            path: 4,
            counter: 1,
            rail: 0,
            entropy: 0,
            modes: [0; 2],
        }
    }

    #[test]
    fn a_proof_holds_for_its_claim_and_key_alone() {
        let key = Key::agreed(claim().session, &[1; 16], &[2; 16]);
        let proof = key.prove(&claim());
        assert!(key.holds(&claim(), &proof));
        let others = [
            Claim { prover: Prover::Acceptor, ..claim() },
            Claim { prover: Prover::CarryingCaller, ..claim() },
            Claim { prover: Prover::CarryingAcceptor, ..claim() },
            Claim { prover: Prover::BeginningCaller, ..claim() },
            Claim { session: SessionId::own(79), ..claim() },
            Claim { caller_nonce: 2, acceptor_nonce: 1, ..claim() },
            Claim { caller_nonce: 9, ..claim() },
            Claim { acceptor_nonce: 9, ..claim() },
            Claim { modes: [1, 0], ..claim() },
            Claim { modes: [0, 1], ..claim() },
            Claim { path: 6, ..claim() },
            Claim { counter: 2, ..claim() },
            Claim { rail: 1, ..claim() },
            Claim { entropy: 1, ..claim() },
        ];
        for other in others {
            assert!(!key.holds(&other, &proof), "{other:?}");
        }
        for (lower, higher) in [([2; 16], [1; 16]), ([1; 16], [1; 16]), ([1; 16], [3; 16])] {
            let other = Key::agreed(claim().session, &lower, &higher);
            assert!(!other.holds(&claim(), &proof));
        }
        let other = Key::agreed(SessionId::own(79), &[1; 16], &[2; 16]);
        assert!(!other.holds(&claim(), &proof));
        let mut spoiled = proof;
        for at in 0..PROOF_BYTES {
            spoiled[at] ^= 1;
            assert!(!key.holds(&claim(), &spoiled));
            spoiled[at] ^= 1;
        }
    }

    #[test]
    fn a_key_is_not_shown() {
        let key = Key::agreed(claim().session, &[1; 16], &[2; 16]);
        assert_eq!(format!("{key:?}"), "Key(..)");
    }
}
