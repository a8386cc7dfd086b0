//! The steps of `cargo verify`, in order: cheap and telling steps first.
//!
//! Integration tests are sorted by the beginning of their file's name:
//! * `loom_*`: model checks,
//! * `process_*`: real servers as processes; `mount_*`: a mounted file system; each kind has a step
//!   of its own, with the system packages it uses. A program runs one test at a time. Two programs run
//!   at a time, since most of their tests wait for timers, devices and dead peers;
//! * `mount_suites`, the suites of others, `process_peers`, figures beside others, and `process_large_kernels`, ten
//!   minutes of computing while rails fail, only in `--deep`,
//! * all others run with the unit tests.

use std::time::Duration;

use super::Depth;
use super::again::Failed;
use super::packages::{self, Package};
use super::run::Invocation;
use crate::metadata::{Workspace, cargo};

/// A named group of commands that pass or fail together.
pub struct Step {
    pub name: &'static str,
    pub packages: &'static [Package],
    /// Time for each of its commands.
    pub limit: Duration,
    pub actions: Vec<Action>,
    /// A few failed tests of it run again, by this command with [`alone`].
    pub again: Option<Invocation>,
}

/// One part of a step.
pub enum Action {
    Run(Invocation),
    /// Commands that take turns in [`LANES`] lanes; all of them run, also after one that fails.
    Lanes(Vec<Invocation>),
    Tidy,
}

/// The commands of a step that run at the same time.
pub const LANES: usize = 2;

/// The commands that integration tests are divided among: enough of them that both lanes end at about the same time.
const TEST_PARTS: usize = 6;

const MINUTE: Duration = Duration::from_secs(60);

/// Options for the output of test programs. They also print the output of passing tests, since a skipped test says so
/// there, and the time of each test. The latter is an option that needs [`UNSTABLE`].
const PRINTED: [&str; 4] = ["--show-output", "-Z", "unstable-options", "--report-time"];

/// Test programs alone are run with this: in the environment of a build it would build other things.
const UNSTABLE: (&str, &str) =
    ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", "env RUSTC_BOOTSTRAP=1");

/// The sanitizer step needs the target named, so that build scripts are built without it.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The crates that hold unsafe code or hand memory to those that do.
const SANITIZED: &[&str] = &[
    "ropewalk-base",
    "ropewalk-rail",
    "ropewalk-rail-shm",
    "ropewalk-rail-tcp",
    "ropewalk-rail-udp",
    "ropewalk-rail-ether",
    "ropewalk-net",
    "ropewalk-host-mx",
    "ropewalk-rma",
    "ropewalk-rma-face",
];

/// Slabs and pools live as long as the process: the step looks for use after free and for accesses out of bounds. Tests ask for
/// more memory than there is, and handle faults of memory themselves.
const ASAN_OPTIONS: &str =
    "detect_leaks=0:allocator_may_return_null=1:handle_segv=0:handle_sigbus=0";

/// The test that runs suites of others.
const SUITES: &str = "mount_suites";

/// The test that measures beside peers.
const PEERS: &str = "process_peers";

/// The test of kernels that compute for minutes.
const KERNELS: &str = "process_large_kernels";

/// The test that takes all processors for ten minutes, and its program: in `--deep`, with nothing beside it.
const HOGS: (&str, &str) = ("process_detection", "for_ten_minutes");

/// Minutes for each test that runs thousands of seeds in `--deep`: the dear ones get as far as they get.
const SEED_MINUTES: &str = "1";

/// The fuzzing crate, and seconds for each of its targets in `--deep`.
const FUZZ: &str = "ropewalk-fuzz";
const FUZZ_SECONDS: &str = "15";

