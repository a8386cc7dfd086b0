//! Files of a running cluster through the command line, without a mount.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;
use support::Cluster;
use support::command::{Plain, Said, ropewalk};

/// A running cluster, and a directory of the host beside it.
struct Scene {
    // Ends before its directory does.
    cluster: Cluster,
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(&place.path().join("cluster"));
        Scene { cluster, place }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn run(&self, arguments: &[&str]) -> Said {
        ropewalk(self.path(), &self.cluster.address(), arguments)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path().join(name), bytes).unwrap();
    }
}

/// Bytes that no stripe has twice.
fn noise(len: usize) -> Vec<u8> {
    (0..len as u32 / 4 + 1).flat_map(|word| word.to_le_bytes()).take(len).collect()
}

/// A tree with everything that a copy has to keep.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("inner/empty")).unwrap();
    fs::write(root.join("large"), noise(9_500_000)).unwrap();
    fs::write(root.join("nothing"), b"").unwrap();
    fs::write(root.join("inner/small"), b"a few bytes").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"inner/odd \xff\nname");
    fs::write(root.join(odd), b"odd").unwrap();
    let holes = fs::File::create(root.join("holes")).unwrap();
    holes.write_all_at(&noise(100_000), 5 << 20).unwrap();
    holes.set_len(12 << 20).unwrap();
    std::os::unix::fs::symlink("../large", root.join("inner/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", root.join("dangling")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, mode, 0).unwrap();
    for (name, mode) in [("inner/small", 0o400), ("large", 0o4755), ("inner", 0o2711)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, nanos) in [("inner/small", 1_000_000_007), ("holes", 5), ("inner", 123_456_789)] {
        let time = UNIX_EPOCH + Duration::from_nanos(nanos);
        let times = fs::FileTimes::new().set_modified(time).set_accessed(time);
        fs::File::open(root.join(name)).unwrap().set_times(times).unwrap();
    }
}

/// All that is below a directory and has to be the same after a copy, by path.
fn contents(root: &Path) -> Vec<(String, u32, i64, i64, Vec<u8>)> {
    let (mut all, mut left) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let content = if meta.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec()
        } else if meta.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        let name = format!("{:?}", path.strip_prefix(root).unwrap());
        all.push((name, meta.mode(), meta.mtime(), meta.mtime_nsec(), content));
    }
    all.sort();
    all
}

#[test]
fn a_tree_goes_into_the_cluster_and_out_again_as_it_was() {
    let scene = Scene::new();
    let source = scene.path().join("source");
    tree(&source);
    scene.run(&["cp", "-rps", "source", ":/"]).well();
    scene.run(&["cp", "-rp", ":/source", ":/second"]).well();
    scene.run(&["cp", "-rp", ":/second", "back"]).well();
    let (before, after) = (contents(&source), contents(&scene.path().join("back")));
    assert_eq!(before.len(), 11);
    for (before, after) in before.iter().zip(&after) {
        assert!(before == after, "{} ({:o}) differs from {}", before.0, before.1, after.0);
    }
    assert_eq!(before.len(), after.len());
    let holes = fs::metadata(scene.path().join("back/holes")).unwrap();
    assert!(holes.blocks() * 512 < holes.len() / 2, "holes stay holes");
    // Without -p the copy is new, and its mode is the umask's business.
    scene.run(&["cp", "-r", ":/source/inner/.", "again"]).well();
    let copied = fs::metadata(scene.path().join("again/small")).unwrap();
    assert!(copied.mtime() > 1_000_000 && copied.mode() & 0o777 == 0o400);
}

