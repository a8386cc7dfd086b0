//! Datatypes: made of others, asked, freed. They are used at once, and freed whenever the caller likes.

use std::ffi::c_int;

use ropewalk_rma::Datatype;
use ropewalk_rma::types::Order;

use super::ask;
use crate::codes::{ERR_ARG, ERR_COUNT, Failure, failure};
use crate::handles::{Handle, count, handle};
use crate::library::Library;
use crate::memory::{list, place, put};

/// Makes a type of another one.
///
/// # Safety
/// `made` is null or may be written.
unsafe fn derive(
    old: Handle,
    made: *mut Handle,
    work: impl FnOnce(&Datatype) -> Result<Datatype, Failure>,
) -> c_int {
    ask(|library| {
        let of = library.datatype(old)?;
        // SAFETY: the caller vouches for it.
        unsafe { keep(library, made, || work(&of)) }
    })
}

/// # Safety
/// `made` is null or may be written.
unsafe fn keep(
    library: &Library,
    made: *mut Handle,
    work: impl FnOnce() -> Result<Datatype, Failure>,
) -> Result<(), Failure> {
    // SAFETY: the caller vouches for it.
    unsafe {
        place(made)?;
        put(made, library.keep_type(work()?)?)
    }
}

/// Instances side by side.
///
/// # Safety
/// `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_contiguous(number: i64, old: Handle, made: *mut Handle) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.contiguous(count(number)?)?)) }
}

/// Blocks at equal distances, in instances.
///
/// # Safety
/// `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_vector(
    number: i64,
    length: i64,
    stride: i64,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.vector(count(number)?, count(length)?, stride)?)) }
}

/// The same, in bytes.
///
/// # Safety
/// `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_hvector(
    number: i64,
    length: i64,
    stride: i64,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.hvector(count(number)?, count(length)?, stride)?)) }
}

/// Blocks with their lengths and displacements.
///
/// # Safety
/// Both lists have so many.
unsafe fn blocks(
    number: i64,
    lengths: *const i64,
    at: *const i64,
) -> Result<Vec<(u64, i64)>, Failure> {
    // SAFETY: the caller vouches for it.
    let (lengths, at) = unsafe { (list(lengths, number)?, list(at, number)?) };
    lengths.into_iter().zip(at).map(|(length, at)| Ok((count(length)?, at))).collect()
}

/// Blocks at displacements in instances.
///
/// # Safety
/// Both lists have so many; `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_indexed(
    number: i64,
    lengths: *const i64,
    displacements: *const i64,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.indexed(&blocks(number, lengths, displacements)?)?)) }
}

/// The same, in bytes.
///
/// # Safety
/// As [`rw_type_indexed`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_hindexed(
    number: i64,
    lengths: *const i64,
    displacements: *const i64,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.hindexed(&blocks(number, lengths, displacements)?)?)) }
}

/// Blocks of equal length at displacements in instances.
///
/// # Safety
/// The list has so many; `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_indexed_block(
    number: i64,
    length: i64,
    displacements: *const i64,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        derive(old, made, |old| {
            Ok(old.indexed_block(count(length)?, &list(displacements, number)?)?)
        })
    }
}

/// The same, in bytes.
///
/// # Safety
/// As [`rw_type_indexed_block`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_hindexed_block(
    number: i64,
    length: i64,
    displacements: *const i64,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        derive(old, made, |old| {
            Ok(old.hindexed_block(count(length)?, &list(displacements, number)?)?)
        })
    }
}

/// Blocks of several types, at displacements in bytes.
///
/// # Safety
/// The lists have so many; `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_create_struct(
    number: i64,
    lengths: *const i64,
    displacements: *const i64,
    types: *const Handle,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe {
        keep(library, made, || {
            let blocks = blocks(number, lengths, displacements)?;
            let types = list(types, number)?.into_iter().map(|it| library.datatype(it));
            let types = types.collect::<Result<Vec<_>, _>>()?;
            let both = blocks.iter().zip(&types);
            let blocks: Vec<_> = both.map(|((length, at), of)| (*length, *at, of)).collect();
            Ok(Datatype::structure(&blocks)?)
        })
    })
}

/// A part of an array.
///
/// # Safety
/// The lists have so many; `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_create_subarray(
    dimensions: c_int,
    sizes: *const i64,
    parts: *const i64,
    starts: *const i64,
    order: c_int,
    old: Handle,
    made: *mut Handle,
) -> c_int {
    let work = |old: &Datatype| {
        let number = i64::from(dimensions);
        if number < 1 {
            return Err(failure(ERR_COUNT, format!("an array of {number} dimensions")));
        }
        let order = match order {
            0 => Order::C,
            1 => Order::Fortran,
            _ => return Err(failure(ERR_ARG, format!("{order} is no order of an array"))),
        };
        // SAFETY: the caller vouches for it.
        let (sizes, parts, starts) =
            unsafe { (list(sizes, number)?, list(parts, number)?, list(starts, number)?) };
        let both = sizes.into_iter().zip(parts).zip(starts);
        let dimension = |((size, part), start)| Ok((count(size)?, count(part)?, count(start)?));
        let dimensions = both.map(dimension).collect::<Result<Vec<_>, Failure>>()?;
        Ok(old.subarray(&dimensions, order)?)
    };
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, work) }
}

/// The same data with another lower bound and extent.
///
/// # Safety
/// `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_create_resized(
    old: Handle,
    lower: i64,
    extent: i64,
    made: *mut Handle,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.resized(lower, extent)?)) }
}

/// Another handle on the same type.
///
/// # Safety
/// `made` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_dup(old: Handle, made: *mut Handle) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe { derive(old, made, |old| Ok(old.dup())) }
}

/// Frees a type, and sets the handle to RW_TYPE_NULL. Operations with it go on.
///
/// # Safety
/// `datatype` is null or may be read and written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_free(datatype: *mut Handle) -> c_int {
    // SAFETY: the caller vouches for it; it is not null.
    ask(|library| unsafe {
        let datatype = place(datatype)?;
        library.free_type(datatype.read())?;
        put(datatype, handle(0))
    })
}

/// Bytes of data of one instance.
///
/// # Safety
/// `size` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_size(datatype: Handle, size: *mut i64) -> c_int {
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { put(size, library.datatype(datatype)?.size() as i64) })
}

/// The lower bound, and the bytes from one instance to the next.
///
/// # Safety
/// `lower` and `extent` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_get_extent(
    datatype: Handle,
    lower: *mut i64,
    extent: *mut i64,
) -> c_int {
    ask(|library| {
        let datatype = library.datatype(datatype)?;
        // SAFETY: the caller vouches for it.
        unsafe {
            put(lower, datatype.lower_bound())?;
            put(extent, datatype.extent())
        }
    })
}

/// The first byte of data, and how far the last one is behind it.
///
/// # Safety
/// `lower` and `extent` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_type_get_true_extent(
    datatype: Handle,
    lower: *mut i64,
    extent: *mut i64,
) -> c_int {
    ask(|library| {
        let bounds = library.datatype(datatype)?.true_bounds();
        // SAFETY: the caller vouches for it.
        unsafe {
            put(lower, bounds.start)?;
            put(extent, bounds.end - bounds.start)
        }
    })
}
