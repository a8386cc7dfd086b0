//! Remote access: gets and puts of a peer's memory, and serving them.
//!
//! * [`exposures`]: what peers may access, kept in [`regions`];
//! * [`origin`]: the side that gets and puts; [`target`]: the side whose memory it is;
//! * [`streams`]: the data frames of both, of which [`bulk`] says how many a pass makes.
//!
//! On rails with native access the rail does it; on others frames do: a get asks, data frames come back; a put's data
//! frames can each be placed alone. Both users, the application and the rendezvous, go through
//! [`crate::operation::AccessState`].

mod bulk;
mod exposures;
mod origin;
mod regions;
mod streams;
mod target;

pub(crate) use bulk::BulkBudget;
pub(crate) use regions::Regions;
