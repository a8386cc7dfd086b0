//! The history that this server's objects belong to, and its newest term. The history is asked for before the objects
//! are touched.
//!
//! Invariants:
//! * a store that never registered serves nobody: its number may belong to another one, whose
//!   objects clients would take for holes;
//! * the history is noted durably before the first object is made, and every heartbeat carries it;
//! * nothing is done on a metadata server's word before its term is noted durably, and nothing on the word of an older
//!   term than the one that is noted;
//! * the note is there twice and written in its place, so that a disk that is full takes it;
//! * a new store that is refused leaves its directory as empty as it was, unless it has voted.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::time::Duration;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, Open, write_twice};
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::task::Semaphore;
use ropewalk_base::text::printable;
use ropewalk_base::world::World;
use ropewalk_election::record;
use ropewalk_net::PeerId;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::{CallError, Connection, Options, Proof, Reply};
use ropewalk_store::superblock::{Boot, ClaimedDirectory, Starts};
use ropewalk_wire::fs::head::{REPLY_BYTES_MAX, Service};
use ropewalk_wire::fs::map::{Map, News, PART_BYTES};
use ropewalk_wire::fs::meta::{
    Clock, Heartbeat, MetaReply, MetaRequest, MetaResult, Registration, Step,
};
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::upgrade::Telling;
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

use crate::config::{DataConfig, DataError};
use crate::map_note::{NAME, Noted};

/// A heartbeat without an answer is given up after this long: its figures are old by then.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(500);
/// Room for the answer about one server.
const ONE_SERVER_BYTES: u32 = 4096;
const NEW_NAME: &str = "joined.new";
const MAGIC: &[u8; 8] = b"RWJOINED";
pub(crate) const BYTES: usize = 36;
/// Of the format that had no term.
pub(crate) const SHORT_BYTES: usize = 28;
/// The offset of the second copy: in a sector of its own.
const SECOND_AT: usize = 512;
const FILE_BYTES: usize = SECOND_AT + BYTES;

/// Why the metadata server does not take this server. It is final: the server ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    #[error(
        "{path} is empty, but data server {server} had data: mount the right disk, or give its \
         data up by --replace (every stripe on it is then lost; reading the files that had stripes \
         there fails, and 'ropewalk check' lists them)"
    )]
    Emptied { path: String, server: ServerId },
    #[error(
        "{path} does not hold the data that data server {server} had: mount the right disk, or \
         give that data up by --replace (every stripe on it is then lost; reading the files that \
         had stripes there fails, and 'ropewalk check' lists them)"
    )]
    OtherStore { path: String, server: ServerId },
    #[error(
        "{path} is an older copy of the data that data server {server} had: restore the newer one; \
         if that is lost, start with an empty directory and --replace (every stripe on it is then \
         lost; reading the files that had stripes there fails, and 'ropewalk check' lists them)"
    )]
    OlderStore { path: String, server: ServerId },
    #[error(
        "the metadata server runs on an older copy of its directory than the one that {path} \
         knows: restore the newer one. If that is lost, stop the metadata server, and make a new \
         store of the older copy by 'ropewalk meta dump OLD FILE' and 'ropewalk meta restore FILE \
         NEW' (NEW is an empty directory): data servers take that one. Files that were changed \
         since may have lost data: 'ropewalk check' lists them"
    )]
    OlderMetadata { path: String },
    #[error(
        "another process already runs as data server {server}, at {address}: stop it, or use a \
         number that the cluster does not have yet (--server)"
    )]
    Alive { server: ServerId, address: String },
    #[error(
        "{path} holds data of files that the metadata server at that address does not know, as its \
         file 'joined' shows: restore the metadata server's directory, or the right file 'joined'; \
         to give those files up, start with an empty directory"
    )]
    OtherMetadata { path: String },
    #[error(
        "{path} belongs to cluster {own}, but the metadata server at that address serves cluster \
         {found}: check --meta, --directory and --cluster-file"
    )]
    OtherCluster { path: String, own: ClusterId, found: ClusterId },
    #[error(
        "{path} and the metadata server at that address do not have the same secret: copy the file \
         'cluster' from the metadata server's host (mode 600), and name the copy by --cluster-file"
    )]
    OtherSecret { path: String },
    #[error(
        "the cluster does not have a data server {server} yet: admit it by 'ropewalk server add \
         {server}' on the metadata server's host, or start it with --admit"
    )]
    NotAdmitted { server: ServerId },
}

