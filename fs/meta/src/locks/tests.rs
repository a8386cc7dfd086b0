use ropewalk_base::random::Random;

use super::*;

const FILE: u64 = 5;

fn lock(owner: u64, exclusive: bool, start: u64, end: u64) -> Lock {
    let owner = Owner { session: 1 + owner % 2, owner };
    Lock { owner, whole_file: false, exclusive, process: 0, start, end }
}

fn flock(owner: u64, exclusive: bool) -> Lock {
    Lock { whole_file: true, ..lock(owner, exclusive, 0, u64::MAX) }
}

fn ranges(locks: &Locks, owner: u64) -> Vec<(u64, u64, bool)> {
    let held = locks.held(FILE).iter().filter(|lock| lock.owner.owner == owner);
    let mut ranges: Vec<_> = held.map(|lock| (lock.start, lock.end, lock.exclusive)).collect();
    ranges.sort_unstable();
    ranges
}

#[test]
fn ranges_of_one_owner_split_merge_and_change_kind() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    assert_eq!(locks.take(FILE, lock(1, false, 0, 99), false, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, lock(1, true, 40, 59), false, &mut effects), Taken::Done);
    assert_eq!(ranges(&locks, 1), [(0, 39, false), (40, 59, true), (60, 99, false)]);
    locks.release(FILE, lock(1, false, 50, 69), &mut effects);
    assert_eq!(ranges(&locks, 1), [(0, 39, false), (40, 49, true), (70, 99, false)]);
    assert_eq!(locks.take(FILE, lock(1, false, 40, 69), false, &mut effects), Taken::Done);
    assert_eq!(ranges(&locks, 1), [(0, 99, false)]);
    locks.release(FILE, lock(1, false, 0, u64::MAX), &mut effects);
    assert!(locks.files.is_empty());
}

#[test]
fn waiters_are_served_in_order_and_writers_are_not_starved() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    assert_eq!(locks.take(FILE, lock(1, false, 0, 9), true, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, lock(2, true, 0, 9), true, &mut effects), Taken::Queued);
    // A reader that waits goes behind the writer; one that does not wait may pass.
    assert_eq!(locks.take(FILE, lock(3, false, 0, 9), true, &mut effects), Taken::Queued);
    assert_eq!(locks.take(FILE, lock(4, false, 0, 9), false, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, lock(4, true, 0, 9), false, &mut effects), Taken::Conflict);
    locks.release(FILE, lock(4, false, 0, 9), &mut effects);
    assert!(effects.granted.is_empty());
    locks.release(FILE, lock(1, false, 0, 9), &mut effects);
    assert_eq!(effects.granted, [(FILE, lock(2, true, 0, 9))]);
    let mut effects = Effects::default();
    // The writer goes down to reading: the reader comes in.
    assert_eq!(locks.take(FILE, lock(2, false, 0, 9), true, &mut effects), Taken::Done);
    assert_eq!(effects.granted, [(FILE, lock(3, false, 0, 9))]);
    assert!(!locks.cancel(FILE, &lock(3, false, 0, 9), &mut effects));
}

#[test]
fn circles_of_waiters_are_refused() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    for owner in 1..=3 {
        locks.take(FILE, lock(owner, true, owner, owner), true, &mut effects);
    }
    assert_eq!(locks.take(FILE, lock(1, true, 2, 2), true, &mut effects), Taken::Queued);
    assert_eq!(locks.take(FILE, lock(2, true, 3, 3), true, &mut effects), Taken::Queued);
    assert_eq!(locks.take(FILE, lock(3, true, 1, 1), true, &mut effects), Taken::Deadlock);
    // Across two files as well.
    assert_eq!(locks.take(6, lock(4, true, 0, 0), true, &mut effects), Taken::Done);
    assert_eq!(locks.take(6, lock(3, true, 0, 0), true, &mut effects), Taken::Queued);
    assert_eq!(locks.take(FILE, lock(4, true, 1, 1), true, &mut effects), Taken::Deadlock);
    assert_eq!(locks.take(7, lock(3, true, 1, 1), true, &mut effects), Taken::Done);
}

