//! Roles and the choice of the alternate.

use super::*;
use crate::apm::message::Drain;
use crate::apm::path::Health;
use crate::apm::roles::{DrainedBy, SCORE_DEGRADED, SCORE_STANDBY, WEIGHT_MAX};
use crate::apm::specify::choose;

fn roles(records: &[PathRecord]) -> Roles {
    let mut roles = Roles::default();
    for record in records {
        assert!(roles.add(*record));
    }
    roles
}

#[test]
fn ids_say_who_named_the_path_and_are_given_once() {
    assert_eq!(PathId::new(Side::Lower, 3), Some(PathId(6)));
    assert_eq!(PathId::new(Side::Higher, 3), Some(PathId(7)));
    assert_eq!(PathId::new(Side::Higher, 1 << 31), None);
    assert_eq!(PathId(7).named_by(), Side::Higher);
    let mut roles = roles(&[record(FIRST)]);
    assert!(!roles.add(record(FIRST)));
}

#[test]
fn the_choice_avoids_failure_domains_then_suspicion_then_weighs() {
    let same_card = PathRecord { local_domain: FIRST.0, ..record(SECOND) };
    let mut roles = roles(&[record(FIRST), same_card, record(THIRD), record(PathId(6))]);
    let any = Wanted::default();
    assert_eq!(choose(&roles, &any), Ok(THIRD), "the lowest id of two that are apart");
    roles.get_mut(THIRD).unwrap().weight = WEIGHT_MAX - 1;
    assert_eq!(choose(&roles, &any), Ok(PathId(6)));
    roles.get_mut(PathId(6)).unwrap().health = Health::Suspect;
    assert_eq!(choose(&roles, &any), Ok(THIRD));
    roles.get_mut(THIRD).unwrap().health = Health::Failed;
    assert_eq!(choose(&roles, &any), Ok(PathId(6)), "suspected, but apart");
    roles.drain(PathId(6), DrainedBy::Peer);
    assert_eq!(choose(&roles, &any), Ok(SECOND), "better than none");
    assert_eq!(
        choose(&roles, &Wanted { strict: true, ..any }),
        Err(Rule::AlternateFailed),
        "the candidate that came furthest failed"
    );
}

#[test]
fn a_refusal_names_the_rule_that_the_given_path_breaks() {
    let same_switch = PathRecord { remote_domain: FIRST.0, mtu_bytes: 1500, ..record(SECOND) };
    let roles = roles(&[record(FIRST), same_switch]);
    let second = Wanted { local_rail: Some(SECOND.0 as u8), ..Wanted::default() };
    let refused = [
        (Wanted { local_rail: Some(9), ..second }, Rule::NoRoute),
        (Wanted { entropy: Some(7), ..second }, Rule::NoRoute),
        (Wanted { remote_address: Some(FIRST.0), ..second }, Rule::NoRoute),
        (Wanted { local_rail: Some(FIRST.0 as u8), ..second }, Rule::IsPrimary),
        (Wanted { family: Some(Family::V6), ..second }, Rule::Family),
        (Wanted { mtu_bytes_min: 9000, ..second }, Rule::Mtu),
        (Wanted { strict: true, ..second }, Rule::SameFailureDomain),
    ];
    for (wanted, rule) in refused {
        assert_eq!(choose(&roles, &wanted), Err(rule));
    }
    assert_eq!(choose(&roles, &second), Ok(SECOND));
}

#[test]
fn a_path_that_rests_may_be_given_and_is_not_chosen() {
    let mut roles = roles(&[record(FIRST), record(SECOND)]);
    roles.get_mut(SECOND).unwrap().resting = true;
    assert_eq!(choose(&roles, &Wanted::default()), Err(Rule::AlternateFailed));
    let given = Wanted { local_rail: Some(SECOND.0 as u8), ..Wanted::default() };
    assert_eq!(choose(&roles, &given), Ok(SECOND));
}

#[test]
fn roles_change_only_as_the_specification_lists() {
    let mut roles = roles(&[record(FIRST), record(SECOND), record(THIRD)]);
    let of = |roles: &Roles| [FIRST, SECOND, THIRD].map(|path| roles.role(path).unwrap());
    use Role::{Alternate, Drained, Member, Primary};
    assert_eq!(of(&roles), [Primary, Member, Member]);
    roles.set_alternate(SECOND).unwrap();
    assert_eq!(of(&roles), [Primary, Alternate, Member]);
    roles.set_alternate(THIRD).unwrap();
    assert_eq!(of(&roles), [Primary, Member, Alternate]);
    assert_eq!(roles.set_alternate(FIRST), Err(Rule::IsPrimary));
    assert_eq!(roles.set_alternate(PathId(99)), Err(Rule::UnknownPath));
    roles.promote(THIRD).unwrap();
    assert_eq!(of(&roles), [Alternate, Member, Primary], "the way back is specified");
    roles.promote(SECOND).unwrap();
    assert_eq!(of(&roles), [Alternate, Primary, Member], "another is the alternate already");
    roles.drain(FIRST, DrainedBy::Us);
    roles.drain(SECOND, DrainedBy::Us);
    assert_eq!(of(&roles), [Drained, Primary, Member], "drained when another took over");
    assert_eq!(roles.promote(FIRST), Err(Rule::IsDrained));
    assert_eq!(roles.set_alternate(FIRST), Err(Rule::IsDrained));
    roles.promote(THIRD).unwrap();
    assert_eq!(of(&roles), [Drained, Drained, Primary]);
    assert_eq!(roles.alternate(), None);
    roles.drain(SECOND, DrainedBy::Peer);
    roles.bring_up(SECOND, DrainedBy::Us);
    assert_eq!(of(&roles), [Drained, Drained, Primary], "the peer drains it, too");
    roles.bring_up(SECOND, DrainedBy::Peer);
    assert_eq!(of(&roles), [Drained, Member, Primary]);
    roles.follow(FIRST, Some(SECOND)).unwrap();
    assert_eq!(of(&roles), [Primary, Alternate, Member]);
    assert_eq!(roles.sending(), Some(SECOND), "its own direction avoids what it drained");
    roles.follow(SECOND, Some(FIRST)).unwrap();
    assert_eq!(of(&roles), [Drained, Primary, Member], "a drained path is no alternate");
}