/// The outcome of a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The server is the one of its number.
    Taken {
        history: u128,
        start: u64,
        /// The epoch of the map.
        map: u32,
        /// What newcomers are sent at most; 0: no limit.
        mib_per_second: u32,
        clock: Clock,
    },
    /// It was known by this start before.
    KnownBy(u64),
    /// No answer.
    No,
    /// The answering metadata server serves in an older term than the one that is noted.
    Outdated,
    /// Not now.
    Failed(Errno),
    /// Not ever.
    Refused(Refusal),
}

impl Refusal {
    /// Whether only the metadata server can have said so. Anybody at its address can be a stranger: one
    /// does not end a server that was taken in before.
    pub(crate) fn is_proven(&self) -> bool {
        !matches!(self, Refusal::OtherCluster { .. } | Refusal::OtherSecret { .. })
    }
}

/// The metadata server's answer about sessions and inodes.
pub(crate) struct Vouched {
    /// 1 for each session that exists, 0 for others.
    pub sessions: Vec<u8>,
    /// Generation and write epoch of each file.
    pub files: Vec<Option<(u32, u32)>>,
    /// The term of who answers, and his clock.
    pub term: Term,
    pub clock: Clock,
}

/// Says who this server is. One for each life of it.
pub(crate) struct Herald {
    world: World,
    connection: Connection,
    config: DataConfig,
    address: String,
    life: Life,
    /// The history that is noted; 0: none yet.
    history: Cell<u128>,
    /// The newest term that is noted, by its id.
    met: Cell<u64>,
    /// One note at a time is written.
    noting: Semaphore,
}

/// A start of the server, and its directory's record of former ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    pub boot: Boot,
    /// This start and those before it.
    pub starts: Starts,
    /// The history with which it registered, and the newest term of it.
    pub joined: Option<(u128, u64)>,
    /// There never were objects.
    pub untouched: bool,
    /// The directory did not exist before this start.
    pub made: bool,
    /// The newest map that former lives have noted.
    pub map: Noted,
}

impl Herald {
    pub(crate) fn new(
        world: &World,
        endpoint: &LocalEndpoint,
        config: &DataConfig,
        life: Life,
    ) -> Herald {
        let member = Member { role: Role::Data, number: config.server.0 };
        let proof = Some(Proof { secret: config.secret.clone(), member });
        let limit = PATIENCE;
        let options = Options { limit, refuses_strangers: true, proof, ..Options::default() };
        let own = || endpoint.endpoint().addresses().to_owned();
        Herald {
            world: world.clone(),
            connection: Connection::among(world, endpoint, config.meta.clone(), options),
            config: config.clone(),
            address: config.address.clone().unwrap_or_else(own),
            life,
            history: Cell::new(life.joined.map_or(0, |(history, _)| history)),
            met: Cell::new(life.joined.map_or(0, |(_, met)| met)),
            noting: Semaphore::new(1),
        }
    }

    /// Sends one heartbeat. `map`: the newest map that this server has known by the newest term that it has met; 0: none.
    pub(crate) async fn beat(&self, room: Room, history: u128, replace: bool, map: u32) -> Heard {
        match self.ask(room, history, (replace, 0), map).await {
            Heard::KnownBy(start) if self.life.starts.may_have(start) => {
                self.ask(room, history, (replace, start), map).await
            }
            Heard::KnownBy(_) => Heard::Refused(Refusal::OlderStore {
                path: self.path(),
                server: self.config.server,
            }),
            heard => heard,
        }
    }

