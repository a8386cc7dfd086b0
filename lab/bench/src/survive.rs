//! The cluster that survives: servers die, stand still, are cut off, emptied or rebuilt, and clients work on.
//!
//! * [`mod@outage`]: the longest time without an acknowledged create, by fault; [`trial`]: one run of it;
//! * [`mod@timeline`]: operations a second in a run with all faults; [`cost`]: what the standby costs without any;
//! * [`ground`]: network namespaces for hosts, where there are such; [`site`]: the servers; [`crowd`]: the clients;
//! * [`mod@deaths`]: data servers that die under mirrored files; [`mod@copies`]: the price of copies; [`mod@drain`],
//!   [`mod@rebuild`]: groups that move; [`bare`]: a bare copy; [`mod@keyed`]: keys and sealed payloads; [`mod@flood`];
//!   [`mod@scrape`];
//! * [`mod@mounted`], [`mod@mirrors`]: deaths and copies behind mounts; [`rival`], [`rivals`], [`gluster`], [`moose`]: the file
//!   systems there; [`blocks`]: their clients;
//! * [`store`]: their cluster of several data servers; [`steady`]: their clients; [`pairs`]: two parties;
//! * [`client`], [`check`]: what a client process does; [`names`]: the names that it makes;
//! * [`gaps`]: moments of operations; [`picture`]: pictures; [`bar`]: how much is left.
//!
//! Invariant: after each run all names that were acknowledged are looked for, by a session that remembers nothing. One
//! that is missing, one too many, or an operation that was done twice is an error of the whole benchmark.

mod bar;
mod bare;
mod blocks;
mod check;
mod client;
mod copies;
mod cost;
mod crowd;
mod deaths;
mod drain;
mod flood;
mod gaps;
mod gluster;
mod ground;
mod keyed;
mod mirrors;
mod moose;
mod mounted;
mod names;
mod outage;
mod pairs;
mod picture;
mod rebuild;
mod rival;
mod rivals;
mod scrape;
mod site;
mod steady;
mod store;
mod timeline;
mod trial;

pub use picture::figures;

use crate::Options;
use crate::embed::Embedder;
use crate::guide::{Kin, Value};
use crate::lab::hold_dma_latency;
use crate::order::Order;
use crate::report::Outcome;
use crate::work_library::Session;

/// The parts of names, and the words for each.
const VALUES: [Value; 3] = [
    (
        "FAULT",
        "killed (kill -9), stopped (SIGSTOP), cut (silently; needs root), paused (0.25 to 1.5 s), switched (ropewalk meta switch)",
    ),
    ("DEATH", "killed (kill -9), stopped (SIGSTOP)"),
    ("KIND", "create, stat, write, read"),
];

fn kinds() -> Vec<Kin> {
    vec![
        Kin {
            names: "meta.FAULT",
            what: "the longest time in which a client gets no create acknowledged, while the active \
                   metadata server fails and comes back; all names are looked for afterwards",
            reach: "median 1.5 s, worst 4 s; switched 200 ms; nothing lost, nothing done twice"
                .into(),
        },
        Kin {
            names: "timeline.KIND",
            what: "operations a second in a run with one fault after the other, beside a server \
                   without standby",
            reach: String::new(),
        },
        Kin {
            names: "create.depth1",
            what: "the time of a create, beside a server without standby",
            reach: "1.6 x".into(),
        },
        Kin {
            names: "create.depth32",
            what: "the rate with 32 creates under way, beside the same",
            reach: "0.8 x".into(),
        },
    ]
}

