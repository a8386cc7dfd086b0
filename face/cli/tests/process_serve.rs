//! Servers as processes of their own: config files, addresses, ports, and what waits for whom.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::command::{Plain, Said, ropewalk};
use support::{PROGRAM, Process, mounts_usable};

/// An address of loopback that was free a moment ago.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A cluster of a config file with two data servers.
struct Site {
    place: tempfile::TempDir,
    address: String,
}

/// The output of a command on its way, line by line.
type Lines = Box<dyn Iterator<Item = String>>;

/// Starts a command, and waits until it says that it waits for this.
fn waiting(command: &mut Command, whom: &str) -> (Child, Lines) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let error = BufReader::new(child.stderr.take().unwrap());
    let mut lines = error.lines().map_while(Result::ok);
    let told = lines.find(|line| line.contains(&format!("waiting for {whom}")));
    assert!(told.is_some(), "{command:?} ends without waiting");
    (child, Box::new(lines))
}

impl Site {
    fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        let listen = free();
        let text = format!(
            "directory = '{0}/cluster'\n\
             [meta]\nlisten = '{listen}'\nterm_seconds = 2\n\
             [[data]]\nserver = 0\n\
             [[data]]\nserver = 1\ndirectory = '{0}/elsewhere'\n\
             [mount]\ndirectory = '{0}/mount'\n",
            place.path().display()
        );
        fs::write(place.path().join("site.toml"), text).unwrap();
        let site = Site { place, address: format!("tcp://{listen}") };
        site.run(&["format", "--config", "site.toml"]).well();
        site
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn run(&self, arguments: &[&str]) -> Said {
        ropewalk(self.path(), &self.address, arguments)
    }

    /// Starts a command, and waits until it waits for a data server.
    fn waiting(&self, arguments: &[&str]) -> (Child, Lines) {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).current_dir(self.path()).env("ROPEWALK_ADDRESS", &self.address);
        waiting(&mut command, "data server")
    }

    fn serve(&self, arguments: &[&str]) -> Process {
        let config = self.path().join("site.toml");
        let arguments = [&["serve"], arguments, &["--config", config.to_str().unwrap()]].concat();
        Process::start(&arguments, if arguments[1] == "all" { "serves at" } else { "serving at" })
    }
}

#[test]
fn servers_of_a_config_file_serve_together_and_each_by_itself() {
    let site = Site::new();
    fs::write(site.path().join("file"), vec![7; 3_000_000]).unwrap();
    {
        let mut all = site.serve(&["all"]);
        site.run(&["cp", "file", ":/"]).well();
        assert_eq!(site.run(&["df", "--json"]).objects().len(), 4, "two servers, metadata, whole");
        all.stop();
    }
    assert!(site.path().join("elsewhere").is_dir() && site.path().join("cluster/data0").is_dir());
    assert!(!site.path().join("cluster/data1").exists());
    let _meta = site.serve(&["meta"]);
    let _data0 = site.serve(&["data", "--server", "0"]);
    let _data1 = site.serve(&["data", "--server", "1"]);
    site.run(&["cp", ":/file", "back"]).well();
    assert_eq!(fs::read(site.path().join("back")).unwrap(), vec![7; 3_000_000]);
    // A second one cannot have the same directory.
    let again = site.run(&["serve", "data", "--server", "0", "--config", "site.toml"]).badly();
    assert!(again.contains("data0"), "{again}");
}

#[test]
fn flags_say_otherwise_than_the_config_file() {
    let site = Site::new();
    let (config, listen) = (site.path().join("site.toml"), free().to_string());
    let config = config.to_str().unwrap();
    let arguments =
        ["serve", "all", "--config", config, "--data-servers", "1", "--listen", &listen];
    let mut all = Process::start(&arguments, "serves at");
    assert!(all.line.contains(&listen), "{}", all.line);
    let address = format!("tcp://{listen}");
    let room = site.run(&["df", "--json", "--address", &address]).objects();
    assert_eq!(room.len(), 3, "one data server, the metadata and the whole: {room:?}");
    all.stop();
}

