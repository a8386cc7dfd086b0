//! The way out: at once where nothing waits, else in batches from the queues. Frames of a link that is protected go
//! through records.
//!
//! Invariants: a frame that has left in part goes on before anything else; a frame leaves its queue only when the
//! kernel took its last byte, and then its outcome is reported; a frame that has not left at
//! all can still be overtaken. Of a frame that is sealed "left" means that all of it is sealed.

use ropewalk_base::memory::{BufferTable, Segment, Slice};
use ropewalk_base::verb::{Header, RailCounters, Token};
use ropewalk_rail::Report;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::link::{Link, State};
use crate::outgoing::Outgoing;
use crate::sealed::{Filling, Spares};
use crate::vectors::Vectors;

/// Bytes of one system call: more would lie in no cache when the receiver has them.
const BATCH_BYTES: usize = 256 * 1024;
/// Frames up to this length are copied together: that costs less than a list of pieces costs the
/// kernel.
const SMALL_BYTES: usize = 1280;
/// System calls of one link in one poll.
const CALLS_MAX: usize = 4;

/// The result of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flushed {
    /// Nothing waits any more.
    All,
    /// More waits; the socket is full, or it is others' turn.
    Part,
}

/// Whether a send may be tried again later: the socket, or for the moment the kernel, has no room.
fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM)
}

