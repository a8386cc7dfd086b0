//! Why a peer is not reached, in words.

use std::fmt::Write;
use std::time::Duration;

use ropewalk_base::health::Suspicion;
use ropewalk_core::{PathCause, PathLoss, PeerId};

use crate::endpoint::Endpoint;
use crate::engine::Engine;
use crate::path_status::RailName;

impl Endpoint {
    /// Why the paths to a peer are not used, each with its rail: `no path to tcp://10.0.0.2:7000: rail tcp eth0: the carrier
    /// is lost for 31 s; rail tcp eth1: no answer for 30 s`. Of a peer that was given up until it is reached again.
    /// `None` where nothing is known against any path, and of a peer that was never reached.
    pub fn why_unreachable(&self, peer: PeerId) -> Option<String> {
        self.locked().why_unreachable(peer)
    }
}

impl Engine {
    pub(crate) fn why_unreachable(&self, peer: PeerId) -> Option<String> {
        let losses = self.core.path_losses(peer);
        if losses.is_empty() {
            return None;
        }
        let now = self.core.now();
        let mut text = format!("no path to {}", self.name_of(peer));
        for (number, PathLoss { rail, cause, since, .. }) in losses.into_iter().enumerate() {
            let mark = if number == 0 { ':' } else { ';' };
            let (rail, cause) = (self.rail_and_place(rail), cause_text(cause));
            let _ = write!(text, "{mark} rail {rail}: {cause} for {}", time_text(now.since(since)));
        }
        Some(text)
    }

    fn name_of(&self, peer: PeerId) -> String {
        let looked_up = self.addresses.address_of(peer).map(ToString::to_string);
        let told = || std::str::from_utf8(self.core.peer_addresses(peer)).ok().map(str::to_string);
        let named = looked_up.or_else(told);
        match (named, self.core.peer_endpoint(peer)) {
            (Some(named), _) if !named.is_empty() => named,
            (_, Some(endpoint)) => format!("endpoint {endpoint:032x}"),
            _ => "a peer".to_string(),
        }
    }

    /// The scheme of a rail and where it is: `tcp eth1`.
    fn rail_and_place(&self, rail: u8) -> String {
        let RailName { scheme, interface, source, address, .. } = self.rail_name(rail);
        match interface.or(source).or(address) {
            Some(place) => format!("{scheme} {place}"),
            None => scheme.to_string(),
        }
    }
}

fn seen(cause: Suspicion) -> String {
    match cause {
        Suspicion::CarrierLost => "the carrier is lost".to_string(),
        Suspicion::InterfaceDown => "the interface is down".to_string(),
        Suspicion::InterfaceGone => "the interface is gone".to_string(),
        Suspicion::AddressGone => "the source address is gone".to_string(),
        Suspicion::RouteGone => "there is no route".to_string(),
        Suspicion::Unacknowledged => "nothing is acknowledged".to_string(),
        Suspicion::Corrupt => "payloads fail their checksums".to_string(),
        Suspicion::SendError(0) => "sends are refused".to_string(),
        Suspicion::SendError(number) => {
            format!("sends are refused ({})", std::io::Error::from_raw_os_error(number))
        }
    }
}

fn cause_text(cause: PathCause) -> String {
    match cause {
        PathCause::TimeOut | PathCause::Silence => "no answer".to_string(),
        PathCause::Rail(cause) => seen(cause),
        PathCause::Peer => "the peer says that it is broken".to_string(),
        PathCause::Route => "others lost their paths there, too".to_string(),
        PathCause::LinkLost => "the link is lost".to_string(),
    }
}

fn time_text(time: Duration) -> String {
    if time < Duration::from_secs(2) {
        return format!("{} ms", time.as_millis());
    }
    format!("{} s", time.as_secs())
}
