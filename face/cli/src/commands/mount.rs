//! `ropewalk mount` and `umount`.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_client::ClientConfig;
use ropewalk_mount::session::{UnmountError, mounted_kind};
use ropewalk_mount::{MountOptions, check_mount_point, clear_dead_mount};
use ropewalk_wire::fs::handover::Facts;

use super::mount_options::{Wishes, known};
use super::{LOOK, seconds};
use crate::config::Source;
use crate::handover::ask;
use crate::mounted::Mounted;
use crate::network::{client_rails, complete_address};
use crate::operate::ADDRESS;
use crate::report::{announce, complain};
use crate::stop::Stop;
use crate::{background, log, notify, security};

const EXAMPLES: &str = "\
Examples:
  ropewalk mount tcp://127.0.0.1:7700 /mnt     serves it until 'ropewalk umount'
                                               or Ctrl-C
  ropewalk mount --config ropewalk.toml        uses the file's section [mount]
  ropewalk mount tcp://node1:7700 /mnt --background
                                               returns when it is mounted
  ropewalk mount tcp://node1:7700 /mnt --patience 600
                                               waits 600 s for a dead server
  ropewalk mount tcp://node1:7700 /mnt -o ro,noexec
                                               uses options of mount(8)
  ropewalk mount -o remount,ro /mnt            changes options of a mount
  ropewalk mount --take-over /mnt              serves the mount in place of the
                                               process that does
  ropewalk mount ether://02:00:00:00:00:01/3 /mnt
                                               uses raw Ethernet; on a host with
                                               several interfaces write
                                               02:00:00:00:00:01%eth1/3 for eth1";

/// Explained below the options of -o, and in mount.ropewalk(8).
pub const DEFAULTS: &str = "\
'ropewalk mount' sets nosuid and nodev unless root gives suid or dev. mount(8) and /etc/fstab set \
suid and dev unless nosuid or nodev is given, as for every file system.";

/// A line of /etc/fstab.
pub const FSTAB: &str = "tcp://node1:7700 /mnt ropewalk ro,noexec,_netdev 0 0";

fn help() -> String {
    format!(
        "{EXAMPLES}\n\nOptions of -o: {}. A mount that was made with ro cannot be remounted rw. \
         mount.ropewalk(8) explains them. {DEFAULTS}\n\nTo mount by /etc/fstab, mount.ropewalk \
         has to be in /sbin; the package has it there. Add a line:\n  {FSTAB}\n\nAll mounts of a cluster, on one host or on many, see each other's changes \
         at once.",
        known()
    )
}

/// Arguments of `ropewalk mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = help())]
pub struct MountArguments {
    /// The metadata server's address, as 'ropewalk up' or 'ropewalk serve' printed it. 'tcp://' and
    /// ':7700' may be left out [default: $ROPEWALK_ADDRESS, or that of the config file].
    #[arg(required_unless_present_any = ["config", "take_over"])]
    address: Option<String>,
    /// Mount the cluster on this directory, which must be empty. The dead mount of a killed process
    /// is removed first.
    directory: Option<PathBuf>,
    /// Let an operation wait this long for a server that does not answer, then fail with EIO
    /// [default: 60]. A line on stderr names the server.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    patience: Option<Duration>,
    /// Refuse all changes, as -o ro does.
    #[arg(long)]
    read_only: bool,
    /// Use these options of mount(8), separated by commas; they are listed below.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Words among the options that are not known are for others.
    #[arg(skip)]
    sloppy: bool,
    /// mount(8) has these options, and drops what it takes for granted.
    #[arg(skip)]
    of_helper: bool,
    /// Run in the background: the command returns when the cluster is mounted.
    #[arg(long)]
    background: bool,
    /// Write the log of the background process to this file [default: a new file in $TMPDIR].
    #[arg(long, value_name = "FILE", requires = "background")]
    log: Option<PathBuf>,
    /// Take over the mount on this directory from the process that serves it, which then ends.
    /// Programs go on with their open files and locks, so a newer version of Ropewalk can serve them.
    #[arg(long, conflicts_with_all = ["options", "read_only"])]
    take_over: bool,
    #[command(flatten)]
    source: Source,
}

impl MountArguments {
    /// The arguments of a mount that mount(8) asks for.
    pub fn of_helper(
        source: String,
        directory: PathBuf,
        options: Vec<String>,
        sloppy: bool,
    ) -> MountArguments {
        MountArguments {
            address: Some(source),
            directory: Some(directory),
            patience: None,
            read_only: false,
            options,
            sloppy,
            of_helper: true,
            background: true,
            log: None,
            take_over: false,
            source: Source::default(),
        }
    }

    /// Address and directory, as far as they were named. One of them may be left out: a lone word is an
    /// address if it has a scheme, or looks like a host with a port and is no directory that exists.
    fn places(&self) -> (Option<String>, Option<PathBuf>) {
        let is_address = |word: &str| {
            word.contains("://")
                || !word.starts_with(['/', '.']) && word.contains(':') && !Path::new(word).exists()
        };
        match (&self.address, &self.directory) {
            (Some(only), None) if !is_address(only) => (None, Some(PathBuf::from(only))),
            (address, directory) => (address.clone(), directory.clone()),
        }
    }
}

