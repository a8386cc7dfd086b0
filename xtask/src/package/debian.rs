//! The Debian package: what dpkg reads beside the files.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive::Packer;
use super::{VERSION, cannot_write, output, tree};

/// The scripts and the triggers, in the source tree.
const FOLDER: &str = "face/cli/package/debian";
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
const TRIGGERS: &str = "triggers";

/// Makes the package of the files below `folder`, in `out`.
pub fn package(
    root: &Path,
    folder: &Path,
    depends: &str,
    packer: &Packer,
    out: &Path,
) -> Result<PathBuf> {
    let architecture = architecture(std::env::consts::ARCH)?;
    let parts = folder.with_file_name("control");
    super::empty(&parts)?;
    let write = |name: &str, text: &str, mode: u32| -> Result<()> {
        let path = parts.join(name);
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    };
    let (sums, kibibytes) = sums(folder)?;
    write("control", &control(architecture, depends, kibibytes), 0o644)?;
    write("md5sums", &sums, 0o644)?;
    write("conffiles", &format!("/{}\n", tree::CONFIG), 0o644)?;
    for (names, mode) in [(&SCRIPTS[..], 0o755), (&[TRIGGERS], 0o644)] {
        for name in names {
            let from = root.join(FOLDER).join(name);
            let text = fs::read_to_string(&from);
            write(
                name,
                &text.with_context(|| format!("{} cannot be read", from.display()))?,
                mode,
            )?;
        }
    }
    fs::set_permissions(&parts, fs::Permissions::from_mode(0o755))?;
    let (control, data) = (packer.all(&parts)?, packer.all(folder)?);
    let members =
        [("debian-binary", &b"2.0\n"[..]), ("control.tar.gz", &control), ("data.tar.gz", &data)];
    let to = out.join(format!("ropewalk_{VERSION}_{architecture}.deb"));
    fs::write(&to, packer.ar(&members)).with_context(|| cannot_write(&to))?;
    Ok(to)
}

/// Debian's name of an architecture.
fn architecture(name: &str) -> Result<&'static str> {
    match name {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!(
            "Debian's name of {other} is not known: add it to xtask/src/package/debian.rs, or use \
             'cargo xtask install'"
        ),
    }
}

fn control(architecture: &str, depends: &str, kibibytes: u64) -> String {
    format!(
        "Package: ropewalk
Version: {VERSION}
Architecture: {architecture}
Maintainer: The Ropewalk developers <maintainers@ropewalk.invalid>
Installed-Size: {kibibytes}
Depends: {depends}, systemd | passwd
Recommends: fuse3
Section: net
Priority: optional
Homepage: https://github.com/ropewalk/ropewalk
Description: parallel file system and message library in user space
 Ropewalk serves one file system from several hosts, and mounts it on all of
 them. It needs no kernel module of its own and no special hardware.
 .
 This package has the command, the units of its servers, and the libraries
 libbmi, libmyriexpress, libopen-mx and libropewalk-rma with their headers.
"
    )
}

/// The checksums of all files but the configuration, which its owner changes, and the room that all of them take.
fn sums(folder: &Path) -> Result<(String, u64)> {
    let (mut files, mut kibibytes) = (Vec::new(), 0);
    for path in tree::listed(folder)? {
        let found = folder.join(&path).symlink_metadata()?;
        kibibytes += found.len().div_ceil(1024);
        if found.is_file() && path != Path::new(tree::CONFIG) {
            files.push(path);
        }
    }
    let told = output(Command::new("md5sum").current_dir(folder).args(&files), "coreutils")?;
    let mut sums = String::new();
    for line in String::from_utf8(told.stdout)?.lines() {
        let _ = writeln!(sums, "{line}");
    }
    Ok((sums, kibibytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_file_has_the_form_that_dpkg_reads() {
        let text = control("amd64", "libc6 (>= 2.34)", 7);
        for line in text.lines() {
            assert!(line.starts_with(' ') || line.contains(": "), "'{line}'");
            assert!(line.len() <= 80, "'{line}'");
        }
        assert!(text.contains("\nDepends: libc6 (>= 2.34), systemd | passwd\n"));
        assert!(architecture("x86_64").is_ok() && architecture("vax").is_err());
    }
}
