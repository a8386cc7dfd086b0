//! A program in C whose messages go on over another network when one is cut: it gets no error while one is left.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use common::{compile, folder};
use ropewalk_netns::{Fault, FaultKind, Host, Topology, TopologyConfig};

/// Runs it over both rails of a network, which are cut in turn. `board`: the one of a host.
fn run(board: impl Fn(Host<'_>) -> String) {
    let Some(program) = compile("paths.c", "gcc", "myriexpress") else { return };
    let Some(net) = Topology::or_skip(&TopologyConfig::default()) else { return };
    let hosts = [0, 1].map(|host| net.host(host));
    let mut command: Command = hosts[0].command(program);
    command.arg("ether").env("LD_LIBRARY_PATH", folder());
    command.env("ETHER_ONE", board(hosts[0])).env("ETHER_TWO", board(hosts[1]));
    command.env("ETHER_TWO_NAMESPACE", hosts[1].namespace().path());
    // Boards of UDP are found by a table.
    let place = tempfile::tempdir().expect("a folder");
    let table = place.path().join("peers");
    if board(hosts[0]).starts_with("udp") {
        let lines = hosts.map(|host| format!("host{}:0 {}\n", host.number(), board(host)));
        std::fs::write(&table, lines.concat()).expect("written");
        command.env("ROPEWALK_MX_PEERS", &table);
    }
    // The interfaces have the same names on each host.
    command.env("ROPEWALK_INTERFACES", [0, 1].map(|rail| hosts[0].interface(rail)).join(","));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut answers = child.stdin.take().expect("it was asked for");
    let said = BufReader::new(child.stdout.take().expect("it was asked for"));
    let faults = [(FaultKind::Cut, 0), (FaultKind::Cut, 1), (FaultKind::CarrierLoss, 0)];
    let mut faults = faults.into_iter();
    let (mut cut, mut last) = (None, String::new());
    for line in said.lines() {
        last = line.expect("text");
        if last == "ok" {
            break;
        }
        // What is cut is mended when the next one is: at each moment one is left.
        drop(cut.take());
        let (kind, rail) = faults.next().expect("it stops three times");
        cut = Some(net.inject(&Fault::new(kind, 0, rail)).expect("it can be injected"));
        writeln!(answers, "go on").expect("it reads");
    }
    let status = child.wait().expect("it ends");
    assert!(status.success() && last == "ok", "{status}, after '{last}'");
}

#[test]
fn messages_go_on_over_another_interface_where_boards_speak_our_language() {
    run(|host| format!("ether://{}", host.interface(0)));
}

#[test]
fn messages_go_on_where_mxoe_is_spoken_with_others() {
    run(|host| format!("mxoe://{}", host.interface(0)));
}

#[test]
fn messages_go_on_over_another_interface_of_udp() {
    run(|host| format!("udp://{}:7100", host.address(0)));
}
