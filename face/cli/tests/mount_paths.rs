//! A mount whose data goes on over another path when one is cut, without being told how many there are.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use ropewalk_netns::{Fault, FaultKind, Host, Topology, TopologyConfig};
use support::{PROGRAM, Process, mounts_usable, unmount};

/// Bytes of each piece that is written, and pieces of a file.
const PIECE: usize = 1 << 20;
const PIECES: u32 = 12;

/// Bytes that no stripe has twice.
fn noise(seed: u32) -> Vec<u8> {
    let word = |n: u32| n.wrapping_mul(2_654_435_761).wrapping_add(seed).to_le_bytes();
    (0..PIECE as u32 / 4).flat_map(word).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// The program on a host.
fn program(host: Host<'_>, arguments: &[&str]) -> Command {
    let mut command = host.command("env");
    // Raw frames need to be told by which interfaces they are to go; sockets find that out.
    if arguments.iter().any(|it| it.contains("ether://")) {
        command.env("ROPEWALK_INTERFACES", [0, 1].map(|rail| host.interface(rail)).join(","));
    }
    command.args(["--default-signal=HUP,INT", PROGRAM]).args(arguments);
    command
}

fn start(host: Host<'_>, arguments: &[&str], expected: &str) -> Process {
    let started = Process::run(program(host, arguments), expected);
    started.unwrap_or_else(|status| panic!("{arguments:?} did not say '{expected}' ({status})"))
}

/// A file is written, synchronized, and read by a mount that remembers nothing, while `fault` lasts on a rail.
fn moves(net: &Topology, address: &str, place: &Path, fault: Fault) {
    let (client, [first, second]) = (net.host(0), ["first", "second"].map(|it| place.join(it)));
    let mut mounts = [&first, &second].map(|path| {
        fs::create_dir_all(path).expect("the place is ours");
        let mut process = start(client, &["mount", address, text(path)], "mounted on");
        assert!(!process.is_over());
        process
    });
    let mut file = File::create(first.join("moving")).expect("made");
    for number in 0..PIECES / 3 {
        file.write_all(&noise(number)).expect("written");
    }
    file.sync_all().expect("synchronized");
    let cut = net.inject(&fault).expect("it can be injected");
    for number in PIECES / 3..PIECES {
        file.write_all(&noise(number)).expect("written");
    }
    file.sync_all().expect("synchronized beside a path that is cut");
    drop(file);
    let mut file = File::open(second.join("moving")).expect("it is there");
    let mut piece = vec![0; PIECE];
    for number in 0..PIECES {
        file.read_exact(&mut piece).expect("it can be read");
        assert!(piece == noise(number), "{fault:?}: piece {number} is another");
    }
    drop(file);
    cut.mend().expect("it can be mended");
    fs::remove_file(first.join("moving")).expect("removed");
    for (path, mount) in [&first, &second].into_iter().zip(&mut mounts) {
        unmount(path);
        mount.stop();
    }
}

/// Serves a cluster on the second host at these places, and has mounts of the first move data while a path is cut.
fn scenario(listen: impl Fn(Host<'_>, usize) -> String) {
    if !mounts_usable() {
        return;
    }
    let Some(net) = Topology::or_skip(&TopologyConfig::default()) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let server = net.host(1);
    let listen = [0, 1].map(|rail| listen(server, rail)).join(",");
    let cluster = place.path().join("cluster");
    let words = ["up", text(&cluster), "--insecure", "--listen", &listen];
    let mut process = start(server, &words, "serves at");
    let address =
        process.line.split("serves at ").nth(1).expect("it says how to mount").to_string();
    let address = &address;
    for (rail, kind) in [(0, FaultKind::Cut), (1, FaultKind::Cut), (0, FaultKind::CarrierLoss)] {
        moves(&net, address, place.path(), Fault::new(kind, 0, rail));
    }
    process.stop();
}

/// Sockets on the interface of a rail.
fn sockets(scheme: &str, host: Host<'_>, rail: usize) -> String {
    format!("{scheme}://{}:0?interface={}", host.address(rail), host.interface(rail))
}

#[test]
fn data_goes_on_over_the_other_path_of_tcp() {
    scenario(|host, rail| sockets("tcp", host, rail));
}

#[test]
fn data_goes_on_over_the_other_path_of_udp() {
    scenario(|host, rail| sockets("udp", host, rail));
}

#[test]
fn data_goes_on_over_the_other_path_of_raw_frames() {
    scenario(|host, rail| format!("ether://{}", host.interface(rail)));
}

#[test]
fn data_goes_on_over_the_other_path_of_af_xdp() {
    scenario(|host, rail| format!("ether://{}?socket=xdp", host.interface(rail)));
}