/// Tries to send a frame with one system call; returns the bytes that left. An error that does not
/// pass counts as nothing sent: the flush that follows meets it again, where it can be reported.
pub fn send_now(
    link: &Link,
    header: &Header,
    payload: Slice,
    buffers: &BufferTable,
    counters: &mut RailCounters,
) -> usize {
    let Some(socket) = link.socket() else { return 0 };
    counters.system_calls += 1;
    let header_bytes = header.as_bytes().len();
    let frame_bytes = header_bytes + payload.len as usize;
    if frame_bytes <= SMALL_BYTES {
        let mut frame = [0; SMALL_BYTES];
        frame[..header_bytes].copy_from_slice(header.as_bytes());
        if buffers.try_read(payload, &mut frame[header_bytes..frame_bytes]).is_err() {
            // It went away just now. The flush meets that, too.
            return 0;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(socket, &frame[..frame_bytes], flags).unwrap_or(0);
        counters.bytes_sent += sent as u64;
        return sent;
    }
    let mut vectors = Vectors::new();
    push_header(&mut vectors, header, 0);
    push_payload(&mut vectors, payload, buffers);
    // SAFETY: the header is borrowed and so outlives the call, and the payload in a memory of the
    // table, which is borrowed; only slices of the caller's order are read.
    let sent = unsafe { vectors.send(socket) }.unwrap_or(0);
    counters.bytes_sent += sent as u64;
    sent
}

/// Sends the waiting frames of a link, a bounded amount, and reports the frames that have left.
pub fn flush(
    link: &mut Link,
    report: &mut dyn Report,
    counters: &mut RailCounters,
    spares: &mut Spares,
) -> Result<Flushed, Errno> {
    for _ in 0..CALLS_MAX {
        if link.is_drained() {
            return Ok(Flushed::All);
        }
        if link.seal.has_waiting() || link.outbound.frames().next().is_some_and(|it| it.is_sealed) {
            fill(link, report, counters, spares)?;
            if !send_sealed(link, counters, spares)? {
                break;
            }
            continue;
        }
        let Some(socket) = link.socket() else { return Ok(Flushed::Part) };
        let mut vectors = Vectors::new();
        // What was ordered before the link was protected leaves as it is.
        for frame in link.outbound.frames().take_while(|frame| !frame.is_sealed) {
            let complete = gather(&mut vectors, frame, report.buffers());
            if !complete || vectors.bytes() >= BATCH_BYTES {
                break;
            }
        }
        counters.system_calls += 1;
        // SAFETY: headers and private copies lie in the queues, which do not change before the call
        // returns; other payloads lie in memories of the table, which its owner keeps until the outcome
        // is reported or the frame is detached.
        let sent = match unsafe { vectors.send(socket) } {
            Ok(sent) => sent,
            Err(errno) if is_passing(errno) => return Ok(Flushed::Part),
            Err(errno) => return Err(errno),
        };
        counters.bytes_sent += sent as u64;
        link.progress = link.progress.wrapping_add(1);
        settle(link, sent, report, counters);
        if sent < vectors.bytes() {
            break;
        }
    }
    Ok(if link.is_drained() { Flushed::All } else { Flushed::Part })
}

/// Seals a frame of a link on which nothing waits, and sends it as far as the socket has room; returns the bytes that were
/// sealed. An error counts as no room: the flush that follows meets it again, where it can be reported.
pub fn seal_now(
    link: &mut Link,
    mut frame: Outgoing,
    buffers: &BufferTable,
    counters: &mut RailCounters,
    spares: &mut Spares,
) -> usize {
    while frame.left() > 0 {
        let Some(sealed) = link.seal.sealed() else { break };
        let Some(writer) = &mut sealed.writer else { break };
        let mut filling = Filling::new(writer, &mut sealed.out, spares);
        let added = filling.add(&frame, buffers);
        filling.finish();
        let Ok(added) = added else {
            // Records of a part of it may have been sealed: it can neither go on nor begin again.
            link.state = State::Ending;
            break;
        };
        counters.bytes_copied += added as u64;
        frame.sent += added as u32;
        if !send_sealed(link, counters, spares).unwrap_or(false) {
            break;
        }
    }
    frame.sent as usize
}

/// Seals frames that wait, as many as the buffer takes, and reports them. Nothing where it is not empty.
fn fill(
    link: &mut Link,
    report: &mut dyn Report,
    counters: &mut RailCounters,
    spares: &mut Spares,
) -> Result<(), Errno> {
    let Link { seal, outbound, .. } = link;
    let Some(sealed) = seal.sealed().filter(|sealed| sealed.out.is_empty()) else { return Ok(()) };
    let Some(writer) = &mut sealed.writer else { return Ok(()) };
    let mut filling = Filling::new(writer, &mut sealed.out, spares);
    let mut bytes = 0;
    for frame in outbound.frames() {
        let added = filling.add(frame, report.buffers()).map_err(|_| Errno::FAULT)?;
        bytes += added;
        if added < frame.left() {
            break;
        }
    }
    filling.finish();
    counters.bytes_copied += bytes as u64;
    settle(link, bytes, report, counters);
    Ok(())
}

/// Sends sealed bytes; true where the socket took them all.
fn send_sealed(
    link: &mut Link,
    counters: &mut RailCounters,
    spares: &mut Spares,
) -> Result<bool, Errno> {
    let Link { seal, socket, progress, .. } = link;
    let (Some(sealed), Some(socket)) = (seal.sealed(), socket) else { return Ok(false) };
    counters.system_calls += 1;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = match rustix::net::send(socket, sealed.out.waiting(), flags) {
        Ok(sent) => sent,
        Err(errno) if is_passing(errno) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    counters.bytes_sent += sent as u64;
    *progress = progress.wrapping_add(1);
    sealed.out.advance(sent, spares);
    Ok(sealed.out.is_empty())
}

/// Adds the part of a frame that has not left; false if the list became full before its end.
fn gather(vectors: &mut Vectors, frame: &Outgoing, buffers: &BufferTable) -> bool {
    if !push_header(vectors, &frame.header, frame.sent as usize) {
        return false;
    }
    let left = frame.payload_left();
    let Some(copy) = &frame.copy else { return push_payload(vectors, left, buffers) };
    // The bytes that left since the copy was made are at its beginning.
    let rest = &copy[copy.len() - left.len as usize..];
    rest.is_empty() || vectors.push(Segment::new(rest.as_ptr().cast_mut(), rest.len()))
}

/// Adds the part of a header that has not left; false if there was no room.
fn push_header(vectors: &mut Vectors, header: &Header, sent: usize) -> bool {
    match header.as_bytes().get(sent..) {
        Some(rest) if !rest.is_empty() => {
            vectors.push(Segment::new(rest.as_ptr().cast_mut(), rest.len()))
        }
        _ => true,
    }
}

/// Adds a payload; false where the list became full before its end.
fn push_payload(vectors: &mut Vectors, payload: Slice, buffers: &BufferTable) -> bool {
    if payload.len == 0 {
        return true;
    }
    let added = vectors.extend(buffers.resolve(payload)) as u64;
    if added == payload.len {
        return true;
    }
    // Sending fewer bytes than the header says would make the peer take the next frame for payload.
    assert!(vectors.is_full(), "the buffer of a queued frame left the table before its outcome");
    false
}

/// Takes frames out of the queues as far as `sent` bytes reach.
fn settle(link: &mut Link, mut sent: usize, report: &mut dyn Report, counters: &mut RailCounters) {
    while !link.outbound.is_empty() {
        let urgency = link.outbound.turn();
        let queue = link.outbound.queue(urgency);
        let frame = queue.front_mut().expect("the queue whose turn it is has a frame");
        let left = frame.left();
        if sent < left {
            frame.sent += sent as u32;
            if frame.sent > 0 {
                link.outbound.partial = Some(urgency);
            }
            return;
        }
        sent -= left;
        let token = frame.token;
        queue.pop_front();
        link.outbound.partial = None;
        counters.frames_sent += 1;
        if token != Token::NONE {
            report.done(token);
        }
    }
}
