//! What running processes tell of their paths.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use ropewalk_client::Timestamp;
use ropewalk_host_paths::{Answer, AskError, ask, ask_all};
use serde_json::{Value, json};

use crate::remote::text::{exact_time, printable};
use crate::report::complain;

/// Hexadecimal digits of an endpoint's id that are shown.
const DIGITS_SHOWN: usize = 8;
/// Characters of an address that are shown; --json has all.
const ADDRESS_SHOWN: usize = 48;

/// Characters of a time that are shown: to the millisecond.
const TIME_SHOWN: usize = "2026-01-31 23:59:59.999".len();

/// Which processes, endpoints and peers are meant.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Which {
    /// The peer: its host or an address of it, or the beginning of its id.
    pub peer: Option<String>,
    #[command(flatten)]
    pub asked: Asked,
}

/// Which processes are asked, and for which of their endpoints.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Asked {
    /// Ask only the process with this number.
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    pub process: Option<u32>,
    /// Only the endpoint with this role, like 'data server 2', or with an id that begins so.
    #[arg(long, value_name = "ROLE|ID")]
    pub endpoint: Option<String>,
}

/// What was heard of the processes.
#[derive(Debug, Default)]
pub struct Heard {
    /// Of each endpoint that is meant.
    pub told: Vec<Told>,
    /// The processes that answered.
    pub answered: BTreeSet<u32>,
    /// All endpoints of these, as people name them.
    pub endpoints: Vec<String>,
    /// So many of these are meant.
    pub meant: usize,
    /// Why others did not.
    pub unheard: Vec<AskError>,
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
    /// Asks, and returns what each endpoint told under this name. Where a peer is named, endpoints that have nothing of it
    /// are left out. Processes that do not answer are named on standard error, unless one is meant alone. `told_of`: what
    /// was said of them before.
    pub fn ask(
        &self,
        question: &Value,
        name: &str,
        told_of: &mut BTreeSet<String>,
    ) -> anyhow::Result<Heard> {
        let answers = match self.asked.process {
            Some(process) => vec![Ok(ask(process, question)?)],
            None => ask_all(question),
        };
        let mut heard = Heard::default();
        for answer in answers {
            match answer {
                Ok(answer) => self.take(&answer, name, &mut heard),
                Err(error) => {
                    let words = error.to_string();
                    if !told_of.contains(&words) {
                        complain!("ropewalk: {words}");
                        told_of.insert(words);
                    }
                    heard.unheard.push(error);
                }
            }
        }
        Ok(heard)
    }

    fn take(&self, answer: &Answer, name: &str, heard: &mut Heard) {
        heard.answered.insert(answer.process);
        for mut told in endpoints(answer, name) {
            heard.endpoints.push(format!(
                "process {}: '{}' ({})",
                told.process,
                told.role,
                short(&told.endpoint)
            ));
            told.objects.retain(|object| self.is_meant(object));
            let is_named = self.asked.endpoint.as_deref().is_none_or(|named| told.is_named(named));
            heard.meant += usize::from(is_named);
            if is_named && !(self.peer.is_some() && told.is_empty()) {
                heard.told.push(told);
            }
        }
    }

    /// Whether the peer of this path or event is meant.
    fn is_meant(&self, object: &Value) -> bool {
        let remote = object["remote"].as_str();
        self.peer.as_deref().is_none_or(|named| {
            is_named(&object["peer"], named) || remote.is_some_and(|host| is_host(host, named))
        })
    }

