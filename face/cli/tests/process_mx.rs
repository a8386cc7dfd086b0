//! `ropewalk mx` in a network namespace with virtual cards.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_net::modules;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherPort};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ropewalk");

fn ip(line: &str) -> bool {
    let words = line.split_whitespace();
    let status = Command::new("ip").args(words).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A namespace of its own, in which this thread and what it starts are.
struct Namespace(String);

impl Namespace {
    fn enter(test: &str) -> Option<Namespace> {
        let name = format!("ropewalk-mx-{test}-{}", std::process::id());
        if !ip(&format!("netns add {name}")) {
            println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
            return None;
        }
        let namespace = Namespace(name);
        let file = std::fs::File::open(format!("/run/netns/{}", namespace.0)).expect("its name");
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .expect("this thread may go there");
        Some(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

fn output(mut command: Command) -> String {
    let output = command.output().expect("the program under test can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).expect("text")
}

fn shown(arguments: &[&str]) -> String {
    let mut command = Command::new(PROGRAM);
    command.arg("mx").args(arguments);
    output(command)
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// The objects of a kind.
fn kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

#[test]
fn boards_and_endpoints_are_shown() {
    let Some(_namespace) = Namespace::enter("boards") else { return };
    assert!(ip("link add card0 address 02:00:00:00:00:07 mtu 1500 type veth peer name plug0"));
    assert!(ip("link add card1 mtu 9000 type veth peer name plug1 mtu 9000"));
    for name in ["card0", "plug0", "card1", "plug1"] {
        assert!(name == "plug1" || ip(&format!("link set {name} up")));
    }
    let open = |address: &str| EtherPort::open(&EtherConfig::listening(address).unwrap()).unwrap();
    let (first, second) = (open("card0"), open("card0/9"));

    let all = objects(&shown(&["info", "--json"]));
    let boards = kind(&all, "board");
    let of = |name: &str| *boards.iter().find(|it| it["interface"] == name).expect("a board");
    assert_eq!(boards.len(), 4, "the loopback is none");
    let card = of("card0");
    assert_eq!(
        (&card["address"], &card["nic_id"]),
        (&json!("02:00:00:00:00:07"), &json!(0x0200_0000_0007_u64))
    );
    assert_eq!(
        (&card["mtu"], &card["driver"], &card["endpoints"]),
        (&json!(1500), &json!("veth"), &json!(2))
    );
    assert_eq!(
        (&card["state"], &of("card1")["state"], &of("plug1")["state"]),
        (&json!("up"), &json!("no carrier"), &json!("down"))
    );
    let mut numbers: Vec<Option<u64>> = boards.iter().map(|it| it["board"].as_u64()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [None, Some(0), Some(1), Some(2)]);
    assert_eq!(of("plug1")["board"], Value::Null);

    let advice = kind(&all, "advice");
    let about = |name: &str, topic: &str| {
        advice.iter().any(|it| it["interface"] == name && it["topic"] == topic)
    };
    assert!(about("card0", "MTU") && !about("card1", "MTU"));
    assert!(!advice.iter().any(|it| it["topic"] == "rights"), "it is root's");
    assert_eq!(kind(&all, "host")[0]["cap_net_raw"], true);

    let claims = objects(&shown(&["endpoints", "--json"]));
    let expected = [&first, &second].map(|port| {
        json!({
            "interface": "card0",
            "address": format!("ether://02:00:00:00:00:07/{}", port.endpoint()),
            "scheme": "ether",
            "endpoint": port.endpoint(),
            "process": std::process::id(),
            "program": std::fs::read_to_string("/proc/self/comm").unwrap().trim(),
        })
    });
    assert_eq!(claims, expected);
    let table = shown(&["endpoints"]);
    assert!(table.contains("ether://02:00:00:00:00:07/9") && table.contains("card0"), "{table}");
    drop((first, second));
    assert_eq!(shown(&["endpoints", "--json"]), "", "a claim ends with its endpoint");

    let table = shown(&["info"]);
    assert!(
        table.contains("0x020000000007") && table.contains("ip link set card0 mtu 9000"),
        "{table}"
    );
}

#[test]
fn whoever_lacks_rights_or_boards_is_told_so() {
    let Some(_namespace) = Namespace::enter("rights") else { return };
    assert!(ip("link add card0 type veth peer name plug0"));
    // A plain user, who sees the same files.
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", PROGRAM]);
    command.args(["mx", "info", "--json"]);
    let all = objects(&output(command));
    let topics: Vec<&str> =
        kind(&all, "advice").iter().filter_map(|it| it["topic"].as_str()).collect();
    assert!(topics.contains(&"rights") && topics.contains(&"boards"), "{topics:?}");
    let rights = kind(&all, "advice")[0];
    assert!(rights["problem"].as_str().unwrap().contains("CAP_NET_RAW"));
    assert!(rights["remedy"].as_str().unwrap().contains("udp://"));
}

#[test]
fn peers_are_shown_with_their_names() {
    let Some(_namespace) = Namespace::enter("peers") else { return };
    // Two interfaces of one host that are each other's peers.
    assert!(ip("link add card0 address 02:00:00:00:00:07 type veth peer name card1"));
    assert!(ip("link set card1 address 02:00:00:00:00:08"));
    assert!(ip("link set card0 up") && ip("link set card1 up"));
    let mut command = Command::new(PROGRAM);
    let nobody = command.args(["mx", "peers", "--json"]).output().expect("it can be started");
    assert!(nobody.status.success() && nobody.stdout.is_empty());
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("mxoe://"));
    let open = |address: &str| {
        let listen = modules::Listen::At { address, exactly: true };
        modules::open("mxoe", &listen).expect("it is up")
    };
    let _rails = [open("card0/3"), open("card1/4")];
    let begin = Instant::now();
    let all = loop {
        // The agents may not be there yet, which it says.
        let mut command = Command::new(PROGRAM);
        let output = command.args(["mx", "peers", "--json"]).output().expect("as before");
        let all = objects(&String::from_utf8(output.stdout).expect("text"));
        if all.len() == 4 && all.iter().all(|it| it["name"].is_string() && it["kind"].is_string()) {
            break all;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{all:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let boards = objects(&shown(&["info", "--json"]));
    let name = |interface: &str| {
        let board = boards.iter().find(|it| it["kind"] == "board" && it["interface"] == interface);
        format!("{}:{}", host.trim(), board.expect("a board")["board"])
    };
    for (interface, other, address) in
        [("card0", "card1", "02:00:00:00:00:08"), ("card1", "card0", "02:00:00:00:00:07")]
    {
        let of = |kind: &str| {
            let mut found =
                all.iter().filter(|it| it["interface"] == interface && it["kind"] == kind);
            found.next().unwrap_or_else(|| panic!("{kind} of {interface}: {all:?}"))
        };
        assert_eq!(of("own")["name"], name(interface));
        let peer = of("ropewalk");
        assert_eq!((&peer["address"], &peer["name"]), (&json!(address), &json!(name(other))));
        assert_eq!((&peer["index"], &peer["name_is_shared"]), (&json!(1), &json!(false)));
    }
    let table = shown(&["peers", "--interface", "card0"]);
    assert!(table.contains("0x020000000008") && !table.contains("card1"), "{table}");
}
