//! `cargo verify`: everything that must hold, in one command, on a laptop as in CI.
//!
//! Steps run one after the other ([`steps`]). Each is a command whose output is kept ([`run`]) and counted
//! ([`count`]). The first that fails ends the run and shows why. A step itself requests the system packages that it
//! needs ([`packages`]). A few failed tests of the ordinary steps run a second time, alone ([`again`]).
//!
//! Invariants:
//! * one target directory and one profile, so that nothing is built twice (model checks and
//!   sanitizers need flags of their own and build their few crates apart);
//! * if the environment says `CI=true`, a skipped test is a failure, never a silence;
//! * a test that passed only when it ran again is named in the table and before the last line;
//! * the last line is `N passed, N failed`, summed over all test runs.

mod again;
mod changes;
mod count;
mod packages;
mod run;
mod steps;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::again::Failed;
use self::count::{Count, Timed, telling};
use self::run::{Invocation, Output};
use self::steps::{Action, Step};
use crate::metadata::Workspace;

/// The number of slowest tests that are listed.
const SLOWEST: usize = 20;

/// The extent of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    Quick,
    Normal,
    Deep,
}

/// The result of a step.
struct Outcome {
    passed: bool,
    count: Count,
    /// A remark for the reader, beside the numbers.
    remark: String,
    /// Output of the command that failed, and the command.
    shown: String,
}

/// A line of the final table.
struct Row {
    name: &'static str,
    elapsed: Duration,
    outcome: Outcome,
}

/// Runs all steps of `depth`, or those from one of them on; true if all passed.
pub fn command(depth: Depth, from: Option<&str>) -> Result<bool> {
    run_steps(&Workspace::read()?, depth, from)
}

/// Runs the steps for the crates that a change can reach.
pub fn changed(base: Option<&str>) -> Result<bool> {
    let workspace = Workspace::read()?;
    let files = changes::since(&workspace.root, base)?;
    let workspace = workspace.concerned(&files);
    let names = |names: &[String]| match names {
        [] => "none".to_string(),
        names => names.join(", "),
    };
    let kept: Vec<String> = workspace.packages.iter().map(|it| it.name.clone()).collect();
    eprintln!("{} files have changed; crates that they can reach: {}", files.len(), names(&kept));
    eprintln!("left out: {}", names(&workspace.left_out));
    run_steps(&workspace, Depth::Normal, None)
}

fn run_steps(workspace: &Workspace, depth: Depth, from: Option<&str>) -> Result<bool> {
    let strict = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    let mut rows = Vec::new();
    for step in beginning_at(steps::all(workspace, depth), from)? {
        eprintln!("==> {}", step.name);
        let begin = Instant::now();
        let outcome = perform(workspace, &step, strict)?;
        let elapsed = begin.elapsed();
        if !outcome.shown.is_empty() {
            eprintln!("{}", outcome.shown);
        }
        for skip in &outcome.count.skips {
            eprintln!("    {skip}");
        }
        let passed = outcome.passed;
        eprintln!("    {} {}", seconds(elapsed), verdict(&outcome));
        rows.push(Row { name: step.name, elapsed, outcome });
        if !passed {
            break;
        }
    }
    print!("{}", summary(&rows));
    Ok(rows.iter().all(|row| row.outcome.passed))
}

/// The steps from that one on.
fn beginning_at(steps: Vec<Step>, from: Option<&str>) -> Result<Vec<Step>> {
    let Some(from) = from else { return Ok(steps) };
    let names: Vec<&str> = steps.iter().map(|step| step.name).collect();
    let Some(at) = names.iter().position(|name| *name == from) else {
        bail!("there is no step '{from}'; there are: {}", names.join(", "));
    };
    Ok(steps.into_iter().skip(at).collect())
}

/// Results of the commands of a step so far.
#[derive(Default)]
struct Tally {
    failed: bool,
    /// Something failed that a second run of tests does not mend.
    for_good: bool,
    /// Failed tests that may run again.
    may_pass: Vec<Failed>,
    count: Count,
    remarks: Vec<String>,
    shown: String,
}