#[test]
fn holes_links_and_attributes_survive_a_copy_in_and_out() {
    let scene = Scene::new();
    let source = scene.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::File::create(source.join("hole")).unwrap().set_len(20 << 20).unwrap();
    let tail = fs::File::create(source.join("tail")).unwrap();
    tail.write_all_at(b"begin", 0).unwrap();
    tail.set_len(20 << 20).unwrap();
    fs::write(source.join("one"), noise(100_000)).unwrap();
    fs::hard_link(source.join("one"), source.join("two")).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(source.join("one"), "user.color", b"\0red", flags).unwrap();
    scene.run(&["cp", "-a", "source", ":/"]).well();
    scene.run(&["cp", "-a", ":/source", ":/again"]).well();
    // A file that is there already stays one file with two names.
    scene.run(&["cp", "-a", ":/source/.", ":/again"]).well();
    scene.run(&["cp", "-rp", ":/again", "back"]).well();
    let back = scene.path().join("back");
    let meta = |name: &str| fs::metadata(back.join(name)).unwrap();
    assert_eq!((meta("hole").len(), meta("hole").blocks()), (20 << 20, 0));
    assert!(meta("tail").len() == 20 << 20 && meta("tail").blocks() <= 64, "the tail is a hole");
    assert_eq!((meta("one").ino(), meta("one").nlink()), (meta("two").ino(), 2));
    assert_eq!(fs::read(back.join("two")).unwrap(), noise(100_000));
    let mut value = [0; 10];
    let len = rustix::fs::getxattr(back.join("two"), "user.color", &mut value).unwrap();
    assert_eq!(&value[..len], b"\0red");
    // Without -p they are files of their own.
    scene.run(&["cp", "-r", ":/source", "apart"]).well();
    assert_eq!(fs::metadata(scene.path().join("apart/one")).unwrap().nlink(), 1);
}

#[test]
fn a_copy_overwrites_what_is_there_and_finds_its_place() {
    let scene = Scene::new();
    scene.write("long", &noise(3_000_000));
    scene.write("short", b"short");
    scene.run(&["cp", "long", ":/file"]).well();
    scene.run(&["cp", "short", ":/file"]).well();
    scene.run(&["cp", ":/file", "out"]).well();
    assert_eq!(fs::read(scene.path().join("out")).unwrap(), b"short");
    // Several go into a directory; a trailing slash and a missing one are the same there.
    fs::create_dir(scene.path().join("empty")).unwrap();
    scene.run(&["cp", "-r", "empty", ":/dir"]).well();
    scene.run(&["cp", "long", "short", ":/dir/"]).well();
    scene.run(&["cp", ":/dir/long", ":/dir/short", "empty"]).well();
    assert_eq!(fs::read(scene.path().join("empty/long")).unwrap(), noise(3_000_000));
    assert_eq!(scene.run(&["ls", ":/dir"]).well(), "long\nshort\n");
}

