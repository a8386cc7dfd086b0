//! The witness of a site that has etcd: a key there, by the JSON interface of its third version.
//!
//! A thread sends one request after the other: each takes at most a quarter of a lease, and goes to the next member of etcd where one
//! does not answer in a third of that (in half of it, or all, where there are fewer members).
//!
//! Invariants
//! * the key is replaced only in a transaction that compares its revision and its value, so a request that is sent twice, or comes
//!   late, replaces nothing that came after it;
//! * an answer is at most [`ANSWER_MAX`] bytes, whatever stands at the address.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ropewalk_base::ids::ClusterId;
use ropewalk_base::level::Level;
use ropewalk_base::task::{Sender as Reply, oneshot};
use ropewalk_election::shared::{Found, Given, Register, ValueError};
use serde_json::{Value, json};
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use crate::log;

/// Most bytes of an answer.
const ANSWER_MAX: u64 = 64 << 10;

/// Most members of etcd.
const MEMBERS_MAX: usize = 16;

/// The addresses of etcd's members, as a config file has them.
pub fn addresses(text: &str) -> Result<Vec<String>, String> {
    let members: Vec<&str> = text.split(',').map(str::trim).collect();
    if members.len() > MEMBERS_MAX {
        return Err(format!("name at most {MEMBERS_MAX} members of etcd"));
    }
    members.into_iter().map(address).collect()
}

fn address(text: &str) -> Result<String, String> {
    if text.starts_with("https:") {
        return Err(format!(
            "'{text}': etcd is spoken to without TLS; give the plain address of a TLS proxy on this \
             host, such as stunnel"
        ));
    }
    let place = text.strip_prefix("http://").map(|it| it.trim_end_matches('/'));
    let is_place = |it: &&str| {
        let port = it.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        let is_plain = !it.contains(|c: char| c == '/' || c == '@' || c.is_whitespace());
        is_plain && port.is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|it| it > 0))
    };
    match place.filter(is_place) {
        Some(place) => Ok(format!("http://{place}")),
        None => Err(format!("'{text}' is no address of an etcd: write http://HOST:PORT")),
    }
}

/// The part of a request that its kind makes.
enum Wanted {
    Read(Reply<Option<Found>>),
    Replace(Found, Vec<u8>, Reply<Option<Option<Found>>>),
}

struct Request {
    wanted: Wanted,
    until: Instant,
}

/// See the module.
pub struct Etcd {
    requests: Sender<Request>,
    limit: Duration,
    name: String,
    /// Something there was no vote, which was told.
    was_told: Cell<bool>,
}

impl Etcd {
    /// The key of a cluster in the etcd at these addresses. `lease`: the time for which a voter promises.
    pub fn start(
        members: Vec<String>,
        cluster: ClusterId,
        lease: Duration,
    ) -> anyhow::Result<Rc<Etcd>> {
        let name = format!("ropewalk/{cluster}/vote");
        let (requests, received) = channel();
        let settings = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // Proxies of the environment are for the web.
            .proxy(None)
            .build();
        let places = Places::default();
        let agent = ureq::Agent::with_parts(settings, DefaultConnector::default(), places);
        let limit = lease / 4;
        let key = BASE64_STANDARD.encode(&name);
        let (store, is_well) = (None, true);
        let mut caller = Caller { agent, members, key, limit, store, is_well };
        let run = move || caller.run(&received);
        std::thread::Builder::new().name("etcd".to_string()).spawn(run)?;
        Ok(Rc::new(Etcd { requests, limit, name, was_told: Cell::new(false) }))
    }

    fn send(&self, wanted: Wanted) {
        let sent = self.requests.send(Request { wanted, until: Instant::now() + self.limit });
        if sent.is_err() && !self.was_told.replace(true) {
            let told = "witness: the thread that asks etcd has ended: start the server again";
            log::line(Level::Error, told);
        }
    }
}

impl Register for Etcd {
    fn read(&self) -> Given<Found> {
        let (reply, answer) = oneshot();
        self.send(Wanted::Read(reply));
        Box::pin(async move { answer.await.flatten() })
    }

    fn replace(&self, found: &Found, value: Vec<u8>) -> Given<Option<Found>> {
        let (reply, answer) = oneshot();
        self.send(Wanted::Replace(found.clone(), value, reply));
        Box::pin(async move { answer.await.flatten() })
    }

