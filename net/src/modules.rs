//! Modules: the rails that an endpoint can be given by the scheme of an address, `tcp` or `shm`.
//!
//! Faces ask for a scheme and know no rail; one that is new registers itself here and is reached
//! through every face.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
pub use ropewalk_rail::Rail;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherPort, Language, RawSocket, Sockets};
pub use ropewalk_rail_ether::{
    EtherError, Interface, interfaces, may_open as may_send_frames, numa_node,
};
use ropewalk_rail_shm::{ShmConfig, ShmRail};
pub use ropewalk_rail_shm::{ShmError, user_of as user_of_memory};
pub use ropewalk_rail_tcp::TcpError;
use ropewalk_rail_tcp::{TcpConfig, TcpRail};
pub use ropewalk_rail_udp::UdpError;
use ropewalk_rail_udp::{UdpConfig, UdpPort};
use ropewalk_wire::mxoe::{Dialect, ETHERNET_BYTES, Order};

use crate::agent;
use crate::capture::{Capture, CaptureConfig, CaptureError, Captured, Place};
use crate::packets::{MxoeSettings, PacketRail};
use crate::raw::RawEndpoint;

/// The function that opens a rail.
type Open = dyn Fn(&Listen<'_>) -> Result<Box<dyn Rail>, ModuleError> + Send + Sync;

/// A kind of rail.
#[derive(Clone)]
pub struct Module {
    scheme: &'static str,
    open: Arc<Open>,
}

/// Whether a rail shall accept links, and the address for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen<'a> {
    /// It only connects.
    No,
    /// At this address, without its scheme.
    At {
        address: &'a str,
        /// At the host's own address alone. Without it, at all interfaces, and the host is not looked up.
        exactly: bool,
    },
}

/// Further options of a rail.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Its packets are written down, where it carries packets.
    pub capture: Option<CaptureConfig>,
    /// The sockets for raw frames, in the syntax behind `?` of an address. The address itself takes precedence.
    pub sockets: String,
}

/// The variable of the environment that selects the sockets for raw frames: `socket=auto`.
pub const SOCKETS_VARIABLE: &str = "ROPEWALK_ETHER";

impl Options {
    /// The options from the environment. A program whose effective user or group is not
    /// its caller's ignores the variables.
    pub fn from_environment() -> Options {
        use rustix::process::{getegid, geteuid, getgid, getuid};
        let own = getuid() == geteuid() && getgid() == getegid();
        let sockets = std::env::var(SOCKETS_VARIABLE).ok().filter(|_| own);
        Options { capture: CaptureConfig::from_environment(), sockets: sockets.unwrap_or_default() }
    }

    /// Whether networks with raw frames can be opened with them.
    pub fn check(&self) -> Result<(), ModuleError> {
        self.sockets().map(drop)
    }

    fn sockets(&self) -> Result<Sockets, ModuleError> {
        Sockets::default().read(&self.sockets).map_err(ModuleError::Environment)
    }
}

/// The reason why a rail could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    #[error("unknown scheme {scheme}://; known are {known}")]
    Unknown { scheme: String, known: String },
    #[error("'{0}' is not an address to listen at; write it like node1:7000 or [::1]:0")]
    BadAddress(String),
    #[error("cannot resolve the host name in '{0}'; check it with `getent hosts NAME`")]
    UnknownHost(String),
    #[error(transparent)]
    Tcp(#[from] TcpError),
    #[error(transparent)]
    Udp(#[from] UdpError),
    #[error(transparent)]
    Ether(#[from] EtherError),
    #[error("{variable}: {0}", variable = SOCKETS_VARIABLE)]
    Environment(EtherError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error("cannot open another transport: {0}; raise the limit on open files (`ulimit -n`)")]
    Descriptors(std::io::Error),
    #[error(transparent)]
    Shm(#[from] ShmError),
    #[error(
        "'{0}' is not a valid setting for MXoE; valid are key=N, frame=BYTES (256 to 65000), \
         order=big or little, mode=native or compatible, silence=SECONDS, socket=packet, xdp or \
         auto, queue=N, and poll=MICROSECONDS, separated by &"
    )]
    BadWire(String),
    #[error(
        "frames of {frame_bytes} bytes do not fit the interface's MTU of {mtu}; raise the MTU (`ip \
         link set NAME mtu BYTES`), or set a smaller frame=BYTES"
    )]
    LongFrames { frame_bytes: usize, mtu: usize },
    #[error(
        "frames of native MXoE (mode=compatible) have {frame_bytes} bytes, whatever frame= says, \
         and do not fit the interface's MTU of {mtu}; raise the MTU (`ip link set NAME mtu \
         {needed}`)",
        needed = frame_bytes - ETHERNET_BYTES
    )]
    LongCompatibleFrames { frame_bytes: usize, mtu: usize },
    #[error("{0}")]
    Other(String),
}

