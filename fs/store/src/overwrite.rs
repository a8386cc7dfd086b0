//! Writing a small file anew, for good.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

/// Writes `bytes` as the whole file at `path`, durably, and returns it open. A file of that length is
/// written in its place, so that a start needs no room on the disk; else `new`, in the same directory, is
/// written first and gets the name. A crash may leave a mix in the first case: the bytes need a checksum.
/// Errors are the disk's. Blocks.
pub(crate) fn overwrite(
    disk: &dyn Disk,
    path: &Path,
    new: &Path,
    bytes: &[u8],
) -> io::Result<Arc<dyn File>> {
    match disk.open(path, Open::Write) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
        Err(cause) => return Err(cause),
        Ok(file) if file.len()? == bytes.len() as u64 => {
            file.write_at(0, bytes)?;
            file.sync_data()?;
            return Ok(file);
        }
        // One that was cut short has no room of its own any more.
        Ok(_) => {}
    }
    let file = disk.open(new, Open::Create)?;
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    disk.rename(new, path)?;
    disk.sync_directory(path.parent().unwrap_or(Path::new("")))?;
    Ok(file)
}
