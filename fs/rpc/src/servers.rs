//! The metadata servers of a cluster, as one text names them: semicolons stand between servers, commas between the paths to one.

use ropewalk_base::error::Fault;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Address, AddressError, PeerId};

/// Between the addresses of two servers.
pub const BETWEEN: char = ';';
/// Most servers of a text.
pub const SERVERS_MAX: usize = 16;

/// Why a text names no servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("{0}")]
    Address(AddressError),
    #[error("it names more than {SERVERS_MAX} servers")]
    TooMany,
    #[error("the endpoint has no room for another peer")]
    NoRoom,
}

/// The parts of a text that each name a server.
pub fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(BETWEEN).map(str::trim).filter(|part| !part.is_empty())
}

/// The addresses that a text names.
pub fn addresses(text: &str) -> Result<Vec<Address>, LookupError> {
    let parts: Vec<&str> = names(text).take(SERVERS_MAX + 1).collect();
    match parts.len() {
        // The parser names the mistake in an empty address.
        0 => Ok(vec![Address::parse(text).map_err(LookupError::Address)?]),
        count if count > SERVERS_MAX => Err(LookupError::TooMany),
        _ => parts
            .into_iter()
            .map(|part| Address::parse(part).map_err(LookupError::Address))
            .collect(),
    }
}

/// The servers that a text names, as the message layer knows them.
pub fn look_up(endpoint: &LocalEndpoint, text: &str) -> Result<Vec<PeerId>, LookupError> {
    let look_up = |address: &Address| endpoint.endpoint().lookup(address);
    let peers: Result<Vec<PeerId>, Fault> = addresses(text)?.iter().map(look_up).collect();
    peers.map_err(|_| LookupError::NoRoom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_servers_and_each_of_them_paths() {
        let text = "tcp://a:7700,tcp://b:7700; tcp://c:7700;";
        let found = addresses(text).expect("it is right");
        let parts: Vec<usize> = found.iter().map(|address| address.parts().count()).collect();
        assert_eq!(parts, [2, 1]);
        assert!(matches!(addresses(""), Err(LookupError::Address(_))));
        assert!(matches!(addresses(" ; "), Err(LookupError::Address(_))));
        assert!(matches!(addresses("tcp://a:7700;nonsense"), Err(LookupError::Address(_))));
        let many = "tcp://a:7700;".repeat(SERVERS_MAX);
        assert_eq!(addresses(&many).map(|found| found.len()), Ok(SERVERS_MAX));
        assert_eq!(addresses(&many.repeat(1000)), Err(LookupError::TooMany));
    }
}
