//! The state of interfaces, as `ip` reports it.

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

/// Reads the lines of `ip -oneline -details -statistics link show`. Other lines are passed over.
pub(crate) fn parse(text: &str) -> Vec<Link> {
    text.lines().filter_map(link).collect()
}

fn link(line: &str) -> Option<Link> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let place = |word: &str| words.iter().position(|other| *other == word);
    // The word behind another one.
    let value = |word: &str| words.get(place(word)? + 1).copied();
    let [index, name, flags] = *words.first_chunk()?;
    let name = name.trim_end_matches(':').split('@').next()?;
    let flags: Vec<&str> = flags.trim_matches(['<', '>']).split(',').collect();
    let bridge = words.windows(3).find(|three| three[..2] == ["bridge_slave", "state"]);
    // Behind the head of a table: bytes, then packets.
    let packets = |table: &str| {
        let behind = words.get(place(table)?..)?;
        behind.iter().filter_map(|word| word.parse().ok()).nth(1)
    };
    Some(Link {
        name: name.to_string(),
        index: index.trim_end_matches(':').parse().ok()?,
        mtu: value("mtu")?.parse().ok()?,
        is_up: flags.contains(&"UP"),
        // The kernel notes a new carrier at once, and acts on it a moment later.
        has_carrier: flags.contains(&"LOWER_UP") && !value("state")?.ends_with("DOWN"),
        is_forwarding: bridge.is_some_and(|three| three[2] == "forwarding"),
        station: value("link/ether").or_else(|| value("link/loopback"))?.to_string(),
        received: packets("RX:")?,
        sent: packets("TX:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_port_is_read() {
        let text = "100: p0@q0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue master sw \
            state UP mode DEFAULT group default qlen 1000\\    link/ether c6:97:98:3b:49:e1 brd \
            ff:ff:ff:ff:ff:ff promiscuity 1  allmulti 1 \\    veth \\    bridge_slave state \
            forwarding priority 32 addrgenmode eui64 \\    RX:  bytes packets errors dropped  \
            missed   mcast           \\            90       1      0       0       0       0 \\    \
            TX:  bytes packets errors dropped carrier collsns           \\           234       3 \
            0       0       0       0\nnothing of that\n";
        let expected = Link {
            name: "p0".to_string(),
            index: 100,
            mtu: 1500,
            is_up: true,
            has_carrier: true,
            is_forwarding: true,
            station: "c6:97:98:3b:49:e1".to_string(),
            received: 1,
            sent: 3,
        };
        assert_eq!(parse(text), std::slice::from_ref(&expected));
        let down =
            text.replace("state UP", "state LOWERLAYERDOWN").replace("forwarding", "disabled");
        let expected = Link { has_carrier: false, is_forwarding: false, ..expected };
        assert_eq!(parse(&down), [expected]);
    }
}
