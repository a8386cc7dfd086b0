//! Both sides of a stream, each a process in a namespace of its own.

use std::io::Write;
use std::net::Ipv4Addr;

use anyhow::{Context, bail};

use crate::paths::bare::Bare;
use crate::paths::ours::Ours;
use crate::paths::presence::Medium;
use crate::process::next_line;

/// The system of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Ours(Medium),
    Tcp,
    /// TCP over several paths.
    Many,
}

impl System {
    /// For another process: the part of one side (0 sends, 1 receives) with the places where it listens.
    pub fn part(self, side: usize, places: &str) -> String {
        let word = match self {
            System::Ours(medium) => medium.name(),
            System::Tcp => "bare",
            System::Many => "many",
        };
        format!("paths stream {word} {side} {places}")
    }
}

/// For another process: the part of an endpoint that sends to two receivers.
pub fn pair_part(medium: Medium, places: &str) -> String {
    format!("paths pair {} {places}", medium.name())
}

/// Plays the part that [`pair_part`] describes, without its first words.
pub fn serve_pair(words: &str) -> anyhow::Result<()> {
    let (medium, places) = words.split_once(' ').context("a sender has a medium and places")?;
    let medium = Medium::named(medium).with_context(|| format!("'{medium}' is no medium"))?;
    let mut side = Ours::open(medium, places)?;
    say(&format!("url {}", side.url()))?;
    for _ in 0..2 {
        side.call(&other_url()?)?;
    }
    say("met")?;
    let line = next_line()?.context("nobody says when to begin")?;
    let times: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
    let [first, second, until] = times?[..] else { bail!("'{line}' is not three times") };
    let sent = side.pour_to_all(&[first, second], until)?;
    say(&format!("sent {} {} {}", sent[0], sent[1], side.frames_re_sent()))?;
    // Its endpoint has to live until the other side is done.
    next_line().map(drop)
}

/// Prints a line for the process that started this one.
pub fn say(line: &str) -> anyhow::Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// Plays the part that [`System::part`] describes, without its first words.
pub fn serve(words: &str) -> anyhow::Result<()> {
    let mut parts = words.split(' ');
    let (Some(system), Some(side), Some(places)) = (parts.next(), parts.next(), parts.next())
    else {
        bail!("'{words}' is no side of a stream");
    };
    let is_sender = side == "0";
    if let Some(medium) = Medium::named(system) {
        return serve_ours(Ours::open(medium, places)?, is_sender);
    }
    let address: Ipv4Addr = places.parse().with_context(|| format!("'{places}' is no address"))?;
    let bare = Bare::open(system == "many", (!is_sender).then_some(address))?;
    serve_bare(bare, is_sender)
}

fn other_url() -> anyhow::Result<String> {
    next_line()?.context("nobody says who the other side is")
}

/// Until when to send.
fn until() -> anyhow::Result<u64> {
    let line = next_line()?.context("nobody says when to begin")?;
    line.parse().with_context(|| format!("'{line}' is no time"))
}

fn serve_ours(mut side: Ours, is_sender: bool) -> anyhow::Result<()> {
    say(&format!("url {}", side.url()))?;
    let other = other_url()?;
    if is_sender {
        side.call(&other)?;
        say("met")?;
        let until = until()?;
        let sent = side.pour(until)?;
        say(&format!("sent {sent} {}", side.frames_re_sent()))?;
    } else {
        side.answer()?;
        say("met")?;
        say(&format!("came {}", side.drink()?.encode()))?;
    }
    // Its endpoint has to live until the other side is done.
    next_line().map(drop)
}

fn serve_bare(mut side: Bare, is_sender: bool) -> anyhow::Result<()> {
    say(&format!("url {}", side.url()?))?;
    let other = other_url()?;
    side.meet(&other)?;
    say("met")?;
    if is_sender {
        let until = until()?;
        say(&format!("sent {} 0", side.pour(until)?))?;
    } else {
        say(&format!("came {}", side.drink()?.encode()))?;
    }
    next_line().map(drop)
}
