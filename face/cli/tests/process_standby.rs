//! Two metadata servers as processes of their own, and a data server that votes, too: one takes over from the other, and
//! nothing that was acknowledged is lost.

mod support;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use support::Process;
use support::command::ropewalk;
use support::scrape::{scrape, sum};

/// An address of loopback that was free a moment ago.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

struct Site {
    place: tempfile::TempDir,
    address: String,
    metas: [Option<Process>; 2],
    listen: [SocketAddr; 2],
    /// Where the metadata servers serve their metrics.
    metrics: [SocketAddr; 2],
    _data: Vec<Process>,
    /// Directories that were acknowledged.
    made: u32,
}

impl Site {
    fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        let (listen, witness) = ([free(), free()], free());
        let address = format!("tcp://{};tcp://{}", listen[0], listen[1]);
        let text = format!(
            "directory = '{0}/cluster'\naddress = '{address}'\n\
             [meta]\nlisten = '{1}'\nterm_seconds = 5\n\
             [election]\nwitness = 0\nwitness_address = 'tcp://{witness}'\n\
             [[data]]\nserver = 0\nlisten = '{witness}'\n\
             [[data]]\nserver = 1\n",
            place.path().display(),
            listen[0]
        );
        fs::write(place.path().join("site.toml"), text).unwrap();
        ropewalk(place.path(), &address, &["format", "--config", "site.toml"]).well();
        let (metas, metrics, made) = ([None, None], [free(), free()], 0);
        let mut site = Site { place, address, metas, listen, metrics, _data: Vec::new(), made };
        site.start(0, false);
        for server in ["0", "1"] {
            let config = site.config();
            let arguments = ["serve", "data", "--config", &config, "--server", server];
            site._data.push(Process::start(&arguments, "serving at"));
        }
        site.start(1, true);
        site
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn config(&self) -> String {
        self.path().join("site.toml").display().to_string()
    }

    /// Starts a metadata server.
    fn start(&mut self, number: usize, joins: bool) {
        let directory = self.path().join(["cluster/meta", "standby"][number]);
        let (config, file) = (self.config(), self.path().join("cluster/cluster"));
        let (listen, count) = (self.listen[number].to_string(), number.to_string());
        let (directory, file) = (directory.display().to_string(), file.display().to_string());
        let mut arguments = vec!["serve", "meta", "--config", &config, "--number", &count];
        arguments.extend(["--directory", &directory, "--listen", &listen]);
        let metrics = self.metrics[number].to_string();
        arguments.extend(["--cluster-file", &file, "--metrics", &metrics]);
        arguments.extend(joins.then_some("--join"));
        self.metas[number] = Some(Process::start(&arguments, "serving at"));
    }

    /// Makes some directories; the longest time that one took.
    fn make(&mut self, count: u32) -> Duration {
        let mut longest = Duration::ZERO;
        for _ in 0..count {
            let begin = Instant::now();
            let name = format!(":/d{}", self.made);
            ropewalk(self.path(), &self.address, &["mkdir", &name]).well();
            self.made += 1;
            longest = longest.max(begin.elapsed());
        }
        longest
    }

