//! One machine, by what a user and a peer see of it.

use super::*;
use crate::apm::cause::{ArmCause, MoveCause, ProbeFault};
use crate::apm::message::Drain;
use crate::apm::migrate::Move;
use crate::apm::state::{EVENTS, MIGRATION_STATES};

use MigrationState::{Armed, Migrated, Rearm};

fn theirs(number: u32) -> ArmingId {
    ArmingId { by: Side::Higher, number }
}

fn moved(counter: u32, by: Side, primary: PathId, alternate: PathId) -> Message {
    Message::Migrate(Move { counter, by, primary, alternate: Some(alternate) })
}

#[test]
fn a_fresh_connection_is_migrated_through_its_set_up() {
    let mut machine = Migration::new(PEER, Side::Lower);
    assert_eq!((machine.connection(), machine.state()), (Connection::Reset, Migrated));
    assert_eq!(machine.set_connection(Connection::Rts), Err(Rule::NotYet));
    for connection in [Connection::Init, Connection::Rtr, Connection::Rts] {
        machine.set_connection(connection).unwrap();
        assert_eq!((machine.connection(), machine.state()), (connection, Migrated));
    }
    machine.set_connection(Connection::Sqd).unwrap();
    machine.set_connection(Connection::Rts).unwrap();
    assert_eq!(machine.set_connection(Connection::Pathless), Err(Rule::NotYet));
}

#[test]
fn the_three_modules_work_apart() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    assert_eq!(ask(&mut machine, Request::Load), Outcome::Refused(Rule::NoAlternate));
    assert_eq!(ask(&mut machine, Request::Migrate), Outcome::Refused(Rule::NotArmed));
    let arming = arm(&mut machine);
    assert_eq!(machine.state(), Armed);
    assert_eq!(ask(&mut machine, Request::Load), Outcome::Refused(Rule::Loaded));
    assert_eq!(
        ask(&mut machine, Request::Specify(Wanted::default())),
        Outcome::Refused(Rule::Loaded)
    );
    outputs(&mut machine);
    assert_eq!(ask(&mut machine, Request::Migrate), Outcome::Migrated { path: SECOND });
    let did = outputs(&mut machine);
    assert_eq!(messages(&did), [(moved(1, Side::Lower, SECOND, FIRST), None)]);
    assert!(did.contains(&Output::EndProof { arming }));
    assert!(did.contains(&Output::SendOver(SECOND)));
    let cause = MoveCause::Manual;
    let told = What::Migrated { from: FIRST, to: SECOND, cause, counter: 1 };
    assert_eq!(notices(&did), [told]);
    // The way back is specified: load without specify, then migrate.
    machine.request(Request::Load, By::Event);
    prove(&mut machine);
    assert_eq!(ask(&mut machine, Request::Migrate), Outcome::Migrated { path: FIRST });
    assert_eq!(machine.newest().map(|newest| newest.counter), Some(2));
    assert_eq!(machine.peer(), PEER, "the same peer, whatever moved");
}

#[test]
fn a_load_sends_over_both_paths_and_arms_by_four_proofs_in_any_order() {
    // Each order of: LOADED over the primary, over the alternate, probes, acknowledged.
    let mut orders = vec![vec![]];
    for _ in 0..4 {
        let longer = |order: &Vec<usize>| {
            let order = order.clone();
            let next = (0..4).filter(move |step| !order.contains(step)).collect::<Vec<_>>();
            next.into_iter()
        };
        orders = orders
            .iter()
            .flat_map(|order| longer(order).map(|step| [order.clone(), vec![step]].concat()))
            .collect();
    }
    assert_eq!(orders.len(), 24);
    for order in orders {
        let mut machine = connected(Side::Higher, &[FIRST, SECOND]);
        ask(&mut machine, Request::Specify(Wanted::default()));
        let ticket = machine.request(Request::Load, By::Event);
        let arming = theirs(1);
        let load = Message::Load { arming, path: SECOND, newest: None, replaces: false };
        let did = outputs(&mut machine);
        assert_eq!(messages(&did), [(load, Some(SECOND)), (load, Some(FIRST))]);
        assert!(did.contains(&Output::Prove { arming, path: SECOND }));
        for (at, proof) in order.iter().enumerate() {
            assert_eq!(machine.state(), Rearm, "{order:?} at {at}");
            match proof {
                0 => machine.handle_message(FIRST, Message::Loaded { arming }).unwrap(),
                1 => machine.handle_message(SECOND, Message::Loaded { arming }).unwrap(),
                2 => machine.handle_probes(arming, Ok(())).unwrap(),
                _ => machine.handle_acknowledged(arming).unwrap(),
            }
        }
        assert_eq!(machine.state(), Armed, "{order:?}");
        let outcome = Outcome::Armed { path: SECOND };
        assert_eq!(
            notices(&outputs(&mut machine)),
            [What::Armed { path: SECOND }, What::Done { ticket, outcome }]
        );
    }
}

