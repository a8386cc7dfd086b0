//! Remote access: gets and puts of a peer's memory, and serving them.
//!
//! * [`exposures`]: what peers may access, kept in [`regions`], and to whom: [`groups`];
//! * [`origin`]: the side that gets and puts, with [`native`] where the rail does it, and [`asking`] for gets by frames;
//! * [`judging`]: the side whose memory it is: which accesses a key allows; [`serving`] for gets;
//! * [`channel`]: operations with numbers: puts by frames, on both sides;
//! * [`gone`]: memory that goes away under an access;
//! * [`accesses`]: what we have under way with one peer, and its limits;
//! * [`pulls`]: gets of a session that may have several paths, in parts over its links; [`pulling`] chooses.
//!
//! On rails with native access the rail does it; on others frames do: a get asks, data frames come back; a put's data
//! frames can each be placed alone (`crate::streams`). Both users, the application and the rendezvous, go through
//! [`crate::operation::AccessState`].
//!
//! In a session that outlives its links puts are always frames. A rail's write that was broken off may have happened, and
//! others may have written since; a frame is a span, and takes effect once.

mod accesses;
mod apart;
mod asking;
mod channel;
mod exposures;
mod gone;
mod groups;
mod judging;
mod locks;
mod native;
mod origin;
mod pulling;
mod pulls;
mod regions;
mod serving;

pub(crate) use accesses::{ACCESSES_MAX, Accesses, SEGMENTS_MAX, UnderWay};
pub use channel::Task;
pub(crate) use channel::{
    Jobs, Marks, NUMBERS_MAX, OneSided, Pieces, PutFrame, PutStream, Stored, UpdateFrame,
};
pub(crate) use groups::Groups;
pub(crate) use locks::Locks;
pub(crate) use pulling::{Part, Pulled, Pulling};
pub(crate) use regions::Regions;
