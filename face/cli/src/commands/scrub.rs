//! `ropewalk server scrub`: a round of the scrub now, while somebody watches.

use std::cell::{Cell, RefCell};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_base::task::join_all;
use ropewalk_client::operator::{Operator, OperatorError};
use ropewalk_wire::fs::data::Scrubbed;
use serde_json::json;

use super::{Asking, number};
use crate::report::{bytes, print_json, say, table};

pub const EXAMPLES: &str = "Examples:
  ropewalk server scrub              all data servers, at the same time
  ropewalk server scrub 3 4          two of them
  ropewalk server scrub --rate 50    each reads at most 50 MiB a second

Each server reads the objects whose writes it orders, and compares them with their checksums and \
with the copies at other servers. Damaged blocks are written again from another copy. Servers do \
the same by themselves, slowly, about once a day; give the order when you do not trust a disk. It \
reads as fast as the disks allow, beside the work of clients. Ctrl-C stops at any moment, and \
nothing is lost but the place. The command fails if there are damaged blocks of which no copy is \
left: 'ropewalk check --read' names their files.";

/// The options of the command.
#[derive(Debug, clap::Args)]
pub struct Scrubbing {
    /// The numbers of the data servers; all of them if none is given.
    #[arg(value_name = "NUMBER", value_parser = number, allow_negative_numbers = true)]
    numbers: Vec<u32>,
    /// MiB a second that each of them reads at most; 0: no limit.
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    rate: u32,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asking: Asking,
}

impl Scrubbing {
    /// Does it.
    pub fn run(&self) -> anyhow::Result<()> {
        self.asking.run(async |_, operator| self.scrub(operator).await)
    }

    async fn scrub(&self, operator: &Operator) -> anyhow::Result<()> {
        let servers = operator.status().await?.servers;
        let mut numbers: Vec<u32> = servers.iter().map(|known| known.server).collect();
        if let Some(unknown) = self.numbers.iter().find(|number| !numbers.contains(number)) {
            bail!("the cluster has no data server {unknown}: 'ropewalk server status' lists them");
        }
        if !self.numbers.is_empty() {
            numbers.retain(|number| self.numbers.contains(number));
        }
        let chosen = servers.iter().filter(|known| numbers.contains(&known.server));
        let objects = chosen.filter_map(|known| known.answer.as_ref()).map(|it| it.objects).sum();
        let found = self.watch(operator, &numbers, objects).await;
        let found: Vec<_> = numbers.into_iter().zip(found).collect();
        if self.json {
            let servers: Vec<_> =
                found.iter().map(|(server, found)| told(*server, found)).collect();
            print_json(&json!({ "servers": servers }))?;
        } else {
            let rows = found.iter().map(|(server, found)| row(*server, found));
            say!("{}", table(&HEADER, rows.collect()))?;
            say_passed(&found)?;
        }
        verdict(found)
    }

    /// Has all of them scrub at the same time, and shows how far they are.
    async fn watch(
        &self,
        operator: &Operator,
        servers: &[u32],
        objects: u64,
    ) -> Vec<Result<Scrubbed, OperatorError>> {
        let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} objects {eta}");
        let bar = ProgressBar::new(objects).with_message("reading");
        let bar = style.map_or(bar.clone(), |style| bar.with_style(style));
        let (seen, damaged) = (RefCell::new(vec![0; servers.len()]), Cell::new(0));
        let scrub = |(place, server): (usize, &u32)| {
            let (bar, seen, damaged, server) = (&bar, &seen, &damaged, *server);
            let before = Cell::new(0);
            async move {
                let tell = |some: Scrubbed| {
                    seen.borrow_mut()[place] = some.seen;
                    bar.set_position(seen.borrow().iter().sum());
                    let now = some.mended + some.lost;
                    damaged.set(damaged.get() + now - before.replace(now));
                    if damaged.get() > 0 {
                        bar.set_message(format!("{} damaged blocks", damaged.get()));
                    }
                };
                operator.scrub(server, u64::from(self.rate) << 20, &tell).await
            }
        };
        let found = join_all(servers.iter().enumerate().map(scrub)).await;
        bar.finish_and_clear();
        found
    }
}

const HEADER: [&str; 6] = ["data server", "objects", "read", "mended", "lost", "not compared"];

fn row(server: u32, found: &Result<Scrubbed, OperatorError>) -> Vec<String> {
    let mut row = vec![server.to_string()];
    if let Ok(Scrubbed { seen, bytes: read, mended, lost, passed, .. }) = found {
        row.extend([seen.to_string(), bytes(*read)]);
        row.extend([mended, lost, passed].map(u64::to_string));
    }
    row.resize(HEADER.len(), "-".to_owned());
    row
}

fn told(server: u32, found: &Result<Scrubbed, OperatorError>) -> serde_json::Value {
    match found {
        Ok(Scrubbed { seen, bytes, mended, lost, passed, .. }) => json!({
            "server": server, "objects": seen, "bytes": bytes, "mended_blocks": mended,
            "lost_blocks": lost, "not_compared": passed,
        }),
        Err(error) => json!({ "server": server, "error": error.to_string() }),
    }
}

type Found = (u32, Result<Scrubbed, OperatorError>);

fn say_passed(found: &[Found]) -> anyhow::Result<()> {
    match found.iter().flat_map(|(_, found)| found).map(|it| it.passed).sum() {
        0u64 => Ok(()),
        passed => say!(
            "{passed} objects could not be compared, since a server that has a copy is away or a header is \
             damaged: 'ropewalk status' and the servers' logs say more; then scrub again"
        ),
    }
}

/// Damage without a copy, and servers that did not end their round, fail the command.
fn verdict(found: Vec<Found>) -> anyhow::Result<()> {
    let lost: u64 = found.iter().flat_map(|(_, found)| found).map(|it| it.lost).sum();
    for (server, found) in found {
        found.with_context(|| format!("data server {server} ended no round"))?;
    }
    match lost {
        0 => Ok(()),
        lost => bail!(
            "{lost} blocks are damaged and no copy is left: 'ropewalk check --read' names their files; restore \
             them from a backup"
        ),
    }
}
