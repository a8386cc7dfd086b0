//! The agent of an interface on which MXoE is spoken: started by need, and no daemon.
//!
//! Every process that has an endpoint there has a *keeper*: a small thread that sleeps nearly always. One keeper
//! gets the agent's name ([`service`]). It announces the interface, knows its peers, and refuses messages for
//! endpoints that nobody has. The other keepers stand by, with a connection to the agent ([`standby`]). They tell it
//! their endpoints. They notice the agent's end, and one of them gets the name.
//!
//! The keeper of a process with the raw endpoint remembers the statements of its mapper, for agents that start later
//! ([`mapped`]). It also sends the counters of the raw endpoint to each process that asks.
//!
//! * [`protocol`]: the messages of the connection; [`client`]: for programs that ask.
//!
//! Invariants:
//! * nobody refuses for an endpoint that a process has claimed;
//! * the thread ends with the last endpoint of the process on the interface, and with the last member that asks for
//!   names there, and its end is waited for, so that a library can be unloaded;
//! * a holder of the agent's name that is neither root nor this user is not believed;
//! * each client costs the agent bounded memory, and the client waits for the agent rather than the other way round.
//!
//! A process that forks without starting another program leaves the agent's name to its child as long as that lives.

mod client;
mod known;
mod mapped;
mod protocol;
mod service;
mod standby;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use client::{AgentClient, AgentError, Map};
pub use known::KnownPeer;
use mapped::Mapped;
use ropewalk_net::{Teller, notice};
use ropewalk_rail::Account;
use ropewalk_rail_ether::{Interface, RAW_ENDPOINT, interfaces};
use ropewalk_wire::mxoe::Dialect;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};

use crate::counts::Listener;
use crate::local;

/// Waits between two attempts to become the agent, or to find it.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

/// An endpoint of this process, or one that asks for names, which its keeper knows as long as this lives.
#[derive(Debug)]
pub(crate) struct Membership {
    keeper: Arc<Keeper>,
    endpoint: Option<u8>,
}

/// The identity of a keeper: its process, network namespace and interface.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    process: u32,
    /// Of the network namespace: its numbers of interfaces mean nothing in another.
    namespace: (u64, u64),
    index: u32,
}

/// The state that the thread shares with the rest of the process.
#[derive(Debug)]
struct Keeper {
    key: Key,
    interface: Interface,
    dialect: Dialect,
    /// Rung when something here has changed.
    bell: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    endpoints: BTreeSet<u8>,
    /// The number of members that ask for names and have no endpoint.
    askers: usize,
    /// The name of the interface, if somebody has set one.
    name: Option<String>,
    /// The statements of a mapper of this process.
    mapped: Mapped,
    /// Tells the counters of the raw endpoint of this process.
    teller: Option<Arc<RawTeller>>,
    ended: bool,
    thread: Option<JoinHandle<()>>,
}

/// Sends the counters of a raw endpoint to each client that connects.
pub(crate) struct RawTeller {
    pub listener: Listener,
    pub account: Box<dyn Fn() -> Account + Send + Sync>,
}

impl std::fmt::Debug for RawTeller {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("RawTeller").finish_non_exhaustive()
    }
}

static KEEPERS: Mutex<Vec<Arc<Keeper>>> = Mutex::new(Vec::new());

fn keepers() -> MutexGuard<'static, Vec<Arc<Keeper>>> {
    KEEPERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An endpoint of this process on an interface is open, or somebody asks for names there. Where there can be no agent
/// everything goes on without.
pub(crate) fn join(
    interface: &Interface,
    dialect: Dialect,
    endpoint: Option<u8>,
) -> Option<Membership> {
    let namespace = std::fs::metadata("/proc/thread-self/ns/net");
    let namespace = namespace.map_or((0, 0), |it| (it.dev(), it.ino()));
    let key = Key { process: std::process::id(), namespace, index: interface.index };
    let mut keepers = keepers();
    let found = keepers.iter().find(|keeper| keeper.key == key).cloned();
    let keeper = match found {
        Some(keeper) => keeper,
        None => match Keeper::start(key, interface.clone(), dialect) {
            Ok(keeper) => {
                keepers.push(keeper.clone());
                keeper
            }
            Err(error) => {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    notice::tell(&format!(
                        "cannot run an agent for {}: {error}; continuing without it",
                        interface.name
                    ));
                });
                return None;
            }
        },
    };
    let mut state = keeper.state();
    match endpoint {
        Some(endpoint) => {
            state.endpoints.insert(endpoint);
        }
        None => state.askers += 1,
    }
    drop((state, keepers));
    keeper.ring();
    Some(Membership { keeper, endpoint })
}

