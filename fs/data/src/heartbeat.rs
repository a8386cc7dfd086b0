//! Tells the metadata server each second that this server lives, and how much room it has.
//!
//! A metadata server that was started again knows no addresses of data servers: whoever asks it for
//! one waits for a heartbeat. So one is sent at once where the link was lost, and again until it is
//! answered.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::race;
use ropewalk_net::PeerId;
use ropewalk_net::endpoint::PeerEvent;
use ropewalk_rpc::{CallError, Connection, Options};
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::meta::{MetaRequest, MetaResult};
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

use crate::server::Inner;

const PERIOD: Duration = Duration::from_secs(1);
/// A heartbeat without an answer is given up after this long: its figures are old by then.
const PATIENCE: Duration = Duration::from_secs(3);

/// How the last heartbeat ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Yes,
    No,
    Refused(Errno),
}

impl Inner {
    /// Sends heartbeats until the server stops.
    pub(crate) async fn heartbeat(self: Rc<Self>, meta: PeerId, server: u32, address: String) {
        let options = Options { limit: PATIENCE, ..Options::default() };
        let connection = Connection::new(&self.world, &self.endpoint, meta, options);
        let mut before = Heard::Yes;
        while !self.stopping.get() {
            let next = self.world.now() + PERIOD;
            let heard = self.beat(&connection, server, &address).await;
            if heard == Heard::Yes && !self.joined.replace(true) {
                self.joining.notify_all();
            }
            if heard != before {
                self.lines.say(&describe(heard));
                before = heard;
            }
            let _ = race(self.lost(meta), self.world.sleep_until(next)).await;
        }
    }

    /// Completes when the link to the metadata server is lost.
    async fn lost(&self, meta: PeerId) {
        loop {
            let PeerEvent::Down(peer, _) = self.endpoint.event().await else { continue };
            if self.endpoint.endpoint().same_peer(peer, meta) {
                return;
            }
        }
    }

    async fn beat(&self, connection: &Connection, server: u32, address: &str) -> Heard {
        let Ok(space) = self.store.space() else {
            // Silence is right: a disk that does not even tell its size has no room to offer.
            self.lines.say("the disk does not tell its free space: no heartbeat is sent");
            return Heard::No;
        };
        let request = MetaRequest::Heartbeat {
            server,
            boot: self.store.boot(),
            total_bytes: space.total,
            available_bytes: space.available,
            address: Bytes(address.as_bytes()),
        };
        let mut body = Vec::new();
        encode(&request, &mut body);
        let call = connection.call_free(Service::Meta, &body);
        let reply = self.world.timeout(PATIENCE, call).await.unwrap_or(Err(CallError::TimedOut));
        match reply {
            Ok(reply) => match decode::<MetaResult<'_>>(reply.body()) {
                Ok(Ok(_)) => Heard::Yes,
                Ok(Err(errno)) => Heard::Refused(errno),
                Err(_) => Heard::No,
            },
            Err(_) => Heard::No,
        }
    }
}

fn describe(heard: Heard) -> String {
    match heard {
        Heard::Yes => "the metadata server answers heartbeats again".to_owned(),
        Heard::No => "the metadata server does not answer heartbeats; trying on".to_owned(),
        Heard::Refused(errno) => format!("the metadata server refuses heartbeats: {errno}"),
    }
}