#[test]
fn stat_tells_layout_epoch_and_where_each_stripe_lies() {
    let scene = Scene::new();
    let (stripe, size) = (1 << 20, 5 * (1 << 20) + 17);
    scene.write("file", &noise(size));
    scene.write("little", b"fits into its inode");
    let holes = fs::File::create(scene.path().join("holes")).unwrap();
    holes.write_all_at(&noise(1000), 2 * stripe as u64).unwrap();
    holes.set_len(4 * stripe as u64).unwrap();
    scene.run(&["cp", "file", "little", "holes", ":/"]).well();
    let all = scene.run(&["stat", "--json", ":/file", ":/little", ":/holes", ":/"]).objects();
    let [file, little, holes, root] = &all[..] else { panic!("{all:?}") };
    assert_eq!(file["size"], size);
    assert_eq!(file["kind"], "file");
    assert!(file["epoch"].is_u64());
    assert_eq!(file["layout"]["stripe_bytes"], stripe);
    let stripes = file["layout"]["stripes"].as_array().unwrap();
    assert_eq!(stripes.len(), 6);
    let bytes: u64 = stripes.iter().map(|stripe| stripe["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, size as u64);
    let servers: std::collections::BTreeSet<u64> =
        stripes.iter().map(|stripe| stripe["server"].as_u64().unwrap()).collect();
    assert_eq!(servers.len(), 4, "stripes go round four servers");
    assert_eq!(little["layout"], "inline");
    assert_eq!(root["layout"], Value::Null);
    let written = |stripe: &Value| stripe["written"].as_bool().unwrap();
    let map: Vec<bool> =
        holes["layout"]["stripes"].as_array().unwrap().iter().map(written).collect();
    assert_eq!(map, [false, false, true, false]);
    // The same for people.
    let text = scene.run(&["stat", ":/holes"]).well();
    for part in ["stripes of 1.0 MiB", "generation 0", "a hole", "write epoch", "data server "] {
        assert!(text.contains(part), "no '{part}' in {text}");
    }
    // And where it says that a stripe lies, there is an object on that server's disk.
    let server = holes["layout"]["stripes"][2]["server"].as_u64().unwrap();
    let kept: Vec<u8> = noise(1000);
    let directory = scene.path().join(format!("cluster/data{server}"));
    let found = contents(&directory)
        .into_iter()
        .any(|(.., content)| content.windows(kept.len()).any(|window| window == kept));
    assert!(found, "data server {server} has the stripe's bytes");
}

#[test]
fn listings_and_room_are_told_to_people_and_to_programs() {
    let scene = Scene::new();
    scene.write("b", b"12345");
    scene.write(".hidden", b"");
    std::os::unix::fs::symlink("b", scene.path().join("c")).unwrap();
    scene.run(&["cp", "-rp", "b", ".hidden", "c", ":/"]).well();
    assert_eq!(scene.run(&["ls"]).well(), "b\nc\n");
    assert_eq!(scene.run(&["ls", "-a", "/"]).well(), ".\n..\n.hidden\nb\nc\n");
    assert_eq!(scene.run(&["ls", "-d", ":/"]).well().trim(), "/");
    let long = scene.run(&["ls", "-l", ":/"]).well();
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[0].starts_with("-rw") && lines[0].ends_with("Z b"), "{long}");
    assert!(lines[0].contains(" 5 "), "{long}");
    assert!(lines[1].starts_with("lrwx") && lines[1].ends_with("Z c -> b"), "{long}");
    let objects = scene.run(&["ls", "--json", ":/"]).objects();
    assert_eq!(objects.len(), 2);
    assert_eq!((&objects[0]["path"], &objects[0]["size"]), (&":/b".into(), &5.into()));
    assert_eq!(objects[1]["target"], "b");
    // Owners are the same in both listings, and numbers.
    let owner = |object: &Value| {
        let keys = ["user", "group", "user_name", "group_name"];
        keys.map(|key| object.get(key).cloned())
    };
    let looked = scene.run(&["stat", "--json", ":/b"]).objects();
    assert_eq!(owner(&objects[0]), owner(&looked[0]));
    assert_eq!(objects[0]["user"], rustix::process::geteuid().as_raw());
    if rustix::process::geteuid().is_root() {
        assert_eq!(objects[0]["user_name"], "root");
    }
    let room = scene.run(&["df", "--json"]).objects();
    assert_eq!(room.len(), 6, "four servers, the metadata and the whole: {room:?}");
    let total = |object: &Value| object["total_bytes"].as_u64().unwrap();
    assert!(room[..4].iter().all(|server| server["alive"] == true && total(server) > 0));
    // All of them lie on one disk here, which counts once.
    assert!(room[..5].iter().all(|server| total(server) == total(&room[5])), "{room:?}");
    assert!(room[0]["file_system"].is_string(), "{room:?}");
    assert!(room[1..4].iter().all(|server| server["file_system"] == room[0]["file_system"]));
    assert_eq!(room[5]["inodes"], 4);
    let kinds: Vec<&Value> = room.iter().map(|object| &object["kind"]).collect();
    assert_eq!(kinds, ["data", "data", "data", "data", "metadata", "total"]);
    let keys = |object: &Value| object.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(room.iter().all(|object| keys(object) == keys(&room[0])), "{room:?}");
    assert_eq!((&room[3]["server"], &room[4]["server"]), (&3.into(), &Value::Null));
    // The metadata lie on the same disk here; the used space is that of df(1).
    assert_eq!(total(&room[4]), total(&room[0]));
    let disk = rustix::fs::statvfs(scene.path()).unwrap();
    let used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize;
    let said = room[4]["used_bytes"].as_u64().unwrap();
    assert!(said.abs_diff(used) < 1 << 30, "{said} is used, and df(1) says {used}");
    let text = scene.run(&["df"]).well();
    assert!(text.contains("data server 3") && text.contains("available"), "{text}");
    assert!(text.contains("metadata server") && text.contains("serving"), "{text}");
    assert!(text.contains("data server 0 shares its disk with: 1, 2, 3\n"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains(" inodes  "), "inodes are no state: {text}");
}

#[test]
fn programs_can_tell_names_apart_that_are_no_text() {
    let scene = Scene::new();
    let source = scene.path().join("source");
    fs::create_dir(&source).unwrap();
    let names: [&[u8]; 3] = [b"plain", b"x\xfe", b"x\xff"];
    for name in names {
        fs::write(source.join(OsStr::from_bytes(name)), name).unwrap();
    }
    std::os::unix::fs::symlink(OsStr::from_bytes(b"x\xff"), source.join("z")).unwrap();
    scene.run(&["cp", "-r", "source/.", ":/d"]).well();
    let objects = scene.run(&["ls", "--json", ":/d"]).objects();
    let bytes = |value: &Value| -> Vec<u8> {
        let numbers = value.as_array().expect("the bytes of a name");
        numbers.iter().map(|number| u8::try_from(number.as_u64().unwrap()).unwrap()).collect()
    };
    assert_eq!(objects[0]["path"], ":/d/plain");
    assert!(objects[0].get("path_bytes").is_none() && objects[0].get("name_bytes").is_none());
    assert_eq!(bytes(&objects[3]["target_bytes"]), b"x\xff");
    for (object, name) in objects[1..3].iter().zip(&names[1..]) {
        assert_eq!(
            (&object["name"], bytes(&object["name_bytes"])),
            (&"x\u{fffd}".into(), name.to_vec())
        );
        // The printed path leads to the file.
        let path = bytes(&object["path_bytes"]);
        let mut stat = std::process::Command::new(support::PROGRAM);
        stat.args(["stat", "--json"]).arg(OsStr::from_bytes(&path));
        let said = stat.env("ROPEWALK_ADDRESS", scene.cluster.address()).output().unwrap();
        let found: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!((&found["inode"], bytes(&found["path_bytes"])), (&object["inode"], path));
    }
}

/// The largest file below a directory.
fn largest(root: &Path) -> std::path::PathBuf {
    let (mut found, mut left) = ((0, root.to_path_buf()), vec![root.to_path_buf()]);
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                left.push(entry.path());
            } else if meta.len() > found.0 {
                found = (meta.len(), entry.path());
            }
        }
    }
    found.1
}

