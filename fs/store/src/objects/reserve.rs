//! Room that a full device still has for a store's most needed data: its marks, without which nothing is
//! removed and no start comes to its end. The log has room of its own.
//!
//! Invariant: the file `reserve` holds no data; it is cut to make room, and made long again as far as
//! the device has room.

use std::io;
use std::path::Path;

use ropewalk_base::disk::{Disk, Open};

use crate::error::bytes;

const NAME: &str = "reserve";
/// The usual length.
const BYTES: u64 = 1 << 20;
/// A shorter one is not worth its while.
const BYTES_MIN: u64 = 64 << 10;

/// Does `work`, which takes so many bytes for a moment; once more, in the room of the reserve, where the
/// device is full. Blocks.
pub(super) fn spend(
    disk: &dyn Disk,
    root: &Path,
    needed: u64,
    work: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let result = match work() {
        Err(error) if is_full(&error) => {
            let freed = disk.open(&root.join(NAME), Open::Write).and_then(|file| file.set_len(0));
            let again = if freed.is_ok() { work() } else { Err(error) };
            again.map_err(|error| match is_full(&error) {
                true => io::Error::new(
                    error.kind(),
                    format!(
                        "{error}: free {} on that disk (df), or a file where it has no inode left (df -i)",
                        bytes(needed.max(BYTES_MIN))
                    ),
                ),
                false => error,
            })
        }
        result => result,
    };
    if result.is_ok() {
        keep(disk, root, needed);
    }
    result
}

/// Makes the reserve as long as it should be, or as long as it can be.
fn keep(disk: &dyn Disk, root: &Path, needed: u64) {
    let mut wanted = BYTES.max(2 * needed);
    let Ok(file) = disk.open(&root.join(NAME), Open::Create) else { return };
    while wanted >= BYTES_MIN {
        match file.len() {
            Ok(len) if len >= wanted => return,
            Ok(len) if file.allocate(len, wanted - len).is_ok() => return,
            _ => wanted /= 2,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
