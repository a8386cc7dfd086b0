//! The files that a change has touched, according to git.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The branches from which a branch may have begun, in the order in which they are tried.
const MAINS: [&str; 4] = ["origin/main", "main", "origin/master", "master"];

/// Files that differ from `base`, or from the point at which this branch left the main one; uncommitted files, too.
pub fn since(root: &Path, base: Option<&str>) -> Result<Vec<PathBuf>> {
    let base = match base {
        Some(base) => base.to_string(),
        None => left_main(root)?,
    };
    let commit = format!("{base}^{{commit}}");
    if git(root, &["rev-parse", "--verify", "--quiet", &commit]).is_err() {
        bail!("git does not know the commit '{base}'; give a branch, a tag or a commit");
    }
    let mut files = listed(&git(root, &["diff", "--name-only", "-z", &base])?);
    files.extend(listed(&git(root, &["ls-files", "--others", "--exclude-standard", "-z"])?));
    Ok(files)
}

/// The commit that this branch and the main one have in common. On the main one itself: the commit before.
fn left_main(root: &Path) -> Result<String> {
    for main in MAINS {
        let Ok(common) = git(root, &["merge-base", "HEAD", main]) else { continue };
        let common = common.trim().to_string();
        let head = git(root, &["rev-parse", "HEAD"])?;
        let clean = git(root, &["status", "--porcelain"])?.is_empty();
        return Ok(if head.trim() == common && clean { "HEAD~1".into() } else { common });
    }
    bail!("there is no main branch to compare with; give --changed BASE")
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .current_dir(root)
        .args(arguments)
        .output()
        .context("git cannot be started; it is asked what has changed")?;
    if !output.status.success() {
        bail!(
            "git {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn listed(output: &str) -> Vec<PathBuf> {
    output.split('\0').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_worktree_and_new_files_count_and_an_unknown_base_is_named() {
        let folder = std::env::temp_dir().join(format!("ropewalk-changes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let run = |arguments: &[&str]| git(&folder, arguments).unwrap();
        let write = |name: &str| std::fs::write(folder.join(name), name).unwrap();
        let names = |base| -> Vec<String> {
            let mut files = since(&folder, base).unwrap();
            files.sort();
            files.iter().map(|file| file.display().to_string()).collect()
        };
        run(&["init", "--quiet", "--initial-branch", "main"]);
        run(&["config", "user.email", "a@b"]);
        run(&["config", "user.name", "a"]);
        for name in ["one", "two"] {
            write(name);
            run(&["add", name]);
            run(&["commit", "--quiet", "-m", name]);
        }
        assert_eq!(names(None), ["two"], "on main: the last commit");
        run(&["checkout", "--quiet", "-b", "branch"]);
        write("three");
        run(&["add", "three"]);
        run(&["commit", "--quiet", "-m", "three"]);
        write("four");
        std::fs::write(folder.join("one"), "changed").unwrap();
        assert_eq!(names(None), ["four", "one", "three"]);
        assert_eq!(names(Some("main~1")), ["four", "one", "three", "two"]);
        let error = since(&folder, Some("nowhere")).unwrap_err().to_string();
        assert!(error.contains("does not know the commit 'nowhere'"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