impl Tally {
    fn add(&mut self, step: &Step, command: &Invocation, output: &Output, strict: bool) {
        let count = Count::of(&output.text);
        let skipped = strict && !count.skips.is_empty();
        if skipped {
            self.remarks.push("a skipped test is a failure under CI=true".to_string());
        }
        if !output.passed || skipped || count.failed > 0 {
            self.failed = true;
            self.show(output, &format!("failed: {}", command.line()));
            if output.timed_out {
                let limit = step.limit.as_secs();
                self.remarks.push(format!("ended after its limit of {limit} s"));
            }
            match again::failed(&output.text) {
                Some(tests) if !output.timed_out && !skipped => self.may_pass.extend(tests),
                _ => self.for_good = true,
            }
        }
        self.count.add(count);
    }

    fn show(&mut self, output: &Output, what: &str) {
        self.shown += &format!("{}\n    {what}\n", telling(&output.text).trim_end());
    }

    /// Runs failed tests a second time, one after the other. The step fails if one of them fails again.
    fn run_again(&mut self, step: &Step, chosen: &Invocation, root: &Path) -> Result<()> {
        self.failed = false;
        for failed in std::mem::take(&mut self.may_pass) {
            let command = steps::alone(chosen, &failed);
            eprintln!("    runs again, alone: {}", command.line());
            let output = run::run(&command, root, step.limit)?;
            if output.passed && failed.passed_in(&output.text) {
                self.shown += &format!("    passed when it ran again: {}\n", command.line());
                self.count.passed_again(failed.name());
            } else {
                self.failed = true;
                self.show(&output, &format!("failed again: {}", command.line()));
            }
        }
        Ok(())
    }
}

fn perform(workspace: &Workspace, step: &Step, strict: bool) -> Result<Outcome> {
    let mut tally = Tally::default();
    tally.remarks.extend(packages::install(step.packages));
    let root = &workspace.root;
    for (number, action) in step.actions.iter().enumerate() {
        let finished = match action {
            Action::Tidy => {
                tally.for_good = !crate::tidy::command()?;
                tally.failed |= tally.for_good;
                Vec::new()
            }
            Action::Run(command) => vec![(command, run::run(command, root, step.limit)?)],
            Action::Lanes(commands) => run::in_lanes(commands, steps::LANES, root, step.limit)?,
        };
        for (command, output) in finished {
            tally.add(step, command, &output, strict);
        }
        if tally.failed {
            // Of what comes after it nothing is known.
            tally.for_good |= number + 1 < step.actions.len();
            break;
        }
    }
    if let (true, false, Some(chosen)) = (tally.failed, tally.for_good, &step.again) {
        tally.run_again(step, chosen, root)?;
    }
    let Tally { failed, count, remarks, shown, .. } = tally;
    let shown = shown.trim_end().to_string();
    Ok(Outcome { passed: !failed, count, remark: remarks.join("; "), shown })
}

fn verdict(outcome: &Outcome) -> String {
    let mut words = vec![if outcome.passed { "ok" } else { "FAILED" }.to_string()];
    let count = &outcome.count;
    if count.passed + count.failed > 0 {
        words.push(format!("{} passed, {} failed", count.passed, count.failed));
    }
    if !count.again.is_empty() {
        words.push(ran_again(count));
    }
    if !count.skips.is_empty() {
        words.push(format!("{} SKIPPED", count.skips.len()));
    }
    if count.ignored > 0 {
        words.push(format!("{} left for --deep", count.ignored));
    }
    if !outcome.remark.is_empty() {
        words.push(outcome.remark.clone());
    }
    words.join(", ")
}

/// The number of tests that passed only in their second run.
fn ran_again(count: &Count) -> String {
    match count.again.len() {
        1 => "1 passed ONLY WHEN IT RAN AGAIN".to_string(),
        many => format!("{many} passed ONLY WHEN THEY RAN AGAIN"),
    }
}

