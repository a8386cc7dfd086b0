//! The commands that inject each kind of fault, and those that mend it.
//!
//! Invariant: this module runs nothing, so that it can be tested without rights.

use crate::direction::Direction;
use crate::error::{Error, Result};
use crate::fault::{Fault, FaultKind, Flap, Route};
use crate::layout::{Joint, Layout, Order, Place, SWITCH, address, address6, interface};
use crate::tool::Tool;

/// The part of a cable that a fault has, as long as it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// What only one fault at a time can change.
    Structure,
    Rate,
    /// Rules that drop frames; several may be there.
    Rules,
    /// Impairments of a wire; several may be there.
    Wire,
    /// All of it.
    Whole,
}

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub inject: Vec<Order>,
    /// Commands for a kernel that refuses the first ones.
    pub otherwise: Vec<Order>,
    pub mend: Vec<Order>,
}

/// Hosts whose cables a fault concerns, and the part of each.
pub(crate) fn parts(layout: &Layout, fault: &Fault) -> Vec<(usize, Part)> {
    use FaultKind as Kind;
    let hosts = 0..layout.config.hosts;
    let alone = |part| {
        // Both ends of a direct cable are one cable.
        let host = if layout.config.joint == Joint::Direct { 0 } else { fault.host };
        vec![(host, part)]
    };
    match fault.kind {
        Kind::MtuBlackHole { .. } | Kind::SwitchDeath { .. } => {
            hosts.map(|host| (host, Part::Structure)).collect()
        }
        Kind::InterfaceRemoved => alone(Part::Whole),
        Kind::Rate { .. } => alone(Part::Rate),
        Kind::Loss { .. } | Kind::LossOfEach { .. } => alone(Part::Rules),
        Kind::Cut if fault.direction != Direction::Both => alone(Part::Rules),
        Kind::Impaired(_) => alone(Part::Wire),
        _ => alone(Part::Structure),
    }
}

/// Whether the fault can occur in such a network at all.
pub(crate) fn check(layout: &Layout, fault: &Fault) -> Result<()> {
    let Fault { kind, host, rail, direction, .. } = *fault;
    if host >= layout.config.hosts || rail >= layout.config.rails {
        return Err(Error::NoCable { host, rail });
    }
    let why = match kind {
        _ if direction != Direction::Both && !kind.has_direction() => {
            "it concerns both directions always"
        }
        _ if kind.needs_switch() && layout.config.joint != Joint::Switched => {
            "it needs Joint::Switched"
        }
        FaultKind::LossOfEach { nth: 0 } => "each 0th frame does not exist",
        FaultKind::Rate { kbit: 0 } => "a rate of 0 is FaultKind::Cut",
        FaultKind::Loss { ppm } if ppm > 1_000_000 => "it loses more than a million of a million",
        FaultKind::MtuShrink { bytes } | FaultKind::MtuBlackHole { bytes }
            if !(68..=layout.config.mtu).contains(&bytes) =>
        {
            "its MTU is not 68 to that of the network"
        }
        FaultKind::Flapping { mean, .. } if mean.is_zero() => "it flaps without a pause",
        _ => return Ok(()),
    };
    Err(Error::Unsuited { fault: fault.to_string(), why })
}

