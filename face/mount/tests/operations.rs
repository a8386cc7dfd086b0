//! Ordinary programs' operations on a real mount of a file system in memory.

mod memory_fs;
mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::time::Duration;

use memory_fs::MemoryFs;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, XattrFlags};
use support::{Served, usable};

fn memory() -> Served<MemoryFs> {
    Served::start(|pool| MemoryFs::new(pool, Duration::from_secs(3600), false))
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = ropewalk_base::random::Random::from_seed(seed);
    let words = std::iter::repeat_with(|| random.next_u64().to_ne_bytes());
    let mut bytes: Vec<u8> = words.take(len.div_ceil(8)).flatten().collect();
    bytes.truncate(len);
    bytes
}

#[test]
fn files_are_created_written_read_renamed_and_removed() {
    if !usable() {
        return;
    }
    let served = memory();
    let at = |name: &str| served.path().join(name);
    let bytes = pattern(5_000_001, 1);
    fs::write(at("a"), &bytes).unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), bytes);
    assert_eq!(fs::metadata(at("a")).unwrap().len(), 5_000_001);
    let mut file = File::options().read(true).write(true).open(at("a")).unwrap();
    file.write_at(b"middle", 3_000_000).unwrap();
    file.seek(SeekFrom::Start(2_999_998)).unwrap();
    let mut window = [0; 10];
    file.read_exact(&mut window).unwrap();
    assert_eq!(&window[2..8], b"middle");
    assert_eq!(window[..2], bytes[2_999_998..3_000_000]);
    let mut appended = File::options().append(true).open(at("a")).unwrap();
    appended.write_all(b"end").unwrap();
    assert_eq!(appended.metadata().unwrap().len(), 5_000_004);
    file.set_len(100).unwrap();
    assert_eq!(fs::read(at("a")).unwrap(), bytes[..100]);
    file.set_len(200).unwrap();
    assert_eq!(fs::read(at("a")).unwrap()[100..], [0; 100]);
    fs::create_dir(at("d")).unwrap();
    assert_eq!(fs::metadata(served.path()).unwrap().nlink(), 3);
    fs::rename(at("a"), at("d/b")).unwrap();
    assert_eq!(fs::metadata(at("a")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(fs::remove_dir(at("d")).unwrap_err().kind(), std::io::ErrorKind::DirectoryNotEmpty);
    // Truncation in the open itself.
    drop(File::create(at("d/b")).unwrap());
    assert_eq!(fs::metadata(at("d/b")).unwrap().len(), 0);
    fs::remove_file(at("d/b")).unwrap();
    fs::remove_dir(at("d")).unwrap();
    drop((file, appended));
    assert_eq!(fs::read_dir(served.path()).unwrap().count(), 0);
    support::wait_until("all inodes are forgotten", || served.run(MemoryFs::node_count) == 1);
    let counters = served.stop();
    assert_eq!((counters.malformed, counters.refused), (0, 0), "{counters:?}");
}

#[test]
fn a_removed_file_lives_while_it_is_open() {
    if !usable() {
        return;
    }
    let served = memory();
    let path = served.path().join("gone");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(file);
    support::wait_until("the inode is gone", || served.run(MemoryFs::node_count) == 1);
}

#[test]
fn ten_thousand_names_are_listed_once_each() {
    if !usable() {
        return;
    }
    let served = memory();
    let names: BTreeSet<String> = (0..10_000).map(|n| format!("file-{n:05}")).collect();
    for name in &names {
        File::create(served.path().join(name)).unwrap();
    }
    let list = || -> Vec<String> {
        let entries = fs::read_dir(served.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let seen = list();
    assert_eq!(seen.len(), 10_000);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), names);
    // Removing while listing loses no other name.
    let mut left = names.clone();
    for (count, entry) in fs::read_dir(served.path()).unwrap().enumerate() {
        let entry = entry.unwrap();
        assert!(left.remove(&entry.file_name().into_string().unwrap()));
        if count % 2 == 0 {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    assert!(left.is_empty());
    assert_eq!(list().len(), 5_000);
}

#[test]
fn links_attributes_and_permissions() {
    if !usable() {
        return;
    }
    let served = memory();
    let at = |name: &str| served.path().join(name);
    fs::write(at("file"), b"x").unwrap();
    fs::hard_link(at("file"), at("second")).unwrap();
    let (first, second) = (fs::metadata(at("file")).unwrap(), fs::metadata(at("second")).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap().to_str(), Some("file"));
    assert_eq!(fs::read(at("link")).unwrap(), b"x");
    fs::set_permissions(at("file"), fs::Permissions::from_mode(0o4750)).unwrap();
    assert_eq!(fs::metadata(at("second")).unwrap().mode() & 0o7777, 0o4750);
    std::os::unix::fs::chown(at("file"), Some(1234), Some(567)).unwrap();
    let owned = fs::metadata(at("file")).unwrap();
    assert_eq!((owned.uid(), owned.gid()), (1234, 567));
    let times = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH + Duration::new(77, 123));
    File::options().write(true).open(at("file")).unwrap().set_times(times).unwrap();
    let file = fs::metadata(at("file")).unwrap();
    assert_eq!((file.mtime(), file.mtime_nsec()), (77, 123));
    assert!(file.created().unwrap() > std::time::UNIX_EPOCH);
    let other = std::ffi::CString::new(at("pipe").to_str().unwrap()).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &*other, rustix::fs::FileType::Fifo, Mode::RWXU, 0)
        .unwrap();
    assert_eq!(fs::metadata(at("pipe")).unwrap().mode() & libc::S_IFMT, libc::S_IFIFO);
    let long = "n".repeat(256);
    assert_eq!(File::create(at(&long)).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn extended_attributes() {
    if !usable() {
        return;
    }
    let served = memory();
    let path = served.path().join("file");
    fs::write(&path, b"").unwrap();
    rustix::fs::setxattr(&path, "user.one", b"first", XattrFlags::CREATE).unwrap();
    let again = rustix::fs::setxattr(&path, "user.one", b"", XattrFlags::CREATE);
    assert_eq!(again, Err(rustix::io::Errno::EXIST));
    let long = pattern(60_000, 3);
    rustix::fs::setxattr(&path, "user.two", &long, XattrFlags::empty()).unwrap();
    let mut value = vec![0; 65536];
    let len = rustix::fs::getxattr(&path, "user.two", &mut value[..]).unwrap();
    assert_eq!(value[..len], long);
    let mut small = [0; 2];
    let short = rustix::fs::getxattr(&path, "user.one", &mut small[..]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
    let len = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
    assert_eq!(&value[..len], b"user.one\0user.two\0");
    rustix::fs::removexattr(&path, "user.one").unwrap();
    let gone = rustix::fs::getxattr(&path, "user.one", &mut small[..]);
    assert_eq!(gone, Err(rustix::io::Errno::NODATA));
}

#[test]
fn memory_maps_read_and_write_files() {
    if !usable() {
        return;
    }
    for direct in [false, true] {
        let served =
            Served::start(move |pool| MemoryFs::new(pool, Duration::from_secs(60), direct));
        let path = served.path().join("mapped");
        fs::write(&path, pattern(3 << 20, 9)).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: a fresh shared mapping of a file that nobody shortens, unmapped below.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                3 << 20,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &file,
                0,
            )
            .unwrap()
        };
        // SAFETY: the mapping has that many bytes and no other user in this process.
        let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), 3 << 20) };
        assert!(bytes[..] == pattern(3 << 20, 9)[..], "direct: {direct}");
        bytes[1_500_000..1_500_005].copy_from_slice(b"hello");
        // SAFETY: `bytes` is not used after this.
        unsafe {
            rustix::mm::msync(map, 3 << 20, rustix::mm::MsyncFlags::SYNC).unwrap();
            rustix::mm::munmap(map, 3 << 20).unwrap();
        }
        drop(file);
        let mut window = [0; 5];
        File::open(&path).unwrap().read_exact_at(&mut window, 1_500_000).unwrap();
        assert_eq!(&window, b"hello", "direct: {direct}");
        served.stop();
    }
}

