//! Servers as processes of their own, and what operators ask of them.
#![allow(dead_code, reason = "every test file uses another part of it")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ropewalk_net::reactor::Reactor;
use ropewalk_store::HostDisk;
use ropewalk_store::objects::{Config, ObjectId, ObjectStore, WriteEpoch};
use serde_json::Value;

use super::{PROGRAM, Process, run};

/// One metadata server and some data servers, each a process.
pub struct Servers {
    pub meta: Option<Process>,
    pub data: Vec<Option<Process>>,
    directory: PathBuf,
    pub cluster: String,
    /// Of the metadata server.
    pub address: String,
}

impl Servers {
    pub fn start(directory: &Path, count: usize) -> Servers {
        let made = run(directory, PROGRAM, &["format", "."]);
        let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let port = socket.local_addr().expect("it is bound").port();
        drop(socket);
        let mut servers = Servers {
            meta: None,
            data: (0..count).map(|_| None).collect(),
            directory: directory.to_path_buf(),
            cluster: made.trim().to_string(),
            address: format!("tcp://127.0.0.1:{port}"),
        };
        servers.start_meta();
        for number in 0..count {
            servers.start_data(number);
        }
        servers
    }

    pub fn start_meta(&mut self) {
        let place = self.path("meta");
        let (place, cluster) = (place.to_str().expect("UTF-8"), &*self.cluster);
        let listen = self.address.trim_start_matches("tcp://");
        let arguments =
            ["serve", "meta", "--directory", place, "--cluster", cluster, "--listen", listen];
        self.meta = Some(Process::start(&arguments, "serving at"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The directory of a data server.
    pub fn data_path(&self, number: usize) -> PathBuf {
        self.path(&format!("data{number}"))
    }

    pub fn start_data(&mut self, number: usize) {
        let (place, server) = (self.data_path(number), number.to_string());
        let arguments = [
            "serve",
            "data",
            "--directory",
            place.to_str().expect("UTF-8"),
            "--cluster",
            &self.cluster,
            "--server",
            &server,
            "--meta",
            &self.address,
            "--listen",
            "127.0.0.1:0",
            "--admit",
        ];
        self.data[number] = Some(Process::start(&arguments, "serving at"));
    }

    /// Stops a data server in good order: all it has is in its files then.
    pub fn stop_data(&mut self, number: usize) {
        self.data[number].take().expect("it runs").stop();
    }

    /// The files of a stopped data server's objects, with the numbers of their inodes.
    pub fn objects(&self, number: usize) -> Vec<(u64, PathBuf)> {
        let folders = std::fs::read_dir(self.data_path(number).join("objects/objects"));
        let mut found = Vec::new();
        for folder in folders.into_iter().flatten().flatten() {
            for file in std::fs::read_dir(folder.path()).expect("a folder of objects").flatten() {
                let name = file.file_name().into_string().expect("names are ASCII");
                let inode = name.split('.').next().expect("a name has parts");
                found.push((u64::from_str_radix(inode, 16).expect("a number"), file.path()));
            }
        }
        found
    }

    /// Puts an object into a stopped data server's store.
    pub fn plant(&self, number: usize, object: ObjectId, bytes: &[u8]) {
        let reactor = Reactor::new().expect("a reactor");
        let world = reactor.world(HostDisk::shared(), 1).unwrap();
        let directory = self.data_path(number).join("objects");
        reactor.block_on(async {
            let opened = ObjectStore::open(&directory, Config::default(), &world).await;
            let (store, _) = opened.expect("the store opens");
            let (by, sum) = (WriteEpoch { session: 1, epoch: 1 }, crc32c(bytes));
            store.write(object, 0, &[bytes], &[sum], by).expect("written");
            store.checkpoint().await.expect("a checkpoint");
        });
    }

    /// `ropewalk status --json`.
    pub fn status(&self, interval: &str) -> Value {
        let arguments = ["status", "-A", &self.address, "--json", "--interval", interval];
        let text = run(&self.directory, PROGRAM, &arguments);
        serde_json::from_str(&text).expect("one JSON object")
    }

    /// `ropewalk check --json` with further options: its exit status, the findings, the summary.
    pub fn check(&self, options: &[&str]) -> (i32, Vec<Value>, Value) {
        let output = Command::new(PROGRAM)
            .args(["check", "-A", &self.address, "--json"])
            .args(options)
            .output()
            .expect("it runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let last = lines.pop().unwrap_or_else(|| {
            panic!("nothing was printed: {}", String::from_utf8_lossy(&output.stderr))
        });
        (output.status.code().expect("it was not killed"), lines, last["summary"].clone())
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    ropewalk_base::checksum::crc32c(bytes)
}
