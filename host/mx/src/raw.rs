//! The raw endpoint of an interface where MXoE is spoken, for programs that map the network: RAW packets as whole
//! frames, and a say in the table of peers. `docs/design/092-mx.md` says why it is made so.
//!
//! Invariants:
//! * an interface has one, which ends with its process;
//! * each send that names a context is told once as an event, and there is room for all of them;
//! * [`RawEndpoint::handle`] is readable while an event waits. It may be readable without an event, after an invalid frame.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_net::modules::ModuleError;
use ropewalk_rail::Account;
pub use ropewalk_rail_ether::RawCounts;
use ropewalk_rail_ether::{RAW_ENDPOINT, RawSocket, Sockets};
use ropewalk_wire::mxoe::{Dialect, ETHERNET_BYTES, RAW_BYTES_MAX};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::agent::{self, AgentClient, AgentError, Map, Membership, RawTeller};
use crate::counts::Listener;
use crate::module::parted;
use crate::wire::Wire;

/// Sends whose events wait; more are refused.
pub const SENDS_MAX: usize = 64;
/// The time for which an agent may be on its way: one that begins, or follows another.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);
const AGENT_PAUSE: Duration = Duration::from_millis(2);
/// The interval at which a waiting thread checks whether an interface that is down has been removed.
const DOWN_PAUSE: Duration = Duration::from_millis(100);

/// See the module. Any thread may use it.
#[derive(Debug)]
pub struct RawEndpoint {
    socket: Arc<RawSocket>,
    state: Mutex<State>,
    /// Rung while events of sends wait, and when it is closed.
    sent: OwnedFd,
    closed: OwnedFd,
    /// Readable where one of the others is.
    all: OwnedFd,
}

#[derive(Debug)]
struct State {
    /// `None`: it is closed.
    member: Option<Membership>,
    /// Contexts of sends whose events wait.
    sent: VecDeque<usize>,
}

/// An event of a raw endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawEvent {
    /// The send of this context is done.
    Sent(usize),
    /// A frame came, of which so many bytes were taken in.
    Received(usize),
}

/// The reason why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RawError {
    #[error("a raw frame needs {ETHERNET_BYTES} to {RAW_BYTES_MAX} bytes")]
    Length,
    #[error("{SENDS_MAX} sends have events that were not fetched: fetch them first")]
    Full,
    #[error("{0:#x} is not the number of a card: an Ethernet address has 48 bits")]
    NoCard(u64),
    #[error("the table of peers is full")]
    NoRoom,
    #[error("the interface is gone")]
    Gone,
    #[error("the raw endpoint is closed")]
    Closed,
    #[error(transparent)]
    Agent(AgentError),
    #[error(transparent)]
    System(#[from] std::io::Error),
}

impl From<AgentError> for RawError {
    fn from(error: AgentError) -> RawError {
        match error {
            AgentError::NoCard(nic_id) => RawError::NoCard(nic_id),
            error => RawError::Agent(error),
        }
    }
}

