//! Permissions through a mount, times, attributes, locks and special files, by POSIX and the man pages. Other
//! users are threads of this process with ids of their own.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, chown, symlink};
use std::path::Path;

use rustix::fs::{
    Access, AtFlags, CWD, FileType, FlockOperation, OFlags, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType};
use support::posix::{Place, as_user, chmod, errno, mode, names, open, open_with, run_checks};

const ALICE: u32 = 10_001;
const BOB: u32 = 10_002;
const TEAM: u32 = 20_001;
const CLUB: u32 = 20_002;

#[test]
fn rights_times_attributes_and_locks_are_as_the_standard_says() {
    run_checks(&[
        ("classes_of_rights", classes_of_rights),
        ("rights_on_the_way", rights_on_the_way),
        ("supplementary_groups", supplementary_groups),
        ("sticky_directories", sticky_directories),
        ("who_may_change_modes", who_may_change_modes),
        ("who_may_change_owners", who_may_change_owners),
        ("privileges_fall", privileges_fall),
        ("groups_of_new_files", groups_of_new_files),
        ("masks", masks),
        ("times_to_the_nanosecond", times_to_the_nanosecond),
        ("who_may_set_times", who_may_set_times),
        ("times_follow_changes", times_follow_changes),
        ("attributes", attributes),
        ("limits_of_attributes", limits_of_attributes),
        ("spaces_of_attributes", spaces_of_attributes),
        ("capacity", capacity),
        ("devices", devices),
        ("fifos_and_sockets", fifos_and_sockets),
        ("whole_file_locks", whole_file_locks),
        ("record_locks", record_locks),
    ]);
}

fn owned(path: &Path, bits: u32, user: u32, group: u32) {
    fs::write(path, "content").unwrap();
    chown(path, Some(user), Some(group)).unwrap();
    chmod(path, bits);
}

fn classes_of_rights(at: &Place) {
    chmod(&at.a, 0o777);
    let (path, other) = (at.a.join("file"), at.b.join("file"));
    owned(&path, 0o640, ALICE, TEAM);
    let readable = |user, group| as_user(user, group, &[], || File::open(&other).is_ok());
    let writable = |user, group| as_user(user, group, &[], || open(&other, false, true, 0).is_ok());
    assert!(readable(ALICE, CLUB) && writable(ALICE, CLUB));
    assert!(readable(BOB, TEAM) && !writable(BOB, TEAM));
    assert!(!readable(BOB, CLUB) && !writable(BOB, CLUB));
    // The first class that fits decides, also where the next would allow more.
    chmod(&path, 0o067);
    assert!(!readable(ALICE, TEAM) && readable(BOB, TEAM) && writable(BOB, CLUB));
    // An open file stays open.
    chmod(&path, 0o600);
    let file = as_user(ALICE, TEAM, &[], || open(&other, true, true, 0).unwrap());
    chmod(&path, 0);
    as_user(ALICE, TEAM, &[], || {
        file.write_all_at(b"still", 0).unwrap();
        assert_eq!(errno(File::open(&other)), Errno::ACCESS);
        let asked = rustix::fs::accessat(CWD, &other, Access::READ_OK, AtFlags::empty());
        assert_eq!(errno(asked), Errno::ACCESS);
    });
    // The superuser reads and writes anything, and executes only what somebody may.
    assert_eq!(fs::read(&other).unwrap(), b"stillnt");
    let execute = || rustix::fs::accessat(CWD, &other, Access::EXEC_OK, AtFlags::empty());
    assert_eq!(errno(execute()), Errno::ACCESS);
    chmod(&path, 0o001);
    execute().unwrap();
    // A program runs from the mount, and with the rights of its file.
    let program = at.a.join("program");
    fs::copy("/bin/true", &program).unwrap();
    chmod(&program, 0o700);
    assert!(std::process::Command::new(at.b.join("program")).status().unwrap().success());
    let refused = as_user(ALICE, TEAM, &[], || {
        rustix::fs::accessat(CWD, &program, Access::EXEC_OK, AtFlags::EACCESS)
    });
    assert_eq!(errno(refused), Errno::ACCESS);
}