    fn complain(&self, error: &ValueError) {
        if self.was_told.replace(true) {
            return;
        }
        let name = &self.name;
        let remedy = match error {
            ValueError::Format(_) => "start that program here, too".to_string(),
            _ => format!(
                "if nobody needs it, delete it by 'etcdctl del {name}' while both metadata servers \
                 run"
            ),
        };
        log::line(Level::Error, &format!("witness: the key '{name}' of etcd: {error}; {remedy}"));
    }
}

/// The thread's part.
struct Caller {
    agent: ureq::Agent,
    /// The one that answered last is the first.
    members: Vec<String>,
    key: String,
    limit: Duration,
    /// The identity of the etcd that answered first.
    store: Option<String>,
    /// The last request had an answer.
    is_well: bool,
}

impl Caller {
    fn run(&mut self, requests: &Receiver<Request>) {
        for Request { wanted, until } in requests {
            match wanted {
                Wanted::Read(reply) => {
                    let read = self.ask("range", &json!({ "key": self.key }), until);
                    let found = read.and_then(|answer| found(&answer));
                    reply.send(self.tell(found));
                }
                Wanted::Replace(found, value, reply) => {
                    let transaction = transaction(&self.key, &found, &value);
                    let done = self.ask("txn", &transaction, until);
                    let replaced = done.and_then(|answer| replaced(&answer, value));
                    reply.send(self.tell(replaced));
                }
            }
        }
    }

    /// Says once that etcd does not answer, and that it does again.
    fn tell<T>(&mut self, answer: anyhow::Result<T>) -> Option<T> {
        match &answer {
            Ok(_) if !self.is_well => log::line(Level::Note, "witness: etcd answers again"),
            Err(error) if self.is_well => log::line(
                Level::Warning,
                &format!(
                    "witness: etcd does not answer ({error:#}): until it does, the death of a \
                     metadata server stops the file system"
                ),
            ),
            _ => {}
        }
        self.is_well = answer.is_ok();
        answer.ok()
    }

    /// Asks a member, and the next ones while there is time.
    fn ask(&mut self, call: &str, body: &Value, until: Instant) -> anyhow::Result<Value> {
        let body = serde_json::to_vec(body)?;
        let mut error = anyhow!("there was no time left");
        for _ in 0..self.members.len() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let share = self.limit / self.members.len().clamp(1, 3) as u32;
            match self.ask_first(call, &body, left.min(share)) {
                Ok(answer) => return Ok(answer),
                Err(failed) => error = failed.context(self.members[0].clone()),
            }
            self.members.rotate_left(1);
        }
        Err(error)
    }

    fn ask_first(&mut self, call: &str, body: &[u8], limit: Duration) -> anyhow::Result<Value> {
        let request = self.agent.post(format!("{}/v3/kv/{call}", self.members[0]));
        let request = request.config().timeout_global(Some(limit)).build();
        let mut response = request.header("content-type", "application/json").send(body)?;
        let text = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec()?;
        let status = response.status();
        ensure!(status.is_success(), "status {}", status.as_u16());
        let answer: Value =
            serde_json::from_slice(&text).context("the answer is not that of an etcd")?;
        let store = answer["header"]["cluster_id"].as_str();
        let store = store.context("the answer is not that of an etcd")?.to_string();
        let known = self.store.get_or_insert_with(|| store.clone());
        ensure!(
            *known == store,
            "it belongs to another etcd than the other addresses, or was made anew: stop both \
             metadata servers before the witness is changed"
        );
        Ok(answer)
    }
}

/// The addresses of etcd's members. A name is looked up once, and again when a minute is over; the library's own way would take a
/// thread for each request.
#[derive(Debug, Default)]
struct Places(Mutex<BTreeMap<String, (Instant, Vec<SocketAddr>)>>);

/// A name counts for so long.
const KEPT: Duration = Duration::from_secs(60);