#[test]
fn direct_io_is_whole_and_aligned() {
    if !usable() {
        return;
    }
    let served = memory();
    let path = served.path().join("direct");
    let pool = ropewalk_base::pool::Pool::with_budget(64 << 20);
    let mut buffer = pool.take(8 << 20).unwrap();
    let bytes = pattern(8 << 20, 4);
    buffer.copy_from_slice(&bytes);
    let mut options = File::options();
    options.read(true).write(true).create(true).custom_flags(libc::O_DIRECT);
    let file = options.open(&path).unwrap();
    file.write_all_at(&buffer, 0).unwrap();
    buffer.fill(0);
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer[..] == bytes[..]);
    assert_eq!(file.read_at(&mut buffer[..4096], 8 << 20).unwrap(), 0);
    drop(file);
    assert!(fs::read(&path).unwrap() == bytes);
    let counters = served.stop();
    // 8 MiB each way in requests of 1 MiB, then once more through the page cache, by the kernel's
    // read-ahead of 128 KiB. Without the large requests that were agreed on it were 192.
    assert!(counters.requests < 110, "{counters:?}");
}

#[test]
fn holes_copies_nameless_files_and_exchange() {
    if !usable() {
        return;
    }
    let served = memory();
    let at = |name: &str| served.path().join(name);
    let file = File::create_new(at("sparse")).unwrap();
    file.write_all_at(&[7; 4096], 8 << 20).unwrap();
    let seek = |whence| rustix::fs::seek(&file, whence).unwrap();
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), 8 << 20);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(8 << 20)), (8 << 20) + 4096);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8 << 20, 2048).unwrap();
    let bytes = fs::read(at("sparse")).unwrap();
    assert_eq!(bytes.len(), (8 << 20) + 4096);
    assert!(bytes[(8 << 20)..(8 << 20) + 2048].iter().all(|byte| *byte == 0));
    assert_eq!(bytes[(8 << 20) + 2048..], [7; 2048]);
    fs::write(at("from"), b"to be copied").unwrap();
    let (from, to) = (File::open(at("from")).unwrap(), File::create(at("to")).unwrap());
    let copied = rustix::fs::copy_file_range(&from, Some(&mut 3), &to, None, 100).unwrap();
    assert_eq!(copied, 9);
    assert_eq!(fs::read(at("to")).unwrap(), b"be copied");
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let nameless = rustix::fs::open(served.path(), flags, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&nameless, b"named later").unwrap();
    let proc = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    let cwd = rustix::fs::CWD;
    rustix::fs::linkat(cwd, proc, cwd, at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::read(at("named")).unwrap(), b"named later");
    rustix::fs::renameat_with(cwd, at("named"), cwd, at("from"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at("named")).unwrap(), b"to be copied");
    assert_eq!(fs::read(at("from")).unwrap(), b"named later");
    let taken =
        rustix::fs::renameat_with(cwd, at("named"), cwd, at("from"), RenameFlags::NOREPLACE);
    assert_eq!(taken, Err(rustix::io::Errno::EXIST));
    let space = rustix::fs::statvfs(served.path()).unwrap();
    assert!(space.f_namemax == 255 && space.f_bavail > 0);
}

