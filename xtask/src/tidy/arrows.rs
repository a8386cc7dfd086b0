//! The table of the crates that each crate may use, as data.
//!
//! Two one-way streets lead from the faces down to `base`. Every room may also name the vocabulary
//! that lies below it (`base`, `wire`, and for rails the trait crate `rail`).
//!
//! Rules beyond the table of rooms:
//! * `core` names no rail, not even in its tests; `store` never names `rpc`;
//! * the client and the servers never name each other; `cli` alone assembles a cluster;
//! * nothing uses `lab`, but for `cli`, whose `bench` command ships `lab/bench`, and for tests;
//! * a crate that is not in the table may use nothing of ours: a new room needs a new line.

use super::Finding;
use crate::metadata::Workspace;

struct Room {
    name: &'static str,
    /// The crates that it may use; `rail-*` stands for every crate with that prefix.
    uses: &'static [&'static str],
    /// The crates that its tests may use beside those.
    tests: &'static [&'static str],
    rule: &'static str,
}

const RAIL: &[&str] = &["base", "wire", "seal", "rail"];
const FACE: &[&str] = &["base", "wire", "net", "rma", "host-*", "client", "face-common"];
const ANY_RAIL: &[&str] = &["rail", "rail-*", "sim", "netns"];

const fn room(
    name: &'static str,
    uses: &'static [&'static str],
    tests: &'static [&'static str],
    rule: &'static str,
) -> Room {
    Room { name, uses, tests, rule }
}

const ROOMS: &[Room] = &[
    room("base", &[], &[], "base stands on std alone"),
    room("wire", &["base"], &[], "wire stands on base"),
    room("auth", &[], &[], "auth stands on libraries alone: it knows neither frames nor files"),
    room("seal", &["base"], &[], "seal stands on base: it knows neither links nor sockets"),
    room(
        "core",
        &["base", "wire", "auth"],
        &["sim"],
        "core stands on wire, base and auth and names no rail",
    ),
    room(
        "transport",
        &["base", "wire", "seal"],
        &["sim"],
        "transport stands on wire, base and seal and names no port",
    ),
    room("rail", &["base", "wire"], ANY_RAIL, "the rail trait stands on wire and base"),
    room(
        "rail-*",
        RAIL,
        ANY_RAIL,
        "a rail stands on the rail trait, seal, wire and base, and on no other",
    ),
    room(
        "net",
        &["base", "wire", "auth", "core", "transport", "rail", "rail-*"],
        &["sim", "netns"],
        "net joins core and rails, and knows nothing above",
    ),
    room(
        "host-mx",
        &["base", "wire", "transport", "rail", "rail-ether", "rail-shm", "net"],
        ANY_RAIL,
        "host/mx stands on net, and on the ports and protocols of the interfaces that it manages",
    ),
    room(
        "host-paths",
        &["base", "wire", "net"],
        ANY_RAIL,
        "host/paths shows what net tells of paths, and knows no rail",
    ),
    room("host-job", &[], &[], "host/job starts programs, and knows nothing of messages"),
    room("rma", &["base", "wire", "net"], ANY_RAIL, "rma is a user of net"),
    room("rpc", &["base", "wire", "net"], ANY_RAIL, "rpc is an ordinary user of net"),
    room(
        "election",
        &["base", "wire"],
        &["sim"],
        "election has no network, and its clock and disk are those of `base::world`",
    ),
    room("store", &["base", "wire"], &["sim"], "store stands on base and wire and never names rpc"),
    room(
        "meta",
        &["base", "wire", "net", "rpc", "store", "election"],
        ANY_RAIL,
        "the metadata server uses rpc and store; it never names the client or the data server",
    ),
    room(
        "data",
        &["base", "wire", "net", "rpc", "store", "election"],
        ANY_RAIL,
        "the data server uses rpc and store; it never names the client or the metadata server",
    ),
    room(
        "client",
        &["base", "wire", "net", "rpc"],
        ANY_RAIL,
        "the client uses rpc; client and servers never name each other",
    ),
    room(
        "cli",
        &[
            "base", "wire", "auth", "rail", "rail-*", "net", "rma", "host-*", "rpc", "store",
            "election", "meta", "data", "client", "mount", "bench",
        ],
        &["sim", "netns", "rma-face"],
        "cli alone assembles a cluster; of lab it may use bench only, and its tests run programs for windows",
    ),
    room(
        "face-common",
        &["base", "wire", "net"],
        ANY_RAIL,
        "what the faces share is below them all, and knows none of their interfaces",
    ),
    room(
        "mount",
        FACE,
        ANY_RAIL,
        "a face uses net, rma, host or fs/client; it has no protocol of its own",
    ),
    room(
        "bmi",
        FACE,
        ANY_RAIL,
        "a face uses net, rma, host or fs/client; it has no protocol of its own",
    ),
    room(
        "mx",
        FACE,
        ANY_RAIL,
        "a face uses net, rma, host or fs/client; it has no protocol of its own",
    ),
    room(
        "rma-face",
        FACE,
        ANY_RAIL,
        "a face uses net, rma, host or fs/client; it has no protocol of its own",
    ),
    room(
        "ofi",
        FACE,
        ANY_RAIL,
        "a face uses net, rma, host or fs/client; it has no protocol of its own",
    ),
    room(
        "py",
        FACE,
        ANY_RAIL,
        "a face uses net, rma, host or fs/client; it has no protocol of its own",
    ),
    room("sim", &["*"], &["*"], "lab may use anything"),
    room("bench", &["*"], &["*"], "lab may use anything"),
    room("fuzz", &["*"], &["*"], "lab may use anything"),
    room("netns", &["*"], &["*"], "lab may use anything"),
    room("xtask", &[], &[], "xtask knows the rooms by name only"),
];

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}

