//! Which cluster a command means, and what those share that ask servers as an operator.

use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;

use crate::network::{LISTEN, client_rails, complete_address};
use crate::node;

/// The variable of the environment that names a metadata server.
const ADDRESS: &str = "ROPEWALK_ADDRESS";

/// Which cluster is asked.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The metadata server's address, as `up` or `serve` printed it; 'tcp://' and ':7700' may be left
    /// out. Else what the environment's ROPEWALK_ADDRESS says, else tcp://127.0.0.1:7700.
    // Read here and not by the parser, whose usage lines would show it as if it had to be said.
    #[arg(long, short = 'A', value_name = "URL")]
    address: Option<String>,
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
        let address = self.address()?;
        let (reactor, world, endpoint) = node::calling(ClusterId(0), client_rails()?, &address)?;
        let operator = Operator::new(&world, &endpoint, &address, patience)?;
        let done = reactor.block_on(work(&world, &operator));
        endpoint.endpoint().close();
        done
    }
}
