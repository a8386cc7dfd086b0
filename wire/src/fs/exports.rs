//! Exports: the terms on which clients use the file system, as operators order and see them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::value::Bytes;

/// Exports there are at most.
pub const EXPORTS_MAX: usize = 64;
/// Rules for the clients of one export.
pub const RULES_MAX: usize = 64;
/// Ranges of ids of one kind in an export.
pub const RANGES_MAX: usize = 64;
/// Longest name of an export, and longest name of a node in a rule, in bytes.
pub const EXPORT_NAME_BYTES_MAX: usize = 64;
/// Longest path of an export's root, in bytes.
pub const ROOT_BYTES_MAX: usize = 4096;

/// The changes that sessions of an export may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rights {
    ReadOnly,
    ReadWrite,
    /// Read and write, and orders to the cluster, as from a holder of its secret.
    Admin,
}

/// The callers who get the export's anonymous ids for their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Squash {
    None,
    /// Id 0, of users and of groups.
    Root,
    All,
}

/// A run of outer ids, and the run of inner ids that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    pub outer: u32,
    pub inner: u32,
    pub count: u32,
}

/// Clients to whom an export is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ClientRule {
    Everybody,
    /// A network; the address has no bit behind the prefix.
    Network {
        address: IpAddr,
        prefix: u8,
    },
    /// A user of the metadata server's host, as its kernel says.
    Local,
    /// A node that proves its name by its keys. A last `*` stands for any rest.
    Node(String),
}

/// What a server knows of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asker<'a> {
    /// The node that it has proven to be.
    pub node: Option<&'a str>,
    pub address: Option<IpAddr>,
    pub local: bool,
}

impl ClientRule {
    /// Whether the rule is for a client, and how closely it fits: the largest answer counts.
    pub fn fits(&self, asker: &Asker<'_>) -> Option<(u8, usize)> {
        match self {
            ClientRule::Everybody => Some((0, 0)),
            ClientRule::Network { address, prefix } => {
                let same = same_bits(*address, asker.address?, *prefix)?;
                same.then_some((1, usize::from(*prefix)))
            }
            ClientRule::Local => asker.local.then_some((2, 0)),
            ClientRule::Node(name) => {
                let node = asker.node?;
                match name.strip_suffix('*') {
                    Some(start) => node.starts_with(start).then_some((3, start.len())),
                    None => (node == name).then_some((4, 0)),
                }
            }
        }
    }

    /// Checks the rule; the error is for people.
    pub fn check(&self) -> Result<(), String> {
        match self {
            ClientRule::Network { address, prefix } => {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                if *prefix > bits {
                    return Err(format!("a network's prefix has at most {bits} bits"));
                }
                if address.to_canonical() != *address {
                    let right = address.to_canonical();
                    return Err(format!("{address} is an IPv4 address: write it as {right}"));
                }
                if masked(*address, *prefix) != *address {
                    let right = masked(*address, *prefix);
                    return Err(format!(
                        "{address}/{prefix} is no network: its first address is {right}"
                    ));
                }
                Ok(())
            }
            ClientRule::Node(name) => match name.strip_suffix('*') {
                Some("") => Ok(()),
                Some(start) => check_node(start),
                None => check_node(name),
            },
            ClientRule::Everybody | ClientRule::Local => Ok(()),
        }
    }
}

fn check_node(name: &str) -> Result<(), String> {
    match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Err(format!("names of nodes have no capital letters: '{name}'")),
        false => check_name("node", name),
    }
}

fn check_name(kind: &str, name: &str) -> Result<(), String> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=EXPORT_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(good) {
        true => Ok(()),
        false => Err(format!(
            "the name of a {kind} has 1 to {EXPORT_NAME_BYTES_MAX} letters, digits, '.', '_' or '-'"
        )),
    }
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(it) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((it.to_bits() & mask).into())
        }
        IpAddr::V6(it) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((it.to_bits() & mask).into())
        }
    }
}

/// Whether two addresses share their first bits; none where they are of different kinds.
fn same_bits(network: IpAddr, address: IpAddr, prefix: u8) -> Option<bool> {
    // A socket of both kinds shows IPv4 addresses as IPv6 ones.
    let address = address.to_canonical();
    (network.is_ipv4() == address.is_ipv4()).then(|| masked(address, prefix) == network)
}

impl fmt::Display for ClientRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientRule::Everybody => f.write_str("*"),
            ClientRule::Network { address, prefix } => write!(f, "{address}/{prefix}"),
            ClientRule::Local => f.write_str("local"),
            ClientRule::Node(name) => write!(f, "node:{name}"),
        }
    }
}

impl FromStr for ClientRule {
    type Err = String;

    fn from_str(text: &str) -> Result<ClientRule, String> {
        let rule = match text {
            "*" => ClientRule::Everybody,
            "local" => ClientRule::Local,
            _ => match text.strip_prefix("node:") {
                Some(name) => ClientRule::Node(name.to_owned()),
                None => network(text).ok_or_else(|| {
                    format!(
                        "'{text}' names no clients: give '*', 'local', a network such as \
                         10.1.0.0/16, or 'node:NAME' ('node:gpu*' for all names that begin so)"
                    )
                })?,
            },
        };
        rule.check().map(|()| rule)
    }
}

fn network(text: &str) -> Option<ClientRule> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address.parse().ok()?, prefix.parse().ok()?),
        None => {
            let address: IpAddr = text.parse().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    Some(ClientRule::Network { address, prefix })
}

