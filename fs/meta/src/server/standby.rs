//! Calls of standby servers and of administrators, where there is one metadata server: it has no standby, and gives dumps.

use std::rc::Rc;

use ropewalk_rpc::{Incoming, Responder};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::standby::StandbyRequest;
use ropewalk_wire::fs::value::Errno;

use super::MetaServer;
use crate::dump::{Origin, refusal};

impl MetaServer {
    pub(super) fn serve_standby(self: &Rc<Self>, incoming: &Incoming, responder: Responder) {
        let request = match decode::<StandbyRequest>(incoming.body()) {
            Ok(request @ (StandbyRequest::Dump | StandbyRequest::DumpPart { .. })) => request,
            _ => return self.send(responder, Status::Done, refusal(Errno::ENODEV)),
        };
        if !self.is_administrator(incoming) {
            self.count_stranger();
            return self.send(responder, Status::Unproven, Vec::new());
        }
        if let StandbyRequest::DumpPart { dump, part } = request {
            let body = self.dumps.part(&self.world, dump, part);
            return self.send(responder, Status::Done, body);
        }
        let (cluster, server) = (self.config.cluster.0, self.config.server.0);
        let origin = Origin { cluster, server, history: self.config.shard.boot.history };
        let this = self.clone();
        self.task(async move {
            let body = this.dumps.begin(&this.world, this.store.clone(), origin).await;
            this.send(responder, Status::Done, body);
        });
    }
}
