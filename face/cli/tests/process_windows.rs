//! Programs that use windows, in C and in Rust, as ranks of `ropewalk run`. Those of one rank are in
//! `face/rma/tests/c_programs.rs`.

mod support;

#[path = "../../rma/tests/common/mod.rs"]
mod common;
#[path = "../../rma/examples/histogram.rs"]
mod histogram;
#[path = "../../rma/examples/jacobi.rs"]
mod jacobi;
#[path = "../../rma/examples/table.rs"]
mod table;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use common::{Language, compile, folder};
use ropewalk_netns::{Fault, FaultKind, Joint, Topology, TopologyConfig};
use support::PROGRAM;

/// The example of which this program is a rank.
const PART: &str = "ROPEWALK_WINDOWS_TEST_PART";

fn run(options: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("run").args(options).arg("--").arg(program).args(arguments);
    command.env("LD_LIBRARY_PATH", folder());
    command
}

fn said(command: &mut Command) -> (Output, String) {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

/// All ranks end well, and each says this.
fn all_say(mut command: Command, ranks: usize, words: &str) {
    let (output, text) = said(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {text}{errors}", output.status);
    let count = text.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count, ranks, "{command:?}: {text}{errors}");
}

fn ranks(options: &[&str], count: usize, implementation: &str) {
    program(options, count, implementation, "tests/c/ranks.c");
}

/// The program that has a part for each rule, too.
fn rules(options: &[&str], count: usize, implementation: &str) {
    ranks(options, count, implementation);
    program(options, count, implementation, "tests/c/rules.c");
}

fn program(options: &[&str], count: usize, implementation: &str, source: &str) {
    let Some(program) = compile(source, Language::C) else { return };
    let number = count.to_string();
    // Only processes of one host that listen for it share memory.
    let shares = if options.is_empty() { "shared" } else { "apart" };
    let options = [&["-n", &number], options].concat();
    all_say(run(&options, &program, &[implementation, shares]), count, "] ok");
}

const TCP: [&str; 2] = ["--env", "ROPEWALK_RMA_LISTEN=tcp://127.0.0.1:0"];
const UDP: [&str; 2] = ["--env", "ROPEWALK_RMA_LISTEN=udp://127.0.0.1:0"];

#[test]
fn ranks_keep_all_promises_by_remote_access() {
    ranks(&[], 3, "direct");
    [2, 4, 8].into_iter().for_each(|count| rules(&[], count, "direct"));
    [2, 8].into_iter().for_each(|count| rules(&TCP, count, "direct"));
    rules(&UDP, 4, "direct");
}

#[test]
fn ranks_keep_all_promises_by_messages() {
    [4, 8].into_iter().for_each(|count| rules(&[], count, "messages"));
    [2, 8].into_iter().for_each(|count| rules(&TCP, count, "messages"));
    rules(&UDP, 4, "messages");
}

#[test]
fn ranks_keep_all_promises_with_accumulates_at_their_origin() {
    rules(&[], 4, "direct_accumulate_at_origin");
    rules(&TCP, 3, "direct_accumulate_at_origin");
    rules(&UDP, 3, "direct_accumulate_at_origin");
}

#[test]
fn ranks_of_two_hosts_that_share_no_memory_reach_each_other() {
    let config = TopologyConfig { joint: Joint::Direct, rails: 1, ..TopologyConfig::default() };
    let Some(net) = Topology::or_skip(&config) else { return };
    let names = namespaces(&net);
    for implementation in ["direct", "messages", "direct_accumulate_at_origin"] {
        rules(&["--namespaces", &names], 4, implementation);
    }
}

/// Each host has two rails, and one of them falls silent for good while windows are in use.
#[test]
fn windows_outlive_a_rail_that_dies() {
    let Some(net) = Topology::or_skip(&TopologyConfig::default()) else { return };
    let names = namespaces(&net);
    let interfaces = [0, 1].map(|rail| net.host(0).interface(rail)).join(",");
    let interfaces = format!("ROPEWALK_INTERFACES={interfaces}");
    let options = ["--namespaces", &names, "--env", &interfaces];
    for (rail, implementation) in [(0, "direct"), (1, "direct"), (0, "messages"), (1, "messages")] {
        // Jobs take some tenths of a second: in a few of them the fault comes in the middle.
        let in_time = |turn: u64| {
            std::thread::scope(|scope| {
                let ranks = scope.spawn(|| ranks(&options, 4, implementation));
                std::thread::sleep(Duration::from_millis(60 + 40 * (turn % 5)));
                let fault = net.inject(&Fault::new(FaultKind::Cut, 0, rail)).expect("a switch");
                let in_time = !ranks.is_finished();
                let outcome = ranks.join();
                fault.mend().expect("it can be mended");
                assert!(outcome.is_ok(), "rail {rail}, {implementation}, turn {turn}");
                in_time
            })
        };
        let begin = Instant::now();
        let count = (0..10).filter(|turn| in_time(*turn)).count();
        println!("rail {rail}, {implementation}: {count} of 10 in {:?}", begin.elapsed());
        assert!(count > 1, "the faults came too late");
    }
}

fn namespaces(net: &Topology) -> String {
    let names = net.hosts().map(|host| host.namespace().path().display().to_string());
    names.collect::<Vec<_>>().join(",")
}

/// Two hosts that reach each other by frames of Ethernet alone.
fn hosts_without_ip() -> Option<Topology> {
    let config = TopologyConfig { joint: Joint::Direct, rails: 1, ..TopologyConfig::default() };
    let net = Topology::or_skip(&config)?;
    for host in net.hosts() {
        let flush = ["address", "flush", "dev", &host.interface(0)];
        let flushed = host.command("ip").args(flush).status();
        assert!(flushed.is_ok_and(|it| it.success()), "no address is left");
    }
    Some(net)
}

#[test]
fn ranks_of_hosts_without_ip_reach_each_other_by_frames_of_ethernet() {
    let Some(net) = hosts_without_ip() else { return };
    let names = namespaces(&net);
    // No card passes frames to itself.
    let listen = "ROPEWALK_RMA_LISTEN=shm://,ether://";
    for implementation in ["direct", "messages", "direct_accumulate_at_origin"] {
        rules(&["--env", listen, "--namespaces", &names], 4, implementation);
    }
}

#[test]
fn a_rank_that_is_gone_is_named_and_the_others_go_on() {
    let Some(program) = compile("tests/c/lost.c", Language::C) else { return };
    for listen in ["shm://,tcp://127.0.0.1:0", "tcp://127.0.0.1:0"] {
        let listen = format!("ROPEWALK_RMA_LISTEN={listen}");
        all_say(run(&["-n", "3", "--env", &listen], &program, &[]), 2, "] ok");
    }
}

#[test]
fn a_rank_that_is_killed_hangs_nobody_whatever_it_was_doing() {
    let Some(program) = compile("tests/c/killed.c", Language::C) else { return };
    let deaths = ["target", "origin", "accumulate", "fence", "locked", "dynamic", "copying"];
    let listens = ["shm://,tcp://127.0.0.1:0", "tcp://127.0.0.1:0"];
    for (seed, death) in deaths.into_iter().enumerate() {
        for implementation in ["direct", "messages", "direct_accumulate_at_origin"] {
            for (number, listen) in listens.into_iter().enumerate() {
                let listen = format!("ROPEWALK_RMA_LISTEN={listen}");
                let seed = (2 * seed + number).to_string();
                let options = ["-n", "4", "--env", &listen];
                all_say(run(&options, &program, &[implementation, death, &seed]), 3, "] ok");
            }
        }
    }
}

/// Nobody sees the end of a session there: silence ends it, after 10 to 15 s.
#[test]
fn a_rank_that_is_killed_over_udp_hangs_nobody() {
    let Some(program) = compile("tests/c/killed.c", Language::C) else { return };
    std::thread::scope(|scope| {
        for (implementation, death) in [
            ("direct", "origin"),
            ("direct", "locked"),
            ("messages", "target"),
            ("direct_accumulate_at_origin", "accumulate"),
        ] {
            let options = ["-n", "4", "--env", "ROPEWALK_RMA_LISTEN=udp://127.0.0.1:0"];
            let command = run(&options, &program, &[implementation, death, "3"]);
            scope.spawn(move || all_say(command, 3, "] ok"));
        }
    });
}

#[test]
fn a_rank_that_is_stopped_keeps_its_lock() {
    let Some(program) = compile("tests/c/stopped.c", Language::C) else { return };
    std::thread::scope(|scope| {
        for listen in ["shm://,tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "udp://127.0.0.1:0"] {
            for implementation in ["direct", "messages"] {
                let listen = format!("ROPEWALK_RMA_LISTEN={listen}");
                let options = ["-n", "3", "--env", &listen];
                let command = run(&options, &program, &[implementation]);
                scope.spawn(move || all_say(command, 3, "] ok"));
            }
        }
    });
}

fn memory_goes_away(listen: &str, more: &[&str]) {
    let Some(program) = compile("tests/c/gone.c", Language::C) else { return };
    let listen = format!("ROPEWALK_RMA_LISTEN={listen}");
    for implementation in ["direct", "messages", "direct_accumulate_at_origin"] {
        let options = [&["-n", "2", "--env", &listen], more].concat();
        all_say(run(&options, &program, &[implementation]), 2, "] ok");
    }
}

#[test]
fn memory_that_goes_away_is_an_error_over_shared_memory() {
    memory_goes_away("shm://,tcp://127.0.0.1:0", &[]);
}

#[test]
fn memory_that_goes_away_is_an_error_over_tcp() {
    memory_goes_away("tcp://127.0.0.1:0", &[]);
}

#[test]
fn memory_that_goes_away_is_an_error_over_udp() {
    memory_goes_away("udp://127.0.0.1:0", &[]);
}

#[test]
fn memory_that_goes_away_is_an_error_over_ether() {
    let Some(net) = hosts_without_ip() else { return };
    memory_goes_away("shm://,ether://", &["--namespaces", &namespaces(&net)]);
}

fn example_in_c(name: &str, words: &str) {
    for count in [4, 3, 1] {
        let Some(program) = compile(&format!("examples/{name}.c"), Language::C) else { return };
        let number = count.to_string();
        all_say(run(&["-n", &number], &program, &[]), count, words);
    }
}

const JACOBI: &str = "has what one process computes";
const HISTOGRAM: &str = "has what one process counts";
const TABLE: &str = "finds what one process counts";

#[test]
fn jacobi_in_c_computes_what_one_process_does() {
    example_in_c("jacobi", JACOBI);
}

#[test]
fn a_histogram_in_c_counts_what_one_process_does() {
    example_in_c("histogram", HISTOGRAM);
}

#[test]
fn a_hash_table_in_c_has_what_one_process_has() {
    example_in_c("table", TABLE);
}

/// Not a test of its own: a rank of an example in Rust.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let done = match part.as_str() {
        "jacobi" => jacobi::main(),
        "histogram" => histogram::main(),
        _ => table::main(),
    };
    done.unwrap_or_else(|error| panic!("{error}"));
}

