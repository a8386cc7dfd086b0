//! The rows, and who takes part in each.

use super::case::{Act, Case, Program, System};
use super::place::{self, MEDIA};
use crate::Options;

/// Bytes of an operation in rows with a flush.
const FEW: [usize; 5] = [8, 1024, 4096, 65_536, 1 << 20];

/// Origins of one target, and targets of one origin.
const SIDES: [u32; 7] = [1, 2, 3, 4, 5, 6, 7];
/// Those of a quick run.
const FEW_ORIGINS: [u32; 4] = [1, 2, 4, 7];
const FEW_SIDES: [u32; 2] = [1, 3];

/// The shortest time without calls that says something, in milliseconds.
const IDLE_MS_MIN: u64 = 200;

/// All cases; those of a row differ in the system alone, and the yardstick comes last.
pub fn cases(options: &Options) -> Vec<Vec<Case>> {
    let mut all = cases_of_all_media(options);
    if options.quick {
        let mut seen = Vec::new();
        all.retain(|group| group.first().is_some_and(|case| is_quick(case, &mut seen)));
    }
    all
}

/// Whether a quick run has a row: between namespaces one of each program over raw frames, and a few over the others.
fn is_quick(case: &Case, seen: &mut Vec<(&'static str, Program)>) -> bool {
    if !place::is_apart(case.medium) {
        return true;
    }
    let few = [Program::Latency, Program::Flush(Act::Put), Program::Idle, Program::Polling];
    let row = (case.medium, case.program);
    let is_first = !seen.contains(&row);
    seen.push(row);
    is_first && (case.medium == "ether" || few.contains(&case.program))
}

fn cases_of_all_media(options: &Options) -> Vec<Vec<Case>> {
    let sizes: &[usize] = match options.quick {
        true => &[8, 1024, 65_536, 1 << 20],
        false => &[1, 8, 64, 512, 4096, 16_384, 65_536, 262_144, 1 << 20, 4 << 20],
    };
    let mut all = Vec::new();
    for medium in MEDIA {
        let mut row = |program, ranks: u32, bytes: usize, loops: u64| {
            let rounds = rounds(options, program, bytes, loops);
            let case = |system| {
                let ranks = if system == System::OneOrigin { 2 } else { ranks };
                let program = if system == System::Put { of_put(program) } else { program };
                Case { program, system, medium, ranks, bytes, loops, rounds }
            };
            let mut systems = systems(options, program, medium, bytes);
            if program == Program::Origins && ranks > 2 {
                systems.insert(1, System::OneOrigin);
            }
            all.push(systems.into_iter().map(case).collect());
        };
        for program in [Program::Latency, Program::Bidirectional, Program::Put, Program::Get] {
            sizes.iter().for_each(|bytes| row(program, 2, *bytes, 0));
        }
        let (sides, origins): (&[u32], &[u32]) = match options.quick {
            true => (&FEW_SIDES, &FEW_ORIGINS),
            false => (&SIDES, &SIDES),
        };
        for program in [Program::Targets, Program::Synchronisation] {
            sides.iter().for_each(|others| row(program, others + 1, 0, 0));
        }
        origins.iter().for_each(|others| row(Program::Origins, others + 1, 65_536, 0));
        for loops in [0, 8, 32, 128] {
            row(Program::Overlap, 2, 65_536, loops);
            row(Program::Skew, 2, 65_536, loops);
        }
        passive_rows(options.quick, &mut row);
        for others in [2, 4, 8] {
            row(Program::Counter, others + 1, 8, 0);
            row(Program::Fairness, others + 1, 8, 0);
        }
        row(Program::Idle, 2, 8, options.amount(3000, 1000).max(IDLE_MS_MIN));
        row(Program::Polling, 2, 8, 0);
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
    for act in [Act::Put, Act::FetchAdd] {
        row(Program::Served(act), 2, 8, 0);
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
    let most = match program {
        Program::Computing(_) | Program::Served(_) => 25,
        Program::Idle => return 1,
        _ => 2000,
    };
    (budget / each).clamp(10, most)
}

/// A contiguous put instead of the operation.
fn of_put(program: Program) -> Program {
    match program {
        Program::Flush(_) => Program::Flush(Act::Put),
        Program::Flush16(_) => Program::Flush16(Act::Put),
        program => program,
    }
}

/// The parties of a row, beside MPIs.
fn systems(options: &Options, program: Program, medium: &str, bytes: usize) -> Vec<System> {
    if matches!(program, Program::Idle | Program::Polling) {
        return vec![System::Direct, System::Messages, System::NoWindow];
    }
    // Without a thread nobody would serve at a target that computes.
    if matches!(program, Program::Served(_)) {
        return vec![System::Direct, System::MessagesProgress];
    }
    let mut systems = vec![System::Direct];
    if program == Program::Bidirectional {
        systems.push(System::Sendrecv);
    }
    if let Program::Flush(act) | Program::Flush16(act) = program {
        let is_compared = matches!(act, Act::Accumulate | Act::Strided);
        systems.extend(is_compared.then_some(System::Put));
        systems.extend((medium == "shm").then_some(System::Created));
    }
    let one_exchange = match program {
        Program::Flush(act) => matches!(act, Act::Put | Act::FetchAdd | Act::Swap) && bytes == 8,
        Program::Computing(_) => true,
        _ => false,
    };
    if one_exchange && medium != "shm" && options.peers {
        systems.push(System::Raw);
    }
    // The paper's accumulate locks by compare-and-swap, so origins get into each other's way.
    if program == Program::Counter {
        systems.push(System::DirectOrigin);
    }
    systems.extend([System::MessagesProgress, System::Messages]);
    systems
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

    #[test]
    fn several_origins_are_measured_beside_one_also_in_a_quick_run() {
        for quick in [false, true] {
            let all = cases(&Options { quick, ..Options::default() });
            for (name, ranks, has_one) in [
                ("origins.tcp.1", 2, false),
                ("origins.tcp.2", 3, true),
                ("origins.shm.4", 5, true),
                ("origins.udp.7", 8, true),
            ] {
                let row = all.iter().find(|group| group[0].name() == name).expect("it is a row");
                assert_eq!((row[0].system, row[0].ranks), (System::Direct, ranks));
                let one: Vec<&Case> =
                    row.iter().filter(|case| case.system == System::OneOrigin).collect();
                assert_eq!(one.len(), usize::from(has_one), "{name}");
                assert!(one.iter().all(|case| case.ranks == 2 && case.rounds == row[0].rounds));
            }
        }
    }

    #[test]
    fn accumulates_and_strided_puts_are_measured_beside_a_put_of_as_many_bytes() {
        let all = cases(&Options::default());
        for (name, put) in [
            ("flush.accumulate.tcp.65536", Some(Program::Flush(Act::Put))),
            ("flush16.accumulate.shm.8", Some(Program::Flush16(Act::Put))),
            ("flush.strided.udp.65536", Some(Program::Flush(Act::Put))),
            ("flush.get.tcp.65536", None),
        ] {
            let row = all.iter().find(|group| group[0].name() == name).expect("it is a row");
            let beside = row.iter().find(|case| case.system == System::Put);
            assert_eq!(beside.map(|case| case.program), put, "{name}");
            let same = |case: &&Case| (case.bytes, case.rounds) == (row[0].bytes, row[0].rounds);
            assert!(beside.iter().all(same), "{name}");
            let has_created = row.iter().any(|case| case.system == System::Created);
            assert_eq!(has_created, name.contains(".shm."), "{name}");
        }
    }

    #[test]
    fn a_target_that_serves_while_it_computes_has_a_thread_for_it() {
        for name in ["served.put.tcp.8", "served.fetch_add.ether.8"] {
            let all = cases(&Options::default());
            let row = all.iter().find(|group| group[0].name() == name).expect("it is a row");
            let systems: Vec<System> = row.iter().map(|case| case.system).collect();
            assert_eq!(systems, [System::Direct, System::MessagesProgress]);
        }
    }

    #[test]
    fn a_quick_run_has_one_row_of_each_program_between_namespaces() {
        let quick = Options { quick: true, ..Options::default() };
        let of = |options: &Options, medium: &str| -> Vec<Program> {
            let all = cases(options).into_iter().filter_map(|group| group.into_iter().next());
            all.filter(|case| case.medium == medium).map(|case| case.program).collect()
        };
        let mut programs = of(&Options::default(), "tcp");
        programs.dedup();
        let mut all: Vec<Program> = Vec::new();
        programs.into_iter().for_each(|it| {
            if !all.contains(&it) {
                all.push(it)
            }
        });
        let ether = of(&quick, "ether");
        assert_eq!(ether.len(), all.len());
        assert!(all.iter().all(|program| ether.contains(program)), "{ether:?}");
        assert_eq!((of(&quick, "netns-tcp").len(), of(&quick, "netns-udp").len()), (4, 4));
        // A full run has all rows over each medium.
        let full = Options::default();
        assert!(MEDIA.iter().all(|medium| of(&full, medium) == of(&full, "tcp")));
    }
}
