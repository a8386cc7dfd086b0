//! What operators and policies order of the paths of a scenario.

use ropewalk_net::migration::{By, Wanted};

use super::Scenario;
use super::plan::Order;

impl Scenario {
    /// An order may be refused, by any rule; whatever comes of it harms no operation.
    pub(super) fn order(&mut self, side: usize, order: Order) {
        let node = &self.nodes[side];
        let (endpoint, peer) = (&node.endpoint, node.peer);
        let entries = endpoint.path_entries(peer);
        let path = |place: usize| Some(entries.get(place % entries.len().max(1))?.0.record.id);
        let answer = match order {
            Order::Specify { rail } => {
                let wanted = Wanted { local_rail: rail, ..Wanted::default() };
                endpoint.specify_path(peer, wanted).map(|_| ())
            }
            Order::Load => {
                drop(endpoint.load_paths(&[peer], By::Event));
                Ok(())
            }
            Order::Migrate => endpoint.migrate_path(peer).map(|_| ()),
            Order::Drain { path: place } => {
                path(place).map_or(Ok(()), |path| endpoint.drain_path(peer, path))
            }
            Order::Up { path: place } => {
                path(place).map_or(Ok(()), |path| endpoint.up_path(peer, path))
            }
            Order::Weigh { path: place, weight } => {
                path(place).map_or(Ok(()), |path| endpoint.weigh_path(peer, path, weight))
            }
        };
        self.trace.mix(u64::from(answer.is_ok()));
        self.tell(|| format!("{} orders {order:?}: {answer:?}", super::SIDES[side]));
    }
}
