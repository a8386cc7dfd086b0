//! Streams: data frames of gets that we serve, of our puts, and fragments of our messages, the peer's streams in turn.

mod budget;
mod pump;

pub(crate) use budget::BulkBudget;

use std::collections::VecDeque;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;

use crate::api::{Channel, OperationId};
use crate::remote::{ACCESSES_MAX, PutStream, SEGMENTS_MAX};

/// Streams to one peer: segments that it asked for, and puts of ours. An honest one has at most
/// `SEGMENTS_MAX` under way; older ones were cancelled.
const STREAMS_MAX: usize = 2 * SEGMENTS_MAX as usize + ACCESSES_MAX as usize;

/// Streams whose bytes are counted, at most, to see what waits.
const COUNTED_MAX: usize = 64;

/// The streams to one peer.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    queue: VecDeque<Stream>,
}

/// Whether a peer is among those that wait for the next pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Throttled(bool);

impl Streams {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the peer, which asks for streams, may ask for another one.
    pub fn has_room(&self) -> bool {
        self.queue.len() < STREAMS_MAX
    }

    /// Adds a stream, whose turn comes after those of all others.
    pub fn push(&mut self, stream: Stream) {
        self.queue.push_back(stream);
    }

    /// Bytes that are left of the stream whose turn is next.
    pub fn next_bytes(&self) -> Option<u64> {
        self.queue.front().map(|stream| stream.left.len)
    }

    /// Bytes that are left of the first streams.
    pub fn left_bytes(&self) -> u64 {
        let first = self.queue.iter().take(COUNTED_MAX);
        first.fold(0, |sum, stream| sum.saturating_add(stream.left.len))
    }

    /// Takes out the stream whose turn is next.
    pub fn pop(&mut self) -> Option<Stream> {
        self.queue.pop_front()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.queue.iter()
    }

    /// Takes out the first stream that is such a one.
    pub fn take(&mut self, is_such: impl FnMut(&Stream) -> bool) -> Option<Stream> {
        let at = self.queue.iter().position(is_such)?;
        self.queue.remove(at)
    }

    /// Drops streams, but for such ones.
    pub fn retain(&mut self, is_such: impl FnMut(&Stream) -> bool) {
        self.queue.retain(is_such);
    }
}

/// Bytes on their way to a peer in data frames.
#[derive(Debug)]
pub(crate) struct Stream {
    pub kind: StreamKind,
    /// Bytes that are still to be sent.
    pub left: Slice,
}

#[derive(Debug)]
pub(crate) enum StreamKind {
    /// A message of ours: what is behind its first fragment.
    Message { operation: OperationId, channel: Channel, message: u64, offset: u64 },
    /// The peer asked: our region serves. `is_last`: nothing else is asked for by the same get.
    Serve { region: SlotId, cookie: u64, into_offset: u64, is_last: bool },
    /// Our put.
    Put(PutStream),
}
