//! Rights that no ids tell: capabilities of processes, of files, execution without reading. By the man
//! pages capabilities(7) and inode(7).

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use support::posix::{
    Place, as_user, chmod, errno, mode, open, open_with, run_checks, with_capabilities,
};

const ALICE: u32 = 10_001;
const BOB: u32 = 10_002;
const TEAM: u32 = 20_001;
const CLUB: u32 = 20_002;

/// Longer than what lies in an inode row.
const STRIPED: usize = 200_000;
const CAPABILITY: &str = "security.capability";
/// `cap_setgid,cap_setuid+ep`, as linux/capability.h lays it out: version 2 with the effective bit.
const VALUE: [u8; 20] = [1, 0, 0, 2, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn capabilities_of_processes_and_files_count_as_the_manual_says() {
    run_checks(&[
        ("execution_without_reading", execution_without_reading),
        ("capabilities_of_files_fall", capabilities_of_files_fall),
        ("capabilities_of_files_stay", capabilities_of_files_stay),
        ("capabilities_fall_beside_writers", capabilities_fall_beside_writers),
        ("override_of_rights", override_of_rights),
        ("owners_by_capability", owners_by_capability),
        ("set_ids_stay_by_capability", set_ids_stay_by_capability),
        ("root_without_capabilities", root_without_capabilities),
        ("user_name_spaces", user_name_spaces),
    ]);
}

fn owned(path: &Path, bits: u32, content: &[u8]) {
    fs::write(path, content).unwrap();
    chown(path, Some(ALICE), Some(TEAM)).unwrap();
    chmod(path, bits);
}

fn execution_without_reading(at: &Place) {
    let program = at.a.join("program");
    fs::copy("/bin/true", &program).unwrap();
    chown(&program, Some(ALICE), Some(TEAM)).unwrap();
    let run = |path: &Path, user, group| {
        let mut command = Command::new(path);
        command.uid(user).gid(group).status()
    };
    for bits in [0o711, 0o111, 0o755] {
        chmod(&program, bits);
        for path in [&at.a, &at.b] {
            let status = run(&path.join("program"), BOB, CLUB);
            assert!(status.unwrap().success(), "{bits:o} by others");
            assert!(run(&path.join("program"), ALICE, TEAM).unwrap().success(), "{bits:o}");
        }
    }
    chmod(&program, 0o710);
    assert!(run(&at.b.join("program"), BOB, TEAM).unwrap().success());
    assert_eq!(errno(run(&at.b.join("program"), BOB, CLUB)), Errno::ACCESS);
    // The right to execute a file is no right to read it.
    let read = as_user(BOB, TEAM, &[], || File::open(at.b.join("program")));
    assert_eq!(errno(read), Errno::ACCESS);
    // Nor does the right to read make a program.
    chmod(&program, 0o744);
    assert_eq!(errno(run(&program, BOB, CLUB)), Errno::ACCESS);
    // A script is read by its interpreter, which is another matter.
    let script = at.a.join("script");
    fs::write(&script, "#!/bin/sh\nexit 0\n").unwrap();
    chmod(&script, 0o711);
    assert!(!run(&script, BOB, CLUB).unwrap().success());
    chmod(&script, 0o755);
    assert!(run(&script, BOB, CLUB).unwrap().success());
}

fn set_capability(path: &Path) {
    rustix::fs::setxattr(path, CAPABILITY, VALUE.as_slice(), XattrFlags::empty()).unwrap();
}

/// Whether both mounts say that the file has capabilities.
fn is_capable(at: &Place, name: &str) -> bool {
    let has = |path: &Path| {
        let mut room = [0u8; 64];
        match rustix::fs::getxattr(path, CAPABILITY, &mut room) {
            Ok(len) => len == VALUE.len(),
            Err(error) => {
                assert_eq!(error, Errno::NODATA);
                false
            }
        }
    };
    let (one, other) = (has(&at.a.join(name)), has(&at.b.join(name)));
    assert_eq!(one, other, "the mounts differ");
    one
}

type Step<'a> = (&'static str, &'a (dyn Fn(&Path) + Sync));

fn writable(path: &Path) -> File {
    open(path, true, true, 0).unwrap()
}

fn appendable(path: &Path) -> File {
    open_with(path, OFlags::WRONLY | OFlags::APPEND).unwrap()
}

/// Everything that changes the bytes of a file.
const CHANGES: &[Step<'static>] = &[
    ("write", &|path| writable(path).write_all(b"x").unwrap()),
    ("pwrite", &|path| writable(path).write_all_at(&[7; 5000], 9000).unwrap()),
    ("append", &|path| appendable(path).write_all(b"x").unwrap()),
    ("direct", &|path| {
        // The file system may have no direct writes of this length; then there is nothing to see.
        let file = open_with(path, OFlags::WRONLY | OFlags::DIRECT);
        if file.is_err() || file.unwrap().write_at(&[1; 7], 0).is_err() {
            writable(path).write_all(b"x").unwrap();
        }
    }),
    ("truncate", &|path| rustix::fs::ftruncate(writable(path), 100).unwrap()),
    ("grow", &|path| rustix::fs::ftruncate(writable(path), 1 << 20).unwrap()),
    ("open to truncate", &|path| drop(open_with(path, OFlags::WRONLY | OFlags::TRUNC).unwrap())),
    ("allocate", &|path| {
        rustix::fs::fallocate(writable(path), FallocateFlags::empty(), 0, 300_000).unwrap();
    }),
    ("allocate within", &|path| {
        rustix::fs::fallocate(writable(path), FallocateFlags::KEEP_SIZE, 0, 300_000).unwrap();
    }),
    ("punch", &|path| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(writable(path), flags, 0, 4096).unwrap();
    }),
    ("zero", &|path| {
        rustix::fs::fallocate(writable(path), FallocateFlags::ZERO_RANGE, 10, 4096).unwrap();
    }),
    ("copy_file_range", &|path| {
        let from = File::open("/bin/true").unwrap();
        let copied = rustix::fs::copy_file_range(&from, None, writable(path), None, 4096);
        if copied.is_err() {
            // Not between these two file systems.
            writable(path).write_all(b"x").unwrap();
        }
    }),
    ("sendfile", &|path| {
        let from = File::open("/bin/true").unwrap();
        assert!(rustix::fs::sendfile(writable(path), &from, None, 4096).unwrap() > 0);
    }),
];

