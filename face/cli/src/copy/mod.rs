//! `ropewalk cp`: files and trees into a cluster, out of it, and within it.

mod cluster;
mod compare;
mod end;
mod fail;
mod host;
mod work;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_client::InodeKind;

pub use cluster::Cluster;
pub use end::End;
pub use host::Host;
pub use work::{Copy, Job, Keep, Moved, lost_line};

use crate::remote::{Reach, Session, cause, join};
use crate::report::complain;

/// Arguments of `ropewalk cp`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Paths in the cluster begin with a colon; all others are on this host. Write \
./:name for a local name that begins with a colon.

Examples:
  ropewalk cp model.bin :/models/         into a directory of the cluster
  ropewalk cp :/models/model.bin .        out of the cluster
  ropewalk cp -a /usr/share/doc :/        a tree with all its attributes
  ropewalk cp -r :/run7/. results         the contents of a directory
  ropewalk cp :/a :/b                     within the cluster

As with cp(1), existing files are overwritten, and links and holes are copied as such. Without \
-p, hard links become separate files. Of the extended attributes only user.* are copied; a line \
on stderr names those that are not.

If an entry cannot be read or created, a line on stderr names it, all others are copied, and the \
exit status is 1. The copy stops at once if the target is full, if a server does not answer in \
time, or at Ctrl-C; files that were copied before that stay. After a successful copy the data \
survives a crash of any server. With --sync it also survives a power loss."
)]
pub struct Cp {
    /// Files or directories to copy.
    #[arg(value_name = "SOURCE", required = true)]
    sources: Vec<PathBuf>,
    /// The name of the copy, or an existing directory for the copies.
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Copy directories with everything in them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep modes, times, hard links, extended attributes (user.*) and, if the user may change
    /// them, owners and groups.
    #[arg(short, long)]
    preserve: bool,
    /// The same as -rp.
    #[arg(short, long)]
    archive: bool,
    /// Return only when the copied data survives a power loss of the servers.
    #[arg(short, long)]
    sync: bool,
    /// Show no progress bar. It appears only if stderr is a terminal.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    reach: Reach,
}

/// A path as it was written: of the cluster, if it begins with a colon.
fn split(path: &Path) -> (bool, Vec<u8>) {
    let bytes = path.as_os_str().as_bytes();
    match bytes.strip_prefix(b":") {
        // All paths within a cluster begin at its root.
        Some(rest) => (true, join(b"/", rest.strip_prefix(b"/").unwrap_or(rest))),
        None => (false, bytes.to_vec()),
    }
}

/// Copies.
pub fn run(arguments: &Cp) -> anyhow::Result<()> {
    // Read before other threads exist, since that needs setting it for a moment.
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    let keep = Keep {
        attributes: arguments.preserve || arguments.archive,
        umask: (umask.bits() & 0o777) as u16,
    };
    let sources: Vec<(bool, Vec<u8>)> = arguments.sources.iter().map(|path| split(path)).collect();
    let (into, target) = split(&arguments.target);
    let from = sources[0].0;
    if sources.iter().any(|source| source.0 != from) {
        bail!(
            "some sources are on this host and some in the cluster (:/...): copy them by separate \
             commands"
        );
    }
    if !from && !into {
        bail!(
            "neither the source nor the target is in the cluster: write a path in the cluster with \
             a colon, as in ':/{}', or use cp(1)",
            arguments.target.display().to_string().trim_start_matches('/')
        );
    }
    let sources: Vec<Vec<u8>> = sources.into_iter().map(|(_, path)| path).collect();
    arguments.reach.run("cp", async |session| {
        let host = || Host::new(&session.world);
        let cluster = || Cluster::new(session);
        let work = Request { session, arguments, keep, sources: &sources, target: &target };
        match (from, into) {
            (false, _) => work.copy(host(), cluster(), false).await,
            (true, false) => work.copy(cluster(), host(), false).await,
            (true, true) => work.copy(cluster(), cluster(), true).await,
        }
    })?;
    Ok(())
}

/// The parameters of one run of the command.
struct Request<'a> {
    session: &'a Rc<Session>,
    arguments: &'a Cp,
    keep: Keep,
    sources: &'a [Vec<u8>],
    target: &'a [u8],
}

