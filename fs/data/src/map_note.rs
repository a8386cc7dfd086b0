//! The newest map that this server has known, durably: in the file `joined`, behind the history.
//!
//! Invariants:
//! * a note names a map that was known here, so the metadata server had it durably;
//! * only a cleaning waits for the note. A late note names an older map, and is never wrong.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::task::{Notify, Semaphore};
use ropewalk_base::world::World;
use ropewalk_wire::fs::term::Term;

/// The file with the history that this server joined, and its newest term: `membership.rs` writes them in front.
pub(crate) const NAME: &str = "joined";
const MAGIC: &[u8; 8] = b"RWMAPNOT";
/// Magic, history, epoch, term, leap, and the checksum of all.
pub(crate) const BYTES: usize = 44;
/// The offsets of the two copies, each in a sector of its own, behind those of the history.
const PLACES: [u64; 2] = [1024, 1536];
/// The pause between two notes.
const PAUSE: Duration = Duration::from_secs(1);
/// The same, after one that failed.
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// A map that was known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Noted {
    /// Whose map it is.
    pub history: u128,
    pub epoch: u32,
    /// Of the metadata server that told it.
    pub term: Term,
    /// The map of the first term that began with a restore from a dump, since this store has its bytes; 0: none did.
    pub leap: u32,
}

impl Noted {
    /// The note once a later map is known.
    fn next(self, history: u128, epoch: u32, term: Term) -> Noted {
        let before = if self.history == history { self } else { Noted::default() };
        let leaps = term.is_restored_since(before.term);
        Noted { history, epoch, term, leap: if leaps { epoch } else { before.leap } }
    }
}

/// The note of a server at work.
pub(crate) struct MapNote {
    directory: PathBuf,
    /// As the former life left it.
    pub former: Noted,
    noted: RefCell<Noted>,
    /// Another map is known than the one that is noted.
    pub changed: Notify,
    /// One note at a time is written.
    noting: Semaphore,
    told: Cell<bool>,
}

impl MapNote {
    pub(crate) fn new(directory: &Path, former: Noted) -> MapNote {
        let noted = RefCell::new(former);
        let (changed, noting, told) = (Notify::new(), Semaphore::new(1), Cell::new(false));
        MapNote { directory: directory.to_path_buf(), former, noted, changed, noting, told }
    }

    /// The newest map that is noted durably.
    pub(crate) fn noted(&self) -> Noted {
        *self.noted.borrow()
    }

    /// Whether a metadata server of this term does not know a map that this server's former life knew. One that was restored from a
    /// dump need not.
    pub(crate) fn is_older_copy(&self, history: u128, map: u32, term: Term) -> bool {
        let Noted { history: known, epoch, term: met, .. } = self.former;
        history == known && map < epoch && !term.is_behind(met) && !term.is_restored_since(met)
    }

    /// The newest map that this server's former life knew, if it counts for who has met this term.
    pub(crate) fn former_epoch(&self, history: u128, met: Term) -> u32 {
        let Noted { history: known, epoch, term, .. } = self.former;
        if history == known && !met.is_restored_since(term) { epoch } else { 0 }
    }

    /// Notes a map, durably, where it is a newer one.
    pub(crate) async fn note(
        &self,
        world: &World,
        history: u128,
        (epoch, term): (u32, Term),
    ) -> io::Result<()> {
        let _turn = self.noting.acquire().await;
        let noted = self.noted();
        if noted.history == history && epoch <= noted.epoch && !term.is_restored_since(noted.term) {
            return Ok(());
        }
        self.put(world, noted.next(history, epoch, term)).await
    }

    /// A person has seen to it that nothing is here which restored metadata do not know.
    pub(crate) async fn forget_leap(&self, world: &World) -> io::Result<()> {
        let _turn = self.noting.acquire().await;
        self.put(world, Noted { leap: 0, ..self.noted() }).await
    }

    async fn put(&self, world: &World, next: Noted) -> io::Result<()> {
        let (disk, directory) = (world.disk(), self.directory.clone());
        let written = world.offload(move || write(&*disk, &directory, next)).await;
        written.unwrap_or_else(|| Err(io::ErrorKind::Interrupted.into()))?;
        *self.noted.borrow_mut() = next;
        Ok(())
    }

    /// The pause before the next note. `say`: hears once why there is none.
    pub(crate) fn pause(&self, noted: &io::Result<()>, say: impl FnOnce(&str)) -> Duration {
        match noted {
            Ok(()) => {
                self.told.set(false);
                PAUSE
            }
            Err(error) => {
                if !self.told.replace(true) {
                    let path = self.directory.join(NAME);
                    say(&format!(
                        "cannot note the map in {}: {error}; this server serves, and tries again. Free or \
                         repair the disk: until then 'ropewalk server clean' fails, and an older copy of the \
                         metadata may not be known as one after a restart",
                        path.display()
                    ));
                }
                LONG_PAUSE
            }
        }
    }
}

