//! `status`: servers, capacity, rates, sessions.
//!
//! * `metas`: several metadata servers;
//! * `advice`: the faults in words, with their remedies.

pub mod advice;
mod metas;

use std::time::Duration;

use ropewalk_client::operator::metas::{MetaPlace, MetaPlaces};
use ropewalk_client::operator::status::{
    Activities, Asker, ClusterState, DataState, Done, Room, ServerState, SessionState, since,
};
use ropewalk_client::operator::{Operator, OperatorError};
use serde_json::{Value, json};

use crate::commands::seconds as patience;
use crate::operate::{Keys, Target};
use crate::report::{
    bytes, columns, complain, fits, print_json, say, table, with_addresses, wrapped,
};

/// Sessions that are listed.
const SESSIONS_SHOWN: usize = 32;
/// The shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const SERVER_HEADER: [&str; 8] =
    ["server", "state", "up for", "available", "of", "holds", "calls/s", "address"];
/// Characters of a client's name that are shown; --json has all.
const NAME_SHOWN: usize = 40;

/// Arguments of `ropewalk status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk status                       the cluster on this host
  ropewalk status -A tcp://node1:7700   another cluster
  ropewalk status --watch               again each second, until Ctrl-C

The column 'holds' counts the inodes of the metadata server and the objects of each data server; \
an object holds one stripe of a file. A line that begins with '!' tells a fault and its remedy. \
After a data server was killed, its number lacks the \
objects that it created since its last checkpoint.")]
pub struct Status {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    keys: Keys,
    /// Measure rates over this many seconds; 0 shows no rates.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// Wait this long for the answer of each server.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "5", value_parser = patience)]
    patience: Duration,
    /// Show the status again after each interval, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Print one JSON object on a line.
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0 to 3600".to_string()),
    }
}

/// One sample of the status, as it is shown at a time.
struct Sample {
    state: ClusterState,
    /// The metadata servers, where there are several.
    places: Option<MetaPlaces>,
    /// None: administrators alone see them.
    sessions: Option<Vec<SessionState>>,
    /// An earlier state, and how long ago that was.
    before: Option<(ClusterState, Duration)>,
}

/// Shows what the servers of a cluster are and do.
pub fn status(arguments: &Status) -> anyhow::Result<()> {
    let interval = Duration::from_secs_f64(arguments.interval);
    arguments.target.run_with(&arguments.keys, arguments.patience, async |world, operator| {
        let mut last = None;
        if !interval.is_zero() {
            last = Some((state_of(operator).await?, world.now()));
            world.sleep(interval).await;
        }
        loop {
            let state = state_of(operator).await?;
            let places = operator.meta_places().await;
            let now = world.now();
            let before = last.take().map(|(state, at)| (state, now.since(at)));
            let sessions = match operator.sessions(SESSIONS_SHOWN).await {
                Err(OperatorError::NotAdministrator { .. }) => None,
                sessions => Some(sessions?),
            };
            let sample = Sample { state, places, sessions, before };
            if arguments.json {
                print_json(&sample.json())?;
            } else {
                sample.print()?;
            }
            if !arguments.watch {
                return Ok(());
            }
            last = Some((sample.state, now));
            // A loop without a pause would be a load, not a look.
            world.sleep(interval.max(PAUSE_MIN)).await;
        }
    })
}

/// The state of a cluster. Where no metadata server serves, those that answer are shown with the error.
async fn state_of(operator: &Operator) -> anyhow::Result<ClusterState> {
    let error = match operator.status().await {
        Ok(state) => return Ok(state),
        Err(error) => error,
    };
    if let (OperatorError::Silent { .. }, Some(places)) = (&error, operator.meta_places().await) {
        for place in &places.servers {
            let address = place.address.as_deref().unwrap_or("an unknown address");
            complain!(
                "metadata server {} at {address}: {}",
                place.number,
                metas::part(&places, place)
            );
        }
        for trouble in advice::of_metas(&places) {
            complain!("{}", trouble.sentence());
        }
    }
    Err(error.into())
}

