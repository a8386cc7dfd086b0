//! A measurement, in words that both sides of a process boundary understand.

use ropewalk_rma::Implementation;

use super::place::MEDIA;

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
    /// The target computes a fixed number of loops, alone and while an origin acts and flushes all the time. Time of the
    /// loops without the processor time that serving took, as a multiple of that alone.
    Served(Act),
    /// A put and a flush, alone and while the target computes as long as that takes, between barriers.
    PassivePut,
    /// Fetch-and-add of all other ranks on one word. Time of one of each.
    Counter,
    /// Jain's index of the operations that each of them made in a fixed time.
    Fairness,
    /// Nobody calls for so many milliseconds (`loops`). Part of a processor that a rank takes.
    Idle,
    /// Messages to and fro of two ranks that poll. Half of a round trip.
    Polling,
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

const PROGRAMS: [(Program, &str); 14] = [
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
    (Program::Idle, "open.idle"),
    (Program::Polling, "open.latency"),
];

impl Program {
    /// By which processes of ours and of MPIs know it.
    pub fn text(self) -> String {
        let act = |act: Act| ACTS.iter().find(|(other, _)| *other == act).map_or("", |it| it.1);
        match self {
            Program::Flush(it) => format!("flush.{}", act(it)),
            Program::Flush16(it) => format!("flush16.{}", act(it)),
            Program::Computing(it) => format!("computing.{}", act(it)),
            Program::Served(it) => format!("served.{}", act(it)),
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
        if let Some(name) = text.strip_prefix("served.") {
            return act(name).map(Program::Served);
        }
        Some(PROGRAMS.iter().find(|(_, other)| *other == text)?.0)
    }
}

/// The yardstick of rows with a window that nobody uses.
pub const NO_WINDOW: &str = "no-window";
/// That of all others.
pub const MESSAGES: &str = "messages";
/// The second one of rows with several origins.
pub const ONE_ORIGIN: &str = "one-origin";
/// The second one of rows of accumulates and of strided puts.
pub const PUT: &str = "direct-put";
/// The second one of rows of single operations over shared memory.
pub const CREATED: &str = "direct-create";

/// A party of ours, or the bare medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Direct,
    DirectOrigin,
    /// Beside several origins: one of them alone.
    OneOrigin,
    /// Beside accumulates and strided puts: a contiguous put of as many bytes.
    Put,
    /// Over shared memory: the program has the memory of the windows, so that nobody maps it.
    Created,
    Messages,
    /// By messages, beside a thread of each rank that does nothing but serve.
    MessagesProgress,
    /// Figure 6 without a window: a receive and a send posted, then both awaited.
    Sendrecv,
    /// A round trip of bare sockets instead of the operation.
    Raw,
    /// Beside open windows: the same ranks without one.
    NoWindow,
}

const SYSTEMS: [(System, &str); 10] = [
    (System::Direct, "direct"),
    (System::DirectOrigin, "direct-origin"),
    (System::OneOrigin, ONE_ORIGIN),
    (System::Put, PUT),
    (System::Created, CREATED),
    (System::Messages, MESSAGES),
    (System::MessagesProgress, "messages-progress"),
    (System::Sendrecv, "sendrecv"),
    (System::Raw, "raw"),
    (System::NoWindow, NO_WINDOW),
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
            _ => Implementation::Direct,
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

/// A round of [`Program::Served`], in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Of the loops alone, and beside an origin.
    pub alone: u64,
    pub beside: u64,
    /// Processor time that all other threads of the target's process took meanwhile.
    pub service: u64,
    /// Operations of the origin meanwhile.
    pub operations: u64,
}

impl Served {
    /// As samples of a rank.
    pub fn encode(self) -> [u64; 4] {
        let Served { alone, beside, service, operations } = self;
        [alone, beside, service, operations]
    }

    /// Those that samples tell.
    pub fn all(samples: &[u64]) -> Vec<Served> {
        let (rounds, _) = samples.as_chunks();
        let one = |&[alone, beside, service, operations]: &[u64; 4]| Served {
            alone,
            beside,
            service,
            operations,
        };
        rounds.iter().map(one).collect()
    }

