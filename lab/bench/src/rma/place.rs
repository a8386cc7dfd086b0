//! The media of messages, and the places of ranks: at this host, or each in a network namespace of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ropewalk_netns::{Host, Joint, Tool, Topology, TopologyConfig};

/// All media. Over those between namespaces every byte crosses an interface, which counts it.
pub const MEDIA: [&str; 6] = ["tcp", "shm", "udp", "ether", "netns-tcp", "netns-udp"];

/// The longest payload of a frame between namespaces.
pub const MTU: u32 = 1500;
/// The word for no name, where a process is told its part.
const NOTHING: &str = "-";

/// Whether ranks have namespaces of their own.
pub fn is_apart(medium: &str) -> bool {
    medium == "ether" || medium.starts_with("netns-")
}

/// By which module messages go.
pub fn scheme(medium: &'static str) -> &'static str {
    medium.trim_start_matches("netns-")
}

/// The place of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where its endpoint listens; empty: at a name that the process makes.
    pub address: String,
    /// The interface that all its bytes cross, if there is one.
    pub interface: Option<String>,
}

impl Place {
    /// At this host.
    pub fn here(medium: &str) -> Place {
        let address = if medium == "shm" { "" } else { "127.0.0.1:0" };
        Place { address: address.into(), interface: None }
    }

    /// At a host of a network.
    pub fn at(medium: &'static str, host: Host<'_>) -> Place {
        let interface = host.interface(0);
        let address = match scheme(medium) {
            "ether" => interface.clone(),
            // On its own interface, whatever routes there are.
            _ => format!("{}:0?interface={interface}", host.address(0)),
        };
        Place { address, interface: Some(interface) }
    }

    /// For another process.
    pub fn encode(&self) -> String {
        let word = |text: &str| if text.is_empty() { NOTHING.into() } else { text.to_string() };
        let interface = self.interface.as_deref().unwrap_or_default();
        format!("{} {}", word(&self.address), word(interface))
    }

    /// Reads the two words that [`Self::encode`] wrote.
    pub fn decode(address: &str, interface: &str) -> Place {
        let word = |text: &str| if text == NOTHING { String::new() } else { text.to_string() };
        let interface = Some(word(interface)).filter(|it| !it.is_empty());
        Place { address: word(address), interface }
    }

    /// The address of its host alone.
    pub fn host(&self) -> &str {
        self.address.split(':').next().unwrap_or_default()
    }
}

/// Networks with a namespace for each rank, by the number of ranks.
#[derive(Default)]
pub struct Networks {
    made: BTreeMap<u32, Topology>,
    is_lacking: bool,
}

impl Networks {
    /// The network of so many ranks. `None`, and the reason on stderr, once, where this machine has none.
    pub fn of(&mut self, ranks: u32) -> Option<&Topology> {
        if self.is_lacking {
            return None;
        }
        match self.made.entry(ranks) {
            Entry::Occupied(made) => Some(made.into_mut()),
            Entry::Vacant(free) => match network(ranks) {
                Ok(network) => Some(free.insert(network)),
                Err(lack) => {
                    eprintln!("rows between network namespaces are left out: {lack}");
                    self.is_lacking = true;
                    None
                }
            },
        }
    }
}

fn network(ranks: u32) -> ropewalk_netns::Result<Topology> {
    // Ranks are started by it.
    Tool::Nsenter.find()?;
    let joint = if ranks == 2 { Joint::Direct } else { Joint::Switched };
    let (hosts, rails, mtu) = (ranks as usize, 1, MTU);
    Topology::new(&TopologyConfig { hosts, rails, joint, mtu, ..TopologyConfig::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_crosses_to_its_process() {
        let apart = Place { address: "rail0".into(), interface: Some("rail0".into()) };
        for place in [Place::here("shm"), Place::here("udp"), apart] {
            let text = place.encode();
            let (address, interface) = text.split_once(' ').expect("two words");
            assert_eq!(Place::decode(address, interface), place);
        }
        assert_eq!((scheme("netns-udp"), is_apart("netns-udp")), ("udp", true));
        assert_eq!((scheme("ether"), is_apart("ether"), is_apart("tcp")), ("ether", true, false));
        assert_eq!(Place::here("tcp").host(), "127.0.0.1");
    }
}
