//! Address ranges of patterns: `tcp://10.1.*`, `tcp://10.1.0.0` with a number of bits, `tcp://*`; the same for
//! IPv6, `tcp://[fd00::*]`, `tcp://[fd00::]` with a number of bits; `ether://02:00:*`, which takes no number of
//! bits.

use std::net::{IpAddr, ToSocketAddrs};

use crate::errors::{EINVAL, ErrorCode};

/// Says that the pattern has wildcards in place of a number of bits.
pub const WILDCARDS: i32 = -1;

/// Whether `host`, which is reached by one of these schemes, is one that the pattern means. A pattern for other
/// schemes means nobody.
pub fn contains(
    pattern: &str,
    bits: i32,
    schemes: &[String],
    host: &str,
) -> Result<bool, ErrorCode> {
    let mut any = false;
    for part in pattern.split([',', ' ']).filter(|part| !part.is_empty()) {
        let Some((scheme, wanted)) = part.split_once("://") else { return Err(-EINVAL) };
        // A peer that calls over tcp and lives on this host is moved to shared memory: it stays the one
        // whom a pattern for tcp means.
        let own =
            schemes.iter().any(|other| other == scheme || (scheme == "tcp" && other == "shm"));
        any |= is_in(host_part(wanted), bits, host)? && own;
    }
    Ok(any)
}

/// Without brackets and port, or an endpoint's number.
fn host_part(text: &str) -> &str {
    match text.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        // More than one colon is an address of version 6, not a port.
        None if text.matches(':').count() == 1 => text.split(':').next().unwrap_or(text),
        None => text.split('/').next().unwrap_or(text),
    }
    .trim_end_matches('/')
}

fn is_in(wanted: &str, bits: i32, host: &str) -> Result<bool, ErrorCode> {
    if bits == WILDCARDS {
        return Ok(matches(wanted.as_bytes(), host.as_bytes())
            || numeric(host)
                .is_some_and(|ip| matches(wanted.as_bytes(), ip.to_string().as_bytes())));
    }
    let Some(network) = numeric(wanted) else { return Err(-EINVAL) };
    let Some(address) = numeric(host) else { return Ok(false) };
    let (network, address, width) = match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(a.to_bits()), u128::from(b.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits(), b.to_bits(), 128),
        _ => return Ok(false),
    };
    let bits = u32::try_from(bits).ok().filter(|bits| *bits <= width).ok_or(-EINVAL)?;
    let differ = network ^ address;
    Ok(bits == 0 || differ >> (width - bits) == 0)
}

/// The address of a host, by its name where it has to be.
fn numeric(host: &str) -> Option<IpAddr> {
    let address: Option<IpAddr> = host.parse().ok();
    // A station of Ethernet is no name: nobody elsewhere is asked for it.
    let is_name = address.is_none() && !host.contains(':');
    let named = || (host, 0).to_socket_addrs().ok()?.next().map(|address| address.ip());
    address.or_else(|| if is_name { named() } else { None }).map(|ip| ip.to_canonical())
}

/// Whether `text` matches `pattern`, in which `*` stands for anything.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut from) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while from < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, from));
            at += 1;
        } else if pattern.get(at).is_some_and(|byte| byte.eq_ignore_ascii_case(&text[from])) {
            (at, from) = (at + 1, from + 1);
        } else if let Some((star_at, star_from)) = star {
            // The star takes one byte more.
            star = Some((star_at, star_from + 1));
            (at, from) = (star_at + 1, star_from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp() -> Vec<String> {
        vec!["tcp".to_string()]
    }

    #[test]
    fn a_pattern_of_another_scheme_means_nobody() {
        let inside =
            |pattern, schemes: &[String], host| contains(pattern, WILDCARDS, schemes, host);
        let shm = vec!["shm".to_string()];
        assert_eq!(inside("shm://*", &tcp(), "10.1.2.3"), Ok(false));
        assert_eq!(inside("shm://*", &shm, ""), Ok(true));
        assert_eq!(inside("tcp://127.*", &shm, "127.0.0.1"), Ok(true));
        assert_eq!(inside("shm://*,tcp://10.*", &tcp(), "10.1.2.3"), Ok(true));
        assert_eq!(inside("tcp://*", &[shm, tcp()].concat(), "h"), Ok(true));
    }

    #[test]
    fn wildcards_stand_for_anything() {
        let inside = |pattern, host| contains(pattern, WILDCARDS, &tcp(), host).unwrap();
        assert!(inside("tcp://10.1.*", "10.1.2.3") && !inside("tcp://10.1.*", "10.2.2.3"));
        assert!(inside("tcp://*", "10.1.2.3") && inside("tcp://*", "fd00::1"));
        assert!(inside("tcp://[fd00::*]", "fd00::1") && !inside("tcp://[fd01::*]", "fd00::1"));
        assert!(inside("tcp://10.*.3:3334", "10.1.2.3") && !inside("tcp://10.*.4", "10.1.2.3"));
        assert!(inside("tcp://192.*,tcp://10.*", "10.1.2.3"));
        assert!(!inside("tcp://10.1.2.3", "10.1.2.33"));
    }

    #[test]
    fn stations_are_meant_whatever_their_endpoints_are() {
        let ether = vec!["ether".to_string()];
        let station = "02:00:00:00:00:01";
        let inside = |pattern| contains(pattern, WILDCARDS, &ether, station);
        for pattern in ["ether://02:00:*", "ether://02:00:00:00:00:01/3", "ether://*"] {
            assert_eq!(inside(pattern), Ok(true), "{pattern}");
        }
        for pattern in ["ether://04:00:*", "tcp://02:00:*", "ether://02:00:00:00:00:02/3"] {
            assert_eq!(inside(pattern), Ok(false), "{pattern}");
        }
        assert_eq!(contains("ether://02:00:00:00:00:01", 8, &ether, station), Err(-EINVAL));
    }

    #[test]
    fn a_number_of_bits_counts_from_the_left() {
        let inside = |pattern, bits, host| contains(pattern, bits, &tcp(), host).unwrap();
        assert!(inside("tcp://10.1.0.0", 16, "10.1.255.3"));
        assert!(!inside("tcp://10.1.0.0", 24, "10.1.255.3"));
        assert!(inside("tcp://10.1.0.0:3334", 0, "192.168.1.1"));
        assert!(
            inside("tcp://10.1.2.3", 32, "10.1.2.3") && !inside("tcp://10.1.2.3", 32, "10.1.2.4")
        );
        assert!(inside("tcp://[fd00::]", 8, "fdff::1") && !inside("tcp://[fd00::]", 16, "fdff::1"));
        assert!(!inside("tcp://[::]", 0, "10.1.2.3"), "another kind of address");
        assert_eq!(contains("tcp://10.1.0.0", 33, &tcp(), "10.1.0.1"), Err(-EINVAL));
        assert_eq!(contains("10.1.0.0", 16, &tcp(), "10.1.0.1"), Err(-EINVAL));
        assert_eq!(contains("tcp://10.1.*", 16, &tcp(), "10.1.0.1"), Err(-EINVAL));
    }
}
