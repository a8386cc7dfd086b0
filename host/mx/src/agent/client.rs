//! For programs that ask the agent of an interface.

use std::os::fd::OwnedFd;
use std::time::Duration;

pub use ropewalk_transport::mxoe::Map;
use rustix::io::Errno;

use super::known::KnownPeer;
use super::protocol::{ANSWER_BYTES_MAX, Answer, Question};
use crate::local;

/// An agent that does not answer for so long is none.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to the agent of an interface.
#[derive(Debug)]
pub struct AgentClient {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

/// The reason why an agent does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    #[error("several hosts have that name; `ropewalk mx peers` shows them")]
    Several,
    #[error("only root and the user who runs the agent may do that")]
    NotPermitted,
    #[error(
        "a program of user {0}, who is neither root nor this user, has the socket name of the \
         agent, and is not trusted (`ss -xlp` shows it): end that program, or run this command as \
         that user"
    )]
    Stranger(u32),
    #[error("the agent does not answer: {0}")]
    Silent(std::io::Error),
    #[error("the agent does not answer: its process is stopped, or busy")]
    Late,
    #[error("{0:#x} is not the number of a card: an Ethernet address has 48 bits")]
    NoCard(u64),
    #[error(
        "the agent answers in a form that this version does not know: run the same version of \
         Ropewalk in all programs of this host"
    )]
    Unknown,
}

impl From<Errno> for AgentError {
    fn from(error: Errno) -> AgentError {
        match error {
            Errno::AGAIN => AgentError::Late,
            error => AgentError::Silent(error.into()),
        }
    }
}

impl AgentClient {
    /// The agent of the interface with this number; `None` if no process has an endpoint on it that speaks MXoE. An
    /// error: an untrusted process holds the agent's name.
    pub fn reach(interface: u32) -> Result<Option<AgentClient>, AgentError> {
        let name = ropewalk_rail_ether::agent_name(interface);
        let Ok(socket) = local::call(&name, PATIENCE) else {
            return ropewalk_rail_ether::stranger_at(&name)
                .map_or(Ok(None), |user| Err(AgentError::Stranger(user)));
        };
        if let Some(user) = local::stranger(&socket) {
            return Err(AgentError::Stranger(user));
        }
        let buffer = vec![0; ANSWER_BYTES_MAX].into_boxed_slice();
        Ok(Some(AgentClient { socket, buffer }))
    }

    /// The same; that nobody is to be believed is said once on the standard error.
    pub fn of(interface: u32) -> Option<AgentClient> {
        AgentClient::reach(interface).unwrap_or_else(|error| {
            super::say_stranger(interface, &error);
            None
        })
    }

    /// The agent's age: the time since it started.
    pub fn age(&mut self) -> Result<Duration, AgentError> {
        match self.ask(Question::Age)? {
            Answer::Age(ms) => Ok(Duration::from_millis(ms)),
            _ => Err(AgentError::Unknown),
        }
    }

    /// Has a card asked that it does not know: a moment later it knows it, if it is there.
    pub fn seek(&mut self, nic_id: u64) -> Result<(), AgentError> {
        match self.ask(Question::Seek(nic_id))? {
            Answer::Done => Ok(()),
            _ => Err(AgentError::Unknown),
        }
    }

    /// All interfaces that it knows, its own first.
    pub fn peers(&mut self) -> Result<Vec<KnownPeer>, AgentError> {
        let mut all: Vec<KnownPeer> = Vec::new();
        loop {
            let next = all.last().map_or(0, |peer| peer.index.saturating_add(1));
            match self.ask(Question::Peers(next))? {
                Answer::Peers(page) if page.is_empty() => return Ok(all),
                // An agent that is none of ours could go on for ever.
                Answer::Peers(page) if page[0].index >= next && next < u16::MAX => all.extend(page),
                _ => return Err(AgentError::Unknown),
            }
        }
    }

    /// The card of this name.
    pub fn nic_id_of(&mut self, name: &str) -> Result<Option<u64>, AgentError> {
        match self.ask(Question::NicIdOf(name))? {
            Answer::NicId(nic_id) => Ok(Some(nic_id)),
            Answer::Nobody => Ok(None),
            Answer::Several => Err(AgentError::Several),
            _ => Err(AgentError::Unknown),
        }
    }

    /// The name of this card.
    pub fn name_of(&mut self, nic_id: u64) -> Result<Option<String>, AgentError> {
        match self.ask(Question::NameOf(nic_id))? {
            Answer::Name(name) => Ok(Some(name)),
            Answer::Nobody => Ok(None),
            _ => Err(AgentError::Unknown),
        }
    }

    /// The agent's entry for this card of another host; `None` if it has none.
    pub fn peer(&mut self, nic_id: u64) -> Result<Option<KnownPeer>, AgentError> {
        match self.ask(Question::Peer(nic_id))? {
            Answer::Peers(mut found) if found.len() == 1 => Ok(found.pop()),
            Answer::Nobody => Ok(None),
            _ => Err(AgentError::Unknown),
        }
    }

    /// Others shall call the interface so.
    pub fn set_name(&mut self, name: &str) -> Result<(), AgentError> {
        match self.ask(Question::SetName(name))? {
            Answer::Done => Ok(()),
            Answer::NotPermitted => Err(AgentError::NotPermitted),
            _ => Err(AgentError::Unknown),
        }
    }

    /// The agent's counters, by names.
    pub fn counts(&mut self) -> Result<Vec<(String, u64)>, AgentError> {
        match self.ask(Question::Counts)? {
            Answer::Counts(lines) => Ok(crate::counts::parse_counts(&lines)),
            _ => Err(AgentError::Unknown),
        }
    }

    /// A mapper says: this card is there, and perhaps called so.
    pub fn add_peer(&mut self, nic_id: u64, name: Option<&str>) -> Result<(), AgentError> {
        match self.ask(Question::AddPeer(nic_id, name))? {
            Answer::Done => Ok(()),
            Answer::Nobody => Err(AgentError::NoCard(nic_id)),
            Answer::NotPermitted => Err(AgentError::NotPermitted),
            _ => Err(AgentError::Unknown),
        }
    }

    /// A mapper says: this card is not there any more. Whether it was.
    pub fn remove_peer(&mut self, nic_id: u64) -> Result<bool, AgentError> {
        match self.ask(Question::RemovePeer(nic_id))? {
            Answer::Done => Ok(true),
            Answer::Nobody => Ok(false),
            Answer::NotPermitted => Err(AgentError::NotPermitted),
            _ => Err(AgentError::Unknown),
        }
    }

    /// A mapper says this of its map.
    pub fn set_map(&mut self, map: Map) -> Result<(), AgentError> {
        match self.ask(Question::SetMap(map))? {
            Answer::Done => Ok(()),
            Answer::NotPermitted => Err(AgentError::NotPermitted),
            _ => Err(AgentError::Unknown),
        }
    }

    /// The last statement of a mapper about its map; `None` if there was no mapper.
    pub fn map(&mut self) -> Result<Option<Map>, AgentError> {
        match self.ask(Question::Map)? {
            Answer::Map(map) => Ok(Some(map)),
            Answer::Nobody => Ok(None),
            _ => Err(AgentError::Unknown),
        }
    }

    fn ask(&mut self, question: Question<'_>) -> Result<Answer, AgentError> {
        local::say(&self.socket, &question.emit(), true)?;
        match local::hear(&self.socket, &mut self.buffer, true)? {
            [] => Err(Errno::CONNRESET.into()),
            bytes => Answer::parse(bytes).ok_or(AgentError::Unknown),
        }
    }
}