/// All steps of `depth`.
pub fn all(workspace: &Workspace, depth: Depth) -> Vec<Step> {
    let step = |name, minutes, actions| Step {
        name,
        packages: &[],
        limit: MINUTE * minutes,
        actions,
        again: None,
    };
    // A run of hours tells each failure.
    let again = || (depth == Depth::Normal).then(|| of_crates(workspace, "test")).flatten();
    let run = |invocation| vec![Action::Run(invocation)];
    let mut steps = vec![
        step("format", 2, run(cargo_with(&["fmt", "--all", "--check"]))),
        step("tidy", 2, vec![Action::Tidy]),
        step("lints", 15, lints(workspace)),
    ];
    if depth == Depth::Quick {
        steps.push(step("unit tests", 20, unit_tests(workspace)));
        return steps;
    }
    steps.push(step("documentation", 10, documentation(workspace)));
    steps.push(Step {
        packages: packages::TESTS,
        again: again(),
        ..step("tests", if depth == Depth::Deep { 600 } else { 40 }, tests(workspace, depth))
    });
    steps.push(step("model checks", 15, models(workspace)));
    steps.push(Step {
        packages: packages::PROCESSES,
        again: again(),
        ..step(
            "processes",
            if depth == Depth::Deep { 60 } else { 20 },
            in_lanes(workspace, "process_", depth),
        )
    });
    steps.push(Step {
        packages: packages::MOUNT,
        again: again(),
        ..step(
            "mount",
            if depth == Depth::Deep { 60 } else { 20 },
            in_lanes(workspace, "mount_", depth),
        )
    });
    if depth == Depth::Deep {
        steps.push(Step {
            packages: packages::SUITES,
            ..step("suites", 90, in_lanes(workspace, SUITES, depth))
        });
        steps.push(Step {
            packages: packages::PEERS,
            ..step("peers", 30, released(workspace, PEERS))
        });
        steps.push(step("kernels", 30, released(workspace, KERNELS)));
        steps.push(Step { packages: packages::PROCESSES, ..step("hogs", 20, hogs(workspace)) });
        steps.push(step("fuzzing", 120, fuzzing(workspace)));
        steps.push(step("sanitizers", 120, sanitizers(workspace)));
    }
    // A step of the late kinds exists only where there is something to run, so that no package is
    // installed for nothing.
    steps.retain(|step| !step.actions.is_empty());
    steps
}

fn cargo_with(arguments: &[&str]) -> Invocation {
    Invocation::new(&cargo().to_string_lossy()).args(arguments.iter().copied())
}

/// Test programs with such arguments so far print what is to be known of their tests.
fn printing(invocation: Invocation) -> Invocation {
    invocation.args(PRINTED).env(UNSTABLE.0, UNSTABLE.1)
}

/// The command that runs a failed test again, with nothing beside it. `chosen`: the choice of crates of its first run, so
/// that nothing is built again.
pub fn alone(chosen: &Invocation, failed: &Failed) -> Invocation {
    let test = chosen.clone().args(failed.target.clone());
    printing(test.args(["--", "--exact", &failed.test, "--test-threads=1"]))
}

/// A command of cargo for the crates that are wanted; nothing where there are none.
fn of_crates(workspace: &Workspace, command: &str) -> Option<Invocation> {
    let chosen = cargo_with(&[command, "--locked"]);
    if workspace.left_out.is_empty() {
        return Some(chosen.args(["--workspace"]));
    }
    let names = workspace.packages.iter().flat_map(|it| ["--package", it.name.as_str()]);
    (!workspace.packages.is_empty()).then(|| chosen.args(names))
}

fn actions(invocation: Option<Invocation>) -> Vec<Action> {
    invocation.map(Action::Run).into_iter().collect()
}

fn lints(workspace: &Workspace) -> Vec<Action> {
    let clippy = of_crates(workspace, "clippy");
    actions(clippy.map(|it| it.args(["--all-targets", "--", "-D", "warnings"])))
}

