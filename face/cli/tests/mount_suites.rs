//! Outside suites on a mount: `cargo verify --deep` runs them, if they can be had.
//!
//! The findings, the versions and the meaning of each expected failure are in
//! `docs/design/041-posix-conformance.md`. The suites are installed under `target/suites`, by Cargo.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Cluster, installed, mounts_usable, unmount};

/// Stressors of stress-ng that verify what they do on files.
const STRESSORS: &[&str] = &[
    "access",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dup",
    "fallocate",
    "fcntl",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inotify",
    "io",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "readahead",
    "rename",
    "seek",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "xattr",
    "mmap",
    "msync",
    "sendfile",
    "splice",
    "chattr",
    "dnotify",
    "fanotify",
    "aio",
    "aiol",
    "revio",
];

/// Operations of fsx beside those that it does anyway, with their weights.
const FSX_WEIGHTS: &str = "close_open = 3\ninvalidate = 0.3\nfsync = 0.1\nfdatasync = 0.1\n\
     posix_fallocate = 0.3\npunch_hole = 0.4\nsendfile = 0.3\nposix_fadvise = 0.2\n\
     copy_file_range = 0.5\n";

/// Builds a suite from crates.io; `None`, and said, if it cannot be had.
fn suite(name: &str, version: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/suites");
    let output = Command::new(env!("CARGO"))
        .args(["install", name, "--version", version, "--locked", "--root"])
        .arg(&root)
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo runs");
    if output.status.success() {
        return Some(root.join("bin").join(name));
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("SKIP: {name} {version} cannot be installed: {}", said.lines().last().unwrap_or(""));
    None
}

/// A cluster with two mounts, for the time of one test.
fn with_mounts(work: impl FnOnce(&Path, &Path)) {
    let place = tempfile::tempdir().unwrap();
    let (a, b) = (place.path().join("a"), place.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    // Other users have to reach the mounts, too.
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let cluster = Cluster::start(&place.path().join("cluster"));
    let (_one, _two) = (cluster.mount(&a), cluster.mount(&b));
    work(&a, &b);
    unmount(&a);
    unmount(&b);
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[test]
#[ignore = "long: run by `cargo verify --deep`"]
fn pjdfstest_passes() {
    if !mounts_usable() {
        return;
    }
    let Some(program) = suite("pjdfstest", "0.2.2") else { return };
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("config.toml");
    // Remounting is left out: it is the kernel's alone, and the suite's own open files hinder it.
    let features =
        ["posix_fallocate", "utime_now", "utimensat", "rename_ctime", "stat_st_birthtime"];
    let features: String = features.iter().map(|name| format!("{name} = {{}}\n")).collect();
    let text_of_config = format!(
        "[features]\n{features}[settings]\nnaptime = 0.01\n[dummy_auth]\n\
         entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    );
    fs::write(&config, text_of_config).unwrap();
    with_mounts(|a, _| {
        let output = Command::new("timeout")
            .args(["600", program.to_str().unwrap(), "-c", config.to_str().unwrap(), "-p"])
            .args([a, Path::new("--secondary-fs"), place.path()])
            .output()
            .unwrap();
        let text = text(&output);
        let summary = text.lines().find(|line| line.starts_with("Summary")).unwrap_or("no summary");
        println!("pjdfstest: {summary}");
        let failed: Vec<&str> = text.lines().filter(|line| line.contains(" FAILED")).collect();
        assert!(output.status.success() && failed.is_empty(), "{summary}\n{}", failed.join("\n"));
    });
}

/// Runs fsx on `path`; panics with what it said where it found a difference.
fn fsx(program: &Path, place: &Path, path: &Path, sizes: (u64, u64), operations: u64, seed: u64) {
    let config = place.join("fsx.toml");
    let (len, most) = sizes;
    let weights = format!("flen = {len}\n[opsize]\nmax = {most}\n[weights]\n{FSX_WEIGHTS}");
    fs::write(&config, weights).unwrap();
    let output = Command::new("timeout")
        .arg("900")
        .arg(program)
        .args(["-q", "-N", &operations.to_string(), "-S", &seed.to_string(), "-f"])
        .args([&config, Path::new("-P"), place, path])
        .output()
        .unwrap();
    let text = text(&output);
    // At the end of its range fsx asks for no bytes at all, and takes EINVAL for a lack, on any file
    // system: all that came before was as it should be.
    let own = text.contains("does not support posix_fallocate") && text.contains("(   0x0 bytes)");
    assert!(output.status.success() || own, "seed {seed} sizes {sizes:?}\n{text}");
}

const FSX_RUNS: [((u64, u64), u64); 3] =
    [((12_000, 5_000), 20_000), ((300_000, 65_536), 20_000), ((20_000_000, 3_000_000), 1_000)];

#[test]
#[ignore = "long: run by `cargo verify --deep`"]
fn fsx_finds_no_difference_on_one_mount() {
    if !mounts_usable() {
        return;
    }
    let Some(program) = suite("fsx", "0.3.2") else { return };
    let place = tempfile::tempdir().unwrap();
    with_mounts(|a, _| {
        for seed in 1..=3 {
            for (sizes, operations) in FSX_RUNS {
                fsx(&program, place.path(), &a.join("file"), sizes, operations, seed);
            }
        }
    });
}

/// The path that fsx reopens all the time is a link that goes back and forth between two mounts.
#[test]
#[ignore = "long: run by `cargo verify --deep`"]
fn fsx_finds_no_difference_between_two_mounts() {
    if !mounts_usable() {
        return;
    }
    let Some(program) = suite("fsx", "0.3.2") else { return };
    let place = tempfile::tempdir().unwrap();
    with_mounts(|a, b| {
        fs::write(a.join("file"), "").unwrap();
        let (link, next) = (place.path().join("link"), place.path().join("next"));
        symlink(a.join("file"), &link).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (over, link) = (&over, &link);
            scope.spawn(move || {
                for mount in [b, a].into_iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    symlink(mount.join("file"), &next).unwrap();
                    fs::rename(&next, link).unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(13));
                }
            });
            // The other thread has to end also where fsx found something.
            let _stop = Stop(over);
            for seed in 1..=3 {
                for (sizes, operations) in FSX_RUNS {
                    fsx(&program, place.path(), link, sizes, operations, seed);
                }
            }
        });
    });
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "long: run by `cargo verify --deep`"]
fn stressors_verify_what_they_did() {
    if !mounts_usable() || !installed("stress-ng") {
        return;
    }
    with_mounts(|a, _| {
        let mut failed = Vec::new();
        for stressor in STRESSORS {
            let directory = a.join(stressor);
            fs::create_dir(&directory).unwrap();
            let output = Command::new("timeout")
                .args(["120", "stress-ng", &format!("--{stressor}"), "2", "--timeout", "3"])
                .args(["--verify", "--temp-path"])
                .arg(&directory)
                .current_dir(&directory)
                .output()
                .unwrap();
            // 4: this version or kernel does not have it.
            if !matches!(output.status.code(), Some(0 | 4)) {
                failed.push(format!("{stressor}: {}\n{}", output.status, text(&output)));
            }
            let left = fs::read_dir(&directory).unwrap().count();
            if left > 0 {
                failed.push(format!("{stressor}: {left} entries are left"));
            }
            fs::remove_dir_all(&directory).unwrap();
        }
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    });
}
