//! Error classes: the largest thing that is hurt. Recovery code decides by class, people read text.

use std::fmt;

/// The largest thing that an error hurts.
///
/// Every public error of the workspace maps to one class. `Path` starts a migration, `Peer` a fail-over, `Data` a
/// quarantine; the others go back to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The caller asked for something impossible; nothing changed.
    Caller,
    /// One operation failed; everything around it lives on.
    Operation,
    /// One path to a peer is gone; the peer may be reached in another way.
    Path,
    /// The peer is gone or has lost what it knew of us.
    Peer,
    /// This process cannot go on as it is: memory, descriptors, rights.
    Node,
    /// Bytes are not what was once stored or sent.
    Data,
}

/// Why an operation of the message layer did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The session ended before the operation was complete: its effect is unknown.
    #[error("the peer was reset: the operation may or may not have taken effect")]
    PeerReset,
    /// No connection could be made.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The peer that was reached belongs to another cluster.
    #[error("the peer belongs to another cluster")]
    OtherCluster,
    /// This endpoint and the peer did not prove to each other that they have keys of one cluster.
    #[error(
        "this endpoint and its peer did not prove who they are: give both key files of one cluster, and compare their clocks"
    )]
    Untrusted,
    /// The user, here or at the peer, cancelled the operation.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The message is longer than the receive allows (policy `Refuse`), or than a limit.
    #[error("the message is longer than the receive buffer, or than a limit")]
    Oversize,
    /// The message was cut to the length of its receive (policy `Truncate`).
    #[error("the message was truncated")]
    Truncated,
    /// Key, generation, range or rights of a remote access do not hold.
    #[error("the remote key does not allow this access")]
    BadKey,
    /// Another region of this endpoint has the name.
    #[error("another region has this name")]
    NameTaken,
    /// A bounded resource of this process is used up for the moment.
    #[error("a limit is reached for the moment: test for completions, then post again")]
    Busy,
    /// The argument makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// A checksum did not hold.
    #[error("a checksum does not match")]
    Corrupt,
    /// The endpoint is shutting down.
    #[error("the endpoint is closed")]
    Closed,
    /// The peer broke the protocol and was disconnected.
    #[error("the peer broke the protocol")]
    Protocol,
    /// The rail does not allow this here (rights, limits of the machine).
    #[error("the transport does not allow this operation (permissions, or limits of the host)")]
    NotPermitted,
}

impl Fault {
    /// The class by which recovery is decided.
    pub fn class(self) -> Class {
        match self {
            Fault::PeerReset | Fault::Unreachable | Fault::Protocol => Class::Peer,
            Fault::Cancelled | Fault::Oversize | Fault::Truncated | Fault::BadKey => {
                Class::Operation
            }
            Fault::Busy | Fault::Closed | Fault::NotPermitted => Class::Node,
            Fault::Invalid | Fault::OtherCluster | Fault::Untrusted | Fault::NameTaken => {
                Class::Caller
            }
            Fault::Corrupt => Class::Data,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Class::Caller => "caller",
            Class::Operation => "operation",
            Class::Path => "path",
            Class::Peer => "peer",
            Class::Node => "node",
            Class::Data => "data",
        };
        f.write_str(word)
    }
}
