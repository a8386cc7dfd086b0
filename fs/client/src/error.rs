//! The reasons why a client could not be connected. Later errors are errnos, as in POSIX.

use ropewalk_base::ids::ClusterId;
use ropewalk_net::AddressError;
use ropewalk_wire::fs::value::Errno;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("the metadata server's address '{address}' is not one: {cause}")]
    Address { address: String, cause: AddressError },
    #[error(
        "the metadata server at {address} does not answer: start it ('ropewalk up DIR', or 'ropewalk serve \
         meta'), or correct the address"
    )]
    Unreachable { address: String },
    #[error(
        "the metadata server at {address} refuses a session: it has as many of this user, or of all, as it \
         takes; end clients that are not needed"
    )]
    TooManySessions { address: String },
    #[error("the metadata server at {address} refuses a session: {errno}")]
    Refused { address: String, errno: Errno },
    #[error(
        "what answers at {address} is no metadata server (of this version): is it a data server's \
         address?"
    )]
    Version { address: String },
    #[error(
        "the metadata server at {address} serves cluster {found}, not {own}: check the address"
    )]
    OtherCluster { address: String, found: ClusterId, own: ClusterId },
    #[error("this process has no room for another peer")]
    NoPeer,
}
