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
use crate::paths::cut::figures::may_be_damaged;
use crate::paths::cut::party::parties;
use crate::paths::cut::row::{Look, Row, rows_of};
use crate::paths::cut::trial::Times;
use crate::paths::presence::Medium;
use crate::report::Outcome;

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick).iter().map(Row::name).collect()
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
