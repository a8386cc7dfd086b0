use super::*;

const EVERY: u64 = 100;

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// A route that is judged ten times a second.
struct Route {
    quality: Quality,
    millis: u64,
    changes: Vec<(u64, PathGrade)>,
    /// Packets that are due to be lost, and to be spoiled, in millionths.
    lost: u64,
    corrupt: u64,
}

impl Route {
    fn new() -> Route {
        Route { quality: Quality::new(), millis: 0, changes: Vec::new(), lost: 0, corrupt: 0 }
    }

    fn judge(&mut self, counted: Counted) {
        self.millis += EVERY;
        let before = self.quality.shown().grade;
        self.quality.note(counted, at(self.millis));
        let PathQuality { score, grade, .. } = self.quality.shown();
        if grade != before {
            self.changes.push((self.millis, grade));
        }
        let of_grade = match grade {
            PathGrade::Good => 501..=1000,
            PathGrade::Degraded => 101..=500,
            PathGrade::Standby => 0..=100,
        };
        assert!(of_grade.contains(&score), "{grade:?} has a score of {score}");
    }

    /// For so long, with so many packets of each 100 ms, of which so many of a million are lost and spoiled.
    fn run(&mut self, millis: u64, packets: u32, [loss, corruption]: [u32; 2]) -> PathQuality {
        for _ in 0..millis / EVERY {
            self.lost += u64::from(packets) * u64::from(loss);
            self.corrupt += u64::from(packets) * u64::from(corruption);
            let (lost, corrupt) = ((self.lost / MILLION) as u32, (self.corrupt / MILLION) as u32);
            (self.lost, self.corrupt) = (self.lost % MILLION, self.corrupt % MILLION);
            self.judge(Counted { sent: packets, lost, spoiled: 0, received: packets, corrupt });
        }
        self.quality.shown()
    }
}

#[test]
fn one_packet_of_a_hundred_degrades_a_route_and_one_of_ten_makes_it_stand_by() {
    for (loss, grade) in [
        (0, PathGrade::Good),
        (9_000, PathGrade::Good),
        (10_000, PathGrade::Degraded),
        (30_000, PathGrade::Degraded),
        (99_000, PathGrade::Degraded),
        (100_000, PathGrade::Standby),
        (500_000, PathGrade::Standby),
        (1_000_000, PathGrade::Standby),
    ] {
        let mut route = Route::new();
        route.run(5000, 400, [0, 0]);
        let quality = route.run(5000, 400, [loss, 0]);
        assert_eq!((quality.grade, quality.loss_ppm), (grade, Some(loss)));
        // It is known within a second.
        let known = route.changes.iter().find(|(_, is)| *is > PathGrade::Good);
        assert!(known.is_none_or(|(millis, _)| *millis <= 6000), "{:?}", route.changes);
    }
}

#[test]
fn one_spoiled_packet_of_ten_thousand_degrades_a_route() {
    for (corruption, grade) in [
        (0, PathGrade::Good),
        (80, PathGrade::Good),
        (110, PathGrade::Degraded),
        (10_000, PathGrade::Degraded),
        (200_000, PathGrade::Standby),
    ] {
        let mut route = Route::new();
        let quality = route.run(5000, 5000, [0, corruption]);
        assert_eq!(quality.grade, grade, "{corruption} of a million");
    }
    // What the peer says of frames that we sent counts, too.
    let mut route = Route::new();
    for _ in 0..20 {
        route.judge(Counted { sent: 1000, spoiled: 1, ..Counted::default() });
    }
    assert_eq!(route.quality.shown().grade, PathGrade::Degraded);
}

#[test]
fn fewer_than_a_thousand_packets_tell_nothing() {
    let mut route = Route::new();
    let quality = route.run(4900, 20, [50_000, 50_000]);
    assert_eq!((quality.grade, quality.score, quality.loss_ppm), (PathGrade::Good, 1000, None));
    let quality = route.run(100, 20, [50_000, 50_000]);
    assert_eq!((quality.grade, quality.loss_ppm), (PathGrade::Degraded, Some(50_000)));
    // What is older than a minute is forgotten.
    let mut route = Route::new();
    route.run(4900, 20, [50_000, 0]);
    route.millis += 60_000;
    assert_eq!(route.run(4900, 20, [50_000, 0]).loss_ppm, None);
}

#[test]
fn a_degraded_route_is_well_again_after_ten_seconds_and_not_before() {
    for loss in [30_000, 300_000] {
        let mut route = Route::new();
        route.run(2000, 400, [0, 0]);
        route.run(3000, 400, [loss, 0]);
        let mended = route.millis;
        assert!(route.run(9900, 12, [0, 0]).grade > PathGrade::Good);
        let quality = route.run(100, 12, [0, 0]);
        assert_eq!((quality.grade, quality.score), (PathGrade::Good, 1000));
        assert_eq!(route.changes.last(), Some(&(mended + 10_000, PathGrade::Good)));
        // And what was before does not count against it.
        route.run(5000, 12, [0, 0]);
        assert_eq!(route.quality.shown().grade, PathGrade::Good);
    }
}

