//! Captures of endpoints over UDP: the file holds exactly the packets that went over the wire.

mod captures;
mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use captures::{Captured, read, tshark};
use common::{Medium, World, check};
use ropewalk_net::capture::{CaptureConfig, VARIABLE};
use ropewalk_net::modules::{self, Listen, ModuleError, Options};
use ropewalk_net::{Channel, Level, Oversize};
use ropewalk_wire::packets::{self, Kind};

const CHILD: &str = "ROPEWALK_CAPTURE_CHILD";

/// A folder, gone with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ropewalk-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn listen(address: &str) -> Listen<'_> {
    Listen::At { address, exactly: true }
}

/// Two endpoints over UDP, opened so.
fn pair(address: &str, options: &Options) -> World {
    let mut world = World::new(Medium::Udp);
    for _ in 0..2 {
        let rail = modules::open_with("udp", &listen(address), options).unwrap();
        world.add_over(rail, |_| {});
    }
    world
}

/// Messages of all kinds from the first to the second; then both close.
fn talk(mut world: World, rounds: u64) {
    let peer = world.peer(0, 1);
    for round in 0..rounds {
        for (user, len) in [(0, 0), (1, 100), (2, 5000), (3, 300_000)] {
            let (bits, user) = (round * 8 + user, round * 8 + user + 1);
            let into = world.memory(len, 0);
            let node = &world.nodes[1];
            let (context, cut) = (&node.context, Oversize::Truncate);
            let posted = node.endpoint.post_receive(
                context,
                Channel::Tagged,
                None,
                bits,
                u64::MAX,
                into,
                cut,
                user,
            );
            world.posted(1, posted);
            let out = world.memory(len, round as u8);
            let node = &world.nodes[0];
            let posted = node.endpoint.post_send(
                &node.context,
                peer,
                Channel::Tagged,
                bits,
                out,
                Level::Delivered,
                user,
            );
            world.posted(0, posted);
            assert_eq!(world.take(0, user).outcome, Ok(()));
            check(world.take(1, user).memory, len, round as u8);
        }
    }
    // The second one outlives the first, and takes in the first one's last packets.
    drop(world.nodes.remove(0));
    for _ in 0..1000 {
        world.step();
    }
}

/// The datagrams of a way, from behind the headers of IP and UDP.
fn bodies(captured: &Captured, sent: bool) -> Vec<&[u8]> {
    let version = |frame: &[u8]| if frame[0] >> 4 == 4 { 28 } else { 48 };
    captured.frames(sent).into_iter().map(|frame| &frame[version(frame)..]).collect()
}

fn kinds(bodies: &[&[u8]]) -> Vec<u8> {
    bodies.iter().map(|body| packets::open(body).expect("a packet of ours").head.kind).collect()
}

#[test]
fn what_one_side_sends_is_what_the_other_receives() {
    for (name, address) in [("v4", "127.0.0.1:0"), ("v6", "[::1]:0"), ("any", "0.0.0.0:0")] {
        let folder = Folder::new(&format!("capture-{name}"));
        // Both are given one name: the second one finds it taken.
        let config = CaptureConfig::new(folder.file("%s-%p.pcapng"));
        talk(pair(address, &Options { capture: Some(config), ..Options::default() }), 3);
        let process = std::process::id();
        let files = [format!("udp-{process}.pcapng"), format!("udp-{process}.1.pcapng")];
        let files = files.map(|name| PathBuf::from(folder.file(&name)));
        let [first, second] = [read(&files[0]), read(&files[1])];
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
        assert_eq!((first.link_type, first.interface.as_str()), (101, "udp/0"));

        let all = bodies(&first, true);
        assert_eq!(all, bodies(&second, false), "what the first one sent, in its order");
        let here = kinds(&all);
        assert!(
            [Kind::Call, Kind::Stream, Kind::Piece]
                .iter()
                .all(|kind| here.contains(&(*kind as u8)))
        );
        // Packets that the second one sends after the end of the first one reach nobody.
        let (back, heard) = (bodies(&second, true), bodies(&first, false));
        assert_eq!(back[..heard.len()], heard);
        assert!(kinds(&back).contains(&(Kind::Pull as u8)));

        let end = first.packets.windows(2).find(|pair| pair[0].nanoseconds > pair[1].nanoseconds);
        assert_eq!(end, None, "time goes on");
        for (captured, file) in [(&first, &files[0]), (&second, &files[1])] {
            let count = captured.packets.len();
            assert_eq!(captured.counters, Some((count as u64, 0)));
            // Addresses of both ways fit each other: calls and answers make one link.
            let fields = ["ropewalk.checksum.status", "ropewalk.link", "_ws.malformed"];
            let Some(rows) = tshark(file, &fields) else { continue };
            assert_eq!(rows, vec!["1 0 "; count]);
        }
    }
}

#[test]
fn what_finds_no_room_is_counted_and_traffic_goes_on() {
    let folder = Folder::new("capture-small");
    let config =
        CaptureConfig { buffer_bytes: 3000, ..CaptureConfig::new(folder.file("small.pcapng")) };
    talk(pair("127.0.0.1:0", &Options { capture: Some(config), ..Options::default() }), 3);
    for name in ["small.pcapng", "small.1.pcapng"] {
        let captured = read(Path::new(&folder.file(name)));
        let (packets, dropped) = captured.counters.expect("it was closed");
        assert!(dropped > 0, "{packets} packets");
        assert_eq!(packets, captured.packets.len() as u64 + dropped);
    }
}

#[test]
fn a_file_that_cannot_be_made_is_named_or_done_without() {
    let folder = Folder::new("capture-nowhere");
    for name in ["no/such/folder.pcapng", ""] {
        let config = CaptureConfig::new(folder.file(name));
        let open = |insist| {
            let capture = Some(CaptureConfig { insist, ..config.clone() });
            modules::open_with(
                "udp",
                &listen("127.0.0.1:0"),
                &Options { capture, ..Options::default() },
            )
        };
        let Err(ModuleError::Capture(error)) = open(true) else { panic!("it was opened") };
        assert!(error.to_string().contains(&folder.file(name)), "{error}");
        assert!(open(false).is_ok());
    }
}

/// The child process that [`a_disk_that_is_full_ends_the_capture_alone`] runs.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        talk(pair("127.0.0.1:0", &Options::from_environment()), 10);
    }
}

#[test]
fn a_disk_that_is_full_ends_the_capture_alone() {
    let folder = Folder::new("capture-full");
    let file = folder.file("full.pcapng");
    // Files of at most 64 or 128 KiB, as the shell counts; longer ones fail to be written.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 128; exec \"$0\" --exact child --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .env(VARIABLE, &file)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for name in ["full.pcapng", "full.1.pcapng"] {
        let captured = read(Path::new(&folder.file(name)));
        assert!(!captured.packets.is_empty() && captured.counters.is_none(), "it broke off");
        assert_eq!(said.matches(&format!("{name} ends here")).count(), 1, "{said}");
    }
}
