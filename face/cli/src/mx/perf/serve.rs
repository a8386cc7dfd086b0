//! The side that waits, and returns what comes.

use std::time::Duration;

use anyhow::bail;
use ropewalk_base::memory::Memory;
use ropewalk_net::{Completed, OperationId, PeerId};
use ropewalk_rail_ether::interfaces;

use super::side::{DATA, HELLO, HELLO_BYTES, Side, hello_of};
use crate::report::{announce, complain};
use crate::stop::Stop;

/// The board on which the server waits unless it is told otherwise.
pub const BOARD: &str = "mxoe://";
/// The interval at which the server checks, while nothing comes, whether its interface is there.
const LOOK: Duration = Duration::from_secs(1);
/// The most clients that measure at a time; the oldest one goes if there are more.
const CLIENTS_MAX: usize = 32;
/// The kind of a completion: the lowest bits of its number, the client's above them.
const HEARD: u64 = 0;
const ANSWERED: u64 = 1;
const CAME: u64 = 2;
const WENT: u64 = 3;

/// A client that measures.
struct Client {
    number: u64,
    peer: PeerId,
    bytes: u64,
    /// The receive that waits, and memory for the next one.
    posted: Option<OperationId>,
    waits: bool,
    spare: Option<Memory>,
}

struct Server {
    side: Side,
    clients: Vec<Client>,
    /// Clients so far.
    count: u64,
}

/// Waits for those who measure, until the user wants the end.
pub fn run(board: &str, stop: &Stop) -> anyhow::Result<()> {
    let rail = super::side::board(board)?;
    let interface = rail.account().and_then(|account| account.interface);
    let side = Side::open(rail, stop.clone())?;
    let address = side.endpoint.addresses().to_string();
    announce!("waiting at {address}; on the other host: ropewalk mx perf --to '{address}'");
    let mut server = Server { side, clients: Vec::new(), count: 0 };
    let room = server.side.memory(HELLO_BYTES as u64, |_| 0)?;
    server.listen(room)?;
    while !stop.is_asked() {
        if let Some(completed) = server.side.next(LOOK) {
            server.handle(completed)?;
        } else if interface.is_some_and(|index| interfaces().iter().all(|it| it.index != index)) {
            bail!(
                "{board}: the interface was removed, and no peer can reach this command any more"
            );
        }
    }
    server.side.close();
    Ok(())
}

impl Server {
    fn listen(&mut self, memory: Memory) -> anyhow::Result<()> {
        match self.side.receive(None, HELLO, memory, HEARD) {
            Ok(_) => Ok(()),
            Err(fault) => bail!("cannot receive from peers any more: {fault}"),
        }
    }

    fn handle(&mut self, completed: Completed) -> anyhow::Result<()> {
        let (client, what) = (completed.user >> 2, completed.user & 3);
        match what {
            HEARD => self.heard(completed)?,
            ANSWERED => self.listen(completed.memory)?,
            CAME => self.came(client, completed),
            WENT => self.went(client, completed),
            _ => unreachable!("two bits"),
        }
        Ok(())
    }

    /// Somebody says hello.
    fn heard(&mut self, completed: Completed) -> anyhow::Result<()> {
        let whole = completed.outcome.is_ok() && completed.message_bytes == HELLO_BYTES as u64;
        let peer = completed.peer.filter(|_| whole);
        let Some(buffer) = completed.memory.into_pooled() else { return Ok(()) };
        let said = peer.zip(hello_of(&buffer));
        let memory = Memory::pooled(buffer);
        let Some((peer, bytes)) = said else { return self.listen(memory) };
        if let Err(error) = self.admit(peer, bytes) {
            complain!("ropewalk: {error:#}");
            return self.listen(memory);
        }
        if self.side.send(peer, HELLO, memory, ANSWERED).is_err() {
            let room = self.side.memory(HELLO_BYTES as u64, |_| 0)?;
            self.listen(room)?;
        }
        Ok(())
    }

    /// Messages of this length are going to come.
    fn admit(&mut self, peer: PeerId, bytes: u64) -> anyhow::Result<()> {
        let known = self.clients.iter().position(|client| client.peer == peer);
        if known.is_none() {
            let host = self.side.endpoint.peer_host(peer);
            complain!("{} begins to measure", host.as_deref().unwrap_or("a peer"));
        }
        let oldest = (self.clients.len() >= CLIENTS_MAX).then_some(0);
        if let Some(index) = known.or(oldest) {
            let old = self.clients.remove(index);
            if let Some(operation) = old.posted {
                self.side.endpoint.cancel(operation);
            }
        }
        self.count += 1;
        let memory = self.side.memory(bytes, |_| 0)?;
        let spare = Some(self.side.memory(bytes, |_| 0)?);
        let number = self.count;
        self.clients.push(Client { number, peer, bytes, posted: None, waits: false, spare });
        self.expect(number, memory);
        Ok(())
    }

    fn client(&mut self, number: u64) -> Option<&mut Client> {
        self.clients.iter_mut().find(|client| client.number == number)
    }

    fn remove(&mut self, number: u64) {
        self.clients.retain(|client| client.number != number);
    }

    /// The next message of a client goes there.
    fn expect(&mut self, number: u64, memory: Memory) {
        let Some(client) = self.client(number) else { return };
        client.waits = true;
        let peer = client.peer;
        match self.side.receive(Some(peer), DATA, memory, number << 2 | CAME) {
            Ok(operation) => {
                if let Some(client) = self.client(number) {
                    client.posted = operation;
                }
            }
            Err(_) => self.remove(number),
        }
    }

    fn came(&mut self, number: u64, completed: Completed) {
        let Some(client) = self.client(number) else { return };
        (client.posted, client.waits) = (None, false);
        let (peer, spare) = (client.peer, client.spare.take());
        if completed.outcome.is_err() || completed.message_bytes != client.bytes {
            return self.remove(number);
        }
        // The next receive is posted before the answer leaves, as any careful program does.
        if let Some(spare) = spare {
            self.expect(number, spare);
        }
        if self.side.send(peer, DATA, completed.memory, number << 2 | WENT).is_err() {
            self.remove(number);
        }
    }

    fn went(&mut self, number: u64, completed: Completed) {
        let Some(client) = self.client(number) else { return };
        if completed.outcome.is_err() {
            return self.remove(number);
        }
        if client.waits {
            client.spare = Some(completed.memory);
        } else {
            self.expect(number, completed.memory);
        }
    }
}
