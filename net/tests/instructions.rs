//! The cost of a small message, counted in instructions, which no other load on the machine disturbs.
//!
//! The test runs itself under valgrind. Where that is not installed it says so and passes.

mod common;
mod valgrind;

use common::{Medium, World, message};

const CHILD: &str = "ROPEWALK_INSTRUCTIONS_CHILD";
const MESSAGES: u64 = 2000;

/// Instructions of a message of 8 bytes over memory, both ends together: post, send, receive, test.
/// A seventh above the figure when this was written, with the optimisation that tests are built with (a release
/// build takes a quarter less).
const INSTRUCTIONS_MAX: u64 = 4300;

#[test]
#[ignore = "for --deep: runs under valgrind"]
fn a_small_message_costs_few_instructions() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let name = "a_small_message_costs_few_instructions";
    let counted = valgrind::instructions("instructions::common::message", name, CHILD, "1");
    let Some(collected) = counted else { return };
    let each = collected / MESSAGES;
    println!("{each} instructions a message");
    assert!(each <= INSTRUCTIONS_MAX, "{each} instructions a message, over {INSTRUCTIONS_MAX}");
}

fn child() {
    let mut world = World::pair(Medium::Loop);
    let peer = world.peer(0, 1);
    let mut memories = [world.memory(8, 1), world.memory(8, 1)];
    for _ in 0..MESSAGES {
        memories = message(&world.nodes[0], &world.nodes[1], peer, memories);
    }
    world.nodes.clear();
}
