//! The configuration file: settings of `format`, `serve` and `mount` that hold if no flag says otherwise.
//!
//! * Every key is optional, and a key that is not known is an error: a typo never passes silently.
//! * An error names the file, the line, the column and, where it helps, the nearest key that exists.
//! * `keys` describes every key; the manual page and `docs/ropewalk.toml` are made from it.

pub mod keys;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use ropewalk_base::ids::ClusterId;
use serde::{Deserialize, Deserializer};

use crate::commands::checked_seconds;
use crate::etcd;
use crate::identity;
use crate::metrics;
use crate::network::{self, Listen};
use crate::witness::WitnessPlace;
use ropewalk_net::PayloadModes;

/// The time for which a voter promises: the usual one, and its limits.
const LEASE: Duration = Duration::from_secs(1);
const LEASE_MIN: Duration = Duration::from_millis(200);
const LEASE_MAX: Duration = Duration::from_secs(60);
/// The longest configuration file that is read.
const BYTES_MAX: u64 = 1 << 20;

/// The flag that names a configuration file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Source {
    /// Read settings from this file; options of the command line override them. The manual page
    /// ropewalk.toml(5) explains all settings.
    #[arg(long = "config", value_name = "FILE", id = "config")]
    path: Option<PathBuf>,
}

impl Source {
    /// The file's content; nothing where no file was named.
    pub fn read(&self) -> anyhow::Result<Config> {
        let Some(path) = &self.path else { return Ok(Config::default()) };
        let cannot = || format!("cannot read the config file {}", path.display());
        let bytes = std::fs::metadata(path).with_context(cannot)?.len();
        anyhow::ensure!(
            bytes <= BYTES_MAX,
            "{} is longer than 1 MiB, and cannot be a config file: \
             check its name",
            path.display()
        );
        let bytes = std::fs::read(path).with_context(cannot)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            anyhow::anyhow!(
                "the config file {} is not valid UTF-8: correct it at byte {at}",
                path.display()
            )
        })?;
        let config = parse(path, &text)?;
        crate::security::name_file(config.key_file.clone());
        crate::security::name_payload(config.payload.clone());
        Ok(config)
    }
}

/// The contents of a configuration file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Below it lie the cluster's identity and the servers' data.
    pub directory: Option<PathBuf>,
    pub cluster: Option<Name>,
    /// The file with the cluster's identity and secret, if it is not in the directory.
    pub cluster_file: Option<PathBuf>,
    /// The metadata server's address, as data servers and mounts reach it; several servers of which one serves, with semicolons.
    pub address: Option<String>,
    pub insecure: Option<bool>,
    /// The keys by which this host proves that it belongs to the cluster.
    pub key_file: Option<PathBuf>,
    /// How payloads are protected.
    #[serde(default, deserialize_with = "payload")]
    pub payload: Option<PayloadModes>,
    #[serde(default)]
    pub meta: MetaSection,
    pub election: Option<ElectionSection>,
    #[serde(default)]
    pub data: Vec<DataSection>,
    #[serde(default)]
    pub mount: MountSection,
    #[serde(default)]
    pub metrics: MetricsSection,
}

/// `[metrics]`: figures of the servers, for Prometheus.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricsSection {
    #[serde(default, deserialize_with = "socket")]
    pub address: Option<SocketAddr>,
}

/// `[meta]`: the metadata server.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetaSection {
    pub directory: Option<PathBuf>,
    #[serde(default, deserialize_with = "listens")]
    pub listen: Vec<Listen>,
    pub term_seconds: Option<Seconds>,
}

/// `[election]`: several metadata servers, of which one serves.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElectionSection {
    /// The data server that votes, too.
    pub witness: Option<u32>,
    /// Its address, as the metadata servers reach it.
    pub witness_address: Option<String>,
    /// The members of the etcd that votes instead.
    #[serde(default, deserialize_with = "members")]
    pub etcd: Option<Vec<String>>,
    pub lease_seconds: Option<Seconds>,
    pub alone: Option<bool>,
}

impl ElectionSection {
    /// The voter beside the metadata servers: a data server or an etcd.
    pub fn witness(&self) -> anyhow::Result<WitnessPlace> {
        match (self.witness, &self.witness_address, &self.etcd) {
            (Some(number), Some(address), None) => {
                Ok(WitnessPlace::Server(number, address.clone()))
            }
            (None, None, Some(members)) => Ok(WitnessPlace::Etcd(members.clone())),
            _ => anyhow::bail!(
                "[election] in the config file has to name one witness: a data server by 'witness' \
                 and 'witness_address', or an etcd by 'etcd'"
            ),
        }
    }

