//! Raw endpoints between two hosts: network namespaces that a pair of virtual cards joins.

mod common;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{clean, compile, succeed};

fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split_whitespace()).status();
    status.is_ok_and(|status| status.success())
}

/// A namespace with a card `eth0`.
struct Host(String);

impl Drop for Host {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// Two of them, joined. `None`, with the reason on the standard output, if this machine does not allow it.
fn hosts() -> Option<[Host; 2]> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = |letter| format!("ropewalk-raw-{letter}-{}-{number}", std::process::id());
    if !ip(&format!("netns add {}", name('a'))) {
        println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
        return None;
    }
    let [a, b] = ['a', 'b'].map(|letter| Host(name(letter)));
    assert!(ip(&format!("netns add {}", b.0)));
    assert!(ip(&format!("-n {} link add eth0 type veth peer name eth0 netns {}", a.0, b.0)));
    for host in [&a, &b] {
        assert!(ip(&format!("-n {} link set eth0 up", host.0)));
    }
    Some([a, b])
}

#[test]
fn mappers_exchange_frames_and_say_who_is_there() {
    let Some([here, there]) = hosts() else { return };
    for library in ["myriexpress", "open-mx"] {
        let Some(program) = compile("raw.c", "gcc", library) else { return };
        let mut command = clean("ip".as_ref(), &["netns", "exec", &here.0]);
        command.arg(program).env("ETHER_OTHER", format!("/run/netns/{}", there.0));
        let output = succeed(&mut command);
        assert!(output.stdout.ends_with(b"ok\n"), "{command:?} did not come to its end");
    }
}

#[test]
fn boards_without_mxoe_have_no_raw_endpoints() {
    let Some([here, _there]) = hosts() else { return };
    let Some(program) = compile("no_raw.c", "gcc", "myriexpress") else { return };
    for board in ["ether://eth0", "udp://127.0.0.1:12000"] {
        let mut command = clean("ip".as_ref(), &["netns", "exec", &here.0]);
        let output = succeed(command.arg(&program).env("ROPEWALK_MX_BOARDS", board));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.stdout.ends_with(b"ok\n") && said.contains("mxoe://eth0"), "{said}");
    }
}
