//! The figures of the BMI paper on MPI: `mpi/figures.c` with each MPI that this machine has; and [`across`] hosts of a
//! network, `mpi/stream.c`.
//!
//! Debian's Open MPI and MPICH are found by the names that they have in the path; Intel's, which
//! is optional, in the folder that [`INTEL`] or `I_MPI_ROOT` names, or by its `mpiicc` in the path.
//! [`windows`] finds more, of which each has a folder of its own.
//!
//! Invariants
//! * Launchers that are started here end with their owner ([`crate::ranks`]), ranks by the death of their launcher
//!   (`figures.c`).
//! * A medium is forced, not hoped for: over `tcp` no byte goes through shared memory.
//! * Ranks have cores of their own. If there are more ranks than cores, they yield instead of spinning. Cores are
//!   those of the calling process: a caller that binds itself to one binds the ranks, too.

mod across;
pub mod windows;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::ranks::Ranks;
use crate::{ORPHAN, PART, host};

/// The variable that tells where Intel MPI is.
pub const INTEL: &str = "ROPEWALK_INTEL_MPI";

const SOURCE: &str = include_str!("../mpi/figures.c");
/// The bytes of a message of the pattern; `figures.c` has the same number.
const PATTERN_MESSAGE: usize = 256 << 10;
/// No measurement takes longer, beside the seconds that it was given.
const LIMIT: Duration = Duration::from_secs(180);

/// Over what messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Tcp,
    Shm,
}

/// One figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Of one message.
    pub bytes: usize,
    /// Microseconds of a round trip (the median), or MB/s.
    pub value: f64,
    /// Of round trips; elsewhere the value again.
    pub p99: f64,
    /// Processor time of all ranks: microseconds a message, or seconds a GB.
    pub cpu: f64,
}

impl Point {
    /// The figure that a line of `figures.c` tells, if it tells one.
    fn parse(line: &str) -> Option<Point> {
        let (mode, rest) = line.split_once(' ')?;
        let numbers: Option<Vec<f64>> =
            rest.split_whitespace().map(|word| word.parse().ok()).collect();
        let (bytes, value, p99, cpu) = match (mode, &numbers?[..]) {
            ("latency", &[bytes, median, p99, cpu]) => (bytes as usize, median, p99, cpu),
            ("bandwidth", &[bytes, rate, cpu]) => (bytes as usize, rate, rate, cpu),
            ("pattern", &[rate, cpu, _repeats]) => (PATTERN_MESSAGE, rate, rate, cpu),
            _ => return None,
        };
        Some(Point { bytes, value, p99, cpu })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OpenMpi,
    Mpich,
    Intel,
}

/// An MPI, and its folder. Debian's have none: their programs are in the path.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    kind: Kind,
    root: Option<PathBuf>,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::OpenMpi => "openmpi",
            Kind::Mpich => "mpich",
            Kind::Intel => "intelmpi",
        }
    }
}

impl Place {
    fn compiler(&self) -> PathBuf {
        match (&self.root, self.kind) {
            (Some(root), _) => root.join("bin/mpicc"),
            (None, kind) => format!("mpicc.{}", kind.name()).into(),
        }
    }

    fn launcher(&self) -> PathBuf {
        match (&self.root, self.kind) {
            (Some(root), Kind::OpenMpi) => root.join("bin/mpirun"),
            (Some(root), _) => root.join("bin/mpiexec.hydra"),
            (None, kind) => format!("mpirun.{}", kind.name()).into(),
        }
    }

    fn remedy(&self) -> String {
        match (&self.root, self.kind) {
            (None, Kind::OpenMpi) => "Debian: apt install openmpi-bin libopenmpi-dev".into(),
            (None, _) => "Debian: apt install mpich libmpich-dev".into(),
            (Some(_), Kind::Intel) => {
                format!("check that {INTEL} is the directory of a complete installation")
            }
            (Some(root), _) => format!("check that {} is complete", root.display()),
        }
    }

