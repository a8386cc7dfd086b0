//! Which side calls for further paths, and what a peer tells of its acknowledgements.

use std::time::Duration;

use ropewalk_wire::frame::AckBody;

use super::*;

/// Whether a core with the lower endpoint id asks for a way to its peer. `offered`: it knew an address of it when the session
/// began. `theirs`: the peer says that it can call.
fn adds(offered: bool, theirs: bool) -> bool {
    let mut rig = Rig::new();
    let peer = rig.peer.expect("a session");
    // It learns one meanwhile.
    rig.core.peers.get_mut(peer).expect("it is there").reachable = true;
    let bundle = rig.core.peers.session_mut(peer).and_then(|session| session.bundle_mut());
    bundle.expect("it may have several paths").offers = offered;
    rig.tell_key_and(u8::from(theirs));
    let bundle = rig.core.peers.session_mut(peer).and_then(|session| session.bundle_mut());
    bundle.expect("it may have several paths").due() != Time::NEVER
}

#[test]
fn a_side_that_learns_an_address_later_does_not_call_beside_the_other_one() {
    assert!(adds(true, true) && adds(true, false) && adds(false, false));
    assert!(!adds(false, true), "the peer calls, since we have said that we cannot");
}

/// After how many milliseconds without an acknowledgement a path is suspect whose peer has told such delays before.
fn suspected_after(delay: Duration) -> u64 {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.join(link(1, 1), 1, |_| ());
    let mut now = 1000;
    for number in 1..60 {
        at(&mut rig, now);
        assert_eq!(rig.leaves_over(number), Some(FIRST));
        now += 1;
        at(&mut rig, now);
        let ack = Body::Ack(AckBody::new(1 << 40, delay));
        rig.place(FIRST, rig.envelope(), &ack);
        for over in [FIRST, link(1, 1)] {
            rig.place(over, rig.envelope(), &probe());
        }
        now += 4;
    }
    at(&mut rig, now);
    assert_eq!(rig.leaves_over(70), Some(FIRST));
    let begin = now;
    while rig.core.counters().paths_suspected == 0 {
        assert!(now < begin + 100, "it is never suspect");
        now += 1;
        at(&mut rig, now);
        rig.core.run_due();
        rig.told();
    }
    now - begin
}

#[test]
fn a_peer_whose_acknowledgements_are_late_is_given_the_time_that_it_tells() {
    let usual = suspected_after(Duration::from_micros(900));
    assert!((5..10).contains(&usual), "{usual}");
    let late = suspected_after(Duration::from_millis(9));
    assert!((usual + 7..=usual + 9).contains(&late), "{late}, and {usual} usually");
    let most = suspected_after(Duration::from_secs(1000));
    assert!((usual + 18..=usual + 20).contains(&most), "{most}, and {usual} usually");
}
