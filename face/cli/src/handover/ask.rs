//! The side of the process that takes a mount over: it finds the one that serves the mount, and asks.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_mount::session::{mounted_device, mounted_for, mounted_kind};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::handover::{Facts, Kind, State, word};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::frames::{Frame, receive, send};
use super::{NAME, host_clock};

/// The serving process answers within this time; where its requests do not end it says so.
const PATIENCE: Duration = Duration::from_secs(15);

/// Major and minor number of /dev/fuse.
const FUSE_DEVICE: (u32, u32) = (10, 229);

/// A mount that its process would hand over.
pub struct Offer {
    stream: UnixStream,
    pub facts: Facts,
}

/// The mount of an offer, at rest.
pub struct Resting {
    stream: UnixStream,
    pub state: State,
    pub device: OwnedFd,
}

/// Finds the process that serves the mount on `path`, and asks it what has to be known.
pub fn find(path: &Path) -> anyhow::Result<Offer> {
    let shown = path.display();
    let kind = mounted_kind(path).with_context(|| format!("cannot look at {shown}"))?;
    match kind.as_deref() {
        Some("fuse.ropewalk") => {}
        Some(_) => bail!("{shown} is not a mount of Ropewalk: give the directory of one"),
        None => bail!("nothing is mounted on {shown}: mount there without --take-over"),
    }
    let device = mounted_device(path)?.context("the mount has just ended")?;
    let (number, user) = mounted_for(path)?.context("the mount has just ended")?;
    let prefix = format!("{NAME}{device}/");
    let table = std::fs::read_to_string("/proc/thread-self/net/unix").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let mut names: Vec<&str> = names.filter(|name| name.starts_with(&prefix)).collect();
    names.sort_unstable();
    names.dedup();
    let mut error = None;
    for name in names {
        match call(name, path, user) {
            Ok(Some(offer)) if offer.facts.mount == number => return Ok(offer),
            Ok(Some(_)) => {
                error = Some(anyhow::anyhow!("{shown} is another mount than its process says"))
            }
            Ok(None) => {}
            Err(refused) => error = Some(refused),
        }
    }
    Err(error.unwrap_or_else(|| {
        anyhow::anyhow!(
            "no process here hands {shown} over: its process is dead, of an older version, or in \
             another network namespace; unmount it and mount it again"
        )
    }))
}

