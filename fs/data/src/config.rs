//! The settings that a data server needs to start, and the reasons not to start.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::error::Class;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_election::VoteError;
use ropewalk_net::PeerId;
use ropewalk_rpc::Secret;
use ropewalk_store::host_disk::cause_at;
use ropewalk_store::objects::{Config, ObjectError};
use ropewalk_store::superblock::{ClaimError, Expect};

use crate::membership::Refusal;

/// Takes a line for people. Lines are few: the server holds back repeated ones.
pub type Log = Rc<dyn Fn(&str)>;

/// The settings of a voter that says with the metadata servers which of them may act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WitnessConfig {
    /// For how long it promises its vote: the same at all voters.
    pub lease: Duration,
}

/// The settings of the scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrub {
    /// Bytes of objects that are read in a second at most; at least 1.
    pub bytes_per_second: u64,
    /// The pause between two rounds through all objects.
    pub pause: Duration,
}

/// A planted bug, for tests of the tests only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A write is acknowledged before the other members have it.
    EarlyReplies,
    /// A server that begins to order groups serves them as they are.
    Unsettled,
    /// A capability counts for as long as its session.
    CapabilityWithoutExpiry,
    /// A member serves blocks that perhaps not all members have.
    OpenReads,
    /// A member serves reads without a lease.
    UnleasedReads,
    /// A call by an older map than its group's last change is taken.
    StaleMap,
    /// A change is acknowledged without a member before the map says that it left.
    EarlyDrop,
    /// Orders of a metadata server of any term are followed.
    AnyTerm,
    /// An object that a newcomer has counts as equal, whatever is in it: as where times or lengths are compared.
    LevelsUnseen,
}

/// The settings of a data server.
#[derive(Clone)]
pub struct DataConfig {
    /// The directory of its superblock and its objects.
    pub directory: PathBuf,
    pub cluster: ClusterId,
    pub server: ServerId,
    /// The secret by which the members of the cluster prove themselves.
    pub secret: Secret,
    /// Decides what an empty directory means: with `Any` the metadata server says whether this server
    /// had a store before, with `Replace` it has to accept the new one.
    pub expect: Expect,
    /// A person ordered that this server is taken in under a number that the cluster does not have yet.
    pub admit: bool,
    /// Sizes and limits of the object store.
    pub objects: Config,
    /// The metadata server, which gets heartbeats, or the servers of which one is that. Looked up on the server's own endpoint.
    pub meta: Vec<PeerId>,
    /// The addresses under which clients reach this server; `None`: those that the endpoint reports itself.
    pub address: Option<String>,
    /// The name of its failure domain. Servers that may fail together say the same, and get no copies of the same bytes.
    pub domain: String,
    /// Memory for bulk transfers, in bytes; at least 2 MiB are used. Requests wait in turn for it.
    pub transfer_bytes: usize,
    /// This server is a voter, too.
    pub witness: Option<WitnessConfig>,
    /// Reads all objects again and again, and mends what is damaged. None: only `check --read` looks for damage.
    pub scrub: Option<Scrub>,
    pub log: Log,
    pub defect: Option<Defect>,
}

impl DataConfig {
    /// A server without a metadata server, with sizes for a usual machine, that logs nothing.
    pub fn new(
        directory: PathBuf,
        cluster: ClusterId,
        server: ServerId,
        secret: Secret,
    ) -> DataConfig {
        DataConfig {
            directory,
            cluster,
            server,
            secret,
            expect: Expect::Any,
            admit: false,
            objects: Config::default(),
            meta: Vec::new(),
            address: None,
            domain: format!("data server {}", server.0),
            transfer_bytes: 64 << 20,
            witness: None,
            scrub: None,
            log: Rc::new(|_| ()),
            defect: None,
        }
    }
}

/// Why a data server cannot start, or not end tidily.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error(
        "{} has a superblock, but its objects are gone: mount the right disk, restore the \
         directory `objects`, or give up the data of server {server} by --replace (every stripe on \
         it is then lost)",
        path.display()
    )]
    ObjectsGone { path: PathBuf, server: ServerId },
    #[error(transparent)]
    Refused(Refusal),
    #[error(transparent)]
    Vote(#[from] VoteError),
    #[error("cannot {doing} {}: {}", path.display(), cause_at(path, cause))]
    Io { doing: &'static str, path: PathBuf, cause: std::io::Error },
    #[error("the executor ended while the server started")]
    Closed,
}

impl DataError {
    /// The class by which recovery is decided.
    pub fn class(&self) -> Class {
        match self {
            DataError::Claim(error) => error.class(),
            DataError::Objects(error) => error.class(),
            DataError::ObjectsGone { .. } => Class::Data,
            DataError::Refused(_) => Class::Caller,
            DataError::Vote(VoteError::Damaged { .. }) => Class::Data,
            DataError::Vote(_) | DataError::Io { .. } | DataError::Closed => Class::Node,
        }
    }
}
