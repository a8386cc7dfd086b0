//! A cluster whose servers and clients have keys: who gets in, and how keys change while it serves.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use support::{PROGRAM, Process};

/// The variable that names a key file.
const KEY_FILE: &str = "ROPEWALK_KEY_FILE";

/// Runs a command in a directory, with the keys of this file or with none.
fn run(place: &Path, key: Option<&str>, arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).current_dir(place).env_remove(KEY_FILE);
    if let Some(key) = key {
        command.env(KEY_FILE, key);
    }
    command.output().unwrap()
}

fn well(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains(why), "{said}");
}

/// A cluster that listens at all addresses of this host, and the address at which it is called.
fn serve(place: &Path, key: &str) -> (Process, String) {
    let directory = place.join("rope");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("0.0.0.0:{port}");
    let key = place.join(key);
    let arguments = [
        "up",
        directory.to_str().unwrap(),
        "--listen",
        &listen,
        "--key-file",
        key.to_str().unwrap(),
    ];
    (Process::start(&arguments, "serves at"), format!("tcp://127.0.0.1:{port}"))
}

#[test]
fn beyond_loopback_a_cluster_with_keys_has_to_protect_payloads() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    well(&run(place, None, &["key", "create", "key"]));
    let listen = ["--listen", "0.0.0.0:0", "--key-file", "key"];
    let up = |more: &[&str]| run(place, None, &[&["up", "rope"][..], &listen, more].concat());
    for crc in ["crc", "secure,tcp=crc"] {
        refused(&up(&["--payload", crc]), "use --payload secure or auth");
    }
    refused(&up(&["--payload", "tls"]), "write crc, auth or secure");
    let local = ["up", "rope", "--listen", "127.0.0.1:0", "--payload", "auth"];
    refused(&run(place, None, &local), "payload mode auth over tcp:// needs keys");
}

#[test]
fn a_cluster_with_keys_serves_who_has_one_and_tells_others_why_not() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    for name in ["key", "other"] {
        well(&run(place, None, &["key", "create", name]));
    }
    well(&run(place, None, &["key", "derive", "key", "--node", "n1", "n1"]));
    fs::write(place.join("file"), vec![7; 100_000]).unwrap();
    let (mut up, address) = serve(place, "key");
    let ls = ["ls", "-A", &address, ":/"];
    for key in ["key", "n1"] {
        well(&run(place, Some(key), &["cp", "-A", &address, "file", &format!(":/{key}")]));
        let output = run(place, Some(key), &ls);
        well(&output);
        assert!(String::from_utf8_lossy(&output.stdout).contains(key));
    }
    refused(&run(place, None, &ls), "did not prove who they are");
    refused(&run(place, Some("other"), &ls), "did not prove who they are");
    fs::set_permissions(place.join("key"), fs::Permissions::from_mode(0o644)).unwrap();
    refused(&run(place, Some("key"), &ls), "chmod 600");
    up.stop();
}

#[test]
fn signed_keys_let_nodes_in() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    well(&run(place, None, &["key", "create", "--signing", "sign"]));
    well(&run(place, None, &["key", "create", "--signing", "other"]));
    for (from, node) in [("sign", "server"), ("sign", "client"), ("other", "stranger")] {
        well(&run(place, None, &["key", "sign", from, "--node", node, node]));
    }
    let (mut up, address) = serve(place, "server");
    let ls = ["ls", "-A", &address, ":/"];
    well(&run(place, Some("client"), &ls));
    refused(&run(place, Some("stranger"), &ls), "did not prove who they are");
    refused(&run(place, Some("sign"), &ls), "for signing alone");
    up.stop();
}

#[test]
fn keys_are_rotated_while_the_cluster_serves() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    well(&run(place, None, &["key", "create", "server"]));
    let copy = |to: &str| fs::copy(place.join("server"), place.join(to)).unwrap();
    copy("old");
    let (mut up, address) = serve(place, "server");
    let ls = ["ls", "-A", &address, ":/"];
    for step in ["next", "swap", "finish"] {
        well(&run(place, None, &["key", "rotate", "server", step]));
        copy(step);
        // The server looks at its file now and then; until it has, and afterwards, its clients get in.
        let since = Instant::now();
        let known: &[&str] = if step == "finish" { &["swap", "finish"] } else { &["old", step] };
        while since.elapsed() < Duration::from_secs(5) {
            known.iter().filter(|it| step != "swap" || **it != "swap").for_each(|key| {
                well(&run(place, Some(key), &ls));
            });
        }
        if step == "swap" {
            well(&run(place, Some("swap"), &ls));
        }
    }
    refused(&run(place, Some("old"), &ls), "did not prove who they are");
    up.stop();
}

#[test]
fn clients_insist_on_the_nodes_that_an_address_names_and_that_data_servers_have_proven() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    well(&run(place, None, &["key", "create", "--signing", "sign"]));
    for node in ["meta", "data-0", "client"] {
        well(&run(place, None, &["key", "sign", "sign", "--node", node, node]));
    }
    well(&run(place, None, &["format", "rope"]));
    let path = |name: &str| place.join(name).to_str().unwrap().to_string();
    let serve = |part: &str, key: &str, more: &[&str]| {
        let (directory, key) = (path(&format!("rope/{part}")), path(key));
        let cluster = path("rope/cluster");
        let words = ["--directory", &directory, "--key-file", &key, "--cluster-file", &cluster];
        Process::start(&[more, &words[..]].concat(), "serving at")
    };
    let meta = serve("meta", "meta", &["serve", "meta", "--listen", "127.0.0.1:0"]);
    let address = meta.line.split("serving at ").nth(1).unwrap().to_string();
    let called = format!("{address}?node=meta");
    let words = ["serve", "data", "--admit", "--server", "0", "--meta", &called];
    let _data = serve("data0", "data-0", &[&words[..], &["--listen", "127.0.0.1:0"]].concat());
    fs::write(place.join("file"), vec![7; 300_000]).unwrap();
    well(&run(place, Some("client"), &["cp", "-A", &called, "file", ":/copy"]));
    well(&run(place, Some("client"), &["cp", "-A", &called, ":/copy", "back"]));
    assert!(fs::read(place.join("back")).unwrap() == vec![7; 300_000]);
    let wrong = format!("{address}?node=data-0");
    refused(&run(place, Some("client"), &["ls", "-A", &wrong, ":/"]), "did not prove who they are");
    let words = ["status", "--json", "--interval", "0", "--address", &called];
    let status = run(place, Some("client"), &words);
    well(&status);
    let said = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(said.contains("?node=data-0"), "{said}");
}
