//! `cargo xtask install`: puts the files that users need into a prefix, from a release build or what a build has left.
//!
//! [`plan`] lists the files and their destinations; [`texts`] asks the command for some of them; [`place`] writes them.
//! Packages ([`crate::package`]) have the same files.
//!
//! Invariants
//! * a file is replaced atomically, so that a program that runs from it keeps the old file;
//! * nothing is written before all files to install were found.

pub mod place;
pub mod plan;
pub mod texts;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::plan::{Built, Item};
use crate::metadata::{Workspace, cargo};

/// The options of `install`.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// The prefix under which the files will be used.
    prefix: PathBuf,
    /// The directory put before the prefix while files are written: for packages.
    staging: Option<PathBuf>,
    profile: String,
    /// The folder of an earlier build, from which the files are taken.
    built: Option<PathBuf>,
}

/// Builds and installs; true, or an error.
pub fn command(words: &[&str]) -> Result<bool> {
    let options = Options::parse(words)?;
    let workspace = Workspace::read()?;
    // Before the build, which takes minutes.
    place::prepare(&options.root())?;
    let built = built(&workspace.root, options.built.as_deref(), &options.profile)?;
    let items = items(&workspace.root, &built, &options.prefix)?;
    for line in place::all(&items, &options.root())? {
        println!("{line}");
    }
    println!("{}", plan::advice(&options.prefix, options.staging.is_some()));
    Ok(true)
}

/// The files of an earlier build in `folder`, or of a new one.
pub fn built(root: &Path, folder: Option<&Path>, profile: &str) -> Result<Built> {
    let mut built = match folder {
        Some(folder) => Built::of(folder)?,
        None => build(root, profile)?,
    };
    built.mx = link_mx(root, &built.mx_archive)?;
    Ok(built)
}

/// All that is installed below `prefix`.
pub fn items(root: &Path, built: &Built, prefix: &Path) -> Result<Vec<Item>> {
    let mut items = plan::plan(root, built, prefix)?;
    items.extend(texts::texts(&built.program, prefix, &texts::moment(root)?)?);
    Ok(items)
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options> {
        let (mut prefix, mut staging, mut built) = (None, None, None);
        let mut profile = "release".to_string();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let (name, mut value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (*word, None),
            };
            let mut value =
                || value.take().or_else(|| rest.next().copied()).with_context(|| no_value(name));
            match name {
                "--prefix" => prefix = Some(PathBuf::from(value()?)),
                "--destdir" => staging = Some(PathBuf::from(value()?)),
                "--profile" => profile = value()?.to_string(),
                "--built" => built = Some(PathBuf::from(value()?)),
                _ => bail!(
                    "unknown argument '{word}': install takes --prefix DIR, --destdir DIR and --built DIR"
                ),
            }
        }
        let prefix = prefix
            .context("the target is missing: give --prefix /usr/local, or --prefix ~/.local")?;
        if !prefix.is_absolute() {
            bail!("--prefix {}: give a path that begins with /", prefix.display());
        }
        Ok(Options { prefix, staging, profile, built })
    }

    /// The directory into which files of the prefix are written.
    fn root(&self) -> PathBuf {
        let inside = self.prefix.strip_prefix("/").unwrap_or(&self.prefix);
        self.staging.as_ref().map_or_else(|| self.prefix.clone(), |staging| staging.join(inside))
    }
}

fn no_value(name: &str) -> String {
    format!("{name} needs a value")
}

/// Builds the library and the command; cargo itself says what it does.
fn build(root: &Path, profile: &str) -> Result<Built> {
    let output = Command::new(cargo())
        .current_dir(root)
        .args(["build", "--locked", "--package", "ropewalk-bmi", "--package", "ropewalk-cli"])
        .args(["--package", "ropewalk-mx", "--package", "ropewalk-rma-face"])
        .args(["--profile", profile, "--message-format", "json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the build failed; nothing was installed");
    }
    in_messages(&String::from_utf8_lossy(&output.stdout))
}

/// Links the shared objects of MX, beside their archive. Each is replaced atomically: another process may read it.
fn link_mx(root: &Path, archive: &Path) -> Result<Vec<PathBuf>> {
    let place = archive.parent().context("the archive of MX lies in a folder")?;
    let (folder, new) = (place.join("mx"), place.join(format!("mx-{}", std::process::id())));
    std::fs::create_dir_all(&folder)?;
    std::fs::create_dir_all(&new)?;
    let link = |name: &&str| {
        let mut command = Command::new("sh");
        command.arg(root.join(plan::MX_LINK)).arg(archive).arg(&new).arg(name);
        let status = command.status().context("sh cannot be started")?;
        if !status.success() {
            bail!("{name} could not be linked; nothing was installed");
        }
        std::fs::rename(new.join(name), folder.join(name))?;
        Ok(folder.join(name))
    };
    let linked = plan::MX_OBJECTS.iter().map(link).collect();
    // Empty, unless the linker left something.
    let _ = std::fs::remove_dir_all(&new);
    linked
}

