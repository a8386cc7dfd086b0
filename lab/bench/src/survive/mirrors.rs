//! Rows of the price of copies behind mounts: a new file of 1 MiB writes with a sync at its end, and reads of it by another
//! mount. Ours with two copies stands beside MooseFS, and ours with three beside GlusterFS.

use std::path::Path;

use crate::counters::Watched;
use crate::lab::{Options, alternate};
use crate::order::Order;
use crate::report::Outcome;
use crate::series::{Figure, Row, Series};
use crate::servers::Mount;
use crate::survive::copies::crossed;
use crate::survive::ground::Ground;
use crate::survive::rival::{CLIENTS, GLUSTER, MOOSE, Rival};
use crate::survive::rivals;
use crate::survive::site::scratch;
use crate::work_files::LARGE;
use crate::worker::{self, Work};

/// Peers, and the copies that they keep.
const ALL: [(&str, usize); 2] = [MOOSE, GLUSTER];
const SIDES: [&str; 2] = ["write", "read"];

fn name(copies: usize, what: &str) -> String {
    format!("mirror{copies}.{what}")
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    ALL.iter().flat_map(|(_, copies)| SIDES.map(|what| name(*copies, what))).collect()
}

/// The work of one client, and the bytes that the clients' network sent and got meanwhile.
struct Moved {
    work: Work,
    wire: Option<(u64, u64)>,
}

/// A file system, with a mount to write by and one to read by, which go first.
struct Party<'a> {
    mounts: [Mount; 2],
    rival: Box<dyn Rival + 'a>,
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Ours does not start.
pub fn mirrors(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let wanted = |copies: usize| SIDES.iter().any(|what| options.wanted(&name(copies, what)));
    for (peer, copies) in ALL.into_iter().filter(|(_, copies)| wanted(*copies)) {
        let (ground, place) = (rivals::ground()?, scratch(&options.disk)?);
        let mut parties = Vec::new();
        for rival in rivals::start(&ground, options, &[peer])? {
            match mounts(&*rival, place.path()) {
                Ok(mounts) => parties.push(Party { mounts, rival }),
                Err(error) if parties.is_empty() => return Err(error),
                Err(error) => {
                    rival.show_logs();
                    eprintln!("no comparison with {peer}, which cannot be mounted: {error:#}");
                }
            }
        }
        let count = options.amount(512, 128);
        for party in &parties {
            std::fs::create_dir_all(folder(party, copies, 0))?;
        }
        let names = parties.iter().map(|it| format!("mirror{copies}: {}", it.rival.system()));
        let names: Vec<String> = names.collect();
        let found = alternate(options, options.runs(), &names, |turn, run| {
            if run == 0 {
                // Servers that meet for the first time have to greet each other.
                both(&ground, &parties[turn], (copies, 12), "warm")?;
            }
            both(&ground, &parties[turn], (copies, count), &format!("run{run}"))
                .inspect_err(|_| parties[turn].rival.show_logs())
        });
        if options.is_interrupted() {
            return Ok(());
        }
        for (side, what) in SIDES.iter().enumerate() {
            if options.wanted(&name(copies, what)) {
                told(&parties, (copies, side), &found).iter().for_each(&mut *emit);
            }
        }
    }
    Ok(())
}

fn mounts(rival: &dyn Rival, place: &Path) -> anyhow::Result<[Mount; 2]> {
    let mount = |name: &str| rival.mount(&place.join(format!("{}.{name}", rival.system())));
    Ok([mount("writes")?, mount("reads")?])
}

/// The directory of files with so many copies; those of a peer have no others.
fn folder(party: &Party<'_>, copies: usize, side: usize) -> std::path::PathBuf {
    party.mounts[side].path().join(format!("c{copies}"))
}

/// A new file is written, and read by a mount that remembers nothing of it.
fn both(
    ground: &Ground,
    party: &Party<'_>,
    (copies, count): (usize, u64),
    name: &str,
) -> anyhow::Result<[Moved; 2]> {
    let act = |side: usize| {
        let folder = folder(party, copies, side);
        let order = Order::new(&format!("{} large", SIDES[side])).with("sync", "");
        let order = order.with("folder", folder.display()).with("name", name).with("count", count);
        let mut serving = party.rival.processes();
        serving.extend(party.mounts.iter().map(Mount::process));
        let before = ground.crossed(CLIENTS);
        let work = worker::run(&[order], &Watched::new(serving, Vec::new()))?;
        let wire = before.zip(ground.crossed(CLIENTS));
        anyhow::Ok(Moved { work, wire: wire.map(|(then, now)| (now.0 - then.0, now.1 - then.1)) })
    };
    let moved = [act(0)?, act(1)?];
    std::fs::remove_file(folder(party, copies, 0).join(name))?;
    Ok(moved)
}

/// The figures of ours and of a peer.
fn told(
    parties: &[Party<'_>],
    (copies, side): (usize, usize),
    found: &[Vec<[Moved; 2]>],
) -> Vec<Outcome> {
    let params = [
        ("clients", "1".to_string()),
        ("depth", "1".to_string()),
        ("bytes", LARGE.to_string()),
        ("copies", copies.to_string()),
    ];
    let row =
        Row { name: name(copies, SIDES[side]), figure: Figure::Bandwidth, params: params.into() };
    let series = parties.iter().zip(found).map(|(party, runs)| {
        let mut params = party.rival.params();
        let parts = runs.iter().map(|run| &run[side]);
        params.extend(crossed(parts.filter_map(|it| Some((it.wire?, it.work.bytes)))));
        Series {
            system: party.rival.system(),
            version: party.rival.version().into(),
            medium: "mount",
            params,
            runs: runs.iter().map(|run| run[side].work.clone()).collect(),
        }
    });
    row.outcomes(&series.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_a_row_for_each_side() {
        assert_eq!(rows()[0], "mirror2.write");
        assert_eq!(rows()[3], "mirror3.read");
    }
}
