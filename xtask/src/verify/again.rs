//! Failed tests that may run once more, and how their second run went.
//!
//! Tests in real time share the machine with everything else, and one of thousands fails now and then because a
//! processor came late. A few failed tests of a command therefore run a second time, alone. The reasons stand in
//! `docs/design/104-tests-that-run-again.md`.
//!
//! Invariants:
//! * only a test that its program names, in a program that went on to its end, runs again; after a crash, a time-out
//!   or a skip none does;
//! * a test passes only if its own program says so: not by a test of the same name in another one.

use super::count::Count;

/// The most failed tests of a command that run again. More of them are no accident.
const AGAIN_MAX: usize = 3;

/// Cargo's words before the options that choose a program whose tests failed.
const HINT: &str = "error: test failed, to rerun pass `";

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Its program, as cargo tells it: the source, and the file in parentheses.
    program: String,
    /// The options of cargo that choose the program, without the package.
    pub target: Vec<String>,
    pub test: String,
}

impl Failed {
    /// Source of its program, and its name.
    pub fn name(&self) -> String {
        let source = self.program.split(" (").next().unwrap_or_default();
        format!("{source} {}", self.test)
    }

    /// Whether the output of its second run says that it passed.
    pub fn passed_in(&self, output: &str) -> bool {
        let Some(own) = sections(output).into_iter().find(|it| it.program == self.program) else {
            return false;
        };
        let count = Count::of(&own.lines.join("\n"));
        (count.passed, count.failed, count.ignored) == (1, 0, 0) && count.skips.is_empty()
    }
}

/// The output of one test program.
struct Section<'a> {
    program: &'a str,
    lines: Vec<&'a str>,
}

fn sections(output: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    for line in output.lines() {
        let program = line.strip_prefix("     Running ").filter(|it| it.ends_with(')'));
        if let Some(program) = program {
            sections.push(Section { program, lines: Vec::new() });
        } else if line.starts_with("   Doc-tests ") {
            sections.push(Section { program: "", lines: Vec::new() });
        } else if let Some(section) = sections.last_mut() {
            section.lines.push(line);
        }
    }
    sections
}

impl Section<'_> {
    /// Its failed tests and the options that choose it; nothing where it did not get to its end, or does not name each.
    fn failed(&self) -> Option<(&str, Vec<&str>)> {
        let hint = self.lines.iter().rposition(|line| line.starts_with(HINT))?;
        let options = self.lines[hint].strip_prefix(HINT)?.strip_suffix('`')?;
        // The status is told where it is another one than that of failed tests.
        let is_crash = self.lines[hint..].iter().take(3).any(|line| *line == "Caused by:");
        let list = self.lines[..hint].iter().rposition(|line| *line == "failures:")?;
        let names = self.lines[list + 1..hint].iter().map_while(|line| line.strip_prefix("    "));
        let names: Vec<&str> = names.collect();
        let all = Count::of(&self.lines.join("\n")).failed == names.len();
        (all && !is_crash && !names.is_empty()).then_some((options, names))
    }
}

/// The programs of which cargo says at its end that they failed.
fn told_at_end(output: &str) -> Option<Vec<&str>> {
    let mut lines = output.lines().rev();
    let mut told = Vec::new();
    for line in &mut lines {
        match line.strip_prefix("    `").and_then(|line| line.strip_suffix('`')) {
            Some(options) => told.push(options),
            None => {
                told.reverse();
                let is_end = line.starts_with("error: ") && line.ends_with(" failed:");
                return (is_end && !told.is_empty()).then_some(told);
            }
        }
    }
    None
}

/// The failed tests of a command that may run again: all of them, or none.
pub fn failed(output: &str) -> Option<Vec<Failed>> {
    let told = told_at_end(output)?;
    let sections = sections(output);
    let found: Vec<_> =
        sections.iter().filter_map(|section| Some((section.program, section.failed()?))).collect();
    let is_all = found.iter().map(|(_, (options, _))| *options).eq(told);
    let failed: Vec<Failed> = found
        .iter()
        .flat_map(|(program, (options, names))| {
            names.iter().map(|name| Failed {
                program: (*program).to_string(),
                target: target(options),
                test: (*name).to_string(),
            })
        })
        .collect();
    let is_few = failed.len() <= AGAIN_MAX && failed.len() == Count::of(output).failed;
    (is_all && is_few).then_some(failed)
}

