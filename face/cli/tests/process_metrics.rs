//! The figures of servers as Prometheus gets them, by a plain socket: they are right after work, and there are few series.

mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use support::Process;
use support::command::ropewalk;
use support::scrape::{scrape, series, sum};

const FILES: u32 = 40;
const FILE_BYTES: usize = 300_000;

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn start(place: &Path, metrics: SocketAddr) -> (Process, String) {
    let directory = place.join("cluster").display().to_string();
    let listen = free().to_string();
    let metrics = metrics.to_string();
    let arguments = ["up", &directory, "--listen", &listen, "--data-servers", "3"];
    let arguments = [&arguments[..], &["--metrics", &metrics]].concat();
    (Process::start(&arguments, "serves at"), format!("tcp://{listen}"))
}

#[test]
fn a_scrape_has_what_was_done_and_few_series() {
    let (place, metrics) = (tempfile::tempdir().unwrap(), free());
    let (mut process, address) = start(place.path(), metrics);
    let page = scrape(metrics);
    for server in ["meta0", "data0", "data1", "data2"] {
        assert_eq!(sum(&page, "ropewalk_server_up", server), 1.0, "{page}");
    }
    let source = place.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..FILES {
        std::fs::write(source.join(format!("f{number}")), vec![number as u8; FILE_BYTES]).unwrap();
    }
    let source = source.display().to_string();
    ropewalk(place.path(), &address, &["cp", "-r", &source, ":/"]).well();
    std::thread::sleep(Duration::from_millis(100));
    let page = scrape(metrics);
    let creates = sum(&page, "ropewalk_calls_total", "op=\"create\"");
    assert_eq!(creates, f64::from(FILES), "{page}");
    assert_eq!(sum(&page, "ropewalk_call_seconds_count", "op=\"create\""), creates, "{page}");
    assert_eq!(sum(&page, "ropewalk_call_seconds_bucket", "op=\"create\",le=\"+Inf\""), creates);
    let written = sum(&page, "ropewalk_call_bytes_total", "op=\"write\"");
    assert_eq!(written, f64::from(FILES) * FILE_BYTES as f64, "{page}");
    // The root, the directory, and the files.
    assert_eq!(sum(&page, "ropewalk_meta_inodes", ""), f64::from(FILES) + 2.0, "{page}");
    assert!(sum(&page, "ropewalk_data_objects", "") >= f64::from(FILES), "{page}");
    let disk = sum(&page, "ropewalk_work_bytes_total", "work=\"disk_write\"");
    assert!(disk >= written, "{disk} of {written}");
    for work in ["journal_write", "journal_sync"] {
        let part = format!("work=\"{work}\"");
        assert!(sum(&page, "ropewalk_work_seconds_count", &part) > 0.0, "{page}");
    }
    // On one host they go by shared memory; elsewhere they would come as frames.
    let moved = ["ropewalk_rail_bytes_received_total", "ropewalk_rail_native_bytes_total"];
    assert!(moved.iter().map(|name| sum(&page, name, "")).sum::<f64>() >= written, "{page}");
    // Ten times as many files make no further series.
    let before = series(&page).len();
    for number in 0..20 {
        ropewalk(place.path(), &address, &["cp", "-r", &source, &format!(":/more{number}")]).well();
    }
    let (begin, page) = (Instant::now(), scrape(metrics));
    let (took, after) = (begin.elapsed(), series(&page).len());
    println!("{after} series in {took:?}");
    assert!(after < before + 200 && after < 3000, "{before} series, then {after}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    for (name, _) in series(&page) {
        assert!(!name.contains("f1") && !name.contains("more"), "{name} has a name of a file");
    }
    // The same counters by the network.
    let status = ropewalk(place.path(), &address, &["status", "--json", "--interval", "0"]);
    let status = status.objects().remove(0);
    let creates = status["metadata"]["calls"]["create"]["calls"].as_f64();
    assert_eq!(creates, Some(sum(&page, "ropewalk_calls_total", "op=\"create\"")), "{status}");
    process.stop();
}

#[test]
fn top_shows_the_work_of_servers_and_operations() {
    let (place, metrics) = (tempfile::tempdir().unwrap(), free());
    let (mut process, address) = start(place.path(), metrics);
    let file = place.path().join("file").display().to_string();
    std::fs::write(&file, vec![7; FILE_BYTES]).unwrap();
    let path = place.path().to_path_buf();
    let (worker, at) = (path.clone(), address.clone());
    let working = std::thread::spawn(move || {
        let begin = Instant::now();
        for number in 0.. {
            ropewalk(&worker, &at, &["cp", &file, &format!(":/f{number}")]).well();
            if begin.elapsed() > Duration::from_secs(4) {
                return;
            }
        }
    });
    let arguments = ["top", "--once", "--json", "--interval", "2"];
    let page = ropewalk(&path, &address, &arguments).objects().remove(0);
    let shown = ropewalk(&path, &address, &["top", "--interval", "0.5"]).well();
    working.join().unwrap();
    let servers = page["servers"].as_array().expect("a list");
    assert_eq!(servers.len(), 4, "{page}");
    assert!(servers.iter().all(|it| it["up"] == true), "{page}");
    let operations = page["operations"].as_array().expect("a list");
    let find = |role: &str, name: &str| {
        operations.iter().find(|it| it["role"] == role && it["operation"] == name)
    };
    let create = find("meta", "create").unwrap_or_else(|| panic!("{page}"));
    let number = |key: &str| create[key].as_f64().unwrap_or_default();
    assert!(number("calls_per_second") > 0.0 && number("p50_seconds") > 0.0, "{page}");
    assert!(number("p99_seconds") >= number("p50_seconds"), "{page}");
    let write = find("data", "write").unwrap_or_else(|| panic!("{page}"));
    assert!(write["bytes_per_second"].as_f64() > Some(0.0), "{page}");
    assert!(shown.contains("3 of 3 data servers up") && shown.contains("data 2"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains('\u{1b}'), "no terminal, no orders to one");
    process.stop();
}

#[test]
fn metrics_are_served_to_this_host_alone_unless_it_is_insecure() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cluster").display().to_string();
    let arguments = ["up", &directory, "--listen", "127.0.0.1:0", "--metrics", "0.0.0.0:0"];
    let error = ropewalk(place.path(), "", &arguments).badly();
    assert!(error.contains("--insecure") && error.contains("127.0.0.1"), "{error}");
    assert!(!place.path().join("cluster/meta").exists(), "nothing was started");
    // A port that somebody has, by flag and by file.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    let arguments = ["up", &directory, "--listen", "127.0.0.1:0", "--metrics", &taken.1];
    let error = ropewalk(place.path(), "", &arguments).badly();
    assert!(error.contains("cannot serve metrics"), "{error}");
    let text = format!("[meta]\nlisten = '127.0.0.1:0'\n[metrics]\naddress = '{}'\n", taken.1);
    let file = place.path().join("site.toml").display().to_string();
    std::fs::write(&file, text).unwrap();
    let arguments = ["serve", "all", "--config", &file, "--directory", &directory];
    Process::start(&arguments, "serves at").stop();
}
