//! Policies of the asynchronous thread: what it asks for when a notice comes.

use super::cause::ArmCause;
use super::machine::Request;
use super::notice::What;
use super::specify::Wanted;

/// The paper's four policies, and the default. An application may act on notices by itself instead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Nothing: the application calls the modules.
    Nothing,
    /// Migrate when ARMED: load is balanced by hand.
    MigrateWhenArmed,
    /// Specify and load when MIGRATED.
    SpecifyAndLoad,
    /// Specify when MIGRATED; the application loads.
    SpecifyOnly,
    /// Keep an alternate armed as long as any path is fit for it.
    #[default]
    KeepArmed,
}

const SPECIFY: Request = Request::Specify(ANY);
const ANY: Wanted = Wanted {
    local_rail: None,
    remote_address: None,
    entropy: None,
    family: None,
    mtu_bytes_min: 0,
    strict: false,
};

impl Policy {
    /// The requests that follow a notice, in order. A request that the table refuses is of no harm.
    pub fn requests(self, what: &What) -> &'static [Request] {
        match (self, what) {
            (Policy::MigrateWhenArmed, What::Armed { .. }) => &[Request::Migrate],
            (Policy::SpecifyAndLoad, What::Migrated { .. }) => &[SPECIFY, Request::Load],
            (Policy::SpecifyOnly, What::Migrated { .. }) => &[SPECIFY],
            (Policy::KeepArmed, what) if invites_load(what) => &[SPECIFY, Request::Load],
            _ => &[],
        }
    }
}

/// Whether a connection may lack an alternate that a load could give it. A path whose arming failed rests, so the next
/// choice is another one, or none until a path is mended.
fn invites_load(what: &What) -> bool {
    match what {
        What::Added { .. } | What::Migrated { .. } | What::Mended { .. } | What::Resumed { .. } => {
            true
        }
        // A `Migrated` comes after it.
        What::ArmFailed { cause, .. } | What::Disarmed { cause, .. } => {
            !matches!(cause, ArmCause::Overtaken | ArmCause::ConnectionOver | ArmCause::StandbyBad)
        }
        What::Armed { .. }
        | What::Suspect { .. }
        | What::Failed { .. }
        | What::NoPath
        | What::Done { .. } => false,
    }
}
