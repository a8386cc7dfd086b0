//! The reasons why a client could not be connected. Later errors are errnos, as in POSIX.

use ropewalk_base::ids::ClusterId;
use ropewalk_rpc::servers::LookupError;
use ropewalk_wire::fs::value::Errno;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("'{address}' is not the address of a metadata server: {cause}")]
    Address { address: String, cause: LookupError },
    #[error(
        "the metadata server at {address} does not answer: start it ('ropewalk up DIR', or 'ropewalk serve'), \
         or correct the address"
    )]
    Unreachable { address: String },
    #[error(
        "the metadata server at {address} refuses a session: this user, or all users together, \
         already have the maximum number of sessions; end clients that are not needed"
    )]
    TooManySessions { address: String },
    #[error(
        "the metadata server at {address} refuses this client: no export is for it ('ropewalk export \
         list', on that server's host), or the kernel there does not tell whose program calls"
    )]
    NotLetIn { address: String },
    #[error(
        "the metadata server at {address} gives this client another export than before: end this client, and \
         start another one"
    )]
    OtherExport { address: String },
    #[error("the metadata server at {address} refuses a session: {errno}")]
    Refused { address: String, errno: Errno },
    #[error(
        "the metadata server at {address} does not move the mount's session to this process \
         ({errno}): run this command as the user whose process serves the mount"
    )]
    NotMoved { address: String, errno: Errno },
    #[error(
        "the server at {address} does not answer as a metadata server of this version: check that \
         this is not the address of a data server, and that both sides run the same version of \
         Ropewalk"
    )]
    Version { address: String },
    #[error(
        "the metadata server at {address} serves cluster {found}, not {own}: check the address"
    )]
    OtherCluster { address: String, found: ClusterId, own: ClusterId },
    #[error(
        "the metadata server at {address} and this program did not prove who they are: name a key \
         file of the server's cluster (--key-file FILE), and compare the clocks of both hosts"
    )]
    OtherKeys { address: String },
    #[error(
        "this process already has as many peers as it can have: it cannot connect to another \
         server"
    )]
    NoPeer,
}

impl ClientError {
    /// The address of the metadata server names none that can be called.
    pub(crate) fn lookup(address: &str, cause: LookupError) -> ClientError {
        match cause {
            LookupError::NoRoom => ClientError::NoPeer,
            cause => ClientError::Address { address: address.into(), cause },
        }
    }
}
