//! What a data server is told at start, and why it does not start.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_net::AddressError;
use ropewalk_store::objects;
use ropewalk_store::superblock::{ClaimError, Expect};

/// How a data server runs.
#[derive(Clone)]
pub struct DataConfig {
    pub directory: PathBuf,
    pub cluster: ClusterId,
    pub server: ServerId,
    /// The metadata server's address; empty: nobody is told (tests).
    pub meta: String,
    /// Whether an empty directory may take the place of a server that had data.
    pub expect: Expect,
    pub objects: objects::Config,
    /// Bytes in flight between clients and the store.
    pub transfer_bytes: usize,
    /// How often the metadata server is told that this one lives.
    pub heartbeat: Duration,
    pub log: Rc<dyn Fn(&str)>,
}

impl DataConfig {
    /// A server of this number with the usual sizes.
    pub fn new(
        directory: PathBuf,
        cluster: ClusterId,
        server: ServerId,
        meta: &str,
        log: Rc<dyn Fn(&str)>,
    ) -> DataConfig {
        DataConfig {
            directory,
            cluster,
            server,
            meta: meta.to_string(),
            expect: Expect::Any,
            objects: objects::Config::default(),
            transfer_bytes: 64 << 20,
            heartbeat: Duration::from_secs(1),
            log,
        }
    }
}

/// Why a data server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    #[error(transparent)]
    Directory(#[from] ClaimError),
    #[error(transparent)]
    Store(#[from] objects::ObjectError),
    #[error("the metadata server's address '{address}' is not one: {cause}")]
    Address { address: String, cause: AddressError },
    #[error("this process has no room for another peer")]
    NoPeer,
}
