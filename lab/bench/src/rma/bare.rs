//! A round trip of bare sockets: what one exchange between two ranks costs at least.

use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;

use super::case::{Case, Program, WARM};
use super::programs::{COMPUTES, EARLY, compute_for};
use super::rank::exchange;
use crate::raw::Stream;

/// Plays a rank: nanoseconds of each round, at rank 0.
pub fn run(case: &Case, rank: u32) -> anyhow::Result<Vec<u64>> {
    if rank == 0 {
        let addresses = exchange("nowhere")?;
        let stream = TcpStream::connect(addresses.get(1).context("there is no rank 1")?)?;
        return ask(case, Stream::new(stream, "spin")?);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    exchange(&listener.local_addr()?.to_string())?;
    let accepted = listener.accept()?.0;
    if !matches!(case.program, Program::Computing(_)) {
        answer(case, Stream::new(accepted, "spin")?);
        return Ok(Vec::new());
    }
    // The program computes, and a thread beside it answers.
    let over = AtomicBool::new(false);
    let stream = Stream::new(accepted, "block")?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            answer(case, stream);
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            compute_for(COMPUTES);
        }
    });
    Ok(Vec::new())
}

fn ask(case: &Case, mut stream: Stream) -> anyhow::Result<Vec<u64>> {
    let (out, mut into) = (vec![1; case.bytes], vec![1; case.bytes]);
    let mut samples = Vec::with_capacity(case.rounds);
    for round in 0..WARM + case.rounds {
        if matches!(case.program, Program::Computing(_)) {
            compute_for(EARLY);
        }
        let begin = Instant::now();
        stream.write(&out)?;
        stream.read(&mut into)?;
        if round >= WARM {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok(samples)
}

/// Until the other rank hangs up.
fn answer(case: &Case, mut stream: Stream) {
    let (out, mut into) = (vec![1; case.bytes], vec![1; case.bytes]);
    while stream.read(&mut into).is_ok() && stream.write(&out).is_ok() {}
}
