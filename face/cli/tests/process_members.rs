//! Servers that come back without what they had, twice, or to the wrong cluster.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use support::command::{Said, ropewalk};
use support::operator::Servers;
use support::{PROGRAM, Process, run};

/// The error of a server that has to end by itself.
fn refused(arguments: &[&str]) -> String {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{arguments:?} serves");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success(), "{arguments:?} ends well");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_string()
}

/// Two data servers of a cluster, and a file with stripes on both.
struct Site {
    place: tempfile::TempDir,
    servers: Servers,
}

impl Site {
    fn new() -> Site {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), vec![7; 6_000_000]).unwrap();
        let cluster = place.path().join("cluster");
        fs::create_dir(&cluster).unwrap();
        let servers = Servers::start(&cluster, 2);
        let site = Site { place, servers };
        site.run(&["cp", "file", ":/"]).well();
        site
    }

    fn run(&self, arguments: &[&str]) -> Said {
        ropewalk(self.place.path(), &self.servers.address, arguments)
    }

    fn cluster_file(&self) -> String {
        text(&self.place.path().join("cluster/cluster"))
    }

    /// Data server `number` in this directory, as it would be served.
    fn serve(&self, number: &str, directory: &Path, options: &[&str]) -> Vec<String> {
        let mut words = vec!["serve".to_string(), "data".into(), "--server".into(), number.into()];
        words.extend(["--directory".into(), text(directory)]);
        words.extend(["--cluster-file".into(), self.cluster_file()]);
        words.extend(["--meta".into(), self.servers.address.clone()]);
        words.extend(["--listen".into(), "127.0.0.1:0".into()]);
        words.extend(options.iter().map(|word| word.to_string()));
        words
    }

    fn refused(&self, number: &str, directory: &Path) -> String {
        let words = self.serve(number, directory, &[]);
        refused(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn serving(&self, number: &str, directory: &Path, options: &[&str]) -> Process {
        let words = self.serve(number, directory, options);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Process::start(&words, "serving at")
    }

    fn is_whole(&self) {
        let back = self.place.path().join("back");
        self.run(&["cp", ":/file", "back"]).well();
        assert!(fs::read(&back).unwrap() == vec![7; 6_000_000], "other bytes come back");
        fs::remove_file(back).unwrap();
    }
}

#[test]
fn a_data_server_without_its_data_is_refused_until_they_are_given_up() {
    let mut site = Site::new();
    let (own, kept) = (site.servers.data_path(1), site.place.path().join("kept"));
    site.servers.stop_data(1);
    fs::rename(&own, &kept).unwrap();
    let gone = site.refused("1", &own);
    assert!(gone.contains("is empty, but data server 1 had data"), "{gone}");
    assert!(gone.contains("--replace") && gone.contains("'ropewalk check' lists them"), "{gone}");
    assert!(!own.exists(), "something was made in place of what is missing");
    // A mount point without its disk.
    fs::create_dir(&own).unwrap();
    assert!(site.refused("1", &own).contains("is empty, but data server 1 had data"));
    assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "something was left in it");
    // Another server's directory is no remedy.
    assert!(site.refused("1", &site.servers.data_path(0)).contains("in use"));
    fs::remove_dir(&own).unwrap();
    fs::rename(&kept, &own).unwrap();
    site.serving("1", &own, &[]).stop();
    {
        let _again = site.serving("1", &own, &[]);
        site.is_whole();
        assert_eq!(site.servers.check(&[]).0, 0);
    }
    // Given up by order: the lost data is known by name, and later starts need no order.
    fs::remove_dir_all(&own).unwrap();
    site.serving("1", &own, &["--replace"]).stop();
    let _again = site.serving("1", &own, &[]);
    let (code, found, summary) = site.servers.check(&[]);
    assert_eq!(code, 1, "{summary}");
    let lost = |it: &serde_json::Value| it["problem"] == "absent" && it["server"] == 1;
    assert!(!found.is_empty() && found.iter().all(lost), "{found:?}");
    assert_eq!(found[0]["path"], "/file");
    site.run(&["cp", ":/file", "lost"]).badly();
}

