//! The client library in this process: as a worker's way to the files, and as a witness.

use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_base::ids::ClusterId;
use ropewalk_base::world::World;
use ropewalk_client::{
    Access, AttributeChange, Caller, Client, ClientConfig, Errno, File, InodeKind, OpenOptions,
    RenameMode,
};
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::reactor::Reactor;
use ropewalk_net::{Endpoint, EndpointConfig};
use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};
use ropewalk_store::HostDisk;

use super::model::Found;
use super::operation::{Operation, bytes};

/// A client of a cluster, with what it has open.
pub struct Library {
    reactor: Reactor,
    world: World,
    endpoint: LocalEndpoint,
    client: Client,
    caller: Caller,
    open: BTreeMap<String, File>,
}

const BOTH: OpenOptions =
    OpenOptions { access: Access { read: true, write: true }, truncate: false, append: false };

impl Library {
    /// Connects to the metadata server at this address.
    pub fn connect(address: &str) -> Library {
        let reactor = Reactor::new().expect("a reactor");
        let world = reactor.world(HostDisk::shared(), 1).unwrap();
        let rails: Vec<Box<dyn Rail>> = vec![
            Box::new(ShmRail::open(ShmConfig::default()).expect("shared memory")),
            Box::new(TcpRail::open(TcpConfig::default()).expect("sockets")),
        ];
        let mut config = EndpointConfig::new(ClusterId(0));
        config.service_thread = false;
        config.clock = reactor.shared_clock();
        let endpoint = Endpoint::open(config, rails).expect("an endpoint");
        let endpoint = LocalEndpoint::new(endpoint).expect("a local endpoint");
        reactor.add(Rc::new(endpoint.clone())).expect("the reactor takes it");
        let config = ClientConfig {
            name: format!("library in {}", std::process::id()),
            log: Rc::new(|line| eprintln!("library: {line}")),
            ..ClientConfig::default()
        };
        let client = reactor.block_on(Client::connect(&world, &endpoint, address, config));
        let client = client.expect("the metadata server answers");
        Library { reactor, world, endpoint, client, caller: Caller::root(), open: BTreeMap::new() }
    }

    /// Does one thing.
    pub fn perform(&mut self, operation: &Operation) -> Result<(), Errno> {
        let Library { reactor, client, caller, open, .. } = self;
        reactor.block_on(async {
            match operation {
                Operation::Directory(path) => {
                    client.make_directories(caller, path.as_bytes(), 0o755).await?;
                }
                Operation::Create(path) => {
                    let (parent, name) = client.resolve_parent(caller, path.as_bytes()).await?;
                    let made = client.create(caller, parent.inode, name, 0o644, true, BOTH).await?;
                    open.insert(path.clone(), made.1);
                }
                Operation::Write(path, offset, len, number) => {
                    let file = opened(client, caller, open, path).await?;
                    write(client, file, *offset, &bytes(*number, *len)).await?;
                }
                Operation::Append(path, len, number) => {
                    let found = client.resolve(caller, path.as_bytes(), true).await?;
                    let options = OpenOptions { append: true, ..OpenOptions::WRITE };
                    let file = client.open(caller, found.inode, options).await?;
                    write(client, &file, 0, &bytes(*number, *len)).await?;
                }
                Operation::Truncate(path, size) => {
                    let number = opened(client, caller, open, path).await?.number();
                    let change =
                        AttributeChange { size: Some(*size), ..AttributeChange::default() };
                    client.set_attributes(caller, number, change).await?;
                }
                Operation::Rename(from, to) => {
                    let (a, name) = client.resolve_parent(caller, from.as_bytes()).await?;
                    let (b, new) = client.resolve_parent(caller, to.as_bytes()).await?;
                    let mode = RenameMode::Replace;
                    client.rename(caller, a.inode, name, b.inode, new, mode).await?;
                    open.remove(to);
                    open.remove(from);
                }
                Operation::Link(from, to) => {
                    let found = client.resolve(caller, from.as_bytes(), false).await?;
                    let (parent, name) = client.resolve_parent(caller, to.as_bytes()).await?;
                    client.link(caller, found.inode, parent.inode, name).await?;
                }
                Operation::Unlink(path) => {
                    let (parent, name) = client.resolve_parent(caller, path.as_bytes()).await?;
                    client.unlink(caller, parent.inode, name).await?;
                    open.remove(path);
                }
                Operation::Sync(path) => {
                    let file = opened(client, caller, open, path).await?;
                    client.sync(file).await?;
                }
                Operation::Close => open.clear(),
            }
            Ok(())
        })
    }

