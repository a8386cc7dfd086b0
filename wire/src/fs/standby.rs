//! The feed of a standby metadata server: it asks the active one for the records of the journal.
//!
//! Calls outside of sessions, sealed by members with the role of a metadata server. Each may come twice.

use serde::{Deserialize, Serialize};

use super::value::{Bytes, Errno};

/// Terms of a history that a standby names at most.
pub const TERMS_MAX: usize = 64;
/// Bytes of records or rows in one reply, and the rest of it.
pub const FEED_BYTES: usize = 192 * 1024;

/// A term of the history, and the record that begins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermBegin {
    pub id: u64,
    pub begin: u64,
}

/// How far a standby's files have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Reached {
    /// Everything up to this record survives the death of the process.
    pub written: u64,
    /// Everything up to this record survives a power loss.
    pub durable: u64,
}

/// A request of a standby server, or of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StandbyRequest {
    /// The standby wants to follow. It has the records up to `position` of a history with these terms; none where it is new.
    Join {
        history: u128,
        position: u64,
        #[serde(deserialize_with = "some_terms")]
        terms: Vec<TermBegin>,
    },
    /// The standby has come so far, and wants record `from`, from this byte on, and those behind it. The answer comes when there is
    /// one, or after a while without any.
    Pull { term: u64, from: u64, offset: u64, reached: Reached },
    /// The standby has come so far.
    Confirm { term: u64, reached: Reached },
    /// The standby wants all rows. An earlier copy of it ends.
    Copy { term: u64 },
    /// The standby wants a part of its copy, counted from 0. The one before has arrived.
    Rows { term: u64, copy: u64, part: u64 },
    /// An administrator wants the standby to serve, and the active server to follow it.
    Switch,
    /// Somebody wants to know the place of this server among the others. Any of them answers.
    State,
    /// An administrator wants all metadata in a file. Each server that has them answers, and gives one dump at a time.
    Dump,
    /// A part of a dump, counted from 0. The one before has arrived.
    DumpPart { dump: u64, part: u64 },
}

/// The part that a metadata server has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeRole {
    /// It serves.
    Active,
    /// It has the active server's records, and takes new ones.
    Follows,
    /// It copies the rows of the active server.
    Copies,
    /// It knows no active server.
    Seeks,
}

/// The place of a metadata server among the others, as it sees that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    pub server: u32,
    pub role: NodeRole,
    /// The term in which it serves or follows; else the newest one that it knows.
    pub term: u64,
    /// Milliseconds for which a voter promises.
    pub lease: u32,
    /// Whether the active server goes on without a standby.
    pub alone: bool,
    /// The newest record of its files; 0 where it has none open.
    pub position: u64,
    pub reached: Reached,
    /// The other voters, as the active server knows them; none of a server that is not active.
    pub voters: Vec<VoterStatus>,
}

/// The number of a witness that is no server, but a value in a store that the metadata servers share.
pub const REGISTER_WITNESS: u32 = (1 << 31) - 1;

/// A voter, as the active server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoterStatus {
    /// Of the metadata server or, of a witness, of the data server; [`REGISTER_WITNESS`].
    pub number: u32,
    pub is_witness: bool,
    /// Milliseconds since it answered a ballot of this server's life.
    pub silence: Option<u64>,
    /// None: it does not follow in this term.
    pub standby: Option<StandbyStatus>,
}

/// A standby, as the active server knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyStatus {
    pub reached: Reached,
    /// Milliseconds since it was heard of.
    pub silence: u64,
    /// It has all that is acknowledged.
    pub has_all: bool,
    /// It may be elected.
    pub may_lead: bool,
    pub copies: bool,
}

/// A row of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedRow<'a> {
    #[serde(borrow)]
    pub key: Bytes<'a>,
    #[serde(borrow)]
    pub value: Bytes<'a>,
}

/// The answer to a [`StandbyRequest`] that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StandbyReply<'a> {
    /// The active server serves this term of this history. Both have the same records up to `common`; None: the standby has to copy
    /// all rows.
    Joined { term: u64, history: u128, common: Option<u64> },
    /// Records from the one on that was asked for, each whole. The standby shall make everything up to `sync` durable, and say so.
    /// `has_all`: before these, it had all that is acknowledged.
    Records {
        #[serde(borrow)]
        records: Vec<Bytes<'a>>,
        sync: u64,
        has_all: bool,
    },
    /// A part of one record that does not fit a reply, and how long the record is.
    Part {
        #[serde(borrow)]
        bytes: Bytes<'a>,
        length: u64,
        sync: u64,
    },
    /// The record is gone: the standby has to copy all rows.
    Cut,
    /// Confirm, Switch.
    Done,
    /// A copy has begun, of the rows after this record.
    Copying { copy: u64, position: u64 },
    /// Rows in order; `end` with the last ones. Values that do not fit a reply are cut into rows with one key.
    Rows {
        #[serde(borrow)]
        rows: Vec<CopiedRow<'a>>,
        end: bool,
    },
    /// State.
    State(NodeStatus),
    /// A dump has begun, of the rows after this record.
    Dumping { dump: u64, position: u64 },
    /// Bytes of the dump's file, in order; none behind the end.
    Dumped {
        #[serde(borrow)]
        bytes: Bytes<'a>,
    },
}

/// The body of a reply of the standby service.
pub type StandbyResult<'a> = Result<StandbyReply<'a>, Errno>;

fn some_terms<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<TermBegin>, D::Error> {
    let terms = Vec::<TermBegin>::deserialize(from)?;
    let begins = |term: &TermBegin| term.begin > 0;
    match terms.len() <= TERMS_MAX && terms.iter().all(begins) {
        true => Ok(terms),
        false => Err(serde::de::Error::custom("too many terms")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Malformed, decode, encode};

    #[test]
    fn a_join_names_few_terms() {
        let join = |count| StandbyRequest::Join {
            history: 1,
            position: 2,
            terms: vec![TermBegin { id: 3, begin: 4 }; count],
        };
        for (count, is_fine) in [(0, true), (TERMS_MAX, true), (TERMS_MAX + 1, false)] {
            let mut bytes = Vec::new();
            encode(&join(count), &mut bytes);
            let read = decode::<StandbyRequest>(&bytes);
            assert_eq!(read, if is_fine { Ok(join(count)) } else { Err(Malformed) }, "{count}");
        }
    }
}
