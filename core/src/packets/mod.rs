//! Messages over packets that may be lost, doubled, reordered or corrupted; see docs/design/090-packets.md.
//!
//! * [`machine`]: links and what is told about them; [`link`]: how they begin and end;
//! * [`stream`]: frames made of packets, and packets of frames, which [`outgoing`] cuts;
//! * [`access`]: reads and writes of remote memory; [`pull`]: one of them, piece by piece;
//! * [`share`]: what all reads together may ask for;
//! * [`sending`] and [`receiving`]: numbered packets to a peer and from it;
//! * [`round_trip`]: how long to wait for what; [`late`]: what was waited for too little;
//! * [`mxoe`]: the same with hosts that speak another language.

mod access;
mod late;
mod link;
pub mod machine;
pub mod mxoe;
mod offers;
mod outgoing;
pub mod pull;
pub mod receiving;
pub mod round_trip;
pub mod sending;
mod share;
mod stream;

pub use machine::{Above, Bytes, Machine, PacketConfig, PacketCounters};