impl ModuleError {
    /// Whether descriptors or memory of the kernel were used up.
    pub fn is_shortage(&self) -> bool {
        match self {
            ModuleError::Descriptors(_)
            | ModuleError::Shm(ShmError::Resources { .. })
            | ModuleError::Tcp(TcpError::Descriptors(_)) => true,
            ModuleError::Tcp(TcpError::Listen { cause, .. })
            | ModuleError::Udp(UdpError::Socket { cause, .. })
            | ModuleError::Ether(EtherError::Socket { cause, .. }) => {
                ropewalk_rail::host::is_shortage(cause)
            }
            _ => false,
        }
    }
}

/// A module of every build.
struct BuiltIn {
    scheme: &'static str,
    /// Whether its peers are foreign (see `Capabilities::foreign`).
    foreign: bool,
    /// Whether peers can listen at such an address.
    makes_sense: fn(&str) -> bool,
    open: OpenBuiltIn,
    /// Opens one that only connects, and reaches this address.
    call: CallBuiltIn,
}

type CallBuiltIn = fn(&str, &Options) -> Result<Box<dyn Rail>, ModuleError>;
type OpenBuiltIn = fn(&Listen<'_>, &Options) -> Result<Box<dyn Rail>, ModuleError>;

const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        scheme: "tcp",
        foreign: false,
        makes_sense: ropewalk_rail_tcp::is_address,
        open: |listen, _| open_tcp(listen),
        call: |_, _| open_tcp(&Listen::No),
    },
    BuiltIn {
        scheme: "shm",
        foreign: false,
        makes_sense: |address| !address.is_empty(),
        open: |listen, _| open_shm(listen),
        call: |_, _| open_shm(&Listen::No),
    },
    BuiltIn {
        scheme: "udp",
        foreign: false,
        makes_sense: ropewalk_rail_udp::is_address,
        open: open_udp,
        call: |_, options| open_udp(&Listen::No, options),
    },
    BuiltIn {
        scheme: "ether",
        foreign: false,
        makes_sense: |address| ropewalk_rail_ether::is_address(parted(address).0),
        open: |listen, options| {
            let (config, said) = match listen {
                Listen::No => (EtherConfig::default(), ""),
                Listen::At { address, .. } => {
                    let (address, said) = parted(address);
                    (EtherConfig::listening(address)?, said)
                }
            };
            let sockets = options.sockets()?.read(said)?;
            open_ether(&EtherConfig { sockets, ..config }, options)
        },
        call: |address, options| {
            let config = EtherConfig::calling(parted(address).0);
            open_ether(&EtherConfig { sockets: options.sockets()?, ..config }, options)
        },
    },
    BuiltIn {
        scheme: "mxoe",
        foreign: true,
        makes_sense: |address| ropewalk_rail_ether::is_address(parted(address).0),
        open: |listen, options| {
            let mut wire = Wire { sockets: options.sockets()?, ..Wire::default() };
            let Listen::At { address, .. } = listen else {
                return open_mxoe(EtherConfig::default(), wire, options);
            };
            let (address, said) = parted(address);
            wire.read(said)?;
            open_mxoe(EtherConfig::listening(address)?, wire, options)
        },
        call: |address, options| {
            let wire = Wire { sockets: options.sockets()?, ..Wire::default() };
            open_mxoe(EtherConfig::calling(address), wire, options)
        },
    },
];

/// An address, and its query behind `?`.
fn parted(address: &str) -> (&str, &str) {
    address.split_once('?').unwrap_or((address, ""))
}

fn built_in(scheme: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|module| module.scheme == scheme)
}

static REGISTERED: Mutex<Vec<Module>> = Mutex::new(Vec::new());

impl Module {
    /// A module for addresses of this scheme.
    pub fn new(
        scheme: &'static str,
        open: impl Fn(&Listen<'_>) -> Result<Box<dyn Rail>, ModuleError> + Send + Sync + 'static,
    ) -> Module {
        Module { scheme, open: Arc::new(open) }
    }
}

/// Adds a module; one of the same scheme takes the place of an older one.
pub fn register(module: Module) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.retain(|other| other.scheme != module.scheme);
    registered.push(module);
}

