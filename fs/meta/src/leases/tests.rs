use ropewalk_base::random::Random;

use super::*;

const READ: Access = Access { read: true, write: false };
const WRITE: Access = Access { read: true, write: true };
const LATER: Time = Time(1000);

fn recalls(out: &mut VecDeque<(u64, Callback)>) -> Vec<(u64, u64, LeaseMode)> {
    out.drain(..)
        .map(|(session, callback)| match callback {
            Callback::Recall { number, keep, .. } => (session, number, keep),
            other => panic!("leases say nothing of {other:?}"),
        })
        .collect()
}

#[test]
fn readers_share_and_a_writer_recalls_them() {
    let (mut leases, mut out) = (Leases::new(1), VecDeque::new());
    let first = leases.grant(5, 1, LeaseMode::Read, 0);
    let second = leases.grant(5, 2, LeaseMode::Read, 0);
    assert!(!leases.recall(5, 3, Need::Fresh, LATER, &mut out));
    assert!(leases.recall(5, 3, Need::Quiet, LATER, &mut out));
    assert_eq!(
        recalls(&mut out),
        [(1, first.number, LeaseMode::None), (2, second.number, LeaseMode::None)]
    );
    // A second demand of the same kind repeats nothing.
    assert!(leases.recall(5, 3, Need::Quiet, LATER, &mut out));
    assert!(out.is_empty());
    assert!(leases.release(5, 1, first.number, LeaseMode::None, None));
    assert!(leases.release(5, 2, second.number, LeaseMode::None, Some(READ)));
    assert!(!leases.recall(5, 3, Need::Quiet, LATER, &mut out));
    // Session 2 still has it open: the writer must share.
    assert_eq!(leases.possible(5, 3, LeaseMode::Write), LeaseMode::Shared);
    leases.release(5, 2, second.number, LeaseMode::None, None);
    assert_eq!(leases.possible(5, 3, LeaseMode::Write), LeaseMode::Write);
    assert!(!leases.is_used(5));
}

#[test]
fn a_writer_under_recall_keeps_what_the_need_allows() {
    let (mut leases, mut out) = (Leases::new(1), VecDeque::new());
    leases.open(5, 1, WRITE);
    let write = leases.grant(5, 1, LeaseMode::Write, 0);
    assert!(leases.recall(5, 2, Need::Fresh, LATER, &mut out));
    assert!(leases.recall(5, 3, Need::Quiet, Time(5000), &mut out));
    assert_eq!(
        recalls(&mut out),
        [(1, write.number, LeaseMode::Read), (1, write.number, LeaseMode::Shared)]
    );
    assert!(leases.overdue(Time(999)).is_empty());
    assert_eq!(leases.overdue(Time(1000)), [1], "the first demand's time counts");
    // Keeping more than was asked leaves the recall open.
    leases.release(5, 1, write.number, LeaseMode::Read, Some(WRITE));
    assert!(leases.holder(5, 1).expect("held").is_recalled());
    leases.release(5, 1, write.number, LeaseMode::Shared, Some(WRITE));
    assert_eq!(leases.mode(5, 1), LeaseMode::Shared);
    assert_eq!(leases.attainable(5, 2, LeaseMode::Read), LeaseMode::Shared);
    assert!(leases.recall(5, 2, Need::Alone, LATER, &mut out));
}

#[test]
fn a_release_of_an_older_grant_leaves_the_newer_one() {
    let mut leases = Leases::new(1);
    let old = leases.grant(5, 1, LeaseMode::Read, 0);
    let new = leases.grant(5, 1, LeaseMode::Write, 0);
    assert!(new.number > old.number);
    assert!(!leases.release(5, 1, old.number, LeaseMode::None, None));
    assert_eq!(leases.mode(5, 1), LeaseMode::Write);
    // The same mode again is the same grant.
    assert_eq!(leases.grant(5, 1, LeaseMode::Write, 0), new);
}

#[test]
fn a_session_that_moved_is_asked_again_for_what_it_has_not_given_back() {
    let (mut leases, mut out) = (Leases::new(1), VecDeque::new());
    let first = leases.grant(5, 1, LeaseMode::Read, 0);
    leases.grant(6, 1, LeaseMode::Read, 0);
    leases.grant(5, 2, LeaseMode::Read, 0);
    assert!(leases.recall(5, 3, Need::Quiet, LATER, &mut out));
    out.clear();
    leases.recall_again(1, &mut out);
    assert_eq!(recalls(&mut out), [(1, first.number, LeaseMode::None)]);
    leases.release(5, 1, first.number, LeaseMode::None, None);
    leases.recall_again(1, &mut out);
    assert!(out.is_empty());
}

#[test]
fn contention_ends() {
    let mut leases = Leases::new(1);
    leases.set_contended(5, Time(10));
    assert!(!leases.may_cache(5, 1, Time(9)));
    assert!(leases.may_cache(5, 1, Time(10)));
    leases.forget_contention(Time(10));
    assert!(leases.contended.is_empty());
}

/// Random sessions that acquire, answer recalls and close, in any order: never an incompatible pair.
#[test]
fn random_holders_stay_compatible() {
    for seed in 0..200 {
        let mut random = Random::from_seed(seed);
        let (mut leases, mut out) = (Leases::new(1), VecDeque::new());
        for _ in 0..300 {
            let (inode, session) = (random.below(2), 1 + random.below(4));
            let modes = [LeaseMode::None, LeaseMode::Shared, LeaseMode::Read, LeaseMode::Write];
            let mode = modes[random.below(4) as usize];
            match random.below(3) {
                0 if mode != LeaseMode::None => {
                    let mode = leases.attainable(inode, session, mode);
                    let need = if mode == LeaseMode::Read { Need::Fresh } else { Need::Quiet };
                    if !leases.recall(inode, session, need, LATER, &mut out) {
                        let mode = leases.possible(inode, session, mode);
                        leases.open(inode, session, READ);
                        leases.grant(inode, session, mode, 0);
                    }
                }
                1 => {
                    if let Some((session, Callback::Recall { inode, number, keep })) =
                        out.pop_front()
                    {
                        leases.release(inode, session, number, keep, Some(READ));
                    }
                }
                _ => {
                    let number = leases.holder(inode, session).map_or(0, |holder| holder.number);
                    leases.release(inode, session, number, mode, None);
                }
            }
            assert_eq!(leases.check(), Ok(()), "seed {seed}");
        }
    }
}
