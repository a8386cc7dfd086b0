//! Why a network could not be opened, in the few kinds that C interfaces have codes for.

use ropewalk_net::modules::{EtherError, ModuleError, ShmError, TcpError, UdpError};

/// The kind of a [`ModuleError`]. The error's text says more, and what to do: a face prints it, since a code does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenErrorKind {
    /// There is no module of this scheme.
    UnknownModule,
    /// The host of an address is unknown.
    UnknownHost,
    /// Another process, or another endpoint of this one, has the port, the number or the name.
    InUse,
    /// This machine has no such address or interface, or the interface is down.
    NoSuchAddress,
    /// The user may not.
    NotPermitted,
    /// Descriptors or memory of the kernel are used up.
    Shortage,
    /// All else: mostly an address that makes no sense.
    Other,
}

impl OpenErrorKind {
    /// The kind of an error.
    pub fn of(error: &ModuleError) -> OpenErrorKind {
        match error {
            ModuleError::Unknown { .. } => OpenErrorKind::UnknownModule,
            ModuleError::UnknownHost(_) => OpenErrorKind::UnknownHost,
            ModuleError::Tcp(TcpError::PortInUse(_))
            | ModuleError::Udp(UdpError::PortInUse(_))
            | ModuleError::Shm(ShmError::NameInUse { .. })
            | ModuleError::Ether(
                EtherError::Taken { .. }
                | EtherError::Held { .. }
                | EtherError::AllTaken(_)
                | EtherError::RawTaken(_),
            ) => OpenErrorKind::InUse,
            ModuleError::NotThere { .. }
            | ModuleError::Tcp(TcpError::NoSuchAddress(_))
            | ModuleError::Udp(UdpError::NoSuchAddress(_))
            | ModuleError::Ether(
                EtherError::NoInterface(_)
                | EtherError::NoneUp
                | EtherError::Several { .. }
                | EtherError::Down(_),
            ) => OpenErrorKind::NoSuchAddress,
            ModuleError::Tcp(TcpError::PortReserved(_))
            | ModuleError::Ether(EtherError::NotPermitted(_)) => OpenErrorKind::NotPermitted,
            error if error.is_shortage() => OpenErrorKind::Shortage,
            _ => OpenErrorKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_net::modules::{self, Listen};

    use super::*;

    fn kind(scheme: &str, address: &str) -> Option<OpenErrorKind> {
        let listen = Listen::At { address, exactly: true };
        modules::open(scheme, &listen).err().as_ref().map(OpenErrorKind::of)
    }

    #[test]
    fn errors_of_different_networks_have_the_same_kinds() {
        assert_eq!(kind("gm", "x"), Some(OpenErrorKind::UnknownModule));
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        assert_eq!(kind("tcp", &address), Some(OpenErrorKind::InUse));
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        assert_eq!(kind("udp", &address), Some(OpenErrorKind::InUse));
        assert_eq!(kind("tcp", "192.0.2.1:0"), Some(OpenErrorKind::NoSuchAddress));
        assert_eq!(kind("udp", "192.0.2.1:0"), Some(OpenErrorKind::NoSuchAddress));
        assert_eq!(kind("shm", "no/name"), Some(OpenErrorKind::Other));
        let full = std::io::Error::from_raw_os_error(24);
        let full = ModuleError::Descriptors(full);
        assert_eq!(OpenErrorKind::of(&full), OpenErrorKind::Shortage);
        let named = ModuleError::NotThere {
            variable: "ROPEWALK_INTERFACES",
            name: "eth9".into(),
            there: "lo".into(),
        };
        assert_eq!(OpenErrorKind::of(&named), OpenErrorKind::NoSuchAddress);
    }
}
