//! Nothing in the tree may hold only on the machine where it was written.
//!
//! * no path of a workplace,
//! * no host of a package registry: which registry cargo asks is the machine's affair, so
//!   `Cargo.lock` names the public index and nothing else, and no manifest redirects it.

use super::{File, Finding};

/// Beginnings of paths. Written in two halves, so that this file passes its own check.
const PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/tmp", "/wt")];

/// Hosts and settings that tie the tree to a registry, in two halves as well.
const REGISTRIES: &[&str] = &[
    concat!("index.crat", "es.io"),
    concat!("static.crat", "es.io"),
    concat!("replace", "-with"),
    concat!("[sour", "ce."),
    concat!("[regis", "tries"),
];

/// The one source that the lock file may name.
const PUBLIC_INDEX: &str = "\"registry+https://github.com/rust-lang/crates.io-index\"";

/// All findings about one file.
pub fn check(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        let mut complain = |text: String| {
            findings.push(Finding::error("machine", format!("{}:{number}: {text}", file.path)));
        };
        for path in PATHS.iter().filter(|path| names_path(line, path)) {
            complain(format!("{path} exists on one machine only"));
        }
        for registry in REGISTRIES.iter().filter(|registry| line.contains(**registry)) {
            complain(format!("{registry} ties the tree to a package registry"));
        }
        let source = line.strip_prefix("source = ").filter(|_| file.path.ends_with("Cargo.lock"));
        if let Some(source) = source.filter(|source| *source != PUBLIC_INDEX) {
            complain(format!("the lock file names {source} instead of the public index"));
        }
    }
    findings
}

/// Whether an absolute path begins with `path` here: not as the tail of a longer one.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || "_-.~}/".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        check(&File { path: path.to_string(), text: text.to_string() }).len()
    }

    #[test]
    fn paths_of_a_machine_are_refused() {
        for path in PATHS {
            assert_eq!(findings("docs/a.md", &format!("see `{path}x`")), 1);
            assert_eq!(findings("core/src/a.rs", &format!("open(\"{path}x\")")), 1);
            assert_eq!(findings("docs/a.md", &format!("https://example.org{path}x")), 0);
        }
    }

    #[test]
    fn registries_are_refused_and_the_public_index_is_not() {
        for registry in REGISTRIES {
            assert_eq!(findings(".cargo/config.toml", registry), 1);
        }
        let lock = |source: &str| findings("Cargo.lock", &format!("source = {source}\n"));
        assert_eq!(lock(PUBLIC_INDEX), 0);
        assert_eq!(lock("\"registry+https://mirror.example.org/index\""), 1);
        assert_eq!(lock("\"git+https://example.org/x\""), 1);
    }
}
