//! Checks on Rust source: places of unsafe code, sizes, headers, leftovers.

use super::text::{has_word, split};
use super::{File, Finding};

/// Lines from which a file is worth a look, and beyond which it is refused.
const LINES_WARN: usize = 600;
const LINES_MAX: usize = 1000;

/// The places in which unsafe code is allowed: folders end in `/`, `*` stands for any end of the file's name.
const UNSAFE_PLACES: &[&str] = &[
    "rail/",
    "face/bmi/",
    "face/mx/",
    "face/rma/",
    "face/ofi/",
    "face/py/",
    "face/mount/",
    "base/src/pool.rs",
    "base/src/pool/",
    "base/src/memory.rs",
    "base/src/memory/",
    "base/src/ring*",
    "fs/store/src/host_disk.rs",
];

/// Macros that mean unfinished work, and words in comments that do.
const UNFINISHED: &[&str] = &["todo!", "unimplemented!", "dbg!"];
const LEFTOVERS: &[&str] = &["TODO", "FIXME", "XXX"];

/// All findings about one file; none about files that are not Rust.
pub fn check(file: &File) -> Vec<Finding> {
    if !file.path.ends_with(".rs") {
        return Vec::new();
    }
    let mut findings: Vec<Finding> = size(file).into_iter().collect();
    findings.extend(header(file));
    let halves = split(&file.text);
    for (number, code) in (1..).zip(halves.code.lines()) {
        if has_word(code, "unsafe") && !may_be_unsafe(&file.path) {
            findings.push(Finding::error(
                "unsafe",
                format!(
                    "{}:{number}: unsafe code outside its places ({})",
                    file.path,
                    UNSAFE_PLACES.join(", ")
                ),
            ));
        }
        for word in UNFINISHED.iter().filter(|word| has_word(code, word)) {
            findings.push(Finding::error(
                "unfinished",
                format!("{}:{number}: {word} has no place in the tree", file.path),
            ));
        }
    }
    for (number, comment) in (1..).zip(halves.comments.lines()) {
        for word in LEFTOVERS.iter().filter(|word| has_word(comment, word)) {
            findings.push(Finding::error(
                "unfinished",
                format!("{}:{number}: {word} in a comment: do it, or open an issue", file.path),
            ));
        }
    }
    findings
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE_PLACES.iter().any(|place| match place.strip_suffix(['*', '/']) {
        Some(_) => path.starts_with(place.trim_end_matches('*')),
        None => path == *place,
    })
}

fn size(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let text = format!("{}: {lines} lines; split it by noun (aim for 150 to 350)", file.path);
    if lines > LINES_MAX {
        Some(Finding::error("size", text))
    } else if lines > LINES_WARN {
        Some(Finding::warning("size", text))
    } else {
        None
    }
}

fn header(file: &File) -> Option<Finding> {
    let in_source = file.path.starts_with("src/") || file.path.contains("/src/");
    let mut lines = file.text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with("#!["));
    // The tests of a module that moved to a file beside it belong to that module's header.
    let in_tests = file.path.ends_with("/tests.rs") || file.path.contains("/tests/");
    if !in_source || in_tests || first.is_some_and(|line| line.starts_with("//!")) {
        return None;
    }
    Some(Finding::error(
        "header",
        format!("{}: no //! header: what is it for, what holds, what must it not know?", file.path),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(&'static str, bool)> {
        let file = File { path: path.to_string(), text: text.to_string() };
        check(&file).into_iter().map(|finding| (finding.check, finding.fatal)).collect()
    }

    #[test]
    fn unsafe_code_is_refused_outside_its_places() {
        let text = "//! x\nfn f() { unsafe { g() } }\n";
        for path in
            ["core/src/a.rs", "base/src/slots.rs", "fs/store/src/object.rs", "face/cli/src/m.rs"]
        {
            assert_eq!(found(path, text), [("unsafe", true)], "{path}");
        }
        for path in [
            "rail/shm/src/ring.rs",
            "face/mount/src/abi.rs",
            "base/src/pool.rs",
            "base/src/ring_byte.rs",
            "fs/store/src/host_disk.rs",
        ] {
            assert_eq!(found(path, text), [], "{path}");
        }
        let harmless =
            "//! unsafe\n#![forbid(unsafe_code)]\nconst A: &str = \"unsafe\"; // unsafe\n";
        assert_eq!(found("core/src/a.rs", harmless), []);
    }

    #[test]
    fn long_files_warn_and_longer_ones_fail() {
        let lines = |count: usize| "//! x\n".repeat(count);
        assert_eq!(found("core/src/a.rs", &lines(LINES_WARN)), []);
        assert_eq!(found("core/src/a.rs", &lines(LINES_WARN + 1)), [("size", false)]);
        assert_eq!(found("core/src/a.rs", &lines(LINES_MAX)), [("size", false)]);
        assert_eq!(found("core/src/a.rs", &lines(LINES_MAX + 1)), [("size", true)]);
        assert_eq!(found("docs/long.md", &lines(LINES_MAX + 1)), []);
    }

    #[test]
    fn modules_need_a_header_and_tests_outside_src_do_not() {
        assert_eq!(found("core/src/a.rs", "fn f() {}\n"), [("header", true)]);
        assert_eq!(found("core/src/a.rs", ""), [("header", true)]);
        assert_eq!(found("core/src/a.rs", "#![forbid(unsafe_code)]\n\n//! for x\n"), []);
        assert_eq!(found("core/tests/a.rs", "fn f() {}\n"), []);
        assert_eq!(found("core/src/a/tests.rs", "fn f() {}\n"), []);
        assert_eq!(found("core/src/a/latests.rs", "fn f() {}\n"), [("header", true)]);
    }

    #[test]
    fn leftovers_are_refused_in_code_and_comments() {
        for line in ["todo!()", "unimplemented!(\"x\")", "dbg!(x)", "// FIXME later", "/* XXX */"] {
            let text = format!("//! x\nfn f() {{ {line}\n}}\n");
            assert_eq!(found("core/src/a.rs", &text), [("unfinished", true)], "{line}");
        }
        let harmless = "//! x\nconst A: &str = \"todo!() FIXME\";\nfn todo() {}\n";
        assert_eq!(found("core/src/a.rs", harmless), []);
    }
}
