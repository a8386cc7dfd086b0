//! Names through two mounts of one cluster: as if there were one kernel.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, OFlags, RenameFlags};

use support::names::{Chooser, Side};
use support::{Cluster, Process, mounts_usable, unmount};

/// A cluster with two mounts, and a directory of the local file system.
struct Place {
    directory: tempfile::TempDir,
    _cluster: Cluster,
    _mounts: [Process; 2],
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        for name in ["one", "two", "local"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        let cluster = Cluster::start(&path.join("cluster"));
        let mounts = ["one", "two"].map(|name| cluster.mount(&path.join(name)));
        Place { directory, _cluster: cluster, _mounts: mounts }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn leave(&self) {
        ["one", "two"].iter().for_each(|name| unmount(&self.path(name)));
    }
}

/// Runs a seed: the same operations on the local file system, and through the one mount or the other.
fn run_seed(place: &Place, seed: u64, steps: usize) {
    let name = format!("seed{seed}");
    fs::create_dir(place.path("local").join(&name)).unwrap();
    fs::create_dir(place.path("one").join(&name)).unwrap();
    let [local, one, two] = ["local", "one", "two"].map(|root| place.path(root).join(&name));
    let (mut reference, mut tested) = (Side::new(&[&local]), Side::new(&[&one, &two]));
    let mut chooser = Chooser::new(seed);
    let mut history: Vec<String> = Vec::new();
    let mut successes = 0;
    for step in 0..steps {
        let operation = chooser.next();
        // A descriptor belongs to one mount, and so does what begins at it.
        let chosen = chooser.below(2) as usize;
        let root = operation.held().and_then(|held| tested.opened_through(held)).unwrap_or(chosen);
        let expected = reference.perform(&operation, 0);
        let found = tested.perform(&operation, root);
        successes += usize::from(!expected.ends_with(')'));
        history.push(format!("{step}: mount {root}: {operation:?}: {expected}"));
        let tail = || history[history.len().saturating_sub(if only() { 2000 } else { 40 })..].join("\n");
        assert_eq!(found, expected, "seed {seed}, after\n{}", tail());
        if step % 40 == 39 || step + 1 == steps {
            let expected = reference.tree(0);
            for root in [0, 1] {
                assert_eq!(tested.tree(root), expected, "seed {seed}, mount {root}\n{}", tail());
            }
        }
    }
    println!("seed {seed}: {successes} of {steps} operations did something");
}

#[test]
fn two_mounts_answer_as_one_local_file_system() {
    if !mounts_usable() {
        return;
    }
    let only = std::env::var("ROPEWALK_NAMES_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = if std::env::var_os("ROPEWALK_SEEDS").is_some() { 300 } else { 8 };
    rustix::process::umask(rustix::fs::Mode::empty());
    let place = Place::new();
    match only {
        Some(seed) => run_seed(&place, seed, 1000),
        None => (0..seeds).for_each(|seed| run_seed(&place, seed, 1000)),
    }
    place.leave();
}

fn only() -> bool {
    std::env::var_os("ROPEWALK_NAMES_SEED").is_some()
}

/// Runs `work` again and again until the end; how often.
fn repeat(end: Instant, mut work: impl FnMut(u64)) -> u64 {
    let mut rounds = 0;
    while Instant::now() < end {
        work(rounds);
        rounds += 1;
    }
    rounds
}

/// Replaces names in a loop: a file and a link by renames, two directories by exchanges.
fn replace(root: &Path, round: u64) {
    let (new, link) = (root.join("new"), root.join("new link"));
    fs::write(&new, format!("round {round}")).unwrap();
    fs::rename(&new, root.join("file")).unwrap();
    std::os::unix::fs::symlink(format!("target {round}"), &link).unwrap();
    fs::rename(&link, root.join("link")).unwrap();
    let (one, two) = (root.join("directory"), root.join("other"));
    rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
}

/// Uses these names; panics where one cannot be found.
fn visit(root: &Path) {
    assert!(fs::metadata(root.join("file")).expect("stat").is_file());
    let text = fs::read_to_string(root.join("file")).expect("open and read");
    assert!(text.starts_with("round "), "{text:?}");
    let target = fs::read_link(root.join("link")).expect("readlink");
    assert!(target.to_str().unwrap().starts_with("target "));
    assert!(fs::symlink_metadata(root.join("link")).expect("lstat").is_symlink());
    assert_eq!(fs::read_dir(root.join("directory")).expect("list").count(), 1);
    fs::metadata(root.join("directory/inside")).expect("below an exchanged directory");
}

#[test]
fn a_path_that_always_exists_never_fails() {
    if !mounts_usable() {
        return;
    }
    let place = Place::new();
    let (one, two) = (place.path("one"), place.path("two"));
    for name in ["directory", "other"] {
        fs::create_dir(one.join(name)).unwrap();
        fs::write(one.join(name).join("inside"), "").unwrap();
    }
    replace(&one, 0);
    let seconds = if std::env::var_os("ROPEWALK_SEEDS").is_some() { 120 } else { 3 };
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| repeat(end, |round| replace(&one, round)));
        // One beside the one that replaces, two through the other mount.
        let visiting = [&one, &two, &two]
            .map(|root| scope.spawn(move || repeat(end, |_| visit(root))));
        let visits = visiting.map(|visiting| visiting.join().unwrap());
        println!("{} replacements, {visits:?} visits", replacing.join().unwrap());
    });
    place.leave();
}

