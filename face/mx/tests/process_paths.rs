//! A program in C whose messages go on over another network when one is cut: it gets no error while one is left. An operator
//! sees its paths, and drains one of them.

mod common;
#[path = "../../common/tests/shared/paths.rs"]
mod paths;

use std::process::Command;

use common::{compile, folder};
use ropewalk_netns::{Host, Topology, TopologyConfig};

/// A network, and the program that is to run over both of its rails. `board`: the one of a host. `place`: a folder.
fn prepared(
    source: &str,
    board: impl Fn(Host<'_>) -> String,
    place: &tempfile::TempDir,
) -> Option<(Topology, Command)> {
    let program = compile(source, "gcc", "myriexpress")?;
    let net = Topology::or_skip(&TopologyConfig::default())?;
    let hosts = [0, 1].map(|host| net.host(host));
    let mut command: Command = hosts[0].command(program);
    command.arg("ether").env("LD_LIBRARY_PATH", folder());
    command.env("ETHER_ONE", board(hosts[0])).env("ETHER_TWO", board(hosts[1]));
    command.env("ETHER_TWO_NAMESPACE", hosts[1].namespace().path());
    // Boards of UDP are found by a table.
    let table = place.path().join("peers");
    if board(hosts[0]).starts_with("udp") {
        let lines = hosts.map(|host| format!("host{}:0 {}\n", host.number(), board(host)));
        std::fs::write(&table, lines.concat()).expect("written");
        command.env("ROPEWALK_MX_PEERS", &table);
    }
    // The interfaces have the same names on each host.
    command.env("ROPEWALK_INTERFACES", [0, 1].map(|rail| hosts[0].interface(rail)).join(","));
    Some((net, command))
}

/// Runs it while rails are cut in turn.
fn run(board: impl Fn(Host<'_>) -> String) {
    let place = tempfile::tempdir().expect("a folder");
    let Some((net, mut command)) = prepared("paths.c", board, &place) else { return };
    paths::cut_in_turn(&net, &mut command);
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

#[test]
fn an_operator_sees_the_paths_of_both_endpoints_and_drains_one() {
    let place = tempfile::tempdir().expect("a folder");
    let board = |host: Host<'_>| format!("ether://{}", host.interface(0));
    let Some((net, mut command)) = prepared("paths.c", board, &place) else { return };
    paths::look_and_drain(&net, &mut command, ["MX endpoint", "MX endpoint"]);
}

#[test]
fn a_handler_of_errors_is_told_of_all_paths_and_their_causes_where_none_is_left() {
    let place = tempfile::tempdir().expect("a folder");
    let board = |host: Host<'_>| format!("ether://{}", host.interface(0));
    let Some((net, mut command)) = prepared("unreachable.c", board, &place) else { return };
    let [said, complaints] = paths::cut_all(&net, &mut command);
    let text = said.strip_prefix("a send ended with an error: ");
    let is_told = text.is_some_and(|text| paths::names_both(text, &net, "ether"));
    assert!(is_told, "{said}");
    assert!(paths::names_both(&complaints, &net, "ether"), "{complaints}");
}

#[test]
fn a_wrong_name_of_an_interface_is_named_with_the_right_ones() {
    let place = tempfile::tempdir().expect("a folder");
    let board = |host: Host<'_>| format!("ether://{}", host.interface(0));
    let Some((net, mut command)) = prepared("paths.c", board, &place) else { return };
    command.env("ROPEWALK_INTERFACES", format!("{},wire7", net.host(0).interface(0)));
    let output = command.output().expect("it can be started");
    let complained = String::from_utf8_lossy(&output.stderr);
    // Both processes say it, perhaps at the same time.
    let text = "ROPEWALK_INTERFACES names 'wire7', and this host has no such interface: it has ";
    let (_, there) = complained.split_once(text).unwrap_or_else(|| panic!("{complained}"));
    let there = there.lines().next().unwrap_or_default();
    assert!((0..2).all(|rail| there.contains(&net.host(0).interface(rail))), "{there}");
    assert!(!output.status.success());
}