/// Calls and bytes of one kind in a second.
#[derive(Clone, Copy, Default)]
struct Rate {
    calls: f64,
    bytes: f64,
}

/// Rates by kind, if both figures are of one life of a server.
fn rates(
    (boot, now): (u64, &Activities),
    before: Option<(u64, &Activities)>,
    time: Duration,
) -> Vec<(String, Rate)> {
    let Some((_, before)) = before.filter(|(before, _)| *before == boot) else {
        return Vec::new();
    };
    let seconds = time.as_secs_f64().max(1e-3);
    since(now, Some(before))
        .into_iter()
        .map(|(kind, Done { calls, bytes, .. })| {
            (kind, Rate { calls: calls as f64 / seconds, bytes: bytes as f64 / seconds })
        })
        .collect()
}

fn sum<'a>(rates: impl IntoIterator<Item = &'a (String, Rate)>) -> Rate {
    rates.into_iter().fold(Rate::default(), |sum, (_, rate)| Rate {
        calls: sum.calls + rate.calls,
        bytes: sum.bytes + rate.bytes,
    })
}

/// The table of servers in so many columns. Cells that do not fit beside the rest stand below it, addresses
/// first, then the details of states.
fn fit(rows: Vec<Vec<String>>, columns: usize) -> String {
    let text = with_addresses(&SERVER_HEADER, rows.clone(), columns);
    if fits(&text, columns) {
        return text;
    }
    let brief = |row: &Vec<String>| {
        let mut row = row.clone();
        row[1] = row[1].split(',').next().unwrap_or_default().to_string();
        row
    };
    let mut text = with_addresses(&SERVER_HEADER, rows.iter().map(brief).collect(), columns);
    for row in rows.iter().filter(|row| row[1].contains(',')) {
        text.push_str(&format!("\n{} is {}", row[0], row[1]));
    }
    text
}

impl Sample {
    fn meta_rates(&self) -> Vec<(String, Rate)> {
        let Some((before, time)) = &self.before else { return Vec::new() };
        let (now, before) = (&self.state.meta, &before.meta);
        rates((now.boot, &now.activities), Some((before.boot, &before.activities)), *time)
    }

    fn data_rates(&self, server: &ServerState) -> Vec<(String, Rate)> {
        let (Some((before, time)), Some(now)) = (&self.before, &server.answer) else {
            return Vec::new();
        };
        let before = before.servers.iter().find(|before| before.server == server.server);
        let before = before.and_then(|before| before.answer.as_ref());
        let before = before.map(|before| (before.boot, &before.activities));
        rates((now.boot, &now.activities), before, *time)
    }

    fn answers(&self) -> impl Iterator<Item = &DataState> {
        self.state.servers.iter().filter_map(|server| server.answer.as_ref())
    }

