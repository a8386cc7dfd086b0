//! A process of a kernel: a member of the group, told what to compute.

use std::time::Instant;

use anyhow::{Context, bail};

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

/// Plays the part that [`part`] describes, without its first words.
pub fn serve(words: &str) -> anyhow::Result<()> {
    let parts: Vec<&str> = words.split(' ').collect();
    let [medium, rank, channels, places] = parts[..] else { bail!("'{words}' is no rank") };
    let medium = Medium::named(medium).with_context(|| format!("'{medium}' carries nothing"))?;
    let endpoint = presence::open(medium, places)?;
    say(&format!("url {}", endpoint.addresses()))?;
    let peers = next_line()?.context("nobody says who the others are")?;
    let peers: Vec<&str> = peers.split(' ').collect();
    let mut group = Group::new(endpoint, rank.parse()?, &peers, channels.parse()?)?;
    group.barrier()?;
    say("met")?;
    let mut reference = wavefront::Reference::default();
    while let Some(line) = next_line()? {
        let nanos = run(&mut group, &line, &mut reference)?;
        say(&format!("ran {nanos}"))?;
    }
    Ok(())
}

/// Computes what a line says, so many times. Returns the nanoseconds in which all members did.
fn run(group: &mut Group, line: &str, reference: &mut wavefront::Reference) -> anyhow::Result<u64> {
    let words: Vec<&str> = line.split(' ').collect();
    let [kernel, class, times] = words[..] else { bail!("'{line}' is no kernel") };
    let kernel = Kernel::named(kernel).with_context(|| format!("'{kernel}' is no kernel"))?;
    let class = Class::named(class).with_context(|| format!("'{class}' is no class"))?;
    let times: usize = times.parse()?;
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
    swept.iter().try_for_each(|swept| swept.check(reference))?;
    Ok(nanos)
}