#[test]
fn a_typo_in_the_config_file_is_reported_with_its_place_and_the_nearest_key() {
    let site = Site::new();
    let text = fs::read_to_string(site.path().join("site.toml")).unwrap();
    fs::write(site.path().join("typo.toml"), text.replace("\nlisten", "\n  lisetn")).unwrap();
    let commands: [&[&str]; 3] = [&["serve", "all"], &["mount"], &["format"]];
    for command in commands {
        let arguments = [command, &["--config", "typo.toml"]].concat();
        let error = site.run(&arguments).badly();
        let place = "typo.toml, line 3, column 3: unknown key 'lisetn'; did you mean 'listen'?";
        assert!(error.contains(place), "{arguments:?}: {error}");
    }
    let missing = site.run(&["serve", "all", "--config", "no.toml"]).badly();
    assert!(missing.contains("cannot read the config file no.toml: No such file"), "{missing}");
}

#[test]
fn a_server_without_a_cluster_or_a_directory_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| ropewalk(place.path(), "", arguments).badly();
    let lost = run(&["serve", "meta", "--directory", "c/meta", "--listen", "127.0.0.1:0"]);
    assert!(lost.contains("belongs to no cluster: create one by 'ropewalk format DIR'"), "{lost}");
    let nowhere = run(&["serve", "data", "--server", "0"]);
    assert!(nowhere.contains("give --directory DIR"), "{nowhere}");
    ropewalk(place.path(), "", &["format", "c"]).well();
    let twice = run(&["format", "c"]);
    assert!(twice.contains("is already the directory of a cluster"), "{twice}");
    // Formatted above, found below.
    let directory = place.path().join("c/meta");
    let directory = directory.to_str().unwrap();
    let arguments = ["serve", "meta", "--directory", directory, "--listen", "127.0.0.1:0"];
    Process::start(&arguments, "serving at").stop();
    // Without the file its stores know whose they are.
    std::fs::remove_file(place.path().join("c/cluster")).unwrap();
    let error = run(&arguments);
    assert!(error.contains("with the single line") && error.contains("restore"), "{error}");
}

#[test]
fn addresses_that_others_can_reach_are_refused_without_insecure() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| ropewalk(place.path(), "", arguments);
    run(&["format", "c"]).well();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7700"] {
        let commands: [&[&str]; 4] = [
            &["up", "u"],
            &["serve", "all", "--directory", "c"],
            &["serve", "meta", "--directory", "c/meta"],
            &["serve", "data", "--server", "0", "--directory", "c/data0"],
        ];
        for command in commands {
            let error = run(&[command, &["--listen", listen]].concat()).badly();
            let expected = format!("{listen} can be reached by other hosts");
            assert!(error.contains(&expected) && error.contains("--insecure"), "{error}");
        }
    }
    let directory = place.path().join("u");
    let mut up = Process::start(
        &["up", directory.to_str().unwrap(), "--listen", "0.0.0.0:0", "--insecure"],
        "serves at",
    );
    assert!(up.line.contains("tcp://"), "{}", up.line);
    up.stop();
}

#[test]
fn a_server_that_listens_at_several_places_is_reached_at_each() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("c");
    let words = ["up", directory.to_str().unwrap(), "--listen", "127.0.0.1:0,udp://127.0.0.1:0"];
    let mut up =
        Process::start(&[&words[..], &["--listen", "tcp://[::1]:0"]].concat(), "serves at");
    let addresses = up.line.split("serves at ").nth(1).unwrap().to_string();
    let schemes: Vec<&str> =
        addresses.split(',').map(|it| it.split("://").next().unwrap()).collect();
    assert_eq!(schemes, ["shm", "tcp", "udp", "tcp"], "in the order in which they were said");
    fs::write(place.path().join("file"), vec![7; 100_000]).unwrap();
    for (number, address) in addresses.split(',').enumerate() {
        let path = format!(":/{number}");
        ropewalk(place.path(), address, &["cp", "file", &path]).well();
        let room = ropewalk(place.path(), address, &["df", "--json"]).objects();
        // Data servers listen beside it.
        let told = room.iter().filter_map(|server| server["address"].as_str());
        let all = told.filter(|told| told.contains("udp://127.0.0.1:") && told.contains("[::1]:"));
        assert_eq!(all.count(), 4, "{room:?}");
    }
    up.stop();
    // The same in a config file; mounts go where it can be called.
    let text = format!(
        "directory = '{}'\n[meta]\nlisten = 'udp://{}, tcp://127.0.0.1:0'\n[[data]]\nserver = 0\n",
        directory.display(),
        free()
    );
    fs::write(place.path().join("site.toml"), text).unwrap();
    let config = place.path().join("site.toml");
    let config = ["--config", config.to_str().unwrap()];
    let _meta = Process::start(&[&["serve", "meta"][..], &config].concat(), "serving at");
    let data = [&["serve", "data", "--server", "0"][..], &config].concat();
    Process::start(&data, "serving at").stop();
}