#[test]
fn an_upgrade_passes_waiters_that_wait_for_its_owner() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    assert_eq!(locks.take(FILE, lock(1, false, 0, 9), true, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, lock(2, true, 0, 9), true, &mut effects), Taken::Queued);
    assert_eq!(locks.take(FILE, lock(1, true, 0, 9), true, &mut effects), Taken::Done);
}

#[test]
fn flock_conversions_never_hang_and_families_ignore_each_other() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    assert_eq!(locks.take(FILE, flock(1, false), true, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, flock(2, false), true, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, lock(3, true, 0, u64::MAX), true, &mut effects), Taken::Done);
    // Both sharers want to be alone: the first gives up its share, so the second gets through.
    assert_eq!(locks.take(FILE, flock(1, true), true, &mut effects), Taken::Queued);
    assert_eq!(locks.take(FILE, flock(2, true), false, &mut effects), Taken::Done);
    assert_eq!(locks.check(), Ok(()));
    locks.release_owner(FILE, flock(2, true).owner, true, &mut effects);
    assert_eq!(effects.granted, [(FILE, flock(1, true))]);
}

#[test]
fn a_conversion_that_is_refused_has_given_up_the_old_lock() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    locks.take(FILE, flock(1, false), true, &mut effects);
    locks.take(FILE, flock(2, false), true, &mut effects);
    assert_eq!(locks.take(FILE, flock(1, true), false, &mut effects), Taken::Conflict);
    assert_eq!(effects.rows.last(), Some(&RowChange::Remove(FILE, flock(1, false))));
    assert_eq!(locks.held(FILE), [flock(2, false)]);
    assert_eq!(locks.take(FILE, flock(2, true), false, &mut effects), Taken::Done);
    assert_eq!(locks.take(FILE, flock(1, true), false, &mut effects), Taken::Conflict);
    assert_eq!(locks.check(), Ok(()));
}

#[test]
fn a_session_that_ends_lets_the_others_in() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    locks.take(FILE, lock(1, true, 0, 9), true, &mut effects);
    locks.take(FILE, lock(2, true, 5, 5), true, &mut effects);
    locks.take(6, lock(3, true, 5, 5), true, &mut effects);
    assert_eq!(locks.inodes_of(2), [FILE, 6]);
    for inode in locks.inodes_of(2) {
        locks.release_session(inode, 2, &mut effects);
    }
    assert_eq!(effects.granted, [(FILE, lock(2, true, 5, 5))]);
    assert!(locks.held(6).is_empty());
}

#[test]
fn locks_over_many_inodes_are_bounded_and_everybody_has_a_share() {
    let bounds = Bounds { of_session: 6, in_all: 8, share: 2 };
    let (mut locks, mut effects) = (Locks::new(bounds), Effects::default());
    // Owners 1 and 3 are of session 2, owner 2 is of session 1.
    let take = |locks: &mut Locks, inode, owner, wait| {
        locks.take(inode, lock(owner, true, 0, 9), wait, &mut Effects::default())
    };
    for inode in 0..5 {
        assert_eq!(take(&mut locks, inode, 1, false), Taken::Done);
    }
    assert_eq!(take(&mut locks, 0, 3, true), Taken::Queued);
    for (inode, owner) in [(1, 3), (7, 1)] {
        assert_eq!(take(&mut locks, inode, owner, true), Taken::TooMany);
    }
    // An owner that waits already is not refused when it asks again.
    assert_eq!(take(&mut locks, 0, 3, true), Taken::Queued);
    for inode in 10..12 {
        assert_eq!(take(&mut locks, inode, 2, false), Taken::Done);
    }
    assert_eq!(take(&mut locks, 12, 2, false), Taken::TooMany);
    assert_eq!(locks.check(), Ok(()));
    // A lock makes room, however it is given up.
    assert!(locks.cancel(0, &lock(3, true, 0, 9), &mut effects));
    assert_eq!(take(&mut locks, 12, 2, false), Taken::Done);
    assert_eq!(locks.release(12, lock(2, true, 0, 9), &mut effects), Taken::Done);
    locks.release_inode(0, &mut effects);
    locks.release_owner(1, lock(1, true, 0, 0).owner, false, &mut effects);
    locks.release_session(10, 1, &mut effects);
    assert_eq!(locks.check(), Ok(()));
    assert_eq!((locks.counts.in_all, locks.counts.sessions[&2]), (4, 3));
}

