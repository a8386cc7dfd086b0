//! A rank of a job: it finds the others, and makes a team with them. The C library and programs in Rust begin here.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_face_common::endpoint_config;
use ropewalk_host_job::{Job, JobError};
use ropewalk_net::modules::{self, Listen, ModuleError};
use ropewalk_net::{Endpoint, Group, GroupError};
use ropewalk_rma::{Error, Team};
use thiserror::Error;

/// Programs that use windows are among themselves: they reach no file system by mistake, nor programs of other faces.
const CLUSTER: ClusterId = ClusterId(0x524f_5045_5741_4c4b_2052_4d41_0000_0001);
/// The upper bits of tagged messages: those of the group, and those of the team.
const GROUP_TAG: u64 = 1 << 48;
const TEAM_TAG: u64 = 2 << 48;
/// The addresses to listen at.
const LISTEN: &str = "ROPEWALK_RMA_LISTEN";
/// Shared memory for ranks of this host, and TCP at all of its interfaces for others: one rail, or one for each interface that
/// `ROPEWALK_INTERFACES` names.
const LISTEN_USUALLY: &str = "shm://,tcp://0.0.0.0:0";
/// How long the end waits until what was sent has reached its ranks.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// This process as a rank, from its start to its end.
pub struct Process {
    job: Mutex<Option<Job>>,
    endpoint: Endpoint,
    team: Team,
}

/// Why a process is no rank, or does not end as one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("{variable} has '{0}', which is no address: write it like tcp://10.0.0.1:0", variable = LISTEN)]
    Address(String),
    #[error("cannot listen at {address}: {why}")]
    Network { address: String, why: ModuleError },
    #[error("cannot open an endpoint: {0}")]
    Endpoint(std::io::Error),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Team(#[from] Error),
}

impl Process {
    /// Joins the job that `ropewalk run` started this process for, and finds the other ranks. A process that was started
    /// otherwise is a job of one rank. All ranks call it, once in the life of a process.
    ///
    /// # Errors
    /// The job cannot be joined, or a network not be opened.
    pub fn start() -> Result<Process, ProcessError> {
        let mut job = Job::join()?;
        let rank = job.rank();
        let listen = std::env::var(LISTEN).unwrap_or_else(|_| LISTEN_USUALLY.to_string());
        let rails = open_all(&listen)?;
        let endpoint = Endpoint::open(endpoint_config(CLUSTER), rails);
        let endpoint = endpoint.map_err(ProcessError::Endpoint)?;
        ropewalk_host_paths::show(&endpoint, &format!("rank {rank}"));
        let exchange = |own: &[u8]| job.all_gather(own);
        let group = Group::find(&endpoint, rank, GROUP_TAG, exchange)?;
        let team = Team::new(&endpoint, &group, TEAM_TAG)?;
        group.leave(&endpoint);
        Ok(Process { job: Mutex::new(Some(job)), endpoint, team })
    }

    /// All ranks.
    pub fn team(&self) -> &Team {
        &self.team
    }

    fn job(&self) -> std::sync::MutexGuard<'_, Option<Job>> {
        self.job.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All ranks come together, and this one is none any more: windows that were not freed are out of reach. All ranks call
    /// it.
    ///
    /// # Errors
    /// A rank is lost; this one has ended all the same.
    pub fn end(&self) -> Result<(), ProcessError> {
        let together = self.team.barrier();
        self.team.settle(SETTLE_MAX);
        // Nobody closes an endpoint that another one still settles with. A rank that is lost would be waited for.
        let settled = match together.is_ok() {
            true => self.job().as_mut().map_or(Ok(()), Job::barrier),
            false => Ok(()),
        };
        self.endpoint.close();
        together?;
        Ok(settled?)
    }

    /// Ends the whole job with a status and a sentence that says why.
    pub fn abort(&self, status: u8, why: &str) -> ! {
        let job = self.job().take();
        match job {
            Some(job) => job.abort(status, why),
            // Another thread does it.
            None => loop {
                std::thread::park();
            },
        }
    }
}

/// A rail for each address, and for each interface that the environment names (`ROPEWALK_INTERFACES`) where an address stands for
/// all of them: then a job outlives the loss of one.
fn open_all(listen: &str) -> Result<Vec<Box<dyn modules::Rail>>, ProcessError> {
    let mut rails = Vec::new();
    for address in listen.split(',') {
        let parts = address.split_once("://");
        let (scheme, place) = parts.ok_or_else(|| ProcessError::Address(address.to_string()))?;
        let failed = |why| ProcessError::Network { address: address.to_string(), why };
        let open = |place: &str| {
            let listen = Listen::At { address: place, exactly: true };
            modules::open(scheme, &listen).map_err(failed)
        };
        let is_of_all = ["0.0.0.0:", "[::]:"].iter().any(|host| place.starts_with(host));
        let named = match is_of_all && !place.contains('?') && modules::can_bind(scheme) {
            true => ropewalk_net::interfaces().map_err(failed)?,
            false => &[],
        };
        if named.is_empty() {
            rails.push(open(place)?);
        }
        for name in named {
            rails.push(open(&format!("{place}?interface={name}"))?);
        }
    }
    Ok(rails)
}