    async fn ask(
        &self,
        room: Room,
        history: u128,
        (replace, known_by): (bool, u64),
        map: u32,
    ) -> Heard {
        let request = MetaRequest::Heartbeat(Heartbeat {
            server: self.config.server.0,
            boot: self.life.boot.id,
            era: self.life.boot.era,
            store: self.life.boot.store,
            history,
            met: self.met.get(),
            known_by,
            replace,
            admit: self.config.admit,
            room,
            address: Bytes(self.address.as_bytes()),
            domain: Bytes(self.config.domain.as_bytes()),
        });
        use Registration as R;
        let mut body = Vec::new();
        encode(&request, &mut body);
        let call = self.connection.call_free_by(map, Service::Meta, &body);
        let reply = match self.world.timeout(PATIENCE, call).await {
            Some(Ok(reply)) => reply,
            Some(Err(CallError::OtherCluster(found))) => {
                let (path, own) = (self.path(), self.config.cluster);
                return Heard::Refused(Refusal::OtherCluster { path, own, found });
            }
            Some(Err(CallError::Untrusted)) => {
                return Heard::Refused(Refusal::OtherSecret { path: self.path() });
            }
            Some(Err(_)) | None => return Heard::No,
        };
        match decode::<MetaResult<'_>>(reply.body()) {
            // A server that calls itself older is believed, and terms of another history say nothing.
            Ok(Ok(MetaReply::Registered(verdict)))
                if matches!(verdict, R::OlderMetadata | R::OtherMetadata { .. })
                    || self.is_heard(Term(reply.head.boot)) =>
            {
                self.judge(verdict, reply.head.boot)
            }
            Ok(Ok(MetaReply::Registered(_))) => Heard::Outdated,
            Ok(Err(errno)) => Heard::Failed(errno),
            Ok(Ok(_)) | Err(_) => Heard::No,
        }
    }

    /// A metadata server's reply; `None` without one.
    async fn ask_meta(&self, request: &MetaRequest<'_>) -> Option<Reply> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let call = self.connection.call_free(Service::Meta, &body);
        self.world.timeout(PATIENCE, call).await?.ok()
    }

    /// As [`Herald::ask_meta`], of the metadata server whose term is noted.
    async fn ask_noted(&self, request: &MetaRequest<'_>) -> Option<Reply> {
        let reply = self.ask_meta(request).await?;
        self.is_noted(Term(reply.head.boot)).then_some(reply)
    }

    /// The metadata server's answer about sessions and inodes, in their order; None where it gives none.
    pub(crate) async fn vouched(&self, sessions: &[u64], inodes: &[u64]) -> Option<Vouched> {
        let bytes = |numbers: &[u64]| numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
        let (asked, files): (Vec<u8>, Vec<u8>) = (bytes(sessions), bytes(inodes));
        let request = MetaRequest::Vouch { sessions: Bytes(&asked), inodes: Bytes(&files) };
        let reply = self.ask_noted(&request).await?;
        match decode::<MetaResult<'_>>(reply.body()) {
            Ok(Ok(MetaReply::Vouched { sessions: told, clock, files })) => {
                let complete = told.0.len() == sessions.len() && files.len() == inodes.len();
                let term = Term(reply.head.boot);
                complete.then_some(Vouched { sessions: told.0.to_vec(), files, term, clock })
            }
            _ => None,
        }
    }

    /// The address of another data server, where the metadata server knows it.
    pub(crate) async fn address_of(&self, server: u32) -> Option<Vec<u8>> {
        let (address, ..) = self.known(server).await?;
        (!address.is_empty()).then_some(address)
    }

    /// The life of another data server that the metadata server has heard last.
    pub(crate) async fn life_of(&self, server: u32) -> Option<u64> {
        let (_, life, term) = self.known(server).await?;
        self.is_noted(term).then_some(life)
    }

    /// The address and the life of another data server, and the term of the metadata server that tells them.
    async fn known(&self, server: u32) -> Option<(Vec<u8>, u64, Term)> {
        let request = MetaRequest::ListServers { from: server, bytes_max: ONE_SERVER_BYTES };
        let reply = self.ask_meta(&request).await?;
        match decode::<MetaResult<'_>>(reply.body()) {
            Ok(Ok(MetaReply::Servers { servers, .. })) => {
                let known = servers.iter().find(|known| known.server == server)?;
                Some((known.address.0.to_vec(), known.boot, Term(reply.head.boot)))
            }
            _ => None,
        }
    }

    /// Whether the metadata server is known to speak a version.
    pub(crate) fn speaks(&self, version: u16) -> bool {
        self.connection.newest().is_some_and(|newest| newest >= version)
    }

    /// The groups of objects, by number, and the upgrade since when they have them; `None` without an answer.
    pub(crate) async fn groups(
        &self,
        telling: Telling<'_>,
    ) -> Option<Result<(Vec<u64>, u64), Errno>> {
        let reply = self.ask_noted(&MetaRequest::TellGroups(telling)).await?;
        match decode::<MetaResult<'_>>(reply.body()) {
            Ok(Ok(MetaReply::Groups { groups, step })) => Some(Ok((groups, step))),
            Ok(Err(errno)) => Some(Err(errno)),
            Ok(Ok(_)) | Err(_) => None,
        }
    }

    /// Whether the metadata server says, by the map of this epoch, that all groups have all their members; `None` without an
    /// answer.
    pub(crate) async fn may_clean(&self, map: u32) -> Option<Result<(), Errno>> {
        let request = MetaRequest::MayClean { server: self.config.server.0, map };
        let reply = self.ask_noted(&request).await?;
        match decode::<MetaResult<'_>>(reply.body()) {
            Ok(Ok(MetaReply::Done)) => Some(Ok(())),
            Ok(Err(errno)) => Some(Err(errno)),
            Ok(Ok(_)) | Err(_) => None,
        }
    }

    /// Tells the metadata server that a server of a group is in step, or is not. It may refuse: the map tells.
    pub(crate) async fn set_step(&self, step: Step<'_>) {
        let _ = self.ask_meta(&MetaRequest::SetStep(step)).await;
    }

    /// The bands in which this server has a group, of the map of the answer's epoch, and the term of the metadata server that
    /// told all of it; None without an answer.
    pub(crate) async fn map(&self) -> Option<(Map, Term)> {
        let (mut news, mut told) = (News::of(&Map::default()), None);
        loop {
            let (server, bytes_max) = (Some(self.config.server.0), PART_BYTES);
            let request = MetaRequest::GetMap { since: 0, from: news.from, server, bytes_max };
            let mut body = Vec::new();
            encode(&request, &mut body);
            let call = self.connection.call_free_with(Service::Meta, &body, REPLY_BYTES_MAX);
            let reply = self.world.timeout(PATIENCE, call).await?.ok()?;
            let term = Term(reply.head.boot);
            (self.is_noted(term) && *told.get_or_insert(term) == term).then_some(())?;
            match decode::<MetaResult<'_>>(reply.body()) {
                Ok(Ok(MetaReply::Map { epoch, bands, end })) => {
                    if news.take(epoch, bands, end).ok()? {
                        return Some((news.map(), term));
                    }
                }
                _ => return None,
            }
        }
    }

    fn path(&self) -> String {
        self.config.directory.display().to_string()
    }

    fn judge(&self, verdict: Registration<'_>, start: u64) -> Heard {
        let (path, server) = (self.path(), self.config.server);
        Heard::Refused(match verdict {
            Registration::Taken { history, map, mib_per_second, clock } => {
                return Heard::Taken { history, start, map, mib_per_second, clock };
            }
            Registration::OtherStore if self.life.untouched => Refusal::Emptied { path, server },
            Registration::OtherStore => Refusal::OtherStore { path, server },
            Registration::Alive { address } => {
                let address = printable(address.0, 1024);
                Refusal::Alive { server, address }
            }
            Registration::OtherMetadata { .. } => Refusal::OtherMetadata { path },
            Registration::NotAdmitted => Refusal::NotAdmitted { server },
            Registration::KnownBy { start } => return Heard::KnownBy(start),
            Registration::OlderMetadata => Refusal::OlderMetadata { path },
        })
    }

    /// Asks until the metadata server has taken a store that never registered before; the history, which is noted by
    /// then.
    pub(crate) async fn join(&self, replace: bool) -> Result<u128, DataError> {
        let mut before = None;
        loop {
            // Without room it gets no new files yet: nobody serves them.
            let heard = self.beat(Room::default(), 0, replace, 0).await;
            match &heard {
                Heard::Taken { history, start, .. } => {
                    self.note(*history, *start).await?;
                    return Ok(*history);
                }
                Heard::Refused(refusal) => return Err(DataError::Refused(refusal.clone())),
                Heard::No | Heard::KnownBy(_) | Heard::Outdated | Heard::Failed(_) => {}
            }
            if before.as_ref() != Some(&heard) {
                let why = describe(&heard);
                (self.config.log)(&format!(
                    "{why}; this new data server does not serve before it has joined the cluster"
                ));
            }
            before = Some(heard);
            self.world.sleep(PAUSE).await;
        }
    }

    /// Whether this is a metadata server.
    pub(crate) fn is_meta(&self, peer: PeerId) -> bool {
        self.connection.is_peer(peer)
    }

    /// The verdict on a metadata server that has an older copy of its rows.
    pub(crate) fn older_metadata(&self) -> Heard {
        Heard::Refused(Refusal::OlderMetadata { path: self.path() })
    }

    /// The history that is noted.
    pub(crate) fn history(&self) -> u128 {
        self.history.get()
    }

    /// The newest term that is noted.
    pub(crate) fn met(&self) -> Term {
        Term(self.met.get())
    }

    /// Whether a metadata server of this term has a say.
    pub(crate) fn is_heard(&self, term: Term) -> bool {
        !term.is_behind(Term(self.met.get()))
    }

    /// Whether a metadata server of this term has a say, and the term is noted.
    pub(crate) fn is_noted(&self, term: Term) -> bool {
        let met = Term(self.met.get());
        !term.is_behind(met) && !term.is_ahead_of(met)
    }

    /// Notes the history and its term, durably, where it is a newer one than the one that is noted.
    pub(crate) async fn note(&self, history: u128, start: u64) -> Result<(), DataError> {
        let _turn = self.noting.acquire().await;
        if start != 0 && (self.met.get() == start || !self.is_heard(Term(start))) {
            return Ok(());
        }
        let (disk, directory) = (self.world.disk(), self.config.directory.clone());
        let noted = self.world.offload(move || {
            let path = directory.join(NAME);
            write(&*disk, &directory, history, start).map_err(|cause| DataError::Io {
                doing: "write",
                path,
                cause,
            })
        });
        noted.await.unwrap_or(Err(DataError::Closed))?;
        self.history.set(history);
        self.met.set(start);
        Ok(())
    }

    /// Notes a newer term of the history.
    pub(crate) async fn note_term(&self, term: Term) -> Result<(), DataError> {
        self.note(self.history.get(), term.0).await
    }

    /// Takes a superblock away again in whose directory there never was anything, not even a vote.
    pub(crate) async fn leave(&self) -> Result<(), DataError> {
        if !self.life.untouched {
            return Ok(());
        }
        let (disk, directory) = (self.world.disk(), self.config.directory.clone());
        let made = self.life.made;
        let left = self.world.offload(move || {
            let forget = || match record::has_record(&*disk, &directory)? {
                true => Ok(()),
                false => ClaimedDirectory::forget(&*disk, &directory, made),
            };
            forget().map_err(|cause| DataError::Io { doing: "clear", path: directory, cause })
        });
        left.await.unwrap_or(Err(DataError::Closed))
    }
}

