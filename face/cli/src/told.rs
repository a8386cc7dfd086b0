//! The words in which a server of this process tells of itself, to other threads.

use std::path::Path;

use ropewalk_base::disk::Space;
use ropewalk_base::verb::RailCounters;
use ropewalk_base::world::World;
use ropewalk_net::Counters;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_wire::fs::standby::NodeStatus;
use ropewalk_wire::fs::status::{Activity, DataStatus, MetaStatus, disk_work};

/// The report of a server.
pub enum Report {
    Meta {
        /// None: it does not serve now.
        status: Option<Box<MetaStatus<'static>>>,
        /// One of several metadata servers.
        node: Option<NodeStatus>,
        disk: Option<OwnDisk>,
        network: Network,
    },
    Data {
        status: Option<Box<DataStatus<'static>>>,
        network: Network,
    },
}

/// The disk of a server that does not serve now, and has no other report.
pub struct OwnDisk {
    pub work: Vec<Activity<'static>>,
    pub space: Option<Space>,
}

impl OwnDisk {
    pub fn of(world: &World, directory: &Path) -> OwnDisk {
        let disk = world.disk();
        let work = disk.times().as_ref().into_iter().flat_map(disk_work).collect();
        OwnDisk { work, space: disk.space(directory).ok() }
    }
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
