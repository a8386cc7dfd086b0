//! A whole cluster inside one worker: the command line alone assembles one, so it is handed in.

use std::path::Path;

use ropewalk_base::ids::ClusterId;
use ropewalk_rail::Rail;

/// Starts clusters inside this process.
pub trait Embedder {
    /// One metadata server and so many data servers below `directory`, as threads.
    fn start(&self, directory: &Path, data_servers: u32) -> anyhow::Result<Box<dyn Embedded>>;
}

/// Such a cluster.
pub trait Embedded {
    /// The cluster's identity.
    fn id(&self) -> ClusterId;
    /// The metadata server's address.
    fn address(&self) -> String;
    /// Rails for a client of this process.
    fn client_rails(&self) -> anyhow::Result<Vec<Box<dyn Rail>>>;
    /// Stops all servers in good order.
    fn stop(self: Box<Self>);
}
