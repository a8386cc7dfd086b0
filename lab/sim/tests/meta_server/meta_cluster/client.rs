//! A client written by hand: one session, leases given back when they are recalled, and taken up
//! again after a restart of the server. It caches nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::world::World;
use ropewalk_net::Address;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::{
    Answer, CallError, Connection, Handler, Incoming, Marks, Options, Responder, Server,
};
use ropewalk_sim::Node;
use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::session::{SessionReply, SessionRequest, SessionResult};
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

pub const WRITE: Access = Access { read: true, write: true };
/// Beside the permission bits that a list has: a directory.
pub const DIRECTORY: u16 = 1 << 15;
const RENEWAL: Duration = Duration::from_secs(1);

/// The grant and the open of a session on an inode.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    grant: Option<Grant>,
    open: Option<Access>,
}

pub struct Client {
    pub world: World,
    connection: Connection,
    boot: Cell<u64>,
    held: RefCell<BTreeMap<u64, Held>>,
    /// Callbacks that came.
    pub heard: RefCell<Vec<Callback>>,
    /// Leaves recalls unanswered, and does not renew.
    pub silent: Cell<bool>,
}

/// An encoded result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Result(pub Vec<u8>);

impl Result {
    pub fn get(&self) -> MetaResult<'_> {
        decode(&self.0).expect("replies decode")
    }

    #[track_caller]
    pub fn ok(&self) -> MetaReply<'_> {
        self.get().expect("the request succeeds")
    }

    /// Attributes in whichever reply has them.
    #[track_caller]
    pub fn attributes(&self) -> ropewalk_wire::fs::attributes::Attributes {
        match self.ok() {
            MetaReply::Entry(entry) | MetaReply::Opened { entry, .. } => entry.attributes,
            MetaReply::Attributes { attributes, .. } | MetaReply::Removed { attributes, .. } => {
                attributes
            }
            other => panic!("no attributes in {other:?}"),
        }
    }

    #[track_caller]
    pub fn inode(&self) -> u64 {
        self.attributes().inode
    }

    pub fn grant(&self) -> Option<Grant> {
        match self.get() {
            Ok(MetaReply::Entry(entry) | MetaReply::Opened { entry, .. }) => entry.grant,
            Ok(MetaReply::Attributes { grant, .. }) => grant,
            _ => None,
        }
    }
}

impl Handler for Client {
    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        assert_eq!(incoming.head.service, Service::Callback);
        let callback = decode::<Callback>(incoming.body()).expect("callbacks decode");
        let mut body = Vec::new();
        encode(&Ok::<(), Errno>(()), &mut body);
        responder.send(Answer { status: Status::Done, body, marks: Marks::default() });
        self.heard.borrow_mut().push(callback.clone());
        if let (Callback::Recall { inode, number, keep }, false) = (callback, self.silent.get()) {
            let client = self.clone();
            self.world.spawn(async move { client.give_back(inode, number, keep).await });
        }
    }
}

impl Client {
    /// A client on a node, with a session.
    pub async fn start(node: &Node, endpoint: LocalEndpoint) -> Rc<Client> {
        let world = node.world().clone();
        let meta = Address::parse("sim://meta").expect("an address");
        let peer = endpoint.endpoint().lookup(&meta).expect("room for a peer");
        let options = Options { limit: Duration::from_secs(600), ..Options::default() };
        let connection = Connection::new(&world, &endpoint, peer, options);
        let client = Rc::new(Client {
            world: world.clone(),
            connection,
            boot: Cell::new(0),
            held: RefCell::default(),
            heard: RefCell::default(),
            silent: Cell::new(false),
        });
        Server::start(&world, endpoint, client.clone());
        client.open_session().await;
        world.spawn(client.clone().renew());
        client
    }

    pub fn session(&self) -> u64 {
        self.connection.session()
    }

    async fn session_call(&self, request: SessionRequest<'_>) -> (SessionResult, u64) {
        let mut body = Vec::new();
        encode(&request, &mut body);
        let reply = self.connection.call_free(Service::Session, &body).await;
        let reply = reply.expect("the server comes back in time");
        (decode(reply.body()).expect("replies decode"), reply.head.boot)
    }

    pub async fn open_session(&self) {
        let (client, name) = (self.world.random_u128(), Bytes(b"by hand"));
        match self.session_call(SessionRequest::Open { client, name }).await {
            (Ok(SessionReply::Opened { session, epoch, token, .. }), boot) => {
                self.connection.set_session(session, epoch, token);
                self.boot.set(boot);
                self.held.borrow_mut().clear();
            }
            other => panic!("no session: {other:?}"),
        }
    }

    pub async fn close_session(&self) {
        let session = self.session();
        let (result, _) = self.session_call(SessionRequest::Close { session }).await;
        assert_eq!(result, Ok(SessionReply::Done));
    }

    async fn renew(self: Rc<Self>) {
        loop {
            self.world.sleep(RENEWAL).await;
            if self.silent.get() {
                continue;
            }
            let session = self.session();
            let (result, boot) = self.session_call(SessionRequest::Renew { session }).await;
            if result.is_ok() && boot != self.boot.get() {
                self.boot.set(boot);
                self.reclaim().await;
            }
        }
    }

    async fn reclaim(&self) {
        let held = self.held.borrow().clone();
        for (inode, held) in held {
            let mode = held.grant.map_or(LeaseMode::None, |grant| grant.mode);
            let request = MetaRequest::Reclaim { inode, mode, open: held.open };
            let Ok(result) = self.try_call(&request).await else { return };
            if let Some(held) = self.held.borrow_mut().get_mut(&inode) {
                held.grant = result.grant();
            }
        }
        drop(self.try_call(&MetaRequest::ReclaimDone).await);
    }

