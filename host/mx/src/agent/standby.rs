//! A process with endpoints on an interface that already has an agent: it tells the agent its own endpoints,
//! and waits for the agent's end.
//!
//! The holder of the agent's name is told the endpoints, even if it is a stranger's program: they are no
//! secret, and an agent that serves several users then refuses nobody's. The messages of a stranger are ignored.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use ropewalk_net::Teller;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::protocol::{ANSWER_BYTES_MAX, Answer, Question};
use super::{AgentError, Keeper};
use crate::local;

/// An agent that does not read for so long is asked no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Until the agent ends, or the last endpoint of this process.
pub fn stand_by(keeper: &Keeper, name: &str) {
    let index = keeper.key.index;
    let Ok(agent) = local::call(name, PATIENCE) else {
        if let Some(user) = ropewalk_rail_ether::stranger_at(name) {
            super::say_stranger(index, &AgentError::Stranger(user));
        }
        return;
    };
    let stranger = local::stranger(&agent);
    if let Some(user) = stranger {
        super::say_stranger(index, &AgentError::Stranger(user));
    }
    let (mut told, mut buffer) = (BTreeSet::new(), vec![0; ANSWER_BYTES_MAX]);
    if stranger.is_none() && tell_map(keeper, &agent, &mut buffer).is_err() {
        return;
    }
    while !keeper.is_over() {
        let endpoints = keeper.state().endpoints.clone();
        let new = endpoints.difference(&told).map(|endpoint| Question::Hold(*endpoint));
        let old = told.difference(&endpoints).map(|endpoint| Question::Release(*endpoint));
        for question in new.chain(old) {
            if local::say(&agent, &question.emit(), true).is_err() {
                return;
            }
        }
        told = endpoints;
        let teller = keeper.state().teller.clone();
        let mut fds = vec![agent.as_fd(), keeper.bell.as_fd()];
        fds.extend(teller.as_deref().map(|it| it.listener.descriptor()));
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let is_ready = |index: usize| fds.get(index).is_some_and(|it| !it.revents().is_empty());
        let (speaks, rings, asked) = (is_ready(0), is_ready(1), is_ready(2));
        if rings {
            keeper.heard();
        }
        if let Some(teller) = teller.filter(|_| asked) {
            keeper.tell(&teller);
        }
        if !speaks {
            continue;
        }
        match local::hear(&agent, &mut buffer, false) {
            Ok([]) => return,
            Ok(bytes) => {
                if let Some(Answer::Called(name)) =
                    Answer::parse(bytes).filter(|_| stranger.is_none())
                {
                    keeper.state().name = Some(name);
                }
            }
            Err(Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}

/// Tells an agent the statements of this process's mapper: the agent may have started with an empty table.
fn tell_map(keeper: &Keeper, agent: &OwnedFd, buffer: &mut [u8]) -> Result<(), Errno> {
    let mapped = keeper.state().mapped.clone();
    for question in mapped.questions() {
        local::say(agent, &question.emit(), true)?;
        // One after the other: an agent disconnects a client that does not read. A refused question was refused before.
        if local::hear(agent, buffer, true)?.is_empty() {
            return Err(Errno::CONNRESET);
        }
    }
    Ok(())
}
