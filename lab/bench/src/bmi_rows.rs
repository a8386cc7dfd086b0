//! The figures of the BMI paper: the metric, the medium and the amount of work of each row.

use crate::bmi_side::PAIR;

/// The metric of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    RoundTrip {
        spins: bool,
    },
    Bandwidth {
        late: bool,
    },
    Pattern {
        servers: usize,
        clients: usize,
    },
    /// Bandwidth just below and just above the longest message that is sent without asking.
    Threshold {
        eager: usize,
    },
    /// The pattern beside a client that dies and one that comes, and without them.
    Beside,
    /// A server that has nothing to do.
    Idle,
    /// Round trips beside another client's flood of messages that nobody takes, and without it.
    Flood,
    /// Round trips with the other module active, too, and without.
    Modules,
    /// Round trips, or tests that find nothing (of no bytes), beside many receives, and beside few.
    Crowd,
}

/// A row: one launch of each system measures all its sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub name: String,
    pub kind: Kind,
    pub medium: &'static str,
    pub sizes: Vec<usize>,
    /// Of each size: round trips, or bytes in all, or hundredths of a second, or samples of tests.
    pub amount: usize,
}

struct Rows {
    quick: bool,
    scale: f64,
    medium: &'static str,
    rows: Vec<Row>,
}

/// All rows for a machine of so many cores.
pub fn rows_of(quick: bool, scale: f64, cores: usize) -> Vec<Row> {
    let mut all = Rows { quick, scale, medium: "", rows: Vec::new() };
    for medium in ["tcp", "shm"] {
        all.medium = medium;
        all.add_round_trips();
        all.add_streams();
        all.add_singles();
        all.add_patterns(cores);
    }
    all.rows
}

impl Rows {
    fn add(&mut self, name: String, kind: Kind, sizes: &[usize], amount: usize) {
        let amount = ((amount as f64 * self.scale) as usize).max(1);
        self.rows.push(Row { name, kind, medium: self.medium, sizes: sizes.to_vec(), amount });
    }

    /// A number for quick measurements, or one for thorough ones.
    fn either<T>(&self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    fn add_round_trips(&mut self) {
        let sizes: &[usize] =
            self.either(&[24, 400, 1200], &[24, 100, 200, 400, 600, 800, 1000, 1200]);
        for spins in [true, false] {
            let wait = if spins { "spin" } else { "block" };
            let rounds = match (spins, self.medium) {
                (false, _) => 800,
                (true, "tcp") => 4000,
                (true, _) => 40_000,
            };
            let name = format!("roundtrip.{}.{wait}", self.medium);
            self.add(name, Kind::RoundTrip { spins }, sizes, self.either(rounds / 2, rounds));
        }
    }

    fn add_streams(&mut self) {
        let amount = self.either(30_000_000, 120_000_000);
        let sizes: Vec<usize> = match self.quick {
            true => vec![1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            false => (10..=22).map(|power| 1 << power).collect(),
        };
        for late in [false, true] {
            let name = format!("bandwidth.{}.{}", self.medium, if late { "late" } else { "pre" });
            self.add(name, Kind::Bandwidth { late }, &sizes, amount);
        }
        let thresholds: &[usize] =
            self.either(&[16 << 10], &[1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 1 << 20]);
        for &eager in thresholds {
            let name = format!("threshold.{}.{eager}", self.medium);
            self.add(name, Kind::Threshold { eager }, &[eager, eager + 1], amount);
        }
    }

    fn add_singles(&mut self) {
        let medium = self.medium;
        if medium == "shm" {
            // Over tcp the second module would carry the messages: both sides share memory.
            self.add(format!("modules.{medium}"), Kind::Modules, &[24], 40_000);
        }
        let rounds = self.either(10_000, 40_000);
        self.add(format!("flood.{medium}"), Kind::Flood, &[24], rounds);
        self.add(format!("testcontext.{medium}.empty"), Kind::Crowd, &[0], rounds / 4);
        self.add(format!("testcontext.{medium}.roundtrip"), Kind::Crowd, &[24], rounds);
        self.add(format!("idle.{medium}"), Kind::Idle, &[0], self.either(100, 500));
        self.add(format!("beside.{medium}"), Kind::Beside, &[PAIR], self.either(100, 400));
    }

    fn add_patterns(&mut self, cores: usize) {
        let widths: &[usize] = self.either(&[1, 2, 4], &[1, 2, 4, 8]);
        let mut shapes: Vec<(usize, usize)> = Vec::new();
        for &servers in widths {
            let fitting = widths.iter().filter(|clients| !self.quick || **clients == servers);
            shapes.extend(fitting.map(|clients| (servers, *clients)));
        }
        if !self.quick && cores >= 16 {
            shapes.push((16, 16));
        }
        for (servers, clients) in shapes {
            let name = format!("pattern.{}.{servers}x{clients}", self.medium);
            let kind = Kind::Pattern { servers, clients };
            self.add(name, kind, &[PAIR], self.either(50, 200));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(quick: bool, cores: usize) -> Vec<String> {
        rows_of(quick, 1.0, cores).into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_have_names_of_their_own() {
        for quick in [true, false] {
            let mut names = names(quick, 16);
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
        assert!(names(false, 2).contains(&"pattern.shm.8x8".to_string()));
    }

    #[test]
    fn wide_patterns_need_a_wide_machine_and_time() {
        let wide = |quick, cores| names(quick, cores).contains(&"pattern.tcp.16x16".to_string());
        assert_eq!([wide(false, 15), wide(false, 16), wide(true, 16)], [false, true, false]);
    }
}