fn documentation(workspace: &Workspace) -> Vec<Action> {
    let doc = of_crates(workspace, "doc");
    let strict = "-D warnings -A rustdoc::private_intra_doc_links";
    actions(
        doc.map(|it| {
            it.args(["--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", strict)
        }),
    )
}

fn unit_tests(workspace: &Workspace) -> Vec<Action> {
    let test = of_crates(workspace, "test");
    actions(test.map(|it| printing(it.args(["--lib", "--bins", "--"]))))
}

/// Unit tests, ordinary integration tests and examples, then the documentation's examples.
fn tests(workspace: &Workspace, depth: Depth) -> Vec<Action> {
    let ordinary = |name: &str| !["loom", "process_", "mount_"].iter().any(|b| name.starts_with(b));
    let mut names: Vec<&str> =
        workspace.tests(ordinary).into_iter().map(|(_, test)| test).collect();
    names.sort_unstable();
    names.dedup();
    let Some(chosen) = of_crates(workspace, "test") else { return Vec::new() };
    let chosen = chosen.args(["--no-fail-fast"]);
    let units = ["--lib", "--bins", "--examples"];
    let everything = chosen.clone().args(units).args(integration(&names));
    if depth == Depth::Deep {
        // Tests that run seeds for a given time want both processors.
        let all = deep(printing(everything.args(["--"])));
        return [all].into_iter().chain(examples(workspace)).map(Action::Run).collect();
    }
    let build = Action::Run(everything.args(["--no-run"]));
    let part = |number: usize| -> Vec<&str> {
        names.iter().skip(number).step_by(TEST_PARTS).copied().collect()
    };
    let parts = (0..TEST_PARTS).map(part).filter(|part| !part.is_empty());
    let parts = parts.map(|part| chosen.clone().args(integration(&part)));
    let programs = [chosen.clone().args(units)].into_iter().chain(parts);
    let programs = programs.map(|choice| printing(choice.args(["--"])));
    vec![build, Action::Lanes(programs.chain(examples(workspace)).collect())]
}

/// The options of cargo that choose these integration tests.
fn integration(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| ["--test", name]).map(String::from).collect()
}

/// The examples in the documentation of libraries.
fn examples(workspace: &Workspace) -> Option<Invocation> {
    let chosen = cargo_with(&["test", "--locked", "--doc"]);
    if workspace.left_out.is_empty() {
        return Some(chosen.args(["--workspace"]));
    }
    let libraries = workspace.packages.iter().filter(|package| package.library);
    let names: Vec<&str> = libraries.flat_map(|it| ["--package", it.name.as_str()]).collect();
    (!names.is_empty()).then(|| chosen.args(names))
}

/// The environment and options of `--deep`.
fn deep(invocation: Invocation) -> Invocation {
    invocation
        .args(["--include-ignored"])
        .env("ROPEWALK_SEEDS", "10000")
        .env("ROPEWALK_SEED_MINUTES", SEED_MINUTES)
        .env("ROPEWALK_FUZZ_ITERATIONS", "5000000")
}

/// Model checks of lock-free code. The choice of crates is that of the tests, so that nothing is built again.
fn models(workspace: &Workspace) -> Vec<Action> {
    let mut names: Vec<&str> = workspace
        .tests(|name| name.starts_with("loom"))
        .into_iter()
        .map(|(_, test)| test)
        .collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    let models = of_crates(workspace, "test");
    actions(models.map(|it| printing(it.args(integration(&names)).args(["--"]))))
}

/// Tests with real processes and mounts.
fn in_lanes(workspace: &Workspace, beginning: &str, depth: Depth) -> Vec<Action> {
    let test = |name: &&str| {
        let chosen = of_crates(workspace, "test")?.args(["--no-fail-fast", "--test", name]);
        let invocation = printing(chosen.args(["--", "--test-threads=1"]));
        let all = if depth == Depth::Deep { deep(invocation) } else { invocation };
        Some(if *name == HOGS.0 { all.args(["--skip", HOGS.1]) } else { all })
    };
    let apart = |name: &str| [SUITES, PEERS, KERNELS].contains(&name);
    let wanted = |name: &str| name.starts_with(beginning) && (name == beginning || !apart(name));
    let mut names: Vec<&str> = workspace.tests(wanted).into_iter().map(|(_, test)| test).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Vec::new();
    }
    // All programs are built at once, by all processors. The choice of crates is the same for each of them: with
    // another one cargo may unite other features, and build everything again.
    let build = of_crates(workspace, "test")
        .map(|it| Action::Run(it.args(["--no-run"]).args(integration(&names))));
    let programs = names.iter().filter_map(test).collect();
    build.into_iter().chain([Action::Lanes(programs)]).collect()
}

