//! Parses the output of test runs: numbers, skipped tests, times; and finds the part that matters after a failure.
//!
//! A test that cannot run here prints `SKIP: ` and the reason at the beginning of a line.

/// Numbers of one or several test runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
    /// The `SKIP:` lines, as printed, each once.
    pub skips: Vec<String>,
    /// Tests that passed only when they ran again.
    pub again: Vec<String>,
    /// Each test that told its time.
    pub times: Vec<Timed>,
}

/// A test with the time that it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    pub seconds: f64,
    /// The source of its program, and its name.
    pub name: String,
}

/// The first words of cargo's progress lines during a build.
const BUILDING: [&str; 7] =
    ["Compiling", "Checking", "Documenting", "Downloading", "Downloaded", "Updating", "Finished"];

/// The part of a failed command's output that says why it failed: without the progress of the build, passing tests
/// and their output.
pub fn telling(output: &str) -> String {
    let mut kept = String::new();
    let mut of_passed = false;
    for line in output.lines() {
        of_passed = match line {
            "successes:" => true,
            "failures:" => false,
            line if line.starts_with("test result:") => false,
            _ => of_passed,
        };
        let progress = BUILDING.contains(&line.split_whitespace().next().unwrap_or_default());
        let passed = line.starts_with("test ") && test_of(line).is_some_and(|(_, how)| how == "ok");
        if !of_passed && !progress && !passed {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// Name and verdict of a test, of the line that reports it.
fn test_of(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    Some((name, rest.split(' ').next()?))
}

impl Count {
    /// Reads the output of any number of test programs.
    pub fn of(output: &str) -> Count {
        let mut count = Count::default();
        let mut program = "";
        for line in output.lines().map(str::trim_end) {
            if let Some(source) = line.trim_start().strip_prefix("Running ") {
                program = source.split(" (").next().unwrap_or_default();
            } else if let Some((name, _)) = test_of(line)
                && let Some(seconds) = time_of(line)
            {
                count.times.push(Timed { seconds, name: format!("{program} {name}") });
            }
            if let Some(result) = line.strip_prefix("test result: ") {
                count.passed += number_before(result, " passed");
                count.failed += number_before(result, " failed");
                count.ignored += number_before(result, " ignored");
            } else if line.starts_with("SKIP:") && !count.skips.iter().any(|skip| skip == line) {
                count.skips.push(line.to_string());
            }
        }
        count
    }

    /// Adds another run.
    pub fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.skips.extend(other.skips);
        self.again.extend(other.again);
        self.times.extend(other.times);
    }

    /// A test that had failed passed when it ran again.
    pub fn passed_again(&mut self, name: String) {
        self.failed -= 1;
        self.passed += 1;
        self.again.push(name);
    }

    /// So many of the slowest tests, the slowest first.
    pub fn slowest(&self, many: usize) -> Vec<&Timed> {
        let mut all: Vec<&Timed> = self.times.iter().collect();
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        all.truncate(many);
        all
    }
}

/// The time at the end of a line that reports a test: `<1.234s>`.
fn time_of(line: &str) -> Option<f64> {
    line.strip_suffix("s>")?.rsplit_once(" <")?.1.parse().ok()
}

fn number_before(text: &str, unit: &str) -> usize {
    let Some((before, _)) = text.split_once(unit) else { return 0 };
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_are_summed_and_skips_kept() {
        let output = "running 3 tests\n\
            test result: ok. 12 passed; 0 failed; 2 ignored; 0 measured; finished in 0.1s\n\
            SKIP: there is no /dev/fuse here\nSKIP: there is no /dev/fuse here\n\
            the word SKIP: inside a line is none\n \x20  SKIP: nor is an indented one\n\
            test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured\n";
        let count = Count::of(output);
        assert_eq!((count.passed, count.failed, count.ignored), (15, 1, 2));
        assert_eq!(count.skips, ["SKIP: there is no /dev/fuse here"]);
        assert_eq!(Count::of("test result: garbage"), Count::default());
    }

    #[test]
    fn the_slowest_tests_are_named_with_their_programs() {
        let output = "     Running tests/one.rs (target/debug/deps/one-0123)\n\
            test quick ... ok <0.010s>\ntest slow ... FAILED <12.500s>\n\
            \x20    Running unittests src/lib.rs (target/debug/deps/two-0123)\n\
            test a::b ... ok <3.000s>\ntest untimed ... ok\n";
        let count = Count::of(output);
        let slowest: Vec<_> =
            count.slowest(2).iter().map(|it| (it.seconds, it.name.as_str())).collect();
        assert_eq!(slowest, [(12.5, "tests/one.rs slow"), (3.0, "unittests src/lib.rs a::b")]);
    }

    #[test]
    fn a_failure_is_shown_without_what_went_well() {
        let output = "   Compiling libc v1.0\nwarning: odd\n    Finished `test` profile\n\
            \x20    Running tests/one.rs (target/one)\n\nrunning 2 tests\ntest good ... ok <0.1s>\n\
            test bad ... FAILED <0.1s>\n\nsuccesses:\n\n---- good stdout ----\nfine\n\n\
            failures:\n\n---- bad stdout ----\npanicked\n\ntest result: FAILED. 1 passed\n";
        let wanted = "warning: odd\n     Running tests/one.rs (target/one)\n\nrunning 2 tests\n\
            test bad ... FAILED <0.1s>\n\nfailures:\n\n---- bad stdout ----\npanicked\n\n\
            test result: FAILED. 1 passed\n";
        assert_eq!(telling(output), wanted);
        let error = "   Compiling x v0.1.0\nerror: linking with `cc` failed\n";
        assert_eq!(telling(error), "error: linking with `cc` failed\n");
    }
}