impl Membership {
    /// Serves the counters of this teller to every process that asks for them.
    pub fn tell_by(&self, teller: RawTeller) {
        self.keeper.state().teller = Some(Arc::new(teller));
        self.keeper.ring();
    }

    /// Changes the mapper's statements, which agents that start later are told.
    pub fn with_mapped<R>(&self, change: impl FnOnce(&mut Mapped) -> R) -> R {
        change(&mut self.keeper.state().mapped)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // A process that was forked off has no such thread, and locks may be held there for good by others that it
        // has not either.
        if self.keeper.key.process != std::process::id() {
            return;
        }
        let thread = {
            let mut keepers = keepers();
            let mut state = self.keeper.state();
            match self.endpoint {
                Some(endpoint) => {
                    state.endpoints.remove(&endpoint);
                }
                None => state.askers -= 1,
            }
            if self.endpoint == Some(RAW_ENDPOINT) {
                (state.mapped, state.teller) = (Mapped::default(), None);
            }
            state.ended = state.endpoints.is_empty() && state.askers == 0;
            if state.ended {
                keepers.retain(|keeper| !Arc::ptr_eq(keeper, &self.keeper));
                state.thread.take()
            } else {
                None
            }
        };
        self.keeper.ring();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

impl Keeper {
    fn start(key: Key, interface: Interface, dialect: Dialect) -> std::io::Result<Arc<Keeper>> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let state = Mutex::new(State::default());
        let keeper = Arc::new(Keeper { key, interface, dialect, bell, state });
        let own = keeper.clone();
        let thread = std::thread::Builder::new().name("mxoe-agent".to_string());
        let thread = thread.stack_size(256 << 10).spawn(move || own.run())?;
        keeper.state().thread = Some(thread);
        Ok(keeper)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A counter that is full is as good as rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Resets the bell: the reasons for which it was rung are looked at after this.
    fn heard(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }

    /// Answers a client that asks for the counters.
    fn tell(&self, teller: &RawTeller) {
        if teller.listener.answer(&|| vec![(teller.account)()]).is_err() {
            // Without a free descriptor the listener would stay readable, and this thread would try without end.
            self.state().teller = None;
        }
    }

    fn is_over(&self) -> bool {
        self.state().ended
    }

    /// The thread: agent or standby, in turns.
    fn run(&self) {
        let mut pause = Duration::ZERO;
        while !self.is_over() {
            let begin = std::time::Instant::now();
            let name = ropewalk_rail_ether::agent_name(self.interface.index);
            match local::listen(&name) {
                Ok(listener) => {
                    if service::serve(self, listener).is_ok() {
                        return;
                    }
                    // There is nothing to be the agent of: the interface is gone.
                }
                Err(_) => standby::stand_by(self, &name),
            }
            pause = match begin.elapsed() > PAUSES[1] {
                true => Duration::ZERO,
                false => (pause * 2).clamp(PAUSES[0], PAUSES[1]),
            };
            self.sleep(pause);
        }
    }

    /// Until the bell rings, or for so long.
    fn sleep(&self, time: Duration) {
        let mut fds = [PollFd::new(&self.bell, PollFlags::IN)];
        let _ = rustix::event::poll(&mut fds, Timespec::try_from(time).ok().as_ref());
        self.heard();
    }
}

/// Says once for each interface that nobody is to be believed there.
pub(crate) fn say_stranger(index: u32, error: &AgentError) {
    static SAID: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(PoisonError::into_inner).insert(index) {
        let name = interfaces().into_iter().find(|it| it.index == index);
        let name = name.map_or_else(|| format!("interface {index}"), |it| it.name);
        notice::tell(&format!("{name}: {error}; peers there are not known by their names"));
    }
}

/// The default name of an interface: the host's name and the number of the NIC.
fn usual_name(interface: &Interface) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let nics = interfaces().into_iter().filter(|it| it.is_up && it.is_ethernet && !it.is_loopback);
    let number = nics.take_while(|it| it.index != interface.index).count();
    format!("{host}:{number}")
}
