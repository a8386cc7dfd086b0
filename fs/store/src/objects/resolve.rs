//! The state of a block after a crash, from its history in the log and the bytes on disk.
//!
//! The history is walked from the newest event back. An image or a hole ends the walk, since it
//! needs nothing from the file. A write in place stands only if the file has its bytes.
//!
//! After the death of the process alone, everything but the very last batch was completed: an earlier write
//! whose bytes are not there is damage. After a power loss, any write that was not synced may be missing or
//! torn, so older states are legitimate. They are not for writes before `mark`.

use super::block::{Block, UNKNOWN};

/// The events of a block in the log, oldest first.
pub(super) enum Event {
    Write {
        old: u32,
        new: u32,
        position: u64,
        batch: u64,
    },
    Image(Box<Block>),
    Hole,
    /// The block may have become anything: its record is damaged, or gone.
    Lost,
}

/// The known facts about the crash.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crash {
    /// Only the process died.
    pub(super) process_only: bool,
    /// Bytes that are read may come from the page cache of before: the process died, or nobody knows.
    pub(super) page_cache: bool,
    /// The start of the last batch of the log: the one call that may have been under way.
    pub(super) last_batch: u64,
}

/// The state of a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resolved<'a> {
    /// The file's bytes, described by this entry; not looked at where they were synced.
    InPlace(u32),
    /// These bytes, to be written into the file.
    Restore(&'a Block),
    Hole,
    /// The file's bytes match nothing, and nothing else has them.
    Damaged,
    /// The device does not give the file's bytes back; this entry says what they should be.
    Unread(u32),
}

/// Resolves one block. `found` gives the entry of the bytes on disk and is called at most once.
pub(super) fn resolve<'a>(
    events: &'a [Event],
    crash: Crash,
    mark: u64,
    found: impl FnOnce() -> u32,
) -> Resolved<'a> {
    match events.last() {
        Some(Event::Image(content)) => return Resolved::Restore(content),
        Some(Event::Hole) | None => return Resolved::Hole,
        Some(Event::Lost) => return Resolved::Damaged,
        Some(Event::Write { new: 0, .. }) => return Resolved::Hole,
        Some(Event::Write { new: UNKNOWN, .. }) => return Resolved::Damaged,
        Some(Event::Write { new, position, .. }) => {
            if *position < mark && !crash.process_only {
                return Resolved::InPlace(*new);
            }
        }
    }
    let found = found();
    for event in events.iter().rev() {
        match event {
            Event::Image(content) => return Resolved::Restore(content),
            Event::Hole | Event::Write { new: 0, .. } => return Resolved::Hole,
            Event::Lost | Event::Write { new: UNKNOWN, .. } => return Resolved::Damaged,
            Event::Write { new, .. } if *new == found => return Resolved::InPlace(*new),
            Event::Write { position, batch, .. } => {
                let under_way = *batch == crash.last_batch;
                let settled = if crash.process_only { !under_way } else { *position < mark };
                if settled {
                    return Resolved::Damaged;
                }
            }
        }
    }
    // The block's state before its first record in the log. An image in between would have ended the walk.
    match events.first() {
        Some(Event::Write { old: 0, .. }) => Resolved::Hole,
        Some(Event::Write { old, .. }) if *old == found => Resolved::InPlace(*old),
        _ => Resolved::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(old: u32, new: u32, position: u64) -> Event {
        Event::Write { old, new, position, batch: position }
    }

    const POWER: Crash = Crash { process_only: false, page_cache: false, last_batch: 30 };
    const PROCESS: Crash = Crash { process_only: true, page_cache: true, last_batch: 30 };

    #[test]
    fn the_newest_state_on_disk_wins_and_the_old_one_is_accepted_only_in_doubt() {
        let events = [write(5, 6, 10), write(6, 7, 30)];
        for crash in [POWER, PROCESS] {
            assert_eq!(resolve(&events, crash, 0, || 7), Resolved::InPlace(7));
            assert_eq!(resolve(&events, crash, 0, || 6), Resolved::InPlace(6));
            assert_eq!(resolve(&events, crash, 0, || 99), Resolved::Damaged);
        }
        // The first write was acknowledged: its absence is legitimate only after a power loss.
        assert_eq!(resolve(&events, POWER, 0, || 5), Resolved::InPlace(5));
        assert_eq!(resolve(&events, PROCESS, 0, || 5), Resolved::Damaged);
        assert_eq!(resolve(&events, POWER, 20, || 5), Resolved::Damaged);
    }

    #[test]
    fn holes_and_images_are_fallen_back_to_only_where_the_write_may_be_missing() {
        let fresh = [write(0, 6, 30)];
        assert_eq!(resolve(&fresh, PROCESS, 0, || 99), Resolved::Hole);
        let acknowledged = [write(0, 6, 20)];
        assert_eq!(resolve(&acknowledged, PROCESS, 0, || 99), Resolved::Damaged);
        assert_eq!(resolve(&acknowledged, POWER, 0, || 99), Resolved::Hole);
        assert_eq!(resolve(&acknowledged, POWER, 25, || panic!("not read")), Resolved::InPlace(6));
        let patched = || [Event::Image(Box::new([1; 4096])), write(5, 6, 20)];
        assert_eq!(resolve(&patched(), PROCESS, 0, || 99), Resolved::Damaged);
        assert_eq!(resolve(&patched(), POWER, 0, || 99), Resolved::Restore(&[1; 4096]));
        // The file still has the bytes from before the image.
        assert_eq!(resolve(&patched(), POWER, 0, || 5), Resolved::Restore(&[1; 4096]));
        assert_eq!(resolve(&[write(5, 6, 1), Event::Hole], POWER, 0, || 0), Resolved::Hole);
    }

    #[test]
    fn a_block_that_was_given_up_has_no_earlier_state() {
        for first in [write(5, UNKNOWN, 10), write(0, UNKNOWN, 10)] {
            let events = [first, write(UNKNOWN, 6, 30)];
            for crash in [POWER, PROCESS] {
                assert_eq!(resolve(&events, crash, 0, || 6), Resolved::InPlace(6));
                for found in [5, 9] {
                    assert_eq!(resolve(&events, crash, 0, || found), Resolved::Damaged);
                }
            }
        }
    }

    #[test]
    fn what_a_lost_record_did_is_known_again_only_from_what_came_later() {
        let lost = [Event::Lost];
        let later = [Event::Lost, write(5, 6, 20)];
        for crash in [POWER, PROCESS] {
            assert_eq!(resolve(&lost, crash, 0, || panic!("not read")), Resolved::Damaged);
            assert_eq!(resolve(&later, crash, 0, || 6), Resolved::InPlace(6));
            assert_eq!(resolve(&later, crash, 0, || 5), Resolved::Damaged);
        }
    }
}
