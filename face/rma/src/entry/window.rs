//! Windows: made, looked at, freed.

use std::ffi::{c_char, c_int, c_void};

use ropewalk_rma::{Cells, Error, Team, Window, WindowOptions};

use super::{ask, ask_window, text};
use crate::codes::{ERR_ARG, ERR_DISP, ERR_SIZE, Failure, code, failure};
use crate::handles::{Handle, handle, rank, target_rank};
use crate::info;
use crate::library::{free_window, keep_window};
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
            give(made?, base, window)
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
            give(made?, base, window)
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
unsafe fn give(made: Window, base: *mut c_void, window: *mut Handle) -> Result<(), Failure> {
    let address = made.cells().address();
    let kept = keep_window(made)?;
    // SAFETY: the caller vouches for it.
    unsafe {
        put(base.cast::<*mut c_void>(), address.cast())?;
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
        unsafe { put(window, keep_window(made)?) }
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
        unsafe { put(window, keep_window(made)?) }
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

fn size(bytes: i64) -> Result<usize, Failure> {
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

/// The address of this rank's part of a window.
///
/// # Safety
/// `base` (the address of a pointer) is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_base(window: Handle, base: *mut c_void) -> c_int {
    ask_window(window, |window| {
        // A dynamic window has none.
        let own = match window.is_dynamic() {
            true => std::ptr::null_mut(),
            false => window.cells().address().cast(),
        };
        // SAFETY: the caller vouches for it.
        unsafe { put(base.cast::<*mut c_void>(), own) }
    })
}

/// The bytes of a rank's part of a window, and its displacement unit.
///
/// # Safety
/// `bytes` and `displacement_unit` are null, which asks for nothing, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_size(
    window: Handle,
    of: c_int,
    bytes: *mut i64,
    displacement_unit: *mut c_int,
) -> c_int {
    ask_window(window, |window| {
        let of = rank(of)?;
        if of >= window.size() {
            return Err(failure(crate::codes::ERR_RANK, format!("{of} is no rank")));
        }
        let (has, unit) = window.extent_of(of);
        if !bytes.is_null() {
            // SAFETY: not null, and the caller vouches for the rest.
            unsafe { put(bytes, has as i64)? };
        }
        if !displacement_unit.is_null() {
            // SAFETY: as above.
            unsafe { put(displacement_unit, unit as c_int)? };
        }
        Ok(())
    })
}

/// The memory of a rank that this one may load and store: its bytes, its displacement unit, and its address here. RW_PROC_NULL
/// asks for that of the first rank that has any. The window has to be of `rw_win_allocate_shared`.
///
/// # Safety
/// `bytes`, `displacement_unit` and `base` (the address of a pointer) are null, which asks for nothing, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_shared_query(
    window: Handle,
    of: c_int,
    bytes: *mut i64,
    displacement_unit: *mut c_int,
    base: *mut c_void,
) -> c_int {
    ask_window(window, |window| {
        let (has, unit, cells) = window.shared_query(target_rank(of)?)?;
        let base = base.cast::<*mut c_void>();
        // SAFETY: what is written is not null, and the caller vouches for the rest.
        unsafe {
            if !bytes.is_null() {
                put(bytes, has as i64)?;
            }
            if !displacement_unit.is_null() {
                put(displacement_unit, unit as c_int)?;
            }
            if !base.is_null() {
                put(base, cells.address().cast())?;
            }
        }
        Ok(())
    })
}

/// What a window was made with, as text. It is cut to `bytes` bytes, its zero included; `needed` gets how many there are.
///
/// # Safety
/// `to` has so many bytes; `needed` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_info(
    window: Handle,
    to: *mut c_char,
    bytes: i64,
    needed: *mut i64,
) -> c_int {
    ask_window(window, |window| {
        let mut words = info::write(window.options());
        if window.options().check {
            words.push_str(&format!(";unchecked={}", window.unchecked()));
        }
        let mut words = words.into_bytes();
        words.push(0);
        if !needed.is_null() {
            // SAFETY: not null, and the caller vouches for the rest.
            unsafe { put(needed, words.len() as i64)? };
        }
        let room = size(bytes)?.min(words.len());
        if room == 0 {
            return Ok(());
        }
        // SAFETY: the caller vouches for it.
        let to = unsafe { place(to) }?;
        words[room - 1] = 0;
        // SAFETY: so many bytes are the caller's.
        let cells = unsafe { Cells::promised(to.cast(), room) };
        cells.write(0, &words[..room]).map_err(|it| failure(ERR_SIZE, it.to_string()))
    })
}
