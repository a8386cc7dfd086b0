//! The upgrade of a file system's format, for those who look after it.

use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
use ropewalk_wire::fs::upgrade::{ServerFormat, UpgradeOrder, UpgradeState};

use super::{Operator, OperatorError};

/// The format of a file system, and who stands in the way of the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format {
    pub format: u8,
    /// The newest format that the metadata server knows.
    pub newest: u8,
    /// All data servers, by number.
    pub servers: Vec<ServerFormat>,
    /// Some of the clients that may not understand the next format.
    pub clients: Vec<Client>,
    /// Further ones.
    pub more_clients: u32,
    /// Everybody understands the next format.
    pub free: bool,
}

/// A client that may not understand the next format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    pub session: u64,
    /// The newest version that it speaks; 0: it was not heard since the metadata server started.
    pub version: u16,
    pub name: Vec<u8>,
}

impl Format {
    fn new(state: &UpgradeState<'_>) -> Format {
        let client = |it: &ropewalk_wire::fs::upgrade::OldClient<'_>| Client {
            session: it.session,
            version: it.version,
            name: it.name.0.to_vec(),
        };
        Format {
            format: state.format,
            newest: state.newest,
            servers: state.servers.clone(),
            clients: state.clients.iter().map(client).collect(),
            more_clients: state.more_clients,
            free: state.is_free(),
        }
    }

    /// Whether the format is the newest one.
    pub fn is_newest(&self) -> bool {
        self.format >= self.newest
    }
}

impl Operator {
    /// The format of the file system.
    pub async fn format(&self) -> Result<Format, OperatorError> {
        self.order_upgrade(UpgradeOrder::Show).await
    }

    /// Has the format become the newest one, if nobody stands in its way: the answer tells.
    pub async fn upgrade(&self) -> Result<Format, OperatorError> {
        self.order_upgrade(UpgradeOrder::Begin).await
    }

    async fn order_upgrade(&self, order: UpgradeOrder) -> Result<Format, OperatorError> {
        self.ask_meta(&MetaRequest::Upgrade(order), |reply, _| match reply {
            MetaReply::Upgrade(state) => Some(Format::new(&state)),
            _ => None,
        })
        .await
    }
}
