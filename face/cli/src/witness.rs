//! The witness of two metadata servers, as a config file names it.

/// Where the voter is that is no metadata server.
#[derive(Debug, Clone)]
pub enum WitnessPlace {
    /// A data server, by number and address.
    Server(u32, String),
    /// The members of an etcd.
    Etcd(Vec<String>),
}
