//! `top`: the load of a cluster by servers and operations, again and again.
//!
//! It asks for the reports that `status` and the metrics show, and shows the differences of two of them.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use ropewalk_base::world::World;
use ropewalk_client::operator::Operator;
use ropewalk_client::operator::metas::MetaPlaces;
use ropewalk_client::operator::status::{Activities, ClusterState, Done, Room, since};
use serde_json::{Value, json};

use crate::commands::seconds as patience;
use crate::operate::{Keys, Target};
use crate::report::{bytes, columns, print, print_json, say, table, wrapped};
use crate::status::advice;

/// Operations that are shown.
const OPERATIONS_SHOWN: usize = 12;
/// Moves the cursor to the first place, and clears the screen from there.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Arguments of `ropewalk top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk top                      the cluster on this host, until Ctrl-C
  ropewalk top --once               one page
  ropewalk top --once --json        for programs
  ropewalk top -A tcp://node1:7700 --interval 5

The columns p50 and p99 give a time that half of the calls, or 99 of 100, stayed below. It is \
counted from the arrival of a call at the server to its reply, waits for leases included, and \
rounded up to a power of two of microseconds. The column 'sync' does the same for the disk. \
Operations are sorted by the time that they took together.")]
pub struct Top {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    keys: Keys,
    /// Measure over this many seconds, and show the page again so often.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "2", value_parser = interval)]
    interval: Duration,
    /// Wait this long for the answer of each server.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value = "5", value_parser = patience)]
    patience: Duration,
    /// Show one page and end. This is the default where the output is no terminal.
    #[arg(long)]
    once: bool,
    /// Print one JSON object on a line for each page.
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("give a number of seconds from 0.1 to 3600".to_string()),
    }
}

