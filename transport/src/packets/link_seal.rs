//! What a link knows of its protection.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_seal::{Opener, Sealer, Window};

/// How long a peer may be silent of which somebody says that it does not know the link.
const DOUBTED_FOR: Duration = Duration::from_secs(1);

/// The seal of a link's packets, once both sides have agreed on one.
#[derive(Debug, Default)]
pub(super) struct LinkSeal(pub Option<Box<Sealed>>);

/// A link whose peer seals its packets.
#[derive(Debug)]
pub(super) struct Sealed {
    pub opener: Opener,
    pub window: Window,
    /// Seals ours, as soon as the layer above has ordered it.
    pub sealer: Option<Sealer>,
    /// The number of the peer's first packet of the stream that has to be sealed.
    pub first: u32,
    /// The secret of packets in clear: the link has another one by now.
    pub plain_secret: u32,
    /// Its packets can be read on the way, and so can the secret that a reset has to repeat.
    pub is_readable: bool,
    /// Since when somebody says that the peer does not know the link; `NEVER`: nobody does.
    pub doubted_at: Time,
}

impl LinkSeal {
    pub fn sealed(&self) -> Option<&Sealed> {
        self.0.as_deref()
    }

    pub fn sealed_mut(&mut self) -> Option<&mut Sealed> {
        self.0.as_deref_mut()
    }

    /// When the peer counts as gone, if it is silent until then.
    pub fn doubted_until(&self) -> Time {
        self.sealed().map_or(Time::NEVER, |sealed| match sealed.doubted_at {
            Time::NEVER => Time::NEVER,
            at => at + DOUBTED_FOR,
        })
    }

    /// Whether whoever repeats the secret may have read it on the way.
    pub fn is_readable(&self) -> bool {
        self.sealed().is_some_and(|sealed| sealed.is_readable)
    }

    /// Somebody says that the peer does not know the link.
    pub fn doubt(&mut self, now: Time) {
        if let Some(sealed) = self.sealed_mut() {
            sealed.doubted_at = sealed.doubted_at.min(now);
        }
    }
}
