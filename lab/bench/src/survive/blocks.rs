//! A client of a mount that reads and writes blocks of large files until it is told to stop: the work of [`super::steady`] by
//! plain system calls, so that any file system can do it.
//!
//! Invariants
//! * Reads and writes are direct, past the page cache, and each write is followed by `fdatasync`: so no answer comes from
//!   this kernel alone.
//! * A block has the number that was written last. Reads compare it, and at the end all written blocks are read.

use std::fmt::Write;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use rustix::fs::OFlags;

use crate::host::monotonic_nanos;
use crate::order::Order;
use crate::survive::client::Shared;
use crate::survive::names::Kind;
use crate::survive::steady::{BLOCK, LANES, STEP};
use crate::work_files::Aligned;

/// The interval at which a client looks whether it may begin.
const LOOK: Duration = Duration::from_millis(1);

/// The state of all lanes of a client.
struct State {
    /// Of each block of the written file the number that was acknowledged last, and whether another one is under way.
    written: Vec<u64>,
    busy: Vec<bool>,
    /// Kinds, moments, and times that operations took.
    events: Vec<(Kind, u64, u64)>,
}

/// The work of one client.
struct Lanes {
    shared: Arc<Shared>,
    blocks: u64,
    rest: Duration,
    /// Reads and writes that were begun, and those that were acknowledged.
    begun: [AtomicU64; 2],
    done: [AtomicU64; 2],
    state: Mutex<State>,
}

/// Plays the part of such a client.
///
/// # Errors
/// The files cannot be made, or the order lacks something.
pub fn client(order: &Order) -> anyhow::Result<()> {
    let blocks: u64 = order.get("blocks")?;
    let shared = Arc::new(Shared::default());
    let (written, busy) = (vec![0; blocks as usize], vec![false; blocks as usize]);
    let lanes = Lanes {
        shared: shared.clone(),
        blocks,
        rest: Duration::from_micros(order.get("rest_us")?),
        begun: Default::default(),
        done: Default::default(),
        state: Mutex::new(State { written, busy, events: Vec::new() }),
    };
    let [read, written] = prepare(order.text("folder")?.as_ref(), blocks)?;
    println!("ready");
    let listener = shared.clone();
    std::thread::spawn(move || listener.listen());
    while !shared.goes.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
    }
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| lanes.lane(Kind::Read, &read));
            scope.spawn(|| lanes.lane(Kind::Write, &written));
        }
    });
    lanes.verify(&written);
    let mut text = String::new();
    for (kind, nanos, spent) in &lanes.state().events {
        let _ = writeln!(text, "{} {nanos} {spent}", *kind as u8);
    }
    std::fs::write(order.text("times")?, text)?;
    println!("{}", shared.answer("done"));
    Ok(())
}

/// The files to read and to write, with all of their blocks, which are durable.
fn prepare(folder: &Path, blocks: u64) -> anyhow::Result<[File; 2]> {
    let made = |name: &str, first: u64| -> std::io::Result<File> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(name);
        let file = File::create_new(&path)?;
        for block in 0..blocks {
            let number = first * (block + 1);
            file.write_all_at(&number.to_le_bytes().repeat(BLOCK / 8), block * BLOCK as u64)?;
        }
        file.sync_all()?;
        let direct = OFlags::DIRECT.bits() as i32;
        OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path)
    };
    let at = || format!("cannot prepare the files of a client in {}", folder.display());
    Ok([made("read", 1).with_context(at)?, made("written", 0).with_context(at)?])
}

/// The number of all words of a block; `None` if they differ.
fn number(block: &[u8]) -> Option<u64> {
    let mut words = block.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let first = words.next();
    first.filter(|first| words.all(|word| word == *first))
}

impl Lanes {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no lane panics")
    }

    fn lane(&self, kind: Kind, file: &File) {
        let side = usize::from(kind == Kind::Write);
        let mut room = Aligned::new(BLOCK);
        while !self.shared.stop.load(Ordering::Relaxed) {
            let turn = self.begun[side].fetch_add(1, Ordering::Relaxed);
            let block = turn * STEP % self.blocks;
            if kind == Kind::Write
                && std::mem::replace(&mut self.state().busy[block as usize], true)
            {
                // The other lane waits for this one still.
                std::thread::sleep(LOOK);
                continue;
            }
            let begin = monotonic_nanos();
            let acted = match kind {
                Kind::Write => put(file, block, turn + 1, room.block()),
                _ => get(file, block, room.block()),
            };
            let end = monotonic_nanos();
            let fail = |what: String| {
                self.shared.fail(format!("error {} of block {block}: {what}", kind.name()))
            };
            match acted {
                Ok(_) if kind == Kind::Write => {
                    let mut state = self.state();
                    state.written[block as usize] = turn + 1;
                    state.busy[block as usize] = false;
                }
                Ok(found) if found == Some(block + 1) => {}
                Ok(found) => return fail(format!("{found:?} is there")),
                Err(error) => return fail(error.to_string()),
            }
            self.state().events.push((kind, end, end - begin));
            self.done[side].fetch_add(1, Ordering::Relaxed);
            // The kind that is behind counts.
            let least = self.done.iter().map(|done| done.load(Ordering::Relaxed)).min();
            self.shared.count.fetch_max(least.unwrap_or(0), Ordering::Relaxed);
            std::thread::sleep(self.rest);
        }
    }

    /// Each block has what was acknowledged last.
    fn verify(&self, file: &File) {
        let mut room = Aligned::new(BLOCK);
        for (block, wanted) in self.state().written.iter().enumerate() {
            let text = match get(file, block as u64, room.block()) {
                Ok(found) if found == Some(*wanted) => continue,
                Ok(found) => format!("error write {wanted} of block {block} is lost: {found:?}"),
                Err(error) => format!("error read of written block {block}: {error}"),
            };
            self.shared.fail(text);
        }
    }
}

/// Writes a block whose words are all this number; it is durable, as the file system understands that.
fn put(file: &File, block: u64, number: u64, room: &mut [u8]) -> std::io::Result<Option<u64>> {
    for word in room.chunks_exact_mut(8) {
        word.copy_from_slice(&number.to_le_bytes());
    }
    file.write_all_at(room, block * BLOCK as u64)?;
    file.sync_data()?;
    Ok(Some(number))
}

fn get(file: &File, block: u64, room: &mut [u8]) -> std::io::Result<Option<u64>> {
    file.read_exact_at(room, block * BLOCK as u64)?;
    Ok(number(room))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_back_as_they_were_written() {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let [read, written] = prepare(&place.path().join("c"), 3).unwrap();
        let mut room = Aligned::new(BLOCK);
        assert_eq!(get(&read, 2, room.block()).unwrap(), Some(3));
        assert_eq!(get(&written, 2, room.block()).unwrap(), Some(0));
        put(&written, 1, 77, room.block()).unwrap();
        assert_eq!(get(&written, 1, room.block()).unwrap(), Some(77));
        assert!(get(&written, 3, room.block()).is_err(), "there are three blocks");
        room.block()[8] ^= 1;
        assert_eq!(number(room.block()), None);
        assert!(prepare(&place.path().join("c"), 1).is_err(), "the files are there");
    }
}
