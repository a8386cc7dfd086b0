//! MooseFS with two copies of each file: a master, and three chunk servers, each a process of its own.
//!
//! Invariants
//! * Each process has its configuration, its data and its log in the directory of the benchmark.
//! * All of it ends with its owner, also servers that stand still.

use std::fs::{self, OpenOptions};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use tempfile::TempDir;

use crate::servers::{Mount, Serving};
use crate::survive::deaths::SERVERS;
use crate::survive::ground::Ground;
use crate::survive::rival::{
    CLIENTS, LOOK, MOOSE, Rival, command, output, params, program, told_version,
};
use crate::survive::site::{LIMIT, pause, scratch, show_end};
use crate::{DIES, ORPHAN, Options};

const PACKAGES: &str = "moosefs-master moosefs-chunkserver moosefs-client";
const MASTER: usize = 0;

/// See the module.
pub struct Moose<'a> {
    ground: &'a Ground,
    options: &'a Options,
    version: String,
    /// The programs of the master, of chunk servers and of mounts.
    programs: [PathBuf; 3],
    /// Of the master, then of the chunk servers.
    addresses: Vec<IpAddr>,
    master: Option<Serving>,
    chunks: Vec<Option<Serving>>,
    place: TempDir,
}

impl<'a> Moose<'a> {
    /// Starts it; all chunk servers take part when this returns.
    ///
    /// # Errors
    /// It is not installed, or does not start.
    pub fn start(ground: &'a Ground, options: &'a Options) -> anyhow::Result<Moose<'a>> {
        let programs = [
            program("mfsmaster", PACKAGES)?,
            program("mfschunkserver", PACKAGES)?,
            program("mfsmount", PACKAGES)?,
        ];
        let version = told_version(&programs[0], "-v")?;
        let addresses = (0..=SERVERS).map(|host| Ok(ground.place(host)?.ip()));
        let addresses = addresses.collect::<anyhow::Result<_>>()?;
        let (place, chunks) = (scratch(&options.disk)?, (0..SERVERS).map(|_| None).collect());
        let master = None;
        let mut it = Moose { ground, options, version, programs, addresses, master, chunks, place };
        it.begin().inspect_err(|_| it.show_logs())?;
        Ok(it)
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        let place = self.place.path();
        fs::create_dir(place.join("master"))?;
        // The state of a file system without files.
        fs::write(place.join("master/metadata.mfs"), "MFSM NEW")?;
        fs::write(place.join("exports.cfg"), "* / rw,alldirs,admin,maproot=0:0\n")?;
        fs::write(place.join("topology.cfg"), "")?;
        fs::write(place.join("master.cfg"), master_file(place))?;
        for server in 0..SERVERS {
            for folder in ["data", "disk"] {
                fs::create_dir_all(place.join(format!("chunk{server}/{folder}")))?;
            }
            let disk = place.join(format!("chunk{server}/disk"));
            fs::write(place.join(format!("chunk{server}.disks")), format!("{}\n", disk.display()))?;
            let file = chunk_file(place, server, self.addresses[MASTER]);
            fs::write(place.join(format!("chunk{server}.cfg")), file)?;
        }
        self.master = Some(self.serve(MASTER, 0, "master")?);
        self.await_log("initialized properly")?;
        for server in 0..SERVERS {
            self.restart(server)?;
        }
        let begin = Instant::now();
        while let Some(lack) = self.absent()? {
            ensure!(begin.elapsed() < LIMIT, "{lack}");
            pause(self.options, LOOK)?;
        }
        Ok(())
    }

    fn serve(&self, host: usize, number: usize, name: &str) -> anyhow::Result<Serving> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(name))?;
        let mut command = command(self.ground, host, &self.programs[number]);
        command.arg("-f").arg("-c").arg(self.place.path().join(format!("{name}.cfg")));
        // One that stands still would not obey anything less.
        command.arg("start").env(ORPHAN, DIES).stderr(log);
        Serving::spawn_as_told(command, name)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.place.path().join(format!("{name}.log"))
    }

    fn master_log(&self) -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log("master"))?).into_owned())
    }

    fn await_log(&self, words: &str) -> anyhow::Result<()> {
        let begin = Instant::now();
        while !self.master_log()?.contains(words) {
            ensure!(begin.elapsed() < LIMIT, "mfsmaster does not serve");
            pause(self.options, LOOK)?;
        }
        Ok(())
    }

    /// A chunk server that the master lacks, in words.
    fn absent(&self) -> anyhow::Result<Option<String>> {
        let log = self.master_log()?;
        let mut all = self.addresses[1..].iter().enumerate();
        let found = all.find(|(_, address)| !is_connected(&log, **address));
        Ok(found.map(|(server, _)| format!("chunk server {server} is not connected")))
    }

    /// Runs one of its tools on paths of a mount. Tools speak to the mount's process over its network.
    fn tool(&self, name: &str, words: &[&str], paths: &[PathBuf]) -> anyhow::Result<String> {
        let mut command = command(self.ground, CLIENTS, &program(name, PACKAGES)?);
        output(command.env(ORPHAN, "ends").args(words).args(paths), name)
    }

    fn chunk(&mut self, server: usize) -> anyhow::Result<&mut Serving> {
        self.chunks[server].as_mut().with_context(|| format!("chunk server {server} does not run"))
    }
}