#[test]
fn up_serves_as_many_data_servers_as_there_were() {
    let place = tempfile::tempdir().unwrap();
    let directory = text(&place.path().join("up"));
    let start = |count: &[&str]| {
        let words = [&["up", &directory, "--listen", "127.0.0.1:0"][..], count].concat();
        Process::start(&words, "serves at")
    };
    let served = || {
        let mut up = start(&[]);
        let address = up.line.split("serves at ").nth(1).unwrap().trim().to_string();
        let servers = ropewalk(place.path(), &address, &["df", "--json"]).objects();
        up.stop();
        servers.iter().filter(|row| row["server"].is_u64()).count()
    };
    start(&["--data-servers", "2"]).stop();
    assert_eq!(served(), 2);
    let fewer = ["up", &directory, "--listen", "127.0.0.1:0", "--data-servers", "1"];
    let error = ropewalk(place.path(), "", &fewer).badly();
    assert!(
        error.contains("has 2 data servers") && error.contains("leave the option out"),
        "{error}"
    );
    let mut more = start(&["--data-servers", "3"]);
    more.stop();
    assert_eq!(served(), 3);
}

#[test]
fn up_refuses_what_is_not_whole() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("up");
    let words = |options: &[&'static str]| {
        let words = ["up", &text(&directory), "--listen", "127.0.0.1:0"].map(str::to_string);
        let options = options.iter().map(|word| word.to_string());
        words.into_iter().chain(options).collect::<Vec<String>>()
    };
    let start = |options: &[&'static str]| {
        let words = words(options);
        Process::start(&words.iter().map(String::as_str).collect::<Vec<_>>(), "serves at")
    };
    let refused = || {
        let words = words(&[]);
        refused(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    start(&[]).stop();
    let (data, meta, kept) =
        (directory.join("data2"), directory.join("meta"), place.path().join("kept"));
    fs::rename(&data, &kept).unwrap();
    let error = refused();
    assert!(error.contains("data2 is empty, but data server 2 had data"), "{error}");
    fs::rename(&kept, &data).unwrap();
    start(&[]).stop();
    fs::rename(&meta, &kept).unwrap();
    let error = refused();
    assert!(error.contains("there are no metadata in") && error.contains("restore"), "{error}");
    assert!(!meta.exists(), "something was made in place of what is missing");
    // Nor does it help to have lost the cluster's file, too.
    let cluster = directory.join("cluster");
    let id = place.path().join("id");
    fs::rename(&cluster, &id).unwrap();
    let error = refused();
    assert!(error.contains("but the metadata and the file 'cluster' are missing"), "{error}");
    let error = ropewalk(place.path(), "", &["format", "up"]).badly();
    assert!(error.contains("but the metadata and the file 'cluster' are missing"), "{error}");
    fs::rename(&id, &cluster).unwrap();
    fs::rename(&kept, &meta).unwrap();
    // The superblock alone is not the metadata.
    let store = place.path().join("store");
    fs::create_dir(&store).unwrap();
    for entry in fs::read_dir(&meta).unwrap().map(Result::unwrap) {
        if entry.file_name() != "superblock" {
            fs::rename(entry.path(), store.join(entry.file_name())).unwrap();
        }
    }
    let error = refused();
    assert!(error.contains("there is no file system in it"), "{error}");
    fs::remove_dir_all(meta.join("journal")).unwrap();
    for entry in fs::read_dir(&store).unwrap().map(Result::unwrap) {
        fs::rename(entry.path(), meta.join(entry.file_name())).unwrap();
    }
    fs::remove_dir_all(&data).unwrap();
    start(&["--replace", "2"]).stop();
    start(&[]).stop();
}

#[test]
fn metadata_that_are_gone_are_refused_and_others_are_not_taken_for_them() {
    let mut site = Site::new();
    let cluster = site.place.path().join("cluster");
    let (meta, kept) = (cluster.join("meta"), site.place.path().join("kept"));
    let listen = site.servers.address.strip_prefix("tcp://").unwrap().to_string();
    site.servers.meta.take().unwrap().stop();
    fs::rename(&meta, &kept).unwrap();
    let (place, id) = (text(&meta), site.servers.cluster.clone());
    let words = ["serve", "meta", "--directory", &place, "--cluster", &id, "--listen", &listen];
    for made in [false, true] {
        if made {
            fs::create_dir(&meta).unwrap();
        }
        let error = refused(&words);
        assert!(error.contains("there are no metadata in"), "{error}");
        assert!(error.contains("'ropewalk format'"), "{error}");
    }
    // A new file system under the same identity and secret: the objects are not its own.
    fs::write(site.place.path().join("c.toml"), format!("cluster = '{id}'\n")).unwrap();
    let other = site.place.path().join("other");
    site.run(&["format", "--config", "c.toml", "other"]).well();
    fs::copy(site.cluster_file(), other.join("cluster")).unwrap();
    let place = text(&other.join("meta"));
    let words = ["serve", "meta", "--directory", &place, "--cluster", &id, "--listen", &listen];
    let mut stranger = Process::start(&words, "serving at");
    let deadline = Instant::now() + Duration::from_secs(60);
    for server in site.servers.data.iter_mut().flatten() {
        while !server.is_over() {
            assert!(Instant::now() < deadline, "a data server serves other metadata");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let error = site.refused("0", &site.servers.data_path(0));
    assert!(
        error
            .contains("holds data of files that the metadata server at that address does not know"),
        "{error}"
    );
    stranger.stop();
    fs::remove_dir(&meta).unwrap();
    fs::rename(&kept, &meta).unwrap();
    let place = text(&meta);
    let words = ["serve", "meta", "--directory", &place, "--cluster", &id, "--listen", &listen];
    let _meta = Process::start(&words, "serving at");
    let paths = [0, 1].map(|number| site.servers.data_path(number));
    let _data = [site.serving("0", &paths[0], &[]), site.serving("1", &paths[1], &[])];
    site.is_whole();
}

#[test]
fn a_number_belongs_to_one_living_server() {
    let mut site = Site::new();
    let expected = "another process already runs as data server 0, at ";
    let other = site.place.path().join("other");
    let error = site.refused("0", &other);
    assert!(error.contains(expected) && error.contains("--server"), "{error}");
    assert!(!other.exists(), "something was left of it");
    // Not even with the same store, as a copy of the directory has it.
    run(site.place.path(), "cp", &["-r", &text(&site.servers.data_path(0)), "other"]);
    let error = site.refused("0", &other);
    assert!(error.contains(expected), "{error}");
    let words = site.serve("0", &site.place.path().join("third"), &["--replace"]);
    let error = refused(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(error.contains(expected), "{error}");
    site.is_whole();
    // Its own next life is not kept waiting for the former one's silence.
    site.servers.data[0].take().unwrap().kill();
    site.servers.start_data(0);
    site.is_whole();
    assert!(site.servers.data.iter_mut().flatten().all(|server| !server.is_over()));
}

#[test]
fn a_server_of_another_cluster_says_so_and_ends() {
    let site = Site::new();
    let own = site.place.path().join("stranger");
    let other = site.run(&["format", "other"]).well().trim().to_string();
    let file = text(&site.place.path().join("other/cluster"));
    let words = site.serve("0", &own, &[]);
    let words: Vec<String> = words
        .into_iter()
        .map(|word| if word == site.cluster_file() { file.clone() } else { word })
        .collect();
    let error = refused(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let found =
        format!("the metadata server at that address serves cluster {}", site.servers.cluster);
    assert!(error.contains("belongs to cluster") && error.contains(&found), "{error}");
    assert!(error.contains(&other) && !own.exists(), "{error}");
    site.is_whole();
}

#[test]
fn inodes_are_counted_right_whatever_end_the_server_had() {
    let mut place = PathBuf::new();
    let mut site = Site::new();
    place.push(site.place.path());
    for name in ["a", "b", "c"] {
        site.run(&["cp", "file", &format!(":/{name}")]).well();
    }
    site.run(&["rm", ":/a"]).well();
    let count = |site: &Site| site.servers.status("0")["metadata"]["inodes"].clone();
    assert_eq!(count(&site), 4, "the root and three files");
    let meta = text(&place.join("cluster/meta"));
    let listen = site.servers.address.strip_prefix("tcp://").unwrap().to_string();
    let id = site.servers.cluster.clone();
    let words = ["serve", "meta", "--directory", &meta, "--cluster", &id, "--listen", &listen];
    for kill in [true, false] {
        let mut server = site.servers.meta.take().unwrap();
        if kill {
            server.kill()
        } else {
            server.stop()
        }
        site.servers.meta = Some(Process::start(&words, "serving at"));
        assert_eq!(count(&site), 4, "after a restart (kill: {kill})");
    }
}

#[test]
fn damaged_files_of_a_cluster_are_named_with_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("up");
    let words = ["up", &text(&directory), "--listen", "127.0.0.1:0"].map(str::to_string);
    let words = |more: &str| {
        let more = more.split_whitespace().map(str::to_string);
        words.iter().cloned().chain(more).collect::<Vec<String>>()
    };
    let start = |more: &str| {
        let words = words(more);
        Process::start(&words.iter().map(String::as_str).collect::<Vec<_>>(), "serves at")
    };
    let refused = || refused(&words("").iter().map(String::as_str).collect::<Vec<_>>());
    let mut up = start("--data-servers 1");
    let address = up.line.split("serves at ").nth(1).unwrap().trim().to_string();
    fs::write(place.path().join("file"), vec![7; 10_000]).unwrap();
    ropewalk(place.path(), &address, &["cp", "file", ":/"]).well();
    up.kill();
    for name in ["cluster", "data-servers"] {
        let (path, good) = (directory.join(name), fs::read(directory.join(name)).unwrap());
        fs::write(&path, b"\xff\xfe").unwrap();
        let error = refused();
        assert!(error.contains(&format!("{} is damaged", path.display())), "{error}");
        assert!(!error.contains("UTF-8"), "{error}");
        fs::write(&path, &good).unwrap();
    }
    // Of a superblock there are two.
    fs::write(directory.join("meta/superblock"), vec![9; 512]).unwrap();
    start("").kill();
    // Data that was in the journal alone is missed, and given up by order only.
    let mut up = start("");
    let address = up.line.split("serves at ").nth(1).unwrap().trim().to_string();
    ropewalk(place.path(), &address, &["cp", "file", ":/again"]).well();
    up.kill();
    for entry in fs::read_dir(directory.join("meta/journal")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|suffix| suffix == "journal") {
            let mut bytes = fs::read(&path).unwrap();
            bytes[512..].fill(0);
            fs::write(&path, bytes).unwrap();
        }
    }
    let error = refused();
    assert!(error.contains("lost records") && error.contains("--accept-loss"), "{error}");
    assert_eq!(error.matches("the journal in").count(), 1, "said twice: {error}");
    start("--accept-loss").stop();
    start("").stop();
}

#[test]
fn a_data_server_joins_when_a_person_says_so() {
    let mut site = Site::new();
    let own = site.place.path().join("third");
    let error = site.refused("2", &own);
    assert!(error.contains("'ropewalk server add 2'") && error.contains("--admit"), "{error}");
    assert!(!own.exists(), "something was left of it");
    let told = site.run(&["status", "--interval", "0"]).well();
    assert!(told.contains("data server 2 asked to join"), "{told}");
    assert!(told.contains("'ropewalk server add 2'"), "{told}");
    assert!(told.lines().any(|l| l.contains("data 2") && l.contains("asks to join")), "{told}");
    let state = site.servers.status("0");
    let asking = state["asking"].as_array().unwrap();
    assert_eq!((asking.len(), &asking[0]["server"]), (1, &2.into()), "{state}");
    assert_eq!(asking[0]["remedy"], "ropewalk server add 2");
    assert!(asking[0]["address"].as_str().unwrap().contains("tcp://127.0.0.1:"), "{state}");
    assert_eq!(state["servers"].as_array().unwrap().len(), 2, "it is none of the cluster's");
    // A file of another cluster, one that others can read, and none.
    site.run(&["format", "other"]).well();
    let file = site.place.path().join("other/cluster");
    let own_id = fs::read_to_string(site.cluster_file()).unwrap();
    let secret = fs::read_to_string(&file).unwrap();
    let mixed = [own_id.lines().next().unwrap(), secret.lines().nth(1).unwrap()].join("\n");
    fs::write(&file, mixed).unwrap();
    let with = |file: &Path| {
        let words = site.serve("2", &own, &["--admit"]);
        let words = words.into_iter().map(|word| match word == site.cluster_file() {
            true => text(file),
            false => word,
        });
        refused(&words.collect::<Vec<String>>().iter().map(String::as_str).collect::<Vec<_>>())
    };
    let error = with(&file);
    assert!(error.contains("do not have the same secret"), "{error}");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let error = with(&file);
    assert!(error.contains("other users of this host can access it"), "{error}");
    let error = with(&site.place.path().join("none"));
    assert!(error.contains("none (--cluster-file) does not exist"), "{error}");
    assert!(!own.exists(), "something was left of it");
    assert_eq!(site.servers.status("0")["servers"].as_array().unwrap().len(), 2);
    // By a word beforehand, which outlives the metadata server; by a flag; once and for good.
    let said = site.run(&["server", "add", "2"]).well();
    assert!(said.contains("data server 2 may join"), "{said}");
    assert_eq!(site.servers.status("0")["asking"], serde_json::json!([]));
    site.servers.meta.take().unwrap().kill();
    site.servers.start_meta();
    site.serving("2", &own, &[]).stop();
    site.serving("2", &own, &[]).stop();
    let fourth = site.place.path().join("fourth");
    site.serving("3", &fourth, &["--admit"]).stop();
    let said = site.run(&["server", "add", "3"]).well();
    assert!(said.contains("belongs to the cluster already"), "{said}");
    assert_eq!(site.servers.status("0")["servers"].as_array().unwrap().len(), 4);
}
