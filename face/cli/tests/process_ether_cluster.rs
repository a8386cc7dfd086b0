//! A cluster whose servers and clients are in network namespaces of their own, joined by virtual cards and a
//! bridge. It runs over raw Ethernet frames, with no IP address on any interface, and over UDP.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use support::{PROGRAM, Process, mounts_usable, unmount};

/// Runs `ip` with these words; whether it succeeded.
fn ip(line: &str) -> bool {
    let status = Command::new("ip").args(line.split_whitespace()).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Namespaces with a card `eth0` each, all plugged into one bridge. They end with this value.
struct Net {
    bridge: String,
    hosts: Vec<Host>,
}

/// A namespace.
#[derive(Clone)]
struct Host {
    name: String,
}

impl Net {
    /// So many of them. With `numbers` card `n` has the address 10.77.0.`n + 1`, else none. `None`, with the
    /// reason on the standard output, if this machine does not allow it.
    fn new(count: usize, numbers: bool) -> Option<Net> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("ropewalk-{what}-{}-{number}", std::process::id());
        let mut net = Net { bridge: name("switch"), hosts: Vec::new() };
        let bridge = &net.bridge;
        if !ip(&format!("netns add {bridge}")) {
            println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
            return None;
        }
        assert!(ip(&format!("-n {bridge} link add switch type bridge mcast_snooping 0")));
        assert!(ip(&format!("-n {bridge} link set switch up")));
        for index in 0..count {
            let host = Host { name: name(&format!("host{index}")) };
            assert!(ip(&format!("netns add {}", host.name)));
            net.hosts.push(host.clone());
            let (host, bridge) = (&host.name, &net.bridge);
            let peer = format!("peer name plug{index} netns {bridge}");
            assert!(ip(&format!("-n {host} link add eth0 type veth {peer}")));
            // Else IPv6 makes addresses up by itself.
            for (space, card) in [(host, "eth0".to_string()), (bridge, format!("plug{index}"))] {
                assert!(ip(&format!("-n {space} link set {card} addrgenmode none")));
            }
            assert!(ip(&format!("-n {bridge} link set plug{index} master switch up")));
            assert!(ip(&format!("-n {host} link set eth0 up")));
            if numbers {
                let address = format!("10.77.0.{}/24", index + 1);
                assert!(ip(&format!("-n {host} address add {address} dev eth0")));
            }
        }
        Some(net)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let hosts = self.hosts.iter().map(|host| &host.name);
        for name in hosts.chain([&self.bridge]) {
            ip(&format!("netns del {name}"));
        }
    }
}

impl Host {
    /// A program in there, which has the mounts of everybody.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name));
        command.args(["env", "--default-signal=HUP,INT", program]);
        command
    }

    fn start(&self, arguments: &[&str], expected: &str) -> Process {
        let mut command = self.command(PROGRAM);
        command.args(arguments);
        Process::run(command, expected)
            .unwrap_or_else(|status| panic!("{arguments:?} did not say '{expected}' ({status})"))
    }

    fn output(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().expect("it can be started")
    }

    /// The output of a command that has to succeed.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.output(program, arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Bytes that its card has received.
    fn received(&self) -> u64 {
        let text = self.run("ip", &["-s", "link", "show", "eth0"]);
        let figures = text.lines().skip_while(|line| !line.contains("RX:")).nth(1);
        let bytes = figures.and_then(|line| line.split_whitespace().next());
        bytes.and_then(|bytes| bytes.parse().ok()).expect("the card counts")
    }
}

/// Bytes that no stripe has twice.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let word = |n: u32| n.wrapping_mul(2_654_435_761).wrapping_add(seed).to_le_bytes();
    (0..len as u32 / 4 + 1).flat_map(word).take(len).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A metadata server, two data servers, and the host of those who use them.
struct Site {
    // In the order in which they end.
    data: Vec<Process>,
    _meta: Process,
    address: String,
    listen: [String; 2],
    client: Host,
    server: Host,
    place: tempfile::TempDir,
    _net: Net,
}

impl Site {
    /// `listen`: of the metadata server and both data servers.
    fn start(net: Net, listen: [&str; 3]) -> Site {
        let place = tempfile::tempdir().expect("a directory");
        let [meta, server, client] = &net.hosts[..] else { panic!("three hosts") };
        let cluster = place.path().join("cluster");
        meta.run(PROGRAM, &["format", text(&cluster)]);
        let directory = cluster.join("meta");
        let place_of = ["--insecure", "--directory", text(&directory), "--listen", listen[0]];
        let words = [&["serve", "meta", "--term", "3"][..], &place_of].concat();
        let process = meta.start(&words, "serving at");
        let address = process.line.split("serving at ").nth(1).expect("it was there").to_string();
        let mut site = Site {
            data: Vec::new(),
            _meta: process,
            address,
            listen: [listen[1].to_string(), listen[2].to_string()],
            client: client.clone(),
            server: server.clone(),
            place,
            _net: net,
        };
        site.data = (0..2).map(|number| site.serve(number)).collect();
        site
    }