fn example_in_rust(name: &str, words: &str) {
    let this = std::env::current_exe().expect("a test has a file");
    for count in [4, 1] {
        let number = count.to_string();
        let mut command = run(&["-n", &number], &this, &["--exact", "part", "--nocapture"]);
        command.env(PART, name);
        all_say(command, count, words);
    }
}

#[test]
fn jacobi_in_rust_computes_what_one_process_does() {
    example_in_rust("jacobi", JACOBI);
}

#[test]
fn a_histogram_in_rust_counts_what_one_process_does() {
    example_in_rust("histogram", HISTOGRAM);
}

#[test]
fn a_hash_table_in_rust_has_what_one_process_has() {
    example_in_rust("table", TABLE);
}

#[test]
fn a_rank_ends_the_job_and_a_network_that_is_none_is_named() {
    let Some(program) = compile("tests/c/aborts.c", Language::C) else { return };
    let (output, _) = said(&mut run(&["-n", "3"], &program, &[]));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{errors}");
    assert!(errors.contains("rank 1 ends the job: there is no use"), "{errors}");
    for (listen, words) in [("nowhere", "which is no address"), ("gm://x", "unknown scheme 'gm'")] {
        let listen = format!("ROPEWALK_RMA_LISTEN={listen}");
        let (output, _) = said(&mut run(&["-n", "1", "--env", &listen], &program, &[]));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(words), "{errors}");
    }
}