/// The line for people about a heartbeat that was refused, and about the first one that is taken again.
pub(crate) fn describe(heard: &Heard) -> String {
    match heard {
        Heard::Taken { .. } => "the metadata server answers heartbeats again".to_owned(),
        Heard::No | Heard::KnownBy(_) => {
            "the metadata server does not answer heartbeats; this server keeps trying".to_owned()
        }
        Heard::Outdated => {
            "the metadata server that answers began to serve before the one that this server has met: \
             its answers are not believed; this server keeps trying"
                .to_owned()
        }
        Heard::Failed(Errno::EAGAIN) => {
            "the metadata server waits for a sign of the other members of this server's groups before it \
             takes this server in; this server keeps trying"
                .to_owned()
        }
        Heard::Failed(errno) => format!("the metadata server refuses heartbeats: {errno}"),
        Heard::Refused(refusal) => refusal.to_string(),
    }
}

/// The history with which this directory's server registered, and the newest term of it that was met, 0 where none was
/// noted; None: it never did.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<(u128, u64)>, DataError> {
    let path = directory.join(NAME);
    let fail = |cause| DataError::Io { doing: "read", path: path.clone(), cause };
    let file = match disk.open(&path, Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(fail)?,
    };
    let mut bytes = [0; FILE_BYTES];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    let copies = [(0, BYTES), (SECOND_AT, BYTES), (0, SHORT_BYTES)];
    let copies = copies.into_iter().filter_map(|(at, len)| bytes[..count].get(at..at + len));
    match copies.filter_map(decode_note).next() {
        Some(noted) => Ok(Some(noted)),
        None => Err(fail(io::Error::new(io::ErrorKind::InvalidData, "it is damaged: remove it"))),
    }
}

