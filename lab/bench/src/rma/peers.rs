//! The MPIs beside which ours stands: which take part in a row, with what settings, and whose puts are local.

use std::collections::HashMap;

use anyhow::Result;
use ropewalk_netns::Topology;

use super::Measured;
use super::case::{Act, Case, Program};
use super::place;
use crate::Options;
use crate::host;
use crate::mpi::windows::{Memory, Order, Progress};
use crate::mpi::{Medium, Mpi};

/// A put and flush that is so many times faster than a get, while the target computes, did not wait for the target.
const LOCAL: u64 = 8;
/// Rounds by which that is found out.
const TRIED: usize = 10;

/// An MPI with its settings.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Peer {
    mpi: usize,
    pub memory: &'static str,
    pub has_thread: bool,
    /// Its targets execute messages, as those of our yardstick do.
    pub by_messages: bool,
    /// By which it is told apart from others.
    pub name: &'static str,
}

#[cfg(test)]
impl Peer {
    pub fn named(name: &'static str, by_messages: bool) -> Peer {
        Peer { mpi: 0, memory: "create", has_thread: false, by_messages, name }
    }
}

/// All MPIs of this machine, compiled when a row needs them.
#[derive(Default)]
pub struct Peers {
    found: Option<(Vec<Mpi>, Option<tempfile::TempDir>)>,
    names: HashMap<String, &'static str>,
    /// Of those that were tried over a medium: whether a put and flush of so many bytes is local.
    local: HashMap<(Peer, &'static str, usize), bool>,
}

impl Peers {
    /// Those that take part in a row.
    pub fn of(&mut self, options: &Options, case: &Case) -> Vec<Peer> {
        if !options.peers || medium(case).is_none() || case.is_ours_alone() {
            return Vec::new();
        }
        let mut chosen = Vec::new();
        for (number, mpi) in self.mpis().iter().enumerate() {
            if place::is_apart(case.medium) && mpi.lacks_namespaces().is_some() {
                continue;
            }
            for setting in settings(mpi, case) {
                let label = mpi.label() + setting.suffix(case.medium);
                chosen.push((number, setting, label));
            }
        }
        let peer = |(mpi, setting, label): (usize, Setting, String)| {
            let Setting { memory, has_thread, by_messages } = setting;
            let (memory, name) = (word(memory), self.name(label));
            Peer { mpi, memory, has_thread, by_messages, name }
        };
        chosen.into_iter().map(peer).collect()
    }

    fn mpis(&mut self) -> &[Mpi] {
        let (found, _) = self.found.get_or_insert_with(|| match tempfile::tempdir() {
            Ok(directory) => {
                let found = Mpi::find_for_windows(directory.path());
                let lacking = found.iter().filter_map(|mpi| Some((mpi, mpi.lacks_thread()?)));
                lacking.for_each(|(mpi, why)| eprintln!("no {}-progress: {why}", mpi.label()));
                let here = found.iter().filter_map(|mpi| Some((mpi, mpi.lacks_namespaces()?)));
                here.for_each(|(mpi, why)| eprintln!("no {} over netns-tcp: {why}", mpi.label()));
                (found, Some(directory))
            }
            Err(error) => {
                eprintln!("cannot compile the MPI programs to compare with: {error}");
                (Vec::new(), None)
            }
        });
        found
    }

    /// Outcomes name systems by words that live as long as the program.
    fn name(&mut self, name: String) -> &'static str {
        let found = self.names.entry(name);
        found.or_insert_with_key(|name| Box::leak(name.clone().into_boxed_str()))
    }

