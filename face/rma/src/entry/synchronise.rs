//! Synchronisation: fence; post, start, complete and wait; locks; flush and sync.

use std::ffi::c_int;

use super::ask_window;
use crate::codes::Failure;
use crate::handles::{Handle, asserts, lock_kind, rank};
use crate::memory::{list, place, put};

/// Ends the epoch of the last fence, and begins the next one. All ranks call it.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_fence(assertions: c_int, window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.fence(asserts(assertions)?)?))
}

/// A group of ranks.
///
/// # Safety
/// So many may be read.
unsafe fn group(count: c_int, ranks: *const c_int) -> Result<Vec<u32>, Failure> {
    // SAFETY: the caller vouches for it.
    let ranks = unsafe { list(ranks, i64::from(count))? };
    ranks.into_iter().map(rank).collect()
}

/// Begins an access epoch for some ranks.
///
/// # Safety
/// `ranks` has so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_start(
    count: c_int,
    ranks: *const c_int,
    assertions: c_int,
    window: Handle,
) -> c_int {
    ask_window(window, |window| {
        // SAFETY: the caller vouches for it.
        let group = unsafe { group(count, ranks)? };
        Ok(window.start(&group, asserts(assertions)?)?)
    })
}

/// Ends the epoch of a start.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_complete(window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.complete()?))
}

/// Exposes this rank's memory to some ranks.
///
/// # Safety
/// `ranks` has so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_post(
    count: c_int,
    ranks: *const c_int,
    assertions: c_int,
    window: Handle,
) -> c_int {
    ask_window(window, |window| {
        // SAFETY: the caller vouches for it.
        let group = unsafe { group(count, ranks)? };
        Ok(window.post(&group, asserts(assertions)?)?)
    })
}

/// Ends the epoch of a post: its ranks have completed theirs.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_wait(window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.wait()?))
}

/// Whether a wait would return; then the epoch is over.
///
/// # Safety
/// `flag` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_test(window: Handle, flag: *mut c_int) -> c_int {
    ask_window(window, |window| {
        // SAFETY: the caller vouches for it.
        let flag = unsafe { place(flag)? };
        let is_over = window.test()?;
        // SAFETY: it is not null.
        unsafe { put(flag, c_int::from(is_over)) }
    })
}

/// Begins an epoch for one more rank.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_lock(
    kind: c_int,
    target: c_int,
    assertions: c_int,
    window: Handle,
) -> c_int {
    ask_window(window, |window| {
        Ok(window.lock(lock_kind(kind)?, rank(target)?, asserts(assertions)?)?)
    })
}

/// Ends the epoch of a lock.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_unlock(target: c_int, window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.unlock(rank(target)?)?))
}

/// Locks all ranks, shared.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_lock_all(assertions: c_int, window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.lock_all(asserts(assertions)?)?))
}

/// Ends the epoch of `rw_win_lock_all`.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_unlock_all(window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.unlock_all()?))
}

/// Completes what was issued to a rank, there and here.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_flush(target: c_int, window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.flush(rank(target)?)?))
}

/// The same for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_flush_all(window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.flush_all()?))
}

/// Completes what was issued to a rank here.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_flush_local(target: c_int, window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.flush_local(rank(target)?)?))
}

/// The same for all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_flush_local_all(window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.flush_local_all()?))
}

/// Orders loads and stores of this rank's memory with what others do there.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_sync(window: Handle) -> c_int {
    ask_window(window, |window| Ok(window.sync()?))
}