fn rights_on_the_way(at: &Place) {
    let directory = at.a.join("directory");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), "content").unwrap();
    chmod(&directory.join("file"), 0o666);
    let as_alice = |work: &(dyn Fn(&Path) + Sync)| {
        for path in [&at.a, &at.b] {
            as_user(ALICE, TEAM, &[], || work(&path.join("directory")));
        }
    };
    // Search without reading: names that are known can be used, but not found.
    chmod(&directory, 0o711);
    as_alice(&|path| {
        assert_eq!(fs::read(path.join("file")).unwrap(), b"content");
        assert_eq!(errno(fs::read_dir(path)), Errno::ACCESS);
        assert_eq!(errno(File::create(path.join("new"))), Errno::ACCESS);
    });
    // Reading without search: names are found, but not usable.
    chmod(&directory, 0o744);
    as_alice(&|path| {
        assert_eq!(names(path), ["file"]);
        assert_eq!(errno(fs::metadata(path.join("file"))), Errno::ACCESS);
        assert_eq!(errno(fs::metadata(path.join("absent"))), Errno::ACCESS);
    });
    chmod(&directory, 0o755);
    as_alice(&|path| {
        let refused = [
            errno(fs::remove_file(path.join("file"))),
            errno(fs::create_dir(path.join("new"))),
            errno(symlink("x", path.join("new"))),
            errno(fs::hard_link(path.join("file"), path.join("new"))),
            errno(fs::rename(path.join("file"), path.join("new"))),
            errno(rustix::fs::mknodat(CWD, path.join("new"), FileType::Fifo, 0o600.into(), 0)),
        ];
        assert_eq!(refused, [Errno::ACCESS; 6]);
    });
    // A directory that is moved gets another `..`: that is a change of it.
    chmod(&at.a, 0o777);
    let (foreign, own) = (at.a.join("foreign"), at.a.join("own"));
    fs::create_dir(&foreign).unwrap();
    fs::create_dir(&own).unwrap();
    chown(&own, Some(ALICE), None).unwrap();
    as_user(ALICE, TEAM, &[], || {
        assert_eq!(errno(fs::rename(&foreign, own.join("moved"))), Errno::ACCESS);
        fs::rename(&foreign, at.a.join("renamed")).unwrap();
    });
}

fn supplementary_groups(at: &Place) {
    chmod(&at.a, 0o777);
    let (path, directory) = (at.b.join("file"), at.a.join("directory"));
    owned(&at.a.join("file"), 0o060, BOB, CLUB);
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(BOB), Some(CLUB)).unwrap();
    chmod(&directory, 0o070);
    for groups in [&[CLUB][..], &[1, 2, 3, CLUB, 4]] {
        as_user(ALICE, TEAM, groups, || {
            assert_eq!(fs::read(&path).unwrap(), b"content");
            let name = at.b.join("directory").join(groups.len().to_string());
            fs::write(&name, "x").unwrap();
            fs::rename(&name, name.with_extension("renamed")).unwrap();
        });
    }
    as_user(ALICE, TEAM, &[TEAM, 5], || {
        assert_eq!(errno(File::open(&path)), Errno::ACCESS);
        assert_eq!(errno(File::create(directory.join("x"))), Errno::ACCESS);
    });
    // More groups than fit into one line of anything.
    let many: Vec<u32> = (30_000..30_500).chain([CLUB]).collect();
    as_user(ALICE, TEAM, &many, || assert_eq!(fs::read(&path).unwrap(), b"content"));
}

