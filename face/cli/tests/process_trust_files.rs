//! Protection of one user's commands against the files in another user's directory.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use support::command::ropewalk;
use support::site::is_root;
use support::{PROGRAM, Process};

/// Nobody, as most systems number him.
const NOBODY: u32 = 65534;

fn up(directory: &Path) -> Vec<&str> {
    vec!["up", directory.to_str().unwrap(), "--listen", "127.0.0.1:0", "--data-servers", "1"]
}

/// The error of a command that has to fail soon.
#[track_caller]
fn refused(place: &Path, words: &[&str]) -> String {
    let mut command = Command::new("timeout");
    command.arg("20").arg(PROGRAM).args(words).current_dir(place);
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{words:?}: {error}");
    error
}

fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).unwrap();
}

#[test]
fn links_in_place_of_the_files_of_a_cluster_are_not_followed() {
    let place = tempfile::tempdir().unwrap();
    let (target, directory) = (place.path().join("target"), place.path().join("up"));
    fs::create_dir(&directory).unwrap();
    for name in ["running", "log", "cluster", "data-servers"] {
        fs::write(&target, "precious").unwrap();
        let path = directory.join(name);
        // A cluster that is whole but for the file.
        let words = [&up(&directory)[..], &["--background"]].concat();
        ropewalk(place.path(), "", &words).well();
        ropewalk(place.path(), "", &["down", "up"]).well();
        let _ = fs::remove_file(&path);
        symlink(&target, &path).unwrap();
        let error = refused(place.path(), &words);
        assert!(error.contains(path.to_str().unwrap()), "{name}: {error}");
        assert!(error.contains("symbolic link"), "{name}: {error}");
        assert_eq!(fs::read(&target).unwrap(), b"precious", "{name}");
        if name == "running" {
            let error = refused(place.path(), &["down", "up"]);
            assert!(error.contains("symbolic link"), "{error}");
        }
        fs::remove_dir_all(&directory).unwrap();
        fs::create_dir(&directory).unwrap();
    }
    // Files that are written under another name first.
    for name in ["cluster.new", "data-servers.new"] {
        symlink(&target, directory.join(name)).unwrap();
    }
    let error = refused(place.path(), &up(&directory));
    assert!(error.contains("data-servers.new"), "{error}");
    fs::remove_file(directory.join("data-servers.new")).unwrap();
    Process::start(&up(&directory), "serves at").stop();
    assert_eq!(fs::read(&target).unwrap(), b"precious");
}

#[test]
fn what_belongs_to_another_user_is_not_served() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("up");
    Process::start(&up(&directory), "serves at").stop();
    let (meta, data) = (directory.join("meta"), directory.join("data0"));
    for path in [&directory, &meta, &data, &directory.join("cluster")] {
        give(path, NOBODY);
        let error = refused(place.path(), &up(&directory));
        let said = format!("{} belongs to user {NOBODY}", path.display());
        let also = format!("{}: it belongs to user {NOBODY}", path.display());
        assert!(error.contains(&said) || error.contains(&also), "{error}");
        assert!(error.contains("chown"), "{error}");
        give(path, 0);
    }
    // The other ways to a store, and to the secret.
    let (cluster, copy) = (directory.join("cluster"), place.path().join("copy"));
    let serve = |role: &str, file: &Path| {
        let store = directory.join(if role == "meta" { "meta" } else { "data0" });
        let mut words = vec!["serve", role, "--listen", "127.0.0.1:0"];
        words.extend(["--directory", store.to_str().unwrap()]);
        words.extend(["--cluster-file", file.to_str().unwrap()]);
        if role == "data" {
            words.extend(["--server", "0"]);
        }
        refused(place.path(), &words)
    };
    fs::copy(&cluster, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    give(&copy, NOBODY);
    for role in ["meta", "data"] {
        let error = serve(role, &copy);
        assert!(error.contains("copy belongs to user"), "{role}: {error}");
    }
    for (role, store) in [("meta", &meta), ("data", &data)] {
        give(store, NOBODY);
        let error = serve(role, &cluster);
        assert!(error.contains("it belongs to user") && error.contains("chown"), "{role}: {error}");
        give(store, 0);
    }
    let formatted = place.path().join("formatted");
    fs::create_dir(&formatted).unwrap();
    give(&formatted, NOBODY);
    let error = refused(place.path(), &["format", "formatted"]);
    assert!(error.contains("belongs to user"), "{error}");
    // The owner of the directory may serve it, even if root made its contents.
    give(&directory, 0);
    Process::start(&up(&directory), "serves at").stop();
}

#[test]
fn down_ends_nobody_but_whoever_serves_the_directory() {
    let place = tempfile::tempdir().unwrap();
    let mut bystander = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let running = place.path().join("up/running");
    fs::create_dir(place.path().join("up")).unwrap();
    fs::write(&running, format!("{}\n", bystander.id())).unwrap();
    let file = fs::File::options().read(true).write(true).open(&running).unwrap();
    file.try_lock().unwrap();
    let down = || refused(place.path(), &["down", "up"]);
    let mut said = vec![down()];
    if is_root() {
        // Of one that has the lock, but whose file it is not.
        fs::write(&running, format!("{}\n", std::process::id())).unwrap();
        for path in [place.path().join("up"), running.clone()] {
            give(&path, NOBODY);
        }
        said.push(down());
    }
    for (error, why) in said.iter().zip(["does not hold the lock", "the file belongs to user"]) {
        assert!(error.contains("was not ended") && error.contains(why), "{error}");
    }
    assert!(bystander.try_wait().unwrap().is_none(), "down ended a process that serves nothing");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[test]
fn root_ends_what_a_plain_user_serves() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let plain = support::command::Plain::new(place.path());
    let directory = place.path().join("up");
    fs::create_dir(&directory).unwrap();
    give(&directory, NOBODY);
    let mut serving = Process::run(plain.command(&up(&directory)), "serves at").unwrap();
    let words = ["down", directory.to_str().unwrap()];
    ropewalk(place.path(), "", &words).well();
    assert!(serving.is_over() || !directory.join("running").exists());
    // A user that runs the command as the owner may do so.
    Process::run(plain.command(&up(&directory)), "serves at").unwrap().stop();
    refused(place.path(), &up(&directory));
}
