//! Addresses as people write them: a list of URLs, `tcp://node1:7000,shm://build,tcp://[::1]:7000`.
//!
//! `?node=NAME` behind one of them names the node that has to answer at any of them.

use std::fmt;

/// A parsed list of hints on how to reach an endpoint, in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    parts: Vec<(String, String)>,
    /// The node that has to answer there.
    node: Option<String>,
}

/// The reason why an address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("the address is empty; write one like tcp://127.0.0.1:7700")]
    Empty,
    #[error("'{0}' has no scheme; write one like tcp://{0}")]
    NoScheme(String),
    #[error("'{0}' has an illegal scheme; letters and digits only, as in tcp://")]
    BadScheme(String),
    #[error(
        "'{0}' names no node: write 1 to 64 of a-z, 0-9, '.', '-' and '_', as in ?node=server-1"
    )]
    BadNode(String),
    #[error(
        "the address names two nodes, {0} and {1}: one node answers at all parts of an address"
    )]
    TwoNodes(String, String),
    #[error("the address is longer than {max} bytes")]
    TooLong { max: usize },
}

/// Longest address list, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 2048;

impl Address {
    /// Parses a list separated by commas or blanks.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(AddressError::TooLong { max: ADDRESS_BYTES_MAX });
        }
        let (mut parts, mut node) = (Vec::new(), None);
        for part in text.split([',', ' ', '\t', '\n', '\r']).filter(|part| !part.is_empty()) {
            let Some((scheme, rest)) = part.split_once("://") else {
                return Err(AddressError::NoScheme(part.to_string()));
            };
            if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Err(AddressError::BadScheme(part.to_string()));
            }
            let (rest, named) = without_node(rest);
            for name in named {
                if !is_node_name(name) {
                    return Err(AddressError::BadNode(part.to_string()));
                }
                match node.replace(name.to_string()) {
                    Some(other) if other != name => {
                        return Err(AddressError::TwoNodes(other, name.to_string()));
                    }
                    _ => {}
                }
            }
            parts.push((scheme.to_ascii_lowercase(), rest));
        }
        if parts.is_empty() { Err(AddressError::Empty) } else { Ok(Address { parts, node }) }
    }

    /// The node that has to answer, if the address names one.
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The same address, at which this node has to answer. `None`: it names another one, or gets too long, or this is no
    /// name of a node.
    #[must_use]
    pub fn of_node(&self, name: &str) -> Option<Address> {
        let is_free = self.node().is_none_or(|node| node == name);
        let address = Address { node: Some(name.to_string()), ..self.clone() };
        let fits = address.to_string().len() <= ADDRESS_BYTES_MAX;
        (is_free && fits && is_node_name(name)).then_some(address)
    }

    /// Scheme and rest of each hint, in the order given, without the name of a node.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().map(|(scheme, rest)| (scheme.as_str(), rest.as_str()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (scheme, rest)) in self.parts.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{scheme}://{rest}")?;
            if let (0, Some(node)) = (number, &self.node) {
                let before = if rest.contains('?') { '&' } else { '?' };
                write!(f, "{before}node={node}")?;
            }
        }
        Ok(())
    }
}

/// The rest of a part without its options `node=NAME`, and their names.
fn without_node(rest: &str) -> (String, Vec<&str>) {
    let Some((place, options)) = rest.split_once('?') else {
        return (rest.to_string(), Vec::new());
    };
    let (mut kept, mut named) = (Vec::new(), Vec::new());
    for option in options.split('&') {
        match option.strip_prefix("node=") {
            Some(name) => named.push(name),
            None => kept.push(option),
        }
    }
    let rest = match named.is_empty() || !kept.is_empty() {
        true => format!("{place}?{}", kept.join("&")),
        false => place.to_string(),
    };
    (rest, named)
}

/// Whether a text is one that key files take for a node.
fn is_node_name(text: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_for_an_empty_address_has_the_port_that_servers_listen_at() {
        let said = Address::parse("").unwrap_err().to_string();
        assert_eq!(said, "the address is empty; write one like tcp://127.0.0.1:7700");
    }

    #[test]
    fn lists_parse_and_errors_name_the_part() {
        let address = Address::parse("tcp://[::1]:7000, SHM://build").unwrap();
        let parts: Vec<_> = address.parts().collect();
        assert_eq!(parts, [("tcp", "[::1]:7000"), ("shm", "build")]);
        assert_eq!(address.to_string(), "tcp://[::1]:7000,shm://build");
        assert_eq!(Address::parse(" ,"), Err(AddressError::Empty));
        assert_eq!(Address::parse("node1:7"), Err(AddressError::NoScheme("node1:7".into())));
        assert!(Address::parse("t cp://x").is_err());
    }

    #[test]
    fn an_address_may_name_the_node_that_has_to_answer() {
        let named = |text: &str| {
            let address = Address::parse(text).unwrap();
            assert_eq!(Address::parse(&address.to_string()).as_ref(), Ok(&address));
            let parts = address.parts().map(|(_, rest)| rest.to_string()).collect::<Vec<String>>();
            (parts.join(" "), address.node().map(str::to_string))
        };
        let server = Some("server".to_string());
        let cases = [
            ("tcp://a:1?node=server", "a:1", server.clone()),
            ("tcp://a:1,udp://b:2?node=server", "a:1 b:2", server.clone()),
            ("tcp://a:1?node=server,udp://b:2?node=server", "a:1 b:2", server.clone()),
            ("ether://a/1?node=server&key=7", "a/1?key=7", server.clone()),
            ("ether://a/1?key=7&node=server", "a/1?key=7", server.clone()),
            ("ether://a/1?key=7", "a/1?key=7", None),
            ("tcp://a:1?&node=server", "a:1?", server),
            ("tcp://a:1?nodes=1", "a:1?nodes=1", None),
        ];
        for (text, parts, node) in cases {
            assert_eq!(named(text), (parts.to_string(), node), "{text}");
        }
        for text in ["tcp://a?node=", "tcp://a?node=B", "tcp://a?node=a&node=b,", "tcp://a?node=a/"]
        {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let two = Address::parse("tcp://a?node=a,tcp://b?node=b");
        assert_eq!(two, Err(AddressError::TwoNodes("a".into(), "b".into())));
        let plain = Address::parse("tcp://a").unwrap();
        assert_eq!(plain.of_node("a"), Some(Address::parse("tcp://a?node=a").unwrap()));
        assert_eq!(plain.of_node("a").unwrap().of_node("b"), None);
        assert!(plain.of_node("A").is_none() && plain.of_node(&"a".repeat(65)).is_none());
    }
}
