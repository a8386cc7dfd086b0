//! A thread that injects and mends faults at their times.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::inject::Injected;
use crate::network::Network;

/// Injects and mends faults at their times, until it is stopped or dropped; then all of them are mended.
#[derive(Debug)]
pub struct Player {
    start: Instant,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<Result<Vec<Played>>>>,
}

/// A fault that was there for a while.
#[derive(Debug, Clone, Copy)]
pub struct Played {
    pub fault: Fault,
    /// When its first command was given; it took effect between this time and `took` later.
    pub begun: Instant,
    pub took: Duration,
    /// When the last command that mended it was over.
    pub mended: Instant,
}

impl Player {
    pub(crate) fn start(network: Arc<Network>, faults: Vec<Fault>) -> Result<Player> {
        let (stop, stopped) = channel();
        let start = Instant::now();
        let thread = std::thread::Builder::new()
            .name("ropewalk-faults".to_string())
            .spawn(move || play(&network, &faults, start, &stopped))
            .map_err(|error| Error::system("cannot start a thread", error))?;
        Ok(Player { start, stop: Some(stop), thread: Some(thread) })
    }

    /// The time from which the times of its faults are counted.
    pub fn started(&self) -> Instant {
        self.start
    }

    /// Waits until all faults have been mended. Returns them in the order in which they were mended; or the first
    /// error, which ends the play.
    pub fn finish(mut self) -> Result<Vec<Played>> {
        self.join()
    }

    /// Mends what is there, and injects no more. Returns as [`finish`](Player::finish) does.
    pub fn stop(mut self) -> Result<Vec<Played>> {
        self.stop = None;
        self.join()
    }

    fn join(&mut self) -> Result<Vec<Played>> {
        let Some(thread) = self.thread.take() else { return Ok(Vec::new()) };
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && let Ok(Err(error)) = thread.join()
        {
            eprintln!("faults were not injected and mended as planned: {error}");
        }
    }
}

fn play(
    network: &Arc<Network>,
    faults: &[Fault],
    start: Instant,
    stopped: &Receiver<()>,
) -> Result<Vec<Played>> {
    let begin = faults.iter().enumerate().map(|(number, fault)| (fault.at, true, number));
    let end = faults.iter().enumerate().map(|(number, fault)| (fault.end(), false, number));
    let mut steps: Vec<(Duration, bool, usize)> = begin.chain(end).collect();
    // What ends comes before what begins at the same time.
    steps.sort_unstable();
    let mut present: Vec<Option<Injected>> = faults.iter().map(|_| None).collect();
    let mut played = Vec::new();
    let mut mend = |injected: Injected| {
        let (fault, begun, took) = (*injected.fault(), injected.begun(), injected.took());
        injected.mend()?;
        played.push(Played { fault, begun, took, mended: Instant::now() });
        Ok(())
    };
    for (at, is_begin, number) in steps {
        let left = (start + at).saturating_duration_since(Instant::now());
        if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
            break;
        }
        if is_begin {
            present[number] = Some(Injected::new(network.clone(), &faults[number])?);
        } else {
            present[number].take().map_or(Ok(()), &mut mend)?;
        }
    }
    present.into_iter().flatten().try_for_each(mend)?;
    Ok(played)
}
