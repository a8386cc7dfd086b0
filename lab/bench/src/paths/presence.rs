//! Endpoints of ours on one rail or several, as between machines, which survive the loss of a link.

use anyhow::Context;
use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Mode};
use ropewalk_netns::Host;

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
        let place = |rail: usize| match self {
            Medium::Tcp | Medium::Udp => format!("{}:0", host.address(rail)),
            Medium::Ether => host.interface(rail),
        };
        (0..rails).map(place).collect::<Vec<_>>().join(",")
    }
}

/// Opens an endpoint that listens at these places. It has no shared memory, as between two machines, and sessions go on
/// over a new link.
pub fn open(medium: Medium, places: &str) -> anyhow::Result<Endpoint> {
    let open = |place: &str| {
        modules::open(medium.name(), &Listen::At { address: place, exactly: true })
            .with_context(|| format!("cannot listen at {}://{place}", medium.name()))
    };
    let rails = places.split(',').map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let mut config = EndpointConfig::new(ClusterId(77));
    config.host = 0;
    config.core.mode = Mode::Resume;
    Ok(Endpoint::open(config, rails)?)
}