    /// How many times as long the loops took, without the time that serving took of the processor.
    pub fn ratio(self) -> f64 {
        self.beside.saturating_sub(self.service) as f64 / self.alone.max(1) as f64
    }
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
            Program::Idle | Program::Polling => format!("{text}.{medium}"),
            _ => format!("{text}.{medium}.{bytes}"),
        }
    }

    /// Its main figure, of the nanoseconds of each round and the processor time of ranks 0 and 1.
    pub fn figure(&self, samples: &[u64], cpu: [u64; 2]) -> f64 {
        if matches!(self.program, Program::Served(_)) {
            return median(Served::all(samples).into_iter().map(Served::ratio).collect());
        }
        let samples = match self.program {
            Program::PassivePut => &samples[samples.len() / 2..],
            // Ours tell of overtaking, too.
            Program::Fairness => &samples[..1.min(samples.len())],
            _ => samples,
        };
        let nanos = median(samples.iter().map(|it| *it as f64).collect()).max(1.0);
        let megabytes = |bytes: usize| bytes as f64 / (nanos / 1000.0);
        match self.program {
            Program::Bidirectional => megabytes(2 * self.bytes),
            Program::Put | Program::Get => megabytes(OPERATIONS * self.bytes),
            Program::Origins => megabytes((self.ranks as usize - 1) * OPERATIONS * self.bytes),
            Program::Flush16(_) => nanos / 1000.0 / OPERATIONS as f64,
            // Of the rank that takes more. None takes nothing: what is divided by it has to be a number.
            Program::Idle => (100.0 * cpu[0].max(cpu[1]) as f64 / nanos).max(1e-4),
            // Also that of fairness, which is in thousandths.
            _ => nanos / 1000.0,
        }
    }

    /// Of [`Program::PassivePut`]: microseconds of a put alone.
    pub fn alone(&self, samples: &[u64]) -> Option<f64> {
        let alone = samples[..samples.len() / 2].iter().map(|it| *it as f64 / 1000.0);
        (self.program == Program::PassivePut).then(|| median(alone.collect()))
    }

    /// Of [`Program::Fairness`]: how many operations of others came between two of one rank at most.
    pub fn overtaken(&self, samples: &[u64]) -> Option<u64> {
        if self.program == Program::Fairness { samples.get(1).copied() } else { None }
    }

    /// Whether a greater figure is a better one.
    pub fn more_is_better(&self) -> bool {
        matches!(self.metric().0, "bandwidth" | "jain")
    }

    /// The first system that `direct` is compared with.
    pub fn yardstick(&self) -> &'static str {
        if self.is_unused() { NO_WINDOW } else { MESSAGES }
    }

    /// Whether nobody uses the window.
    pub fn is_unused(&self) -> bool {
        matches!(self.program, Program::Idle | Program::Polling)
    }

    /// Whether no MPI takes part.
    pub fn is_ours_alone(&self) -> bool {
        self.is_unused() || matches!(self.program, Program::Served(_))
    }

    /// Rounds that a process makes, also those before the time begins.
    pub fn all_rounds(&self) -> usize {
        match self.program {
            Program::Counter => self.rounds,
            Program::Fairness | Program::Idle => 1,
            Program::PassivePut => 2 * (self.rounds + WARM),
            _ => self.rounds + WARM,
        }
    }

    /// Bytes that a round moves between ranks at least: a message of synchronisation has 16.
    pub fn moved(&self) -> usize {
        let (one, others) = (self.bytes.max(16), self.ranks as usize - 1);
        match self.program {
            Program::Latency | Program::Bidirectional | Program::Polling => 2 * one,
            Program::Idle => 0,
            Program::Put | Program::Get | Program::Overlap | Program::Flush16(_) => {
                OPERATIONS * one
            }
            Program::Skew | Program::Origins => others * OPERATIONS * one,
            Program::Targets | Program::Synchronisation | Program::Counter => others * one,
            Program::Flush(_)
            | Program::Computing(_)
            | Program::Served(_)
            | Program::PassivePut => one,
            Program::Fairness => others * one,
        }
    }

    /// The same of a run.
    pub fn moved_in_all(&self) -> u64 {
        let rounds = if self.program == Program::Fairness { 1 } else { self.rounds };
        (self.moved() * rounds) as u64
    }

    /// Its name and its unit.
    pub fn metric(&self) -> (&'static str, &'static str) {
        match self.program {
            Program::Bidirectional | Program::Put | Program::Get | Program::Origins => {
                ("bandwidth", "MB/s")
            }
            Program::Fairness => ("jain", "of 1"),
            Program::Idle => ("cpu", "%"),
            Program::Served(_) => ("time", "x alone"),
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

/// The middle of some values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serving_took_of_the_processor_is_no_loss_of_the_loops() {
        let one = |beside, service| Served { alone: 20_000, beside, service, operations: 7 };
        // 22 of which 1.6 were the service; nothing lost; preempted by somebody else.
        let rounds = [one(22_000, 1600), one(25_000, 5000), one(40_000, 1000)];
        let samples: Vec<u64> = rounds.into_iter().flat_map(Served::encode).collect();
        assert_eq!(Served::all(&samples), rounds);
        let case = Case {
            program: Program::Served(Act::Put),
            system: System::Direct,
            medium: "tcp",
            ranks: 2,
            bytes: 8,
            loops: 0,
            rounds: 3,
        };
        assert_eq!((case.name().as_str(), case.metric().1), ("served.put.tcp.8", "x alone"));
        assert!((case.figure(&samples, [0, 0]) - 1.02).abs() < 1e-9);
        assert!(!case.more_is_better() && case.is_ours_alone());
        // A clock that is behind the other one makes no negative time.
        assert_eq!(one(5, 6).ratio(), 0.0);
    }
}
