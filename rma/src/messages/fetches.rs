//! Fetches: operations of ours whose results are on the way.

use ropewalk_base::memory::{Change, Job, Memory, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_net::Fault;

use super::hub::Hub;
use super::wire::Malformed;
use crate::error::{Error, Loss, Refusal};

const UNASKED: Malformed = "a result that nobody asked for";

impl Hub {
    /// A result in a message.
    pub fn result(&mut self, rank: u32, fetch: u64, from: Slice) -> Result<(), Malformed> {
        let id = SlotId::from_u64(fetch);
        let found = self.fetches.get(id).filter(|it| it.rank == rank && it.apart.is_none());
        let found = found.ok_or(UNASKED)?;
        if found.bytes != from.len {
            return Err("a result of another length than was asked for");
        }
        let job = Job { change: Change::Store, places: found.places.clone() };
        self.table.apply(&job, from, None).map_err(|_| UNASKED)?;
        self.end_fetch(id);
        Ok(())
    }

    /// A result in a message of its own came, or will not come.
    pub fn answer_came(&mut self, fetch: u64, outcome: Result<u64, Fault>, memory: Memory) {
        let id = SlotId::from_u64(fetch);
        let Some(found) = self.fetches.get_mut(id) else { return };
        let (rank, bytes, places) = (found.rank, found.bytes, found.places.clone());
        let Some(apart) = &mut found.apart else { return };
        match outcome {
            Ok(0) => {
                apart.empty = true;
                if apart.refused {
                    self.end_fetch(id);
                }
            }
            Ok(came) if came == bytes => {
                if !apart.direct
                    && let Ok(buffer) = self.table.insert(memory)
                {
                    let job = Job { change: Change::Store, places };
                    let from = Slice { buffer, offset: 0, len: bytes };
                    // The places were judged when the fetch was made.
                    let stored = self.table.apply(&job, from, None);
                    debug_assert!(stored.is_ok(), "{stored:?}");
                    self.table.remove(buffer);
                }
                self.end_fetch(id);
            }
            Err(fault) if fault != Fault::Truncated => self.lose(rank, Loss::Session(fault)),
            _ => self.lose(rank, Loss::Protocol("a result of another length than was asked for")),
        }
    }

    /// A target refused a fetch.
    pub fn fetch_refused(&mut self, rank: u32, fetch: u64, refusal: Refusal) {
        let id = SlotId::from_u64(fetch);
        let Some(found) = self.fetches.get_mut(id).filter(|it| it.rank == rank) else { return };
        let name = self.windows.get(&found.window).map(|it| it.name.clone());
        if let (Some(ticket), Some(window)) = (&found.ticket, name) {
            ticket.fail(Error::Refused { window, rank, refusal, further: 0 });
        }
        match &mut found.apart {
            Some(apart) if !apart.empty => apart.refused = true,
            _ => self.end_fetch(id),
        }
    }

    fn end_fetch(&mut self, id: SlotId) {
        let Some(fetch) = self.fetches.remove(id) else { return };
        self.table.remove(fetch.memory);
        if let Some(state) = self.windows.get_mut(&fetch.window) {
            state.queues[fetch.rank as usize].fetches -= 1;
        }
        if let Some(ticket) = fetch.ticket {
            ticket.end();
        }
    }

    /// The rank is lost: no result will come.
    pub fn end_fetches(&mut self, rank: u32) {
        let ids: Vec<SlotId> =
            self.fetches.iter().filter(|(_, it)| it.rank == rank).map(|(id, _)| id).collect();
        for id in ids {
            let Some(fetch) = self.fetches.get(id) else { continue };
            if let Some(ticket) = &fetch.ticket
                && let Some(error) = self.lost(fetch.window, rank)
            {
                ticket.fail(error);
            }
            self.end_fetch(id);
        }
    }
}
