//! The limits of an endpoint behind a C library: programs cannot set them, so they are wide.

use ropewalk_base::ids::ClusterId;
use ropewalk_net::EndpointConfig;

/// Operations that may be under way at a time.
pub const OPERATIONS_MAX: usize = 1 << 22;
/// Peers, those that are only known included.
pub const PEERS_MAX: usize = 1 << 16;
/// Messages of one peer that may wait here for their receives: 16 MiB, with what it takes to keep them.
pub const WAITING_BYTES_MAX: u32 = 14 << 20;

/// The settings of an endpoint with these limits. `cluster`: a number of the interface's own, so that its programs
/// reach no file system by mistake, nor programs of another interface.
pub fn endpoint_config(cluster: ClusterId) -> EndpointConfig {
    let mut config = EndpointConfig::new(cluster);
    config.core.operations_max = OPERATIONS_MAX;
    config.core.peers_max = PEERS_MAX;
    config.core.eager_window_bytes_max = WAITING_BYTES_MAX;
    config
}
