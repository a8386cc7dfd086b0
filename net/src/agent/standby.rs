//! A process that has endpoints, and whose interface has an agent: it tells that its endpoints, and waits for its end.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::protocol::{ANSWER_BYTES_MAX, Answer, Question};
use super::{Keeper, local};

/// An agent that does not read for so long is asked no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// Until the agent ends, or the last endpoint of this process.
pub fn stand_by(keeper: &Keeper, name: &str) {
    let Ok(agent) = local::call(name, PATIENCE) else { return };
    let (mut told, mut buffer) = (BTreeSet::new(), vec![0; ANSWER_BYTES_MAX]);
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
        let mut fds = [&agent, &keeper.bell].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let [speaks, rings] = fds.map(|fd| !fd.revents().is_empty());
        if rings {
            keeper.heard();
        }
        if !speaks {
            continue;
        }
        match local::hear(&agent, &mut buffer, false) {
            Ok([]) => return,
            Ok(bytes) => {
                if let Some(Answer::Called(name)) = Answer::parse(bytes) {
                    keeper.state().name = Some(name);
                }
            }
            Err(Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}