fn sticky_directories(at: &Place) {
    let shared = at.a.join("shared");
    fs::create_dir(&shared).unwrap();
    chmod(&shared, 0o1777);
    for name in ["one", "two"] {
        owned(&shared.join(name), 0o666, ALICE, TEAM);
    }
    fs::create_dir(shared.join("directory")).unwrap();
    chown(shared.join("directory"), Some(ALICE), None).unwrap();
    let path = at.b.join("shared");
    as_user(BOB, TEAM, &[], || {
        fs::write(path.join("mine"), "x").unwrap();
        assert_eq!(errno(fs::remove_file(path.join("one"))), Errno::PERM);
        assert_eq!(errno(fs::remove_dir(path.join("directory"))), Errno::PERM);
        assert_eq!(errno(fs::rename(path.join("one"), path.join("x"))), Errno::PERM);
        assert_eq!(errno(fs::rename(path.join("mine"), path.join("one"))), Errno::PERM);
        fs::rename(path.join("mine"), path.join("renamed")).unwrap();
        fs::remove_file(path.join("renamed")).unwrap();
    });
    as_user(ALICE, TEAM, &[], || fs::remove_file(path.join("one")).unwrap());
    // The owner of the directory may, too.
    chown(&shared, Some(BOB), None).unwrap();
    as_user(BOB, TEAM, &[], || {
        fs::remove_file(path.join("two")).unwrap();
        fs::remove_dir(path.join("directory")).unwrap();
    });
}

fn who_may_change_modes(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    owned(&path, 0o644, ALICE, TEAM);
    let set = |bits: u32| rustix::fs::chmod(&path, bits.into());
    assert_eq!(errno(as_user(BOB, TEAM, &[], || set(0o777))), Errno::PERM);
    as_user(ALICE, CLUB, &[TEAM], || set(0o7751).unwrap());
    assert_eq!(mode(&at.b.join("file")), 0o107_751);
    // Setgid is not for owners outside the group.
    as_user(ALICE, CLUB, &[], || set(0o6755).unwrap());
    assert_eq!(mode(&at.b.join("file")), 0o104_755);
    set(0o6755).unwrap();
    assert_eq!(mode(&at.b.join("file")), 0o106_755);
    symlink("file", at.a.join("link")).unwrap();
    rustix::fs::chmod(at.b.join("link"), 0o600.into()).unwrap();
    assert_eq!(mode(&path), 0o100_600);
}

fn who_may_change_owners(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    owned(&path, 0o644, ALICE, TEAM);
    as_user(ALICE, TEAM, &[CLUB], || {
        assert_eq!(errno(chown(&path, Some(BOB), None)), Errno::PERM);
        assert_eq!(errno(chown(&path, None, Some(30_000))), Errno::PERM);
        chown(&path, Some(ALICE), Some(CLUB)).unwrap();
    });
    as_user(BOB, CLUB, &[], || assert_eq!(errno(chown(&path, None, Some(CLUB))), Errno::PERM));
    let found = fs::metadata(at.b.join("file")).unwrap();
    assert_eq!((found.uid(), found.gid()), (ALICE, CLUB));
    // Of a link itself, and nothing at all.
    symlink("file", at.a.join("link")).unwrap();
    std::os::unix::fs::lchown(at.a.join("link"), Some(BOB), Some(TEAM)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().uid(), ALICE);
    assert_eq!(fs::symlink_metadata(at.b.join("link")).unwrap().uid(), BOB);
    chown(&path, None, None).unwrap();
    chown(&path, Some(u32::MAX - 1), Some(u32::MAX - 1)).unwrap();
    assert_eq!(fs::metadata(at.b.join("file")).unwrap().gid(), u32::MAX - 1);
}

