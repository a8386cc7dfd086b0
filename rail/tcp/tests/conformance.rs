//! The suite of all rails, over IPv4 and IPv6.

mod common;

use common::Loopback;

ropewalk_rail::conformance!(over_ipv4, Loopback::new("127.0.0.1:0"));
ropewalk_rail::conformance!(over_ipv6, Loopback::new("[::1]:0"));
