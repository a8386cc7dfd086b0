//! GlusterFS with three copies of each file: one `glusterd`, which starts a process for each of three bricks.
//!
//! Invariants
//! * `glusterd` and all that it starts live in namespaces of processes, mounts and the network of their own, with private
//!   directories in place of `/var/lib/glusterd`, `/var/log/glusterfs` and `/run`. So nothing is written outside the
//!   directory of the benchmark, and an installed `glusterd` is not touched.
//! * The first process of these namespaces ends with this process, and all others end with the first one.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::servers::{Mount, Serving};
use crate::survive::deaths::SERVERS;
use crate::survive::ground::Ground;
use crate::survive::rival::{
    CLIENTS, GLUSTER, LOOK, Rival, command, output, params, program, told_version,
};
use crate::survive::site::{LIMIT, pause, scratch, show_end, text};
use crate::{DIES, ORPHAN, Options};

const PACKAGES: &str = "glusterfs-server glusterfs-client";
/// The host of all bricks: copies go from the client to each of them.
const HOST: usize = 1;
const VOLUME: &str = "v";

/// Makes the private directories, and starts `glusterd`. A shell waits for all processes that lose their parents, as the
/// first process has to: `glusterd` takes a dead brick for a living one until somebody has waited for it.
const CELL: &str = "mount -t tmpfs none /run &&
mount --bind \"$1/lib\" /var/lib/glusterd &&
mount --bind \"$1/log\" /var/log/glusterfs || exit 1
\"$2\" --no-daemon --volfile=\"$1/glusterd.vol\" --log-level=WARNING &
wait
";

/// See the module.
pub struct Gluster<'a> {
    ground: &'a Ground,
    options: &'a Options,
    version: String,
    client: PathBuf,
    gluster: PathBuf,
    address: String,
    cell: Option<Serving>,
    place: TempDir,
}

impl<'a> Gluster<'a> {
    /// Starts it; all bricks serve when this returns.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(ground: &'a Ground, options: &'a Options) -> anyhow::Result<Gluster<'a>> {
        let [daemon, client, gluster] =
            ["glusterd", "glusterfs", "gluster"].map(|name| program(name, PACKAGES));
        let (daemon, client) = (daemon?, client?);
        let version = told_version(&client, "--version")?;
        let place = scratch(&options.disk)?;
        let address = ground.place(HOST)?.ip().to_string();
        let cell = None;
        let gluster = gluster?;
        let mut it = Gluster { ground, options, version, client, gluster, address, cell, place };
        it.begin(&daemon).inspect_err(|_| it.show_logs())?;
        Ok(it)
    }

    fn begin(&mut self, daemon: &Path) -> anyhow::Result<()> {
        let unshare = program("unshare", "util-linux")?;
        let place = self.place.path();
        for folder in ["lib", "log", "bricks"] {
            fs::create_dir(place.join(folder))?;
        }
        fs::write(place.join("glusterd.vol"), volume_file(&self.socket()))?;
        let mut command = command(self.ground, HOST, &unshare);
        command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", CELL, "sh"]).arg(place).arg(daemon);
        // Bricks that stand still would not obey anything less.
        command.env(ORPHAN, DIES).stderr(File::create(place.join("cell.log"))?);
        self.cell = Some(Serving::spawn_as_told(command, "glusterd")?);
        let begin = Instant::now();
        while UnixStream::connect(self.socket()).is_err() {
            ensure!(begin.elapsed() < LIMIT, "glusterd does not serve");
            pause(self.options, LOOK)?;
        }
        let bricks = (0..SERVERS)
            .map(|brick| Ok(format!("{}:{}", self.address, text(&self.brick_folder(brick))?)));
        let bricks = bricks.collect::<anyhow::Result<Vec<_>>>()?;
        let copies = GLUSTER.1.to_string();
        let words = ["volume", "create", VOLUME, "replica", &copies];
        let bricks: Vec<&str> = bricks.iter().map(String::as_str).collect();
        // By force: a brick may not be on the root file system else.
        self.order(&[&words[..], &bricks, &["force"]].concat())?;
        self.order(&["volume", "start", VOLUME])
    }

    fn socket(&self) -> PathBuf {
        self.place.path().join("socket")
    }

    fn brick_folder(&self, brick: usize) -> PathBuf {
        self.place.path().join(format!("bricks/{brick}"))
    }

    /// Orders something by its own command, which writes below `/var/lib/glusterd`, too: so it runs beside the others.
    fn order(&self, words: &[&str]) -> anyhow::Result<()> {
        let place = self.place.path().display();
        let beside = *self.processes().first().context("glusterd does not run")?;
        let mut command = Command::new(program("nsenter", "util-linux")?);
        command.args(["--mount", "--pid", "--target", &beside.to_string(), "--"]);
        command.arg(&self.gluster).args(["--mode=script", "--timeout=60"]);
        command.arg(format!("--glusterd-sock={}", self.socket().display()));
        command.arg(format!("--log-file={place}/log/cli.log")).args(words);
        output(&mut command, &format!("gluster {}", words.join(" "))).map(drop)
    }

    /// The process of a brick.
    fn brick(&self, brick: usize) -> anyhow::Result<Pid> {
        let folder = text(&self.brick_folder(brick))?;
        let is_it = |process: &u32| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            has_argument(&line, "--brick-name", &folder)
        };
        let found =
            self.processes().into_iter().find(is_it).and_then(|it| Pid::from_raw(it as i32));
        found.with_context(|| format!("brick {brick} does not run"))
    }
}

