//! What a machine asks of its driver, in order.

use super::load::ArmingId;
use super::message::Message;
use super::notice::Notice;
use super::path::PathId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Output {
    /// Over that path and no other; without a path as a span, over whatever path carries.
    Send {
        message: Message,
        over: Option<PathId>,
    },
    /// Probe this path both ways, and watch the eager data that was sent until now. The driver answers by
    /// `handle_probes` and `handle_acknowledged`, with this arming.
    Prove {
        arming: ArmingId,
        path: PathId,
    },
    /// The arming is over: its probes stop.
    EndProof {
        arming: ArmingId,
    },
    /// From now on new data of this side takes this path.
    SendOver(PathId),
    Notice(Notice),
}
