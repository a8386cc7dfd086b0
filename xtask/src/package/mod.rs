//! `cargo xtask package`: a Debian package and a tarball of what `install` installs, and of what an administrator
//! needs beside it.
//!
//! [`tree`] lists and writes the files, [`elf`] strips them and knows their libraries, [`archive`] packs them, [`debian`]
//! has what dpkg reads. `docs/design/122-packages.md` has the reasons.
//!
//! Invariants
//! * both packages have the same files, below different prefixes;
//! * the same files and the same moment give the same bytes.

mod archive;
mod debian;
mod elf;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::install::{self, texts};
use crate::metadata::Workspace;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The options of `package`.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// The folder that gets the packages.
    out: Option<PathBuf>,
    profile: String,
    /// The folder of an earlier build, from which the files are taken.
    built: Option<PathBuf>,
    /// gzip's: 1 is fast, 9 is small.
    level: String,
}

/// Builds, and makes both packages; true, or an error.
pub fn command(words: &[&str]) -> Result<bool> {
    let options = Options::parse(words)?;
    let workspace = Workspace::read()?;
    let root = &workspace.root;
    let out = options.out.clone().unwrap_or_else(|| root.join("target/package"));
    let work = out.join("work");
    empty(&work)?;
    let built = install::built(root, options.built.as_deref(), &options.profile)?;
    let built = elf::stripped(built, &work.join("stripped"))?;
    let moment = texts::moment(root)?;
    let (deb, tarball) = (work.join("deb"), work.join("tarball"));
    tree::write(root, &built, Path::new("/usr"), &deb)?;
    tree::write(root, &built, Path::new("/usr/local"), &tarball)?;
    let depends = elf::depends(&built)?;
    let packer = archive::Packer { moment, level: options.level };
    let name = format!("ropewalk-{VERSION}-{}-linux.tar.gz", std::env::consts::ARCH);
    let packages = [
        debian::package(root, &deb, &depends, &packer, &out)?,
        packer.files(&tarball, &out.join(name))?,
    ];
    fs::remove_dir_all(&work).with_context(|| cannot_write(&work))?;
    for package in packages {
        println!("{}", package.display());
    }
    Ok(true)
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options> {
        let mut options =
            Options { out: None, profile: "release".into(), built: None, level: "9".into() };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let (name, mut value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (*word, None),
            };
            let mut value = || {
                let value = value.take().or_else(|| rest.next().copied());
                value.with_context(|| format!("{name} needs a value: give one after it"))
            };
            match name {
                "--out" => options.out = Some(std::path::absolute(value()?)?),
                "--profile" => options.profile = value()?.to_string(),
                "--built" => options.built = Some(PathBuf::from(value()?)),
                "--level" => options.level = value()?.to_string(),
                _ => bail!(
                    "unknown argument '{word}': package takes --out DIR, --profile NAME, --built DIR and \
                     --level 1..9"
                ),
            }
        }
        if !matches!(options.level.as_bytes(), [b'1'..=b'9']) {
            bail!("--level {}: give a number from 1 (fast) to 9 (small)", options.level);
        }
        Ok(options)
    }
}

/// Makes a folder, empty.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| cannot_write(folder))?;
    }
    fs::create_dir_all(folder).with_context(|| cannot_write(folder))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}: give a folder of yours by --out DIR", path.display())
}

/// The output of a program that succeeds. `package`: where a missing one comes from.
fn output(command: &mut Command, package: &str) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.env("LC_ALL", "C").output();
    let output =
        output.with_context(|| format!("cannot start {name}: install the package {package}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed, and no package was made: {}", said.trim());
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_wrong_ones_are_refused_with_those_that_exist() {
        let plain = Options::parse(&[]).unwrap();
        assert_eq!((plain.profile.as_str(), plain.level.as_str()), ("release", "9"));
        let options = Options::parse(&["--out=/o", "--built", "/b", "--level", "1"]).unwrap();
        assert_eq!(options.out.as_deref(), Some(Path::new("/o")));
        assert_eq!(options.built.as_deref(), Some(Path::new("/b")));
        let refused = |words: &[&str]| Options::parse(words).unwrap_err().to_string();
        assert!(refused(&["--prefix", "/usr"]).contains("package takes --out DIR"));
        assert!(refused(&["--level", "12"]).contains("from 1 (fast) to 9"));
        assert!(refused(&["--out"]).contains("needs a value"));
    }
}
