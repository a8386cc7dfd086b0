//! A round trip of bare sockets: what one exchange between two ranks costs at least. Over raw frames and datagrams it is one of
//! each, and nothing is lost.

use std::io::{ErrorKind, Result};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use ropewalk_rail_ether::bare::frames_of;
use ropewalk_wire::mxoe::Station;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::case::{Case, Program, WARM};
use super::place::{self, Place};
use super::programs::{COMPUTES, EARLY, compute_for};
use super::rank::exchange;
use crate::raw::Stream;

/// For experiments within a local network (IEEE 802).
const ETHERTYPE: u16 = 0x88b5;
const HEADER_BYTES: usize = 14;
const FRAME_BYTES_MIN: usize = 60;

/// A socket to the other rank.
enum Line {
    Stream(Stream),
    Datagrams(UdpSocket),
    Frames { socket: OwnedFd, header: [u8; HEADER_BYTES], frame: Vec<u8> },
}

/// Plays a rank: nanoseconds of each round, at rank 0.
pub fn run(case: &Case, rank: u32, place: &Place) -> anyhow::Result<Vec<u64>> {
    let computes = matches!(case.program, Program::Computing(_));
    let spins = rank == 0 || !computes;
    let line = match place::scheme(case.medium) {
        "udp" => datagrams(rank, place, spins)?,
        "ether" => frames(rank, place, spins)?,
        _ => stream(rank, place, spins)?,
    };
    if rank == 0 {
        return Ok(ask(case, line)?);
    }
    if spins {
        answer(case, line)?;
        return Ok(Vec::new());
    }
    // The program computes, and a thread beside it answers.
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let answered = answer(case, line);
            over.store(true, Ordering::Relaxed);
            answered
        });
        while !over.load(Ordering::Relaxed) {
            compute_for(COMPUTES);
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(Vec::new())
}

fn stream(rank: u32, place: &Place, spins: bool) -> anyhow::Result<Line> {
    let socket = if rank == 0 {
        let addresses = exchange("nowhere")?;
        TcpStream::connect(addresses.get(1).context("there is no rank 1")?)?
    } else {
        let listener = TcpListener::bind((place.host(), 0))?;
        exchange(&listener.local_addr()?.to_string())?;
        listener.accept()?.0
    };
    Ok(Line::Stream(Stream::new(socket, if spins { "spin" } else { "block" })?))
}

fn datagrams(rank: u32, place: &Place, spins: bool) -> anyhow::Result<Line> {
    let socket = UdpSocket::bind((place.host(), 0))?;
    let addresses = exchange(&socket.local_addr()?.to_string())?;
    socket.connect(addresses.get(1 - rank as usize).context("there is no other rank")?)?;
    socket.set_nonblocking(spins)?;
    Ok(Line::Datagrams(socket))
}

fn frames(rank: u32, place: &Place, spins: bool) -> anyhow::Result<Line> {
    let name = place.interface.as_deref().context("raw frames need an interface")?;
    let card = ropewalk_rail_ether::interfaces().into_iter().find(|it| it.name == name);
    let card = card.with_context(|| format!("there is no interface {name}"))?;
    let socket = frames_of(name, ETHERTYPE)?;
    ioctl_fionbio(&socket, spins)?;
    let stations = exchange(&card.station.to_string())?;
    let other = stations.get(1 - rank as usize).context("there is no other rank")?;
    let other: Station = other.parse().ok().with_context(|| format!("'{other}' is no station"))?;
    let mut header = [0; HEADER_BYTES];
    header[..6].copy_from_slice(&other.0);
    header[6..12].copy_from_slice(&card.station.0);
    header[12..].copy_from_slice(&ETHERTYPE.to_be_bytes());
    Ok(Line::Frames { socket, header, frame: Vec::new() })
}

impl Line {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Line::Stream(stream) => stream.write(bytes),
            Line::Datagrams(socket) => socket.send(bytes).map(drop),
            Line::Frames { socket, header, frame } => {
                frame.clear();
                frame.extend_from_slice(header);
                frame.extend_from_slice(bytes);
                frame.resize(frame.len().max(FRAME_BYTES_MIN), 0);
                send(socket.as_fd(), frame, SendFlags::NOSIGNAL).map(drop).map_err(Into::into)
            }
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        match self {
            Line::Stream(stream) => stream.read(bytes),
            Line::Datagrams(socket) => loop {
                match socket.recv(bytes) {
                    Ok(_) => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            },
            Line::Frames { socket, frame, .. } => {
                frame.resize((HEADER_BYTES + bytes.len()).max(FRAME_BYTES_MIN), 0);
                loop {
                    match recv(socket.as_fd(), &mut frame[..], RecvFlags::empty()) {
                        Ok(_) => break,
                        Err(Errno::AGAIN | Errno::INTR) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                bytes.copy_from_slice(&frame[HEADER_BYTES..HEADER_BYTES + bytes.len()]);
                Ok(())
            }
        }
    }
}

fn ask(case: &Case, mut line: Line) -> Result<Vec<u64>> {
    let (out, mut into) = (vec![1; case.bytes], vec![0; case.bytes]);
    let mut samples = Vec::with_capacity(case.rounds);
    for round in 0..WARM + case.rounds {
        if matches!(case.program, Program::Computing(_)) {
            // Our rank sleeps in a barrier so long: after a sleep the processor is slower.
            std::thread::sleep(COMPUTES - EARLY);
            compute_for(EARLY);
        }
        let begin = Instant::now();
        line.write(&out)?;
        line.read(&mut into)?;
        if round >= WARM {
            samples.push(begin.elapsed().as_nanos() as u64);
        }
    }
    Ok(samples)
}

/// As often as the other rank asks.
fn answer(case: &Case, mut line: Line) -> Result<()> {
    let (out, mut into) = (vec![1; case.bytes], vec![0; case.bytes]);
    for _ in 0..WARM + case.rounds {
        line.read(&mut into)?;
        line.write(&out)?;
    }
    Ok(())
}
