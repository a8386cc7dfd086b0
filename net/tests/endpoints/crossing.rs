//! Two sides that call each other for one session: whoever knows which addresses, and whenever they call, no two calls for one pair of
//! rails become paths, and none is wasted.

use std::time::Duration;

use crate::common::{self, Medium, World};
use ropewalk_base::ids::EndpointId;
use ropewalk_net::{Channel, Level, LinkState, Mode, Oversize, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Cut, SimConfig};

const BYTES: usize = 300;
const RAILS: usize = 2;

/// Who can be called where, and who calls.
#[derive(Debug, Clone, Copy)]
struct Case {
    /// The rails of each side that others can call.
    listens: [[bool; RAILS]; 2],
    /// The side with the lower endpoint id.
    lower: usize,
    calls: [bool; 2],
    /// How much later the second one calls.
    later: Duration,
}

fn name(side: usize, rail: usize) -> String {
    format!("{}-{rail}", ["left", "right"][side])
}

impl Case {
    fn listens(&self, side: usize) -> bool {
        self.listens[side].contains(&true)
    }

    /// Whether this can happen at all: somebody calls, and who calls knows an address.
    fn is_sound(&self) -> bool {
        let can = |side: usize| !self.calls[side] || self.listens(1 - side);
        self.calls.contains(&true) && can(0) && can(1)
    }

    /// The paths that there are when all has been tried: the side that adds paths calls what it can.
    fn paths(&self) -> std::ops::RangeInclusive<usize> {
        let both = self.listens(0) && self.listens(1);
        let adds = if both || !self.listens(1 - self.lower) { self.lower } else { 1 - self.lower };
        let adds = if self.listens(1 - adds) { adds } else { 1 - adds };
        match self.listens[1 - adds] {
            [true, true] => 2..=2,
            // The pair of rails that the first call took may be the only one that it can call.
            _ => 1..=2,
        }
    }

    fn world(&self) -> World {
        let mut world = World::new(Medium::SimStream);
        world.mode = Mode::Resume;
        for side in 0..2 {
            let open = |rail: usize| {
                let config = SimConfig { accepts: self.listens[side][rail], ..SimConfig::stream() };
                Box::new(world.network.rail(&name(side, rail), config)) as Box<dyn Rail>
            };
            let rails = (0..RAILS).map(open).collect();
            world.add_over_all(rails, |config| {
                config.endpoint = EndpointId(if side == self.lower { 10 } else { 20 });
                config.core.paths_max = RAILS;
            });
        }
        for (left, right) in [(0, 1), (1, 0)] {
            let names = [name(0, left), name(1, right)];
            world.network.change_paths(&names[0], &names[1], |path| path.refuse = true);
        }
        world
    }

    /// The name of the other side, where it is called by the first of its addresses.
    fn peer(&self, world: &World, side: usize) -> PeerId {
        let rail = self.listens[1 - side].iter().position(|listens| *listens).expect("an address");
        let address = Address::parse(&format!("sim://{}", name(1 - side, rail))).unwrap();
        world.nodes[side].endpoint.lookup(&address).unwrap()
    }

    /// A message of each side that calls, which arrives.
    fn send(&self, world: &mut World, user: u64) {
        let peers = [0, 1].map(|side| self.calls[side].then(|| self.peer(world, side)));
        for (side, peer) in peers.into_iter().enumerate() {
            let Some(peer) = peer else { continue };
            let (memory, room) = (world.memory(BYTES, 1), world.memory(BYTES, 0));
            let (node, channel, cut) =
                (&world.nodes[1 - side], Channel::Tagged, Oversize::Truncate);
            let posted =
                node.endpoint.post_receive(&node.context, channel, None, user, !0, room, cut, user);
            world.posted(1 - side, posted);
            let (node, level) = (&world.nodes[side], Level::Delivered);
            let posted =
                node.endpoint.post_send(&node.context, peer, channel, user, memory, level, user);
            world.posted(side, posted);
            if !self.later.is_zero() && side == 0 {
                world.pass(self.later);
            }
        }
        let wanted = self.calls.iter().filter(|calls| **calls).count();
        world.until("messages", |world| {
            check(world, self);
            let ended = |node: &common::Node| node.done.iter().filter(|it| it.user == user).count();
            world.nodes.iter().all(|node| ended(node) == wanted)
        });
    }

    /// Waits until both sides have as many paths as there can be, and sees that it stays so.
    fn settle(&self, world: &mut World) {
        let end = world.network.now() + Duration::from_secs(4);
        let links = |world: &World| [0, 1].map(|side| up(world, side).len());
        world.until("end of a pause", |world| {
            check(world, self);
            world.network.now() > end
        });
        let [near, far] = links(world);
        assert!(near == far && self.paths().contains(&near), "{self:?}: {near} and {far} paths");
        assert_eq!(up(world, 0), up(world, 1), "{self:?}: of the same pairs of rails");
    }
}

/// The rails of the paths that carry.
fn up(world: &World, side: usize) -> Vec<u8> {
    let views = world.nodes[side].endpoint.path_status().paths.into_iter();
    let up = |state| matches!(state, LinkState::Up | LinkState::HeldBack { .. });
    let mut rails: Vec<u8> =
        views.filter(|view| up(view.status.state)).map(|view| view.rail.index).collect();
    rails.sort_unstable();
    rails
}

/// No rail carries two paths, and no call was in vain.
fn check(world: &World, case: &Case) {
    for side in 0..2 {
        let rails = up(world, side);
        assert!(rails.windows(2).all(|pair| pair[0] != pair[1]), "{case:?}: {rails:?}");
        let counters = world.nodes[side].endpoint.counters().0;
        let bad = (counters.joins_refused, counters.violations, counters.resets);
        assert_eq!(bad, (0, 0, 0), "{case:?}: {counters:?}");
        assert!(counters.sessions <= 1, "{case:?}: {counters:?}");
    }
}

fn each(run: impl Fn(Case)) -> usize {
    let masks = [[true, true], [true, false], [false, true], [false, false]];
    let mut cases = 0;
    for (near, far) in masks.into_iter().flat_map(|near| masks.map(|far| (near, far))) {
        for lower in 0..2 {
            for calls in [[true, true], [true, false], [false, true]] {
                for later in [0, 20, 60, 150] {
                    let later = Duration::from_micros(later);
                    let case = Case { listens: [near, far], lower, calls, later };
                    if case.is_sound() && (calls == [true; 2] || later.is_zero()) {
                        cases += 1;
                        run(case);
                    }
                }
            }
        }
    }
    cases
}

#[test]
fn calls_for_one_pair_of_rails_never_cross_whoever_knows_which_addresses() {
    let cases = each(|case| {
        let mut world = case.world();
        case.send(&mut world, 1);
        case.settle(&mut world);
        for side in 0..2 {
            let lost = world.nodes[side].endpoint.counters().0.paths_lost;
            assert_eq!(lost, 0, "{case:?}: no path goes for another one's sake");
        }
    });
    assert!(cases > 100, "{cases}");
}

#[test]
fn two_sides_that_lost_all_paths_and_call_anew_have_one_session_and_each_pair_of_rails_once() {
    each(|case| {
        let mut world = case.world();
        case.send(&mut world, 1);
        case.settle(&mut world);
        for round in 2..5 {
            for rail in 0..RAILS {
                let names = [name(0, rail), name(1, rail)];
                world.network.cut(&names[0], &names[1], Cut::Both);
            }
            case.send(&mut world, round);
            case.settle(&mut world);
        }
    });
}
