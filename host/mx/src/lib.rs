//! The host side of MX, beside its endpoints: NICs, agents, raw endpoints, counters.
//!
//! * [`nics`]: the networks of this host as programs that use MX know them; [`place`]: where their endpoints are;
//!   [`peer_table`]: the peers that an operator lists;
//! * [`module`]: the rails for addresses `mxoe://`; [`wire`]: what such an address says about its wire;
//! * [`agent`]: the agent of an interface on which MXoE is spoken; [`raw`]: the raw endpoint of such an interface;
//! * [`counts`]: the counters of this host's endpoints, for any process that asks.
//!
//! Invariants
//! * `net` knows nothing of it. [`module::register`] adds the rails to the modules of `net`; an endpoint tells its
//!   counters by [`counts::start`], which its configuration names;
//! * nothing here takes part in a message.
#![forbid(unsafe_code)]

pub mod agent;
pub mod counts;
mod local;
pub mod module;
pub mod nics;
pub mod peer_table;
pub mod place;
pub mod raw;
pub mod wire;
