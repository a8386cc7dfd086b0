//! Archives that are the same for the same files: tar and gzip pack a sorted list, and `ar` is written here.
//!
//! Invariant: nothing of the machine enters: neither users nor times nor the order of a folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::{cannot_write, output, tree};

/// How archives are packed.
pub struct Packer {
    /// The time of all files, in seconds since 1970.
    pub moment: String,
    /// gzip's.
    pub level: String,
}

impl Packer {
    /// The files and links of a folder. Folders are left out, so that unpacking leaves those alone that are there.
    pub fn files(&self, folder: &Path, to: &Path) -> Result<PathBuf> {
        let mut list = Vec::new();
        for path in tree::listed(folder)? {
            list.extend_from_slice(path.to_string_lossy().as_bytes());
            list.push(b'\n');
        }
        let listed = ["--no-recursion", "--files-from=-"];
        let bytes = self.packed(folder, &listed, Some(&list))?;
        fs::write(to, bytes).with_context(|| cannot_write(to))?;
        Ok(to.to_path_buf())
    }

    /// All of a folder, as the parts of a Debian package are packed.
    pub fn all(&self, folder: &Path) -> Result<Vec<u8>> {
        self.packed(folder, &["--sort=name", "."], None)
    }

    fn packed(&self, folder: &Path, which: &[&str], list: Option<&[u8]>) -> Result<Vec<u8>> {
        let archive = folder.with_extension("tar");
        let mut tar = Command::new("tar");
        tar.arg("--create").arg("--file").arg(&archive).arg("--directory").arg(folder);
        tar.args(["--format=gnu", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg(format!("--mtime=@{}", self.moment)).args(which);
        tar.stdin(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = tar.spawn().context("cannot start tar: install the package tar")?;
        let input = child.stdin.take().context("tar has no input")?;
        { input }.write_all(list.unwrap_or_default())?;
        if !child.wait()?.success() {
            bail!("tar failed, and no package was made; it says above why");
        }
        let mut gzip = Command::new("gzip");
        gzip.args(["--no-name", "--stdout", &format!("-{}", self.level)]).arg(&archive);
        let bytes = output(&mut gzip, "gzip")?.stdout;
        fs::remove_file(&archive)?;
        Ok(bytes)
    }

    /// An `ar` archive: a line for each member, and its bytes, at an even place.
    pub fn ar(&self, members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = b"!<arch>\n".to_vec();
        for (name, bytes) in members {
            let (moment, size) = (&self.moment, bytes.len());
            let head = format!("{name:<16}{moment:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 100_644);
            archive.extend_from_slice(head.as_bytes());
            archive.extend_from_slice(bytes);
            archive.extend(Some(b'\n').filter(|_| size % 2 == 1));
        }
        archive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_an_archive_begin_at_even_places() {
        let packer = Packer { moment: "7".into(), level: "1".into() };
        let archive = packer.ar(&[("one", b"abc"), ("two", b"de")]);
        let text = String::from_utf8(archive).unwrap();
        let head = |name: &str, size: &str| {
            format!("{name}             7           0     0     100644  {size}         `\n")
        };
        let wanted = ["!<arch>\n", &head("one", "3"), "abc\n", &head("two", "2"), "de"];
        assert_eq!(text, wanted.concat());
    }
}
