//! Running scenarios over seeds, and saying how to replay a failure.
//!
//! `ROPEWALK_SEED=N` or `=A..B` in the environment names the seeds of every test; `ROPEWALK_SEEDS=N` lets
//! those that take [`seeds`] run so many; `ROPEWALK_SEED_MINUTES=N` ends each of them after that time, for
//! what a seed costs differs a hundredfold between tests; [`in_time`] does so for other cases.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::simulation::Simulation;

/// The environment variable that names the seed to run, or, as `A..B`, the seeds.
const SEED_VARIABLE: &str = "ROPEWALK_SEED";

/// The environment variable with the number of seeds, for tests that can run many.
const COUNT_VARIABLE: &str = "ROPEWALK_SEEDS";

/// The environment variable with the duration of such a test, in minutes.
const MINUTES_VARIABLE: &str = "ROPEWALK_SEED_MINUTES";

/// Tells a child of [`in_two_processes`] that it is one.
const CHILD_VARIABLE: &str = "ROPEWALK_TRACE_OF_CHILD";
/// Precedes the trace hash that the child prints.
const CHILD_MARK: &str = "trace of child ";

/// The seeds of a test that can run many: `usual` of them from `first` on, unless the environment says otherwise.
/// Seeds that were left out for lack of time are printed.
pub fn seeds(first: u64, usual: u64) -> Seeds {
    let count = number(COUNT_VARIABLE).unwrap_or(usual);
    let seeds = named().unwrap_or(first..first + count);
    let limit = number(MINUTES_VARIABLE).map(|minutes| Duration::from_secs(60 * minutes));
    Seeds { seeds, limit, begin: Instant::now() }
}

/// The same for other cases: they end early where `ROPEWALK_SEED_MINUTES` are over. How many are left is printed.
pub fn in_time<T>(cases: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let limit = number(MINUTES_VARIABLE).map(|minutes| Duration::from_secs(60 * minutes));
    let begin = Instant::now();
    let mut cases = cases.fuse();
    std::iter::from_fn(move || {
        if limit.is_some_and(|limit| begin.elapsed() >= limit) {
            let left = cases.by_ref().count();
            if left > 0 {
                println!("the time is over: {left} cases are left");
            }
        }
        cases.next()
    })
}

/// An iterator over seeds that ends early where its time is over, after one seed at least.
#[derive(Debug)]
pub struct Seeds {
    seeds: Range<u64>,
    limit: Option<Duration>,
    begin: Instant,
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let seed = self.seeds.next()?;
        if self.limit.is_some_and(|limit| self.begin.elapsed() >= limit) {
            println!("its time is over before seed {seed}: {} are left", self.seeds.end - seed);
            self.seeds.start = self.seeds.end;
        }
        Some(seed)
    }
}

/// Runs `scenario` twice with one seed and insists on equal traces. A failure is printed with its
/// seed and the command that replays it. `ROPEWALK_SEED` in the environment overrides `seed`.
pub fn run_seed_twice(seed: u64, scenario: impl Fn(&mut Simulation)) {
    run_seeds([seed], scenario);
}

/// [`run_seed_twice`] for each of `seeds`, or only for those that the environment names.
pub fn run_seeds(seeds: impl IntoIterator<Item = u64>, scenario: impl Fn(&mut Simulation)) {
    match named() {
        Some(named) => named.for_each(|seed| run_twice(seed, &scenario)),
        None => seeds.into_iter().for_each(|seed| run_twice(seed, &scenario)),
    }
}

/// Computes a trace in two further processes and insists on equal ones: nothing that a process has for
/// itself, like the places of its memory or its random state, has a say. The test called `test`
/// (its full name) calls this, and does nothing else.
pub fn in_two_processes(test: &str, trace: impl FnOnce() -> u64) {
    if std::env::var_os(CHILD_VARIABLE).is_some() {
        println!("{CHILD_MARK}{:016x}", trace());
        return;
    }
    let [first, second] = [(); 2].map(|()| trace_of_child(test));
    assert_eq!(first, second, "two processes differ: something beside the seed has a say");
}