/// The plan for a fault that passed [`check`]. `port` is the bridge's port of the host's cable; rules of the fault have
/// names with its number.
pub(crate) fn plan(layout: &Layout, fault: &Fault, port: &str, number: u64) -> Plan {
    use FaultKind as Kind;
    let Fault { kind, host, rail, direction, .. } = *fault;
    let (here, switch) = (Place::Host(host), Place::Switch(rail));
    let (far_place, far) = layout.far_end(host, rail);
    let name = interface(rail);
    let at = |place, line: String| vec![Order::ip(place, line)];
    let set = |place, device: &str, what: &str| at(place, format!("link set {device} {what}"));
    let of = |inject, mend| Plan { inject, mend, ..Plan::default() };
    match kind {
        Kind::InterfaceDown => of(set(here, &name, "down"), set(here, &name, "up")),
        Kind::CarrierLoss | Kind::Flapping { flap: Flap::Carrier, .. } => {
            of(set(far_place, &far, "down"), set(far_place, &far, "up"))
        }
        Kind::Cut if direction != Direction::Both => rules(switch, number, port, direction, "drop"),
        Kind::Cut | Kind::Flapping { flap: Flap::Silent, .. } => {
            let mend = set(switch, port, &format!("master {SWITCH}"));
            of(set(switch, port, "nomaster"), mend)
        }
        Kind::Loss { ppm } => {
            let rule = format!("numgen random mod 1000000 < {ppm} drop");
            rules(switch, number, port, direction, &rule)
        }
        Kind::LossOfEach { nth } => {
            let rule = format!("numgen inc mod {nth} == {} drop", nth - 1);
            rules(switch, number, port, direction, &rule)
        }
        // The wire does all of it.
        Kind::Impaired(_) => Plan::default(),
        Kind::Rate { kbit } => of(
            layout.rate(host, rail, direction, Some(kbit)),
            layout.rate(host, rail, direction, layout.config.rate_kbit),
        ),
        Kind::MtuShrink { bytes } => {
            let mut mend = set(here, &name, &format!("mtu {}", layout.config.mtu));
            // Below 1,280 bytes the kernel removes all of IPv6.
            mend.extend(layout.addresses("replace", host, host, rail));
            of(set(here, &name, &format!("mtu {bytes}")), mend)
        }
        Kind::MtuBlackHole { bytes } => black_hole(layout, rail, number, port, bytes),
        Kind::InterfaceRemoved => of(at(here, format!("link delete {name}")), renew(layout, fault)),
        Kind::InterfaceRenamed => renamed(here, rail),
        Kind::AddressRemoved => of(
            layout.addresses("delete", host, host, rail),
            layout.addresses("add", host, host, rail),
        ),
        Kind::AddressChanged => {
            let change = |from, to| {
                let mut orders = layout.addresses("delete", host, from, rail);
                orders.extend(layout.addresses("add", host, to, rail));
                orders
            };
            of(change(host, host + 100), change(host + 100, host))
        }
        Kind::Route(route) => {
            let all = |verb: &str| routes(layout, fault, verb, route);
            of(all("add"), all("delete"))
        }
        Kind::SwitchDeath { silently: true } => {
            of(set(switch, SWITCH, "down"), set(switch, SWITCH, "up"))
        }
        Kind::SwitchDeath { silently: false } => {
            let ports = |what: &str| {
                let port = |host| layout.far_end(host, rail).1;
                (0..layout.config.hosts).flat_map(|host| set(switch, &port(host), what)).collect()
            };
            of(ports("down"), ports("up"))
        }
    }
}

fn renamed(place: Place, rail: usize) -> Plan {
    let (name, other) = (interface(rail), format!("renamed{rail}"));
    let set = |lines: &[String]| -> Vec<Order> {
        lines.iter().map(|line| Order::ip(place, format!("link set {line}"))).collect()
    };
    let through_down = |from: &str, to: &str| {
        set(&[format!("{from} down"), format!("{from} name {to}"), format!("{to} up")])
    };
    Plan {
        inject: set(&[format!("{name} name {other}")]),
        // Not every kernel renames an interface that is up.
        otherwise: through_down(&name, &other),
        mend: through_down(&other, &name),
    }
}

/// A rule for the frames that enter the switch by a port, or leave it there. Neither sender nor receiver sees what
/// happens, whatever sockets they have.
fn rules(place: Place, number: u64, port: &str, direction: Direction, rule: &str) -> Plan {
    let from = direction.has_from().then_some(rule);
    let to = direction.has_to().then_some(rule);
    rule_each(place, number, port, [from, to])
}

/// The same with one rule for what enters, and one for what leaves.
fn rule_each(place: Place, number: u64, port: &str, rules: [Option<&str>; 2]) -> Plan {
    let chains: String = ["ingress", "egress"]
        .into_iter()
        .zip(rules)
        .filter_map(|(hook, rule)| {
            let hooked = format!("type filter hook {hook} device \"{port}\" priority 0");
            Some(format!("chain {hook} {{ {hooked}; {}; }}; ", rule?))
        })
        .collect();
    let order = |line| vec![Order { place, tool: Tool::Nft, line }];
    Plan {
        inject: order(format!("table netdev fault{number} {{ {chains}}}")),
        mend: order(format!("delete table netdev fault{number}")),
        ..Plan::default()
    }
}

