//! Lists of peers, and what policies ask for.

use super::*;
use crate::apm::cause::{ArmCause, MoveCause, ProbeFault};

#[test]
fn a_list_of_peers_has_an_end_for_each_by_event_or_by_poll() {
    let peer = |index| PeerId(SlotId { index, generation: 1 });
    let peers: Vec<PeerId> = (0..3).map(peer).collect();
    let mut machines: Vec<Migration> = peers
        .iter()
        .map(|_| {
            let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
            ask(&mut machine, Request::Specify(Wanted::default()));
            machine
        })
        .collect();
    machines[2].handle_end(Event::Reset).unwrap();
    let mut list = LoadList::begin(&peers, |peer| {
        machines[peer.0.index as usize].request(Request::Load, By::Poll)
    });
    fn poll(machines: &mut [Migration], list: &mut LoadList) -> usize {
        list.poll(|peer, ticket| machines[peer.0.index as usize].poll(ticket))
    }
    assert_eq!(poll(&mut machines, &mut list), 2, "the third was refused at once");
    prove(&mut machines[1]);
    assert_eq!(poll(&mut machines, &mut list), 1);
    let arming = machines[0].arming().unwrap().id;
    machines[0].handle_probes(arming, Err(ProbeFault::Corrupt)).unwrap();
    assert_eq!(poll(&mut machines, &mut list), 0);
    let ends: Vec<_> = list.ends().map(|(_, outcome)| outcome.unwrap()).collect();
    let failed = Outcome::Failed(ArmCause::Probes(ProbeFault::Corrupt));
    let armed = Outcome::Armed { path: SECOND };
    assert_eq!(ends, [failed, armed, Outcome::Refused(Rule::NoConnection)]);
}

#[test]
fn each_policy_asks_for_what_the_paper_says() {
    let armed = What::Armed { path: SECOND };
    let cause = MoveCause::PrimaryFailed;
    let migrated = What::Migrated { from: FIRST, to: SECOND, cause, counter: 1 };
    let specify = Request::Specify(Wanted::default());
    let expected: [(Policy, &[Request], &[Request]); 5] = [
        (Policy::Nothing, &[], &[]),
        (Policy::MigrateWhenArmed, &[Request::Migrate], &[]),
        (Policy::SpecifyAndLoad, &[], &[specify, Request::Load]),
        (Policy::SpecifyOnly, &[], &[specify]),
        (Policy::KeepArmed, &[], &[specify, Request::Load]),
    ];
    for (policy, on_armed, on_migrated) in expected {
        assert_eq!(policy.requests(&armed), on_armed);
        assert_eq!(policy.requests(&migrated), on_migrated);
    }
    assert_eq!(Policy::default(), Policy::KeepArmed);
}

#[test]
fn the_default_policy_goes_on_to_the_next_path_and_stops() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND, THIRD]);
    let act = |machine: &mut Migration, what: What| {
        for request in Policy::default().requests(&what) {
            machine.request(*request, By::Event);
        }
    };
    act(&mut machine, What::Added { path: THIRD });
    for expected in [Some(SECOND), Some(THIRD), None] {
        assert_eq!(machine.arming().map(|arming| arming.path), expected);
        if let Some(arming) = machine.arming() {
            outputs(&mut machine);
            machine.handle_probes(arming.id, Err(ProbeFault::NoRoute)).unwrap();
            for what in notices(&outputs(&mut machine)) {
                act(&mut machine, what);
            }
        }
    }
    outputs(&mut machine);
    machine.handle_mended(THIRD).unwrap();
    for what in notices(&outputs(&mut machine)) {
        act(&mut machine, what);
    }
    assert_eq!(machine.arming().map(|arming| arming.path), Some(THIRD));
}
