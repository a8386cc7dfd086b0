//! Tables and figures as people read them.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

/// A table with a header, numbers to the right.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for index in 1..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Bytes with a unit.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count per second.
pub fn rate(count: u64, time: Duration) -> String {
    format!("{:.0}", count as f64 / time.as_secs_f64().max(1e-9))
}

/// MiB per second.
pub fn speed(count: u64, time: Duration) -> String {
    format!("{:.0}", count as f64 / (1 << 20) as f64 / time.as_secs_f64().max(1e-9))
}
