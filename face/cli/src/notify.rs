//! Tells systemd that this process serves, as sd_notify(3) does: a datagram to the socket of `NOTIFY_SOCKET`.
//!
//! Invariant: a process that no systemd started does nothing here, and a message that cannot be sent stops nothing.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use ropewalk_base::level::Level;

use crate::log;

/// It serves, or is mounted.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// It ends in good order, which may take a while.
pub fn stopping() {
    tell("STOPPING=1");
}

fn tell(message: &str) {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&name, message) {
        let text = format!(
            "cannot tell systemd the state of this process at '{name}' (NOTIFY_SOCKET): {error}; \
             systemd may stop it: check the unit's Type= and NotifyAccess="
        );
        log::line(Level::Warning, &text);
    }
}

fn send(name: &str, message: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_arrives_at_both_kinds_of_sockets() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket").to_str().expect("a name").to_string();
        let hidden = format!("@ropewalk-notify-{}", std::process::id());
        let at = |name: &str| match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(name),
        };
        for name in [&path, &hidden] {
            let socket = UnixDatagram::bind_addr(&at(name).expect("a name")).expect("a socket");
            send(name, "READY=1").expect("it is there");
            let mut bytes = [0; 64];
            let count = socket.recv(&mut bytes).expect("a message");
            assert_eq!(&bytes[..count], b"READY=1");
        }
        assert!(send("/nonexistent/socket", "READY=1").is_err());
    }
}