#[test]
fn directories_that_the_other_mount_moved_or_removed() {
    if !mounts_usable() {
        return;
    }
    let place = Place::new();
    let (one, two) = (place.path("one"), place.path("two"));
    fs::create_dir_all(one.join("todo/job")).unwrap();
    fs::create_dir(one.join("done")).unwrap();
    fs::write(one.join("todo/job/file"), "x").unwrap();
    assert_eq!(fs::read(two.join("todo/job/file")).unwrap(), b"x");
    let standing = rustix::fs::open(two.join("todo/job"), OFlags::RDONLY, 0.into()).unwrap();
    let number = fs::metadata(two.join("todo/job")).unwrap().ino();
    for _ in 0..3 {
        fs::rename(one.join("todo/job"), one.join("done/job")).unwrap();
        fs::rename(two.join("done/job"), two.join("todo/job")).unwrap();
        assert_eq!(fs::metadata(two.join("todo/job")).unwrap().ino(), number);
    }
    // Below itself, as the kernel of the other mount has it.
    fs::create_dir(one.join("todo/job/deep")).unwrap();
    fs::metadata(two.join("todo/job/deep")).unwrap();
    fs::rename(one.join("todo/job/deep"), one.join("deep")).unwrap();
    fs::rename(one.join("todo"), one.join("deep/todo")).unwrap();
    assert_eq!(fs::read(two.join("deep/todo/job/file")).unwrap(), b"x");
    // Who stood in it goes on there, and after its removal finds nothing.
    let file = rustix::fs::openat(&standing, "file", OFlags::RDONLY, 0.into()).unwrap();
    fs::set_permissions(one.join("deep/todo/job"), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(rustix::fs::fstat(&standing).unwrap().st_mode & 0o777, 0o751);
    fs::remove_dir_all(one.join("deep")).unwrap();
    assert_eq!(rustix::fs::fstat(&standing).unwrap().st_nlink, 0);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    let make = rustix::fs::mkdirat(&standing, "new", 0o755.into());
    assert_eq!(make.unwrap_err(), rustix::io::Errno::NOENT);
    let open = rustix::fs::openat(&standing, "file", OFlags::RDONLY, 0.into());
    assert_eq!(open.unwrap_err(), rustix::io::Errno::NOENT);
    // Also when nobody remembers it any more but this mount.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(rustix::fs::fstat(&standing).unwrap().st_nlink, 0);
    let make = rustix::fs::mkdirat(&standing, "new", 0o755.into());
    assert_eq!(make.unwrap_err(), rustix::io::Errno::NOENT);
    drop((standing, file));
    place.leave();
}