#[test]
fn a_load_in_init_is_kept_until_the_connection_sends() {
    let mut machine = Migration::new(PEER, Side::Lower);
    machine.set_connection(Connection::Init).unwrap();
    machine.add_path(record(FIRST));
    machine.add_path(record(SECOND));
    ask(&mut machine, Request::Specify(Wanted::default()));
    let ticket = machine.request(Request::Load, By::Poll);
    assert_eq!(machine.state(), Migrated);
    assert_eq!(ask(&mut machine, Request::Load), Outcome::Refused(Rule::Loading));
    machine.set_connection(Connection::Rtr).unwrap();
    assert_eq!((machine.state(), machine.poll(ticket)), (Migrated, None));
    assert_eq!(messages(&outputs(&mut machine)), []);
    machine.set_connection(Connection::Rts).unwrap();
    assert_eq!(machine.state(), Rearm);
    assert_eq!(messages(&outputs(&mut machine)).len(), 2);
    prove(&mut machine);
    assert_eq!(machine.poll(ticket), Some(Outcome::Armed { path: SECOND }));
    assert_eq!(machine.poll(ticket), None, "told once");
}

#[test]
fn a_load_in_rtr_is_sent_in_rts() {
    let mut machine = Migration::new(PEER, Side::Lower);
    machine.set_connection(Connection::Init).unwrap();
    machine.set_connection(Connection::Rtr).unwrap();
    machine.add_path(record(FIRST));
    machine.add_path(record(SECOND));
    ask(&mut machine, Request::Specify(Wanted::default()));
    machine.request(Request::Load, By::Event);
    assert_eq!(machine.state(), Rearm);
    assert_eq!(messages(&outputs(&mut machine)), []);
    machine.set_connection(Connection::Rts).unwrap();
    assert_eq!(messages(&outputs(&mut machine)).len(), 2);
    prove(&mut machine);
    assert_eq!(machine.state(), Armed);
}

#[test]
fn the_responder_answers_each_copy_and_arms_by_its_own_proof() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    let load = Message::Load { arming: theirs(1), path: SECOND, newest: None, replaces: false };
    let loaded = Message::Loaded { arming: theirs(1) };
    machine.handle_message(SECOND, load).unwrap();
    assert_eq!(machine.state(), Rearm);
    let did = outputs(&mut machine);
    assert_eq!(messages(&did), [(loaded, Some(SECOND))]);
    assert!(did.contains(&Output::Prove { arming: theirs(1), path: SECOND }));
    machine.handle_probes(theirs(1), Ok(())).unwrap();
    machine.handle_acknowledged(theirs(1)).unwrap();
    assert_eq!(machine.state(), Rearm, "not heard over the primary path yet");
    machine.handle_message(FIRST, load).unwrap();
    let did = outputs(&mut machine);
    assert_eq!(messages(&did), [(loaded, Some(FIRST))]);
    assert_eq!(notices(&did), [What::Armed { path: SECOND }]);
    assert_eq!(machine.state(), Armed);
}

#[test]
fn a_load_that_does_not_fit_is_refused_with_its_rule() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    ask(&mut machine, Request::Drain(SECOND));
    outputs(&mut machine);
    for (number, path, rule) in
        [(1, FIRST, Rule::IsPrimary), (2, SECOND, Rule::IsDrained), (3, THIRD, Rule::UnknownPath)]
    {
        let load = Message::Load { arming: theirs(number), path, newest: None, replaces: false };
        machine.handle_message(FIRST, load).unwrap();
        let refused = Message::Refused { arming: theirs(number), rule };
        assert_eq!(messages(&outputs(&mut machine)), [(refused, Some(FIRST))]);
        assert_eq!(machine.state(), Migrated);
        assert_eq!(machine.handle_message(FIRST, load), Err(Rule::Stale), "the other copy");
    }
}

