//! Which cluster a command means, and what those share that ask servers as an operator.

use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;

use crate::commands::client_rails;
use crate::node;

/// Which cluster is asked.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The metadata server's address, as `up` or `serve` printed it.
    #[arg(
        long,
        short = 'A',
        value_name = "URL",
        env = "ROPEWALK_ADDRESS",
        default_value = "tcp://127.0.0.1:7700"
    )]
    pub address: String,
}

impl Target {
    /// Runs `work` with an operator of the cluster, to its end.
    pub fn run<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(&World, &Operator) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (reactor, world, endpoint) = node::local(ClusterId(0), client_rails()?)?;
        let operator = Operator::new(&world, &endpoint, &self.address, patience)?;
        let done = reactor.block_on(work(&world, &operator));
        endpoint.endpoint().close();
        done
    }
}
