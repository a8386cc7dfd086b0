//! Network namespaces with cards, and the processes in them.
//!
//! Invariant: a namespace is kept by a process alone, its *holder*, and has no name: with the holder, which ends
//! with the process that started it, go its namespace and the cards in it.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use ropewalk_rail_ether::bare::join_segments;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::mx::side::Role;
use crate::mx::sweeps::CROWD;
use crate::process::{Process, next_line};

/// The card of each side.
pub const CARD: &str = "mx0";
/// Cards of the relay.
pub const LEFT: &str = "left";
pub const RIGHT: &str = "right";

/// The IP address of a side.
pub fn host(side: usize) -> String {
    format!("10.77.0.{}", side + 1)
}

/// The interrupt deferral of a card with NAPI: it interrupts after `looks` empty polls, `nanos` nanoseconds apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waits {
    pub looks: u32,
    pub nanos: u32,
}

/// The link between two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    pub mtu: usize,
    /// A relay loses so many of a million frames.
    pub lost_ppm: Option<u32>,
    /// The rate limit of either card, in Gbit/s; 0: no limit.
    pub gigabits: u32,
    /// Cards have NAPI, and wait so; `None`: as they are by themselves.
    pub waits: Option<Waits>,
}

/// The burst of a shaped line, in bytes: frames that the kernel segments later count as one frame for it.
const BURST_BYTES: u32 = 70_000;
/// Bytes that wait for a shaped line: more than any window, so that nothing is lost.
const SHAPED_BYTES: u32 = 16 << 20;

/// Two sides, joined by a pair of virtual cards, or by a relay between two pairs.
pub struct Wire {
    sides: [Holder; 2],
    /// Namespace and process of the relay.
    _relay: Option<(Process, Holder)>,
}

/// A process that keeps a namespace.
struct Holder(Process);

impl Holder {
    fn start() -> anyhow::Result<Holder> {
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount"]).arg(std::env::current_exe()?).stderr(Stdio::null());
        let needs = "cannot create network namespaces: run as root, with unshare (util-linux) and \
             ip (iproute2) installed";
        let mut process = Process::start(command, "mx hold").context(needs)?;
        process.hear_word("held").map_err(|_| anyhow!(needs))?;
        Ok(Holder(process))
    }

    /// Lets `ip` do something in it.
    fn ip(&mut self, line: &str) -> anyhow::Result<()> {
        self.ask(&format!("ip {line}"))
    }

    fn ask(&mut self, line: &str) -> anyhow::Result<()> {
        self.0.tell(line)?;
        match self.0.hear()?.as_str() {
            "done" => Ok(()),
            said => bail!("'{line}' failed: {said}"),
        }
    }