#[test]
fn a_damaged_file_is_named_and_all_others_are_copied() {
    let scene = Scene::new();
    fs::create_dir(scene.path().join("tree")).unwrap();
    for number in 0..20 {
        scene.write(&format!("tree/{number}"), &noise(300_000 + number));
    }
    scene.run(&["cp", "-rs", "tree", ":/"]).well();
    let object = largest(&scene.path().join("cluster/data0/objects/objects"));
    let file = fs::File::options().read(true).write(true).open(&object).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 150_000).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 150_000).unwrap();
    let said = scene.run(&["cp", "-r", ":/tree", "out"]).badly();
    assert!(said.contains("ropewalk: :/tree/") && said.contains("data is damaged"), "{said}");
    assert!(said.ends_with("1 of 21 entries could not be copied\n"), "{said}");
    let right = |number: &usize| {
        let copied = fs::read(scene.path().join(format!("out/{number}")));
        copied.is_ok_and(|bytes| bytes == noise(300_000 + number))
    };
    assert_eq!((0..20).filter(right).count(), 19, "all but one are whole: {said}");
    // Within the cluster, too.
    let said = scene.run(&["cp", "-r", ":/tree", ":/again"]).badly();
    assert!(said.ends_with("1 of 21 entries could not be copied\n"), "{said}");
    assert_eq!(scene.run(&["ls", ":/again"]).well().lines().count(), 20);
}

