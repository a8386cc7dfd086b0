//! The conformance suite of all rails, for both forms of this one.

use std::io::Write;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ropewalk_base::time::Time;
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::Fixture;
use ropewalk_rail_shm::{ShmConfig, ShmRail};

struct Machine {
    start: Instant,
    within_process: bool,
}

impl Machine {
    fn new(within_process: bool) -> Machine {
        Machine { start: Instant::now(), within_process }
    }
}

impl Fixture for Machine {
    fn rail(&mut self) -> Box<dyn Rail> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("conformance-{}-{number}", std::process::id());
        let config = ShmConfig {
            name: Some(name),
            within_process: self.within_process,
            ..ShmConfig::default()
        };
        Box::new(ShmRail::open(config).expect("a fresh name"))
    }

    fn nowhere(&mut self) -> String {
        if self.within_process { "loop/nobody".into() } else { "nobody".into() }
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn step(&mut self, busy: bool) {
        if !busy {
            std::thread::yield_now();
        }
    }

    fn payloads_arrive_in_parts(&self) -> bool {
        false
    }

    fn garbage(&mut self, address: &str, bytes: &[u8]) -> bool {
        if self.within_process {
            return false;
        }
        // A stream socket cannot even connect to ours, so a raw one of the right type is needed.
        garbage::send(address, bytes);
        true
    }
}

mod garbage {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send as put,
        socket_with,
    };

    pub fn send(address: &str, bytes: &[u8]) {
        let user = rustix::process::geteuid().as_raw();
        let path = format!("ropewalk/{user}/{address}");
        let address = SocketAddrUnix::new_abstract_name(path.as_bytes()).expect("short enough");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).expect("a socket");
        connect(&socket, &address).expect("the rail listens");
        put(&socket, bytes, SendFlags::NOSIGNAL).expect("the rail has not read it yet");
    }
}

ropewalk_rail::conformance!(between_processes, Machine::new(false));
ropewalk_rail::conformance!(within_a_process, Machine::new(true));

/// A stream socket is no way in.
#[test]
fn other_kinds_of_sockets_are_refused_by_the_kernel() {
    let name = format!("kinds-{}", std::process::id());
    let _rail = ShmRail::open(ShmConfig::named(&name)).expect("a fresh name");
    let user = rustix::process::geteuid().as_raw();
    let path = format!("ropewalk/{user}/{name}");
    let address = SocketAddr::from_abstract_name(path).expect("short enough");
    let stream = UnixStream::connect_addr(&address);
    assert!(stream.map(|mut stream| stream.write_all(b"hello")).is_err());
}
