//! Posts: sends, receives and unexpected messages, of one buffer or a list.

use std::ffi::{c_int, c_void};

use ropewalk_base::memory::{Memory, Segment};
use ropewalk_net::{Channel, Completed, Level, Oversize, Posted};

use super::put;
use crate::addresses::{Handle, peer_of};
use crate::contexts::{ContextSlot, number};
use crate::errors::{self, EFAULT, EINVAL, EMSGSIZE, ENETDOWN, ErrorCode};
use crate::library::{self, Library};
use crate::unexpected::{UNEXPECTED_BYTES_MAX, bits_of};

/// Hints of OrangeFS, which are for tracing only.
type Hints = *mut c_void;

/// The pieces of a list, with their length together.
///
/// # Safety
/// Both lists have `count` entries.
unsafe fn pieces(
    buffers: *const *mut c_void,
    sizes: *const i64,
    count: c_int,
) -> Result<(Vec<Segment>, i64), ErrorCode> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(-EINVAL)?;
    if buffers.is_null() || sizes.is_null() {
        return Err(-EINVAL);
    }
    let mut total = 0i64;
    let mut segments = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the lists have `count` entries.
        let (buffer, size) = unsafe { (*buffers.add(index), *sizes.add(index)) };
        segments.push(piece(buffer, size)?);
        total = total.checked_add(size).ok_or(-EINVAL)?;
    }
    Ok((segments, total))
}

#[inline]
fn piece(buffer: *mut c_void, size: i64) -> Result<Segment, ErrorCode> {
    let bytes = usize::try_from(size).map_err(|_| -EINVAL)?;
    if buffer.is_null() && bytes > 0 {
        return Err(-EFAULT);
    }
    Ok(Segment::new(buffer.cast(), bytes))
}

/// Where a post takes its answer to, and for whom.
struct Post {
    id: *mut i64,
    peer: Handle,
    context: i64,
    user: *mut c_void,
}

/// What a post moves: one piece without a list, or a list.
enum What<'a> {
    One(Segment),
    List(&'a [Segment]),
}

impl What<'_> {
    /// # Safety
    /// The memory stays as it is until the operation has ended, which the interface demands of callers.
    #[inline]
    unsafe fn memory(&self, writable: bool) -> Memory {
        let segments = match self {
            What::One(segment) => std::slice::from_ref(segment),
            What::List(list) => list,
        };
        // SAFETY: the caller vouches for it.
        unsafe { Memory::from_raw(segments, writable) }
    }
}

impl Post {
    /// # Safety
    /// `self.id` is null or may be written.
    #[inline]
    unsafe fn start(
        &self,
        work: impl FnOnce(&Library, &ContextSlot, u64) -> Result<Posted, ErrorCode>,
    ) -> Result<Option<Completed>, ErrorCode> {
        if self.id.is_null() {
            return Err(-EINVAL);
        }
        let user = self.user.expose_provenance() as u64;
        let posted =
            library::with_context(self.context, |library, context| work(library, context, user));
        let posted = posted.unwrap_or_else(|| {
            Err(if library::with(|_| ()).is_some() { -EINVAL } else { -ENETDOWN })
        })?;
        let (id, answer) = match posted {
            Posted::Done(completed) => (0, Some(completed)),
            Posted::Pending(id) => (number(id), None),
        };
        // SAFETY: the caller vouches for it.
        unsafe { put(self.id, id) };
        Ok(answer)
    }

    /// # Safety
    /// `self.id` is null or may be written, and the memory stays until the operation has ended.
    #[inline]
    unsafe fn send(&self, channel: Channel, bits: u64, what: &What<'_>) -> c_int {
        // SAFETY: the caller vouches for all of it.
        let answer = unsafe {
            self.start(|library, context, user| {
                let (peer, memory) = (peer_of(self.peer), what.memory(false));
                let level = Level::Buffered;
                let endpoint = &library.endpoint;
                endpoint
                    .post_send(&context.queue, peer, channel, bits, memory, level, user)
                    .map_err(|(_, fault)| errors::of_fault(fault))
            })
        };
        match answer {
            Ok(None) => 0,
            Ok(Some(Completed { outcome: Ok(()), .. })) => 1,
            Ok(Some(Completed { outcome: Err(fault), .. })) => errors::of_fault(fault),
            Err(error) => error,
        }
    }

