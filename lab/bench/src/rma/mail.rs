//! Messages of two ranks without a window: what figure 6 has beside puts.

use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Completed, Context, Endpoint, Group, Level, Oversize, PeerId, Posted};
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
        let (endpoint, context) = (&self.endpoint, &self.context);
        let lost = |fault| Error::TeamLost { rank: self.rank, loss: Loss::Session(fault) };
        let (tagged, cut, exact) = (Channel::Tagged, Oversize::Refuse, u64::MAX);
        let received = endpoint
            .post_receive(context, tagged, Some(self.peer), TAG, exact, into, cut, RECEIVED)
            .map_err(|(_, fault)| lost(fault))?;
        let sent = endpoint
            .post_send(context, self.peer, tagged, TAG, out, Level::Buffered, SENT)
            .map_err(|(_, fault)| lost(fault))?;
        let judge = |completed: Completed| completed.outcome.map_err(lost);
        for posted in [received, sent] {
            match posted {
                Posted::Done(completed) => judge(completed)?,
                Posted::Pending(_) => {
                    let limit = std::time::Duration::MAX;
                    judge(endpoint.wait(context, limit).ok_or(Error::Closed)?)?;
                }
            }
        }
        Ok(())
    }
}
