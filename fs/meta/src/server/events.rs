//! Lines of the log about what happens to the cluster: groups that lack copies, servers that fall silent and come back, moves, orders.
//!
//! One line for each event, with a limit of their own. States are compared at each tick: a change that is undone before the next tick is
//! not logged.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::text::printable;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_rpc::lines::{Lines, Log};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::meta::MetaResult;
use ropewalk_wire::fs::orders::{Moves, ServerOrder};

use super::MetaServer;
use crate::pools::{ADDRESS_BYTES_MAX, Pools, Shortage};
use crate::shard::Outcome;

/// A server that was not heard for so long is said to be silent. Members of groups of several copies leave them sooner.
const SILENCE: Duration = Duration::from_secs(4);

/// The state of the cluster of which the log tells.
pub(super) struct Seen {
    lines: Lines,
    /// Data servers, and whether they were heard.
    servers: BTreeMap<u32, bool>,
    /// The map of the shortage; `None` before the first look.
    map: Option<u32>,
    shortage: Shortage,
    moves: Moves,
}

/// The lines about a shortage that was another one before.
fn of_shortage(before: &Shortage, now: &Shortage) -> Vec<String> {
    let Shortage { groups, short, last, losses, .. } = *now;
    let mut lines = Vec::new();
    if losses > before.losses {
        lines.push(format!(
            "{}{} groups lost bytes that were not durable, or went back to an older copy: 'fsync' of files \
             that were written since then fails, 'ropewalk check --read' looks for damage",
            Level::Error.mark(),
            losses - before.losses
        ));
    }
    // Groups that are mended one by one are no events.
    if short > before.short {
        lines.push(format!(
            "{}{short} of {groups} groups lack a copy, and {last} of them have one only: 'ropewalk status' \
             says what to do",
            Level::Warning.mark()
        ));
    } else if short == 0 && before.short > 0 {
        lines.push(format!("{}all groups have all their copies again", Level::Note.mark()));
    }
    lines
}

/// The line about moves that were other ones before.
fn of_moves(before: &Moves, now: &Moves) -> Option<String> {
    let Moves { under_way, waiting, stuck } = *now;
    let is_stuck = |it: &Moves| it.stuck > 0 && it.under_way == 0;
    let note = Level::Note.mark();
    if now.are_over() {
        return (!before.are_over()).then(|| format!("{note}no group has to move any more"));
    }
    if is_stuck(now) && !is_stuck(before) {
        return Some(format!(
            "{}{stuck} groups wait for a server that can take them: one that answers, has room, and is in a \
             failure domain without another copy",
            Level::Warning.mark()
        ));
    }
    let left = under_way + waiting + stuck;
    let begin = before.are_over().then_some(left);
    begin.map(|left| {
        format!("{note}{left} groups move: 'ropewalk server status' shows how far they are")
    })
}

impl Seen {
    pub(super) fn new(world: &World, log: Log) -> Seen {
        let (servers, shortage, moves) = Default::default();
        Seen { lines: Lines::new(world, log), servers, map: None, shortage, moves }
    }

    /// Compares; the lines about what has changed, those that matter most first.
    fn compare(&mut self, pools: &Pools, started: Time, now: Time) -> Vec<String> {
        let mut lines = Vec::new();
        let epoch = pools.map().epoch;
        if self.map != Some(epoch) {
            let shortage = pools.shortage();
            let before = match self.map.replace(epoch) {
                Some(_) => self.shortage,
                // Losses of former lives are no news.
                None => Shortage { losses: shortage.losses, ..Shortage::default() },
            };
            lines.extend(of_shortage(&before, &shortage));
            self.shortage = shortage;
        }
        for server in pools.known(0) {
            lines.extend(self.of_server(pools, server, now.since(started), now));
        }
        self.servers.retain(|server, _| pools.member(*server).is_some());
        let moves = pools.moves();
        lines.extend(of_moves(&self.moves, &moves));
        self.moves = moves;
        lines
    }

    fn of_server(
        &mut self,
        pools: &Pools,
        server: u32,
        age: Duration,
        now: Time,
    ) -> Option<String> {
        let known = pools.server(server);
        let silence = known.map_or(age, |it| now.since(it.heard()));
        let heard = silence < SILENCE;
        if known.is_none() && heard {
            // Right after the start servers look for this metadata server.
            return None;
        }
        let before = self.servers.insert(server, heard);
        // A server that was not seen before is no news if it is heard.
        if before.unwrap_or(true) == heard {
            return None;
        }
        let address = known.map_or_else(String::new, |it| {
            format!(" at {}", printable(&it.address, ADDRESS_BYTES_MAX))
        });
        Some(match heard {
            false => format!(
                "{}data server {server}{address} is silent: its groups go on where another server has a \
                 copy; see its log",
                Level::Warning.mark()
            ),
            true => {
                format!("{}data server {server}{address} is heard again", Level::Note.mark())
            }
        })
    }
}

