//! Memories that something is fetched into, and whether more of it came since that was asked last.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::slots::SlotId;
use crate::time::Time;

/// Such memories, by number; few at a time.
#[derive(Debug, Default)]
pub struct Followed(Vec<Fetch>);

#[derive(Debug)]
struct Fetch {
    id: SlotId,
    /// Bytes that came. Only the table's holder counts: no addition has to be atomic.
    written: AtomicU64,
    /// As many as had come when it was asked last; since when none had come by then.
    seen: u64,
    since: Time,
}

impl Followed {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// From now on something is fetched into a memory.
    pub fn add(&mut self, id: SlotId, now: Time) {
        self.remove(id);
        self.0.push(Fetch { id, written: AtomicU64::new(0), seen: 0, since: now });
    }

    pub fn remove(&mut self, id: SlotId) {
        if let Some(at) = self.0.iter().position(|fetch| fetch.id == id) {
            self.0.swap_remove(at);
        }
    }

    /// So many bytes came.
    pub fn note(&self, id: SlotId, bytes: u64) {
        if let Some(fetch) = self.0.iter().find(|fetch| fetch.id == id) {
            let written = fetch.written.load(Ordering::Relaxed);
            fetch.written.store(written + bytes, Ordering::Relaxed);
        }
    }

    /// Since when nothing has come: since it began, or since the last question before which something had.
    pub fn still_since(&mut self, id: SlotId, now: Time) -> Option<Time> {
        let fetch = self.0.iter_mut().find(|fetch| fetch.id == id)?;
        let written = fetch.written.load(Ordering::Relaxed);
        if std::mem::replace(&mut fetch.seen, written) != written {
            fetch.since = now;
        }
        Some(fetch.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_still_since_it_began_or_since_more_was_seen_to_have_come() {
        let id = |index| SlotId { index, generation: 1 };
        let mut followed = Followed::default();
        assert_eq!(followed.still_since(id(1), Time(9)), None);
        followed.add(id(1), Time(10));
        followed.add(id(2), Time(11));
        followed.note(id(1), 100);
        followed.note(id(3), 100);
        assert_eq!(followed.still_since(id(2), Time(20)), Some(Time(11)));
        assert_eq!(followed.still_since(id(1), Time(20)), Some(Time(20)));
        assert_eq!(followed.still_since(id(1), Time(30)), Some(Time(20)));
        followed.remove(id(1));
        assert_eq!((followed.still_since(id(1), Time(40)), followed.is_empty()), (None, false));
    }
}
