use super::*;
use crate::voter::{Record, Voter};

const LEASE: Duration = Duration::from_secs(1);

/// Carries ballots and answers at once, as far as voters are reached.
fn settle(
    claimant: &mut Claimant,
    voters: &mut BTreeMap<u32, Voter>,
    reached: &[u32],
    now: Time,
) -> Vec<Event> {
    loop {
        let ballots = claimant.poll(now);
        if ballots.is_empty() {
            return claimant.events();
        }
        for (to, serial, ballot) in ballots.iter().filter(|it| reached.contains(&it.0)) {
            let voter = voters.get_mut(to).expect("it is one");
            let answer = voter.judge(ballot, now).answer;
            claimant.answered(*to, *serial, &answer, now);
        }
    }
}

fn cluster() -> ([Claimant; 2], BTreeMap<u32, Voter>) {
    let record = Record { term: 0, server: 0, set: Set::first([1, 2]) };
    let voter = || Voter::new(record.clone(), LEASE, Time(0));
    let rules = Rules { lease: LEASE, voters: [1, 2, 3].into() };
    let claimant = |own: u32| {
        let random = Random::from_seed(u64::from(own));
        Claimant::new(own, rules.clone(), 0, Time(0), random)
    };
    ([claimant(1), claimant(2)], [1, 2, 3].map(|it| (it, voter())).into())
}

fn at(milliseconds: u64) -> Time {
    Time(0) + Duration::from_millis(milliseconds)
}

#[test]
fn the_holder_acts_for_half_a_lease_and_who_gives_up_is_followed_at_once() {
    let ([mut one, mut two], mut voters) = cluster();
    one.stand(at(0));
    assert_eq!(settle(&mut one, &mut voters, &[1, 2, 3], at(0)), [Event::Won { term: 1 }]);
    assert!(one.may_act(at(499)) && !one.may_act(at(500)), "half a lease from sending");
    two.stand(at(100));
    assert_eq!(settle(&mut two, &mut voters, &[1, 2, 3], at(100)), [], "voters have promised");
    two.heard(1, at(110));
    assert!(two.deadline() >= at(985));
    // One voter of three is no majority; two are.
    assert_eq!(settle(&mut one, &mut voters, &[1], at(300)), []);
    assert!(!one.may_act(at(600)));
    settle(&mut one, &mut voters, &[1, 3], at(600));
    assert!(one.may_act(at(1000)));
    one.release(at(1000));
    assert!(!one.may_act(at(1000)));
    assert_eq!(settle(&mut one, &mut voters, &[1, 2, 3], at(1000)), [Event::Lost]);
    two.stand(at(1001));
    assert_eq!(settle(&mut two, &mut voters, &[1, 2, 3], at(1001)), [Event::Won { term: 2 }]);
    assert!(two.may_act(at(1002)) && one.deadline() >= at(3000));
}

#[test]
fn who_is_not_in_the_set_is_not_elected_and_gives_its_votes_back() {
    let ([mut one, mut two], mut voters) = cluster();
    one.stand(at(0));
    settle(&mut one, &mut voters, &[1, 2, 3], at(0));
    assert!(one.propose([1].into(), at(10)));
    assert!(!one.propose([1, 2].into(), at(10)), "one at a time");
    assert_eq!(settle(&mut one, &mut voters, &[1, 3], at(10)), [Event::SetStored]);
    // Server 2 has not heard of that, and the first one is dead.
    two.heard(1, at(20));
    two.stand(at(3000));
    assert_eq!(settle(&mut two, &mut voters, &[2, 3], at(3000)), []);
    assert_eq!((two.held_term(), voters[&3].record().term), (None, 2));
    let mut again = Claimant::new(1, one.rules.clone(), 2, at(3001), Random::from_seed(9));
    again.stand(at(3001));
    let won = settle(&mut again, &mut voters, &[1, 3], at(3001));
    assert_eq!(won, [Event::Won { term: 3 }], "the votes were given back");
    assert_eq!(again.set().map(|set| &set.members), Some(&[1].into()));
}

/// A new file system: server 1 has it, and the others know nothing.
fn new_file_system() -> ([Claimant; 2], BTreeMap<u32, Voter>) {
    let (claimants, _) = cluster();
    let first = Record { set: Set::first([1]), ..Record::fresh() };
    let records = [(1, first), (2, Record::fresh()), (3, Record::fresh())];
    let voters = records.map(|(it, record)| (it, Voter::new(record, LEASE, Time(0))));
    (claimants, voters.into())
}

