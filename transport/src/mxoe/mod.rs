//! The protocol of Open-MX and native MXoE hosts, sans I/O; see docs/design/090-packets.md.
//!
//! * [`machine`]: partners, and the reports about them; [`orders`]: the orders of the layer above;
//! * [`messages`]: the packets that partners send; [`leaving`]: the packets that leave;
//! * [`connect`]: sessions, and the effects of a restart on them; [`closed_peers`]: records of partners that are gone;
//! * [`sending`]: messages that are numbered, kept until they are acknowledged, and sent again;
//! * [`receiving`]: messages in order, fragments, and packets that came too early;
//! * [`regions`]: large messages of ours, read by the partner; [`pulling`]: theirs, read by us;
//! * [`agent`]: the services that an interface needs beside its endpoints.
//!
//! MXoE shares three things with our own protocol: the reading piece by piece ([`super::pull`]), the estimates of round
//! trips ([`super::round_trip`]), and the driver.

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
