//! The hand-over of a client: its session goes on in another process.
//!
//! The old process gives its [`ClientState`] away, and makes no call any more. The new one moves the session to its
//! endpoint ([`Client::take_session`]) and goes on. Attributes, content and names are not handed over: they are asked for
//! again. Leases are, since the kernel's caches stay and have to be told of recalls.
//!
//! Invariants
//! * between [`Client::hand_over`] and [`Client::go_on`] no message of the client leaves;
//! * a state is given away only while no call is under way and everything written was reported;
//! * one process at a time has the session: the metadata server decides which.

use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_base::ids::Origin;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::trust::moved;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::handover::{ClientState, InodeState, OpenFile};
use ropewalk_wire::fs::map::{Map, News};
use ropewalk_wire::fs::session::{SessionReply, SessionRequest};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::value::Errno;

use crate::client::{Client, ClientConfig};
use crate::data::Known;
use crate::error::ClientError;
use crate::file::{File, OpenOptions};
use crate::home::Home;
use crate::inode::{Inode, Position};

impl Client {
    /// Whether nothing is under way that a hand-over would lose.
    pub fn is_quiet(&self) -> bool {
        let inner = &*self.inner;
        let calm = inner.gate.is_quiet()
            && inner.opening.get() == 0
            && !inner.renewing.get()
            && inner.session_lock.available() > 0
            && inner.reclaimed.get() == inner.boot.get();
        calm && inner.inodes.borrow().values().all(|inode| inode.is_quiet())
    }

    /// Has the metadata server know all that was written.
    pub async fn report_before_hand_over(&self) -> Result<(), Errno> {
        self.report_all_strictly().await
    }

    /// The state for another process. From now on no message leaves.
    pub fn hand_over(&self) -> ClientState {
        let inner = &*self.inner;
        inner.gate.close();
        let connections = inner.servers.borrow();
        let sequences = connections.values().map(|it| it.connection.sequence());
        let identity = inner.endpoint.endpoint().identity();
        let position = inner.position.get();
        ClientState {
            number: inner.number,
            session: inner.meta.session(),
            epoch: inner.epoch.get(),
            recognition: inner.recognition.secret(),
            endpoint: identity.endpoint.0,
            incarnation: identity.incarnation.0,
            boot: inner.boot.get(),
            term: inner.meta.term().0,
            sequence: sequences
                .chain([inner.meta.sequence(), inner.sequence_begin.get()])
                .max()
                .unwrap_or(0),
            position: (position.era, position.position),
            durable: inner.durable.borrow().iter().map(|(era, at)| (*era, *at)).collect(),
            map_epoch: self.map().epoch,
            bands: self.map().bands(0).cloned().collect(),
            pools: inner.pools.borrow().values().map(|pool| (**pool).clone()).collect(),
            servers: connections.iter().map(|(id, it)| (*id, it.address.clone())).collect(),
            inodes: inner.inodes.borrow().values().filter_map(|it| it.to_state()).collect(),
            locks: inner.locks.to_state(),
            nameless: inner.nameless.borrow().values().copied().collect(),
        }
    }

    /// There was no hand-over: calls go on. If the session has moved all the same, or has ended meanwhile, this process
    /// hears it at once, and opens another one.
    pub fn go_on(&self) {
        self.inner.gate.open();
        let client = self.clone();
        self.inner.world.spawn(async move { client.renew().await });
    }

    /// The session is another process's.
    pub fn leave(&self) {
        self.inner.stopped.set(true);
    }

    /// A client that is to go on with what another process gave away. It asks nobody anything before
    /// [`Client::take_session`].
    pub fn from_state(
        world: &World,
        endpoint: &LocalEndpoint,
        address: &str,
        config: ClientConfig,
        state: &ClientState,
    ) -> Result<Client, ClientError> {
        let client = Client::build(world, endpoint, address, config, state.number)?;
        let inner = &*client.inner;
        inner.recognition.learn(state.recognition);
        inner.boot.set(state.boot);
        inner.reclaimed.set(state.boot);
        inner.meta.saw_term(Term(state.term));
        inner.sequence_begin.set(state.sequence);
        let (era, position) = state.position;
        inner.position.set(Position { era, position });
        *inner.durable.borrow_mut() = state.durable.iter().copied().collect();
        let mut news = News::of(&Map::default());
        if news.take(state.map_epoch, state.bands.clone(), true).is_ok() {
            *inner.map.borrow_mut() = Rc::new(news.map());
        }
        let pools = state.pools.iter().filter(|pool| pool.is_valid());
        *inner.pools.borrow_mut() = pools.map(|it| (it.version, Rc::new(it.clone()))).collect();
        for (server, address) in &state.servers {
            client.note_server(Known { server: *server, address: address.clone() });
        }
        let mut inodes = BTreeMap::new();
        for one in &state.inodes {
            let inode = Inode::of_state(one);
            inner.clock.set(inner.clock.get() + 1);
            inode.used.set(inner.clock.get());
            inodes.insert(one.number, Rc::new(inode));
        }
        *inner.inodes.borrow_mut() = inodes;
        inner.locks.take_state(&state.locks);
        *inner.nameless.borrow_mut() = state.nameless.iter().map(|it| (it.inode, *it)).collect();
        Ok(client)
    }

    /// Opens the way to the metadata server, so that the session moves at once when it has to.
    pub async fn meet_server(
        world: &World,
        endpoint: &LocalEndpoint,
        address: &str,
        config: ClientConfig,
    ) -> Result<(), ClientError> {
        let caller = Client::build(world, endpoint, address, config, 0)?;
        let request = SessionRequest::Recognise { session: 0, nonce: world.random_u128() };
        let answer = caller.session_call(&request).await;
        answer.map(drop).map_err(|error| caller.no_session_for(error))
    }