/// Runs it.
pub fn top(arguments: &Top) -> anyhow::Result<()> {
    let is_live = !arguments.once && !arguments.json && std::io::stdout().is_terminal();
    let goes_on = is_live || (arguments.json && !arguments.once);
    arguments.target.run_with(&arguments.keys, arguments.patience, async |world, operator| {
        let mut before = look(world, operator).await?;
        loop {
            world.sleep(arguments.interval).await;
            let now = match look(world, operator).await {
                Ok(now) => now,
                // Somebody who watches wants to see it come back.
                Err(error) if is_live => {
                    print(CLEAR.as_bytes())?;
                    say!("{}", wrapped(&error.to_string(), columns(), ""))?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let page = Page::between(&before, &now);
            if is_live {
                print(CLEAR.as_bytes())?;
            }
            match arguments.json {
                true => print_json(&page.json())?,
                false => page.show(&now)?,
            }
            if !goes_on {
                return Ok(());
            }
            before = now;
        }
    })
}

/// The reports of all servers, at a moment.
struct Look {
    at: ropewalk_base::time::Time,
    state: ClusterState,
    places: Option<MetaPlaces>,
}

async fn look(world: &World, operator: &Operator) -> anyhow::Result<Look> {
    let state = operator.status().await?;
    let places = operator.meta_places().await;
    Ok(Look { at: world.now(), state, places })
}

/// A server's part of a page.
struct Line {
    server: String,
    is_up: bool,
    calls: Done,
    read: u64,
    written: u64,
    /// Calls that wait or work.
    queue: u64,
    syncs: Done,
}

/// The difference of two looks.
struct Page {
    time: Duration,
    lines: Vec<Line>,
    /// By role and name.
    operations: Vec<(&'static str, String, Done)>,
}

impl Page {
    fn between(before: &Look, now: &Look) -> Page {
        let time = now.at.since(before.at).max(Duration::from_millis(1));
        let (meta, old) = (&now.state.meta, &before.state.meta);
        let same = |(boot, known): (u64, u64)| boot == known;
        let of = |now: &Activities, old: Option<&Activities>| match old {
            Some(old) => since(now, Some(old)),
            // A server that has just started is shown from the next page on.
            None => Activities::new(),
        };
        let is_same = same((meta.boot, old.boot));
        let calls = of(&meta.activities, is_same.then_some(&old.activities));
        let work = of(&meta.work, is_same.then_some(&old.work));
        let mut lines = vec![Line::new(
            format!("meta {}", meta.server),
            true,
            u64::from(meta.waiting),
            (&calls, &work),
        )];
        let mut metadata = Activities::new();
        add(&mut metadata, &calls);
        let mut data = Activities::new();
        for server in &now.state.servers {
            let name = format!("data {}", server.server);
            let Some(answer) = &server.answer else {
                lines.push(Line::new(name, false, 0, (&Activities::new(), &Activities::new())));
                continue;
            };
            let old = before.state.servers.iter().find(|old| old.server == server.server);
            let old = old.and_then(|old| old.answer.as_ref()).filter(|old| old.boot == answer.boot);
            let calls = of(&answer.activities, old.map(|old| &old.activities));
            let work = of(&answer.work, old.map(|old| &old.work));
            add(&mut data, &calls);
            lines.push(Line::new(name, true, answer.under_way.into(), (&calls, &work)));
        }
        let named = |role: &'static str, all: Activities| {
            all.into_iter().map(move |(kind, done)| (role, kind, done))
        };
        let mut operations: Vec<_> = named("meta", metadata).chain(named("data", data)).collect();
        operations.sort_by_key(|(.., done)| std::cmp::Reverse((done.times.micros, done.calls)));
        Page { time, lines, operations }
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.time.as_secs_f64()
    }

    fn show(&self, now: &Look) -> anyhow::Result<()> {
        let meta = &now.state.meta;
        let up = self.lines.iter().skip(1).filter(|line| line.is_up).count();
        let room = Room::together(
            now.state.servers.iter().filter_map(|it| it.answer.as_ref()).map(|it| it.room),
        );
        let leases = meta.figures.get("meta_leases").copied().unwrap_or_default();
        say!(
            "{}",
            wrapped(
                &format!(
                    "{up} of {} data servers up, {} sessions, {leases} leases, {} calls wait, {} of \
                     {} available",
                    now.state.servers.len(),
                    meta.sessions,
                    meta.waiting,
                    bytes(room.available_bytes),
                    bytes(room.total_bytes)
                ),
                columns(),
                "  "
            )
        )?;
        for trouble in advice::of_cluster(&now.state, now.places.as_ref()) {
            say!("{}", wrapped(&format!("! {}", trouble.sentence()), columns(), "  "))?;
        }
        let header = ["server", "calls/s", "read/s", "written/s", "queue", "p50", "p99", "sync"];
        let rows = self.lines.iter().map(|line| self.row(line)).collect();
        say!("{}", table(&header, rows))?;
        let header = ["operation", "calls/s", "bytes/s", "mean", "p50", "p99"];
        let shown = self.operations.iter().take(OPERATIONS_SHOWN);
        let rows: Vec<Vec<String>> = shown
            .map(|(role, kind, done)| {
                let mean = done.times.mean();
                let mut row = vec![format!("{role} {kind}"), self.rate(done.calls)];
                row.push(self.bytes_rate(done.bytes));
                row.extend([mean, done.times.quantile(0.5), done.times.quantile(0.99)].map(time));
                row
            })
            .collect();
        if !rows.is_empty() {
            say!("{}", table(&header, rows))?;
        }
        Ok(())
    }

    fn row(&self, line: &Line) -> Vec<String> {
        if !line.is_up {
            let mut row = vec!["-".to_string(); 8];
            row[0] = format!("{} (down)", line.server);
            return row;
        }
        let times = &line.calls.times;
        vec![
            line.server.clone(),
            self.rate(line.calls.calls),
            self.bytes_rate(line.read),
            self.bytes_rate(line.written),
            line.queue.to_string(),
            time(times.quantile(0.5)),
            time(times.quantile(0.99)),
            time(line.syncs.times.quantile(0.99)),
        ]
    }

    fn rate(&self, count: u64) -> String {
        format!("{:.0}", self.per_second(count))
    }

    fn bytes_rate(&self, count: u64) -> String {
        if count == 0 { "-".to_string() } else { bytes(self.per_second(count) as u64) }
    }

    fn json(&self) -> Value {
        let figures = |done: &Done| {
            let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
            json!({
                "calls_per_second": self.per_second(done.calls),
                "bytes_per_second": self.per_second(done.bytes),
                "mean_seconds": seconds(done.times.mean()),
                "p50_seconds": seconds(done.times.quantile(0.5)),
                "p99_seconds": seconds(done.times.quantile(0.99)),
            })
        };
        let servers = self.lines.iter().map(|line| {
            let mut value = figures(&line.calls);
            value["server"] = line.server.clone().into();
            value["up"] = line.is_up.into();
            value["queue"] = line.queue.into();
            value["read_bytes_per_second"] = self.per_second(line.read).into();
            value["written_bytes_per_second"] = self.per_second(line.written).into();
            value["syncs"] = figures(&line.syncs);
            value
        });
        let operations = self.operations.iter().map(|(role, kind, done)| {
            let mut value = figures(done);
            (value["role"], value["operation"]) = ((*role).into(), kind.clone().into());
            value
        });
        json!({
            "seconds": self.time.as_secs_f64(),
            "servers": servers.collect::<Vec<_>>(),
            "operations": operations.collect::<Vec<_>>(),
        })
    }
}

impl Line {
    fn new(
        server: String,
        is_up: bool,
        queue: u64,
        (calls, work): (&Activities, &Activities),
    ) -> Line {
        let mut all = BTreeMap::new();
        for done in calls.values() {
            add(&mut all, &Activities::from([(String::new(), *done)]));
        }
        let of = |kind: &str| calls.get(kind).map_or(0, |done| done.bytes);
        Line {
            server,
            is_up,
            calls: all.remove("").unwrap_or_default(),
            read: of("read"),
            written: of("write") + of("write inline"),
            queue,
            syncs: work.get("disk sync").copied().unwrap_or_default(),
        }
    }
}

/// Adds figures to others.
fn add(to: &mut Activities, more: &Activities) {
    for (kind, done) in more {
        let sum = to.entry(kind.clone()).or_default();
        sum.calls += done.calls;
        sum.bytes += done.bytes;
        sum.times.micros = sum.times.micros.saturating_add(done.times.micros);
        let counts = sum.times.counts.iter_mut().zip(&done.times.counts);
        counts.for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
}

/// A time with a unit.
fn time(time: Option<Duration>) -> String {
    match time.map(|time| time.as_micros()) {
        None => "-".to_string(),
        Some(micros @ 0..1000) => format!("{micros} us"),
        Some(micros @ 1000..1_000_000) => format!("{:.1} ms", micros as f64 / 1e3),
        Some(micros) => format!("{:.1} s", micros as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_their_unit_and_sums_keep_all_calls() {
        let shown = [0, 999, 1000, 1_500_000].map(|it| time(Some(Duration::from_micros(it))));
        assert_eq!(shown, ["0 us", "999 us", "1.0 ms", "1.5 s"]);
        assert_eq!(time(None), "-");
        let mut done = Done { calls: 2, bytes: 10, ..Done::default() };
        done.times.counts[3] = 2;
        let one = Activities::from([("read".to_string(), done)]);
        let line = Line::new("data 0".to_string(), true, 1, (&one, &Activities::new()));
        assert_eq!((line.calls.calls, line.read, line.written), (2, 10, 0));
        let mut two = one.clone();
        add(&mut two, &one);
        assert_eq!((two["read"].calls, two["read"].times.counts[3]), (4, 4));
    }
}
