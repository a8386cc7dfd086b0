//! Hash maps whose order one seed determines.
//!
//! The simulator repeats a run from its seed, so no hash may depend on the chance of a process. A peer
//! that does not know the seed cannot choose keys that collide: production takes it from the operating
//! system's randomness, beside what draws tell peers. There is no default: each map is made with [`HashSeed`].

use std::hash::BuildHasher;

use foldhash::fast::{FixedState, FoldHasher};

use crate::random::Random;

/// A hash map whose order its [`HashSeed`] determines.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, HashSeed>;
/// A hash set whose order its [`HashSeed`] determines.
pub type HashSet<K> = hashbrown::HashSet<K, HashSeed>;

/// Makes the hashers of a map.
#[derive(Debug, Clone)]
pub struct HashSeed(FixedState);

impl HashSeed {
    /// For keys that no peer chooses.
    pub const OWN_KEYS: HashSeed = HashSeed(FixedState::with_seed(0));

    /// For keys that peers choose. Leaves `random` as it was: the draws of a seed stay what they are.
    pub fn peek(random: &Random) -> HashSeed {
        HashSeed(FixedState::with_seed(random.apart()))
    }
}

impl BuildHasher for HashSeed {
    type Hasher = FoldHasher<'static>;

    #[inline(always)]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64) -> Vec<u32> {
        let mut set = HashSet::with_hasher(HashSeed::peek(&Random::from_seed(seed)));
        (0..100).for_each(|key| {
            set.insert(key);
        });
        set.into_iter().collect()
    }

    #[test]
    fn one_seed_has_one_order_and_others_have_others() {
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }

    #[test]
    fn a_seed_is_no_draw_and_spends_none() {
        let mut random = Random::from_seed(3);
        let (_, apart) = (HashSeed::peek(&random), random.apart());
        assert_eq!(random.clone().next_u64(), Random::from_seed(3).next_u64());
        // Peers are told of draws: nonces, numbers of sessions.
        assert!((0..1000).all(|_| random.next_u64() != apart));
    }
}
