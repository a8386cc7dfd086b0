//! The keeper writes the superblock, and tells the directory's data part of each start.
//!
//! Invariant: the superblock never demands a start of which the part was not told before, durably.

use std::path::PathBuf;

use ropewalk_base::disk::Disk;

use super::part::{self, Known};
use super::starts::Starts;
use super::{
    BYTES, Boot, ClaimError, HISTORY_AT, HISTORY_VERSION, Identity, MAGIC, NAME, PART_AT, Role,
    STARTS_AT, VERSION, copies, crc_of,
};

/// Keeps a superblock and the part's record of it. Of a [`super::ClaimedDirectory`], which must live on.
#[derive(Debug, Clone)]
pub struct Keeper {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) boot: Boot,
    pub(super) memory: u128,
    pub(super) starts: Starts,
    /// The start or end that the superblock demands of the part.
    pub(super) part: u64,
}

impl Keeper {
    /// Notes the start, in a part that is there and is the right one. One that is not there may be on a
    /// disk that is not mounted: it is asked for the same then when it is.
    pub(super) fn begin(&mut self, disk: &dyn Disk) -> Result<(), ClaimError> {
        if let Some(known) = self.read(disk)? {
            self.check(&known)?;
            self.tell(disk, known, self.boot.id)?;
        }
        self.write(disk)
    }

    /// Tells the part of this start where nobody has yet, because it is new or its own file was lost: to be
    /// called when the data were found to be there. Returns a note for people. Blocks.
    pub fn bind(&mut self, disk: &dyn Disk) -> Result<Option<String>, ClaimError> {
        if self.part == self.boot.id || self.read(disk)?.is_some() {
            return Ok(None);
        }
        let path = part::path_in(&self.part_path());
        let was_lost = self.part != 0;
        let bound = self.tell(disk, Known::new(self.boot.store), self.boot.id);
        let state = match bound {
            // A store opens on a full disk, too.
            Err(ClaimError::Full { .. }) => {
                "cannot be made, since the disk is full: until a start with room"
            }
            Ok(()) if was_lost => "was damaged or missing and is made anew: until then",
            other => return other.and_then(|()| self.write(disk)).map(|()| None),
        };
        if self.part == self.boot.id {
            self.write(disk)?;
        }
        let part = self.identity.role.part();
        let path = path.display();
        Ok(Some(format!("{path} {state}, the server does not notice an older copy of {part}")))
    }

    /// Notes that the server ended well: a copy made while it ran is an older copy. Blocks.
    pub fn end(&mut self, disk: &dyn Disk) -> Result<(), ClaimError> {
        match self.read(disk)? {
            Some(known) if known.store == self.boot.store && known.has(self.boot.id) => {
                // Another number than any start has.
                self.tell(disk, known, self.boot.id ^ 1)?;
                self.write(disk)
            }
            _ => Ok(()),
        }
    }

    /// The directory holds the rows of this history from now on. Blocks.
    pub fn follow(&mut self, disk: &dyn Disk, history: u128) -> Result<(), ClaimError> {
        self.boot.history = history;
        self.write(disk)
    }

    fn part_path(&self) -> PathBuf {
        self.path.join(self.identity.role.part())
    }

    fn read(&self, disk: &dyn Disk) -> Result<Option<Known>, ClaimError> {
        let part = self.part_path();
        part::read(disk, &part)
            .map_err(|cause| ClaimError::io("read", &part::path_in(&part), cause))
    }

    fn check(&self, known: &Known) -> Result<(), ClaimError> {
        let (path, part) = (self.path.join(NAME), self.part_path());
        let remedy = match self.identity.role {
            Role::Metadata => {
                ", or, if that is lost, the whole directory of the metadata from one backup"
            }
            Role::Data => {
                "; if that is lost, start with an empty directory and --replace (every stripe on \
                 it is then lost; reading the files that had stripes there fails, and 'ropewalk \
                 check' lists them)"
            }
        };
        let counter = |id: u64| id >> 32;
        if known.store != self.boot.store {
            return Err(ClaimError::OtherPart { path, part });
        }
        if known.has(self.part) {
            return Ok(());
        }
        if counter(known.newest()) > counter(self.part) {
            return Err(ClaimError::OlderSuperblock { path, part, remedy });
        }
        Err(ClaimError::OlderPart { path, part, remedy })
    }

    fn tell(&mut self, disk: &dyn Disk, known: Known, id: u64) -> Result<(), ClaimError> {
        let part = self.part_path();
        let told = part::write(disk, &part, &known.and(self.part, id));
        told.map_err(|cause| ClaimError::io("write", &part::path_in(&part), cause))?;
        self.part = id;
        Ok(())
    }

    /// Writes the superblock.
    fn write(&self, disk: &dyn Disk) -> Result<(), ClaimError> {
        let Keeper { identity, boot, .. } = self;
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(MAGIC);
        let follows = boot.history != boot.store;
        let version = if follows { HISTORY_VERSION } else { VERSION };
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&identity.cluster.0.to_le_bytes());
        bytes.extend_from_slice(&identity.server.0.to_le_bytes());
        bytes.extend_from_slice(&identity.role.number().to_le_bytes());
        bytes.extend_from_slice(&boot.counter.to_le_bytes());
        bytes.extend_from_slice(&boot.id.to_le_bytes());
        bytes.extend_from_slice(&boot.store.to_le_bytes());
        bytes.extend_from_slice(&boot.era.to_le_bytes());
        bytes.extend_from_slice(&self.memory.to_le_bytes());
        debug_assert_eq!(bytes.len(), STARTS_AT);
        self.starts.encode(&mut bytes);
        debug_assert_eq!(bytes.len(), PART_AT);
        bytes.extend_from_slice(&self.part.to_le_bytes());
        debug_assert_eq!(bytes.len(), HISTORY_AT);
        if follows {
            bytes.extend_from_slice(&boot.history.to_le_bytes());
        }
        bytes.resize(BYTES, 0);
        let crc = crc_of(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        copies::write(disk, &self.path, &bytes)
    }
}
