//! Streams between hosts, of which a rail is cut and mended: ours beside TCP, and TCP over several paths.
//!
//! * [`row`]: the rows; [`party`]: who takes part; [`trial`]: one run of one of them; [`figures`]: what came of all runs;
//!   [`peers`]: MPIs.

mod figures;
mod party;
mod peers;
mod row;
mod trial;

use anyhow::bail;

use crate::lab::{Options, alternate};
use crate::paths::cut::figures::{LEFT_REACH, may_be_damaged};
use crate::paths::cut::party::parties;
use crate::paths::cut::row::{Kind, Look, Rate, Row, rows_of};
use crate::paths::cut::trial::Times;
use crate::paths::guide::Kin;
use crate::paths::presence::Medium;
use crate::report::Outcome;

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick).iter().map(Row::name).collect()
}

/// What they measure.
pub fn kin() -> Vec<Kin> {
    let stall = |kind, medium, rate| Row { look: Look::Fault, kind, rate, medium }.stall_reach();
    // Of packets; over tcp; over tcp where rails are slow.
    let each = |kind: Kind| {
        let of = |medium, rate| stall(kind, medium, rate);
        let (packets, tcp) = (of(Medium::Udp, Rate::Usual), of(Medium::Tcp, Rate::Usual));
        format!("{} {packets} ms (tcp {tcp}, 50m {})", kind.name(), of(Medium::Tcp, Rate::Slow))
    };
    let stalls = Kind::ALL.map(each).join(", ");
    let back = |medium| {
        let (look, kind, rate) = (Look::Return, Kind::Silent, Rate::Usual);
        Row { look, kind, rate, medium }.back_reach()
    };
    vec![
        Kin {
            names: "cut.FAULT.RATE.MEDIUM",
            what: "a stream around a fault of a rail, beside TCP and MPTCP: stall, failover, \
                   what is left, back, goodput",
            reach: format!(
                "a stall of {stalls}, beyond its own gap; {LEFT_REACH} % of what is left"
            ),
        },
        Kin {
            names: "back.silent.1g.MEDIUM",
            what: "the time until a mended rail is used",
            reach: format!("{} ms, ether {} ms", back(Medium::Tcp), back(Medium::Ether)),
        },
        Kin {
            names: "dead.FAULT.1g.MEDIUM",
            what: "a rail that stays dead (silent, carrier), over tcp beside Open MPI and MPICH, \
                   too, for 60 s",
            reach: "as cut".into(),
        },
    ]
}

/// Measures the rows that are wanted.
///
/// # Errors
/// There can be no network namespaces; or a message was lost, doubled, reordered or changed.
pub fn cut(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let mut damage = Vec::new();
    for row in rows_of(options.quick).iter().filter(|row| options.wanted(&row.name())) {
        let times = Times::new(row.look, options);
        let parties = parties(row, options.peers);
        let names: Vec<String> =
            parties.iter().map(|party| format!("{}: {}", row.name(), party.name)).collect();
        let networks =
            parties.iter().map(|party| row.network(party)).collect::<anyhow::Result<Vec<_>>>()?;
        let found = alternate(options, options.runs(), &names, |turn, run| {
            let trial = row.trial(&parties[turn], &networks[turn], &times, run)?;
            if let Some(said) = trial.damage().filter(|_| !may_be_damaged(row.kind, &parties[turn]))
            {
                damage.push(format!("{}: {said}", names[turn]));
                bail!("{said}");
            }
            Ok(trial)
        });
        drop(networks);
        for outcome in row.outcomes(&parties, &found, &times) {
            emit(&outcome);
        }
        // They know tcp alone.
        if row.look == Look::Death && row.medium == Medium::Tcp && options.peers {
            peers::measure(row, &times, options)?.iter().for_each(&mut *emit);
        }
    }
    if damage.is_empty() { Ok(()) } else { bail!("{}", damage.join("; ")) }
}