/// One copy of the note.
fn decode_note(bytes: &[u8]) -> Option<(u128, u64)> {
    let (body, sum) = bytes.split_at(bytes.len() - 4);
    if body[..8] != *MAGIC || checksum::crc32c(body).to_le_bytes() != sum {
        return None;
    }
    let number: [u8; 16] = body[8..24].try_into().expect("sixteen bytes");
    let met = body[24..].try_into().map_or(0, u64::from_le_bytes);
    Some((u128::from_le_bytes(number), met))
}

/// Whether a note is accepted. For fuzzers.
pub(crate) fn accepts(bytes: Option<&[u8]>) -> bool {
    let Some(noted) = bytes.and_then(decode_note) else { return false };
    assert_eq!(decode_note(&encode_note(noted)), Some(noted), "the journey changes it");
    true
}

fn encode_note((history, met): (u128, u64)) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&history.to_le_bytes());
    bytes.extend_from_slice(&met.to_le_bytes());
    bytes.extend_from_slice(&checksum::crc32c(&bytes).to_le_bytes());
    bytes
}

fn write(disk: &dyn Disk, directory: &Path, history: u128, met: u64) -> io::Result<()> {
    let bytes = encode_note((history, met));
    write_twice(disk, directory, (NAME, NEW_NAME), SECOND_AT as u64, &bytes)
}