#[test]
fn a_spare_is_proven_and_good() {
    let mut roles = roles(&[record(FIRST), record(SECOND), record(THIRD)]);
    assert_eq!(roles.spare(), None, "a member that was never armed");
    roles.prove(SECOND);
    roles.prove(THIRD);
    assert_eq!(roles.spare(), Some(SECOND));
    roles.set_alternate(THIRD).unwrap();
    assert_eq!(roles.spare(), Some(THIRD), "the alternate comes first");
    roles.get_mut(THIRD).unwrap().health = Health::Suspect;
    assert_eq!(roles.spare(), Some(SECOND));
    assert_eq!(roles.sending(), Some(FIRST));
    roles.get_mut(FIRST).unwrap().health = Health::Failed;
    assert_eq!(roles.sending(), Some(SECOND));
    roles.get_mut(SECOND).unwrap().health = Health::Failed;
    assert_eq!(roles.sending(), Some(FIRST), "none is better");
}

#[test]
fn a_path_that_loses_packets_is_no_alternate_where_another_one_is_there() {
    let same_card = PathRecord { local_domain: FIRST.0, ..record(SECOND) };
    let mut roles = roles(&[record(FIRST), same_card, record(THIRD), record(PathId(6))]);
    let any = Wanted::default();
    roles.get_mut(THIRD).unwrap().score = 975;
    assert_eq!(choose(&roles, &any), Ok(PathId(6)), "of equal weights the better one");
    roles.get_mut(PathId(6)).unwrap().weight = WEIGHT_MAX - 1;
    assert_eq!(choose(&roles, &any), Ok(THIRD), "a user weighs more than that");
    roles.get_mut(THIRD).unwrap().score = SCORE_DEGRADED;
    assert_eq!(choose(&roles, &any), Ok(PathId(6)), "and less than loss");
    roles.get_mut(PathId(6)).unwrap().score = SCORE_STANDBY;
    assert_eq!(choose(&roles, &any), Ok(THIRD));
    for path in [THIRD, PathId(6)] {
        roles.prove(path);
    }
    roles.set_alternate(PathId(6)).unwrap();
    assert_eq!(roles.spare(), Some(THIRD), "one that loses less comes before the alternate");
    roles.get_mut(THIRD).unwrap().score = SCORE_STANDBY - 1;
    assert_eq!(roles.spare(), Some(PathId(6)));
}

#[test]
fn drains_and_weights_follow_the_ends_of_a_path_and_the_newest_wish_counts() {
    let over = |id: PathId, rail: u8| PathRecord {
        id,
        local_rail: rail,
        remote_address: 0,
        ..record(FIRST)
    };
    let (fourth, is_drained) =
        (PathId(6), |roles: &Roles, path| roles.is_drained_by(path, DrainedBy::Us));
    let mut roles = roles(&[over(FIRST, 0), over(SECOND, 1)]);
    roles.drain(SECOND, DrainedBy::Us);
    roles.get_mut(SECOND).unwrap().weight = 7;
    // All links are lost, and the first path goes on over the ends of the second.
    for path in [FIRST, SECOND] {
        roles.get_mut(path).unwrap().health = Health::Failed;
    }
    assert!(roles.renew(over(FIRST, 1)) && is_drained(&roles, FIRST));
    assert_eq!(roles.get(FIRST).unwrap().weight, 7);
    roles.get_mut(FIRST).unwrap().health = Health::Good;
    roles.bring_up(FIRST, DrainedBy::Us);
    roles.forget(SECOND);
    // The operator brought those ends up again: the drain of the second path is over.
    assert!(!roles.renew(over(FIRST, 0)) && !is_drained(&roles, FIRST));
    assert!(roles.add(over(THIRD, 1)) && !is_drained(&roles, THIRD));
    // A path that is forgotten comes back under another number; the peer's word about it may come first.
    roles.drain(THIRD, DrainedBy::Us);
    roles.forget(THIRD);
    assert!(!roles.hear_drain(Drain { path: fourth, is_drained: true, order: 1 }));
    assert!(roles.add(over(fourth, 1)) && is_drained(&roles, fourth));
    assert!(roles.is_drained_by(fourth, DrainedBy::Peer));
}
