//! Checks of what POSIX and Linux promise about a file system, on two mounts of one cluster.
//!
//! The checks know nothing of the cluster: with `ROPEWALK_POSIX_DIRECTORY` naming a directory of any
//! file system they run there instead (both "mounts" are then that directory), which tells a wrong
//! expectation from a wrong file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Cluster, mounts_usable, unmount};

/// A directory of the file system under test, seen through two mounts.
pub struct Place {
    pub a: PathBuf,
    pub b: PathBuf,
    /// Whether `a` and `b` are two mounts, and the file system is ours.
    pub ours: bool,
}

/// A named expectation.
pub type Check = (&'static str, fn(&Place));

/// Runs all checks, each in a directory of its own, and fails with the names of those that failed.
pub fn run_checks(checks: &[Check]) {
    // The modes in the checks hold for this mask.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Ok(directory) = std::env::var("ROPEWALK_POSIX_DIRECTORY") {
        let place = tempfile::tempdir_in(directory).unwrap();
        return run_at(checks, place.path(), place.path(), false);
    }
    if !mounts_usable() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can act as several users");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    std::fs::create_dir(&a).unwrap();
    std::fs::create_dir(&b).unwrap();
    // Other users have to reach the mounts, too.
    chmod(place.path(), 0o755);
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, _two) = (cluster.mount(&a), cluster.mount(&b));
    run_at(checks, &a, &b, true);
    unmount(&a);
    unmount(&b);
}

fn run_at(checks: &[Check], a: &Path, b: &Path, ours: bool) {
    chmod(a, 0o755);
    let mut failed = Vec::new();
    for (name, check) in checks {
        std::fs::create_dir(a.join(name)).unwrap();
        let place = Place { a: a.join(name), b: b.join(name), ours };
        println!("{name}");
        if std::panic::catch_unwind(AssertUnwindSafe(|| check(&place))).is_err() {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

/// Runs `work` as another user. Linux keeps these ids for each thread, and so does this.
pub fn as_user<T: Send>(
    user: u32,
    group: u32,
    groups: &[u32],
    work: impl FnOnce() -> T + Send,
) -> T {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let joined = std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            rustix::thread::set_thread_groups(&groups).unwrap();
            rustix::thread::set_thread_gid(Gid::from_raw(group)).unwrap();
            rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
            work()
        });
        acting.join()
    });
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `work` as another user (who may be root) with these capabilities and no others.
pub fn with_capabilities<T: Send>(
    user: u32,
    group: u32,
    capabilities: CapabilitySet,
    work: impl FnOnce() -> T + Send,
) -> T {
    let joined = std::thread::scope(|scope| {
        let acting = scope.spawn(|| {
            rustix::thread::set_keep_capabilities(true).unwrap();
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_gid(Gid::from_raw(group)).unwrap();
            rustix::thread::set_thread_uid(Uid::from_raw(user)).unwrap();
            let sets = CapabilitySets {
                effective: capabilities,
                permitted: capabilities,
                inheritable: CapabilitySet::empty(),
            };
            rustix::thread::set_capabilities(None, sets).unwrap();
            work()
        });
        acting.join()
    });
    joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The error number of a failed call; panics where it did not fail.
#[track_caller]
pub fn errno<T>(result: Result<T, impl Into<io::Error>>) -> Errno {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => Errno::from_io_error(&error.into()).expect("an error of the system"),
    }
}

/// Opens with flags of `open(2)` beside those for reading and writing.
pub fn open(path: &Path, read: bool, write: bool, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(read).write(write).custom_flags(flags).open(path)
}

/// Opens with exactly these flags.
pub fn open_with(path: &Path, flags: rustix::fs::OFlags) -> rustix::io::Result<File> {
    rustix::fs::open(path, flags, rustix::fs::Mode::from_raw_mode(0o666)).map(File::from)
}

pub fn chmod(path: &Path, mode: u32) {
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode)).unwrap();
}

/// Type and permission bits.
pub fn mode(path: &Path) -> u32 {
    std::os::unix::fs::MetadataExt::mode(&std::fs::symlink_metadata(path).unwrap())
}

/// Names in a directory, sorted.
pub fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}
