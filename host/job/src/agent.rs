//! The agent of a place: starts its ranks, and stands between them and the launcher.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, Signal, geteuid};
use serde::{Deserialize, Serialize};

use crate::frame::{Frame, Kind};
use crate::place::enter;
use crate::ranks::{adopt, attend, signal, start, sweep};
use crate::{JOB_VARIABLE, KEY_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE};

/// How long a process that connects may take to say who it is, and a rank to take what it waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an agent runs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub size: u32,
    pub ranks: Vec<u32>,
    pub namespace: Option<String>,
    /// Where ranks begin, where that is not where their agent begins.
    pub directory: Option<PathBuf>,
    pub program: Vec<String>,
    pub variables: Vec<(String, String)>,
    pub key: String,
}

/// The launcher's end, and the ranks'.
struct Agent {
    launcher: Mutex<io::Stdout>,
    /// Ranks that have said who they are.
    members: Mutex<BTreeMap<u32, UnixStream>>,
    spec: Spec,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Plays the agent until the launcher is gone. `words`, and the number of a process, begin this program as a rank of that
/// agent. Returns the status to end with.
pub fn agent(words: &[&str]) -> u8 {
    let mut launcher = io::stdin();
    match begin(&mut launcher, words) {
        Ok((agent, groups)) => {
            agent.listen(&mut launcher, &groups);
            groups.iter().for_each(|group| signal(*group, Signal::KILL));
            sweep();
            0
        }
        Err(why) => {
            let _ = Frame::new(Kind::Failed, 0, why).write(&mut io::stdout());
            1
        }
    }
}

/// Reads what to run, and starts it.
fn begin(launcher: &mut impl Read, words: &[&str]) -> Result<(Arc<Agent>, Vec<Pid>), String> {
    let spec = Frame::read(launcher).map_err(|error| error.to_string())?;
    let spec = spec.filter(|frame| frame.kind == Kind::Spec);
    let spec = spec.and_then(|frame| serde_json::from_slice::<Spec>(&frame.bytes).ok());
    let spec = spec.ok_or("'ropewalk run' of another version, or nobody, started this agent")?;
    if let Some(name) = &spec.namespace {
        enter(name).map_err(|error| error.to_string())?;
    }
    if let Some(directory) = spec.directory.as_ref().filter(|it| !it.is_dir()) {
        return Err(format!("there is no directory '{}' here", directory.display()));
    }
    adopt().map_err(|error| error.to_string())?;
    let name = format!("ropewalk/job/{}", &drawn()?[..16]);
    let address = SocketAddr::from_abstract_name(&name).map_err(|error| error.to_string())?;
    let door = UnixListener::bind_addr(&address).map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let launcher = Mutex::new(io::stdout());
    let agent = Arc::new(Agent { launcher, members: Mutex::default(), spec });
    let host = agent.clone();
    std::thread::spawn(move || host.receive(&door));
    let mut groups = Vec::new();
    for &rank in &agent.spec.ranks {
        let mut command = Command::new(&program);
        command.args(words).arg(std::process::id().to_string()).arg("--");
        command.args(&agent.spec.program);
        command.envs(agent.spec.variables.iter().map(|(name, value)| (name, value)));
        command.env(RANK_VARIABLE, rank.to_string());
        command.env(SIZE_VARIABLE, agent.spec.size.to_string());
        command.env(JOB_VARIABLE, &name).env(KEY_VARIABLE, &agent.spec.key);
        if let Some(directory) = &agent.spec.directory {
            command.current_dir(directory);
        }
        let child = start(command).map_err(|error| {
            groups.iter().for_each(|group| signal(*group, Signal::KILL));
            format!("cannot start a process: {error}")
        })?;
        groups.push(Pid::from_child(&child));
        let host = agent.clone();
        std::thread::spawn(move || host.attend(rank, child));
    }
    Ok((agent, groups))
}

/// 32 digits that nobody guesses.
pub(crate) fn drawn() -> Result<String, String> {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).map_err(|error| error.to_string())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Agent {
    fn tell(&self, frame: &Frame) {
        // A launcher that is gone is noticed by whoever listens to it.
        let _ = frame.write(&mut *held(&self.launcher));
    }

    fn attend(self: &Arc<Agent>, rank: u32, child: std::process::Child) {
        let host = self.clone();
        let tell = move |kind, bytes: &[u8]| host.tell(&Frame::new(kind, rank, bytes));
        let status = attend(child, tell);
        self.tell(&Frame::new(Kind::Ended, rank, status.to_le_bytes()));
    }

    /// Does what the launcher says until it is gone.
    fn listen(&self, launcher: &mut impl Read, groups: &[Pid]) {
        while let Ok(Some(frame)) = Frame::read(launcher) {
            match frame.kind {
                Kind::Parts => {
                    // Each waits for it, or is gone.
                    held(&self.members).retain(|_, member| frame.write(member).is_ok());
                }
                Kind::Signal => {
                    let number = frame.number().and_then(|number| i32::try_from(number).ok());
                    if let Some(number) = number.and_then(Signal::from_named_raw) {
                        groups.iter().for_each(|group| signal(*group, number));
                    }
                }
                _ => return,
            }
        }
    }

    /// Hears those who connect, each in a thread of its own.
    fn receive(self: &Arc<Agent>, door: &UnixListener) {
        while let Ok((stream, _)) = door.accept() {
            let is_own = socket_peercred(&stream).is_ok_and(|it| it.uid == geteuid());
            if !is_own {
                continue;
            }
            let host = self.clone();
            std::thread::spawn(move || host.hear(stream));
        }
    }

    /// A process that shows the key is a rank; what it says goes to the launcher.
    fn hear(&self, mut stream: UnixStream) -> Option<()> {
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        let hello = Frame::read(&mut stream).ok()??;
        let rank = hello.rank;
        let is_rank = hello.kind == Kind::Hello && self.spec.ranks.contains(&rank);
        if !is_rank || hello.bytes != self.spec.key.as_bytes() {
            return None;
        }
        stream.set_read_timeout(None).ok()?;
        let own = stream.try_clone().ok()?;
        {
            let mut members = held(&self.members);
            if members.contains_key(&rank) {
                return None;
            }
            members.insert(rank, own);
        }
        while let Ok(Some(frame)) = Frame::read(&mut stream) {
            if !matches!(frame.kind, Kind::Part | Kind::Abort) || frame.rank != rank {
                break;
            }
            self.tell(&frame);
        }
        held(&self.members).remove(&rank);
        Some(())
    }
}
