//! The costs of a rank's work beside time: processor time, copies, registrations, frames, system calls, and bytes on the
//! wire.

use ropewalk_net::Endpoint;
use ropewalk_rma::Team;

use super::place::Place;
use crate::host;

/// So far, or of some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Of the process, in nanoseconds.
    pub cpu: u64,
    /// Bytes that our code copied, those of windows and those of the endpoint. The kernel's copies are not among them.
    pub copied: u64,
    /// Regions that were registered for peers.
    pub registrations: u64,
    /// Frames that rails sent.
    pub frames: u64,
    pub system_calls: u64,
    /// Bytes that have left by the rank's own interface, where it has one.
    pub wire: u64,
}

impl Cost {
    /// The costs of this process so far; those that an endpoint counts only where it has one.
    ///
    /// # Errors
    /// The interface of the place is not there.
    pub fn so_far(place: &Place, ours: Option<(&Endpoint, &Team)>) -> anyhow::Result<Cost> {
        let mut cost = Cost { cpu: host::own_cpu_nanos(), ..Cost::default() };
        if let Some((endpoint, team)) = ours {
            let (core, rails) = endpoint.counters();
            cost.copied = endpoint.bytes_copied() + team.bytes_copied();
            cost.registrations = core.regions_opened;
            cost.frames = rails.iter().map(|(_, rail)| rail.frames_sent).sum();
            cost.system_calls = rails.iter().map(|(_, rail)| rail.system_calls).sum();
        }
        if let Some(interface) = &place.interface {
            cost.wire = host::interface_bytes_sent(interface)
                .ok_or_else(|| anyhow::anyhow!("there is no interface {interface}"))?;
        }
        Ok(cost)
    }

    /// The difference since then.
    pub fn since(self, then: Cost) -> Cost {
        let (now, then) = (self.fields(), then.fields());
        let mut spent = now;
        spent.iter_mut().zip(then).for_each(|(spent, then)| *spent = spent.saturating_sub(then));
        Cost::from(spent)
    }

    fn fields(self) -> [u64; 6] {
        let Cost { cpu, copied, registrations, frames, system_calls, wire } = self;
        [cpu, copied, registrations, frames, system_calls, wire]
    }

    fn from([cpu, copied, registrations, frames, system_calls, wire]: [u64; 6]) -> Cost {
        Cost { cpu, copied, registrations, frames, system_calls, wire }
    }

    /// For another process.
    pub fn encode(self) -> String {
        self.fields().map(|field| field.to_string()).join(" ")
    }

    /// Reads the words that [`Self::encode`] wrote.
    pub fn decode(text: &str) -> Option<Cost> {
        let fields: Option<Vec<u64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        Some(Cost::from(fields?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_what_came_on_top_and_crosses_to_the_other_process() {
        let before = Cost { cpu: 5, frames: 1, wire: 7, ..Cost::default() };
        let after = Cost { cpu: 9, copied: 3, frames: 4, wire: 7, ..Cost::default() };
        let spent = after.since(before);
        assert_eq!(spent, Cost { cpu: 4, copied: 3, frames: 3, ..Cost::default() });
        assert_eq!(Cost::decode(&spent.encode()), Some(spent));
        assert_eq!(Cost::decode("1 2 3"), None);
    }
}
