//! The rails behind the links: the guarantees of each, and the scheme of its addresses.

use ropewalk_base::limits::{EAGER_BYTES, EAGER_BYTES_MAX};
use ropewalk_base::payload::{Cipher, PayloadMode};
use ropewalk_base::verb::{Capabilities, LinkId};

use crate::api::Direction;

/// All rails of an endpoint, by their numbers.
#[derive(Debug)]
pub(crate) struct Rails {
    capabilities: Vec<Capabilities>,
    /// Empty where the driver told none.
    schemes: Vec<&'static str>,
    labels: Vec<RailLabel>,
    protections: Vec<RailProtection>,
}

/// The protection that links of a rail have to have, and the cipher by which the rail has some.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RailProtection {
    pub demand: PayloadMode,
    /// `None`: it cannot protect its links.
    pub cipher: Option<Cipher>,
}

/// What tells a rail from others that have the same interface, and what it shares with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RailLabel {
    /// The source port that its user chose, or 0.
    pub entropy: u16,
    /// Equal for rails that fail together: those bound to one interface.
    pub domain: u32,
}

impl Rails {
    pub fn new(capabilities: Vec<Capabilities>) -> Rails {
        capabilities.iter().for_each(check_eager);
        Rails { capabilities, schemes: Vec::new(), labels: Vec::new(), protections: Vec::new() }
    }

    pub fn set_schemes(&mut self, schemes: Vec<&'static str>) {
        self.schemes = schemes;
    }

    /// Labels all rails, in their order. One without a label fails alone.
    pub fn set_labels(&mut self, labels: Vec<RailLabel>) {
        self.labels = labels;
    }

    /// Tells the protection of all rails, in their order. Others have none.
    pub fn set_protections(&mut self, protections: Vec<RailProtection>) {
        let can = |it: &RailProtection| it.demand == PayloadMode::Crc || it.cipher.is_some();
        assert!(
            protections.iter().all(can),
            "a rail that cannot protect its links is asked for nothing"
        );
        self.protections = protections;
    }

    /// Tells the protection of the rail that was added last.
    pub fn protect_last(&mut self, protection: RailProtection) {
        let mut protections = std::mem::take(&mut self.protections);
        protections.resize(self.capabilities.len() - 1, RailProtection::default());
        protections.push(protection);
        self.set_protections(protections);
    }

    pub fn protection(&self, rail: u8) -> RailProtection {
        self.protections.get(usize::from(rail)).copied().unwrap_or_default()
    }

    pub fn label(&self, rail: u8) -> RailLabel {
        let alone = RailLabel { entropy: 0, domain: rail.into() };
        self.labels.get(usize::from(rail)).copied().unwrap_or(alone)
    }

    /// One more rail, behind those that there are.
    pub fn add(&mut self, rail: Capabilities, scheme: &'static str) {
        check_eager(&rail);
        self.capabilities.push(rail);
        self.schemes.push(scheme);
    }

    /// The rail of a link; `None` for the endpoint's link to itself.
    #[inline]
    pub fn of(&self, link: LinkId) -> Option<&Capabilities> {
        self.capabilities.get(usize::from(link.rail))
    }

    /// Whether a rail does so by itself over a link: reads or writes a peer's memory.
    #[inline]
    pub fn does(&self, link: LinkId, direction: Direction) -> bool {
        self.of(link).is_some_and(|rail| match direction {
            Direction::Get => rail.native_read,
            Direction::Put => rail.native_write,
        })
    }

    /// The rail with this number.
    pub fn of_number(&self, rail: u8) -> Option<&Capabilities> {
        self.capabilities.get(usize::from(rail))
    }

    /// Whether the rail's addresses are those of a link layer.
    pub fn is_of_link_layer(&self, rail: u8) -> bool {
        self.schemes.get(usize::from(rail)).is_some_and(|scheme| *scheme == "ether")
    }

    /// Whether frames of this link may be lost, doubled or overtaken.
    #[inline]
    pub fn is_lossy(&self, link: LinkId) -> bool {
        self.of(link).is_some_and(|rail| !rail.reliable || !rail.ordered)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Capabilities> {
        self.capabilities.iter()
    }

    /// Whether a link to one of the addresses in this list could be made by a rail between hosts, or by the rail of
    /// this link. Without known schemes any address will do.
    pub fn can_call(&self, addresses: &[u8], link: LinkId) -> bool {
        if self.schemes.is_empty() {
            return !addresses.is_empty();
        }
        let usable = |rail: usize| {
            let between_hosts =
                self.capabilities.get(rail).is_some_and(|rail| !rail.same_host_only);
            between_hosts || rail == usize::from(link.rail)
        };
        let Ok(text) = std::str::from_utf8(addresses) else { return false };
        let mut parts = text.split([',', ' ', '\t']).filter_map(|it| it.split_once("://"));
        parts.any(|(scheme, _)| {
            let mut schemes = self.schemes.iter().enumerate();
            schemes.any(|(rail, own)| *own == scheme && usable(rail))
        })
    }
}

fn check_eager(rail: &Capabilities) {
    assert!(
        (EAGER_BYTES..=EAGER_BYTES_MAX).contains(&rail.eager_bytes),
        "what a rail wants at once"
    );
    assert!(
        rail.eager_bytes <= rail.frame_payload_bytes_max
            || (rail.reliable && rail.ordered && !rail.foreign),
        "fragments follow each other"
    );
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::SlotId;

    use super::*;

    #[test]
    fn any_address_of_a_list_can_be_called() {
        let rail = Capabilities {
            reliable: true,
            ordered: true,
            intact: false,
            native_read: false,
            native_write: false,
            frame_payload_bytes_max: EAGER_BYTES_MAX,
            eager_bytes: EAGER_BYTES,
            preference: 0,
            same_host_only: false,
            foreign: false,
        };
        let link = LinkId { rail: 0, slot: SlotId { index: 0, generation: 0 } };
        let mut rails = Rails::new(vec![rail]);
        assert!(rails.can_call(b"udp://10.0.0.1:7000", link), "schemes are not known");
        rails.set_schemes(vec!["tcp"]);
        assert!(!rails.can_call(b"udp://10.0.0.1:7000", link));
        assert!(rails.can_call(b"udp://10.0.0.1:7000,tcp://10.0.0.1:7000", link));
        assert!(!rails.can_call(b"", link));
    }
}
