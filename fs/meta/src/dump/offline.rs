//! The rows of a store that no server uses.

use std::path::{Path, PathBuf};

use ropewalk_base::ids::ServerId;
use ropewalk_base::world::World;
use ropewalk_store::superblock::{ClaimError, HeldDirectory, Role, hold};
use ropewalk_store::{FoundStore, JournaledConfig, JournaledStore, StoreError};

use super::dumper::Dumper;
use super::format::Head;
use crate::history::Terms;

/// Why a directory cannot be dumped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfflineError {
    #[error(
        "{} is no directory of a metadata server: name the one that has the files 'superblock' and \
         'index.redb'",
        path.display()
    )]
    NoStore { path: PathBuf },
    #[error(
        "a metadata server runs on {}: name its address instead of the directory, or stop it",
        path.display()
    )]
    Runs { path: PathBuf },
    #[error("{0}")]
    Claim(ClaimError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("the program is shutting down")]
    ShuttingDown,
}

/// A directory that this process reads, and no other one uses meanwhile.
pub struct StoredRows {
    held: HeldDirectory,
    found: FoundStore,
}

impl StoredRows {
    /// Reads the store in a directory. `accept_loss`: also where the journal lacks records, without them.
    pub async fn read(
        world: &World,
        directory: &Path,
        accept_loss: bool,
    ) -> Result<StoredRows, OfflineError> {
        let (disk, path, random) = (world.disk(), directory.to_path_buf(), world.random_u64());
        let held = world
            .offload(move || hold(&*disk, &path, Role::Metadata, random))
            .await
            .ok_or(OfflineError::ShuttingDown)?;
        let path = || directory.to_path_buf();
        let held = match held {
            Ok(Some(held)) => held,
            Ok(None) => return Err(OfflineError::NoStore { path: path() }),
            Err(ClaimError::InUse { .. }) => return Err(OfflineError::Runs { path: path() }),
            Err(error) => return Err(OfflineError::Claim(error)),
        };
        let config = JournaledConfig::default();
        let found = JournaledStore::find(world, directory, held.boot, config, accept_loss).await?;
        Ok(StoredRows { held, found })
    }

    /// The dump of them. The directory is free again when nobody holds what this returns.
    pub fn dump(self, made: i64) -> (Dumper<FoundStore>, HeldDirectory) {
        let StoredRows { held, found } = self;
        let ServerId(server) = held.identity.server;
        let head = Head {
            cluster: held.identity.cluster.0,
            server,
            history: held.boot.history,
            term: Terms::found(&found).map_or(0, |terms| terms.newest_id()),
            position: found.position().0,
            made,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        };
        (Dumper::new(found, head), held)
    }
}