    /// A command that knows where its parts are.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        if let (Kind::Intel, Some(root)) = (self.kind, &self.root) {
            command.env("I_MPI_ROOT", root);
        }
        command
    }

    /// Compiles a program, and finds out the version.
    fn prepare(self, directory: &Path, name: &str, source: &str) -> Result<Mpi> {
        let told = self.told()?;
        let file = directory.join(format!("{name}.c"));
        std::fs::write(&file, source)?;
        let version = version(&told);
        let program = directory.join(format!("{name}.{}-{version}", self.kind.name()));
        let compiler = self.compiler();
        let mut command = self.command(&compiler);
        command.args(["-std=c99", "-O2", "-Wall", "-Wextra", "-o"]).arg(&program).arg(&file);
        let compiler = compiler.display();
        let built = command.output().with_context(|| format!("cannot run {compiler}"))?;
        if !built.status.success() {
            bail!("{compiler}: {}", String::from_utf8_lossy(&built.stderr).trim());
        }
        Ok(Mpi::new(self, program, &told))
    }

    /// What its launcher tells about itself.
    fn told(&self) -> Result<String> {
        let launcher = self.launcher();
        let output = self.command(&launcher).arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", launcher.display()))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The first word that can be one.
fn version(told: &str) -> String {
    let mut words = told.split_whitespace();
    let found = words.find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    found.unwrap_or("unknown").trim_end_matches(',').to_string()
}

/// The directory of Intel MPI, if it is installed.
fn intel() -> Option<PathBuf> {
    let told = [INTEL, "I_MPI_ROOT"].into_iter().find_map(std::env::var_os);
    told.map(PathBuf::from).or_else(|| {
        let paths = std::env::var_os("PATH")?;
        let folder = std::env::split_paths(&paths).find(|path| path.join("mpiicc").is_file())?;
        Some(folder.parent()?.to_path_buf())
    })
}

/// The MPIs of Debian's packages.
fn debian() -> Vec<Place> {
    [Kind::OpenMpi, Kind::Mpich].map(|kind| Place { kind, root: None }).into()
}

/// What of these places works. `missing` gets a sentence for each other one.
fn prepared(
    places: Vec<Place>,
    missing: &mut Vec<String>,
    prepare: impl Fn(Place) -> Result<Mpi>,
) -> Vec<Mpi> {
    let one = |place: Place| {
        let (name, remedy) = (place.kind.name(), place.remedy());
        let failed = |error: anyhow::Error| {
            missing.push(format!("no comparison with {name}: {error:#}; {remedy}"));
        };
        prepare(place).map_err(failed).ok()
    };
    places.into_iter().filter_map(one).collect()
}

fn listed(sizes: &[usize]) -> String {
    sizes.iter().map(|size| format!(" {size}")).collect()
}

/// An MPI that is ready to be measured.
pub struct Mpi {
    place: Place,
    version: String,
    program: PathBuf,
    /// Of MPICH: whether it stands on UCX, or on libfabric, and obeys its variables.
    on_ucx: bool,
    on_ofi: bool,
}

impl Mpi {
    fn new(place: Place, program: PathBuf, told: &str) -> Mpi {
        let device = told.split("--with-device=").nth(1).unwrap_or_default();
        let device = device.split_whitespace().next().unwrap_or_default();
        let has = |netmod: &str| device.contains(netmod);
        let (on_ucx, on_ofi) = (has("ch4:ucx"), has("ofi"));
        Mpi { place, version: version(told), program, on_ucx, on_ofi }
    }

    /// All MPIs that are here, with programs in `directory`; missing ones are named on stderr, once.
    pub fn find(directory: &Path) -> Vec<Mpi> {
        Mpi::find_with(directory, "figures", SOURCE)
    }

    /// The same with this program.
    fn find_with(directory: &Path, program: &str, source: &str) -> Vec<Mpi> {
        let mut missing = Vec::new();
        let mut places = debian();
        match intel() {
            Some(root) => places.push(Place { kind: Kind::Intel, root: Some(root) }),
            None => missing.push(format!(
                "no comparison with intelmpi, which is optional; install impi-devel from PyPI, \
                 then set {INTEL}=DIRECTORY"
            )),
        }
        let found =
            prepared(places, &mut missing, |place| place.prepare(directory, program, source));
        static NAMED: Once = Once::new();
        NAMED.call_once(|| missing.iter().for_each(|line| eprintln!("{line}")));
        found
    }

    /// `openmpi`, `mpich` or `intelmpi`.
    pub fn name(&self) -> &'static str {
        self.place.kind.name()
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Round trips of each size.
    pub fn latency(&self, medium: Medium, rounds: usize, sizes: &[usize]) -> Result<Vec<Point>> {
        self.run(medium, 2, &format!("latency {rounds}{}", listed(sizes)), sizes.len(), LIMIT)
    }

    /// `total` bytes one way in messages of each size, all posted at once; receives come `late`, or
    /// were posted before.
    pub fn bandwidth(
        &self,
        medium: Medium,
        total: usize,
        late: bool,
        sizes: &[usize],
    ) -> Result<Vec<Point>> {
        let order = if late { "late" } else { "pre" };
        let words = format!("bandwidth {total} {order}{}", listed(sizes));
        self.run(medium, 2, &words, sizes.len(), LIMIT)
    }

    /// Servers and clients of parallel I/O; one point.
    pub fn pattern(
        &self,
        medium: Medium,
        servers: usize,
        clients: usize,
        seconds: f64,
    ) -> Result<Vec<Point>> {
        let limit = LIMIT + Duration::try_from_secs_f64(seconds)?;
        self.run(medium, servers + clients, &format!("pattern {servers} {seconds}"), 1, limit)
    }

    fn run(
        &self,
        medium: Medium,
        ranks: usize,
        words: &str,
        wanted: usize,
        limit: Duration,
    ) -> Result<Vec<Point>> {
        let told = || -> Result<Vec<Point>> {
            let mut points = Vec::new();
            self.start(medium, ranks, words)?.listen(limit, |line| {
                points.extend(Point::parse(line));
                points.len() == wanted
            })?;
            Ok(points)
        };
        told().with_context(|| format!("{} over {medium:?}, {ranks} ranks: {words}", self.name()))
    }

    /// Starts the ranks.
    fn start(&self, medium: Medium, ranks: usize, words: &str) -> Result<Ranks> {
        let mut command = self.launch()?;
        let crowded = ranks > host::cores();
        if crowded {
            command.env("FIGURES_YIELD", "1");
        }
        match self.place.kind {
            Kind::OpenMpi => open_mpi(&mut command, medium, crowded),
            Kind::Mpich => self.mpich(&mut command, medium, crowded)?,
            Kind::Intel => intel_mpi(&mut command, medium, crowded),
        }
        command.args(["-n", &ranks.to_string()]).arg(&self.program).args(words.split(' '));
        Ranks::start(command)
    }

    /// Its launcher, started through this program, so that it ends with this process.
    fn launch(&self) -> Result<Command> {
        let mut command = self.place.command(&std::env::current_exe()?);
        command.env(PART, "become").env(ORPHAN, "ends").arg(self.place.launcher());
        // Session folders, too, go when the directory goes.
        command.env("TMPDIR", self.program.parent().unwrap_or(Path::new(".")));
        Ok(command)
    }

    fn mpich(&self, command: &mut Command, medium: Medium, crowded: bool) -> Result<()> {
        command.args(["-launcher", "fork"]);
        command.args(["-bind-to", if crowded { "none" } else { "core" }]);
        if medium == Medium::Tcp {
            if !self.on_ucx {
                bail!("this MPICH does not use UCX, so it cannot be restricted to tcp");
            }
            command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", "lo");
            command.env("MPIR_CVAR_NOLOCAL", "1");
        }
        Ok(())
    }
}

fn open_mpi(command: &mut Command, medium: Medium, crowded: bool) {
    command.args(["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1"]);
    match medium {
        Medium::Tcp => {
            command.args(["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"])
        }
        Medium::Shm => command.args(["--mca", "btl", "vader,self"]),
    };
    command.args(["--mca", "mpi_yield_when_idle", if crowded { "1" } else { "0" }]);
    command.args(["--bind-to", if crowded { "none" } else { "core:overload-allowed" }]);
}

fn intel_mpi(command: &mut Command, medium: Medium, crowded: bool) {
    command.args(["-bootstrap", "fork"]);
    match medium {
        Medium::Tcp => {
            command.env("I_MPI_FABRICS", "ofi").env("FI_PROVIDER", "tcp").env("FI_TCP_IFACE", "lo")
        }
        Medium::Shm => command.env("I_MPI_FABRICS", "shm"),
    };
    command.env("I_MPI_PIN", if crowded { "0" } else { "1" });
    if crowded {
        command.env("I_MPI_THREAD_YIELD", "2");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_points_or_nothing() {
        let point = |bytes, value, p99, cpu| Some(Point { bytes, value, p99, cpu });
        let parse = Point::parse;
        assert_eq!(parse("latency 8 13.5 40.25 6.5"), point(8, 13.5, 40.25, 6.5));
        assert_eq!(parse("bandwidth 4096 800.5 1.5"), point(4096, 800.5, 800.5, 1.5));
        assert_eq!(parse("pattern 900.5 1.25 7"), point(262_144, 900.5, 900.5, 1.25));
        for line in
            ["", "latency", "latency 8 1 2", "latency 8 x 2 3", "knots 8 1 2", "pattern 9 1"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn versions_are_found_in_what_launchers_tell() {
        let told = [
            ("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/", "4.1.4"),
            ("HYDRA build details:\n    Version:           4.0.2\n    Release Date: Thu", "4.0.2"),
            ("Intel(R) MPI Library for Linux* OS, Version 2021.19.0 Build 2026", "2021.19.0"),
            ("no such thing", "unknown"),
        ];
        for (text, wanted) in told {
            assert_eq!(version(text), wanted);
        }
    }

    #[test]
    fn the_pattern_has_messages_of_the_same_size_on_both_sides() {
        assert!(SOURCE.contains("PIECE = 64 << 10") && SOURCE.contains("PIECES = 4,"));
        assert_eq!(PATTERN_MESSAGE, 4 * (64 << 10));
    }
}
