//! The places of the bytes of the demo's files. Each file is asked for its own bytes, so that the parts sum up
//! to the bytes that were copied.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use anyhow::anyhow;
use ropewalk_base::task::{Semaphore, join_all};
use ropewalk_client::InodeKind;
use serde_json::json;

use super::DemoArguments;
use crate::copy::{Cluster, End};
use crate::remote::{Session, cause, join};
use crate::report::{bytes, print_json, say, table};

/// Files of at most so many bytes lie in their inodes, if nothing of them was ever beyond.
const INLINE_BYTES_MAX: u64 = 16 * 1024;
/// Files that are asked for at a time.
const AT_ONCE: usize = 32;

/// The share of one server.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    files: u64,
    bytes: u64,
}

/// The share that each server has of a tree.
#[derive(Debug, Default)]
pub struct Spread {
    meta: Share,
    data: BTreeMap<u32, Share>,
    /// Parts of files that were never written lie nowhere.
    holes: Share,
    whole: Share,
}

/// Asks where all files below `root` lie.
pub async fn spread(session: &Rc<Session>, root: &[u8]) -> anyhow::Result<Spread> {
    let end = Cluster::new(session);
    let (mut files, mut left) = (BTreeMap::new(), vec![root.to_vec()]);
    while let Some(directory) = left.pop() {
        for (name, meta) in end.list(&directory).await?.entries {
            match meta.kind {
                InodeKind::Directory => left.push(join(&directory, &name)),
                // Several names of one file are one file.
                InodeKind::File => _ = files.insert(meta.inode, meta.size),
                _ => {}
            }
        }
    }
    let whole = Share { files: files.len() as u64, bytes: files.values().sum() };
    let mut spread = Spread { whole, ..Spread::default() };
    let turn = Semaphore::new(AT_ONCE);
    let large = files.iter().filter(|(_, size)| **size > INLINE_BYTES_MAX);
    let placed = join_all(large.map(async |(inode, size)| {
        let _turn = turn.acquire().await;
        let placement = session.client.placement(*inode).await;
        placement.map(|placement| (*size, placement)).map_err(|errno| anyhow!(cause(errno)))
    }));
    for placed in placed.await {
        let (size, placement) = placed?;
        let mut on = BTreeSet::new();
        let mut covered = 0;
        if let Some(striped) = &placement.striped {
            for stripe in striped.stripes(size).filter(|stripe| stripe.written) {
                let share = spread.data.entry(stripe.server).or_default();
                share.bytes += stripe.bytes;
                share.files += u64::from(on.insert(stripe.server));
                covered += stripe.bytes;
            }
        }
        spread.holes.bytes += size - covered;
        spread.holes.files += u64::from(size > covered);
    }
    for size in files.values().filter(|size| **size <= INLINE_BYTES_MAX) {
        spread.meta.files += 1;
        spread.meta.bytes += size;
    }
    Ok(spread)
}

impl Spread {
    /// Prints it.
    pub fn print(&self, arguments: &DemoArguments) -> anyhow::Result<()> {
        let row = |name: &str, share: &Share| {
            vec![name.to_string(), share.files.to_string(), bytes(share.bytes)]
        };
        let mut rows = vec![row("metadata server (small files)", &self.meta)];
        let none = Share::default();
        let data = || {
            let share = |server| self.data.get(&server).unwrap_or(&none);
            (0..arguments.data_servers).map(move |server| (server, share(server)))
        };
        if arguments.json {
            let Share { files, bytes } = self.meta;
            print_json(&json!({ "server": "metadata", "files": files, "bytes": bytes }))?;
            for (server, Share { files, bytes }) in data() {
                print_json(&json!({ "server": server, "files": files, "bytes": bytes }))?;
            }
            return print_json(&json!({ "holes": self.holes.bytes, "bytes": self.whole.bytes }));
        }
        rows.extend(data().map(|(server, share)| row(&format!("data server {server}"), share)));
        if self.holes.bytes > 0 {
            rows.push(row("no server (holes)", &self.holes));
        }
        rows.push(row("total", &self.whole));
        say!("{}", table(&["stored on", "files", "bytes"], rows))
    }
}
