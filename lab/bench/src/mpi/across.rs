//! Ranks of an MPI program on hosts of a network of namespaces: two of a stream over all rails, or those of windows.
//!
//! Launchers reach the other hosts by a script in place of `ssh`, over the last rail: it lives on while the first one
//! is cut. They enter a namespace by `ip netns exec`, since UCX looks for interfaces in the /sys that it mounts.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use ropewalk_netns::{Host, Topology};

use super::{Kind, Mpi};
use crate::ranks::Ranks;
use crate::{ORPHAN, PART};

const SOURCE: &str = include_str!("../../mpi/stream.c");

impl Mpi {
    /// All MPIs that are here, with the program of a stream in `directory`; missing ones are named on stderr, once.
    pub fn find_for_streams(directory: &Path) -> Vec<Mpi> {
        Mpi::find_with(directory, "stream", SOURCE)
    }

    /// Its launcher at a host, started through this program, so that it ends with this process.
    pub(super) fn launch_at(&self, host: Host<'_>, directory: &Path) -> Result<Command> {
        let mut command = self.place.command(&std::env::current_exe()?);
        command.env(PART, "become").env(ORPHAN, "ends").env("TMPDIR", directory);
        command.args(["ip", "netns", "exec", host.namespace().name()]).arg(self.place.launcher());
        Ok(command)
    }

    /// Starts a stream from the first host to the second one, until this nanosecond of the machine's clock. `file`
    /// gets the time of each message.
    pub fn stream(&self, topology: &Topology, until: u64, file: &Path) -> Result<Ranks> {
        let directory = self.program.parent().context("the program is in a directory")?;
        let agent = agent(topology, directory)?;
        let rails = topology.config().rails;
        let hosts: Vec<String> =
            topology.hosts().take(2).map(|host| host.address(rails - 1).to_string()).collect();
        let here = topology.host(0);
        let mut command = self.launch_at(here, directory)?;
        let interfaces: Vec<String> = (0..rails).map(|rail| here.interface(rail)).collect();
        let (all, last) = (interfaces.join(","), here.interface(rails - 1));
        match self.place.kind {
            Kind::OpenMpi => {
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                command.args(["--mca", "plm_rsh_agent"]).arg(&agent);
                command.args(["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]);
                command.args(["--mca", "btl_tcp_if_include", &all]);
                command.args(["--mca", "oob_tcp_if_include", &last]);
                command.args(["--mca", "mpi_yield_when_idle", "1"]);
                let hosts: Vec<String> = hosts.iter().map(|host| format!("{host}:1")).collect();
                command.args(["--host", &hosts.join(",")]);
            }
            Kind::Mpich => {
                command.env("UCX_TLS", "tcp,self").env("UCX_NET_DEVICES", &all);
                command.env("UCX_MAX_EAGER_RAILS", "2").env("UCX_MAX_RNDV_RAILS", "2");
                launched(&mut command, "-launcher", &agent, &last, &hosts);
            }
            Kind::Intel => {
                command.env("I_MPI_FABRICS", "ofi").env("FI_PROVIDER", "tcp");
                launched(&mut command, "-bootstrap", &agent, &last, &hosts);
            }
        }
        command.args(["-n", "2"]).arg(&self.program).arg(until.to_string()).arg(file);
        Ranks::start(command)
    }
}

/// The words for Hydra: its option for launchers has one of two names.
pub(super) fn launched(
    command: &mut Command,
    option: &str,
    agent: &Path,
    rail: &str,
    hosts: &[String],
) {
    command.args([option, "ssh"]).arg(format!("{option}-exec")).arg(agent);
    command.args(["-iface", rail, "-ppn", "1", "-hosts", &hosts.join(",")]);
}

/// A script that runs a command on a host, as `ssh` does.
pub(super) fn agent(topology: &Topology, directory: &Path) -> Result<std::path::PathBuf> {
    let mut script = String::from(
        "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1\nshift\ncase $host in\n",
    );
    for host in topology.hosts() {
        let last = topology.config().rails - 1;
        let (address, name) = (host.address(last), host.namespace().name());
        script += &format!("{address}) exec ip netns exec {name} sh -c \"$*\" ;;\n");
    }
    script += "esac\necho \"there is no host $host\" >&2\nexit 1\n";
    let path = directory.join("agent");
    std::fs::write(&path, script)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
