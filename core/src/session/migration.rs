//! The migration of a session that has several paths: its machine, and what the machine's driver remembers.
//!
//! It is made when a session gets its second path, and lasts as long as the session. A session with one path has none.

use crate::api::PeerId;
use crate::apm::{Migration, Side};

#[derive(Debug)]
pub(crate) struct Migrating {
    pub machine: Migration,
}

impl Migrating {
    /// Of a session in which data flows over one path.
    pub fn new(peer: PeerId, side: Side) -> Migrating {
        Migrating { machine: Migration::new(peer, side) }
    }
}
