//! Servers, capacity, counters and sessions of a cluster, at one moment.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::task::join_all;
use ropewalk_base::text::printable;
use ropewalk_base::timing::Histogram;
use ropewalk_wire::fs::data::{DataReply, DataRequest};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest};
pub use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::status::{Activity, Figure};

use super::{Operator, OperatorError, PAGE_BYTES};

/// Longest address, name or kind of a request that is shown, in characters.
const TEXT_MAX: usize = 1024;
/// The time limit of a server's sign of life: a caller with more patience wants answers of servers that live,
/// not to wait for dead ones.
const LIFE_SIGN: Duration = Duration::from_secs(4);

/// Calls and file bytes of one kind since a server's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    pub calls: u64,
    pub bytes: u64,
    /// Of the calls that were answered, from their arrival to their reply.
    pub times: Histogram,
}

impl Done {
    fn since(&self, before: Option<&Done>) -> Done {
        let before = before.copied().unwrap_or_default();
        Done {
            calls: self.calls.saturating_sub(before.calls),
            bytes: self.bytes.saturating_sub(before.bytes),
            times: self.times.since(&before.times),
        }
    }
}

/// The calls and bytes of a server since its start, by kind of request.
pub type Activities = BTreeMap<String, Done>;

/// The increase over earlier figures of the same life of a server; all figures where the lives differ.
pub fn since(now: &Activities, before: Option<&Activities>) -> Activities {
    now.iter()
        .map(|(kind, done)| {
            let before = before.and_then(|before| before.get(kind));
            (kind.clone(), done.since(before))
        })
        .filter(|(_, done)| done.calls > 0)
        .collect()
}

/// Figures of a server by their names in the catalogue of metrics.
pub type Figures = BTreeMap<String, u64>;

/// The metadata server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaState {
    pub server: u32,
    pub address: String,
    /// This life of the server.
    pub boot: u64,
    pub uptime: Duration,
    pub inodes: u64,
    pub sessions: u32,
    /// Calls that wait.
    pub waiting: u32,
    /// Batches in the journal: the newest, the newest written, the newest durable one.
    pub position: u64,
    pub written: u64,
    pub durable: u64,
    pub in_grace: bool,
    /// Nothing new is made, for lack of room, until so many bytes are freed (0: it does not know).
    pub full: bool,
    pub missing_bytes: u64,
    /// On the disk of the metadata, where that tells.
    pub room: Option<Room>,
    /// Removed files whose objects are on their way out, and files that are being cut.
    pub reaps: u32,
    pub cuts: u32,
    pub pool_version: u32,
    pub pool_servers: u32,
    pub activities: Activities,
    /// The work of its journal and of its disk.
    pub work: Activities,
    pub figures: Figures,
}

/// The status that a data server reports of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataState {
    pub boot: u64,
    pub uptime: Duration,
    pub room: Room,
    pub objects: u64,
    pub object_bytes: u64,
    /// Bytes of the log that a crash would replay.
    pub log_bytes: u64,
    pub corrupt_blocks: u64,
    pub checksum_errors: u64,
    /// Requests that wait or work.
    pub under_way: u32,
    pub activities: Activities,
    /// The work of its disk.
    pub work: Activities,
    pub figures: Figures,
}

/// A data server as the metadata server knows it, and its own answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerState {
    pub server: u32,
    /// Empty where the metadata server never heard of it in its present life.
    pub address: String,
    /// Since its last heartbeat.
    pub silence: Option<Duration>,
    /// The room that it reported last; none where it was not heard of.
    pub room: Room,
    /// Heard of lately.
    pub alive: bool,
    /// Nearly: it gets no new files.
    pub full: bool,
    /// New files may use it.
    pub in_pool: bool,
    /// Fences that it has yet to be told.
    pub fences_owed: u32,
    /// The name of its failure domain; empty where it was not heard of.
    pub domain: String,
    /// None: it does not answer, or answers as another server.
    pub answer: Option<DataState>,
}

/// A data server that asked to join under a number that the cluster does not have, and was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    pub server: u32,
    pub address: String,
    /// The time since it asked.
    pub asked: Duration,
}

/// A client's session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionState {
    pub session: u64,
    /// The name that the client gives itself, where that is known.
    pub name: String,
    /// Until it ends, unless something is heard of the client.
    pub left: Duration,
    /// Inodes on which it holds a lease or which it has open.
    pub inodes: u64,
    pub fencing: bool,
}

/// A cluster at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterState {
    pub meta: MetaState,
    pub servers: Vec<ServerState>,
    pub askers: Vec<Asker>,
}

impl Operator {
    /// Asks all servers for their activity and contents.
    pub async fn status(&self) -> Result<ClusterState, OperatorError> {
        let meta = self.meta_state().await?;
        let (mut servers, askers) = self.servers_and_askers().await?;
        let answers = join_all(servers.iter().map(|known| self.data_state(known.server))).await;
        for (server, answer) in servers.iter_mut().zip(answers) {
            server.answer = answer;
        }
        Ok(ClusterState { meta, servers, askers })
    }

