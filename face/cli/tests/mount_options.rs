//! Options of mounts: as mount(8) has them, by the command and by the name of a mount helper.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use support::posix::{chmod, errno};
use support::{Cluster, Process, mounts_usable, program, unmount};

const ALICE: u32 = 10_001;

/// Source, type and options in the table of mounts; of the mount, and behind it of the file system.
fn table(path: &Path) -> Option<(String, String, Vec<String>)> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let path = fs::canonicalize(path).unwrap();
    let line = text.lines().rfind(|line| line.split(' ').nth(4) == path.to_str())?;
    let (front, back) = line.split_once(" - ")?;
    let mut back = back.split(' ');
    let (kind, source) = (back.next()?.to_string(), back.next()?.to_string());
    let options = front.split(' ').nth(5)?.split(',').map(str::to_string).collect();
    Some((source, kind, options))
}

fn has(path: &Path, words: &[&str], not: &[&str]) {
    let (_, _, options) = table(path).expect("it is mounted");
    let is = |word: &&str| options.iter().any(|option| option == word);
    assert!(words.iter().all(is), "{words:?} of {options:?}");
    assert!(!not.iter().any(is), "none of {not:?} in {options:?}");
}

fn ropewalk(arguments: &[&str]) -> Output {
    program().args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

struct Site {
    cluster: Cluster,
    place: tempfile::TempDir,
}

impl Site {
    /// None where nothing can be mounted with options that only root has.
    fn new() -> Option<Site> {
        if !mounts_usable() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("SKIP: only root mounts with suid and dev");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        chmod(place.path(), 0o755);
        let cluster = Cluster::start(&place.path().join("cluster"));
        Some(Site { cluster, place })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        let path = self.place.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    fn mount(&self, path: &Path, options: &[&str]) -> Process {
        let address = self.cluster.address();
        let mut arguments = vec!["mount", &address, path.to_str().unwrap()];
        options.iter().for_each(|words| arguments.extend(["-o", words]));
        Process::mount(&arguments, path)
    }
}

#[test]
fn options_do_what_they_say() {
    let Some(site) = Site::new() else { return };
    let (plain, bold) = (site.path("plain"), site.path("bold"));
    let (_plain, _bold) = (site.mount(&plain, &[]), site.mount(&bold, &["suid,dev"]));
    has(&plain, &["rw", "nosuid", "nodev", "noatime"], &["ro", "noexec"]);
    has(&bold, &["rw", "noatime"], &["nosuid", "nodev", "noexec"]);
    let (source, kind, _) = table(&bold).unwrap();
    assert_eq!((source, kind.as_str()), (site.cluster.address(), "fuse.ropewalk"));
    chmod(&bold, 0o755);
    // A program runs as its owner where the mount says so, and nowhere else.
    fs::copy("/usr/bin/id", bold.join("id")).unwrap();
    chmod(&bold.join("id"), 0o4755);
    let user = |path: &Path| {
        let output = Command::new(path.join("id")).arg("-u").uid(ALICE).gid(ALICE).output();
        String::from_utf8(output.unwrap().stdout).unwrap().trim().to_string()
    };
    assert_eq!((user(&bold).as_str(), user(&plain)), ("0", ALICE.to_string()));
    // So does a file become a device.
    let bits = Mode::from_raw_mode(0o666);
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, bold.join("null"), FileType::CharacterDevice, bits, null).unwrap();
    File::options().write(true).open(bold.join("null")).unwrap().write_all(b"gone").unwrap();
    assert_eq!(errno(File::options().write(true).open(plain.join("null"))), Errno::ACCESS);
    // Options of a mount that is there.
    let change = |words: &str, path: &Path| {
        let output = ropewalk(&["mount", "-o", words, path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
    };
    change("remount,ro,noexec", &plain);
    has(&plain, &["ro", "noexec", "nosuid"], &["rw"]);
    assert_eq!(errno(fs::write(plain.join("new"), "x")), Errno::ROFS);
    assert_eq!(errno(Command::new(plain.join("id")).status()), Errno::ACCESS);
    change("remount,rw,exec,suid", &plain);
    has(&plain, &["rw"], &["ro", "noexec", "nosuid"]);
    fs::write(plain.join("new"), "x").unwrap();
    assert_eq!(user(&plain), "0");
    unmount(&plain);
    unmount(&bold);
}

#[test]
fn a_mount_for_reading_refuses_changes_itself() {
    let Some(site) = Site::new() else { return };
    let (writes, reads) = (site.path("writes"), site.path("reads"));
    let (_writes, _reads) = (site.mount(&writes, &[]), site.mount(&reads, &["rw", "ro"]));
    fs::write(writes.join("file"), "content").unwrap();
    fs::create_dir(writes.join("directory")).unwrap();
    has(&reads, &["ro"], &["rw"]);
    for round in ["as mounted", "remounted"] {
        assert_eq!(fs::read(reads.join("file")).unwrap(), b"content");
        let changes: [(&str, std::io::Result<()>); 9] = [
            ("write", fs::write(reads.join("file"), "other")),
            ("create", File::create_new(reads.join("new")).map(drop)),
            ("unlink", fs::remove_file(reads.join("file"))),
            ("mkdir", fs::create_dir(reads.join("more"))),
            ("rmdir", fs::remove_dir(reads.join("directory"))),
            ("rename", fs::rename(reads.join("file"), reads.join("moved"))),
            ("link", fs::hard_link(reads.join("file"), reads.join("linked"))),
            ("chmod", fs::set_permissions(reads.join("file"), fs::Permissions::from_mode(0o600))),
            ("append", File::options().append(true).open(reads.join("file")).map(drop)),
        ];
        for (name, outcome) in changes {
            assert_eq!(errno(outcome), Errno::ROFS, "{name} {round}");
        }
        // The mount was made for reading, whatever the kernel believes.
        let output = ropewalk(&["mount", "-o", "remount,rw", reads.to_str().unwrap()]);
        assert!(output.status.success(), "{}", said(&output));
        has(&reads, &["rw"], &["ro"]);
    }
    unmount(&reads);
    unmount(&writes);
}

#[test]
fn mount_finds_a_helper_by_its_name() {
    let Some(site) = Site::new() else { return };
    let (path, address) = (site.path("mount"), site.cluster.address());
    let log = site.place.path().join("log");
    let program = support::program().get_args().nth(1).unwrap().to_owned();
    for name in ["mount.ropewalk", "mount.fuse.ropewalk", "ropewalk"] {
        let helper = site.place.path().join(name);
        std::os::unix::fs::symlink(&program, &helper).unwrap();
        let options = format!("rw,nosuid,noexec,_netdev,patience=5,log={}", log.display());
        let mut command = Command::new(&helper);
        // A helper's source needs no scheme.
        let source = match name {
            "ropewalk" => &address,
            _ => address.strip_prefix("tcp://").unwrap(),
        };
        command.args([source, path.to_str().unwrap(), "-n", "-o", &options]);
        let output = command.args(["-t", "fuse.ropewalk"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        has(&path, &["rw", "nosuid", "noexec"], &["nodev"]);
        fs::write(path.join("file"), name).unwrap();
        assert!(log.exists());
        // Without a line in /etc/fstab mount(8) hands over what the kernel says.
        let again = "remount,ro,nosuid,noexec,user_id=0,group_id=0,default_permissions,allow_other";
        let mut command = Command::new(&helper);
        let output = command.arg(source).arg(&path).args(["-o", again]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        has(&path, &["ro", "nosuid", "noexec"], &["nodev"]);
        unmount(&path);
        // Of others' words none is ours, unless they say that some may not be.
        let call = |words: &[&str]| {
            let mut command = Command::new(&helper);
            command.arg(&address).arg(&path).args(words).output().unwrap()
        };
        let refused = call(&["-o", "sudi"]);
        assert!(
            !refused.status.success() && said(&refused).contains("unknown mount option 'sudi'")
        );
        assert!(call(&["-sf", "-o", "sudi"]).status.success());
        assert!(table(&path).is_none());
    }
}

#[test]
fn a_mount_without_an_address_asks_the_one_of_the_environment() {
    let Some(site) = Site::new() else { return };
    let (path, address) = (site.path("mount"), site.cluster.address());
    let run = |arguments: &[&str]| {
        let mut command = support::program();
        command.args(arguments).env("ROPEWALK_ADDRESS", &address).output().unwrap()
    };
    let place = path.to_str().unwrap();
    let output = run(&["mount", place, "--background"]);
    assert!(output.status.success(), "{}", said(&output));
    has(&path, &["nosuid", "nodev"], &["ro"]);
    let (source, ..) = table(&path).unwrap();
    assert!(source.contains(&address), "{source} is not {address}");
    unmount(&path);
    // A lone word with a port is an address, not a directory.
    let nowhere = run(&["mount", "127.0.0.1:7700"]);
    assert!(said(&nowhere).contains("no directory to mount on"), "{}", said(&nowhere));
}