#[test]
fn a_refused_or_spent_arming_fails_its_load_and_the_path_rests() {
    for refused in [true, false] {
        let mut machine = connected(Side::Higher, &[FIRST, SECOND]);
        ask(&mut machine, Request::Specify(Wanted::default()));
        let ticket = machine.request(Request::Load, By::Poll);
        outputs(&mut machine);
        let arming = theirs(1);
        let cause = match refused {
            true => {
                let refusal = Message::Refused { arming, rule: Rule::IsDrained };
                machine.handle_message(FIRST, refusal).unwrap();
                ArmCause::Refused(Rule::IsDrained)
            }
            false => {
                machine.handle_probes(arming, Err(ProbeFault::Mtu)).unwrap();
                ArmCause::Probes(ProbeFault::Mtu)
            }
        };
        let did = outputs(&mut machine);
        assert_eq!(notices(&did), [What::ArmFailed { path: SECOND, cause }]);
        let withdraw = Message::Withdraw { arming: Some(arming), drain: None };
        assert_eq!(messages(&did), [(withdraw, None)]);
        assert_eq!(machine.poll(ticket), Some(Outcome::Failed(cause)));
        let rests = Outcome::Refused(Rule::AlternateFailed);
        assert_eq!(ask(&mut machine, Request::Specify(Wanted::default())), rests);
        machine.handle_mended(SECOND).unwrap();
        arm_again(&mut machine);
    }
}

fn arm_again(machine: &mut Migration) {
    arm(machine);
    assert_eq!(machine.state(), Armed);
}

#[test]
fn words_about_an_old_arming_change_nothing() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    ask(&mut machine, Request::Specify(Wanted::default()));
    machine.request(Request::Load, By::Event);
    let old = ArmingId { by: Side::Lower, number: 1 };
    machine.handle_probes(old, Err(ProbeFault::Loss)).unwrap();
    machine.handle_mended(SECOND).unwrap();
    ask(&mut machine, Request::Specify(Wanted::default()));
    machine.request(Request::Load, By::Event);
    outputs(&mut machine);
    let before = machine.clone();
    assert_eq!(machine.handle_probes(old, Ok(())), Err(Rule::Stale));
    assert_eq!(machine.handle_acknowledged(old), Err(Rule::Stale));
    assert_eq!(machine.handle_probes(old, Err(ProbeFault::Loss)), Err(Rule::Stale));
    let late = [
        Message::Loaded { arming: old },
        Message::Refused { arming: old, rule: Rule::IsDrained },
        Message::Withdraw { arming: Some(old), drain: None },
        Message::Load { arming: old, path: SECOND, newest: None, replaces: false },
    ];
    for message in late {
        assert_eq!(machine.handle_message(FIRST, message), Err(Rule::Stale));
    }
    assert_eq!(machine, before);
}

#[test]
fn a_load_after_its_own_withdrawal_is_stale() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    let withdraw = Message::Withdraw { arming: Some(theirs(1)), drain: None };
    assert_eq!(machine.handle_message(FIRST, withdraw), Err(Rule::Stale));
    let load = Message::Load { arming: theirs(1), path: SECOND, newest: None, replaces: false };
    assert_eq!(machine.handle_message(SECOND, load), Err(Rule::Stale));
    assert_eq!(machine.state(), Migrated);
}

