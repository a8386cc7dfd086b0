//! Mounting, unmounting, dying, and getting out of what hangs.

mod memory_fs;
mod support;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use memory_fs::MemoryFs;
use ropewalk_base::pool::Pool;
use ropewalk_mount::session::{MountError, UnmountError};
use ropewalk_mount::{Connection, Mount, MountOptions, Settings, clear_dead_mount};
use support::{Driver, Served, usable, wait_until};

fn memory() -> Served<MemoryFs> {
    Served::start(|pool| MemoryFs::new(pool, Duration::from_secs(1), false))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn spawn(program: &str, arguments: &[&Path]) -> Child {
    // A user that runs the tests in the background may have left SIGINT ignored to us and our children.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", program]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// The processor state letter of a process.
fn state(child: &Child) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.rsplit(')').next().unwrap().trim().chars().next().unwrap()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

fn ends_soon(mut child: Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the process hangs on");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn whoever_waits_for_a_hanging_operation_can_be_interrupted_and_killed() {
    if !usable() {
        return;
    }
    let served = memory();
    let at = |name: &str| served.path().join(name);
    fs::write(at("hang-open"), b"").unwrap();
    fs::write(at("hang-read"), b"something to read").unwrap();
    // The page cache has what was written: it has to be asked for again.
    let notifier = served.notifier.as_ref().unwrap();
    for node in 2..4 {
        drop(notifier.invalidate_inode(node, 0, 0).unwrap());
    }
    std::thread::sleep(Duration::from_millis(100));
    let cases = [
        ("cat", "hang-open"),
        ("cat", "hang-read"),
        ("cat", "hang-lookup"),
        ("mkdir", "hang-mkdir"),
    ];
    for (program, name) in cases {
        for deadly in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
            let child = spawn(program, &[&at(name)]);
            wait_until("it hangs", || {
                fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap().trim() == program
                    && matches!(state(&child), 'D' | 'S')
            });
            std::thread::sleep(Duration::from_millis(100));
            signal(&child, deadly);
            let status = ends_soon(child);
            assert_eq!(status.signal(), Some(deadly.as_raw()), "{program} {name}");
        }
    }
    // Others were served all the time, and what hung has left nothing behind.
    fs::write(at("plain"), b"fine").unwrap();
    assert_eq!(fs::read(at("plain")).unwrap(), b"fine");
    let counters = served.stop();
    assert!(counters.interrupts >= 8, "{counters:?}");
}

#[test]
fn a_signal_that_is_handled_ends_a_wait_for_a_lock() {
    if !usable() {
        return;
    }
    let served = memory();
    let path = served.path().join("locked");
    let holder = File::create(&path).unwrap();
    holder.lock().unwrap();
    // The shell handles the alarm; `flock` itself is told by its own time-out's signal handler.
    let mut command = Command::new("flock");
    command.args(["--timeout", "0.2", "--conflict-exit-code", "42"]).arg(&path).arg("true");
    let start = Instant::now();
    let status = ends_soon(command.stdin(Stdio::null()).spawn().unwrap());
    assert_eq!(status.code(), Some(42));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    drop(holder);
    assert!(command.status().unwrap().success());
}

#[test]
fn a_busy_mount_stays_until_it_is_forced() {
    if !usable() {
        return;
    }
    let served = memory();
    let path = served.path().to_owned();
    fs::write(path.join("file"), b"contents").unwrap();
    let open = File::open(path.join("file")).unwrap();
    let unmounter = served.mount().unmounter();
    assert!(matches!(unmounter.unmount(), Err(UnmountError::Busy(_))));
    unmounter.unmount_lazily().unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    assert!(matches!(unmounter.unmount(), Err(UnmountError::NotMounted(_))));
    // An open file lives on.
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&open, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"contents");
    drop(open);
    served.stop();
}

#[test]
fn mount_points_that_do_not_suit_are_refused_with_a_remedy() {
    if !usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = MountOptions::default();
    let refused = |path: &Path| Mount::new(path, &options).err().unwrap();
    let error = refused(&folder.path().join("missing"));
    assert!(
        matches!(error, MountError::NotFound(_))
            && error.to_string().contains("create the directory")
    );
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(refused(&file), MountError::NotDirectory(_)));
    let error = refused(folder.path());
    assert!(matches!(error, MountError::NotEmpty(_)), "{error}");
    let served = memory();
    let error = refused(served.path());
    assert!(matches!(error, MountError::AlreadyMounted(_)), "{error}");
    assert!(matches!(clear_dead_mount(served.path()), Err(UnmountError::Alive(_))));
    assert!(matches!(clear_dead_mount(folder.path()), Err(UnmountError::NotMounted(_))));
    let bad = MountOptions { subtype: "a b".into(), ..MountOptions::default() };
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(Mount::new(empty.path(), &bad), Err(MountError::BadOption(_))));
}

