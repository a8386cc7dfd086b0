//! What is measured, in words that both sides of a process boundary understand.

use ropewalk_rma::Implementation;

use crate::Options;

/// A program of the ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Figure 5: two epochs of post, start, complete and wait; each side puts in one of them. Time of an epoch.
    Latency,
    /// Figure 6: both put, between fences. Bandwidth of both ways.
    Bidirectional,
    /// Figures 7 and 8: 16 operations in each epoch.
    Put,
    Get,
    /// Figure 9: epochs without operations, with several targets or several origins.
    Targets,
    Synchronisation,
    /// Figure 10: loops of 1,000 increments after each of 16 puts at the origin. Time of an epoch.
    Overlap,
    /// Figure 11: loops of 10,000 increments between post and wait at the target. Time of an epoch.
    Skew,
    /// Figure 12: several origins put to one target. Bandwidth of all together.
    Origins,
    /// One operation and a flush, in an open epoch of locks, while the target waits in a call.
    Flush(Act),
    /// The same with 16 operations before each flush. Time of an operation.
    Flush16(Act),
    /// As [`Program::Flush`], but the target computes 20 ms meanwhile, then is in a barrier.
    Computing(Act),
    /// A put and a flush, alone and while the target computes as long as that takes, between barriers.
    PassivePut,
    /// Fetch-and-add of all other ranks on one word. Time of one of each.
    Counter,
    /// Jain's index of the operations that each of them made in a fixed time.
    Fairness,
}

/// An operation in an epoch of locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Put,
    Get,
    Accumulate,
    GetAccumulate,
    FetchAdd,
    Swap,
    /// 1,024 pieces, each as long as the gap behind it.
    Strided,
    /// An exclusive lock, a put and the unlock.
    LockPut,
}

const ACTS: [(Act, &str); 8] = [
    (Act::Put, "put"),
    (Act::Get, "get"),
    (Act::Accumulate, "accumulate"),
    (Act::GetAccumulate, "get_accumulate"),
    (Act::FetchAdd, "fetch_add"),
    (Act::Swap, "compare_and_swap"),
    (Act::Strided, "strided"),
    (Act::LockPut, "lock_put_unlock"),
];

const PROGRAMS: [(Program, &str); 12] = [
    (Program::Latency, "latency"),
    (Program::Bidirectional, "bidirectional"),
    (Program::Put, "put"),
    (Program::Get, "get"),
    (Program::Targets, "synchronisation.targets"),
    (Program::Synchronisation, "synchronisation.origins"),
    (Program::Overlap, "overlap"),
    (Program::Skew, "skew"),
    (Program::Origins, "origins"),
    (Program::PassivePut, "passive_put"),
    (Program::Counter, "counter"),
    (Program::Fairness, "fairness"),
];

impl Program {
    /// By which processes of ours and of MPIs know it.
    pub fn text(self) -> String {
        let act = |act: Act| ACTS.iter().find(|(other, _)| *other == act).map_or("", |it| it.1);
        match self {
            Program::Flush(it) => format!("flush.{}", act(it)),
            Program::Flush16(it) => format!("flush16.{}", act(it)),
            Program::Computing(it) => format!("computing.{}", act(it)),
            program => {
                let found = PROGRAMS.iter().find(|(other, _)| *other == program);
                found.map_or("", |it| it.1).into()
            }
        }
    }

    fn parse(text: &str) -> Option<Program> {
        let act = |name: &str| Some(ACTS.iter().find(|(_, other)| *other == name)?.0);
        if let Some(name) = text.strip_prefix("flush.") {
            return act(name).map(Program::Flush);
        }
        if let Some(name) = text.strip_prefix("flush16.") {
            return act(name).map(Program::Flush16);
        }
        if let Some(name) = text.strip_prefix("computing.") {
            return act(name).map(Program::Computing);
        }
        Some(PROGRAMS.iter().find(|(_, other)| *other == text)?.0)
    }
}

/// A party of ours, or the bare medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Direct,
    DirectOrigin,
    Messages,
    /// By messages, beside a thread of each rank that does nothing but serve.
    MessagesProgress,
    /// Figure 6 without a window: a receive and a send posted, then both awaited.
    Sendrecv,
    /// A round trip of bare sockets instead of the operation.
    Raw,
}

const SYSTEMS: [(System, &str); 6] = [
    (System::Direct, "direct"),
    (System::DirectOrigin, "direct-origin"),
    (System::Messages, "messages"),
    (System::MessagesProgress, "messages-progress"),
    (System::Sendrecv, "sendrecv"),
    (System::Raw, "raw"),
];

