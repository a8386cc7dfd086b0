//! System programs that some steps use, as Debian packages: the only list of them, and their installation.
//!
//! Invariant: installing is help, never a condition. If it does not work, the tests that need
//! the program say `SKIP:` themselves, and that is a failure only where `CI=true`.

use std::path::Path;
use std::process::{Command, Stdio};

/// A package and a program, or the path of a file, by which one sees that it is there.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    pub name: &'static str,
    pub program: &'static str,
}

const fn package(name: &'static str, program: &'static str) -> Package {
    Package { name, program }
}

/// The packages that the ordinary tests use. Tests of the FUSE loop mount as plain users, too. Tests that count
/// instructions run under valgrind. Tests of the C interfaces compile programs and read manual pages.
/// Tests of the Wireshark dissector run tshark (22 MB, 130 on the disk). The test of our own packages checks the units,
/// and copies other programs into a fresh root directory.
pub const TESTS: &[Package] = &[
    package("fuse3", "fusermount3"),
    package("valgrind", "valgrind"),
    package("gcc", "gcc"),
    package("g++", "g++"),
    package("binutils", "nm"),
    package("pkg-config", "pkg-config"),
    package("mandoc", "mandoc"),
    package("tshark", "tshark"),
    package("dpkg", "dpkg-deb"),
    package("systemd", "systemd-analyze"),
    package("passwd", "useradd"),
    package("util-linux", "setpriv"),
    package("mount", "mount"),
    package("tar", "tar"),
];

/// The packages that the tests on a mount use: ordinary tools that must work on the file system.
pub const MOUNT: &[Package] = &[
    package("fuse3", "fusermount3"),
    package("attr", "setfattr"),
    package("sqlite3", "sqlite3"),
    package("fio", "fio"),
    package("git", "git"),
    package("tar", "tar"),
    package("postmark", "postmark"),
    package("xfsprogs", "xfs_io"),
];

/// The packages that the outside suites of `--deep` use, beside the programs that Cargo installs.
pub const SUITES: &[Package] =
    &[package("fuse3", "fusermount3"), package("stress-ng", "stress-ng")];

/// The packages that the tests with real processes use: file systems whose power can be cut, networks of namespaces
/// whose frames can be dropped, the etcd that votes between two metadata servers, and the MPIs. The figures of messages are compared with these MPIs, and the C
/// interfaces work beside them.
pub const PROCESSES: &[Package] = &[
    package("xfsprogs", "mkfs.xfs"),
    package("xfsprogs", "xfs_io"),
    package("e2fsprogs", "mkfs.ext4"),
    package("iproute2", "ip"),
    package("nftables", "nft"),
    package("etcd-server", "etcd"),
    package("etcd-client", "etcdctl"),
    package("gcc", "gcc"),
    package("openmpi-bin", "mpirun.openmpi"),
    package("libopenmpi-dev", "/usr/lib/x86_64-linux-gnu/openmpi/include/mpi.h"),
    package("mpich", "mpirun.mpich"),
    package("libmpich-dev", "/usr/include/x86_64-linux-gnu/mpich/mpi.h"),
];

/// Peers beside which `--deep` measures messages, and file systems whose servers die.
pub const PEERS: &[Package] = &[
    package("ucx-utils", "ucx_perftest"),
    package("libfabric-bin", "fi_pingpong"),
    package("glusterfs-server", "glusterd"),
    package("glusterfs-client", "glusterfs"),
    package("moosefs-master", "mfsmaster"),
    package("moosefs-chunkserver", "mfschunkserver"),
    package("moosefs-client", "mfsmount"),
];

/// Installs what is missing of `wanted`; a sentence where that did not work.
pub fn install(wanted: &[Package]) -> Option<String> {
    let mut missing = missing(wanted, is_installed);
    if missing.is_empty() {
        return None;
    }
    let list = missing.join(" ");
    if !is_root() || !is_installed("apt-get") {
        return Some(format!("missing: {list} (as root on Debian they would be installed here)"));
    }
    // Lists may be absent on a fresh machine, or out of date on an old one.
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.append(&mut missing);
    if apt(&arguments) || (apt(&["update"]) && apt(&arguments)) {
        return None;
    }
    Some(format!("apt-get could not install: {list}"))
}

fn missing(wanted: &[Package], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut names: Vec<&'static str> =
        wanted.iter().filter(|package| !is_there(package.program)).map(|p| p.name).collect();
    names.dedup();
    names
}

fn apt(arguments: &[&str]) -> bool {
    Command::new("apt-get")
        .arg("--quiet")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Programs of the administrator are not on everyone's path.
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).to_path_buf()))
        .any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| {
        line.strip_prefix("Uid:").and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_asked_for_and_once() {
        assert_eq!(missing(MOUNT, |_| true), [""; 0]);
        let disks = ["mkfs.xfs", "xfs_io", "mkfs.ext4"];
        let missing_disks = missing(PROCESSES, |program| !disks.contains(&program));
        assert_eq!(missing_disks, ["xfsprogs", "e2fsprogs"]);
        assert_eq!(missing(MOUNT, |program| program != "setfattr"), ["attr"]);
        assert_eq!(install(&[]), None);
        assert!(is_installed("sh") && !is_installed("no-such-program-anywhere"));
        assert!(is_installed("/etc/passwd") && !is_installed("/etc/no-such-file"));
    }
}
