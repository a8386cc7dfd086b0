//! Messages that are sent at once: matched where they arrive, or staged.
//!
//! * [`lengths`]: how long they may be;
//! * [`inline`]: the fast exit of a post, for a message that can leave in this very moment;
//! * [`sending`]: the way of all others; [`arriving`]: the way in; [`receiving`]: the receives.

mod arriving;
mod inline;
mod lengths;
mod receiving;
mod sending;

pub(crate) use arriving::NextMessage;
pub(crate) use receiving::wanted;