impl System {
    pub fn name(self) -> &'static str {
        SYSTEMS.iter().find(|(other, _)| *other == self).map_or("", |it| it.1)
    }

    fn parse(text: &str) -> Option<System> {
        Some(SYSTEMS.iter().find(|(_, name)| *name == text)?.0)
    }

    /// How its window works.
    pub fn implementation(self) -> Implementation {
        match self {
            System::DirectOrigin => Implementation::DirectAccumulateAtOrigin,
            System::Messages | System::MessagesProgress => Implementation::Messages,
            System::Direct | System::Sendrecv | System::Raw => Implementation::Direct,
        }
    }
}

/// One case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub program: Program,
    pub system: System,
    pub medium: &'static str,
    pub ranks: u32,
    /// Of each operation.
    pub bytes: usize,
    /// Loops of computation.
    pub loops: u64,
    pub rounds: usize,
}

/// Operations of an epoch.
pub const OPERATIONS: usize = 16;
/// Rounds before the time begins.
pub const WARM: usize = 5;

impl Case {
    /// By which it can be chosen.
    pub fn name(&self) -> String {
        let Case { program, medium, ranks, bytes, loops, .. } = self;
        let text = program.text();
        match program {
            Program::Overlap | Program::Skew => format!("{text}.{medium}.{loops}"),
            Program::Targets | Program::Synchronisation | Program::Origins => {
                format!("{text}.{medium}.{}", ranks - 1)
            }
            Program::Counter | Program::Fairness => format!("{text}.{medium}.{}", ranks - 1),
            _ => format!("{text}.{medium}.{bytes}"),
        }
    }

    /// Its main figure, of the nanoseconds of each round.
    pub fn figure(&self, samples: &[u64]) -> f64 {
        let samples = match self.program {
            Program::PassivePut => &samples[samples.len() / 2..],
            _ => samples,
        };
        let nanos = median(samples.iter().map(|it| *it as f64).collect()).max(1.0);
        let megabytes = |bytes: usize| bytes as f64 / (nanos / 1000.0);
        match self.program {
            Program::Bidirectional => megabytes(2 * self.bytes),
            Program::Put | Program::Get => megabytes(OPERATIONS * self.bytes),
            Program::Origins => megabytes((self.ranks as usize - 1) * OPERATIONS * self.bytes),
            Program::Flush16(_) => nanos / 1000.0 / OPERATIONS as f64,
            // In thousandths.
            Program::Fairness => nanos / 1000.0,
            _ => nanos / 1000.0,
        }
    }

    /// Of [`Program::PassivePut`]: microseconds of a put alone.
    pub fn alone(&self, samples: &[u64]) -> Option<f64> {
        let alone = samples[..samples.len() / 2].iter().map(|it| *it as f64 / 1000.0);
        (self.program == Program::PassivePut).then(|| median(alone.collect()))
    }

    /// Whether a greater figure is a better one.
    pub fn more_is_better(&self) -> bool {
        self.metric().0 != "latency"
    }

    /// Rounds that a process makes, also those before the time begins.
    pub fn all_rounds(&self) -> usize {
        match self.program {
            Program::Counter => self.rounds,
            Program::Fairness => 1,
            Program::PassivePut => 2 * (self.rounds + WARM),
            _ => self.rounds + WARM,
        }
    }

    /// Bytes that a round moves between ranks at least: a message of synchronisation has 16.
    pub fn moved(&self) -> usize {
        let (one, others) = (self.bytes.max(16), self.ranks as usize - 1);
        match self.program {
            Program::Latency | Program::Bidirectional => 2 * one,
            Program::Put | Program::Get | Program::Overlap | Program::Flush16(_) => {
                OPERATIONS * one
            }
            Program::Skew | Program::Origins => others * OPERATIONS * one,
            Program::Targets | Program::Synchronisation | Program::Counter => others * one,
            Program::Flush(_) | Program::Computing(_) | Program::PassivePut => one,
            Program::Fairness => others * one,
        }
    }

    /// Its name and its unit.
    pub fn metric(&self) -> (&'static str, &'static str) {
        match self.program {
            Program::Bidirectional | Program::Put | Program::Get | Program::Origins => {
                ("bandwidth", "MB/s")
            }
            Program::Fairness => ("jain", "of 1"),
            _ => ("latency", "us"),
        }
    }

    pub fn encode(&self) -> String {
        let Case { program, system, medium, ranks, bytes, loops, rounds } = self;
        let (program, system) = (program.text(), system.name());
        format!("{program} {system} {medium} {ranks} {bytes} {loops} {rounds}")
    }

    pub fn decode(text: &str) -> Option<Case> {
        let words: Vec<&str> = text.split(' ').collect();
        let [program, system, medium, ranks, bytes, loops, rounds] = words[..] else { return None };
        Some(Case {
            program: Program::parse(program)?,
            system: System::parse(system)?,
            medium: MEDIA.into_iter().find(|other| *other == medium)?,
            ranks: ranks.parse().ok()?,
            bytes: bytes.parse().ok()?,
            loops: loops.parse().ok()?,
            rounds: rounds.parse().ok()?,
        })
    }
}

