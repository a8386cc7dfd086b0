//! Operations: put, get and the accumulates, each also with a request.
//!
//! Data of the origin stay the caller's: long ones are sent from where they lie, results are written where they go.

use std::ffi::{c_int, c_void};

use ropewalk_rma::types::Class;
use ropewalk_rma::{Datatype, Destination, Operator, Request, Source, Target, Window};

use super::ask;
use crate::codes::{ERR_ARG, ERR_DISP, ERR_RANK, ERR_TYPE, Failure, failure};
use crate::handles::{Handle, count, operator, target_rank};
use crate::library::{Library, with_window};
use crate::memory::{BOTTOM, Span, place, put};

/// Data of the origin as C names them.
struct Side {
    address: *mut c_void,
    count: i64,
    datatype: Handle,
}

impl Side {
    fn new(address: *mut c_void, count: i64, datatype: Handle) -> Side {
        Side { address, count, datatype }
    }

    fn read(address: *const c_void, count: i64, datatype: Handle) -> Side {
        Side::new(address.cast_mut(), count, datatype)
    }

    /// # Safety
    /// The data may be accessed until the operation is complete here.
    unsafe fn data(&self, library: &Library, is_nobody: bool) -> Result<Data, Failure> {
        let (datatype, count) = (library.datatype(self.datatype)?, count(self.count)?);
        if is_nobody {
            return Ok(Data { span: Span::nothing(), count, datatype });
        }
        if self.address.addr() == BOTTOM {
            // SAFETY: the caller vouches for it.
            let (span, datatype) = unsafe { Span::absolute(count, &datatype)? };
            return Ok(Data { span, count: 1, datatype });
        }
        // SAFETY: the caller vouches for it.
        let span = unsafe { Span::new(self.address, count, &datatype)? };
        Ok(Data { span, count, datatype })
    }
}

/// Data of the origin.
struct Data {
    span: Span,
    count: u64,
    datatype: Datatype,
}

impl Data {
    fn source(&self) -> Source<'_> {
        Source::cells(&self.span.cells, self.span.at, self.count, &self.datatype)
    }

    fn destination(&self) -> Destination<'_> {
        Destination::new(&self.span.cells, self.span.at, self.count, &self.datatype)
    }
}

/// The target as C names it.
struct Far {
    rank: c_int,
    displacement: i64,
    count: i64,
    datatype: Handle,
}

/// The target.
struct There {
    rank: Option<u32>,
    displacement: u64,
    count: u64,
    datatype: Datatype,
}

impl Far {
    fn there(&self, library: &Library) -> Result<There, Failure> {
        let rank = target_rank(self.rank)?;
        let size = library.process.team().size();
        if rank.is_some_and(|rank| rank >= size) {
            let words = format!("there is no rank {} among {size}", self.rank);
            return Err(failure(ERR_RANK, words));
        }
        let negative = || failure(ERR_DISP, format!("a displacement of {}", self.displacement));
        let displacement = match rank {
            Some(_) => u64::try_from(self.displacement).map_err(|_| negative())?,
            None => 0,
        };
        let (datatype, count) = (library.datatype(self.datatype)?, count(self.count)?);
        Ok(There { rank, displacement, count, datatype })
    }
}

impl There {
    fn target(&self) -> Target<'_> {
        Target::new(self.rank, self.displacement, self.count, &self.datatype)
    }
}

/// # Safety
/// As [`rw_put`].
unsafe fn put_by<T>(
    window: Handle,
    library: &Library,
    (origin, target): (Side, Far),
    issue: impl FnOnce(&Window, Source<'_>, Target<'_>) -> Result<T, ropewalk_rma::Error>,
) -> Result<T, Failure> {
    with_window(window, |window| {
        let there = target.there(library)?;
        // SAFETY: the caller vouches for it.
        let data = unsafe { origin.data(library, there.rank.is_none())? };
        Ok(issue(window, data.source(), there.target())?)
    })
}

/// # Safety
/// As [`rw_get`].
unsafe fn get_by<T>(
    window: Handle,
    library: &Library,
    (origin, target): (Side, Far),
    issue: impl FnOnce(&Window, Destination<'_>, Target<'_>) -> Result<T, ropewalk_rma::Error>,
) -> Result<T, Failure> {
    with_window(window, |window| {
        let there = target.there(library)?;
        // SAFETY: the caller vouches for it.
        let data = unsafe { origin.data(library, there.rank.is_none())? };
        Ok(issue(window, data.destination(), there.target())?)
    })
}

