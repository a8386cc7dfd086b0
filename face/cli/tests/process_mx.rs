//! `ropewalk mx` in a network namespace with virtual cards.

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use ropewalk_host_mx::module::register;
use ropewalk_host_mx::raw::RawEndpoint;
use ropewalk_net::modules;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherPort, SocketKind, Sockets, bare};
use ropewalk_wire::mxoe::{
    Dialect, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, HEADER_BYTES_MAX, Message, Order, Packet,
    Sequence,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use support::{PROGRAM, Process};

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
    let sockets = Sockets { kind: SocketKind::Xdp, ..Sockets::default() };
    let by_xdp = EtherConfig { sockets, ..EtherConfig::listening("card1").unwrap() };
    let by_xdp = EtherPort::open(&by_xdp).unwrap();

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
    assert_eq!((&of("card1")["xdp_queue"], &card["xdp_queue"]), (&json!(0), &Value::Null));
    let table = shown(&["info"]);
    assert!(table.contains("AF_XDP") && table.contains("queue 0"), "{table}");
    drop(by_xdp);
    assert!(!shown(&["info"]).contains("queue 0"), "its name ends with it");

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
    assert_eq!(shown(&["endpoints"]), "no endpoint is open on this host's interfaces\n");
    let peers = Command::new(PROGRAM).args(["mx", "peers"]).output().expect("it runs");
    assert_eq!(peers.stdout, b"", "a message says that nobody looks");

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
    // The board that programs have meanwhile.
    let board = kind(&all, "board")[0];
    assert_eq!((&board["board"], &board["interface"]), (&json!(0), &Value::Null));
    assert!(board["url"].as_str().unwrap().starts_with("udp://"), "{board}");
}

/// Boards as the list of this name says, and what is said of them.
fn listed(list: &str) -> (Vec<(Value, String)>, Vec<String>) {
    let mut command = Command::new(PROGRAM);
    command.args(["mx", "info", "--json"]).env("ROPEWALK_MX_BOARDS", list);
    let all = objects(&output(command));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let boards = kind(&all, "board").into_iter().map(|it| (it["board"].clone(), text(&it["url"])));
    let lists = kind(&all, "advice").into_iter().filter(|it| it["topic"] == "list");
    (boards.collect(), lists.map(|it| text(&it["problem"])).collect())
}

#[test]
fn boards_are_those_that_programs_have() {
    let Some(_namespace) = Namespace::enter("list") else { return };
    assert!(ip("link add card0 type veth peer name card1"));
    assert!(ip("link set card0 up") && ip("link set card1 up"));
    let (boards, why) = listed("udp://10.0.0.1:7200,mxoe://card1?frame=1500");
    let url = |number: Value, url: &str| (number, url.to_string());
    let expected = [
        url(json!(0), "udp://10.0.0.1:7200"),
        url(json!(1), "mxoe://card1?frame=1500"),
        url(Value::Null, "ether://card0"),
    ];
    assert_eq!((boards.as_slice(), why.len()), (&expected[..], 0));
    let (boards, why) = listed("ether://card7");
    assert!(boards.iter().all(|it| it.0 == Value::Null), "{boards:?}");
    assert!(why.len() == 1 && why[0].contains("card7"), "{why:?}");
}