fn ring(bell: &OwnedFd) {
    // A counter that is full is as good as rung.
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

fn bell() -> std::io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

/// The counters of a socket, as `ropewalk mx counters` shows them.
fn account(socket: &RawSocket) -> Account {
    let RawCounts { sent, received, unsent, no_room, wrong_length } = socket.counts();
    Account {
        scheme: "mxoe",
        interface: Some(socket.interface().index),
        endpoint: RAW_ENDPOINT,
        counts: vec![
            ("packets.sent", sent),
            ("packets.received", received),
            ("dropped.unsent", unsent),
            ("dropped.inbox_full", no_room),
            ("dropped.wrong_length", wrong_length),
        ],
        socket: Vec::new(),
    }
}

impl RawEndpoint {
    /// The raw endpoint of an interface, at an address as endpoints of MXoE have there, without a number:
    /// `eth0?order=little`. The process is from now on one of those that may be the interface's agent.
    pub fn open(address: &str) -> Result<RawEndpoint, ModuleError> {
        let (interface, query) = parted(address);
        let wire = Wire::parse(query, Sockets::default())?;
        let socket = RawSocket::open(interface, wire.order())?;
        let dialect = wire.dialect(socket.interface().mtu)?;
        RawEndpoint::start(socket, dialect).map_err(ModuleError::Descriptors)
    }

    fn start(socket: RawSocket, dialect: Dialect) -> std::io::Result<RawEndpoint> {
        let (sent, closed) = (bell()?, bell()?);
        let all = epoll::create(CreateFlags::CLOEXEC)?;
        for fd in [socket.as_fd(), sent.as_fd(), closed.as_fd()] {
            epoll::add(&all, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        let socket = Arc::new(socket);
        let member = agent::join(socket.interface(), dialect, Some(RAW_ENDPOINT))
            .ok_or(std::io::ErrorKind::OutOfMemory)?;
        if let Some(listener) = Listener::new() {
            let socket = socket.clone();
            member.tell_by(RawTeller { listener, account: Box::new(move || account(&socket)) });
        }
        let state = Mutex::new(State { member: Some(member), sent: VecDeque::new() });
        Ok(RawEndpoint { socket, state, sent, closed, all })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The card, as a number.
    pub fn nic_id(&self) -> u64 {
        self.socket.interface().station.nic_id()
    }

    /// To be waited at, for reading, and for nothing else.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// The counters so far.
    pub fn counts(&self) -> RawCounts {
        self.socket.counts()
    }

    /// Sends a frame, Ethernet header and all. With a context there is an event when that is done.
    pub fn send(&self, frame: &[u8], context: Option<usize>) -> Result<(), RawError> {
        if !(ETHERNET_BYTES..=RAW_BYTES_MAX).contains(&frame.len()) {
            return Err(RawError::Length);
        }
        let mut state = self.state();
        if state.member.is_none() {
            return Err(RawError::Closed);
        }
        if context.is_some() && state.sent.len() >= SENDS_MAX {
            return Err(RawError::Full);
        }
        self.socket.send(frame).map_err(|_| RawError::Gone)?;
        if let Some(context) = context {
            if state.sent.is_empty() {
                ring(&self.sent);
            }
            state.sent.push_back(context);
        }
        Ok(())
    }

    /// The next event, for which it waits for `timeout`; `None`: for ever. The part of a frame that does not fit is
    /// dropped. Without `wants_sent` events of sends wait on.
    pub fn next(
        &self,
        to: &mut [u8],
        wants_sent: bool,
        timeout: Option<Duration>,
    ) -> Result<Option<RawEvent>, RawError> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_over = false;
        loop {
            if let Some(event) = self.look(to, wants_sent)? {
                return Ok(Some(event));
            }
            if is_over {
                return Ok(None);
            }
            let rest = end.map(|end| end.saturating_duration_since(Instant::now()));
            is_over = rest.is_some_and(|rest| rest.is_zero());
            let look_again = self.socket.is_down().then_some(DOWN_PAUSE);
            self.wait(wants_sent, rest.into_iter().chain(look_again).min())?;
        }
    }

    fn look(&self, to: &mut [u8], wants_sent: bool) -> Result<Option<RawEvent>, RawError> {
        {
            let mut state = self.state();
            if state.member.is_none() {
                return Err(RawError::Closed);
            }
            if wants_sent && let Some(context) = state.sent.pop_front() {
                if state.sent.is_empty() {
                    let _ = rustix::io::read(&self.sent, &mut [0u8; 8]);
                }
                return Ok(Some(RawEvent::Sent(context)));
            }
        }
        match self.socket.receive(to) {
            Some(bytes) => Ok(Some(RawEvent::Received(bytes))),
            None if self.socket.is_gone() => Err(RawError::Gone),
            None => Ok(None),
        }
    }

    fn wait(&self, wants_sent: bool, rest: Option<Duration>) -> Result<(), RawError> {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN),
            PollFd::new(&self.closed, PollFlags::IN),
        ];
        if wants_sent {
            fds.push(PollFd::new(&self.sent, PollFlags::IN));
        }
        match poll(&mut fds, rest.and_then(|rest| Timespec::try_from(rest).ok()).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            self.socket.take_error();
        }
        Ok(())
    }

    /// This card is there, and perhaps called so.
    pub fn add_peer(&self, nic_id: u64, name: Option<&str>) -> Result<(), RawError> {
        match name {
            // It is always there, and the agent has its name inherited.
            Some(name) if nic_id == self.nic_id() => return self.set_name(name),
            None if nic_id == self.nic_id() => return Ok(()),
            _ => {}
        }
        // Before the agent is told: one that begins meanwhile is told by the keeper.
        if !self.with_member(|it| it.with_mapped(|mapped| mapped.add(nic_id, name)))? {
            return Err(RawError::NoRoom);
        }
        let told = self.agent(|agent| agent.add_peer(nic_id, name));
        if told.is_err() {
            self.with_member(|it| it.with_mapped(|mapped| mapped.remove(nic_id)))?;
        }
        told
    }

    /// This card is not there any more, until it is heard again.
    pub fn remove_peer(&self, nic_id: u64) -> Result<(), RawError> {
        if nic_id == self.nic_id() {
            return Err(RawError::NoCard(nic_id));
        }
        self.with_member(|it| it.with_mapped(|mapped| mapped.remove(nic_id)))?;
        self.agent(|agent| agent.remove_peer(nic_id)).map(drop)
    }

    /// Sets the state of the map that others are told.
    pub fn set_map(&self, map: Map) -> Result<(), RawError> {
        self.with_member(|it| it.with_mapped(|mapped| mapped.map = Some(map)))?;
        self.agent(|agent| agent.set_map(map))
    }

    /// Others shall call the interface so.
    pub fn set_name(&self, name: &str) -> Result<(), RawError> {
        self.agent(|agent| agent.set_name(name))
    }

    fn with_member<R>(&self, what: impl FnOnce(&Membership) -> R) -> Result<R, RawError> {
        self.state().member.as_ref().map(what).ok_or(RawError::Closed)
    }

    /// Asks the agent, which may be about to begin.
    fn agent<R>(
        &self,
        mut ask: impl FnMut(&mut AgentClient) -> Result<R, AgentError>,
    ) -> Result<R, RawError> {
        let begin = Instant::now();
        loop {
            self.with_member(|_| ())?;
            let agent = AgentClient::reach(self.socket.interface().index)?;
            let answer = agent.map(|mut it| ask(&mut it));
            let error = match answer {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error @ AgentError::Silent(_))) => error,
                Some(Err(error)) => return Err(error.into()),
                None => AgentError::Silent(std::io::ErrorKind::NotFound.into()),
            };
            if begin.elapsed() > AGENT_PATIENCE {
                return Err(error.into());
            }
            std::thread::sleep(AGENT_PAUSE);
        }
    }

    /// Ends it: waiting threads are told, and another process may open it.
    pub fn close(&self) {
        let member = self.state().member.take();
        // Its thread is waited for, which must not be with the lock.
        drop(member);
        self.socket.release();
        ring(&self.closed);
    }
}

impl Drop for RawEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
