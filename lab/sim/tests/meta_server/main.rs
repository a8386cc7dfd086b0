//! The metadata server on simulated nodes.

mod crash;
mod meta_cluster;
mod retry;
mod serving;
