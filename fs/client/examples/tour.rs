//! A program that uses a cluster through the library, without a mount.
//!
//! ```text
//! ropewalk up /var/tmp/cluster &
//! cargo run -p ropewalk-client --example tour -- tcp://127.0.0.1:7700
//! ```

use std::sync::Arc;

use ropewalk_base::disk::NoDisk;
use ropewalk_base::ids::ClusterId;
use ropewalk_client::{Access, Caller, Client, ClientConfig, Errno, OpenOptions};
use ropewalk_net::reactor::Reactor;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let address = std::env::args().nth(1).unwrap_or("tcp://127.0.0.1:7700".into());
    for line in tour(&address)? {
        println!("{line}");
    }
    Ok(())
}

/// Connects to the cluster whose metadata server has this address, and shows it around. Returns the lines to
/// print.
pub fn tour(address: &str) -> Outcome<Vec<String>> {
    // One thread does it all: a reactor drives the tasks and the network. Shared memory is taken
    // where the servers are on this host, TCP elsewhere.
    let reactor = Reactor::new()?;
    let endpoint = reactor.open_endpoint(
        ClusterId(0),
        vec![
            Box::new(ShmRail::open(ShmConfig::default())?),
            Box::new(TcpRail::open(TcpConfig::default())?),
        ],
    )?;
    let world = reactor.world(Arc::new(NoDisk), 1)?;
    let config = ClientConfig { name: "tour".into(), ..ClientConfig::default() };
    let said = reactor.block_on(async {
        let client = Client::connect(&world, &endpoint, address, config).await?;
        let said = visit(&client).await;
        // Leases go back at once; a client that just disappears keeps them for its term.
        client.stop().await;
        Outcome::Ok(said?)
    });
    endpoint.endpoint().close();
    said
}

async fn visit(client: &Client) -> Result<Vec<String>, Errno> {
    let mut said = Vec::new();
    // The caller names its own user; the servers believe it, so they listen on loopback.
    let caller = Caller::root();
    client.make_directories(&caller, b"/tour/notes", 0o755).await?;

    // A whole file at once, durable when `sync` returns.
    let bytes: Vec<u8> = (0..5_000_000u32).map(|byte| byte as u8).collect();
    let file = client.write_file(&caller, b"/tour/large", 0o644, &bytes).await?;
    client.sync(&file).await?;
    drop(file);

    // Parts of a file: buffers come from the client's pool and travel without being copied.
    let both = Access { read: true, write: true };
    let options = OpenOptions { access: both, truncate: false, append: false };
    let file = client.open_path(&caller, b"/tour/large", options).await?;
    let mut patch = client.buffer(7).await;
    patch.copy_from_slice(b"patched");
    client.write(&file, 3_000_000, patch, 0..7).await?;
    let (back, len) = client.read(&file, 2_999_998, client.buffer(11).await).await?;
    said.push(format!("around the patch: {:?}", String::from_utf8_lossy(&back[2..len - 2])));

    // The places of the bytes.
    let placement = client.placement(file.number()).await?;
    let striped = placement.striped.as_ref().ok_or(Errno::EIO)?;
    for stripe in striped.stripes(placement.attributes.size) {
        let server = stripe.server;
        said.push(format!(
            "stripe {}: {} bytes, data server {server}",
            stripe.stripe, stripe.bytes
        ));
    }

    // Small files lie in their inode. Entries come with attributes, in no order.
    client.write_file(&caller, b"/tour/notes/today", 0o600, b"laid a rope").await?;
    let directory = client.resolve(&caller, b"/tour", true).await?;
    let (mut entries, _all) = client.read_directory(&caller, directory.inode, 0, true).await?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    for entry in &entries {
        let size = entry.attributes.map_or(0, |attributes| attributes.size);
        said.push(format!("{} ({:?}, {size})", String::from_utf8_lossy(&entry.name), entry.kind));
    }
    let note = client.read_file(&caller, b"/tour/notes/today").await?;
    said.push(format!("the note: {}", String::from_utf8_lossy(&note)));

    // And nothing stays behind. The open file is read to its end although its name is gone.
    client.unlink(&caller, directory.inode, b"large").await?;
    let (_, len) = client.read(&file, 4_999_990, client.buffer(100).await).await?;
    said.push(format!("{len} bytes behind the name's end"));
    let notes = client.resolve(&caller, b"/tour/notes", true).await?;
    client.unlink(&caller, notes.inode, b"today").await?;
    client.remove_directory(&caller, directory.inode, b"notes").await?;
    let root = client.resolve(&caller, b"/", true).await?;
    client.remove_directory(&caller, root.inode, b"tour").await?;
    Ok(said)
}
