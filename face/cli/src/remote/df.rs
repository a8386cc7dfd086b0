//! `ropewalk df`.

use anyhow::anyhow;
use ropewalk_client::{DataServerInfo, Errno};
use serde_json::json;

use super::{Reach, cause};
use crate::report::{bytes, print, print_json, table};

/// Arguments of `ropewalk df`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk df           room on each data server, and of the whole
  ropewalk df --json    an object a line, sizes in bytes

Each data server reports the disk that it lies on: servers that share a disk count it each.")]
pub struct Df {
    /// A JSON object for each data server, and one for the whole.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Shows the room on each data server.
pub fn run(arguments: &Df) -> anyhow::Result<()> {
    let (whole, servers) = arguments.reach.run("df", async |session| {
        let failed = |errno| anyhow!("the cluster's room: {}", cause(errno));
        let whole = session.client.status().await.map_err(failed)?;
        let servers = match session.client.data_servers(0).await {
            Ok(pool) => pool.servers,
            // No data server was heard of yet.
            Err(Errno::ENOENT) => Vec::new(),
            Err(errno) => return Err(failed(errno)),
        };
        Ok((whole, servers))
    })?;
    let used = |server: &DataServerInfo| server.total_bytes.saturating_sub(server.available_bytes);
    if arguments.json {
        for server in &servers {
            print_json(&json!({
                "server": server.server,
                "address": server.address,
                "alive": server.alive,
                "total_bytes": server.total_bytes,
                "used_bytes": used(server),
                "available_bytes": server.available_bytes,
            }))?;
        }
        return print_json(&json!({
            "server": null,
            "total_bytes": whole.total_bytes,
            "used_bytes": whole.total_bytes.saturating_sub(whole.available_bytes),
            "available_bytes": whole.available_bytes,
            "inodes": whole.inodes,
        }));
    }
    let row = |name: String, state: &str, total: u64, available: u64| {
        let used = total.saturating_sub(available);
        let share =
            (used * 100).checked_div(total).map_or("-".into(), |share| format!("{share} %"));
        vec![name, state.into(), bytes(total), bytes(used), bytes(available), share]
    };
    let mut rows: Vec<_> = servers
        .iter()
        .map(|server| {
            let state = if server.alive { "alive" } else { "silent" };
            let name = format!("data server {}", server.server);
            row(name, state, server.total_bytes, server.available_bytes)
        })
        .collect();
    let state = format!("{} inodes", whole.inodes);
    rows.push(row("all".into(), &state, whole.total_bytes, whole.available_bytes));
    let header = ["", "state", "size", "used", "available", "use"];
    print(format!("{}\n", table(&header, rows)).as_bytes())
}