/// The schemes of networks that carry everything, those of every build first: without those whose peers are
/// foreign, and take tagged messages only.
pub fn schemes() -> Vec<&'static str> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let more = registered.iter().map(|module| module.scheme);
    let more = more.filter(|scheme| built_in(scheme).is_none());
    let built_in = BUILT_IN.iter().filter(|module| !module.foreign);
    built_in.map(|module| module.scheme).chain(more).collect()
}

/// Whether an address without its scheme can be one that peers listen at. For a module that was registered the check
/// is left to its rail.
pub fn makes_sense(scheme: &str, address: &str) -> bool {
    built_in(scheme).is_none_or(|module| (module.makes_sense)(address))
}

/// Opens a rail for addresses of this scheme, with the options from the environment.
pub fn open(scheme: &str, listen: &Listen<'_>) -> Result<Box<dyn Rail>, ModuleError> {
    open_with(scheme, listen, &Options::from_environment())
}

/// Opens a rail for addresses of this scheme. Options are for the modules of every build.
pub fn open_with(
    scheme: &str,
    listen: &Listen<'_>,
    options: &Options,
) -> Result<Box<dyn Rail>, ModuleError> {
    match (registered(scheme), built_in(scheme)) {
        (Some(module), _) => (module.open)(listen),
        (None, Some(module)) => (module.open)(listen, options),
        (None, None) => Err(unknown(scheme)),
    }
}

/// Opens a rail that only connects, and reaches this address, which has no scheme: a network of several
/// interfaces takes the one that the address names.
pub fn open_to_call(scheme: &str, address: &str) -> Result<Box<dyn Rail>, ModuleError> {
    match (registered(scheme), built_in(scheme)) {
        (Some(module), _) => (module.open)(&Listen::No),
        (None, Some(module)) => (module.call)(address, &Options::from_environment()),
        (None, None) => Err(unknown(scheme)),
    }
}

fn registered(scheme: &str) -> Option<Module> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.iter().find(|module| module.scheme == scheme).cloned()
}

fn unknown(scheme: &str) -> ModuleError {
    let foreign = BUILT_IN.iter().filter(|module| module.foreign).map(|module| module.scheme);
    let known = schemes().into_iter().chain(foreign).map(|it| format!("{it}://"));
    ModuleError::Unknown { scheme: scheme.to_string(), known: known.collect::<Vec<_>>().join(", ") }
}

fn open_shm(listen: &Listen<'_>) -> Result<Box<dyn Rail>, ModuleError> {
    Ok(Box::new(ShmRail::open(shm_config(listen))?))
}

fn open_tcp(listen: &Listen<'_>) -> Result<Box<dyn Rail>, ModuleError> {
    Ok(Box::new(TcpRail::open(tcp_config(listen)?)?))
}

fn shm_config(listen: &Listen<'_>) -> ShmConfig {
    match listen {
        Listen::No => ShmConfig::default(),
        Listen::At { address: "", .. } => ShmConfig::generated(),
        Listen::At { address, .. } => ShmConfig::named(*address),
    }
}

fn tcp_config(listen: &Listen<'_>) -> Result<TcpConfig, ModuleError> {
    let Some((bind, advertise)) = bind_of(listen)? else { return Ok(TcpConfig::default()) };
    Ok(TcpConfig { advertise, ..TcpConfig::listening(bind) })
}

fn open_udp(listen: &Listen<'_>, options: &Options) -> Result<Box<dyn Rail>, ModuleError> {
    let config = match bind_of(listen)? {
        Some((bind, mut advertise)) => {
            // Names are not looked up yet.
            advertise.retain(|address| ropewalk_rail_udp::is_address(address));
            UdpConfig { advertise, ..UdpConfig::listening(bind) }
        }
        None => UdpConfig::default(),
    };
    let port = UdpPort::open(config)?;
    let here = port.local_address();
    over_packets(port, here, options, Speaks::Ours)
}

fn open_ether(config: &EtherConfig, options: &Options) -> Result<Box<dyn Rail>, ModuleError> {
    let port = EtherPort::open(config)?;
    tell_refused(&port);
    let here = port.interface().station;
    over_packets(port, here, options, Speaks::Ours)
}

