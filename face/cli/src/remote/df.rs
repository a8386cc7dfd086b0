//! `ropewalk df`.

use ropewalk_client::operator::status::{MetaState, Room, ServerState};
use serde_json::{Value, json};

use super::Reach;
use crate::report::{bytes, print, print_json, table};
use crate::status::ago;

/// Arguments of `ropewalk df`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk df           space on each data server, in total, and for metadata
  ropewalk df --json    as JSON, with sizes in bytes

Each server reports the file system on which it keeps its data. The total counts each file system \
once, also if several servers share it. For a server that does not answer, the table shows its \
last report.")]
pub struct Df {
    /// Print a JSON object for each data server, one for the metadata server, and one for the
    /// total; 'kind' is data, metadata or total.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reach: Reach,
}

/// Shows the room on each server.
pub fn run(arguments: &Df) -> anyhow::Result<()> {
    let (servers, meta) = arguments.reach.ask(async |_, operator| {
        let servers = operator.servers().await?;
        Ok((servers, operator.meta_state().await?))
    })?;
    let whole = Room::together(servers.iter().map(|server| server.room));
    if arguments.json {
        print_objects(&servers, &meta, whole)
    } else {
        print_table(&servers, &meta, whole)
    }
}

fn print_objects(servers: &[ServerState], meta: &MetaState, whole: Room) -> anyhow::Result<()> {
    for server in servers {
        let mut object = object("data", server.silence.map(|_| server.room));
        object["server"] = json!(server.server);
        object["address"] = json!(server.address);
        object["alive"] = json!(server.alive);
        object["full"] = json!(server.full);
        object["state"] = json!(state(server, servers));
        let disk = server.room.file_system;
        object["file_system"] = json!((disk != 0).then(|| format!("{disk:x}")));
        object["silent_seconds"] = json!(server.silence.map(|silence| silence.as_secs_f64()));
        print_json(&object)?;
    }
    let mut metadata = object("metadata", meta.room);
    metadata["address"] = json!(meta.address);
    // It answered just now.
    metadata["alive"] = json!(true);
    metadata["full"] = json!(meta.full);
    metadata["state"] = json!(meta_state(meta));
    metadata["silent_seconds"] = json!(0.0);
    metadata["inodes"] = json!(meta.inodes);
    print_json(&metadata)?;
    let mut total = object("total", Some(whole));
    total["inodes"] = json!(meta.inodes);
    print_json(&total)
}

/// A row for programs: all have the same keys, which are null where they make no sense.
fn object(kind: &str, room: Option<Room>) -> Value {
    let mut object = json!({ "kind": kind });
    let keys =
        ["server", "address", "alive", "full", "state", "file_system", "silent_seconds", "inodes"];
    for key in keys {
        object[key] = Value::Null;
    }
    add_room(&mut object, room);
    object
}

/// Adds sizes, which are null where they are not known.
fn add_room(object: &mut Value, room: Option<Room>) {
    object["total_bytes"] = json!(room.map(|room| room.total_bytes));
    object["used_bytes"] = json!(room.map(|room| room.used_bytes()));
    object["available_bytes"] = json!(room.map(|room| room.available_bytes));
}

fn print_table(servers: &[ServerState], meta: &MetaState, whole: Room) -> anyhow::Result<()> {
    let mut rows: Vec<_> = servers
        .iter()
        .map(|server| {
            let name = format!("data server {}", server.server);
            row(name, alone(server), server.silence.map(|_| server.room), None)
        })
        .collect();
    rows.push(row("total".into(), String::new(), Some(whole), None));
    let name = "metadata server".into();
    rows.push(row(name, meta_state(meta), meta.room, Some(meta.inodes)));
    let header = ["", "state", "size", "used", "available", "use", "inodes"];
    let mut text = format!("{}\n", table(&header, rows));
    for server in servers {
        let others: Vec<String> = servers
            .iter()
            .filter(|other| {
                other.server != server.server && first_of_disk(other, servers) == Some(server)
            })
            .map(|other| other.server.to_string())
            .collect();
        if !others.is_empty() {
            let (of, others) = (server.server, others.join(", "));
            text.push_str(&format!("data server {of} shares its disk with: {others}\n"));
        }
    }
    print(text.as_bytes())
}

fn meta_state(meta: &MetaState) -> String {
    match (meta.full, meta.missing_bytes) {
        (false, _) => "serving".into(),
        (true, 0) => "full: nothing new is made".into(),
        (true, missing) => format!("nothing new until {} are freed", bytes(missing)),
    }
}

/// The state of a server, and the server with which it shares its disk.
fn state(server: &ServerState, all: &[ServerState]) -> String {
    let shares = first_of_disk(server, all).filter(|first| first.server != server.server);
    let said = alone(server);
    shares.map_or(said.clone(), |first| format!("{said}, on the disk of {}", first.server))
}

/// The first server on the disk of this one, if it says which disk that is.
fn first_of_disk<'a>(server: &ServerState, all: &'a [ServerState]) -> Option<&'a ServerState> {
    let disk = server.room.file_system;
    all.iter().find(|other| disk != 0 && other.room.file_system == disk)
}

fn alone(server: &ServerState) -> String {
    match (server.silence, server.alive) {
        (None, _) => "not heard yet".into(),
        (Some(silence), false) => format!("silent for {}", ago(silence)),
        (Some(_), true) if server.full => "full: gets no new files".into(),
        (Some(_), true) => "serving".into(),
    }
}

fn row(name: String, state: String, room: Option<Room>, inodes: Option<u64>) -> Vec<String> {
    let inodes = inodes.map_or(String::new(), |inodes| inodes.to_string());
    let Some(room) = room else {
        let unknown = || "-".to_string();
        return vec![name, state, unknown(), unknown(), unknown(), unknown(), inodes];
    };
    // As df(1) has it: of what anybody may use.
    let used = room.used_bytes();
    let usable = used.saturating_add(room.available_bytes);
    let share = u128::from(used) * 100;
    let share = share.div_ceil(u128::from(usable.max(1)));
    vec![
        name,
        state,
        bytes(room.total_bytes),
        bytes(used),
        bytes(room.available_bytes),
        format!("{share} %"),
        inodes,
    ]
}
