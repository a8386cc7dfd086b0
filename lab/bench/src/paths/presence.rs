//! Endpoints of ours on one rail or several, as between machines, which survive the loss of links.

use std::ops::Range;

use anyhow::Context;
use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Mode};
use ropewalk_netns::Host;

use crate::host;

/// What carries ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    Tcp,
    Udp,
    Ether,
}

impl Medium {
    pub const ALL: [Medium; 3] = [Medium::Tcp, Medium::Udp, Medium::Ether];

    /// Its scheme.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Tcp => "tcp",
            Medium::Udp => "udp",
            Medium::Ether => "ether",
        }
    }

    pub fn named(name: &str) -> Option<Medium> {
        Medium::ALL.into_iter().find(|medium| medium.name() == name)
    }

    /// The places of a host's first rails at which an endpoint listens, joined by commas.
    pub fn places(self, host: Host<'_>, rails: usize) -> String {
        self.places_at(host, 0..rails)
    }

    /// The same for these rails.
    pub fn places_at(self, host: Host<'_>, rails: Range<usize>) -> String {
        let place = |rail: usize| match self {
            // Each on its own interface, whatever routes there are.
            Medium::Tcp | Medium::Udp => {
                format!("{}:0?interface={}", host.address(rail), host.interface(rail))
            }
            Medium::Ether => host.interface(rail),
        };
        rails.map(place).collect::<Vec<_>>().join(",")
    }
}

/// Paths of a session: as many as rails, as far as there are so many.
const PATHS_MAX: usize = 8;

/// The place of an endpoint that other processes of its host reach by shared memory.
const SHARED: &str = "shm";

/// The same places, where processes of one host reach each other, too. Two of them cannot by raw frames.
pub fn with_neighbours(medium: Medium, places: String) -> String {
    if medium == Medium::Ether { format!("{places},{SHARED}") } else { places }
}

/// Opens an endpoint that listens at these places. Without a place for it, it has no shared memory, as between two
/// machines. Sessions go on over other links.
pub fn open(medium: Medium, places: &str) -> anyhow::Result<Endpoint> {
    let open = |place: &str| {
        let (scheme, address) = if place == SHARED { (SHARED, "") } else { (medium.name(), place) };
        modules::open(scheme, &Listen::At { address, exactly: true })
            .with_context(|| format!("cannot listen at {scheme}://{address}"))
    };
    let rails = places.split(',').map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let mut config = EndpointConfig::new(ClusterId(77));
    if !places.split(',').any(|place| place == SHARED) {
        config.host = host::network();
    }
    config.core.mode = Mode::Resume;
    config.core.paths_max = PATHS_MAX;
    let endpoint = Endpoint::open(config, rails)?;
    ropewalk_host_paths::show(&endpoint, "bench paths");
    Ok(endpoint)
}
