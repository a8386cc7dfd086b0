//! `ropewalk paths` against running processes.

mod support;

use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Channel, Context, Endpoint, EndpointConfig, Level, Oversize, PeerId, Posted};
use ropewalk_netns::{Fault, FaultKind, Host, Joint, Topology, TopologyConfig};
use ropewalk_rail::address::Address;
use serde_json::Value;
use support::{PROGRAM, Process};

const LIMIT: Duration = Duration::from_secs(20);
const BYTES: usize = 1000;

fn paths(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("paths").args(arguments);
    command
}

fn well(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {said}");
    String::from_utf8(stdout).expect("text")
}

/// What it says on standard error where it fails.
fn badly(mut command: Command) -> String {
    let output = command.output().expect("it runs");
    assert!(!output.status.success() && output.stdout.is_empty(), "{command:?}: {output:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

/// Asks until an answer is such.
fn until(
    what: &str,
    command: &dyn Fn() -> Command,
    is_such: &dyn Fn(&[Value]) -> bool,
) -> Vec<Value> {
    let end = Instant::now() + LIMIT;
    loop {
        let found = objects(&well(command()));
        if is_such(&found) {
            return found;
        }
        assert!(Instant::now() < end, "{what}: {found:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An endpoint over tcp at these places, which shares no memory with others.
fn endpoint(places: &[String]) -> Endpoint {
    let open = |place: &String| {
        modules::open("tcp", &Listen::At { address: place, exactly: true }).expect("a free place")
    };
    let mut config = EndpointConfig::new(ClusterId(0));
    config.host = 0;
    Endpoint::open(config, places.iter().map(open).collect()).expect("an endpoint")
}

#[test]
fn an_operator_sees_the_paths_of_a_running_server_and_is_told_what_is_wrong() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().to_str().unwrap();
    assert!(Command::new(PROGRAM).args(["format", directory]).output().unwrap().status.success());
    let meta = format!("{directory}/meta");
    let listen = "tcp://127.0.0.1:0?source=127.0.0.1,tcp://127.0.0.2:0?source=127.0.0.2";
    let arguments = ["serve", "meta", "--directory", &meta, "--listen", listen];
    let server = Process::start(&arguments, "serving at");
    let address = server.line.split_once("serving at ").expect("its address").1.to_string();
    let process = server.pid().as_raw_nonzero().to_string();
    let asked = |words: &[&str]| paths(&[words, &["--process", &process]].concat());
    assert!(well(asked(&["status"])).contains("no session with another endpoint"));
    assert_eq!(well(asked(&["status", "--json"])), "");
    let silent = format!("ropewalk_path_process_silent{{process=\"{process}\"}}");
    let metrics = well(asked(&["status", "--prometheus"]));
    assert!(metrics.ends_with(&format!("{silent} 0\n")) && !metrics.contains("path_up"));

    let caller = endpoint(
        &["127.0.0.1:0?source=127.0.0.1", "127.0.0.2:0?source=127.0.0.2"].map(String::from),
    );
    let peer = caller.lookup(&Address::parse(&address).expect("it is one")).expect("there is room");
    caller.connect(peer);
    let id = caller.identity().endpoint.to_string();
    let joined = |found: &[Value]| found.iter().any(|event| event["event"] == "joined");
    let history = until("a second path", &|| asked(&["history", "--json"]), &joined);
    let [event] = &history[..] else { panic!("{history:#?}") };
    assert_eq!(
        (&event["peer"]["endpoint"], &event["role"]),
        (&Value::from(id.clone()), &"metadata server".into())
    );
    assert_eq!(event["process"].to_string(), process);

    let status = objects(&well(asked(&["status", &id[..6], "--json"])));
    let [first, second] = &status[..] else { panic!("{status:#?}") };
    assert_eq!(
        (&first["path"], &first["several"], &first["used"]),
        (&0.into(), &true.into(), &true.into())
    );
    assert_eq!((&second["path"], &second["used"]), (&event["path"], &false.into()));
    for (path, source) in [(first, "127.0.0.1"), (second, "127.0.0.2")] {
        let rail = &path["rail"];
        assert_eq!((&rail["scheme"], &rail["source"]), (&"tcp".into(), &source.into()));
        assert_eq!((&path["state"], &path["remote"]), (&"up".into(), &source.into()));
        assert!(path["round_trip_us"].is_u64(), "the rail knows one: {path}");
    }
    let table = well(asked(&["status"]));
    for words in
        [&format!("process {process} (ropewalk), metadata server, to ")[..], "0 *", "tcp 127.0.0.2"]
    {
        assert!(table.contains(words), "{words} in\n{table}");
    }
    let metrics = well(asked(&["status", "--prometheus"]));
    let up = format!("ropewalk_path_up{{process=\"{process}\"");
    assert_eq!(
        metrics.lines().filter(|line| line.starts_with(&up) && line.ends_with(" 1")).count(),
        2
    );
    assert!(well(asked(&["history"])).contains(" joined"));

    orders(&id, &event["path"], &asked);
    refusals(&asked);
    server.suspend();
    let error = badly(asked(&["status"]));
    assert!(error.contains("does not answer: it may be stopped"), "{error}");
    // Among others it is a metric, so that the collector's file is written; a table fails.
    let begin = Instant::now();
    let metrics = paths(&["status", "--prometheus"]).output().unwrap().stdout;
    assert!(String::from_utf8(metrics).unwrap().contains(&format!("{silent} 1\n")));
    assert!(begin.elapsed() < Duration::from_secs(10), "processes are asked at once");
    assert!(!paths(&["status"]).output().unwrap().status.success());
    caller.close();
}

/// What cannot be asked for is refused with its cause.
fn refusals(asked: &dyn Fn(&[&str]) -> Command) {
    let error = badly(paths(&["status", "--process", "4194305"]));
    assert_eq!(error, "ropewalk: there is no process 4194305\n");
    let own = std::process::id().to_string();
    let error = badly(paths(&["history", "--process", &own]));
    assert!(
        error.contains(&format!("process {own} (process_paths"))
            && error.contains("shows no paths here"),
        "{error}"
    );
    for word in ["status", "history"] {
        let error = badly(asked(&[word, "10.9.9.9:7"]));
        assert!(error.contains("no session with a peer '10.9.9.9:7'"), "{error}");
    }
    assert!(badly(paths(&["status", "--process", "-1"])).contains("invalid value '-1'"));
}

/// An operator moves traffic of a session with two paths, and takes one of these out of use.
fn orders(peer: &str, second: &Value, asked: &dyn Fn(&[&str]) -> Command) {
    let id = &peer[..8];
    let status = || asked(&["status", id, "--json"]);
    let role = |found: &[Value], path: &Value| {
        let path = found.iter().find(|it| it["path"] == *path).expect("it is there");
        path["path_role"].as_str().unwrap_or_default().to_string()
    };
    let number = second.to_string();
    let armed = |found: &[Value]| found.iter().all(|it| it["migration"] == "ARMED");
    until("an armed alternate", &status, &armed);
    let said = well(asked(&["migrate", id]));
    assert!(said.contains(&format!("goes over path {second}\n")), "{said}");
    until("a primary path", &status, &|it| role(it, second) == "primary" && armed(it));
    let said = well(asked(&["migrate", id, "0"]));
    assert!(said.contains("goes over path 0\n"), "{said}");
    until("the first path again", &status, &|it| role(it, &0.into()) == "primary" && armed(it));
    assert!(well(asked(&["weight", id, &number, "100"])).contains("weighs 100"));
    assert!(well(asked(&["drain", id, &number])).contains("is drained"));
    let drained = until("a drained path", &status, &|it| role(it, second) == "drained");
    let weight = drained.iter().find(|it| it["path"] == *second).map(|it| &it["weight"]);
    assert_eq!(weight, Some(&100.into()));
    for (words, said) in [
        (&["drain", id, &number][..], "the path is drained: bring it up first"),
        (&["drain", id, "0"], "no other can"),
        (&["drain", id, "77"], &format!("there is no path 77: there are 0, {second}")),
        (&["up", id, "0"], "the path is not drained"),
        (&["migrate", id], "no alternate path is armed: specify one"),
        (&["migrate", id, &number], "the path is drained: bring it up first"),
        (
            &["drain", id, "0", "--endpoint", "data server 7"],
            "there is no endpoint 'data server 7'",
        ),
        (&["drain", "--rail", "eth9"], "there are tcp 127.0.0.1, tcp 127.0.0.2"),
        (&["migrate", "10.9.9.9:7"], "no session with a peer '10.9.9.9:7'"),
    ] {
        let error = badly(asked(words));
        assert!(error.contains(said), "{words:?}: {error}");
    }
    assert!(badly(paths(&["weight", id, &number, "1001"])).contains("invalid value '1001'"));
    assert!(well(asked(&["migrate", id, "0"])).contains("path 0 to "));
    assert!(well(asked(&["migrate", "--rail", "127.0.0.1"])).contains("carries already"));
    let by_rail =
        |word| well(asked(&[word, "--rail", "127.0.0.2", "--endpoint", "metadata server"]));
    assert!(by_rail("up").contains("may be used"));
    assert!(by_rail("up").contains("nothing was to be done"));
    assert!(by_rail("drain").contains("is drained"));
    assert!(well(asked(&["up", id, &number])).contains("may be used"));
    let history = objects(&well(asked(&["history", "--json"])));
    let names: Vec<&str> = history.iter().filter_map(|it| it["event"].as_str()).collect();
    for name in ["migrated", "drained", "raised"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let moved = history.iter().find(|it| it["event"] == "migrated").expect("as before");
    assert_eq!((&moved["cause"], &moved["to"]), (&"manual".into(), second));
}

/// An end of a stream of messages, which this process shows.
struct End {
    endpoint: Endpoint,
    context: Context,
    pool: Pool,
}

impl End {
    fn open(host: Host<'_>) -> End {
        let place = |rail| format!("{}:0?interface={}", host.address(rail), host.interface(rail));
        let endpoint = host.within(|| endpoint(&[0, 1].map(place)));
        let context = endpoint.context(false).expect("a queue");
        End { endpoint, context, pool: Pool::with_budget(1 << 24) }
    }

    fn memory(&self) -> Memory {
        Memory::pooled(self.pool.take(BYTES).expect("within the budget"))
    }

    /// Sends messages, one after another, until it is told to stop.
    fn send(&self, peer: PeerId, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let (channel, level) = (Channel::Tagged, Level::Delivered);
            let memory = self.memory();
            self.endpoint
                .post_send(&self.context, peer, channel, 0, memory, level, 0)
                .expect("room");
            while self.endpoint.test(&self.context).is_some() {}
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Receives messages until it is told to stop.
    fn receive(&self, stop: &AtomicBool) {
        let mut posted = 0;
        while !stop.load(Ordering::Relaxed) {
            while posted < 64 {
                let (into, cut) = (self.memory(), Oversize::Truncate);
                let context = &self.context;
                let done =
                    self.endpoint.post_receive(context, Channel::Tagged, None, 0, 0, into, cut, 0);
                posted += u32::from(matches!(done, Ok(Posted::Pending(_))));
            }
            while self.endpoint.test(&self.context).is_some() {
                posted -= 1;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Stops the other thread, also where this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_history_of_a_path_that_is_cut_and_mended_has_its_cause_its_stall_and_what_went_again() {
    let config =
        TopologyConfig { hosts: 2, rails: 2, joint: Joint::Switched, ..TopologyConfig::default() };
    let Some(net) = Topology::or_skip(&config) else { return };
    let far = End::open(net.host(1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| net.host(1).within(|| far.receive(&stop)));
        let _stop = Stop(&stop);
        net.host(0).within(|| operate(&net, far.endpoint.addresses()));
    });
    far.endpoint.close();
}

/// Breaks and mends a path of a stream of messages, in the namespace of the first host.
fn operate(net: &Topology, to: &str) {
    let near = End::open(net.host(0));
    // Its socket is in the first host's namespace.
    ropewalk_host_paths::show(&near.endpoint, "sender");
    let address = Address::parse(to).expect("it is one");
    let peer = near.endpoint.lookup(&address).expect("there is room");
    let asked = |words: &[&str]| {
        let mut command = net.host(0).command(PROGRAM);
        command.arg("paths").args(words).arg("--json");
        command
    };
    let wait = |event: &str, path: &Value| {
        let end = Instant::now() + LIMIT;
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let history = objects(&well(asked(&["history"])));
            let is_such =
                |it: &&Value| it["event"] == event && (path.is_null() || it["path"] == *path);
            if let Some(found) = history.iter().rfind(is_such) {
                return found.clone();
            }
            assert!(Instant::now() < end, "no path is {event}: {history:#?}");
        }
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It is in this thread's namespace, too.
        scope.spawn(|| near.send(peer, &stop));
        let _stop = Stop(&stop);
        cut_and_mend(net, &asked, &wait);
    });
    near.endpoint.close();
}

fn cut_and_mend(
    net: &Topology,
    asked: &dyn Fn(&[&str]) -> Command,
    wait: &dyn Fn(&str, &Value) -> Value,
) {
    wait("joined", &Value::Null);
    let status = objects(&well(asked(&["status"])));
    let used = status.iter().find(|path| path["used"] == true).expect("one of them");
    let rail = used["rail"]["index"].as_u64().expect("a number") as usize;
    let cut = net.inject(&Fault::new(FaultKind::Cut, 0, rail)).expect("it was tested elsewhere");
    let path = &used["path"];
    let moved = wait("redirected", path);
    // Either side may find out first, and tell the other one.
    let cause = moved["cause"].as_str().unwrap_or_default();
    assert!(["time_out", "silence", "unacknowledged", "peer_told"].contains(&cause), "{moved}");
    assert_ne!(moved["to"], *path, "{moved}");
    assert_eq!(moved["rail"]["interface"], net.host(0).interface(rail));
    let number = |name: &str| moved[name].as_u64().unwrap_or_else(|| panic!("{name}: {moved}"));
    assert!(number("detection_us") >= 1000 && number("stall_us") > 0, "{moved}");
    let bytes = number("bytes_re_sent");
    assert!(number("spans_re_sent") > 0 && bytes.is_multiple_of(BYTES as u64), "{moved}");
    wait("dead", path);
    cut.mend().expect("it can be mended");
    assert!(wait("held", path)["held_us"].as_u64() >= Some(249_000));
    wait("mended", path);
    let status = objects(&well(asked(&["status"])));
    let after = status.iter().find(|it| it["path"] == *path).expect("it keeps its number");
    let count = |value: &Value| value.as_u64().unwrap_or(0);
    assert!(count(&after["dead"]) >= 1 && count(&after["stalls"]) >= 1, "{after}");
    assert!(after["suspected"].as_object().is_some_and(|causes| !causes.is_empty()), "{after}");
}
