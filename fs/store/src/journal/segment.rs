//! Segment files: their names, and how a fresh one is made ready before it is needed.
//!
//! Invariant: a segment that is handed out has all its bytes written and synced, and its name is
//! durable; later syncs of it then write data only, which is what makes them quick.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use crate::error::StoreError;

const SUFFIX: &str = ".journal";
/// Bytes of one write while a fresh segment is filled with zeros.
const FILL_BYTES: usize = 256 * 1024;

/// The file name of the segment with this sequence number.
pub(super) fn segment_name(sequence: u64) -> String {
    format!("{sequence:016x}{SUFFIX}")
}

/// The sequence number in a file name, where it is one of ours.
pub(super) fn parse_name(name: &std::ffi::OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_suffix(SUFFIX)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (plain && digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// Makes the segment `sequence` ready: from an `old` file that is no longer needed, or a new one.
/// Blocks for as long as the disk takes; meant for a helper thread.
pub(super) fn prepare(
    disk: &dyn Disk,
    directory: &Path,
    sequence: u64,
    bytes: u64,
    old: Option<&Path>,
) -> Result<Arc<dyn File>, StoreError> {
    let path = directory.join(segment_name(sequence));
    let fail = |cause: io::Error| StoreError::io("cannot make the journal segment", &path, cause);
    let result = (|| {
        let file = match old {
            Some(old) => {
                disk.rename(old, &path)?;
                disk.open(&path, Open::Write)?
            }
            None => disk.open(&path, Open::Create)?,
        };
        if file.len()? != bytes {
            file.set_len(0)?;
            fill(&*file, bytes)?;
        }
        disk.sync_directory(directory)?;
        Ok(file)
    })();
    if result.is_err() {
        // A half-made file would take the room that others now need; recovery ignores it anyway.
        let _ = disk.remove_file(&path);
    }
    result.map_err(fail)
}

fn fill(file: &dyn File, bytes: u64) -> io::Result<()> {
    file.allocate(0, bytes)?;
    let zeros = vec![0; FILL_BYTES.min(bytes as usize)];
    let mut offset = 0;
    while offset < bytes {
        let part = (bytes - offset).min(zeros.len() as u64);
        file.write_at(offset, &zeros[..part as usize])?;
        offset += part;
    }
    file.sync_data()
}

/// Removes files that nobody needs. Errors are left to the next start, which finds them again.
pub(super) fn remove(disk: &dyn Disk, paths: &[PathBuf]) {
    for path in paths {
        let _ = disk.remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_strangers_are_left_alone() {
        let name = segment_name(0x2a);
        assert_eq!(parse_name(name.as_ref()), Some(0x2a));
        for other in ["x.journal", "000000000000002a", "+00000000000002a.journal", "2a.journal"] {
            assert_eq!(parse_name(other.as_ref()), None, "{other}");
        }
    }
}