#[test]
fn how_mxoe_is_spoken_is_shown_and_left_to_all_hosts() {
    let Some(_namespace) = Namespace::enter("dialect") else { return };
    cards();
    assert!(ip("link add card2 type veth peer name card3") && ip("link set card2 up"));
    let info = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let list = "mxoe://card0?frame=1400&order=little&socket=packet,mxoe://card1,ether://card2";
        command.args(["mx", "info"]).args(arguments).env("ROPEWALK_MX_BOARDS", list);
        output(command)
    };
    let all = objects(&info(&["--json"]));
    let boards = kind(&all, "board");
    let spoken = |number: usize| {
        ["frame_bytes", "order", "mode", "url"].map(|name| boards[number][name].clone())
    };
    let said = "mxoe://card0?frame=1400&order=little&socket=packet";
    assert_eq!(spoken(0), [json!(1400), json!("little"), json!("native"), json!(said)]);
    assert_eq!(spoken(1), [json!(1500), json!("big"), json!("native"), json!("mxoe://card1")]);
    assert_eq!(spoken(2)[..3], [Value::Null, Value::Null, Value::Null]);
    let advice = kind(&all, "advice");
    let of: Vec<&Value> =
        advice.iter().filter(|it| it["topic"] == "MTU").map(|it| &it["interface"]).collect();
    assert_eq!(of, ["card2"]);
    let table = info(&[]);
    assert!(table.contains("frame 1400, little, native"), "{table}");
    assert!(table.contains("frame 1500, big, native"), "{table}");
}

#[test]
fn what_is_wrong_with_the_environment_is_told_with_what_to_mend() {
    let Some(_namespace) = Namespace::enter("faults") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let bad = folder.path().join("peers");
    std::fs::write(&bad, "node1:0 02:00:00:00:00:01\nnode2\n").expect("the table");
    let told = |variable: &str, value: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["mx", "info", "--json"]).env(variable, value);
        let all = objects(&output(command));
        let about = |it: &&&Value| it["problem"].as_str().unwrap().starts_with(variable);
        let advice = kind(&all, "advice");
        let found = advice.iter().find(about).unwrap_or_else(|| panic!("{value}: {advice:?}"));
        ["topic", "problem", "remedy"].map(|name| found[name].as_str().unwrap().to_string())
    };
    for (path, why) in [(bad.to_str().expect("text"), "line 2"), ("/nowhere/peers", "No such")] {
        let [topic, problem, remedy] = told("ROPEWALK_MX_PEERS", path);
        assert!(problem.contains(path) && problem.contains(why), "{problem}");
        assert!(topic == "peers" && remedy.contains("without ROPEWALK_MX_PEERS"), "{remedy}");
    }
    let [topic, problem, remedy] = told("ROPEWALK_ETHER", "banana");
    assert!(problem.contains("'banana'") && problem.contains("socket=packet"), "{problem}");
    assert!(topic == "sockets" && remedy.contains("without ROPEWALK_ETHER"), "{remedy}");
}

