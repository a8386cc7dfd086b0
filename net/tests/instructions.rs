//! The cost of a small message, counted in instructions, which no other load on the machine disturbs.
//!
//! The test runs itself under valgrind. Where that is not installed it says so and passes.

mod common;

use std::process::Command;

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
    let this = std::env::current_exe().expect("a test has a file");
    let name = "a_small_message_costs_few_instructions";
    let outcome = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--toggle-collect=instructions::common::message")
        .arg(this)
        .args(["--ignored", "--exact", name])
        .env(CHILD, "1")
        .output();
    if std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer")) {
        println!("SKIP: a sanitizer's program does not run under valgrind");
        return;
    }
    let Ok(outcome) = outcome else {
        println!("SKIP: valgrind is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    let collected: u64 = collected.and_then(|number| number.trim().parse().ok()).expect("a count");
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
