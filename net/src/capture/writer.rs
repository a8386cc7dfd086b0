//! The file, and the thread that writes to it.
//!
//! Invariants: the owner of a packet never waits for the disk; at most the buffer's bytes wait, and as many are
//! being written; a file that cannot be written to any more ends in a whole block, and is reported once.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::blocks::{self, Way};
use super::{CaptureCounters, CaptureError};
use crate::notice;

/// Endpoints that may write to one name, with a number each.
const NUMBERS_MAX: u32 = 4096;
/// Bytes of a block besides the frame, at most.
const BLOCK_BYTES: usize = 128;
/// The time for which packets are gathered before they are written.
const GATHERS: Duration = Duration::from_millis(20);
/// The time for which the end of a capture waits for the disk.
const ENDS: Duration = Duration::from_secs(5);

/// A file that packets are written to.
pub struct Writer {
    shared: Arc<Shared>,
    buffer_bytes: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write, or nothing will come any more.
    work: Condvar,
    /// The thread has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Whole blocks.
    waiting: Vec<u8>,
    counters: CaptureCounters,
    failed: bool,
    closing: bool,
    ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Makes the file; under another name, with a number, where somebody writes to it.
    pub fn open(
        name: &Path,
        link_type: u16,
        interface: &str,
        buffer_bytes: usize,
    ) -> Result<Writer, CaptureError> {
        let failed = |cause| CaptureError { file: name.to_path_buf(), cause };
        let (file, name) = claim(name).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let mut beginning = Vec::new();
        blocks::begin(&mut beginning, link_type, interface);
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("ropewalk-capture".to_string());
        let begun = thread.spawn(move || write(file, &name, beginning, &theirs));
        begun.map_err(failed)?;
        Ok(Writer { shared, buffer_bytes })
    }

    /// A packet; `frame` writes the body and the headers around it.
    pub fn packet(&self, way: Way, body: &[u8], frame: impl FnOnce(&[u8], &mut Vec<u8>)) {
        let now = SystemTime::now();
        let mut state = self.shared.state();
        state.counters.packets += 1;
        if state.failed || state.waiting.len() + body.len() + BLOCK_BYTES > self.buffer_bytes {
            state.counters.dropped += 1;
            return;
        }
        let first = state.waiting.is_empty();
        blocks::packet(&mut state.waiting, now, way, |out| frame(body, out));
        if first {
            self.shared.work.notify_one();
        }
    }

    pub fn counters(&self) -> CaptureCounters {
        self.shared.state().counters
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closing = true;
        self.shared.work.notify_one();
        // A disk that does not answer is not waited for without end.
        let waits = |state: &mut State| !state.ended;
        drop(self.shared.ended.wait_timeout_while(state, ENDS, waits));
    }
}

/// The file of this name, or of the first with a number that nobody writes to.
fn claim(name: &Path) -> io::Result<(File, PathBuf)> {
    for number in 0..NUMBERS_MAX {
        let name = numbered(name, number);
        // Payloads are nobody else's to read.
        let file =
            OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&name)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user, who could read the capture"));
        }
        if found.mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        match file.try_lock() {
            Ok(()) => {
                file.set_len(0)?;
                return Ok((file, name));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(cause)) => return Err(cause),
        }
    }
    Err(io::Error::other("too many endpoints write to files of this name"))
}

/// `a.pcapng`, `a.1.pcapng`, `a.2.pcapng`.
fn numbered(name: &Path, number: u32) -> PathBuf {
    let mut with = name.to_path_buf();
    if number > 0 {
        let extension = match name.extension() {
            Some(extension) => format!("{number}.{}", extension.to_string_lossy()),
            None => number.to_string(),
        };
        with.set_extension(extension);
    }
    with
}

/// Writes until the end.
fn write(mut file: File, name: &Path, mut blocks: Vec<u8>, shared: &Shared) {
    let mut written = 0;
    loop {
        let (now, outcome) = write_some(&mut file, &blocks);
        written += blocks::whole(&blocks, now) as u64;
        if let Err(cause) = outcome {
            let _ = file.set_len(written);
            say(name, &cause);
            let mut state = shared.state();
            state.failed = true;
            state.waiting = Vec::new();
        }
        blocks.clear();
        let mut state = shared.state();
        while state.waiting.is_empty() && !state.closing {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.closing {
            drop(state);
            std::thread::sleep(GATHERS);
            state = shared.state();
        }
        if state.waiting.is_empty() {
            break;
        }
        std::mem::swap(&mut blocks, &mut state.waiting);
    }
    let CaptureCounters { packets, dropped } = shared.state().counters;
    blocks::statistics(&mut blocks, SystemTime::now(), packets, dropped);
    if !shared.state().failed && file.write_all(&blocks).is_err() {
        let _ = file.set_len(written);
    }
    drop(file);
    shared.state().ended = true;
    shared.ended.notify_all();
}

/// Writes bytes, all of them where it can; how many it were.
fn write_some(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while done < bytes.len() {
        match file.write(&bytes[done..]) {
            Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
            Ok(more) => done += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// Tells of a capture that ends early: nobody else would.
fn say(name: &Path, cause: &io::Error) {
    let name = name.display();
    notice::tell(&format!("the capture {name} ends here: {cause}; traffic goes on"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_in_front_of_the_extension() {
        let name = |name: &str, number| numbered(Path::new(name), number).display().to_string();
        assert_eq!(name("/a/b.pcapng", 0), "/a/b.pcapng");
        assert_eq!(name("/a/b.pcapng", 2), "/a/b.2.pcapng");
        assert_eq!(name("/a.d/b", 1), "/a.d/b.1");
    }
}
