//! Names through two mounts of one cluster: as if there were one kernel.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, OFlags, RenameFlags};

use support::names::{Chooser, Side};
use support::{Cluster, Process, mounts_usable, run, unmount};

/// A cluster with two mounts, and a directory of the local file system.
struct Place {
    directory: tempfile::TempDir,
    cluster: Cluster,
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
        Place { directory, cluster, _mounts: mounts }
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
        let tail = || history[history.len().saturating_sub(40)..].join("\n");
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
    // One seed alone, to look into it.
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

/// Longer than any call may take: a client that answers no recall is given up after 10 seconds.
const SLOW: Duration = Duration::from_secs(5);

/// Runs `work` again and again until the end; returns the number of runs.
fn repeat(end: Instant, mut work: impl FnMut(u64)) -> u64 {
    let mut rounds = 0;
    while Instant::now() < end {
        let begin = Instant::now();
        work(rounds);
        let slow = begin.elapsed();
        assert!(slow < SLOW, "round {rounds} took {slow:?}");
        rounds += 1;
    }
    rounds
}

/// One kind of name that is replaced, and looked at.
type Kind = (&'static str, fn(&Path, u64), fn(&Path));

const KINDS: [Kind; 4] = [
    ("file", replace_file, visit_file),
    ("link", replace_link, visit_link),
    ("directory", exchange_directories, visit_directory),
    ("program", replace_program, run_program),
];

fn replace_file(root: &Path, round: u64) {
    let new = root.join("new");
    fs::write(&new, format!("round {round}")).unwrap();
    fs::rename(&new, root.join("file")).unwrap();
}

fn replace_link(root: &Path, round: u64) {
    let new = root.join("new link");
    std::os::unix::fs::symlink(format!("target {round}"), &new).unwrap();
    fs::rename(&new, root.join("link")).unwrap();
}

fn exchange_directories(root: &Path, _round: u64) {
    let (one, two) = (root.join("directory"), root.join("other"));
    rustix::fs::renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
}

/// Written by a process of its own: a process that starts beside it here must not have it open.
fn replace_program(root: &Path, _round: u64) {
    let new = root.join("new program");
    let copied = Command::new("cp").arg("/bin/true").arg(&new).status();
    assert!(copied.expect("cp is everywhere").success());
    fs::rename(&new, root.join("program")).unwrap();
}

fn run_program(root: &Path) {
    assert!(Command::new(root.join("program")).status().expect("execute").success());
}

fn visit_file(root: &Path) {
    assert!(fs::metadata(root.join("file")).expect("stat").is_file());
    let text = fs::read_to_string(root.join("file")).expect("open and read");
    assert!(text.starts_with("round "), "{text:?}");
}

fn visit_link(root: &Path) {
    let target = fs::read_link(root.join("link")).expect("readlink");
    assert!(target.to_str().unwrap().starts_with("target "));
    assert!(fs::symlink_metadata(root.join("link")).expect("lstat").is_symlink());
}

fn visit_directory(root: &Path) {
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
    let seconds = if std::env::var_os("ROPEWALK_SEEDS").is_some() { 60 } else { 1 };
    for (name, replace, visit) in KINDS {
        replace(&one, 0);
        let end = Instant::now() + Duration::from_secs(seconds);
        std::thread::scope(|scope| {
            let replacing = scope.spawn(|| repeat(end, |round| replace(&one, round)));
            // Beside the one that replaces, and through the other mount.
            let visiting =
                [&one, &two].map(|root| scope.spawn(move || repeat(end, |_| visit(root))));
            let visits = visiting.map(|visiting| visiting.join().unwrap());
            println!("{name}: {} replaced, {visits:?} visits", replacing.join().unwrap());
        });
    }
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
    let standing =
        rustix::fs::open(two.join("todo/job"), OFlags::RDONLY | OFlags::CLOEXEC, 0.into()).unwrap();
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
    // A process that stood in the directory goes on there, and after its removal finds nothing.
    let file =
        rustix::fs::openat(&standing, "file", OFlags::RDONLY | OFlags::CLOEXEC, 0.into()).unwrap();
    fs::set_permissions(one.join("deep/todo/job"), fs::Permissions::from_mode(0o751)).unwrap();
    assert_eq!(rustix::fs::fstat(&standing).unwrap().st_mode & 0o777, 0o751);
    fs::remove_dir_all(one.join("deep")).unwrap();
    assert_eq!(rustix::fs::fstat(&standing).unwrap().st_nlink, 0);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    let make = rustix::fs::mkdirat(&standing, "new", 0o755.into());
    assert_eq!(make.unwrap_err(), rustix::io::Errno::NOENT);
    let open = rustix::fs::openat(&standing, "file", OFlags::RDONLY | OFlags::CLOEXEC, 0.into());
    assert_eq!(open.unwrap_err(), rustix::io::Errno::NOENT);
    // Also when nobody remembers it any more but this mount.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(rustix::fs::fstat(&standing).unwrap().st_nlink, 0);
    let make = rustix::fs::mkdirat(&standing, "new", 0o755.into());
    assert_eq!(make.unwrap_err(), rustix::io::Errno::NOENT);
    drop((standing, file));
    place.leave();
}

/// Calls that the metadata server has served, but for those that tell that somebody lives.
fn calls(cluster: &Cluster) -> u64 {
    let mut command = Command::new(support::PROGRAM);
    command.args(["status", "--json", "--interval", "0", "--address", &cluster.address()]);
    let output = command.output().unwrap();
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let beside = ["heartbeat", "status", "list servers", "list sessions", "renew session"];
    let kinds = status["metadata"]["calls"].as_object().unwrap();
    let kinds = kinds.iter().filter(|(kind, _)| !beside.contains(&kind.as_str()));
    kinds.map(|(_, done)| done["calls"].as_u64().unwrap()).sum()
}

#[test]
fn listings_cost_messages_for_pieces_and_changes_one_for_a_name() {
    if !mounts_usable() {
        return;
    }
    const FILES: u64 = 2000;
    /// Messages for the directories above, pieces of listings, and what a moment brings.
    const BESIDE: u64 = 60;
    let place = Place::new();
    let (one, two) = (place.path("one"), place.path("two"));
    let cost = |what: &str, most: u64, work: &dyn Fn()| {
        let before = calls(&place.cluster);
        work();
        let cost = calls(&place.cluster) - before;
        println!("{what}: {cost} messages for {FILES} names");
        assert!(cost <= most + BESIDE, "{what}: {cost} messages");
    };
    let make = |directory: &Path| {
        fs::create_dir(directory).unwrap();
        (0..FILES).for_each(|number| drop(File::create(directory.join(number.to_string()))));
    };
    cost("create", FILES, &|| make(&one.join("a")));
    cost("ls -l where they were made", 0, &|| drop(run(&one, "ls", &["-l", "a"])));
    // Each is asked for, or read ahead, once; and the other mount gives its lease on each back.
    cost("ls -l elsewhere", 2 * FILES, &|| drop(run(&two, "ls", &["-l", "a"])));
    cost("ls -l once more", 0, &|| drop(run(&two, "ls", &["-l", "a"])));
    make(&one.join("b"));
    cost("rm -r where they were made", FILES, &|| drop(run(&one, "rm", &["-r", "b"])));
    place.leave();
}
