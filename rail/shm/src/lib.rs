//! The shared-memory rail: frames over rings in memory that two sides share, and native access to
//! each other's regions. Between processes of one host, or between threads of one process (the loop
//! form, which clusters embedded in one process use); both are the same code over the same layout.
//!
//! From the outside in: [`ShmRail`] (`rail`) owns links (`link`), which are rings (`ring`, `segment`)
//! and guarded accesses (`native`); processes meet by sockets (`socket`, `meeting`), threads by
//! letters (`local`); sleepers are woken by bells (`rest`, `sleep`, `barrier`), and idle links
//! are looked at when their bells ring (`attention`).
//! `docs/design/051-small-messages.md` and `053-large-messages.md` give the cost of each way, and the reasons for it.
//!
//! Invariants, beside those of every rail (`ropewalk_rail`):
//! * a link exists only after both sides proved that they share memory and reach each other's;
//! * nothing read from shared memory is trusted: values are read once and checked, bytes are copied
//!   out before they are looked at; a peer that breaks the rules loses its link and nothing more;
//! * a peer's death in any state ends its links, fails their orders and frees their memory.
//!
//! It must not know the meaning of a frame beyond its lengths.

pub mod arena;
mod attach;
mod attention;
mod barrier;
#[cfg(test)]
mod hostile_tests;
mod link;
mod local;
mod mapping;
mod meeting;
mod native;
mod rail;
mod random;
mod rest;
mod ring;
#[cfg(test)]
mod ring_tests;
mod segment;
mod sleep;
mod socket;
mod views;
pub mod window;

pub use attach::Attach;
pub use native::read_process;
pub use rail::ShmRail;
pub use socket::{NAME_BYTES_MAX, user_of};

/// Addresses with this prefix name rails of the same process.
pub const LOCAL_PREFIX: &str = "loop/";

/// The configuration of a rail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmConfig {
    /// The name under which peers reach it, up to [`NAME_BYTES_MAX`] visible characters without `/`
    /// and `,`. Without a name it only connects.
    pub name: Option<String>,
    /// The name holds within this process only; the address is `loop/NAME`.
    pub within_process: bool,
    /// On systems where the Yama security module keeps peers of the same user from this process's memory, asks it
    /// not to. Without this such systems have no shared-memory links.
    pub allow_attach: bool,
    /// The method for messages from other processes that are too long for eager ones.
    pub attach: Attach,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            name: None,
            within_process: false,
            allow_attach: true,
            attach: Attach::Measured,
        }
    }
}

impl ShmConfig {
    /// A rail that processes of this user reach as `name`.
    pub fn named(name: impl Into<String>) -> ShmConfig {
        ShmConfig { name: Some(name.into()), ..ShmConfig::default() }
    }

    /// A rail that processes of this user reach under a name nobody else has.
    pub fn generated() -> ShmConfig {
        let name = format!("{}-{:016x}", std::process::id(), random::random());
        ShmConfig::named(name)
    }

    /// A rail that threads of this process reach as `loop/NAME`.
    pub fn within_process(name: impl Into<String>) -> ShmConfig {
        ShmConfig { within_process: true, ..ShmConfig::named(name) }
    }
}

/// The reason why a rail could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    #[error(
        "the name '{name}' for shared memory is in use; choose another, or end the process that \
         has it"
    )]
    NameInUse { name: String },
    #[error(
        "'{name}' is not a valid name for shared memory; use up to {NAME_BYTES_MAX} letters and \
         digits"
    )]
    BadName { name: String },
    #[error("cannot create shared memory: {cause}; raise the limits on open files and memory")]
    Resources { cause: std::io::Error },
}
