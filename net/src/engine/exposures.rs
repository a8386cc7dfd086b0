//! Exposures: the memory that peers may access.
//!
//! Invariant: exposed memory stays in the buffer table until the core says that nobody holds it.

use std::sync::Arc;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::BufferId;
use ropewalk_base::verb::RemoteKey;

use ropewalk_core::Served;

use crate::context::Queue;
use crate::counter::Told;

struct Exposure {
    key: RemoteKey,
    buffer: BufferId,
    told: Told,
    end: Option<Receiver>,
}

/// The context that gets the memory back, with the caller's number.
pub(crate) struct Receiver {
    pub queue: Arc<Queue>,
    pub user: u64,
}

pub(crate) struct Exposures {
    /// By the key's slot.
    exposures: Vec<Option<Exposure>>,
}

impl Exposures {
    pub fn new() -> Exposures {
        Exposures { exposures: Vec::new() }
    }

    /// The memory in `buffer` is exposed under this key.
    pub fn begin(&mut self, key: RemoteKey, buffer: BufferId, told: Told) {
        let index = key.slot.index as usize;
        if self.exposures.len() <= index {
            self.exposures.resize_with(index + 1, || None);
        }
        self.exposures[index] = Some(Exposure { key, buffer, told, end: None });
    }

    fn get(&self, key: RemoteKey) -> Option<&Exposure> {
        let exposure = self.exposures.get(key.slot.index as usize)?.as_ref()?;
        (exposure.key == key).then_some(exposure)
    }

    /// The queue that takes the events of a region.
    pub fn listener(&self, key: RemoteKey) -> Option<&Queue> {
        Some(&self.get(key)?.told.written.as_ref()?.queue)
    }

    /// A peer did something to a region.
    pub fn count(&self, key: RemoteKey, what: Served) {
        let counters = self.get(key).map_or(&[][..], |it| &it.told.counters);
        let wanted = counters.iter().filter(|(kind, _)| *kind == what);
        wanted.for_each(|(_, counter)| counter.counts.note(Ok(())));
    }

    /// The exposure shall end. [`Fault::BadKey`] if there is none under this key, or if it ends already.
    pub fn end(&mut self, key: RemoteKey, receiver: Receiver) -> Result<(), Fault> {
        match self.exposures.get_mut(key.slot.index as usize) {
            Some(Some(exposure)) if exposure.key == key && exposure.end.is_none() => {
                exposure.end = Some(receiver);
                Ok(())
            }
            _ => Err(Fault::BadKey),
        }
    }

    /// Nobody holds the memory any more: its buffer, and who gets it.
    pub fn remove(&mut self, key: RemoteKey) -> Option<(BufferId, Option<Receiver>)> {
        let entry = self.exposures.get_mut(key.slot.index as usize)?;
        let exposure = entry.take_if(|exposure| exposure.key == key)?;
        Some((exposure.buffer, exposure.end))
    }
}
