//! Source ports, by which switches choose among several ways: which networks have them.

use ropewalk_rail::binding::BindingError;

/// Whether the packets, or calls, of this network have source ports.
pub(crate) fn has_ports(scheme: &str) -> bool {
    matches!(scheme, "tcp" | "udp")
}

/// Refuses a source port in the settings behind an address, for a network that has none.
pub(crate) fn refuse_entropy(scheme: &str, settings: &str) -> Result<(), BindingError> {
    let names_port = settings.split('&').any(|setting| setting.starts_with("entropy="));
    match names_port && !has_ports(scheme) {
        true => Err(BindingError::NoEntropy(scheme.to_string())),
        false => Ok(()),
    }
}