    /// The parameter with the ratio to a system.
    pub fn ratio_name(&mut self, system: &str) -> &'static str {
        self.name(format!("ratio_{system}"))
    }

    pub fn version(&mut self, peer: &Peer) -> String {
        self.mpis()[peer.mpi].version().into()
    }

    /// Measures a case, at the hosts of the network if there is one.
    ///
    /// # Errors
    /// Its ranks fail, or moved less than the case over the interface.
    pub fn measure(
        &mut self,
        peer: &Peer,
        case: &Case,
        network: Option<&Topology>,
    ) -> Result<Measured> {
        let medium = medium(case).ok_or_else(|| anyhow::anyhow!("no MPI uses {}", case.medium))?;
        let order = Order {
            medium,
            memory: memory(peer.memory),
            progress: if peer.has_thread { Progress::Thread } else { Progress::Calls },
            by_messages: peer.by_messages,
            program: case.program.text(),
            ranks: case.ranks as usize,
            bytes: case.bytes,
            loops: case.loops,
            rounds: case.rounds,
        };
        let told = self.mpis()[peer.mpi].windows(&order, network, case.moved_in_all())?;
        let (samples, cpu) = (told.times, told.cpu);
        Ok(Measured { samples, cpu, interface: Some(told.interface), ..Measured::default() })
    }

    /// Whether a row's puts of this peer complete without the target, so that they are no measure of remote completion.
    ///
    /// # Errors
    /// The ranks by which that is found out fail.
    pub fn is_local(
        &mut self,
        peer: &Peer,
        case: &Case,
        network: Option<&Topology>,
    ) -> Result<bool> {
        let puts = matches!(
            case.program,
            Program::Flush(Act::Put)
                | Program::Flush16(Act::Put)
                | Program::Computing(Act::Put)
                | Program::PassivePut
        );
        if !puts || place::scheme(case.medium) != "tcp" {
            return Ok(false);
        }
        let key = (peer.clone(), case.medium, case.bytes);
        if let Some(known) = self.local.get(&key) {
            return Ok(*known);
        }
        let mut time = |act| {
            let program = Program::Computing(act);
            let case = Case { program, rounds: TRIED, ..case.clone() };
            let mut samples = self.measure(peer, &case, network)?.samples;
            samples.sort_unstable();
            anyhow::Ok(samples[samples.len() / 2])
        };
        let is_local = time(Act::Put)? < time(Act::Get)? / LOCAL;
        self.local.insert(key, is_local);
        Ok(is_local)
    }
}

/// Whether MPIs offer their cores to others in a case.
pub fn yields(case: &Case) -> bool {
    case.ranks as usize > host::cores()
}

fn medium(case: &Case) -> Option<Medium> {
    match place::scheme(case.medium) {
        "tcp" => Some(Medium::Tcp),
        "shm" => Some(Medium::Shm),
        _ => None,
    }
}

const MEMORIES: [(Memory, &str); 3] =
    [(Memory::Allocated, "allocate"), (Memory::Created, "create"), (Memory::None, "messages")];

fn word(memory: Memory) -> &'static str {
    MEMORIES.iter().find(|(other, _)| *other == memory).map_or("", |it| it.1)
}

fn memory(word: &str) -> Memory {
    MEMORIES.iter().find(|(_, other)| *other == word).map_or(Memory::None, |it| it.0)
}

/// How an MPI takes part in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Setting {
    memory: Memory,
    has_thread: bool,
    by_messages: bool,
}

impl Setting {
    /// Behind the name of its MPI. Over tcp there is one kind of memory, the best one.
    fn suffix(self, medium: &str) -> &'static str {
        match (self.memory, self.has_thread) {
            (Memory::None, _) => "-sendrecv",
            _ if self.by_messages => "-pt2pt",
            (Memory::Allocated, true) if medium == "shm" => "-allocate-progress",
            (Memory::Allocated, false) if medium == "shm" => "-allocate",
            (Memory::Created, true) if medium == "shm" => "-create-progress",
            (Memory::Created, false) if medium == "shm" => "-create",
            (_, true) => "-progress",
            (_, false) => "",
        }
    }
}

/// All settings of an MPI in a row.
fn settings(mpi: &Mpi, case: &Case) -> Vec<Setting> {
    let plain = |memory| Setting { memory, has_thread: false, by_messages: false };
    let by_messages = Setting { by_messages: true, ..plain(Memory::Created) };
    // Over tcp Open MPI 4 has nothing else that works.
    let (windows, messages) = match case.medium {
        "shm" => (vec![Memory::Allocated, Memory::Created], mpi.has_messages()),
        _ if mpi.has_messages() => (Vec::new(), true),
        _ => (vec![mpi.memory_over_tcp()], false),
    };
    // A thread is of use where a target does not call.
    let passive = matches!(
        case.program,
        Program::Overlap
            | Program::Skew
            | Program::Flush(_)
            | Program::Flush16(_)
            | Program::Computing(_)
            | Program::PassivePut
    );
    let threads = passive && mpi.lacks_thread().is_none();
    let mut all = Vec::new();
    for memory in windows {
        all.push(plain(memory));
        all.extend(threads.then_some(Setting { has_thread: true, ..plain(memory) }));
    }
    all.extend(messages.then_some(by_messages));
    if case.program == Program::Bidirectional {
        all.push(plain(Memory::None));
    }
    all
}