    /// The time for which a voter promises.
    pub fn lease(&self) -> Duration {
        self.lease_seconds.map_or(LEASE, |seconds| seconds.0.clamp(LEASE_MIN, LEASE_MAX))
    }
}

/// `[[data]]`: a data server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSection {
    pub server: u32,
    pub directory: Option<PathBuf>,
    #[serde(default, deserialize_with = "listens")]
    pub listen: Vec<Listen>,
    /// Servers that may fail together have the same.
    pub domain: Option<DomainName>,
    pub scrub_mib_per_second: Option<u32>,
}

/// `[mount]`: the settings of `ropewalk mount`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSection {
    pub directory: Option<PathBuf>,
    pub patience_seconds: Option<Seconds>,
    pub read_only: Option<bool>,
}

impl Config {
    /// The section of a data server.
    pub fn section(&self, server: u32) -> Option<&DataSection> {
        self.data.iter().find(|section| section.server == server)
    }

    /// The metadata server's address: as the file says, or where the file lets it listen.
    pub fn meta_address(&self) -> anyhow::Result<String> {
        if let Some(address) = &self.address {
            return Ok(address.clone());
        }
        let listen = network::first(&[&self.meta.listen]);
        let urls: Vec<String> = listen.iter().filter_map(Listen::to_call).collect();
        anyhow::ensure!(
            !urls.is_empty(),
            "the config file does not give the address of the metadata server, which listens at \
             '{}': add a line 'address = \"…\"' with the address that the server prints when it \
             starts",
            network::list(&listen)
        );
        Ok(urls.join(","))
    }

    /// The time for which the data server of this number promises as a voter, if it is one.
    pub fn witness_lease(&self, server: u32) -> Option<Duration> {
        self.election.as_ref().filter(|it| it.witness == Some(server)).map(ElectionSection::lease)
    }

    /// The time for which a silent client keeps what it holds.
    pub fn term(&self) -> Option<Duration> {
        self.meta.term_seconds.map(|seconds| seconds.0)
    }
}

/// Reads a list of places to listen at, by commas.
fn listens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Listen>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let parts = text.split(',').map(|part| part.trim().parse());
    parts.collect::<Result<Vec<Listen>, String>>().map_err(serde::de::Error::custom)
}

/// Reads the addresses of etcd's members.
fn members<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    let text = String::deserialize(deserializer)?;
    etcd::addresses(&text).map(Some).map_err(serde::de::Error::custom)
}

/// Reads payload modes.
fn payload<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PayloadModes>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Reads an address and a port.
fn socket<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    metrics::socket(&text).map(Some).map_err(serde::de::Error::custom)
}

/// A cluster's identity in hexadecimal digits.
#[derive(Debug, Clone, Copy)]
pub struct Name(pub ClusterId);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        let text = String::deserialize(deserializer)?;
        identity::parse_id(&text).map(Name).map_err(serde::de::Error::custom)
    }
}

/// The longest name of a failure domain, in bytes.
const DOMAIN_BYTES_MAX: usize = 64;

/// A name of a failure domain that a user gives.
pub fn checked_domain(name: &str) -> Result<String, String> {
    let fits = (1..=DOMAIN_BYTES_MAX).contains(&name.len());
    match fits && !name.chars().any(char::is_control) {
        true => Ok(name.to_string()),
        false => Err(format!(
            "a failure domain has a name of 1 to {DOMAIN_BYTES_MAX} bytes without control characters"
        )),
    }
}

/// The name of a failure domain.
#[derive(Debug, Clone)]
pub struct DomainName(pub String);

impl<'de> Deserialize<'de> for DomainName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DomainName, D::Error> {
        let name = String::deserialize(deserializer)?;
        checked_domain(&name).map(DomainName).map_err(serde::de::Error::custom)
    }
}

/// A time in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Seconds(pub Duration);

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seconds, D::Error> {
        let number = f64::deserialize(deserializer)?;
        checked_seconds(number).map(Seconds).map_err(serde::de::Error::custom)
    }
}

/// An error in a configuration file, and its position.
#[derive(Debug, thiserror::Error)]
#[error("{path}, line {line}, column {column}: {cause}")]
struct ConfigError {
    path: String,
    line: usize,
    column: usize,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    /// A key that does not exist, and those that do at its place.
    Unknown {
        key: String,
        known: Vec<String>,
    },
    Other(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, known) = match self {
            Cause::Unknown { key, known } => (key, known),
            Cause::Other(text) => return f.write_str(text),
        };
        write!(f, "unknown key '{key}'")?;
        if let Some(nearest) = nearest(key, known) {
            write!(f, "; did you mean '{nearest}'?")?;
        }
        write!(f, " (known keys here: {})", known.join(", "))
    }
}