const MEDIA: [&str; 3] = ["tcp", "shm", "udp"];

/// Bytes of an operation in rows with a flush.
const FEW: [usize; 5] = [8, 1024, 4096, 65_536, 1 << 20];

/// All cases; those of a row differ in the system alone, and the yardstick comes last.
pub fn cases(options: &Options) -> Vec<Vec<Case>> {
    let sizes: &[usize] = match options.quick {
        true => &[8, 1024, 65_536, 1 << 20],
        false => &[1, 8, 64, 512, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20],
    };
    let mut all = Vec::new();
    for medium in MEDIA {
        let mut row = |program, ranks: u32, bytes: usize, loops: u64| {
            let rounds = rounds(options, program, bytes, loops);
            let case = |system| Case { program, system, medium, ranks, bytes, loops, rounds };
            all.push(systems(options, program, medium, bytes).into_iter().map(case).collect());
        };
        for program in [Program::Latency, Program::Bidirectional, Program::Put, Program::Get] {
            sizes.iter().for_each(|bytes| row(program, 2, *bytes, 0));
        }
        let others: &[u32] = if options.quick { &[1, 3] } else { &[1, 2, 4, 7] };
        for program in [Program::Targets, Program::Synchronisation] {
            others.iter().for_each(|others| row(program, others + 1, 0, 0));
        }
        others.iter().for_each(|others| row(Program::Origins, others + 1, 65_536, 0));
        for loops in [0, 8, 32, 128] {
            row(Program::Overlap, 2, 65_536, loops);
            row(Program::Skew, 2, 65_536, loops);
        }
        passive_rows(options.quick, &mut row);
        for others in [2, 4, 8] {
            row(Program::Counter, others + 1, 8, 0);
            row(Program::Fairness, others + 1, 8, 0);
        }
    }
    all
}

/// Rows in which the target takes no part.
fn passive_rows(quick: bool, row: &mut impl FnMut(Program, u32, usize, u64)) {
    let few: &[usize] = if quick { &[8, 65_536] } else { &FEW };
    for act in [Act::Put, Act::Get, Act::Accumulate, Act::GetAccumulate] {
        few.iter().for_each(|bytes| row(Program::Flush(act), 2, *bytes, 0));
        few.iter().for_each(|bytes| row(Program::Flush16(act), 2, *bytes, 0));
        row(Program::Computing(act), 2, 8, 0);
    }
    for act in [Act::FetchAdd, Act::Swap] {
        row(Program::Flush16(act), 2, 8, 0);
    }
    for act in [Act::FetchAdd, Act::Swap, Act::LockPut] {
        row(Program::Flush(act), 2, 8, 0);
        row(Program::Computing(act), 2, 8, 0);
    }
    row(Program::Flush(Act::Strided), 2, 65_536, 0);
    let long: &[usize] = if quick { &[65_536] } else { &[65_536, 262_144, 1 << 20] };
    long.iter().for_each(|bytes| row(Program::PassivePut, 2, *bytes, 0));
}

fn rounds(options: &Options, program: Program, bytes: usize, loops: u64) -> usize {
    let each = 2000 + bytes + loops as usize;
    let budget = options.amount(16_000_000, 2_000_000) as usize;
    let most = if matches!(program, Program::Computing(_)) { 25 } else { 2000 };
    (budget / each).clamp(10, most)
}

/// Who takes part in a row, beside MPIs.
fn systems(options: &Options, program: Program, medium: &str, bytes: usize) -> Vec<System> {
    let mut systems = vec![System::Direct];
    if program == Program::Bidirectional {
        systems.push(System::Sendrecv);
    }
    let one_exchange = match program {
        Program::Flush(act) => matches!(act, Act::Put | Act::FetchAdd | Act::Swap) && bytes == 8,
        Program::Computing(_) => true,
        _ => false,
    };
    if one_exchange && medium == "tcp" && options.peers {
        systems.push(System::Raw);
    }
    // The paper's accumulate locks by compare-and-swap, so origins get into each other's way.
    if program == Program::Counter {
        systems.push(System::DirectOrigin);
    }
    systems.extend([System::MessagesProgress, System::Messages]);
    systems
}

/// The middle of some values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_crosses_to_the_other_processes_and_has_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for group in cases(&Options::default()) {
            for case in &group {
                assert_eq!(Case::decode(&case.encode()).as_ref(), Some(case));
            }
            assert!(names.insert(group[0].name()), "{} is there twice", group[0].name());
        }
        assert_eq!(Case::decode("put direct tcp"), None);
    }
}