fn capabilities_of_files_fall(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    for len in [1000, STRIPED] {
        for (name, change) in CHANGES {
            // As a stranger who may write, as the owner, as root, and through the other mount.
            for (user, group, on) in
                [(BOB, CLUB, &at.a), (ALICE, TEAM, &at.a), (0, 0, &at.a), (BOB, CLUB, &at.b)]
            {
                owned(&path, 0o666, &vec![1; len]);
                set_capability(&path);
                assert!(is_capable(at, "file"));
                let target = on.join("file");
                as_user(user, group, &[], || change(&target));
                assert!(!is_capable(at, "file"), "{name} of {len} by {user}");
            }
        }
        // By its name, without opening it.
        owned(&path, 0o666, &vec![1; len]);
        set_capability(&path);
        let mut truncate = Command::new("perl");
        truncate.args(["-e", "truncate($ARGV[0], 100) or die"]).arg(at.b.join("file"));
        assert!(truncate.uid(BOB).gid(CLUB).status().unwrap().success());
        assert!(!is_capable(at, "file") && fs::metadata(&path).unwrap().len() == 100);
        // The new owner of a file does not get its capabilities.
        for (owner, group) in [(Some(BOB), None), (None, Some(CLUB)), (Some(ALICE), Some(TEAM))] {
            owned(&path, 0o666, &vec![1; len]);
            set_capability(&path);
            chown(at.b.join("file"), owner, group).unwrap();
            assert!(!is_capable(at, "file"));
        }
    }
    // Also where the writer keeps the file open all the time, and with every new setting.
    owned(&path, 0o666, &vec![1; STRIPED]);
    let file = as_user(BOB, CLUB, &[], || open(&path, false, true, 0).unwrap());
    for round in 0..4 {
        set_capability(&path);
        as_user(BOB, CLUB, &[], || file.write_all_at(b"again", round * 70_000).unwrap());
        assert!(!is_capable(at, "file"), "{round}");
    }
}