/// The terms of an export, but for its root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportTerms {
    pub name: String,
    /// Without a rule nobody gets it.
    pub clients: Vec<ClientRule>,
    pub rights: Rights,
    pub squash: Squash,
    /// User and group of callers without ids of their own: inner ids.
    pub anonymous: (u32, u32),
    /// No range: each id stands for itself.
    pub users: Vec<IdRange>,
    pub groups: Vec<IdRange>,
}

impl ExportTerms {
    /// Checks the terms; the error is for people.
    pub fn check(&self) -> Result<(), String> {
        check_name("export", &self.name)?;
        if self.clients.len() > RULES_MAX {
            return Err(format!("an export has at most {RULES_MAX} rules for clients"));
        }
        self.clients.iter().try_for_each(ClientRule::check)?;
        let is_node = |rule: &ClientRule| matches!(rule, ClientRule::Node(_));
        if self.rights == Rights::Admin && !self.clients.iter().all(is_node) {
            return Err(
                "only nodes that prove their names may be administrators: give rules with 'node:'"
                    .to_owned(),
            );
        }
        if self.anonymous.0 == 0 || self.anonymous.1 == 0 {
            return Err("the anonymous user and group of an export cannot be 0".to_owned());
        }
        check_ranges("user", &self.users)?;
        check_ranges("group", &self.groups)
    }
}

fn check_ranges(kind: &str, ranges: &[IdRange]) -> Result<(), String> {
    if ranges.len() > RANGES_MAX {
        return Err(format!("an export has at most {RANGES_MAX} ranges of {kind} ids"));
    }
    let ends = |first: u32, count: u32| u64::from(first) + u64::from(count);
    // The last number means "no id" to the kernel.
    let is_good = |range: &IdRange| {
        let last = ends(range.outer.max(range.inner), range.count);
        range.count > 0 && last <= u64::from(u32::MAX)
    };
    if !ranges.iter().all(is_good) {
        return Err(format!("a range of {kind} ids is empty or ends behind 4294967294"));
    }
    for side in [|range: &IdRange| range.outer, |range: &IdRange| range.inner] {
        let mut sorted: Vec<(u32, u32)> = ranges.iter().map(|it| (side(it), it.count)).collect();
        sorted.sort_unstable();
        let meet = |pair: &[(u32, u32)]| ends(pair[0].0, pair[0].1) > u64::from(pair[1].0);
        if sorted.windows(2).any(meet) {
            return Err(format!("two ranges of {kind} ids of an export overlap"));
        }
    }
    Ok(())
}

/// An order about exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExportOrder<'a> {
    /// Makes an export, or changes the terms of the one with this name. An export with sessions keeps its root.
    Set {
        /// An encoded [`ExportTerms`].
        #[serde(borrow)]
        terms: Bytes<'a>,
        /// The path of the directory that its clients see as the root.
        #[serde(borrow)]
        root: Bytes<'a>,
    },
    /// `opens`: also the last one, after which every client has everything.
    Remove {
        #[serde(borrow)]
        name: Bytes<'a>,
        opens: bool,
    },
    /// The exports from this number on are asked for.
    List { from: u32, bytes_max: u32 },
}

/// An export, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportInfo<'a> {
    pub number: u32,
    /// The inode of its root.
    pub inode: u64,
    /// A path of its root; empty where it has none any more.
    #[serde(borrow)]
    pub root: Bytes<'a>,
    /// Sessions that have it.
    pub sessions: u32,
    pub terms: ExportTerms,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> ClientRule {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn rules_are_written_as_they_are_read() {
        for text in [
            "*",
            "local",
            "10.1.0.0/16",
            "fd00::/8",
            "0.0.0.0/0",
            "node:*",
            "node:gpu*",
            "node:a.b",
        ] {
            assert_eq!(rule(text).to_string(), text);
        }
        assert_eq!(rule("10.1.2.3").to_string(), "10.1.2.3/32");
        assert_eq!(rule("::1").to_string(), "::1/128");
        for text in [
            "",
            "host",
            "10.1.0.1/16",
            "10.0.0.0/33",
            "fd00::/129",
            "node:",
            "node:a b",
            "node:**",
            "node:A",
            "::ffff:10.0.0.0/104",
        ] {
            assert!(text.parse::<ClientRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_closest_rule_is_the_largest_fit() {
        let asker = Asker {
            node: Some("gpu17"),
            address: Some("10.1.2.3".parse().expect("an address")),
            local: true,
        };
        let order = [
            "*",
            "0.0.0.0/0",
            "10.0.0.0/8",
            "10.1.2.3",
            "local",
            "node:*",
            "node:gpu*",
            "node:gpu17",
        ];
        let fits: Vec<_> = order.iter().map(|text| rule(text).fits(&asker)).collect();
        assert!(fits.iter().all(Option::is_some), "{fits:?}");
        assert!(fits.is_sorted(), "{fits:?}");
        for other in ["10.2.0.0/16", "fd00::/8", "node:gpu1", "node:cpu*"] {
            assert_eq!(rule(other).fits(&asker), None, "{other}");
        }
        let nobody = Asker::default();
        for other in ["0.0.0.0/0", "::/0", "local", "node:gpu*"] {
            assert_eq!(rule(other).fits(&nobody), None, "{other}");
        }
        let mapped = Asker { address: Some("::ffff:10.1.2.3".parse().expect("one")), ..nobody };
        assert!(rule("10.0.0.0/8").fits(&mapped).is_some());
    }
}
