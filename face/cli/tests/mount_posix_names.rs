//! Names through a mount: limits, links, renames, unlinking and listing, by POSIX and the man pages.

mod support;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;
use support::posix::{Place, chmod, errno, mode, names, open, open_with, run_checks};

#[test]
fn names_links_renames_and_listings_are_as_the_standard_says() {
    run_checks(&[
        ("longest_names", longest_names),
        ("any_byte_in_a_name", any_byte_in_a_name),
        ("names_too_long", names_too_long),
        ("wrong_kinds_on_the_way", wrong_kinds_on_the_way),
        ("loops_of_links", loops_of_links),
        ("existing_and_absent", existing_and_absent),
        ("other_file_systems", other_file_systems),
        ("directories_and_their_links", directories_and_their_links),
        ("hard_links", hard_links),
        ("symbolic_links", symbolic_links),
        ("rename_replaces", rename_replaces),
        ("rename_of_directories", rename_of_directories),
        ("rename_flags", rename_flags),
        ("unlinked_but_open", unlinked_but_open),
        ("files_without_a_name", files_without_a_name),
        ("listing_beside_deletes", listing_beside_deletes),
        ("listing_from_the_start_again", listing_from_the_start_again),
        ("remove_while_listing", remove_while_listing),
    ]);
}

fn touch(path: &Path) {
    fs::write(path, "x").unwrap();
}

fn rename_with(from: &Path, to: &Path, flags: RenameFlags) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, from, CWD, to, flags)
}

fn longest_names(at: &Place) {
    let name = "n".repeat(255);
    touch(&at.a.join(&name));
    assert_eq!(names(&at.b), [OsStr::new(&name)]);
    assert_eq!(fs::read(at.b.join(&name)).unwrap(), b"x");
    let other = "m".repeat(255);
    fs::rename(at.b.join(&name), at.b.join(&other)).unwrap();
    fs::hard_link(at.a.join(&other), at.a.join(&name)).unwrap();
    assert_eq!(fs::metadata(at.b.join(&name)).unwrap().nlink(), 2);
    // Three-byte letters: the limit is of bytes.
    let letters = "\u{20ac}".repeat(85);
    fs::create_dir(at.a.join(&letters)).unwrap();
    fs::remove_dir(at.b.join(&letters)).unwrap();
    symlink("x", at.a.join(&letters)).unwrap();
    for name in [&name, &other, &letters] {
        fs::remove_file(at.a.join(name)).unwrap();
    }
    assert!(names(&at.b).is_empty());
}

fn any_byte_in_a_name(at: &Place) {
    let mut expected = Vec::new();
    for byte in (1..=255u8).filter(|byte| *byte != b'/') {
        let name = [b'n', byte];
        touch(&at.a.join(OsStr::from_bytes(&name)));
        expected.push(OsStr::from_bytes(&name).to_owned());
    }
    assert_eq!(names(&at.b), expected);
    for name in &expected {
        fs::remove_file(at.b.join(name)).unwrap();
    }
    assert!(names(&at.a).is_empty());
}

fn names_too_long(at: &Place) {
    let (long, file) = (at.a.join("n".repeat(256)), at.a.join("file"));
    touch(&file);
    let too_long = Errno::NAMETOOLONG;
    assert_eq!(errno(fs::File::create(&long)), too_long);
    assert_eq!(errno(File::open(&long)), too_long);
    assert_eq!(errno(fs::metadata(&long)), too_long);
    assert_eq!(errno(fs::create_dir(&long)), too_long);
    assert_eq!(errno(fs::remove_dir(&long)), too_long);
    assert_eq!(errno(fs::remove_file(&long)), too_long);
    assert_eq!(errno(symlink("x", &long)), too_long);
    assert_eq!(errno(fs::hard_link(&file, &long)), too_long);
    assert_eq!(errno(fs::rename(&file, &long)), too_long);
    assert_eq!(errno(fs::rename(&long, &file)), too_long);
    let fifo = rustix::fs::FileType::Fifo;
    assert_eq!(errno(rustix::fs::mknodat(CWD, &long, fifo, 0o644.into(), 0)), too_long);
    let path = at.a.join("d/".repeat(2100));
    assert_eq!(errno(File::open(&path)), too_long);
}

