//! Programs in C over raw Ethernet frames: two cards that are joined, in a network namespace, or in one each.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{clean, compile, succeed};

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}

/// A namespace with the cards `one` and `two`, of which the second may be in another one.
struct Namespace {
    name: String,
    far: Option<String>,
}

impl Namespace {
    /// `None`, with the reason on the standard output, if this machine does not allow it.
    fn make() -> Option<Namespace> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ropewalk-mx-{}-{number}", std::process::id());
        if !ip(&format!("netns add {name}")) {
            println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
            return None;
        }
        let namespace = Namespace { name, far: None };
        let name = &namespace.name;
        assert!(ip(&format!("-n {name} link set lo up")));
        assert!(ip(&format!("-n {name} link add one type veth peer name two")));
        assert!(ip(&format!("-n {name} link set one up")));
        assert!(ip(&format!("-n {name} link set two up")));
        Some(namespace)
    }

    /// The second card is in a namespace of its own, which nothing but the cards joins with the first one's.
    fn make_two() -> Option<Namespace> {
        let mut namespace = Namespace::make()?;
        let far = format!("{}-far", namespace.name);
        assert!(ip(&format!("netns add {far}")));
        let name = &namespace.name;
        assert!(ip(&format!("-n {name} link set two netns {far}")));
        assert!(
            ip(&format!("-n {far} link set lo up")) && ip(&format!("-n {far} link set two up"))
        );
        namespace.far = Some(far);
        Some(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        for name in self.far.iter().chain([&self.name]) {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn programs_reach_each_other_by_frames_alone() {
    let Some(namespace) = Namespace::make() else { return };
    let sources =
        ["semantics.c", "handlers.c", "threads.c", "contexts.c", "closing.c", "keys.c", "forks.c"];
    for source in sources {
        run(&namespace, source, "ether://one", "ether://two");
    }
}

#[test]
fn programs_reach_each_other_as_hosts_with_open_mx_do() {
    let Some(namespace) = Namespace::make() else { return };
    let sources = [
        "semantics.c",
        "synchronous.c",
        "threads.c",
        "contexts.c",
        "closing.c",
        "names.c",
        "keys.c",
        "forks.c",
    ];
    for source in sources {
        run(&namespace, source, "mxoe://one?ours=mxoe", "mxoe://two?ours=mxoe");
    }
}

#[test]
fn hosts_of_ours_speak_their_own_language_where_mxoe_is_spoken_with_others() {
    let Some(namespace) = Namespace::make() else { return };
    let sources = [
        "semantics.c",
        "synchronous.c",
        "handlers.c",
        "threads.c",
        "contexts.c",
        "closing.c",
        "keys.c",
    ];
    for source in sources {
        run(&namespace, source, "mxoe://one", "mxoe://two");
    }
    // An endpoint that hears MXoE alone is found out, and nobody who calls others so.
    for (one, two) in
        [("mxoe://one?ours=mxoe", "mxoe://two"), ("mxoe://one", "mxoe://two?ours=mxoe")]
    {
        run(&namespace, "semantics.c", one, two);
        run(&namespace, "crossing.c", one, two);
    }
}

#[test]
fn messages_stay_in_order_whoever_hears_of_whom_first() {
    let Some(namespace) = Namespace::make() else { return };
    // The agents begin with the program, and their beacons cross its connects.
    for _ in 0..6 {
        run(&namespace, "crossing.c", "mxoe://one", "mxoe://two");
    }
    run_so(&namespace, "crossing.c", &["closed"], "mxoe://one", "mxoe://two");
}

#[test]
fn who_is_in_no_table_is_reached_where_mxoe_is_spoken() {
    let Some(namespace) = Namespace::make() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("peers");
    std::fs::write(&table, "somebody:0 02:00:00:00:00:99\n").expect("the table");
    let Some(mut command) = command(&namespace, "names.c", &[], "mxoe://one", "mxoe://two") else {
        return;
    };
    let output = succeed(command.env("ROPEWALK_MX_PEERS", &table));
    assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
}

#[test]
fn programs_that_have_just_begun_find_who_is_there_and_learn_who_is_not() {
    let Some(namespace) = Namespace::make_two() else { return };
    run(&namespace, "resolving.c", "mxoe://one", "mxoe://two");
}

#[test]
fn an_agents_name_that_a_stranger_holds_is_told_of_and_not_believed() {
    let Some(namespace) = Namespace::make_two() else { return };
    let said = run(&namespace, "strangers.c", "mxoe://one", "mxoe://two");
    let Some(said) = said else { return };
    let why = "a program of user 65534, who is neither root nor this user, has the socket name of the agent";
    assert_eq!(said.matches(why).count(), 1, "{said}");
    let why = "a program of user 65534, who is neither root nor this user, holds the name of endpoint 5 of one";
    assert_eq!(said.matches(why).count(), 1, "{said}");
}

#[test]
fn handlers_are_asked_where_hosts_speak_as_open_mx_does() {
    let Some(namespace) = Namespace::make_two() else { return };
    run(&namespace, "handlers.c", "mxoe://one?ours=mxoe", "mxoe://two?ours=mxoe");
}

#[test]
fn hosts_connect_and_refuse_each_other_by_frames_and_peers_that_go_are_noticed() {
    let Some(namespace) = Namespace::make_two() else { return };
    run(&namespace, "connect.c", "ether://one", "ether://two");
}

#[test]
fn receives_end_with_their_time_out_where_their_sender_stops() {
    let Some(namespace) = Namespace::make_two() else { return };
    run(&namespace, "stalled.c", "mxoe://one?ours=mxoe", "mxoe://two?ours=mxoe");
    run(&namespace, "stalled.c", "ether://one", "ether://two");
}

#[test]
fn an_interface_that_takes_shorter_frames_than_the_wire_is_told_of_once_and_nothing_hangs() {
    let Some(namespace) = Namespace::make_two() else { return };
    let said = run(&namespace, "narrow.c", "mxoe://one?ours=mxoe", "mxoe://two?ours=mxoe");
    let Some(said) = said else { return };
    assert_eq!(said.matches("too small for frames of 1500 bytes").count(), 1, "{said}");
    assert!(
        said.contains("the MTU of one is") && said.contains("ip link set one mtu 1486"),
        "{said}"
    );
}

#[test]
fn what_hosts_with_open_mx_say_of_their_endpoints_is_told() {
    let Some(namespace) = Namespace::make() else { return };
    run(&namespace, "foreign.c", "mxoe://one?ours=mxoe", "mxoe://two?ours=mxoe");
}

/// The output and the standard error of a program that opens an endpoint on these boards.
fn opened(namespace: &Namespace, boards: &str) -> Option<(String, String)> {
    opened_with(namespace, boards, &[])
}

fn opened_with(
    namespace: &Namespace,
    boards: &str,
    more: &[(&str, &str)],
) -> Option<(String, String)> {
    let program = compile("boards.c", "gcc", "myriexpress")?;
    let mut command = clean("ip".as_ref(), &["netns", "exec", &namespace.name]);
    command.arg(program).env("ROPEWALK_MX_BOARDS", boards).env("MX_ERRORS_ARE_FATAL", "0");
    command.env("OMX_VERBOSE", "1").env("OMX_WAITSPIN", "1").env("MX_RCACHE", "");
    command.envs(more.iter().copied());
    let output = command.output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
    Some((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn boards_that_cannot_be_are_told_at_once_and_why_once() {
    let Some(namespace) = Namespace::make() else { return };
    for (boards, why) in [
        ("ether://one?socket=banana", "socket=banana"),
        ("mxoe://one?frame=10", "frame=10"),
        ("mxoe://one?frame=9000", "do not fit"),
        ("ether://two,ether://none", "there is no interface none"),
        ("mxoe://lo", "is not an Ethernet interface"),
        (",", "is not a board"),
        ("tcp://10.0.0.1", "is not a board"),
    ] {
        let Some((told, said)) = opened(&namespace, boards) else { return };
        // Before there is a library every error ends the program.
        assert_eq!(told, "", "{boards}: {said}");
        assert!(said.contains(why) && said.contains("ROPEWALK_MX_BOARDS"), "{boards}: {said}");
    }
    let Some((told, said)) = opened(&namespace, "ether://one?socket=packet,mxoe://two") else {
        return;
    };
    assert_eq!(told, "init 0\nopen 0", "{said}");
    assert!(said.contains("OMX_WAITSPIN is ignored") && !said.contains("MX_RCACHE"), "{said}");
    // It is there, and cannot be used: all its endpoints alike.
    assert!(ip(&format!("-n {} link set one down", namespace.name)));
    let Some((told, said)) = opened(&namespace, "ether://one") else { return };
    assert_eq!(told.lines().next(), Some("init 0"));
    assert!(!told.contains("open 0"), "{told}");
    assert_eq!(said.matches("is down").count(), 1, "{said}");
    // Another board may do.
    let both = opened(&namespace, "ether://one,ether://two").map(|it| it.0);
    assert_eq!(both.as_deref(), Some("init 0\nopen 0"));
}

#[test]
fn boards_are_next_to_the_memory_that_the_kernel_says() {
    let Some(namespace) = Namespace::make() else { return };
    let Some(program) = compile("nodes.c", "gcc", "myriexpress") else { return };
    // Virtual cards are no devices: the kernel's information about other cards is put in its usual place, for
    // this program alone.
    let script = "mount -t tmpfs none /sys/class/net && cd /sys/class/net \
                  && mkdir -p one/device two/device && echo 3 > one/device/numa_node \
                  && echo -1 > two/device/numa_node && exec \"$0\"";
    let mut command = clean("ip".as_ref(), &["netns", "exec", &namespace.name, "sh", "-c", script]);
    let boards = "ether://one,ether://two,udp://127.0.0.1:12000";
    let output = succeed(command.arg(program).env("ROPEWALK_MX_BOARDS", boards));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3\n4294967295\n4294967295\n");
}

#[test]
fn a_fault_in_a_file_or_a_variable_is_told_with_its_name() {
    let Some(namespace) = Namespace::make() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let table = folder.path().join("peers");
    std::fs::write(&table, "node2\n").expect("the table");
    let path = table.to_str().expect("text");
    let with = |variable, value| opened_with(&namespace, "ether://one", &[(variable, value)]);
    let Some((told, said)) = with("ROPEWALK_MX_PEERS", path) else { return };
    assert_eq!(told, "", "{said}");
    assert!(said.contains(&format!("ROPEWALK_MX_PEERS: {path}: line 1: give a name")), "{said}");
    let Some((told, said)) = with("ROPEWALK_ETHER", "banana") else { return };
    assert_eq!(told.lines().next(), Some("init 0"));
    assert!(!told.contains("open 0") && said.contains("ROPEWALK_ETHER: 'banana'"), "{said}");
}

/// Runs a program with two sides, each of which has one of these boards; returns its standard error.
fn run(namespace: &Namespace, source: &str, one: &str, two: &str) -> Option<String> {
    run_so(namespace, source, &[], one, two)
}

fn command(
    namespace: &Namespace,
    source: &str,
    more: &[&str],
    one: &str,
    two: &str,
) -> Option<Command> {
    let program = compile(source, "gcc", "myriexpress")?;
    let mut command = clean("ip".as_ref(), &["netns", "exec", &namespace.name]);
    command.arg(program).arg("ether").args(more).env("ETHER_ONE", one).env("ETHER_TWO", two);
    if let Some(far) = &namespace.far {
        command.env("ETHER_TWO_NAMESPACE", format!("/run/netns/{far}"));
    }
    Some(command)
}

fn run_so(
    namespace: &Namespace,
    source: &str,
    more: &[&str],
    one: &str,
    two: &str,
) -> Option<String> {
    let mut command = command(namespace, source, more, one, two)?;
    let output = succeed(&mut command);
    assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}