#[test]
fn voters_without_memory_elect_the_first_server_and_nobody_later() {
    let ([_, mut two], mut voters) = new_file_system();
    two.stand(at(0));
    assert_eq!(settle(&mut two, &mut voters, &[2, 3], at(0)), [], "it has nothing");
    let ([mut one, mut two], mut voters) = new_file_system();
    one.stand(at(10));
    assert_eq!(settle(&mut one, &mut voters, &[1, 3], at(10)), [Event::Won { term: 1 }]);
    assert!(voters.values().map(|voter| voter.record().set.term).eq([1, 0, 1]));
    // The one that lacks the set gets it, also later.
    settle(&mut one, &mut voters, &[1, 2, 3], at(200));
    assert_eq!(voters[&2].record().set, voters[&1].record().set);
    assert!(one.propose([1, 2].into(), at(210)));
    assert_eq!(settle(&mut one, &mut voters, &[1, 2, 3], at(210)), [Event::SetStored]);
    assert!(one.propose([1].into(), at(220)));
    assert_eq!(settle(&mut one, &mut voters, &[1, 3], at(220)), [Event::SetStored]);
    // The witness loses its memory: with server 2 it must not elect that server.
    voters.insert(3, Voter::new(Record::fresh(), LEASE, at(230)));
    two.heard(1, at(240));
    for time in [2000, 3000, 4000] {
        two.stand(at(time));
        assert_eq!(settle(&mut two, &mut voters, &[2, 3], at(time)), []);
        settle(&mut two, &mut voters, &[2, 3], at(time + 600));
        assert!(two.held_term().is_none());
    }
    let random = Random::from_seed(5);
    let mut one = Claimant::new(1, one.rules.clone(), 1, at(9000), random);
    one.stand(at(9000));
    // With the other voter that has its memory it is elected, once it asks for a new term.
    let mut won = Vec::new();
    for time in (9000..15_000).step_by(100) {
        won.extend(settle(&mut one, &mut voters, &[1, 2, 3], at(time)));
    }
    assert!(matches!(won[..], [Event::Won { .. }]), "{won:?}");
    assert_eq!(voters[&3].record().set.members, [1].into(), "it is told again");
}

#[test]
fn the_own_voter_stores_a_set_last_and_has_to() {
    let ([mut one, _], mut voters) = new_file_system();
    one.stand(at(0));
    let mut round = |reached: &[u32]| {
        let ballots = one.poll(at(1));
        for (to, serial, ballot) in ballots.iter().filter(|it| reached.contains(&it.0)) {
            let answer = voters.get_mut(to).expect("it is one").judge(ballot, at(1)).answer;
            one.answered(*to, *serial, &answer, at(1));
        }
        let own = ballots.into_iter().find(|it| it.0 == 1).map(|it| it.2);
        (own, one.events(), voters[&1].record().set.term)
    };
    let claim = Some(Ballot::Claim { term: 1, server: 1 });
    assert_eq!(
        round(&[1, 2]),
        (Some(Ballot::Ask { server: 1 }), vec![], 0),
        "a majority is willing"
    );
    assert_eq!(round(&[1]), (claim.clone(), vec![], 0), "its own vote");
    assert_eq!(round(&[2, 3]), (None, vec![], 0), "the others' votes");
    assert_eq!(round(&[2, 3]), (claim, vec![], 0), "both store the set, and it is not enough");
    let (own, won, term) = round(&[1]);
    assert!(matches!(own, Some(Ballot::Change { .. })), "{own:?}");
    assert_eq!((won, term), (vec![Event::Won { term: 1 }], 1));
}

#[test]
fn a_holder_whose_time_is_over_gets_none_from_a_voter_without_memory() {
    let ([mut one, _], mut voters) = cluster();
    one.stand(at(0));
    assert_eq!(settle(&mut one, &mut voters, &[1, 2, 3], at(0)), [Event::Won { term: 1 }]);
    voters.insert(3, Voter::new(Record::fresh(), LEASE, at(700)));
    for time in (700..3000).step_by(100) {
        settle(&mut one, &mut voters, &[1, 3], at(time));
        assert!(!one.may_act(at(time)), "another server may have been elected");
    }
    assert!(voters[&3].record().set.is_fresh(), "nor is it told of the set");
    settle(&mut one, &mut voters, &[1, 2], at(3000));
    settle(&mut one, &mut voters, &[1, 2, 3], at(3200));
    settle(&mut one, &mut voters, &[1, 2, 3], at(3400));
    assert!(one.may_act(at(3400)) && !voters[&3].record().set.is_fresh());
}

#[test]
fn a_server_that_hears_nobody_ends_no_term_when_it_is_back() {
    let ([mut one, mut two], mut voters) = cluster();
    one.stand(at(0));
    assert_eq!(settle(&mut one, &mut voters, &[1, 2, 3], at(0)), [Event::Won { term: 1 }]);
    for time in (0..20_000).step_by(50) {
        assert_eq!(settle(&mut one, &mut voters, &[1, 3], at(time)), []);
        assert_eq!(settle(&mut two, &mut voters, &[2], at(time)), []);
        assert!(one.may_act(at(time)), "{time}");
    }
    assert_eq!(voters[&2].record().term, 1, "it has asked for no term");
    for time in (20_000..25_000).step_by(50) {
        assert_eq!(settle(&mut one, &mut voters, &[1, 2, 3], at(time)), []);
        assert_eq!(settle(&mut two, &mut voters, &[1, 2, 3], at(time)), []);
        assert!(one.may_act(at(time)), "{time}");
    }
}