#[test]
fn a_port_in_use_is_named() {
    let place = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    ropewalk(place.path(), "", &["format", "c"]).well();
    for command in [&["up", "c"][..], &["serve", "all", "--directory", "c"]] {
        let said = ropewalk(place.path(), "", &[command, &["--listen", &listen]].concat());
        let error = said.badly();
        assert!(error.contains(&listen), "{command:?} does not name it: {error}");
        assert!(error.to_lowercase().contains("in use"), "{command:?}: no cause: {error}");
    }
}

#[test]
fn an_operation_waits_for_a_dead_server_as_long_as_patience_says() {
    let site = Site::new();
    fs::write(site.path().join("file"), vec![7; 3_000_000]).unwrap();
    let _meta = site.serve(&["meta"]);
    let mut data = [site.serve(&["data", "--server", "0"]), site.serve(&["data", "--server", "1"])];
    site.run(&["cp", "file", ":/"]).well();
    data.iter_mut().for_each(Process::kill);
    let error = site.run(&["cp", "--patience", "2", ":/file", "lost"]).badly();
    assert!(error.contains("waiting for data server"), "nobody is named: {error}");
    assert!(error.contains(":/file: Input/output error: a server did not answer"), "{error}");
    // With more patience it goes on as soon as the servers are there again.
    let (mut waiting, lines) = site.waiting(&["cp", "--patience", "120", ":/file", "back"]);
    let _again = [site.serve(&["data", "--server", "0"]), site.serve(&["data", "--server", "1"])];
    assert!(waiting.wait().unwrap().success(), "{:?}", lines.collect::<Vec<_>>());
    assert_eq!(fs::read(site.path().join("back")).unwrap(), vec![7; 3_000_000]);
}

#[test]
fn an_interrupted_command_ends_its_session_so_that_nobody_waits_for_it() {
    let site = Site::new();
    fs::write(site.path().join("file"), vec![7; 3_000_000]).unwrap();
    let _meta = site.serve(&["meta"]);
    let mut data = [site.serve(&["data", "--server", "0"]), site.serve(&["data", "--server", "1"])];
    site.run(&["cp", "file", ":/"]).well();
    data.iter_mut().for_each(Process::kill);
    let (mut waiting, lines) = site.waiting(&["cp", "--patience", "120", ":/file", "back"]);
    let pid = rustix::process::Pid::from_child(&waiting);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(!waiting.wait().unwrap().success());
    assert!(lines.collect::<Vec<_>>().iter().any(|line| line == "ropewalk: interrupted"));
    let status = site.run(&["status", "--json", "--interval", "0"]).well();
    assert!(status.contains("sessions") && !status.contains("ropewalk cp"), "{status}");
}

#[test]
fn what_is_no_mount_of_ours_is_not_unmounted() {
    let place = tempfile::tempdir().unwrap();
    let root = ropewalk(place.path(), "", &["umount", "/"]).badly();
    assert!(root.contains("/ is not a mount of Ropewalk") && root.contains("use umount"), "{root}");
    let lazy = ropewalk(place.path(), "", &["umount", "--lazy", "/proc"]).badly();
    assert!(lazy.contains("/proc is not a mount of Ropewalk"), "{lazy}");
    assert!(Path::new("/proc/self").exists());
    let nothing = ropewalk(place.path(), "", &["umount", "."]).badly();
    assert!(nothing.contains("nothing is mounted on ."), "{nothing}");
}

#[test]
fn an_address_that_cannot_be_right_is_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    for address in ["tcp://nohost.invalid:7700", "ftp://127.0.0.1:7700"] {
        let commands: [&[&str]; 4] = [
            &["mount", address, "m", "--patience", "86400"],
            &["ls", "-A", address, "--patience", "86400"],
            &["df", "-A", address, "--patience", "86400"],
            &[
                "serve",
                "data",
                "--server",
                "0",
                "--directory",
                "d",
                "--cluster",
                "00000000000000000000000000000001",
                "--meta",
                address,
            ],
        ];
        for command in commands {
            // One that waits does so for a day.
            let error = ropewalk(place.path(), "", command).badly();
            let cause = ["the host name 'nohost.invalid'", "unknown scheme 'ftp'"];
            assert!(cause.iter().any(|cause| error.contains(cause)), "{command:?}: {error}");
        }
    }
    assert!(!place.path().join("d").exists());
    // A usage line does not show what the environment says as something to be said.
    let usage = ropewalk(place.path(), "tcp://127.0.0.1:1", &["stat"]).badly();
    assert!(usage.contains("Usage: ") && !usage.contains("--address"), "{usage}");
}

