use ropewalk_base::random::Random;

use super::*;

const NONE: Asserts = Asserts::NONE;
const OWN: u32 = 1;
const SIZE: u32 = 3;

fn epochs() -> Epochs {
    Epochs::new(OWN, SIZE, false)
}

/// A call with its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Fence(Asserts),
    Start(&'static [u32]),
    Complete,
    Post(&'static [u32]),
    Wait,
    Lock(u32),
    Unlock(u32),
    LockAll,
    UnlockAll,
    Flush(Option<u32>),
    Operate(Option<u32>),
    Free,
}

const STEPS: [Step; 24] = [
    Step::Fence(NONE),
    Step::Fence(Asserts::NO_PRECEDE),
    Step::Fence(Asserts::NO_SUCCEED),
    Step::Start(&[]),
    Step::Start(&[0, 1]),
    Step::Start(&[2]),
    Step::Complete,
    Step::Post(&[]),
    Step::Post(&[0, 2]),
    Step::Wait,
    Step::Lock(0),
    Step::Lock(1),
    Step::Unlock(0),
    Step::Unlock(1),
    Step::LockAll,
    Step::UnlockAll,
    Step::Flush(None),
    Step::Flush(Some(0)),
    Step::Flush(Some(1)),
    Step::Operate(None),
    Step::Operate(Some(0)),
    Step::Operate(Some(1)),
    Step::Operate(Some(2)),
    Step::Free,
];

fn apply(epochs: &mut Epochs, step: Step) -> bool {
    match step {
        Step::Fence(asserts) => epochs.fence(asserts).is_ok(),
        Step::Start(group) => epochs.start(group, NONE).is_ok(),
        Step::Complete => epochs.complete().is_ok(),
        Step::Post(group) => epochs.post(group, NONE).is_ok(),
        Step::Wait => epochs.wait().is_ok(),
        Step::Lock(rank) => epochs.lock(rank, NONE).is_ok(),
        Step::Unlock(rank) => epochs.unlock(rank).is_ok(),
        Step::LockAll => epochs.lock_all(NONE).is_ok(),
        Step::UnlockAll => epochs.unlock_all().is_ok(),
        Step::Flush(rank) => epochs.passive(Call::Flush, rank).is_ok(),
        Step::Operate(rank) => epochs.operate(rank).is_ok(),
        Step::Free => epochs.free().is_ok(),
    }
}

/// The rules as questions about the legal calls so far. It keeps no state.
struct Model<'a>(&'a [Step]);

impl Model<'_> {
    /// What came after the last step for which this holds; everything, if none.
    fn since(&self, is: impl Fn(&Step) -> bool) -> Option<&[Step]> {
        self.0.iter().rposition(is).map(|at| &self.0[at + 1..])
    }

    fn started(&self) -> Option<&'static [u32]> {
        let at = self.0.iter().rposition(|it| matches!(it, Step::Start(_)))?;
        let Step::Start(group) = self.0[at] else { return None };
        (!self.0[at..].contains(&Step::Complete)).then_some(group)
    }

    fn is_posted(&self) -> bool {
        let after = self.since(|it| matches!(it, Step::Post(_)));
        after.is_some_and(|after| !after.contains(&Step::Wait))
    }

    fn is_locked(&self, rank: u32) -> bool {
        let after = self.since(|it| *it == Step::Lock(rank));
        after.is_some_and(|after| !after.contains(&Step::Unlock(rank)))
    }

    fn any_locked(&self) -> bool {
        (0..SIZE).any(|rank| self.is_locked(rank))
    }

    fn all_locked(&self) -> bool {
        let after = self.since(|it| *it == Step::LockAll);
        after.is_some_and(|after| !after.contains(&Step::UnlockAll))
    }

    /// The calls since a fence that still stands.
    fn fence(&self) -> Option<&[Step]> {
        let at = self.0.iter().rposition(|it| matches!(it, Step::Fence(_)))?;
        let ends = |it: &Step| {
            matches!(it, Step::Start(_) | Step::Post(_) | Step::Lock(_) | Step::LockAll)
        };
        let stands = self.0[at] != Step::Fence(Asserts::NO_SUCCEED);
        (stands && !self.0[at..].iter().any(ends)).then_some(&self.0[at + 1..])
    }

    fn has_operated(&self) -> bool {
        self.fence().is_some_and(|it| it.iter().any(|step| matches!(step, Step::Operate(_))))
    }

    /// An access epoch that stands in the way of others.
    fn is_accessing(&self) -> bool {
        self.started().is_some() || self.any_locked() || self.all_locked() || self.has_operated()
    }

    fn allows(&self, step: Step) -> bool {
        let foreign = self.started().is_some() || self.any_locked() || self.all_locked();
        let own_locked = self.all_locked() || self.is_locked(OWN);
        match step {
            Step::Fence(asserts) => {
                let wrong = asserts == Asserts::NO_PRECEDE && self.has_operated();
                !foreign && !self.is_posted() && !wrong
            }
            Step::Start(_) => !self.is_accessing(),
            Step::Complete => self.started().is_some(),
            Step::Post(_) => !self.is_posted() && !self.has_operated() && !own_locked,
            Step::Wait => self.is_posted(),
            Step::Lock(rank) => {
                let other = self.started().is_some() || self.all_locked() || self.has_operated();
                let exposed = rank == OWN && self.is_posted();
                !other && !exposed && !self.is_locked(rank)
            }
            Step::Unlock(rank) => self.is_locked(rank),
            Step::LockAll => !self.is_accessing() && !self.is_posted(),
            Step::UnlockAll => self.all_locked(),
            Step::Flush(None) => self.all_locked() || self.any_locked(),
            Step::Flush(Some(rank)) => self.all_locked() || self.is_locked(rank),
            Step::Operate(None) => self.fence().is_some() || self.is_accessing(),
            Step::Operate(Some(rank)) => {
                let in_group = self.started().is_some_and(|group| group.contains(&rank));
                self.fence().is_some() || in_group || self.is_locked(rank) || self.all_locked()
            }
            Step::Free => !self.is_accessing() && !self.is_posted(),
        }
    }
}

