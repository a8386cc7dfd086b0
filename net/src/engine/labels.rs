//! What tells rails of one interface apart, and what they share.

use ropewalk_core::RailLabel;
use ropewalk_rail::Rail;

/// The labels of rails, in their order. Rails with one interface, or else with one source address, fail together, whatever
/// they speak.
pub(super) fn of<'r>(rails: impl Iterator<Item = &'r dyn Rail>) -> Vec<RailLabel> {
    let mut sides: Vec<Option<String>> = Vec::new();
    let mut labels = Vec::new();
    for (number, rail) in rails.enumerate() {
        let side = rail.bound_to().and_then(|bound| side_of(&bound));
        let same = side
            .as_ref()
            .and_then(|side| sides.iter().position(|other| other.as_ref() == Some(side)));
        let domain = same.unwrap_or(number) as u32;
        labels.push(RailLabel { entropy: rail.entropy(), domain });
        sides.push(side);
    }
    labels
}

/// The part of a binding that says where packets leave.
fn side_of(bound: &str) -> Option<String> {
    let part = |name: &str| bound.split('&').find(|part| part.starts_with(name));
    part("interface=").or_else(|| part("source=")).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_comes_before_an_address_and_a_port_alone_is_no_side() {
        let side = |bound| side_of(bound);
        assert_eq!(side("interface=e0&source=10.0.0.1&entropy=7").unwrap(), "interface=e0");
        assert_eq!(side("source=10.0.0.1&entropy=7").unwrap(), "source=10.0.0.1");
        assert_eq!(side("entropy=7"), None);
    }
}
