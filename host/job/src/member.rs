//! The side of a rank: who it is, and its exchange with the others.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use thiserror::Error;

use crate::exchange::{PART_BYTES_MAX, decode};
use crate::frame::{Frame, Kind};
use crate::{JOB_VARIABLE, KEY_VARIABLE, RANK_VARIABLE, RANKS_MAX, SIZE_VARIABLE};

/// How long a rank that ends the job waits to be ended.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// The job that this process belongs to.
#[derive(Debug)]
pub struct Job {
    rank: u32,
    size: u32,
    /// To its agent; `None` for a rank that is alone.
    agent: Option<UnixStream>,
}

/// Why a process takes no part in a job.
#[derive(Debug, Error)]
pub enum JobError {
    #[error("{0} is missing or no number of a rank: start this program with 'ropewalk run'")]
    Variable(&'static str),
    #[error(
        "cannot reach the agent of this job: {0}; was this program started by 'ropewalk run' that still runs?"
    )]
    Agent(std::io::Error),
    #[error("the job has ended: {0}")]
    Ended(std::io::Error),
    #[error("a part of an exchange has {0} bytes, and may have {PART_BYTES_MAX}")]
    Long(usize),
    #[error("the agent of this job says what no agent says")]
    Malformed,
}

impl Job {
    /// The job that `ropewalk run` started this process for; a process that was started otherwise is a job of one rank.
    ///
    /// # Errors
    /// The environment contradicts itself, or the job's agent cannot be reached.
    pub fn join() -> Result<Job, JobError> {
        let variable = |name| std::env::var(name).ok();
        let Some(rank) = variable(RANK_VARIABLE) else {
            return Ok(Job { rank: 0, size: 1, agent: None });
        };
        let rank = rank.parse().map_err(|_| JobError::Variable(RANK_VARIABLE))?;
        let size = variable(SIZE_VARIABLE).and_then(|size| size.parse().ok());
        let is_size = |size: &u32| (1..=RANKS_MAX).contains(size) && rank < *size;
        let size = size.filter(is_size).ok_or(JobError::Variable(SIZE_VARIABLE))?;
        let name = variable(JOB_VARIABLE).ok_or(JobError::Variable(JOB_VARIABLE))?;
        let key = variable(KEY_VARIABLE).ok_or(JobError::Variable(KEY_VARIABLE))?;
        let agent = SocketAddr::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address));
        let mut agent = agent.map_err(JobError::Agent)?;
        Frame::new(Kind::Hello, rank, key).write(&mut agent).map_err(JobError::Agent)?;
        Ok(Job { rank, size, agent: Some(agent) })
    }

    /// The number of this rank, below [`Self::size`].
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Gives some bytes, and waits for those of all ranks, by rank. All ranks call this as often, and in the same order.
    ///
    /// # Errors
    /// The part is too long, or the job has ended.
    pub fn all_gather(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        if part.len() > PART_BYTES_MAX {
            return Err(JobError::Long(part.len()));
        }
        let Some(agent) = &mut self.agent else { return Ok(vec![part.to_vec()]) };
        Frame::new(Kind::Part, self.rank, part).write(agent).map_err(JobError::Ended)?;
        match Frame::read(agent).map_err(JobError::Ended)? {
            Some(frame) if frame.kind == Kind::Parts => {
                decode(&frame.bytes, self.size).ok_or(JobError::Malformed)
            }
            Some(_) => Err(JobError::Malformed),
            None => Err(JobError::Ended(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// The job has ended.
    pub fn barrier(&mut self) -> Result<(), JobError> {
        self.all_gather(&[]).map(drop)
    }

    /// Ends the whole job with a status and a sentence that says why.
    pub fn abort(mut self, status: u8, why: &str) -> ! {
        let told = self.agent.as_mut().is_some_and(|agent| {
            let words = [&[status], why.as_bytes()].concat();
            let told = Frame::new(Kind::Abort, self.rank, words).write(agent).is_ok();
            // The end of this process is not to be heard before its reason: the launcher ends it.
            let _ = agent.set_read_timeout(Some(LAST_WAIT)).and_then(|()| agent.read(&mut [0]));
            told
        });
        if !told {
            let _ = writeln!(std::io::stderr(), "{why}");
        }
        std::process::exit(status.into());
    }
}
