//! Rows of the price of copies: transfers of 1 MiB to and from files of two and three copies, beside files of one.

use crate::host;
use crate::lab::{Options, alternate};
use crate::report::Outcome;
use crate::series::{Figure, OURS};
use crate::survive::ground::Ground;
use crate::survive::pairs::Pair;
use crate::survive::store::{Store, hosts, plain};
use crate::work_files::LARGE;
use crate::worker::{Work, Worker};

const SERVERS: usize = 3;
/// Transfers that a client has under way.
const DEPTH: u64 = 4;

/// A number of copies that is compared with one.
struct Price {
    copies: usize,
    /// The part of the rate of one copy that is to be left.
    write: Option<f64>,
    read: Option<f64>,
}

const ALL: [Price; 2] = [
    Price { copies: 2, write: Some(0.45), read: Some(0.95) },
    Price { copies: 3, write: None, read: Some(0.95) },
];

fn name(copies: usize, what: &str) -> String {
    format!("copies{copies}.{what}")
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    ALL.iter().flat_map(|price| ["write", "read"].map(|what| name(price.copies, what))).collect()
}

/// Work of one client, and the bytes that its host sent and got meanwhile.
struct Moved {
    work: Work,
    wire: Option<(u64, u64)>,
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Servers do not start.
pub fn copies(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let wanted = |price: &Price| {
        ["write", "read"].iter().any(|what| options.wanted(&name(price.copies, what)))
    };
    if !ALL.iter().any(wanted) {
        return Ok(());
    }
    let ground = Ground::make(hosts(SERVERS))?;
    let store = Store::start(&ground, options, plain(SERVERS))?;
    for copies in 1..=3 {
        // A directory has the policy of the one in which it is made.
        store.keep_copies(copies)?;
        store.ask_as_user(&["mkdir", &format!(":/c{copies}")])?;
    }
    for copies in 1..=3 {
        // Servers that meet for the first time have to greet each other, and to see what both have.
        both(&store, copies, SERVERS as u64 * DEPTH, "warm")?;
    }
    let count = options.amount(512, 128);
    for price in ALL.iter().filter(|price| wanted(price)) {
        let names = [OURS, "one-copy"].map(|party| format!("copies{}: {party}", price.copies));
        let found = alternate(options, options.runs(), &names, |turn, run| {
            both(&store, [price.copies, 1][turn], count, &format!("{}.{run}", price.copies))
        });
        if options.is_interrupted() {
            return Ok(());
        }
        for (side, what) in ["write", "read"].into_iter().enumerate() {
            if options.wanted(&name(price.copies, what)) {
                let reach = [price.write, price.read][side];
                told(&store, price.copies, (side, what, reach), &found).iter().for_each(&mut *emit);
            }
        }
    }
    Ok(())
}

/// A new file is written, and read by a client that remembers nothing.
fn both(store: &Store<'_>, copies: usize, count: u64, name: &str) -> anyhow::Result<[Moved; 2]> {
    let act = |kind: &str| {
        let order = store.order(&format!("library {kind}")).with("folder", format!("/c{copies}"));
        moved(store, &order.with("name", name).with("count", count).with("depth", DEPTH))
    };
    let moved = [act("write")?, act("read")?];
    let order = store.order("library remove").with("folder", format!("/c{copies}"));
    work(store, &order.with("name", name))?;
    Ok(moved)
}

/// One client's work, with the processor time of all servers.
pub fn work(store: &Store<'_>, order: &crate::order::Order) -> anyhow::Result<Work> {
    moved(store, order).map(|moved| moved.work)
}

fn moved(store: &Store<'_>, order: &crate::order::Order) -> anyhow::Result<Moved> {
    let mut worker = Worker::start_by(store.client_command()?, order)?;
    let serving = store.processes();
    let cpu = || serving.iter().map(|process| host::cpu_nanos(*process)).sum::<u64>();
    let (before, bytes) = (cpu(), store.crossed());
    worker.go()?;
    let mut work = worker.await_result()?;
    work.cpu_nanos += cpu().saturating_sub(before);
    let wire = bytes.zip(store.crossed());
    worker.await_end()?;
    Ok(Moved { work, wire: wire.map(|((out, into), now)| (now.0 - out, now.1 - into)) })
}

/// The figures of a number of copies and of one.
fn told(
    store: &Store<'_>,
    copies: usize,
    (side, what, reach): (usize, &str, Option<f64>),
    found: &[Vec<[Moved; 2]>],
) -> Vec<Outcome> {
    let mut params = store.params();
    params.extend([
        ("clients", "1".to_string()),
        ("depth", DEPTH.to_string()),
        ("bytes", LARGE.to_string()),
    ]);
    let pair = Pair {
        name: name(copies, what),
        figure: Figure::Bandwidth,
        other: "one-copy",
        ratio: "ratio_one-copy",
        reach,
        params,
    };
    let own = [(0, copies), (1, 1)].map(|(turn, copies): (usize, usize)| {
        let mut own = vec![("copies", copies.to_string())];
        let runs = found[turn].iter().map(|run| &run[side]);
        let parts = runs.filter_map(|moved| Some((moved.wire?, moved.work.bytes)));
        own.extend(crossed(parts));
        own
    });
    let works = found.iter().map(|runs| runs.iter().map(|run| run[side].work.clone()).collect());
    pair.outcomes(works.collect(), own)
}

/// The bytes that crossed the clients' network, out and in, as a part of those of files. Both are given for each run.
pub fn crossed(parts: impl Iterator<Item = ((u64, u64), u64)>) -> Vec<(&'static str, String)> {
    let [mut out, mut into, mut bytes] = [0; 3];
    for (wire, moved) in parts {
        (out, into, bytes) = (out + wire.0, into + wire.1, bytes + moved);
    }
    if bytes == 0 {
        return Vec::new();
    }
    let part = |wire: u64| format!("{:.3}", wire as f64 / bytes as f64);
    vec![("sent_of_each_byte", part(out)), ("received_of_each_byte", part(into))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_on_the_wire_are_a_part_of_the_files_bytes() {
        let told = crossed([((300, 10), 100), ((310, 10), 100)].into_iter());
        assert_eq!(told[0], ("sent_of_each_byte", "3.050".to_string()));
        assert_eq!(told[1], ("received_of_each_byte", "0.100".to_string()));
        assert!(crossed([].into_iter()).is_empty());
    }
}
