//! The guarantees of a simulated rail, and the faults of the simulated network.

use std::time::Duration;

use ropewalk_base::limits::{EAGER_BYTES, EAGER_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX};
use ropewalk_base::time::Time;
use ropewalk_base::verb::Capabilities;

/// When an order of a frame lets go of its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// At once while the send window has room (as a kernel that copies does), else when sent.
    AtOnce,
    /// Always `Pending`; `done` this long after the last byte left.
    WhenSent(Duration),
}

/// The constitution of one simulated rail, fixed for its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimConfig {
    /// The guarantees of its links. The faults of a [`Path`] never break a promise made here.
    pub capabilities: Capabilities,
    /// Whether others may connect to it.
    pub accepts: bool,
    /// A connect without answer fails after this long.
    pub connect_timeout: Duration,
    /// A link whose peer cannot be heard goes down after this long; `None`: never by itself.
    pub link_timeout: Option<Duration>,
    /// When buffers of frames are released.
    pub release: Release,
    /// Frames of one link that may be on their way out at a time; others wait in its queues.
    pub window_frames: usize,
    /// Panic where the owner gives a buffer back that this rail still holds (a pending order, a
    /// placement): the bug that a real rail would turn into corrupt memory.
    pub strict_buffers: bool,
}

impl SimConfig {
    /// Reliable and ordered, without native access: the guarantees of TCP.
    pub fn stream() -> SimConfig {
        SimConfig {
            capabilities: Capabilities {
                reliable: true,
                ordered: true,
                intact: false,
                native_read: false,
                native_write: false,
                frame_payload_bytes_max: FRAME_PAYLOAD_BYTES_MAX,
                eager_bytes: EAGER_BYTES_MAX,
                preference: 50,
                same_host_only: false,
                foreign: false,
            },
            accepts: true,
            connect_timeout: Duration::from_secs(2),
            link_timeout: Some(Duration::from_secs(5)),
            release: Release::WhenSent(Duration::from_micros(5)),
            window_frames: 8,
            strict_buffers: true,
        }
    }

    /// As [`SimConfig::stream`], with native reads and writes: shared memory, or a remote-access card.
    pub fn native() -> SimConfig {
        let mut config = SimConfig::stream();
        config.capabilities.native_read = true;
        config.capabilities.native_write = true;
        config.capabilities.eager_bytes = EAGER_BYTES;
        config
    }

    /// Nothing promised: frames may be lost, doubled, reordered and corrupted, as Path says.
    pub fn datagram() -> SimConfig {
        let mut config = SimConfig::stream();
        config.capabilities.reliable = false;
        config.capabilities.ordered = false;
        config.capabilities.eager_bytes = EAGER_BYTES;
        config
    }

    /// Breaks off where the promises contradict each other.
    pub(crate) fn check(&self) {
        let promises = &self.capabilities;
        let native = promises.native_read || promises.native_write;
        assert!(promises.reliable || !native, "native access needs a reliable simulated rail");
        assert!(promises.frame_payload_bytes_max <= FRAME_PAYLOAD_BYTES_MAX, "frame limit");
        assert!(self.window_frames > 0, "a send window of no frames sends nothing");
    }
}

/// One direction between two rails: its speed and its faults. May be changed at any time; a frame that is already
/// under way keeps the delay it left with. Chances are in parts per million of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The travel time of the first byte.
    pub latency: Duration,
    /// Up to so much is added to the latency, at random, frame by frame.
    pub jitter: Duration,
    /// Rate of each link; 0 is without bound.
    pub bytes_per_second: u64,
    /// Frames that vanish (rails that are not reliable).
    pub loss: u32,
    /// Frames that arrive twice (rails that are not reliable).
    pub duplication: u32,
    /// Frames that are held back and overtaken (rails that are not ordered).
    pub reordering: u32,
    /// The longest time for which such a frame is held back.
    pub reordering_delay: Duration,
    /// Frames with one flipped bit in the header (rails that are not reliable).
    pub header_corruption: u32,
    /// Frames with one flipped bit in the payload (rails that are not reliable).
    pub payload_corruption: u32,
    /// Nothing gets through. Reliable links keep the frames that they sent and go on after the healing, if that
    /// comes before their timeout; for others it is lost.
    pub blocked: bool,
    /// Frames with more bytes, header and payload, do not get through; of a reliable link neither do those behind them, and
    /// all of them do when the limit is raised.
    pub frame_bytes_max: u64,
    /// Connects in this direction are refused.
    pub refuse: bool,
}

impl Default for Path {
    /// A quiet local network: 50 us, 10 us jitter, 1 GB/s, no faults.
    fn default() -> Path {
        Path {
            latency: Duration::from_micros(50),
            jitter: Duration::from_micros(10),
            bytes_per_second: 1_000_000_000,
            loss: 0,
            duplication: 0,
            reordering: 0,
            reordering_delay: Duration::from_micros(500),
            header_corruption: 0,
            payload_corruption: 0,
            blocked: false,
            frame_bytes_max: u64::MAX,
            refuse: false,
        }
    }
}

impl Path {
    /// The time for which this many bytes keep the sender's end busy.
    pub(crate) fn transmission(&self, bytes: u64) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// The way in which the links between two rails are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Both ends notice at once.
    Both,
    /// The first-named rail notices at once, the other one so much later. Frames that the other one sends meanwhile
    /// are lost.
    FirstThenOther(Duration),
    /// Nobody is told: each end notices after its own `link_timeout`.
    Silent,
}

/// The way in which a rail's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kill {
    /// The process dies and its host lives: peers are told (by reliable links) a network latency
    /// and this delay later; connects are refused.
    Process(Duration),
    /// The host loses power: peers notice by timeout, connects get no answer.
    Power,
}

/// The sum of a moment and a random part of `spread`.
pub(crate) fn spread(
    at: Time,
    spread: Duration,
    random: &mut ropewalk_base::random::Random,
) -> Time {
    let nanos = u64::try_from(spread.as_nanos()).unwrap_or(u64::MAX - 1);
    if nanos == 0 { at } else { at + Duration::from_nanos(random.below(nanos + 1)) }
}
