//! What running processes tell of their paths.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use ropewalk_host_paths::{Answer, AskError, ask, ask_all};
use serde_json::{Value, json};

use crate::remote::text::printable;
use crate::report::complain;

/// Hexadecimal digits of an endpoint's id that are shown.
const DIGITS_SHOWN: usize = 8;
/// Characters of an address that are shown; --json has all.
const ADDRESS_SHOWN: usize = 48;

/// Which processes and peers are meant.
#[derive(Debug, Clone, clap::Args)]
pub struct Which {
    /// Show only the peer with this address, or with an id that begins like this.
    pub peer: Option<String>,
    /// Ask only the process with this number.
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    pub process: Option<u32>,
}

/// An endpoint of a process, with what it told.
#[derive(Debug, Clone)]
pub struct Told {
    pub process: u32,
    pub program: String,
    /// The endpoint's id, in hexadecimal digits.
    pub endpoint: String,
    pub role: String,
    /// The objects of its paths, or of events.
    pub objects: Vec<Value>,
}

impl Which {
    /// Asks, and returns what each endpoint told under this name. An endpoint that has nothing of a named peer is left out.
    /// Processes that do not answer are named on standard error, unless one is meant alone. `told_of`: processes of which
    /// that was said before.
    pub fn ask(
        &self,
        question: &Value,
        name: &str,
        told_of: &mut BTreeSet<u32>,
    ) -> anyhow::Result<Vec<Told>> {
        let answers = match self.process {
            Some(process) => vec![ask(process, question)?],
            None => ask_all(question).into_iter().filter_map(|it| heard(it, told_of)).collect(),
        };
        let mut told: Vec<Told> =
            answers.iter().flat_map(|answer| endpoints(answer, name)).collect();
        for endpoint in &mut told {
            endpoint.objects.retain(|object| self.is_meant(&object["peer"]));
        }
        Ok(told)
    }

    /// Whether this peer is meant.
    fn is_meant(&self, peer: &Value) -> bool {
        self.peer.as_deref().is_none_or(|named| is_named(peer, named))
    }

    /// Fails where a peer is named, and no process knows it.
    pub fn check(&self, told: &[Told]) -> anyhow::Result<()> {
        let Some(peer) = self.peer.as_deref().filter(|_| told.iter().all(Told::is_empty)) else {
            return Ok(());
        };
        let whose = match self.process {
            Some(process) => format!("process {process} has"),
            None => "no process that shows its paths here has".to_string(),
        };
        let no = if self.process.is_some() { "no" } else { "a" };
        bail!(
            "{whose} {no} session with a peer '{peer}': `ropewalk paths status` lists the peers by \
             their addresses and ids"
        )
    }
}

impl Told {
    fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// The process and what the endpoint is in it, as people say it.
    pub fn name(&self) -> String {
        format!("process {} ({}), {}", self.process, self.program, self.role)
    }

    /// An object with the names of the endpoint, for programs.
    pub fn named(&self, object: &Value) -> Value {
        let mut named = json!({
            "process": self.process,
            "program": self.program,
            "role": self.role,
            "endpoint": self.endpoint,
        });
        if let (Some(to), Some(from)) = (named.as_object_mut(), object.as_object()) {
            to.extend(from.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        named
    }
}

/// What a process answered, if it did; otherwise it is said once why not.
fn heard(answer: Result<Answer, AskError>, told_of: &mut BTreeSet<u32>) -> Option<Answer> {
    let process = match &answer {
        Ok(_) => return answer.ok(),
        // It belongs to somebody else, whose it is.
        Err(AskError::Foreign { process, .. } | AskError::Refused { process, .. }) => *process,
        Err(AskError::Silent(process) | AskError::Unreadable(process)) => *process,
        Err(_) => 0,
    };
    if let (Err(error), true) = (answer, told_of.insert(process)) {
        complain!("ropewalk: {error}");
    }
    None
}

fn endpoints(answer: &Answer, name: &str) -> Vec<Told> {
    let Answer { process, object } = answer;
    let endpoints = object["endpoints"].as_array().into_iter().flatten();
    endpoints
        .map(|endpoint| Told {
            process: *process,
            program: text(&object["program"]),
            endpoint: text(&endpoint["endpoint"]),
            role: text(&endpoint["role"]),
            objects: endpoint[name].as_array().cloned().unwrap_or_default(),
        })
        .collect()
}

/// A text of a process, as a terminal may show it.
pub fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or("?").as_bytes())
}

