//! Two metadata servers whose witness is an etcd of three members, each a process: one takes over from the other, members of etcd
//! die, and its key is lost.

mod support;

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::command::ropewalk;
use support::pair::{Pair, free};

/// An etcd of three members.
struct Etcd {
    members: Vec<Option<Child>>,
    clients: Vec<SocketAddr>,
    peers: Vec<SocketAddr>,
    // The members end before their directories do.
    place: tempfile::TempDir,
}

impl Etcd {
    /// None: the program is not there, and that may be.
    fn start() -> Option<Etcd> {
        let runs = |program: &str| Command::new(program).arg("--version").output().is_ok();
        if !runs("etcd") || !runs("etcdctl") {
            println!("SKIP: etcd and etcdctl are not installed");
            return None;
        }
        let place = tempfile::tempdir().unwrap();
        let addresses = || (0..3).map(|_| free()).collect::<Vec<_>>();
        let (clients, peers) = (addresses(), addresses());
        let mut etcd = Etcd { members: vec![None, None, None], clients, peers, place };
        for number in 0..3 {
            etcd.run(number);
        }
        etcd.wait();
        Some(etcd)
    }

    fn run(&mut self, number: usize) {
        let url = |address: &SocketAddr| format!("http://{address}");
        let (client, peer) = (url(&self.clients[number]), url(&self.peers[number]));
        let all: Vec<String> = self
            .peers
            .iter()
            .enumerate()
            .map(|(it, peer)| format!("m{it}={}", url(peer)))
            .collect();
        let path = self.place.path().join(format!("m{number}"));
        let log = File::create(path.with_extension("log")).unwrap();
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{number}"), "--data-dir", &path.display().to_string()]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.members[number] = Some(command.spawn().expect("etcd starts"));
    }

    fn kill(&mut self, number: usize) {
        let mut member = self.members[number].take().expect("it runs");
        member.kill().unwrap();
        member.wait().unwrap();
    }

    /// The addresses, as the config file has them.
    fn text(&self) -> String {
        let urls = self.clients.iter().map(|client| format!("http://{client}"));
        urls.collect::<Vec<_>>().join(",")
    }

    fn ctl(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.text(), "--dial-timeout=1s"]);
        let output = command.args(arguments).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Waits until a majority answers.
    fn wait(&self) {
        let begin = Instant::now();
        while self.ctl(&["get", "x"]).is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "etcd does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

/// The active server dies, the other one takes over, and the first one follows it.
fn take_over(pair: &mut Pair, what: &str) {
    let status = pair.wait_for_standby();
    let active = status["metadata_servers"]["active"].as_u64().expect("one serves") as usize;
    pair.metas[active].take().expect("it runs").kill();
    println!("killed {what}: {:?}", pair.make(5));
    assert!(pair.start(active, false, None));
    pair.wait_for_standby();
}

#[test]
fn an_etcd_decides_which_metadata_server_serves() {
    let Some(mut etcd) = Etcd::start() else { return };
    let mut pair = Pair::with_etcd(&etcd.text());
    pair.make(5);
    let status = pair.wait_for_standby();
    let witness = &status["metadata_servers"]["witness"];
    assert_eq!((&witness["kind"], &witness["server"]), (&"etcd".into(), &().into()), "{status}");
    let keys = etcd.ctl(&["get", "--prefix", "--keys-only", "ropewalk/"]).expect("etcd answers");
    let key = keys.trim().to_string();
    assert!(key.ends_with("/vote"), "{keys}");
    let value = || etcd.ctl(&["get", "--print-value-only", &key]).expect("etcd answers");
    let vote: serde_json::Value = serde_json::from_str(&value()).expect("a vote in JSON");
    assert_eq!((&vote["format"], &vote["members"]), (&1.into(), &vec![0, 1].into()), "{vote}");

    take_over(&mut pair, "beside three members");
    // On purpose, there and back.
    pair.switch();
    pair.make(5);
    pair.wait_for_standby();

    // A member of etcd dies, and then a metadata server.
    etcd.kill(0);
    etcd.wait();
    pair.make(5);
    take_over(&mut pair, "beside two members");

    // The whole etcd is gone: the two metadata servers are a majority, and say what is wrong.
    etcd.kill(1);
    etcd.kill(2);
    pair.make(5);
    let tells = |status: &serde_json::Value| {
        let problems = status["problems"].to_string();
        problems.contains("the witness, etcd, does not answer")
    };
    pair.status_with(tells);
    for member in 0..3 {
        etcd.run(member);
    }
    etcd.wait();
    pair.status_with(|status| status["metadata_servers"]["active"].is_u64() && !tells(status));

    // The key is lost, as a voter's memory may be: it gets the set from the holder, and counts again.
    etcd.ctl(&["del", &key]).expect("etcd answers");
    let begin = Instant::now();
    while etcd.ctl(&["get", "--print-value-only", &key]).is_none_or(|it| !it.contains("[0,1]")) {
        assert!(begin.elapsed() < Duration::from_secs(30), "the key is not written again");
        std::thread::sleep(Duration::from_millis(50));
    }
    take_over(&mut pair, "after the key was lost");
    pair.check();
    for meta in pair.metas.iter_mut().flatten() {
        meta.stop();
    }
}

#[test]
fn a_config_file_names_one_witness() {
    let place = tempfile::tempdir().unwrap();
    let said = |election: &str| {
        let text = format!(
            "directory = '{}/cluster'\naddress = 'tcp://127.0.0.1:1;tcp://127.0.0.1:2'\n\
             insecure = true\n[election]\n{election}\n",
            place.path().display()
        );
        let path = place.path().join("site.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        let said =
            ropewalk(place.path(), "", &["serve", "meta", "--config", &path, "--number", "0"]);
        assert!(!said.success);
        said.error
    };
    let cluster = place.path().join("cluster").display().to_string();
    ropewalk(place.path(), "", &["format", &cluster]).well();
    for both in
        ["", "witness = 0", "witness = 0\nwitness_address = 'tcp://a:1'\netcd = 'http://a:1'"]
    {
        assert!(said(both).contains("has to name one witness"), "{both}: {}", said(both));
    }
    assert!(said("etcd = 'https://a:1'").contains("spoken to without TLS"));
    assert!(said("etcd = 'a:1'").contains("http://HOST:PORT"));
}