impl Rival for Moose<'_> {
    fn system(&self) -> &'static str {
        MOOSE.0
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn copies(&self) -> usize {
        MOOSE.1
    }

    fn params(&self) -> Vec<(&'static str, String)> {
        params(self.ground, self.options)
    }

    fn mount(&self, path: &Path) -> anyhow::Result<Mount> {
        fs::create_dir_all(path)?;
        let mut command = command(self.ground, CLIENTS, &self.programs[2]);
        let log = OpenOptions::new().create(true).append(true).open(self.log("mount"))?;
        command.args(["-f", "-H", &self.addresses[MASTER].to_string(), "-o", "mfsnice=0"]);
        command.arg(path).stderr(log);
        let mount = Mount::by(Serving::spawn(command, "mfsmount")?, path)?;
        let root = [path.to_path_buf()];
        self.tool("mfssetgoal", &[&MOOSE.1.to_string()], &root)?;
        // Removed files leave the disk at once.
        self.tool("mfssettrashtime", &["0"], &root)?;
        Ok(mount)
    }

    fn kill(&mut self, server: usize) -> anyhow::Result<()> {
        self.chunk(server)?.kill();
        self.chunks[server] = None;
        Ok(())
    }

    fn restart(&mut self, server: usize) -> anyhow::Result<()> {
        self.chunks[server] = Some(self.serve(1 + server, 1, &format!("chunk{server}"))?);
        Ok(())
    }

    fn suspend(&mut self, server: usize) -> anyhow::Result<()> {
        self.chunk(server)?.suspend()
    }

    fn resume(&mut self, server: usize) -> anyhow::Result<()> {
        self.chunk(server)?.resume()
    }

    fn shortage(&self, folder: &Path) -> anyhow::Result<Option<String>> {
        if let Some(lack) = self.absent()? {
            return Ok(Some(lack));
        }
        let mut files = Vec::new();
        for client in fs::read_dir(folder)? {
            for file in fs::read_dir(client?.path())? {
                files.push(file?.path());
            }
        }
        let said = self.tool("mfscheckfile", &[], &files)?;
        let fewest = fewest_copies(&said).context("mfscheckfile tells no copies")?;
        let lacks = fewest < MOOSE.1 as u64;
        Ok(lacks.then(|| format!("a chunk has {fewest} of {} copies", MOOSE.1)))
    }

    fn processes(&self) -> Vec<u32> {
        self.chunks.iter().flatten().chain(&self.master).map(Serving::process).collect()
    }

    fn show_logs(&self) {
        if !self.options.is_interrupted() {
            ["master", "chunk0", "chunk1", "chunk2", "mount"]
                .iter()
                .for_each(|name| show_end(name, &self.log(name)));
        }
    }
}

impl Drop for Moose<'_> {
    fn drop(&mut self) {
        // Not in good order: nobody needs the data any more.
        self.chunks.iter_mut().flatten().chain(&mut self.master).for_each(Serving::kill);
    }
}