impl Rival for Gluster<'_> {
    fn system(&self) -> &'static str {
        GLUSTER.0
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn copies(&self) -> usize {
        GLUSTER.1
    }

    fn params(&self) -> Vec<(&'static str, String)> {
        params(self.ground, self.options)
    }

    fn mount(&self, path: &Path) -> anyhow::Result<Mount> {
        fs::create_dir_all(path)?;
        let mut command = command(self.ground, CLIENTS, &self.client);
        command.args(["--no-daemon", "--log-level=WARNING", &format!("--volfile-id={VOLUME}")]);
        command.arg(format!("--volfile-server={}", self.address));
        command.arg(format!("--log-file={}/log/mount.log", self.place.path().display()));
        command.arg(path);
        Mount::by(Serving::spawn(command, "glusterfs")?, path)
    }

    fn kill(&mut self, server: usize) -> anyhow::Result<()> {
        Ok(kill_process(self.brick(server)?, Signal::KILL)?)
    }

    fn restart(&mut self, _server: usize) -> anyhow::Result<()> {
        self.order(&["volume", "start", VOLUME, "force"])
    }

    fn suspend(&mut self, server: usize) -> anyhow::Result<()> {
        Ok(kill_process(self.brick(server)?, Signal::STOP)?)
    }

    fn resume(&mut self, server: usize) -> anyhow::Result<()> {
        Ok(kill_process(self.brick(server)?, Signal::CONT)?)
    }

    fn shortage(&self, _folder: &Path) -> anyhow::Result<Option<String>> {
        for brick in 0..SERVERS {
            if let Err(error) = self.brick(brick) {
                return Ok(Some(error.to_string()));
            }
            let index = self.brick_folder(brick).join(".glusterfs/indices/xattrop");
            let names = fs::read_dir(&index)?.map(|entry| Ok(entry?.file_name()));
            let names = names.collect::<std::io::Result<Vec<_>>>()?;
            let names: Vec<_> = names.iter().map(|name| name.to_string_lossy()).collect();
            let count = to_heal(names.iter().map(AsRef::as_ref));
            if count > 0 {
                return Ok(Some(format!("brick {brick} knows {count} files that lack a copy")));
            }
        }
        Ok(None)
    }

    fn processes(&self) -> Vec<u32> {
        let Some(cell) = &self.cell else { return Vec::new() };
        let space = |process: u32, kind| fs::read_link(format!("/proc/{process}/ns/{kind}")).ok();
        let Some(own) = space(cell.process(), "pid_for_children") else { return Vec::new() };
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        numbers.filter(|number| space(*number, "pid").as_ref() == Some(&own)).collect()
    }

    fn show_logs(&self) {
        if !self.options.is_interrupted() {
            let log = |name: &str| self.place.path().join(name);
            show_end("glusterd", &log("cell.log"));
            show_end("glusterd", &log("log/glusterd.log"));
            show_end("glusterfs", &log("log/mount.log"));
        }
    }
}

impl Drop for Gluster<'_> {
    fn drop(&mut self) {
        // The kernel ends all others with the first process, and waits for them.
        if let Some(mut cell) = self.cell.take() {
            let first = self.processes();
            cell.kill();
            let begin = Instant::now();
            let lives = |process: &u32| Path::new(&format!("/proc/{process}")).exists();
            while first.iter().any(lives) && begin.elapsed() < LIMIT {
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// The configuration of `glusterd`: that of the package, and a socket for orders that is reached from outside.
fn volume_file(socket: &Path) -> String {
    format!(
        "volume management\n    type mgmt/glusterd\n    \
         option working-directory /var/lib/glusterd\n    option transport-type socket\n    \
         option glusterd-sockfile {}\n    option transport.socket.listen-port 24007\n    \
         option transport.socket.keepalive-time 10\n    \
         option transport.socket.keepalive-interval 2\n    \
         option transport.socket.read-fail-log off\n    option ping-timeout 0\n    \
         option event-threads 1\n    option max-port 60999\nend-volume\n",
        socket.display()
    )
}

/// Whether a command line, as `/proc` tells it, has this argument with this value behind it.
fn has_argument(line: &[u8], name: &str, value: &str) -> bool {
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    words.windows(2).any(|pair| pair[0] == name.as_bytes() && pair[1] == value.as_bytes())
}

/// The number of files that lack a copy, by the names in a brick's index of them. One name is that of the index itself.
fn to_heal<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.filter(|name| !name.starts_with("xattrop-")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brick_is_known_by_its_directory() {
        let line = b"/usr/sbin/glusterfsd\0-s\0h\0--brick-name\0/x/bricks/1\0-l\0/x/bricks/2\0";
        assert!(has_argument(line, "--brick-name", "/x/bricks/1"));
        assert!(!has_argument(line, "--brick-name", "/x/bricks/2"));
        assert!(!has_argument(line, "--brick-name", "/x/bricks") && !has_argument(b"", "a", "b"));
    }

    #[test]
    fn the_index_of_a_brick_lists_files_to_heal() {
        let base = "xattrop-4c5253cf-c39b-4999-b7f2-79958022e1b2";
        assert_eq!(to_heal([base].into_iter()), 0);
        let file = "0a61b65a-eeec-49cc-bd40-d4927550613b";
        assert_eq!(to_heal([base, file, "20b27734-4bea-4d84-afe3-30b06898a72f"].into_iter()), 2);
    }

    #[test]
    fn orders_reach_a_private_daemon() {
        let text = volume_file(Path::new("/x/socket"));
        assert!(text.contains("\n    option glusterd-sockfile /x/socket\n"), "{text}");
        assert!(text.starts_with("volume management\n") && text.ends_with("\nend-volume\n"));
    }
}
