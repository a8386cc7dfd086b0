//! Two metadata servers as processes of their own, and two data servers of which the first votes, too: on loopback, or
//! each in a network namespace.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ropewalk_netns::{Topology, TopologyConfig};

use super::command::Said;
use super::disk::PowerDisk;
use super::shim::KillAt;
use super::{PROGRAM, Process};

/// The hosts of the data servers, and of clients, in a network. The metadata servers have those of their numbers.
pub const WITNESS: usize = 2;
pub const CLIENT: usize = 3;

/// An address of loopback that was free a moment ago.
pub fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A disk for each metadata server, if they are to have some.
fn disks(kind: Option<&str>, place: &Path) -> Vec<PowerDisk> {
    let disk = |kind| {
        move |name| {
            let disk = PowerDisk::new(kind, place, name).expect("a file system can be made");
            // A directory of the server alone: the file system has entries of its own.
            let mut private = fs::DirBuilder::new();
            private.mode(0o700).create(disk.place().join("store")).unwrap();
            fs::File::open(disk.place()).and_then(|place| place.sync_all()).unwrap();
            disk
        }
    };
    kind.map_or_else(Vec::new, |kind| ["disk0", "disk1"].map(disk(kind)).into())
}

/// See the module.
pub struct Pair {
    pub network: Option<Topology>,
    pub address: String,
    pub metas: [Option<Process>; 2],
    listen: [SocketAddr; 2],
    /// Where the metadata servers serve their metrics; only on loopback.
    pub metrics: [SocketAddr; 2],
    _data: Vec<Process>,
    /// Directories that were acknowledged.
    made: u32,
    /// The disks of the metadata servers, where they have some of their own.
    disks: Vec<PowerDisk>,
    // Servers end before their directories do.
    place: tempfile::TempDir,
}

impl Pair {
    /// On loopback.
    pub fn new() -> Pair {
        Pair::on(None, None, None)
    }

    /// On loopback, with a disk of its own for each metadata server: a file system of this kind.
    pub fn with_disks(kind: &str) -> Pair {
        Pair::on(None, None, Some(kind))
    }

    /// On loopback, with these members of an etcd as the witness.
    pub fn with_etcd(members: &str) -> Pair {
        Pair::on(None, Some(members), None)
    }

    /// Between network namespaces; `None` where there can be none.
    pub fn apart() -> Option<Pair> {
        let config = TopologyConfig { hosts: 4, rails: 1, ..TopologyConfig::default() };
        Topology::or_skip(&config).map(|network| Pair::on(Some(network), None, None))
    }

