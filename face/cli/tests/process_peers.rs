//! Small messages over tcp beside those of UCX and libfabric, one after the other in one run; and a stream over two rails,
//! of which one dies, beside MPIs; and files behind mounts while a data server dies, beside other file systems.
//!
//! Peers come from Debian's packages. The test checks that all of them deliver. The figures are printed, for
//! people, since no machine that runs tests is quiet enough to judge by them.

mod bench_support;
mod support;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bench_support::{bench, is};
use support::{PROGRAM, installed, mounts_usable};

const ROUNDS: usize = 5;
const BYTES: &str = "8";
const MESSAGES: &str = "20000";

/// A port that nobody has at the moment.
fn port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    listener.local_addr().expect("it is bound").port().to_string()
}

/// The other side of a peer's benchmark, ended with its value.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Server {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Server(child.expect("it is installed"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a client until it finds its server; returns its output.
fn client(make: impl Fn() -> Command) -> String {
    for _ in 0..100 {
        let output = make().output().expect("it is installed");
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no answer from the server of {:?}", make());
}

/// A number of the last line that begins with a word.
fn field(text: &str, first: &str, index: usize) -> f64 {
    let line = text.lines().rev().find(|line| line.split_whitespace().next() == Some(first));
    let field = line.and_then(|line| line.split_whitespace().nth(index));
    field.and_then(|field| field.parse().ok()).unwrap_or_else(|| panic!("no figure in {text}"))
}

/// Half a round trip of UCX's tagged messages, in microseconds.
fn ucx() -> f64 {
    let port = port();
    let program = || {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_TLS", "tcp,self").args(["-p", &port]);
        command
    };
    let _server = Server::start(&mut program());
    let text = client(|| {
        let mut command = program();
        command.args(["127.0.0.1", "-t", "tag_lat", "-s", BYTES, "-n", MESSAGES, "-w", "2000"]);
        command
    });
    field(&text, "Final:", 2)
}

/// The same of libfabric's tcp provider with reliable messages.
fn libfabric() -> f64 {
    let port = port();
    let common = ["-p", "tcp", "-e", "rdm", "-S", BYTES, "-I", MESSAGES];
    let _server = Server::start(Command::new("fi_pingpong").args(common).args(["-B", &port]));
    let text = client(|| {
        let mut command = Command::new("fi_pingpong");
        command.args(common).args(["-P", &port, "127.0.0.1"]);
        command
    });
    field(&text, BYTES, 6)
}

/// Ours, and bare sockets beside it.
fn ours(program: &Path) -> (f64, f64) {
    let arguments = ["bench", "net", "--quick", "--json", "--only", "pingpong.tcp.spin.two.8"];
    let output = Command::new(program).args(arguments).output().expect("it is built");
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |system: &str| {
        let row = rows.iter().find(|row| row["system"] == system);
        row.and_then(|row| row["median"].as_f64()).unwrap_or_else(|| panic!("{system}: {text}"))
    };
    (of("ropewalk"), of("raw"))
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[test]
#[ignore = "for --deep: measures beside UCX and libfabric"]
fn process_small_messages_beside_ucx_and_libfabric() {
    if !installed("ucx_perftest") || !installed("fi_pingpong") {
        return;
    }
    // A release build says more, if there is one.
    let release = Path::new(PROGRAM).parent().map(|at| at.join("../release/ropewalk"));
    let program = release.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let mut figures: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let (own, raw) = ours(&program);
        for (place, figure) in figures.iter_mut().zip([own, raw, ucx(), libfabric()]) {
            assert!(figure > 0.0, "a message takes time");
            place.push(figure);
        }
    }
    let raw = median(figures[1].clone());
    for (name, of) in ["ropewalk", "bare sockets", "UCX", "libfabric tcp"].into_iter().zip(figures)
    {
        let median = median(of);
        println!("{name}: {median:.2} us, {:.2} x bare sockets", median / raw);
    }
}

#[test]
#[ignore = "for --deep: MPIs hang for a minute each"]
fn process_a_stream_beside_mpis_while_a_rail_dies() {
    if !has_namespaces() {
        return;
    }
    let release = Path::new(PROGRAM).parent().map(|at| at.join("../release/ropewalk"));
    let program = release.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let arguments = ["bench", "paths", "--json", "--runs", "3", "--only", "dead.silent.1g.tcp"];
    let output = Command::new(program).args(arguments).output().expect("it is built");
    // Who is not installed is named there.
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    println!("{told}");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let rows = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    let stalls: Vec<serde_json::Value> =
        rows.filter(|row: &serde_json::Value| row["metric"] == "stall").collect();
    for row in &stalls {
        let (median, verdict) = (&row["median"], &row["params"]["verdict"]);
        println!("{}, {}: {median} ms; {verdict}", row["scenario"], row["system"]);
    }
    let ours = stalls.iter().find(|row| row["system"] == "ropewalk").expect("ours is there");
    // It goes on over the other rail, however busy the machine is.
    assert!(ours["median"].as_f64().is_some_and(|stall| stall < 1000.0), "{ours}");
}

/// Whether there are network namespaces for hosts; a line says so if not.
fn has_namespaces() -> bool {
    let made = Command::new("unshare").args(["--net", "ip", "link"]).output();
    let has = made.is_ok_and(|output| output.status.success());
    if !has {
        println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
    }
    has
}

#[test]
#[ignore = "for --deep: measures beside GlusterFS and MooseFS"]
fn process_files_behind_mounts_beside_glusterfs_and_moosefs_while_a_server_dies() {
    let programs = ["glusterd", "glusterfs", "mfsmaster", "mfschunkserver", "mfsmount"];
    if !programs.into_iter().all(installed) || !has_namespaces() || !mounts_usable() {
        return;
    }
    let rows = bench(&["survive", "--only", "mount.killed", "--only", "mirror"]);
    let wanted = [
        ("mount.killed.read", "stall", &["glusterfs", "moosefs"][..]),
        ("mount.killed.write", "stall", &["glusterfs", "moosefs"]),
        ("mirror2.write", "bandwidth", &["moosefs"]),
        ("mirror2.read", "bandwidth", &["moosefs"]),
        ("mirror3.write", "bandwidth", &["glusterfs"]),
        ("mirror3.read", "bandwidth", &["glusterfs"]),
    ];
    for (name, metric, peers) in wanted {
        let line = |system: &str| {
            let row = rows.iter().find(|row| is(row, system, name, metric));
            let row = row.unwrap_or_else(|| panic!("no {name} of {system}: {rows:?}"));
            assert_eq!(row["medium"], "mount", "{row}");
            let figure = row["median"].as_f64().expect("a number");
            assert!(figure > 0.0 && figure < 1e6, "{row}");
            println!("{name} of {system}: {figure:.1} {}", row["unit"].as_str().unwrap_or(""));
            row
        };
        let ours = line("ropewalk");
        assert_eq!(ours["ratio_to"], peers[0], "{ours}");
        assert!(ours["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{ours}");
        for peer in peers {
            line(peer);
        }
    }
}
