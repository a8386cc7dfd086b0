//! Cookies for callers, where too many calls were answered and not heard of since.
//!
//! Anybody can call from false addresses. A caller who sends a cookie back has read what we said to its address. Nothing is
//! kept for a cookie: it is a keyed digest of the caller's station and number, its call, and the time.
//!
//! Invariant: a cookie is never 0, and holds for one call, for 8 to 16 seconds.

use std::hash::{Hash, Hasher};

use hmac::{Hmac, Mac};
use ropewalk_base::cipher_random::CipherRandom;
use ropewalk_base::time::Time;
use ropewalk_wire::packets::COOKIE_BYTES;
use sha2::Sha256;

/// What a caller sends back.
pub(super) type Cookie = [u8; COOKIE_BYTES];

/// How long one digest of a call is given out.
const SLOT_NS: u64 = 8_000_000_000;

/// The key, once it is needed.
#[derive(Debug, Default)]
pub(super) struct Cookies {
    key: Option<[u8; 32]>,
}

/// Who calls: its station and number there, and the number of the call.
pub(super) type Caller<S> = (S, u8, u64);

impl Cookies {
    /// The cookie for a call.
    pub fn give<S: Hash>(
        &mut self,
        caller: Caller<S>,
        random: &mut CipherRandom,
        now: Time,
    ) -> Cookie {
        let key = self.key.get_or_insert_with(|| {
            let mut key = [0; 32];
            key.chunks_exact_mut(8)
                .for_each(|part| part.copy_from_slice(&random.next_u64().to_le_bytes()));
            key
        });
        cookie(key, &caller, now.0 / SLOT_NS)
    }

    /// Whether a caller has read its cookie.
    pub fn holds<S: Hash>(&self, caller: Caller<S>, shown: &Cookie, now: Time) -> bool {
        let Some(key) = &self.key else { return false };
        let slot = now.0 / SLOT_NS;
        let differs = |slot| {
            let given = cookie(key, &caller, slot);
            // All bytes are compared, whatever the first ones are.
            given.iter().zip(shown).fold(0, |differs, (a, b)| differs | (a ^ b)) != 0
        };
        !differs(slot) || slot > 0 && !differs(slot - 1)
    }
}

fn cookie<S: Hash>(key: &[u8; 32], caller: &Caller<S>, slot: u64) -> Cookie {
    let mac = Hmac::<Sha256>::new_from_slice(key).expect("keys of any length are taken");
    let mut digest = Digest(mac);
    (caller, slot).hash(&mut digest);
    let mut cookie = [0; COOKIE_BYTES];
    cookie.copy_from_slice(&digest.0.finalize().into_bytes()[..COOKIE_BYTES]);
    // 0 stands for none.
    cookie[0] |= u8::from(cookie == [0; COOKIE_BYTES]);
    cookie
}

/// Takes the bytes of whatever can be hashed.
struct Digest(Hmac<Sha256>);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        unreachable!("the digest itself is asked for")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_holds_for_its_caller_and_call_and_not_for_long() {
        let (mut cookies, mut random) = (Cookies::default(), CipherRandom::from_key([1; 32]));
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        assert!(!cookies.holds((7u32, 1, 5), &[0; COOKIE_BYTES], at(1)), "none was given");
        let cookie = cookies.give((7u32, 1, 5), &mut random, at(1));
        assert!(cookies.holds((7u32, 1, 5), &cookie, at(1)));
        assert!(cookies.holds((7u32, 1, 5), &cookie, at(15)));
        assert!(!cookies.holds((7u32, 1, 5), &cookie, at(16)));
        for other in [(8u32, 1, 5), (7, 2, 5), (7, 1, 6)] {
            assert!(!cookies.holds(other, &cookie, at(1)), "{other:?}");
        }
        let mut spoiled = cookie;
        spoiled[COOKIE_BYTES - 1] ^= 128;
        assert!(!cookies.holds((7u32, 1, 5), &spoiled, at(1)));
        let mut others = Cookies::default();
        assert_ne!(others.give((7u32, 1, 5), &mut random, at(1)), cookie, "keys are drawn");
    }
}