/// Rules instead of the port's own MTU: for that, the kernel tells the sender of a raw frame that it was dropped.
fn black_hole(layout: &Layout, rail: usize, number: u64, port: &str, bytes: u32) -> Plan {
    // What leaves is counted with its Ethernet header, which has 14 bytes.
    let [enters, leaves] = [bytes, bytes + 14].map(|most| format!("meta length > {most} drop"));
    let mut plan = rule_each(Place::Switch(rail), number, port, [Some(&enters), Some(&leaves)]);
    if layout.config.offload {
        // Segments that travel as one frame would be dropped for their common length.
        for host in 0..layout.config.hosts {
            plan.inject.insert(0, layout.segments(host, rail, false));
            plan.mend.push(layout.segments(host, rail, true));
        }
    }
    plan
}

/// Makes a cable again that has vanished, up to the bridge's port.
fn renew(layout: &Layout, fault: &Fault) -> Vec<Order> {
    let Fault { host, rail, .. } = *fault;
    let mut orders = layout.cable(host, rail);
    let ends = match layout.config.joint {
        Joint::Direct => vec![host, 1 - host],
        Joint::Switched => vec![host],
    };
    for end in ends {
        orders.extend(layout.end(end, rail));
        orders.extend(layout.first_rate(end, rail));
    }
    orders
}

fn routes(layout: &Layout, fault: &Fault, verb: &str, route: Route) -> Vec<Order> {
    let Fault { host, rail, .. } = *fault;
    let kind = match route {
        Route::BlackHole => "blackhole",
        Route::Unreachable => "unreachable",
    };
    let others = (0..layout.config.hosts).filter(|other| *other != host);
    let lines = others.flat_map(|other| {
        let v4 = format!("route {verb} {kind} {}/32", address(other, rail));
        let v6 = format!("route {verb} {kind} {}/128", address6(other, rail));
        std::iter::once(v4).chain(layout.config.ipv6.then_some(v6))
    });
    lines.map(|line| Order::ip(Place::Host(host), line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TopologyConfig;

    fn layout(joint: Joint) -> Layout {
        let config = TopologyConfig { joint, ipv6: true, ..TopologyConfig::default() };
        Layout { config, host_names: vec!["a".into(), "b".into()] }
    }

    #[test]
    fn each_kind_can_be_planned_and_mended_where_it_can_occur() {
        for joint in [Joint::Direct, Joint::Switched] {
            let layout = layout(joint);
            for kind in FaultKind::examples() {
                let fault = Fault::new(kind, 1, 0);
                let fits = joint == Joint::Switched || !kind.needs_switch();
                assert_eq!(check(&layout, &fault).is_ok(), fits, "{fault}");
                let plan = plan(&layout, &fault, "port1", 3);
                let by_wire = matches!(kind, FaultKind::Impaired(_));
                assert_eq!(plan.inject.is_empty() && plan.mend.is_empty(), by_wire, "{fault}");
                assert!(!parts(&layout, &fault).is_empty(), "{fault}");
                let one_way = check(&layout, &fault.directed(Direction::To));
                assert_eq!(one_way.is_ok(), fits && kind.has_direction(), "{fault}");
            }
        }
    }

    #[test]
    fn one_way_rules_are_at_the_hook_of_their_direction() {
        let cut = Fault::new(FaultKind::Cut, 0, 1);
        let line = |direction| {
            let plan = plan(&layout(Joint::Switched), &cut.directed(direction), "port0", 7);
            plan.inject[0].line.clone()
        };
        let (from, to) = (line(Direction::From), line(Direction::To));
        assert!(
            from.contains("hook ingress device \"port0\"") && !from.contains("egress"),
            "{from}"
        );
        assert!(to.contains("hook egress device \"port0\"") && !to.contains("ingress"), "{to}");
        assert_eq!(line(Direction::Both), "link set port0 nomaster");
    }

    #[test]
    fn nonsense_is_refused_with_the_reason() {
        let layout = layout(Joint::Switched);
        let said = |kind| {
            let fault = Fault::new(kind, 0, 0);
            check(&layout, &fault).expect_err("it is wrong").to_string()
        };
        assert!(said(FaultKind::LossOfEach { nth: 0 }).contains("each 0th frame"));
        assert!(said(FaultKind::MtuShrink { bytes: 9000 }).contains("its MTU is not 68"));
        let nowhere = check(&layout, &Fault::new(FaultKind::Cut, 2, 0));
        assert!(matches!(nowhere, Err(Error::NoCable { host: 2, rail: 0 })));
    }
}
