//! The namespaces of a network, the commands in them, and the wires.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::claims::Claims;
use crate::error::{Error, Result};
use crate::layout::{self, Joint, Layout, Order, Place, TopologyConfig};
use crate::link::Link;
use crate::namespace::Namespace;
use crate::wire::Wire;

/// Nothing takes longer to come up, unless something is wrong.
const READY_MAX: Duration = Duration::from_secs(10);
/// The pause between two looks at what comes up.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// What a network and the faults in it have in common. Wires end before their namespaces do.
#[derive(Debug)]
pub(crate) struct Network {
    wires: Mutex<BTreeMap<(usize, usize), Arc<Wire>>>,
    pub layout: Layout,
    pub claims: Mutex<Claims>,
    pub faults: AtomicU64,
    pub hosts: Vec<Namespace>,
    pub switches: Vec<Namespace>,
}

impl Network {
    /// Builds it, and waits until all interfaces have a carrier.
    pub fn new(config: &TopologyConfig) -> Result<Network> {
        config.check()?;
        let named = |role: &str, count: usize| -> Result<Vec<Namespace>> {
            (0..count).map(|number| Namespace::new(&format!("{role}{number}"))).collect()
        };
        let hosts = named("host", config.hosts)?;
        let switches =
            if config.joint == Joint::Direct { Vec::new() } else { named("switch", config.rails)? };
        let host_names = hosts.iter().map(|host| host.name().to_string()).collect();
        let layout = Layout { config: config.clone(), host_names };
        let network = Network {
            wires: Mutex::default(),
            layout,
            claims: Mutex::default(),
            faults: AtomicU64::new(0),
            hosts,
            switches,
        };
        network.build()?;
        Ok(network)
    }

    pub fn namespace(&self, place: Place) -> &Namespace {
        match place {
            Place::Host(host) => &self.hosts[host],
            Place::Switch(rail) => &self.switches[rail],
        }
    }

    /// Carries out commands in their order, and stops at the first that fails.
    pub fn run(&self, orders: &[Order]) -> Result<()> {
        let same = |one: &Order, other: &Order| one.place == other.place && one.tool == other.tool;
        orders.chunk_by(same).try_for_each(|orders| {
            let lines: Vec<&str> = orders.iter().map(|order| order.line.as_str()).collect();
            self.namespace(orders[0].place).run(orders[0].tool, &lines)
        })
    }

    pub fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wires(&self) -> MutexGuard<'_, BTreeMap<(usize, usize), Arc<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wire of a cable, if it has one.
    pub fn present_wire(&self, host: usize, rail: usize) -> Option<Arc<Wire>> {
        self.wires().get(&(host, rail)).cloned()
    }

    /// The bridge's port of a host's cable.
    pub fn bridge_port(&self, host: usize, rail: usize) -> String {
        let [_, inner] = layout::behind_wire(host);
        if self.wires().contains_key(&(host, rail)) { inner } else { layout::port(host) }
    }

    /// The wire of a cable; it comes in where there is none.
    pub fn wire(&self, host: usize, rail: usize) -> Result<Arc<Wire>> {
        let Some(switch) = self.switches.get(rail).filter(|_| host < self.hosts.len()) else {
            return Err(Error::NoCable { host, rail });
        };
        // Nobody else claims the cable, or puts a wire in, meanwhile.
        let claims = self.claims();
        let mut wires = self.wires();
        if let Some(wire) = wires.get(&(host, rail)) {
            return Ok(wire.clone());
        }
        if !claims.takes_wire(host, rail) {
            return Err(Error::Busy { host, rail });
        }
        let [outer, inner] = layout::behind_wire(host);
        let put_in = || {
            self.run(&self.layout.seam(host, rail))?;
            self.wait_for(Place::Switch(rail), &inner, |link| link.has_carrier)?;
            let wire = Wire::between(switch, [&layout::port(host), &outer])?;
            self.run(&Layout::swap(host, rail))?;
            self.wait_for(Place::Switch(rail), &inner, |link| link.is_forwarding)?;
            Ok(Arc::new(wire))
        };
        let wire = put_in().inspect_err(|_| {
            let place = Place::Switch(rail);
            let _ = self.run(&[Order::ip(place, format!("link delete {outer}"))]);
            let _ = self.run(self.layout.plug(host, rail).as_slice());
        })?;
        wires.insert((host, rail), wire.clone());
        Ok(wire)
    }

    fn build(&self) -> Result<()> {
        let TopologyConfig { rails, joint, wires, .. } = self.layout.config;
        for host in &self.hosts {
            host.set(&settings(self.layout.config.ipv6))?;
        }
        for (rail, switch) in self.switches.iter().enumerate() {
            switch.set(&settings(false))?;
            self.run(&Layout::switch(rail))?;
        }
        let cables = if joint == Joint::Direct { 1 } else { self.hosts.len() };
        let mut orders = vec![Order::ip(Place::Host(0), "link set lo up")];
        for rail in 0..rails {
            for host in 0..cables {
                orders.extend(self.layout.cable(host, rail));
                orders.extend(self.layout.plug(host, rail));
            }
        }
        for host in 0..self.hosts.len() {
            if host > 0 {
                orders.push(Order::ip(Place::Host(host), "link set lo up"));
            }
            orders.extend((0..rails).flat_map(|rail| self.layout.end(host, rail)));
        }
        for host in 0..self.hosts.len() {
            orders.extend((0..rails).flat_map(|rail| self.layout.first_rate(host, rail)));
        }
        self.run(&orders)?;
        for (host, rail) in (0..self.hosts.len()).flat_map(|h| (0..rails).map(move |r| (h, r))) {
            self.wait_for_cable(host, rail)?;
            if wires {
                self.wire(host, rail)?;
            }
        }
        Ok(())
    }

    /// Waits until frames can pass a host's cable, up to the bridge's port.
    pub fn wait_for_cable(&self, host: usize, rail: usize) -> Result<()> {
        self.wait_for(Place::Host(host), &layout::interface(rail), |link| link.has_carrier)?;
        if self.switches.is_empty() {
            return Ok(());
        }
        let port = self.bridge_port(host, rail);
        self.wait_for(Place::Switch(rail), &port, |link| link.is_forwarding)
    }

    fn wait_for(&self, place: Place, name: &str, is_ready: fn(&Link) -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_ready(&self.namespace(place).link(name)?) {
            if begin.elapsed() > READY_MAX {
                let late = std::io::ErrorKind::TimedOut;
                return Err(Error::system(format!("{name} does not come up"), late));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

/// What the kernel shall do in a namespace. Several interfaces of a host must not answer for each other, nor make
/// up addresses by themselves.
fn settings(ipv6: bool) -> Vec<(&'static str, &'static str)> {
    let mut all = vec![
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/default/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
        ("ipv4/conf/default/arp_announce", "2"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
    ];
    if ipv6 {
        all.extend([
            ("ipv6/conf/all/disable_ipv6", "0"),
            ("ipv6/conf/default/disable_ipv6", "0"),
            ("ipv6/conf/default/addr_gen_mode", "1"),
            ("ipv6/conf/default/accept_ra", "0"),
            // Addresses stay where an interface is set down, as those of IPv4 do.
            ("ipv6/conf/all/keep_addr_on_down", "1"),
        ]);
    } else if std::path::Path::new("/proc/sys/net/ipv6").exists() {
        all.extend([("ipv6/conf/all/disable_ipv6", "1"), ("ipv6/conf/default/disable_ipv6", "1")]);
    }
    all
}