/// A test that measures a build as users have it.
fn released(workspace: &Workspace, test: &str) -> Vec<Action> {
    let mut actions = in_lanes(workspace, test, Depth::Deep);
    if !actions.is_empty() {
        let build = ["build", "--release", "--locked", "--package", "ropewalk-cli"];
        actions.insert(0, Action::Run(cargo_with(&build)));
    }
    actions
}

/// Ten minutes beside programs that compute on every processor.
fn hogs(workspace: &Workspace) -> Vec<Action> {
    if workspace.tests(|name| name == HOGS.0).is_empty() {
        return Vec::new();
    }
    let test = of_crates(workspace, "test").map(|it| it.args(["--test", HOGS.0, "--"]));
    actions(test.map(|it| printing(it).args(["--ignored", HOGS.1])))
}

fn fuzzing(workspace: &Workspace) -> Vec<Action> {
    if !workspace.has(FUZZ) {
        return Vec::new();
    }
    let long = cargo_with(&["run", "--locked", "--package", FUZZ, "--", "run"]);
    vec![Action::Run(long.args(["--seconds", FUZZ_SECONDS]))]
}

/// The unsafe code under the address sanitizer. Its runtime comes with every toolchain; the switch that
/// turns it on is an unstable one, which a stable compiler takes where it is told to. The thread sanitizer has no step:
/// `docs/design/107-sanitizers.md` says why.
fn sanitizers(workspace: &Workspace) -> Vec<Action> {
    let packages = SANITIZED.iter().filter(|name| workspace.has(name));
    let run =
        cargo_with(&["test", "--locked", "--no-fail-fast", "--lib", "--tests", "--target", TARGET])
            .args(["--target-dir", "target/sanitizer"])
            .args(packages.flat_map(|name| ["--package", name]))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
            // Programs in C against the library, too: `face/rma/tests/common/mod.rs`.
            .env("ROPEWALK_C_SANITIZER", "address")
            .env("ASAN_OPTIONS", ASAN_OPTIONS);
    vec![Action::Run(run)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    fn workspace(tests: &[&str]) -> Workspace {
        let tests = tests.iter().map(|name| (*name).to_string()).collect();
        let package = Package {
            name: "ropewalk-x".into(),
            folder: "x".into(),
            library: true,
            dependencies: Vec::new(),
            tests,
        };
        Workspace { root: "/".into(), packages: vec![package], left_out: Vec::new() }
    }

    fn lines(step: &Step) -> String {
        let lines = |action: &Action| match action {
            Action::Run(invocation) => vec![invocation.line()],
            Action::Lanes(commands) => commands.iter().map(Invocation::line).collect(),
            Action::Tidy => vec!["tidy".to_string()],
        };
        step.actions.iter().flat_map(lines).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_integration_test_runs_in_exactly_one_step() {
        let names = ["loom_ring", "process_kill", "mount_tools", "scenario"];
        let steps = all(&workspace(&names), Depth::Normal);
        let homes = ["model checks", "processes", "mount", "tests"];
        for (name, home) in names.iter().zip(homes) {
            let wanted = format!("--test {name}");
            let found: Vec<&str> = steps
                .iter()
                .filter(|step| lines(step).contains(&wanted))
                .map(|step| step.name)
                .collect();
            assert_eq!(found, [home], "{name}");
        }
    }

    #[test]
    fn steps_with_nothing_to_run_ask_for_no_packages() {
        let steps = all(&workspace(&["scenario"]), Depth::Normal);
        let needs_none = |step: &&Step| step.name != "tests";
        let mut others = steps.iter().filter(needs_none);
        assert!(others.all(|step| step.packages.is_empty() && !step.actions.is_empty()));
        let steps = all(&workspace(&["mount_tools"]), Depth::Normal);
        assert!(steps.iter().filter(needs_none).any(|step| !step.packages.is_empty()));
    }

    #[test]
    fn a_part_of_the_workspace_is_checked_alone_and_none_of_it_costs_nothing() {
        let mut part = workspace(&["scenario"]);
        part.left_out = vec!["ropewalk-y".into()];
        let steps = all(&part, Depth::Normal);
        let cargo =
            steps.iter().map(lines).filter(|lines| !lines.contains("fmt") && lines != "tidy");
        for lines in cargo.filter(|lines| !lines.is_empty()) {
            assert!(
                lines.contains("--package ropewalk-x") && !lines.contains("--workspace"),
                "{lines}"
            );
        }
        part.packages.clear();
        let names: Vec<&str> = all(&part, Depth::Normal).iter().map(|step| step.name).collect();
        assert_eq!(names, ["format", "tidy"]);
    }

    #[test]
    fn ten_minutes_beside_hogs_are_a_step_of_their_own_in_deep() {
        let lines_of = |depth| {
            let steps = all(&workspace(&["process_detection"]), depth);
            steps.iter().map(|step| (step.name, lines(step))).collect::<Vec<_>>()
        };
        let has = |steps: &[(&str, String)], name: &str, what: &str| {
            steps.iter().any(|(step, lines)| *step == name && lines.contains(what))
        };
        let (normal, deep) = (lines_of(Depth::Normal), lines_of(Depth::Deep));
        assert!(has(&deep, "hogs", "--ignored for_ten_minutes"));
        assert!(!normal.iter().any(|(step, _)| *step == "hogs"));
        assert!(has(&deep, "processes", "--skip for_ten_minutes"));
    }

    #[test]
    fn failed_tests_of_ordinary_steps_alone_run_again() {
        let names = ["scenario", "loom_ring", "process_kill", "mount_tools"];
        let of = |depth| {
            let steps = all(&workspace(&names), depth);
            steps.into_iter().filter(|step| step.again.is_some()).collect::<Vec<_>>()
        };
        let steps = of(Depth::Normal);
        let kinds: Vec<_> = steps.iter().map(|step| step.name).collect();
        assert_eq!(kinds, ["tests", "processes", "mount"]);
        assert!(
            steps.iter().all(|step| step.again.as_ref().unwrap().line().ends_with("--workspace"))
        );
        assert!(of(Depth::Deep).is_empty() && of(Depth::Quick).is_empty());
    }

    #[test]
    fn quick_stays_quick_and_deep_runs_more() {
        let quick: Vec<&str> =
            all(&workspace(&["loom_ring"]), Depth::Quick).iter().map(|step| step.name).collect();
        assert_eq!(quick, ["format", "tidy", "lints", "unit tests"]);
        let deep = all(&workspace(&[]), Depth::Deep);
        let tests = deep.iter().find(|step| step.name == "tests").map(lines).unwrap();
        assert!(tests.contains("ROPEWALK_SEEDS=10000") && tests.contains("--include-ignored"));
        let sanitizers = deep.iter().find(|step| step.name == "sanitizers").map(lines).unwrap();
        // The library for C and the programs in C are built with the same one.
        assert!(sanitizers.contains("ROPEWALK_C_SANITIZER=address"));
        assert!(
            sanitizers.contains("-Zsanitizer=address") && SANITIZED.contains(&"ropewalk-rma-face")
        );
        let home = |depth| {
            let names = ["mount_suites", "mount_tools", KERNELS];
            let steps = all(&workspace(&names), depth);
            let has = |step: &&Step| [SUITES, KERNELS].iter().any(|it| lines(step).contains(it));
            steps.iter().filter(has).map(|step| step.name).collect::<Vec<_>>()
        };
        assert_eq!((home(Depth::Normal), home(Depth::Deep)), (vec![], vec!["suites", "kernels"]));
    }
}
