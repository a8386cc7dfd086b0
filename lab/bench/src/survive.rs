//! The cluster that survives: the active metadata server dies, stands still or is cut off, and four clients work on.
//!
//! * [`mod@outage`]: the longest time without an acknowledged create, by fault; [`trial`]: one run of it;
//! * [`mod@timeline`]: operations a second in a run with all faults; [`cost`]: what the standby costs without any;
//! * [`ground`]: network namespaces for hosts, where there are such; [`site`]: the servers; [`crowd`]: the clients;
//! * [`client`], [`check`]: what a client process does; [`names`]: the names that it makes;
//! * [`gaps`]: moments of operations; [`picture`]: pictures; [`bar`]: how much is left.
//!
//! Invariant: after each run all names that were acknowledged are looked for, by a session that remembers nothing. One
//! that is missing, one too many, or an operation that was done twice is an error of the whole benchmark.

mod bar;
mod check;
mod client;
mod cost;
mod crowd;
mod gaps;
mod ground;
mod names;
mod outage;
mod picture;
mod site;
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
const VALUES: [Value; 2] = [
    (
        "FAULT",
        "killed (kill -9), stopped (SIGSTOP), cut (silently; needs root), paused (0.25 to 1.5 s), switched (ropewalk meta switch)",
    ),
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

/// All rows for people, by kind: what they measure, and what they shall reach.
pub fn guide() -> String {
    crate::guide::text(&kinds(), &VALUES)
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    [outage::rows(), timeline::rows(), cost::rows()].concat()
}

/// Plays the part of a client. `None`: the order is of another kind.
pub(crate) fn work(order: &Order, embedder: &dyn Embedder) -> Option<anyhow::Result<()>> {
    let act: fn(&Session, &Order) -> anyhow::Result<()> = match order.kind.as_str() {
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
    let ground = ground::Ground::make()?;
    outage::outages(&ground, options, emit)?;
    timeline::timeline(&ground, options, emit)?;
    cost::costs(&ground, options, emit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_described_here() {
        for row in rows() {
            let is_of = |kin: &Kin| {
                let begin = kin.names.trim_end_matches(|letter: char| letter.is_ascii_uppercase());
                row == kin.names || (begin.ends_with('.') && row.starts_with(begin))
            };
            assert_eq!(kinds().iter().filter(|kin| is_of(kin)).count(), 1, "{row}");
        }
        assert!(guide().lines().all(|line| line.chars().count() <= 80), "{}", guide());
    }
}