#[test]
fn what_cannot_be_removed_is_named_and_all_else_goes() {
    let scene = Scene::new();
    let place = tempfile::tempdir().unwrap();
    let plain = Plain::new(place.path());
    let tree = scene.path().join("tree");
    for name in ["closed", "fine/deep"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    for name in ["first", "closed/one", "closed/two", "fine/deep/last"] {
        fs::write(tree.join(name), name).unwrap();
    }
    for name in ["", "fine", "fine/deep"] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    scene.run(&["cp", "-rp", "tree", ":/"]).well();
    let said = plain.run(&scene.cluster.address(), &["rm", "-r", ":/tree"]).badly();
    assert!(said.contains(":/tree/closed/one") && said.contains(":/tree/closed/two"), "{said}");
    assert!(said.contains("2 entries could not be removed"), "{said}");
    assert_eq!(scene.run(&["ls", ":/tree"]).well(), "closed\n");
    assert_eq!(scene.run(&["ls", ":/tree/closed"]).well(), "one\ntwo\n");
    scene.run(&["rm", "-r", ":/tree"]).well();
}

#[test]
fn a_copy_goes_on_after_what_cannot_be_read_and_says_how_much_is_missing() {
    let scene = Scene::new();
    let place = tempfile::tempdir().unwrap();
    let plain = Plain::new(place.path());
    let run = |arguments: &[&str]| plain.run(&scene.cluster.address(), arguments);
    let open = scene.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    scene.run(&["cp", "-rp", "open", ":/"]).well();
    let source = place.path().join("source");
    for name in ["a", "b", "c", "d"] {
        fs::create_dir_all(source.join(name)).unwrap();
    }
    for name in ["a/first", "b/inside", "c/closed", "d/last"] {
        fs::write(source.join(name), name).unwrap();
    }
    for number in 0..40 {
        fs::write(source.join(format!("c/{number}")), b"x").unwrap();
    }
    for name in ["b", "c/closed"] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let of = |name: &str| source.join(name).to_str().unwrap().to_string();
    for flag in ["-r", "-a"] {
        let said = run(&["cp", flag, &of(""), ":/open/source"]).badly();
        let mut lines: Vec<&str> = said.lines().collect();
        lines[..2].sort_unstable();
        let denied = |name| format!("ropewalk: {}: Permission denied (os error 13)", of(name));
        let end = "ropewalk: 2 of 48 entries could not be copied";
        assert_eq!(lines, [&denied("b")[..], &denied("c/closed"), end], "{said}");
        assert_eq!(scene.run(&["ls", ":/open/source"]).well(), "a\nb\nc\nd\n");
        for (name, entries) in [("a", 1), ("b", 0), ("c", 40), ("d", 1)] {
            let there = scene.run(&["ls", &format!(":/open/source/{name}")]).well();
            assert_eq!(there.lines().count(), entries, "{name} after {flag}: {there}");
        }
        scene.run(&["rm", "-r", ":/open/source"]).well();
    }
    // Sources that are no files, and one that is.
    let (missing, closed, last) = (of("missing"), of("c/closed"), of("d/last"));
    let said = run(&["cp", &missing, &closed, &of("a"), &last, ":/open"]).badly();
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(said.contains("a is a directory: use -r to copy it"), "{said}");
    assert!(said.ends_with("3 of 4 entries could not be copied\n"), "{said}");
    assert_eq!(scene.run(&["ls", ":/open"]).well(), "last\n");
    // One alone needs no count.
    let said = run(&["cp", &closed, ":/open"]).badly();
    assert!(said.lines().count() == 1 && said.contains("closed: Permission denied"), "{said}");
    // The demo promises all of a tree.
    let mut demo = plain.command(&["demo", "--no-mount", "--source", &of("")]);
    let demo = demo.current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&demo.stderr).into_owned();
    assert!(!demo.status.success() && said.contains("Permission denied"), "{said}");
}

#[test]
fn what_a_directory_holds_that_cannot_be_made_is_left_out_without_further_words() {
    let scene = Scene::new();
    let tree = scene.path().join("tree");
    fs::create_dir_all(tree.join("d/deep")).unwrap();
    for name in ["d/one", "d/deep/two", "e"] {
        fs::write(tree.join(name), name).unwrap();
    }
    scene.run(&["mkdir", ":/tree"]).well();
    scene.write("d", b"a file");
    scene.run(&["cp", "d", ":/tree"]).well();
    let said = scene.run(&["cp", "-r", "tree", ":/"]).badly();
    let expected = "ropewalk: :/tree/d exists and is not a directory\n\
                    ropewalk: 4 of 6 entries could not be copied\n";
    assert_eq!(said, expected);
    assert_eq!(scene.run(&["ls", ":/tree"]).well(), "d\ne\n");
}

#[test]
fn rm_removes_trees_whole_and_nothing_that_was_not_meant() {
    let scene = Scene::new();
    let source = scene.path().join("source");
    fs::create_dir_all(source.join("a/b/c")).unwrap();
    for number in 0..400 {
        fs::write(source.join(format!("a/b/f{number}")), b"x").unwrap();
    }
    std::os::unix::fs::symlink("/kept", source.join("a/link")).unwrap();
    scene.write("kept", b"kept");
    scene.run(&["cp", "-r", "source", "kept", ":/"]).well();
    let error = scene.run(&["rm", ":/source"]).badly();
    assert!(error.contains(":/source is a directory: use -r to remove it"), "{error}");
    scene.run(&["rm", "-r", ":/source", ":/nothing"]).badly();
    assert_eq!(scene.run(&["ls", ":/"]).well(), "kept\n");
    scene.run(&["rm", "-f", ":/nothing"]).well();
    for path in [":/", "/", ":/kept/..", "."] {
        assert!(
            scene
                .run(&["rm", "-rf", path])
                .badly()
                .contains("cannot be removed: give the name of an entry"),
            "{path}"
        );
    }
    scene.run(&["rm", ":/kept"]).well();
    assert_eq!(scene.run(&["ls", ":/"]).well(), "");
}

