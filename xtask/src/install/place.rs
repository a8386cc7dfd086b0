//! Puts the items of a plan into place.

use std::fs;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use super::plan::{Item, What};

/// Makes sure that something can be written below `root`.
pub fn prepare(root: &Path) -> Result<()> {
    let folder = root.join("lib");
    let probe = folder.join(".ropewalk.new");
    let written = fs::create_dir_all(&folder).and_then(|()| fs::write(&probe, ""));
    written.and_then(|()| fs::remove_file(&probe)).map_err(|error| explained(error, &folder))
}

/// Writes all items below `root`; a line about each.
pub fn all(items: &[Item], root: &Path) -> Result<Vec<String>> {
    for item in items {
        if let What::Copy { from, .. } = &item.what
            && !from.is_file()
        {
            bail!("{} is missing; nothing was installed", from.display());
        }
        let place = root.join(&item.path);
        if place.is_dir() {
            bail!("{} is a folder; nothing was installed", place.display());
        }
    }
    let mut lines = Vec::new();
    for item in items {
        let place = root.join(&item.path);
        put(&item.what, &place).map_err(|error| explained(error, &place))?;
        lines.push(said(&item.what, &place));
    }
    Ok(lines)
}

/// Writes beside the place, then renames.
fn put(what: &What, place: &Path) -> Result<(), Error> {
    let folder = place.parent().unwrap_or(place);
    fs::create_dir_all(folder)?;
    let new = beside(place);
    // One of an earlier run that was ended.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    match what {
        What::Copy { from, .. } => fs::copy(from, &new).map(drop)?,
        What::Text(text) => fs::write(&new, text)?,
        What::Link(to) => symlink(to, &new)?,
    }
    if !matches!(what, What::Link(_)) {
        let executable = matches!(what, What::Copy { executable: true, .. });
        let mode = if executable { 0o755 } else { 0o644 };
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    }
    fs::rename(&new, place)
}

fn beside(place: &Path) -> PathBuf {
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    place.with_file_name(format!(".{name}.new"))
}

fn explained(error: Error, place: &Path) -> anyhow::Error {
    let place = place.display();
    match error.kind() {
        ErrorKind::PermissionDenied => anyhow!(
            "{place}: permission denied; run this as the owner of the prefix, or take another --prefix"
        ),
        _ => anyhow!(error).context(format!("{place} cannot be written")),
    }
}

fn said(what: &What, place: &Path) -> String {
    match what {
        What::Link(to) => format!("{} -> {to}", place.display()),
        What::Copy { .. } | What::Text(_) => place.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(path: &str, what: What) -> Item {
        Item { path: path.into(), what }
    }

    #[test]
    fn a_second_installation_replaces_the_first_and_leaves_nothing_else() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let from = folder.path().join("from");
        let root = folder.path().join("root");
        for content in ["one", "two"] {
            fs::write(&from, content)?;
            let copy = What::Copy { from: from.clone(), executable: true };
            let items = [
                item("lib/object.1", copy),
                item("lib/object", What::Link("object.1".to_string())),
                item("lib/text", What::Text(content.to_string())),
            ];
            all(&items, &root)?;
            assert_eq!(fs::read_to_string(root.join("lib/object"))?, content);
            assert_eq!(fs::read_to_string(root.join("lib/text"))?, content);
            let mode = |name| fs::metadata(root.join(name)).map(|m| m.permissions().mode() & 0o777);
            assert_eq!((mode("lib/object.1")?, mode("lib/text")?), (0o755, 0o644));
            assert_eq!(fs::read_dir(root.join("lib"))?.count(), 3);
        }
        Ok(())
    }

    #[test]
    fn nothing_is_written_where_something_is_missing_or_in_the_way() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let text = || item("a", What::Text(String::new()));
        let missing = What::Copy { from: folder.path().join("nowhere"), executable: false };
        let refused = all(&[text(), item("b", missing)], folder.path()).unwrap_err().to_string();
        assert!(refused.contains("nowhere") && refused.contains("nothing was installed"));
        fs::create_dir(folder.path().join("c"))?;
        let refused = all(&[text(), item("c", What::Text(String::new()))], folder.path());
        assert!(refused.unwrap_err().to_string().contains("is a folder"));
        assert!(!folder.path().join("a").exists());
        // A file where a folder has to be.
        fs::write(folder.path().join("d"), "")?;
        let refused = all(&[item("d/e", What::Text(String::new()))], folder.path());
        assert!(refused.unwrap_err().to_string().contains("d/e cannot be written"));
        Ok(())
    }
}