#[test]
fn of_two_loads_the_lower_sides_counts() {
    let ours = |side| ArmingId { by: side, number: 1 };
    let begin = |side| {
        let mut machine = connected(side, &[FIRST, SECOND, THIRD]);
        let wanted = match side {
            Side::Lower => Wanted { local_rail: Some(SECOND.0 as u8), ..Wanted::default() },
            Side::Higher => Wanted { local_rail: Some(THIRD.0 as u8), ..Wanted::default() },
        };
        ask(&mut machine, Request::Specify(wanted));
        let ticket = machine.request(Request::Load, By::Poll);
        outputs(&mut machine);
        (machine, ticket)
    };
    let (mut lower, _) = begin(Side::Lower);
    let load =
        Message::Load { arming: ours(Side::Higher), path: THIRD, newest: None, replaces: false };
    lower.handle_message(THIRD, load).unwrap();
    let refused = Message::Refused { arming: ours(Side::Higher), rule: Rule::Crossed };
    assert_eq!(messages(&outputs(&mut lower)), [(refused, Some(THIRD))]);
    assert_eq!(lower.arming().unwrap().id, ours(Side::Lower));

    let (mut higher, ticket) = begin(Side::Higher);
    let load =
        Message::Load { arming: ours(Side::Lower), path: SECOND, newest: None, replaces: false };
    higher.handle_message(SECOND, load).unwrap();
    let withdraw = Message::Withdraw { arming: Some(ours(Side::Higher)), drain: None };
    let loaded = Message::Loaded { arming: ours(Side::Lower) };
    assert_eq!(messages(&outputs(&mut higher)), [(withdraw, None), (loaded, Some(SECOND))]);
    assert_eq!(higher.handle_message(THIRD, refused), Err(Rule::Stale));
    higher.handle_message(FIRST, load).unwrap();
    higher.handle_probes(ours(Side::Lower), Ok(())).unwrap();
    higher.handle_acknowledged(ours(Side::Lower)).unwrap();
    assert_eq!(higher.poll(ticket), Some(Outcome::Armed { path: SECOND }));
}

#[test]
fn of_two_migrations_the_larger_counter_wins_and_of_equal_ones_the_lower_sides() {
    for (side, counter, by, wins) in [
        (Side::Lower, 1, Side::Higher, false),
        (Side::Higher, 1, Side::Lower, true),
        (Side::Lower, 2, Side::Higher, true),
        (Side::Higher, 2, Side::Lower, true),
        (Side::Lower, u32::MAX, Side::Higher, true),
    ] {
        let mut machine = connected(side, &[FIRST, SECOND, THIRD]);
        let wanted = Wanted { local_rail: Some(SECOND.0 as u8), ..Wanted::default() };
        ask(&mut machine, Request::Specify(wanted));
        machine.request(Request::Load, By::Event);
        prove(&mut machine);
        ask(&mut machine, Request::Migrate);
        outputs(&mut machine);
        let answer = machine.handle_message(FIRST, moved(counter, by, THIRD, FIRST));
        assert_eq!(answer, if wins { Ok(()) } else { Err(Rule::Stale) });
        let primary = if wins { THIRD } else { SECOND };
        assert_eq!(machine.roles().primary(), Some(primary));
        assert_eq!(machine.roles().alternate(), Some(FIRST));
        assert_eq!(messages(&outputs(&mut machine)), [], "nobody argues");
    }
}

#[test]
fn a_load_that_overtakes_its_migration_brings_it_along() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    let newest = Move { counter: 1, by: Side::Higher, primary: SECOND, alternate: Some(FIRST) };
    let load =
        Message::Load { arming: theirs(1), path: FIRST, newest: Some(newest), replaces: false };
    machine.handle_message(FIRST, load).unwrap();
    assert_eq!(machine.roles().primary(), Some(SECOND));
    assert_eq!(machine.state(), Rearm);
    assert_eq!(machine.handle_message(SECOND, Message::Migrate(newest)), Err(Rule::Stale));
    assert_eq!(machine.state(), Rearm);
    let old = Message::Load { arming: theirs(2), path: FIRST, newest: None, replaces: false };
    assert_eq!(machine.handle_message(FIRST, old), Err(Rule::Stale));
}

#[test]
fn suspicion_moves_an_armed_connection_and_no_other() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    assert_eq!(machine.handle_suspect(FIRST), Err(Rule::NotArmed));
    machine.handle_mended(FIRST).unwrap();
    arm(&mut machine);
    outputs(&mut machine);
    machine.handle_suspect(FIRST).unwrap();
    let cause = MoveCause::PrimarySuspect;
    let told = What::Migrated { from: FIRST, to: SECOND, cause, counter: 1 };
    assert_eq!(notices(&outputs(&mut machine)), [told]);
    assert_eq!(machine.state(), Migrated);
}

#[test]
fn a_primary_path_that_turned_bad_before_is_left_when_armed_or_sending_again() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    assert_eq!(machine.handle_suspect(FIRST), Err(Rule::NotArmed));
    arm(&mut machine);
    assert_eq!((machine.state(), machine.roles().primary()), (Migrated, Some(SECOND)));

    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    arm(&mut machine);
    machine.set_connection(Connection::Sqd).unwrap();
    assert_eq!(machine.handle_failed(FIRST), Err(Rule::NotSending));
    assert_eq!((machine.connection(), machine.state()), (Connection::Sqd, Armed));
    assert_eq!(machine.roles().sending(), Some(SECOND), "what is under way ends there");
    machine.set_connection(Connection::Rts).unwrap();
    assert_eq!((machine.state(), machine.roles().primary()), (Migrated, Some(SECOND)));
}

