//! The library, its ranks and its errors.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write;

use ropewalk_rma::{Cells, Team};

use super::{ask, text};
use crate::codes::{self, ERR_ARG, ERR_SIZE, Failure, code, failure};
use crate::library;
use crate::memory::{list, put};

/// This process becomes a rank of the job that it was started for. All ranks call it, once.
#[unsafe(no_mangle)]
pub extern "C" fn rw_init() -> c_int {
    code(library::initialize())
}

/// All ranks come together and end.
#[unsafe(no_mangle)]
pub extern "C" fn rw_finalize() -> c_int {
    code(library::finalize())
}

/// Ends the whole job, and does not return. In a process that is no rank (before `rw_init`, or behind `rw_finalize`) it ends this
/// process alone.
///
/// # Safety
/// `why` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_abort(status: c_int, why: *const c_char) -> c_int {
    // SAFETY: the caller vouches for it.
    let why = unsafe { text(why) }.unwrap_or("the program ends the job");
    let status = u8::try_from(status).ok().filter(|status| *status > 0).unwrap_or(1);
    if let Ok(library) = library::library() {
        library.process.abort(status, why)
    }
    // Nobody can be told but the user.
    let _ = writeln!(std::io::stderr(), "{why}");
    std::process::exit(status.into())
}

/// The number of this rank.
///
/// # Safety
/// `rank` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_rank(rank: *mut c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { put(rank, library.process.team().rank() as c_int) })
}

/// How many ranks there are.
///
/// # Safety
/// `size` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_size(size: *mut c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { put(size, library.process.team().size() as c_int) })
}

/// Waits until all ranks have come here.
#[unsafe(no_mangle)]
pub extern "C" fn rw_barrier() -> c_int {
    ask(|library| Ok(library.process.team().barrier()?))
}

/// Gives `bytes` bytes to all ranks, and gets as many of each, by rank.
///
/// # Safety
/// `own` has so many bytes, and `all` as many for each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_allgather(own: *const c_void, bytes: i64, all: *mut c_void) -> c_int {
    // SAFETY: the caller vouches for it.
    ask(|library| gather(library.process.team(), unsafe { given(own, bytes, all) }, all))
}

/// Bytes of a part at most (RW_ALLGATHER_MAX).
const GIVEN_BYTES_MAX: i64 = 32 << 10;

/// A copy of this rank's part.
///
/// # Safety
/// `own` is null or has so many bytes.
unsafe fn given(own: *const c_void, bytes: i64, all: *const c_void) -> Result<Vec<u8>, Failure> {
    if !(0..=GIVEN_BYTES_MAX).contains(&bytes) {
        let words = format!("{bytes} bytes for each rank: at most {GIVEN_BYTES_MAX} are allowed");
        return Err(failure(ERR_SIZE, words));
    }
    if bytes > 0 && all.is_null() {
        return Err(failure(ERR_ARG, "the address of data is NULL"));
    }
    // SAFETY: the caller vouches for it.
    unsafe { list(own.cast(), bytes) }
}

/// Whose part is none gives nothing to the others, who find it too short.
fn gather(team: &Team, given: Result<Vec<u8>, Failure>, all: *mut c_void) -> Result<(), Failure> {
    let none = Vec::new();
    let exchanged = team.exchange(given.as_ref().unwrap_or(&none));
    let given = given?;
    let parts = exchanged?;
    if let Some(rank) = parts.iter().position(|part| part.len() != given.len()) {
        let words = format!("rank {rank} gave {} bytes, not {}", parts[rank].len(), given.len());
        return Err(failure(codes::ERR_DISAGREE, words));
    }
    let parts = parts.concat();
    // SAFETY: the caller vouches for as many bytes of each rank.
    let cells = unsafe { Cells::promised(all.cast(), parts.len()) };
    cells.write(0, &parts).map_err(|it| failure(ERR_SIZE, it.to_string()))
}

/// The words for a code.
#[unsafe(no_mangle)]
pub extern "C" fn rw_error_string(code: c_int) -> *const c_char {
    codes::words(code).as_ptr()
}

/// What this thread's last call that failed says about it, until the next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn rw_last_error() -> *const c_char {
    codes::last()
}