    /// Fails where nothing was told of what is named: because nobody knows it, or because nobody who does may be asked.
    pub fn check(&self, heard: &Heard) -> anyhow::Result<()> {
        if heard.answered.is_empty() && !heard.unheard.is_empty() {
            let foreign = |error: &AskError| matches!(error, AskError::Foreign { .. });
            if heard.unheard.iter().all(foreign) {
                bail!("no process that you may ask shows paths in this network namespace");
            }
            bail!("no process that shows paths in this network namespace answers");
        }
        if let Some(named) = self.asked.endpoint.as_ref().filter(|_| heard.meant == 0) {
            bail!(
                "there is no endpoint '{named}' here: there {}",
                match heard.endpoints.is_empty() {
                    true => "is none that you may ask".to_string(),
                    false => format!("are {}", heard.endpoints.join(", ")),
                }
            );
        }
        let Some(peer) = self.peer.as_deref().filter(|_| heard.told.iter().all(Told::is_empty))
        else {
            return Ok(());
        };
        let whose = match (self.asked.process, heard.unheard.is_empty()) {
            (Some(process), _) => format!("process {process} has no"),
            (None, true) => "no process that shows its paths here has a".to_string(),
            (None, false) => {
                "no process here that you may ask, and that answers, has a".to_string()
            }
        };
        bail!(
            "{whose} session with a peer '{peer}': `ropewalk paths status` lists the peers by \
             their addresses and ids"
        )
    }
}

impl Heard {
    /// Fails where a process did not answer that this user may ask.
    pub fn complete(&self) -> anyhow::Result<()> {
        let foreign = |error: &&AskError| matches!(error, AskError::Foreign { .. });
        let silent = self.unheard.len() - self.unheard.iter().filter(foreign).count();
        match silent {
            0 => Ok(()),
            1 => bail!("1 process did not answer: what is shown is not all"),
            more => bail!("{more} processes did not answer: what is shown is not all"),
        }
    }
}

