//! Modules: the rails that an endpoint can be given by the scheme of an address, `tcp` or `shm`.
//!
//! Faces ask for a scheme and know no rail. One that is new registers itself here and is reached
//! through every face: so `host/mx` adds MXoE, with what its interfaces need beside a rail.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Instant;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
pub use ropewalk_rail::Rail;
use ropewalk_rail::binding::{Binding, BindingError};
use ropewalk_rail::port::Port;
pub use ropewalk_rail_ether::EtherError;
use ropewalk_rail_ether::{EtherConfig, EtherPort, Sockets};
pub use ropewalk_rail_shm::ShmError;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
pub use ropewalk_rail_tcp::TcpError;
use ropewalk_rail_tcp::{TcpConfig, TcpRail};
pub use ropewalk_rail_udp::UdpError;
use ropewalk_rail_udp::{UdpConfig, UdpPort};
use ropewalk_transport::PacketProtocol;

use crate::capture::{Capture, CaptureConfig, CaptureError, Captured, Place};
use crate::notice;
use crate::packets::{PacketRail, own_protocol};

/// The function that opens a rail.
type Open = dyn Fn(&Listen<'_>, &Options) -> Result<Box<dyn Rail>, ModuleError> + Send + Sync;
/// The function that opens a rail which only connects, and reaches an address.
type Call = dyn Fn(&str, &Options) -> Result<Box<dyn Rail>, ModuleError> + Send + Sync;

/// A kind of rail.
#[derive(Clone)]
pub struct Module {
    scheme: &'static str,
    open: Arc<Open>,
    /// `None`: one that was opened with `Listen::No` reaches every address.
    call: Option<Arc<Call>>,
    makes_sense: fn(&str) -> bool,
    /// Whether its peers are foreign (see `Capabilities::foreign`).
    is_foreign: bool,
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
        let sockets = std::env::var(SOCKETS_VARIABLE).ok().filter(|_| is_own_environment());
        Options { capture: CaptureConfig::from_environment(), sockets: sockets.unwrap_or_default() }
    }

    /// Whether networks with raw frames can be opened with them.
    pub fn check(&self) -> Result<(), ModuleError> {
        self.sockets().map(drop)
    }

    /// The sockets for raw frames. `Environment`: their text has an option that sockets do not have.
    pub fn sockets(&self) -> Result<Sockets, ModuleError> {
        Sockets::default().read(&self.sockets).map_err(ModuleError::Environment)
    }
}

/// Whether the environment is that of the user whose rights this program has.
pub(crate) fn is_own_environment() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() == geteuid() && getgid() == getegid()
}