    /// Starts a data server.
    fn serve(&self, number: usize) -> Process {
        let directory = self.place.path().join(format!("cluster/data{number}"));
        let (number, listen) = (number.to_string(), &self.listen[number]);
        let place = ["--insecure", "--directory", text(&directory), "--listen", listen];
        let words = ["serve", "data", "--admit", "--server", &number, "--meta", &self.address];
        self.server.start(&[&words[..], &place].concat(), "serving at")
    }

    /// A command of the clients' side that has to succeed.
    fn ropewalk(&self, command: &str, arguments: &[&str]) -> String {
        let words = [&[command, "--address", &self.address][..], arguments].concat();
        self.client.run(PROGRAM, &words)
    }

    fn mount(&self, path: &Path) -> Process {
        fs::create_dir(path).expect("the place is ours");
        self.client.start(&["mount", &self.address, text(path)], "mounted on")
    }
}

/// Files come and go by the mount, and by commands; each sees what the other did.
fn files_go_both_ways(site: &Site, mount: &Path) {
    let bytes = noise(1, 6_000_000);
    fs::write(site.place.path().join("large"), &bytes).expect("written");
    let before = site.server.received();
    site.ropewalk("cp", &[text(&site.place.path().join("large")), ":/"]);
    let carried = site.server.received() - before;
    assert!(carried > bytes.len() as u64, "they went over the wire: {carried} bytes");
    assert!(fs::read(mount.join("large")).expect("the mount has it") == bytes);
    fs::create_dir_all(mount.join("deep/er")).expect("made");
    for number in 0..20 {
        let small = noise(number, 1000 * number as usize);
        fs::write(mount.join(format!("deep/er/{number}")), small).expect("written");
    }
    let back = site.place.path().join("back");
    site.ropewalk("cp", &["-r", ":/deep", text(&back)]);
    for number in 0..20 {
        let small = fs::read(back.join(format!("er/{number}"))).expect("it came back");
        assert!(small == noise(number, 1000 * number as usize), "file {number} is another");
    }
    let names = site.ropewalk("ls", &[":/deep/er"]);
    assert_eq!(names.split_whitespace().count(), 20, "{names}");
    site.ropewalk("rm", &["-r", ":/deep"]);
    assert!(!mount.join("deep").exists(), "the mount still has what was removed");
    let status = site.ropewalk("status", &["--json", "--interval", "0"]);
    let status: serde_json::Value = serde_json::from_str(&status).expect("one object");
    let servers = status["servers"].as_array().expect("a list");
    assert_eq!(servers.len(), 2, "{status}");
    for server in servers {
        assert!(
            server["state"] == "up" && server["answer"]["calls"]["write"].is_object(),
            "{status}"
        );
    }
    // Nobody vouches here for who asks: sessions are told to those who have the cluster's file.
    assert!(status["sessions"].is_null() && status["metadata"]["sessions"] == 1, "{status}");
    let file = site.place.path().join("cluster/cluster");
    let keys = ["--json", "--interval", "0", "--cluster-file", text(&file)];
    let told: serde_json::Value =
        serde_json::from_str(&site.ropewalk("status", &keys)).expect("one object");
    assert_eq!(told["sessions"].as_array().map(Vec::len), Some(1), "the mount's: {told}");
    site.ropewalk("check", &["--cluster-file", text(&file)]);
}

