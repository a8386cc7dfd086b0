//! A mount that a config file describes.

mod support;

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;

use support::command::ropewalk;
use support::{Process, mounts_usable, unmount};

#[test]
fn a_config_file_says_where_to_mount_and_that_nothing_may_change() {
    if !mounts_usable() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mount, config) = (place.path().join("mount"), place.path().join("site.toml"));
    let root = place.path().display();
    let text = format!(
        "directory = '{root}/cluster'\n[meta]\nlisten = '{listen}'\n[[data]]\nserver = 0\n\
         [mount]\ndirectory = '{root}/mount'\nread_only = true\npatience_seconds = 30\n"
    );
    fs::write(&config, text).unwrap();
    fs::create_dir(&mount).unwrap();
    let config = config.to_str().unwrap();
    let address = format!("tcp://{listen}");
    let run = |arguments: &[&str]| ropewalk(place.path(), &address, arguments);
    run(&["format", "--config", config]).well();
    let _servers = Process::start(&["serve", "all", "--config", config], "serves at");
    fs::write(place.path().join("file"), b"content").unwrap();
    run(&["cp", "file", ":/"]).well();
    {
        let mut mounted = Process::start(&["mount", "--config", config], "mounted on");
        assert_eq!(fs::read(mount.join("file")).unwrap(), b"content");
        let refused = fs::write(mount.join("new"), b"").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        mounted.stop();
    }
    // A directory named beside the file's is the one that counts.
    let other = place.path().join("other");
    fs::create_dir(&other).unwrap();
    let arguments = ["mount", other.to_str().unwrap(), "--config", config];
    let _mounted = Process::start(&arguments, "mounted on");
    assert_eq!(fs::read(other.join("file")).unwrap(), b"content");
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0);
    unmount(&other);
}
