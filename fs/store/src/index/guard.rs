//! Calls of the index engine: each error or panic of the engine becomes an error that names the file.
//!
//! Invariants
//! * nothing is returned that was read out of a block whose checksum does not fit, also where the
//!   engine noticed nothing;
//! * a panic of the engine prints nothing: it is told as the error that it becomes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use crate::error::StoreError;

thread_local! {
    /// The engine works on this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The offset in the file at which the engine last got a damaged block.
    static DAMAGE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Notes that the bytes at `offset` of the file do not hold; the call that reads them will fail.
pub(super) fn note_damage(offset: u64) {
    DAMAGE.set(Some(offset));
}

/// Runs `work`; an error or panic of the engine becomes an error that names the file.
pub(super) fn guarded<T>(
    path: &Path,
    work: impl FnOnce() -> Result<T, redb::Error>,
) -> Result<T, StoreError> {
    silence();
    DAMAGE.set(None);
    let before = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(before);
    let path = path.to_path_buf();
    if let Some(offset) = DAMAGE.take() {
        return Err(StoreError::damaged_index(path, Some(offset)));
    }
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(redb::Error::Io(cause))) => {
            Err(StoreError::io("cannot access the index", &path, cause))
        }
        Ok(Err(redb::Error::Corrupted(_))) | Err(_) => Err(StoreError::damaged_index(path, None)),
        Ok(Err(error)) => Err(StoreError::Index { path, cause: error.to_string().into() }),
    }
}

/// Keeps the engine's panics off the terminal. Those of others are told as before.
fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                others(info);
            }
        }));
    });
}
