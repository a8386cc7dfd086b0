//! A process of a kernel: a member of the group, told what to compute, and meanwhile which paths to drain.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context, bail};
use ropewalk_net::Endpoint;
use ropewalk_net::migration::PathId;

use crate::paths::kernels::class::{Class, Kernel};
use crate::paths::kernels::group::Group;
use crate::paths::kernels::{fourier, sort, wavefront};
use crate::paths::presence::{self, Medium};
use crate::paths::side::say;
use crate::process::next_line;

/// The part of a process with this rank, which listens at these places.
pub fn part(medium: Medium, rank: usize, channels: usize, places: &str) -> String {
    format!("paths rank {} {rank} {channels} {places}", medium.name())
}

/// A line for a rank: it computes a kernel so many times, and compares with the result in a file where there is one.
pub fn computes(kernel: Kernel, class: Class, times: usize, reference: Option<&Path>) -> String {
    let file = reference.map(|file| file.display().to_string()).unwrap_or_default();
    format!("{} {} {times} {file}", kernel.name(), class.name())
}

/// A line for a rank: it drains its paths over a rail, or takes that back. It does so while it computes.
pub fn drains(rail: usize, begins: bool) -> String {
    format!("{} {rail}", if begins { DRAIN } else { UP })
}

const DRAIN: &str = "drain";
const UP: &str = "up";

/// Plays the part that [`part`] describes, without its first words.
pub fn serve(words: &str) -> anyhow::Result<()> {
    let parts: Vec<&str> = words.split(' ').collect();
    let [medium, rank, channels, places] = parts[..] else { bail!("'{words}' is no rank") };
    let medium = Medium::named(medium).with_context(|| format!("'{medium}' carries nothing"))?;
    let endpoint = presence::open(medium, places)?;
    say(&format!("url {}", endpoint.addresses()))?;
    let peers = next_line()?.context("nobody says who the others are")?;
    let peers: Vec<&str> = peers.split(' ').collect();
    let orders = listen(endpoint.clone());
    let mut group = Group::new(endpoint, rank.parse()?, &peers, channels.parse()?)?;
    group.barrier()?;
    say("met")?;
    let mut reference = None;
    while let Ok(line) = orders.recv() {
        let nanos = run(&mut group, &line, &mut reference)?;
        say(&format!("ran {nanos}"))?;
    }
    Ok(())
}

/// Follows orders about paths at once, in a thread of its own, and hands all others over.
fn listen(endpoint: Endpoint) -> Receiver<String> {
    let (others, orders) = channel();
    std::thread::spawn(move || {
        while let Ok(Some(line)) = next_line() {
            if let Some((what @ (DRAIN | UP), rail)) = line.split_once(' ') {
                drain(&endpoint, rail, what == DRAIN);
            } else if others.send(line).is_err() {
                return;
            }
        }
    });
    orders
}

/// Drains the paths over a rail, or takes that back. A path that is gone or the last one of its session is left alone.
fn drain(endpoint: &Endpoint, rail: &str, begins: bool) {
    let Ok(rail) = rail.parse::<u8>() else { return };
    let views = endpoint.path_status().paths;
    for view in views.iter().filter(|view| view.status.is_bundle && view.rail.index == rail) {
        let (peer, path) = (view.peer.peer, PathId(view.status.path));
        // Where both sides drain it, the second one is refused.
        let _ = match begins {
            true => endpoint.drain_path(peer, path),
            false => endpoint.up_path(peer, path),
        };
    }
}

/// Computes what a line says, so many times. Returns the nanoseconds in which all members did.
fn run(
    group: &mut Group,
    line: &str,
    reference: &mut Option<wavefront::Reference>,
) -> anyhow::Result<u64> {
    let words: Vec<&str> = line.splitn(4, ' ').collect();
    let [kernel, class, times, ref file @ ..] = words[..] else { bail!("'{line}' is no kernel") };
    let kernel = Kernel::named(kernel).with_context(|| format!("'{kernel}' is no kernel"))?;
    let class = Class::named(class).with_context(|| format!("'{class}' is no class"))?;
    let times: usize = times.parse()?;
    if let ([file], None) = (file, &reference) {
        *reference = Some(wavefront::Reference::read(class, Path::new(file))?);
    }
    let mut swept = Vec::new();
    group.barrier()?;
    let begin = Instant::now();
    for _ in 0..times {
        match kernel {
            Kernel::Is => sort::run(group, class)?,
            Kernel::Ft => fourier::run(group, class)?,
            Kernel::Lu => swept.push(wavefront::run(group, class)?),
        }
    }
    group.barrier()?;
    let nanos = begin.elapsed().as_nanos() as u64;
    for block in &swept {
        block.check(reference.as_ref().context("there is nothing to compare with")?)?;
    }
    Ok(nanos)
}