fn privileges_fall(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    let fresh = |bits| {
        owned(&path, 0o666, ALICE, TEAM);
        fs::write(&path, vec![1; 20_000]).unwrap();
        chmod(&path, bits);
    };
    let after = |work: &(dyn Fn() + Sync)| {
        fresh(0o6777);
        as_user(BOB, CLUB, &[], work);
        (mode(&path), mode(&at.b.join("file")))
    };
    let gone = (0o100_777, 0o100_777);
    assert_eq!(after(&|| open(&path, false, true, 0).unwrap().write_all(b"x").unwrap()), gone);
    assert_eq!(
        after(&|| rustix::fs::ftruncate(open(&path, false, true, 0).unwrap(), 5).unwrap()),
        gone
    );
    assert_eq!(after(&|| drop(open_with(&path, OFlags::WRONLY | OFlags::TRUNC).unwrap())), gone);
    let large = || open(&path, false, true, 0).unwrap().write_all(&[2; 200_000]).unwrap();
    assert_eq!(after(&large), gone);
    let allocate = || {
        let file = open(&path, false, true, 0).unwrap();
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, 30_000).unwrap();
    };
    assert_eq!(after(&allocate), gone);
    // Reading takes nothing away.
    assert_eq!(after(&|| drop(fs::read(&path).unwrap())), (0o106_777, 0o106_777));
    // Setgid without execution is no privilege.
    fresh(0o2666);
    as_user(BOB, TEAM, &[], || open(&path, false, true, 0).unwrap().write_all(b"x").unwrap());
    assert_eq!(mode(&path), 0o102_666);
    fresh(0o6777);
    as_user(ALICE, TEAM, &[CLUB], || chown(&path, None, Some(CLUB)).unwrap());
    assert_eq!(mode(&at.b.join("file")), 0o100_777);
    // Directories keep theirs.
    let directory = at.a.join("directory");
    fs::create_dir(&directory).unwrap();
    chmod(&directory, 0o2777);
    chown(&directory, Some(ALICE), Some(TEAM)).unwrap();
    assert_eq!(mode(&directory), 0o42_777);
}