#[test]
fn peers_are_shown_with_their_names() {
    let Some(_namespace) = Namespace::enter("peers") else { return };
    cards();
    let mut command = Command::new(PROGRAM);
    let nobody = command.args(["mx", "peers", "--json"]).output().expect("it can be started");
    assert!(nobody.status.success() && nobody.stdout.is_empty());
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("mxoe://"));
    let open = |address: &str| {
        register();
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

#[test]
fn hosts_of_another_byte_order_are_told_of() {
    let Some(_namespace) = Namespace::enter("order") else { return };
    cards();
    let open = |address: &str| {
        register();
        let listen = modules::Listen::At { address, exactly: true };
        modules::open("mxoe", &listen).expect("it is up")
    };
    let _rails = [open("card0/3?order=little"), open("card1/4")];
    let begin = Instant::now();
    loop {
        let mut command = Command::new(PROGRAM);
        // The boards that programs would have now are not the boards in use.
        command.args(["mx", "info", "--json"]).env("ROPEWALK_MX_BOARDS", "mxoe://card0");
        let all = objects(&output(command));
        let advice = kind(&all, "advice");
        let of = |interface: &str| {
            let found = advice
                .iter()
                .find(|it| it["topic"] == "byte order" && it["interface"] == interface);
            found.map(|it| it["remedy"].as_str().unwrap())
        };
        if let (Some(little), Some(big)) = (of("card0"), of("card1")) {
            assert!(little.contains("order=big") && big.contains("order=little"), "{advice:?}");
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{all:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let all = objects(&shown(&["peers", "--json"]));
    let kinds: Vec<&Value> = all.iter().map(|it| &it["kind"]).collect();
    assert_eq!(kinds, ["own", "other byte order", "own", "other byte order"]);
    assert!(all.iter().all(|it| it["name"].is_string() == (it["kind"] == "own")), "{all:?}");
}

#[test]
fn what_a_mapper_says_is_shown() {
    let Some(_namespace) = Namespace::enter("mapper") else { return };
    cards();
    let mapper = RawEndpoint::open("card0").expect("it is up");
    mapper.add_peer(0x0200_0000_1234, Some("switch:7")).expect("this is root");
    mapper.set_name("mapper:0").expect("this is root");
    let all = objects(&shown(&["peers", "--json"]));
    let of = |name: &str| all.iter().find(|it| it["name"] == name).expect("it was said").clone();
    assert_eq!(of("switch:7")["address"], "02:00:00:00:12:34");
    assert_eq!(of("switch:7")["kind"], Value::Null, "nothing was heard of it");
    assert_eq!((&of("mapper:0")["kind"], all.len()), (&json!("own"), 2));
    mapper.remove_peer(0x0200_0000_1234).expect("this is root");
    assert_eq!(objects(&shown(&["peers", "--json"])).len(), 1);
    // It is an endpoint as others are, and tells what it counts.
    mapper.send(&[0; 60], Some(7)).expect("it is up");
    let claims = objects(&shown(&["endpoints", "--json"]));
    assert_eq!((&claims[0]["scheme"], &claims[0]["endpoint"]), (&json!("mxoe"), &json!(255)));
    let all = objects(&shown(&["counters", "card0", "--json"]));
    let counters = &kind(&all, "endpoint")[0]["counters"];
    assert_eq!(
        (&counters["packets.sent"], &counters["dropped.inbox_full"]),
        (&json!(1), &json!(0))
    );
    let page = include_str!("../../mx/man/mx.7");
    let counters = counters.as_object().expect("it tells");
    let missing: Vec<_> = counters.keys().filter(|name| !page.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "mx(7) does not describe {missing:?}");
}

/// Two interfaces of one host that are each other's peers.
fn cards() {
    assert!(ip("link add card0 address 02:00:00:00:00:07 type veth peer name card1"));
    assert!(ip("link set card1 address 02:00:00:00:00:08"));
    assert!(ip("link set card0 up") && ip("link set card1 up"));
}

/// Somebody at the first card who says what no partner says.
struct Stranger(OwnedFd);

impl Stranger {
    fn new() -> Stranger {
        Stranger(bare::frames_of("card0", ETHERTYPE).expect("root may"))
    }

    /// A message for an endpoint of the second card, with so many bytes of it, as the change wants it.
    fn says(&self, to: u8, bytes: usize, change: impl Fn(&mut [u8])) {
        let message = Message {
            to,
            from: 9,
            session: 0x1234,
            sequence: Sequence::new(0, 1),
            acknowledged: Sequence::new(0, 1),
            match_info: 0,
        };
        let dialect = Dialect::native(1500, Order::Big).expect("it is usual");
        let mut header = [0; HEADER_BYTES_MAX];
        let len = Packet::Small(message, &[0; 100]).emit(0, dialect, &mut header);
        let (destination, source) = ("02:00:00:00:00:08", "02:00:00:00:00:07");
        let ethernet = Ethernet {
            destination: destination.parse().unwrap(),
            source: source.parse().unwrap(),
            ethertype: ETHERTYPE,
        };
        let mut body = [&header[..len], &vec![0; bytes][..]].concat();
        change(&mut body);
        let mut frame = [&ethernet.to_bytes()[..], &body].concat();
        frame.resize(frame.len().max(FRAME_BYTES_MIN), 0);
        rustix::io::write(&self.0, &frame).expect("the card is up");
    }
}

#[test]
fn an_interface_that_goes_down_is_named_and_who_waits_at_one_that_is_gone_ends() {
    let Some(_namespace) = Namespace::enter("down") else { return };
    cards();
    let start = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(["mx", "perf"]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program under test can be started")
    };
    let mut waits = start(&["--board", "ether://card1/4"]);
    until_said(&mut BufReader::new(waits.stdout.take().expect("it was asked for")), "waiting at");
    let to = "ether://02:00:00:00:00:08/4";
    let mut client =
        start(&["--board", "ether://card0", "--to", to, "--sizes", "0", "--rounds", "10000000"]);
    let mut said = BufReader::new(client.stderr.take().expect("it was asked for"));
    until_said(&mut said, "rounds");
    assert!(ip("link set card0 down"));
    until_said(&mut said, "the interface card0 is down");
    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    client.wait().expect("it was asked to");
    assert!(ip("link del card0"), "and with it the other one");
    let output = waits.wait_with_output().expect("it ends by itself");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the interface was removed"), "{said}");
}

/// Reads lines until one has this in it.
fn until_said(lines: &mut impl BufRead, wanted: &str) {
    let mut line = String::new();
    while !line.contains(wanted) {
        line.clear();
        assert!(lines.read_line(&mut line).expect("text") > 0, "it ended without '{wanted}'");
    }
}

/// The packets that a source dropped, by reason.
fn dropped(object: &Value) -> BTreeMap<&str, u64> {
    let all = object["counters"].as_object().expect("it tells");
    let reasons = all.iter().filter_map(|(name, count)| {
        Some((name.strip_prefix("dropped.")?, count.as_u64().filter(|count| *count > 0)?))
    });
    reasons.collect()
}

#[test]
fn counters_tell_what_was_dropped_and_why() {
    let Some(_namespace) = Namespace::enter("counters") else { return };
    cards();
    let mut waits = Process::start(&["mx", "perf", "--board", "mxoe://card1/4"], "waiting at");
    let begin = Instant::now();
    // An agent that answers looks away from what is for the endpoint.
    while kind(&objects(&shown(&["counters", "card1", "--json"])), "agent").is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no agent");
        std::thread::sleep(Duration::from_millis(20));
    }
    let stranger = Stranger::new();
    (0..3).for_each(|_| stranger.says(4, 100, |_| ()));
    (0..2).for_each(|_| stranger.says(4, 60, |_| ()));
    // No packet is of that type.
    (0..4).for_each(|_| stranger.says(4, 100, |body| body[2] = 0x3e));
    (0..5).for_each(|_| stranger.says(9, 100, |_| ()));
    let all = loop {
        let all = objects(&shown(&["counters", "card1", "--json"]));
        let told = |kind: &str| all.iter().find(|it| it["kind"] == kind);
        let is_over = told("endpoint").is_some_and(|it| dropped(it).len() == 2)
            && told("socket").is_some_and(|it| dropped(it).len() == 1)
            && told("agent").is_some_and(|it| it["counters"]["nacks.sent"] == 5);
        if is_over {
            break all;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{all:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let one = |name: &str| {
        let found = kind(&all, name);
        assert_eq!(found.len(), 1, "{all:?}");
        found[0]
    };
    let reasons = |object| dropped(object).into_iter().collect::<Vec<_>>();
    let endpoint = one("endpoint");
    assert_eq!(reasons(endpoint), [("wrong_length", 2), ("wrong_session", 3)]);
    assert_eq!(endpoint["counters"]["nacks.sent"], 3, "a session that is over is said to be");
    assert_eq!(reasons(one("socket")), [("wrong_type", 4)]);
    assert_eq!(reasons(one("agent")), [("no_endpoint", 5)]);
    let process = waits.pid().as_raw_nonzero().get();
    assert_eq!(
        (&endpoint["endpoint"], &endpoint["scheme"], &endpoint["process"], &endpoint["interface"]),
        (&json!(4), &json!("mxoe"), &json!(process), &json!("card1"))
    );
    let interface = one("interface")["counters"]["packets.received"].as_u64().unwrap();
    assert!(interface >= 14, "{interface}");
    let table = shown(&["counters", "card1"]);
    assert!(table.contains("dropped.wrong_session") && !table.contains("dropped.checksum"));
    // A plain user sees that there is an endpoint, and is told nothing.
    let mut plain = Command::new("setpriv");
    plain.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", PROGRAM]);
    plain.args(["mx", "counters", "card1", "--json"]);
    assert_eq!(kind(&objects(&output(plain)), "endpoint")[0]["counters"], Value::Null);
    let page = include_str!("../../mx/man/mx.7");
    for counters in all.iter().filter_map(|it| it["counters"].as_object()) {
        let missing: Vec<_> =
            counters.keys().filter(|name| !page.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "mx(7) does not describe {missing:?}");
    }
    // From one look to the next nothing was dropped.
    let watch = ["mx", "counters", "card1", "--watch", "0.2", "--json"];
    let mut watch = Process::start(&watch, "dropped.wrong_session\":0");
    assert!(watch.line.contains("seconds"), "{}", watch.line);
    watch.stop();
    waits.stop();
}

#[test]
fn who_does_not_tell_is_named_and_no_interface_is_an_error() {
    let Some(_namespace) = Namespace::enter("silent") else { return };
    cards();
    // A number that somebody has, and nobody behind it who could be asked.
    let _port = EtherPort::open(&EtherConfig::listening("card1/9").unwrap()).unwrap();
    let all = objects(&shown(&["counters", "card1", "--json"]));
    let endpoint = kind(&all, "endpoint")[0];
    assert_eq!((&endpoint["endpoint"], &endpoint["counters"]), (&json!(9), &Value::Null));
    let said = |arguments: &[&str]| {
        let output = Command::new(PROGRAM).arg("mx").args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let (good, text) = said(&["counters", "card1"]);
    assert!(good && text.contains("ether 9") && text.contains("no counters of "), "{text}");
    let (good, text) = said(&["counters", "card7"]);
    assert!(!good && text.contains("card7") && text.contains("ip link"), "{text}");
}

/// The client's objects, and what it says besides.
fn measured(to: &str, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["mx", "perf", "--to", to, "--json"]).args(more);
    command.output().expect("it can be started")
}

/// Three sizes were measured as they were asked for.
fn is_measured(to: &str, more: &[&str]) {
    let sizes = ["--sizes", "0,100,64K", "--rounds", "20"];
    let output = measured(to, &[&sizes, more].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{to}: {said}");
    assert!(said.contains("65536 bytes, 20 rounds"), "{said}");
    let all = objects(&String::from_utf8(output.stdout).expect("text"));
    let of = |name: &str| all.iter().map(|it| it[name].as_u64()).collect::<Vec<_>>();
    assert_eq!(of("bytes"), [0, 100, 65536].map(Some), "{to}");
    assert_eq!(of("rounds"), [20; 3].map(Some), "{to}");
    assert!(all.iter().all(|it| it["least_us"].as_f64().unwrap() > 0.0), "{all:?}");
    assert!(all[2]["mib_per_second"].as_f64().unwrap() > 0.0, "{all:?}");
}

#[test]
fn half_round_trips_are_measured_over_every_network() {
    let Some(_namespace) = Namespace::enter("perf") else { return };
    cards();
    assert!(ip("link set lo up"));
    let name = format!("shm://ropewalk-mx-perf-{}", std::process::id());
    for (board, own) in [
        ("mxoe://card1/4", Some("mxoe://card0")),
        ("ether://card1/5", Some("ether://card0")),
        ("udp://127.0.0.1:0", None),
        ("tcp://127.0.0.1:0", None),
        (name.as_str(), None),
    ] {
        let mut waits = Process::start(&["mx", "perf", "--board", board], "waiting at");
        let address = waits.line.split('\'').nth(1).expect("it says how it is called").to_string();
        let own: Vec<&str> = own.map(|own| ["--board", own]).into_iter().flatten().collect();
        is_measured(&address, &own);
        // And once more, as somebody else.
        is_measured(&address, &own);
        waits.stop();
    }
}

#[test]
fn a_board_is_called_by_its_name_and_whoever_is_not_there_is_said_not_to_be() {
    let Some(_namespace) = Namespace::enter("names") else { return };
    cards();
    let mut waits = Process::start(&["mx", "perf", "--board", "mxoe://card1/4"], "waiting at");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let boards = objects(&shown(&["info", "--json"]));
    let board = boards.iter().find(|it| it["interface"] == "card1").expect("a board");
    let name = format!("{}:{}/4", host.trim(), board["board"]);
    let own = ["--board", "mxoe://card0"];
    is_measured(&name, &own);

    let mut client = Command::new(PROGRAM);
    client.args(["mx", "perf", "--to", &name, "--sizes", "4K", "--rounds", "10000000"]);
    let client = client.args(own).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut client = client.expect("it can be started");
    let mut said = BufReader::new(client.stderr.take().expect("it was asked for"));
    let mut text = String::new();
    while !text.contains("rounds") {
        assert!(said.read_line(&mut text).unwrap() > 0, "{text}");
    }
    kill_process(Pid::from_child(&client), Signal::INT).unwrap();
    said.read_to_string(&mut text).unwrap();
    assert!(!client.wait().unwrap().success() && text.contains("interrupted"), "{text}");
    is_measured(&name, &own);
    waits.stop();

    let own = ["--board", "mxoe://card0/7"];
    let refused = |to: &str| {
        let output = measured(to, &own);
        assert!(!output.status.success() && output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused("mxoe://02:00:00:00:00:08/9");
    assert!(text.contains("start 'ropewalk mx perf' there first"), "{text}");
    let text = refused("mxoe://02:00:00:00:00:07/7?key=0");
    assert!(text.contains("this is the command's own address"), "{text}");
    let text = refused("mxoe://02:00:00:00:00:07/9");
    assert!(text.contains("card0") && text.contains("another card"), "{text}");
    for (wrong, why) in [
        ("ether://02:00:00:00:00:08/4", "use the same scheme for both"),
        ("mxoe://02:00:00:00:00:08%card1/4", "the peer's address names %card1"),
        ("mxoe://02:00:00:00:00:07/x", "like mxoe://02:00:00:00:00:07/0"),
        ("ether://card1/0", "like ether://02:00:00:00:00:07/0"),
    ] {
        let text = refused(wrong);
        assert!(text.contains(why) && !text.contains("mx perf' there first"), "{text}");
    }
    // Somebody is there, whose key is another one; and then nobody any more.
    let own_key = ["--board", "mxoe://card1/4?key=5"];
    let mut waits = Process::start(&[&["mx", "perf"][..], &own_key].concat(), "waiting at");
    let text = refused("mxoe://02:00:00:00:00:08/4?key=6");
    assert!(text.contains("another key") && text.contains("?key=NUMBER"), "{text}");
    waits.stop();
    for (lost, why) in
        [("udp://nosuch.invalid:70", "nosuch.invalid"), ("tcp://10.99.0.2:7", "unreachable")]
    {
        let mut command = Command::new(PROGRAM);
        let output =
            command.args(["mx", "perf", "--to", lost]).output().expect("it can be started");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && text.contains(why), "{text}");
        assert!(!text.contains("mx perf' there first"), "{text}");
    }
    let text = refused("nobody:3/0");
    assert!(text.contains("nobody:3") && text.contains("mx peers"), "{text}");
    let text = refused("nobody");
    assert!(text.contains("node2:0/0"), "{text}");
}
