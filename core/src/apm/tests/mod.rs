//! Tests of path migration: the table against the grids of its specification and against properties, the machine by
//! stories, and two machines by all their interleavings.

mod choice;
mod grid;
mod model;
mod native;
mod policies;
mod rules;
mod stories;

use ropewalk_base::slots::SlotId;

use super::load::ArmingId;
use super::path::Family;
use super::*;
use crate::api::PeerId;

const PEER: PeerId = PeerId(SlotId { index: 3, generation: 1 });
const FIRST: PathId = PathId(0);
const SECOND: PathId = PathId(2);
const THIRD: PathId = PathId(4);

/// A path whose ends share nothing with those of another number.
fn record(id: PathId) -> PathRecord {
    PathRecord {
        id,
        local_rail: id.0 as u8,
        remote_address: id.0,
        entropy: 0,
        family: Family::V4,
        mtu_bytes: 9000,
        local_domain: id.0,
        remote_domain: id.0,
    }
}

/// A connection in RTS with these paths.
fn connected(side: Side, paths: &[PathId]) -> Migration {
    let mut machine = Migration::new(PEER, side);
    for connection in [Connection::Init, Connection::Rtr, Connection::Rts] {
        machine.set_connection(connection).expect("the order of a set-up");
    }
    for path in paths {
        assert!(machine.add_path(record(*path)));
    }
    outputs(&mut machine);
    machine
}

fn outputs(machine: &mut Migration) -> Vec<Output> {
    std::iter::from_fn(|| machine.next_output()).collect()
}

fn notices(outputs: &[Output]) -> Vec<What> {
    let what = |output: &Output| match output {
        Output::Notice(notice) => Some(notice.what),
        _ => None,
    };
    outputs.iter().filter_map(what).collect()
}

fn messages(outputs: &[Output]) -> Vec<(Message, Option<PathId>)> {
    let sent = |output: &Output| match output {
        Output::Send { message, over } => Some((*message, *over)),
        _ => None,
    };
    outputs.iter().filter_map(sent).collect()
}

/// The end of a request that ends at once.
fn ask(machine: &mut Migration, request: Request) -> Outcome {
    let ticket = machine.request(request, By::Poll);
    machine.poll(ticket).expect("it ends at once")
}

/// Specifies and loads, with all proofs: REARM, then ARMED.
fn arm(machine: &mut Migration) -> ArmingId {
    assert!(matches!(ask(machine, Request::Specify(Wanted::default())), Outcome::Specified { .. }));
    machine.request(Request::Load, By::Event);
    prove(machine)
}

/// All proofs of the arming under way.
fn prove(machine: &mut Migration) -> ArmingId {
    let arming = machine.arming().expect("an arming is under way");
    let primary = machine.roles().primary().expect("there are paths");
    for over in [primary, arming.path] {
        machine.handle_message(over, Message::Loaded { arming: arming.id }).unwrap();
    }
    machine.handle_probes(arming.id, Ok(())).unwrap();
    assert_eq!(machine.state(), MigrationState::Rearm, "old data is not acknowledged");
    machine.handle_acknowledged(arming.id).unwrap();
    arming.id
}
