//! The data server: stripes of files on its own disk, moved at its own initiative.
//!
//! * [`server`]: start, tasks, replies, tidy end; [`admission`]: calls as they come in;
//! * [`plan`]: the content of a request, checked against every limit before anything is done;
//! * [mod@write], [mod@read], [mod@change]: the requests themselves;
//! * [`bulk`]: the buffers through which bytes travel, and gets and puts of clients' regions;
//! * [`epochs`]: the last write epoch seen of each file; [`groups`]: the groups that the server is in;
//! * [`listing`], [`examine`]: the requests of `check`; [`clean`]: bytes of groups that went elsewhere;
//! * [`counters`]: calls and bytes by kind; [`report`]: the server's report on itself;
//! * [`membership`]: takes part in a cluster, or is refused; [`map_note`]: the newest map that it knew;
//! * [`heartbeat`]: tells the metadata server of life and room;
//! * [`witness`]: votes for a metadata server, also before this server has joined;
//! * [`attack`]: the decoders of its notes, for fuzzers.
//!
//! Invariants
//! * a call takes effect once within a life of the server: its number is judged when it comes in, and
//!   again before each change, so that a call that was given up does nothing any more;
//! * fences, file epochs and groups are asked again right before each change, after everything that waits;
//! * bytes that do not match the client's checksums are never stored, and bytes that do not match
//!   the disk's are never sent;
//! * memory is bounded whatever is asked: requests that find no room are answered `Unavailable`,
//!   those that need a buffer wait in turn.
//!
//! It must not know: layouts, sizes of files, leases, owners of sessions. The metadata server says whether a
//! limited session is still there (`vouching.rs`).
#![forbid(unsafe_code)]

mod admission;
pub mod attack;
mod bulk;
mod change;
mod clean;
mod config;
mod counters;
mod epochs;
mod examine;
mod failure;
mod groups;
mod heartbeat;
mod listing;
mod map_note;
mod membership;
mod mirror;
mod plan;
mod read;
mod report;
mod server;
mod telling;
mod told;
mod vouching;
mod witness;
mod write;

pub use config::{DataConfig, DataError, Defect, Log, Scrub, WitnessConfig};
pub use membership::Refusal;
pub use server::{Counters, DataServer};