#[test]
fn errors_name_the_thing_the_cause_and_the_remedy() {
    let scene = Scene::new();
    fs::create_dir(scene.path().join("dir")).unwrap();
    scene.write("file", b"");
    scene.run(&["cp", "file", ":/"]).well();
    let cases: [(&[&str], &str); 11] = [
        (&["ls", ":/nope"], ":/nope: No such file or directory"),
        (&["stat", ":/file/below"], ":/file/below: Not a directory"),
        (
            &["cp", "file", "other"],
            "neither the source nor the target is in the cluster: write a path",
        ),
        (&["cp", "dir", ":/"], "dir is a directory: use -r to copy it"),
        (&["cp", "nope", ":/"], "nope: No such file or directory"),
        (&["cp", "file", ":/a/b"], "its parent directory does not exist: create it first"),
        (&["cp", "file", "file", ":/file"], ":/file is not an existing directory: create it first"),
        (&["cp", ":/file", ":/file"], ":/file is the same file"),
        (&["cp", "-r", ":/", ":/into"], "cannot be copied into itself"),
        (&["cp", "file", ":/file", ":/"], "some sources are on this host and some in the cluster"),
        (&["ls", "-A", "127.0.0.1:0"], "needs a host and a port; write it like tcp://node1:7700"),
    ];
    for (arguments, expected) in cases {
        let error = scene.run(arguments).badly();
        assert!(error.contains(expected), "{arguments:?}: '{expected}' is not in: {error}");
    }
    // Nobody listens where nobody was started.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = format!("tcp://{free}");
    let error = scene.run(&["df", "--patience", "1.5", "-A", &address]).badly();
    assert!(error.contains(&format!("waiting for the metadata server at {address}")), "{error}");
    assert!(error.contains("does not answer: start it"), "{error}");
}

#[test]
fn a_plain_user_reads_and_writes_what_he_may() {
    let scene = Scene::new();
    let place = tempfile::tempdir().unwrap();
    let plain = Plain::new(place.path());
    let run = |arguments: &[&str]| plain.run(&scene.cluster.address(), arguments);
    scene.write("open", b"for all");
    scene.write("closed", b"for one");
    for (name, mode) in [("open", 0o644), ("closed", 0o600)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(scene.path().join(name), mode).unwrap();
    }
    scene.run(&["cp", "-p", "open", "closed", ":/"]).well();
    let out = place.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
    let out = out.to_str().unwrap();
    run(&["cp", ":/open", out]).well();
    if !rustix::process::geteuid().is_root() {
        // One user alone owns all that there is, and is denied nothing.
        return;
    }
    let closed = run(&["cp", ":/closed", out]).badly();
    assert!(closed.contains(":/closed: Permission denied: 'ropewalk ls -ld'"), "{closed}");
    let above = run(&["cp", &format!("{out}/open"), ":/new"]).badly();
    assert!(above.contains(":/new: Permission denied"), "{above}");
    assert!(run(&["rm", ":/open"]).badly().contains("Permission denied"));
}

#[test]
fn directories_are_made_one_by_one_or_with_their_parents() {
    let scene = Scene::new();
    scene.run(&["mkdir", ":/a", "b"]).well();
    assert_eq!(scene.run(&["ls", ":/"]).well(), "a\nb\n");
    let again = scene.run(&["mkdir", ":/a"]).badly();
    assert!(again.contains(":/a: File exists"), "{again}");
    let missing = scene.run(&["mkdir", ":/c/d"]).badly();
    assert!(missing.contains(":/c/d: No such file or directory"), "{missing}");
    scene.run(&["mkdir", "-p", ":/c/d/e/", ":/a", ":/c//d/f"]).well();
    assert_eq!(scene.run(&["ls", ":/c/d"]).well(), "e\nf\n");
    scene.write("file", b"x");
    scene.run(&["cp", "file", ":/"]).well();
    let file = scene.run(&["mkdir", "-p", ":/file/g"]).badly();
    assert!(file.contains(":/file exists and is not a directory"), "{file}");
}
