//! Half round trips of a raw socket and of the rail, both spinning, alternating in one run.
//!
//! `cargo run --release -p ropewalk-rail-tcp --example pingpong [millis]`: two threads of one
//! process, each pinned to a core of its own where there are two. Each run lasts so many
//! milliseconds. Two spinning threads suffer from every third one, so a run counts with its best
//! batch of round trips; on a machine that does nothing else best and median are close. The last
//! lines send data frames, and say how many of their bytes were staged.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    FrameOrder, Header, LinkId, Ordered, Placement, RemoteKey, Token, Urgency,
};
use ropewalk_rail::{Rail, Report};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

const HEADER_BYTES: usize = 48;
const FRAME_BYTES: usize = 256 * 1024;
const RUNS: usize = 9;
/// Cores of this process, asked before the first thread is pinned: a pinned one sees its own only.
static CORES: OnceLock<usize> = OnceLock::new();
/// Round trips that are timed together.
const BATCH: u64 = 20;

fn main() {
    let millis = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(300);
    let length = Duration::from_millis(millis);
    println!("half round trip, spinning, best batch of a run: median of {RUNS} runs [min .. max]");
    for bytes in [8, 1024] {
        let (mut raw, mut rail) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            raw.push(raw_half_round_trip(bytes, length));
            rail.push(rail_half_round_trip(bytes, length));
        }
        let (raw, rail) = (summary(&mut raw), summary(&mut rail));
        for (name, (median, least, most)) in [("raw ", raw), ("rail", rail)] {
            println!("{bytes:5} B  {name} {median:7.3} us  [{least:.3} .. {most:.3}]");
        }
        println!("{bytes:5} B  rail / raw = {:.3}, best of all runs", rail.1 / raw.1);
    }
    stream(2000);
}

fn summary(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Half of the round trip's time in microseconds, of the best batch.
fn best_batch(length: Duration, mut round_trip: impl FnMut()) -> f64 {
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < length {
        let batch = Instant::now();
        for _ in 0..BATCH {
            round_trip();
        }
        best = best.min(batch.elapsed());
    }
    best.as_secs_f64() * 1e6 / BATCH as f64 / 2.0
}

fn pin(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core % *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from)));
    // Without the right to pin the figures are worse, for both alike.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn spin_read(stream: &mut TcpStream, mut buffer: &mut [u8]) -> bool {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return false,
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("raw read: {error}"),
        }
    }
    true
}

fn raw_half_round_trip(bytes: usize, length: Duration) -> f64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback");
    let address = listener.local_addr().expect("bound");
    let tune = |stream: &TcpStream| {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_nonblocking(true).expect("non-blocking");
    };
    let echo = thread::spawn(move || {
        pin(1);
        let (mut stream, _) = listener.accept().expect("accept");
        tune(&stream);
        let mut buffer = vec![0; bytes];
        while spin_read(&mut stream, &mut buffer) {
            stream.write_all(&buffer).expect("raw write");
        }
    });
    pin(0);
    let mut stream = TcpStream::connect(address).expect("connect");
    tune(&stream);
    let mut buffer = vec![0; bytes];
    let micros = best_batch(length, || {
        stream.write_all(&buffer).expect("raw write");
        assert!(spin_read(&mut stream, &mut buffer), "the echo hung up");
    });
    drop(stream);
    echo.join().expect("the echo ends");
    micros
}

/// One side of the rail: places everything into one buffer and counts.
struct Side {
    rail: TcpRail,
    seat: Seat,
    start: Instant,
}

struct Seat {
    buffers: BufferTable,
    inbox: Slice,
    outbox: Slice,
    link: Option<LinkId>,
    down: bool,
    received: u64,
    pending: u64,
}

impl Report for Seat {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }
    fn link_up(&mut self, link: LinkId, _: bool) {
        self.link = Some(link);
    }
    fn link_down(&mut self, _: LinkId, _: Fault) {
        self.down = true;
    }
    fn place(&mut self, _: LinkId, _: &[u8], _: u32) -> Placement {
        Placement::Into { slice: self.inbox, token: Token(1) }
    }
    fn received(&mut self, _: LinkId, _: Token) {
        self.received += 1;
    }
    fn done(&mut self, _: Token) {
        self.pending -= 1;
    }
    fn failed(&mut self, _: Token, fault: Fault) {
        panic!("an order failed: {fault}");
    }
    fn revoked(&mut self, _: LinkId, _: RemoteKey) {}
}

