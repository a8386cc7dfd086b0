//! Programs in C and C++ against the library, as its users write them: over shared memory, over UDP, and
//! to themselves.
//!
//! They are in `c/`; each says what is wrong and ends with 1, or says `ok`.

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::{OBJECTS, clean, compile, folder, here, run_with, succeed};

fn run(source: &str, compiler: &str, arguments: &[&str]) {
    run_with(source, compiler, "myriexpress", arguments);
}

/// Over both media, and as C++ over one of them.
fn run_all(source: &str) {
    run(source, "gcc", &["shm"]);
    run(source, "gcc", &["udp"]);
    run(source, "g++", &["shm"]);
}

#[test]
fn calls_keep_their_promises() {
    run_all("semantics.c");
    run("semantics.c", "g++", &["udp"]);
}

#[test]
fn handlers_are_called_within_calls_and_their_answers_count() {
    run_all("handlers.c");
}

#[test]
fn synchronous_sends_are_complete_when_they_are_matched_and_show_nothing_before() {
    run_all("synchronous.c");
}

#[test]
fn connects_are_answered_refused_and_timed_out_and_peers_that_go_are_noticed() {
    run("connect.c", "gcc", &["shm"]);
    run("connect.c", "g++", &["shm"]);
}

#[test]
fn peers_that_go_silently_are_noticed_too() {
    run("connect.c", "gcc", &["udp"]);
}

#[test]
fn threads_get_their_own_completions_and_all_of_them() {
    run_all("threads.c");
}

#[test]
fn keys_are_judged_beside_a_connection() {
    run_all("keys.c");
}

#[test]
fn context_numbers_keep_completions_apart() {
    run_all("contexts.c");
}

#[test]
fn what_was_reported_as_sent_arrives_though_its_sender_ends() {
    run_all("closing.c");
}

#[test]
fn endpoints_come_and_go_and_programs_do_not_always_call() {
    run_all("lives.c");
}