fn groups_of_new_files(at: &Place) {
    let directory = at.a.join("directory");
    fs::create_dir(&directory).unwrap();
    chown(&directory, None, Some(CLUB)).unwrap();
    chmod(&directory, 0o2777);
    as_user(ALICE, TEAM, &[], || {
        fs::write(directory.join("file"), "x").unwrap();
        fs::create_dir(directory.join("sub")).unwrap();
        symlink("x", directory.join("link")).unwrap();
        rustix::fs::mknodat(CWD, directory.join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        // Setgid on a file is for members of the group that it gets.
        rustix::fs::open(directory.join("set"), OFlags::CREATE | OFlags::WRONLY, 0o2755.into())
            .unwrap();
    });
    for name in ["file", "sub", "link", "fifo", "set"] {
        let found = fs::symlink_metadata(at.b.join("directory").join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (ALICE, CLUB), "{name}");
    }
    assert_eq!(mode(&at.b.join("directory/sub")), 0o42_755);
    assert_eq!(mode(&at.b.join("directory/set")), 0o100_755);
    as_user(ALICE, TEAM, &[CLUB], || {
        let flags = OFlags::CREATE | OFlags::WRONLY;
        rustix::fs::open(directory.join("member"), flags, 0o2755.into()).unwrap();
    });
    assert_eq!(mode(&at.b.join("directory/member")), 0o102_755);
    chmod(&directory, 0o777);
    as_user(ALICE, TEAM, &[], || fs::write(directory.join("plain"), "x").unwrap());
    assert_eq!(fs::metadata(directory.join("plain")).unwrap().gid(), TEAM);
}

fn masks(at: &Place) {
    let flags = OFlags::CREATE | OFlags::WRONLY;
    drop(rustix::fs::open(at.a.join("file"), flags, 0o777.into()).unwrap());
    fs::create_dir(at.a.join("directory")).unwrap();
    rustix::fs::mknodat(CWD, at.a.join("fifo"), FileType::Fifo, 0o666.into(), 0).unwrap();
    let modes = ["file", "directory", "fifo"].map(|name| mode(&at.b.join(name)));
    assert_eq!(modes, [0o100_755, 0o40_755, 0o10_644]);
    // A file that may not be written can be created and written by who creates it.
    chmod(&at.a, 0o777);
    as_user(ALICE, TEAM, &[], || {
        let path = at.a.join("sealed");
        let file = rustix::fs::open(&path, flags | OFlags::EXCL, 0.into()).unwrap();
        File::from(file).write_all(b"x").unwrap();
        assert_eq!(errno(File::open(&path)), Errno::ACCESS);
    });
}

fn stamp(seconds: i64, nanos: i64) -> Timespec {
    Timespec { tv_sec: seconds, tv_nsec: nanos as _ }
}

fn set_times(path: &Path, access: Timespec, change: Timespec) -> rustix::io::Result<()> {
    let times = Timestamps { last_access: access, last_modification: change };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn times(path: &Path) -> [(i64, i64); 2] {
    let found = fs::symlink_metadata(path).unwrap();
    [(found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec())]
}

fn times_to_the_nanosecond(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, "x").unwrap();
    symlink("file", at.a.join("link")).unwrap();
    let moments = [(1, 999_999_999), (1_700_000_000, 123_456_789), (4_200_000_000, 1), (-5, 7)];
    for name in ["file", "link", "."] {
        let (path, other) = (at.a.join(name), at.b.join(name));
        for (index, moment) in moments.into_iter().enumerate() {
            let second = moments[(index + 1) % moments.len()];
            set_times(&path, stamp(moment.0, moment.1), stamp(second.0, second.1)).unwrap();
            assert_eq!(times(&other), [moment, second], "{name}");
        }
    }
    let (omit, now) = (rustix::fs::UTIME_OMIT, rustix::fs::UTIME_NOW);
    set_times(&path, stamp(5, 6), stamp(7, 8)).unwrap();
    set_times(&path, stamp(0, omit), stamp(9, 10)).unwrap();
    assert_eq!(times(&at.b.join("file")), [(5, 6), (9, 10)]);
    set_times(&path, stamp(0, now), stamp(0, omit)).unwrap();
    let [access, change] = times(&at.b.join("file"));
    assert!(access.0 > 1_700_000_000 && change == (9, 10));
    let before = fs::metadata(&path).unwrap();
    set_times(&path, stamp(0, omit), stamp(0, omit)).unwrap();
    let after = fs::metadata(&path).unwrap();
    assert_eq!((before.ctime(), before.ctime_nsec()), (after.ctime(), after.ctime_nsec()));
    assert_eq!(errno(set_times(&path, stamp(5, 1_000_000_000), stamp(0, 0))), Errno::INVAL);
}

fn who_may_set_times(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    owned(&path, 0o666, ALICE, TEAM);
    let now = || stamp(0, rustix::fs::UTIME_NOW);
    as_user(BOB, CLUB, &[], || {
        // A user that may write may set the present time, and no other.
        set_times(&path, now(), now()).unwrap();
        assert_eq!(errno(set_times(&path, stamp(1, 1), stamp(1, 1))), Errno::PERM);
        let omit = stamp(0, rustix::fs::UTIME_OMIT);
        assert_eq!(errno(set_times(&path, now(), omit)), Errno::PERM);
    });
    chmod(&path, 0o444);
    assert_eq!(errno(as_user(BOB, CLUB, &[], || set_times(&path, now(), now()))), Errno::ACCESS);
    as_user(ALICE, TEAM, &[], || set_times(&path, stamp(1, 1), stamp(2, 2)).unwrap());
    assert_eq!(times(&at.b.join("file")), [(1, 1), (2, 2)]);
}

fn times_follow_changes(at: &Place) {
    let path = at.a.join("file");
    fs::write(&path, "x").unwrap();
    let moments = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()))
    };
    // A change of the content changes both times; a change of the inode changes only the second.
    let changes: [(bool, &dyn Fn()); 7] = [
        (true, &|| open(&path, false, true, 0).unwrap().write_all(b"y").unwrap()),
        (true, &|| File::options().write(true).open(&path).unwrap().set_len(100).unwrap()),
        (true, &|| fs::write(&path, "").unwrap()),
        (false, &|| chmod(&path, 0o600)),
        (false, &|| fs::hard_link(&path, at.a.join("second")).unwrap()),
        (false, &|| fs::remove_file(at.a.join("second")).unwrap()),
        (false, &|| rustix::fs::setxattr(&path, "user.x", b"x", XattrFlags::empty()).unwrap()),
    ];
    for (index, (content, change)) in changes.into_iter().enumerate() {
        let before = moments(&at.b.join("file"));
        std::thread::sleep(std::time::Duration::from_millis(15));
        change();
        let after = moments(&at.b.join("file"));
        assert_eq!(after.0 > before.0, content, "{index}");
        assert!(after.1 > before.1, "{index}");
    }
    for name in ["new", "file"] {
        let before = moments(&at.a);
        std::thread::sleep(std::time::Duration::from_millis(15));
        fs::rename(&path, at.a.join("moving")).unwrap();
        fs::rename(at.a.join("moving"), &path).unwrap();
        let after = moments(&at.a);
        assert!(after.0 > before.0 && after.1 > before.1, "{name}");
    }
}

