//! The TCP rail: one socket a link, everything non-blocking, served from one epoll set.
//!
//! Frames go out in the system call of the order if nothing waits, else from two queues at frame borders. They come
//! in through one buffer of the rail; long payloads land directly in their place. Those of a protected link go through
//! records both ways.
//!
//! Invariants:
//! * a link that is idle costs its socket and its entry in the slab: no buffer, no queue;
//! * no allocation per frame once the queues have grown to the size that the traffic needs;
//! * one poll reads and writes a bounded amount on each link, and the kernel's ready list turns;
//! * every byte in the rail's buffer is given away before another link is served, so that the only
//!   thing between two polls is the beginning of a header or of a record, kept with its link.
//!
//! It must not know the meaning of frames, nor the identity of peers: any TCP client may have connected.

mod config;
mod health;
mod link;
mod outgoing;
mod owner;
mod path;
mod rail;
mod receive;
mod sealed;
mod send;
mod serve;
mod socket;
mod stall;
mod stalls;
mod suspects;
mod timers;
mod vectors;

pub use config::{TcpConfig, TcpError};
pub use owner::is_told as tells_users;
pub use rail::{TcpRail, TcpStatistics};
pub use ropewalk_rail::names::is_address;
