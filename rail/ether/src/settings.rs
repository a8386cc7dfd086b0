//! The statements of a card's driver about itself and its interrupts. They only serve as advice to people; nothing
//! depends on them.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GET_LINE: u32 = 1;
const GET_DRIVER: u32 = 3;
const GET_COALESCING: u32 = 0xe;
const SET_JOINING: u32 = 0x2c;

/// The settings that a driver reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    pub driver: Option<String>,
    /// Mbit/s.
    pub speed: Option<u32>,
    /// Microseconds for which a card that received something waits before it interrupts.
    pub receive_wait_us: Option<u32>,
    /// Whether that time changes with the traffic.
    pub adaptive: bool,
    /// Nanoseconds for which the kernel looks by itself, with the card's interrupts switched off, after it has found
    /// nothing more (`gro_flush_timeout`), and how often it does so (`napi_defer_hard_irqs`).
    pub deferred_ns: Option<u64>,
    pub deferred_times: Option<u32>,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct Driver {
    command: u32,
    name: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_coalesce`.
#[repr(C)]
struct Coalescing {
    command: u32,
    receive_us: u32,
    others: [u32; 8],
    adaptive_receive: u32,
    rest: [u32; 12],
}

/// `struct ethtool_cmd`.
#[repr(C)]
struct Line {
    command: u32,
    modes: [u32; 2],
    speed_low: u16,
    connector: [u8; 6],
    others: [u32; 2],
    speed_high: u16,
    rest: [u8; 14],
}

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    value: u32,
}

const _: () = assert!(size_of::<Value>() == 8);
const _: () = assert!(size_of::<Driver>() == 196 && size_of::<Coalescing>() == 92);
const _: () = assert!(size_of::<Line>() == 44);

/// The settings of an interface, as far as its driver tells them.
pub fn settings(name: &str) -> Settings {
    // SAFETY: plain data for which zeroes are legal.
    let (mut driver, mut coalescing): (Driver, Coalescing) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: as above.
    let mut line: Line = unsafe { zeroed() };
    (driver.command, coalescing.command, line.command) = (GET_DRIVER, GET_COALESCING, GET_LINE);
    let mut found = Settings::default();
    if ask(name, &mut line).is_ok() {
        let speed = u32::from(line.speed_high) << 16 | u32::from(line.speed_low);
        // Either is said by drivers that do not know.
        found.speed = Some(speed).filter(|speed| ![0, 0xffff, u32::MAX].contains(speed));
    }
    if ask(name, &mut driver).is_ok() {
        let text = driver.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).into_owned();
        found.driver = Some(text).filter(|text| !text.is_empty());
    }
    if ask(name, &mut coalescing).is_ok() {
        found.receive_wait_us = Some(coalescing.receive_us);
        found.adaptive = coalescing.adaptive_receive != 0;
    }
    found.deferred_ns = number_in(name, "gro_flush_timeout");
    found.deferred_times = number_in(name, "napi_defer_hard_irqs").map(|times| times as u32);
    found
}

/// The node of memory that the card of an interface is next to; `None` where it is next to none, or is no device.
pub fn numa_node(name: &str) -> Option<u32> {
    // The kernel says -1 where it does not know, which is no such number.
    number_in(name, "device/numa_node").and_then(|node| u32::try_from(node).ok())
}

/// The number in a file of an interface.
fn number_in(name: &str, file: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{name}/{file}")).ok()?;
    text.trim().parse().ok()
}

/// Lets the kernel join received segments of streams (GRO), or not.
pub fn set_joining(name: &str, joins: bool) -> io::Result<()> {
    ask(name, &mut Value { command: SET_JOINING, value: joins.into() })
}

/// Asks the driver of an interface by a structure that begins with a command and has that command's layout.
fn ask<T>(name: &str, question: &mut T) -> io::Result<()> {
    // SAFETY: plain arguments.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: a request is plain data for which zeroes are legal.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = ptr::from_mut(question).cast();
    // SAFETY: the kernel writes at most the structure of the command, which the question has.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, ptr::from_mut(&mut request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
