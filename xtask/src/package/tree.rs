//! The files of a package in a folder that stands for the root directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::install::plan::{Built, Item, What};
use crate::install::{self, place};

/// Files of the source tree, and their places below the prefix. `@prefix@` in them becomes the prefix.
const FILES: &[(&str, &str)] = &[
    ("face/cli/package/systemd/ropewalk.service", "lib/systemd/system/ropewalk.service"),
    (
        "face/cli/package/systemd/ropewalk-meta@.service",
        "lib/systemd/system/ropewalk-meta@.service",
    ),
    (
        "face/cli/package/systemd/ropewalk-data@.service",
        "lib/systemd/system/ropewalk-data@.service",
    ),
    (
        "face/cli/package/systemd/ropewalk-mount.service",
        "lib/systemd/system/ropewalk-mount.service",
    ),
    ("face/cli/package/systemd/sysusers.conf", "lib/sysusers.d/ropewalk.conf"),
    (
        "face/cli/package/systemd/mnt-ropewalk.mount",
        "share/doc/ropewalk/examples/mnt-ropewalk.mount",
    ),
    ("face/cli/package/debian/copyright", "share/doc/ropewalk/copyright"),
    ("docs/alerts.yml", "share/doc/ropewalk/examples/alerts.yml"),
    ("docs/install.md", "share/doc/ropewalk/install.md"),
    ("docs/metrics.md", "share/doc/ropewalk/metrics.md"),
    ("docs/paths.md", "share/doc/ropewalk/paths.md"),
];

/// The example configuration is also the first configuration of the units.
const EXAMPLE: &str = "share/doc/ropewalk/examples/ropewalk.toml";
pub const CONFIG: &str = "etc/ropewalk/ropewalk.toml";

/// Writes the files of a package with this prefix below `folder`.
pub fn write(root: &Path, built: &Built, prefix: &Path, folder: &Path) -> Result<()> {
    let mut items = install::items(root, built, prefix)?;
    for (from, path) in FILES {
        let text = fs::read_to_string(root.join(from))
            .with_context(|| format!("{from} cannot be read"))?;
        let text = text.replace("@prefix@", &prefix.to_string_lossy());
        items.push(Item { path: PathBuf::from(path), what: What::Text(text) });
    }
    let example = items.iter().find(|item| item.path == Path::new(EXAMPLE));
    let example = example.context("the command printed no example configuration")?;
    let config = Item { path: CONFIG.into(), what: example.what.clone() };
    place::all(&items, &folder.join(prefix.strip_prefix("/")?))?;
    place::all(&[config], folder)?;
    open(folder)
}

/// Gives every folder the usual mode, whatever the umask of this process is.
fn open(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open(&entry.path())?;
        }
    }
    Ok(())
}

/// All files and links below a folder, as paths in it, sorted.
pub fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    fn add(folder: &Path, inside: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
        for entry in fs::read_dir(folder.join(inside))? {
            let entry = entry?;
            let path = inside.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true => add(folder, &path, found)?,
                false => found.push(path),
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    add(folder, Path::new(""), &mut found)?;
    found.sort();
    Ok(found)
}
