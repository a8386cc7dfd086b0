//! Windows: made and freed.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use ropewalk_rma::{Cells, Error, Team, Window, WindowOptions};

use super::{ask, ask_window, text};
use crate::codes::{ERR_ARG, ERR_DISP, ERR_SIZE, Failure, code, failure};
use crate::handles::{
    FLAVOR_ALLOCATE, FLAVOR_CREATE, FLAVOR_DYNAMIC, FLAVOR_SHARED, Handle, handle,
};
use crate::info;
use crate::library::{free_window, has_window_room, keep_window};
use crate::memory::{place, put};

/// A window of `bytes` bytes of fresh memory, zeroed. `base` gets the address of the memory, which is there until the window
/// is freed. All ranks call it. Ranks of one host map it.
///
/// # Safety
/// `info` is null or ends with a zero; `base` (the address of a pointer) and `window` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_allocate(
    bytes: i64,
    displacement_unit: c_int,
    info: *const c_char,
    base: *mut c_void,
    window: *mut Handle,
) -> c_int {
    ask(|library| {
        let team = library.process.team();
        let make = |bytes, options: &WindowOptions| team.allocate(bytes, options);
        // SAFETY: the caller vouches for it.
        unsafe {
            let bytes = wanted(bytes, base, window);
            let made = create((displacement_unit, info), bytes, make, || refuse(team));
            give((made?, FLAVOR_ALLOCATE), base, window)
        }
    })
}

/// The same of memory that all ranks load and store. That of the next rank begins where that of the rank before ends, unless
/// the info says `alloc_shared_noncontig=true`.
///
/// # Safety
/// As [`rw_win_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_allocate_shared(
    bytes: i64,
    displacement_unit: c_int,
    info: *const c_char,
    base: *mut c_void,
    window: *mut Handle,
) -> c_int {
    ask(|library| {
        let team = library.process.team();
        let make = |bytes, options: &WindowOptions| team.allocate_shared(bytes, options);
        // A window without a unit is refused by all.
        let none = WindowOptions { displacement_unit: 0, ..WindowOptions::default() };
        // SAFETY: the caller vouches for it.
        unsafe {
            let bytes = wanted(bytes, base, window);
            let refuse = || team.allocate_shared(0, &none);
            let made = create((displacement_unit, info), bytes, make, refuse);
            give((made?, FLAVOR_SHARED), base, window)
        }
    })
}

/// The bytes of a window to be allocated, if there are places for the answers.
///
/// # Safety
/// `base` and `window` are null or may be written.
unsafe fn wanted(bytes: i64, base: *mut c_void, window: *mut Handle) -> Result<usize, Failure> {
    // SAFETY: the caller vouches for it.
    unsafe {
        place(base.cast::<*mut c_void>())?;
        place(window)?;
    }
    size(bytes)
}

/// Gives a window that was made, and its address.
///
/// # Safety
/// As [`wanted`].
unsafe fn give(
    (made, flavor): (Window, c_int),
    base: *mut c_void,
    window: *mut Handle,
) -> Result<(), Failure> {
    let address = base_of(&made);
    let kept = keep_window(made, flavor)?;
    // SAFETY: the caller vouches for it.
    unsafe {
        put(base.cast::<*mut c_void>(), address)?;
        put(window, kept)
    }
}

/// A window over memory of the caller's, which stays there until the window is freed. All ranks call it. The first such window
/// installs handlers of SIGSEGV and SIGBUS: see [`Cells::fleeting`].
///
/// # Safety
/// `base` has so many bytes, which may be accessed by all ranks until then; `info` is null or ends with a zero; `window` is
/// null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_create(
    base: *mut c_void,
    bytes: i64,
    displacement_unit: c_int,
    info: *const c_char,
    window: *mut Handle,
) -> c_int {
    ask(|library| {
        // SAFETY: the caller vouches for the place, and for the bytes until the window is freed, with which the cells go.
        let cells = unsafe { place(window).and_then(|_| lent(base, bytes)) };
        let team = library.process.team();
        let make =
            |cells: Cells, options: &WindowOptions| team.create(&cells, 0..cells.len(), options);
        // SAFETY: the caller vouches for it.
        let made = unsafe { create((displacement_unit, info), cells, make, || refuse(team)) }?;
        // SAFETY: it is not null.
        unsafe { put(window, keep_window(made, FLAVOR_CREATE)?) }
    })
}