fn get(path: &Path, name: &str, room: usize) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; room];
    let len = rustix::fs::getxattr(path, name, &mut buffer[..])?;
    buffer.truncate(len);
    Ok(buffer)
}

fn list(path: &Path) -> Vec<String> {
    let mut buffer = vec![0; 65536];
    let len = rustix::fs::listxattr(path, &mut buffer[..]).unwrap();
    let text = String::from_utf8(buffer[..len].to_vec()).unwrap();
    let mut names: Vec<String> = text
        .split_terminator('\0')
        .filter(|n| !n.starts_with("security."))
        .map(str::to_string)
        .collect();
    names.sort();
    names
}

fn attributes(at: &Place) {
    fs::write(at.a.join("file"), "x").unwrap();
    fs::create_dir(at.a.join("directory")).unwrap();
    let none = XattrFlags::empty();
    for name in ["file", "directory"] {
        let (path, other) = (at.a.join(name), at.b.join(name));
        let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
        assert!(list(&other).is_empty());
        set("user.one", b"1", XattrFlags::CREATE).unwrap();
        assert_eq!(errno(set("user.one", b"2", XattrFlags::CREATE)), Errno::EXIST);
        assert_eq!(errno(set("user.two", b"2", XattrFlags::REPLACE)), Errno::NODATA);
        set("user.one", b"another", XattrFlags::REPLACE).unwrap();
        set("user.empty", b"", none).unwrap();
        set("user.bytes", &[0, 255, 0], none).unwrap();
        assert_eq!(get(&other, "user.one", 100).unwrap(), b"another");
        assert_eq!(get(&other, "user.empty", 100).unwrap(), b"");
        assert_eq!(get(&other, "user.bytes", 3).unwrap(), [0, 255, 0]);
        assert_eq!(list(&other), ["user.bytes", "user.empty", "user.one"]);
        assert_eq!(errno(get(&other, "user.one", 6)), Errno::RANGE);
        assert_eq!(errno(get(&other, "user.absent", 6)), Errno::NODATA);
        let mut little = [0u8; 10];
        assert_eq!(errno(rustix::fs::listxattr(&other, &mut little[..])), Errno::RANGE);
        rustix::fs::removexattr(&other, "user.one").unwrap();
        assert_eq!(errno(rustix::fs::removexattr(&path, "user.one")), Errno::NODATA);
        assert_eq!(list(&path), ["user.bytes", "user.empty"]);
        // They belong to the inode, not to its name.
        fs::rename(&path, at.a.join("moved")).unwrap();
        assert_eq!(list(&at.b.join("moved")), ["user.bytes", "user.empty"]);
        fs::rename(at.a.join("moved"), &path).unwrap();
    }
    fs::remove_file(at.a.join("file")).unwrap();
    fs::write(at.a.join("file"), "x").unwrap();
    assert!(list(&at.b.join("file")).is_empty());
}

fn limits_of_attributes(at: &Place) {
    if !at.ours {
        return;
    }
    let path = at.a.join("file");
    fs::write(&path, "x").unwrap();
    let set = |name: &str, len: usize| {
        rustix::fs::setxattr(&path, name, &vec![7; len], XattrFlags::empty())
    };
    set("user.large", 16384).unwrap();
    assert_eq!(get(&at.b.join("file"), "user.large", 65536).unwrap(), vec![7; 16384]);
    for len in [16385, 65536, 65537] {
        assert_eq!(errno(set("user.larger", len)), Errno::TOOBIG);
    }
    set(&format!("user.{}", "n".repeat(250)), 1).unwrap();
    assert_eq!(errno(set(&format!("user.{}", "n".repeat(251)), 1)), Errno::RANGE);
    for number in 0..100 {
        set(&format!("user.{number}"), 10).unwrap();
    }
    assert_eq!(list(&at.b.join("file")).len(), 102);
}

