//! The host's file system behind the `Disk` trait.
//!
//! Invariants: every error names the call and the full path; the kind of the error is kept, since callers
//! decide by it (`StorageFull`, `WouldBlock`, `NotFound`); nothing is cached here. Only the owner can read
//! files and directories made here, whatever the process's umask: the file system's own rights begin above.

mod anchored;
mod counted;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use ropewalk_base::disk::{Disk, DiskTimes, File, Kind, Open, Space};
use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::mm::{MapFlags, ProtFlags};

use anchored::Anchored;
use counted::Counted;

/// Zeros for file systems that can neither reserve nor punch.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Syncs of this process, of files and directories.
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// The host's file system. Paths are taken as they are given; use absolute ones. Stores use
/// [`HostDisk::shared`], which holds their directories; this one only checks the owner of a directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostDisk;

impl HostDisk {
    /// The disk as the `World` wants it.
    pub fn shared() -> Arc<dyn Disk> {
        Arc::new(Anchored::default())
    }

    /// Syncs that this process asked its file systems for since its start. For figures and displays.
    pub fn syncs() -> u64 {
        SYNCS.load(Ordering::Relaxed)
    }
}

/// An error with call and path. The system's own is in its text and therefore not its source.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}: {cause}", path.display())]
struct Named {
    doing: String,
    path: PathBuf,
    cause: io::Error,
}

fn named_of(error: &io::Error) -> Option<&Named> {
    error.get_ref()?.downcast_ref()
}

/// The system's number of an error of this disk, or of one that comes from the system directly.
pub(crate) fn system_number(error: &io::Error) -> Option<i32> {
    error.raw_os_error().or_else(|| named_of(error)?.cause.raw_os_error())
}

/// The cause of the error, for a text that names `path` already.
pub fn cause_at(path: &Path, error: &io::Error) -> impl fmt::Display {
    let named = named_of(error).filter(|named| named.path == path);
    named.map_or(error, |named| &named.cause).to_string()
}

/// Adds call and path to an error and keeps its kind.
fn named(doing: &str, path: &Path, cause: io::Error) -> io::Error {
    let kind = cause.kind();
    io::Error::new(kind, Named { doing: doing.to_owned(), path: path.to_path_buf(), cause })
}

/// Holds nothing.
static PLAIN: LazyLock<Anchored> = LazyLock::new(Anchored::default);

impl Disk for HostDisk {
    fn hold(&self, root: &Path) -> io::Result<()> {
        PLAIN.checked(root).map(drop)
    }
    fn open(&self, path: &Path, open: Open) -> io::Result<Arc<dyn File>> {
        PLAIN.open(path, open)
    }
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        PLAIN.create_directory(path)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        PLAIN.remove_file(path)
    }
    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        PLAIN.remove_directory(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        PLAIN.rename(from, to)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<(OsString, Kind)>> {
        PLAIN.list(path)
    }
    fn kind(&self, path: &Path) -> io::Result<Option<Kind>> {
        PLAIN.kind(path)
    }
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        PLAIN.sync_directory(path)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        PLAIN.space(path)
    }
    fn memory_of(&self, path: &Path) -> Option<u128> {
        PLAIN.memory_of(path)
    }
    fn times(&self) -> Option<DiskTimes> {
        PLAIN.times()
    }
}

/// Names this run of the kernel.
fn run_of_kernel() -> Option<u128> {
    static RUN: OnceLock<Option<u128>> = OnceLock::new();
    *RUN.get_or_init(|| {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    })
}

struct HostFile {
    file: fs::File,
    path: PathBuf,
    /// For [`File::note`]: made at the first one; `None` where the file is better written.
    map: OnceLock<Option<Map>>,
    /// Of the disk that opened it.
    counted: Arc<Counted>,
}

