//! A shard of the metadata server, without a network.

mod check;
mod common;
mod content;
mod differential;
mod directories;
mod exactly_once;
mod exports;
mod journaled;
mod policies;
mod sessions;
mod storm;
mod terms;
mod upgrade;
