//! Lines of the log about what happens to the cluster: servers that fall silent and come back, groups that lack copies, moves.
//!
//! One line for each event, held back where they are too many. States are compared at each tick, so an event that ends within one is none.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::text::printable;
use ropewalk_wire::fs::orders::{Moves, ServerOrder};

use super::MetaServer;
use crate::pools::{Pools, Shortage};

/// Right after the start servers look for this metadata server: nobody is silent yet.
const QUIET: Duration = Duration::from_secs(6);

/// The state of the cluster of which the log tells.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Data servers, and whether they were heard.
    servers: BTreeMap<u32, bool>,
    /// The map of the shortage.
    map: u32,
    short: u64,
    moves: Moves,
}

/// The lines about a shortage that was another one before.
fn of_shortage(before: u64, now: &Shortage) -> Option<String> {
    let Shortage { groups, short, last, .. } = *now;
    if short == 0 {
        return (before > 0).then(|| "all groups have all their copies again".to_owned());
    }
    // Groups that are mended one by one are no events.
    (short > before).then(|| {
        format!(
            "{}{short} of {groups} groups lack a copy, and {last} of them have one only: 'ropewalk server \
             status' shows them",
            Level::Warning.mark()
        )
    })
}

/// The line about moves that were other ones before.
fn of_moves(before: &Moves, now: &Moves) -> Option<String> {
    let Moves { under_way, waiting, stuck } = *now;
    let is_stuck = |it: &Moves| it.stuck > 0 && it.under_way == 0;
    if now.are_over() {
        return (!before.are_over()).then(|| "no group has to move any more".to_owned());
    }
    if is_stuck(now) && !is_stuck(before) {
        return Some(format!(
            "{stuck} groups wait for a server that can take them: one that answers, has room, and is in a \
             failure domain without another copy"
        ));
    }
    let left = under_way + waiting + stuck;
    before
        .are_over()
        .then(|| format!("{left} groups move: 'ropewalk server status' shows how far they are"))
}

impl Seen {
    /// Compares; the lines about what has changed. `quiet`: nobody is silent yet.
    fn compare(&mut self, pools: &Pools, heard: &BTreeMap<u32, bool>, quiet: bool) -> Vec<String> {
        let mut lines = Vec::new();
        for (server, heard) in heard {
            if !heard && quiet {
                continue;
            }
            match (self.servers.insert(*server, *heard), heard) {
                (Some(true) | None, false) => lines.push(format!(
                    "{}data server {server} is silent: its groups go on where another server has a copy",
                    Level::Warning.mark()
                )),
                (Some(false), true) => lines.push(format!("data server {server} is heard again")),
                _ => {}
            }
        }
        self.servers.retain(|server, _| heard.contains_key(server));
        let epoch = pools.map().epoch;
        if self.map != epoch {
            self.map = epoch;
            let shortage = pools.shortage();
            lines.extend(of_shortage(self.short, &shortage));
            self.short = shortage.short;
        }
        let moves = pools.moves();
        lines.extend(of_moves(&self.moves, &moves));
        self.moves = moves;
        lines
    }
}

impl MetaServer {
    /// Tells the log what has happened since the last look.
    pub(super) fn tell_events(&self) {
        let Some(shard) = self.shard() else { return };
        let (now, pools) = (self.world.now(), &shard.pools);
        let all = pools.known(0).into_iter();
        let heard = all.map(|server| (server, pools.is_heard(server, now))).collect();
        let quiet = now.since(self.started) < QUIET;
        let lines = self.seen.borrow_mut().compare(pools, &heard, quiet);
        drop(shard);
        lines.iter().for_each(|line| self.lines.say(line));
    }

    /// Tells the log that an administrator gave an order.
    pub(super) fn tell_order(&self, order: &ServerOrder) {
        let words = match order {
            ServerOrder::Show => return,
            ServerOrder::Drain { server, heir: None } => format!("drain data server {server}"),
            ServerOrder::Drain { server, heir: Some(heir) } => {
                format!("data server {heir} takes the place of data server {server}")
            }
            ServerOrder::Keep { server } => format!("data server {server} stays"),
            ServerOrder::Remove { server } => format!("remove data server {server}"),
            ServerOrder::Rebalance => "spread groups evenly".to_owned(),
            ServerOrder::Cancel => "no drains and no even spread any more".to_owned(),
            ServerOrder::Pause { paused: true } => "begin no further moves".to_owned(),
            ServerOrder::Pause { paused: false } => "go on with moves".to_owned(),
            ServerOrder::Rate { mib_per_second } => format!("move {mib_per_second} MiB/s at most"),
            ServerOrder::Lost { server } => format!("data server {server} is lost for good"),
        };
        self.lines.say(&format!("an administrator orders: {words}"));
    }

    /// Tells the log that the term of a session is over, or that it lost its export.
    pub(super) fn tell_end(&self, session: u64) {
        let Some(shard) = self.shard() else { return };
        let Some(found) = shard.sessions.get(session) else { return };
        let name = printable(&found.row.name, 200);
        drop(shard);
        self.lines.say(&format!(
            "session {session} of {name} has ended, since it was not renewed in time or its export changed: \
             its locks and leases are free once data servers refuse it"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_when_it_begins_grows_and_ends() {
        let short = |short| Shortage { groups: 64, short, last: 1, ..Shortage::default() };
        let told = |before, now| of_shortage(before, &short(now)).unwrap_or_default();
        assert!(told(0, 3).contains("3 of 64 groups lack a copy"));
        assert!(told(3, 9).contains("9 of 64"));
        assert_eq!((told(9, 3), told(3, 3), told(0, 0)), Default::default());
        assert_eq!(told(3, 0), "all groups have all their copies again");
    }

    #[test]
    fn moves_are_told_when_they_begin_are_stuck_and_are_over() {
        let moves = |under_way, waiting, stuck| Moves { under_way, waiting, stuck };
        let told = |before, now| of_moves(&before, &now).unwrap_or_default();
        assert!(told(moves(0, 0, 0), moves(16, 48, 0)).starts_with("64 groups move"));
        assert_eq!(told(moves(16, 48, 0), moves(16, 40, 0)), "");
        assert!(told(moves(1, 0, 3), moves(0, 0, 3)).starts_with("3 groups wait"));
        assert_eq!(told(moves(0, 0, 3), moves(0, 0, 3)), "");
        assert_eq!(told(moves(0, 0, 3), moves(0, 0, 0)), "no group has to move any more");
        assert_eq!(told(moves(0, 0, 0), moves(0, 0, 0)), "");
    }
}
