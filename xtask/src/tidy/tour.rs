//! The tours (`docs/tour/*.md`) name functions by file; those must exist.
//!
//! The format: a line that names a file in backticks (`path/file.rs`) and, in backticks on the same
//! line, names that are defined in that file. A name may be written with its type (`Type::name`) or
//! with parentheses. Other words in backticks that are no plain names are left alone.

use super::text::{has_word, split};
use super::{File, Finding};

/// The keywords that may define a name.
const DEFINERS: &[&str] =
    &["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "macro_rules!", "union"];

/// All findings about all tours.
pub fn check(files: &[File]) -> Vec<Finding> {
    let is_tour = |file: &&File| file.path.starts_with("docs/tour/") && file.path.ends_with(".md");
    let mut findings = Vec::new();
    for tour in files.iter().filter(is_tour) {
        for (number, line) in (1..).zip(tour.text.lines()) {
            let place = format!("{}:{number}", tour.path);
            findings.extend(
                check_line(line, files)
                    .into_iter()
                    .map(|text| Finding::error("tour", format!("{place}: {text}"))),
            );
        }
    }
    findings
}

fn check_line(line: &str, files: &[File]) -> Vec<String> {
    let quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
    let Some(path) = quoted.iter().find(|word| word.ends_with(".rs")) else { return Vec::new() };
    let Some(file) = files.iter().find(|file| file.path == *path) else {
        return vec![format!("there is no file {path}")];
    };
    let code = split(&file.text).code;
    let missing = quoted
        .iter()
        .filter_map(|word| plain_name(word))
        .filter(|name| !code.lines().any(|line| defines(line, name)));
    missing.map(|name| format!("{path} defines no {name}")).collect()
}

/// The last part of `name`, `name()` or `Type::name`; none if it is something else.
fn plain_name(word: &str) -> Option<&str> {
    let path = word.strip_suffix("()").unwrap_or(word);
    let name = path.rsplit("::").next()?;
    let is_plain = |part: &str| {
        part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
    };
    path.split("::").all(is_plain).then_some(name)
}

fn defines(line: &str, name: &str) -> bool {
    // A variant stands alone at the beginning of its line.
    let variant = line
        .trim_start()
        .strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([',', '(', ' ']))
        && name.starts_with(|c: char| c.is_ascii_uppercase());
    variant || DEFINERS.iter().any(|definer| has_word(line, &format!("{definer} {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(line: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let source = "pub struct Rope {\n}\nimpl Rope {\n    pub(crate) fn lay(&self) {}\n}\n\
                      enum Kind {\n    Hemp,\n}\n// fn twist()\n";
        let files = [file("docs/tour/a.md", line), file("walk/src/rope.rs", source)];
        check(&files).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn names_that_exist_pass_in_every_form() {
        for line in [
            "1. `walk/src/rope.rs`: `lay` lays the rope in 3 steps (`a + b`)",
            "`Rope::lay()` in `walk/src/rope.rs` and `Kind`, `Hemp`",
            "no file, so `anything` goes",
        ] {
            assert_eq!(findings(line), [""; 0], "{line}");
        }
    }

    #[test]
    fn names_and_files_that_do_not_exist_are_found() {
        let twist = findings("`walk/src/rope.rs` has `twist`");
        assert_eq!(twist, ["docs/tour/a.md:1: walk/src/rope.rs defines no twist"]);
        assert_eq!(findings("`walk/src/rope.rs`: `la` and `Rop`").len(), 2);
        let gone = findings("`walk/src/sail.rs`: `lay`");
        assert_eq!(gone, ["docs/tour/a.md:1: there is no file walk/src/sail.rs"]);
    }
}