    /// Brings a card up.
    fn bring_up(&mut self, card: &str) -> anyhow::Result<()> {
        // Without IPv6 addresses: their announcements would be measured, too.
        self.ip(&format!("link set {card} addrgenmode none"))?;
        self.ip(&format!("link set {card} up"))
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

/// Carries out what a holder is told, until the process that started it hangs up.
pub fn hold() -> anyhow::Result<()> {
    println!("held");
    std::io::stdout().flush()?;
    while let Some(line) = next_line()? {
        let done = match line.strip_prefix("waits ") {
            Some(words) => set_waits(words),
            None => carry_out(&line),
        };
        match done {
            Ok(()) => println!("done"),
            Err(error) => println!("{error:#}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Runs a command, until it is over.
fn carry_out(line: &str) -> anyhow::Result<()> {
    let mut words = line.split(' ');
    let output =
        Command::new(words.next().unwrap_or_default()).args(words).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}", said.lines().next().unwrap_or("it did not say why"));
    }
    Ok(())
}

/// Lets the card of this namespace wait as the words say.
fn set_waits(words: &str) -> anyhow::Result<()> {
    let (looks, nanos) = words.split_once(' ').context("how long?")?;
    // `/sys` shows the namespace in which it was mounted; no other process sees this mount.
    carry_out("mount -t sysfs none /sys")?;
    join_segments(CARD).context("the card has no NAPI")?;
    for (name, value) in [("napi_defer_hard_irqs", looks), ("gro_flush_timeout", nanos)] {
        let path = format!("/sys/class/net/{CARD}/{name}");
        std::fs::write(&path, value).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Brings this process, which has one thread so far, to where a holder is.
pub fn enter(holder: u32) -> anyhow::Result<()> {
    let path = format!("/proc/{holder}/ns/net");
    let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
    let network = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), network)
        .context("cannot enter the network namespace")
}

/// Frames that have left or come by this process's card.
pub fn frames() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let line = table.lines().find_map(|line| line.trim_start().strip_prefix("mx0:"));
    let numbers: Vec<u64> = line
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .unwrap_or_default();
    [1, 9].iter().filter_map(|column| numbers.get(*column)).sum()
}

impl Wire {
    /// Builds the link that a [`Line`] describes.
    pub fn new(line: &Line) -> anyhow::Result<Wire> {
        let mut wire = match line.lost_ppm {
            None => Wire::direct(line.mtu)?,
            Some(lost_ppm) => Wire::relayed(line.mtu, lost_ppm)?,
        };
        for side in &mut wire.sides {
            if line.gigabits > 0 {
                let rate = line.gigabits;
                let limits = format!("burst {BURST_BYTES} limit {SHAPED_BYTES}");
                side.ask(&format!("tc qdisc add dev {CARD} root tbf rate {rate}gbit {limits}"))?;
            }
            if let Some(Waits { looks, nanos }) = line.waits {
                side.ask(&format!("waits {looks} {nanos}"))?;
            }
        }
        Ok(wire)
    }

    /// A pair of cards.
    fn direct(mtu: usize) -> anyhow::Result<Wire> {
        let mut sides = [Holder::start()?, Holder::start()?];
        let far = sides[1].id();
        let card = format!("name {CARD} mtu {mtu}");
        sides[0].ip(&format!("link add {card} type veth peer {card} netns {far}"))?;
        let mut wire = Wire { sides, _relay: None };
        wire.bring_up()?;
        Ok(wire)
    }

    /// Two pairs, and between them a process that loses so many of a million frames.
    fn relayed(mtu: usize, lost_ppm: u32) -> anyhow::Result<Wire> {
        let mut sides = [Holder::start()?, Holder::start()?];
        let mut middle = Holder::start()?;
        for (side, plug) in sides.iter_mut().zip([LEFT, RIGHT]) {
            let ends = format!("name {plug} mtu {mtu} netns {}", middle.id());
            side.ip(&format!("link add name {CARD} mtu {mtu} type veth peer {ends}"))?;
            middle.bring_up(plug)?;
            // The relay then loses single frames, not dozens that the kernel would segment later.
            side.ip(&format!("link set {CARD} gso_max_segs 1"))?;
        }
        let command = Command::new(std::env::current_exe()?);
        let mut relay = Process::start(command, &format!("mx relay {} {lost_ppm}", middle.id()))?;
        relay.hear_word("ready")?;
        let mut wire = Wire { sides, _relay: Some((relay, middle)) };
        wire.bring_up()?;
        Ok(wire)
    }

    fn bring_up(&mut self) -> anyhow::Result<()> {
        for (side, holder) in self.sides.iter_mut().enumerate() {
            holder.ip(&format!("address add {}/24 dev {CARD}", host(side)))?;
            holder.bring_up(CARD)?;
        }
        Ok(())
    }

    /// Starts both sides, and lets them know each other; the one that measures is first.
    pub fn start(&self, role: &Role) -> anyhow::Result<[Process; 2]> {
        let start = |side: usize| {
            let role = Role { holder: self.sides[side].id(), side, ..role.clone() };
            let part = format!("mx side {}", role.encode());
            Process::start(Command::new(std::env::current_exe()?), &part)
        };
        let mut pair = [start(0)?, start(1)?];
        let urls = [pair[0].hear_word("url")?, pair[1].hear_word("url")?];
        pair[1].tell(&urls[0])?;
        pair[0].tell(&urls[1])?;
        for process in &mut pair {
            process.hear_word("met")?;
        }
        Ok(pair)
    }

    /// Starts processes beside the side that answers, which have endpoints and do nothing with them.
    pub fn crowd(&self, role: &Role, processes: usize) -> anyhow::Result<Vec<Process>> {
        let (holder, side) = (self.sides[1].id(), 1);
        let role = Role { holder, side, neighbours: CROWD, ..role.clone() };
        let start = |_| {
            let part = format!("mx idle {}", role.encode());
            let mut process = Process::start(Command::new(std::env::current_exe()?), &part)?;
            process.hear_word("idle")?;
            Ok(process)
        };
        (0..processes).map(start).collect()
    }
}
