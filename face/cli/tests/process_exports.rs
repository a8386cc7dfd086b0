//! Exports: which clients get which part of the file system, by the node that they prove to be or by their network.

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

use ropewalk_netns::{Topology, TopologyConfig};
use support::{PROGRAM, Process};

/// The hosts of the servers and of clients.
const SERVER: usize = 0;
const CLIENT: usize = 1;

/// A cluster on a host, and another host, for whose users its kernel does not vouch.
struct Site {
    up: Process,
    address: String,
    network: Topology,
    // Servers end before their directories do.
    place: tempfile::TempDir,
}

fn run(network: &Topology, host: usize, place: &Path, key: &str, arguments: &[&str]) -> Output {
    let mut command = network.host(host).command(PROGRAM);
    command.args(arguments).current_dir(place).env_remove("ROPEWALK_KEY_FILE");
    if !key.is_empty() {
        command.env("ROPEWALK_KEY_FILE", key);
    }
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

/// The cluster in `place`, with the keys of its server.
fn start(network: &Topology, place: &Path, listen: &str) -> Process {
    let mut command = network.host(SERVER).command("env");
    command.args(["--default-signal=HUP,INT", PROGRAM, "up", "rope", "--insecure"]);
    command.args(["--listen", listen, "--key-file", "server"]).current_dir(place);
    Process::run(command, "serves at").expect("it starts")
}

impl Site {
    fn new() -> Option<Site> {
        let config = TopologyConfig { hosts: 2, rails: 1, ..TopologyConfig::default() };
        let network = Topology::or_skip(&config)?;
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let make = |words: &[&str]| well(&run(&network, SERVER, place, "", words));
        make(&["key", "create", "--signing", "sign"]);
        for node in ["server", "gpu1", "lab"] {
            make(&["key", "sign", "sign", "--node", node, node]);
        }
        let listen = format!("{}:7700", network.host(SERVER).address(0));
        let up = start(&network, place, &listen);
        Some(Site { up, address: format!("tcp://{listen}"), network, place: directory })
    }

    fn run(&self, host: usize, node: &str, arguments: &[&str]) -> Output {
        let words = [arguments, &["-A", &self.address]].concat();
        run(&self.network, host, self.place.path(), node, &words)
    }

    /// Runs a command as the user of the server.
    fn own(&self, arguments: &[&str]) -> Output {
        self.run(SERVER, "server", arguments)
    }

    /// Runs a command as a client that has the keys of a node.
    fn node(&self, node: &str, arguments: &[&str]) -> Output {
        self.run(CLIENT, node, arguments)
    }
}

#[test]
fn nodes_and_networks_get_their_exports() {
    let Some(mut site) = Site::new() else { return };
    fs::write(site.place.path().join("file"), vec![7; 300_000]).unwrap();
    // Without exports everybody has everything.
    well(&site.node("lab", &["mkdir", ":/jobs"]));
    well(&site.own(&["cp", "file", ":/secret"]));
    let said = well(&site.own(&["export", "list"]));
    assert!(said.contains("every client has the whole file system"), "{said}");

    let set =
        ["export", "set", "gpu", "--clients", "node:gpu*", "--root", "/jobs", "--squash", "none"];
    well(&site.own(&set));
    // The others are refused now, and who could read the stores is not.
    badly(&site.node("lab", &["ls", ":/"]), "no export is for it");
    assert!(well(&site.own(&["ls", ":/"])).contains("secret"));
    // The node's root is the directory.
    assert!(!well(&site.node("gpu1", &["ls", ":/"])).contains("jobs"));
    well(&site.node("gpu1", &["cp", "file", ":/mine"]));
    assert!(well(&site.own(&["ls", ":/jobs"])).contains("mine"));

    let net = site.network.host(CLIENT).address(0).to_string();
    well(&site.own(&["export", "set", "net", "--clients", &net, "--access", "ro"]));
    assert!(well(&site.node("lab", &["ls", ":/"])).contains("secret"));
    badly(&site.node("lab", &["cp", "file", ":/new"]), "ead-only");
    well(&site.node("gpu1", &["cp", ":/mine", "back"]));
    assert!(fs::read(site.place.path().join("back")).unwrap() == vec![7; 300_000]);
    badly(&site.own(&["export", "set", "x", "--clients", &net]), "another export");
    badly(&site.own(&["export", "set", "net", "--access", "admin"]), "prove their names");
    badly(&site.own(&["export", "set", "y", "--root", "/none"]), "no directory");
    site.up.stop();
}

#[test]
fn the_clients_of_an_export_for_administrators_give_orders() {
    let Some(mut site) = Site::new() else { return };
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
    assert_eq!(
        (find("ops")["access"].clone(), find("all")["squash"].clone()),
        ("admin".into(), "root".into())
    );
    well(&site.node("lab", &["server", "status"]));
    well(&site.node("lab", &["export", "remove", "all"]));
    badly(&site.node("gpu1", &["ls", ":/"]), "no export is for it");
    // Orders of others are none.
    badly(&site.node("gpu1", &["export", "remove", "ops"]), "for administrators only");
    badly(&site.own(&["export", "remove", "ops"]), "is the last export");
    badly(&site.node("gpu1", &["ls", ":/"]), "no export is for it");
    well(&site.own(&["export", "remove", "ops", "--open-to-all"]));
    well(&site.node("gpu1", &["ls", ":/"]));
    site.up.stop();
}

#[test]
fn exports_and_the_roots_of_their_clients_outlive_the_servers() {
    let Some(mut site) = Site::new() else { return };
    well(&site.own(&["mkdir", ":/jobs"]));
    well(&site.own(&["export", "set", "gpu", "--clients", "node:gpu1", "--root", "/jobs"]));
    site.up.stop();
    let listen = site.address.strip_prefix("tcp://").unwrap().to_owned();
    site.up = start(&site.network, site.place.path(), &listen);
    assert!(!well(&site.node("gpu1", &["ls", ":/"])).contains("jobs"));
    badly(&site.node("lab", &["ls", ":/"]), "no export is for it");
    site.up.stop();
}