#[test]
fn one_lock_does_not_become_many_by_unlocking_pieces_of_it() {
    let (mut locks, mut effects) = (Locks::default(), Effects::default());
    assert_eq!(locks.take(FILE, lock(1, true, 0, u64::MAX), false, &mut effects), Taken::Done);
    let pieces = (1..).map(|piece| lock(1, true, 2 * piece, 2 * piece));
    let split = pieces
        .take(2 * LOCKS_MAX)
        .take_while(|piece| locks.release(FILE, *piece, &mut Effects::default()) == Taken::Done);
    assert_eq!(split.count(), LOCKS_MAX - 1);
    assert_eq!(locks.held(FILE).len(), LOCKS_MAX);
    // A release that splits no lock always succeeds.
    assert_eq!(locks.release(FILE, lock(1, true, 0, 5), &mut effects), Taken::Done);
    assert_eq!(locks.release(FILE, lock(1, true, 0, u64::MAX), &mut effects), Taken::Done);
    assert!(locks.files.is_empty());
    assert_eq!(locks.check(), Ok(()));
}

/// Against a map of single bytes; the rows that are reported rebuild the table.
#[test]
fn random_locks_agree_with_a_byte_map() {
    for seed in 0..150 {
        let mut random = Random::from_seed(seed);
        let mut locks = Locks::default();
        let mut bytes: Vec<BTreeMap<u64, bool>> = vec![BTreeMap::new(); 16];
        let mut rows: BTreeSet<(u64, u64, u64, bool)> = BTreeSet::new();
        for _ in 0..300 {
            let (owner, start) = (random.below(4), random.below(16));
            let end = start + random.below(16 - start);
            let exclusive = random.chance(500_000);
            let mut effects = Effects::default();
            let wanted = lock(owner, exclusive, start, end);
            if random.chance(400_000) {
                locks.release(FILE, wanted, &mut effects);
                for at in start..=end {
                    bytes[at as usize].remove(&owner);
                }
            } else {
                let clash = (start..=end).any(|at| {
                    bytes[at as usize].iter().any(|(other, e)| *other != owner && (*e || exclusive))
                });
                let taken = locks.take(FILE, wanted, false, &mut effects);
                assert_eq!(taken == Taken::Conflict, clash, "seed {seed}");
                if !clash {
                    for at in start..=end {
                        bytes[at as usize].insert(owner, exclusive);
                    }
                }
            }
            for row in effects.rows {
                match row {
                    RowChange::Put(_, l) => {
                        rows.insert((l.owner.owner, l.start, l.end, l.exclusive))
                    }
                    RowChange::Remove(_, l) => {
                        rows.remove(&(l.owner.owner, l.start, l.end, l.exclusive))
                    }
                };
            }
            assert_eq!(locks.check(), Ok(()), "seed {seed}");
            let held: BTreeSet<_> = locks
                .held(FILE)
                .iter()
                .map(|l| (l.owner.owner, l.start, l.end, l.exclusive))
                .collect();
            assert_eq!(held, rows, "seed {seed}");
            for (at, owners) in bytes.iter().enumerate() {
                for other in 0..4 {
                    let found =
                        held.iter().find(|l| l.0 == other && (l.1..=l.2).contains(&(at as u64)));
                    assert_eq!(found.map(|l| l.3), owners.get(&other).copied(), "seed {seed}");
                }
            }
        }
    }
}
