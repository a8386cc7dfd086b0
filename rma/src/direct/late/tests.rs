use std::convert::Infallible;

use ropewalk_base::ids::ClusterId;
use ropewalk_base::slots::SlotId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Completed, Endpoint, EndpointConfig, Group};

use super::*;
use crate::error::{Error, Refusal};
use crate::{Asserts, Implementation, LockKind, Team, Window, WindowOptions};

fn alone(act: impl FnOnce(&Team, &Window)) {
    let listen = Listen::At { address: "127.0.0.1:0", exactly: true };
    let rails = vec![modules::open("tcp", &listen).expect("this host has it")];
    let endpoint = Endpoint::open(EndpointConfig::new(ClusterId(9)), rails).expect("it opens");
    let exchange = |own: &[u8]| Ok::<_, Infallible>(vec![own.to_vec()]);
    let group = Group::find(&endpoint, 0, 7 << 48, exchange).expect("nobody else is awaited");
    let team = Team::new(&endpoint, &group, 8 << 48).expect("there is room");
    let implementation = Implementation::Direct;
    let options = WindowOptions { implementation, map_memory: false, ..WindowOptions::default() };
    let mut window = team.allocate(64, &options).expect("there is room");
    act(&team, &window);
    window.free().expect("nobody is lost");
    group.leave(&endpoint);
    endpoint.close();
}

/// An operation to the rank itself ends like this.
fn ends(hub: &mut Hub, outcome: Result<(), Fault>) {
    let lane = &mut hub.remote(0).lanes[0];
    lane.under_way += 1;
    let note = Note { verb: 3, address: 8, bytes: 16, ..Note::of_word(lane.round.clone()) };
    let posted = Posted::Access { window: 0, rank: 0, operation: None, note };
    let id = hub.posted.insert(posted).expect("there is room");
    let operation = OperationId(SlotId { index: 0, generation: 1 });
    let (user, memory) = (id.to_u64() | REMOTE, Memory::empty());
    let (bytes, message_bytes, bits, peer) = (0, 0, 0, None);
    hub.remote_done(Completed {
        operation,
        user,
        outcome,
        bytes,
        message_bytes,
        peer,
        bits,
        memory,
    });
}

#[test]
fn a_target_without_room_for_a_result_refuses_and_is_not_lost() {
    alone(|team, window| {
        window.lock(LockKind::Shared, 0, Asserts::NONE).expect("it may");
        team.shared.with(|hub| ends(hub, Err(Fault::Busy)));
        let error = window.flush(0).expect_err("it was refused");
        let verb = "get_accumulate";
        let refusal = Refusal::Room { verb };
        assert!(
            matches!(&error, Error::Refused { rank: 0, refusal: it, .. } if *it == refusal),
            "{error}"
        );
        window.flush(0).expect("it is told once");
        window.unlock(0).expect("the rank is there");
    });
}