/// Says once that there is no AF_XDP where it was to be used if it can be had.
fn tell_refused(port: &EtherPort) {
    static SAID: Once = Once::new();
    if let Some(why) = port.xdp_refused() {
        let interface = &port.interface().name;
        SAID.call_once(|| {
            eprintln!("ropewalk: cannot use AF_XDP on {interface}: {why}; continuing without it")
        });
    }
}

/// The parameters of a wire with MXoE, as far as an address gives them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wire {
    key: u32,
    /// Longest frame; 0: the interface's maximum.
    frame_bytes: u16,
    /// The time for which a host may leave messages unanswered.
    silence: Option<Duration>,
    little: bool,
    compatible: bool,
    /// It is spoken with hosts of ours, too, who understand each other better otherwise.
    with_ours: bool,
    sockets: Sockets,
}

impl Wire {
    /// Reads `key=N`, `frame=N`, `order=little`, `mode=compatible`, `silence=SECONDS`, `ours=mxoe`, and the options
    /// of sockets, with `&` between.
    ///
    /// `ours=mxoe`: endpoints of MX speak MXoE with hosts of ours as well, instead of our own language.
    ///
    /// `silence` is the time for which a host may leave messages unanswered before it is given up. The default is
    /// 512 s, as with Open-MX, whose programs answer nothing while they compute.
    fn read(&mut self, text: &str) -> Result<(), ModuleError> {
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let bad = || ModuleError::BadWire(part.to_string());
            match part.split_once('=').ok_or_else(bad)? {
                ("key", key) => self.key = number(key).ok_or_else(bad)?,
                ("frame", bytes) => self.frame_bytes = bytes.parse().map_err(|_| bad())?,
                ("silence", seconds) => self.silence = Some(duration(seconds).ok_or_else(bad)?),
                ("order", "little") => self.little = true,
                ("order", "big") => self.little = false,
                ("mode", "compatible") => self.compatible = true,
                ("mode", "native") => self.compatible = false,
                ("ours", "mxoe") => self.with_ours = true,
                ("ours", "own") => self.with_ours = false,
                _ => self.sockets.set(part).ok_or_else(bad)?,
            }
        }
        Ok(())
    }

    fn order(self) -> Order {
        if self.little { Order::Little } else { Order::Big }
    }

    /// In frames that fit an interface which takes packets of so many bytes.
    fn dialect(self, mtu: usize) -> Result<Dialect, ModuleError> {
        let frame_bytes = match self.frame_bytes {
            // Open-MX counts the Ethernet header, and is told the interface's own figure all the same.
            0 => mtu.min(MXOE_FRAME_BYTES_MAX) as u16,
            bytes => bytes,
        };
        let dialect = match self.compatible {
            true => Dialect::compatible(),
            false => Dialect::native(frame_bytes, self.order())
                .map_err(|_| ModuleError::BadWire(format!("frame={frame_bytes}")))?,
        };
        let frame_bytes = dialect.frame_bytes_max();
        match dialect.body_bytes_max() <= mtu {
            true => Ok(dialect),
            false if self.compatible => Err(ModuleError::LongCompatibleFrames { frame_bytes, mtu }),
            false => Err(ModuleError::LongFrames { frame_bytes, mtu }),
        }
    }
}

/// The default frame size of Open-MX.
const MXOE_FRAME_BYTES_MAX: usize = 9000;

/// Whether this may be said behind the `?` of an interface, on which MXoE is spoken or our own language.
pub fn check_wire(foreign: bool, said: &str, mtu: usize) -> Result<(), ModuleError> {
    if !foreign {
        Sockets::default().read(said)?;
        return Ok(());
    }
    dialect(said, mtu).map(drop)
}

/// Whether MXoE is spoken with hosts of ours, too, where this is said.
pub fn is_for_all(said: &str) -> bool {
    let mut wire = Wire::default();
    wire.read(said).is_ok() && wire.with_ours
}

/// The dialect of MXoE for this query, on an interface with this MTU.
pub fn dialect(said: &str, mtu: usize) -> Result<Dialect, ModuleError> {
    let mut wire = Wire::default();
    wire.read(said)?;
    wire.dialect(mtu)
}

/// A number as people write keys: decimal, or hexadecimal with `0x`.
pub(crate) fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A number of seconds, more than none and no more than a year, with or without decimals.
fn duration(text: &str) -> Option<Duration> {
    const YEAR: f64 = 366.0 * 86_400.0;
    let seconds: f64 = text.parse().ok()?;
    (seconds > 0.0 && seconds <= YEAR).then(|| Duration::from_secs_f64(seconds))
}