/// Files of a mount, each synchronized, while a data server dies and comes back: a client that
/// remembers nothing finds what was acknowledged.
fn acknowledged_files_survive_a_kill(site: &mut Site, mount: &Path) {
    const LEN: usize = 300_000;
    let (written, enough) = (AtomicUsize::new(0), AtomicBool::new(false));
    let wait_for = |count: usize| {
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while written.load(Ordering::Acquire) < count {
            assert!(std::time::Instant::now() < deadline, "nothing is written any more");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            for number in 0.. {
                let name = mount.join(format!("acknowledged{number}"));
                let mut file = File::create(name).expect("made");
                file.write_all(&noise(number, LEN)).expect("written");
                file.sync_all().expect("synchronized");
                written.store(number as usize + 1, Ordering::Release);
                if enough.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        wait_for(3);
        site.data[0].kill();
        site.data[0] = site.serve(0);
        wait_for(written.load(Ordering::Acquire) + 3);
        enough.store(true, Ordering::Release);
        work.join().expect("it ends well");
    });
    let fresh = site.place.path().join("fresh");
    let mut second = site.mount(&fresh);
    for number in 0..written.into_inner() {
        let mut bytes = Vec::new();
        let file = File::open(fresh.join(format!("acknowledged{number}")));
        file.expect("it is there").read_to_end(&mut bytes).expect("it can be read");
        assert!(bytes == noise(number as u32, LEN), "file {number} is another");
    }
    unmount(&fresh);
    second.stop();
}

fn scenario(mut site: Site) {
    let path = site.place.path().join("mount");
    let mut mount = site.mount(&path);
    files_go_both_ways(&site, &path);
    acknowledged_files_survive_a_kill(&mut site, &path);
    unmount(&path);
    mount.stop();
    site.data.iter_mut().for_each(Process::stop);
}

#[test]
fn a_cluster_of_raw_ethernet_serves_where_no_interface_has_an_address() {
    let Some(net) = mounts_usable().then(|| Net::new(3, false)).flatten() else { return };
    let site = Site::start(net, ["ether://eth0/3", "ether://eth0/7", "ether://"]);
    assert!(site.address.contains("ether://") && !site.address.contains("tcp://"));
    for host in &site._net.hosts {
        let addresses = host.run("ip", &["-o", "address", "show"]);
        assert!(!addresses.contains("inet"), "{addresses}");
    }
    scenario(site);
}

#[test]
fn without_the_right_to_raw_frames_or_a_single_interface_a_command_says_what_to_do() {
    let Some(net) = Net::new(3, false) else { return };
    let site = Site::start(net, ["ether://eth0/3", "ether://eth0/7", "ether://eth0"]);
    let (client, ether) = (&site.client, site.address.split(',').nth(1).expect("the second"));
    let place = tempfile::tempdir().expect("a directory");
    let refused = |arguments: &[&str]| {
        let mut command = client.command("setpriv");
        command.args(["--bounding-set=-net_raw", "--inh-caps=-net_raw", PROGRAM]).args(arguments);
        let output = command.output().expect("it can be started");
        assert!(!output.status.success(), "{arguments:?} succeeds");
        String::from_utf8(output.stderr).expect("text")
    };
    let [mount, cluster, formatted] = ["mount", "new", "made"].map(|it| place.path().join(it));
    fs::create_dir(&mount).expect("the place is ours");
    client.run(PROGRAM, &["format", text(&formatted)]);
    let (path, meta) = (text(&cluster), formatted.join("meta"));
    let serve = ["serve", "meta", "--insecure", "--directory", text(&meta)];
    let commands: [&[&str]; 6] = [
        &["ls", "--address", ether],
        &["df", "--address", ether],
        &["mount", ether, text(&mount)],
        &["up", path, "--insecure", "--listen", "ether://eth0"],
        &[&serve[..], &["--listen", "ether://eth0/3"]].concat(),
        // Shared memory does not lead there, and is all that is left.
        &["ls", "--patience", "1", "--address", &site.address],
    ];
    for command in commands {
        let error = refused(command);
        let remedies = ["CAP_NET_RAW", "setcap cap_net_raw+ep", "udp://"];
        assert!(remedies.iter().all(|it| error.contains(it)), "{command:?}: {error}");
    }
    let up = client.output(PROGRAM, &["up", path, "--listen", "ether://eth0"]);
    let error = String::from_utf8(up.stderr).expect("text");
    assert!(error.contains("ether://eth0 can be reached by other hosts"), "{error}");
    // A second interface: the first one has to be named.
    assert!(ip(&format!("-n {} link add eth1 type veth peer name eth2", client.name)));
    for card in ["eth1", "eth2"] {
        assert!(ip(&format!("-n {} link set {card} up", client.name)));
    }
    let ls = client.output(PROGRAM, &["ls", "--address", ether]);
    let error = String::from_utf8(ls.stderr).expect("text");
    assert!(error.contains("several interfaces, eth0, eth"), "{error}");
    assert!(error.contains("ether://02:00:00:00:00:01%eth0/3"), "{error}");
    // The station's own address may have that in it, too.
    let named = format!("{}%eth0/3", ether.strip_suffix("/3").expect("its endpoint"));
    client.run(PROGRAM, &["mkdir", "--address", &named, ":/made"]);
    assert!(client.run(PROGRAM, &["ls", "--address", &named]).contains("made"));
}

#[test]
fn a_cluster_of_udp_serves_across_namespaces() {
    let Some(net) = mounts_usable().then(|| Net::new(3, true)).flatten() else { return };
    let listen = ["udp://10.77.0.1:7700", "udp://0.0.0.0:7701", "udp://10.77.0.2:0"];
    let site = Site::start(net, listen);
    assert!(site.address.contains("udp://10.77.0.1:7700") && !site.address.contains("tcp://"));
    scenario(site);
}
