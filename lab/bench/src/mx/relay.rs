//! A relay between two pairs of cards that drops frames: this kernel may have no network emulator.

use std::io::Write;
use std::os::fd::OwnedFd;

use anyhow::Context;
use ropewalk_base::random::Random;
use ropewalk_rail_ether::bare::{OFFLOAD_HEADER_BYTES, all_frames};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::mx::wire::{LEFT, RIGHT, enter};

/// The longest that the kernel hands over.
const FRAME_BYTES: usize = (1 << 16) + 256 + OFFLOAD_HEADER_BYTES;
/// Bytes of frames that wait for the relay.
const QUEUE_BYTES: usize = 64 << 20;
/// Frames of one direction before it is the other's turn.
const TURN: usize = 64;
/// Losses are the same in each run.
const SEED: u64 = 7;

/// Carries frames until this process is ended; `words`: whose namespace, and how many of a million are lost.
pub fn run(words: &str) -> anyhow::Result<()> {
    let (holder, lost_ppm) = words.split_once(' ').context("what is lost?")?;
    enter(holder.parse()?)?;
    let lost_ppm: u32 = lost_ppm.parse()?;
    let sockets = [all_frames(LEFT)?, all_frames(RIGHT)?];
    for socket in &sockets {
        sockopt::set_socket_recv_buffer_size_force(socket, QUEUE_BYTES)?;
    }
    println!("ready");
    std::io::stdout().flush()?;
    let mut random = Random::from_seed(SEED);
    let mut frame = vec![0; FRAME_BYTES];
    loop {
        let mut ready =
            [PollFd::new(&sockets[0], PollFlags::IN), PollFd::new(&sockets[1], PollFlags::IN)];
        poll(&mut ready, None)?;
        for (from, to) in [(0, 1), (1, 0)] {
            for _ in 0..TURN {
                match recv(&sockets[from], &mut frame[..], RecvFlags::DONTWAIT) {
                    Ok((bytes, _)) if !random.chance(lost_ppm) => {
                        pass_on(&sockets[to], &frame[..bytes])?;
                    }
                    Ok(_) => {}
                    Err(Errno::AGAIN) => break,
                    // The card was taken down: nothing comes any more.
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn pass_on(socket: &OwnedFd, frame: &[u8]) -> anyhow::Result<()> {
    loop {
        match send(socket, frame, SendFlags::DONTWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                poll(&mut [PollFd::new(socket, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