impl Resolver for Places {
    fn resolve(
        &self,
        uri: &Uri,
        _: &ureq::config::Config,
        _: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let place = uri.authority().map_or("", |it| it.as_str()).to_string();
        let mut known = self.0.lock().expect("nothing panics with it");
        let is_fresh = known.get(&place).is_some_and(|(at, _)| at.elapsed() < KEPT);
        if !is_fresh && let Ok(found) = place.to_socket_addrs() {
            known.insert(place.clone(), (Instant::now(), found.take(ADDRESSES_MAX).collect()));
        }
        let mut addresses = self.empty();
        let found = known.get(&place).map(|(_, found)| found.as_slice()).unwrap_or_default();
        found.iter().for_each(|address| addresses.push(*address));
        if addresses.is_empty() { Err(ureq::Error::HostNotFound) } else { Ok(addresses) }
    }
}

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// A transaction that replaces what was found, and nothing else.
fn transaction(key: &str, found: &Found, value: &[u8]) -> Value {
    let revision = found.version.to_string();
    let mut compare = vec![json!({
        "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision,
    })];
    if found.version > 0 {
        let value = BASE64_STANDARD.encode(&found.value);
        compare.push(json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": value }));
    }
    let put = json!({ "key": key, "value": BASE64_STANDARD.encode(value) });
    json!({ "compare": compare, "success": [{ "request_put": put }] })
}

/// The content that a read tells.
fn found(answer: &Value) -> anyhow::Result<Found> {
    revision(answer)?;
    let Some(row) = answer["kvs"].as_array().and_then(|rows| rows.first()) else {
        return Ok(Found { version: 0, value: Vec::new() });
    };
    let version = number(&row["mod_revision"]).context("a key has no revision")?;
    ensure!(version > 0, "a key has revision 0");
    let value = row["value"].as_str().unwrap_or_default();
    Ok(Found { version, value: BASE64_STANDARD.decode(value).context("a value is no base64")? })
}

/// The new content; None: it had been replaced before.
fn replaced(answer: &Value, value: Vec<u8>) -> anyhow::Result<Option<Found>> {
    let version = revision(answer)?;
    match answer.get("succeeded").map(Value::as_bool) {
        Some(Some(true)) => Ok(Some(Found { version, value })),
        // False is left out.
        None | Some(Some(false)) => Ok(None),
        Some(None) => bail!("the answer is not that of an etcd"),
    }
}

fn revision(answer: &Value) -> anyhow::Result<u64> {
    number(&answer["header"]["revision"]).context("the answer is not that of an etcd")
}

/// 64-bit numbers come as text.
fn number(value: &Value) -> Option<u64> {
    value.as_str().and_then(|text| text.parse().ok()).or_else(|| value.as_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_in_words() {
        let two = addresses("http://a:2379, http://[::1]:2379/").unwrap();
        assert_eq!(two, ["http://a:2379", "http://[::1]:2379"]);
        assert!(addresses("https://a:2379").unwrap_err().contains("TLS proxy"));
        for bad in
            ["", "a:2379", "http://a", "http://:1", "http://a:0", "http://u@a:1", "http://a:1/x"]
        {
            assert!(addresses(bad).unwrap_err().contains("http://HOST:PORT"), "{bad}");
        }
        assert!(addresses(&"http://a:1,".repeat(17)).is_err());
    }

    #[test]
    fn answers_of_others_are_refused() {
        let read = |text: &str| found(&serde_json::from_str(text).unwrap());
        let empty = read(r#"{"header":{"revision":"7"}}"#).unwrap();
        assert_eq!(empty, Found { version: 0, value: Vec::new() });
        let row = r#"{"header":{"revision":"7"},"kvs":[{"mod_revision":"5","value":"YWI="}]}"#;
        assert_eq!(read(row).unwrap(), Found { version: 5, value: b"ab".to_vec() });
        for bad in [
            "{}",
            "[]",
            r#"{"header":{"revision":"x"}}"#,
            r#"{"header":{"revision":"7"},"kvs":[{"value":"YWI="}]}"#,
            r#"{"header":{"revision":"7"},"kvs":[{"mod_revision":"5","value":"%"}]}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let done = |text: &str| replaced(&serde_json::from_str(text).unwrap(), b"v".to_vec());
        let lost = done(r#"{"header":{"revision":"7"}}"#).unwrap();
        assert_eq!(lost, None);
        let won = done(r#"{"header":{"revision":"8"},"succeeded":true}"#).unwrap();
        assert_eq!(won, Some(Found { version: 8, value: b"v".to_vec() }));
        assert!(done(r#"{"succeeded":true}"#).is_err());
    }
}