fn open_mxoe(
    config: EtherConfig,
    wire: Wire,
    options: &Options,
) -> Result<Box<dyn Rail>, ModuleError> {
    let language = Language::Mxoe(wire.order());
    let mut port = EtherPort::open(&EtherConfig { language, sockets: wire.sockets, ..config })?;
    tell_refused(&port);
    let here = port.interface().station;
    let settings = MxoeSettings {
        dialect: wire.dialect(port.packet_bytes())?,
        key: wire.key,
        give_up_after: wire.silence,
    };
    // Hosts with Open-MX talk to those only of whom an agent has told them.
    if let Some(member) = agent::join(port.interface(), settings.dialect, Some(port.endpoint())) {
        port.keep(Box::new(member));
    }
    over_packets(port, here, options, Speaks::Mxoe(settings))
}

/// The raw endpoint of an interface, at an address as endpoints of MXoE have there, without a number:
/// `eth0?order=little`.
pub fn open_raw(address: &str) -> Result<RawEndpoint, ModuleError> {
    let (interface, said) = parted(address);
    let mut wire = Wire::default();
    wire.read(said)?;
    let socket = RawSocket::open(interface, wire.order())?;
    let dialect = wire.dialect(socket.interface().mtu)?;
    RawEndpoint::start(socket, dialect).map_err(ModuleError::Descriptors)
}

/// The protocol of a rail of packets.
#[derive(Debug, Clone, Copy)]
enum Speaks {
    Ours,
    Mxoe(MxoeSettings),
}

/// A rail of this port, which is at `here`; captured where that is wished.
fn over_packets<P>(
    port: P,
    here: P::Station,
    options: &Options,
    speaks: Speaks,
) -> Result<Box<dyn Rail>, ModuleError>
where
    P: Port<Station: Place> + 'static,
{
    let Some(config) = &options.capture else { return rail_of(port, speaks) };
    match Capture::open(&port, config) {
        Ok(capture) => rail_of(Captured::new(port, here, capture), speaks),
        Err(error) if config.insist => Err(error.into()),
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| eprintln!("ropewalk: {error}; continuing without it"));
            rail_of(port, speaks)
        }
    }
}

/// A rail of this port, with this host's clock and randomness.
fn rail_of<P: Port + 'static>(port: P, speaks: Speaks) -> Result<Box<dyn Rail>, ModuleError> {
    let start = Instant::now();
    let clock = Arc::new(move || Time(start.elapsed().as_nanos() as u64));
    let random = Random::from_seed(crate::host::random_seed());
    let failed = ModuleError::Descriptors;
    Ok(match speaks {
        Speaks::Ours => Box::new(PacketRail::new(port, random, clock).map_err(failed)?),
        Speaks::Mxoe(settings) => {
            Box::new(PacketRail::foreign(port, settings, random, clock).map_err(failed)?)
        }
    })
}

/// An address of this host with this port, one that most peers can use.
pub fn reachable_address(port: u16) -> SocketAddr {
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    let found = ropewalk_rail::host::reachable(any);
    let first = found.first().and_then(|address| address.parse().ok());
    first.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port))
}

/// The address to listen at, and the addresses to advertise instead if the bound one is less specific.
fn bind_of(listen: &Listen<'_>) -> Result<Option<(SocketAddr, Vec<String>)>, ModuleError> {
    let Listen::At { address, exactly } = *listen else { return Ok(None) };
    let (host, port) = host_and_port(address)?;
    if !exactly {
        return Ok(Some(bind_anywhere(host, port)));
    }
    let mut found = (host, port)
        .to_socket_addrs()
        .map_err(|_| ModuleError::UnknownHost(address.to_string()))?;
    // With its scope, where it has one.
    let bind = found.next().ok_or_else(|| ModuleError::UnknownHost(address.to_string()))?;
    // Peers are told the name that the operator chose, once its port is known: with port 0 it is not. One
    // that stands for all interfaces leads nowhere from other hosts.
    let advertise = match port {
        _ if bind.ip().is_unspecified() => Vec::new(),
        0 => Vec::new(),
        _ => vec![joined(host, port)],
    };
    Ok(Some((bind, advertise)))
}

