//! A program in C whose messages go on over another path when one is cut: it gets no error while one is left.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use common::{Build, C, ORANGEFS, compile, folder};
use ropewalk_netns::{Fault, FaultKind, Topology, TopologyConfig};

/// Runs it over both rails of a network, which are cut in turn.
fn run(scheme: &str, build: Build) {
    let Some(program) = compile(&["paths.c"], build) else { return };
    let Some(net) = Topology::or_skip(&TopologyConfig::default()) else { return };
    let (near, far) = (net.host(0), net.host(1));
    let places = [0, 1].map(|rail| format!("{scheme}://{}:7100", far.address(rail)));
    let listen: Vec<String> =
        (0..2).map(|rail| format!("{}?interface={}", places[rail], far.interface(rail))).collect();
    let mut command: Command = near.command(program);
    command.env("LD_LIBRARY_PATH", folder()).env("PATHS_URL", places.join(","));
    command.env("PATHS_NAMESPACE", far.namespace().path());
    command.env("PATHS_METHOD", format!("bmi_{scheme}")).env("PATHS_LISTEN", listen.join(","));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut answers = child.stdin.take().expect("it was asked for");
    let said = BufReader::new(child.stdout.take().expect("it was asked for"));
    let mut faults =
        [(FaultKind::Cut, 0), (FaultKind::Cut, 1), (FaultKind::CarrierLoss, 0)].into_iter();
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
    assert!(status.success() && last == "ok", "{scheme}: {status}, after '{last}'");
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
