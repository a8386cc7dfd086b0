//! Programs in C and C++ against the library, as its users write them: both flavours of the interface,
//! the shared object and the archive, over shared memory and TCP.
//!
//! They are in `c/`; each says what is wrong and ends with 1, or says `ok`.

mod common;

use std::process::Command;

use common::{
    ARCHIVE, Build, C, CPP, ORANGEFS, ORANGEFS_CPP, compile, folder, here, is_there, libraries,
    succeed,
};

fn run(sources: &[&str], build: Build, arguments: &[&str]) {
    let Some(program) = compile(sources, build) else { return };
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", folder());
    let output = succeed(&mut command);
    assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
}

#[test]
fn the_interface_keeps_its_promises_in_c() {
    run(&["semantics.c"], C, &["tcp"]);
    run(&["semantics.c"], C, &["shm"]);
    run(&["semantics.c"], C, &["udp"]);
}

#[test]
fn the_interface_keeps_its_promises_in_cpp() {
    run(&["semantics.c"], CPP, &["shm"]);
    run(&["semantics.c"], CPP, &["tcp"]);
}

#[test]
fn layouts_numbers_and_names_are_those_that_programs_were_compiled_with() {
    for build in [C, CPP, ORANGEFS, ORANGEFS_CPP] {
        run(&["layouts.c"], build, &[]);
    }
}

#[test]
fn options_and_calls_that_few_make_do_what_they_say() {
    run(&["options.c"], C, &["tcp"]);
    run(&["options.c"], C, &["tcp6"]);
    run(&["options.c"], CPP, &["shm"]);
    run(&["options.c"], ORANGEFS, &["shm"]);
    run(&["options.c"], ORANGEFS_CPP, &["tcp"]);
}

#[test]
fn the_interface_keeps_its_promises_as_orangefs_has_it() {
    run(&["semantics.c"], ORANGEFS, &["tcp"]);
    run(&["semantics.c"], ORANGEFS, &["shm"]);
    run(&["semantics.c"], ORANGEFS_CPP, &["tcp"]);
}

#[test]
fn the_archive_does_what_the_shared_object_does() {
    run(&["semantics.c"], ARCHIVE, &["tcp"]);
}

#[test]
fn both_flavours_live_in_one_process() {
    run(&["flavours.c", "flavours_server.c"], C, &[]);
}

#[test]
fn threads_get_their_own_completions_and_all_of_them() {
    run(&["threads.c"], C, &["tcp"]);
    run(&["threads.c"], C, &["shm"]);
    run(&["threads.c"], CPP, &["tcp"]);
    run(&["threads.c"], ORANGEFS, &["shm"]);
    run(&["threads.c"], C, &["udp"]);
}

/// Cases of `faults.c`, over each medium.
fn suffer(case: &str) {
    for medium in ["tcp", "shm"] {
        run(&["faults.c"], C, &[case, medium]);
    }
}

/// The same as C++ and with the other flavour, each over one medium.
fn suffer_otherwise(case: &str, cpp: &str, orangefs: &str) {
    run(&["faults.c"], CPP, &[case, cpp]);
    run(&["faults.c"], ORANGEFS, &[case, orangefs]);
}

#[test]
fn operations_fail_once_when_a_peer_dies_and_its_address_works_again_when_it_is_back() {
    suffer("killed");
    suffer_otherwise("killed", "shm", "tcp");
}

#[test]
fn a_second_url_takes_over_at_connect_and_after_a_death() {
    suffer("fail_over");
}

#[test]
fn a_stopped_peer_is_left_by_cancel_and_neighbours_notice_nothing() {
    suffer("stopped");
}

#[test]
fn a_receive_ends_when_the_sender_takes_its_message_back() {
    suffer("taken_back");
    suffer_otherwise("taken_back", "tcp", "shm");
}

#[test]
fn both_sides_may_send_before_they_receive() {
    suffer("ahead");
}

#[test]
fn what_is_under_way_with_a_dropped_address_is_cancelled() {
    suffer("dropped");
}

#[test]
fn a_message_that_nobody_tests_for_ends_one_wait_and_no_more() {
    suffer("classes");
}

#[test]
fn a_child_has_no_library() {
    suffer("forked");
}

#[test]
fn an_address_that_reached_us_lives_as_long_as_its_references() {
    suffer("references");
    suffer_otherwise("references", "shm", "tcp");
}

#[test]
fn a_large_message_that_nobody_takes_stops_nothing_behind_it() {
    suffer("not_blocked");
}

#[test]
fn a_flood_that_nobody_takes_costs_a_bounded_amount_of_memory() {
    suffer("flood");
}

#[test]
fn two_servers_that_connect_to_each_other_at_once_both_get_through() {
    suffer("both_at_once");
}

#[test]
fn a_process_without_descriptors_goes_on_when_there_are_some_again() {
    suffer("few_descriptors");
}

/// Cases of `lives.c`, over each medium.
fn live(case: &str, media: &[&str]) {
    for medium in media {
        run(&["lives.c"], C, &[case, medium]);
    }
}

#[test]
fn nothing_hangs_that_is_posted_for_an_address_that_never_was_or_was_dropped() {
    live("nobody", &["tcp", "shm"]);
    run(&["lives.c"], ORANGEFS, &["nobody", "tcp"]);
}

#[test]
fn a_client_that_closes_its_connection_and_looks_up_again_loses_nothing() {
    live("reconnects", &["tcp", "shm", "udp"]);
    run(&["lives.c"], ORANGEFS, &["reconnects", "tcp"]);
}

