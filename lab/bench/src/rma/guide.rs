//! The rows of `bench rma` for people.

use crate::guide::{Kin, Value, text};

const VALUES: [Value; 6] = [
    ("BYTES", "of an operation"),
    ("LOOPS", "0, 8, 32, 128: of computation"),
    (
        "MEDIUM",
        "tcp, shm, udp: between processes of this host; ether, netns-tcp, netns-udp: between network namespaces (needs root)",
    ),
    (
        "OPERATION",
        "put, get, accumulate, get_accumulate, fetch_add, compare_and_swap, strided, lock_put_unlock",
    ),
    ("OTHERS", "ranks beside the one that measures"),
    ("SIDES", "targets, origins"),
];

const fn kin(names: &'static str, what: &'static str) -> Kin {
    Kin { names, what, reach: String::new() }
}

/// All kinds of rows.
fn kinds() -> Vec<Kin> {
    let mut all = vec![
        kin("latency.MEDIUM.BYTES", "figure 5: an epoch of post, start, put, complete and wait"),
        kin("bidirectional.MEDIUM.BYTES", "figure 6: both ranks put between fences"),
        kin("put.MEDIUM.BYTES", "figure 7: 16 puts in an epoch"),
        kin("get.MEDIUM.BYTES", "figure 8: 16 gets in an epoch"),
        kin("synchronisation.SIDES.MEDIUM.OTHERS", "figure 9: epochs without operations"),
        kin("overlap.MEDIUM.LOOPS", "figure 10: the origin computes after each put"),
        kin("skew.MEDIUM.LOOPS", "figure 11: the target computes between post and wait"),
        kin("origins.MEDIUM.OTHERS", "figure 12: several origins put to one target"),
        kin("flush.OPERATION.MEDIUM.BYTES", "an operation and a flush in an epoch of locks"),
        kin("flush16.OPERATION.MEDIUM.BYTES", "16 operations before each flush"),
        kin("computing.OPERATION.MEDIUM.BYTES", "as flush, while the target computes 20 ms"),
        kin(
            "served.OPERATION.MEDIUM.BYTES",
            "a target's loops of 20 ms beside operations, less the time that serving took",
        ),
        kin("passive_put.MEDIUM.BYTES", "a put while the target computes as long as that takes"),
        kin("counter.MEDIUM.OTHERS", "so many ranks add to one word"),
        kin(
            "fairness.MEDIUM.OTHERS",
            "Jain's index of how often each of them could, and the longest overtaking",
        ),
        kin("open.idle.MEDIUM", "processor time of a rank with an open window, while all sleep"),
        kin("open.latency.MEDIUM", "8-byte messages between polling ranks with an open window"),
    ];
    for (names, reach) in [
        ("open.idle.MEDIUM", "0.5 % of a processor"),
        ("origins.MEDIUM.OTHERS", "0.9 x the bandwidth of one origin"),
        ("served.OPERATION.MEDIUM.BYTES", "1.05 x the time alone"),
        ("flush.OPERATION.MEDIUM.BYTES", "accumulate, strided from 64 KiB: 1.25 x a put's time"),
        ("open.latency.MEDIUM", "1.05 x the time without a window"),
    ] {
        all.iter_mut().filter(|kin| kin.names == names).for_each(|kin| kin.reach = reach.into());
    }
    all
}

/// The families of rows.
pub fn guide() -> String {
    text(&kinds(), &VALUES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a row has such a name.
    fn is_of(names: &str, row: &str) -> bool {
        let (names, words): (Vec<&str>, Vec<&str>) =
            (names.split('.').collect(), row.split('.').collect());
        let stands_for = |name: &str, word: &str| match name {
            "BYTES" | "LOOPS" | "OTHERS" => word.parse::<u64>().is_ok(),
            _ => match VALUES.iter().find(|it| it.0 == name) {
                Some((_, values)) => values.split([',', ':', ';', ' ']).any(|it| it == word),
                None => name == word,
            },
        };
        names.len() == words.len() && names.iter().zip(&words).all(|(a, b)| stands_for(a, b))
    }

    #[test]
    fn each_row_is_described_once_here_and_in_the_documentation() {
        let (rows, kinds) = (crate::rma::rows(false), kinds());
        for row in &rows {
            let such = kinds.iter().filter(|kin| is_of(kin.names, row));
            assert_eq!(such.count(), 1, "{row}");
        }
        let page = include_str!("../../../../docs/design/050-benchmarks.md");
        for kin in &kinds {
            assert!(rows.iter().any(|row| is_of(kin.names, row)), "{} is no row", kin.names);
            assert!(page.contains(&format!("`{}`", kin.names)), "{} is not in 050", kin.names);
        }
    }
}