/// Finds what was built in cargo's messages, one JSON object a line.
fn in_messages(messages: &str) -> Result<Built> {
    let (mut bmi, mut rma) = ((None, None), (None, None));
    let (mut program, mut mx_archive) = (None, None);
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let ending = |wanted: &str| {
            let mut files = message["filenames"].as_array().into_iter().flatten().filter_map(path);
            files.find(|file| file.extension().is_some_and(|it| it == wanted))
        };
        match message["target"]["name"].as_str() {
            Some("bmi") => bmi = (ending("so").or(bmi.0), ending("a").or(bmi.1)),
            Some("ropewalk_rma_face") => rma = (ending("so").or(rma.0), ending("a").or(rma.1)),
            Some("ropewalk_mx") => mx_archive = ending("a").or(mx_archive),
            Some("ropewalk") => program = path(&message["executable"]).or(program),
            _ => {}
        }
    }
    Ok(Built {
        shared: bmi.0.context("cargo built no libbmi.so")?,
        archive: bmi.1.context("cargo built no libbmi.a")?,
        program: program.context("cargo built no ropewalk")?,
        mx_archive: mx_archive.context("cargo built no libropewalk_mx.a")?,
        mx: Vec::new(),
        rma_shared: rma.0.context("cargo built no libropewalk_rma_face.so")?,
        rma_archive: rma.1.context("cargo built no libropewalk_rma_face.a")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_needed_and_begins_at_the_root() {
        let options = Options::parse(&["--prefix", "/usr/local"]).unwrap();
        assert_eq!(options.root(), Path::new("/usr/local"));
        assert_eq!(options.profile, "release");
        assert_eq!(options.built, None);
        let options =
            Options::parse(&["--destdir=/tmp/package", "--prefix=/usr", "--built=/t"]).unwrap();
        assert_eq!(options.root(), Path::new("/tmp/package/usr"));
        assert_eq!(options.built.as_deref(), Some(Path::new("/t")));
        let refused = |words: &[&str]| Options::parse(words).unwrap_err().to_string();
        assert!(refused(&[]).contains("--prefix /usr/local"));
        assert!(refused(&["--prefix"]).contains("needs a value"));
        assert!(refused(&["--prefix", "here"]).contains("begins with /"));
        assert!(refused(&["--perfix", "/usr"]).contains("--perfix"));
    }

    #[test]
    fn what_cargo_built_is_found_in_its_messages() {
        let library = r#"{"target":{"name":"bmi"},"filenames":["/t/libbmi.rlib","/t/libbmi.so","/t/libbmi.a"],"executable":null}"#;
        let script = r#"{"target":{"name":"build-script-build"},"filenames":["/t/script"],"executable":"/t/script"}"#;
        let program = r#"{"target":{"name":"ropewalk"},"filenames":["/t/ropewalk"],"executable":"/t/ropewalk"}"#;
        let mx = r#"{"target":{"name":"ropewalk_mx"},"filenames":["/t/libropewalk_mx.so","/t/libropewalk_mx.a"],"executable":null}"#;
        let rma = r#"{"target":{"name":"ropewalk_rma_face"},"filenames":["/t/libropewalk_rma_face.so","/t/libropewalk_rma_face.a","/t/libropewalk_rma_face.rlib"],"executable":null}"#;
        let room = r#"{"target":{"name":"ropewalk_rma"},"filenames":["/t/libropewalk_rma.rlib"],"executable":null}"#;
        let messages = [library, script, mx, rma, room, program, "no JSON"];
        let found = in_messages(&messages.join("\n")).unwrap();
        assert_eq!(found.rma_shared, Path::new("/t/libropewalk_rma_face.so"));
        assert_eq!(found.rma_archive, Path::new("/t/libropewalk_rma_face.a"));
        assert_eq!(found.mx_archive, Path::new("/t/libropewalk_mx.a"));
        assert_eq!(found.shared, Path::new("/t/libbmi.so"));
        assert_eq!(found.archive, Path::new("/t/libbmi.a"));
        assert_eq!(found.program, Path::new("/t/ropewalk"));
        assert!(in_messages(library).is_err() && in_messages(program).is_err());
    }
}
