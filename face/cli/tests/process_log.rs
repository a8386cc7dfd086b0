//! The log of a server: times and levels in files, levels for the journal, and what systemd is told.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use support::{Process, program};

/// A cluster whose store others can read: the metadata server warns of that when it starts.
fn open_store(place: &Path) -> std::path::PathBuf {
    let directory = place.join("cluster");
    let mut up = command(&["up", "--data-servers", "1", "--listen", "127.0.0.1:0"], &directory);
    up.stderr(Stdio::null());
    Process::run(up, "serves at").expect("it starts").stop();
    fs::set_permissions(directory.join("meta"), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}

fn command(words: &[&str], directory: &Path) -> Command {
    let mut command = program();
    command.args(words).arg(directory);
    command
}

/// Runs the cluster once with its log in a file; what is in there.
fn log_of(place: &Path, more: impl FnOnce(&mut Command, &File)) -> String {
    let directory = open_store(place);
    let path = place.join("log");
    let file = File::create(&path).unwrap();
    let mut up = command(&["up", "--listen", "127.0.0.1:0"], &directory);
    more(&mut up, &file);
    up.stderr(file);
    Process::run(up, "serves at").expect("it starts").stop();
    fs::read_to_string(path).unwrap()
}

/// The line of the warning.
fn warning(log: &str) -> &str {
    log.lines().find(|line| line.contains("other users of this host can access")).expect(log)
}

fn is_time(text: &str) -> bool {
    let form = "0000-00-00T00:00:00Z";
    let fits = |(letter, form): (char, char)| match form {
        '0' => letter.is_ascii_digit(),
        form => letter == form,
    };
    text.len() == form.len() && text.chars().zip(form.chars()).all(fits)
}

#[test]
fn lines_in_a_file_have_their_time_and_their_level() {
    let place = tempfile::tempdir().unwrap();
    let log = log_of(place.path(), |_, _| ());
    for line in log.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let is_level = ["error", "warning", "note"].contains(&words[1]);
        assert!(is_time(words[0]) && is_level && words.len() == 3, "{line}");
    }
    assert!(warning(&log).contains(" warning metadata server: "), "{log}");
}

#[test]
fn lines_for_the_journal_begin_with_their_level() {
    let place = tempfile::tempdir().unwrap();
    let log = log_of(place.path(), |up, file| {
        let found = file.metadata().unwrap();
        up.env("JOURNAL_STREAM", format!("{}:{}", found.dev(), found.ino()));
    });
    assert!(warning(&log).starts_with("<4>metadata server: "), "{log}");
    // The variable is also inherited by those whose standard error is another file.
    let place = tempfile::tempdir().unwrap();
    let log = log_of(place.path(), |up, _| {
        up.env("JOURNAL_STREAM", "1:1");
    });
    assert!(is_time(&warning(&log)[..20]), "{log}");
}

#[test]
fn a_server_that_cannot_start_logs_an_error_and_a_person_reads_it_without_the_time() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let missing = command(&["serve", "meta", "--directory"], &file).output().unwrap();
    let said = String::from_utf8(missing.stderr).unwrap();
    let (time, rest) = said.split_once(' ').unwrap();
    assert!(is_time(time) && rest.starts_with("error ropewalk: "), "{said}");
    let directory = place.path().join("cluster");
    let mut up =
        command(&["up", "--background", "--listen", "203.0.113.1:1", "--insecure"], &directory);
    let output = up.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.starts_with("ropewalk: the background process"),
        "{said}"
    );
    assert!(said.contains("203.0.113.1") && !said.contains(" error "), "{said}");
}

#[test]
fn systemd_is_told_when_a_server_serves_and_when_it_stops() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let mut bytes = [0; 256];
    let mut told = || {
        let count = socket.recv(&mut bytes).expect("a message");
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    let directory = place.path().join("cluster");
    let mut up = command(&["up", "--data-servers", "1", "--listen", "127.0.0.1:0"], &directory);
    up.env("NOTIFY_SOCKET", &path);
    let mut server = Process::run(up, "serves at").expect("it starts");
    let ready = told();
    assert!(ready.starts_with("READY=1\nSTATUS=serving at "), "{ready}");
    assert!(ready.contains("tcp://127.0.0.1:"), "{ready}");
    server.stop();
    assert_eq!(told(), "STOPPING=1");
}