/// The name of the room that a crate is.
fn short(package: &str) -> &str {
    package.strip_prefix("ropewalk-").unwrap_or(package)
}

/// Every arrow that the table does not have.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &workspace.packages {
        let from = short(&package.name);
        let room = ROOMS.iter().find(|room| matches(room.name, from));
        for dependency in package.dependencies.iter().filter(|dependency| dependency.ours) {
            let to = short(&dependency.name);
            let (allowed, rule) = match room {
                None => (false, "the room is not in the table of xtask/src/tidy/arrows.rs"),
                Some(room) => {
                    let tests = if dependency.dev { room.tests } else { &[] };
                    let mut patterns = room.uses.iter().chain(tests);
                    (from == to || patterns.any(|pattern| matches(pattern, to)), room.rule)
                }
            };
            if !allowed {
                let kind = if dependency.dev { " (in tests)" } else { "" };
                findings.push(Finding::error(
                    "arrow",
                    format!("{from} -> {to}{kind} is not in the table: {rule}"),
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Package};

    fn complaint(from: &str, to: &str, dev: bool) -> Option<String> {
        let dependency = Dependency { name: format!("ropewalk-{to}"), dev, ours: true };
        let package = Package {
            folder: Default::default(),
            library: true,
            name: format!("ropewalk-{from}"),
            dependencies: vec![dependency],
            tests: Vec::new(),
        };
        let workspace =
            Workspace { root: "/".into(), packages: vec![package], left_out: Vec::new() };
        check(&workspace).pop().map(|finding| finding.text)
    }

    #[test]
    fn arrows_of_the_table_pass_and_all_others_are_named() {
        let good = [
            ("net", "core"),
            ("core", "auth"),
            ("net", "auth"),
            ("net", "rail-tcp"),
            ("meta", "rpc"),
            ("mount", "client"),
            ("cli", "bench"),
            ("sim", "meta"),
            ("rail-tcp", "rail"),
            ("cli", "rail-shm"),
            ("host-mx", "net"),
            ("mx", "host-mx"),
            ("bmi", "face-common"),
            ("rma", "net"),
            ("mx", "rma"),
            ("rma-face", "rma"),
            ("rma-face", "host-job"),
        ];
        for (from, to) in good {
            assert_eq!(complaint(from, to, false), None);
        }
        let bad = [
            ("core", "rail"),
            ("auth", "wire"),
            ("store", "auth"),
            ("store", "rpc"),
            ("client", "meta"),
            ("data", "client"),
            ("rail-tcp", "rail-shm"),
            ("rail", "core"),
            ("base", "wire"),
            ("net", "sim"),
            ("cli", "sim"),
            ("meta", "data"),
            ("mount", "meta"),
            ("xtask", "base"),
            ("attic", "base"),
            ("net", "rpc"),
            ("net", "host-mx"),
            ("host-mx", "rail-tcp"),
            ("face-common", "bmi"),
            ("rpc", "face-common"),
            ("net", "rma"),
            ("rma", "core"),
            ("rma", "rail-shm"),
            ("rma", "host-job"),
            ("rma", "rma-face"),
            ("cli", "rma-face"),
        ];
        for (from, to) in bad {
            let text =
                complaint(from, to, false).unwrap_or_else(|| panic!("{from} -> {to} passed"));
            assert!(text.starts_with(&format!("{from} -> {to} is not in the table: ")), "{text}");
        }
    }

    #[test]
    fn tests_may_use_rails_and_the_simulator_but_not_the_other_side() {
        for (from, to) in [("rpc", "rail-sim"), ("client", "sim"), ("core", "sim"), ("net", "net")]
        {
            assert_eq!(complaint(from, to, true), None);
        }
        for (from, to) in [("core", "rail-sim"), ("client", "meta"), ("store", "rpc")] {
            assert!(complaint(from, to, true).is_some(), "{from} -> {to} passed");
        }
    }
}