/// Results of an update go to `result`; without data of the origin it is a read.
///
/// # Safety
/// As [`rw_get_accumulate`].
unsafe fn fetch_by<T>(
    window: Handle,
    library: &Library,
    (origin, result, target): (Side, Side, Far),
    op: c_int,
    issue: impl FnOnce(
        &Window,
        Option<Source<'_>>,
        Destination<'_>,
        Target<'_>,
        Operator,
    ) -> Result<T, ropewalk_rma::Error>,
) -> Result<T, Failure> {
    with_window(window, |window| {
        let (operator, there) = (operator(op)?, target.there(library)?);
        let is_nobody = there.rank.is_none();
        // SAFETY: the caller vouches for it.
        let data =
            (operator != Operator::Nothing).then(|| unsafe { origin.data(library, is_nobody) });
        let data = data.transpose()?;
        // SAFETY: as above.
        let result = unsafe { result.data(library, is_nobody)? };
        let source = data.as_ref().map(Data::source);
        Ok(issue(window, source, result.destination(), there.target(), operator)?)
    })
}

/// Issues an operation with a request, and gives the request.
///
/// # Safety
/// `request` is null or may be written.
unsafe fn requested(
    request: *mut Handle,
    issue: impl FnOnce(&Library) -> Result<Request, Failure>,
) -> c_int {
    ask(|library| {
        // SAFETY: the caller vouches for it.
        unsafe { place(request)? };
        let kept = library.keep_request(issue(library)?)?;
        // SAFETY: as above.
        unsafe { put(request, kept) }
    })
}

/// Copies data to a target.
///
/// # Safety
/// The data of the origin may be read, and do not change, until the operation is complete at the origin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_put(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    window: Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { put_by(window, library, (origin, target), Window::put) })
}

/// Copies data to a target. After that, and after all that this rank issued to it before, the target's counter grows by 1.
///
/// # Safety
/// As [`rw_put`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_put_notify(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    counter: c_int,
    window: Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    ask(|library| {
        let counter = counter_of(counter)?;
        let issue = |window: &Window, source: Source<'_>, target: Target<'_>| {
            window.put_notify(source, target, counter)
        };
        // SAFETY: the caller vouches for it.
        unsafe { put_by(window, library, (origin, target), issue) }
    })
}

/// Notices that a counter of this rank has had.
///
/// # Safety
/// `notices` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_win_notices(
    window: Handle,
    counter: c_int,
    notices: *mut i64,
) -> c_int {
    ask(|_| {
        // SAFETY: the caller vouches for it.
        unsafe { place(notices)? };
        let count = with_window(window, |window| Ok(window.notices(counter_of(counter)?)?))?;
        // SAFETY: as above.
        unsafe { put(notices, i64::try_from(count).unwrap_or(i64::MAX)) }
    })
}

/// Waits until a counter of this rank has had so many notices in all.
#[unsafe(no_mangle)]
pub extern "C" fn rw_win_wait_notices(window: Handle, counter: c_int, least: i64) -> c_int {
    ask(|_| {
        with_window(window, |window| Ok(window.wait_notices(counter_of(counter)?, count(least)?)?))
    })
}

fn counter_of(counter: c_int) -> Result<u32, Failure> {
    u32::try_from(counter).map_err(|_| failure(ERR_ARG, format!("there is no counter {counter}")))
}

/// A put with a request, within epochs of locks.
///
/// # Safety
/// As [`rw_put`]; `request` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_rput(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    window: Handle,
    request: *mut Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    // SAFETY: the caller vouches for it.
    unsafe { requested(request, |library| put_by(window, library, (origin, target), Window::rput)) }
}

/// Copies data of a target to here.
///
/// # Safety
/// The memory at the origin may be written until the operation is complete there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_get(
    origin: *mut c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    window: Handle,
) -> c_int {
    let origin = Side::new(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { get_by(window, library, (origin, target), Window::get) })
}

/// The same with a request, within epochs of locks.
///
/// # Safety
/// As [`rw_get`]; `request` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_rget(
    origin: *mut c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    window: Handle,
    request: *mut Handle,
) -> c_int {
    let origin = Side::new(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    // SAFETY: the caller vouches for it.
    unsafe { requested(request, |library| get_by(window, library, (origin, target), Window::rget)) }
}

/// Combines each element of a target with one of the origin, atomically.
///
/// # Safety
/// As [`rw_put`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_accumulate(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    op: c_int,
    window: Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    ask(|library| {
        let op = operator(op)?;
        // SAFETY: the caller vouches for it.
        unsafe {
            put_by(window, library, (origin, target), |window, source, target| {
                window.accumulate(source, target, op)
            })
        }
    })
}

