//! Addresses as people write them: a list of URLs, `tcp://node1:7000,shm://build,tcp://[::1]:7000`.

use std::fmt;

/// A parsed list of hints on how to reach an endpoint, in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    parts: Vec<(String, String)>,
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
        let mut parts = Vec::new();
        for part in text.split([',', ' ', '\t', '\n', '\r']).filter(|part| !part.is_empty()) {
            let Some((scheme, rest)) = part.split_once("://") else {
                return Err(AddressError::NoScheme(part.to_string()));
            };
            if scheme.is_empty() || !scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
                return Err(AddressError::BadScheme(part.to_string()));
            }
            parts.push((scheme.to_ascii_lowercase(), rest.to_string()));
        }
        if parts.is_empty() { Err(AddressError::Empty) } else { Ok(Address { parts }) }
    }

    /// Scheme and rest of each hint, in the order given.
    pub fn parts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.parts.iter().map(|(scheme, rest)| (scheme.as_str(), rest.as_str()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (scheme, rest)) in self.parts.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{scheme}://{rest}")?;
        }
        Ok(())
    }
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
}
