//! The programs of ranks: the same for every implementation.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Error, LockKind, Operator, Source, Target,
};

use super::case::{Act, OPERATIONS, Program, Served, System, WARM, median};
use super::mail::Mail;
use super::rank::Rank;
use crate::host;

/// A target that computes does so for this long.
pub const COMPUTES: Duration = Duration::from_millis(20);
/// Ranks count for so long.
const COUNTS: Duration = Duration::from_millis(200);
/// Of that, before the other rank acts: the computation has begun on any machine.
pub const EARLY: Duration = Duration::from_millis(2);
const STRIDES: u64 = 1024;
const NONE: Asserts = Asserts::NONE;

type Samples = Result<Vec<u64>, Error>;

/// Plays this rank's part. Rank 0 measures.
pub fn run(own: &Rank) -> Samples {
    match (own.case.program, &own.mail) {
        (Program::Polling, Some(mail)) => return polling(own, mail),
        (_, Some(mail)) => return sendrecv(own, mail),
        (_, None) => {}
    }
    match own.case.program {
        Program::Latency => latency(own),
        Program::Bidirectional => bidirectional(own),
        Program::Put | Program::Get | Program::Overlap => epochs(own),
        Program::Targets => targets(own),
        Program::Synchronisation | Program::Origins | Program::Skew => origins(own),
        Program::Flush(act) | Program::Flush16(act) => flush(own, act),
        Program::Computing(act) => computing(own, act),
        Program::Served(act) => served(own, act),
        Program::PassivePut => passive_put(own),
        Program::Counter => counter(own),
        Program::Fairness => fairness(own),
        Program::Idle => Ok(idle(own.case.loops)),
        Program::Polling => Err(Error::Closed),
    }
}

fn byte() -> Datatype {
    Datatype::of(Element::U8)
}

/// Nanoseconds of each round, without the first ones.
fn rounds(own: &Rank, mut one: impl FnMut() -> Result<(), Error>) -> Samples {
    for _ in 0..WARM {
        one()?;
    }
    let mut samples = Vec::with_capacity(own.case.rounds);
    for _ in 0..own.case.rounds {
        let begin = Instant::now();
        one()?;
        samples.push(begin.elapsed().as_nanos() as u64);
    }
    Ok(samples)
}

/// So many increments.
fn compute(loops: u64, each: u64) {
    let mut sum = 0u64;
    for _ in 0..loops * each {
        sum = black_box(sum + 1);
    }
}

fn put(own: &Rank, data: &Cells, to: u32) -> Result<(), Error> {
    let (byte, count) = (byte(), own.case.bytes as u64);
    own.window().put(Source::cells(data, 0, count, &byte), Target::new(to, 0, count, &byte))
}

fn get(own: &Rank, data: &Cells, from: u32) -> Result<(), Error> {
    let (byte, count) = (byte(), own.case.bytes as u64);
    own.window().get(Destination::new(data, 0, count, &byte), Target::new(from, 0, count, &byte))
}

fn latency(own: &Rank) -> Samples {
    let data = Cells::zeroed(own.case.bytes);
    let other = 1 - own.rank;
    let mut samples = rounds(own, || {
        for origin in [0, 1] {
            if origin == own.rank {
                own.window().start(&[other], NONE)?;
                put(own, &data, other)?;
                own.window().complete()?;
            } else {
                own.window().post(&[other], NONE)?;
                own.window().wait()?;
            }
        }
        Ok(())
    })?;
    samples.iter_mut().for_each(|sample| *sample /= 2);
    Ok(samples)
}

fn bidirectional(own: &Rank) -> Samples {
    let data = Cells::zeroed(own.case.bytes);
    own.window().fence(NONE)?;
    rounds(own, || {
        put(own, &data, 1 - own.rank)?;
        own.window().fence(NONE)
    })
}

/// Rank 0 is the origin of epochs with 16 operations.
fn epochs(own: &Rank) -> Samples {
    let data = Cells::zeroed(own.case.bytes);
    rounds(own, || {
        if own.rank > 0 {
            own.window().post(&[0], NONE)?;
            return own.window().wait();
        }
        own.window().start(&[1], NONE)?;
        for _ in 0..OPERATIONS {
            match own.case.program {
                Program::Get => get(own, &data, 1)?,
                _ => put(own, &data, 1)?,
            }
            compute(own.case.loops, 1000);
        }
        own.window().complete()
    })
}

