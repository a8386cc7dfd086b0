//! All metadata of a cluster as the bytes of a file, from the active metadata server or from a standby.

use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::standby::{StandbyReply, StandbyRequest, StandbyResult};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::{Operator, OperatorError, Server, refused, version};

/// A dump that a server gives.
pub struct Dump<'a> {
    operator: &'a Operator,
    server: &'a Server,
    number: u64,
    part: u64,
    position: u64,
}

impl Operator {
    /// Begins a dump of the first metadata server that gives one.
    pub async fn dump(&self) -> Result<Dump<'_>, OperatorError> {
        let each = self.patience / u32::try_from(self.metas.len().max(1)).unwrap_or(1);
        let mut silent = OperatorError::Silent { server: self.meta.name.clone() };
        for server in &self.metas {
            match self.world.timeout(each, self.dump_of(server)).await {
                Some(Err(OperatorError::Silent { .. })) | None => {}
                Some(Err(error)) if self.metas.len() > 1 => silent = error,
                Some(done) => return done,
            }
        }
        Err(silent)
    }

    async fn dump_of<'a>(&'a self, server: &'a Server) -> Result<Dump<'a>, OperatorError> {
        let mut body = Vec::new();
        encode(&StandbyRequest::Dump, &mut body);
        let reply = self.call(server, Service::Standby, &body).await?;
        match decode::<StandbyResult<'_>>(reply.body()) {
            Ok(Ok(StandbyReply::Dumping { dump, position })) => {
                Ok(Dump { operator: self, server, number: dump, part: 0, position })
            }
            // A program that knows of no dumps has no standby.
            Ok(Err(Errno::ENODEV)) | Ok(Ok(_)) | Err(_) => Err(version(server)),
            Ok(Err(errno)) => Err(refused(server, errno)),
        }
    }
}

impl Dump<'_> {
    /// The rows are those after this record of the journal.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The server, for people.
    pub fn server(&self) -> &str {
        &self.server.name
    }

    /// The next bytes; none behind the end.
    pub async fn next_bytes(&mut self) -> Result<Vec<u8>, OperatorError> {
        let mut body = Vec::new();
        let (dump, part) = (self.number, self.part);
        encode(&StandbyRequest::DumpPart { dump, part }, &mut body);
        let reply = self.operator.call(self.server, Service::Standby, &body).await?;
        match decode::<StandbyResult<'_>>(reply.body()) {
            Ok(Ok(StandbyReply::Dumped { bytes })) => {
                self.part += 1;
                Ok(bytes.0.to_vec())
            }
            Ok(Err(errno)) => Err(refused(self.server, errno)),
            Ok(Ok(_)) | Err(_) => Err(version(self.server)),
        }
    }
}
