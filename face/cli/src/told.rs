//! The words in which a server of this process tells of itself, to other threads.

use ropewalk_base::verb::RailCounters;
use ropewalk_net::Counters;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_wire::fs::standby::NodeStatus;
use ropewalk_wire::fs::status::{DataStatus, MetaStatus};

/// The answer of a node.
pub struct Told {
    /// Counts since its start: names and values, in one line.
    pub line: String,
    pub report: Report,
}

/// What a server reports.
pub enum Report {
    Meta {
        /// None: it does not serve now.
        status: Option<Box<MetaStatus<'static>>>,
        /// One of several metadata servers.
        node: Option<NodeStatus>,
        network: Network,
    },
    Data {
        status: Option<Box<DataStatus<'static>>>,
        network: Network,
    },
}

/// The counters of an endpoint.
pub struct Network {
    pub counters: Counters,
    pub rails: Vec<(&'static str, RailCounters)>,
}

impl Network {
    pub fn of(endpoint: &LocalEndpoint) -> Network {
        let (counters, rails) = endpoint.endpoint().counters();
        Network { counters, rails }
    }
}
