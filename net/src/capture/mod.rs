//! Captures: every packet of a port, both ways, in a file that Wireshark reads (docs/wireshark).
//!
//! * [`CaptureConfig`]: the choice of the file; [`Captured`]: a port with a capture; [`blocks`]: the file's format;
//!   [`writer`]: the thread that writes; [`place`]: the headers in front of a packet, which a port does not show.
//!
//! Invariants: a port that is not captured is not wrapped, and costs nothing; a captured port goes on whatever
//! happens to the file; memory for packets that wait is bounded, and packets without room are counted.

mod blocks;
mod place;
mod writer;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use ropewalk_base::error::Fault;
use ropewalk_rail::Sight;
use ropewalk_rail::interfaces::LocalSide;
use ropewalk_rail::port::{Found, Port, PortCounters, Received};

pub use self::place::Place;
use self::writer::Writer;

/// The variable of the environment that names a file.
pub const VARIABLE: &str = "ROPEWALK_CAPTURE";
/// Bytes of packets that wait for the disk, for each file.
const BUFFER_BYTES: usize = 16 << 20;

/// The configuration of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptureConfig {
    /// The file. In it `%p` is the number of the process, `%s` the scheme, `%e` the endpoint's number. Where
    /// somebody writes to it already, a number is added in front of the extension.
    pub file: String,
    /// Bytes of packets that may wait for the disk.
    pub buffer_bytes: usize,
    /// Whether a file that cannot be made is a reason not to open the port.
    pub insist: bool,
}

/// A file that cannot be made. Class: caller.
#[derive(Debug, thiserror::Error)]
#[error("cannot capture to {}: {cause}", file.display())]
pub struct CaptureError {
    pub file: PathBuf,
    pub cause: io::Error,
}

/// Counters of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CaptureCounters {
    /// Packets that were taken for the file.
    pub packets: u64,
    /// Packets that found no room, or came after the file could not be written to.
    pub dropped: u64,
}

impl CaptureConfig {
    /// To this file; an error where it cannot be made.
    pub fn new(file: impl Into<String>) -> CaptureConfig {
        CaptureConfig { file: file.into(), buffer_bytes: BUFFER_BYTES, insist: true }
    }

    /// The configuration from the environment. A program whose effective user or group is not its caller's ignores it.
    pub fn from_environment() -> Option<CaptureConfig> {
        use rustix::process::{getegid, geteuid, getgid, getuid};
        let own = getuid() == geteuid() && getgid() == getegid();
        let file = std::env::var(VARIABLE).ok().filter(|file| own && !file.is_empty())?;
        Some(CaptureConfig { insist: false, ..CaptureConfig::new(file) })
    }

    /// The file's name for this port.
    fn name(&self, scheme: &str, endpoint: u8) -> PathBuf {
        let mut name = String::new();
        let mut rest = self.file.chars();
        while let Some(letter) = rest.next() {
            let mark = if letter == '%' { rest.next() } else { None };
            match (letter, mark) {
                ('%', Some('p')) => name += &std::process::id().to_string(),
                ('%', Some('s')) => name += scheme,
                ('%', Some('e')) => name += &endpoint.to_string(),
                ('%', Some('%')) => name.push('%'),
                (letter, mark) => {
                    name.push(letter);
                    name.extend(mark);
                }
            }
        }
        name.into()
    }
}

/// A port whose packets are written down.
pub struct Captured<P: Port> {
    port: P,
    here: P::Station,
    writer: Writer,
    /// The last station that was seen, and which of our addresses goes with it.
    towards: Option<(P::Station, P::Station)>,
}

/// The file of a port that is about to be captured.
pub struct Capture(Writer);

impl Capture {
    /// Makes the file.
    pub fn open<P: Port>(port: &P, config: &CaptureConfig) -> Result<Capture, CaptureError>
    where
        P::Station: Place,
    {
        let name = config.name(port.scheme(), port.endpoint());
        let interface = format!("{}/{}", port.scheme(), port.endpoint());
        Writer::open(&name, P::Station::LINK_TYPE, &interface, config.buffer_bytes).map(Capture)
    }
}