    fn meta_is(&self) -> &'static str {
        match (self.state.meta.in_grace, self.state.meta.full) {
            (_, true) => "up, disk nearly full",
            (true, false) => "up, waiting for clients",
            (false, false) if self.places.is_some() => "up, active",
            (false, false) => "up",
        }
    }

    fn print(&self) -> anyhow::Result<()> {
        say!("{}", fit(self.server_rows(), columns()))?;
        for trouble in advice::of_cluster(&self.state, self.places.as_ref()) {
            say!("{}", wrapped(&format!("! {}", trouble.sentence()), columns(), "  "))?;
        }
        for Asker { server, asked, .. } in &self.state.askers {
            say!(
                "data server {server} asked to join {} ago and was refused: admit it by\n'ropewalk \
                 server add {server}' on the metadata server's host, and start it again",
                ago(*asked)
            )?;
        }
        let Room { total_bytes: total, available_bytes: available, .. } = self.capacity();
        let objects: u64 = self.answers().map(|answer| answer.objects).sum();
        let object_bytes: u64 = self.answers().map(|answer| answer.object_bytes).sum();
        let meta = &self.state.meta;
        say!(
            "{} of {} available; the data servers hold {} in {}\nthe metadata server holds {}; \
             pool version {} has {}",
            bytes(available),
            bytes(total),
            bytes(object_bytes),
            counted(objects, "object"),
            counted(meta.inodes, "inode"),
            meta.pool_version,
            counted(meta.pool_servers.into(), "server")
        )?;
        say!(
            "journal position {}, {} of these records not durable yet\n{} waiting; {} to be \
             deleted, {} to be truncated",
            meta.position,
            meta.position.saturating_sub(meta.durable),
            counted(meta.waiting.into(), "call"),
            counted(meta.reaps.into(), "file"),
            meta.cuts
        )?;
        let rows = self.rate_rows();
        if !rows.is_empty() {
            say!("{}", table(&["per second", "operation", "calls", "bytes"], rows))?;
        }
        let Some(sessions) = &self.sessions else {
            say!(
                "{}; only administrators see the list (--cluster-file)",
                counted(meta.sessions.into(), "session")
            )?;
            return Ok(());
        };
        let rows: Vec<Vec<String>> = sessions.iter().map(session_row).collect();
        if !rows.is_empty() {
            say!("{}", table(&["session", "client", "inodes", "lease left"], rows))?;
        }
        let more = (meta.sessions as usize).saturating_sub(sessions.len());
        if more > 0 {
            say!("and {more} more sessions")?;
        }
        Ok(())
    }

    /// Room for file data, over what answers.
    fn capacity(&self) -> Room {
        Room::together(self.answers().map(|answer| answer.room))
    }

    fn server_rows(&self) -> Vec<Vec<String>> {
        let meta = &self.state.meta;
        let mut rows = vec![vec![
            format!("metadata {}", meta.server),
            self.meta_is().to_string(),
            ago(meta.uptime),
            meta.room.map_or("-".to_string(), |room| bytes(room.available_bytes)),
            meta.room.map_or("-".to_string(), |room| bytes(room.total_bytes)),
            meta.inodes.to_string(),
            format!("{:.0}", sum(&self.meta_rates()).calls),
            self.meta_address(),
        ]];
        rows.extend(self.other_metas());
        rows.extend(self.state.servers.iter().map(|server| self.data_row(server)));
        rows.extend(self.state.askers.iter().map(|asker| {
            let mut row = vec!["-".to_string(); SERVER_HEADER.len()];
            row[0] = format!("data {}", asker.server);
            row[1] = "refused, asks to join".to_string();
            row[SERVER_HEADER.len() - 1] = asker.address.clone();
            row
        }));
        rows
    }

    /// The metadata servers that do not serve.
    fn other_metas(&self) -> Vec<Vec<String>> {
        let Some(places) = &self.places else { return Vec::new() };
        let others = places.servers.iter().filter(|it| it.number != self.state.meta.server);
        let row = |place: &MetaPlace| {
            let MetaPlace { number, address, .. } = place;
            let mut row = vec!["-".to_string(); SERVER_HEADER.len()];
            row[0] = format!("metadata {number}");
            row[1] = metas::part(places, place);
            row[SERVER_HEADER.len() - 1] = address.clone().unwrap_or_else(|| "-".to_string());
            row
        };
        others.map(row).collect()
    }

    /// Where the server that serves was asked.
    fn meta_address(&self) -> String {
        let own = self.places.iter().flat_map(|it| &it.servers);
        let mut own = own.filter(|it| it.number == self.state.meta.server);
        let address = own.find_map(|it| it.address.clone());
        address.unwrap_or_else(|| self.state.meta.address.clone())
    }

    fn data_row(&self, server: &ServerState) -> Vec<String> {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let answer = server.answer.as_ref();
        let silence = server
            .silence
            .map_or("no report yet".to_string(), |silence| format!("silent for {}", ago(silence)));
        let state = match (answer, server.in_pool) {
            (Some(_), true) => "up".to_string(),
            (Some(_), false) if server.full => "up, full: gets no new files".to_string(),
            (Some(_), false) => "up, gets no new files".to_string(),
            (None, _) => format!("down, {silence}"),
        };
        vec![
            format!("data {}", server.server),
            state,
            or_none(answer.map(|answer| ago(answer.uptime))),
            or_none(answer.map(|answer| bytes(answer.room.available_bytes))),
            or_none(answer.map(|answer| bytes(answer.room.total_bytes))),
            or_none(answer.map(|answer| answer.objects.to_string())),
            or_none(answer.map(|_| format!("{:.0}", sum(&self.data_rates(server)).calls))),
            server.address.clone(),
        ]
    }

    fn rate_rows(&self) -> Vec<Vec<String>> {
        let named = |name: String, rates: Vec<(String, Rate)>| {
            rates.into_iter().map(move |(kind, rate)| {
                let moved = (rate.bytes > 0.0).then(|| bytes(rate.bytes as u64));
                let calls = format!("{:.1}", rate.calls);
                vec![name.clone(), kind, calls, moved.unwrap_or_else(|| "-".to_string())]
            })
        };
        let meta = named("metadata".to_string(), self.meta_rates());
        let data = self.state.servers.iter().flat_map(|server| {
            named(format!("data server {}", server.server), self.data_rates(server))
        });
        meta.chain(data).collect()
    }

    fn json(&self) -> Value {
        let meta = &self.state.meta;
        let capacity = self.capacity();
        json!({
            "seconds": self.before.as_ref().map(|(_, time)| time.as_secs_f64()),
            "capacity": {
                "total_bytes": capacity.total_bytes,
                "free_bytes": capacity.free_bytes,
                "available_bytes": capacity.available_bytes,
                "objects": self.answers().map(|answer| answer.objects).sum::<u64>(),
                "object_bytes": self.answers().map(|answer| answer.object_bytes).sum::<u64>(),
            },
            "metadata": {
                "server": meta.server,
                "address": meta.address,
                "state": "up",
                "boot": format!("{:x}", meta.boot),
                "uptime_seconds": meta.uptime.as_secs_f64(),
                "inodes": meta.inodes,
                "sessions": meta.sessions,
                "waiting": meta.waiting,
                "position": meta.position,
                "written": meta.written,
                "durable": meta.durable,
                "in_grace": meta.in_grace,
                "full": meta.full,
                "missing_bytes": meta.missing_bytes,
                "total_bytes": meta.room.map(|room| room.total_bytes),
                "free_bytes": meta.room.map(|room| room.free_bytes),
                "available_bytes": meta.room.map(|room| room.available_bytes),
                "reaps": meta.reaps,
                "cuts": meta.cuts,
                "pool_version": meta.pool_version,
                "pool_servers": meta.pool_servers,
                "calls": done_json(&meta.activities),
                "rates": rates_json(&self.meta_rates()),
            },
            "metadata_servers": self.places.as_ref().map(metas::as_json),
            "problems": advice::of_cluster(&self.state, self.places.as_ref())
                .iter()
                .map(advice::Trouble::as_json)
                .collect::<Vec<_>>(),
            "servers": self.state.servers.iter().map(|it| self.server_json(it)).collect::<Vec<_>>(),
            "asking": self.state.askers.iter().map(asker_json).collect::<Vec<_>>(),
            "sessions": self.sessions.as_ref().map(|sessions| {
                sessions.iter().map(session_json).collect::<Vec<_>>()
            }),
        })
    }

    fn server_json(&self, server: &ServerState) -> Value {
        let answer = server.answer.as_ref().map(|answer| {
            json!({
                "boot": format!("{:x}", answer.boot),
                "uptime_seconds": answer.uptime.as_secs_f64(),
                "total_bytes": answer.room.total_bytes,
                "free_bytes": answer.room.free_bytes,
                "available_bytes": answer.room.available_bytes,
                "objects": answer.objects,
                "object_bytes": answer.object_bytes,
                "log_bytes": answer.log_bytes,
                "corrupt_blocks": answer.corrupt_blocks,
                "checksum_errors": answer.checksum_errors,
                "under_way": answer.under_way,
                "calls": done_json(&answer.activities),
                "rates": rates_json(&self.data_rates(server)),
            })
        });
        json!({
            "server": server.server,
            "address": server.address,
            "state": if server.answer.is_some() { "up" } else { "down" },
            "silent_seconds": server.silence.map(|silence| silence.as_secs_f64()),
            "in_pool": server.in_pool,
            "fences_owed": server.fences_owed,
            "domain": server.domain,
            "answer": answer,
        })
    }
}

