//! The two copies of a superblock: the choice of the valid one, and the way they are written.
//!
//! Invariants
//! * at every moment one copy is whole: they are written one after the other, each synced first;
//! * a copy that exists is written in its place, so that a start needs no room on the disk;
//! * a copy that is damaged or gone is made anew from the other one at the next start.

use std::io;
use std::path::{Path, PathBuf};

use ropewalk_base::disk::{Disk, Open};

use crate::overwrite::overwrite;

use super::{BYTES, ClaimError, Found, NAME, NEW_NAME, SECOND_NAME, Unreadable, parse};

/// The state of the copies in a directory.
pub(super) struct Copies {
    /// The newest whole one.
    pub found: Option<Box<Found>>,
    /// A copy that was damaged or missing beside a whole one.
    pub broken: Option<PathBuf>,
}

enum Copy {
    Absent,
    Damaged,
    Whole(Box<Found>),
}

/// Reads both copies. Nothing is changed.
pub(super) fn read(disk: &dyn Disk, directory: &Path) -> Result<Copies, ClaimError> {
    let (path, second) = (directory.join(NAME), directory.join(SECOND_NAME));
    let copies = match (read_one(disk, &path)?, read_one(disk, &second)?) {
        (Copy::Absent, Copy::Absent) => Copies { found: None, broken: None },
        (Copy::Whole(one), Copy::Whole(two)) => {
            if !one.is_same_store(&two) {
                return Err(ClaimError::Disagree { path, second });
            }
            let newest = if two.boot.counter > one.boot.counter { two } else { one };
            Copies { found: Some(newest), broken: None }
        }
        (Copy::Whole(one), _) => Copies { found: Some(one), broken: Some(second) },
        (_, Copy::Whole(two)) => Copies { found: Some(two), broken: Some(path) },
        _ => return Err(ClaimError::Damaged { path, second }),
    };
    Ok(copies)
}

fn read_one(disk: &dyn Disk, path: &Path) -> Result<Copy, ClaimError> {
    let fail = |cause| ClaimError::io("read", path, cause);
    let file = match disk.open(path, Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Copy::Absent),
        result => result.map_err(fail)?,
    };
    let mut bytes = [0; BYTES];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    match parse(&bytes[..count]) {
        Ok(found) => Ok(Copy::Whole(Box::new(found))),
        Err(Unreadable::Damaged) => Ok(Copy::Damaged),
        Err(Unreadable::Newer(found)) => Err(ClaimError::Newer { path: path.to_path_buf(), found }),
    }
}

/// Writes both copies, durably.
pub(super) fn write(disk: &dyn Disk, directory: &Path, bytes: &[u8]) -> Result<(), ClaimError> {
    for name in [SECOND_NAME, NAME] {
        let path = directory.join(name);
        overwrite(disk, &path, &directory.join(NEW_NAME), bytes)
            .map_err(|cause| ClaimError::io("write", &path, cause))?;
    }
    Ok(())
}