#[test]
fn children_have_a_library_where_their_parents_have_none() {
    run_all("forks.c");
    let Some(program) = compile("forks.c", "gcc", "myriexpress") else { return };
    let output = succeed(&mut clean(&program, &["shm"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("forked after mx_init").count(), 3, "{said}");
}

#[test]
fn users_share_no_memory_and_are_told_so_and_may_share_a_network() {
    for (compiler, words, why) in [
        ("gcc", "shared", "belongs to another user (0)"),
        ("g++", "shared", "belongs to another user (0)"),
        ("gcc", "untraced", "cannot share memory with this process"),
        ("gcc", "apart", "no memory"),
    ] {
        let Some(program) = compile("users.c", compiler, "myriexpress") else { return };
        let output = succeed(&mut clean(&program, &[words]));
        let said = String::from_utf8_lossy(&output.stderr);
        if output.stdout.starts_with(b"SKIP: ") {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        assert!(output.stdout.ends_with(b"ok\n"), "{words}: {said}");
        assert_eq!(said.matches(why).count(), usize::from(words != "apart"), "{said}");
    }
}

#[test]
fn programs_end_the_library_when_they_have_ended() {
    run("atexit.c", "gcc", &[]);
}

#[test]
fn one_process_finds_its_boards_and_itself() {
    run("alone.c", "gcc", &[]);
    run("alone.c", "g++", &[]);
}

#[test]
fn an_endpoint_without_a_descriptor_for_it_is_one_for_which_there_are_no_resources() {
    run("crowded.c", "gcc", &["shm"]);
    run("crowded.c", "gcc", &["udp"]);
    let Some(program) = compile("crowded.c", "gcc", "myriexpress") else { return };
    let output = succeed(&mut clean(&program, &["udp"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.lines().count() > 10, "each says why: {said}");
    assert!(said.lines().all(|line| line.contains("Too many open files")), "{said}");
}

#[test]
fn the_environment_decides_what_it_says() {
    run("variables.c", "gcc", &[]);
}

#[test]
fn native_functions_keep_their_promises() {
    run_with("native.c", "gcc", "open-mx", &[]);
    run_with("native.c", "g++", "open-mx", &[]);
    run_with("native.c", "gcc", "myriexpress", &[]);
}

#[test]
fn boards_and_counters_are_told_by_the_keys_of_open_mx_and_of_mx() {
    run_with("information.c", "gcc", "open-mx", &[]);
    run_with("information.c", "g++", "myriexpress", &[]);
}

#[test]
fn layouts_and_numbers_are_those_that_programs_were_compiled_with() {
    run("layouts.c", "gcc", &[]);
    run("layouts.c", "g++", &[]);
}

#[test]
fn errors_end_a_program_that_has_no_handler() {
    let Some(program) = compile("fatal.c", "gcc", "myriexpress") else { return };
    let boards = "udp://127.0.0.1:12000";
    let end = |argument, fatal| {
        let mut command = clean(&program, &[argument]);
        let output = command
            .env("ROPEWALK_MX_BOARDS", boards)
            .env("OMX_FATAL_ERRORS", fatal)
            .output()
            .expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    // Before initialize nothing says otherwise.
    for (argument, fatal, words) in
        [("before", "0", "not initialized"), ("after", "1", "no board of this number")]
    {
        let (code, said) = end(argument, fatal);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(end("after", "0"), (Some(0), String::new()));
}

/// Names with their versions, functions first, as `nm` shows them.
fn exported(object: &str) -> BTreeSet<String> {
    let object = folder().join(object);
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only", "--with-symbol-versions"]).arg(object);
    let text = String::from_utf8(succeed(&mut command).stdout).expect("names are text");
    let names = text.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.map(str::to_string).collect()
}

#[test]
fn symbols_have_the_versions_that_programs_were_linked_with_and_nothing_else_is_there() {
    let versioned = [
        ("MX_0.9", &["mx_open_endpoint", "mx_decompose_endpoint_addr"][..]),
        ("MX_0.91", &["mx_get_info", "mx_test", "mx_wait", "mx_iprobe"]),
        ("MX_0.92", &["mx__init_api"]),
    ];
    for (name, _) in OBJECTS {
        let mut names = exported(name);
        for (version, of_it) in versioned {
            assert!(names.remove(version), "{name}: {version} is defined");
            for function in of_it {
                assert!(names.remove(&format!("{function}@@{version}")), "{name}: {function}");
            }
        }
        let strangers: Vec<&String> = names
            .iter()
            .filter(|it| {
                it.contains('@')
                    || !["mx_", "omx_", "MX_ERRORS_", "OMX_ERRORS_"]
                        .iter()
                        .any(|begin| it.starts_with(begin))
            })
            .collect();
        assert!(strangers.is_empty(), "{name}: {strangers:?}");
        let mut command = Command::new("readelf");
        let output = succeed(command.arg("-dW").arg(folder().join(name)));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("Library soname: [{name}]")), "{text}");
    }
}

#[test]
fn what_the_headers_declare_is_there() {
    let names = exported(OBJECTS[0].0);
    let has = |function: &str| {
        names.iter().any(|name| name.split('@').next().is_some_and(|name| name == function))
    };
    let mut count = 0;
    for header in ["myriexpress.h", "mx_io.h", "mx_raw.h", "open-mx.h", "omx_raw.h"] {
        let text = std::fs::read_to_string(here().join("include").join(header)).expect("a header");
        // A function is declared at the beginning of a line, and its name ends with a bracket.
        let lines = text.lines().filter(|line| line.starts_with(|it: char| it.is_alphabetic()));
        let is_call = |line: &&str| !line.starts_with("typedef") && !line.starts_with("static");
        let calls = lines.filter(is_call).filter_map(|line| {
            let name = line.split('(').next()?.split([' ', '*']).next_back()?;
            let is_name = name.starts_with("mx_") || name.starts_with("omx_");
            (line.contains('(') && is_name).then_some(name)
        });
        for call in calls {
            assert!(has(call), "{header} declares {call}");
            count += 1;
        }
    }
    assert!(count > 100, "{count} functions are declared");
    for data in ["ERRORS_ARE_FATAL", "ERRORS_RETURN"] {
        assert!(has(&format!("MX_{data}")) && has(&format!("OMX_{data}")));
    }
}