    /// The status that the metadata server reports of itself.
    pub async fn meta_state(&self) -> Result<MetaState, OperatorError> {
        let address = self.meta.address.clone();
        let asked = self.ask_meta(&MetaRequest::Status, |reply, boot| match reply {
            MetaReply::Status(status) => Some(MetaState {
                server: status.server,
                address,
                boot,
                uptime: Duration::from_millis(status.uptime),
                inodes: status.inodes,
                sessions: status.sessions,
                waiting: status.waiting,
                position: status.position,
                written: status.written,
                durable: status.durable,
                in_grace: status.in_grace,
                full: status.full,
                missing_bytes: status.missing_bytes,
                room: status.room,
                reaps: status.reaps,
                cuts: status.cuts,
                pool_version: status.pool_version,
                pool_servers: status.pool_servers,
                activities: activities(&status.activities),
                work: activities(&status.work),
                figures: figures(&status.figures),
            }),
            _ => None,
        });
        let silent = || OperatorError::Silent { server: self.meta.name.clone() };
        self.world.timeout(LIFE_SIGN, asked).await.ok_or_else(silent)?
    }

    /// All data servers that the metadata server knows; none is asked.
    pub async fn servers(&self) -> Result<Vec<ServerState>, OperatorError> {
        Ok(self.servers_and_askers().await?.0)
    }

    async fn servers_and_askers(&self) -> Result<(Vec<ServerState>, Vec<Asker>), OperatorError> {
        let (mut all, mut askers) = (Vec::new(), Vec::new());
        let mut from = 0;
        loop {
            let request = MetaRequest::ListServers { from, bytes_max: PAGE_BYTES };
            let ((page, asked), last, end) = self
                .ask_meta(&request, |reply, _| match reply {
                    MetaReply::Servers { servers, end } => {
                        let last = servers.last().map(|last| last.server);
                        let asked = servers.iter().filter_map(|known| {
                            Some(Asker {
                                server: known.server,
                                address: printable(known.address.0, TEXT_MAX),
                                asked: Duration::from_millis(known.asked?),
                            })
                        });
                        let known = servers.iter().filter(|known| known.asked.is_none());
                        let known = known.map(|known| ServerState {
                            server: known.server,
                            address: printable(known.address.0, TEXT_MAX),
                            silence: known.silence.map(Duration::from_millis),
                            room: known.room,
                            alive: known.alive,
                            full: known.full,
                            in_pool: known.in_pool,
                            fences_owed: known.fences_owed,
                            domain: printable(known.domain.0, TEXT_MAX),
                            answer: None,
                        });
                        let page = (known.collect::<Vec<_>>(), asked.collect::<Vec<_>>());
                        Some((page, last, end))
                    }
                    _ => None,
                })
                .await?;
            for known in &page {
                self.note_server(known.server, &known.address);
            }
            all.extend(page);
            askers.extend(asked);
            match last.and_then(|last| last.checked_add(1)) {
                Some(next) if !end => from = next,
                _ => return Ok((all, askers)),
            }
        }
    }

    async fn data_state(&self, id: u32) -> Option<DataState> {
        let asked = self.ask_data(id, &DataRequest::Status, |reply, boot| match reply {
            // Its address may be another server's by now.
            DataReply::Status(status) if status.server == id => Some(DataState {
                boot,
                uptime: Duration::from_millis(status.uptime),
                room: status.room,
                objects: status.objects,
                object_bytes: status.object_bytes,
                log_bytes: status.log_bytes,
                corrupt_blocks: status.corrupt_blocks,
                checksum_errors: status.checksum_errors,
                under_way: status.under_way,
                activities: activities(&status.activities),
                work: activities(&status.work),
                figures: figures(&status.figures),
            }),
            _ => None,
        });
        self.world.timeout(LIFE_SIGN, asked).await?.ok()
    }

    /// The first `most` sessions with the metadata server.
    pub async fn sessions(&self, most: usize) -> Result<Vec<SessionState>, OperatorError> {
        let mut all: Vec<SessionState> = Vec::new();
        let mut after = 0;
        loop {
            let request = MetaRequest::ListSessions { after, bytes_max: PAGE_BYTES };
            let (page, end) = self
                .ask_meta(&request, |reply, _| match reply {
                    MetaReply::Sessions { sessions, end } => {
                        let known = sessions.iter().map(|info| SessionState {
                            session: info.session,
                            name: printable(info.name.0, TEXT_MAX),
                            left: Duration::from_millis(info.left),
                            inodes: info.inodes,
                            fencing: info.fencing,
                        });
                        Some((known.collect::<Vec<_>>(), end))
                    }
                    _ => None,
                })
                .await?;
            let last = page.last().map(|last| last.session);
            all.extend(page);
            all.truncate(most);
            match last {
                Some(last) if !end && all.len() < most => after = last,
                _ => return Ok(all),
            }
        }
    }
}

fn activities(list: &[Activity<'_>]) -> Activities {
    list.iter()
        .map(|activity| {
            let kind = printable(activity.kind.0, TEXT_MAX);
            let Activity { calls, bytes, times, .. } = *activity;
            (kind, Done { calls, bytes, times: times.into() })
        })
        .collect()
}

fn figures(list: &[Figure<'_>]) -> Figures {
    list.iter().map(|figure| (printable(figure.name.0, TEXT_MAX), figure.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_since_is_the_difference_within_one_life() {
        let figures = |calls, bytes| {
            let times = Histogram { micros: calls * 10, ..Histogram::default() };
            Activities::from([("write".into(), Done { calls, bytes, times })])
        };
        assert_eq!(since(&figures(9, 70), Some(&figures(4, 50))), figures(5, 20));
        assert_eq!(since(&figures(9, 70), None), figures(9, 70));
        assert!(since(&figures(9, 70), Some(&figures(9, 70))).is_empty());
    }
}