/// Looks at a mount point before anybody waits for servers, or makes any.
pub fn ready_mount_point(path: &Path, options: &MountOptions) -> anyhow::Result<()> {
    // A mount whose process was killed answers nothing any more: it is nobody's loss.
    if let Ok(cleared) = clear_dead_mount(path) {
        complain!(
            "removed {cleared} dead mount(s) on {}, whose process was killed",
            path.display()
        );
    }
    check_mount_point(path, options)?;
    Ok(())
}

/// Mounts a cluster on `path`, unless a live mount is there.
pub fn start_mount(
    cluster: ClusterId,
    address: &str,
    path: &Path,
    options: MountOptions,
    patience: Option<Duration>,
    stop: &Stop,
) -> anyhow::Result<Mounted> {
    let address = &complete_address(address)?;
    ready_mount_point(path, &options)?;
    Mounted::start(cluster, client_rails()?, address, path, options, patience, stop)
}

/// Mounts a cluster and serves the mount until it is unmounted or a signal comes.
pub fn mount(arguments: &MountArguments) -> anyhow::Result<()> {
    let words = arguments.options.iter().map(String::as_str);
    let mut wishes = Wishes::parse(words, arguments.sloppy)?;
    if arguments.of_helper {
        wishes = wishes.completed(rustix::process::geteuid().is_root());
    }
    if let Some(file) = &wishes.key_file {
        security::prefer_file(file.into());
    }
    if arguments.of_helper {
        security::name_file_of_environment();
    }
    if wishes.remount {
        let (address, directory) = (&arguments.address, &arguments.directory);
        // mount(8) names the source, too; a person mostly does not.
        let named = directory.clone().or_else(|| address.as_ref().map(PathBuf::from));
        return remount(&named.context(
            "remount needs the directory of the mount, as in 'ropewalk mount -o remount,ro /mnt'")?, &wishes);
    }
    let file = arguments.log.clone().or(wishes.log.as_ref().map(PathBuf::from));
    // Before anybody goes to the background with it.
    let mut options = wishes.options(rustix::process::geteuid().is_root())?;
    if background::is_wanted(arguments.background) {
        // The user that named the file may mean a device, or a link.
        let open = |options: &mut OpenOptions, log: &Path| options.open(log);
        return match &file {
            Some(log) => background::start(log, !log.exists(), open),
            None if log::is_journal() => background::start_with_journal(),
            None => background::start(&background::new_log("mount")?, true, open),
        };
    }
    log::begin();
    let stop = Stop::watch_aloud().context("cannot watch for signals")?;
    background::enter(&stop)?;
    let fresh = file.is_none();
    if arguments.take_over {
        return serve(take_over(arguments, &stop)?, &stop, fresh);
    }
    let config = arguments.source.read()?;
    let (address, directory) = arguments.places();
    let address = address.or_else(|| std::env::var(ADDRESS).ok().filter(|told| !told.is_empty()));
    let address = address.map_or_else(|| config.meta_address(), Ok)?;
    let directory = directory.or(config.mount.directory);
    let directory = directory.context(
        "no directory to mount on: name one, or add a section '[mount]' with a line 'directory = \
         \"…\"' to the config file",
    )?;
    let usual = config.mount.patience_seconds.map(|seconds| seconds.0);
    let patience = arguments.patience.or(wishes.patience).or(usual);
    let usual = config.mount.read_only.unwrap_or(false);
    options.read_only = arguments.read_only || wishes.read_only.unwrap_or(usual);
    let address = complete_address(&address)?;
    let read_only = options.read_only;
    let mounted = start_mount(ClusterId(0), &address, &directory, options, patience, &stop)?;
    announce!("mounted on {}", mounted.path().display());
    offer(&mounted, &address, read_only, patience);
    serve(mounted, &stop, fresh)
}

/// Has others take the mount over, where that can be.
fn offer(mounted: &Mounted, address: &str, read_only: bool, patience: Option<Duration>) {
    let patience = patience.unwrap_or(ClientConfig::default().patience);
    if let Err(error) = mounted.offer(address, read_only, patience) {
        complain!("no other process can take this mount over: {error:#}");
    }
}

/// Takes a mount over from the process that serves it.
fn take_over(arguments: &MountArguments, stop: &Stop) -> anyhow::Result<Mounted> {
    let (address, directory) = arguments.places();
    let directory = directory.context(
        "--take-over needs the directory of the mount, as in 'ropewalk mount --take-over /mnt'",
    )?;
    let found = ask::find(&directory)?;
    if address.is_some() {
        bail!(
            "a mount that is taken over keeps its address, {}: name the directory alone",
            found.facts.address
        );
    }
    found.check_unused()?;
    // A process whose working directory is its own mount keeps it from being unmounted.
    std::env::set_current_dir("/").context("cannot leave the working directory")?;
    let Facts { key_file, address, read_only, patience_milliseconds, process, .. } =
        found.facts.clone();
    security::name_file(key_file.map(|bytes| OsString::from_vec(bytes).into()));
    let usual = Duration::from_millis(patience_milliseconds);
    let patience = arguments.patience.unwrap_or(usual);
    background::keep();
    let mounted = Mounted::take_over(client_rails()?, found, patience, stop)?;
    announce!(
        "mounted on {}, taken over from process {process}; nobody served it for {} ms",
        mounted.path().display(),
        mounted.gap().unwrap_or_default().as_millis()
    );
    offer(&mounted, &address, read_only, Some(patience));
    Ok(mounted)
}