/// Calls one more step; whoever is refused stays as it was.
fn check(epochs: &mut Epochs, legal: &mut Vec<Step>, step: Step) {
    let before = epochs.clone();
    let allowed = Model(legal).allows(step);
    assert_eq!(apply(epochs, step), allowed, "{step:?} after {legal:?}");
    if allowed {
        legal.push(step);
    } else {
        assert_eq!(*epochs, before, "{step:?} after {legal:?} was refused and changed something");
    }
}

fn all(epochs: &Epochs, legal: &[Step], depth: u32) -> u64 {
    if depth == 0 {
        return 1;
    }
    let mut count = 0;
    for step in STEPS {
        let (mut epochs, mut longer) = (epochs.clone(), legal.to_vec());
        check(&mut epochs, &mut longer, step);
        // A refused call leads nowhere new.
        if longer.len() > legal.len() {
            count += all(&epochs, &longer, depth - 1);
        }
    }
    count
}

#[test]
fn all_short_sequences_of_calls_are_judged_as_a_model_judges_them() {
    let count = all(&epochs(), &[], 6);
    assert!(count > 20_000, "{count}");
}

#[test]
fn long_sequences_of_calls_are_judged_as_a_model_judges_them() {
    let mut random = Random::from_seed(5);
    for _ in 0..400 {
        let (mut epochs, mut legal) = (epochs(), Vec::new());
        for _ in 0..200 {
            let step = STEPS[(random.next_u64() % STEPS.len() as u64) as usize];
            check(&mut epochs, &mut legal, step);
        }
    }
}

#[test]
fn r1_the_first_operation_makes_an_epoch_of_a_fence_and_other_calls_cancel_it() {
    let mut it = epochs();
    assert_eq!(it.operate(Some(0)), Err(Rule::NoAccess(Call::Operation)));
    assert_eq!(it.fence(NONE), Ok(false));
    it.clone().start(&[0], NONE).unwrap();
    it.clone().lock(0, NONE).unwrap();
    let mut posted = it.clone();
    posted.post(&[0], NONE).unwrap();
    assert_eq!(posted.operate(Some(0)), Err(Rule::NoAccess(Call::Operation)));
    it.operate(Some(0)).unwrap();
    let open = Call::Fence;
    assert_eq!(it.start(&[0], NONE), Err(Rule::AccessOpen { call: Call::Start, open }));
    assert_eq!(it.lock_all(NONE), Err(Rule::AccessOpen { call: Call::LockAll, open }));
    assert_eq!(it.post(&[0], NONE), Err(Rule::ExposureOpen { call: Call::Post, open }));
    assert_eq!(it.fence(NONE), Ok(true));
}

#[test]
fn r1_start_with_post_is_legal_and_two_access_epochs_are_not() {
    let mut it = epochs();
    it.post(&[0], NONE).unwrap();
    it.start(&[2, 0], NONE).unwrap();
    it.operate(Some(2)).unwrap();
    assert_eq!(it.operate(Some(1)), Err(Rule::NotStarted(1)));
    let open = Call::Start;
    assert_eq!(it.start(&[1], NONE), Err(Rule::AccessOpen { call: Call::Start, open }));
    let lock = it.lock(2, NONE);
    assert_eq!(lock, Err(Rule::AccessOpen { call: Call::Lock, open }));
    let call = Call::Post;
    assert_eq!(it.post(&[1], NONE), Err(Rule::ExposureOpen { call, open: Call::Post }));
    it.wait().unwrap();
    assert_eq!(it.complete().as_deref(), Ok(&[0, 2][..]));
    assert_eq!(it.free(), Ok(()));
}

