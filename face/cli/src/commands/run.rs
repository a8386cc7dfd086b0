//! `ropewalk run`: a program as several ranks.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use ropewalk_host_job::{Launch, Place, agent, rank};

/// The words by which this program plays an agent, and a rank.
const AGENT: &[&str] = &["run", "--agent"];
const RANK: &[&str] = &["run", "--rank"];

#[derive(Debug, Args)]
#[command(after_help = "\
Each rank has its number in $ROPEWALK_RANK, and how many there are in $ROPEWALK_SIZE. Ranks are \
spread over hosts and namespaces in blocks: of 4 ranks and 2 hosts, 0 and 1 are on the first one.

The job ends when all ranks have. When one fails, or Ctrl-C is pressed, the others are asked to end \
(SIGTERM, or the signal itself), and killed after the time of --grace; a second Ctrl-C kills them at \
once, and a third one ends this command. The status is that of the first rank that failed; 128 and its \
number for a signal, also for one that this command got, however the ranks ended then.

Ranks read nothing from standard input.

Ranks that use windows listen at all interfaces, and neither authenticate each other nor encrypt: use a \
network that you trust (SECURITY in ropewalk-rma(7)).

Examples:
  ropewalk run -n 4 -- ./jacobi 1000
  ropewalk run -n 4 --hosts node1,node2 -- ./jacobi 1000
  ropewalk run -n 2 --namespaces blue,green -- ./jacobi 1000")]
pub struct Run {
    /// How many ranks
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 1)]
    ranks: u32,
    /// Hosts that run them, in place of this one; a remote shell begins ropewalk there
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', conflicts_with = "namespaces")]
    hosts: Vec<String>,
    /// Network namespaces of this host that they run in: names of 'ip netns', numbers of processes
    /// in them, or paths
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// A variable of the ranks' environment; may be given several times. Ranks of this host have
    /// those of this command, too, and ranks of --hosts those that begin with ROPEWALK_
    #[arg(short, long = "env", value_name = "NAME=VALUE")]
    variables: Vec<String>,
    /// Time for ranks to end by themselves when the job ends, a day at most
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(..=86_400))]
    grace: u64,
    /// Write output as it is, without the rank in front of each line
    #[arg(long)]
    plain: bool,
    /// The remote shell and its options
    #[arg(
        long,
        value_name = "COMMAND",
        env = "ROPEWALK_REMOTE_SHELL",
        default_value = "ssh -T -oBatchMode=yes -oServerAliveInterval=15 -oServerAliveCountMax=3"
    )]
    shell: String,
    /// Where ropewalk is on the other hosts [default: where it is here]
    #[arg(long, value_name = "PATH")]
    remote_program: Option<PathBuf>,
    /// Plays the agent of a place, which 'ropewalk run' begins.
    #[arg(long, hide = true)]
    agent: bool,
    /// Becomes a rank of the agent with this process number.
    #[arg(long, hide = true, value_name = "PROCESS")]
    rank: Option<u32>,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "agent"
    )]
    program: Vec<String>,
}

/// Runs a job, or plays a part in one.
pub fn run(arguments: &Run) -> anyhow::Result<ExitCode> {
    if arguments.agent {
        return Ok(agent(RANK).into());
    }
    if let Some(process) = arguments.rank {
        return Ok(rank(process, &arguments.program).into());
    }
    let variables: Vec<_> = arguments.variables.iter().map(|it| variable(it)).collect();
    let launch = Launch {
        size: arguments.ranks,
        places: places(arguments),
        program: arguments.program.clone(),
        variables: variables.into_iter().collect::<anyhow::Result<_>>()?,
        shell: arguments.shell.split_whitespace().map(String::from).collect(),
        remote_program: arguments.remote_program.clone(),
        tells_ranks: !arguments.plain,
        grace: Duration::from_secs(arguments.grace),
        agent_words: AGENT,
    };
    if launch.shell.is_empty() {
        bail!("--shell names no command: give one like 'ssh -T'");
    }
    Ok(launch.run(&mut std::io::stdout(), &mut std::io::stderr())?.into())
}

fn places(arguments: &Run) -> Vec<Place> {
    let hosts = arguments.hosts.iter().cloned().map(Place::Host);
    let namespaces = arguments.namespaces.iter().cloned().map(Place::Namespace);
    let all: Vec<Place> = hosts.chain(namespaces).collect();
    if all.is_empty() { vec![Place::Here] } else { all }
}

fn variable(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).with_context(|| {
            format!(
                "'{text}' is no variable: give its name and value, as in --env OMP_NUM_THREADS=1"
            )
        })?;
    Ok((name.to_string(), value.to_string()))
}
