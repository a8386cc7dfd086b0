//! Files that the built command prints itself: manual pages, completions, the example configuration.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::plan::{Item, What};

/// A text that the program prints, its arguments, and its place below the prefix.
const TEXTS: &[(&str, &[&str])] = &[
    ("share/man/man1/ropewalk.1", &["manual", "ropewalk.1"]),
    ("share/man/man5/ropewalk.toml.5", &["manual", "ropewalk.toml.5"]),
    ("share/man/man8/mount.ropewalk.8", &["manual", "mount.ropewalk.8"]),
    ("share/doc/ropewalk/examples/ropewalk.toml", &["manual", "ropewalk.toml"]),
    ("share/bash-completion/completions/ropewalk", &["completions", "bash"]),
    ("share/fish/vendor_completions.d/ropewalk.fish", &["completions", "fish"]),
];

/// Where zsh finds completions: packages of Debian have a folder of their own.
const ZSH: [&str; 2] =
    ["share/zsh/vendor-completions/_ropewalk", "share/zsh/site-functions/_ropewalk"];

/// All texts for `prefix`. `moment`: seconds since 1970, of whose day the pages are.
pub fn texts(program: &Path, prefix: &Path, moment: &str) -> Result<Vec<Item>> {
    let zsh = ZSH[usize::from(prefix != Path::new("/usr"))];
    let all = TEXTS.iter().copied().chain([(zsh, &["completions", "zsh"][..])]);
    let item = |(path, arguments): (&str, &[&str])| {
        let text = printed(program, arguments, moment)?;
        Ok(Item { path: PathBuf::from(path), what: What::Text(text) })
    };
    all.map(item).collect()
}

fn printed(program: &Path, arguments: &[&str], moment: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("SOURCE_DATE_EPOCH", moment);
    let output = command.output().with_context(|| format!("cannot start {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "'{} {}' failed: build the command again, and nothing was installed: {}",
            program.display(),
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    String::from_utf8(output.stdout).context("the command printed no text")
}

/// The moment of the files: `SOURCE_DATE_EPOCH`, else that of the last commit, else 0.
pub fn moment(root: &Path) -> Result<String> {
    if let Ok(told) = std::env::var("SOURCE_DATE_EPOCH") {
        if told.parse::<u32>().is_err() {
            bail!(
                "SOURCE_DATE_EPOCH='{told}' is not a number of seconds since 1970: correct it, or unset it"
            );
        }
        return Ok(told);
    }
    let mut git = Command::new("git");
    git.current_dir(root).args(["log", "-1", "--format=%ct"]);
    let told = git.output().ok().filter(|output| output.status.success());
    let told = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_string());
    Ok(told.filter(|told| told.parse::<u32>().is_ok()).unwrap_or_else(|| "0".to_string()))
}