/// The known key that a misspelt one was probably meant to be: the one with the fewest changed
/// letters, unless that is a wholly different word.
fn nearest<'a>(key: &str, known: &'a [String]) -> Option<&'a str> {
    // One that was not written to its end is meant for certain.
    if let Some(whole) = known.iter().find(|other| other.starts_with(&key.to_lowercase())) {
        return Some(whole);
    }
    let distance = |other: &str| strsim::damerau_levenshtein(&key.to_lowercase(), other);
    let nearest = known.iter().min_by_key(|other| distance(other))?;
    let bound = key.chars().count().max(nearest.chars().count()) / 2;
    (distance(nearest) <= bound).then_some(nearest)
}

/// Reads a file's text.
fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
    let wrong = |span: Option<Range<usize>>, cause| {
        let (line, column) = position(text, span);
        ConfigError { path: path.display().to_string(), line, column, cause }
    };
    let config: Config = toml::from_str(text).map_err(|error| {
        let message = error.message();
        let cause = unknown_key(message).or_else(|| wrong_type(message, text, error.span()));
        wrong(error.span(), cause.unwrap_or_else(|| Cause::Other(message.to_string())))
    })?;
    let numbers: Numbers = toml::from_str(text)
        .map_err(|error| wrong(error.span(), Cause::Other(error.message().to_string())))?;
    let mut seen = BTreeSet::new();
    for Number { server } in &numbers.data {
        if !seen.insert(*server.get_ref()) {
            let said = format!(
                "another section defines data server {} already: give this one another number",
                server.get_ref()
            );
            return Err(wrong(Some(server.span()), Cause::Other(said)));
        }
    }
    Ok(config)
}

/// The numbers of data servers, and where they stand.
#[derive(Deserialize)]
struct Numbers {
    #[serde(default)]
    data: Vec<Number>,
}

#[derive(Deserialize)]
struct Number {
    server: toml::Spanned<u32>,
}

/// Takes serde's sentence on a value of the wrong type apart, and says how to write it.
fn wrong_type(message: &str, text: &str, span: Option<Range<usize>>) -> Option<Cause> {
    let (found, expected) = message.strip_prefix("invalid type: ")?.rsplit_once(", expected ")?;
    let remedy = match expected {
        "f64" => "a number, without quotes: 3 or 0.5",
        "u32" => "a whole number, without quotes",
        "a boolean" => "true or false, without quotes",
        "a string" | "path string" => "text, in quotes",
        _ => return None,
    };
    let before = text.get(..span?.start)?;
    let line = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
    let key = line.split('=').next()?.trim();
    Some(Cause::Other(format!("'{key}' takes {remedy} (this is the {found})")))
}

/// Line and column, both from 1 on; columns are characters.
fn position(text: &str, span: Option<Range<usize>>) -> (usize, usize) {
    let at = span.map_or(0, |span| span.start.min(text.len()));
    let before = text.get(..at).unwrap_or(text);
    let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count() + 1, before[line_begin..].chars().count() + 1)
}

