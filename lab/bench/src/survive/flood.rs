//! Rows of a flood: calls by udp from addresses that nobody has proven, at the port of a metadata server. They show the
//! memory that it takes, and the creates of a client beside it.
//!
//! Invariant: the sender has seen an answer to a call before it floods, so the server hears such calls.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use ropewalk_base::random::Random;
use ropewalk_wire::packets::{self, CallBody, Kind, Packet, Route};

use crate::host;
use crate::lab::{Options, alternate, quoted};
use crate::order::Order;
use crate::process::{Process, next_line};
use crate::report::Outcome;
use crate::series::{Figure, OURS, direct, spread};
use crate::survive::copies::work;
use crate::survive::ground::Ground;
use crate::survive::pairs::Pair;
use crate::survive::site::pause;
use crate::survive::store::{Plan, Store, hosts, plain};
use crate::worker::Work;

const MEMORY: &str = "flood.memory";
const RATE: &str = "flood.rate";
/// Calls a second: a million a minute.
const CALLS: u64 = 16_667;
/// Runs of a full measurement of memory.
const RUNS: usize = 3;
/// MiB that a server may take, and the part of a client's rate that is to be left.
const REACH_MIB: f64 = 1.0;
const REACH_RATE: f64 = 0.9;
/// Creates that the client has under way.
const DEPTH: u64 = 8;
/// Bytes of a call, as padded for a network of 1,500 bytes.
const PACKET_BYTES: usize = 1472;
const LOOK: Duration = Duration::from_millis(100);
const ANSWER: Duration = Duration::from_secs(5);

/// The names of all rows.
pub fn rows() -> Vec<String> {
    [MEMORY, RATE].map(String::from).to_vec()
}

/// Measures the rows that are wanted.
///
/// # Errors
/// Servers do not start, or do not hear the calls.
pub fn floods(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !rows().iter().any(|row| options.wanted(row)) {
        return Ok(());
    }
    let ground = Ground::make(hosts(1))?;
    let store = Store::start(&ground, options, Plan { udp: true, ..plain(1) })?;
    let strangers = strangers(&ground, &store)?;
    let flood = |order: Order| -> anyhow::Result<Process> {
        let command = ground.command(store.stranger());
        let mut process = Process::start(command, &format!("work\n{}", order.encode()))?;
        process.hear_word("ready")?;
        Ok(process)
    };
    let order = Order::new("survive flood").with("place", store.meta_place());
    let order = order.with("net", strangers).with("rate", CALLS);
    // All that a server allocates once.
    creates(&store, 0, "warm", options.amount(4_000, 1_000))?;
    if options.wanted(MEMORY) {
        let count = options.runs.unwrap_or(if options.quick { 1 } else { RUNS }).max(1);
        let mut found = Vec::new();
        for _ in 0..count {
            found.push(memory(&store, options, &mut flood(order.clone())?)?);
        }
        emit(&told(&store, &found));
    }
    if options.wanted(RATE) {
        beside(&store, options, &|| flood(order.clone()), emit);
    }
    Ok(())
}

/// Addresses from which a stranger may call: the first two bytes of each.
fn strangers(ground: &Ground, store: &Store<'_>) -> anyhow::Result<Ipv4Addr> {
    let host = store.stranger();
    let net = "10.77.0.0/16";
    if !ground.order(host, &["link", "set", "lo", "up"])? {
        return Ok(Ipv4Addr::new(127, 77, 0, 0));
    }
    // Each address of that network is one of the stranger, and answers find their way.
    ground.order(host, &["route", "add", "local", net, "dev", "lo"])?;
    let gate = ground.place(host)?.ip().to_string();
    ground.order(0, &["route", "add", net, "via", &gate])?;
    Ok(Ipv4Addr::new(10, 77, 0, 0))
}

/// A flood at a server that has nothing else to do.
struct Taken {
    /// MiB by which its memory grows at most.
    more: f64,
    calls: u64,
    cpu_nanos: u64,
}

fn memory(store: &Store<'_>, options: &Options, flood: &mut Process) -> anyhow::Result<Taken> {
    let process = store.meta_process()?;
    let time = Duration::from_secs_f64(options.amount(60_000, 3_000) as f64 / 1e3);
    let (before, mut most) = (host::resident_bytes(process)?, 0);
    let cpu = host::cpu_nanos(process);
    flood.tell("go")?;
    let begin = Instant::now();
    while begin.elapsed() < time {
        pause(options, LOOK.min(time))?;
        most = host::resident_bytes(process)?.max(most);
    }
    let calls = end(flood)?;
    let more = most.max(host::resident_bytes(process)?).saturating_sub(before);
    let cpu_nanos = host::cpu_nanos(process).saturating_sub(cpu);
    Ok(Taken { more: more as f64 / (1 << 20) as f64, calls, cpu_nanos })
}

/// Ends a flood; its calls.
fn end(flood: &mut Process) -> anyhow::Result<u64> {
    flood.tell("stop")?;
    flood.hear_word("sent")?.parse().context("a flood does not tell its calls")
}

