//! Memory that endpoints of one host map, to load and store it without asking anybody: of one-sided windows.
//!
//! Endpoints with shared memory among their rails take part. Invariant: no memory is mapped across namespaces of the network:
//! what a peer there is told of it, it could not use by any rail either.

use ropewalk_base::memory::Cells;
use ropewalk_rail_shm::window::{self, CARD_BYTES};

use crate::endpoint::Endpoint;
use crate::host::host_number;

const SCHEME: &str = "shm";

/// Memory of ours that peers may map as long as this lives.
#[derive(Debug)]
pub struct Offer {
    host: u64,
    window: window::Offer,
}

impl Offer {
    /// What a peer needs to know: see [`Endpoint::map_memory`].
    pub fn card(&self) -> Vec<u8> {
        [&self.host.to_le_bytes()[..], &self.window.card()].concat()
    }
}

impl Endpoint {
    /// So many bytes, zeroed, and the offer to map them. `None`: the endpoint has no rail for shared memory, or there is no such
    /// memory.
    pub fn share_memory(&self, bytes: usize) -> Option<(Cells, Offer)> {
        let host = self.shared_host()?;
        let (cells, window) = window::allocate(bytes)?;
        Some((cells, Offer { host, window }))
    }

    /// Maps memory that a peer offered, of so many bytes. It stays there as long as the cells live, whatever becomes of the peer.
    /// `None`: the peer is of another host or user, this endpoint has no rail for shared memory, or the card is wrong.
    pub fn map_memory(&self, card: &[u8], bytes: usize) -> Option<Cells> {
        let (host, card) = card.split_first_chunk()?;
        let card: &[u8; CARD_BYTES] = card.try_into().ok()?;
        let is_here = self.shared_host() == Some(u64::from_le_bytes(*host));
        if is_here { window::map(card, bytes) } else { None }
    }

    /// Whether peers of this host can map memory of ours at all.
    pub fn shares_memory(&self) -> bool {
        self.shared_host().is_some()
    }

    fn shared_host(&self) -> Option<u64> {
        let (_, rails) = self.counters();
        let host = host_number();
        (host != 0 && rails.iter().any(|(scheme, _)| *scheme == SCHEME)).then_some(host)
    }
}