/// Rank 0 is the origin, all others are targets.
fn targets(own: &Rank) -> Samples {
    let others = own.others();
    rounds(own, || {
        if own.rank > 0 {
            own.window().post(&[0], NONE)?;
            return own.window().wait();
        }
        own.window().start(&others, NONE)?;
        own.window().complete()
    })
}

/// Rank 0 is the target, all others are origins.
fn origins(own: &Rank) -> Samples {
    let data = Cells::zeroed(own.case.bytes);
    let others = own.others();
    rounds(own, || {
        if own.rank == 0 {
            own.window().post(&others, NONE)?;
            compute(own.case.loops, 10_000);
            return own.window().wait();
        }
        own.window().start(&[0], NONE)?;
        if own.case.program != Program::Synchronisation {
            for _ in 0..OPERATIONS {
                put(own, &data, 0)?;
            }
        }
        own.window().complete()
    })
}

/// One operation on rank 1.
fn act(own: &Rank, act: Act, data: &Cells, result: &Cells) -> Result<(), Error> {
    let bytes = own.case.bytes as u64;
    let words = bytes / 8;
    let word = Datatype::of(Element::U64);
    let source = Source::cells(data, 0, words, &word);
    let destination = Destination::new(result, 0, words, &word);
    let target = Target::new(1, 0, words, &word);
    match act {
        Act::Put | Act::LockPut => put(own, data, 1),
        Act::Get => get(own, result, 1),
        Act::Accumulate => own.window().accumulate(source, target, Operator::Sum),
        Act::GetAccumulate => {
            own.window().get_accumulate(Some(source), destination, target, Operator::Sum)
        }
        Act::FetchAdd => {
            own.window().fetch_and_op(Some(source), destination, target, Operator::Sum)
        }
        Act::Swap => own.window().compare_and_swap(&[0; 8], &[0; 8], destination, target),
        Act::Strided => {
            let piece = bytes / STRIDES;
            let strided = Datatype::vector(&byte(), STRIDES, piece, 2 * piece as i64);
            let strided = strided.expect("it reaches no farther than the window");
            let byte = byte();
            let source = Source::cells(data, 0, bytes, &byte);
            own.window().put(source, Target::new(1, 0, 1, &strided))
        }
    }
}

/// Opens an epoch at rank 1 for what rank 0 does there, and ends it. An act that locks has epochs of its own.
fn in_epoch(own: &Rank, what: Act, run: impl FnOnce() -> Samples) -> Samples {
    let opens = own.rank == 0 && what != Act::LockPut;
    if opens {
        own.window().lock(LockKind::Shared, 1, NONE)?;
    }
    let samples = run()?;
    if opens {
        own.window().unlock(1)?;
    }
    Ok(samples)
}

/// Acts on rank 1, so often, and waits until that is done there.
fn act_and_flush(
    own: &Rank,
    what: Act,
    count: usize,
    data: &Cells,
    result: &Cells,
) -> Result<(), Error> {
    if what == Act::LockPut {
        own.window().lock(LockKind::Exclusive, 1, NONE)?;
        act(own, what, data, result)?;
        return own.window().unlock(1);
    }
    (0..count).try_for_each(|_| act(own, what, data, result))?;
    own.window().flush(1)
}

fn both(own: &Rank) -> (Cells, Cells) {
    (Cells::zeroed(own.case.bytes), Cells::zeroed(own.case.bytes))
}

/// Rank 0 acts on rank 1, which is in a call all the time, or leaves the calls to its thread.
fn flush(own: &Rank, what: Act) -> Samples {
    let (data, result) = both(own);
    if own.rank == 1 {
        let over = own.word(0) as usize;
        while own.window().cells().load::<u64>(over) == Some(0) {
            match own.case.system {
                System::MessagesProgress => std::thread::sleep(Duration::from_micros(200)),
                _ => own.window().sync()?,
            }
        }
        return Ok(Vec::new());
    }
    let count = if matches!(own.case.program, Program::Flush16(_)) { OPERATIONS } else { 1 };
    let samples =
        in_epoch(own, what, || rounds(own, || act_and_flush(own, what, count, &data, &result)))?;
    tell_word(own, 1, 1)?;
    Ok(samples)
}