impl<P: Port> Captured<P>
where
    P::Station: Place,
{
    /// A port at `here` with a capture of all packets that it sends and receives from now on.
    pub fn new(port: P, here: P::Station, capture: Capture) -> Captured<P> {
        Captured { port, here, writer: capture.0, towards: None }
    }

    /// The counters of the capture.
    pub fn capture_counters(&self) -> CaptureCounters {
        self.writer.counters()
    }
}

/// Our own address for packets to and from a station. It is determined again only if the station changes.
fn own<S: Place>(towards: &mut Option<(S, S)>, here: S, station: S) -> S {
    match towards {
        Some((last, own)) if *last == station => *own,
        _ => {
            let own = here.towards(station);
            *towards = Some((station, own));
            own
        }
    }
}

impl<P: Port> Port for Captured<P>
where
    P::Station: Place,
{
    type Station = P::Station;

    fn scheme(&self) -> &'static str {
        self.port.scheme()
    }

    fn endpoint(&self) -> u8 {
        self.port.endpoint()
    }

    fn packet_bytes(&self) -> usize {
        self.port.packet_bytes()
    }

    fn packet_bytes_to(&mut self, station: P::Station) -> usize {
        self.port.packet_bytes_to(station)
    }

    fn packet_bytes_now(&mut self) -> usize {
        self.port.packet_bytes_now()
    }

    fn is_down(&self) -> bool {
        self.port.is_down()
    }

    fn is_gone(&self) -> bool {
        self.port.is_gone()
    }

    fn too_long(&mut self) -> Option<(P::Station, u8)> {
        self.port.too_long()
    }

    fn packets_max(&self) -> u32 {
        self.port.packets_max()
    }

    fn addresses(&self) -> Vec<String> {
        self.port.addresses()
    }

    fn resolve(&mut self, address: &str) -> Result<(P::Station, u8), Fault> {
        self.port.resolve(address)
    }

    fn look_up(&mut self, address: &str) -> Result<(u64, P::Station), Fault> {
        self.port.look_up(address)
    }

    fn found(&mut self) -> Option<Found<P::Station>> {
        self.port.found()
    }

    fn host(&self, station: P::Station) -> Option<String> {
        self.port.host(station)
    }

    fn receive(&mut self, max: usize, to: &mut dyn FnMut(P::Station, &[u8])) -> Received {
        let Captured { port, here, writer, towards } = self;
        port.receive(max, &mut |from, body| {
            let own = own(towards, *here, from);
            writer.packet(blocks::Way::In, body, |bytes, out| {
                P::Station::header(from, own, bytes, out)
            });
            to(from, body);
        })
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        self.port.slot()
    }

    fn commit(&mut self, to: P::Station, bytes: usize) {
        // The slot is the same until it is committed.
        if let Some(body) = self.port.slot().and_then(|slot| slot.get(..bytes)) {
            let own = own(&mut self.towards, self.here, to);
            let header = |body: &[u8], out: &mut Vec<u8>| P::Station::header(own, to, body, out);
            self.writer.packet(blocks::Way::Out, body, header);
        }
        self.port.commit(to, bytes);
    }

    fn flush(&mut self) -> bool {
        self.port.flush()
    }

    fn look(&self) -> Sight {
        self.port.look()
    }

    fn arm(&mut self) -> bool {
        self.port.arm()
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }

    fn attach(&mut self, set: BorrowedFd<'_>) -> std::io::Result<()> {
        self.port.attach(set)
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }

    fn local_side(&self) -> Option<LocalSide<'_>> {
        self.port.local_side()
    }

    fn has_route(&self, station: P::Station) -> bool {
        self.port.has_route(station)
    }

    fn refused(&mut self) -> Option<(P::Station, i32)> {
        self.port.refused()
    }

    fn interface(&self) -> Option<u32> {
        self.port.interface()
    }

    fn interface_name(&self) -> Option<&str> {
        self.port.interface_name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_processes_schemes_and_endpoints_apart() {
        let name = |file: &str| CaptureConfig::new(file).name("udp", 3).display().to_string();
        let process = std::process::id();
        assert_eq!(name("/a/b.pcapng"), "/a/b.pcapng");
        assert_eq!(name("%s-%p-%e.pcapng"), format!("udp-{process}-3.pcapng"));
        assert_eq!(name("100%%%x%"), "100%%x%");
    }
}
