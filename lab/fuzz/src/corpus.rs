//! The inputs kept in the tree: `lab/fuzz/corpus/TARGET/*`, one file each.
//!
//! An input that once broke a target is put there and stays: it is replayed by every test run.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The folder of a target's inputs.
pub fn folder(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

/// The kept inputs of a target, in the order of their files' names; none if there is no folder.
pub fn read(target: &str) -> Result<Vec<Vec<u8>>> {
    let folder = folder(target);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut paths = std::fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("the corpus {} cannot be listed", folder.display()))?;
    // The order of a directory differs between machines, and a seed must mean the same everywhere.
    paths.sort();
    paths
        .iter()
        .map(|path| {
            std::fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
        })
        .collect()
}