#[test]
fn a_mount_point_that_cannot_be_is_found_out_before_anything_is_waited_for_or_made() {
    let place = tempfile::tempdir().unwrap();
    // One that waits for the server does so for a day.
    let mount = ["mount", "tcp://127.0.0.1:1", "missing", "--patience", "86400"];
    let error = ropewalk(place.path(), "", &mount).badly();
    assert!(error.contains("missing"), "{error}");
    let error = ropewalk(place.path(), "", &["up", "new", "--mount", "missing"]).badly();
    assert!(error.contains("missing"), "{error}");
    assert!(!place.path().join("new/meta").exists(), "no cluster was made");
}

#[test]
fn a_mount_that_waits_for_its_servers_ends_at_the_first_signal() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("mount");
    fs::create_dir(&path).unwrap();
    // SIGINT may be ignored in whoever runs the tests in the background.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", PROGRAM, "mount", "tcp://127.0.0.1:1"]).arg(&path);
    let (mut child, mut lines) =
        waiting(command.args(["--patience", "86400"]), "the metadata server");
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline || child.kill().is_err(), "it waits on");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(!status.success());
    assert!(lines.any(|line| line.contains("stopping ...")));
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let place = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    for options in [&[][..], &["--background"]] {
        let up = [&["up", "new", "--listen", &listen][..], options].concat();
        let error = ropewalk(place.path(), "", &up).badly();
        assert!(error.contains(&listen), "{options:?}: {error}");
        assert!(!place.path().join("new").exists(), "{options:?} left something");
    }
    // The log of a cluster that runs stays, empty as it may be.
    let words = ["up", "runs", "--listen", "127.0.0.1:0", "--background"];
    ropewalk(place.path(), "", &words).well();
    assert!(fs::metadata(place.path().join("runs/log")).unwrap().len() == 0);
    let error = ropewalk(place.path(), "", &words).badly();
    assert!(error.contains("is already served"), "{error}");
    assert!(place.path().join("runs/log").exists(), "the log of another process is gone");
    ropewalk(place.path(), "", &["down", "runs"]).well();
    let new = place.path().join("new");
    let words = ["up", new.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    Process::start(&words, "serves at").stop();
    assert!(!new.join("running").exists(), "nobody serves it, but it says so");
    let error = ropewalk(place.path(), "", &["down", "new"]).badly();
    assert!(error.contains("no cluster is running in new"), "{error}");
}

#[test]
fn no_cluster_is_made_among_the_files_of_others() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("home")).unwrap();
    fs::write(place.path().join("home/letter"), b"mine").unwrap();
    for command in [&["up", "home", "--listen", "127.0.0.1:0"][..], &["format", "home"]] {
        let error = ropewalk(place.path(), "", command).badly();
        assert!(
            error.contains("it contains 'letter'") && error.contains("home/cluster"),
            "{error}"
        );
    }
    let left: Vec<_> = fs::read_dir(place.path().join("home")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // The directory of a new file system, and the leftovers of a start that was killed, are no stranger's.
    fs::rename(place.path().join("home/letter"), place.path().join("home/running")).unwrap();
    fs::create_dir(place.path().join("home/lost+found")).unwrap();
    ropewalk(place.path(), "", &["format", "home"]).well();
}

#[test]
fn names_and_numbers_that_cannot_be_meant_are_refused_with_how_to_write_them() {
    let place = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| ropewalk(place.path(), "", arguments).badly();
    let error = run(&["up", "new", "--listen", "localhost:7700"]);
    assert!(error.contains("'localhost' is not") && error.contains("127.0.0.1:7700"), "{error}");
    let error = run(&["serve", "meta", "--directory", "meta", "--cluster", "abc"]);
    assert!(error.contains("32 hexadecimal digits"), "{error}");
    // Somebody else's directory is no empty one.
    let plain = Plain::new(place.path());
    let closed = place.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("running"), "1\n").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let error = plain.run("", &["down", closed.to_str().unwrap()]).badly();
    assert!(error.contains("as the user who started it, or as root"), "{error}");
    fs::write(place.path().join("file"), "").unwrap();
    let error = run(&["up", "file"]);
    assert!(error.contains("file is not a directory"), "{error}");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
}