impl Request<'_> {
    async fn copy<A: End, B: End>(&self, from: A, to: B, same: bool) -> anyhow::Result<Moved> {
        let recursive = self.arguments.recursive || self.arguments.archive;
        let jobs = jobs(&to, self.sources, self.target, recursive).await?;
        let client = &self.session.client;
        let mut copy = Copy::new(from, to, client.pool(), self.keep, recursive);
        copy.same = same;
        copy.goes_on = true;
        if !self.arguments.quiet {
            copy.bar = bar();
        }
        let plan = copy.plan(&jobs).await?;
        let moved = copy.run(&plan).await;
        copy.bar.finish_and_clear();
        let mut lost = copy.lost();
        // A user that may not give files away keeps them without a message, as with cp.
        lost.remove(work::OWNER);
        if let Some(line) = lost_line(&lost) {
            complain!("ropewalk: not kept: {line}");
        }
        if self.arguments.sync && moved.is_ok() {
            let synced = client.sync_all().await;
            synced.map_err(|errno| {
                anyhow!("the copied data is not safe from a power loss: {}", cause(errno))
            })?;
        }
        // The entries that could be copied are safe by now, even if the rest could not be copied.
        moved.and_then(|moved| plan.check().map(|()| moved))
    }
}

/// A bar on stderr, if that is a terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} remaining",
    );
    let bar = ProgressBar::new(0);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The jobs of a copy: the target of each source.
async fn jobs<B: End>(
    to: &B,
    sources: &[Vec<u8>],
    target: &[u8],
    recursive: bool,
) -> anyhow::Result<Vec<Job>> {
    let shown = to.shown(target);
    let found = to.look(target, true).await?;
    let is_directory = found.is_some_and(|meta| meta.kind == InodeKind::Directory);
    if is_directory {
        let job = |from: &Vec<u8>| Job { from: from.clone(), to: below(target, from) };
        return Ok(sources.iter().map(job).collect());
    }
    let end = target.iter().rposition(|byte| *byte != b'/').map_or(target.len(), |at| at + 1);
    // The slash after a name that is not there yet says that it shall be a directory.
    let named = recursive || end == target.len();
    if sources.len() > 1 || (found.is_none() && !named) {
        bail!("{shown} is not an existing directory: create it first, or give another target");
    }
    let target = &target[..end];
    if found.is_none() {
        let end = target.iter().rposition(|byte| *byte == b'/');
        let parent = end.map_or(&b"."[..], |at| &target[..at.max(1)]);
        to.look(parent, true).await?.with_context(|| {
            format!("{shown}: its parent directory does not exist: create it first")
        })?;
    }
    Ok(vec![Job { from: sources[0].clone(), to: target.to_vec() }])
}

/// The target of a source within a directory: the source's own name. If the name is a dot, the content of the
/// source goes straight into the directory.
fn below(directory: &[u8], source: &[u8]) -> Vec<u8> {
    let name = source.split(|byte| *byte == b'/').rfind(|name| !name.is_empty());
    match name {
        None | Some(b"." | b"..") => directory.to_vec(),
        // After a slash at its end "dir/." means the same as with cp.
        Some(name) => join(directory, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_a_path_one_of_the_cluster() {
        assert_eq!(split(Path::new(":/a/b")), (true, b"/a/b".to_vec()));
        assert_eq!(split(Path::new(":a")), (true, b"/a".to_vec()));
        assert_eq!(split(Path::new(":")), (true, b"/".to_vec()));
        assert_eq!(split(Path::new("./:a")), (false, b"./:a".to_vec()));
        assert_eq!(split(Path::new("a:b")), (false, b"a:b".to_vec()));
    }

    #[test]
    fn sources_keep_their_last_name_below_a_directory() {
        assert_eq!(below(b"/d", b"/x/y"), b"/d/y");
        assert_eq!(below(b"/d/", b"x/"), b"/d/x");
        assert_eq!(below(b"/d", b"/x/."), b"/d");
        assert_eq!(below(b"/d", b"/"), b"/d");
    }
}
