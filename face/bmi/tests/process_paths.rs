//! A program in C whose messages go on over another path when one is cut: it gets no error while one is left. An operator
//! sees its paths, and drains one of them.

mod common;
#[path = "../../common/tests/shared/paths.rs"]
mod paths;

use std::process::Command;

use common::{Build, C, ORANGEFS, compile, folder, succeed};
use ropewalk_netns::{Topology, TopologyConfig};

/// A network, and the program that is to run over both of its rails.
fn prepared(source: &str, scheme: &str, build: Build) -> Option<(Topology, Command)> {
    let program = compile(&[source], build)?;
    let net = Topology::or_skip(&TopologyConfig::default())?;
    let (near, far) = (net.host(0), net.host(1));
    let places = [0, 1].map(|rail| format!("{scheme}://{}:7100", far.address(rail)));
    let listen: Vec<String> =
        (0..2).map(|rail| format!("{}?interface={}", places[rail], far.interface(rail))).collect();
    let mut command: Command = near.command(program);
    command.env("LD_LIBRARY_PATH", folder()).env("PATHS_URL", places.join(","));
    command.env("PATHS_NAMESPACE", far.namespace().path());
    command.env("PATHS_METHOD", format!("bmi_{scheme}")).env("PATHS_LISTEN", listen.join(","));
    Some((net, command))
}

/// Runs it while rails are cut in turn.
fn run(scheme: &str, build: Build) {
    let Some((net, mut command)) = prepared("paths.c", scheme, build) else { return };
    paths::cut_in_turn(&net, &mut command);
}

#[test]
fn messages_go_on_over_the_other_path_of_tcp() {
    run("tcp", C);
    run("tcp", ORANGEFS);
}

#[test]
fn messages_go_on_over_the_other_path_of_udp() {
    run("udp", C);
}

#[test]
fn an_operator_sees_the_paths_of_a_client_and_a_server_and_drains_one() {
    let Some((net, mut command)) = prepared("paths.c", "tcp", C) else { return };
    paths::look_and_drain(&net, &mut command, ["BMI client", "BMI server"]);
}

#[test]
fn an_error_names_all_paths_and_their_causes_where_none_is_left() {
    for build in [C, ORANGEFS] {
        let Some((net, mut command)) = prepared("unreachable.c", "tcp", build) else { return };
        let [said, complaints] = paths::cut_all(&net, &mut command);
        // The library complains, and the program asked for the same text.
        let line = complaints.lines().find(|line| paths::names_both(line, &net, "tcp"));
        let line = line.unwrap_or_else(|| panic!("{complaints}"));
        assert!(paths::names_both(&said, &net, "tcp"), "{said}");
        assert!(line.starts_with("ropewalk: no path to tcp://"), "{line}");
    }
}

#[test]
fn a_wrong_name_of_an_interface_is_an_error_of_the_lookup_that_names_the_right_ones() {
    let Some(program) = compile(&["interfaces.c"], C) else { return };
    let Some(net) = Topology::or_skip(&TopologyConfig::default()) else { return };
    let near = net.host(0);
    let of = |names: &str| {
        let mut command: Command = near.command(&program);
        command.env("LD_LIBRARY_PATH", folder()).env("ROPEWALK_INTERFACES", names);
        command.arg(format!("tcp://{}:7100", net.host(1).address(0)));
        let output = succeed(&mut command);
        let [said, complained] =
            [output.stdout, output.stderr].map(|it| String::from_utf8(it).expect("text"));
        (said.trim_end().to_string(), complained)
    };
    let both = [0, 1].map(|rail| near.interface(rail));
    assert_eq!(of(&both.join(",")), ("found".to_string(), String::new()));
    let (said, complained) = of(&format!("{},wire7", both[0]));
    assert_eq!(said, "EADDRNOTAVAIL");
    let begin =
        "libbmi: ROPEWALK_INTERFACES names 'wire7', and this host has no such interface: it has ";
    let there = complained.strip_prefix(begin).unwrap_or_else(|| panic!("{complained}"));
    assert!(both.iter().all(|name| there.contains(name)), "{there}");
}