/// The note of the former life; none where it left none that can be read.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Noted {
    let Ok(file) = disk.open(&directory.join(NAME), Open::Read) else { return Noted::default() };
    let copies = PLACES.into_iter().filter_map(|at| {
        let mut bytes = [0; BYTES];
        let count = file.read_at(at, &mut bytes).ok()?;
        if count == BYTES { decode(&bytes) } else { None }
    });
    // A cut in between leaves the former one at the second place.
    copies.max_by_key(|noted| noted.epoch).unwrap_or_default()
}

fn decode(bytes: &[u8; BYTES]) -> Option<Noted> {
    let (body, sum) = bytes.split_at(BYTES - 4);
    let is_whole = body[..8] == *MAGIC && checksum::crc32c(body).to_le_bytes() == sum;
    let four = |at: usize| body[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    let history = body[8..24].try_into().map(u128::from_le_bytes).ok()?;
    let term = body[28..36].try_into().map(u64::from_le_bytes).ok()?;
    let noted = Noted { history, epoch: four(24)?, term: Term(term), leap: four(36)? };
    is_whole.then_some(noted)
}

/// Whether a note is accepted. For fuzzers.
pub(crate) fn accepts(bytes: &[u8; BYTES]) -> bool {
    let Some(noted) = decode(bytes) else { return false };
    let again: [u8; BYTES] = encode(noted).try_into().expect("it has this length");
    assert_eq!(decode(&again), Some(noted), "the journey changes it");
    true
}

fn encode(noted: Noted) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&noted.history.to_le_bytes());
    bytes.extend_from_slice(&noted.epoch.to_le_bytes());
    bytes.extend_from_slice(&noted.term.0.to_le_bytes());
    bytes.extend_from_slice(&noted.leap.to_le_bytes());
    bytes.extend_from_slice(&checksum::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Durable when it returns. The file is there: a server that knows a map has joined.
fn write(disk: &dyn Disk, directory: &Path, noted: Noted) -> io::Result<()> {
    let bytes = encode(noted);
    let file = disk.open(&directory.join(NAME), Open::Write)?;
    for at in PLACES.into_iter().rev() {
        file.write_at(at, &bytes)?;
        file.sync_data()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ropewalk_store::HostDisk;

    use super::*;

    /// Half of the terms that a restore passes over.
    const LEAP: u32 = 1 << 15;

    fn noted(epoch: u32, term: u64, leap: u32) -> Noted {
        Noted { history: 5, epoch, term: Term(term), leap }
    }

    #[test]
    fn one_copy_of_the_note_is_enough_and_none_is_as_none() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, path) = (HostDisk::shared(), directory.path());
        assert_eq!(read(&*disk, path), Noted::default());
        assert!(write(&*disk, path, noted(1, 2, 0)).is_err(), "nobody has joined");
        let file = path.join(NAME);
        std::fs::write(&file, [7; 548]).unwrap();
        assert_eq!(read(&*disk, path), Noted::default());
        write(&*disk, path, noted(3, 9, 0)).unwrap();
        write(&*disk, path, noted(u32::MAX, u64::MAX, 5)).unwrap();
        assert_eq!(read(&*disk, path), noted(u32::MAX, u64::MAX, 5));
        let mut bytes = std::fs::read(&file).unwrap();
        assert_eq!(bytes[..548], [7; 548], "the history stays");
        bytes[1024 + 9] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(read(&*disk, path), noted(u32::MAX, u64::MAX, 5));
        bytes[1536 + 36] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(read(&*disk, path), Noted::default());
    }

    #[test]
    fn restored_metadata_are_known_by_their_term_and_may_have_an_older_map() {
        let term = |number| Term::new(number, 9);
        let first = Noted::default().next(5, 1 << 20, term(1 << 20));
        assert_eq!(first, noted(1 << 20, term(1 << 20).0, 0), "nothing was known before");
        let later = first.next(5, 3 << 20, term((1 << 20) + LEAP - 1));
        assert_eq!(later.leap, 0);
        let restored = later.next(5, 7, term((1 << 20) + 2 * LEAP));
        assert_eq!((restored.epoch, restored.leap), (7, 7));
        assert_eq!(restored.next(5, 9, restored.term).leap, 7, "it stays");
        assert_eq!(restored.next(6, 1, term(1)).leap, 0, "of another history");
        let life = MapNote::new(Path::new(""), later);
        assert!(life.is_older_copy(5, 9, later.term) && !life.is_older_copy(6, 9, later.term));
        assert!(life.is_older_copy(5, 9, term((1 << 20) + LEAP)), "a later start");
        assert!(!life.is_older_copy(5, later.epoch, later.term), "the same map");
        assert!(!life.is_older_copy(5, 9, restored.term), "restored from a dump");
        let epoch = |history, term| life.former_epoch(history, term);
        assert_eq!((epoch(5, later.term), epoch(6, later.term)), (later.epoch, 0));
        assert_eq!(epoch(5, restored.term), 0);
    }
}
