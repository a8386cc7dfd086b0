//! Faults of rails between network namespaces, and what programs notice of them.
//!
//! * [`mod@cut`]: a stream of ordered messages, of which a rail is cut and mended, beside TCP and MPTCP;
//! * [`mod@striped`]: the same stream over two unequal rails, as a part of what each rail carries alone;
//! * [`mod@fair`]: two such streams over one pair of rails, and the parts that they get;
//! * [`mod@side`], [`ours`], [`bare`]: its processes; [`stream`], [`trace`]: its messages, and what became of them;
//! * [`mod@kernels`]: kernels of parallel programs while rails fail;
//! * [`mod@arm`]: times of arming and of moving;
//! * [`mod@latency`]: latencies while traffic moves, and while a rail is cut, between a [`pair`];
//! * [`mod@guide`]: what rows are there;
//! * [`presence`]: endpoints of ours; [`timeline`], [`lines`]: pictures; [`verdict`]: what rows shall reach.

mod arm;
mod bare;
mod cut;
mod fair;
mod guide;
mod kernels;
mod latency;
mod lines;
mod ours;
mod pair;
mod presence;
mod side;
mod stream;
mod striped;
mod timeline;
mod trace;
mod verdict;

use anyhow::bail;

use crate::lab::{Options, hold_dma_latency};
pub use crate::paths::timeline::figures;
pub(crate) use crate::paths::timeline::ticks;
pub(crate) use crate::paths::verdict::listed;
use crate::report::Outcome;

/// Plays a part that has begun with `paths `.
pub(crate) fn serve(part: &str) -> anyhow::Result<()> {
    match part.split_once(' ').unwrap_or((part, "")) {
        ("stream", words) => side::serve(words),
        ("pair", words) => side::serve_pair(words),
        ("rank", words) => kernels::rank::serve(words),
        (other, _) => bail!("nobody knows what '{other}' is"),
    }
}

/// Measures everything that is wanted; measurements that fail are named on stderr.
///
/// # Errors
/// There can be no network namespaces; or data was lost, doubled, reordered or changed.
pub fn paths(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let _held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    arm::arm(options, emit)?;
    latency::latency(options, emit)?;
    cut::cut(options, emit)?;
    striped::striped(options, emit)?;
    fair::fair(options, emit)?;
    kernels::kernels(options, emit)
}

fn kinds() -> Vec<guide::Kin> {
    let cut = [latency::kin(), cut::kin()].concat();
    [vec![arm::kin()], cut, vec![striped::kin(), fair::kin(), kernels::kin()]].concat()
}

/// All rows for people, by kind: what they measure, and what they shall reach.
pub fn guide() -> String {
    crate::guide::text(&kinds(), &guide::VALUES)
}

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    let rows = [arm::rows(), latency::rows(), cut::rows(quick), striped::rows(quick)].concat();
    [rows, fair::rows(quick), kernels::rows(quick)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a row has such a name.
    fn is_of(names: &str, row: &str) -> bool {
        let (names, words): (Vec<&str>, Vec<&str>) =
            (names.split('.').collect(), row.split('.').collect());
        let stands_for = |name: &str, word: &str| match guide::VALUES.iter().find(|it| it.0 == name)
        {
            Some((_, values)) => values.split([',', ':', ' ', '(', ')']).any(|value| value == word),
            None => name == word,
        };
        names.len() == words.len() && names.iter().zip(&words).all(|(a, b)| stands_for(a, b))
    }

    #[test]
    fn each_row_is_described_once_here_and_in_the_documentation() {
        let (rows, kinds) = (rows(false), kinds());
        for row in &rows {
            let such = kinds.iter().filter(|kin| is_of(kin.names, row));
            assert_eq!(such.count(), 1, "{row}");
        }
        let page = include_str!("../../../docs/paths.md");
        for kin in &kinds {
            assert!(rows.iter().any(|row| is_of(kin.names, row)), "{} is no row", kin.names);
            assert!(page.contains(&format!("`{}`", kin.names)), "{} is not in paths.md", kin.names);
        }
        for (name, values) in guide::VALUES {
            assert!(page.contains(name), "{name}: {values}");
        }
    }
}
