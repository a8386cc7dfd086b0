//! What the output of test runs says: numbers and skipped tests.
//!
//! A test that cannot run here prints `SKIP: ` and the reason at the beginning of a line.

/// Numbers of one or several test runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
    /// The `SKIP:` lines, as printed, each once.
    pub skips: Vec<String>,
}

impl Count {
    /// Reads the output of any number of test programs.
    pub fn of(output: &str) -> Count {
        let mut count = Count::default();
        for line in output.lines().map(str::trim_end) {
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
    }
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
}