/// File systems that overwrite mapped pages where they lie: a store to one of them never needs room
/// that a full device does not have, which would be a `SIGBUS`. Ext, XFS, tmpfs.
const MAPPED_SYSTEMS: [i64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

/// A file's words in memory, shared with whoever opens it later.
struct Map {
    begin: *mut AtomicU64,
    bytes: usize,
}

// SAFETY: the words are atomic, and the mapping belongs to this value until it is dropped.
unsafe impl Send for Map {}
// SAFETY: as above; all access goes through atomics.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file whose bytes are all written, as far as it reaches now.
    fn new(file: &fs::File) -> Option<Map> {
        let system = rustix::fs::fstatfs(file).ok()?.f_type as i64;
        let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
        if bytes == 0 || !MAPPED_SYSTEMS.contains(&system) {
            return None;
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice; nothing else refers to it.
        let begin = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED | MapFlags::POPULATE,
                file,
                0,
            )
        };
        Some(Map { begin: begin.ok()?.cast(), bytes })
    }

    /// Stores words in order; false where they lie outside.
    fn store(&self, offset: u64, words: &[u64]) -> bool {
        let inside = offset.is_multiple_of(8)
            && offset
                .checked_add(words.len() as u64 * 8)
                .is_some_and(|end| end <= self.bytes as u64);
        if inside {
            for (index, word) in words.iter().enumerate() {
                // SAFETY: within the mapping, aligned since its begin is a page's and the offset a
                // multiple of 8; others see the word through the page cache only, as atomics do.
                let place = unsafe { &*self.begin.add(offset as usize / 8 + index) };
                place.store(word.to_le(), Ordering::Release);
            }
        }
        inside
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and no reference into it outlives a call.
        let _ = unsafe { rustix::mm::munmap(self.begin.cast(), self.bytes) };
    }
}

impl HostFile {
    fn new(file: fs::File, path: &Path, counted: Arc<Counted>) -> HostFile {
        HostFile { file, path: path.to_path_buf(), map: OnceLock::new(), counted }
    }

    fn read_all(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => (),
                Err(cause) => return Err(named("read", &self.path, cause)),
            }
        }
        Ok(done)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let part = (len - done).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..part as usize], offset + done)?;
            done += part;
        }
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
}

