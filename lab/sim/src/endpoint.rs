//! Endpoints of the message layer on simulated nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::time::Time;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Endpoint, EndpointConfig};
use ropewalk_rail_sim::SimConfig;

use crate::node::{Node, Pollable};

/// Has a node's endpoint polled, and keeps its clock.
struct Polled {
    endpoint: LocalEndpoint,
    clock: Arc<AtomicU64>,
}

impl Pollable for Polled {
    fn poll(&mut self, now: Time) -> bool {
        self.clock.store(now.0, Ordering::Relaxed);
        self.endpoint.poll()
    }

    fn deadline(&self) -> Option<Time> {
        self.endpoint.endpoint().deadline()
    }
}

/// An endpoint of this life of a node, on one rail; others reach it as `sim://NAME`.
pub fn endpoint(node: &Node, cluster: ClusterId, rail: SimConfig) -> LocalEndpoint {
    let clock = Arc::new(AtomicU64::new(node.world().now().0));
    let hand = clock.clone();
    let number = node.name().bytes().fold(1u128, |sum, byte| sum << 8 | u128::from(byte));
    let config = EndpointConfig {
        endpoint: EndpointId(number),
        incarnation: Incarnation(node.life()),
        host: 0,
        service_thread: false,
        clock: Arc::new(move || Time(hand.load(Ordering::Relaxed))),
        virtual_time: true,
        seed: node.world().random_u64(),
        ..EndpointConfig::new(cluster)
    };
    let rail = node.rail(rail);
    let endpoint = Endpoint::open(config, vec![Box::new(rail)]);
    let endpoint = endpoint.unwrap_or_else(|error| panic!("no endpoint: {error}"));
    let endpoint = LocalEndpoint::new(endpoint);
    let endpoint = endpoint.unwrap_or_else(|error| panic!("no context: {error}"));
    node.register(Polled { endpoint: endpoint.clone(), clock });
    endpoint
}
