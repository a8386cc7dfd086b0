//! The interfaces by which the kernel would call addresses, asked for at most each second.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_rail::host::way_to;

const FRESH: Duration = Duration::from_secs(1);
/// Answers that are kept; when there are more, all are asked for anew.
const KEPT_MAX: usize = 1024;

/// What the kernel said, and when.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    kept: HashMap<SocketAddr, (Time, Option<(String, IpAddr)>)>,
}

impl Routes {
    /// Whether the kernel would call an address by what a rail is bound to (see `Rail::bound_to`). `None` where that is not
    /// known.
    pub fn lead_by(&mut self, bound: &str, address: &str, now: Time) -> Option<bool> {
        let address = address.parse::<SocketAddr>().ok()?;
        if self.kept.len() >= KEPT_MAX {
            self.kept.clear();
        }
        let entry = self.kept.entry(address);
        let (at, way) = entry.or_insert_with(|| (now, way_to(address.ip())));
        if now.since(*at) >= FRESH {
            (*at, *way) = (now, way_to(address.ip()));
        }
        let (interface, source) = way.as_ref()?;
        let is_it = |part: &str| match part.split_once('=') {
            Some(("interface", name)) => name == interface,
            Some(("source", own)) => own.parse() == Ok(*source),
            _ => false,
        };
        Some(bound.split('&').any(is_it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_of_names_nor_of_this_host() {
        let mut routes = Routes::default();
        for address in ["node1:7", "127.0.0.1:7", "eth0/3"] {
            assert_eq!(routes.lead_by("interface=lo", address, Time::ZERO), None);
        }
    }

    #[test]
    fn a_rail_leads_by_its_interface_or_its_source_address() {
        let mut routes = Routes::default();
        let (host, source) = ("192.0.2.9:7", "192.0.2.1".parse().unwrap());
        let way = Some(("eth1".to_string(), source));
        routes.kept.insert(host.parse().unwrap(), (Time::ZERO, way));
        for (bound, leads) in [
            ("interface=eth1", true),
            ("interface=eth0", false),
            ("source=192.0.2.1", true),
            ("interface=eth0&source=192.0.2.2", false),
        ] {
            assert_eq!(routes.lead_by(bound, host, Time::ZERO), Some(leads), "{bound}");
        }
    }
}
