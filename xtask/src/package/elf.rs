//! Built files: without the parts that only debuggers use, and the libraries that they need.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::output;
use crate::install::plan::Built;

/// The packages of Debian that shared libraries are in; an empty name is the C library's.
const PACKAGES: &[(&str, &str)] = &[
    ("libc.so.6", ""),
    ("libm.so.6", ""),
    ("libdl.so.2", ""),
    ("libpthread.so.0", ""),
    ("librt.so.1", ""),
    ("ld-linux-x86-64.so.2", ""),
    ("ld-linux-aarch64.so.1", ""),
    ("libgcc_s.so.1", "libgcc-s1"),
];

/// Copies of the built files in `folder`, stripped.
pub fn stripped(built: Built, folder: &Path) -> Result<Built> {
    fs::create_dir_all(folder)?;
    let copy = |from: &PathBuf, option: &str| -> Result<PathBuf> {
        let to = folder.join(from.file_name().context("a built file has a name")?);
        output(Command::new("strip").args([option, "-o"]).arg(&to).arg(from), "binutils")?;
        Ok(to)
    };
    let object = |from: &PathBuf| copy(from, "--strip-unneeded");
    let archive = |from: &PathBuf| copy(from, "--strip-debug");
    Ok(Built {
        shared: object(&built.shared)?,
        archive: archive(&built.archive)?,
        program: object(&built.program)?,
        mx: built.mx.iter().map(object).collect::<Result<_>>()?,
        rma_shared: object(&built.rma_shared)?,
        rma_archive: archive(&built.rma_archive)?,
        mx_archive: built.mx_archive,
    })
}

/// The packages of Debian that the built files need, as a control file names them.
pub fn depends(built: &Built) -> Result<String> {
    let files = [&built.shared, &built.program, &built.rma_shared].into_iter().chain(&built.mx);
    let mut needs = Needs::default();
    for file in files {
        let mut command = Command::new("readelf");
        let output =
            output(command.args(["--wide", "--dynamic", "--version-info"]).arg(file), "binutils")?;
        needs.add(&String::from_utf8_lossy(&output.stdout))?;
    }
    needs.control()
}

/// The needs of some files.
#[derive(Debug, Default)]
struct Needs {
    /// The newest version of the C library that a symbol is from.
    c_library: (u32, u32),
    others: BTreeSet<&'static str>,
}

impl Needs {
    /// Adds those of one file, as readelf prints them.
    fn add(&mut self, text: &str) -> Result<()> {
        for line in text.lines() {
            if let Some((_, rest)) = line.split_once("Shared library: [") {
                let library = rest.trim_end_matches(']');
                let found = PACKAGES.iter().find(|(name, _)| *name == library);
                let Some((_, package)) = found else {
                    bail!(
                        "no package is known that has {library}: add it to PACKAGES in \
                         xtask/src/package/elf.rs"
                    );
                };
                self.others.extend(Some(*package).filter(|package| !package.is_empty()));
            }
            let version = line.split_once("Name: GLIBC_").and_then(|(_, rest)| number(rest));
            self.c_library = self.c_library.max(version.unwrap_or_default());
        }
        Ok(())
    }

    fn control(&self) -> Result<String> {
        let (major, minor) = self.c_library;
        if major == 0 {
            bail!(
                "readelf named no version of the C library: are the files built for Linux with glibc?"
            );
        }
        let mut packages = vec![format!("libc6 (>= {major}.{minor})")];
        packages.extend(self.others.iter().map(|name| (*name).to_string()));
        Ok(packages.join(", "))
    }
}

/// A version such as `2.34`, followed by others' words; the smaller parts do not matter.
fn number(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split_whitespace().next()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_the_c_library_counts_and_others_are_named_once() {
        let text = "\
 0x01 (NEEDED)  Shared library: [libgcc_s.so.1]
 0x01 (NEEDED)  Shared library: [libc.so.6]
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 4
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 3
  0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 3
  0x0040:   Name: GLIBC_PRIVATE  Flags: none  Version: 3
";
        let mut needs = Needs::default();
        needs.add(text).unwrap();
        needs.add(text).unwrap();
        assert_eq!(needs.control().unwrap(), "libc6 (>= 2.34), libgcc-s1");
        let refused = needs.add(" (NEEDED) Shared library: [libfoo.so.1]").unwrap_err().to_string();
        assert!(refused.contains("libfoo.so.1"), "{refused}");
        assert!(Needs::default().control().is_err());
    }
}
