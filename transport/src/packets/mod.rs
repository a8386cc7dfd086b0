//! Our packet protocol: frames over packets that may be lost, doubled, reordered or corrupted.
//!
//! * [`machine`]: links and the reports about them; [`link`]: their beginning and end;
//! * [`stream`]: frames made of packets, and packets of frames, which [`outgoing`] cuts;
//! * [`access`]: reads and writes of remote memory, which [`remote_writes`] announces;
//! * [`sending`] and [`receiving`]: numbered packets to a peer and from it; [`loss`]: which of them were lost;
//!   [`congestion`]: how many may be under way.

mod access;
mod congestion;
mod drive;
mod link;
mod loss;
pub mod machine;
mod outgoing;
pub mod receiving;
mod remote_writes;
pub mod sending;
mod stream;

pub use machine::{Machine, PacketConfig, PacketCounters};