impl Side {
    fn new(bytes: usize) -> Side {
        let pool = Pool::with_budget(16 << 20);
        let mut buffers = BufferTable::with_limit(2);
        let mut boxes = [Slice::NONE; 2];
        for slot in &mut boxes {
            let memory = Memory::pooled(pool.take(bytes).expect("in budget"));
            let buffer = buffers.insert(memory).expect("in limit");
            *slot = Slice { buffer, offset: 0, len: bytes as u64 };
        }
        let [inbox, outbox] = boxes;
        let seat =
            Seat { buffers, inbox, outbox, link: None, down: false, received: 0, pending: 0 };
        let host = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let rail = TcpRail::open(TcpConfig::listening(host)).expect("loopback");
        Side { rail, seat, start: Instant::now() }
    }

    fn poll(&mut self) {
        let now = Time(self.start.elapsed().as_nanos() as u64);
        self.rail.poll(now, &mut self.seat);
    }

    fn send(&mut self, urgency: Urgency) {
        let mut header = [0u8; HEADER_BYTES];
        header[1] = HEADER_BYTES as u8;
        header[4..8].copy_from_slice(&(self.seat.outbox.len as u32).to_le_bytes());
        let link = self.seat.link.expect("up");
        let header = Header::new(&header);
        let (payload, token) = (self.seat.outbox, Token(2));
        let frame = FrameOrder { link, header, payload, urgency, token };
        match self.rail.send(&frame, &self.seat.buffers) {
            Ordered::Released => {}
            Ordered::Pending => self.seat.pending += 1,
            Ordered::Refused(fault) => panic!("refused: {fault}"),
        }
    }

    fn connect(&mut self, address: &str) {
        self.rail.connect(address, Time::ZERO).expect("a numeric address");
        while self.seat.link.is_none() {
            self.poll();
        }
    }
}

fn rail_half_round_trip(bytes: usize, length: Duration) -> f64 {
    let mut far = Side::new(bytes);
    let address = far.rail.addresses().remove(0);
    let echo = thread::spawn(move || {
        pin(1);
        let mut answered = 0;
        while !far.seat.down {
            far.poll();
            while answered < far.seat.received {
                answered += 1;
                far.send(Urgency::Urgent);
            }
        }
    });
    pin(0);
    let mut near = Side::new(bytes);
    near.connect(&address);
    let micros = best_batch(length, || {
        let before = near.seat.received;
        near.send(Urgency::Urgent);
        while near.seat.received == before {
            near.poll();
        }
    });
    drop(near);
    echo.join().expect("the echo ends");
    micros
}

/// One-way data frames, a few ahead, and their fate at the receiver.
fn stream(frames: u64) {
    let mut far = Side::new(FRAME_BYTES);
    let address = far.rail.addresses().remove(0);
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let sink = thread::spawn(move || {
        pin(1);
        while !far.seat.down && far.seat.received < frames {
            far.poll();
        }
        stopped.store(true, Ordering::Release);
        far.rail.counters()
    });
    pin(0);
    let mut near = Side::new(FRAME_BYTES);
    near.connect(&address);
    let start = Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Acquire) {
        while near.seat.pending < 4 && sent < frames {
            near.send(Urgency::Bulk);
            sent += 1;
        }
        near.poll();
    }
    let seconds = start.elapsed().as_secs_f64();
    let counters = sink.join().expect("the sink ends");
    let bytes = (frames * FRAME_BYTES as u64) as f64;
    println!("{FRAME_BYTES} B  frames, one way: {:.0} MB/s", bytes / seconds / 1e6);
    println!(
        "         of {bytes} payload bytes {} staged; {:.2} system calls a frame at the receiver",
        counters.bytes_staged,
        counters.system_calls as f64 / frames as f64
    );
}