/// Takes serde's sentence on an unknown field apart: it quotes the field first, then the known ones.
fn unknown_key(message: &str) -> Option<Cause> {
    if !message.starts_with("unknown field") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2).map(str::to_string);
    let key = quoted.next()?;
    Some(Cause::Unknown { key, known: quoted.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_steer_no_terminal() {
        assert!(checked_domain("rack 7").is_ok() && checked_domain(&"x".repeat(64)).is_ok());
        for bad in ["", "a\u{1b}b", &"x".repeat(65)] {
            assert!(checked_domain(bad).is_err(), "{bad:?}");
        }
    }

    fn error(text: &str) -> String {
        parse(Path::new("site.toml"), text).expect_err("it is wrong").to_string()
    }

    #[test]
    fn a_typo_is_reported_with_line_column_and_the_nearest_key() {
        assert_eq!(
            error("directory = '/d'\n\n[meta]\n  lisen = '127.0.0.1:7700'\n"),
            "site.toml, line 4, column 3: unknown key 'lisen'; did you mean 'listen'? \
             (known keys here: directory, listen, term_seconds)"
        );
        let top = error("# Ünïcödé\nadress = 'tcp://a:1'\n");
        assert!(top.starts_with("site.toml, line 2, column 1: "), "{top}");
        assert!(top.contains("did you mean 'address'?"), "{top}");
        let data = error("[[data]]\nserver = 0\n[[data]]\nserver = 1\nDirectroy = '/x'\n");
        assert!(data.starts_with("site.toml, line 5, column 1: "), "{data}");
        assert!(data.contains("did you mean 'directory'?"), "{data}");
    }

    #[test]
    fn a_word_that_resembles_no_key_gets_the_list_without_a_guess() {
        let text = error("[mount]\nxyzzy = 1\n");
        assert!(
            text.contains("line 2, column 1: unknown key 'xyzzy' (known keys here: "),
            "{text}"
        );
        assert!(text.contains("directory, patience_seconds, read_only"), "{text}");
    }

    #[test]
    fn values_that_make_no_sense_are_reported_where_they_stand() {
        let port = error("[meta]\nlisten = 'localhost'\n");
        assert!(port.starts_with("site.toml, line 2, column 10: "), "{port}");
        let time = error("[mount]\npatience_seconds = 0\n");
        assert!(
            time.contains("line 2, column 20: give a time from 0.2 to 86400 seconds"),
            "{time}"
        );
        let cluster = error("cluster = 'hemp'\n");
        assert!(cluster.contains("line 1, column 11: "), "{cluster}");
        let number = error("[[data]]\ndirectory = '/d'\n");
        assert!(number.contains("missing field `server`"), "{number}");
        let syntax = error("directory = \n");
        assert!(syntax.starts_with("site.toml, line 1, column "), "{syntax}");
    }

    #[test]
    fn values_of_a_wrong_type_are_named_with_their_remedy() {
        assert_eq!(
            error("[mount]\npatience_seconds = \"3\"\n"),
            "site.toml, line 2, column 20: 'patience_seconds' takes a number, without quotes: 3 or \
             0.5 (this is the string \"3\")"
        );
        let truth = error("insecure = 'yes'\n");
        assert!(truth.contains("'insecure' takes true or false, without quotes"), "{truth}");
        let number = error("[[data]]\nserver = '0'\n");
        assert!(number.contains("line 2, column 10: 'server' takes a whole number"), "{number}");
        let text = error("[meta]\ndirectory = 7\n");
        assert!(text.contains("'directory' takes text, in quotes"), "{text}");
        let short = error("[mount]\npatience = 3\n");
        assert!(
            short.contains("unknown key 'patience'; did you mean 'patience_seconds'?"),
            "{short}"
        );
    }

    #[test]
    fn a_number_of_two_data_servers_is_an_error_where_it_comes_again() {
        assert_eq!(
            error("[[data]]\nserver = 0\n[[data]]\nserver = 1\n[[data]]\n  server = 0\n"),
            "site.toml, line 6, column 12: another section defines data server 0 already: give this one \
             another number"
        );
    }

    #[test]
    fn the_example_in_the_documents_names_every_key() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ropewalk.toml");
        let text = std::fs::read_to_string(&path).expect("the example is there");
        // Lines that are commented out are part of the example: there, a key follows the sign at once.
        let all: Vec<&str> = text
            .lines()
            .map(|line| line.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(line))
            .collect();
        parse(&path, &text).expect("the example can be used as it is");
        let config = parse(&path, &all.join("\n")).expect("so can all that it offers");
        assert!(
            config.directory.is_some() && config.cluster.is_some() && config.cluster_file.is_some()
        );
        assert!(config.address.is_some() && config.insecure.is_some() && config.key_file.is_some());
        assert!(config.payload.is_some());
        assert!(config.meta.directory.is_some() && !config.meta.listen.is_empty());
        assert!(config.term().is_some() && config.data.len() == 2);
        assert!(config.data.iter().all(|s| s.directory.is_some() && !s.listen.is_empty()));
        assert!(config.mount.directory.is_some() && config.mount.read_only.is_some());
        assert!(config.mount.patience_seconds.is_some() && config.metrics.address.is_some());
    }

    #[test]
    fn mounts_look_for_the_metadata_server_where_the_file_lets_it_listen() {
        let ask = |text| parse(Path::new("x"), text).expect("it is right").meta_address();
        let address = |text| ask(text).expect("there is one");
        assert_eq!(address(""), "tcp://127.0.0.1:7700");
        assert_eq!(address("[meta]\nlisten = '[::1]:9'"), "tcp://[::1]:9");
        assert_eq!(address("address = 'tcp://a:1'\n[meta]\nlisten = '[::1]:9'"), "tcp://a:1");
        let several = "[meta]\nlisten = 'ether://eth0/3, udp://10.0.0.1:7, tcp://0.0.0.0:0'";
        assert_eq!(address(several), "udp://10.0.0.1:7");
        let error = ask("[meta]\nlisten = 'ether://eth0/3'").expect_err("no address").to_string();
        assert!(error.contains("'ether://eth0/3'") && error.contains("'address = "), "{error}");
    }
}