#[test]
fn an_arming_survives_the_end_of_the_primary_path() {
    // Nobody would answer there, so the alternate alone counts, and takes over at once.
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    ask(&mut machine, Request::Specify(Wanted::default()));
    let ticket = machine.request(Request::Load, By::Poll);
    let arming = machine.arming().unwrap().id;
    machine.handle_message(SECOND, Message::Loaded { arming }).unwrap();
    machine.handle_probes(arming, Ok(())).unwrap();
    machine.handle_acknowledged(arming).unwrap();
    assert_eq!(machine.state(), Rearm);
    outputs(&mut machine);
    machine.handle_failed(FIRST).unwrap();
    let cause = MoveCause::PrimaryFailed;
    let told = notices(&outputs(&mut machine));
    let migrated = What::Migrated { from: FIRST, to: SECOND, cause, counter: 1 };
    assert_eq!(told, [What::Armed { path: SECOND }, migrated]);
    assert_eq!(machine.poll(ticket), Some(Outcome::Armed { path: SECOND }));
    assert_eq!(machine.connection(), Connection::Rts);
}

#[test]
fn a_bad_standby_is_never_kept_armed() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    let arming = arm(&mut machine);
    outputs(&mut machine);
    machine.handle_suspect(SECOND).unwrap();
    assert_eq!(machine.state(), Rearm);
    let did = outputs(&mut machine);
    let cause = ArmCause::StandbyBad;
    assert_eq!(notices(&did), [What::Disarmed { path: SECOND, cause }]);
    assert!(did.contains(&Output::Prove { arming, path: SECOND }));
    machine.handle_probes(arming, Ok(())).unwrap();
    assert_eq!(machine.state(), Armed);
    machine.handle_failed(SECOND).unwrap();
    assert_eq!(machine.state(), Migrated);
    let withdraw = Message::Withdraw { arming: Some(arming), drain: None };
    assert_eq!(messages(&outputs(&mut machine)), [(withdraw, None)]);
    assert_eq!(machine.connection(), Connection::Rts, "the primary path is good");
}

#[test]
fn without_a_path_a_connection_waits_and_comes_back_by_any_path() {
    for back in [FIRST, SECOND] {
        let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
        arm(&mut machine);
        let _ = machine.handle_failed(SECOND);
        let _ = machine.handle_failed(FIRST);
        assert_eq!((machine.connection(), machine.state()), (Connection::Pathless, Migrated));
        assert_eq!(notices(&outputs(&mut machine)).last(), Some(&What::NoPath));
        assert_eq!(ask(&mut machine, Request::Load), Outcome::Refused(Rule::NoPath));
        machine.handle_mended(back).unwrap();
        assert_eq!(machine.connection(), Connection::Rts);
        assert_eq!(machine.roles().primary(), Some(back));
        let did = outputs(&mut machine);
        assert_eq!(notices(&did), [What::Resumed { path: back }]);
        assert_eq!(messages(&did).len(), usize::from(back == SECOND), "told only if it moved");
    }
}

#[test]
fn the_end_of_path_wait_ends_the_connection() {
    let mut machine = connected(Side::Lower, &[FIRST]);
    let _ = machine.handle_failed(FIRST);
    assert_eq!(machine.connection(), Connection::Pathless);
    machine.handle_end(Event::ConnectionError).unwrap();
    assert_eq!(machine.connection(), Connection::Error);
    assert_eq!(machine.handle_mended(FIRST), Err(Rule::UnknownPath), "paths end with it");
    machine.handle_end(Event::Reset).unwrap();
    machine.set_connection(Connection::Init).unwrap();
}

