//! The settings of a metadata server at start, and the reasons not to start.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::error::Class;
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_election::VoteError;
use ropewalk_rpc::Secret;
use ropewalk_store::superblock::{ClaimError, Expect};
use ropewalk_store::{JournaledConfig, StoreError};

use crate::config::Config;
use crate::rows::RowsError;

/// The directory of a metadata server's rows, and its settings.
#[derive(Clone)]
pub struct MetaConfig {
    /// Of this server alone; made where it does not exist.
    pub directory: PathBuf,
    pub cluster: ClusterId,
    pub server: ServerId,
    /// The secret by which the members of the cluster prove themselves.
    pub secret: Secret,
    /// Whether an empty directory is a new server or a lost one.
    pub expect: Expect,
    /// Start although durable records are missing from the journal.
    pub accept_loss: bool,
    pub shard: Config,
    pub store: JournaledConfig,
    /// The interval between looks at terms, the grace period and heartbeats. Garbage of removed files also
    /// waits so long for company before it is collected. 100 to 500 ms.
    pub tick: Duration,
    /// Takes lines for people, one sentence at a time.
    pub log: Rc<dyn Fn(&str)>,
    /// A planted bug, for tests of the tests only: replies go out before the store has written the changes
    /// that they tell of.
    pub reply_before_written: bool,
    /// Another one: what was sent to a standby counts as written there.
    pub reply_before_standby: bool,
}

impl MetaConfig {
    /// The default server 0 of a cluster in `directory`, without a log.
    pub fn new(directory: PathBuf, cluster: ClusterId, secret: Secret) -> MetaConfig {
        MetaConfig {
            directory,
            cluster,
            server: ServerId(0),
            secret,
            expect: Expect::Any,
            accept_loss: false,
            shard: Config::default(),
            store: JournaledConfig::default(),
            tick: Duration::from_millis(250),
            log: Rc::new(|_| ()),
            reply_before_written: false,
            reply_before_standby: false,
        }
    }
}

/// Why a metadata server does not start, or does not stop well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    #[error(
        "there are no metadata in {}: mount the right disk, or restore the directory; only \
         'ropewalk format' creates a new file system",
        path.display()
    )]
    Emptied { path: PathBuf },
    #[error("{0}")]
    Claim(ClaimError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Vote(#[from] VoteError),
    #[error("cannot start with the metadata in {}: {cause}", path.display())]
    Rows { path: PathBuf, cause: RowsError },
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl From<ClaimError> for MetaError {
    fn from(error: ClaimError) -> MetaError {
        match error {
            ClaimError::Emptied { path, .. } => MetaError::Emptied { path },
            error => MetaError::Claim(error),
        }
    }
}

impl MetaError {
    /// The class by which recovery is decided.
    pub fn class(&self) -> Class {
        match self {
            MetaError::Claim(error) => error.class(),
            MetaError::Store(error) => error.class(),
            MetaError::Vote(VoteError::Damaged { .. }) => Class::Data,
            MetaError::Vote(_) => Class::Node,
            MetaError::Emptied { .. } | MetaError::Rows { .. } => Class::Data,
            MetaError::ShuttingDown => Class::Node,
        }
    }
}
