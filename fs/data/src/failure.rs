//! The failure of a request, as its client will see it.

use ropewalk_base::error::Fault;
use ropewalk_store::objects::ObjectError;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::value::Errno;

/// Why a request has no good reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The outcome of the request: the client tells it to the program.
    Errno(Errno),
    /// The call was not carried out as a call; with `Unavailable` the client sends it again.
    Status(Status),
    /// The metadata server is to be asked first whether there is such a session.
    Unvouched,
    /// The client has used the slot for a later call: nobody waits for this one.
    Superseded,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Errno(errno)
    }
}

/// The failure of a request after a fault of its bulk transfer.
pub(crate) fn of_fault(fault: Fault) -> Failure {
    match fault {
        // The client named a region that it did not expose, or not so.
        Fault::BadKey | Fault::NotPermitted | Fault::Invalid | Fault::Oversize => {
            Failure::Errno(Errno::EINVAL)
        }
        // The way was lost, full or noisy: the same call over a new way may well succeed.
        _ => Failure::Status(Status::Unavailable),
    }
}

/// The failure of a request after an error of the store. True with it: people should hear of it.
pub(crate) fn of_object(error: &ObjectError) -> (Failure, bool) {
    let (errno, tell) = match error {
        ObjectError::Fenced { .. } => return (Failure::Status(Status::Fenced), false),
        ObjectError::Range { .. } => (Errno::EINVAL, false),
        ObjectError::Removed { .. } => (Errno::ESTALE, false),
        ObjectError::NoSpace { .. } => (Errno::ENOSPC, true),
        _ => (Errno::EIO, true),
    };
    (Failure::Errno(errno), tell)
}
