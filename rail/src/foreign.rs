//! Foreign peers: endpoints with a protocol of their own, such as hosts that run Open-MX.
//!
//! A rail that can have such peers answers [`Rail::foreign`](crate::Rail::foreign), and tells the layer above about
//! them by [`Report::foreign`](crate::Report::foreign). All other rails need neither.

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{ForeignEnd, ForeignMessage, ForeignName, LinkId, Placement};

/// The further part of a rail that may have foreign peers. Rare calls: none is made for a message.
pub trait ForeignRail {
    /// The name of the foreign peer at the other end of a link; `None` if the peer is not foreign.
    fn name(&self, link: LinkId) -> Option<ForeignName>;

    /// Shows a key to the foreign peer at the other end of a link: [`ForeignReport::key_judged`] reports the peer's
    /// answer. `Invalid` if its protocol has no keys.
    fn show_key(&mut self, link: LinkId, key: u32) -> Result<(), Fault>;

    /// The time, by the clock of polls, since which the other end of a link owes acknowledgements, whether it is
    /// foreign or not. `NEVER` if it owes none, or if the rail does not know. If a message is named (its channel and
    /// number), also `NEVER` if the other end has that message, and `ZERO` if the message has not left.
    fn owed_since(&self, link: LinkId, message: Option<(u8, u64)>) -> Time;
}

/// The receiver of a rail's reports about foreign peers; the rail calls it as it calls [`Report`](crate::Report).
pub trait ForeignReport {
    /// A link carries messages with a foreign peer (see `Capabilities::foreign`), instead of `link_up`. `name`
    /// tells the peer apart from all others.
    fn up(&mut self, link: LinkId, name: u128, accepted: bool);

    /// The next message of a foreign peer, instead of `place`; `whole` as for `place_whole`. `None` where there
    /// is no room for it yet: it is told again after the next frame that goes there.
    fn message(&mut self, link: LinkId, message: ForeignMessage, whole: bool) -> Option<Placement>;

    /// A foreign peer says whether a key that it was shown, by a connect or beside one, is right.
    fn key_judged(&mut self, link: LinkId, key: u32, right: bool);

    /// A message to a foreign peer is over.
    fn ended(&mut self, link: LinkId, end: ForeignEnd);
}
