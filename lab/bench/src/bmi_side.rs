//! Both sides of the figures of the BMI paper, each in a process of its own, through the C functions.
//!
//! A server prints its URL and serves the requests of clients, which are unexpected messages. A client gets the URLs,
//! then one line for each measurement, and answers each with a line.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, bail};
use bmi::driver::{Area, Driver, Message, Tally};

use crate::bmi_bare;
use crate::host::monotonic_nanos;
use crate::net::WARM;
use crate::process::next_line;

/// Bytes of a request, of its acknowledgement, of all data of a pair, of a message, of a piece.
pub const REQUEST: usize = 25;
pub const ACKNOWLEDGEMENT: usize = 400;
pub const PAIR: usize = 10 << 20;
pub const MESSAGE: usize = 256 << 10;
pub const PIECES: usize = 4;
pub const PIECE: usize = MESSAGE / PIECES;
/// The longest message that is sent without asking, where nobody says otherwise: data of longer ones is not
/// there before its receive.
const EAGER: usize = 16 << 10;
/// The first messages of a stream, as many as are certainly there before their receives: others wait until
/// the receiver has room for them.
const EARLY: usize = 32;
/// Pieces do not touch each other.
pub const STRIDE: usize = PIECE + 4096;
pub const MESSAGES: usize = PAIR / MESSAGE;
/// Tests that find nothing are timed so many together: the clock costs about as much as one.
pub const CALLS: usize = 100;
/// Bytes of a receive without a sender.
const CROWDED: usize = 64;

const TAG_ACKNOWLEDGE: i32 = 1;
const TAG_DATA: i32 = 2;
const TAG_DONE: i32 = 3;
/// Nobody receives these.
const TAG_FLOOD: i32 = 4;
/// Nobody sends these.
const TAG_CROWD: i32 = 5;

/// The role of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The address on which a server listens; empty for clients.
    pub listen: String,
    pub spins: bool,
    /// Bare sockets, without our library.
    pub bare: bool,
    /// Buffers of the library instead of our own.
    pub allocates: bool,
    /// Both modules are active, not only that of the medium.
    pub modules: bool,
    /// The core that it stays on.
    pub core: Option<usize>,
}

impl Role {
    pub fn encode(&self) -> String {
        let Role { listen, spins, bare, allocates, modules, core } = self;
        let core = core.map_or(-1, |core| core as i64);
        format!("bmi {spins} {bare} {allocates} {modules} {core} {listen}")
    }

    fn decode(text: &str) -> Option<Role> {
        let words: Vec<&str> = text.strip_prefix("bmi ")?.splitn(6, ' ').collect();
        let [spins, bare, allocates, modules, core, listen] = words[..] else { return None };
        Some(Role {
            listen: listen.into(),
            spins: spins.parse().ok()?,
            bare: bare.parse().ok()?,
            allocates: allocates.parse().ok()?,
            modules: modules.parse().ok()?,
            core: usize::try_from(core.parse::<i64>().ok()?).ok(),
        })
    }
}

/// Plays a role until the process that started this one hangs up.
pub fn serve(part: &str) -> anyhow::Result<()> {
    let role = Role::decode(part).with_context(|| format!("'{part}' is no role"))?;
    if let Some(core) = role.core {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set)?;
    }
    match (role.listen.is_empty(), role.bare) {
        (true, false) => Client::open(&role)?.run(),
        (false, false) => Server::open(&role)?.run(),
        (true, true) => bmi_bare::client(),
        (false, true) => bmi_bare::server(),
    }
}

/// A request: its operation, the bytes of a message and the number of messages.
struct Request {
    what: u8,
    bytes: usize,
    count: usize,
}

impl Request {
    fn encode(&self) -> [u8; REQUEST] {
        let mut text = [0; REQUEST];
        text[0] = self.what;
        text[1..9].copy_from_slice(&(self.bytes as u64).to_le_bytes());
        text[9..17].copy_from_slice(&(self.count as u64).to_le_bytes());
        text
    }