/// Calls at a door; none where nobody is there.
fn call(name: &str, path: &Path, user: Option<u32>) -> anyhow::Result<Option<Offer>> {
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    // A call waits where the process is stopped and others wait already.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if connect(&socket, &address).is_err() {
        return Ok(None);
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    let owner = socket_peercred(&stream)?;
    // Anybody may take such a name. The word of root, and of the user for whom the kernel made the mount, counts.
    let own = rustix::process::geteuid();
    let is_mounts = user == Some(owner.uid.as_raw());
    if !owner.uid.is_root() && !(is_mounts && (owner.uid == own || own.is_root())) {
        bail!(
            "{} is served by a process of user {}: run this command as that user",
            path.display(),
            owner.uid.as_raw()
        );
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    send(&stream, &word(Kind::Hello)).ok();
    let answer = answer(&stream, Kind::Facts, owner.pid.as_raw_nonzero().get())?;
    let facts: Facts = decode(&answer.body).context("the serving process's answer is none")?;
    Ok(Some(Offer { stream, facts }))
}

/// The answer of this kind.
fn answer(stream: &UnixStream, kind: Kind, process: i32) -> anyhow::Result<Frame> {
    let heard = receive(stream)
        .with_context(|| format!("process {process}, which serves the mount, hands nothing over"))?
        .with_context(|| format!("process {process}, which serves the mount, hung up"))?;
    if heard.kind == kind {
        return Ok(heard);
    }
    if heard.kind == Kind::Refused {
        let reason = decode::<String>(&heard.body).unwrap_or_default();
        bail!("process {process}, which serves the mount, does not hand it over: {reason}");
    }
    bail!("process {process}, which serves the mount, sent a message out of turn");
}

impl Offer {
    /// The mount point.
    pub fn path(&self) -> PathBuf {
        OsStr::from_bytes(&self.facts.path).into()
    }

    /// Fails where this process uses the mount: it could not close a file while it serves that file, nor run a program from
    /// it. Touches no mount.
    pub fn check_unused(&self) -> anyhow::Result<()> {
        let device = mounted_device(&self.path())?.context("the mount has just ended")?;
        let table = std::fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc")?;
        // Also other places where the same file system is mounted.
        let is_its = |line: &&str| line.split(' ').nth(2) == Some(device.as_str());
        let mounts: Vec<String> = table
            .lines()
            .filter(is_its)
            .filter_map(|line| Some(format!("mnt_id:\t{}", line.split(' ').next()?)))
            .collect();
        let entries = std::fs::read_dir("/proc/self/fdinfo").context("cannot read /proc")?;
        for number in entries.flatten().map(|entry| entry.file_name()) {
            let info = Path::new("/proc/self/fdinfo").join(&number);
            // The one of the directory that is read here is gone by then.
            let info = std::fs::read_to_string(info).unwrap_or_default();
            if info.lines().any(|found| mounts.iter().any(|mount| mount == found)) {
                let number = number.display();
                bail!(
                    "descriptor {number} of this process, which it has from the shell, is a file of \
                     the mount, and a process cannot serve itself: close it ('exec {number}<&-'), or \
                     use another shell"
                );
            }
        }
        let mapped = device.split_once(':').and_then(|(major, minor)| {
            Some(format!("{:02x}:{:02x}", major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
        });
        let maps = std::fs::read_to_string("/proc/self/maps").context("cannot read /proc")?;
        if maps.lines().any(|line| line.split(' ').nth(3) == mapped.as_deref()) {
            bail!(
                "this program, or a library of it, lies on the mount, and a process cannot serve \
                 itself: start a copy from another file system"
            );
        }
        Ok(())
    }

    fn process(&self) -> i32 {
        self.facts.process.cast_signed()
    }

    /// Brings the mount to rest. It is this process's only after [`Claim::take`].
    pub fn go(self) -> anyhow::Result<Resting> {
        send(&self.stream, &word(Kind::Go))?;
        let heard = answer(&self.stream, Kind::State, self.process())?;
        let state = decode(&heard.body).context("the state of the mount is not understood")?;
        let device = heard.descriptor.context("the descriptor of the mount did not come")?;
        let kind = rustix::fs::fstat(&device)?.st_rdev;
        if (rustix::fs::major(kind), rustix::fs::minor(kind)) != FUSE_DEVICE {
            bail!("the descriptor that came is not of /dev/fuse");
        }
        Ok(Resting { stream: self.stream, state, device })
    }
}

/// The right to take a mount: the other process serves on if this is dropped before.
pub struct Claim {
    stream: UnixStream,
    stopped_at: u64,
}

impl Resting {
    /// Its state, its descriptor, and the right to take it.
    pub fn unpack(self) -> (State, OwnedFd, Claim) {
        let claim = Claim { stream: self.stream, stopped_at: self.state.stopped_at };
        (self.state, self.device, claim)
    }
}

impl Claim {
    /// The state was understood. When this returns, the mount is this process's as soon as the session is.
    pub fn take(&self, process: u32) -> anyhow::Result<()> {
        send(&self.stream, &word(Kind::Ready))?;
        answer(&self.stream, Kind::Yours, process.cast_signed()).map(drop)
    }

    /// This process serves; the other one may end. The time for which nobody served.
    pub fn serving(self) -> Duration {
        let gap = Duration::from_nanos(host_clock().saturating_sub(self.stopped_at));
        // One that has died meanwhile has ended, too.
        let _ = send(&self.stream, &word(Kind::Serving));
        gap
    }
}
