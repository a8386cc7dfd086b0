//! Named limits of the message layer. A limit that a user may meet is named in an error text.

/// Longest frame header, in bytes.
pub const HEADER_BYTES_MAX: usize = 104;
/// Longest payload of one frame, in bytes: bulk never holds a connection longer than this.
pub const FRAME_PAYLOAD_BYTES_MAX: u32 = 256 * 1024;
/// Longest eager message, in bytes; longer ones are announced. Over a stream messages up to this leave at once, in
/// fragments, as far as credit reaches.
pub const EAGER_BYTES_MAX: u32 = 1024 * 1024;
/// Longest message that leaves at once over a rail of long packets.
pub const EAGER_BYTES_LONG: u32 = 64 * 1024;
/// Messages up to so many bytes leave at once where packets carry them, however short those are. As in MX, programs
/// may count on it.
pub const EAGER_BYTES_SHORT: u32 = 32 * 1024;
/// Messages up to so many bytes leave at once over every rail, and a peer's first window has room for them.
pub const EAGER_BYTES: u32 = 16 * 1024;
/// Longest request (unexpected message), in bytes.
pub const REQUEST_BYTES_MAX: u32 = 32 * 1024;
/// Remote segments of one list put or get.
pub const REMOTE_SEGMENTS_MAX: usize = 1024;
/// Bytes of records of puts, which go in one frame: every peer's first window has room for
/// two of them.
pub const RECORDS_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of elements in one frame of an update: the lock of an endpoint is held for as long as it takes to combine them.
pub const UPDATE_BYTES_MAX: u32 = 64 * 1024;
/// Longest put that goes with its request for a lock, in bytes: it goes in vain where somebody has the lock.
pub const LOCKED_PUT_BYTES_MAX: u32 = 4096;
/// Urgent frames that may wait on one link for a peer that does not read. More than a correct peer
/// can bring about before it reads again: answers to what its windows allow, and the frames of ours
/// that need no answer to go. With the usual windows that are 4096 results, 3 * 1024 `Fin`s and as
/// many credits; 4096 requests for segments, 1024 `Rts`s, as many aborts, and 128 frames with a
/// payload: 16 512, about a quarter.
pub const QUEUED_FRAMES_MAX: usize = 65_536;

/// Longest payload of a frame that is kept until it is acknowledged, in bytes.
pub const SPAN_BYTES_MAX: u32 = 64 * 1024;

const _: () =
    assert!(EAGER_BYTES_LONG <= SPAN_BYTES_MAX && SPAN_BYTES_MAX <= FRAME_PAYLOAD_BYTES_MAX);
const _: () = assert!(EAGER_BYTES <= EAGER_BYTES_SHORT && EAGER_BYTES_SHORT <= EAGER_BYTES_LONG);
const _: () = assert!(REQUEST_BYTES_MAX <= EAGER_BYTES_SHORT);
const _: () = assert!(EAGER_BYTES_LONG <= FRAME_PAYLOAD_BYTES_MAX);
const _: () = assert!(EAGER_BYTES_LONG <= EAGER_BYTES_MAX);
const _: () = assert!(REMOTE_SEGMENTS_MAX * 16 <= EAGER_BYTES_MAX as usize);