#[test]
fn r1_flush_and_requests_are_for_locks_only() {
    let mut it = epochs();
    it.fence(NONE).unwrap();
    assert_eq!(it.passive(Call::Flush, Some(0)), Err(Rule::NoPassive(Call::Flush)));
    it.start(&[0], NONE).unwrap();
    assert_eq!(it.passive(Call::Request, Some(0)), Err(Rule::NoPassive(Call::Request)));
    it.complete().unwrap();
    it.lock(0, NONE).unwrap();
    it.passive(Call::Request, Some(0)).unwrap();
    it.passive(Call::Flush, None).unwrap();
    assert_eq!(it.passive(Call::Flush, Some(2)), Err(Rule::NotLocked(2)));
}

#[test]
fn r2_a_fence_that_says_nothing_precedes_must_be_right_and_one_without_successors_ends_the_epoch() {
    let mut it = epochs();
    it.fence(NONE).unwrap();
    it.operate(None).unwrap();
    assert_eq!(it.fence(Asserts::NO_PRECEDE), Err(Rule::Preceded));
    assert_eq!(it.fence(Asserts::NO_SUCCEED | Asserts::NO_STORE), Ok(true));
    assert_eq!(it.operate(Some(0)), Err(Rule::NoAccess(Call::Operation)));
    assert_eq!(it.fence(Asserts::NO_CHECK), Err(Rule::Assertion(Call::Fence)));
    assert_eq!(it.start(&[], Asserts::NO_PUT), Err(Rule::Assertion(Call::Start)));
    it.post(&[], Asserts::NO_CHECK | Asserts::NO_PUT).unwrap();
}

#[test]
fn r3_empty_groups_and_oneself_are_legal_and_a_wrong_rank_is_not() {
    let mut it = epochs();
    it.start(&[], NONE).unwrap();
    assert_eq!(it.operate(Some(0)), Err(Rule::NotStarted(0)));
    it.operate(None).unwrap();
    assert_eq!(it.complete().as_deref(), Ok(&[][..]));
    it.start(&[OWN], NONE).unwrap();
    it.post(&[OWN], NONE).unwrap();
    it.operate(Some(OWN)).unwrap();
    let begin = Call::Start;
    it.complete().unwrap();
    assert_eq!(it.complete(), Err(Rule::NotBegun { call: Call::Complete, begin }));
    assert_eq!(it.start(&[3], NONE), Err(Rule::NoRank { rank: 3, size: SIZE }));
    assert_eq!(it.start(&[0, 2, 0], NONE), Err(Rule::NamedTwice(0)));
    it.wait().unwrap();
    let begin = Call::Post;
    assert_eq!(it.posted(Call::Test), Err(Rule::NotBegun { call: Call::Test, begin }));
}

#[test]
fn r4_several_targets_may_be_locked_and_the_same_one_only_once() {
    let mut it = epochs();
    it.lock(0, NONE).unwrap();
    it.lock(2, Asserts::NO_CHECK).unwrap();
    assert_eq!(it.lock(0, NONE), Err(Rule::LockedTwice(0)));
    it.operate(Some(2)).unwrap();
    assert_eq!(it.operate(Some(1)), Err(Rule::NotLocked(1)));
    let open = Call::Lock;
    assert_eq!(it.lock_all(NONE), Err(Rule::AccessOpen { call: Call::LockAll, open }));
    assert_eq!(it.fence(NONE), Err(Rule::AccessOpen { call: Call::Fence, open }));
    assert_eq!(it.unlock(1), Err(Rule::NotLocked(1)));
    it.unlock(0).unwrap();
    assert_eq!(it.free(), Err(Rule::AccessOpen { call: Call::Free, open }));
    it.unlock(2).unwrap();
    it.lock_all(NONE).unwrap();
    it.operate(Some(1)).unwrap();
    let open = Call::LockAll;
    let lock = it.lock(0, NONE);
    assert_eq!(lock, Err(Rule::AccessOpen { call: Call::Lock, open }));
    it.unlock_all().unwrap();
}

#[test]
fn r4_a_window_is_not_locked_and_exposed_at_once() {
    let mut it = epochs();
    it.post(&[0], NONE).unwrap();
    let lock = it.lock(OWN, NONE);
    assert_eq!(lock, Err(Rule::LockedAndExposed(Call::Lock)));
    assert_eq!(it.lock_all(NONE), Err(Rule::LockedAndExposed(Call::LockAll)));
    it.lock(0, NONE).unwrap();
    it.wait().unwrap();
    it.lock(OWN, NONE).unwrap();
    assert_eq!(it.post(&[0], NONE), Err(Rule::LockedAndExposed(Call::Post)));
}

#[test]
fn r4_windows_without_locks_say_so() {
    let mut it = Epochs::new(0, 2, true);
    assert_eq!(it.lock(0, NONE), Err(Rule::NoLocks));
    assert_eq!(it.lock_all(NONE), Err(Rule::NoLocks));
}