fn wrong_kinds_on_the_way(at: &Place) {
    let (file, directory) = (at.a.join("file"), at.a.join("directory"));
    touch(&file);
    fs::create_dir(&directory).unwrap();
    let below = file.join("below");
    assert_eq!(errno(File::open(&below)), Errno::NOTDIR);
    assert_eq!(errno(File::create(&below)), Errno::NOTDIR);
    assert_eq!(errno(fs::create_dir(&below)), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_file(&below)), Errno::NOTDIR);
    assert_eq!(errno(fs::rename(&below, &file)), Errno::NOTDIR);
    assert_eq!(errno(symlink("x", &below)), Errno::NOTDIR);
    assert_eq!(errno(fs::remove_dir(&file)), Errno::NOTDIR);
    assert_eq!(errno(fs::read_dir(&file)), Errno::NOTDIR);
    assert_eq!(errno(open_with(&file, OFlags::RDONLY | OFlags::DIRECTORY)), Errno::NOTDIR);
    assert_eq!(errno(open(&directory, false, true, 0)), Errno::ISDIR);
    assert_eq!(errno(open_with(&directory, OFlags::RDONLY | OFlags::CREATE)), Errno::ISDIR);
    assert_eq!(errno(fs::remove_file(&directory)), Errno::ISDIR);
    assert_eq!(errno(rustix::fs::open(&directory, OFlags::RDWR, 0.into())), Errno::ISDIR);
    assert_eq!(errno(fs::write(&directory, "x")), Errno::ISDIR);
    assert_eq!(errno(File::open(&directory).unwrap().read(&mut [0; 4])), Errno::ISDIR);
    // A trailing slash asks for a directory.
    let slashed = |path: &Path| Path::new(&format!("{}/", path.display())).to_path_buf();
    assert_eq!(errno(fs::metadata(slashed(&file))), Errno::NOTDIR);
    assert_eq!(errno(fs::rename(&file, slashed(&at.a.join("new")))), Errno::NOTDIR);
    fs::rename(slashed(&directory), slashed(&at.a.join("moved"))).unwrap();
    fs::create_dir(slashed(&at.a.join("made"))).unwrap();
}

fn loops_of_links(at: &Place) {
    let loop_ = at.a.join("loop");
    symlink("loop", &loop_).unwrap();
    assert_eq!(errno(File::open(&loop_)), Errno::LOOP);
    assert_eq!(errno(fs::metadata(loop_.join("x"))), Errno::LOOP);
    assert_eq!(errno(fs::create_dir(loop_.join("x"))), Errno::LOOP);
    touch(&at.a.join("0"));
    for number in 1..=41 {
        symlink(format!("{}", number - 1), at.a.join(number.to_string())).unwrap();
    }
    assert_eq!(fs::read(at.b.join("40")).unwrap(), b"x");
    assert_eq!(errno(fs::read(at.b.join("41"))), Errno::LOOP);
    assert_eq!(errno(open(&at.a.join("1"), true, false, libc_nofollow())), Errno::LOOP);
}

fn libc_nofollow() -> i32 {
    OFlags::NOFOLLOW.bits() as i32
}