    /// # Safety
    /// As for `send`; `actual` is null or may be written.
    #[inline]
    unsafe fn receive(&self, tag: i32, what: &What<'_>, actual: *mut i64) -> c_int {
        // SAFETY: the caller vouches for all of it.
        let answer = unsafe {
            self.start(|library, context, user| {
                let (peer, memory) = (Some(peer_of(self.peer)), what.memory(true));
                let (bits, mask) = (u64::from(tag as u32), u64::MAX);
                let (channel, oversize) = (Channel::Tagged, Oversize::Refuse);
                let endpoint = &library.endpoint;
                endpoint
                    .post_receive(&context.queue, channel, peer, bits, mask, memory, oversize, user)
                    .map_err(|(_, fault)| errors::of_fault(fault))
            })
        };
        let (answer, bytes) = match answer {
            Ok(None) => (0, 0),
            Ok(Some(Completed { outcome: Ok(()), bytes, .. })) => (1, bytes as i64),
            Ok(Some(Completed { outcome: Err(fault), .. })) => (errors::of_fault(fault), 0),
            Err(error) => (error, 0),
        };
        // SAFETY: the caller vouches for it.
        unsafe { put(actual, bytes) };
        answer
    }
}

/// Whether a message may be so long.
fn check_length(bytes: i64, too_long: ErrorCode) -> Result<(), ErrorCode> {
    let max = library::with(|library| library.options.message_bytes_max);
    match max {
        Some(max) if bytes > max => Err(-too_long),
        _ => Ok(()),
    }
}

/// Sends a message to whoever posts a receive of this tag from us.
///
/// # Safety
/// `id` may be written; the buffer stays as it is until the operation has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_send(
    id: *mut i64,
    dest: Handle,
    buffer: *const c_void,
    size: i64,
    _buffer_type: c_int,
    tag: i32,
    user_ptr: *mut c_void,
    context_id: i64,
    _hints: Hints,
) -> c_int {
    let one = piece(buffer.cast_mut(), size).and_then(|piece| {
        check_length(size, EMSGSIZE)?;
        Ok(piece)
    });
    let one = match one {
        Ok(piece) => What::One(piece),
        Err(error) => return error,
    };
    let post = Post { id, peer: dest, context: context_id, user: user_ptr };
    // SAFETY: the caller vouches for it.
    unsafe { post.send(Channel::Tagged, u64::from(tag as u32), &one) }
}

/// The same from a list of buffers.
///
/// # Safety
/// As for `BMI_post_send`; the lists have `list_count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_send_list(
    id: *mut i64,
    dest: Handle,
    buffer_list: *const *const c_void,
    size_list: *const i64,
    list_count: c_int,
    total_size: i64,
    _buffer_type: c_int,
    tag: i32,
    user_ptr: *mut c_void,
    context_id: i64,
    _hints: Hints,
) -> c_int {
    // SAFETY: the caller vouches for the lists.
    let list = unsafe { list(buffer_list.cast(), size_list, list_count, total_size, EMSGSIZE) };
    let list = match list {
        Ok(list) => list,
        Err(error) => return error,
    };
    let post = Post { id, peer: dest, context: context_id, user: user_ptr };
    // SAFETY: the caller vouches for it.
    unsafe { post.send(Channel::Tagged, u64::from(tag as u32), &What::List(&list)) }
}

/// # Safety
/// The lists have `count` entries.
unsafe fn list(
    buffers: *const *mut c_void,
    sizes: *const i64,
    count: c_int,
    total: i64,
    too_long: ErrorCode,
) -> Result<Vec<Segment>, ErrorCode> {
    // SAFETY: the caller vouches for it.
    let (segments, sum) = unsafe { pieces(buffers, sizes, count)? };
    if sum != total {
        return Err(-EINVAL);
    }
    check_length(total, too_long)?;
    Ok(segments)
}

/// Receives the next message of this tag from `src`. A longer one fails the receive with `BMI_EPROTO` and
/// stays for another.
///
/// # Safety
/// `id` and `actual_size` may be written; the buffer is the operation's until it has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_recv(
    id: *mut i64,
    src: Handle,
    buffer: *mut c_void,
    expected_size: i64,
    actual_size: *mut i64,
    _buffer_type: c_int,
    tag: i32,
    user_ptr: *mut c_void,
    context_id: i64,
    _hints: Hints,
) -> c_int {
    let one = piece(buffer, expected_size).and_then(|piece| {
        check_length(expected_size, EINVAL)?;
        Ok(piece)
    });
    let one = match one {
        Ok(piece) => What::One(piece),
        Err(error) => return error,
    };
    let post = Post { id, peer: src, context: context_id, user: user_ptr };
    // SAFETY: the caller vouches for it.
    unsafe { post.receive(tag, &one, actual_size) }
}

