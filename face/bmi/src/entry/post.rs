//! Posts: sends, receives and unexpected messages, of one buffer or a list.

use std::ffi::{c_int, c_void};

use ropewalk_base::memory::{Memory, Segment};
use ropewalk_face_common::{segment, with_segments};
use ropewalk_net::{Channel, Completed, Level, Oversize, Posted};

use super::{code, put};
use crate::addresses::{Handle, peer_of};
use crate::contexts::{ContextSlot, number};
use crate::errors::{self, EFAULT, EINVAL, EMSGSIZE, ENETDOWN, ErrorCode};
use crate::library::{self, Library};
use crate::unexpected::{UNEXPECTED_BYTES_MAX, bits_of};

/// Hints of OrangeFS, which are for tracing only.
type Hints = *mut c_void;

#[inline]
fn piece(buffer: *mut c_void, size: i64) -> Result<Segment, ErrorCode> {
    let bytes = usize::try_from(size).map_err(|_| -EINVAL)?;
    segment(buffer, bytes).ok_or(-EFAULT)
}

/// The output pointer of a post, and its peer, context and user pointer.
struct Post {
    id: *mut i64,
    peer: Handle,
    context: i64,
    user: *mut c_void,
    /// The message's length, and what to answer where it is over the limit.
    bytes: i64,
    too_long: ErrorCode,
}

/// The memory that a post moves: one piece without a list, or a list.
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
        let posted = library::with_context(self.context, |library, context| {
            if self.bytes > library.options.message_bytes_max {
                return Err(-self.too_long);
            }
            work(library, context, user)
        });
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
    let one = match piece(buffer.cast_mut(), size) {
        Ok(piece) => What::One(piece),
        Err(error) => return error,
    };
    let (user, bytes, too_long) = (user_ptr, size, EMSGSIZE);
    let post = Post { id, peer: dest, context: context_id, user, bytes, too_long };
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
    let (user, bytes, too_long) = (user_ptr, total_size, EMSGSIZE);
    let post = Post { id, peer: dest, context: context_id, user, bytes, too_long };
    // SAFETY: the caller vouches for the lists and for the rest.
    unsafe {
        with_list(buffer_list.cast(), size_list, list_count, total_size, |list| {
            post.send(Channel::Tagged, u64::from(tag as u32), &What::List(list))
        })
    }
}

/// Posts a list whose pieces have `total` bytes.
///
/// # Safety
/// The lists have `count` entries.
unsafe fn with_list(
    buffers: *const *mut c_void,
    sizes: *const i64,
    count: c_int,
    total: i64,
    post: impl FnOnce(&[Segment]) -> c_int,
) -> c_int {
    let count = usize::try_from(count).unwrap_or(0);
    if count == 0 || buffers.is_null() || sizes.is_null() {
        return -EINVAL;
    }
    let pieces = (0..count).map(|index| {
        // SAFETY: the lists have `count` entries.
        let (buffer, size) = unsafe { (*buffers.add(index), *sizes.add(index)) };
        piece(buffer, size)
    });
    code(with_segments(pieces, |segments| {
        let add = |sum: i64, segment: &Segment| sum.checked_add(segment.len() as i64);
        match segments.iter().try_fold(0, add) {
            Some(sum) if sum == total => Ok(post(segments)),
            _ => Err(-EINVAL),
        }
    }))
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
    let one = match piece(buffer, expected_size) {
        Ok(piece) => What::One(piece),
        Err(error) => return error,
    };
    let (user, bytes, too_long) = (user_ptr, expected_size, EINVAL);
    let post = Post { id, peer: src, context: context_id, user, bytes, too_long };
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
    let (user, bytes, too_long) = (user_ptr, total_expected_size, EINVAL);
    let post = Post { id, peer: src, context: context_id, user, bytes, too_long };
    // SAFETY: the caller vouches for the lists and for the rest.
    unsafe {
        with_list(buffer_list, size_list, list_count, total_expected_size, |list| {
            post.receive(tag, &What::List(list), total_actual_size)
        })
    }
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
    let (user, bytes, too_long) = (user_ptr, size, EMSGSIZE);
    let post = Post { id, peer: dest, context: context_id, user, bytes, too_long };
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
    let (user, bytes, too_long) = (user_ptr, total_size, EMSGSIZE);
    let post = Post { id, peer: dest, context: context_id, user, bytes, too_long };
    // SAFETY: the caller vouches for the lists and for the rest.
    unsafe {
        with_list(buffer_list.cast(), size_list, list_count, total_size, |list| {
            post.send(Channel::Request, bits_of(tag, class), &What::List(list))
        })
    }
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