/// The options without the package: with another choice of packages cargo may build everything again.
fn target(options: &str) -> Vec<String> {
    let words: Vec<&str> = options.split(' ').collect();
    let words = match words.as_slice() {
        ["-p", _, rest @ ..] => rest,
        all => all,
    };
    words.iter().map(|word| (*word).to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a program as libtest and cargo print it, with such failed tests.
    fn program(source: &str, options: &str, failed: &[&str]) -> String {
        let mut text = format!("     Running {source} (target/debug/deps/{source}-01)\n\n");
        text += "running 9 tests\ntest good ... ok <0.1s>\n";
        for name in failed {
            // Noise of a child comes between the name and the verdict.
            text += &format!("test {name} ... noise\nFAILED <0.1s>\n");
        }
        text += "\nsuccesses:\n\nsuccesses:\n    good\n";
        if failed.is_empty() {
            return text + "\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n\n";
        }
        text += "\nfailures:\n\n---- x stdout ----\npanicked\n\n\nfailures:\n";
        failed.iter().for_each(|name| text += &format!("    {name}\n"));
        let many = failed.len();
        text += &format!("\ntest result: FAILED. 1 passed; {many} failed; 0 ignored; 0 measured\n");
        text + &format!("\nerror: test failed, to rerun pass `{options}`\n")
    }

    fn end(options: &[&str]) -> String {
        let lines: String = options.iter().map(|options| format!("    `{options}`\n")).collect();
        format!("error: {} targets failed:\n{lines}", options.len())
    }

    const ONE: &str = "-p x --test one";
    const UNITS: &str = "-p x --lib";

    #[test]
    fn a_few_named_failures_are_found_with_their_programs() {
        let output = program("one", ONE, &["a::b"])
            + &program("good", "", &[])
            + &program("unittests src/lib.rs", UNITS, &["c", "d"])
            + &end(&[ONE, UNITS]);
        let failed = failed(&output).unwrap();
        let told: Vec<_> = failed.iter().map(|it| (it.name(), it.target.join(" "))).collect();
        let wanted = [
            ("one a::b", "--test one"),
            ("unittests src/lib.rs c", "--lib"),
            ("unittests src/lib.rs d", "--lib"),
        ];
        let wanted = wanted.map(|(name, target)| (name.to_string(), target.to_string()));
        assert_eq!(told, wanted);
    }

    #[test]
    fn many_failures_crashes_and_what_is_not_named_stay_failures() {
        let one = program("one", ONE, &["a"]);
        assert!(failed(&(one.clone() + &end(&[ONE]))).is_some());
        let four = program("one", ONE, &["a", "b", "c", "d"]);
        assert_eq!(failed(&(four + &end(&[ONE]))), None, "four of them");
        let crash = "     Running tests/x.rs (target/x)\n\nrunning 1 test\ntest x ... error: test \
                     failed, to rerun pass `-p x --test x`\n\nCaused by:\n  process didn't exit \
                     successfully: `x` (signal: 6, SIGABRT: process abort signal)\n";
        let both = one.clone() + crash + &end(&[ONE, "-p x --test x"]);
        assert_eq!(failed(&both), None, "one that failed and one that crashed");
        let late = one.clone() + "\nCaused by:\n  process didn't exit successfully (signal: 11)\n";
        assert_eq!(failed(&(late + &end(&[ONE]))), None, "a crash after the tests");
        let doc =
            one.clone() + "   Doc-tests x\nerror: doctest failed, to rerun pass `-p x --doc`\n";
        assert_eq!(failed(&(doc + &end(&[ONE, "-p x --doc"]))), None, "an example");
        let unnamed = one.replace("failures:\n    a\n", "failures:\n");
        assert_eq!(failed(&(unnamed + &end(&[ONE]))), None, "no name");
        assert_eq!(failed(&one), None, "cut off before its end");
        assert_eq!(failed("error: could not compile `x`\n"), None);
    }

    #[test]
    fn a_second_run_passes_only_by_the_test_itself() {
        let output = program("one", ONE, &["good"]) + &end(&[ONE]);
        let failed = failed(&output).unwrap().remove(0);
        let other = program("other", "", &[]);
        assert!(!failed.passed_in(&other), "another program has a test of this name");
        assert!(failed.passed_in(&(other.clone() + &program("one", "", &[]))));
        assert!(!failed.passed_in(&output));
        let none = program("one", "", &[]).replace("1 passed", "0 passed");
        assert!(!failed.passed_in(&(other + &none)), "it did not run");
        let skip = program("one", "", &[]).replace("\ntest result", "\nSKIP: no card\ntest result");
        assert!(!failed.passed_in(&skip), "it was skipped");
    }
}