/// The address to listen at all interfaces. The host is only the name that others use for this one. It is not looked
/// up, and may name no host (`NULL`, in old test programs).
fn bind_anywhere(host: &str, port: u16) -> (SocketAddr, Vec<String>) {
    let numeric: Option<IpAddr> = host.parse().ok();
    let any: IpAddr = match numeric {
        Some(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let bind = SocketAddr::new(any, port);
    let advertise = match numeric {
        _ if port == 0 || host.is_empty() => Vec::new(),
        Some(address) if address.is_unspecified() => Vec::new(),
        Some(_) => vec![joined(host, port)],
        None => {
            // A name may be known to others, and to nobody: it comes last.
            let mut told = ropewalk_rail::host::reachable(bind);
            told.push(joined(host, port));
            told
        }
    };
    (bind, advertise)
}

/// A host with its port, as addresses have them.
fn joined(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Parts `host:port`, `host`, `[v6]:port`, `[v6]`; without a port it is 0. A path behind it is passed over.
fn host_and_port(address: &str) -> Result<(&str, u16), ModuleError> {
    let bad = || ModuleError::BadAddress(address.to_string());
    let address = address.split_once('/').map_or(address, |(address, _)| address);
    let (host, port) = match address.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or_else(bad)?;
            (
                host,
                if after.is_empty() {
                    None
                } else {
                    Some(after.strip_prefix(':').ok_or_else(bad)?)
                },
            )
        }
        None => match address.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
        },
    };
    let port = port.map_or(Ok(0), |port| port.parse().map_err(|_| bad()))?;
    Ok((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_ports_or_not_and_brackets_or_not() {
        assert_eq!(host_and_port("node1:7000").unwrap(), ("node1", 7000));
        assert_eq!(host_and_port("node1").unwrap(), ("node1", 0));
        assert_eq!(host_and_port("[::1]:9").unwrap(), ("::1", 9));
        assert_eq!(host_and_port("[::1]").unwrap(), ("::1", 0));
        assert_eq!(host_and_port("h:7/").unwrap(), ("h", 7));
        assert_eq!(host_and_port("h:7/fs/x:1").unwrap(), ("h", 7));
        assert_eq!(host_and_port("[::1]:9/fs").unwrap(), ("::1", 9));
        assert!(host_and_port("::1").is_err() && host_and_port("[::1").is_err());
        assert!(host_and_port("h:99999").is_err() && host_and_port("[::1]9").is_err());
    }

    #[test]
    fn a_listener_is_for_all_interfaces_unless_one_is_asked_for() {
        let at = |address, exactly| tcp_config(&Listen::At { address, exactly }).unwrap();
        let any = at("127.0.0.1:0", false);
        assert_eq!(any.listen.unwrap().to_string(), "0.0.0.0:0");
        assert_eq!(at("127.0.0.1:0", true).listen.unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(at("[::1]:0", true).listen.unwrap().to_string(), "[::1]:0");
        assert_eq!(tcp_config(&Listen::No).unwrap().listen, None);
        assert_eq!(at("127.0.0.1:7000/", false).advertise, ["127.0.0.1:7000"]);
        assert_eq!(at("[::1]:7000", false).advertise, ["[::1]:7000"]);
        for all in ["0.0.0.0:7000", "[::]:7000"] {
            let config = at(all, true);
            assert_eq!(config.listen.unwrap().to_string(), all);
            assert!(config.advertise.is_empty(), "{all} leads nowhere from another host");
        }
    }

    #[test]
    fn a_host_that_is_not_bound_to_is_not_looked_up() {
        let at = |address, exactly| tcp_config(&Listen::At { address, exactly });
        let config = at("NULL:3399", false).unwrap();
        assert_eq!(config.listen.unwrap().to_string(), "0.0.0.0:3399");
        assert_eq!(config.advertise.last().map(String::as_str), Some("NULL:3399"));
        assert!(config.advertise[0].ends_with(":3399") && config.advertise[0] != "NULL:3399");
        assert!(at("nobody.invalid:0", false).unwrap().advertise.is_empty());
        let error = at("nobody.invalid:3399", true).unwrap_err();
        assert!(matches!(error, ModuleError::UnknownHost(_)), "{error}");
    }

    #[test]
    fn an_unknown_scheme_is_refused_with_those_that_there_are() {
        let error = open("gm", &Listen::No).err().expect("nobody has such a network").to_string();
        assert!(error.contains("gm://") && error.contains("tcp://"), "{error}");
    }
}
