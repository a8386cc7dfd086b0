//! The data server on simulated machines: a hand-written client, a network, a disk that forgets.

mod changes;
mod client;
mod cluster;
mod deaths;
mod mixed;
mod transfers;
mod witness;