#[test]
fn an_end_of_the_connection_ends_the_load_and_forgets_counters() {
    for event in [Event::ConnectionError, Event::Reset, Event::NewIncarnation] {
        let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
        arm(&mut machine);
        ask(&mut machine, Request::Migrate);
        let ticket = machine.request(Request::Load, By::Poll);
        machine.handle_end(event).unwrap();
        assert_eq!(machine.poll(ticket), Some(Outcome::Failed(ArmCause::ConnectionOver)));
        assert_eq!((machine.newest(), machine.arming()), (None, None));
        assert_eq!(machine.state(), Migrated);
        assert_eq!(machine.roles().entries(), []);
        assert_eq!(machine.peer(), PEER);
    }
    let mut machine = connected(Side::Lower, &[FIRST]);
    assert_eq!(machine.handle_end(Event::Drain), Err(Rule::NotYet), "that is no end");
}

fn drain(path: PathId, order: u16) -> Drain {
    Drain { path, is_drained: true, order }
}

#[test]
fn drain_moves_off_a_path_and_up_takes_it_back() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    assert_eq!(ask(&mut machine, Request::Drain(FIRST)), Outcome::Refused(Rule::LastPath));
    assert_eq!(ask(&mut machine, Request::Drain(THIRD)), Outcome::Refused(Rule::UnknownPath));
    assert_eq!(ask(&mut machine, Request::Up(FIRST)), Outcome::Refused(Rule::NotDrained));
    arm(&mut machine);
    outputs(&mut machine);
    assert_eq!(ask(&mut machine, Request::Drain(FIRST)), Outcome::Changed);
    assert_eq!(machine.roles().primary(), Some(SECOND));
    assert_eq!(machine.roles().role(FIRST), Some(Role::Drained));
    let did = outputs(&mut machine);
    let migrate =
        Message::Migrate(Move { counter: 1, by: Side::Lower, primary: SECOND, alternate: None });
    let arming = Some(ArmingId { by: Side::Lower, number: 1 });
    let withdraw = Message::Withdraw { arming, drain: Some(drain(FIRST, 1)) };
    assert_eq!(messages(&did), [(migrate, None), (withdraw, None)]);
    assert_eq!(ask(&mut machine, Request::Drain(FIRST)), Outcome::Refused(Rule::IsDrained));
    assert_eq!(ask(&mut machine, Request::Up(FIRST)), Outcome::Changed);
    assert_eq!(machine.roles().role(FIRST), Some(Role::Member));
    assert_eq!(
        ask(&mut machine, Request::Weight(FIRST, 1001)),
        Outcome::Refused(Rule::WeightRange)
    );
    assert_eq!(ask(&mut machine, Request::Weight(FIRST, 10)), Outcome::Changed);
}

#[test]
fn a_drain_of_the_peers_moves_this_side_and_ends_its_arming() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    arm(&mut machine);
    let withdraw = Message::Withdraw { arming: None, drain: Some(drain(SECOND, 1)) };
    machine.handle_message(FIRST, withdraw).unwrap();
    assert_eq!(machine.state(), Migrated);
    assert_eq!(machine.roles().role(SECOND), Some(Role::Drained));
    machine.handle_mended(SECOND).unwrap();
    assert_eq!(machine.roles().role(SECOND), Some(Role::Drained), "a false suspicion");
    machine.handle_joined(SECOND);
    assert_eq!(machine.roles().role(SECOND), Some(Role::Member), "it joined again");
    arm(&mut machine);
    let withdraw = Message::Withdraw { arming: None, drain: Some(drain(FIRST, 1)) };
    machine.handle_message(FIRST, withdraw).unwrap();
    assert_eq!(machine.roles().primary(), Some(SECOND));
    assert_eq!(machine.roles().role(FIRST), Some(Role::Drained));
}

#[test]
fn a_path_that_both_sides_drained_is_used_again_once_both_brought_it_up() {
    let sides = [Side::Lower, Side::Higher];
    let mut machines = sides.map(|side| connected(side, &[FIRST, SECOND]));
    let send_all = |machines: &mut [Migration; 2]| {
        for at in [0, 1, 0, 1] {
            for (message, _) in messages(&outputs(&mut machines[at])) {
                let _ = machines[1 - at].handle_message(FIRST, message);
            }
        }
    };
    let ask_both = |machines: &mut [Migration; 2], request: Request| {
        machines.iter_mut().for_each(|machine| {
            assert_eq!(ask(machine, request), Outcome::Changed, "{request:?}");
        });
    };
    ask_both(&mut machines, Request::Drain(SECOND));
    send_all(&mut machines);
    assert_eq!(ask(&mut machines[0], Request::Up(SECOND)), Outcome::Changed);
    send_all(&mut machines);
    for machine in &machines {
        assert_eq!(machine.roles().role(SECOND), Some(Role::Drained), "one drains it yet");
    }
    assert_eq!(ask(&mut machines[1], Request::Up(SECOND)), Outcome::Changed);
    send_all(&mut machines);
    for machine in &machines {
        assert_eq!(machine.roles().role(SECOND), Some(Role::Member));
    }
}