fn capabilities_of_files_stay(at: &Place) {
    let path = at.a.join("file");
    owned(&path, 0o666, &vec![1; STRIPED]);
    set_capability(&path);
    drop(fs::read(at.b.join("file")).unwrap());
    chmod(&path, 0o777);
    fs::hard_link(&path, at.a.join("link")).unwrap();
    rustix::fs::setxattr(&path, "user.other", b"value", XattrFlags::empty()).unwrap();
    rustix::fs::removexattr(&path, "user.other").unwrap();
    fs::rename(at.b.join("link"), at.b.join("renamed")).unwrap();
    let now = std::time::SystemTime::now();
    writable(&path).set_modified(now).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert!(is_capable(at, "file") && is_capable(at, "renamed"));
    // Only a user with the capability to do so may set them, or remove them on purpose.
    let set =
        |path: &Path| rustix::fs::setxattr(path, CAPABILITY, VALUE.as_slice(), XattrFlags::empty());
    let other = at.b.join("file");
    for (user, group) in [(ALICE, TEAM), (BOB, CLUB)] {
        assert_eq!(errno(as_user(user, group, &[], || set(&other))), Errno::PERM);
        let removed = as_user(user, group, &[], || rustix::fs::removexattr(&other, CAPABILITY));
        assert_eq!(errno(removed), Errno::PERM);
    }
    with_capabilities(BOB, CLUB, CapabilitySet::SETFCAP, || {
        rustix::fs::removexattr(&other, CAPABILITY).unwrap();
        set(&other).unwrap();
    });
    rustix::fs::removexattr(&path, CAPABILITY).unwrap();
    assert!(!is_capable(at, "file"));
}

/// Two mounts write to one file; no lease tells either of what the other sets.
fn capabilities_fall_beside_writers(at: &Place) {
    let path = at.a.join("file");
    owned(&path, 0o666, &vec![1; STRIPED]);
    let (one, other) = as_user(BOB, CLUB, &[], || (writable(&path), writable(&at.b.join("file"))));
    for round in 0..6 {
        one.write_all_at(b"one", 10).unwrap();
        other.write_all_at(b"other", 100_000).unwrap();
        let (writer, setter) =
            if round % 2 == 0 { (&other, &path) } else { (&one, &at.b.join("file")) };
        set_capability(setter);
        as_user(BOB, CLUB, &[], || writer.write_all_at(b"mine", 50_000).unwrap());
        assert!(!is_capable(at, "file"), "{round}");
        chmod(setter, 0o6777);
        as_user(BOB, CLUB, &[], || writer.write_all_at(b"mine", 60_000).unwrap());
        assert_eq!(mode(&path), 0o100_777);
        assert_eq!(mode(&at.b.join("file")), 0o100_777);
    }
}