/// The same into a list of buffers, which are filled in order.
///
/// # Safety
/// As for `BMI_post_recv`; the lists have `list_count` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_recv_list(
    id: *mut i64,
    src: Handle,
    buffer_list: *const *mut c_void,
    size_list: *const i64,
    list_count: c_int,
    total_expected_size: i64,
    total_actual_size: *mut i64,
    _buffer_type: c_int,
    tag: i32,
    user_ptr: *mut c_void,
    context_id: i64,
    _hints: Hints,
) -> c_int {
    // SAFETY: the caller vouches for the lists.
    let list = unsafe { list(buffer_list, size_list, list_count, total_expected_size, EINVAL) };
    let list = match list {
        Ok(list) => list,
        Err(error) => return error,
    };
    let post = Post { id, peer: src, context: context_id, user: user_ptr };
    // SAFETY: the caller vouches for it.
    unsafe { post.receive(tag, &What::List(&list), total_actual_size) }
}

/// Sends a message for which nobody has to post. At most `BMI_GET_UNEXP_SIZE` bytes.
///
/// # Safety
/// As for `BMI_post_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_sendunexpected_class(
    id: *mut i64,
    dest: Handle,
    buffer: *const c_void,
    size: i64,
    _buffer_type: c_int,
    tag: i32,
    class: u8,
    user_ptr: *mut c_void,
    context_id: i64,
    _hints: Hints,
) -> c_int {
    if size > UNEXPECTED_BYTES_MAX {
        return -EMSGSIZE;
    }
    let one = match piece(buffer.cast_mut(), size) {
        Ok(piece) => What::One(piece),
        Err(error) => return error,
    };
    let post = Post { id, peer: dest, context: context_id, user: user_ptr };
    // SAFETY: the caller vouches for it.
    unsafe { post.send(Channel::Request, bits_of(tag, class), &one) }
}

/// The same of class 0.
///
/// # Safety
/// As for `BMI_post_send`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_sendunexpected(
    id: *mut i64,
    dest: Handle,
    buffer: *const c_void,
    size: i64,
    buffer_type: c_int,
    tag: i32,
    user_ptr: *mut c_void,
    context_id: i64,
    hints: Hints,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        BMI_post_sendunexpected_class(
            id,
            dest,
            buffer,
            size,
            buffer_type,
            tag,
            0,
            user_ptr,
            context_id,
            hints,
        )
    }
}

/// The same from a list of buffers.
///
/// # Safety
/// As for `BMI_post_send_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_sendunexpected_list_class(
    id: *mut i64,
    dest: Handle,
    buffer_list: *const *const c_void,
    size_list: *const i64,
    list_count: c_int,
    total_size: i64,
    _buffer_type: c_int,
    tag: i32,
    class: u8,
    user_ptr: *mut c_void,
    context_id: i64,
    _hints: Hints,
) -> c_int {
    if total_size > UNEXPECTED_BYTES_MAX {
        return -EMSGSIZE;
    }
    // SAFETY: the caller vouches for the lists.
    let list = unsafe { list(buffer_list.cast(), size_list, list_count, total_size, EMSGSIZE) };
    let list = match list {
        Ok(list) => list,
        Err(error) => return error,
    };
    let post = Post { id, peer: dest, context: context_id, user: user_ptr };
    // SAFETY: the caller vouches for it.
    unsafe { post.send(Channel::Request, bits_of(tag, class), &What::List(&list)) }
}

/// The same of class 0.
///
/// # Safety
/// As for `BMI_post_send_list`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_post_sendunexpected_list(
    id: *mut i64,
    dest: Handle,
    buffer_list: *const *const c_void,
    size_list: *const i64,
    list_count: c_int,
    total_size: i64,
    buffer_type: c_int,
    tag: i32,
    user_ptr: *mut c_void,
    context_id: i64,
    hints: Hints,
) -> c_int {
    // SAFETY: the caller vouches for it.
    unsafe {
        BMI_post_sendunexpected_list_class(
            id,
            dest,
            buffer_list,
            size_list,
            list_count,
            total_size,
            buffer_type,
            tag,
            0,
            user_ptr,
            context_id,
            hints,
        )
    }
}
