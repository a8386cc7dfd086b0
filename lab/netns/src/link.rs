//! The state of interfaces, as `ip` reports it.

use serde_json::Value;

/// The state of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub name: String,
    /// Its number in its namespace.
    pub index: u32,
    /// The longest payload of a frame, in bytes.
    pub mtu: u32,
    /// It was set up.
    pub is_up: bool,
    /// It is up, and so is the far end of its cable.
    pub has_carrier: bool,
    /// It is the port of a bridge, and the bridge forwards its frames.
    pub is_forwarding: bool,
    /// Its Ethernet address, as text.
    pub station: String,
    /// Frames that came in and went out.
    pub received: u64,
    pub sent: u64,
}

/// Reads the list of `ip -json -details -statistics link show`.
pub(crate) fn parse(list: &[u8]) -> std::io::Result<Vec<Link>> {
    let list: Value = serde_json::from_slice(list)?;
    Ok(list.as_array().into_iter().flatten().map(link).collect())
}

fn link(value: &Value) -> Link {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let number = |path: &str| value.pointer(path).and_then(Value::as_u64).unwrap_or_default();
    let flags: Vec<&str> =
        value["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Link {
        name: text(&value["ifname"]),
        index: number("/ifindex") as u32,
        mtu: number("/mtu") as u32,
        is_up: flags.contains(&"UP"),
        // The kernel notes a new carrier at once, and acts on it a moment later.
        has_carrier: flags.contains(&"LOWER_UP") && !text(&value["operstate"]).ends_with("DOWN"),
        is_forwarding: value["linkinfo"]["info_slave_data"]["state"] == "forwarding",
        station: text(&value["address"]),
        received: number("/stats64/rx/packets"),
        sent: number("/stats64/tx/packets"),
    }
}