#[test]
fn of_orders_about_a_path_the_newest_one_counts_in_whatever_order_they_come() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    let mut hear = |order: u16, is_drained: bool| {
        let told = Drain { path: SECOND, is_drained, order };
        let _ =
            machine.handle_message(FIRST, Message::Withdraw { arming: None, drain: Some(told) });
        machine.roles().role(SECOND)
    };
    assert_eq!(hear(2, false), Some(Role::Member));
    assert_eq!(hear(1, true), Some(Role::Member), "an older one");
    assert_eq!(hear(3, true), Some(Role::Drained));
    assert_eq!(hear(2, false), Some(Role::Drained), "an older one");
    assert_eq!(hear(0x8002, false), Some(Role::Member));
    assert_eq!(hear(0xffff, true), Some(Role::Drained));
    assert_eq!(hear(0, false), Some(Role::Member), "it wraps");
}

#[test]
fn another_alternate_takes_the_place_of_an_armed_one_on_both_sides() {
    for side in [Side::Lower, Side::Higher] {
        let mut machine = connected(side, &[FIRST, SECOND, THIRD]);
        arm(&mut machine);
        outputs(&mut machine);
        let other = match side {
            Side::Lower => Side::Higher,
            Side::Higher => Side::Lower,
        };
        let mut peer = connected(other, &[FIRST, SECOND, THIRD]);
        arm(&mut peer);
        outputs(&mut peer);
        let PathRecord { local_rail, remote_address, entropy, .. } =
            machine.roles().get(THIRD).expect("it is there").record;
        let wanted = Wanted {
            local_rail: Some(local_rail),
            remote_address: Some(remote_address),
            entropy: Some(entropy),
            ..Wanted::default()
        };
        let ticket = Ticket(1 << 40);
        assert_eq!(machine.replace(ticket, wanted, By::Poll), Ok(THIRD));
        let long = Wanted { mtu_bytes_min: 1 << 30, ..wanted };
        let refused = machine.replace(Ticket(2 << 40), long, By::Poll);
        assert_eq!(refused, Err(Rule::Mtu), "nothing is given up for what is refused");
        assert_eq!((machine.state(), machine.roles().alternate()), (Rearm, Some(THIRD)));
        assert_eq!(machine.poll(ticket), None, "it is under way");
        let sent = messages(&outputs(&mut machine));
        let load = sent.iter().find(|(message, _)| matches!(message, Message::Load { .. }));
        let (load, _) = *load.expect("a load goes out");
        peer.handle_message(FIRST, load).unwrap();
        assert_eq!((peer.state(), peer.roles().alternate()), (Rearm, Some(THIRD)), "{side:?}");
    }
}

#[test]
fn a_used_up_counter_ends_the_association() {
    let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
    machine.handle_message(FIRST, moved(u32::MAX, Side::Higher, SECOND, FIRST)).unwrap();
    machine.request(Request::Load, By::Event);
    prove(&mut machine);
    machine.request(Request::Migrate, By::Event);
    assert_eq!(machine.connection(), Connection::Error);
}

#[test]
fn a_refusal_leaves_the_machine_as_it_was() {
    use crate::apm::machine::Given;
    use crate::apm::state::CONNECTIONS;
    let mut refused = 0;
    for connection in CONNECTIONS {
        for migration in MIGRATION_STATES {
            for event in EVENTS {
                let mut machine = connected(Side::Lower, &[FIRST, SECOND]);
                ask(&mut machine, Request::Specify(Wanted::default()));
                match migration {
                    Migrated => {}
                    Rearm => drop(machine.request(Request::Load, By::Event)),
                    Armed => drop(arm(&mut machine)),
                }
                outputs(&mut machine);
                machine.connection = connection;
                let given = Given { unfit: Some(Rule::Mtu), ..Given::NOTHING };
                let before = machine.clone();
                if machine.step(event, &given).is_err() {
                    assert_eq!(machine, before, "{connection}, {migration}, {event}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 250, "{refused}");
}
