//! The upgrade of a file system to the newest format: the order, who stands in its way, and how far it is.

use serde::{Deserialize, Serialize};

use super::value::Bytes;

/// The version that everybody who acts on the format has to speak before it changes.
pub const NEEDED_VERSION: u16 = 11;
/// Most objects that one [`Telling`] asks about.
pub const OBJECTS_ASKED_MAX: usize = 256;
/// Bytes of an object in a [`Telling`]: inode (8), generation (4), stripe (4).
pub const OBJECT_BYTES: usize = 16;
/// The number that stands for the group of an object of which the metadata server cannot read the rows.
pub const UNKNOWN_GROUP: u64 = u64::MAX;
/// Most clients that an [`UpgradeState`] names.
pub const CLIENTS_NAMED_MAX: usize = 64;

/// An order of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpgradeOrder {
    /// None: the state is asked for.
    Show,
    /// The format becomes the newest one, if nobody stands in its way. The answer tells.
    Begin,
}

/// The format of a file system, and who stands in the way of the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeState<'a> {
    pub format: u8,
    /// The newest format that the metadata server knows.
    pub newest: u8,
    /// All data servers, by number.
    pub servers: Vec<ServerFormat>,
    /// Clients that speak no version of which one knows that it is new enough; at most `CLIENTS_NAMED_MAX`.
    #[serde(borrow)]
    pub clients: Vec<OldClient<'a>>,
    /// Further ones.
    pub more_clients: u32,
}

/// A data server in an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFormat {
    pub server: u32,
    /// The newest version that it speaks; 0: it was not heard lately.
    pub version: u16,
    /// Objects whose group it has learned since it or the metadata server started.
    pub told: u64,
    /// All its objects know their group.
    pub done: bool,
}

/// A client that may not understand the next format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldClient<'a> {
    pub session: u64,
    /// The newest version that it speaks; 0: it was not heard since the metadata server started.
    pub version: u16,
    /// As it calls itself.
    #[serde(borrow)]
    pub name: Bytes<'a>,
}

impl UpgradeState<'_> {
    /// Whether the format is the newest one.
    pub fn is_newest(&self) -> bool {
        self.format >= self.newest
    }

    /// Whether everybody understands the next format.
    pub fn is_free(&self) -> bool {
        self.servers.iter().all(ServerFormat::is_able) && self.clients.is_empty()
    }

    /// Whether the format is the newest one, and all objects are brought forward.
    pub fn is_over(&self) -> bool {
        self.is_newest() && self.servers.iter().all(|it| it.done)
    }
}

impl ServerFormat {
    /// Whether the server was heard, and speaks a version that is new enough.
    pub fn is_able(&self) -> bool {
        self.version >= NEEDED_VERSION
    }
}

/// From a data server: which groups do these objects belong to? And how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Telling<'a> {
    pub server: u32,
    /// Objects whose group it has learned since it started.
    pub told: u64,
    /// None is left.
    pub done: bool,
    /// `OBJECT_BYTES` of each, little endian; at most `OBJECTS_ASKED_MAX`.
    #[serde(borrow)]
    pub objects: Bytes<'a>,
}

impl Telling<'_> {
    /// The objects: inode, generation and stripe. None where the bytes are no objects.
    pub fn objects(&self) -> Option<Vec<(u64, u32, u32)>> {
        let (objects, rest) = self.objects.0.as_chunks::<OBJECT_BYTES>();
        let few = objects.len() <= OBJECTS_ASKED_MAX && rest.is_empty();
        few.then(|| objects.iter().map(object_of).collect())
    }

    /// The bytes of an object.
    pub fn bytes(inode: u64, generation: u32, stripe: u32) -> [u8; OBJECT_BYTES] {
        let mut bytes = [0; OBJECT_BYTES];
        bytes[..8].copy_from_slice(&inode.to_le_bytes());
        bytes[8..12].copy_from_slice(&generation.to_le_bytes());
        bytes[12..].copy_from_slice(&stripe.to_le_bytes());
        bytes
    }
}

fn object_of(bytes: &[u8; OBJECT_BYTES]) -> (u64, u32, u32) {
    let number = u128::from_le_bytes(*bytes);
    (number as u64, (number >> 64) as u32, (number >> 96) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_survive_the_journey_and_too_many_or_parts_are_none() {
        let named = [(7, 3, 2), (u64::MAX, u32::MAX, 9)];
        let bytes: Vec<u8> =
            named.iter().flat_map(|(i, g, s)| Telling::bytes(*i, *g, *s)).collect();
        let telling = |bytes| Telling { server: 1, told: 0, done: false, objects: Bytes(bytes) };
        assert_eq!(telling(&bytes).objects().as_deref(), Some(&named[..]));
        assert_eq!(telling(&bytes[..31]).objects(), None);
        assert_eq!(telling(&[0; (OBJECTS_ASKED_MAX + 1) * OBJECT_BYTES]).objects(), None);
    }

    #[test]
    fn an_upgrade_waits_for_all_who_act_on_the_format() {
        let server = |version| ServerFormat { server: 1, version, told: 0, done: false };
        let state = |servers| UpgradeState {
            format: 1,
            newest: 2,
            servers,
            clients: Vec::new(),
            more_clients: 0,
        };
        assert!(state(vec![server(11), server(12)]).is_free());
        assert!(!state(vec![server(11), server(10)]).is_free());
        assert!(!state(vec![server(0)]).is_free(), "it was not heard");
        let client = OldClient { session: 1, version: 10, name: Bytes(b"host") };
        let held = UpgradeState { clients: vec![client], ..state(vec![server(11)]) };
        assert!(!held.is_free() && !held.is_newest() && !held.is_over());
        let lifted = UpgradeState { format: 2, ..state(vec![server(11)]) };
        assert!(lifted.is_newest() && !lifted.is_over());
    }
}