/// Whether people may call a peer so: by one of its addresses, with or without its scheme or what is behind `?`, or by the
/// beginning of its id.
fn is_named(peer: &Value, named: &str) -> bool {
    let id = peer["endpoint"].as_str().unwrap_or_default();
    let addresses = peer["address"].as_str().unwrap_or_default();
    let is_address = |address: &str| {
        let plain = address.split('?').next().unwrap_or_default();
        let bare = plain.split_once("://").map_or(plain, |(_, place)| place);
        [address, plain, bare].contains(&named)
    };
    let is_id = !named.is_empty() && id.starts_with(&named.to_ascii_lowercase());
    is_id || addresses.split(',').any(is_address)
}

/// A peer, as people see it: its first address and the beginning of its id.
pub fn peer_name(peer: &Value) -> String {
    let id = text(&peer["endpoint"]);
    let id: String = id.chars().take(DIGITS_SHOWN).collect();
    let Some(address) = peer["address"].as_str() else { return id };
    let first = address.split([',', '?']).next().unwrap_or_default();
    let shown: String = printable(first.as_bytes()).chars().take(ADDRESS_SHOWN).collect();
    format!("{shown} ({id})")
}

/// A rail: its scheme, and what it is bound to.
pub fn rail_name(rail: &Value) -> String {
    let bound = [&rail["interface"], &rail["source"]].into_iter().find_map(Value::as_str);
    let bound = bound.map(|bound| format!(" {}", printable(bound.as_bytes())));
    let port = rail["entropy"].as_u64().map(|port| format!(" from {port}"));
    let (bound, port) = (bound.unwrap_or_default(), port.unwrap_or_default());
    format!("{}{bound}{port}", text(&rail["scheme"]))
}

/// Microseconds with the unit that fits.
pub fn micros(value: &Value) -> Option<String> {
    value.as_u64().map(|micros| duration(Duration::from_micros(micros)))
}

/// A stretch of time with the unit that fits, in about three digits.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match () {
        () if seconds < 1e-3 => (seconds * 1e6, "us"),
        () if seconds < 1.0 => (seconds * 1e3, "ms"),
        () if seconds < 120.0 => (seconds, "s"),
        () => return crate::status::ago(time),
    };
    if value >= 99.95 || unit == "us" {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_named_by_an_address_or_the_beginning_of_its_id() {
        let peer = json!({
            "endpoint": "12ab34",
            "address": "tcp://10.0.0.1:7700?interface=eth1,udp://[::1]:7",
        });
        for named in [
            "tcp://10.0.0.1:7700?interface=eth1",
            "tcp://10.0.0.1:7700",
            "10.0.0.1:7700",
            "[::1]:7",
            "12a",
            "12AB34",
        ] {
            assert!(is_named(&peer, named), "{named}");
        }
        for other in ["", "10.0.0.1", "2ab", "12ab345", "tcp://10.0.0.1:77"] {
            assert!(!is_named(&peer, other), "{other}");
        }
        assert_eq!(peer_name(&peer), "tcp://10.0.0.1:7700 (12ab34)");
        assert_eq!(peer_name(&json!({ "endpoint": "123456789a", "address": null })), "12345678");
        let rail = json!({ "scheme": "tcp", "interface": null, "source": "127.0.0.2" });
        assert_eq!(rail_name(&rail), "tcp 127.0.0.2");
        let rail = json!({ "scheme": "udp", "interface": "eth1", "entropy": 40001 });
        assert_eq!(rail_name(&rail), "udp eth1 from 40001");
        assert_eq!(rail_name(&json!({ "scheme": "sim" })), "sim");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let of = |micros| duration(Duration::from_micros(micros));
        assert_eq!([of(7), of(999), of(6200), of(104_000)], ["7 us", "999 us", "6.2 ms", "104 ms"]);
        assert_eq!([of(2_500_000), of(119_000_000)], ["2.5 s", "119 s"]);
        assert_eq!(of(600_000_000), "10 min");
    }
}
