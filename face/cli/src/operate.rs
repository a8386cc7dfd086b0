//! The cluster that a command means, and the shared code of commands that ask servers as an operator.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;
use ropewalk_rpc::Secret;

use crate::identity;
use crate::network::{LISTEN, client_rails, complete_address};
use crate::node;

/// The variable of the environment that names a metadata server.
pub const ADDRESS: &str = "ROPEWALK_ADDRESS";

/// Which cluster is asked.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The metadata server's address, as 'ropewalk up' or 'ropewalk serve' printed it. 'tcp://' and
    /// ':7700' may be left out [default: $ROPEWALK_ADDRESS, or tcp://127.0.0.1:7700].
    // Read here and not by the parser, whose usage lines would show it as if it had to be said.
    #[arg(long, short = 'A', value_name = "URL")]
    address: Option<String>,
}

/// By what servers of other hosts know who looks after the cluster.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Keys {
    /// Act as an administrator of the cluster, by this copy of the file 'cluster' from the
    /// cluster's directory. Root and the user who runs the servers do not need it on the servers'
    /// host.
    #[arg(long, value_name = "FILE")]
    cluster_file: Option<PathBuf>,
}

impl Keys {
    /// The secret, if a file was named.
    pub fn secret(&self) -> anyhow::Result<Option<Secret>> {
        let Some(path) = &self.cluster_file else { return Ok(None) };
        let none =
            || format!("the cluster file {} (--cluster-file) does not exist", path.display());
        let found = identity::read_file(path)?.with_context(none)?;
        let none = || {
            format!(
                "the cluster file {} has no secret in it: copy the file 'cluster' from the metadata \
             server's host again",
                path.display()
            )
        };
        Ok(Some(found.secret.with_context(none)?))
    }
}

impl Target {
    /// The metadata server's address, of which something may come: its names resolve.
    pub fn address(&self) -> anyhow::Result<String> {
        let says = |text: &String| !text.is_empty();
        let said = self.address.clone().or_else(|| std::env::var(ADDRESS).ok().filter(says));
        complete_address(said.as_deref().unwrap_or(LISTEN))
    }

    /// Runs `work` with an operator of the cluster, to its end.
    pub fn run<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(&World, &Operator) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.run_with(&Keys::default(), patience, work)
    }

    /// As `run`, with what shows that whoever asks looks after the cluster.
    pub fn run_with<T>(
        &self,
        keys: &Keys,
        patience: Duration,
        work: impl AsyncFnOnce(&World, &Operator) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (address, secret) = (self.address()?, keys.secret()?);
        let (reactor, world, endpoint) = node::calling(ClusterId(0), client_rails()?, &address)?;
        let operator = Operator::new(&world, &endpoint, &address, patience, secret)?;
        let done = reactor.block_on(work(&world, &operator));
        endpoint.endpoint().close();
        done
    }
}