#[test]
fn options_reach_the_kernel() {
    if !usable() {
        return;
    }
    let options =
        MountOptions { name: "odd, name".into(), read_only: true, ..MountOptions::default() };
    let pool = Pool::with_budget(64 << 20);
    let make = |pool| MemoryFs::new(pool, Duration::ZERO, false);
    let served = Served::with(options, Settings::default(), pool, make);
    let error = File::create(served.path().join("x")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(served.path().to_str().unwrap())).unwrap();
    for part in ["fuse.ropewalk", "odd,\\040name", "ro,", "nosuid", "nodev", "default_permissions"]
    {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
}

/// Serves a mount until it is gone, in the process that another test starts for it.
#[test]
fn daemon_process() {
    let Some(path) = std::env::var_os("ROPEWALK_TEST_MOUNT") else { return };
    let helper = std::env::var_os("ROPEWALK_TEST_HELPER").is_some();
    let options = MountOptions::default();
    let mount = Mount::new(Path::new(&path), &options).unwrap_or_else(|error| panic!("{error}"));
    let device = mount.device().unwrap();
    let serving = std::thread::spawn(move || {
        let pool = Pool::with_budget(256 << 20);
        let filesystem = Rc::new(MemoryFs::new(pool.clone(), Duration::from_secs(60), false));
        let (driver, settings) = (Driver::new(), Settings::default());
        let connection = Connection::new();
        support::serve(device, connection, settings, pool, filesystem, &driver, |_, _| ());
    });
    if helper {
        use_and_unmount(mount);
    }
    serving.join().unwrap();
}

fn daemon(path: &Path) -> Child {
    daemon_command(path).spawn().unwrap()
}

fn daemon_command(path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "daemon_process", "--nocapture"]).env("ROPEWALK_TEST_MOUNT", path);
    command.stdout(Stdio::null());
    command
}

fn is_mounted(path: &Path) -> bool {
    const FUSE_MAGIC: u64 = 0x6573_5546;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == FUSE_MAGIC)
}

#[test]
fn a_mount_that_never_agreed_with_the_kernel_is_cleared() {
    if !usable() {
        return;
    }
    if !is_root() {
        return println!("SKIP: a mount without a daemon needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = CString::new(data).unwrap();
    let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
    rustix::mount::mount(c"test", path, c"fuse", flags, &*data).unwrap();
    let mut request = vec![0; 128 << 10];
    let length = (&device).read(&mut request).unwrap();
    assert!(length >= 16, "the kernel asks for a session first");
    // The header of an answer: length, error, the request's number.
    let mut answer = 16_u32.to_ne_bytes().to_vec();
    answer.extend((-libc::EIO).to_ne_bytes());
    answer.extend(&request[8..16]);
    (&device).write_all(&answer).unwrap();
    let error = fs::read_dir(path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ECONNREFUSED));
    let error = Mount::new(path, &MountOptions::default()).err().unwrap();
    assert!(matches!(error, MountError::DeadMount(_)), "{error}");
    assert_eq!(clear_dead_mount(path).unwrap(), 1);
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn a_killed_daemons_mount_is_cleared_and_mounted_again() {
    if !usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for round in 0..2 {
        let mut child = daemon(path);
        wait_until("the daemon has mounted", || is_mounted(path));
        fs::write(path.join("file"), b"lost").unwrap();
        let open = File::open(path.join("file")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let error = fs::read_dir(path).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "round {round}");
        let error = Mount::new(path, &MountOptions::default()).err().unwrap();
        assert!(matches!(error, MountError::DeadMount(_)), "{error}");
        assert!(error.to_string().contains("umount -l"));
        assert_eq!(clear_dead_mount(path).unwrap(), 1);
        assert_eq!(fs::read_dir(path).unwrap().count(), 0);
        drop(open);
    }
    let mount = Mount::new(path, &MountOptions::default()).unwrap();
    drop(mount);
    assert!(!is_mounted(path));
}

fn use_and_unmount(mount: Mount) {
    let path = mount.path().to_owned();
    fs::write(path.join("own"), vec![5; 300_000]).unwrap();
    assert_eq!(fs::read(path.join("own")).unwrap(), vec![5; 300_000]);
    fs::create_dir(path.join("folder")).unwrap();
    let error = Mount::new(&path, &MountOptions::default()).err().unwrap();
    assert!(matches!(error, MountError::AlreadyMounted(_)), "{error}");
    let open = File::open(path.join("own")).unwrap();
    let (mount, error) = mount.unmount().err().unwrap();
    assert!(matches!(error, UnmountError::Busy(_)), "{error}");
    drop(open);
    mount.unmount().map_err(|(_, error)| error).unwrap();
    assert!(!is_mounted(&path));
}

#[test]
fn a_plain_user_mounts_through_the_helper() {
    let helper = ["/usr/bin/fusermount3", "/bin/fusermount3"].iter().any(|p| Path::new(p).exists());
    if !usable() {
        return;
    }
    if !helper {
        println!("SKIP: fusermount3 is not installed");
        return;
    }
    const NOBODY: u32 = 65534;
    let folder = tempfile::tempdir().unwrap();
    if !is_root() {
        // We are such a user ourselves.
        let mut child =
            daemon_command(folder.path()).env("ROPEWALK_TEST_HELPER", "1").spawn().unwrap();
        assert!(child.wait().unwrap().success());
        return;
    }
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let program = folder.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    // In a mount name space of its own, in which everybody may open /dev/fuse, as is usual elsewhere.
    let script = "mount --make-rprivate / && mknod \"$1/fuse\" c 10 229 && chmod 666 \"$1/fuse\" && \
                  mount --bind \"$1/fuse\" /dev/fuse && exec setpriv --reuid=65534 --regid=65534 \
                  --clear-groups -- \"$1/program\" --exact daemon_process --nocapture";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(folder.path());
    command.env("ROPEWALK_TEST_MOUNT", &own).env("ROPEWALK_TEST_HELPER", "1");
    command.env("RUST_BACKTRACE", "0");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
}

#[test]
fn a_mount_without_a_loop_can_be_dropped() {
    if !usable() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mount = Mount::new(folder.path(), &MountOptions::default()).unwrap();
    let start = Instant::now();
    drop(mount);
    assert!(start.elapsed() < Duration::from_secs(30));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