    /// All files of a directory.
    pub fn look(&mut self, directory: &str) -> Result<Found, String> {
        let Library { reactor, client, caller, .. } = self;
        reactor.block_on(async {
            let of = |path: &str| {
                let path = path.to_string();
                move |errno: Errno| format!("{path}: {errno}")
            };
            let mut found = Found::new();
            let place = client.resolve(caller, directory.as_bytes(), true).await;
            let place = place.map_err(of(directory))?;
            let mut cookie = 0;
            loop {
                let listed = client.read_directory(caller, place.inode, cookie, true).await;
                let (entries, end) = listed.map_err(of(directory))?;
                for entry in entries {
                    cookie = entry.cookie;
                    if entry.kind != InodeKind::File {
                        continue;
                    }
                    let path = format!("{directory}/{}", String::from_utf8_lossy(&entry.name));
                    let content = match read(client, caller, entry.inode).await {
                        Err(Errno::EIO) => None,
                        read => Some(read.map_err(of(&path))?),
                    };
                    found.insert(path, (entry.inode, content));
                }
                if end {
                    return Ok(found);
                }
            }
        })
    }

    /// Makes these files durable, whichever process wrote them.
    pub fn sync(&mut self, found: &Found) -> Result<(), String> {
        let Library { reactor, client, .. } = self;
        reactor.block_on(async {
            for (path, (inode, content)) in found {
                let synced = client.sync_number(*inode).await;
                if content.is_some() {
                    synced.map_err(|errno| format!("sync {path}: {errno}"))?;
                }
            }
            Ok(())
        })
    }

    /// Leaves in good order, so that nobody waits for it.
    pub fn leave(mut self) {
        self.open.clear();
        self.reactor.block_on(self.client.stop());
        self.endpoint.endpoint().close();
        drop(self.world);
    }
}

async fn opened<'a>(
    client: &Client,
    caller: &Caller,
    open: &'a mut BTreeMap<String, File>,
    path: &str,
) -> Result<&'a File, Errno> {
    if !open.contains_key(path) {
        let found = client.resolve(caller, path.as_bytes(), true).await?;
        let file = client.open(caller, found.inode, BOTH).await?;
        open.insert(path.to_string(), file);
    }
    Ok(&open[path])
}

async fn write(client: &Client, file: &File, offset: u64, bytes: &[u8]) -> Result<u64, Errno> {
    let buffer = client.pool().copy_of(bytes).ok_or(Errno::ENOMEM)?;
    client.write(file, offset, buffer, 0..bytes.len()).await
}

async fn read(client: &Client, caller: &Caller, inode: u64) -> Result<Vec<u8>, Errno> {
    let file = client.open(caller, inode, OpenOptions::READ).await?;
    let mut content = Vec::new();
    loop {
        let buffer = client.pool().take(1 << 20).ok_or(Errno::ENOMEM)?;
        let (buffer, len) = client.read(&file, content.len() as u64, buffer).await?;
        content.extend_from_slice(&buffer[..len]);
        if len == 0 {
            return Ok(content);
        }
    }
}

/// The contents of a directory, as a client without any cache sees them.
pub fn look(address: &str, directory: &str) -> Result<Found, String> {
    let mut library = Library::connect(address);
    let found = library.look(directory);
    library.leave();
    found
}