fn override_of_rights(at: &Place) {
    let (path, other) = (at.a.join("file"), at.b.join("file"));
    owned(&path, 0o600, b"secret");
    let directory = at.a.join("closed");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("inside"), "deep").unwrap();
    chmod(&directory, 0o700);
    let inside = at.b.join("closed/inside");
    let none = CapabilitySet::empty();
    assert_eq!(errno(with_capabilities(BOB, CLUB, none, || fs::read(&other))), Errno::ACCESS);
    for (search, _) in [(CapabilitySet::DAC_READ_SEARCH, ()), (CapabilitySet::DAC_OVERRIDE, ())] {
        with_capabilities(BOB, CLUB, search, || {
            assert_eq!(fs::read(&other).unwrap(), b"secret");
            assert_eq!(fs::read(&inside).unwrap(), b"deep");
            assert_eq!(fs::read_dir(at.b.join("closed")).unwrap().count(), 1);
        });
    }
    let search = CapabilitySet::DAC_READ_SEARCH;
    assert_eq!(
        errno(with_capabilities(BOB, CLUB, search, || open(&other, false, true, 0))),
        Errno::ACCESS
    );
    with_capabilities(BOB, CLUB, CapabilitySet::DAC_OVERRIDE, || {
        appendable(&other).write_all(b"!").unwrap();
        drop(open_with(&other, OFlags::WRONLY | OFlags::TRUNC).unwrap());
        let closed = at.b.join("closed");
        fs::write(closed.join("made"), "new").unwrap();
        fs::create_dir(closed.join("directory")).unwrap();
        fs::hard_link(closed.join("made"), closed.join("link")).unwrap();
        std::os::unix::fs::symlink("made", closed.join("symbolic")).unwrap();
        fs::rename(closed.join("link"), closed.join("renamed")).unwrap();
        rustix::fs::setxattr(closed.join("made"), "user.x", b"1", XattrFlags::empty()).unwrap();
        fs::remove_file(closed.join("renamed")).unwrap();
        fs::remove_dir(closed.join("directory")).unwrap();
        // It overrides rights, not ownership.
        assert_eq!(errno(rustix::fs::chmod(&other, Mode::from_raw_mode(0o644))), Errno::PERM);
    });
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(fs::metadata(directory.join("made")).unwrap().uid(), BOB);
}

fn owners_by_capability(at: &Place) {
    let (path, other) = (at.a.join("file"), at.b.join("file"));
    owned(&path, 0o600, b"content");
    with_capabilities(BOB, CLUB, CapabilitySet::CHOWN, || {
        chown(&other, Some(BOB), Some(CLUB)).unwrap();
        assert_eq!(
            errno(rustix::fs::setxattr(&at.a, "user.x", b"1", XattrFlags::empty())),
            Errno::ACCESS
        );
    });
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.uid(), found.gid()), (BOB, CLUB));
    owned(&path, 0o600, b"content");
    let sticky = at.a.join("sticky");
    fs::create_dir(&sticky).unwrap();
    chmod(&sticky, 0o1777);
    fs::write(sticky.join("file"), "root's").unwrap();
    with_capabilities(BOB, CLUB, CapabilitySet::FOWNER, || {
        fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
        File::open(&other).unwrap().set_modified(long_ago).unwrap();
        fs::remove_file(at.b.join("sticky/file")).unwrap();
        assert_eq!(errno(chown(&other, Some(BOB), None)), Errno::PERM);
    });
    assert_eq!((mode(&path), fs::metadata(&path).unwrap().mtime()), (0o100_644, 86_400));
    chmod(&at.a, 0o777);
    let device = at.b.join("device");
    let make = || {
        let (kind, bits) = (FileType::CharacterDevice, Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(CWD, &device, kind, bits, rustix::fs::makedev(1, 3))
    };
    assert_eq!(errno(as_user(BOB, CLUB, &[], make)), Errno::PERM);
    with_capabilities(BOB, CLUB, CapabilitySet::MKNOD, make).unwrap();
    assert_eq!(
        fs::symlink_metadata(at.a.join("device")).unwrap().rdev(),
        rustix::fs::makedev(1, 3)
    );
    // Administrators see attributes for administrators, whatever their ids.
    let trusted = "trusted.mark";
    rustix::fs::setxattr(&path, trusted, b"1", XattrFlags::empty()).unwrap();
    let sees = || {
        let mut room = vec![0u8; 4096];
        let len = rustix::fs::listxattr(&other, &mut room).unwrap();
        room[..len].split(|byte| *byte == 0).any(|name| name == trusted.as_bytes())
    };
    assert!(sees() && !as_user(ALICE, TEAM, &[], sees));
    assert!(with_capabilities(BOB, CLUB, CapabilitySet::SYS_ADMIN, sees));
    assert!(!with_capabilities(0, 0, CapabilitySet::DAC_OVERRIDE, sees));
    with_capabilities(BOB, CLUB, CapabilitySet::SYS_ADMIN, || {
        rustix::fs::setxattr(&other, trusted, b"2", XattrFlags::empty()).unwrap();
        let mut room = [0u8; 8];
        assert_eq!(rustix::fs::getxattr(&other, trusted, &mut room).unwrap(), 1);
        rustix::fs::removexattr(&other, trusted).unwrap();
    });
}

