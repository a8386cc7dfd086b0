//! Which cluster a command means, and what those share that ask servers as an operator.

use std::net::ToSocketAddrs;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;
use ropewalk_net::Address;

use crate::commands::client_rails;
use crate::commands::up::LISTEN;
use crate::node;

/// The variable of the environment that names a metadata server.
const ADDRESS: &str = "ROPEWALK_ADDRESS";

/// Fails where nothing can come of an address, however long one waits: no part of it has a network
/// that is known, and a name that resolves.
pub fn check_address(address: &str) -> anyhow::Result<()> {
    let parsed = Address::parse(address)
        .with_context(|| format!("the metadata server's address '{address}' is not one"))?;
    let mut wrong = None;
    for (scheme, place) in parsed.parts() {
        match check_part(scheme, place) {
            Ok(()) => return Ok(()),
            Err(error) => wrong = wrong.or(Some(error)),
        }
    }
    wrong.map_or(Ok(()), Err)
}

fn check_part(scheme: &str, place: &str) -> anyhow::Result<()> {
    match scheme {
        "shm" => Ok(()),
        "tcp" => {
            let (host, port) = place.rsplit_once(':').unwrap_or((place, ""));
            if host.is_empty() || !port.parse().is_ok_and(|port: u16| port != 0) {
                bail!("'tcp://{place}' names no host and port; write it like tcp://node1:7700");
            }
            let found = place.to_socket_addrs().map_err(|error| {
                let text = error.to_string();
                let cause = text.rsplit(": ").next().unwrap_or_default().to_string();
                anyhow!("the host '{host}' of 'tcp://{place}' is not known: {cause}")
            })?;
            match found.count() {
                0 => bail!("the host '{host}' of 'tcp://{place}' has no address"),
                _ => Ok(()),
            }
        }
        _ => {
            bail!("there is no network '{scheme}' in '{scheme}://{place}': write tcp:// or shm://")
        }
    }
}

/// Which cluster is asked.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The metadata server's address, as `up` or `serve` printed it; else what the environment's
    /// ROPEWALK_ADDRESS says, else tcp://127.0.0.1:7700.
    // Read here and not by the parser, whose usage lines would show it as if it had to be said.
    #[arg(long, short = 'A', value_name = "URL")]
    address: Option<String>,
}

impl Target {
    /// The metadata server's address, of which something may come: its names resolve.
    pub fn address(&self) -> anyhow::Result<String> {
        let says = |text: &String| !text.is_empty();
        let said = self.address.clone().or_else(|| std::env::var(ADDRESS).ok().filter(says));
        let address = said.unwrap_or_else(|| format!("tcp://{LISTEN}"));
        check_address(&address)?;
        Ok(address)
    }

    /// Runs `work` with an operator of the cluster, to its end.
    pub fn run<T>(
        &self,
        patience: Duration,
        work: impl AsyncFnOnce(&World, &Operator) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let address = self.address()?;
        let (reactor, world, endpoint) = node::local(ClusterId(0), client_rails()?)?;
        let operator = Operator::new(&world, &endpoint, &address, patience)?;
        let done = reactor.block_on(work(&world, &operator));
        endpoint.endpoint().close();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_which_nothing_can_come_are_refused_with_their_cause() {
        let error = |address| check_address(address).expect_err("it is wrong").to_string();
        assert!(error("tcp://nohost.invalid:7700").contains("'nohost.invalid'"));
        assert!(error("tcp://nohost.invalid:7700").contains("is not known: "));
        assert!(error("ftp://node:1").contains("there is no network 'ftp'"));
        for place in ["tcp://node1", "tcp://:7700", "tcp://node1:0", "tcp://node1:70000"] {
            assert!(error(place).contains("names no host and port"), "{place}");
        }
        assert!(error("node1:7700").contains("'node1:7700' is not one"));
        for good in ["tcp://127.0.0.1:1", "tcp://[::1]:7", "shm://x", "tcp://localhost:1"] {
            check_address(good).expect("something may come of it");
        }
        // One part is enough.
        check_address("tcp://nohost.invalid:1,shm://here").expect("shared memory is one");
    }
}