/// Serves a mount until it is unmounted, handed over, or a signal comes.
fn serve(mounted: Mounted, stop: &Stop, fresh: bool) -> anyhow::Result<()> {
    background::ready(stop)?;
    notify::ready(&format!("mounted on {}", mounted.path().display()));
    while !stop.is_asked() && !mounted.is_gone() {
        std::thread::sleep(LOOK);
    }
    notify::stopping();
    mounted.stop_unused(stop)?;
    if fresh {
        background::drop_empty_log();
    }
    Ok(())
}

/// The error for a mount point of which nothing is known.
fn not_looked_at(path: &Path, error: std::io::Error) -> anyhow::Error {
    let path = path.display();
    match error.kind() {
        ErrorKind::NotFound => anyhow!("{path} does not exist: nothing is mounted there"),
        _ => anyhow::Error::new(error).context(format!("cannot read the attributes of {path}")),
    }
}

/// Changes the options of a mount that is there.
fn remount(path: &Path, wishes: &Wishes) -> anyhow::Result<()> {
    use rustix::mount::MountFlags;
    let kind = mounted_kind(path);
    let kind = kind.map_err(|error| not_looked_at(path, error))?;
    if kind.as_deref() != Some("fuse.ropewalk") {
        bail!("{} is not a mount of Ropewalk: give the directory of one", path.display());
    }
    let found = rustix::fs::statvfs(path)
        .with_context(|| format!("cannot read the mount options of {}", path.display()))?;
    let mut flags = MountFlags::NOATIME;
    for (wish, now, flag) in [
        (wishes.read_only, rustix::fs::StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (wishes.nosuid, rustix::fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (wishes.nodev, rustix::fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (wishes.noexec, rustix::fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    ] {
        flags.set(flag, wish.unwrap_or(found.f_flag.contains(now)));
    }
    match rustix::mount::mount_remount(path, flags, c"") {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            bail!(
                "only root can change the options of a mount: run this command as root, or unmount \
                 {} and mount it again",
                path.display()
            )
        }
        Err(rustix::io::Errno::BUSY) => {
            bail!(
                "{} cannot become read-only while files on it are open for writing: close them \
                 first",
                path.display()
            )
        }
        Err(error) => bail!("cannot change the options of {}: {error}", path.display()),
    }
}

/// Arguments of `ropewalk umount`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk umount /mnt
  ropewalk umount --lazy /mnt   even while it is in use

The command also removes a mount whose process was killed; 'ropewalk mount' does so, too.")]
pub struct UnmountArguments {
    /// The directory on which the cluster is mounted.
    directory: PathBuf,
    /// Detach the mount at once, even if it is in use; it ends when no process uses it any more.
    #[arg(long)]
    lazy: bool,
}

/// Unmounts, also what a dead process left.
pub fn unmount(arguments: &UnmountArguments) -> anyhow::Result<()> {
    use rustix::mount::UnmountFlags;
    let path = &arguments.directory;
    let kind = mounted_kind(path);
    match kind.map_err(|error| not_looked_at(path, error))?.as_deref() {
        Some("fuse.ropewalk") => {}
        Some(kind) => bail!(
            "{} is not a mount of Ropewalk (its type is {kind}): use umount(8)",
            path.display()
        ),
        None => bail!("nothing is mounted on {}", path.display()),
    }
    // The mount is not looked at before: a process that looks, and gets no answer, uses it.
    let flags = if arguments.lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let mut helper = std::process::Command::new("fusermount3");
            helper.arg("-u");
            if arguments.lazy {
                helper.arg("-z");
            }
            let status = helper.arg(path).status().context(
                "cannot run fusermount3, which unmounts for users other than root: install the \
                 package fuse3",
            )?;
            if status.success() {
                return Ok(());
            }
            bail!(
                "{} is still mounted: only root and the user who mounted it can unmount it",
                path.display()
            )
        }
        Err(rustix::io::Errno::BUSY) => match clear_dead_mount(path) {
            Ok(_) => Ok(()),
            Err(UnmountError::Silent(_)) => bail!(
                "{} is in use and does not answer: a process probably waits there for servers that \
                 are down; start the servers, or use --lazy",
                path.display()
            ),
            Err(_) => {
                bail!(
                    "{0} is in use: end the processes that have open files or their working \
                     directory there ('fuser -vm {0}' shows them), or use --lazy",
                    path.display()
                )
            }
        },
        Err(rustix::io::Errno::INVAL) => bail!("nothing is mounted on {}", path.display()),
        Err(error) => bail!("cannot unmount {}: {error}", path.display()),
    }
}