/// Memory of a caller as cells of a window. Should it go away all the same, accesses of others are refused.
///
/// # Safety
/// As for [`Cells::fleeting`].
unsafe fn lent(base: *mut c_void, bytes: i64) -> Result<Cells, Failure> {
    let bytes = size(bytes)?;
    if base.is_null() && bytes > 0 {
        return Err(failure(ERR_ARG, "the base of a window is NULL"));
    }
    if base.addr().checked_add(bytes).is_none() {
        return Err(failure(ERR_SIZE, "a window reaches farther than addresses do"));
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { Cells::fleeting(base.cast(), bytes) })
}

/// A window without memory, to which each rank attaches its own. All ranks call it.
///
/// # Safety
/// `info` is null or ends with a zero; `window` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_create_dynamic(info: *const c_char, window: *mut Handle) -> c_int {
    ask(|library| {
        let team = library.process.team();
        let make = |(), options: &WindowOptions| team.create_dynamic(options);
        // SAFETY: the caller vouches for it.
        let made = unsafe {
            let room = place(window).map(drop);
            create((1, info), room, make, || refuse(team))
        }?;
        // SAFETY: it is not null.
        unsafe { put(window, keep_window(made, FLAVOR_DYNAMIC)?) }
    })
}

/// Attaches memory of this rank to a dynamic window: others reach it by its address.
///
/// # Safety
/// `base` has so many bytes, which may be accessed by all ranks until they are detached, or the window is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_attach(window: Handle, base: *mut c_void, bytes: i64) -> c_int {
    ask_window(window, |window| {
        // SAFETY: the caller vouches for the bytes until they are detached, with which the cells go.
        let cells = unsafe { lent(base, bytes) }?;
        window.attach(&cells, 0..cells.len())?;
        Ok(())
    })
}

/// Detaches the memory that begins at `base`. Nobody reaches it when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_detach(window: Handle, base: *const c_void) -> c_int {
    ask_window(window, |window| Ok(window.detach(base.addr() as u64)?))
}

/// An address as operations on dynamic windows take it for a displacement.
///
/// # Safety
/// `address` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_get_address(location: *const c_void, address: *mut i64) -> c_int {
    // SAFETY: the caller vouches for it.
    code(unsafe { put(address, location.addr() as i64) })
}

/// The address of this rank's part of a window; NULL where there is none.
pub(super) fn base_of(window: &Window) -> *mut c_void {
    let address = window.cells().address();
    let is_none = window.is_dynamic() || address == NonNull::dangling().as_ptr();
    if is_none { std::ptr::null_mut() } else { address.cast() }
}

pub(super) fn size(bytes: i64) -> Result<usize, Failure> {
    usize::try_from(bytes).map_err(|_| failure(ERR_SIZE, format!("a window of {bytes} bytes")))
}

/// A window that all ranks refuse: no cells have its range.
fn refuse(team: &Team) -> Result<Window, Error> {
    team.create(&Cells::zeroed(0), 0..1, &WindowOptions::default())
}

/// Makes a window together with the others. Where this rank's arguments are wrong they are told by one that all refuse.
///
/// # Safety
/// `info` is null or ends with a zero.
unsafe fn create<T>(
    (displacement_unit, info): (c_int, *const c_char),
    memory: Result<T, Failure>,
    make: impl FnOnce(T, &WindowOptions) -> Result<Window, Error>,
    refuse: impl FnOnce() -> Result<Window, Error>,
) -> Result<Window, Failure> {
    let negative = |_| {
        let words = format!("a displacement unit of {displacement_unit} bytes: it is at least 1");
        failure(ERR_DISP, words)
    };
    let unit = u32::try_from(displacement_unit).map_err(negative);
    // SAFETY: the caller vouches for it.
    let options = unit.and_then(|unit| info::read(unsafe { text(info) }?, unit));
    let memory = has_window_room().and(memory);
    match memory.and_then(|memory| options.map(|options| (memory, options))) {
        Ok((memory, options)) => Ok(make(memory, &options)?),
        Err(failure) => {
            drop(refuse());
            Err(failure)
        }
    }
}

/// Ends a window, and sets the handle to RW_WIN_NULL. All ranks call it.
///
/// # Safety
/// `window` is null or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_free(window: *mut Handle) -> c_int {
    // SAFETY: the caller vouches for it.
    let freed = unsafe { place(window) }.and_then(|window| {
        // SAFETY: it is not null.
        let told = free_window(unsafe { window.read() })?;
        // SAFETY: as above.
        unsafe { window.write(handle(0)) };
        told
    });
    code(freed)
}
