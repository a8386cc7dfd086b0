//! A program in C over two rails, for the tests of each face: whenever it stops it says a line that begins with `at`, and
//! waits for one; at its end it says `ok`. Meanwhile rails are cut, or an operator looks and gives orders.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_host_paths::{ask, ask_all};
use ropewalk_netns::{Fault, FaultKind, Host, Topology};
use serde_json::{Value, json};

/// The longest wait for what is there within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a program, and calls `at_stop` with the number of each of its stops. Returns what it said beside, and what it said on
/// the standard error.
fn run(command: &mut Command, stops: usize, mut at_stop: impl FnMut(usize)) -> [String; 2] {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it can be started");
    let mut answers = child.stdin.take().expect("it was asked for");
    let said = BufReader::new(child.stdout.take().expect("it was asked for"));
    let complaints = child.stderr.take().expect("it was asked for");
    // It would wait for who reads.
    let complaints = std::thread::spawn(|| std::io::read_to_string(complaints).expect("text"));
    let (mut stop, mut last, mut beside) = (0, String::new(), String::new());
    for line in said.lines() {
        last = line.expect("text");
        if last == "ok" {
            break;
        }
        if !last.starts_with("at ") {
            beside.push_str(&last);
            beside.push('\n');
            continue;
        }
        at_stop(stop);
        stop += 1;
        writeln!(answers, "go on").expect("it reads");
    }
    let status = child.wait().expect("it ends");
    let complaints = complaints.join().expect("it only reads");
    let is_good = status.success() && last == "ok";
    assert!(is_good, "{command:?}: {status}, after '{last}': {complaints}");
    assert_eq!(stop, stops);
    [beside, complaints]
}

/// One rail after the other is cut. What is cut is mended when the next one is: at each moment one is left.
pub fn cut_in_turn(net: &Topology, command: &mut Command) {
    let faults = [(FaultKind::Cut, 0), (FaultKind::Cut, 1), (FaultKind::CarrierLoss, 0)];
    let mut cut = None;
    run(command, 3, |stop| {
        drop(cut.take());
        let (kind, rail) = faults[stop];
        cut = Some(net.inject(&Fault::new(kind, 0, rail)).expect("it can be injected"));
    });
}

/// All rails are cut for good while the program is connected, and it is to wait a second for another. Returns as `run` does.
pub fn cut_all(net: &Topology, command: &mut Command) -> [String; 2] {
    let mut cut = Vec::new();
    run(command.env("ROPEWALK_PATH_WAIT", "1"), 1, |_| {
        for (kind, rail) in [(FaultKind::CarrierLoss, 0), (FaultKind::Cut, 1)] {
            cut.push(net.inject(&Fault::new(kind, 0, rail)).expect("it can be injected"));
        }
    })
}

/// Whether a text says of both rails of the first host why they are of no use. `scheme`: the one of its rails.
pub fn names_both(text: &str, net: &Topology, scheme: &str) -> bool {
    // A link that was cut answers nothing; while something is under way it acknowledges nothing, either.
    const CAUSES: [&str; 3] = ["no answer", "nothing is acknowledged", "the carrier is lost"];
    let names = |rail, causes: &[&str]| {
        let rail = format!("rail {scheme} {}: ", net.host(0).interface(rail));
        causes.iter().any(|cause| text.contains(&format!("{rail}{cause} for ")))
    };
    text.contains("no path to ") && names(0, &CAUSES) && names(1, &CAUSES[..2])
}

/// An operator sees the paths of both programs, drains one of the first program's, and lets it be used again. `roles`: how
/// the roles of their endpoints begin.
pub fn look_and_drain(net: &Topology, command: &mut Command, roles: [&str; 2]) {
    let mut drained = None;
    run(command, 3, |stop| match stop {
        0 => {
            let [near, far] = [0, 1].map(|host| Shown::several(net.host(host), roles[host]));
            assert_ne!(near.endpoint, far.endpoint);
            assert!(near.paths.iter().all(|path| path["peer"]["endpoint"] == far.endpoint));
            let used = near.paths.iter().find(|path| path["used"] == true);
            let path = used.expect("one of them carries")["path"].clone();
            near.order(net.host(0), "drain", &path);
            drained = Some((path, Shown::several(net.host(0), roles[0])));
        }
        1 => {
            let (path, before) = drained.as_ref().expect("it was drained before");
            let now = Shown::several(net.host(0), roles[0]);
            assert_eq!(now.path(path)["path_role"], "drained");
            let both = || before.paths.iter().zip(&now.paths);
            // A machine that is busy may make the other path suspect: then the drained one is all there is.
            let is_steady = both().all(|(then, now)| then["suspected"] == now["suspected"]);
            for (then, now) in both() {
                let carried = now["bytes"].as_u64().unwrap() - then["bytes"].as_u64().unwrap();
                let is_drained = now["path"] == *path;
                let as_ordered = is_drained == (carried == 0);
                assert!(as_ordered || is_drained && !is_steady, "{then} became {now}");
            }
            now.order(net.host(0), "up", path);
        }
        _ => {
            let (path, _) = drained.as_ref().expect("it was drained before");
            let now = Shown::several(net.host(0), roles[0]);
            assert_ne!(now.path(path)["path_role"], "drained");
        }
    });
}

/// What an endpoint in a host's namespace told.
struct Shown {
    process: u32,
    endpoint: String,
    paths: Vec<Value>,
}

impl Shown {
    /// As soon as it has both of its paths.
    fn several(host: Host<'_>, role: &str) -> Shown {
        let begin = Instant::now();
        loop {
            let shown = Shown::find(host, role);
            let is_up = |path: &Value| path["several"] == true && path["state"] == "up";
            if shown.as_ref().is_some_and(|it| it.paths.iter().filter(|it| is_up(it)).count() == 2)
            {
                return shown.expect("it was looked at");
            }
            let told = shown.map(|it| it.paths);
            assert!(begin.elapsed() < PATIENCE, "{role} of host {}: {told:?}", host.number());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn find(host: Host<'_>, role: &str) -> Option<Shown> {
        let answers = host.within(|| ask_all(&json!({ "do": "status" })));
        answers.into_iter().flatten().find_map(|answer| {
            let endpoints = answer.object["endpoints"].as_array()?;
            let is_meant = |it: &&Value| it["role"].as_str().is_some_and(|it| it.starts_with(role));
            let found = endpoints.iter().find(is_meant)?;
            Some(Shown {
                process: answer.process,
                endpoint: found["endpoint"].as_str()?.to_string(),
                paths: found["paths"].as_array()?.clone(),
            })
        })
    }

    fn path(&self, number: &Value) -> &Value {
        self.paths.iter().find(|path| path["path"] == *number).expect("it stays")
    }

    fn order(&self, host: Host<'_>, what: &str, path: &Value) {
        let peer = &self.paths[0]["peer"]["endpoint"];
        let order = json!({ "do": what, "endpoint": self.endpoint, "peer": peer, "path": path });
        let done = host.within(|| ask(self.process, &order));
        assert_eq!(done.expect("it obeys").object["path"], *path);
    }
}