/// The settings that all programs have in common: they run as this user, with the priority of everybody.
fn common(data: &Path) -> String {
    let (user, group) = ("WORKING_USER = root", "WORKING_GROUP = root");
    format!("{user}\n{group}\nNICE_LEVEL = 0\nDATA_PATH = {}\n", data.display())
}

/// The configuration of the master. It begins at once to make copies that are missing, and looks for them as often as it
/// may; all else is as the package has it.
fn master_file(place: &Path) -> String {
    let (data, place) = (common(&place.join("master")), place.display());
    format!(
        "{data}EXPORTS_FILENAME = {place}/exports.cfg\nTOPOLOGY_FILENAME = {place}/topology.cfg\n\
         REPLICATIONS_DELAY_INIT = 0\nCHUNKS_LOOP_MIN_TIME = 60\n"
    )
}

/// The configuration of a chunk server.
fn chunk_file(place: &Path, server: usize, master: IpAddr) -> String {
    let (data, place) = (common(&place.join(format!("chunk{server}/data"))), place.display());
    format!("{data}HDD_CONF_FILENAME = {place}/chunk{server}.disks\nMASTER_HOST = {master}\n")
}

/// Whether the master's log says that a chunk server takes part, by the last line about it.
fn is_connected(log: &str, address: IpAddr) -> bool {
    let place = format!("ip: {address} / port:");
    let mut lines = log.lines().rev().filter(|line| line.contains(&place));
    let word = |line: &str| {
        let (come, gone) = (line.contains("register end"), line.contains("disconnected"));
        (come || gone).then_some(come)
    };
    lines.find_map(word).unwrap_or(false)
}

/// The fewest copies of a chunk of any file, as `mfscheckfile` tells them; `None` where it tells nothing.
fn fewest_copies(said: &str) -> Option<u64> {
    let copies = |line: &str| {
        let (copies, count) = line.trim().strip_prefix("chunks with ")?.split_once(':')?;
        let copies = copies.split(' ').next()?.parse::<u64>().ok()?;
        (count.trim() != "0").then_some(copies)
    };
    said.lines().filter_map(copies).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_about_a_chunk_server_counts() {
        let address = "10.9.0.2".parse().unwrap();
        let come = "mfsmaster[1]: chunkserver register end (packet version: 6) - ip: 10.9.0.2 / port: 9422\n";
        let gone =
            "mfsmaster[1]: chunkserver disconnected - ip: 10.9.0.2 / port: 9422, usedspace: 0\n";
        let other = come.replace("10.9.0.2", "10.9.0.22");
        assert!(is_connected(come, address) && !is_connected(&other, address));
        assert!(!is_connected(&format!("{come}{gone}{other}"), address));
        assert!(is_connected(&format!("{come}{gone}{come}"), address));
        let begins = come.replace("end", "begin");
        assert!(!is_connected(&begins, address), "it has not told all of its chunks");
    }

    #[test]
    fn the_chunk_with_the_fewest_copies_counts() {
        let said = "/m/a:\n chunks with 2 copies:            1\n/m/b:\n chunks with 1 copy:            3\n";
        assert_eq!(fewest_copies(said), Some(1));
        assert_eq!(
            fewest_copies(" chunks with 3 copies:   1\n chunks with 0 copies:   0\n"),
            Some(3)
        );
        assert_eq!(fewest_copies("/m/a: no such file\n"), None);
    }

    #[test]
    fn programs_keep_their_files_in_one_directory() {
        let (place, master) = (Path::new("/x"), "10.9.0.1".parse().unwrap());
        let text = master_file(place);
        assert!(
            text.contains("\nDATA_PATH = /x/master\nEXPORTS_FILENAME = /x/exports.cfg\n"),
            "{text}"
        );
        let text = chunk_file(place, 2, master);
        assert!(
            text.contains("\nHDD_CONF_FILENAME = /x/chunk2.disks\nMASTER_HOST = 10.9.0.1\n"),
            "{text}"
        );
        assert!(text.contains("\nDATA_PATH = /x/chunk2/data\n"), "{text}");
    }
}