impl Told {
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Whether people may call this endpoint so: by its role, or by the beginning of its id.
    fn is_named(&self, named: &str) -> bool {
        let is_id = !named.is_empty() && self.endpoint.starts_with(&named.to_ascii_lowercase());
        self.role == named || is_id
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

/// Whether people may call a peer so: by one of its addresses, with or without its scheme, its port or what is behind `?`, or
/// by the beginning of its id.
fn is_named(peer: &Value, named: &str) -> bool {
    let id = peer["endpoint"].as_str().unwrap_or_default();
    let addresses = peer["address"].as_str().unwrap_or_default();
    let is_address = |address: &str| {
        let plain = address.split('?').next().unwrap_or_default();
        let bare = plain.split_once("://").map_or(plain, |(_, place)| place);
        let host = bare.rsplit_once(':').map(|(host, _)| host);
        [address, plain, bare].contains(&named) || host.is_some_and(|host| is_host(host, named))
    };
    let is_id = !named.is_empty() && id.starts_with(&named.to_ascii_lowercase());
    is_id || addresses.split(',').any(is_address)
}

/// Whether a host is called so, with or without the brackets of IPv6.
fn is_host(host: &str, named: &str) -> bool {
    let bare = |text: &str| text.trim_matches(['[', ']']).to_string();
    !named.is_empty() && bare(host) == bare(named)
}

/// The beginning of an id that is shown.
pub fn short(id: &str) -> String {
    id.chars().take(DIGITS_SHOWN).collect()
}

/// A peer, as people see it: an address of the scheme that is in use, else its first one, and the beginning of its id.
/// `object`: a path or an event.
pub fn peer_name(object: &Value) -> String {
    let (peer, scheme) = (&object["peer"], object["rail"]["scheme"].as_str());
    let id = short(&text(&peer["endpoint"]));
    let Some(addresses) = peer["address"].as_str() else { return id };
    let of_scheme =
        |address: &&str| address.split_once("://").is_some_and(|(it, _)| Some(it) == scheme);
    let address = addresses.split(',').find(of_scheme).unwrap_or(addresses);
    let plain = address.split([',', '?']).next().unwrap_or_default();
    let shown: String = printable(plain.as_bytes()).chars().take(ADDRESS_SHOWN).collect();
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

/// Seconds since 1970 as a moment.
pub fn moment(seconds: f64) -> String {
    let nanos = ((seconds.fract() * 1e9) as u32).min(999_999_999);
    let text = exact_time(Timestamp { seconds: seconds as i64, nanos });
    text.chars().take(TIME_SHOWN).collect()
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
        for named in ["10.0.0.1", "[::1]", "::1"] {
            assert!(is_named(&peer, named), "{named}: a host without a port");
        }
        for other in ["", "10.0.0", "2ab", "12ab345", "tcp://10.0.0.1:77"] {
            assert!(!is_named(&peer, other), "{other}");
        }
        let name = |scheme: &str| peer_name(&json!({ "peer": peer, "rail": { "scheme": scheme } }));
        assert_eq!(name("tcp"), "tcp://10.0.0.1:7700 (12ab34)");
        assert_eq!(name("udp"), "udp://[::1]:7 (12ab34)");
        assert_eq!(name("shm"), "tcp://10.0.0.1:7700 (12ab34)");
        let peer = json!({ "endpoint": "123456789a", "address": null });
        assert_eq!(peer_name(&json!({ "peer": peer })), "12345678");
        let rail = json!({ "scheme": "tcp", "interface": null, "source": "127.0.0.2" });
        assert_eq!(rail_name(&rail), "tcp 127.0.0.2");
        let rail = json!({ "scheme": "udp", "interface": "eth1", "entropy": 40001 });
        assert_eq!(rail_name(&rail), "udp eth1 from 40001");
        assert_eq!(rail_name(&json!({ "scheme": "sim" })), "sim");
    }

    fn answer() -> Answer {
        let path = json!({ "peer": { "endpoint": "aa", "address": null }, "remote": "10.9.0.2" });
        let endpoints = json!([
            { "endpoint": "0101", "role": "data server 1", "paths": [] },
            { "endpoint": "0202", "role": "data server 2", "paths": [path] },
        ]);
        Answer { process: 7, object: json!({ "program": "ropewalk", "endpoints": endpoints }) }
    }

    fn heard(peer: Option<&str>, endpoint: Option<&str>) -> (Which, Heard) {
        let asked = Asked { process: None, endpoint: endpoint.map(str::to_string) };
        let which = Which { peer: peer.map(str::to_string), asked };
        let mut heard = Heard::default();
        which.take(&answer(), "paths", &mut heard);
        (which, heard)
    }

    #[test]
    fn an_endpoint_is_chosen_by_its_role_its_id_or_a_peer_and_one_that_nobody_has_is_refused() {
        let chosen = |peer, endpoint| {
            let (which, heard) = heard(peer, endpoint);
            which.check(&heard).map(|()| heard.told.iter().map(|it| it.role.clone()).collect())
        };
        let both = vec!["data server 1".to_string(), "data server 2".to_string()];
        let second = vec!["data server 2".to_string()];
        assert_eq!(chosen(None, None).unwrap(), both);
        for endpoint in ["data server 2", "02"] {
            assert_eq!(chosen(None, Some(endpoint)).unwrap(), second);
        }
        for peer in ["aa", "10.9.0.2"] {
            assert_eq!(chosen(Some(peer), None).unwrap(), second, "others have no session with it");
        }
        let error: anyhow::Result<Vec<String>> = chosen(None, Some("data server 3"));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("process 7: 'data server 1' (0101)"), "{error}");
        let error = chosen(Some("bb"), None).unwrap_err().to_string();
        assert!(error.contains("no session with a peer 'bb'") || error.contains("has a session"));
    }

    #[test]
    fn processes_that_are_not_heard_are_no_empty_answer() {
        let foreign = AskError::Foreign { process: 8, user: 0 };
        let mut heard = Heard { unheard: vec![foreign], ..Heard::default() };
        let which = Which::default();
        let error = which.check(&heard).unwrap_err().to_string();
        assert!(error.starts_with("no process that you may ask"), "{error}");
        heard.complete().expect("those of others are theirs");
        heard.unheard.push(AskError::Silent(9));
        let error = which.check(&heard).unwrap_err().to_string();
        assert!(error.ends_with("answers"), "{error}");
        heard.answered.insert(7);
        which.check(&heard).expect("one answered");
        let error = heard.complete().unwrap_err().to_string();
        assert!(error.starts_with("1 process did not answer"), "{error}");
        which.check(&Heard::default()).expect("there is none");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        let of = |micros| duration(Duration::from_micros(micros));
        assert_eq!([of(7), of(999), of(6200), of(104_000)], ["7 us", "999 us", "6.2 ms", "104 ms"]);
        assert_eq!([of(2_500_000), of(119_000_000)], ["2.5 s", "119 s"]);
        assert_eq!(of(600_000_000), "10 min");
    }
}
