//! Rows of keys: transfers that nobody on the way reads, beside those with checksums alone; and the time to the first answer
//! of a client that proves itself, beside one that does not.

use crate::lab::{Options, alternate, quoted};
use crate::report::Outcome;
use crate::series::{Figure, OURS, spread};
use crate::survive::copies::work;
use crate::survive::ground::Ground;
use crate::survive::pairs::Pair;
use crate::survive::store::{Plan, Store, hosts, plain};
use crate::work_files::LARGE;
use crate::worker::Work;

const SERVERS: usize = 2;
/// Transfers that a client has under way.
const DEPTH: u64 = 4;
const SIDES: [&str; 2] = ["write", "read"];

/// The network of the client, and the part of the rate of `crc` that is to be left.
#[derive(Debug, Clone, Copy)]
struct Rail {
    name: &'static str,
    /// None: as fast as it can be.
    gigabits: Option<u64>,
    reach: f64,
}

const RAILS: [Rail; 3] = [
    Rail { name: "secure", gigabits: None, reach: 0.6 },
    Rail { name: "secure1", gigabits: Some(1), reach: 0.97 },
    Rail { name: "secure10", gigabits: Some(10), reach: 0.97 },
];
const MODES: [&str; 2] = ["secure", "crc"];
const HANDSHAKE: &str = "handshake";
/// First answers of a full measurement.
const RUNS: usize = 30;
/// Milliseconds that a proof may take beside a round trip.
const REACH_MS: f64 = 1.0;

fn name(rail: Rail, side: &str) -> String {
    format!("{}.{side}", rail.name)
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    let transfers = RAILS.into_iter().flat_map(|rail| SIDES.map(|side| name(rail, side)));
    transfers.chain([HANDSHAKE.to_string()]).collect()
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Servers do not start.
pub fn keyed(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !rows().iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let ground = Ground::make(hosts(SERVERS))?;
    let plan = Plan { keys: true, ..plain(SERVERS) };
    let store = Store::start(&ground, options, plan)?;
    for rail in RAILS {
        if SIDES.iter().any(|side| options.wanted(&name(rail, side))) {
            transfers(&store, rail, options, emit)?;
        }
    }
    if options.wanted(HANDSHAKE) {
        let bare = Store::start(&ground, options, plain(SERVERS))?;
        handshakes([&store, &bare], options, emit);
    }
    Ok(())
}

/// A new file is written in each mode, and read by a client that remembers nothing.
fn transfers(
    store: &Store<'_>,
    rail: Rail,
    options: &Options,
    emit: &mut dyn FnMut(&Outcome),
) -> anyhow::Result<()> {
    let limited = match rail.gigabits {
        Some(gigabits) => match store.limit_clients(gigabits)? {
            Some(limited) => Some(limited),
            None => {
                eprintln!("{}: that needs network namespaces", rail.name);
                return Ok(());
            }
        },
        None => None,
    };
    let count = options.amount(512, 128);
    let names = MODES.map(|mode| format!("{}: {mode}", rail.name));
    let found = alternate(options, options.runs(), &names, |turn, run| {
        let (mode, file) = (MODES[turn], format!("{}.{}.{run}", rail.name, MODES[turn]));
        let act = |kind: &str| {
            let order = store.order(&format!("library {kind}")).with("payload", mode);
            let order = order.with("folder", "/keyed").with("name", &file);
            work(store, &order.with("count", count).with("depth", DEPTH))
        };
        let done = [act("write")?, act("read")?];
        act("remove")?;
        Ok(done)
    });
    drop(limited);
    if options.is_interrupted() {
        return Ok(());
    }
    let wanted = |side: &(usize, &str)| options.wanted(&name(rail, side.1));
    for (side, what) in SIDES.into_iter().enumerate().filter(wanted) {
        let mut params = store.params();
        params.extend([
            ("clients", "1".to_string()),
            ("depth", DEPTH.to_string()),
            ("bytes", LARGE.to_string()),
        ]);
        params.extend(rail.gigabits.map(|it| ("gigabits", it.to_string())));
        let pair = Pair {
            name: name(rail, what),
            figure: Figure::Bandwidth,
            other: MODES[1],
            ratio: "ratio_crc",
            reach: Some(rail.reach),
            params,
        };
        let works = found.iter().map(|runs| runs.iter().map(|run| run[side].clone()).collect());
        let own = MODES.map(|mode| vec![("payload", quoted(mode))]);
        pair.outcomes(works.collect(), own).iter().for_each(&mut *emit);
    }
    Ok(())
}

/// Clients that come anew, with keys and without; and calls of one that is there.
fn handshakes(stores: [&Store<'_>; 2], options: &Options, emit: &mut dyn FnMut(&Outcome)) {
    let parties = [OURS, "without-keys", "round-trip"];
    let names = parties.map(|party| format!("{HANDSHAKE}: {party}"));
    let mut found = alternate(options, options.runs_or(RUNS), &names, |turn, _| {
        let (store, kind) = match turn {
            0 => (stores[0], "library ready"),
            1 => (stores[1], "library ready"),
            _ => (stores[0], "library reconnect"),
        };
        work(store, &store.order(kind))
    });
    if options.is_interrupted() || found.iter().any(Vec::is_empty) {
        return;
    }
    let ms = |works: &[Work]| works.iter().map(|it| it.seconds() * 1e3).collect::<Vec<f64>>();
    let (round_trip, _, _) = spread(ms(&found[2]));
    found.truncate(2);
    let more = ms(&found[0]).into_iter().zip(ms(&found[1])).map(|(with, without)| with - without);
    let (more, _, _) = spread(more.collect());
    let pair = Pair {
        name: HANDSHAKE.into(),
        figure: Figure::Time,
        other: parties[1],
        ratio: "ratio_without-keys",
        reach: None,
        params: [stores[0].params(), vec![("clients", "1".into())]].concat(),
    };
    let keys = |with: bool| vec![("keys", with.to_string())];
    let mut told = pair.outcomes(found, [keys(true), keys(false)]);
    if let Some(main) = told.first_mut() {
        main.params.extend(verdict(more, round_trip));
    }
    told.iter().for_each(emit);
}

/// Whether a proof takes a round trip and a millisecond at most.
fn verdict(more: f64, round_trip: f64) -> Vec<(&'static str, String)> {
    let reach = round_trip + REACH_MS;
    let kept = more <= reach;
    let said = if kept { "kept" } else { "missed" };
    let text = format!("reach {reach:.2} ms more, it takes {more:.2}: {said}");
    vec![
        ("more_ms", format!("{more:.3}")),
        ("round_trip_ms", format!("{round_trip:.3}")),
        ("reach", format!("{reach:.3}")),
        ("kept", kept.to_string()),
        ("verdict", quoted(&text)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_may_take_a_round_trip_and_a_millisecond() {
        let kept = |more| verdict(more, 0.25)[3].1.clone();
        assert_eq!(
            (kept(1.2), kept(1.3), kept(-0.1)),
            ("true".into(), "false".into(), "true".into())
        );
    }
}
