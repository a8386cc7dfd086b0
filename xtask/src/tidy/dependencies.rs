//! Each direct dependency has a line of reason in `docs/DEPENDENCIES.md`, and each line a dependency.
//!
//! The format of a line: a list item that begins with the name in backticks, then a colon.

use std::collections::BTreeSet;

use super::{File, Finding};
use crate::metadata::Workspace;

const DOCUMENT: &str = "docs/DEPENDENCIES.md";

/// All findings; one per name.
pub fn check(workspace: &Workspace, files: &[File]) -> Vec<Finding> {
    let text = |path: &str| {
        files.iter().find(|file| file.path == path).map_or("", |file| file.text.as_str())
    };
    let reasons: BTreeSet<&str> = text(DOCUMENT).lines().filter_map(reason).collect();
    let mut used: BTreeSet<&str> = listed(text("Cargo.toml")).collect();
    for package in &workspace.packages {
        let foreign = package.dependencies.iter().filter(|dependency| !dependency.ours);
        used.extend(foreign.map(|dependency| dependency.name.as_str()));
    }
    let missing = used.difference(&reasons).map(|name| {
        let text = format!("{name} is a direct dependency without a reason in {DOCUMENT}");
        Finding::error("dependency", text)
    });
    let stale = reasons.difference(&used).map(|name| {
        let text = format!("{DOCUMENT} gives a reason for {name}, which nothing depends on");
        Finding::error("dependency", text)
    });
    missing.chain(stale).collect()
}

/// The name that a line gives a reason for.
fn reason(line: &str) -> Option<&str> {
    let (name, reason) = line.trim_start().strip_prefix("* `")?.split_once("`:")?;
    (!reason.trim().is_empty()).then_some(name)
}

/// The foreign names under `[workspace.dependencies]` of the root manifest.
fn listed(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .map(str::trim)
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#') && !line.contains("path ="))
        .filter_map(|line| line.split_once('=').map(|(name, _)| name.trim()))
        .map(|name| name.strip_suffix(".workspace").unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Dependency, Package};

    fn findings(document: &str) -> Vec<String> {
        let manifest = "[workspace]\nresolver = \"3\"\n[workspace.dependencies]\n# ours\n\
                        ours = { path = \"ours\" }\nropes = \"1\"\n[profile.dev]\nopt-level = 1\n";
        let file = |path: &str, text: &str| File { path: path.into(), text: text.into() };
        let dependency = Dependency { name: "knots".into(), dev: true, ours: false };
        let package = Package {
            name: "a".into(),
            folder: Default::default(),
            library: true,
            dependencies: vec![dependency],
            tests: Vec::new(),
        };
        let workspace =
            Workspace { root: "/".into(), packages: vec![package], left_out: Vec::new() };
        let files = [file("Cargo.toml", manifest), file(DOCUMENT, document)];
        check(&workspace, &files).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn a_name_without_a_reason_and_a_reason_without_a_name_are_found() {
        assert_eq!(findings("* `ropes`: they hold.\n* `knots`: they bind.\n"), [""; 0]);
        let missing = findings("* `ropes`: they hold.\n* `knots`:\n");
        assert_eq!(missing.len(), 1);
        assert!(missing[0].starts_with("knots is a direct dependency without"), "{missing:?}");
        let stale = findings("* `ropes`: x\n* `knots`: x\n* `sails`: gone\n");
        assert!(stale.len() == 1 && stale[0].contains("sails"), "{stale:?}");
        assert_eq!(findings("").len(), 2);
    }
}
