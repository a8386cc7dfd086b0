//! Messages: sends and receives.

use std::ffi::c_void;

use ropewalk_base::memory::Segment;
use ropewalk_face_common::{segment, with_segments};

use super::{ask, put, returned};
use crate::abi::{Address, Handle, MAX_SEGMENTS, SegmentEntry};
use crate::codes::{BAD_SEGMENT_COUNT, BAD_SEGMENT_LIST, BAD_SEGMENT_MEMORY, Code, Family};
use crate::operations::Posting;

/// The arguments of a call besides its memory.
struct Call {
    family: Family,
    endpoint: Handle,
    match_info: u64,
    context: *mut c_void,
    request: *mut Handle,
}

/// The operation that the call performs on its memory.
enum Verb {
    Send { to: Address, synchronous: bool },
    Receive { mask: u64 },
}

impl Call {
    /// # Safety
    /// The list has `count` entries; its memory is the request's until that is complete; `self.request` is
    /// null or may be written.
    unsafe fn list(&self, list: *const SegmentEntry, count: u32, verb: &Verb) -> u32 {
        let answer = ask(self.endpoint, self.text(verb), |endpoint| {
            if count > MAX_SEGMENTS {
                return Err(BAD_SEGMENT_COUNT);
            }
            if list.is_null() && count > 0 {
                return Err(BAD_SEGMENT_LIST);
            }
            let entries = (0..count as usize).map(|index| {
                // SAFETY: the caller vouches for the list.
                let entry = unsafe { list.add(index).read() };
                segment(entry.address, entry.bytes as usize).ok_or(BAD_SEGMENT_MEMORY)
            });
            // SAFETY: the caller vouches for the memory.
            with_segments(entries, |segments| unsafe { self.post(endpoint, segments, verb) })
        });
        returned(self.family, answer)
    }

    /// The same of one buffer.
    ///
    /// # Safety
    /// As for a list.
    unsafe fn buffer(&self, address: *mut c_void, bytes: usize, verb: &Verb) -> u32 {
        let answer = ask(self.endpoint, self.text(verb), |endpoint| {
            let segments = [segment(address, bytes).ok_or(BAD_SEGMENT_MEMORY)?];
            // SAFETY: the caller vouches for the memory.
            unsafe { self.post(endpoint, &segments, verb) }
        });
        returned(self.family, answer)
    }

    fn text(&self, verb: &Verb) -> &'static std::ffi::CStr {
        match verb {
            Verb::Send { synchronous: false, .. } => c"send",
            Verb::Send { synchronous: true, .. } => c"send synchronously",
            Verb::Receive { .. } => c"receive",
        }
    }

    /// # Safety
    /// As for a list.
    unsafe fn post(
        &self,
        endpoint: &crate::endpoint::Ep,
        segments: &[Segment],
        verb: &Verb,
    ) -> Result<(), Code> {
        let posting = Posting {
            segments,
            match_info: self.match_info,
            context: self.context,
            is_wanted: !self.request.is_null(),
        };
        // SAFETY: the caller vouches for memory and request.
        unsafe {
            let handle = match *verb {
                Verb::Send { to, synchronous } => endpoint.isend(&posting, to, synchronous),
                Verb::Receive { mask } => endpoint.irecv(&posting, mask),
            };
            put(self.request, handle?);
        }
        Ok(())
    }
}

twins! {
    /// Sends a message; complete when its memory may be used again.
    ///
    /// # Safety
    /// The list has `count` entries; its memory stays as it is until the request is complete.
    unsafe fn mx_isend, omx_isendv(
        endpoint: Handle,
        list: *mut SegmentEntry,
        count: u32,
        to: Address,
        match_info: u64,
        context: *mut c_void,
        request: *mut Handle,
    ) = |family| {
        let call = Call { family, endpoint, match_info, context, request };
        call.list(list, count, &Verb::Send { to, synchronous: false })
    }
}

twins! {
    /// Sends a message; complete when a receive took it.
    ///
    /// # Safety
    /// As for [`mx_isend`].
    unsafe fn mx_issend, omx_issendv(
        endpoint: Handle,
        list: *mut SegmentEntry,
        count: u32,
        to: Address,
        match_info: u64,
        context: *mut c_void,
        request: *mut Handle,
    ) = |family| {
        let call = Call { family, endpoint, match_info, context, request };
        call.list(list, count, &Verb::Send { to, synchronous: true })
    }
}

twins! {
    /// Receives a message whose match information, under the mask, is this.
    ///
    /// # Safety
    /// The list has `count` entries; its memory is the request's until that is complete.
    unsafe fn mx_irecv, omx_irecvv(
        endpoint: Handle,
        list: *mut SegmentEntry,
        count: u32,
        match_info: u64,
        mask: u64,
        context: *mut c_void,
        request: *mut Handle,
    ) = |family| {
        let call = Call { family, endpoint, match_info, context, request };
        call.list(list, count, &Verb::Receive { mask })
    }
}

/// [`omx_isendv`] of one buffer.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_isend(
    endpoint: Handle,
    buffer: *mut c_void,
    bytes: usize,
    to: Address,
    match_info: u64,
    context: *mut c_void,
    request: *mut Handle,
) -> u32 {
    let call = Call { family: Family::Native, endpoint, match_info, context, request };
    // SAFETY: the caller vouches for it.
    unsafe { call.buffer(buffer, bytes, &Verb::Send { to, synchronous: false }) }
}

/// [`omx_issendv`] of one buffer.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_issend(
    endpoint: Handle,
    buffer: *mut c_void,
    bytes: usize,
    to: Address,
    match_info: u64,
    context: *mut c_void,
    request: *mut Handle,
) -> u32 {
    let call = Call { family: Family::Native, endpoint, match_info, context, request };
    // SAFETY: the caller vouches for it.
    unsafe { call.buffer(buffer, bytes, &Verb::Send { to, synchronous: true }) }
}

/// [`omx_irecvv`] of one buffer.
///
/// # Safety
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn omx_irecv(
    endpoint: Handle,
    buffer: *mut c_void,
    bytes: usize,
    match_info: u64,
    mask: u64,
    context: *mut c_void,
    request: *mut Handle,
) -> u32 {
    let call = Call { family: Family::Native, endpoint, match_info, context, request };
    // SAFETY: the caller vouches for it.
    unsafe { call.buffer(buffer, bytes, &Verb::Receive { mask }) }
}
