//! Questions to windows, and the few changes that they take: infos and names.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use ropewalk_rma::Cells;

use super::window::{base_of, size};
use super::{ask, ask_window, text};
use crate::codes::{ERR_ARG, ERR_COUNT, ERR_SIZE, Failure, failure};
use crate::handles::{Attribute, Handle, NAME_BYTES_MAX, attribute, rank, target_rank};
use crate::info;
use crate::library::{with_numbers, with_window};
use crate::memory::{place, put};

/// The address of this rank's part of a window.
///
/// # Safety
/// `base` (the address of a pointer) is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_base(window: Handle, base: *mut c_void) -> c_int {
    ask_window(window, |window| {
        // SAFETY: the caller vouches for it.
        unsafe { put(base.cast::<*mut c_void>(), base_of(window)) }
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
        // SAFETY: no null is written through, and the caller vouches for the rest.
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

/// Attributes of a window, as MPI calls them. `value` is the address of a pointer, which becomes that of the memory for RW_WIN_BASE,
/// and else that of a number which is there until the window is freed. `flag` becomes 1.
///
/// # Safety
/// `value` (the address of a pointer) and `flag` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_attr(
    window: Handle,
    of: c_int,
    value: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    ask(|_| {
        let of = attribute(of)?;
        let value = value.cast::<*const c_void>();
        // SAFETY: the caller vouches for both.
        let (value, flag) = unsafe { (place(value)?, place(flag)?) };
        let found = match of {
            Attribute::Base => with_window(window, |window| Ok(base_of(window).cast_const()))?,
            of => with_numbers(window, |numbers| {
                Ok(match of {
                    Attribute::Size => ptr::from_ref(&numbers.bytes).cast(),
                    Attribute::DisplacementUnit => ptr::from_ref(&numbers.displacement_unit).cast(),
                    Attribute::CreateFlavor => ptr::from_ref(&numbers.flavor).cast(),
                    _ => ptr::from_ref(&numbers.model).cast(),
                })
            })?,
        };
        // SAFETY: neither is null.
        unsafe {
            put(value, found)?;
            put(flag, 1)
        }
    })
}

/// The ranks of a window, which are all of the job, in the form that `rw_win_start` and `rw_win_post` take. At most `count` of them
/// are written; `size` gets how many there are.
///
/// # Safety
/// `ranks` has room for so many, or is null where `count` is 0; `size` is null, which asks for nothing, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_group(
    window: Handle,
    count: c_int,
    ranks: *mut c_int,
    size: *mut c_int,
) -> c_int {
    ask_window(window, |window| {
        let room = u32::try_from(count);
        let room = room.map_err(|_| failure(ERR_COUNT, format!("room for {count} ranks")))?;
        let all = window.size();
        if room > 0 {
            // SAFETY: the caller vouches for it.
            unsafe { place(ranks)? };
        }
        for rank in 0..all.min(room) {
            // SAFETY: not null, and the caller vouches for the room.
            unsafe { ranks.add(rank as usize).write(rank as c_int) };
        }
        if !size.is_null() {
            // SAFETY: not null, and the caller vouches for the rest.
            unsafe { put(size, all as c_int)? };
        }
        Ok(())
    })
}

/// Names a window: errors of this rank have the name. One that is too long is cut.
///
/// # Safety
/// `name` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_set_name(window: Handle, name: *const c_char) -> c_int {
    ask_window(window, |window| {
        if name.is_null() {
            return Err(failure(ERR_ARG, "the name of a window is NULL"));
        }
        // SAFETY: the caller vouches for it.
        let name = cut(unsafe { text(name) }?);
        if name.contains(';') {
            return Err(failure(
                ERR_ARG,
                "the name of a window has a ';', which ends it in an info",
            ));
        }
        Ok(window.set_name(name)?)
    })
}

/// The name of a window, with a zero behind it. `length` gets its bytes without that one.
///
/// # Safety
/// `name` has room for RW_MAX_OBJECT_NAME bytes; `length` is null, which asks for nothing, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_get_name(
    window: Handle,
    name: *mut c_char,
    length: *mut c_int,
) -> c_int {
    ask_window(window, |window| {
        let named = window.name();
        let own = cut(&named.name);
        // SAFETY: the caller vouches for the room.
        unsafe { written(own.as_bytes(), name, NAME_BYTES_MAX)? };
        if !length.is_null() {
            // SAFETY: not null, and the caller vouches for the rest.
            unsafe { put(length, own.len() as c_int)? };
        }
        Ok(())
    })
}

/// As much of a name as has room, in whole characters.
fn cut(name: &str) -> &str {
    let most = (0..NAME_BYTES_MAX.min(name.len() + 1)).rev();
    let end = most.into_iter().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    &name[..end]
}

/// Changes what MPI lets change of a window's info; the rest stays, and `rw_win_get_info` tells it. All ranks give the same, and
/// none waits for another one.
///
/// # Safety
/// `info` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_set_info(window: Handle, info: *const c_char) -> c_int {
    ask_window(window, |window| {
        // SAFETY: the caller vouches for it.
        let text = unsafe { text(info) }?;
        Ok(window.set_options(&info::changed(window.options(), text)?)?)
    })
}

/// The info of a window as text: that which it was made with, and later changes. It is cut to `bytes` bytes, its zero included; `needed` gets
/// how many there are.
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
        let options = window.options();
        let mut words = info::write(&options);
        if options.check {
            words.push_str(&format!(";unchecked={}", window.unchecked()));
        }
        if !needed.is_null() {
            // SAFETY: not null, and the caller vouches for the rest.
            unsafe { put(needed, words.len() as i64 + 1)? };
        }
        // SAFETY: the caller vouches for it.
        unsafe { written(words.as_bytes(), to, size(bytes)?) }
    })
}

/// Writes a text with a zero behind it, cut to the room that there is.
///
/// # Safety
/// `to` is null or has so many bytes.
unsafe fn written(words: &[u8], to: *mut c_char, room: usize) -> Result<(), Failure> {
    let Some(most) = room.checked_sub(1) else { return Ok(()) };
    let words = &words[..words.len().min(most)];
    // SAFETY: the caller vouches for it.
    let to = unsafe { place(to) }?;
    // SAFETY: so many bytes are the caller's.
    let cells = unsafe { Cells::promised(to.cast(), words.len() + 1) };
    let told = cells.write(0, &[words, &[0]].concat());
    told.map_err(|it| failure(ERR_SIZE, it.to_string()))
}