fn set_ids_stay_by_capability(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    let after = |len: usize, change: &(dyn Fn(&Path) + Sync), run: &dyn Fn(&(dyn Fn() + Sync))| {
        owned(&path, 0o666, &vec![1; len]);
        chmod(&path, 0o6777);
        run(&|| change(&path));
        (mode(&path), mode(&at.b.join("file")))
    };
    let keeps = |work: &(dyn Fn() + Sync)| {
        with_capabilities(BOB, CLUB, CapabilitySet::FSETID, work);
    };
    let root_without = |work: &(dyn Fn() + Sync)| {
        with_capabilities(0, 0, CapabilitySet::DAC_OVERRIDE, work);
    };
    for len in [1000, STRIPED] {
        for (name, change) in CHANGES {
            assert_eq!(after(len, change, &keeps), (0o106_777, 0o106_777), "{name} of {len}");
            let gone = after(len, change, &root_without);
            assert_eq!(gone, (0o100_777, 0o100_777), "{name} of {len} by root without it");
        }
    }
    // Setgid for a group that is not the caller's own.
    let set = |path: &Path| rustix::fs::chmod(path, Mode::from_raw_mode(0o2755));
    as_user(ALICE, CLUB, &[], || set(&path)).unwrap();
    assert_eq!(mode(&path), 0o100_755);
    with_capabilities(ALICE, CLUB, CapabilitySet::FSETID, || set(&path)).unwrap();
    assert_eq!(mode(&at.b.join("file")), 0o102_755);
    let shared = at.a.join("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, None, Some(TEAM)).unwrap();
    chmod(&shared, 0o2777);
    let make = |name: &str| {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        rustix::fs::open(shared.join(name), flags, Mode::from_raw_mode(0o2755)).unwrap();
    };
    as_user(BOB, CLUB, &[], || make("plain"));
    with_capabilities(BOB, CLUB, CapabilitySet::FSETID, || make("kept"));
    assert_eq!(mode(&shared.join("plain")), 0o100_755);
    assert_eq!(mode(&shared.join("kept")), 0o102_755);
}

fn root_without_capabilities(at: &Place) {
    let path = at.a.join("file");
    owned(&path, 0, b"content");
    let none = CapabilitySet::empty();
    with_capabilities(0, 0, none, || {
        assert_eq!(errno(fs::read(&path)), Errno::ACCESS);
        assert_eq!(errno(open(&path, false, true, 0)), Errno::ACCESS);
        assert_eq!(errno(chown(&path, Some(0), None)), Errno::PERM);
        assert_eq!(errno(rustix::fs::chmod(&path, Mode::from_raw_mode(0o777))), Errno::PERM);
    });
    chmod(&path, 0o4777);
    with_capabilities(0, 0, none, || writable(&path).write_all(b"x").unwrap());
    assert_eq!(mode(&path), 0o100_777);
}

/// Root of a user name space is the user who made it.
fn user_name_spaces(at: &Place) {
    chmod(&at.a, 0o777);
    owned(&at.a.join("private"), 0o600, b"secret");
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-r", "sh", "-c", script]).current_dir(&at.b).uid(BOB).gid(CLUB);
        command.output().expect("unshare of util-linux runs")
    };
    if !inside("true").status.success() {
        println!("this kernel gives plain users no name spaces of their own");
        return;
    }
    assert!(inside("echo y > made && test $(stat -c %u made) = 0").status.success());
    let made = fs::metadata(at.a.join("made")).unwrap();
    assert_eq!((made.uid(), made.gid()), (BOB, CLUB));
    assert!(!inside("cat private").status.success());
    assert!(!inside("chown 0 private").status.success());
    // Its capabilities are for what is its own.
    chmod(&at.a.join("private"), 0o6777);
    assert!(inside("echo x >> private && fallocate -l 9000 private").status.success());
    assert_eq!(mode(&at.a.join("private")), 0o100_777);
}
