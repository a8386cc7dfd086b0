//! `cargo xtask tidy`: the rules of the house that no compiler knows.
//!
//! * [`arrows`]: the crates that each crate may use,
//! * [`circles`]: files of a crate that use each other,
//! * [`source`]: unsafe code only in its places, file sizes, module headers, leftovers,
//! * [`names`]: no path or host of one machine in the tree,
//! * [`dependencies`]: a reason for each dependency,
//! * [`tour`]: the documents name only existing items.
//!
//! Invariant: each check is a function from text to findings, so that a test can show it failing.

mod arrows;
mod circles;
mod dependencies;
mod names;
mod source;
mod text;
mod tour;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::metadata::Workspace;

/// Something that a check noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Short name of the check.
    pub check: &'static str,
    /// The place, the finding and the remedy.
    pub text: String,
    /// False: only worth a look.
    pub fatal: bool,
}

impl Finding {
    fn error(check: &'static str, text: String) -> Finding {
        Finding { check, text, fatal: true }
    }

    fn warning(check: &'static str, text: String) -> Finding {
        Finding { check, text, fatal: false }
    }
}

/// A text file of the tree.
pub struct File {
    /// From the root of the workspace, with `/`.
    pub path: String,
    pub text: String,
}

/// Runs all checks and prints what they find; true if nothing fatal was found.
pub fn command() -> Result<bool> {
    let workspace = Workspace::read()?;
    let files = files(&workspace.root)?;
    let findings = check(&workspace, &files);
    for finding in &findings {
        let weight = if finding.fatal { "error" } else { "warning" };
        println!("{weight}[{}]: {}", finding.check, finding.text);
    }
    let errors = findings.iter().filter(|finding| finding.fatal).count();
    println!("tidy: {} files, {errors} errors, {} warnings", files.len(), findings.len() - errors);
    Ok(errors == 0)
}

fn check(workspace: &Workspace, files: &[File]) -> Vec<Finding> {
    let mut findings = arrows::check(workspace);
    findings.extend(circles::check(files));
    findings.extend(files.iter().flat_map(source::check));
    findings.extend(files.iter().flat_map(names::check));
    findings.extend(dependencies::check(workspace, files));
    findings.extend(tour::check(files));
    findings
}

/// Every text file that git knows or would take, so that a file is judged before it is committed.
fn files(root: &Path) -> Result<Vec<File>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git cannot be started; tidy asks it which files belong to the tree")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).split('\0').filter(|path| !path.is_empty())
    {
        // Binary files and links to nowhere have no text to judge; files deleted but still in the
        // index are gone.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            files.push(File { path: path.to_string(), text });
        }
    }
    Ok(files)
}
