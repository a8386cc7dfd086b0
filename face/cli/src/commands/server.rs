//! `ropewalk server`: the data servers that belong to a cluster, and the groups that are on them.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_base::world::World;
use ropewalk_client::Errno;
use ropewalk_client::operator::moves::ServerShare;
use ropewalk_client::operator::{Operator, OperatorError};
use ropewalk_wire::fs::data::Cleaned;
use ropewalk_wire::fs::orders::{Moves, Orders, ServerOrder};
use serde_json::json;

use super::scrub::Scrubbing;
use super::{Asking, number};
use crate::report::{bytes, print_json, say, table};

/// The pause between two looks at moves.
const PAUSE: Duration = Duration::from_secs(1);
/// Files that are named at most.
const NAMED: usize = 10;

/// Work on the servers of a cluster.
#[derive(Debug, clap::Subcommand)]
pub enum ServerCommand {
    /// Admits a data server with a new number to the cluster, permanently.
    #[command(after_help = "Examples:
  ropewalk server add 4                            for the cluster on this host
  ropewalk server add 4 -A tcp://node1:7700 --cluster-file /etc/rope.cluster

Then start the new server with 'ropewalk serve data --server 4 --directory DIR'. 'ropewalk up' \
and 'ropewalk serve all' admit their data servers themselves.")]
    Add(One),
    /// Shows the groups of each data server, the orders that hold, and the groups on their way.
    #[command(after_help = "Example: ropewalk server status

Files are divided among groups, 64 for each server and number of copies. A server 'orders' the \
writes of some groups, and has 'copies' of others. 'Alone' counts groups of which it has the only \
copy. A group that is 'stuck' waits for a server that can take it: one that answers, has room, \
and is in a failure domain without another copy.")]
    Status {
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        asking: Asking,
    },
    /// Moves all groups of a data server to others, while clients go on.
    #[command(after_help = "Examples:
  ropewalk server drain 3 --wait     ends when server 3 has no groups
  ropewalk server drain 3            gives the order
  ropewalk server status             shows how far it is
  ropewalk server keep 3             takes the order back

The order outlives the death of every server. Then stop the server, and have the cluster \
forget it by 'ropewalk server remove 3'.")]
    Drain {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Moves all groups of a data server to one other server.
    #[command(after_help = "Example: ropewalk server replace 3 7 --wait

Admit and start server 7 before. If server 3 is dead, groups of which others have copies are \
brought to server 7 from those. A group whose only copy was on server 3 needs it back.")]
    Replace {
        #[command(flatten)]
        one: One,
        /// The number of the data server that takes its place.
        #[arg(value_name = "NEW", value_parser = number, allow_negative_numbers = true)]
        heir: u32,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Takes the order back by which a data server is drained or replaced.
    #[command(after_help = "Example: ropewalk server keep 3")]
    Keep(One),
    /// Makes the cluster forget a data server that has no groups.
    #[command(after_help = "Example: ropewalk server remove 3

Drain the server, and stop it before. It is refused while the server has groups. Files whose only \
copy is there are named.")]
    Remove(One),
    /// Goes on without a data server whose disk is gone for good.
    #[command(after_help = "Examples:
  ropewalk server lost 3 --dry-run     names the files that would lose bytes
  ropewalk server lost 3               gives the server up

Give the order only if the disk is gone, and the server is stopped or cut off: the cluster forgets \
what it had. It is refused while the server is heard, and for 30 seconds after that.

Groups that have another member in step lose nothing. In a group whose only member in step was \
this server, the member that left last, of those that are heard, takes its place, with the bytes \
that it had then: 'fsync' of files that were written since fails, and programs may read older \
bytes. Start all servers that ever had copies before. Groups of which no other server has \
anything wait for the disk; 'ropewalk server clean' waits with them.

If you have a new disk for the same server, start it with --replace instead.")]
    Lost {
        #[command(flatten)]
        one: One,
        /// Only name the files.
        #[arg(long)]
        dry_run: bool,
    },
    /// Spreads groups evenly over all data servers, by the size of their disks.
    #[command(after_help = "Example: ropewalk server rebalance --wait

Servers that joined get their share of the files that are there. The order holds, so the spread \
stays even, until 'ropewalk server cancel'. Servers that gave groups away keep the bytes, until \
'ropewalk server clean' frees them.")]
    Rebalance {
        #[command(flatten)]
        asking: Asking,
        #[command(flatten)]
        waiting: Waiting,
    },
    /// Frees the bytes of groups that a data server gave away.
    #[command(after_help = "Examples:
  ropewalk server clean 3 --dry-run     counts them
  ropewalk server clean 3               frees them

A server that gave groups away keeps their bytes, since nothing throws bytes away unasked. The \
server must run. It keeps everything of the groups that it is in or comes into, and objects of \
which it does not know the group. Once it has freed bytes, it refuses metadata that are older \
than the moves. Ctrl-C stops at any moment; the command then goes on when it is given again.")]
    Clean {
        #[command(flatten)]
        one: One,
        /// Only count.
        #[arg(long)]
        dry_run: bool,
        /// Also if the metadata were restored from a dump since the server has data: groups that moved to
        /// this server after the dump was made count as given away, and their newest bytes are lost.
        #[arg(long)]
        after_restore: bool,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Reads all that data servers have, and mends what is damaged.
    #[command(after_help = super::scrub::EXAMPLES)]
    Scrub(Scrubbing),
    /// Takes all orders to drain, replace and rebalance back.
    #[command(after_help = "Example: ropewalk server cancel")]
    Cancel(Asking),
    /// Begins no further moves, also in place of servers that are gone. Those under way end.
    #[command(after_help = "Example: ropewalk server pause")]
    Pause(Asking),
    /// Goes on with moves after 'pause'.
    #[command(after_help = "Example: ropewalk server resume")]
    Resume(Asking),
    /// Limits the bytes that each data server sends for moves.
    #[command(after_help = "Examples:
  ropewalk server rate 100     100 MiB a second at most
  ropewalk server rate 0       no limit")]
    Rate {
        /// MiB a second; 0: no limit.
        #[arg(value_name = "MIB", value_parser = number, allow_negative_numbers = true)]
        rate: u32,
        #[command(flatten)]
        asking: Asking,
    },
}

/// One data server.
#[derive(Debug, clap::Args)]
pub struct One {
    /// The number of the data server.
    #[arg(value_parser = number, allow_negative_numbers = true)]
    number: u32,
    #[command(flatten)]
    asking: Asking,
}

/// Whether to wait.
#[derive(Debug, clap::Args)]
pub struct Waiting {
    /// Wait until nothing is left to be moved. Ctrl-C ends the waiting, and the order holds.
    #[arg(long)]
    wait: bool,
}

impl Asking {
    fn order(&self, order: ServerOrder) -> anyhow::Result<()> {
        self.run(async |_, operator| give(operator, order).await.map(drop))
    }

    /// Gives an order, and waits until its moves are over where that is wanted.
    fn move_groups(&self, order: ServerOrder, waiting: &Waiting) -> anyhow::Result<()> {
        let leaver = match order {
            ServerOrder::Drain { server, .. } => Some(server),
            _ => None,
        };
        self.run(async |world, operator| {
            give(operator, order).await?;
            match waiting.wait {
                true => wait(world, operator, leaver).await,
                false => say!("ordered: 'ropewalk server status' shows how far it is"),
            }
        })
    }
}

/// Does it.
pub fn run(command: &ServerCommand) -> anyhow::Result<()> {
    use ServerCommand as C;
    match command {
        C::Add(One { number, asking }) => add(*number, asking),
        C::Status { json, asking } => asking.run(async |_, operator| show(operator, *json).await),
        C::Drain { one: One { number, asking }, waiting } => {
            asking.move_groups(ServerOrder::Drain { server: *number, heir: None }, waiting)
        }
        C::Replace { one: One { number, asking }, heir, waiting } => {
            asking.move_groups(ServerOrder::Drain { server: *number, heir: Some(*heir) }, waiting)
        }
        C::Keep(One { number, asking }) => {
            asking.order(ServerOrder::Keep { server: *number })?;
            say!("data server {number} stays")
        }
        C::Remove(One { number, asking }) => {
            asking.run(async |_, operator| remove(operator, *number).await)?;
            say!("data server {number} does not belong to the cluster any more")
        }
        C::Lost { one: One { number, asking }, dry_run } => {
            asking.run(async |_, operator| lost(operator, *number, *dry_run).await)
        }
        C::Rebalance { asking, waiting } => asking.move_groups(ServerOrder::Rebalance, waiting),
        C::Clean { one: One { number, asking }, dry_run, after_restore, json } => {
            let how = Cleaning { dry: *dry_run, restored: *after_restore, json: *json };
            asking.run(async |_, operator| clean(operator, *number, how).await)
        }
        C::Scrub(scrubbing) => scrubbing.run(),
        C::Cancel(asking) => {
            asking.order(ServerOrder::Cancel)?;
            say!("no server is drained, and groups stay where they are")
        }
        C::Pause(asking) => {
            asking.order(ServerOrder::Pause { paused: true })?;
            say!("no further moves begin: 'ropewalk server resume' goes on")
        }
        C::Resume(asking) => {
            asking.order(ServerOrder::Pause { paused: false })?;
            say!("moves go on")
        }
        C::Rate { rate, asking } => {
            asking.order(ServerOrder::Rate { mib_per_second: *rate })?;
            match rate {
                0 => say!("moves have no limit"),
                rate => say!("each data server sends at most {rate} MiB a second for moves"),
            }
        }
    }
}

fn add(number: u32, asking: &Asking) -> anyhow::Result<()> {
    match asking.run(async |_, operator| Ok(operator.admit(number).await?))? {
        true => say!(
            "data server {number} may join: start it with 'ropewalk serve data --server {number}'"
        ),
        false => say!("data server {number} belongs to the cluster already"),
    }
}

/// Gives an order; a refusal in words.
async fn give(operator: &Operator, order: ServerOrder) -> anyhow::Result<(Orders, Moves)> {
    operator.order(order).await.map_err(refusal)
}

/// A refusal in words.
fn refusal(error: OperatorError) -> anyhow::Error {
    let (errno, server) = match error {
        OperatorError::Refused { errno, server } => (errno, server),
        other => return other.into(),
    };
    match errno {
        Errno::ENOENT => anyhow!(
            "the cluster has no data server of this number: 'ropewalk server status' lists them, and \
             'ropewalk server add' admits a new one"
        ),
        Errno::ENODEV => {
            anyhow!("there is no other data server that could take the groups: start one first")
        }
        Errno::EOPNOTSUPP => anyhow!(
            "this cluster has metadata of the first format, whose files stay on their servers: \
             'ropewalk upgrade' brings it forward"
        ),
        Errno::ETXTBSY => anyhow!(
            "the data server still runs: stop it first, since one that admits itself would come back at \
             once"
        ),
        errno => OperatorError::Refused { errno, server }.into(),
    }
}

/// Has groups go on without a server. Names the files that lose something by that, or wait for it.
async fn lost(operator: &Operator, number: u32, dry: bool) -> anyhow::Result<()> {
    let share = async || -> anyhow::Result<ServerShare> {
        Ok(operator.shares().await?.get(&number).copied().unwrap_or_default())
    };
    let (before, at_risk) = (share().await?, last_copies(operator, number).await?);
    if dry {
        return say!(
            "data server {number} has {} groups, of {} of which it is the only member in step; {}",
            before.groups(),
            before.alone,
            files_in_words("have bytes only there", &at_risk)
        );
    }
    match operator.order(ServerOrder::Lost { server: number }).await {
        Err(OperatorError::Refused { errno: Errno::ETXTBSY, .. }) => bail!(
            "data server {number} was heard less than 30 seconds ago, or the metadata server was just \
             started: stop the data server, and wait"
        ),
        done => done.map(drop).map_err(refusal)?,
    }
    let after = share().await?;
    let older = before.alone.saturating_sub(after.alone);
    if older > 0 {
        say!(
            "{older} groups went back to an older copy on other servers; {}",
            files_in_words("have bytes there, or in groups that wait", &at_risk)
        )?;
    }
    if after.groups() == 0 {
        return say!(
            "all groups go on without data server {number}: 'ropewalk server status' shows them, and \
             'ropewalk server remove {number}' makes the cluster forget it"
        );
    }
    let waiting = last_copies(operator, number).await?;
    say!(
        "{} groups wait for data server {number}, since no other server that is heard has anything of them; \
         {}\nIf another server that once had copies is stopped, start it, and repeat this command. If none is \
         left, start data server {number} with an empty directory and --replace: that gives the bytes up, and \
         the server can be drained and removed then",
        after.groups(),
        files_in_words("have bytes only there", &waiting)
    )
}

/// Files of which a server has bytes that no other one has in step: some of their paths, and how many there are.
async fn last_copies(operator: &Operator, number: u32) -> anyhow::Result<(Vec<Vec<u8>>, u64)> {
    let named = operator.last_copies(number, NAMED).await;
    named.context("the files whose only copy is there are unknown")
}

/// Some files by name, and how many there are.
fn files_in_words(have: &str, (paths, count): &(Vec<Vec<u8>>, u64)) -> String {
    let mut words = format!("{count} files {have}");
    for path in paths {
        words.push_str(&format!("\n  /{}", path.escape_ascii()));
    }
    if *count > paths.len() as u64 {
        words.push_str(&format!("\n  and {} more", count - paths.len() as u64));
    }
    words
}

/// Has a server forgotten. Where that is refused, files whose only copy is there are named.
async fn remove(operator: &Operator, number: u32) -> anyhow::Result<()> {
    match operator.order(ServerOrder::Remove { server: number }).await {
        Err(OperatorError::Refused { errno: Errno::EBUSY, .. }) => {}
        done => return done.map(drop).map_err(refusal),
    }
    let share = operator.shares().await?.get(&number).copied().unwrap_or_default();
    let mut words = format!("data server {number} has {} groups", share.groups());
    if share.alone > 0 {
        let named = last_copies(operator, number).await?;
        words.push_str(&format!(
            ", of {} of which there is no other copy; {}\n",
            share.alone,
            files_in_words("have bytes only there", &named)
        ));
    }
    bail!("{words}: move them by 'ropewalk server drain {number} --wait' first")
}

/// The manner of a cleaning.
#[derive(Clone, Copy)]
struct Cleaning {
    dry: bool,
    restored: bool,
    json: bool,
}

/// Has a server free the bytes of groups that it gave away.
async fn clean(operator: &Operator, number: u32, how: Cleaning) -> anyhow::Result<()> {
    let servers = operator.servers().await?;
    if !servers.iter().any(|known| known.server == number) {
        bail!("the cluster has no data server {number}: 'ropewalk server status' lists them");
    }
    let bar = ProgressBar::new_spinner();
    let tell = |some: Cleaned| {
        bar.set_message(format!("{} objects, {} to free", some.seen, bytes(some.bytes)));
        bar.tick();
    };
    let cleaned = operator.clean(number, (!how.dry, how.restored), &tell).await;
    bar.finish_and_clear();
    let Cleaned { seen, objects, bytes: freed, unclear, .. } = cleaned.map_err(|error| {
        match error {
            OperatorError::Refused { errno: Errno::ESTALE, .. } => anyhow!(
                "the metadata were restored from a dump since data server {number} has data: groups that \
                 came to it after the dump was made would count as given away. If no group moved since \
                 the dump was made, give the command again with --after-restore"
            ),
            OperatorError::Refused { errno: Errno::EBUSY, .. } => anyhow!(
                "some group lacks a copy, or one of its servers is silent, so the bytes may be wanted yet: \
                 'ropewalk status' says what to do. A server that was given up by 'lost' counts as long as \
                 groups wait for it"
            ),
            OperatorError::Silent { .. } => {
                anyhow!("{error}, or does not know the newest map yet: try again in a minute")
            }
            error => refusal(error),
        }
    })?;
    if how.json {
        return print_json(&json!({
            "server": number, "seen": seen, "objects": objects, "bytes": freed,
            "unknown_group": unclear, "dry_run": how.dry,
        }));
    }
    let verb = if how.dry { "would free" } else { "freed" };
    say!("data server {number} {verb} {} in {objects} of {seen} objects", bytes(freed))?;
    match unclear {
        0 => Ok(()),
        some => say!("{some} objects of unknown groups stay: 'ropewalk check' says whose they are"),
    }
}

/// Shows moves until a server has no groups, or none is left.
async fn wait(world: &World, operator: &Operator, leaver: Option<u32>) -> anyhow::Result<()> {
    let style = ProgressStyle::with_template("{msg:24} [{bar:30}] {pos}/{len} {eta}");
    let bar = ProgressBar::new(0).with_message("groups to move");
    let bar = style.map_or(bar.clone(), |style| bar.with_style(style));
    let (mut most, mut quiet) = (0, 0);
    loop {
        let (orders, moves) = give(operator, ServerOrder::Show).await?;
        let Moves { under_way, waiting, stuck } = moves;
        let left = match leaver {
            Some(server) => operator.shares().await?.get(&server).map_or(0, |it| it.groups()),
            None => under_way + waiting + stuck,
        };
        most = most.max(left);
        bar.set_length(most);
        bar.set_position(most - left);
        // A look may be from before the order, or between two steps.
        quiet = if left == 0 { quiet + 1 } else { 0 };
        if quiet > 2 {
            bar.finish_and_clear();
            return match leaver {
                Some(server) => say!("done: data server {server} has no groups"),
                None => say!("done: no group has to move"),
            };
        }
        bar.set_message(match (orders.paused, stuck > 0 && under_way == 0) {
            (true, _) => "paused: 'server resume'",
            (false, true) => "stuck: 'server status'",
            (false, false) => "groups to move",
        });
        world.sleep(PAUSE).await;
    }
}

async fn show(operator: &Operator, as_json: bool) -> anyhow::Result<()> {
    let (orders, moves) = give(operator, ServerOrder::Show).await?;
    let (shares, servers) = (operator.shares().await?, operator.servers().await?);
    let departure = |server: u32| orders.departures.iter().find(|it| it.server == server);
    if as_json {
        let servers: Vec<_> = servers
            .iter()
            .map(|known| {
                let share = shares.get(&known.server).copied().unwrap_or_default();
                json!({
                    "server": known.server, "alive": known.alive, "full": known.full,
                    "domain": known.domain, "orders": share.orders, "copies": share.copies,
                    "coming": share.coming, "alone": share.alone,
                    "leaves": departure(known.server).is_some(),
                    "replaced_by": departure(known.server).and_then(|it| it.heir),
                })
            })
            .collect();
        let Moves { under_way, waiting, stuck } = moves;
        return print_json(&json!({
            "servers": servers, "spread": orders.spread, "paused": orders.paused,
            "mib_per_second": orders.mib_per_second,
            "moves": { "under_way": under_way, "waiting": waiting, "stuck": stuck },
        }));
    }
    let rows = servers.iter().map(|known| {
        let share = shares.get(&known.server).copied().unwrap_or_default();
        let state = match (departure(known.server), known.alive) {
            (Some(it), _) => match it.heir {
                Some(heir) => format!("goes to {heir}"),
                None => "leaves".to_owned(),
            },
            (None, true) if known.full => "full".to_owned(),
            (None, true) => "in use".to_owned(),
            (None, false) => "silent".to_owned(),
        };
        let counts = [share.orders, share.copies, share.coming, share.alone];
        let counts = counts.iter().map(u64::to_string);
        [known.server.to_string(), state].into_iter().chain(counts).collect()
    });
    let header = ["data server", "state", "orders", "copies", "coming", "alone"];
    say!("{}", table(&header, rows.collect()))?;
    if orders.spread {
        say!("groups are spread evenly ('ropewalk server cancel' ends that)")?;
    }
    if orders.mib_per_second > 0 {
        say!("each server sends at most {} MiB a second", orders.mib_per_second)?;
    }
    if orders.paused {
        say!("moves are paused ('ropewalk server resume' goes on)")?;
    }
    let Moves { under_way, waiting, stuck } = moves;
    if moves.are_over() {
        return say!("no group has to move");
    }
    say!("groups to move: {under_way} under way, {waiting} waiting, {stuck} stuck")
}