impl File for HostFile {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.counted.read(|| self.read_all(offset, bytes))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let written = self.counted.write(bytes.len(), || self.file.write_all_at(bytes, offset));
        written.map_err(|cause| named("write", &self.path, cause))
    }

    fn note(&self, offset: u64, words: &[u64]) -> io::Result<()> {
        let map = self.map.get_or_init(|| Map::new(&self.file));
        if map.as_ref().is_some_and(|map| map.store(offset, words)) {
            return Ok(());
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write_at(offset, &bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        SYNCS.fetch_add(1, Ordering::Relaxed);
        let synced = self.counted.sync(|| self.file.sync_data());
        synced.map_err(|cause| named("sync", &self.path, cause))
    }

    fn len(&self) -> io::Result<u64> {
        self.length().map_err(|cause| named("ask for the length of", &self.path, cause))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(|cause| named("set the length of", &self.path, cause))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let allocate =
            || match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, len) {
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    // Only bytes behind the end may be written: the rest may hold data.
                    let end = self.length()?;
                    let from = offset.max(end);
                    self.zero(from, (offset + len).saturating_sub(from))
                }
                result => result.map_err(io::Error::from),
            };
        allocate().map_err(|cause| named("reserve room in", &self.path, cause))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punch = || match rustix::fs::fallocate(&self.file, flags, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP) => {
                let end = self.length()?.min(offset.saturating_add(len));
                self.zero(offset, end.saturating_sub(offset))
            }
            result => result.map_err(io::Error::from),
        };
        punch().map_err(|cause| named("free room in", &self.path, cause))
    }

    fn lock(&self) -> io::Result<()> {
        rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|cause| named("lock", &self.path, cause.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_counts_the_calls_of_its_own_files() {
        let directory = tempfile::tempdir().unwrap();
        let (disk, other) = (HostDisk::shared(), HostDisk::shared());
        let file = disk.open(&directory.path().join("f"), Open::Create).unwrap();
        file.write_at(0, b"hello").unwrap();
        file.write_at(5, b"there").unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.read_at(7, &mut [0; 100]).unwrap(), 3);
        let times = disk.times().unwrap();
        let counts = [times.reads, times.writes, times.syncs].map(|it| it.count());
        assert_eq!((counts, times.bytes_read, times.bytes_written), ([1, 2, 1], 3, 10));
        assert_eq!(other.times(), Some(DiskTimes::default()));
    }

    #[test]
    fn files_behave_as_the_trait_says() {
        let directory = tempfile::tempdir().unwrap();
        let disk = HostDisk;
        let root = directory.path().join("a/b");
        disk.create_directory(&root).unwrap();
        let path = root.join("f");
        assert_eq!(disk.kind(&path).unwrap(), None);
        let file = disk.open(&path, Open::CreateNew).unwrap();
        file.allocate(0, 8192).unwrap();
        file.write_at(100, b"hello").unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.len().unwrap(), 8192);
        let mut bytes = [1; 16];
        assert_eq!(file.read_at(8180, &mut bytes).unwrap(), 12);
        assert_eq!(file.read_at(98, &mut bytes).unwrap(), 16);
        assert_eq!(&bytes[..8], b"\0\0hello\0");
        file.punch(0, 4096).unwrap();
        assert_eq!(file.read_at(98, &mut bytes).unwrap(), 16);
        assert_eq!((bytes, file.len().unwrap()), ([0; 16], 8192));
        file.lock().unwrap();
        let other = disk.open(&path, Open::Write).unwrap();
        assert_eq!(other.lock().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(file);
        other.lock().unwrap();
        other.note(4096, &[7, 8]).unwrap();
        assert_eq!(other.read_at(4096, &mut bytes).unwrap(), 16);
        assert_eq!((bytes[0], bytes[8], bytes[15]), (7, 8, 0));
        disk.rename(&path, &root.join("g")).unwrap();
        disk.sync_directory(&root).unwrap();
        assert_eq!(disk.list(&root).unwrap(), [("g".into(), Kind::File)]);
        let space = disk.space(&root).unwrap();
        assert!(space.total > 0 && space.identity != 0);
        assert_eq!(disk.space(directory.path()).unwrap().identity, space.identity);
        assert_ne!(disk.space(Path::new("/proc")).unwrap().identity, space.identity);
    }

    #[test]
    fn only_the_owner_can_read_what_is_made() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let (outer, inner) = (directory.path().join("a"), directory.path().join("a/b"));
        HostDisk.create_directory(&inner).unwrap();
        let file = inner.join("f");
        HostDisk.open(&file, Open::Create).unwrap();
        assert_eq!((mode(&outer), mode(&inner), mode(&file)), (0o700, 0o700, 0o600));
        // Files that exist keep their permissions: those are the owner's decision.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        HostDisk.open(&file, Open::Create).unwrap();
        HostDisk.create_directory(&inner).unwrap();
        assert_eq!(mode(&file), 0o640);
    }

    #[test]
    fn a_directory_that_is_held_stays_the_one_it_was() {
        let place = tempfile::tempdir().unwrap();
        let (root, moved) = (place.path().join("store"), place.path().join("moved"));
        let disk = HostDisk::shared();
        // Nothing is there yet: the path means what it says.
        disk.hold(&root).unwrap();
        disk.create_directory(&root.join("a")).unwrap();
        disk.hold(&root).unwrap();
        fs::rename(&root, &moved).unwrap();
        fs::create_dir(&root).unwrap();
        disk.create_directory(&root.join("a/b/c")).unwrap();
        let file = root.join("a/b/c/f");
        disk.open(&file, Open::Create).unwrap().write_at(0, b"hello").unwrap();
        disk.open(&file, Open::Write).unwrap().sync_data().unwrap();
        disk.rename(&file, &root.join("g")).unwrap();
        for directory in [&root, &root.join("a/b/c")] {
            disk.sync_directory(directory).unwrap();
        }
        disk.remove_directory(&root.join("a/b/c")).unwrap();
        let names = [("a".into(), Kind::Directory), ("g".into(), Kind::File)];
        assert_eq!(disk.list(&root).unwrap(), names);
        assert_eq!(disk.kind(&root).unwrap(), Some(Kind::Directory));
        assert_eq!(disk.kind(&root.join("g")).unwrap(), Some(Kind::File));
        let memory = disk.memory_of(&root.join("g"));
        assert_eq!(memory, HostDisk.memory_of(&moved.join("g")));
        assert_eq!(fs::read(moved.join("g")).unwrap(), b"hello");
        assert_eq!(HostDisk.list(&root).unwrap(), []);
        // One within it is held for itself.
        disk.hold(&root.join("a")).unwrap();
        fs::rename(moved.join("a"), place.path().join("inner")).unwrap();
        disk.open(&root.join("a/h"), Open::CreateNew).unwrap();
        assert!(place.path().join("inner/h").exists() && !moved.join("a").exists());
        // Its name belongs to the one around it.
        disk.remove_directory(&root.join("a")).unwrap_err();
        fs::create_dir(moved.join("a")).unwrap();
        disk.remove_directory(&root.join("a")).unwrap();
        assert!(!moved.join("a").exists());
        // Held anew, it is the one that is there now.
        disk.hold(&root).unwrap();
        assert_eq!(disk.list(&root).unwrap(), []);
        // One that is gone for good takes nothing.
        fs::remove_dir(&root).unwrap();
        let error = disk.open(&root.join("f"), Open::Create).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        disk.create_directory(&root.join("a")).unwrap_err();
        assert!(!root.exists());
        // A path that is no directory cannot be held.
        disk.hold(&moved.join("g")).unwrap_err();
    }

    #[test]
    fn the_directory_of_another_user_is_not_held() {
        let place = tempfile::tempdir().unwrap();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::os::unix::fs::chown(place.path(), Some(65534), None).unwrap();
        for disk in [HostDisk::shared(), Arc::new(HostDisk)] {
            let error = disk.hold(place.path()).unwrap_err().to_string();
            assert!(error.contains("belongs to user 65534") && error.contains("chown"), "{error}");
        }
    }

    #[test]
    fn only_regular_files_are_opened_and_nobody_is_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        mknodat(CWD, at("FIFO"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink(at("file"), at("symbolic link")).unwrap();
        std::os::unix::fs::symlink(at("nothing"), at("dangling symbolic link")).unwrap();
        for name in ["FIFO", "socket", "symbolic link", "dangling symbolic link"] {
            for open in [Open::Read, Open::Write, Open::Create] {
                let error = HostDisk.open(&at(name), open).err().unwrap().to_string();
                let what = name.trim_start_matches("dangling ");
                assert!(
                    error.ends_with(&format!("it is a {what}, and not a regular file")),
                    "{error}"
                );
            }
        }
        assert!(!at("nothing").exists());
        // A directory on the way may be a link.
        fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink(at("folder"), at("way")).unwrap();
        let disk = HostDisk::shared();
        disk.hold(&at("way")).unwrap();
        disk.open(&at("way").join("f"), Open::CreateNew).unwrap();
        assert!(at("folder/f").exists());
    }

    #[test]
    fn an_error_says_call_and_path_once() {
        let path = Path::new("/nowhere/at/all");
        let error = HostDisk.open(path, Open::Read).err().unwrap();
        let cause = cause_at(path, &error).to_string();
        assert_eq!(error.to_string(), format!("cannot open /nowhere/at/all: {cause}"));
        assert!(!cause.contains("nowhere"), "{cause}");
        // A path that the text does not have stays.
        assert_eq!(cause_at(Path::new("/nowhere"), &error).to_string(), error.to_string());
    }

    #[test]
    fn errors_name_the_path_and_keep_the_kind() {
        let error = HostDisk.open(Path::new("/nowhere/at/all"), Open::Read).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