/// The rows of data servers, of keys, and of metrics.
fn kinds_of_data() -> Vec<Kin> {
    let kin = |names, what, reach: &str| Kin { names, what, reach: reach.into() };
    vec![
        kin(
            "data.DEATH.KIND",
            "the longest time in which a client gets no read, or no write, acknowledged, while one \
             of three data servers fails and comes back; files have two copies",
            "read 1 s, write 2 s; nothing lost",
        ),
        kin(
            "copies2.KIND",
            "transfers of 1 MiB with two copies, beside one; bytes on the wire",
            "write 0.45 x, read 0.95 x",
        ),
        kin("copies3.KIND", "the same with three copies", "read 0.95 x"),
        kin(
            "drain.p99",
            "the 99th percentile of reads and writes while one of four data servers is drained, \
             beside the time before",
            "2 x, no error",
        ),
        kin("drain.spread", "the distance of a server's bytes from the mean afterwards", "5 %"),
        kin("drain.time", "the time of the drain", ""),
        kin(
            "rebuild.rate",
            "bytes a second to a server that lost its store, beside a bare copy by TCP to the disk",
            "0.5 x",
        ),
        kin("rebuild.beside", "reads and writes of clients meanwhile, beside before", "0.7 x"),
        kin("secure.KIND", "transfers of 1 MiB in payload mode secure, beside crc", "0.6 x"),
        kin("secure1.KIND", "the same by a network of 1 Gbit/s", "0.97 x"),
        kin("secure10.KIND", "the same by a network of 10 Gbit/s", "0.97 x"),
        kin(
            "handshake",
            "the time to the first answer with keys, beside without",
            "a round trip and 1 ms more",
        ),
        kin(
            "flood.memory",
            "memory that a server takes while a million calls a minute come from addresses that \
             nobody has proven",
            "1 MiB",
        ),
        kin("flood.rate", "creates of a client meanwhile, beside without a flood", "0.9 x"),
        kin("scrape", "the time of a page of at least 1,000 metrics", "10 ms"),
        kin(
            "mount.DEATH.KIND",
            "as data.DEATH.KIND by direct system calls on mounts, beside GlusterFS with three \
             copies and MooseFS with two",
            "",
        ),
        kin("mirror2.KIND", "transfers of 1 MiB by a mount with two copies, beside MooseFS", ""),
        kin("mirror3.KIND", "the same with three copies, beside GlusterFS", ""),
    ]
}

/// All rows for people, by kind: what they measure, and what they shall reach.
pub fn guide() -> String {
    crate::guide::text(&[kinds(), kinds_of_data()].concat(), &VALUES)
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    let data = [deaths::rows(), copies::rows(), drain::rows(), rebuild::rows()];
    let others = [keyed::rows(), flood::rows(), scrape::rows()];
    let mounts = [mounted::rows(), mirrors::rows()];
    [standby_rows(), data.concat(), others.concat(), mounts.concat()].concat()
}

/// Those of a standby metadata server, which have a ground of their own.
fn standby_rows() -> Vec<String> {
    [outage::rows(), timeline::rows(), cost::rows()].concat()
}

/// Plays the part of a client. `None`: the order is of another kind.
pub(crate) fn work(order: &Order, embedder: &dyn Embedder) -> Option<anyhow::Result<()>> {
    let act: fn(&Session, &Order) -> anyhow::Result<()> = match order.kind.as_str() {
        "survive source" => return Some(bare::source(order)),
        "survive sink" => return Some(bare::sink(order)),
        "survive flood" => return Some(flood::flood(order)),
        "survive mounted" => return Some(blocks::client(order)),
        "survive steady" => steady::client,
        "survive fill" => steady::fill,
        "survive client" => client::client,
        "survive check" => check::check,
        _ => return None,
    };
    Some(Session::open(order, embedder).and_then(|session| {
        act(&session, order)?;
        session.close();
        Ok(())
    }))
}

/// Measures everything that is wanted.
///
/// # Errors
/// Servers do not start; clients do not go on; or something that was acknowledged is missing, or was done twice.
pub fn survive(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !rows().iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let _held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    if standby_rows().iter().any(|row| options.wanted(row)) {
        let ground = ground::Ground::make(ground::HOSTS)?;
        outage::outages(&ground, options, emit)?;
        timeline::timeline(&ground, options, emit)?;
        cost::costs(&ground, options, emit)?;
    }
    deaths::deaths(options, emit)?;
    copies::copies(options, emit)?;
    drain::drains(options, emit)?;
    rebuild::rebuilds(options, emit)?;
    keyed::keyed(options, emit)?;
    flood::floods(options, emit)?;
    scrape::scrapes(options, emit)?;
    mounted::mounted(options, emit)?;
    mirrors::mirrors(options, emit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_described_here() {
        for row in rows() {
            let is_of = |kin: &Kin| {
                let is_word = |part: &str| part.chars().all(|letter| letter.is_ascii_uppercase());
                let parts = |name: &str| name.split('.').map(str::to_string).collect::<Vec<_>>();
                let (wanted, found) = (parts(kin.names), parts(&row));
                wanted.len() == found.len()
                    && wanted.iter().zip(&found).all(|(a, b)| a == b || is_word(a))
            };
            let all = [kinds(), kinds_of_data()].concat();
            assert_eq!(all.iter().filter(|kin| is_of(kin)).count(), 1, "{row}");
        }
        assert!(guide().lines().all(|line| line.chars().count() <= 80), "{}", guide());
    }
}
