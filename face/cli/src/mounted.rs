//! A mount of this process, on a thread of its own.
//!
//! Whoever uses the mount from this process does so on other threads: the mount's thread serves what
//! they ask for. Should it die, the kernel is told to give up, so that nobody hangs in it for ever.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ropewalk_base::ids::ClusterId;
use ropewalk_client::{Client, ClientConfig};
use ropewalk_mount::MountOptions;
use ropewalk_mount::cluster::ClusterMount;
use ropewalk_mount::session::Unmounter;
use ropewalk_rail::Rail;

use crate::node;

/// How often the mount's thread looks whether the mount is gone.
const LOOK: Duration = Duration::from_millis(20);

/// A served mount.
pub struct Mounted {
    path: PathBuf,
    unmounter: Unmounter,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

/// Gives the mount up when its thread ends in any other way than by an unmount.
struct Watch(Unmounter, bool);

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.1 {
            // Nothing can be done about a mount that cannot even be aborted.
            let _ = self.0.abort();
        }
    }
}

impl Mounted {
    /// Mounts the cluster of the metadata server at `address` on `path`. `patience`: how long an
    /// operation waits for a server that is down; `None`: as long as is usual.
    pub fn start(
        cluster: ClusterId,
        rails: Vec<Box<dyn Rail>>,
        address: &str,
        path: &Path,
        options: MountOptions,
        patience: Option<Duration>,
    ) -> anyhow::Result<Mounted> {
        let (sender, receiver) = mpsc::channel();
        let (address, place) = (address.to_string(), path.to_path_buf());
        let thread = std::thread::Builder::new().name("mount".into()).spawn(move || {
            let (reactor, world, endpoint) = node::local(cluster, rails)?;
            let usual = ClientConfig::default();
            let config = ClientConfig {
                name: format!("mount on {}", place.display()),
                log: Rc::new(|line| eprintln!("mount: {line}")),
                patience: patience.unwrap_or(usual.patience),
                ..usual
            };
            let client = reactor.block_on(Client::connect(&world, &endpoint, &address, config))?;
            let mount = ClusterMount::new(&reactor, &world, &client, &place, &options)?;
            let unmounter = mount.unmounter().context("the mount is gone already")?;
            let mut watch = Watch(unmounter.clone(), false);
            // Whoever started us may have given up.
            let _ = sender.send(unmounter);
            reactor.block_on(async {
                while !mount.is_closed() {
                    world.sleep(LOOK).await;
                }
                client.stop().await;
            });
            watch.1 = true;
            endpoint.endpoint().close();
            Ok(())
        })?;
        match receiver.recv() {
            Ok(unmounter) => {
                Ok(Mounted { path: path.to_path_buf(), unmounter, thread: Some(thread) })
            }
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                _ => Err(anyhow!("the mount's thread ended")),
            },
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the mount is gone, by whomever.
    pub fn is_gone(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts and waits for the end.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        if !thread.is_finished()
            && let Err(error) = self.unmounter.unmount()
        {
            eprintln!("{error}; it goes when its last user has left");
            self.unmounter.unmount_lazily()?;
            return Ok(());
        }
        thread.join().map_err(|_| anyhow!("the mount's thread panicked"))?
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("ropewalk: {error:#}");
        }
    }
}