fn spaces_of_attributes(at: &Place) {
    chmod(&at.a, 0o777);
    let path = at.a.join("file");
    owned(&path, 0o644, ALICE, TEAM);
    let none = XattrFlags::empty();
    let set = |name: &str| rustix::fs::setxattr(&path, name, b"x", none);
    set("trusted.secret").unwrap();
    assert_eq!(get(&at.b.join("file"), "trusted.secret", 10).unwrap(), b"x");
    as_user(ALICE, TEAM, &[], || {
        set("user.mine").unwrap();
        assert_eq!(list(&path), ["user.mine"]);
        assert_eq!(errno(get(&path, "trusted.secret", 10)), Errno::NODATA);
        assert_eq!(errno(set("trusted.other")), Errno::PERM);
    });
    as_user(BOB, CLUB, &[], || {
        assert_eq!(get(&path, "user.mine", 10).unwrap(), b"x");
        assert_eq!(errno(set("user.mine")), Errno::ACCESS);
        assert_eq!(errno(rustix::fs::removexattr(&path, "user.mine")), Errno::ACCESS);
    });
    chmod(&path, 0o600);
    assert_eq!(errno(as_user(BOB, CLUB, &[], || get(&path, "user.mine", 10))), Errno::ACCESS);
    for name in ["nothing", "unknown.space"] {
        assert_eq!(errno(set(name)), Errno::OPNOTSUPP, "{name}");
    }
    assert_eq!(errno(set("user.")), Errno::INVAL);
    // Links and devices have no attributes of users.
    symlink("file", at.a.join("link")).unwrap();
    let refused = rustix::fs::lsetxattr(at.a.join("link"), "user.x", b"x", none);
    assert_eq!(errno(refused), Errno::PERM);
    rustix::fs::lsetxattr(at.a.join("link"), "trusted.x", b"x", none).unwrap();
    if at.ours {
        // A list of the owner, the group and the others, as the kernel writes it.
        let entries = [(1u16, 6u16), (4, 4), (0x20, 4)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, bits) in entries {
            list.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
            list.extend(u32::MAX.to_le_bytes());
        }
        let refused = rustix::fs::setxattr(&path, "system.posix_acl_access", &list, none);
        assert_eq!(errno(refused), Errno::OPNOTSUPP);
    }
}

fn capacity(at: &Place) {
    let found = rustix::fs::statvfs(&at.a).unwrap();
    assert_eq!(found.f_namemax, 255);
    assert!(found.f_frsize > 0 && found.f_bsize > 0 && found.f_blocks > 0);
    assert!(found.f_bavail <= found.f_bfree && found.f_bfree <= found.f_blocks);
    assert!(found.f_ffree <= found.f_files && found.f_files > 0);
    let file = File::create(at.a.join("file")).unwrap();
    let other = rustix::fs::fstatvfs(&file).unwrap();
    assert_eq!((other.f_blocks, other.f_fsid), (found.f_blocks, found.f_fsid));
}

fn devices(at: &Place) {
    let number = rustix::fs::makedev(0xabc, 0xf_edcb);
    for (name, kind) in [("block", FileType::BlockDevice), ("character", FileType::CharacterDevice)]
    {
        rustix::fs::mknodat(CWD, at.a.join(name), kind, 0o640.into(), number).unwrap();
        let found = fs::symlink_metadata(at.b.join(name)).unwrap();
        assert_eq!((found.rdev(), FileType::from_raw_mode(found.mode())), (number, kind));
        chmod(&at.a, 0o777);
        let refused = as_user(ALICE, TEAM, &[], || {
            rustix::fs::mknodat(CWD, at.a.join("mine"), kind, 0o640.into(), number)
        });
        assert_eq!(errno(refused), Errno::PERM);
    }
    fs::rename(at.a.join("block"), at.a.join("moved")).unwrap();
    assert_eq!(fs::metadata(at.b.join("moved")).unwrap().rdev(), number);
    if at.ours {
        // Mounts are without devices unless somebody wants them.
        assert_eq!(errno(File::open(at.a.join("character"))), Errno::ACCESS);
    }
    rustix::fs::mknodat(CWD, at.a.join("plain"), FileType::RegularFile, 0o640.into(), 0).unwrap();
    assert!(fs::metadata(at.b.join("plain")).unwrap().is_file());
}

