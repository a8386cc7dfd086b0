//! Rails by need: an endpoint opens a rail when somebody looks up an address for which it has none.
//!
//! Invariant: the layer above knows addresses, and no networks; the networks that a cluster uses are in the
//! addresses that its servers tell.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, OnceLock, PoisonError};

use ropewalk_rail::address::Address;
use ropewalk_rail::host::way_to;

use crate::endpoint::Endpoint;
use crate::modules::{self, ModuleError};
use crate::paths;

/// The callback for networks that an address names and this process cannot use.
type Hear = dyn Fn(&ModuleError) + Send + Sync;

/// The state of an endpoint for the networks that it opens on demand.
#[derive(Default)]
pub(crate) struct OnDemandRails {
    hear: OnceLock<Box<Hear>>,
    /// Schemes that were told of.
    told: Mutex<Vec<String>>,
}

impl Endpoint {
    /// From now on a look-up opens the rails that it needs; they only connect. `hear`: why one cannot be had,
    /// where no other way of that address leads to another host; once for each scheme.
    pub fn open_rails_by_need(&self, hear: impl Fn(&ModuleError) + Send + Sync + 'static) {
        // Said once; the first one stays.
        let _ = self.shared.on_demand.hear.set(Box::new(hear));
    }

    /// Whether it has a rail that speaks so.
    pub fn has_rail_of(&self, scheme: &str) -> bool {
        self.locked().rails.of_scheme(scheme).next().is_some()
    }

    /// Opens the rails that this address needs and that are not there. An error where it cannot be
    /// called by any.
    pub fn reach(&self, address: &Address) -> Result<(), ModuleError> {
        self.reach_apart(address)?;
        let (mut any, mut far, mut refused) = (false, false, None);
        for (scheme, place) in address.parts() {
            match self.rail_of(scheme, place) {
                Ok(same_host_only) => {
                    any = true;
                    far |= !same_host_only;
                }
                Err(error) => refused = refused.or(Some((scheme, error))),
            }
        }
        match refused {
            Some((_, error)) if !any => Err(error),
            Some((scheme, error)) if !far => {
                self.tell(scheme, &error);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Opens a rail for each interface by which this address can be called, where these are several: each is a path of its
    /// own. Where there is one, the kernel's routes may choose, also anew. Interfaces that `ROPEWALK_INTERFACES` names are used
    /// in place of these, also a single one: an error, and nothing is opened, if this host lacks one of them.
    pub fn reach_apart(&self, address: &Address) -> Result<(), ModuleError> {
        let schemes: BTreeSet<&str> = address.parts().map(|(scheme, _)| scheme).collect();
        for scheme in schemes.into_iter().filter(|scheme| modules::can_bind(scheme)) {
            let bound: BTreeSet<String> = {
                let engine = self.locked();
                engine.rails.of_scheme(scheme).filter_map(|(_, rail)| rail.bound_to()).collect()
            };
            let named = paths::interfaces()?;
            let wanted = match named {
                [] => ways_to(scheme, address),
                named => named.iter().map(|name| (name.clone(), None)).collect(),
            };
            if named.is_empty() && wanted.len() < 2 && bound.is_empty() {
                continue;
            }
            for (interface, source) in wanted {
                let on = format!("interface={interface}");
                let from = source.map(|source| format!("source={source}"));
                let is_same = |part: &str| part == on || from.as_deref() == Some(part);
                if bound.iter().any(|it| it.split('&').any(is_same)) {
                    continue;
                }
                let binding = [on.as_str()].into_iter().chain(from.as_deref()).collect::<Vec<_>>();
                // Where that is not possible, a rail that the kernel's routes lead does what it can.
                match modules::open_to_call_by(scheme, &binding.join("&")) {
                    Ok(rail) => _ = self.add_rail(rail),
                    Err(error) => self.tell(&format!("{scheme} {interface}"), &error),
                }
            }
        }
        Ok(())
    }

    /// As `reach`, where that was asked for; errors are told.
    pub(crate) fn reach_by_need(&self, address: &Address) {
        if self.shared.on_demand.hear.get().is_some()
            && let Err(error) = self.reach(address)
        {
            let schemes: Vec<&str> = address.parts().map(|(scheme, _)| scheme).collect();
            self.tell(&schemes.join(","), &error);
        }
    }

    /// Has a rail for this part of an address; whether it stays on this host.
    fn rail_of(&self, scheme: &str, place: &str) -> Result<bool, ModuleError> {
        let found = {
            let engine = self.locked();
            let rail = engine.rails.of_scheme(scheme).next();
            rail.map(|(_, rail)| rail.capabilities().same_host_only)
        };
        if let Some(same_host_only) = found {
            return Ok(same_host_only);
        }
        let rail = modules::open_to_call(scheme, place)?;
        let same_host_only = rail.capabilities().same_host_only;
        self.add_rail(rail).map_err(ModuleError::Descriptors)?;
        Ok(same_host_only)
    }

    fn tell(&self, scheme: &str, error: &ModuleError) {
        let mut told = self.shared.on_demand.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.iter().any(|other| other == scheme) {
            return;
        }
        told.push(scheme.to_string());
        if let Some(hear) = self.shared.on_demand.hear.get() {
            hear(error);
        }
    }
}

/// The interfaces, with their source addresses, by which the kernel would call these addresses of a scheme.
fn ways_to(scheme: &str, address: &Address) -> BTreeMap<String, Option<IpAddr>> {
    let places = address.parts().filter(|part| part.0 == scheme);
    let hosts = places.filter_map(|(_, place)| place.parse::<SocketAddr>().ok());
    let ways = hosts.filter_map(|host| way_to(host.ip()));
    ways.map(|(interface, source)| (interface, Some(source))).collect()
}
