//! Commands that run something: servers, clusters, mounts. One file each; here is what they share.

pub mod down;
pub mod format;
pub mod mount;
pub mod serve;
pub mod up;

use std::net::SocketAddr;
use std::time::Duration;

use ropewalk_rail::Rail;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

/// How often a waiting command looks whether it shall end.
pub const LOOK: Duration = Duration::from_millis(50);

/// Rails of a process that only connects.
pub fn client_rails() -> anyhow::Result<Vec<Box<dyn Rail>>> {
    Ok(vec![
        Box::new(ShmRail::open(ShmConfig::default())?),
        Box::new(TcpRail::open(TcpConfig::default())?),
    ])
}

/// Where a server listens, as the user writes it.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let said = match text.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => {
                format!("'{host}' is not an address of this host in digits")
            }
            _ => "it takes an address and a port".to_string(),
        };
        format!("{said}; write it like 127.0.0.1:7700 or [::1]:7700")
    })
}

/// Seconds, also parts of one, as the user writes them.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of seconds"))?;
    checked_seconds(number)
}

/// A time that a user may ask for.
pub fn checked_seconds(number: f64) -> Result<Duration, String> {
    if (0.2..=86_400.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("between 0.2 and 86400 seconds".to_string())
    }
}
