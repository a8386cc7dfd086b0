use ropewalk_base::slots::SlotId;

use super::*;
use crate::session::paths::PathId;
use crate::session::paths::striping::Going;
use crate::session::quality::SCORE_MAX;

const SHORT: Going = Going { bytes: 99, payload_bytes: 0, is_again: false, was_there: false };

fn link(rail: u8) -> LinkId {
    LinkId { rail, slot: SlotId { index: 1, generation: 1 } }
}

/// Paths of which the routes have these scores.
fn paths(scores: &[u16]) -> Paths {
    let mut paths = Paths::over(link(0));
    for rail in 1..scores.len() as u8 {
        paths.join(PathId::named(2 * u32::from(rail)), link(rail), Time::ZERO);
    }
    scores.iter().enumerate().for_each(|(rail, score)| rate(&mut paths, rail as u8, *score));
    paths
}

fn rate(paths: &mut Paths, rail: u8, score: u16) {
    let grade = match score {
        501.. => PathGrade::Good,
        101..=500 => PathGrade::Degraded,
        _ => PathGrade::Standby,
    };
    let path = paths.of_link(link(rail)).expect("it is a path");
    path.health.set_quality(score, grade);
}

fn used(paths: &Paths) -> Option<u8> {
    paths.control().map(|link| link.rail)
}

fn usable(paths: &Paths) -> Vec<u8> {
    paths.usable(|_| true).map(|link| link.rail).collect()
}

#[test]
fn short_messages_leave_the_preferred_path_for_one_that_is_much_better() {
    assert_eq!(used(&paths(&[1000, 1000])), Some(0));
    assert_eq!(used(&paths(&[810, 1000])), Some(0), "not for a little");
    assert_eq!(used(&paths(&[790, 1000])), Some(1));
    assert_eq!(used(&paths(&[500, 1000])), Some(1));
    assert_eq!(used(&paths(&[500, 600, 1000])), Some(2), "the best one");
    assert_eq!(used(&paths(&[400, 500])), Some(0), "both are degraded");
    let mut paths = paths(&[1000, 500, 700]);
    paths.suspect(link(0), Time::ZERO);
    assert_eq!(used(&paths), Some(2), "the best one of those that are not suspect");
    paths.prefer(2);
    assert_eq!(used(&paths), Some(2), "an operator's choice does not mend a path");
    paths.keep_out(|path| path.0 == 4);
    assert_eq!(used(&paths), Some(1));
}

#[test]
fn a_path_that_stands_by_gets_nothing_while_a_better_one_is_up() {
    let controllers = Controllers::new();
    let spread = |paths: &Paths| -> Vec<bool> {
        let open = |number| paths.usable_link(PathId::named(number)).is_some();
        [0, 2].map(open).to_vec()
    };
    let mut paths = paths(&[90, 400]);
    assert_eq!(
        (used(&paths), usable(&paths), spread(&paths)),
        (Some(1), vec![1], vec![false, true])
    );
    assert_eq!(paths.for_bytes(1 << 16, &controllers), Some(link(1)));
    // Another one that came back just now is better, too; one that is suspect is not.
    paths.lose(link(1), Time::ZERO, Time::NEVER);
    assert_eq!((used(&paths), spread(&paths)), (Some(0), vec![true, false]));
    paths.join(PathId::named(2), link(1), Time::ZERO);
    assert_eq!((used(&paths), usable(&paths), spread(&paths)), (Some(1), vec![1], vec![false; 2]));
    assert_eq!(paths.for_bytes(1 << 16, &controllers), Some(link(1)));
    assert!(paths.suspect(link(1), Time::ZERO));
    assert_eq!(
        (used(&paths), usable(&paths), spread(&paths)),
        (Some(0), vec![0], vec![true, false])
    );
}

#[test]
fn a_degraded_path_has_its_share_of_long_messages() {
    let paths = paths(&[1000, 200]);
    assert_eq!(paths.usable_link(PathId::named(2)), Some(link(1)));
    assert_eq!(usable(&paths), [0, 1]);
}

#[test]
fn all_paths_that_stand_by_are_used_and_so_is_one_alone() {
    let controllers = Controllers::new();
    let both = paths(&[20, 90]);
    assert_eq!((used(&both), usable(&both)), (Some(0), vec![0, 1]));
    assert!([0, 2].iter().all(|path| both.usable_link(PathId::named(*path)).is_some()));
    let alone = paths(&[0]);
    assert_eq!((used(&alone), usable(&alone)), (Some(0), vec![0]));
    assert_eq!(alone.for_bytes(8, &controllers), Some(link(0)));
}

#[test]
fn a_copy_goes_over_the_better_path() {
    let controllers = Controllers::new();
    let beside = |scores: &[u16]| paths(scores).beside(link(0), 100, &controllers);
    assert_eq!(beside(&[1000, 700, 1000]), Some(link(2)));
    assert_eq!(beside(&[1000, 950, 1000]), Some(link(1)), "no better");
    assert_eq!(beside(&[1000, 50]), Some(link(1)), "two paths were asked for");
}

#[test]
fn a_session_learns_what_its_routes_do_once() {
    let (mut controllers, mut paths) = (Controllers::new(), paths(&[1000, 1000]));
    for rail in [0, 1] {
        let part = controllers.join(Some((rail, 7)), 0, Time::ZERO).expect("there is room");
        paths.take_part(link(rail), part);
    }
    assert_eq!(paths.next_graded(&controllers), None);
    let mut health = Health::of_memory(Time::ZERO);
    for step in 0..30u64 {
        let now = Time::ZERO + std::time::Duration::from_millis(100) * step as u32;
        (health.packets, health.losses) = (400 * step, 20 * step);
        for rail in [0, 1] {
            paths.goes(link(rail), SHORT, &mut controllers, now);
        }
        assert_eq!(paths.next_question(true, now), Some(link(0)));
        assert_eq!(paths.next_question(true, now), Some(link(1)));
        assert_eq!(paths.next_question(true, now), None, "each is asked once");
        paths.measured(link(0), Some(&health), &mut controllers, now);
        paths.measured(link(1), None, &mut controllers, now);
    }
    let (graded, quality) = paths.next_graded(&controllers).expect("it loses packets");
    assert_eq!(
        (graded, quality.grade, quality.loss_ppm),
        (link(0), PathGrade::Degraded, Some(50_000))
    );
    assert_eq!((paths.next_graded(&controllers), used(&paths)), (None, Some(1)));
    let late = Time::ZERO + std::time::Duration::from_secs(9);
    assert_eq!(paths.next_question(false, late), Some(link(0)), "the other one does well");
    assert_eq!(paths.next_question(false, late), None);
    // What is known of a route outlives its last path for a while.
    paths.leave_part_over(link(0), &mut controllers);
    let again = controllers.join(Some((0, 7)), 0, late).expect("there is room");
    assert_eq!(controllers.quality(&again).grade, PathGrade::Degraded);
    controllers.leave(again);
    let again = controllers.join(Some((0, 7)), 0, late + std::time::Duration::from_secs(60));
    assert_eq!(controllers.quality(&again.expect("there is room")).score, SCORE_MAX);
}
