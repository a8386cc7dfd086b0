//! Programs in C over raw Ethernet frames: a server and a client in a network namespace each, which nothing joins but
//! their cards.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Build, C, CPP, ORANGEFS, compile, folder, succeed};

const CLIENT: &str = "02:00:00:00:00:01";
const SERVER: &str = "02:00:00:00:00:02";

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}

/// Two namespaces, with the card `one` in the near one and `two` in the far one. Neither has an address of IP.
struct Namespaces {
    near: String,
    far: String,
}

impl Namespaces {
    /// `None`, with the reason on the standard output, if this machine does not allow it.
    fn make(mtu: u32) -> Option<Namespaces> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let near = format!("ropewalk-bmi-{}-{number}", std::process::id());
        if !ip(&format!("netns add {near}")) {
            println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
            return None;
        }
        let far = format!("{near}-far");
        let namespaces = Namespaces { near, far };
        let Namespaces { near, far } = &namespaces;
        assert!(ip(&format!("netns add {far}")));
        assert!(ip(&format!(
            "-n {near} link add one address {CLIENT} mtu {mtu} type veth \
             peer name two address {SERVER} mtu {mtu} netns {far}"
        )));
        assert!(
            ip(&format!("-n {near} link set one up")) && ip(&format!("-n {far} link set two up"))
        );
        Some(namespaces)
    }

    fn run(&self, source: &str, build: Build) {
        let Some(program) = compile(&[source], build) else { return };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.near]).arg(program).arg("ether");
        command.env("LD_LIBRARY_PATH", folder()).env("ETHER_CLIENT", CLIENT);
        command.env("ETHER_NAMESPACE", format!("/run/netns/{}", self.far));
        command
            .env("ETHER_LISTEN", "ether://two/1")
            .env("ETHER_URL", format!("ether://{SERVER}/1"));
        let output = succeed(&mut command);
        assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.near, &self.far] {
            ip(&format!("netns del {name}"));
        }
    }
}

#[test]
fn the_interface_keeps_its_promises_over_frames_alone() {
    let Some(namespaces) = Namespaces::make(1500) else { return };
    namespaces.run("semantics.c", C);
    namespaces.run("semantics.c", CPP);
    let Some(namespaces) = Namespaces::make(9000) else { return };
    namespaces.run("semantics.c", ORANGEFS);
}

#[test]
fn threads_get_their_own_completions_over_frames() {
    let Some(namespaces) = Namespaces::make(1500) else { return };
    namespaces.run("threads.c", C);
}
