//! A fresh root directory: a few programs of this host, their libraries, and nothing else. dpkg installs the package
//! there, and programs run there in a mount namespace of their own.
//!
//! Invariant: nothing of the host changes. Mounts end with the namespace of the process that made them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{is_there, succeed, text};

/// Programs of every Debian that the package's scripts and the tests use.
const PROGRAMS: &[&str] = &[
    "/bin/sh",
    "/bin/cat",
    "/bin/cmp",
    "/bin/cp",
    "/bin/grep",
    "/bin/id",
    "/bin/install",
    "/bin/ls",
    "/bin/mkdir",
    "/bin/mount",
    "/bin/mountpoint",
    "/bin/rm",
    "/bin/seq",
    "/bin/sleep",
    "/bin/stat",
    "/bin/umount",
    "/bin/env",
    "/bin/getent",
    "/bin/setpriv",
    "/sbin/useradd",
    "/sbin/ldconfig",
    "/sbin/nologin",
];

pub struct Fresh(PathBuf);

impl Fresh {
    /// Makes it.
    pub fn new(root: &Path) -> Fresh {
        for folder in [
            "usr/bin",
            "usr/sbin",
            "usr/lib",
            "usr/lib64",
            "etc",
            "proc",
            "sys",
            "dev",
            "tmp",
            "run",
            "mnt",
            "var/lib/dpkg/info",
            "var/lib/dpkg/updates",
            "var/log",
        ] {
            fs::create_dir_all(root.join(folder)).expect("a folder");
        }
        fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).expect("ours");
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name)).expect("a link");
        }
        for (name, content) in [
            ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
            ("etc/group", "root:x:0:\n"),
            ("etc/nsswitch.conf", "passwd: files\ngroup: files\n"),
            ("var/lib/dpkg/status", ""),
            ("var/lib/dpkg/available", ""),
        ] {
            fs::write(root.join(name), content).expect("a file");
        }
        let fresh = Fresh(root.to_path_buf());
        let mut files: BTreeSet<PathBuf> = BTreeSet::new();
        for program in PROGRAMS {
            files.insert(PathBuf::from(program));
            files.extend(libraries(Path::new(program)));
        }
        // The only libraries that the package asks for.
        files.extend(libraries(Path::new("/bin/sh")));
        files.extend(found_library("libgcc_s.so.1"));
        for name in ["libm.so.6", "libdl.so.2", "libpthread.so.0"] {
            files.extend(found_library(name));
        }
        for file in files {
            fresh.copy(&file);
        }
        fresh
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    fn copy(&self, file: &Path) {
        let real =
            fs::canonicalize(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let to = self.0.join(file.strip_prefix("/").expect("a whole path"));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(real, to).expect("a copy");
    }

    /// Installs the package. Its dependencies are not in dpkg's database, since they were copied.
    pub fn install(&self, deb: &Path) {
        let mut dpkg = self.dpkg();
        succeed(dpkg.args(["--force-depends", "--install"]).arg(deb));
        let status = text(self.dpkg().arg("--status").arg("ropewalk"));
        assert!(status.contains("Status: install ok installed"), "{status}");
        // Verified by the checksums: no line is a file that differs.
        assert_eq!(text(self.dpkg().args(["--verify", "ropewalk"])), "");
        // The package of the C library does this when the trigger of ours asks for it.
        assert!(
            text(Command::new("dpkg-deb").arg("--info").arg(deb).arg("triggers"))
                .contains("ldconfig")
        );
        let told =
            self.run("ldconfig; id ropewalk; stat -c '%U %a' /var/lib/ropewalk; ldconfig -p");
        assert!(told.contains("(ropewalk)") && told.contains("\nropewalk 700\n"), "{told}");
        for library in ["libbmi.so.0", "libropewalk-rma.so.0", "libopen-mx.so.0"] {
            assert!(told.contains(library), "the loader does not know {library}: {told}");
        }
    }

    /// Removes the package: its files are gone, and the data are not.
    pub fn remove(&self) {
        fs::write(self.0.join("var/lib/ropewalk/kept"), "").expect("a file");
        succeed(self.dpkg().args(["--purge", "ropewalk"]));
        for gone in ["usr/bin/ropewalk", "usr/lib/libbmi.so.0", "etc/ropewalk/ropewalk.toml"] {
            assert!(!self.0.join(gone).exists(), "{gone} is left");
        }
        assert!(self.0.join("var/lib/ropewalk/kept").exists());
    }

    /// Unpacks the tarball, which changes no folder that is there.
    pub fn unpack(&self, tarball: &Path) {
        let usr = self.0.join("usr");
        fs::set_permissions(&usr, fs::Permissions::from_mode(0o711)).expect("ours");
        succeed(Command::new("tar").arg("-xf").arg(tarball).arg("-C").arg(&self.0));
        assert_eq!(fs::metadata(&usr).expect("it is there").permissions().mode() & 0o777, 0o711);
        let said = self.run("cd /usr/local; bin/ropewalk --version; sbin/mount.ropewalk --help");
        assert!(said.starts_with("ropewalk 0.1.0\n") && said.contains("/etc/fstab"), "{said}");
    }

    fn dpkg(&self) -> Command {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", self.0.display())).env("DEBIAN_FRONTEND", "noninteractive");
        dpkg
    }

    /// Runs a script in there, with devices and processes of the host; what it prints.
    pub fn run(&self, script: &str) -> String {
        let outside = format!(
            "set -e; cd '{root}'; mount --rbind /dev dev; mount --rbind /proc proc; mount --rbind /sys sys; \
             mount --bind . .; exec chroot . /bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -ec \"$1\"",
            root = self.0.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", &outside, "sh", script]);
        text(&mut command)
    }

    /// Servers as their units run them, and mounts as mount(8) makes them.
    pub fn use_cluster(&self) {
        let config = self.0.join("etc/ropewalk/ropewalk.toml");
        let text = fs::read_to_string(&config).expect("a configuration");
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        fs::write(&config, text.replace("127.0.0.1:7700", &address)).expect("ours");
        assert!(is_there("unshare"), "unshare is part of every Debian");
        let mounts = Path::new("/dev/fuse").exists();
        if !mounts {
            println!("SKIP: there is no /dev/fuse");
        }
        let script = SCRIPT.replace("@address@", &address);
        let said = self.run(&script.replace("@mounts@", if mounts { "yes" } else { "" }));
        for wanted in ["copied by commands", "the servers have ended"] {
            assert!(said.contains(wanted), "{said}");
        }
        for wanted in [
            "copied by mount(8)",
            "copied by /etc/fstab",
            "one mount logs into the journal",
            "unmounted",
        ] {
            assert!(!mounts || said.contains(wanted), "{said}");
        }
    }
}

/// The servers run as the user of the unit, by the unit's command.
const SCRIPT: &str = r#"
config=/etc/ropewalk/ropewalk.toml
as='setpriv --reuid=ropewalk --regid=ropewalk --clear-groups --no-new-privs'
$as ropewalk format --config $config
$as ropewalk serve all --config $config 2>/tmp/log >/tmp/out &
servers=$!
for try in $(seq 200); do grep -q 'serves at' /tmp/out && break; sleep 0.1; done
export ROPEWALK_ADDRESS=tcp://@address@
ropewalk cp /usr/bin/ropewalk :/ && ropewalk cp :/ropewalk /tmp/back
cmp /usr/bin/ropewalk /tmp/back && echo copied by commands
if [ -n '@mounts@' ]; then
    mkdir -p /mnt/one /mnt/two
    mount -t ropewalk -o nosuid,nodev tcp://@address@ /mnt/one
    cp /usr/lib/libbmi.a /mnt/one/ && cmp /usr/lib/libbmi.a /mnt/one/libbmi.a && echo 'copied by mount(8)'
    echo 'tcp://@address@ /mnt/two ropewalk ro,nosuid,nodev,_netdev 0 0' > /etc/fstab
    : > /tmp/journal
    JOURNAL_STREAM=$(stat -c %d:%i /tmp/journal) mount /mnt/two 2>>/tmp/journal
    test $(ls /tmp/ropewalk-mount-*.log | grep -c .) = 1 && echo one mount logs into the journal
    cmp /mnt/two/libbmi.a /usr/lib/libbmi.a && echo copied by /etc/fstab
    grep ' /mnt/two fuse.ropewalk ro,' /proc/mounts
    umount /mnt/one
    umount /mnt/two
    ! mountpoint -q /mnt/one && ! mountpoint -q /mnt/two && echo unmounted
fi
kill $servers
wait $servers
cat /tmp/log
echo the servers have ended
"#;

fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    socket.local_addr().expect("it is bound").port()
}

/// The libraries of a program, the loader included.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let told = Command::new("ldd").arg(program).output().expect("ldd is part of the C library");
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let words = told.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).collect()
}

/// A library of this host by its name.
fn found_library(name: &str) -> Option<PathBuf> {
    let told = text(Command::new("/sbin/ldconfig").arg("-p"));
    let line = told.lines().find(|line| line.trim().starts_with(&format!("{name} ")))?;
    line.rsplit("=> ").next().map(PathBuf::from)
}