fn existing_and_absent(at: &Place) {
    let (file, directory, absent) = (at.a.join("file"), at.a.join("dir"), at.a.join("absent"));
    touch(&file);
    fs::create_dir(&directory).unwrap();
    symlink("nowhere", at.a.join("dangling")).unwrap();
    let exclusive = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    for path in [&file, &directory, &at.a.join("dangling")] {
        assert_eq!(errno(open_with(path, exclusive)), Errno::EXIST, "{}", path.display());
        assert_eq!(errno(fs::create_dir(path)), Errno::EXIST);
        assert_eq!(errno(symlink("x", path)), Errno::EXIST);
        assert_eq!(errno(fs::hard_link(&file, path)), Errno::EXIST);
    }
    for below in [absent.join("x"), absent.clone()] {
        assert_eq!(errno(File::open(&below)), Errno::NOENT);
        assert_eq!(errno(fs::remove_file(&below)), Errno::NOENT);
        assert_eq!(errno(fs::remove_dir(&below)), Errno::NOENT);
        assert_eq!(errno(fs::rename(&below, &file)), Errno::NOENT);
        assert_eq!(errno(fs::hard_link(&below, at.a.join("y"))), Errno::NOENT);
    }
    assert_eq!(errno(File::open("")), Errno::NOENT);
    // A dangling link is created through.
    fs::write(at.b.join("dangling"), "through").unwrap();
    assert_eq!(fs::read(at.a.join("nowhere")).unwrap(), b"through");
    // A removed directory that is still somebody's: nothing can come into it.
    let gone = open_with(&directory, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::remove_dir(&directory).unwrap();
    assert_eq!(gone.metadata().unwrap().nlink(), 0);
    let here = at.a.join("here");
    fs::create_dir(&here).unwrap();
    let path_only = open_with(&here, OFlags::PATH).unwrap();
    fs::remove_dir(&here).unwrap();
    let found = rustix::fs::fstat(&path_only).unwrap();
    assert_eq!((found.st_nlink, found.st_mode), (0, 0o40_755));
    let made = rustix::fs::openat(&gone, "new", exclusive, 0o644.into());
    assert_eq!(errno(made), Errno::NOENT);
    assert_eq!(errno(rustix::fs::mkdirat(&gone, "new", 0o755.into())), Errno::NOENT);
    let moved = rustix::fs::renameat(CWD, &file, &gone, "file");
    assert_eq!(errno(moved), Errno::NOENT);
}

fn other_file_systems(at: &Place) {
    if !at.ours {
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    touch(&at.a.join("file"));
    touch(&outside.path().join("file"));
    for other in [outside.path(), &at.b] {
        let target = other.join("target");
        assert_eq!(errno(fs::rename(at.a.join("file"), &target)), Errno::XDEV);
        assert_eq!(errno(fs::hard_link(at.a.join("file"), &target)), Errno::XDEV);
    }
    let from = outside.path().join("file");
    assert_eq!(errno(fs::rename(from, at.a.join("target"))), Errno::XDEV);
}

fn directories_and_their_links(at: &Place) {
    let top = at.a.join("top");
    fs::create_dir(&top).unwrap();
    let links = |path: &Path| fs::metadata(path).unwrap().nlink();
    assert_eq!(links(&top), 2);
    fs::create_dir(top.join("one")).unwrap();
    fs::create_dir(at.b.join("top/two")).unwrap();
    touch(&top.join("file"));
    assert_eq!(links(&top), 4);
    assert_eq!(errno(fs::remove_dir(&top)), Errno::NOTEMPTY);
    assert_eq!(errno(fs::remove_dir(top.join("one/."))), Errno::INVAL);
    assert_eq!(errno(fs::remove_dir(top.join("one/.."))), Errno::NOTEMPTY);
    fs::rename(top.join("one"), at.a.join("one")).unwrap();
    assert_eq!(links(&at.b.join("top")), 3);
    assert_eq!(fs::metadata(at.b.join("one/..")).unwrap().ino(), links_to(&at.b));
    let before = fs::metadata(&top).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::remove_dir(at.b.join("top/two")).unwrap();
    let after = fs::metadata(&top).unwrap();
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    assert_eq!(links(&top), 2);
    assert_eq!(errno(fs::hard_link(&top, at.a.join("second"))), Errno::PERM);
}

fn links_to(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

fn hard_links(at: &Place) {
    let (one, two) = (at.a.join("one"), at.b.join("two"));
    fs::write(&one, "content").unwrap();
    fs::hard_link(at.b.join("one"), &two).unwrap();
    let (first, second) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::read(&two).unwrap(), b"content");
    assert_eq!(fs::metadata(at.a.join("two")).unwrap().nlink(), 1);
    // The link is to the symbolic link itself, unless the caller wants it followed.
    symlink("two", at.a.join("symbolic")).unwrap();
    fs::hard_link(at.a.join("symbolic"), at.a.join("again")).unwrap();
    assert!(fs::symlink_metadata(at.b.join("again")).unwrap().is_symlink());
    let (from, to) = (at.a.join("symbolic"), at.a.join("followed"));
    rustix::fs::linkat(CWD, &from, CWD, &to, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(fs::metadata(&two).unwrap().nlink(), 2);
    for number in 0..1000 {
        fs::hard_link(&to, at.a.join(format!("link{number}"))).unwrap();
    }
    assert_eq!(fs::metadata(&two).unwrap().nlink(), 1002);
}

fn symbolic_links(at: &Place) {
    let longest = "t".repeat(4095);
    symlink(&longest, at.a.join("long")).unwrap();
    assert_eq!(fs::read_link(at.b.join("long")).unwrap().as_os_str(), longest.as_str());
    assert_eq!(errno(symlink("t".repeat(4096), at.a.join("longer"))), Errno::NAMETOOLONG);
    assert_eq!(errno(symlink("", at.a.join("empty"))), Errno::NOENT);
    symlink("target/../target", at.a.join("link")).unwrap();
    let found = fs::symlink_metadata(at.b.join("link")).unwrap();
    assert_eq!((found.len(), found.nlink(), found.mode()), (16, 1, 0o120_777));
    touch(&at.a.join("file"));
    assert_eq!(errno(fs::read_link(at.a.join("file"))), Errno::INVAL);
    // A new link under a name that was another one: the old target is not remembered.
    fs::remove_file(at.b.join("link")).unwrap();
    symlink("elsewhere", at.b.join("link")).unwrap();
    assert_eq!(fs::read_link(at.a.join("link")).unwrap().as_os_str(), "elsewhere");
}

fn rename_replaces(at: &Place) {
    let (old, new) = (at.a.join("old"), at.a.join("new"));
    fs::write(&old, "old").unwrap();
    fs::write(&new, "new").unwrap();
    let mut replaced = File::open(&new).unwrap();
    let number = links_to(&old);
    fs::rename(&old, &new).unwrap();
    assert_eq!(links_to(&at.b.join("new")), number);
    assert_eq!(names(&at.b), ["new"]);
    let mut content = String::new();
    replaced.read_to_string(&mut content).unwrap();
    assert_eq!((content.as_str(), replaced.metadata().unwrap().nlink()), ("new", 0));
    // Two names of one file: nothing happens, both stay.
    fs::hard_link(&new, at.a.join("second")).unwrap();
    fs::rename(&new, at.a.join("second")).unwrap();
    assert_eq!(names(&at.b), ["new", "second"]);
    fs::rename(&new, &new).unwrap();
    fs::create_dir(at.a.join("empty")).unwrap();
    assert_eq!(errno(fs::rename(&new, at.a.join("empty"))), Errno::ISDIR);
    assert_eq!(errno(fs::rename(at.a.join("empty"), &new)), Errno::NOTDIR);
    for dot in [".", ".."] {
        assert_eq!(errno(fs::rename(at.a.join("empty").join(dot), at.a.join("x"))), Errno::BUSY);
        assert_eq!(errno(fs::rename(&new, at.a.join("empty").join(dot))), Errno::BUSY);
    }
}

fn rename_of_directories(at: &Place) {
    let deep = at.a.join("one/two/three");
    fs::create_dir_all(&deep).unwrap();
    touch(&deep.join("file"));
    fs::create_dir(at.a.join("empty")).unwrap();
    assert_eq!(errno(fs::rename(at.a.join("one"), deep.join("below"))), Errno::INVAL);
    assert_eq!(errno(fs::rename(at.a.join("empty"), at.a.join("one"))), Errno::NOTEMPTY);
    assert_eq!(errno(fs::rename(&deep, at.a.join("one"))), Errno::NOTEMPTY);
    fs::rename(&deep, at.a.join("empty")).unwrap();
    assert_eq!(fs::read(at.b.join("empty/file")).unwrap(), b"x");
    // A process whose working directory is moved stays in it.
    let standing = open_with(&at.a.join("empty"), OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::rename(at.a.join("empty"), at.a.join("one/moved")).unwrap();
    let file = rustix::fs::openat(&standing, "file", OFlags::RDONLY, 0.into()).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 1);
    let parent = rustix::fs::statat(&standing, "..", AtFlags::empty()).unwrap();
    assert_eq!(parent.st_ino, links_to(&at.b.join("one")));
}

fn rename_flags(at: &Place) {
    let (file, directory) = (at.a.join("file"), at.a.join("directory"));
    touch(&file);
    fs::create_dir_all(directory.join("below")).unwrap();
    let (exchange, no_replace) = (RenameFlags::EXCHANGE, RenameFlags::NOREPLACE);
    assert_eq!(errno(rename_with(&file, &directory, no_replace)), Errno::EXIST);
    rename_with(&file, &at.a.join("moved"), no_replace).unwrap();
    assert_eq!(errno(rename_with(&at.a.join("moved"), &file, exchange)), Errno::NOENT);
    rename_with(&at.a.join("moved"), &directory, exchange).unwrap();
    assert!(fs::metadata(at.b.join("directory")).unwrap().is_file());
    assert!(fs::metadata(at.b.join("moved/below")).unwrap().is_dir());
    // Exchanged between directories, with the link counts of both.
    touch(&at.a.join("moved/inner"));
    rename_with(&at.a.join("moved/below"), &directory, exchange).unwrap();
    assert_eq!(fs::metadata(at.b.join("moved")).unwrap().nlink(), 2);
    assert!(fs::metadata(at.b.join("moved/below")).unwrap().is_file());
    assert_eq!(
        errno(rename_with(&at.a.join("moved"), &at.a.join("moved/inner"), exchange)),
        Errno::INVAL
    );
    let both = exchange | no_replace;
    assert_eq!(errno(rename_with(&directory, &at.a.join("moved"), both)), Errno::INVAL);
    let whiteout = rename_with(&at.a.join("moved/inner"), &file, RenameFlags::WHITEOUT);
    if at.ours {
        // Only lower layers of overlays have whiteouts; the manual's answer of the others.
        assert_eq!(errno(whiteout), Errno::INVAL);
    }
}

fn unlinked_but_open(at: &Place) {
    for size in [10, 200_000] {
        let path = at.a.join("file");
        fs::write(&path, vec![1u8; size]).unwrap();
        let mut file = open(&path, true, true, 0).unwrap();
        fs::remove_file(at.b.join("file")).unwrap();
        assert_eq!(errno(fs::metadata(&path)), Errno::NOENT);
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&vec![2u8; size]).unwrap();
        file.sync_all().unwrap();
        let mut back = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut back).unwrap();
        assert_eq!(back, [vec![1u8; size], vec![2u8; size]].concat());
        file.set_len(5).unwrap();
        let found = file.metadata().unwrap();
        assert_eq!((found.nlink(), found.len()), (0, 5));
        // It cannot come back.
        let magic = format!("/proc/self/fd/{}", file.as_raw_fd());
        let linked = rustix::fs::linkat(CWD, &magic, CWD, &path, AtFlags::SYMLINK_FOLLOW);
        assert_eq!(errno(linked), Errno::NOENT);
        // A new file of that name is another one.
        touch(&path);
        assert_ne!(links_to(&path), found.ino());
        assert_eq!(file.metadata().unwrap().len(), 5);
    }
}

fn files_without_a_name(at: &Place) {
    let flags = OFlags::RDWR | OFlags::TMPFILE;
    let mut file = open_with(&at.a, flags).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(names(&at.b).is_empty());
    let link = |file: &File, name: &str| {
        let magic = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(CWD, &magic, CWD, at.a.join(name), AtFlags::SYMLINK_FOLLOW)
    };
    link(&file, "named").unwrap();
    drop(file);
    assert_eq!(fs::read(at.b.join("named")).unwrap(), [7; 100_000]);
    assert_eq!(mode(&at.b.join("named")), 0o100_644);
    let exclusive = open_with(&at.a, flags | OFlags::EXCL).unwrap();
    assert_eq!(errno(link(&exclusive, "second")), Errno::NOENT);
    assert_eq!(errno(open_with(&at.a.join("named"), flags)), Errno::NOTDIR);
}

/// A directory of many entries, listed on one mount while some go there and some on the other.
fn listing_beside_deletes(at: &Place) {
    let count = 10_000;
    let name = |number: usize| number.to_string();
    for number in 0..count {
        let (path, kind) = (at.a.join(name(number)), rustix::fs::FileType::RegularFile);
        rustix::fs::mknodat(CWD, path, kind, 0o644.into(), 0).unwrap();
    }
    let rounds = std::thread::scope(|scope| {
        let deleting = [(&at.a, 1, 10), (&at.b, 2, 40)].map(|(mount, first, step)| {
            scope.spawn(move || {
                for number in (first..count).step_by(step) {
                    fs::remove_file(mount.join(name(number))).unwrap();
                }
            })
        });
        let mut rounds = Vec::new();
        while rounds.is_empty() || deleting.iter().any(|thread| !thread.is_finished()) {
            let listed: Vec<_> = fs::read_dir(&at.a).unwrap().map(Result::unwrap).collect();
            assert!(listed.iter().all(|entry| entry.file_type().unwrap().is_file()));
            rounds.push(listed.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>());
        }
        rounds
    });
    let kept = |number: &usize| number % 10 != 1 && number % 40 != 2;
    for round in rounds {
        let unique: BTreeSet<_> = round.iter().collect();
        assert_eq!(unique.len(), round.len(), "nothing is listed twice");
        for number in (0..count).filter(kept) {
            let wanted = std::ffi::OsString::from(name(number));
            assert!(unique.contains(&wanted), "{number} was there all the time");
        }
    }
    assert_eq!(names(&at.b).len(), (0..count).filter(kept).count());
}

fn raw_names(directory: &File, calls: usize) -> Vec<Vec<u8>> {
    let mut buffer = Vec::with_capacity(1024);
    let mut found = Vec::new();
    for _ in 0..calls {
        let mut part = RawDir::new(directory, buffer.spare_capacity_mut());
        let mut any = false;
        while let Some(entry) = part.next() {
            found.push(entry.unwrap().file_name().to_bytes().to_vec());
            any = true;
            if part.is_buffer_empty() {
                break;
            }
        }
        if !any {
            break;
        }
    }
    found
}

fn listing_from_the_start_again(at: &Place) {
    for number in 0..300 {
        touch(&at.a.join(number.to_string()));
    }
    let mut directory = open_with(&at.a, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    let begun = raw_names(&directory, 3);
    assert!(!begun.is_empty() && begun.len() < 302);
    fs::remove_file(at.b.join("7")).unwrap();
    touch(&at.b.join("new"));
    // After a rewind the directory is as it is now.
    directory.seek(SeekFrom::Start(0)).unwrap();
    let all: BTreeSet<_> = raw_names(&directory, usize::MAX).into_iter().collect();
    assert_eq!(all.len(), 302);
    assert!(all.contains(&b"new"[..]) && !all.contains(&b"7"[..]));
    assert!(all.contains(&b"."[..]) && all.contains(&b".."[..]));
    // And it goes on from any place that was once reached.
    directory.seek(SeekFrom::Start(0)).unwrap();
    let first = raw_names(&directory, 2);
    let place = directory.stream_position().unwrap();
    let rest = raw_names(&directory, usize::MAX);
    directory.seek(SeekFrom::Start(place)).unwrap();
    assert_eq!(raw_names(&directory, usize::MAX), rest);
    assert_eq!(first.len() + rest.len(), 302);
}

fn remove_while_listing(at: &Place) {
    let directory = at.a.join("tree");
    fs::create_dir(&directory).unwrap();
    for number in 0..1000 {
        touch(&directory.join(number.to_string()));
    }
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::remove_dir(&directory).unwrap();
    for kind in 0..3 {
        let path = at.a.join(kind.to_string());
        match kind {
            0 => fs::create_dir(&path).unwrap(),
            1 => symlink("x", &path).unwrap(),
            _ => rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
                .unwrap(),
        }
    }
    let mut kinds = Vec::new();
    for entry in fs::read_dir(&at.b).unwrap() {
        let kind = entry.unwrap().file_type().unwrap();
        kinds.push((kind.is_dir(), kind.is_symlink(), kind.is_fifo()));
    }
    kinds.sort_unstable();
    assert_eq!(kinds, [(false, false, true), (false, true, false), (true, false, false)]);
    chmod(&at.a, 0o755);
}
