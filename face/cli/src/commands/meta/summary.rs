//! A dump in words, as a table, and as JSON.

use ropewalk_meta::dump::{Head, Lost, Survey, TABLES, Totals, table_name};
use ropewalk_wire::fs::term::Term;
use serde_json::{Value, json};

use crate::report::{bytes, complain, say, table};

/// Places that are named one by one.
const SHOWN_MAX: usize = 20;

/// Prints the rows of a dump by their kinds.
pub fn print(totals: &Totals) -> anyhow::Result<()> {
    let known = TABLES.iter().map(|(letter, _)| *letter);
    let others = totals.rows.keys().copied().filter(|it| TABLES.iter().all(|(one, _)| one != it));
    let rows = known.chain(others).filter_map(|letter| {
        let count = totals.rows.get(&letter)?;
        Some(vec![table_name(letter).to_string(), count.to_string()])
    });
    say!("{}", table(&["kind", "rows"], rows.collect()))
}

/// A line about the origin of a dump.
pub fn origin(head: &Head) -> String {
    format!(
        "cluster {:032x}, metadata server {}, term {}, record {}, made by version {}",
        head.cluster,
        head.server,
        Term(head.term).number(),
        head.position,
        head.program
    )
}

/// Warns of places that could not be read. `lost` has the first ones of `count`.
pub fn warn_of_lost(lost: &[Lost], count: u64) {
    for place in lost.iter().take(SHOWN_MAX) {
        complain!("ropewalk: {}: {}", described(place), place.why);
    }
    if count > SHOWN_MAX as u64 {
        complain!("ropewalk: and {} more places", count - SHOWN_MAX as u64);
    }
}

fn described(lost: &Lost) -> String {
    let Some(letter) = lost.from.first() else { return "rows are lost".to_string() };
    let number = |key: &[u8]| {
        let bytes = key.get(1..9)?;
        Some(u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
    };
    let end = lost.to.first().filter(|other| *other == letter).and_then(|_| number(&lost.to));
    let name = table_name(*letter);
    match (number(&lost.from), end) {
        (Some(from), Some(to)) if to > from => {
            format!("{name} are lost, of the inodes or numbers {from} to {to}")
        }
        (Some(from), Some(_)) => format!("{name} are lost, of the inode or number {from}"),
        (Some(from), None) => format!("{name} are lost, from the inode or number {from} on"),
        (None, _) => format!("{name} are lost"),
    }
}

/// A dump as JSON.
pub fn json(head: &Head, totals: &Totals) -> Value {
    let rows = totals.rows.iter().map(|(letter, count)| {
        let name = table_name(*letter).replace(' ', "_");
        (name, Value::from(*count))
    });
    json!({
        "cluster": format!("{:032x}", head.cluster),
        "server": head.server,
        "history": format!("{:032x}", head.history),
        "term": Term(head.term).number(),
        "position": head.position,
        "made": head.made,
        "program": head.program,
        "rows": Value::Object(rows.collect()),
        "lost": totals.lost,
    })
}

/// The findings of a survey, as JSON.
pub fn survey_json(survey: &Survey, head: &Head) -> Value {
    let mut value = json(head, &survey.found);
    value["bytes"] = survey.bytes.into();
    value["whole"] = (!survey.is_incomplete()).into();
    value["skipped_bytes"] = survey.skipped_bytes.into();
    value["gaps"] = survey.gaps.into();
    value
}

/// Warns of what a survey found missing.
pub fn warn_of_missing(survey: &Survey) {
    warn_of_lost(&survey.lost, survey.found.lost);
    if survey.skipped_places > 0 {
        let count = survey.skipped_places;
        complain!(
            "ropewalk: {} at {count} places of the dump are damaged and were passed over",
            bytes(survey.skipped_bytes)
        );
    }
    if survey.gaps > 0 {
        complain!("ropewalk: rows are missing at {} places of the dump", survey.gaps);
    }
    if !survey.has_end {
        complain!("ropewalk: the dump has no end: rows are missing there");
    }
}
