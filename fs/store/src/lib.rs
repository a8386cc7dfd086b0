//! The storage of a server on its own disk.
//!
//! * [`host_disk`]: the host's file system behind `ropewalk_base::disk`;
//! * [`superblock`]: whose directory this is, and which boot of the server this is;
//! * [`journal`]: the durability point of metadata, an append-only log with group commit;
//! * [`objects`]: stripes of files, for data servers;
//! * [`meta_store`], [`journaled`]: ordered rows with atomic batches, standing on journal and index;
//! * [`decoders`]: all that reads bytes of a disk, for fuzzers.
//!
//! Invariants: nothing here knows a request, a peer or a clock of its own; everything reaches the
//! disk through `World`, so that the simulator can cut the power at any write.

pub mod agreement;
pub mod batch;
pub mod decoders;
pub mod error;
pub mod host_disk;
mod index;
pub mod journal;
pub mod journaled;
pub mod marks;
pub mod meta_store;
pub mod objects;
mod overlay;
mod overwrite;
pub mod superblock;
#[cfg(test)]
mod testing;

pub use batch::Batch;
pub use error::StoreError;
pub use host_disk::HostDisk;
pub use journaled::{FoundStore, JournaledConfig, JournaledStore, Room, Snapshot, StoreCopy};
pub use marks::Position;
pub use meta_store::{KeyRange, MetaStore, Order, Row, Value};