#[test]
fn what_comes_late_of_a_former_connection_concerns_nobody() {
    live("late_answers", &["tcp", "shm"]);
    run(&["lives.c"], ORANGEFS, &["late_answers", "tcp"]);
}

#[test]
fn of_several_names_each_is_dropped_alone_and_leads_where_it_says() {
    live("several_names", &["tcp", "shm"]);
    run(&["lives.c"], ORANGEFS, &["several_names", "tcp"]);
    live("names_part", &["tcp"]);
}

#[test]
fn peers_die_and_come_back_as_often_as_they_like() {
    live("deaths", &["tcp", "shm"]);
    live("client_deaths", &["tcp", "shm"]);
    run(&["lives.c"], ORANGEFS, &["deaths", "tcp"]);
}

#[test]
fn an_address_that_was_looked_up_outlives_the_one_that_its_peer_called_us_by() {
    live("both_listen", &["tcp", "shm"]);
    run(&["lives.c"], ORANGEFS, &["both_listen", "tcp"]);
}

#[test]
fn a_server_that_died_while_its_idle_connection_was_closed_is_reached_at_once_when_it_is_back() {
    live("rested", &["tcp"]);
}

#[test]
fn the_library_ends_with_all_that_it_has_and_begins_again() {
    live("lives", &["tcp", "shm", "udp"]);
    run(&["lives.c"], ORANGEFS, &["lives", "tcp"]);
}

#[test]
fn a_buffer_of_no_size_is_the_systems() {
    live("buffers", &["tcp"]);
    run(&["lives.c"], ORANGEFS, &["buffers", "tcp"]);
}

#[test]
fn a_host_that_is_not_listened_at_need_not_exist_and_a_newline_ends_an_address() {
    live("unused_host", &["tcp"]);
    run(&["lives.c"], ORANGEFS, &["unused_host", "tcp"]);
}

/// Cases of `reach.c`, over each medium.
fn reach(case: &str, media: &[&str]) {
    for medium in media {
        run(&["reach.c"], C, &[case, medium]);
    }
}

#[test]
fn receives_from_a_peer_that_cannot_be_reached_end_as_sends_do() {
    reach("deserted", &["tcp", "shm"]);
    run(&["reach.c"], ORANGEFS, &["deserted", "tcp"]);
}

#[test]
fn a_receive_from_a_server_that_has_died_does_not_wait_for_ever() {
    reach("server_gone", &["tcp", "shm"]);
    run(&["reach.c"], ORANGEFS, &["server_gone", "tcp"]);
}

#[test]
fn who_speaks_another_protocol_is_told_from_nobody() {
    reach("strangers", &["tcp"]);
}

#[test]
fn a_path_behind_the_port_is_passed_over() {
    reach("paths", &["tcp"]);
    run(&["reach.c"], ORANGEFS, &["paths", "tcp"]);
}

#[test]
fn contexts_end_with_their_descriptors_also_where_there_are_no_more() {
    run(&["ends.c"], C, &["contexts"]);
}

#[test]
fn memory_of_the_library_ends_with_it() {
    run(&["ends.c"], C, &["memory"]);
}

#[test]
fn a_server_listens_somewhere() {
    run(&["ends.c"], C, &["nowhere"]);
}

#[test]
fn the_longest_unexpected_message_is_no_longer_than_any_message() {
    run(&["ends.c"], C, &["unexpected_size"]);
}

#[test]
fn connections_with_small_buffers_move_on() {
    run(&["ends.c"], C, &["small_buffers"]);
}

/// Both sides, and both ways into the library, with each access to memory watched.
#[test]
#[ignore = "for --deep: runs under valgrind"]
fn no_byte_is_touched_that_is_not_there_or_was_never_written() {
    if !is_there("valgrind") {
        println!("SKIP: there is no valgrind");
        return;
    }
    for build in [C, ORANGEFS] {
        let Some(program) = compile(&["semantics.c"], Build { slow: true, ..build }) else {
            return;
        };
        for medium in ["tcp", "shm"] {
            let mut command = Command::new("valgrind");
            command.args(["--quiet", "--tool=memcheck", "--error-exitcode=99", "--num-callers=30"]);
            // Memory of threads lives until the process ends; memory without any reference is a leak.
            command.args(["--leak-check=full", "--show-leak-kinds=definite"]);
            command.args(["--errors-for-leak-kinds=definite", "--fair-sched=yes"]);
            let known = here().join("tests/c/valgrind.supp");
            command.arg(format!("--suppressions={}", known.display()));
            command.arg(&program).arg(medium).env("LD_LIBRARY_PATH", folder());
            let output = succeed(&mut command);
            assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
        }
    }
}

#[test]
fn the_shared_object_exports_the_interface_and_nothing_else() {
    let object = libraries().join("libbmi.so");
    let output = succeed(Command::new("nm").args(["-D", "--defined-only"]).arg(object));
    let text = String::from_utf8(output.stdout).expect("names are text");
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    names.retain(|name| !name.starts_with("rust_"));
    let strangers: Vec<&&str> =
        names.iter().filter(|name| !name.to_ascii_lowercase().starts_with("bmi_")).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    let declared = std::fs::read_to_string(here().join("include/bmi.h")).expect("the header");
    for name in names.iter().filter(|name| name.starts_with("BMI_")) {
        assert!(declared.contains(&format!("{name}(")), "{name} is not declared");
    }
    assert_eq!(names.len(), 29, "{names:?}");
}
