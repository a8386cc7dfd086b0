//! Our packet protocol: frames over packets that may be lost, doubled, reordered or corrupted.
//!
//! * [`machine`]: links and the reports about them; [`link`]: their beginning and end; [`cookies`]: who
//!   is answered while too many calls are half-open;
//! * [`stream`]: frames made of packets, and packets of frames, which [`outgoing`] cuts;
//! * [`access`]: reads and writes of remote memory that were ordered; [`reading`]: transfers to us, [`serving`]: from us;
//!   [`remote_writes`]: offers of writes, which the other side then reads; [`transfers`]: the state of them all;
//! * [`sending`] and [`receiving`]: numbered packets to a peer and from it; [`loss`]: which of them were lost;
//!   [`congestion`]: how many may be under way;
//! * [`sealed`]: packets of links that are protected.

mod access;
mod congestion;
mod cookies;
mod drive;
mod health;
mod link;
mod link_seal;
mod loss;
pub mod machine;
mod outgoing;
mod reading;
pub mod receiving;
mod remote_writes;
mod sealed;
pub mod sending;
mod serving;
mod stream;
mod transfers;

pub use machine::{Machine, PacketConfig, PacketCounters};
