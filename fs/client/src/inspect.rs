//! The places of files and servers, for people and tools that ask. Reading and writing do not need this.

use ropewalk_base::text::printable;
use ropewalk_wire::fs::attributes::{Attributes, Content, InodeKind};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::meta::{LeaseMode, MetaReply, MetaRequest};
use ropewalk_wire::fs::runs::Runs;
use ropewalk_wire::fs::value::Errno;

use crate::call::unexpected;
use crate::client::Client;
use crate::lease::For;
use crate::places::Places;

/// A data server as the metadata server knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataServerInfo {
    pub server: u32,
    /// The address of the server; empty where it was not heard of since the metadata server started.
    pub address: String,
    /// Whether it was heard of lately.
    pub alive: bool,
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// The data servers of one version of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInfo {
    pub version: u32,
    pub servers: Vec<DataServerInfo>,
}

/// The place of a file's bytes.
#[derive(Debug, Clone)]
pub struct Placement {
    pub attributes: Attributes,
    /// The write epoch: grows when the right to write goes to somebody else; data servers refuse requests
    /// that carry an older one.
    pub epoch: u32,
    /// `None`: in the inode itself.
    pub striped: Option<Striped>,
}

/// The stripes of a file.
#[derive(Debug, Clone)]
pub struct Striped {
    pub layout: Layout,
    places: Places,
    written: Runs,
}

/// One stripe of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StripePlace {
    pub stripe: u32,
    /// Bytes of the file within it.
    pub bytes: u64,
    /// The data server that holds it, or will once something is written there.
    pub server: u32,
    /// Further data servers that have all of its bytes.
    pub copies: Vec<u32>,
    /// False: it is a hole, and no data server has anything of it.
    pub written: bool,
}

impl Striped {
    /// The servers among which the stripes go round, in the pool's order.
    pub fn servers(&self) -> Vec<u32> {
        self.places.servers()
    }

    /// The number of copies that each stripe should have.
    pub fn wanted_copies(&self) -> u8 {
        self.places.copies()
    }

    /// The group of a stripe.
    pub fn group(&self, stripe: u32) -> Group {
        self.places.group(stripe)
    }

    /// The stripes of a file of `size` bytes, in order.
    pub fn stripes(&self, size: u64) -> impl Iterator<Item = StripePlace> + '_ {
        self.layout.pieces(0, size).map(|piece| StripePlace {
            stripe: piece.stripe,
            bytes: u64::from(piece.len),
            server: self.places.server(piece.stripe),
            copies: self.places.members(piece.stripe).split_off(1),
            written: self.written.contains(piece.stripe),
        })
    }
}

impl Client {
    /// The place of a file's bytes; `EISDIR` and `EINVAL` for inodes that have none. The file's writers tell
    /// its size and stripes for this.
    pub async fn placement(&self, number: u64) -> Result<Placement, Errno> {
        match self.attributes(number).await?.kind {
            InodeKind::File => {}
            InodeKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let inode = self.inode(number);
        self.report(&inode).await?;
        if inode.mode() < LeaseMode::Read {
            // Among several writers nobody but the server knows all stripes.
            inode.refresh();
        }
        let lease = self.lease(&inode, For::Reading).await?;
        let (content, written, epoch) = {
            let state = inode.state.borrow();
            (state.content.clone(), state.written.clone(), state.epoch)
        };
        drop(lease);
        let attributes = self.attributes(number).await?;
        let striped = match content {
            Some(Content::Striped(layout)) => {
                let places = self.places(&layout).await?;
                Some(Striped { layout, places, written })
            }
            Some(Content::Inline) => None,
            None => return Err(Errno::ESTALE),
        };
        Ok(Placement { attributes, epoch, striped })
    }

    /// The data servers of a pool's version; 0: those that new files go to. `ENOENT` where there is
    /// no such version, or no data server was ever heard of.
    pub async fn data_servers(&self, version: u32) -> Result<PoolInfo, Errno> {
        self.ask(&MetaRequest::GetPool { version }, |reply| match reply {
            MetaReply::Pool { pool, servers } => {
                let servers = servers.iter().map(|server| DataServerInfo {
                    server: server.server,
                    address: printable(server.address.0, 1024),
                    alive: server.alive,
                    total_bytes: server.total_bytes,
                    available_bytes: server.available_bytes,
                });
                Ok(PoolInfo { version: pool.version, servers: servers.collect() })
            }
            _ => unexpected(),
        })
        .await
    }
}