fn asker_json(asker: &Asker) -> Value {
    json!({
        "server": asker.server,
        "address": asker.address,
        "asked_seconds": asker.asked.as_secs_f64(),
        "remedy": format!("ropewalk server add {}", asker.server),
    })
}

fn session_row(session: &SessionState) -> Vec<String> {
    let name = if session.name.is_empty() { "-" } else { &session.name };
    // A name must not steer the terminal.
    let plain = |c: char| if c.is_control() { '?' } else { c };
    let mut shown: String = name.chars().take(NAME_SHOWN).map(plain).collect();
    if name.chars().count() > NAME_SHOWN {
        shown.push_str("...");
    }
    let ends = if session.fencing { "being ended".to_string() } else { ago(session.left) };
    vec![format!("{:016x}", session.session), shown, session.inodes.to_string(), ends]
}

fn session_json(session: &SessionState) -> Value {
    json!({
        "session": format!("{:016x}", session.session),
        "client": session.name,
        "inodes": session.inodes,
        "left_seconds": session.left.as_secs_f64(),
        "fencing": session.fencing,
    })
}

fn done_json(activities: &Activities) -> Value {
    let kinds = activities
        .iter()
        .map(|(kind, done)| (kind.clone(), json!({ "calls": done.calls, "bytes": done.bytes })));
    Value::Object(kinds.collect())
}