/// Sets the first word behind the data of a rank.
fn tell_word(own: &Rank, rank: u32, value: u64) -> Result<(), Error> {
    let word = Datatype::of(Element::U64);
    let bytes = value.to_ne_bytes();
    own.window().lock(LockKind::Shared, rank, NONE)?;
    own.window().put(Source::slice(&bytes, 1, &word), Target::new(rank, own.word(0), 1, &word))?;
    own.window().unlock(rank)
}

/// Rank 0 acts on rank 1 while that computes.
fn computing(own: &Rank, what: Act) -> Samples {
    let (data, result) = both(own);
    let one = || act_and_flush(own, what, 1, &data, &result);
    in_epoch(own, what, || beside(own, COMPUTES, EARLY, one))
}

pub fn compute_for(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        compute(1, 1000);
    }
}

/// Rank 1 computes, alone and beside rank 0, which acts on it until the loops are over.
fn served(own: &Rank, what: Act) -> Samples {
    let (data, result) = both(own);
    let loops = if own.rank == 1 { loops_of(COMPUTES) } else { 0 };
    let mut found = Vec::new();
    in_epoch(own, what, || {
        for round in 0..(WARM + own.case.rounds) as u64 {
            own.team.barrier()?;
            let (alone, _) = timed(loops);
            own.team.barrier()?;
            if own.rank == 1 {
                let (beside, service) = timed(loops);
                tell_word(own, 0, round + 1)?;
                found.extend([alone, beside, service]);
                continue;
            }
            let over = own.word(0) as usize;
            let mut operations = 0;
            while own.window().cells().load::<u64>(over).is_some_and(|told| told <= round) {
                act_and_flush(own, what, 1, &data, &result)?;
                operations += 1;
            }
            found.push(operations);
        }
        own.team.barrier()?;
        Ok(Vec::new())
    })?;
    let bytes: Vec<u8> = found.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let told = own.team.exchange(&bytes)?;
    let numbers = |rank: usize| told[rank].as_chunks().0.iter().copied().map(u64::from_ne_bytes);
    let (operations, loops): (Vec<u64>, Vec<u64>) = (numbers(0).collect(), numbers(1).collect());
    let rounds = loops.as_chunks().0.iter().zip(operations).skip(WARM);
    let round = |(&[alone, beside, service], operations): (&[u64; 3], u64)| Served {
        alone,
        beside,
        service,
        operations,
    };
    Ok(rounds.map(round).flat_map(Served::encode).collect())
}

/// So many loops of 1,000 increments take about this time of a processor.
fn loops_of(time: Duration) -> u64 {
    let (time, mut loops) = (time.as_nanos() as u64, 1);
    loop {
        let begin = host::thread_cpu_nanos();
        compute(loops, 1000);
        let took = host::thread_cpu_nanos() - begin;
        if took >= time / 4 {
            return loops * time / took;
        }
        loops *= 2;
    }
}

/// Nanoseconds of so many loops, and the processor time that the other threads of this process took meanwhile.
fn timed(loops: u64) -> (u64, u64) {
    let others = || host::own_cpu_nanos().saturating_sub(host::thread_cpu_nanos());
    let (before, begin) = (others(), Instant::now());
    compute(loops, 1000);
    let took = begin.elapsed().as_nanos() as u64;
    (took, others().saturating_sub(before))
}

/// Puts alone, then beside a computation of the target that takes as long as one.
fn passive_put(own: &Rank) -> Samples {
    let (data, result) = both(own);
    let one = || act_and_flush(own, Act::Put, 1, &data, &result);
    in_epoch(own, Act::Put, || {
        let mut samples = beside(own, Duration::ZERO, Duration::ZERO, one)?;
        let alone = median(samples.iter().map(|it| *it as f64).collect()) as u64;
        let told = own.team.exchange(&alone.to_ne_bytes())?;
        let alone = told[0][..].try_into().map_or(0, u64::from_ne_bytes);
        samples.extend(beside(own, Duration::from_nanos(alone), Duration::ZERO, one)?);
        Ok(samples)
    })
}

