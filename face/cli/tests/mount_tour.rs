//! The tour of README.md, line by line as it is printed there.

mod support;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Signal, kill_process};
use support::command::{Plain, ropewalk};
use support::{Cluster, PROGRAM, Process, installed, mounts_usable, processes};

/// The lines of the first block below "Five minutes".
fn tour() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = fs::read_to_string(path).unwrap();
    let (_, text) = text.split_once("## Five minutes\n\n").expect("the tour has a title");
    let block = text.lines().take_while(|line| !line.is_empty());
    block.map(|line| line.strip_prefix("    ").expect("a block of commands").to_string()).collect()
}

/// The tour as a script, with places of its own and without the building.
fn script(place: &Path, programs: &Path) -> String {
    let mut lines = tour();
    assert!(
        lines.remove(0).starts_with("cargo build --release && export PATH="),
        "it builds first"
    );
    assert!(lines.len() >= 8, "{lines:?}");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = place.display().to_string();
    let text = lines
        .join("\n")
        .replace("/tmp/rope/data --mount", &format!("/tmp/rope/data --listen {free} --mount"))
        .replace("127.0.0.1:7700", &free.to_string())
        .replace("/tmp/rope", &format!("{place}/rope"))
        .replace("/usr/share/doc", &format!("{place}/doc"));
    assert!(!text.contains("/tmp/rope/") && text.contains("--listen"), "{text}");
    format!("set -e\nexport PATH={}:$PATH\n{text}\n", programs.display())
}

fn source(place: &Path) {
    for number in 0..200 {
        let directory = place.join(format!("doc/d{}", number % 7));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("f{number}")), vec![number as u8; number * 500]).unwrap();
    }
    std::os::unix::fs::symlink("nowhere", place.join("doc/dangling")).unwrap();
}

/// Runs the tour twice, and looks that nothing is left of it.
fn run(mut shell: impl FnMut() -> Command, place: &Path, programs: &Path) {
    let temporary = place.join("temporary");
    for _ in 0..2 {
        let log = fs::File::create(place.join("said")).unwrap();
        let mut command = shell();
        command.args(["-c", &script(place, programs)]).current_dir("/").env("TMPDIR", &temporary);
        // A background process keeps no terminal and no pipe of ours.
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let status = command.status().unwrap();
        let said = fs::read_to_string(place.join("said")).unwrap();
        assert!(status.success(), "{status}: {said}");
        assert_eq!(said.matches("running in the background as process").count(), 3, "{said}");
        assert!(said.contains("has stopped"), "{said}");
        let deadline = Instant::now() + Duration::from_secs(90);
        while !processes(&temporary).is_empty() {
            assert!(Instant::now() < deadline, "{:?} are left: {said}", processes(&temporary));
            std::thread::sleep(Duration::from_millis(20));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(place.to_str().unwrap()), "nothing stays mounted: {said}");
        assert!(!place.join("rope").exists(), "it cleans up");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "nothing temporary is left");
    }
}

#[test]
fn the_tour_can_be_pasted_twice() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    source(place.path());
    fs::create_dir(place.path().join("temporary")).unwrap();
    run(|| Command::new("sh"), place.path(), Path::new(PROGRAM).parent().unwrap());
}

#[test]
fn the_tour_can_be_pasted_by_a_plain_user() {
    if !mounts_usable() || !installed("fusermount3") || !rustix::process::geteuid().is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    // Puts the program where he may run it.
    let _plain = Plain::new(place.path());
    source(place.path());
    fs::create_dir(place.path().join("temporary")).unwrap();
    for path in [place.path().to_path_buf(), place.path().join("temporary")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    // The device is everybody's on most systems, and is so here, in a name space of its mounts.
    let device = place.path().join("fuse");
    let number = rustix::fs::makedev(10, 229);
    let (kind, mode) = (FileType::CharacterDevice, Mode::from_raw_mode(0o666));
    rustix::fs::mknodat(CWD, &device, kind, mode, number).unwrap();
    fs::set_permissions(&device, fs::Permissions::from_mode(0o666)).unwrap();
    let open = format!(
        "mount --bind {} /dev/fuse && exec setpriv --reuid 65534 --regid 65534 --clear-groups sh \"$@\"",
        device.display()
    );
    let shell = || {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &open, "sh"]);
        command
    };
    run(shell, place.path(), place.path());
}

#[test]
fn a_closed_terminal_ends_mounts_and_clusters_in_good_order() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let [mount, other, data] = ["mount", "other", "data"].map(|name| place.path().join(name));
    fs::create_dir(&mount).unwrap();
    fs::create_dir(&other).unwrap();
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    {
        let cluster = Cluster::start(&place.path().join("cluster"));
        let arguments = ["mount", &cluster.address(), mount.to_str().unwrap()];
        let process = Process::mount(&arguments, &mount);
        let arguments = ["up", data.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        let more = ["--mount", other.to_str().unwrap()];
        let up = Process::mount(&[&arguments[..], &more].concat(), &other);
        // A second one in the same directory is refused.
        let error = ropewalk(place.path(), "", &arguments).badly();
        assert!(error.contains("is already served by process"), "{error}");
        for mut process in [process, up] {
            fs::write(mount.join("file"), b"content")
                .or(fs::write(other.join("file"), b""))
                .unwrap();
            kill_process(process.pid(), Signal::HUP).unwrap();
            let deadline = Instant::now() + Duration::from_secs(60);
            while !process.is_over() {
                assert!(Instant::now() < deadline, "it does not end");
                std::thread::sleep(Duration::from_millis(20));
            }
            // Its drop would unmount.
            std::mem::forget(process);
        }
        assert!(!mounts().contains(place.path().to_str().unwrap()), "nothing stays mounted");
    }
    let error = ropewalk(place.path(), "", &["down", "data"]).badly();
    assert!(error.contains("no cluster is running in data"), "{error}");
    // A start that fails says why.
    let arguments = ["up", "data", "--background", "--listen", "192.0.2.1:7700"];
    let error = ropewalk(place.path(), "", &arguments).badly();
    assert!(error.contains("process did not start") && error.contains("by --insecure"), "{error}");
}