    /// Moves the session of a state to this process, and goes on with it. Its files are open again by then
    /// ([`Client::open_again`]): a server that was started again asks for them.
    pub async fn take_session(&self, state: &ClientState) -> Result<(), ClientError> {
        let inner = &*self.inner;
        let identity = inner.endpoint.endpoint().identity();
        let own = Origin { endpoint: identity.endpoint, incarnation: identity.incarnation };
        let (session, endpoint, incarnation) = (state.session, state.endpoint, state.incarnation);
        let tag = moved(state.recognition, session, own);
        // The metadata server may want leases back in the same moment: what follows from that waits for the session.
        let guard = inner.session_lock.acquire().await;
        self.serve_callbacks();
        let sent = inner.world.now();
        let request = SessionRequest::Move { session, endpoint, incarnation, tag };
        let address = || inner.address.clone();
        let answer = self.session_call(&request).await;
        let (reply, boot) = answer.map_err(|error| self.no_session_for(error))?;
        match reply {
            Ok(opened @ SessionReply::Opened { .. }) => {
                self.has_session(opened, boot, sent);
                let begin = inner.sequence_begin.get();
                inner.meta.go_on_from(begin);
                let servers = inner.servers.borrow();
                servers.values().for_each(|server| server.connection.go_on_from(begin));
                drop(servers);
                drop(guard);
                self.watch_server();
                self.saw_boot(boot);
                self.keep_session();
                self.keep_reporting();
                Ok(())
            }
            Ok(_) => Err(ClientError::Version { address: address() }),
            Err(errno) => Err(ClientError::NotMoved { address: address(), errno }),
        }
    }

    /// An open file of a state.
    pub fn open_again(&self, open: &OpenFile) -> File {
        let options = OpenOptions { access: open.access, truncate: false, append: open.append };
        let file = self.file(self.inode(open.inode), options);
        file.set_state(open);
        file
    }
}

impl Inode {
    /// Whether nothing is under way that a hand-over would lose.
    fn is_quiet(&self) -> bool {
        let state = self.state.borrow();
        self.users.get() == 0
            && state.dirty.is_clean()
            && state.under_way.is_clean()
            && state.claims.is_empty()
            && state.resizing == 0
            && self.syncing.borrow().is_empty()
            // Pages from under a lost lease are on their way: whoever does not know that would write them.
            && self.orphans.get().1 == 0
    }

    /// What another process has to know of it; none where it can ask for all of that.
    fn to_state(&self) -> Option<InodeState> {
        let state = self.state.borrow();
        let unsynced: Vec<_> = self
            .unsynced
            .borrow()
            .iter()
            .map(|(home, era)| match home {
                Home::Server(server) => (false, u64::from(*server), *era),
                Home::Group(group) => (true, group.number(), *era),
            })
            .collect();
        let one = InodeState {
            number: self.number,
            mode: state.mode,
            epoch: state.epoch,
            grant: state.number,
            recalled: state.recalled,
            told: state.told,
            // In doubt, older ones count as well.
            generation: if state.doubtful { 0 } else { state.generation },
            version: if state.doubtful { 0 } else { state.version },
            insisted: state.insisted,
            losses: (state.losses.count, state.losses.told),
            unsynced,
            in_doubt: self.in_doubt.get(),
            shared_before: self.shared_before.get(),
            promised: self.promised.get(),
            changed: self.changed.get().map(|at| (at.era, at.position)),
            capability: self.capability.get(),
            last: state.attributes.or(state.last),
        };
        let (shared_before, promised) = (true, true);
        let fresh =
            InodeState { number: self.number, shared_before, promised, ..Default::default() };
        (one != fresh).then_some(one)
    }

    fn of_state(one: &InodeState) -> Inode {
        let inode = Inode::new(one.number);
        let mut state = inode.state.borrow_mut();
        state.mode = one.mode;
        state.epoch = one.epoch;
        (state.number, state.recalled, state.told) = (one.grant, one.recalled, one.told);
        (state.generation, state.version) = (one.generation, one.version);
        state.insisted = one.insisted;
        (state.losses.count, state.losses.told) = one.losses;
        state.last = one.last;
        drop(state);
        let homes = one.unsynced.iter().map(|(is_group, number, era)| {
            let home = match is_group {
                true => Home::Group(Group::from_number(*number)),
                false => Home::Server(u32::try_from(*number).unwrap_or(u32::MAX)),
            };
            (home, *era)
        });
        *inode.unsynced.borrow_mut() = homes.collect();
        inode.in_doubt.set(one.in_doubt);
        inode.shared_before.set(one.shared_before);
        inode.promised.set(one.promised);
        inode.changed.set(one.changed.map(|(era, position)| Position { era, position }));
        inode.capability.set(one.capability);
        inode
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::meta::LeaseMode;

    use super::*;

    #[test]
    fn an_inode_is_what_its_state_says() {
        let state = InodeState {
            number: 7,
            mode: LeaseMode::Write,
            epoch: 3,
            grant: 9,
            recalled: 8,
            told: 9,
            generation: 2,
            version: 40,
            insisted: true,
            losses: (2, 1),
            unsynced: vec![(false, 1, 5), (true, 1 << 32, 6)],
            in_doubt: true,
            shared_before: false,
            promised: false,
            changed: Some((4, 5)),
            capability: None,
            last: None,
        };
        let inode = Inode::of_state(&state);
        assert!(inode.is_quiet());
        assert_eq!(inode.to_state(), Some(state));
        assert_eq!(Inode::new(7).to_state(), None);
    }
}
