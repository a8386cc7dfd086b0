//! The admission of calls: the requests that each caller may make.
//!
//! Invariants (`docs/design/071-trust.md`):
//! * a session is used, renewed and closed by the endpoint that opened it, and with the token that it got
//!   then: on some networks every host hears which endpoints there are. A caller without both learns only
//!   that it has no such session;
//! * heartbeats come from data servers that have proven to be those of their numbers;
//! * requests that show or change the whole file system, regardless of file owners, come from members of the
//!   cluster, or from the users that could open its stores: root and the server's own;
//! * a session gets the identity that its opener has proven. The shard holds it to that (`identity.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_net::PeerId;
use ropewalk_net::host::groups_of;
use ropewalk_net::peers::PeerUser;
use ropewalk_rpc::Incoming;
use ropewalk_wire::fs::exports::{Asker, Rights};
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::meta::{MetaRequest, ROOT};
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::Errno;

use super::MetaServer;
use crate::exports::DEFAULT_EXPORT;
use crate::identity::{Identity, Limit};
use crate::sessions::SessionOwner;

/// Why a call is not served.
pub(super) enum Turned {
    /// It is none, as a call.
    Away(Status),
    /// Its request may not be made.
    Down(Errno),
}

/// The time for which a user's groups count as known, and the number of users remembered.
const GROUPS_KEPT: Duration = Duration::from_secs(60);
const USERS_MAX: usize = 1024;

/// The groups of users of this host: asked for once a minute, however often sessions are opened.
#[derive(Default)]
pub(super) struct Groups {
    users: BTreeMap<u32, (Time, Vec<u32>)>,
}

impl Groups {
    fn of(&mut self, user: u32, now: Time) -> Vec<u32> {
        self.users.retain(|_, (asked, _)| now.since(*asked) < GROUPS_KEPT);
        if self.users.len() >= USERS_MAX {
            self.users.pop_first();
        }
        let (_, groups) = self.users.entry(user).or_insert_with(|| (now, groups_of(user)));
        groups.clone()
    }
}

/// Whether a request is for those only who look after the cluster.
fn is_administrative(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::ListSessions { .. }
            | MetaRequest::ListInodes { .. }
            | MetaRequest::GetInodes { .. }
            | MetaRequest::GetPath { .. }
            | MetaRequest::Inspect { .. }
            | MetaRequest::Discard { .. }
            | MetaRequest::Admit { .. }
            | MetaRequest::Order(_)
            | MetaRequest::Export(_)
            | MetaRequest::Upgrade(_)
            | MetaRequest::Vouch { .. }
    )
}

impl MetaServer {
    /// Whether the sender may make a request, as far as it depends on who sends it. The shard judges it by the
    /// session.
    pub(super) fn admit(
        &self,
        incoming: &Incoming,
        request: &MetaRequest<'_>,
    ) -> Result<(), Turned> {
        let session = incoming.head.session;
        let own = match request {
            MetaRequest::Heartbeat(beat) => Some(beat.server),
            MetaRequest::SetStep(step) => Some(step.by),
            MetaRequest::TellGroups(telling) => Some(telling.server),
            MetaRequest::MayClean { server, .. } => Some(*server),
            _ => None,
        };
        if let Some(number) = own {
            let member = Member { role: Role::Data, number };
            return match incoming.member == Some(member) {
                true => Ok(()),
                false => Err(self.stranger(Turned::Away(Status::Unproven))),
            };
        }
        if is_administrative(request) && !self.is_administrator(incoming) {
            return Err(self.stranger(Turned::Down(Errno::EPERM)));
        }
        if session == 0 {
            return Ok(());
        }
        let Some(shard) = self.shard() else { return Err(Turned::Away(Status::Unavailable)) };
        let Some(row) = shard.sessions.get(session).map(|found| &found.row) else {
            return Err(Turned::Away(Status::NoSession));
        };
        if !self.is_owner(session, &row.owner, incoming) {
            return Err(self.stranger(Turned::Away(Status::NoSession)));
        }
        Ok(())
    }

    /// Whether a call about a session itself comes from whose it is.
    pub(super) fn may_end(&self, session: u64, incoming: &Incoming) -> bool {
        let Some(shard) = self.shard() else { return false };
        let Some(found) = shard.sessions.get(session) else { return false };
        let is_owner = self.is_owner(session, &found.row.owner, incoming);
        if !is_owner {
            self.count_stranger();
        }
        is_owner
    }

    /// Whether who sent a call owns a session, and shows its token.
    fn is_owner(&self, session: u64, owner: &SessionOwner, incoming: &Incoming) -> bool {
        let (origin, token) = (incoming.origin, incoming.head.token);
        if owner.origin() != origin {
            return false;
        }
        if self.clients.has_shown(session, token) {
            return true;
        }
        let limited = self.grantor.check_token(session, origin, token);
        let proven = limited == Some(owner.is_bound());
        if proven {
            self.clients.note_token(session, token);
        }
        proven
    }

    /// Whether somebody looks after the cluster: a member of it, or a user of this host who could read the
    /// secret, too.
    pub(super) fn is_administrator(&self, incoming: &Incoming) -> bool {
        let own = || self.endpoint.endpoint().peer_user(incoming.peer) == PeerUser::Own;
        incoming.member.is_some() || own() || self.has_admin_export(incoming)
    }