/// The same with a request, within epochs of locks.
///
/// # Safety
/// As [`rw_put`]; `request` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_raccumulate(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    op: c_int,
    window: Handle,
    request: *mut Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    let issue = |library: &Library| {
        let op = operator(op)?;
        // SAFETY: the caller vouches for it.
        unsafe {
            put_by(window, library, (origin, target), |window, source, target| {
                window.raccumulate(source, target, op)
            })
        }
    };
    // SAFETY: the caller vouches for it.
    unsafe { requested(request, issue) }
}

/// Accumulates, and copies what the elements were before to here. With RW_NO_OP the data of the origin are not looked at.
///
/// # Safety
/// As [`rw_put`] for the origin, and as [`rw_get`] for the result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_get_accumulate(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    result: *mut c_void,
    result_count: i64,
    result_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    op: c_int,
    window: Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let result = Side::new(result, result_count, result_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    let all = (origin, result, target);
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { fetch_by(window, library, all, op, Window::get_accumulate) })
}

/// The same with a request, within epochs of locks.
///
/// # Safety
/// As [`rw_get_accumulate`]; `request` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_rget_accumulate(
    origin: *const c_void,
    origin_count: i64,
    origin_type: Handle,
    result: *mut c_void,
    result_count: i64,
    result_type: Handle,
    target: c_int,
    displacement: i64,
    target_count: i64,
    target_type: Handle,
    op: c_int,
    window: Handle,
    request: *mut Handle,
) -> c_int {
    let origin = Side::read(origin, origin_count, origin_type);
    let result = Side::new(result, result_count, result_type);
    let target = Far { rank: target, displacement, count: target_count, datatype: target_type };
    let all = (origin, result, target);
    // SAFETY: the caller vouches for it.
    unsafe {
        requested(request, |library| fetch_by(window, library, all, op, Window::rget_accumulate))
    }
}

/// Accumulates one element of a predefined type, and copies what it was before to here.
///
/// # Safety
/// As [`rw_get_accumulate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_fetch_and_op(
    origin: *const c_void,
    result: *mut c_void,
    datatype: Handle,
    target: c_int,
    displacement: i64,
    op: c_int,
    window: Handle,
) -> c_int {
    let (origin, result) = (Side::read(origin, 1, datatype), Side::new(result, 1, datatype));
    let target = Far { rank: target, displacement, count: 1, datatype };
    let all = (origin, result, target);
    // SAFETY: the caller vouches for it.
    ask(|library| unsafe { fetch_by(window, library, all, op, Window::fetch_and_op) })
}

/// Sets one element to that of the origin if it equals `compare`, and copies what it was before to here.
///
/// # Safety
/// As [`rw_get_accumulate`]; `origin` and `compare` are read within the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rw_compare_and_swap(
    origin: *const c_void,
    compare: *const c_void,
    result: *mut c_void,
    datatype: Handle,
    target: c_int,
    displacement: i64,
    window: Handle,
) -> c_int {
    let result = Side::new(result, 1, datatype);
    let far = Far { rank: target, displacement, count: 1, datatype };
    ask(|library| {
        let is_nobody = far.there(library)?.rank.is_none();
        let datatype = library.datatype(datatype)?;
        let (desired, expected) = match is_nobody {
            true => (Vec::new(), Vec::new()),
            // SAFETY: the caller vouches for it.
            false => unsafe { (element(origin, &datatype)?, element(compare, &datatype)?) },
        };
        // SAFETY: as above.
        unsafe {
            get_by(window, library, (result, far), |window, result, target| {
                window.compare_and_swap(&expected, &desired, result, target)
            })
        }
    })
}

/// The bytes of an element that can be compared.
///
/// # Safety
/// `address` is null or has one.
unsafe fn element(address: *const c_void, datatype: &Datatype) -> Result<Vec<u8>, Failure> {
    let Class::One(element) = datatype.class() else {
        return Err(failure(ERR_TYPE, "only one element of a predefined type can be swapped"));
    };
    if address.is_null() || address.addr() == BOTTOM {
        return Err(failure(ERR_ARG, "the address of data is NULL or RW_BOTTOM"));
    }
    // SAFETY: the caller vouches for one element.
    unsafe { crate::memory::list(address.cast(), element.shape().extent as i64) }
}
