//! A mount of ours and one of the peer, on which the same is done.

use std::path::Path;

use crate::counters::Watched;
use crate::lab::{Lab, Party, quoted, version};
use crate::series::{Figure, Row};
use crate::servers::{Cluster, Mount, Plan};
use crate::worker::Work;

/// Both mounts, with their parameters.
pub struct Stage<'a> {
    pub mount: &'a Mount,
    /// A mount with all its servers in one process.
    embedded: Option<Mount>,
    peer: Option<&'a (Mount, String)>,
    /// Processes that work for our mount.
    serving: Watched,
    /// The parameters of every cluster here.
    common: Vec<(&'static str, String)>,
    /// The same, with the parameters of our mount.
    pub params: Vec<(&'static str, String)>,
    pub bare: Vec<(&'static str, String)>,
}

/// The work of a party: in this directory, served by these processes, in the run of this number.
pub type Act<'a> = dyn Fn(&Path, &Watched, usize) -> anyhow::Result<Vec<Work>> + 'a;

impl<'a> Stage<'a> {
    /// `below`: the directory in which the peer keeps its files.
    pub fn new(
        lab: &Lab<'_>,
        plan: &Plan,
        cluster: &Cluster,
        mount: &'a Mount,
        peer: Option<&'a (Mount, String)>,
        below: &Path,
    ) -> anyhow::Result<Stage<'a>> {
        let own = vec![("placement", quoted("processes")), ("loop", quoted("dev_fuse"))];
        // Twice ours takes too long where it has to be quick.
        let folder = plan.data.with_extension("embedded");
        let embedded = (!lab.options.quick)
            .then(|| Mount::embedded(&folder, &lab.place("embedded"), plan.data_servers))
            .transpose()?;
        Ok(Stage {
            embedded,
            mount,
            peer,
            serving: cluster.watched_with(mount.process()),
            common: lab.params(plan),
            params: [lab.params(plan), own].concat(),
            bare: lab.bare_params(below),
        })
    }

    /// Ours, the peer, and ours in one process: all do the same.
    pub fn parties<'b>(&'b self, act: &'b Act<'b>) -> Vec<Party<'b>> {
        let ours = Party {
            system: "ropewalk",
            version: version(),
            medium: "mount",
            params: self.params.clone(),
            act: Box::new(move |run| act(self.mount.path(), &self.serving, run)),
        };
        let mut parties = vec![ours];
        parties.extend(self.peer.map(|(mount, version)| Party {
            system: "passthrough_ll",
            version: version.clone(),
            medium: "mount",
            params: self.bare.clone(),
            act: Box::new(move |run| {
                act(mount.path(), &Watched::new(vec![mount.process()], Vec::new()), run)
            }),
        }));
        let own = [("placement", quoted("embedded")), ("loop", quoted("dev_fuse"))];
        parties.extend(self.embedded.as_ref().map(|mount| Party {
            system: "ropewalk",
            version: version(),
            medium: "mount",
            params: [&self.common[..], &own].concat(),
            act: Box::new(move |run| {
                act(mount.path(), &Watched::new(vec![mount.process()], Vec::new()), run)
            }),
        }));
        parties
    }
}

/// A row over so many processes, each with so many operations under way.
pub fn row(name: &str, figure: Figure, bytes: usize, clients: u64, depth: u64) -> Row {
    Row {
        name: name.into(),
        figure,
        params: vec![
            ("bytes", bytes.to_string()),
            ("clients", clients.to_string()),
            ("depth", depth.to_string()),
        ],
    }
}