/// The reason why a rail could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    #[error("unknown scheme '{scheme}': use one of {known}")]
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
    #[error(transparent)]
    Binding(#[from] BindingError),
    #[error("{variable} names '{name}', and this host has no such interface: it has {there}")]
    NotThere { variable: &'static str, name: String, there: String },
    #[error("cannot open another transport: {0}; raise the limit on open files (`ulimit -n`)")]
    Descriptors(std::io::Error),
    #[error(transparent)]
    Shm(#[from] ShmError),
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
    /// Whether peers can listen at such an address.
    makes_sense: fn(&str) -> bool,
    open: OpenBuiltIn,
    /// Opens one that only connects, and reaches this address.
    call: CallBuiltIn,
    /// The same, with sockets that are bound to an interface or a source address.
    call_by: Option<CallBoundBuiltIn>,
}

type CallBuiltIn = fn(&str, &Options) -> Result<Box<dyn Rail>, ModuleError>;
type CallBoundBuiltIn = fn(Binding, &Options) -> Result<Box<dyn Rail>, ModuleError>;
type OpenBuiltIn = fn(&Listen<'_>, &Options) -> Result<Box<dyn Rail>, ModuleError>;

const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        scheme: "tcp",
        makes_sense: ropewalk_rail_tcp::is_address,
        open: |listen, _| open_tcp(listen),
        call: |_, _| open_tcp(&Listen::No),
        call_by: Some(|local, _| {
            let config = TcpConfig { local, ..TcpConfig::default() };
            Ok(Box::new(TcpRail::open(config)?))
        }),
    },
    BuiltIn {
        scheme: "shm",
        makes_sense: |address| !address.is_empty(),
        open: |listen, _| open_shm(listen),
        call: |_, _| open_shm(&Listen::No),
        call_by: None,
    },
    BuiltIn {
        scheme: "udp",
        makes_sense: ropewalk_rail_udp::is_address,
        open: open_udp,
        call: |_, options| open_udp(&Listen::No, options),
        call_by: Some(|local, options| {
            open_udp_port(UdpConfig { local, ..UdpConfig::default() }, options)
        }),
    },
    BuiltIn {
        scheme: "ether",
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
        call_by: Some(|local, options| {
            let local = local.without_entropy("ether")?;
            let interface = local.interface().map(|(_, name)| name.to_string());
            let sockets = options.sockets()?;
            open_ether(&EtherConfig { interface, sockets, ..EtherConfig::default() }, options)
        }),
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
    /// A module for addresses of this scheme, at all of which peers can listen. Its rails reach every address.
    pub fn new(
        scheme: &'static str,
        open: impl Fn(&Listen<'_>, &Options) -> Result<Box<dyn Rail>, ModuleError>
        + Send
        + Sync
        + 'static,
    ) -> Module {
        let makes_sense = |_: &str| true;
        Module { scheme, open: Arc::new(open), call: None, makes_sense, is_foreign: false }
    }

    /// The same module, where a rail that only connects has to know the address, which has no scheme: it may be on one
    /// of several networks.
    pub fn with_call(
        self,
        call: impl Fn(&str, &Options) -> Result<Box<dyn Rail>, ModuleError> + Send + Sync + 'static,
    ) -> Module {
        Module { call: Some(Arc::new(call)), ..self }
    }

    /// The same module, with a check whether peers can listen at an address, which has no scheme.
    pub fn with_check(self, makes_sense: fn(&str) -> bool) -> Module {
        Module { makes_sense, ..self }
    }

    /// The same module, with peers that are foreign, and take tagged messages only.
    pub fn with_foreign_peers(self) -> Module {
        Module { is_foreign: true, ..self }
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
    let more = more_schemes(|module| !module.is_foreign);
    BUILT_IN.iter().map(|module| module.scheme).chain(more).collect()
}

/// The schemes of those registered modules that are like this, without those of every build.
fn more_schemes(is_so: impl Fn(&Module) -> bool) -> Vec<&'static str> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let more = registered.iter().filter(|module| is_so(module)).map(|module| module.scheme);
    more.filter(|scheme| built_in(scheme).is_none()).collect()
}

/// Whether an address without its scheme can be one that peers listen at.
pub fn makes_sense(scheme: &str, address: &str) -> bool {
    match (registered(scheme), built_in(scheme)) {
        (Some(module), _) => (module.makes_sense)(address),
        (None, Some(module)) => (module.makes_sense)(address),
        (None, None) => true,
    }
}

/// Opens a rail for addresses of this scheme, with the options from the environment.
pub fn open(scheme: &str, listen: &Listen<'_>) -> Result<Box<dyn Rail>, ModuleError> {
    open_with(scheme, listen, &Options::from_environment())
}

/// Opens a rail for addresses of this scheme.
pub fn open_with(
    scheme: &str,
    listen: &Listen<'_>,
    options: &Options,
) -> Result<Box<dyn Rail>, ModuleError> {
    if let Listen::At { address, .. } = listen {
        crate::entropy::refuse_entropy(scheme, parted(address).1)?;
    }
    match (registered(scheme), built_in(scheme)) {
        (Some(module), _) => (module.open)(listen, options),
        (None, Some(module)) => (module.open)(listen, options),
        (None, None) => Err(unknown(scheme)),
    }
}

/// Opens a rail that only connects, and reaches this address, which has no scheme: a network of several
/// interfaces takes the one that the address names.
pub fn open_to_call(scheme: &str, address: &str) -> Result<Box<dyn Rail>, ModuleError> {
    let options = Options::from_environment();
    match (registered(scheme), built_in(scheme)) {
        (Some(Module { call: Some(call), .. }), _) => call(address, &options),
        (Some(module), _) => (module.open)(&Listen::No, &options),
        (None, Some(module)) => (module.call)(address, &options),
        (None, None) => Err(unknown(scheme)),
    }
}

/// Whether a rail of this scheme can be had whose sockets are bound to an interface or a source address.
pub fn can_bind(scheme: &str) -> bool {
    registered(scheme).is_none() && built_in(scheme).is_some_and(|it| it.call_by.is_some())
}

/// Opens a rail that only connects, with sockets that are bound as `binding` says, in the syntax behind `?` of an address.
/// `Unknown` where no such rail can be had.
pub fn open_to_call_by(scheme: &str, binding: &str) -> Result<Box<dyn Rail>, ModuleError> {
    let call = built_in(scheme).filter(|_| can_bind(scheme)).and_then(|it| it.call_by);
    let call = call.ok_or_else(|| unknown(scheme))?;
    call(Binding::parse(binding)?.find()?, &Options::from_environment())
}

fn registered(scheme: &str) -> Option<Module> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    registered.iter().find(|module| module.scheme == scheme).cloned()
}

fn unknown(scheme: &str) -> ModuleError {
    let foreign = more_schemes(|module| module.is_foreign);
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
    let Some(Bound { bind, advertise, local }) = bind_of(listen)? else {
        return Ok(TcpConfig::default());
    };
    Ok(TcpConfig { advertise, local, ..TcpConfig::listening(bind) })
}

fn open_udp(listen: &Listen<'_>, options: &Options) -> Result<Box<dyn Rail>, ModuleError> {
    let config = match bind_of(listen)? {
        Some(Bound { bind, mut advertise, local }) => {
            // Names are not looked up yet.
            advertise.retain(|address| ropewalk_rail_udp::is_address(address));
            UdpConfig { advertise, local, ..UdpConfig::listening(bind) }
        }
        None => UdpConfig::default(),
    };
    open_udp_port(config, options)
}

fn open_udp_port(config: UdpConfig, options: &Options) -> Result<Box<dyn Rail>, ModuleError> {
    let port = UdpPort::open(config)?;
    let here = port.local_address();
    let machine = own_protocol(&port, random());
    over_packets(port, here, options, machine)
}

fn open_ether(config: &EtherConfig, options: &Options) -> Result<Box<dyn Rail>, ModuleError> {
    let port = open_ether_port(config)?;
    let here = port.interface().station;
    let machine = own_protocol(&port, random());
    over_packets(port, here, options, machine)
}

/// Opens a port for raw frames. Says once that there is no AF_XDP where it was to be used if it can be had.
pub fn open_ether_port(config: &EtherConfig) -> Result<EtherPort, ModuleError> {
    static SAID: Once = Once::new();
    let port = EtherPort::open(config)?;
    if let Some(why) = port.xdp_refused() {
        let interface = &port.interface().name;
        SAID.call_once(|| {
            notice::tell(&format!("cannot use AF_XDP on {interface}: {why}; continuing without it"))
        });
    }
    Ok(port)
}

/// A rail of this port, which is at `here`, with this protocol on it, this host's clock, and a capture where the options
/// wish one.
pub fn over_packets<P, L>(
    port: P,
    here: P::Station,
    options: &Options,
    machine: L,
) -> Result<Box<dyn Rail>, ModuleError>
where
    P: Port<Station: Place> + 'static,
    L: PacketProtocol<P::Station> + 'static,
{
    let Some(config) = &options.capture else { return rail_of(port, machine) };
    match Capture::open(&port, config) {
        Ok(capture) => rail_of(Captured::new(port, here, capture), machine),
        Err(error) if config.insist => Err(error.into()),
        Err(error) => {
            static SAID: Once = Once::new();
            SAID.call_once(|| notice::tell(&format!("{error}; continuing without it")));
            rail_of(port, machine)
        }
    }
}

/// A rail of this port, with this host's clock.
fn rail_of<P, L>(port: P, machine: L) -> Result<Box<dyn Rail>, ModuleError>
where
    P: Port + 'static,
    L: PacketProtocol<P::Station> + 'static,
{
    let start = Instant::now();
    let clock = Arc::new(move || Time(start.elapsed().as_nanos() as u64));
    let rail = PacketRail::speaking(machine, port, clock).map_err(ModuleError::Descriptors)?;
    Ok(Box::new(rail))
}

/// Randomness of this host.
fn random() -> Random {
    Random::from_seed(crate::host::random_seed())
}

/// The local side of a rail that listens.
struct Bound {
    bind: SocketAddr,
    /// The addresses to advertise instead, if the bound one is less specific.
    advertise: Vec<String>,
    local: Binding,
}

fn bind_of(listen: &Listen<'_>) -> Result<Option<Bound>, ModuleError> {
    let Listen::At { address, exactly } = *listen else { return Ok(None) };
    let (address, settings) = parted(address);
    let local = Binding::parse(settings)?.find()?;
    let (bind, advertise) = bind_to(address, exactly)?;
    let at = local.listen_at(bind)?;
    // A listener at less than all interfaces is not reached by the addresses of the others.
    let advertise = if local.is_free() || exactly { advertise } else { Vec::new() };
    Ok(Some(Bound { bind: at, advertise, local }))
}

/// The address to listen at, and the addresses to advertise instead if the bound one is less specific.
fn bind_to(address: &str, exactly: bool) -> Result<(SocketAddr, Vec<String>), ModuleError> {
    let (host, port) = host_and_port(address)?;
    if !exactly {
        return Ok(bind_anywhere(host, port));
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
    Ok((bind, advertise))
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
        assert!(error.contains("'gm'") && error.contains("tcp://"), "{error}");
    }
}
