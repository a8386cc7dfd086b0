//! Exports: which clients get which part of the file system, by the node that they prove to be or by their network.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use support::{PROGRAM, Process};

struct Site {
    place: tempfile::TempDir,
    up: Process,
    /// Over TCP the kernel tells that it is us; over UDP nothing is known but keys and addresses.
    ours: String,
    theirs: String,
}

fn run_in(place: &Path, key: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(place).env("ROPEWALK_KEY_FILE", key);
    command.output().unwrap()
}

fn well(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn badly(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(why), "{said}");
}

impl Site {
    fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
        well(&run_in(place.path(), "", &["key", "create", "--signing", "sign"]));
        for node in ["server", "gpu1", "lab"] {
            well(&run_in(place.path(), "", &["key", "sign", "sign", "--node", node, node]));
        }
        let port = || {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap().port()
        };
        let (tcp, udp) = (port(), port());
        let listen = format!("127.0.0.1:{tcp},udp://127.0.0.1:{udp}");
        let (rope, key) = (path("rope"), path("server"));
        let words = ["up", &rope, "--listen", &listen, "--key-file", &key];
        let up = Process::start(&words, "serves at");
        let (ours, theirs) =
            (format!("tcp://127.0.0.1:{tcp}"), format!("udp://127.0.0.1:{udp}"));
        Site { place, up, ours, theirs }
    }

    /// Runs a command as the user of the server.
    fn own(&self, arguments: &[&str]) -> Output {
        run_in(self.place.path(), "server", &[arguments, &["-A", &self.ours]].concat())
    }

    /// Runs a command as a client that has the keys of a node, and that no kernel vouches for.
    fn node(&self, node: &str, arguments: &[&str]) -> Output {
        run_in(self.place.path(), node, &[arguments, &["-A", &self.theirs]].concat())
    }
}

#[test]
fn nodes_and_networks_get_their_exports() {
    let mut site = Site::new();
    fs::write(site.place.path().join("file"), vec![7; 300_000]).unwrap();
    // Without exports everybody has everything.
    well(&site.node("lab", &["mkdir", ":/jobs"]));
    well(&site.own(&["cp", "file", ":/secret"]));
    let said = well(&site.own(&["export", "list"]));
    assert!(said.contains("every client has the whole file system"), "{said}");

    let set = ["export", "set", "gpu", "--clients", "node:gpu*", "--root", "/jobs", "--squash", "none"];
    well(&site.own(&set));
    // The others are refused now, and who could read the stores is not.
    badly(&site.node("lab", &["ls", ":/"]), "ermission denied");
    assert!(well(&site.own(&["ls", ":/"])).contains("secret"));
    // The node's root is the directory.
    assert!(!well(&site.node("gpu1", &["ls", ":/"])).contains("jobs"));
    well(&site.node("gpu1", &["cp", "file", ":/mine"]));
    assert!(well(&site.own(&["ls", ":/jobs"])).contains("mine"));

    well(&site.own(&["export", "set", "net", "--clients", "127.0.0.0/8", "--access", "ro"]));
    assert!(well(&site.node("lab", &["ls", ":/"])).contains("secret"));
    badly(&site.node("lab", &["cp", "file", ":/new"]), "ead-only");
    well(&site.node("gpu1", &["cp", ":/mine", "back"]));
    assert!(fs::read(site.place.path().join("back")).unwrap() == vec![7; 300_000]);
    badly(&site.own(&["export", "set", "x", "--clients", "127.0.0.0/8"]), "another export");
    badly(&site.own(&["export", "set", "gpu", "--root", "/"]), "root of an export stays");
    badly(&site.own(&["export", "set", "y", "--root", "/none"]), "no directory");
    site.up.stop();
}

#[test]
fn the_clients_of_an_export_for_administrators_give_orders() {
    let mut site = Site::new();
    well(&site.own(&["export", "set", "all", "--clients", "*"]));
    badly(&site.node("lab", &["export", "list"]), "for administrators only");
    badly(&site.node("lab", &["server", "status"]), "for administrators only");
    let set = ["export", "set", "ops", "--clients", "node:lab", "--access", "admin"];
    well(&site.own(&set));
    let said = well(&site.node("lab", &["export", "list", "--json"]));
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    let find = |name: &str| {
        let all = told["exports"].as_array().unwrap();
        all.iter().find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!((find("ops")["access"].clone(), find("all")["squash"].clone()), ("admin".into(), "root".into()));
    well(&site.node("lab", &["server", "status"]));
    well(&site.node("lab", &["export", "remove", "all"]));
    badly(&site.node("gpu1", &["ls", ":/"]), "ermission denied");
    // Orders of others are none.
    badly(&site.node("gpu1", &["export", "remove", "ops"]), "for administrators only");
    well(&site.own(&["export", "remove", "ops"]));
    well(&site.node("gpu1", &["ls", ":/"]));
    site.up.stop();
}

#[test]
fn exports_and_the_roots_of_their_clients_outlive_the_servers() {
    let mut site = Site::new();
    well(&site.own(&["mkdir", ":/jobs"]));
    well(&site.own(&["export", "set", "gpu", "--clients", "node:gpu1", "--root", "/jobs"]));
    site.up.stop();
    let rope = site.place.path().join("rope");
    let key = site.place.path().join("server");
    let listen = format!(
        "{},{}",
        site.ours.strip_prefix("tcp://").unwrap(),
        site.theirs
    );
    let words = ["up", rope.to_str().unwrap(), "--listen", &listen, "--key-file", key.to_str().unwrap()];
    site.up = Process::start(&words, "serves at");
    assert!(!well(&site.node("gpu1", &["ls", ":/"])).contains("jobs"));
    badly(&site.node("lab", &["ls", ":/"]), "ermission denied");
    site.up.stop();
}
