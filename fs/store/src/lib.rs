//! Storage of the servers.

pub mod objects;