fn summary(rows: &[Row]) -> String {
    let mut text = String::from("\n");
    let mut total = Count::default();
    for Row { name, elapsed, outcome } in rows {
        text += &format!("{name:<16} {:>9}  {}\n", seconds(*elapsed), verdict(outcome));
        total.add(outcome.count.clone());
    }
    let slowest = total.slowest(SLOWEST);
    if !slowest.is_empty() {
        text += &format!("\nthe slowest {} tests\n", slowest.len());
    }
    for Timed { seconds, name } in slowest {
        text += &format!("{seconds:>7.1} s  {name}\n");
    }
    text.push('\n');
    let elapsed = rows.iter().map(|row| row.elapsed).sum();
    text += &format!("{:<16} {:>9}\n", "total", seconds(elapsed));
    if !total.again.is_empty() {
        text += &format!("{}: {}\n", ran_again(&total), total.again.join(", "));
    }
    // A step that runs no tests and fails is one failure, so that the last line never hides it.
    let silent = rows.iter().filter(|row| !row.outcome.passed && row.outcome.count.failed == 0);
    text + &format!("{} passed, {} failed\n", total.passed, total.failed + silent.count())
}

fn seconds(elapsed: Duration) -> String {
    format!("{:.1} s", elapsed.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, passed: bool, count: Count) -> Row {
        let outcome = Outcome { passed, count, remark: String::new(), shown: String::new() };
        Row { name, elapsed: Duration::from_millis(1500), outcome }
    }

    #[test]
    fn the_last_line_sums_all_runs_and_never_hides_a_failed_step() {
        let count = |passed, failed| Count { passed, failed, ..Count::default() };
        let rows = [row("tests", true, count(7, 0)), row("models", true, count(2, 0))];
        assert!(summary(&rows).ends_with("\n9 passed, 0 failed\n"));
        let rows = [row("tests", false, count(7, 2))];
        assert!(summary(&rows).ends_with("\n7 passed, 2 failed\n"));
        let rows = [row("format", false, count(0, 0))];
        let text = summary(&rows);
        assert!(text.ends_with("\n0 passed, 1 failed\n"));
        assert!(text.contains("format") && text.contains("1.5 s") && text.contains("FAILED"));
    }

    fn shell(script: &str) -> Step {
        let command = run::Invocation::new("sh").args(["-c", script]);
        Step {
            name: "shell",
            packages: &[],
            limit: Duration::from_secs(20),
            actions: vec![Action::Run(command)],
            again: None,
        }
    }

    #[test]
    fn a_run_goes_on_at_a_step_that_exists() {
        let steps = || {
            let named = |name| Step { name, ..shell("true") };
            ["one", "two", "three"].map(named).into_iter().collect::<Vec<_>>()
        };
        let names = |from| -> Result<Vec<&str>> {
            Ok(beginning_at(steps(), from)?.iter().map(|step| step.name).collect())
        };
        assert_eq!(names(None).unwrap(), ["one", "two", "three"]);
        assert_eq!(names(Some("two")).unwrap(), ["two", "three"]);
        assert!(names(Some("four")).unwrap_err().to_string().contains("one, two, three"));
    }

    #[test]
    fn a_skipped_test_passes_on_a_laptop_and_fails_in_ci() {
        let workspace = Workspace { root: "/".into(), packages: Vec::new(), left_out: Vec::new() };
        let script =
            "echo 'SKIP: no device'; echo 'test result: ok. 3 passed; 0 failed; 1 ignored;'";
        let outcome = perform(&workspace, &shell(script), false).unwrap();
        assert!(outcome.passed && verdict(&outcome).contains("1 SKIPPED"));
        assert!(outcome.shown.is_empty());
        let outcome = perform(&workspace, &shell(script), true).unwrap();
        assert!(!outcome.passed && outcome.shown.contains("no device"));
        let outcome = perform(&workspace, &shell("exit 3"), false).unwrap();
        assert!(!outcome.passed && outcome.shown.ends_with("failed: sh -c 'exit 3'"));
    }
    /// A program with a failed test, and the script of its second run.
    fn fails_once(again: &str) -> Step {
        let line = |text: &str| format!("echo '{text}'; ");
        let first = [
            "     Running tests/x.rs (target/x)",
            "test a ... FAILED <0.1s>",
            "failures:",
            "    a",
            "test result: FAILED. 4 passed; 1 failed; 0 ignored;",
            "error: test failed, to rerun pass `-p x --test x`",
            "error: 1 target failed:",
            "    `-p x --test x`",
        ];
        let script = first.map(line).concat() + "exit 1";
        let again = line("     Running tests/x.rs (target/x)") + &line("$*") + again;
        Step { again: Some(Invocation::new("sh").args(["-c", &again, "sh"])), ..shell(&script) }
    }

    fn outcome_of(step: &Step, strict: bool) -> Outcome {
        let workspace = Workspace { root: "/".into(), packages: Vec::new(), left_out: Vec::new() };
        perform(&workspace, step, strict).unwrap()
    }

    const PASSES: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored;'";

    #[test]
    fn a_test_that_passes_when_it_runs_again_is_told_in_the_table_and_at_the_end() {
        let outcome = outcome_of(&fails_once(PASSES), true);
        assert!(outcome.passed);
        assert_eq!((outcome.count.passed, outcome.count.failed), (5, 0));
        for part in ["test a ... FAILED", "passed when it ran again", "--test x -- --exact a"] {
            assert!(outcome.shown.contains(part), "{part}: {}", outcome.shown);
        }
        let elapsed = Duration::ZERO;
        let text = summary(&[Row { name: "tests", elapsed, outcome }]);
        assert!(
            text.contains("ok, 5 passed, 0 failed, 1 passed ONLY WHEN IT RAN AGAIN\n"),
            "{text}"
        );
        let end = "\n1 passed ONLY WHEN IT RAN AGAIN: tests/x.rs a\n5 passed, 0 failed\n";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_test_that_fails_twice_or_does_not_run_again_has_failed() {
        let fails =
            "echo second; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored;'; exit 1";
        let outcome = outcome_of(&fails_once(fails), false);
        assert!(!outcome.passed && outcome.count.failed == 1 && outcome.count.again.is_empty());
        assert!(outcome.shown.contains("test a ... FAILED") && outcome.shown.contains("second"));
        let none = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored;'";
        assert!(!outcome_of(&fails_once(none), false).passed);
        assert!(!outcome_of(&fails_once("kill -ABRT $$"), false).passed);
    }

    #[test]
    fn nothing_runs_again_in_other_steps_or_beside_a_failure_for_good() {
        let step = fails_once(PASSES);
        assert!(!outcome_of(&Step { again: None, ..fails_once(PASSES) }, false).passed);
        let Some(Action::Run(once)) = step.actions.first() else { panic!("one command") };
        let crash = Invocation::new("sh").args(["-c", "kill -ABRT $$"]);
        let lanes = Action::Lanes(vec![once.clone(), crash]);
        let outcome = outcome_of(&Step { actions: vec![lanes], ..fails_once(PASSES) }, false);
        assert!(!outcome.passed && outcome.count.again.is_empty());
        let skips = Invocation::new("sh").args(["-c", "echo 'SKIP: no card'"]);
        let lanes = || Action::Lanes(vec![once.clone(), skips.clone()]);
        let with = |actions| Step { actions, ..fails_once(PASSES) };
        assert!(outcome_of(&with(vec![lanes()]), false).passed);
        assert!(!outcome_of(&with(vec![lanes()]), true).passed, "a skip under CI=true");
        let more = Action::Run(Invocation::new("true"));
        assert!(!outcome_of(&with(vec![Action::Run(once.clone()), more]), false).passed);
    }
}