    /// Whether the sender is a client of an export whose clients look after the cluster.
    fn has_admin_export(&self, incoming: &Incoming) -> bool {
        // A plain user of this host is no administrator, whatever his host may do.
        if !matches!(self.endpoint.endpoint().peer_user(incoming.peer), PeerUser::Unknown) {
            return false;
        }
        let export = self.choose_export(incoming, false);
        let shard = self.shard();
        let terms = export.zip(shard.as_ref()).and_then(|(number, shard)| shard.export(number));
        terms.is_some_and(|export| export.rights == Rights::Admin)
    }

    /// The export for the sender of a call; none where exports are for others only.
    fn choose_export(&self, incoming: &Incoming, local: bool) -> Option<u32> {
        let endpoint = self.endpoint.endpoint();
        let node = endpoint.peer_node(incoming.peer);
        let host = endpoint.peer_host(incoming.peer);
        // A link-local address has its interface behind it.
        let host = host.as_deref().map(|host| host.split('%').next().unwrap_or(host));
        let address = host.and_then(|host| host.parse().ok());
        let asker = Asker { node: node.as_deref(), address, local };
        self.shard()?.choose_export(&asker)
    }

    /// Whether a session goes on under its export. Where exports have changed, the client is looked at once: its session ends
    /// if it would get another export now, or none.
    pub(super) fn keeps_export(&self, session: u64, incoming: &Incoming) -> bool {
        let identity = {
            let Some(shard) = self.shard() else { return true };
            let known = shard.sessions.get(session).filter(|_| !shard.is_full());
            match known.filter(|_| shard.is_unjudged(session)) {
                Some(known) => known.row.owner.identity.clone(),
                None => return true,
            }
        };
        let export = match identity {
            Identity::Own | Identity::Member { .. } => Some(DEFAULT_EXPORT),
            Identity::User(_) => self.choose_export(incoming, true),
            Identity::Unproven => self.choose_export(incoming, false),
        };
        let Some(mut shard) = self.shard() else { return true };
        let judged = shard.judge_client(session, export);
        drop(shard);
        judged.unwrap_or_else(|error| {
            self.fail(&error);
            false
        })
    }

    /// The root of a session's export.
    pub(super) fn root_of(&self, session: u64) -> u64 {
        let Some(shard) = self.shard() else { return ROOT };
        let number = shard.sessions.get(session).map_or(DEFAULT_EXPORT, |it| it.row.owner.export);
        shard.export(number).map_or(ROOT, |export| export.root)
    }

    /// The export of a session that is about to be opened.
    pub(super) fn export_of(
        &self,
        incoming: &Incoming,
        identity: &Identity,
    ) -> Result<u32, Turned> {
        let local = match identity {
            // They could read the stores as well.
            Identity::Own | Identity::Member { .. } => return Ok(DEFAULT_EXPORT),
            Identity::User(_) => true,
            Identity::Unproven => false,
        };
        self.choose_export(incoming, local).ok_or_else(|| {
            let endpoint = self.endpoint.endpoint();
            let node = endpoint.peer_node(incoming.peer).map(|node| format!("node {node}"));
            let host = || endpoint.peer_host(incoming.peer).map(|host| format!("a client on {host}"));
            let client = node.or_else(host).unwrap_or_else(|| "a client".to_owned());
            self.lines.say(&format!(
                "refused a session to {client}: no export is for it; 'ropewalk export list' shows them"
            ));
            self.stranger(Turned::Down(Errno::EACCES))
        })
    }

    /// The identity of who opens a session: first by the word of the kernel, then by the secret. A process that may
    /// be on this host, and whose user the kernel does not tell, gets no session.
    pub(super) fn identity_of(&self, incoming: &Incoming) -> Result<Identity, Turned> {
        let user = match self.endpoint.endpoint().peer_user(incoming.peer) {
            PeerUser::Unknown => {
                return Ok(match incoming.member {
                    Some(Member { role, number }) => Identity::Member { role, number },
                    None => Identity::Unproven,
                });
            }
            PeerUser::Own => return Ok(Identity::Own),
            PeerUser::Other(user) => user,
            // His client connects anew, and asks again.
            PeerUser::Gone => return Err(Turned::Away(Status::Unavailable)),
            PeerUser::Untold => {
                self.lines.say(
                    "refused a session: the kernel does not tell which user of this host connects",
                );
                return Err(self.stranger(Turned::Down(Errno::EACCES)));
            }
        };
        let groups = self.groups.borrow_mut().of(user, self.world.now());
        Ok(Identity::User(Limit { user, groups }))
    }

    pub(super) fn stranger(&self, turned: Turned) -> Turned {
        self.count_stranger();
        turned
    }

    pub(super) fn count_stranger(&self) {
        if self.counters.refuse() == 0 {
            self.lines.say(
                "refused calls of programs that are not servers of this cluster: 'ropewalk status \
                 --json' counts them",
            );
        }
    }

    /// Somebody calls himself a member and does not know the secret.
    pub(super) fn note_pretender(&self, member: Member, peer: PeerId) {
        self.counters.refuse();
        let host = self.endpoint.endpoint().peer_host(peer);
        let host = host.map_or_else(String::new, |host| format!(" on {host}"));
        let Member { role, number } = member;
        self.lines.say(&match role {
            Role::Data => format!(
                "refused data server {number}{host}, which does not know this cluster's secret: \
                 copy the file 'cluster' to that host"
            ),
            _ => format!("refused a caller{host} that does not know this cluster's secret"),
        });
    }
}
