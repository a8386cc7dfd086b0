//! Automatic path migration: the alternate path of a connection, its proof, and the move to it.
//!
//! The paper's three modules are [`specify`] (which path is the alternate), [`load`] (its proof before it is armed) and
//! [`migrate`] (the move, on a fault or by hand). Each is callable alone in every order that the [`table`] allows.
//! [`Migration`] is the machine of one association: it takes requests, findings about paths and the peer's messages, and
//! gives messages, orders and notices. [`Policy`] says what an asynchronous thread asks for when a notice comes.
//! [`NativeMigration`] is hardware that migrates by itself.
//!
//! `docs/spec/apm.md` has the states, the events and the whole table.
//!
//! Nothing here has a clock, a socket or a thread. Health of paths, their joining, and spans are the driver's.

pub mod cause;
pub mod cell;
pub mod event;
mod frames;
pub mod load;
mod machine;
pub mod message;
pub mod migrate;
pub mod native;
pub mod notice;
mod output;
pub mod path;
mod policy;
mod receive;
pub mod request;
pub mod roles;
mod rows;
pub mod specify;
pub mod state;
mod step;
pub mod table;

#[cfg(test)]
mod tests;

pub use event::PathEvent;
pub use machine::{Migration, Request};
pub use message::Message;
pub use native::NativeMigration;
pub use notice::{Notice, What};
pub use output::Output;
pub use path::{PathId, PathRecord, Side};
pub use policy::Policy;
pub use request::{By, LoadList, Outcome, Ticket};
pub use roles::{Role, Roles};
pub use specify::Wanted;
pub use state::{Connection, Event, MigrationState, Rule};