#[test]
fn locks_hold_between_open_files() {
    if !usable() {
        return;
    }
    let served = memory();
    let path = served.path().join("locked");
    let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let (first, second) = (open().unwrap(), open().unwrap());
    first.lock().unwrap();
    assert!(matches!(second.try_lock(), Err(fs::TryLockError::WouldBlock)));
    let waiter = std::thread::spawn(move || {
        second.lock().unwrap();
        second
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished());
    drop(first);
    let second = waiter.join().unwrap();
    let third = open().unwrap();
    assert!(third.try_lock().is_err());
    second.unlock().unwrap();
    third.try_lock().unwrap();
    // Byte ranges, owned by open files rather than by this process.
    assert_eq!(range_lock(&second, libc::F_WRLCK, 0, 10), 0);
    assert_eq!(range_lock(&third, libc::F_WRLCK, 10, 10), 0);
    assert_eq!(range_lock(&third, libc::F_RDLCK, 5, 1), libc::EAGAIN);
    assert_eq!(range_lock(&second, libc::F_UNLCK, 5, 1), 0);
    assert_eq!(range_lock(&third, libc::F_RDLCK, 5, 1), 0);
    assert_eq!(range_lock(&third, libc::F_RDLCK, 4, 1), libc::EAGAIN);
}

fn range_lock(file: &File, kind: i32, start: i64, len: i64) -> i32 {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    // SAFETY: the command reads a `flock` through the pointer, which lives for the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if result == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) }
}

#[test]
fn many_threads_at_once() {
    if !usable() {
        return;
    }
    let served = memory();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let path = served.path();
            scope.spawn(move || {
                let folder = path.join(format!("thread-{thread}"));
                fs::create_dir(&folder).unwrap();
                for number in 0..50 {
                    let file = folder.join(number.to_string());
                    let bytes = pattern(10_000 * number, number as u64);
                    fs::write(&file, &bytes).unwrap();
                    assert!(fs::read(&file).unwrap() == bytes);
                    fs::rename(&file, folder.join(format!("{number}-moved"))).unwrap();
                }
                fs::remove_dir_all(&folder).unwrap();
            });
        }
    });
    support::wait_until("all inodes are forgotten", || served.run(MemoryFs::node_count) == 1);
    served.stop();
}

