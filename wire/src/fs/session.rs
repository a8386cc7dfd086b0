//! Sessions: the messages of a client to a server before and beside its calls.

use serde::{Deserialize, Serialize};

use super::value::{Bytes, Errno, Timestamp};

/// A request of the session service. Carried outside of slots: it may be sent again at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionRequest<'a> {
    /// Opens a session for a client. `client` is a random number that the client chose for this life
    /// of it: a session that the same number had before ends.
    Open {
        client: u128,
        /// The client's name for itself, for `status` and log lines.
        #[serde(borrow)]
        name: Bytes<'a>,
    },
    /// The client lives.
    Renew { session: u64 },
    /// The client is done and has reported everything.
    Close { session: u64 },
    /// The server shows that it is of the cluster that opened the session, also where the session has
    /// ended.
    Recognise { session: u64, nonce: u128 },
    /// The session moves to the endpoint that sends this: another process of its client goes on with it.
    Move {
        session: u64,
        /// The endpoint whose session it was, and which life of it.
        endpoint: u128,
        incarnation: u64,
        /// HMAC-SHA-256 of session and new endpoint under the recognition that the old endpoint was told, the
        /// first 16 bytes.
        tag: u128,
    },
}

/// The reply to a [`SessionRequest`] that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionReply {
    /// Open, Move.
    Opened {
        session: u64,
        /// The root of its export. A client goes on under no other one: the same number would name another directory.
        root: u64,
        /// Carried by every call; below the fence of a data server, calls are refused.
        epoch: u32,
        /// Carried by every call: data servers know by it that the session is the caller's.
        token: u64,
        /// By what the client recognises the cluster later. Nobody says it again.
        recognition: u128,
        /// The session ends when nothing was heard for so long.
        term_milliseconds: u32,
        /// The server's calendar as it answers: the clock of all times that the system sets.
        now: Timestamp,
    },
    /// Renew.
    Renewed { now: Timestamp },
    /// Close.
    Done,
    /// HMAC-SHA-256 of the nonce under the session's recognition, the first 16 bytes.
    Recognised { tag: u128 },
}

/// The body of a reply of the session service.
pub type SessionResult = Result<SessionReply, Errno>;