#[test]
fn a_loss_meanwhile_begins_the_ten_seconds_anew() {
    let mut route = Route::new();
    route.run(3000, 400, [30_000, 0]);
    route.run(5000, 12, [0, 0]);
    route.judge(Counted { sent: 12, lost: 1, ..Counted::default() });
    let lost = route.millis;
    assert_eq!(route.run(9900, 12, [0, 0]).grade, PathGrade::Degraded);
    assert_eq!(route.run(100, 12, [0, 0]).grade, PathGrade::Good);
    assert_eq!(route.changes.last(), Some(&(lost + 10_000, PathGrade::Good)));
    // Less than one of a thousand is no loss.
    let mut route = Route::new();
    route.run(3000, 400, [30_000, 0]);
    assert_eq!(route.run(12_000, 4000, [800, 0]).grade, PathGrade::Good);
    let mut route = Route::new();
    route.run(3000, 400, [30_000, 0]);
    assert_eq!(route.run(60_000, 4000, [1_100, 0]).grade, PathGrade::Degraded);
    // Nor do many packets that went well hide those that are lost now.
    let mut route = Route::new();
    route.run(3000, 400, [30_000, 0]);
    route.run(9900, 8000, [0, 0]);
    assert_eq!(route.run(1000, 8000, [6_000, 0]).grade, PathGrade::Degraded);
}

#[test]
fn without_packets_nothing_is_known_to_be_well() {
    let mut route = Route::new();
    route.run(3000, 400, [30_000, 0]);
    assert_eq!(route.run(60_000, 0, [0, 0]).grade, PathGrade::Degraded);
    route.run(900, 11, [0, 0]);
    assert_eq!(route.quality.shown().grade, PathGrade::Degraded, "99 packets");
    route.run(100, 11, [0, 0]);
    assert_eq!(route.quality.shown().grade, PathGrade::Good);
}

#[test]
fn a_route_that_loses_packets_now_and_then_does_not_come_and_go() {
    let mut route = Route::new();
    for _ in 0..20 {
        route.run(1000, 400, [40_000, 0]);
        route.run(5000, 400, [0, 0]);
    }
    let grades: Vec<PathGrade> = route.changes.iter().map(|(_, grade)| *grade).collect();
    assert_eq!(grades, [PathGrade::Degraded], "{:?}", route.changes);
}

#[test]
fn a_cut_of_a_moment_is_no_loss_of_a_route() {
    let mut route = Route::new();
    for _ in 0..10 {
        route.run(2000, 200, [0, 0]);
        route.run(100, 60, [1_000_000, 0]);
    }
    assert_eq!(route.changes, []);
}

#[test]
fn a_route_that_stands_by_is_degraded_when_it_loses_less() {
    let mut route = Route::new();
    route.run(3000, 400, [150_000, 0]);
    assert_eq!(route.quality.shown().grade, PathGrade::Standby);
    assert_eq!(route.run(9900, 400, [20_000, 0]).grade, PathGrade::Standby);
    let quality = route.run(1000, 400, [20_000, 0]);
    assert_eq!((quality.grade, quality.loss_ppm), (PathGrade::Degraded, Some(20_000)));
    assert_eq!(route.run(30_000, 400, [20_000, 0]).grade, PathGrade::Degraded);
    // And stands by again when it loses more.
    assert_eq!(route.run(3000, 400, [150_000, 0]).grade, PathGrade::Standby);
}

#[test]
fn scores_fall_with_loss_corruption_and_slowness() {
    let score = |loss, corruption, slow: [u64; 2]| {
        let mut route = Route::new();
        let [own, least] = slow.map(|micros| Some(Duration::from_micros(micros)));
        route.quality.note_round_trips(own, least);
        route.run(10_000, 2000, [loss, corruption]).score
    };
    let same = [300, 300];
    let scores = [
        score(0, 0, same),
        score(5_000, 0, same),
        score(9_000, 0, same),
        score(20_000, 0, same),
        score(80_000, 0, same),
        score(150_000, 0, same),
        score(600_000, 0, same),
    ];
    assert_eq!(scores[0], 1000);
    assert!(scores.is_sorted_by(|before, after| before > after), "{scores:?}");
    assert!(score(0, 80, same) < 950 && score(0, 200, same) <= 500);
    assert_eq!(score(0, 0, [2_200, 300]), 1000, "an acknowledgement may be late by that");
    let slow = [score(0, 0, [5_000, 300]), score(0, 0, [20_000, 300])];
    assert!(slow[0] < 900 && slow[1] < slow[0] && slow[1] >= 700, "{slow:?}");
    assert_eq!(score(0, 0, [300, 20_000]), 1000, "the faster one");
}

#[test]
fn a_score_does_not_tremble() {
    let mut route = Route::new();
    route.run(3000, 2000, [4_000, 0]);
    let before = route.quality.shown().score;
    for loss in [4_500, 3_500, 4_400, 3_900] {
        assert_eq!(route.run(2000, 2000, [loss, 0]).score, before);
    }
    assert!(route.run(2000, 2000, [7_000, 0]).score < before);
}