    async fn give_back(&self, inode: u64, number: u64, keep: LeaseMode) {
        let open = {
            let mut held = self.held.borrow_mut();
            let held = held.entry(inode).or_default();
            held.grant = held.grant.filter(|grant| grant.number > number);
            held.open
        };
        let keep = if keep == LeaseMode::Shared && open.is_none() { LeaseMode::None } else { keep };
        let request = MetaRequest::Release { inode, number, keep, open };
        drop(self.try_call(&request).await);
    }

    /// Closes a file and gives its lease back.
    pub async fn close(&self, inode: u64) {
        let held = self.held.borrow_mut().remove(&inode).unwrap_or_default();
        let number = held.grant.map_or(u64::MAX, |grant| grant.number);
        let keep = LeaseMode::None;
        self.call(&MetaRequest::Release { inode, number, keep, open: None }).await;
    }

    /// The write epoch that the session knows of a file.
    pub fn epoch(&self, inode: u64) -> u32 {
        let held = self.held.borrow();
        held.get(&inode).and_then(|held| held.grant).map_or(0, |grant| grant.epoch)
    }

    /// A call up to its result; the session must last.
    pub async fn call(&self, request: &MetaRequest<'_>) -> Result {
        self.try_call(request).await.unwrap_or_else(|error| panic!("{request:?}: {error}"))
    }

    pub async fn try_call(
        &self,
        request: &MetaRequest<'_>,
    ) -> std::result::Result<Result, CallError> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let reply = self.connection.call_with(Service::Meta, &body, 128 << 10).await?;
        let result = Result(reply.body().to_vec());
        self.learn(request, &result);
        Ok(result)
    }

    fn learn(&self, request: &MetaRequest<'_>, result: &Result) {
        let mut held = self.held.borrow_mut();
        if let Some(grant) = result.grant() {
            held.entry(result.inode()).or_default().grant = Some(grant);
        }
        if let MetaRequest::Create { access, .. }
        | MetaRequest::Temporary { access, .. }
        | MetaRequest::Open { access, .. } = request
            && result.get().is_ok()
        {
            held.entry(result.inode()).or_default().open = Some(*access);
        }
        if let Ok(MetaReply::Directory { entries, .. }) = result.get() {
            for entry in entries {
                if let Some(grant) = entry.grant {
                    held.entry(entry.inode).or_default().grant = Some(grant);
                }
            }
        }
    }

    /// Permission bits; None where the inode is gone.
    async fn get_mode(&self, inode: u64) -> Option<u16> {
        let result = self.call(&MetaRequest::GetAttributes { inode }).await;
        match result.get() {
            Err(Errno::ESTALE) => None,
            _ => Some(result.attributes().mode),
        }
    }

    /// The directory's entries: name, inode, permission bits and [`DIRECTORY`].
    pub async fn list(&self, directory: u64) -> BTreeMap<Vec<u8>, (u64, u16)> {
        let mut found = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let request = MetaRequest::ReadDirectory {
                who: Who::ROOT,
                inode: directory,
                cookie,
                bytes_max: 4096,
                attributes: true,
            };
            let result = self.call(&request).await;
            let MetaReply::Directory { entries, end, .. } = result.ok() else {
                panic!("a directory reads as {result:?}");
            };
            for entry in entries {
                cookie = entry.cookie;
                let mode = match entry.attributes {
                    Some(attributes) => attributes.mode,
                    // Another session writes it, and is asked.
                    None => match self.get_mode(entry.inode).await {
                        Some(mode) => mode,
                        None => continue,
                    },
                };
                let kind = if entry.kind == InodeKind::Directory { DIRECTORY } else { 0 };
                let before = found.insert(entry.name.0.to_vec(), (entry.inode, mode | kind));
                assert_eq!(before, None, "a name came twice");
            }
            if end {
                return found;
            }
        }
    }
}

pub fn create(parent: u64, name: &[u8], mode: u16) -> MetaRequest<'_> {
    MetaRequest::Create {
        who: Who::ROOT,
        parent,
        name: Bytes(name),
        mode,
        access: WRITE,
        exclusive: true,
        truncate: false,
    }
}

pub fn make<'a>(parent: u64, name: &'a [u8], mode: u16, node: Node_<'a>) -> MetaRequest<'a> {
    MetaRequest::Make { who: Who::ROOT, parent, name: Bytes(name), mode, node }
}

/// The type of inode that `make` creates; `Node` is a machine in here.
pub type Node_<'a> = ropewalk_wire::fs::meta::Node<'a>;

pub fn unlink(parent: u64, name: &[u8]) -> MetaRequest<'_> {
    MetaRequest::Unlink { who: Who::ROOT, parent, name: Bytes(name), closed: 0 }
}

pub fn lookup(parent: u64, name: &[u8]) -> MetaRequest<'_> {
    MetaRequest::Lookup { who: Who::ROOT, parent, name: Bytes(name) }
}

pub fn rename<'a>(parent: u64, name: &'a [u8], new_name: &'a [u8]) -> MetaRequest<'a> {
    MetaRequest::Rename {
        who: Who::ROOT,
        parent,
        name: Bytes(name),
        new_parent: parent,
        new_name: Bytes(new_name),
        mode: RenameMode::Replace,
        closed: 0,
    }
}