/// Runs one test alone, in a child; returns the trace that it printed.
fn trace_of_child(test: &str) -> String {
    let program = std::env::current_exe().expect("a test program knows its path");
    let output = std::process::Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .env(CHILD_VARIABLE, "1")
        .output()
        .expect("the test program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let at = text.find(CHILD_MARK).filter(|_| output.status.success());
    let at = at.unwrap_or_else(|| {
        panic!("no trace of {test}: {text}{}", String::from_utf8_lossy(&output.stderr))
    });
    text[at..].chars().take(CHILD_MARK.len() + 16).collect()
}

/// The seeds that the environment names.
fn named() -> Option<Range<u64>> {
    let text = std::env::var(SEED_VARIABLE).ok()?;
    Some(chosen(&text).unwrap_or_else(|| panic!("{SEED_VARIABLE}={text} is neither N nor A..B")))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

fn chosen(text: &str) -> Option<Range<u64>> {
    let (first, end) = match text.split_once("..") {
        Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
        None => {
            let seed: u64 = text.parse().ok()?;
            (seed, seed.checked_add(1)?)
        }
    };
    Some(first..end)
}

fn run_twice(seed: u64, scenario: &impl Fn(&mut Simulation)) {
    let first = run_once(seed, scenario);
    let second = run_once(seed, scenario);
    if first != second {
        print_replay(seed);
    }
    assert_eq!(first, second, "two runs of seed {seed} differ: something outside it has a say");
}

fn run_once(seed: u64, scenario: &impl Fn(&mut Simulation)) -> u64 {
    let mut simulation = Simulation::new(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        scenario(&mut simulation);
        simulation.trace_hash()
    }));
    outcome.unwrap_or_else(|panic| {
        print_replay(seed);
        resume_unwind(panic)
    })
}

fn print_replay(seed: u64) {
    eprintln!("seed {seed} failed; replay it with:\n    {}", replay_command(seed));
}

/// The command that replays `seed` in the test that runs on this thread.
fn replay_command(seed: u64) -> String {
    // The test harness calls the thread of a test by the test's full name.
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or("");
    format!("{SEED_VARIABLE}={seed} cargo test -p ropewalk-sim {test}").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replay_command_names_seed_and_test() {
        let command = replay_command(77);
        assert!(command.starts_with("ROPEWALK_SEED=77 cargo test -p ropewalk-sim "));
        assert!(command.ends_with("the_replay_command_names_seed_and_test"), "{command}");
    }

    #[test]
    fn a_seed_or_a_range_of_seeds_can_be_chosen() {
        assert_eq!(chosen("7"), Some(7..8));
        assert_eq!(chosen("2465..10000"), Some(2465..10_000));
        assert!(["", "..", "7..", "x", "-1"].iter().all(|text| chosen(text).is_none()));
    }

    #[test]
    fn seeds_end_with_their_number_or_their_time() {
        let of = |limit| Seeds { seeds: 5..9, limit, begin: Instant::now() };
        assert_eq!(of(None).collect::<Vec<_>>(), [5, 6, 7, 8]);
        assert_eq!(of(Some(Duration::from_secs(600))).count(), 4);
        assert_eq!(of(Some(Duration::ZERO)).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn a_seed_has_one_trace_in_every_process() {
        in_two_processes("seeds::tests::a_seed_has_one_trace_in_every_process", || {
            run_once(7, &|simulation: &mut Simulation| {
                simulation.run_for(Duration::from_millis(1));
            })
        });
    }

    #[test]
    #[should_panic(expected = "something beside the seed has a say")]
    fn a_trace_that_depends_on_its_process_is_found_out() {
        let name = "seeds::tests::a_trace_that_depends_on_its_process_is_found_out";
        in_two_processes(name, || {
            // The child must end well: only its parent is to panic.
            println!("{CHILD_MARK}{:016x}", std::process::id());
            std::process::exit(0);
        });
    }

    #[test]
    #[should_panic(expected = "something outside it has a say")]
    fn a_scenario_that_depends_on_more_than_its_seed_is_found_out() {
        let runs = std::cell::Cell::new(0u64);
        run_twice(1, &|simulation: &mut Simulation| {
            runs.set(runs.get() + 1);
            simulation.run_for(std::time::Duration::from_nanos(runs.get()));
        });
    }
}