    fn decode(text: &[u8]) -> Option<Request> {
        let number = |at: usize| {
            let bytes = text.get(at..at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        Some(Request { what: *text.first()?, bytes: number(1)?, count: number(9)? })
    }
}

const LATENCY: u8 = b'L';
const BANDWIDTH: u8 = b'B';
const BANDWIDTH_LATE: u8 = b'b';
const POST_NOW: u8 = b'p';
const PATTERN: u8 = b'P';

/// Waits until `open` operations have ended.
fn settle(driver: &mut Driver, idle: i32, mut open: usize) -> anyhow::Result<()> {
    while open > 0 {
        open -= take(driver, idle)?;
    }
    Ok(())
}

fn take(driver: &mut Driver, idle: i32) -> anyhow::Result<usize> {
    let mut failed = 0;
    let count = driver.test(idle, |finished| {
        if finished.error != 0 {
            failed = finished.error;
        }
    })?;
    if failed != 0 {
        bail!("an operation failed with code {failed}");
    }
    Ok(count)
}

/// Messages of equal size side by side in an area.
fn slots(bytes: usize, count: usize) -> impl Iterator<Item = [(usize, usize); 1]> {
    (0..count).map(move |index| [(index * bytes, bytes)])
}

struct Server {
    driver: Driver,
    idle: i32,
    allocates: bool,
    small: Option<Area>,
    data: Option<(Area, usize)>,
}

impl Server {
    fn open(role: &Role) -> anyhow::Result<Server> {
        let mut listen = role.listen.clone();
        if role.modules {
            let name = format!("modules-{}", std::process::id());
            let is_tcp = listen.starts_with("tcp");
            listen += &if is_tcp { format!(",shm://{name}") } else { ",tcp://127.0.0.1".into() };
        }
        let driver = Driver::server(&listen)?;
        let url = match role.listen.strip_prefix("tcp://") {
            Some(_) => format!("tcp://127.0.0.1:{}", driver.port()?),
            None => role.listen.clone(),
        };
        println!("url {url}");
        let idle = if role.spins { 0 } else { 10 };
        Ok(Server { driver, idle, allocates: role.allocates, small: None, data: None })
    }

    fn run(mut self) -> anyhow::Result<()> {
        loop {
            // A wait for completions ends at a request, too. Clients may die: then operations for them fail.
            self.driver.test(self.idle, |_| {})?;
            while let Some(message) = self.driver.unexpected(0)? {
                let peer = message.from;
                let request = Request::decode(&message.bytes).context("a request is short")?;
                match request.what {
                    LATENCY => self.answer(peer, &request)?,
                    BANDWIDTH | BANDWIDTH_LATE => self.drink(peer, &request)?,
                    PATTERN => self.pour(peer)?,
                    other => bail!("a request asks for '{other}'"),
                }
            }
        }
    }

    /// A piece of memory for small messages, and one for data.
    fn areas(&mut self, peer: i64, bytes: usize) -> anyhow::Result<(Area, Area)> {
        let own = self.allocates.then_some(peer);
        let small = match self.small {
            Some(small) => small,
            None => *self.small.insert(self.driver.area(64 << 10, Some(peer))?),
        };
        let data = match self.data {
            Some((data, size)) if size >= bytes => data,
            _ => {
                let data = self.driver.area(bytes, own)?;
                self.data = Some((data, bytes));
                data
            }
        };
        Ok((small, data))
    }

    fn acknowledge(&mut self, peer: i64, small: Area, tag: i32) -> anyhow::Result<()> {
        let pieces = &[(0, ACKNOWLEDGEMENT)];
        let done = self.driver.send(&Message { peer, tag, area: small, pieces, user: 0 })?;
        settle(&mut self.driver, self.idle, usize::from(!done))
    }

    fn answer(&mut self, peer: i64, request: &Request) -> anyhow::Result<()> {
        let (small, data) = self.areas(peer, 64 << 10)?;
        let pieces = &[(0, request.bytes)][..];
        let receive = Message { peer, tag: TAG_DATA, area: data, pieces, user: 1 };
        let send = Message { area: data, pieces: &[(32 << 10, request.bytes)], ..receive };
        let mut open = usize::from(!self.driver.receive(&receive)?);
        let pieces = &[(0, ACKNOWLEDGEMENT)];
        let tag = TAG_ACKNOWLEDGE;
        open +=
            usize::from(!self.driver.send(&Message { peer, tag, area: small, pieces, user: 0 })?);
        for round in 0..request.count {
            settle(&mut self.driver, self.idle, open)?;
            open = 0;
            if round + 1 < request.count {
                open += usize::from(!self.driver.receive(&receive)?);
            }
            open += usize::from(!self.driver.send(&send)?);
        }
        settle(&mut self.driver, self.idle, open)
    }

    fn drink(&mut self, peer: i64, request: &Request) -> anyhow::Result<()> {
        let (small, data) = self.areas(peer, request.bytes * request.count)?;
        if request.what == BANDWIDTH_LATE {
            self.acknowledge(peer, small, TAG_ACKNOWLEDGE)?;
            while self.driver.unexpected(self.idle)?.is_none_or(|it| it.bytes[0] != POST_NOW) {}
        }
        let mut open = 0;
        self.driver.receives = Tally::default();
        let mut arrived = Tally::default();
        for (index, pieces) in slots(request.bytes, request.count).enumerate() {
            let message = Message { peer, tag: TAG_DATA, area: data, pieces: &pieces, user: 1 };
            open += usize::from(!self.driver.receive(&message)?);
            if index < EARLY {
                arrived = self.driver.receives;
            }
        }
        if request.what == BANDWIDTH {
            self.acknowledge_beside(peer, small, &mut open)?;
        }
        settle(&mut self.driver, self.idle, open)?;
        let Tally { posts, done } = arrived;
        self.driver.write(small, [posts.to_le_bytes(), done.to_le_bytes()].as_flattened());
        self.acknowledge(peer, small, TAG_DONE)
    }

    /// Acknowledges while other operations are under way.
    fn acknowledge_beside(
        &mut self,
        peer: i64,
        small: Area,
        open: &mut usize,
    ) -> anyhow::Result<()> {
        let pieces = &[(0, ACKNOWLEDGEMENT)];
        let tag = TAG_ACKNOWLEDGE;
        let message = Message { peer, tag, area: small, pieces, user: 0 };
        *open += usize::from(!self.driver.send(&message)?);
        Ok(())
    }

    /// Starts all operations that a client of the pattern wants; the loop takes their completions.
    fn pour(&mut self, peer: i64) -> anyhow::Result<()> {
        let (small, data) = match (self.small, self.data) {
            (Some(small), Some((data, _))) => (small, data),
            _ => {
                self.allocates = true;
                let (small, data) = self.areas(peer, PAIR)?;
                self.driver.fill(data, 0, PAIR, 7);
                (small, data)
            }
        };
        let mut open = 0;
        self.acknowledge_beside(peer, small, &mut open)?;
        for pieces in slots(MESSAGE, MESSAGES) {
            let message = Message { peer, tag: TAG_DATA, area: data, pieces: &pieces, user: 1 };
            self.driver.send(&message)?;
        }
        Ok(())
    }
}

struct Client {
    driver: Driver,
    idle: i32,
    allocates: bool,
    servers: Vec<i64>,
    small: Area,
    requests: Area,
    data: Option<(Area, usize)>,
    /// A server's receives of data that had arrived.
    arrived: Tally,
}

impl Client {
    fn open(role: &Role) -> anyhow::Result<Client> {
        let mut driver = Driver::client()?;
        let urls = next_line()?.context("nobody says which servers there are")?;
        let servers: Vec<i64> =
            urls.split(' ').map(|url| driver.look_up(url)).collect::<Result<_, _>>()?;
        let first = *servers.first().context("there are no servers")?;
        if role.modules {
            // Nobody is there: looking up alone makes the module active.
            driver.look_up("tcp://127.0.0.1:1")?;
            driver.look_up("shm://nobody")?;
        }
        let small = driver.area(ACKNOWLEDGEMENT, Some(first))?;
        let requests = driver.area(REQUEST, Some(first))?;
        let idle = if role.spins { 0 } else { 10 };
        let allocates = role.allocates;
        let arrived = Tally::default();
        Ok(Client { driver, idle, allocates, servers, small, requests, data: None, arrived })
    }

    /// Answers each line with one: figures, then how many sends and receives were complete at once, of how many.
    fn run(mut self) -> anyhow::Result<()> {
        while let Some(line) = next_line()? {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| -> anyhow::Result<usize> {
                words.get(at).and_then(|word| word.parse().ok()).context("a number is missing")
            };
            self.forget();
            let answer = match words[0] {
                "latency" => self.latency(number(1)?, number(2)?)?,
                "bandwidth" => {
                    let late = words.get(3) == Some(&"late");
                    self.bandwidth(number(1)?, number(2)?, late)?
                }
                "pattern" => self.pattern()?,
                "patterns" => self.patterns(number(1)?)?,
                "flood" => self.flood(number(1)?, number(2)?)?,
                "crowd" => self.crowd(number(1)?)?,
                "empty" => self.empty(number(1)?)?,
                other => bail!("nobody knows how to '{other}'"),
            };
            let (sends, arrived) = (self.driver.sends, self.arrived);
            println!("{answer} {} {} {} {}", sends.done, sends.posts, arrived.done, arrived.posts);
            std::io::stdout().flush()?;
        }
        Ok(())
    }

    /// Counts posts from now on.
    fn forget(&mut self) {
        (self.driver.sends, self.arrived) = (Tally::default(), Tally::default());
    }

    /// Writes a request to where it can be sent from, once nothing else is under way there.
    fn prepare(&mut self, what: u8, bytes: usize, count: usize) {
        self.driver.write(self.requests, &Request { what, bytes, count }.encode());
    }

    /// Sends the prepared request; 1 where it is under way.
    fn request(&mut self, peer: i64) -> anyhow::Result<usize> {
        let pieces = &[(0, REQUEST)];
        let message = Message { peer, tag: 0, area: self.requests, pieces, user: 0 };
        Ok(usize::from(!self.driver.send_unexpected(&message)?))
    }

    /// Posts a receive of an acknowledgement, or of the end.
    fn expect(&mut self, peer: i64, tag: i32) -> anyhow::Result<usize> {
        let pieces = &[(0, ACKNOWLEDGEMENT)];
        let message = Message { peer, tag, area: self.small, pieces, user: 0 };
        Ok(usize::from(!self.driver.receive(&message)?))
    }

    fn data(&mut self, bytes: usize) -> anyhow::Result<Area> {
        match self.data {
            Some((data, size)) if size >= bytes => Ok(data),
            _ => {
                let own = self.allocates.then_some(self.servers[0]);
                let data = self.driver.area(bytes, own)?;
                self.data = Some((data, bytes));
                Ok(data)
            }
        }
    }

    /// Nanoseconds of a round trip: the median, and that of one in a hundred; and of all of them.
    fn latency(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<String> {
        let (peer, data) = (self.servers[0], self.data(64 << 10)?);
        let warm = rounds / 10 + 20;
        self.prepare(LATENCY, bytes, rounds + warm);
        let open = self.expect(peer, TAG_ACKNOWLEDGE)? + self.request(peer)?;
        settle(&mut self.driver, self.idle, open)?;
        let mut samples = Vec::with_capacity(rounds);
        let receive = &[(0, bytes)][..];
        let receive = Message { peer, tag: TAG_DATA, area: data, pieces: receive, user: 1 };
        let send = Message { pieces: &[(32 << 10, bytes)], ..receive };
        for round in 0..rounds + warm {
            if round == warm {
                self.forget();
            }
            let begin = Instant::now();
            let mut open = usize::from(!self.driver.receive(&receive)?);
            open += usize::from(!self.driver.send(&send)?);
            settle(&mut self.driver, self.idle, open)?;
            if round >= warm {
                samples.push(begin.elapsed().as_nanos() as u64);
            }
        }
        let (median, tail) = typical(samples);
        Ok(format!("latency {median} {tail}"))
    }

    /// Nanoseconds from the first post until the server has everything, after some messages in the same way.
    fn bandwidth(&mut self, bytes: usize, count: usize, late: bool) -> anyhow::Result<String> {
        self.data(bytes * count)?;
        self.stream(bytes, count.min(WARM), late)?;
        self.forget();
        Ok(format!("bandwidth {}", self.stream(bytes, count, late)?))
    }

    fn stream(&mut self, bytes: usize, count: usize, late: bool) -> anyhow::Result<u64> {
        let (peer, data) = (self.servers[0], self.data(bytes * count)?);
        self.prepare(if late { BANDWIDTH_LATE } else { BANDWIDTH }, bytes, count);
        let open = self.expect(peer, TAG_ACKNOWLEDGE)? + self.request(peer)?;
        settle(&mut self.driver, self.idle, open)?;
        self.prepare(POST_NOW, 0, 0);
        let mut open = self.expect(peer, TAG_DONE)?;
        let begin = monotonic_nanos();
        for pieces in slots(bytes, count) {
            let message = Message { peer, tag: TAG_DATA, area: data, pieces: &pieces, user: 1 };
            open += usize::from(!self.driver.send(&message)?);
        }
        if late {
            open += self.request(peer)?;
        }
        settle(&mut self.driver, self.idle, open)?;
        let nanos = monotonic_nanos() - begin;
        if late && bytes <= EAGER {
            let told = self.driver.read(self.small, 16);
            let number = |at: usize| told[at..at + 8].try_into().map(u64::from_le_bytes);
            self.arrived = Tally { posts: number(0)?, done: number(8)? };
        }
        Ok(nanos)
    }

    /// When all data of all servers was asked for, and when it was here.
    fn pattern(&mut self) -> anyhow::Result<String> {
        let servers = self.servers.clone();
        let room = MESSAGES * PIECES * STRIDE;
        let fresh = self.data.is_none();
        let data = self.data(servers.len() * room)?;
        self.prepare(PATTERN, 0, 0);
        let begin = monotonic_nanos();
        let mut open = 0;
        for peer in &servers {
            open += self.expect(*peer, TAG_ACKNOWLEDGE)? + self.request(*peer)?;
        }
        for (index, peer) in servers.iter().enumerate() {
            for message in 0..MESSAGES {
                let at = index * room + message * PIECES * STRIDE;
                let pieces = [0, 1, 2, 3].map(|piece| (at + piece * STRIDE, PIECE));
                let message =
                    Message { peer: *peer, tag: TAG_DATA, area: data, pieces: &pieces, user: 1 };
                open += usize::from(!self.driver.receive(&message)?);
            }
        }
        settle(&mut self.driver, self.idle, open)?;
        let end = monotonic_nanos();
        for piece in (0..if fresh { servers.len() * MESSAGES * PIECES } else { 1 }).rev() {
            for at in [piece * STRIDE, piece * STRIDE + PIECE - 1] {
                if self.driver.byte(data, at) != 7 {
                    bail!("a byte of the data is wrong");
                }
            }
        }
        Ok(format!("pattern {begin} {end}"))
    }
}

impl Client {
    /// The pattern again and again, for so many milliseconds: how long it took, and how often.
    fn patterns(&mut self, milliseconds: usize) -> anyhow::Result<String> {
        let begin = monotonic_nanos();
        let mut count = 0;
        while monotonic_nanos() - begin < milliseconds as u64 * 1_000_000 {
            self.pattern()?;
            count += 1;
        }
        Ok(format!("patterns {} {count}", monotonic_nanos() - begin))
    }
}

impl Client {
    /// Posts messages that nobody takes, all at once: how long that took.
    fn flood(&mut self, bytes: usize, count: usize) -> anyhow::Result<String> {
        let (peer, data) = (self.servers[0], self.data(bytes)?);
        let pieces = &[(0, bytes)];
        let message = Message { peer, tag: TAG_FLOOD, area: data, pieces, user: 2 };
        let begin = monotonic_nanos();
        for _ in 0..count {
            self.driver.send(&message)?;
        }
        Ok(format!("flood {}", monotonic_nanos() - begin))
    }
}

impl Client {
    /// Posts receives without a sender.
    fn crowd(&mut self, count: usize) -> anyhow::Result<String> {
        let area = self.driver.area(count * CROWDED, None)?;
        for pieces in slots(CROWDED, count) {
            let (peer, tag) = (self.servers[0], TAG_CROWD);
            let message = Message { peer, tag, area, pieces: &pieces, user: 3 };
            if self.driver.receive(&message)? {
                bail!("a receive of nothing is complete");
            }
        }
        Ok("crowd".into())
    }

    /// Nanoseconds of [`CALLS`] tests that find nothing: the median, and that of one in a hundred.
    fn empty(&mut self, rounds: usize) -> anyhow::Result<String> {
        let warm = rounds / 10 + 1;
        let mut samples = Vec::with_capacity(rounds);
        for round in 0..rounds + warm {
            let begin = Instant::now();
            for _ in 0..CALLS {
                take(&mut self.driver, 0)?;
            }
            if round >= warm {
                samples.push(begin.elapsed().as_nanos() as u64);
            }
        }
        let (median, tail) = typical(samples);
        Ok(format!("empty {median} {tail}"))
    }
}

/// The median, and the slowest of a hundred.
fn typical(mut samples: Vec<u64>) -> (u64, u64) {
    samples.sort_unstable();
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize];
    (at(0.5), at(0.99))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_requests_cross_to_another_process() {
        let role = Role {
            listen: "shm://a".into(),
            spins: true,
            bare: false,
            allocates: false,
            modules: true,
            core: Some(1),
        };
        assert_eq!(Role::decode(&role.encode()), Some(role.clone()));
        let role = Role { listen: String::new(), bare: true, core: None, ..role };
        assert_eq!(Role::decode(&role.encode()), Some(role));
        let request = Request { what: PATTERN, bytes: 1 << 40, count: 7 };
        let again = Request::decode(&request.encode()).unwrap();
        assert_eq!((again.what, again.bytes, again.count), (PATTERN, 1 << 40, 7));
    }
}
