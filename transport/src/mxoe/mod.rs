//! The language of Open-MX and native MXoE hosts, sans I/O; see docs/design/090-packets.md.
//!
//! * [`machine`]: partners, and what is told about them; [`orders`]: what is to be done;
//! * [`messages`]: what partners send; [`leaving`]: the packets that go;
//! * [`connect`]: sessions, and what a restart does to them; [`closed_peers`]: what is remembered of those who are gone;
//! * [`sending`]: messages that are numbered, kept until they are acknowledged, and sent again;
//! * [`receiving`]: messages in order, fragments, and what came too early;
//! * [`regions`]: large messages of ours, read by the partner; [`pulling`]: theirs, read by us;
//! * [`agent`]: what an interface needs beside its endpoints.
//!
//! What it shares with our own language is how reads go piece by piece ([`super::pull`]), what round trips
//! tell ([`super::round_trip`]), and how it is driven.

pub mod agent;
mod closed_peers;
mod connect;
mod drive;
mod leaving;
mod machine;
mod messages;
mod orders;
mod pulling;
mod receiving;
mod regions;
mod sending;

pub use agent::{Agent, AgentConfig, AgentCounters, Map, Named, Peer};
pub use machine::{Mxoe, MxoeConfig, MxoeCounters};
