//! Commands that work on a running cluster through the client library: no mount is needed.
//!
//! Paths within a cluster are written `:/dir/file`, as `scp` writes those of another host; the colon
//! may be left out where a command knows no other paths. Relative ones begin at the root.

pub mod df;
pub mod ls;
pub mod mkdir;
pub mod policy;
pub mod rm;
pub mod stat;
pub mod text;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::task::{Either, race};
use ropewalk_base::text::printable;
use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;
use ropewalk_client::{Attributes, Caller, Client, ClientConfig, Errno};

use crate::commands::seconds;
use crate::log;
use crate::network::client_rails;
use crate::node;
use crate::operate::Target;
use crate::report::complain;
use crate::stop::Stop;

/// The time that the end of a session may take before the command ends without it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Longest path that an error shows, in characters.
const PATH_SHOWN_MAX: usize = 4096;
/// The time to wait without a message.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// Which cluster is meant, and how long to wait for it.
#[derive(Debug, clap::Args)]
pub struct Reach {
    #[command(flatten)]
    target: Target,
    /// Wait this long for a server that does not answer, then fail. A line on stderr names the
    /// server.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "20", value_parser = seconds)]
    patience: Duration,
}

/// A session with a cluster, on behalf of the user who runs this process.
pub struct Session {
    pub client: Client,
    pub caller: Caller,
    pub world: World,
}

impl Reach {
    /// Runs `work` as an operator, who asks the metadata server and has no session.
    pub fn ask<T>(
        &self,
        work: impl AsyncFnOnce(&World, &Operator) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.target.run(self.patience, async |world, operator| {
            let tell = async {
                world.sleep(TELL_AFTER).await;
                complain!("ropewalk: waiting for {}", operator.name());
                std::future::pending::<()>().await;
            };
            match race(work(world, operator), tell).await {
                Either::Left(done) => done,
                Either::Right(()) => Err(anyhow!("interrupted")),
            }
        })
    }

    /// Connects, runs `work` to its end or until a signal comes, and ends the session.
    pub fn run<T>(
        &self,
        name: &str,
        work: impl AsyncFnOnce(&Rc<Session>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let stop = Stop::watch()?;
        let address = self.target.address()?;
        let (reactor, world, endpoint) = node::calling(ClusterId(0), client_rails()?, &address)?;
        let config = ClientConfig {
            name: format!("ropewalk {name}"),
            patience: self.patience,
            log: log::of("ropewalk"),
            ..ClientConfig::default()
        };
        let outcome = reactor.block_on(async {
            let connect = Client::connect(&world, &endpoint, &address, config);
            let client = unless_asked(&stop, &world, connect).await??;
            let session = async {
                let (client, world) = (client.clone(), world.clone());
                let session = Rc::new(Session { client, caller: caller()?, world });
                work(&session).await
            };
            let outcome = unless_asked(&stop, &world, session).await;
            // Also after a signal: others would wait for what a silent session holds. A server that
            // went meanwhile ends it by its term.
            let _ = world.timeout(FAREWELL, client.stop()).await;
            outcome?
        });
        endpoint.endpoint().close();
        outcome
    }
}

/// Runs `work` until a signal comes.
async fn unless_asked<T>(
    stop: &Stop,
    world: &World,
    work: impl Future<Output = T>,
) -> anyhow::Result<T> {
    match race(work, stop.asked(world)).await {
        Either::Left(done) => Ok(done),
        Either::Right(()) => Err(anyhow!("interrupted")),
    }
}

/// The user who runs this process.
pub fn caller() -> anyhow::Result<Caller> {
    let groups: Vec<u32> =
        rustix::process::getgroups()?.into_iter().map(rustix::process::Gid::as_raw).collect();
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    Ok(Caller::new(user.as_raw(), group.as_raw(), &groups))
}

impl Session {
    /// The attributes of the entry at a path of the cluster.
    pub async fn find(&self, path: &[u8], follow: bool) -> anyhow::Result<Attributes> {
        self.client.resolve(&self.caller, path, follow).await.map_err(of(path))
    }
}

/// Does a command's work for each path. With several, a path that fails is told and the others still have their
/// turn; then the command fails. `failed`: the operation that failed, for "2 of 5 could not be ...".
pub async fn for_each(
    paths: &[PathBuf],
    failed: &str,
    mut work: impl AsyncFnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failures = 0;
    for path in paths {
        match work(within(path)).await {
            Ok(()) => {}
            Err(error) if paths.len() == 1 => return Err(error),
            Err(error) => {
                complain!("ropewalk: {error:#}");
                failures += 1;
            }
        }
    }
    if failures > 0 {
        bail!("{failures} of {} paths could not be {failed}", paths.len());
    }
    Ok(())
}

/// A path within the cluster as the user wrote it, without the colon.
pub fn within(path: &Path) -> &[u8] {
    let bytes = path.as_os_str().as_bytes();
    bytes.strip_prefix(b":").unwrap_or(bytes)
}

/// A path within the cluster as people write it.
pub fn shown(path: &[u8]) -> String {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    format!(":/{}", printable(path, PATH_SHOWN_MAX))
}

/// A path within the cluster as the command line takes it, to the byte.
pub fn written(path: &[u8]) -> Vec<u8> {
    [b":/", path.strip_prefix(b"/").unwrap_or(path)].concat()
}

/// A path and a name below it.
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut joined = path.to_vec();
    if !joined.is_empty() && !joined.ends_with(b"/") {
        joined.push(b'/');
    }
    joined.extend_from_slice(name);
    joined
}

/// The cause of a failure in words, with a remedy where there is one.
pub fn cause(errno: Errno) -> String {
    let remedy = match errno {
        Errno::EIO => {
            "a server did not answer in time, or data is damaged: see 'ropewalk status' and \
             'ropewalk check', or wait longer by --patience"
        }
        Errno::ENOSPC => "'ropewalk df' shows the free space of each data server",
        Errno::EACCES | Errno::EPERM => {
            "'ropewalk ls -ld' of the path and of its directory shows the permissions"
        }
        Errno::EPROTO => {
            "client and server speak different protocols; install the same version of \
             Ropewalk on all hosts"
        }
        Errno::EROFS => "the server has become read-only; its log gives the reason",
        _ => return words(errno),
    };
    format!("{}: {remedy}", words(errno))
}

/// The system's words for an errno.
fn words(errno: Errno) -> String {
    let text = std::io::Error::from_raw_os_error(i32::from(errno.0)).to_string();
    // Its number is of no use to people.
    text.split(" (os error").next().unwrap_or_default().to_string()
}

/// A failure with a path of the cluster.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {}", cause(*errno))]
pub struct Failure {
    path: String,
    pub errno: Errno,
}

/// Puts a path of the cluster before the cause.
pub fn of(path: &[u8]) -> impl Fn(Errno) -> anyhow::Error + '_ {
    move |errno| Failure { path: shown(path), errno }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_cluster_are_read_and_shown_with_their_colon() {
        assert_eq!(within(Path::new(":/a/b")), b"/a/b");
        assert_eq!(within(Path::new("a:b")), b"a:b");
        assert_eq!(shown(b"/a/b"), ":/a/b");
        assert_eq!(shown(b""), ":/");
        assert_eq!(written(b"/a\xff"), b":/a\xff");
        assert_eq!(join(b"", b"a"), b"a");
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"/a", b"b"), b"/a/b");
    }
}
