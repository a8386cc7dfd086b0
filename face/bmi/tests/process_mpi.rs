//! A program that uses BMI and an MPI, with both of the MPIs that people have: neither library disturbs the
//! other, in start-up, threads, memory or signals.

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{build, folder, here, succeed};

/// An implementation of MPI: its compiler, and what starts ranks.
struct Mpi {
    compiler: &'static str,
    launcher: &'static [&'static str],
}

// More ranks than processors, as root in a container: Open MPI wants to be told that this is meant.
const OPEN_MPI: Mpi = Mpi {
    compiler: "mpicc.openmpi",
    launcher: &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
};
const MPICH: Mpi = Mpi { compiler: "mpicc.mpich", launcher: &["mpirun.mpich"] };

/// Whether there are a compiler and headers.
fn is_there(compiler: &str) -> bool {
    let mut command = Command::new(compiler);
    command.args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    command.output().is_ok_and(|output| output.status.success())
}

fn compile(mpi: &Mpi) -> Option<PathBuf> {
    if !is_there(mpi.compiler) {
        println!("SKIP: there is no {} that finds mpi.h", mpi.compiler);
        return None;
    }
    let program = folder().join(mpi.compiler);
    // Its headers have declarations that the strict warnings dislike: they are the system's.
    let mut command = build(mpi.compiler, &program);
    succeed(command.arg("-Wno-error").arg(here().join("tests/c/with_mpi.c")).arg("-lbmi"));
    Some(program)
}

fn run(mpi: &Mpi, media: &[&str]) {
    let Some(program) = compile(mpi) else { return };
    for medium in media {
        let mut command = Command::new(mpi.launcher[0]);
        command.args(&mpi.launcher[1..]).args(["-n", "3"]).arg(&program).arg(medium);
        command.env("LD_LIBRARY_PATH", folder());
        let output = succeed(&mut command);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("3 ranks") && said.ends_with("ok\n"), "{command:?}: {said}");
    }
}

#[test]
fn bmi_works_beside_open_mpi() {
    run(&OPEN_MPI, &["tcp", "shm"]);
}

#[test]
fn bmi_works_beside_mpich() {
    run(&MPICH, &["tcp", "shm"]);
}