#[test]
fn what_others_change_is_seen_after_its_invalidation() {
    if !usable() {
        return;
    }
    let served = memory();
    let at = |name: &str| served.path().join(name);
    fs::write(at("file"), b"old").unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), b"old");
    let node = served.run(|filesystem| filesystem.change_behind(b"file", b"newer"));
    // Reading made the kernel doubt the time of access; with that it asks for all attributes, and
    // pages end when it hears of another time of modification.
    support::wait_until("pages end with their time", || fs::read(at("file")).unwrap() == b"newer");
    served.run(|filesystem| filesystem.change_behind(b"file", b"longer still"));
    let notifier = served.notifier.as_ref().unwrap();
    drop(notifier.invalidate_inode(node, 0, 0).unwrap());
    support::wait_until("pages are dropped", || fs::read(at("file")).unwrap() == b"longer still");
    served.run(|filesystem| filesystem.change_behind(b"file", b"attributes alone"));
    drop(notifier.invalidate_inode(node, -1, 0).unwrap());
    support::wait_until("the size is asked", || fs::metadata(at("file")).unwrap().len() == 16);
    served.run(|filesystem| filesystem.remove_behind(b"file"));
    assert!(fs::metadata(at("file")).is_ok());
    drop(notifier.expire_entry(1, b"file").unwrap());
    support::wait_until("the name expires", || fs::metadata(at("file")).is_err());
    fs::write(at("second"), b"x").unwrap();
    let child = served.run(|filesystem| filesystem.remove_behind(b"second"));
    drop(notifier.delete(1, child, b"second").unwrap());
    support::wait_until("the name is deleted", || fs::metadata(at("second")).is_err());
    fs::write(at("third"), b"x").unwrap();
    served.run(|filesystem| filesystem.remove_behind(b"third"));
    drop(notifier.invalidate_entry(1, b"third").unwrap());
    support::wait_until("the entry is dropped", || fs::metadata(at("third")).is_err());
    // Nothing to forget is no error.
    drop(notifier.invalidate_entry(1, b"never there").unwrap());
}