fn rates_json(rates: &[(String, Rate)]) -> Value {
    let kinds = rates.iter().map(|(kind, rate)| {
        (kind.clone(), json!({ "calls_per_second": rate.calls, "bytes_per_second": rate.bytes }))
    });
    Value::Object(kinds.collect())
}

/// A number of things.
fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A stretch of time in its largest unit.
pub fn ago(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_servers_fits_the_terminal() {
        let row = |server: &str, state: &str, address: &str| {
            let cells =
                [server, state, "119 min", "1023.9 GiB", "1023.9 GiB", "1000000", "12000", address];
            cells.map(str::to_string).to_vec()
        };
        let long =
            "tcp://10.100.200.1:34567,tcp://10.100.200.2:34567,udp://[fd00::1234:5678]:34567";
        let rows = vec![
            row("metadata 0", "up, waiting for clients", "tcp://127.0.0.1:7700"),
            row("data 1", "down, silent for 119 min", "tcp://127.0.0.1:34567"),
            row("data 12", "up, full: gets no new files", long),
        ];
        for columns in [80, 100, 132] {
            let text = fit(rows.clone(), columns);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(widest <= columns, "{widest} of {columns}:\n{text}");
            assert!(text.contains("data 1 at tcp://127.0.0.1:34567"), "{text}");
            assert!(text.contains("down, silent for 119 min"), "{text}");
            assert!(long.split(',').all(|part| text.contains(part)), "{text}");
        }
        let usual = vec![
            row("metadata 0", "up", "tcp://127.0.0.1:7700"),
            row("data 1", "up", "tcp://127.0.0.1:34567"),
        ];
        let text = fit(usual.clone(), 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(fit(usual, 110).lines().count(), 6, "addresses beside the rest");
    }
}
