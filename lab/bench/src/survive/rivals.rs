//! File systems of three data servers behind mounts: ours, and peers that are installed.
//!
//! Invariants
//! * All have their servers in the same network namespaces as ours, and one disk. Clients of all share one namespace.
//! * All of it ends with its owner, also servers that stand still.

use std::path::Path;

use anyhow::{anyhow, bail};

use crate::Options;
use crate::lab::version;
use crate::series::OURS;
use crate::servers::{Mount, Serving};
use crate::survive::deaths::{COPIES, SERVERS};
use crate::survive::gluster::Gluster;
use crate::survive::ground::Ground;
use crate::survive::moose::Moose;
use crate::survive::rival::{GLUSTER, Rival};
use crate::survive::site::text;
use crate::survive::store::{Store, hosts, plain};

/// Hosts for all of them: those of our cluster. Peers use them likewise.
pub fn ground() -> anyhow::Result<Ground> {
    Ground::make(hosts(SERVERS))
}

/// Ours, with two copies of each file of the root directory, and `/c2`, `/c3` with so many.
struct Ours<'a>(Store<'a>, String);

/// Starts ours, and those of these peers that can be had. A sentence on stderr says why one cannot.
pub fn start<'a>(
    ground: &'a Ground,
    options: &'a Options,
    peers: &[&str],
) -> anyhow::Result<Vec<Box<dyn Rival + 'a>>> {
    let store = Store::start(ground, options, plain(SERVERS))?;
    for copies in [3, COPIES] {
        store.keep_copies(copies)?;
        store.ask_as_user(&["mkdir", &format!(":/c{copies}")])?;
    }
    let mut all: Vec<Box<dyn Rival + 'a>> = vec![Box::new(Ours(store, version()))];
    for peer in peers.iter().filter(|_| options.peers) {
        let started: anyhow::Result<Box<dyn Rival + 'a>> = match *peer {
            _ if ground.name() != "namespaces" => {
                Err(anyhow!("that needs network namespaces: run as root, with iproute2"))
            }
            peer if peer == GLUSTER.0 => {
                Gluster::start(ground, options).map(|it| Box::new(it) as _)
            }
            _ => Moose::start(ground, options).map(|it| Box::new(it) as _),
        };
        match started {
            Ok(started) => all.push(started),
            Err(_) if options.is_interrupted() => bail!("interrupted"),
            Err(error) => eprintln!("no comparison with {peer}: {error:#}"),
        }
    }
    Ok(all)
}

impl Rival for Ours<'_> {
    fn system(&self) -> &'static str {
        OURS
    }

    fn version(&self) -> &str {
        &self.1
    }

    fn copies(&self) -> usize {
        COPIES
    }

    fn params(&self) -> Vec<(&'static str, String)> {
        self.0.params()
    }

    fn mount(&self, path: &Path) -> anyhow::Result<Mount> {
        std::fs::create_dir_all(path)?;
        let mut command = self.0.client_command()?;
        command.args(["mount", &self.0.address(), &text(path)?]);
        Mount::by(Serving::spawn(command, "mount")?, path)
    }

    fn kill(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.kill_data(server);
        Ok(())
    }

    fn restart(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.start_data(server, false)
    }

    fn suspend(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.data(server)?.suspend()
    }

    fn resume(&mut self, server: usize) -> anyhow::Result<()> {
        self.0.data(server)?.resume()
    }

    fn shortage(&self, _folder: &Path) -> anyhow::Result<Option<String>> {
        self.0.shortage()
    }

    fn processes(&self) -> Vec<u32> {
        self.0.processes()
    }

    fn show_logs(&self) {
        self.0.show_logs();
    }
}
