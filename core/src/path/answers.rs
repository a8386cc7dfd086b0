//! Answers to callers that prove nothing afterwards: how many each host gets.
//!
//! Anybody can repeat an old greeting. Each answer to one costs operations on the curve, so answers are lent, and given back
//! with the caller's proof. Answers that a host does not give back are restored slowly.
//!
//! Invariant: hosts share a fixed number of buckets, so that many hosts cost no memory.

use ropewalk_base::time::Time;

/// Answers that the hosts of one bucket may owe a proof for. As many callers may come at once.
const LENT_MAX: u32 = 1024;
/// Between two answers that are restored: 128 in a second.
const RESTORED_NS: u64 = 1_000_000_000 / 128;
const BUCKETS: usize = 1 << u8::BITS;

/// The answers that each bucket of hosts may still get.
#[derive(Debug)]
pub(super) struct Answers {
    buckets: Vec<Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: u32,
    /// All that was due until then is restored.
    restored: Time,
}

impl Answers {
    pub fn new() -> Answers {
        Answers { buckets: vec![Bucket { left: LENT_MAX, restored: Time::ZERO }; BUCKETS] }
    }

    /// Lends an answer to a host of this bucket. False: it has to wait.
    pub fn take(&mut self, bucket: u8, now: Time) -> bool {
        let bucket = &mut self.buckets[usize::from(bucket)];
        let due = now.0.saturating_sub(bucket.restored.0) / RESTORED_NS;
        bucket.restored.0 += due * RESTORED_NS;
        bucket.left = LENT_MAX.min(bucket.left.saturating_add(due.try_into().unwrap_or(u32::MAX)));
        let has_one = bucket.left > 0;
        bucket.left = bucket.left.saturating_sub(1);
        has_one
    }

    /// The caller has proven itself.
    pub fn give_back(&mut self, bucket: u8) {
        let bucket = &mut self.buckets[usize::from(bucket)];
        bucket.left = LENT_MAX.min(bucket.left + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_host_that_proves_nothing_gets_few_answers_and_others_get_theirs() {
        let mut answers = Answers::new();
        let start = Time::ZERO + Duration::from_secs(50);
        let taken = |answers: &mut Answers, bucket, now| {
            (0..10_000).filter(|_| answers.take(bucket, now)).count()
        };
        assert_eq!(taken(&mut answers, 1, start), LENT_MAX as usize);
        assert!(answers.take(2, start) && !answers.take(1, start));
        let mut restored = 0;
        for millis in 1..=4000 {
            restored += taken(&mut answers, 1, start + Duration::from_millis(millis));
        }
        assert_eq!(restored, 4 * 128);
        // A caller that proves itself gives its answer back.
        for _ in 0..10_000 {
            assert!(answers.take(3, start));
            answers.give_back(3);
        }
    }
}
