//! The settings of MXoE in an address, behind its `?`.

use std::time::Duration;

use ropewalk_net::modules::ModuleError;
use ropewalk_net::packets::parse_key;
use ropewalk_rail_ether::{EtherError, Sockets};
use ropewalk_wire::mxoe::{Dialect, ETHERNET_BYTES, Order};

/// The default frame size of Open-MX.
const FRAME_BYTES_MAX: usize = 9000;

/// The reason why a wire cannot be as an address says. Class: caller.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error(
        "'{0}' is not a valid setting for MXoE; valid are key=N, frame=BYTES (256 to 65000), \
         order=big or little, mode=native or compatible, silence=SECONDS, socket=packet, xdp or \
         auto, queue=N, and poll=MICROSECONDS, separated by &"
    )]
    Bad(String),
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
    /// The options of the sockets, on a wire of our own protocol.
    #[error(transparent)]
    Sockets(#[from] EtherError),
}

impl From<WireError> for ModuleError {
    fn from(error: WireError) -> ModuleError {
        match error {
            WireError::Sockets(error) => ModuleError::Ether(error),
            error => ModuleError::Other(error.to_string()),
        }
    }
}

/// The parameters of a wire with MXoE, as far as an address gives them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wire {
    /// The key that peers have to give.
    pub key: u32,
    /// The time for which a host may leave messages unanswered.
    pub silence: Option<Duration>,
    pub sockets: Sockets,
    /// Longest frame; 0: the interface's maximum.
    frame_bytes: u16,
    is_little: bool,
    is_compatible: bool,
    /// It is spoken with hosts of ours, too, who understand each other better otherwise.
    with_ours: bool,
}

impl Wire {
    /// The wire that an address names by this query; sockets are these where it does not say.
    ///
    /// The query has `key=N`, `frame=N`, `order=little`, `mode=compatible`, `silence=SECONDS`, `ours=mxoe`, and the
    /// options of sockets, with `&` between.
    ///
    /// `ours=mxoe`: endpoints of MX speak MXoE with hosts of ours as well, instead of our own protocol.
    ///
    /// `silence` is the time for which a host may leave messages unanswered before it is given up. The default is
    /// 512 s, as with Open-MX, whose programs answer nothing while they compute.
    pub fn parse(query: &str, sockets: Sockets) -> Result<Wire, WireError> {
        let mut wire = Wire { sockets, ..Wire::default() };
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let bad = || WireError::Bad(part.to_string());
            match part.split_once('=').ok_or_else(bad)? {
                ("key", key) => wire.key = parse_key(key).ok_or_else(bad)?,
                ("frame", bytes) => wire.frame_bytes = bytes.parse().map_err(|_| bad())?,
                ("silence", seconds) => wire.silence = Some(duration(seconds).ok_or_else(bad)?),
                ("order", "little") => wire.is_little = true,
                ("order", "big") => wire.is_little = false,
                ("mode", "compatible") => wire.is_compatible = true,
                ("mode", "native") => wire.is_compatible = false,
                ("ours", "mxoe") => wire.with_ours = true,
                ("ours", "own") => wire.with_ours = false,
                _ => wire.sockets.set(part).ok_or_else(bad)?,
            }
        }
        Ok(wire)
    }

    /// The byte order of its fields.
    pub fn order(self) -> Order {
        if self.is_little { Order::Little } else { Order::Big }
    }

    /// The dialect in frames that fit an interface which takes packets of `mtu` bytes.
    pub fn dialect(self, mtu: usize) -> Result<Dialect, WireError> {
        let frame_bytes = match self.frame_bytes {
            // Open-MX counts the Ethernet header, and is told the interface's own figure all the same.
            0 => mtu.min(FRAME_BYTES_MAX) as u16,
            bytes => bytes,
        };
        let dialect = match self.is_compatible {
            true => Dialect::compatible(),
            false => Dialect::native(frame_bytes, self.order())
                .map_err(|_| WireError::Bad(format!("frame={frame_bytes}")))?,
        };
        let frame_bytes = dialect.frame_bytes_max();
        match dialect.body_bytes_max() <= mtu {
            true => Ok(dialect),
            false if self.is_compatible => {
                Err(WireError::LongCompatibleFrames { frame_bytes, mtu })
            }
            false => Err(WireError::LongFrames { frame_bytes, mtu }),
        }
    }
}

/// Whether this may stand behind the `?` of an interface with this MTU. `is_mxoe`: MXoE is spoken there, and
/// otherwise our own protocol.
pub fn check(is_mxoe: bool, query: &str, mtu: usize) -> Result<(), WireError> {
    match is_mxoe {
        true => dialect(query, mtu).map(drop),
        false => Ok(Sockets::default().read(query).map(drop)?),
    }
}

/// Whether MXoE is spoken with hosts of ours, too, where an address has this query.
pub fn is_for_all(query: &str) -> bool {
    Wire::parse(query, Sockets::default()).is_ok_and(|wire| wire.with_ours)
}

/// The dialect of MXoE for this query, on an interface with this MTU.
pub fn dialect(query: &str, mtu: usize) -> Result<Dialect, WireError> {
    Wire::parse(query, Sockets::default())?.dialect(mtu)
}

/// A number of seconds, more than none and no more than a year, with or without decimals.
fn duration(text: &str) -> Option<Duration> {
    const YEAR: f64 = 366.0 * 86_400.0;
    let seconds: f64 = text.parse().ok()?;
    (seconds > 0.0 && seconds <= YEAR).then(|| Duration::from_secs_f64(seconds))
}