    /// Has the standby serve, once there is one.
    fn switch(&self) {
        let begin = Instant::now();
        loop {
            let said = ropewalk(self.path(), &self.address, &["meta", "switch"]);
            if said.success {
                return;
            }
            assert!(said.error.contains("no standby"), "{}", said.error);
            assert!(begin.elapsed() < Duration::from_secs(60), "no standby in a minute");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until `status --json` tells something.
    fn status_with(&self, tells: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        let begin = Instant::now();
        loop {
            let arguments = ["status", "--json", "--interval", "0"];
            let said = ropewalk(self.path(), &self.address, &arguments);
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
    fn wait_for_standby(&self) -> serde_json::Value {
        self.status_with(|it| it["metadata_servers"]["has_standby"] == true)
    }

    fn check(&self) {
        let listed = ropewalk(self.path(), &self.address, &["ls", ":/"]).well();
        let mut names: Vec<&str> = listed.lines().collect();
        names.sort_unstable();
        let mut all: Vec<String> = (0..self.made).map(|number| format!("d{number}")).collect();
        all.sort_unstable();
        assert_eq!(names, all);
    }
}

#[test]
fn the_standby_takes_over_whatever_becomes_of_the_active_server() {
    let mut site = Site::new();
    site.make(20);
    // Server 1 serves, server 0 follows it, and the other way round.
    site.switch();
    println!("switched: {:?}", site.make(20));
    site.switch();
    site.make(5);
    site.switch();
    site.make(5);
    // Server 1 serves: it is killed, comes back, and follows.
    site.wait_for_standby();
    site.metas[1].take().expect("it runs").kill();
    println!("killed: {:?}", site.make(20));
    site.start(1, false);
    site.check();
    site.switch();
    site.make(5);
    // Server 1 serves again: it is stopped, and goes on later without harm.
    site.wait_for_standby();
    let stopped = site.metas[1].take().expect("it runs");
    stopped.suspend();
    println!("stopped: {:?}", site.make(20));
    rustix::process::kill_process(stopped.pid(), rustix::process::Signal::CONT).unwrap();
    site.metas[1] = Some(stopped);
    site.make(20);
    site.check();
    site.switch();
    site.make(5);
    site.check();
    for meta in site.metas.iter_mut().flatten() {
        meta.stop();
    }
}

#[test]
fn status_tells_who_serves_who_follows_and_what_is_missing() {
    let mut site = Site::new();
    site.make(3);
    let status = site.wait_for_standby();
    let metas = &status["metadata_servers"];
    assert_eq!(metas["witness"]["server"], 0, "{metas}");
    assert!(metas["witness"]["silent_seconds"].as_f64() < Some(5.0), "{metas}");
    assert!(metas["term"].as_u64() > Some(0), "{metas}");
    let active = metas["active"].as_u64().expect("one serves") as usize;
    let standby = &metas["servers"][1 - active];
    assert_eq!(metas["servers"][active]["role"], "active", "{metas}");
    assert_eq!((&standby["role"], &standby["has_all"]), (&"standby".into(), &true.into()));
    assert!(standby["lag_records"].as_u64() < Some(10), "{standby}");
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(0), "{status}");
    let table = ropewalk(site.path(), &site.address, &["status", "--interval", "0"]).well();
    assert!(table.contains("up, active") && table.contains("standby, has all"), "{table}");
    let (page, other) = (scrape(site.metrics[active]), scrape(site.metrics[1 - active]));
    for (metric, value) in [
        ("ropewalk_meta_active", 1.0),
        ("ropewalk_meta_standbys_ready", 1.0),
        ("ropewalk_meta_standbys_wanted", 1.0),
    ] {
        assert_eq!(sum(&page, metric, ""), value, "{page}");
    }
    assert!(sum(&page, "ropewalk_meta_standby_lag_records", "") < 10.0, "{page}");
    assert_eq!(sum(&other, "ropewalk_meta_active", ""), 0.0, "{other}");
    assert_eq!(sum(&other, "ropewalk_server_up", ""), 1.0, "{other}");
    assert!(sum(&other, "ropewalk_work_seconds_count", "disk_write") > 0.0, "{other}");
    assert!(sum(&other, "ropewalk_room_bytes", "") > 0.0, "{other}");
    // The active server is killed: the other one takes over, and has nobody.
    site.metas[active].take().expect("it runs").kill();
    let status = site.status_with(|it| it["metadata_servers"]["active"] == 1 - active);
    let problems = status["problems"].as_array().expect("a list").clone();
    let sought = format!("'ropewalk serve meta --number {active}'");
    assert!(
        problems.iter().any(|it| {
            let (what, remedy) = (it["what"].as_str(), it["remedy"].as_str());
            what.is_some_and(|it| it.contains("the next death of the metadata server"))
                && remedy.is_some_and(|it| it.contains(&sought))
        }),
        "{status}"
    );
    let table = ropewalk(site.path(), &site.address, &["status", "--interval", "0"]).well();
    assert!(table.contains("no answer") && table.contains("! the next death"), "{table}");
    // Nobody serves: the error names what answers.
    let other = site.metas[1 - active].take().expect("it runs");
    other.suspend();
    site.start(active, false);
    let arguments = ["status", "--interval", "0", "--patience", "1"];
    let said = ropewalk(site.path(), &site.address, &arguments);
    assert!(said.success || said.error.contains("does not answer"), "{}", said.error);
    site.metas[1 - active] = Some(other);
}

#[test]
fn one_metadata_server_has_nobody_to_change_places_with() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cluster").display().to_string();
    ropewalk(place.path(), "", &["format", &directory]).well();
    let meta = format!("{directory}/meta");
    let listen = free().to_string();
    let arguments = ["serve", "meta", "--directory", &meta, "--listen", &listen];
    let mut server = Process::start(&arguments, "serving at");
    let address = format!("tcp://{listen}");
    let error = ropewalk(place.path(), &address, &["meta", "switch"]).badly();
    assert!(error.contains("no standby"), "{error}");
    server.stop();
    let arguments = ["serve", "meta", "--directory", &meta, "--join"];
    let error = ropewalk(place.path(), &address, &arguments).badly();
    assert!(error.contains("[election]"), "{error}");
}