fn told(store: &Store<'_>, found: &[Taken]) -> Outcome {
    let values: Vec<f64> = found.iter().map(|it| it.more).collect();
    let calls: u64 = found.iter().map(|it| it.calls).sum();
    let cpu: u64 = found.iter().map(|it| it.cpu_nanos).sum();
    let each = cpu as f64 / 1e3 / calls.max(1) as f64;
    let kept = spread(values.clone()).0 <= REACH_MIB;
    let said = if kept { "kept" } else { "missed" };
    let mut params = store.params();
    params.extend([
        ("clients", "0".to_string()),
        ("calls", calls.to_string()),
        ("cpu_us_a_call", format!("{each:.2}")),
        ("reach", REACH_MIB.to_string()),
        ("kept", kept.to_string()),
        ("verdict", quoted(&format!("reach {REACH_MIB} MiB more: {said}"))),
    ]);
    direct(MEMORY, "udp", params, ("memory", "MiB"), values)
}

/// Creates of one client, beside a flood and without one.
fn beside(
    store: &Store<'_>,
    options: &Options,
    flood: &dyn Fn() -> anyhow::Result<Process>,
    emit: &mut dyn FnMut(&Outcome),
) {
    let parties = [OURS, "without-flood"];
    let names = parties.map(|party| format!("{RATE}: {party}"));
    let (count, mut calls, mut nanos) = (options.amount(20_000, 10_000), 0, 0);
    let found = alternate(options, options.runs(), &names, |turn, run| {
        if turn == 1 {
            return creates(store, run, "without", count);
        }
        let (mut flood, begin) = (flood()?, Instant::now());
        flood.tell("go")?;
        let done = creates(store, run, "beside", count)?;
        calls += end(&mut flood)?;
        nanos += begin.elapsed().as_nanos() as u64;
        Ok(done)
    });
    if options.is_interrupted() {
        return;
    }
    let mut params = store.params();
    params.extend([("clients", "1".to_string()), ("depth", DEPTH.to_string())]);
    let pair = Pair {
        name: RATE.into(),
        figure: Figure::Rate,
        other: parties[1],
        ratio: "ratio_without-flood",
        reach: Some(REACH_RATE),
        params,
    };
    let rate = calls as f64 * 1e9 / nanos.max(1) as f64;
    let own = vec![("calls", calls.to_string()), ("calls_a_second", format!("{rate:.0}"))];
    pair.outcomes(found, [own, Vec::new()]).iter().for_each(emit);
}

fn creates(store: &Store<'_>, run: usize, kind: &str, count: u64) -> anyhow::Result<Work> {
    let order = store.order("library names").with("what", "create").with("name", "f");
    let order = order.with("folder", format!("/{kind}{run}")).with("count", count);
    work(store, &order.with("depth", DEPTH))
}

/// Plays the part of somebody who calls from addresses of others.
pub fn flood(order: &Order) -> anyhow::Result<()> {
    let place: SocketAddr = order.get("place")?;
    let (net, rate): (Ipv4Addr, u64) = (order.get("net")?, order.get("rate")?);
    let mut random = Random::from_seed(1);
    ensure!(
        is_heard(place, &mut random)?,
        "the server at udp://{place} answers no calls: see whether it listens there"
    );
    println!("ready");
    ensure!(next_line()?.as_deref() == Some("go"), "nobody waits for this flood");
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    std::thread::spawn(move || {
        // Anything, or the end of the bench, is enough.
        let _ = next_line();
        stops.store(true, Ordering::Relaxed);
    });
    let (begin, mut sent) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * rate as f64) as u64;
        for _ in 0..due.saturating_sub(sent).min(rate / 100) {
            let [first, second, ..] = net.octets();
            let [third, fourth, ..] = random.next_u64().to_le_bytes();
            let from = Ipv4Addr::new(first, second, third, fourth.clamp(1, 254));
            // A port of its own for each call, too. One that finds no room counts as none.
            let call = call(&mut random);
            let gone = UdpSocket::bind((from, 0)).and_then(|socket| socket.send_to(&call, place));
            sent += u64::from(gone.is_ok());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("sent {sent}");
    Ok(())
}

/// A call for a link, as a client's first packet.
fn call(random: &mut Random) -> Vec<u8> {
    // A `CallBody`: no refusal, no cookie.
    let mut body = [0; size_of::<CallBody>()];
    body[..2].copy_from_slice(&packets::VERSION.to_le_bytes());
    body[2..4].copy_from_slice(&(PACKET_BYTES as u16).to_le_bytes());
    body[4..8].copy_from_slice(&(random.next_u64() as u32 | 1).to_le_bytes());
    body[8..16].copy_from_slice(&random.next_u64().to_le_bytes());
    let mut out = vec![0; PACKET_BYTES];
    let route = Route { to: 0, from: 0, tag: 0 };
    let payload = PACKET_BYTES - packets::overhead(Kind::Call);
    packets::seal(&mut out, Kind::Call, route, &body, payload, |bytes| bytes.fill(0));
    out
}

/// Whether a call gets an answer.
fn is_heard(place: SocketAddr, random: &mut Random) -> anyhow::Result<bool> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(LOOK))?;
    let begin = Instant::now();
    let mut answer = [0; 2048];
    while begin.elapsed() < ANSWER {
        socket.send_to(&call(random), place)?;
        let Ok((bytes, _)) = socket.recv_from(&mut answer) else { continue };
        let opened = packets::open(&answer[..bytes]).map(|opened| opened.packet);
        if matches!(opened, Ok(Packet::Answer(_))) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_that_servers_open() {
        let call = call(&mut Random::from_seed(7));
        assert_eq!(call.len(), PACKET_BYTES);
        let opened = packets::open(&call).expect("its checksum holds");
        assert!(matches!(opened.packet, Packet::Call(body) if body.call.get() != 0));
    }
}
