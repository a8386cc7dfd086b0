//! The rails for addresses `mxoe://`, as a module of `net`: raw Ethernet frames, MXoE, and a keeper that may be the
//! agent of the interface.

use std::sync::Once;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_net::modules::{self, Listen, Module, ModuleError, Options, Rail};
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, Protocol};
use ropewalk_transport::mxoe::{Mxoe, MxoeConfig};
use ropewalk_wire::mxoe::Dialect;

use crate::agent;
use crate::wire::Wire;

/// Partners of one endpoint.
const PARTNERS_MAX: usize = 16_000;
/// A connect that is not answered for so long fails.
const CONNECT_FOR: Duration = Duration::from_secs(10);
/// The time after which a silent host is given up: hosts with Open-MX acknowledge nothing while their programs compute,
/// and wait for 1,000 time-outs of 512 ms themselves.
const GIVE_UP_AFTER: Duration = Duration::from_secs(512);

/// Adds the module to those of `net`. Calls after the first one do nothing.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let call = |address: &str, options: &Options| {
            let wire = Wire::parse("", options.sockets()?)?;
            open_rail(EtherConfig::calling(address), wire, options)
        };
        let makes_sense = |address: &str| ropewalk_rail_ether::is_address(parted(address).0);
        let module = Module::new("mxoe", open).with_call(call).with_check(makes_sense);
        modules::register(module.with_foreign_peers());
    });
}

/// An address, and its query behind `?`.
pub(crate) fn parted(address: &str) -> (&str, &str) {
    address.split_once('?').unwrap_or((address, ""))
}

fn open(listen: &Listen<'_>, options: &Options) -> Result<Box<dyn Rail>, ModuleError> {
    let sockets = options.sockets()?;
    let Listen::At { address, .. } = listen else {
        return open_rail(EtherConfig::default(), Wire::parse("", sockets)?, options);
    };
    let (address, query) = parted(address);
    let wire = Wire::parse(query, sockets)?;
    open_rail(EtherConfig::listening(address)?, wire, options)
}

fn open_rail(
    config: EtherConfig,
    wire: Wire,
    options: &Options,
) -> Result<Box<dyn Rail>, ModuleError> {
    let protocol = Protocol::Mxoe(wire.order());
    let config = EtherConfig { protocol, sockets: wire.sockets, ..config };
    let mut port = modules::open_ether_port(&config)?;
    let here = port.interface().station;
    let dialect = wire.dialect(port.packet_bytes())?;
    // Hosts with Open-MX talk to those only of whom an agent has told them.
    if let Some(member) = agent::join(port.interface(), dialect, Some(port.endpoint())) {
        port.keep(Box::new(member));
    }
    let machine = machine(&port, dialect, wire);
    modules::over_packets(port, here, options, machine)
}

/// MXoE at this port.
fn machine<P: Port>(port: &P, dialect: Dialect, wire: Wire) -> Mxoe<P::Station> {
    let give_up_after = wire.silence.unwrap_or(GIVE_UP_AFTER);
    let config = MxoeConfig {
        endpoint: port.endpoint(),
        dialect,
        key: wire.key,
        accepts: !port.addresses().is_empty(),
        partners_max: PARTNERS_MAX,
        frames_max: (port.packets_max() / 2).max(1),
        give_up_after,
        connect_for: CONNECT_FOR.min(give_up_after),
    };
    Mxoe::new(config, Random::from_seed(ropewalk_net::host::random_seed()))
}
