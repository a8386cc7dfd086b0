//! Messages of two ranks without a window: what figure 6 has beside puts, and what a window that nobody uses may not disturb.

use ropewalk_base::memory::Memory;
use ropewalk_net::{
    Channel, Completed, Context, Endpoint, Fault, Group, Level, Oversize, PeerId, Posted,
};
use ropewalk_rma::{Error, Loss};

const TAG: u64 = 23 << 48;
const RECEIVED: u64 = 1;
const SENT: u64 = 2;

/// Messages with one other rank.
pub struct Mail {
    endpoint: Endpoint,
    context: Context,
    rank: u32,
    peer: PeerId,
}

impl Mail {
    /// Mail of a rank with rank 0, or of that with rank 1.
    pub fn open(endpoint: &Endpoint, group: &Group) -> std::io::Result<Mail> {
        let rank = u32::from(group.rank() == 0);
        let context = endpoint.context(false)?;
        Ok(Mail { endpoint: endpoint.clone(), context, rank, peer: group.peer(rank) })
    }

    /// Receives and sends one message, and waits for both.
    ///
    /// # Errors
    /// The other rank is lost.
    pub fn swap(&self, out: Memory, into: Memory) -> Result<(), Error> {
        for posted in [self.post_receive(into)?, self.post_send(out)?] {
            match posted {
                Posted::Done(completed) => self.judge(completed)?,
                Posted::Pending(_) => {
                    let limit = std::time::Duration::MAX;
                    let ended = self.endpoint.wait(&self.context, limit);
                    self.judge(ended.ok_or(Error::Closed)?)?;
                }
            }
        }
        Ok(())
    }

    /// Sends a message, and polls until it has left.
    ///
    /// # Errors
    /// The other rank is lost.
    pub fn send(&self, out: Memory) -> Result<(), Error> {
        let posted = self.post_send(out)?;
        self.poll(posted)
    }

    /// Polls until a message is here.
    ///
    /// # Errors
    /// The other rank is lost.
    pub fn receive(&self, into: Memory) -> Result<(), Error> {
        let posted = self.post_receive(into)?;
        self.poll(posted)
    }

    fn poll(&self, posted: Posted) -> Result<(), Error> {
        if let Posted::Done(completed) = posted {
            return self.judge(completed);
        }
        loop {
            if let Some(completed) = self.endpoint.test(&self.context) {
                return self.judge(completed);
            }
            if self.endpoint.is_closed() {
                return Err(Error::Closed);
            }
        }
    }

    fn post_receive(&self, into: Memory) -> Result<Posted, Error> {
        let (tagged, cut, exact) = (Channel::Tagged, Oversize::Refuse, u64::MAX);
        let (endpoint, context, peer) = (&self.endpoint, &self.context, Some(self.peer));
        let posted = endpoint.post_receive(context, tagged, peer, TAG, exact, into, cut, RECEIVED);
        posted.map_err(|(_, fault)| self.lost(fault))
    }

    fn post_send(&self, out: Memory) -> Result<Posted, Error> {
        let (tagged, level) = (Channel::Tagged, Level::Buffered);
        let (endpoint, context) = (&self.endpoint, &self.context);
        let posted = endpoint.post_send(context, self.peer, tagged, TAG, out, level, SENT);
        posted.map_err(|(_, fault)| self.lost(fault))
    }

    fn judge(&self, completed: Completed) -> Result<(), Error> {
        completed.outcome.map_err(|fault| self.lost(fault))
    }

    fn lost(&self, fault: Fault) -> Error {
        Error::TeamLost { rank: self.rank, loss: Loss::Session(fault) }
    }
}