    fn on(network: Option<Topology>, etcd: Option<&str>, kind: Option<&str>) -> Pair {
        let place = tempfile::tempdir().unwrap();
        let at = |host: usize| match &network {
            Some(network) => SocketAddr::new(network.host(host).address(0), 7700),
            None => free(),
        };
        let (listen, witness) = ([at(0), at(1)], at(WITNESS));
        let address = format!("tcp://{};tcp://{}", listen[0], listen[1]);
        let second = SocketAddr::new(witness.ip(), 0);
        let votes = match etcd {
            None => format!("witness = 0\nwitness_address = 'tcp://{witness}'"),
            Some(members) => format!("etcd = '{members}'"),
        };
        let text = format!(
            "directory = '{0}/cluster'\naddress = '{address}'\ninsecure = true\n\
             [meta]\nlisten = '{1}'\nterm_seconds = 5\n\
             [election]\n{votes}\n\
             [[data]]\nserver = 0\nlisten = '{witness}'\n\
             [[data]]\nserver = 1\nlisten = '{second}'\n",
            place.path().display(),
            listen[0]
        );
        fs::write(place.path().join("site.toml"), text).unwrap();
        let (metas, made, _data) = ([None, None], 0, Vec::new());
        let metrics = [free(), free()];
        let disks = disks(kind, place.path());
        let mut pair = Pair { place, network, address, metas, listen, metrics, _data, disks, made };
        pair.run(CLIENT, &["format", "--config", "site.toml"]).well();
        if let Some(disk) = pair.disks.first() {
            let made = pair.path().join("cluster/meta");
            std::os::unix::fs::symlink(disk.place().join("store"), pair.path().join("kept"))
                .unwrap();
            super::run(pair.path(), "cp", &["-a", &format!("{}/.", made.display()), "kept/"]);
            super::run(pair.path(), "sync", &["--file-system", "kept/"]);
        }
        assert!(pair.start(0, false, None));
        for server in ["0", "1"] {
            let config = pair.config();
            let arguments = ["serve", "data", "--config", &config, "--server", server];
            let mut command = pair.command(WITNESS);
            command.args(arguments);
            let started = Process::run(command, "serving at");
            pair._data.push(started.expect("a data server starts"));
        }
        assert!(pair.start(1, true, None));
        pair
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn config(&self) -> String {
        self.path().join("site.toml").display().to_string()
    }

    /// The file with the cluster's secret.
    pub fn cluster_file(&self) -> String {
        self.path().join("cluster/cluster").display().to_string()
    }

    /// The address of one of the metadata servers.
    pub fn address_of(&self, number: usize) -> String {
        format!("tcp://{}", self.listen[number])
    }

    /// A command that starts the program at a host.
    fn command(&self, host: usize) -> Command {
        match &self.network {
            Some(network) => network.host(host).command(PROGRAM),
            None => Command::new(PROGRAM),
        }
    }

    /// Runs the program at a host to its end.
    pub fn run(&self, host: usize, arguments: &[&str]) -> Said {
        let mut command = self.command(host);
        command.args(arguments).current_dir(self.path()).env("ROPEWALK_ADDRESS", &self.address);
        Said::of(&command.output().expect("the program under test can be started"))
    }

    /// Starts a metadata server, which may have to die later. False where it died before it served.
    pub fn start(&mut self, number: usize, joins: bool, kill: Option<&KillAt>) -> bool {
        let directory = match self.disks.get(number) {
            Some(disk) => disk.place().join("store"),
            None => self.path().join(["cluster/meta", "standby"][number]),
        };
        let (config, file) = (self.config(), self.cluster_file());
        let (listen, count) = (self.listen[number].to_string(), number.to_string());
        let directory = directory.display().to_string();
        let mut command = self.command(number);
        command.args(["serve", "meta", "--config", &config, "--number", &count]);
        command.args(["--directory", &directory, "--listen", &listen, "--cluster-file", &file]);
        command.args(joins.then_some("--join"));
        let metrics = self.metrics[number].to_string();
        if self.network.is_none() {
            command.args(["--metrics", &metrics]);
        }
        if let Some(kill) = kill {
            kill.apply(&mut command);
        }
        self.metas[number] = Process::run(command, "serving at").ok();
        self.metas[number].is_some()
    }

    /// Cuts the power of these metadata servers in one moment. It comes back at once, and they start.
    pub fn cut_power(&mut self, servers: &[usize]) {
        servers.iter().for_each(|number| self.disks[*number].cut());
        for number in servers {
            self.metas[*number] = None;
            self.disks[*number].restore();
        }
        for number in servers {
            assert!(self.start(*number, false, None), "a server without power starts again");
        }
    }

    /// Makes a directory, which is acknowledged; the time that it took.
    pub fn make_one(&mut self) -> Duration {
        let begin = Instant::now();
        let name = format!(":/d{}", self.made);
        self.run(CLIENT, &["mkdir", &name]).well();
        self.made += 1;
        begin.elapsed()
    }

    /// Makes some directories; the longest time that one took.
    pub fn make(&mut self, count: u32) -> Duration {
        (0..count).map(|_| self.make_one()).max().unwrap_or_default()
    }

    /// Has the standby serve, once there is one.
    pub fn switch(&self) {
        let file = self.cluster_file();
        let begin = Instant::now();
        loop {
            let said = self.run(CLIENT, &["meta", "switch", "--cluster-file", &file]);
            if said.success {
                return;
            }
            assert!(said.error.contains("no standby"), "{}", said.error);
            assert!(begin.elapsed() < Duration::from_secs(60), "no standby in a minute");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until `status --json` tells something.
    pub fn status_with(&self, tells: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let begin = Instant::now();
        loop {
            let said = self.run(CLIENT, &["status", "--json", "--interval", "0"]);
            // Meanwhile it may be that nobody serves.
            let status = serde_json::from_str(&said.out).unwrap_or_default();
            if tells(&status) {
                return status;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{said:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// On a busy machine a server that has just given its term up may be late, and may not be elected then.
    pub fn wait_for_standby(&self) -> serde_json::Value {
        self.status_with(|it| it["metadata_servers"]["has_standby"] == true)
    }

    /// Each directory that was acknowledged is there, and nothing else.
    pub fn check(&self) {
        let listed = self.run(CLIENT, &["ls", ":/"]).well();
        let mut names: Vec<&str> = listed.lines().collect();
        names.sort_unstable();
        let mut all: Vec<String> = (0..self.made).map(|number| format!("d{number}")).collect();
        all.sort_unstable();
        assert_eq!(names, all);
    }
}