/// An order in words.
fn words_of(order: &ServerOrder) -> Option<String> {
    Some(match order {
        ServerOrder::Show => return None,
        ServerOrder::Drain { server, heir: None } => format!("drain data server {server}"),
        ServerOrder::Drain { server, heir: Some(heir) } => {
            format!("replace data server {server} by {heir}")
        }
        ServerOrder::Keep { server } => format!("keep data server {server}"),
        ServerOrder::Remove { server } => format!("remove data server {server}"),
        ServerOrder::Rebalance => "rebalance".to_owned(),
        ServerOrder::Cancel => "cancel drains and rebalancing".to_owned(),
        ServerOrder::Pause { paused: true } => "pause moves".to_owned(),
        ServerOrder::Pause { paused: false } => "resume moves".to_owned(),
        ServerOrder::Rate { mib_per_second } => format!("move {mib_per_second} MiB/s at most"),
        ServerOrder::Lost { server } => format!("go on without data server {server}"),
    })
}

impl MetaServer {
    /// Tells the log what has happened since the last look.
    pub(super) fn tell_events(&self) {
        let Some(shard) = self.shard() else { return };
        let now = self.world.now();
        let mut seen = self.seen.borrow_mut();
        let lines = seen.compare(&shard.pools, self.started, now);
        drop(shard);
        lines.iter().for_each(|line| seen.lines.say(line));
    }

    /// Tells the log that an administrator gave an order, and whether it was taken.
    pub(super) fn tell_order(self: &Rc<Self>, order: &ServerOrder, outcome: &Outcome) {
        let (Some(words), Outcome::Reply(reply)) = (words_of(order), outcome) else { return };
        let refused = match decode::<MetaResult<'_>>(&reply.bytes) {
            Ok(Err(errno)) => format!(", which is refused: {errno}"),
            _ => String::new(),
        };
        let note = Level::Note.mark();
        self.seen.borrow().lines.say(&format!("{note}order of an administrator: {words}{refused}"));
    }

    /// Tells the log that the term of a session is over, or that it lost its export.
    pub(super) fn tell_end(&self, session: u64) {
        let Some(shard) = self.shard() else { return };
        let Some(found) = shard.sessions.get(session) else { return };
        let name = printable(&found.row.name, 200);
        drop(shard);
        self.seen.borrow().lines.say(&format!(
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
        let of = |short, losses| Shortage { groups: 64, short, last: 1, losses, together: 0 };
        let told = |before: (u64, u64), now: (u64, u64)| {
            of_shortage(&of(before.0, before.1), &of(now.0, now.1)).concat()
        };
        assert!(told((0, 0), (3, 0)).contains("<4>3 of 64 groups lack a copy"));
        assert!(told((3, 0), (9, 0)).contains("9 of 64"));
        assert_eq!(told((9, 0), (3, 0)) + &told((3, 0), (3, 0)) + &told((0, 1), (0, 1)), "");
        assert_eq!(told((3, 0), (0, 0)), "<6>all groups have all their copies again");
        let lost = told((1, 4), (1, 6));
        assert!(lost.starts_with("<3>2 groups lost bytes"), "{lost}");
    }

    #[test]
    fn moves_are_told_when_they_begin_are_stuck_and_are_over() {
        let moves = |under_way, waiting, stuck| Moves { under_way, waiting, stuck };
        let told = |before, now| of_moves(&before, &now).unwrap_or_default();
        assert!(told(moves(0, 0, 0), moves(16, 48, 0)).starts_with("<6>64 groups move"));
        assert_eq!(told(moves(16, 48, 0), moves(16, 40, 0)), "");
        assert!(told(moves(1, 0, 3), moves(0, 0, 3)).starts_with("<4>3 groups wait"));
        assert_eq!(told(moves(0, 0, 3), moves(0, 0, 3)), "");
        assert_eq!(told(moves(0, 0, 3), moves(0, 0, 0)), "<6>no group has to move any more");
        assert_eq!(told(moves(0, 0, 0), moves(0, 0, 0)), "");
    }
}