fn fifos_and_sockets(at: &Place) {
    let path = at.a.join("fifo");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(errno(open_with(&path, OFlags::WRONLY | OFlags::NONBLOCK)), Errno::NXIO);
    std::thread::scope(|scope| {
        scope.spawn(|| fs::write(&path, "through").unwrap());
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    });
    assert_eq!(mode(&at.b.join("fifo")), 0o10_600);
    let socket = at.a.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(errno(std::os::unix::net::UnixListener::bind(&socket)), Errno::ADDRINUSE);
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.write_all(b"hello").unwrap();
    let mut heard = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"hello");
    assert_eq!(mode(&at.b.join("socket")) & 0o170_000, 0o140_000);
    assert_eq!(errno(File::open(at.a.join("socket"))), Errno::NXIO);
}

fn whole_file_locks(at: &Place) {
    let file = || open_with(&at.a.join("file"), OFlags::RDWR | OFlags::CREATE).unwrap();
    let other = || open_with(&at.b.join("file"), OFlags::RDWR | OFlags::CREATE).unwrap();
    let (first, second, third) = (file(), file(), other());
    let lock = |file: &File, how| rustix::fs::flock(file, how);
    let (shared, exclusive) =
        (FlockOperation::NonBlockingLockShared, FlockOperation::NonBlockingLockExclusive);
    lock(&first, shared).unwrap();
    lock(&second, shared).unwrap();
    lock(&third, shared).unwrap();
    assert_eq!(errno(lock(&third, exclusive)), Errno::AGAIN);
    drop(first);
    lock(&second, FlockOperation::Unlock).unwrap();
    // One description can change its own lock, and its copies share it.
    lock(&third, exclusive).unwrap();
    let copy = third.try_clone().unwrap();
    lock(&copy, exclusive).unwrap();
    drop(third);
    assert_eq!(errno(lock(&second, shared)), Errno::AGAIN);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock(&second, FlockOperation::LockExclusive).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waiting.is_finished());
        drop(copy);
        waiting.join().unwrap();
    });
}

fn record_locks(at: &Place) {
    if !at.ours {
        // One process has one owner of locks on one mount.
        return;
    }
    let path = at.a.join("file");
    fs::write(&path, [1; 1000]).unwrap();
    let (first, second) =
        (open(&path, true, true, 0).unwrap(), open(&at.b.join("file"), true, true, 0).unwrap());
    let lock = |file: &File, how| rustix::fs::fcntl_lock(file, how);
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    lock(&first, exclusive).unwrap();
    assert!([Errno::AGAIN, Errno::ACCESS].contains(&errno(lock(&second, exclusive))));
    let mut wanted = Flock::from(FlockType::ReadLock);
    (wanted.start, wanted.length) = (100, 50);
    let found = rustix::process::fcntl_getlk(&second, &wanted).unwrap().unwrap();
    assert_eq!((found.typ, found.start, found.length), (FlockType::WriteLock, 0, 0));
    // Any close by the owner ends its locks on the file.
    drop(open(&path, true, false, 0).unwrap());
    lock(&second, exclusive).unwrap();
    assert!([Errno::AGAIN, Errno::ACCESS].contains(&errno(lock(&first, exclusive))));
    lock(&second, FlockOperation::Unlock).unwrap();
    lock(&first, FlockOperation::NonBlockingLockShared).unwrap();
    lock(&second, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(errno(lock(&File::open(&path).unwrap(), exclusive)), Errno::BADF);
}