/// Rounds, between barriers, in which rank 1 computes for so long. Rank 0 acts a moment after it began.
fn beside(
    own: &Rank,
    time: Duration,
    early: Duration,
    one: impl Fn() -> Result<(), Error>,
) -> Samples {
    let mut samples = Vec::new();
    for round in 0..WARM + own.case.rounds {
        own.team.barrier()?;
        if own.rank == 1 {
            compute_for(time);
            continue;
        }
        compute_for(early);
        let begin = Instant::now();
        one()?;
        if round >= WARM {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    own.team.barrier()?;
    Ok(samples)
}

/// Figure 6 without a window.
fn sendrecv(own: &Rank, mail: &Mail) -> Samples {
    let (data, result) = both(own);
    rounds(own, || mail.swap(data.all(), result.all()))
}

/// Messages to and fro. Both ranks poll.
fn polling(own: &Rank, mail: &Mail) -> Samples {
    let (data, result) = both(own);
    let mut samples = rounds(own, || {
        if own.rank == 0 {
            mail.send(data.all())?;
            return mail.receive(result.all());
        }
        mail.receive(result.all())?;
        mail.send(data.all())
    })?;
    samples.iter_mut().for_each(|sample| *sample /= 2);
    Ok(samples)
}

/// Nobody calls, for so many milliseconds. How long that was.
fn idle(millis: u64) -> Vec<u64> {
    let begin = Instant::now();
    std::thread::sleep(Duration::from_millis(millis));
    vec![begin.elapsed().as_nanos() as u64]
}

fn add(own: &Rank, one: &Cells, before: &Cells) -> Result<(), Error> {
    let word = Datatype::of(Element::U64);
    let destination = Destination::new(before, 0, 1, &word);
    let target = Target::new(0, own.word(1), 1, &word);
    let source = Source::cells(one, 0, 1, &word);
    own.window().fetch_and_op(Some(source), destination, target, Operator::Sum)?;
    own.window().flush(0)
}

/// Ranks above 0 count at rank 0, which serves them.
fn counting(own: &Rank, mut each: impl FnMut(&Cells, &Cells) -> Result<(), Error>) -> Samples {
    let (one, before) = (Cells::zeroed(8), Cells::zeroed(8));
    one.store::<u64>(0, 1);
    own.window().lock_all(NONE)?;
    if own.rank > 0 {
        each(&one, &before)?;
    }
    own.window().unlock_all()?;
    Ok(Vec::new())
}

fn counter(own: &Rank) -> Samples {
    let begin = Instant::now();
    counting(own, |one, before| (0..own.case.rounds).try_for_each(|_| add(own, one, before)))?;
    own.team.barrier()?;
    Ok(vec![begin.elapsed().as_nanos() as u64 / own.case.rounds as u64])
}

fn fairness(own: &Rank) -> Samples {
    let word = Datatype::of(Element::U64);
    counting(own, |one, before| {
        let begin = Instant::now();
        let (mut count, mut overtaken, mut last) = (0u64, 0u64, None);
        while begin.elapsed() < COUNTS {
            add(own, one, before)?;
            count += 1;
            // The word counts everybody's additions.
            let now = before.load::<u64>(0).unwrap_or(0);
            overtaken = overtaken.max(last.map_or(0, |last| now - last - 1));
            last = Some(now);
        }
        let told = [count, overtaken].map(u64::to_ne_bytes);
        let at = own.word(2 * own.rank as usize);
        own.window().put(Source::slice(told.as_flattened(), 2, &word), Target::new(0, at, 2, &word))
    })?;
    own.team.barrier()?;
    let told = |rank: u32, which: usize| {
        let at = own.word(2 * rank as usize + which) as usize;
        own.window().cells().load::<u64>(at).unwrap_or(0)
    };
    let counts: Vec<f64> = own.others().into_iter().map(|rank| told(rank, 0) as f64).collect();
    let (sum, squares) = (counts.iter().sum::<f64>(), counts.iter().map(|it| it * it).sum::<f64>());
    // In thousandths of the nanoseconds that other rows have.
    let jain = sum * sum / (counts.len() as f64 * squares.max(1.0));
    let overtaken = own.others().into_iter().map(|rank| told(rank, 1)).max();
    Ok(vec![(jain * 1000.0) as u64, overtaken.unwrap_or(0)])
}
