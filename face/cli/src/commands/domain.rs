//! Failure domains: which data servers may fail together.

use crate::config::DataSection;

/// The longest name of a failure domain, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The name with which each data server is a domain of its own.
const EACH: &str = "each";

/// The failure domain of the data servers that a command starts.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Domain {
    /// Name the failure domain of the data servers, such as their rack: copies of a file lie in
    /// different domains. With the name 'each', each data server is a domain of its own [default:
    /// the name of this host].
    #[arg(long, value_name = "NAME", value_parser = checked_name)]
    domain: Option<String>,
}

impl Domain {
    /// The name for a data server: as the flag says, as its section says, or the host's.
    pub fn of(&self, section: Option<&DataSection>, server: u32) -> String {
        let said = section.and_then(|section| section.domain.as_ref());
        match self.domain.as_ref().or(said.map(|name| &name.0)) {
            Some(name) if name == EACH => format!("data server {server}"),
            Some(name) => name.clone(),
            None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }
}

/// A name that a user gives.
pub fn checked_name(name: &str) -> Result<String, String> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    match fits && !name.chars().any(char::is_control) {
        true => Ok(name.to_string()),
        false => Err(format!(
            "a failure domain has a name of 1 to {NAME_BYTES_MAX} bytes without control characters"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_steer_no_terminal() {
        assert!(checked_name("rack 7").is_ok() && checked_name(&"x".repeat(64)).is_ok());
        for bad in ["", "a\u{1b}b", &"x".repeat(65)] {
            assert!(checked_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_domain_is_the_host_unless_somebody_says_another_one() {
        let own = Domain::default().of(None, 3);
        assert_eq!(own, Domain::default().of(None, 4));
        let each = Domain { domain: Some("each".to_string()) };
        assert_ne!(each.of(None, 3), each.of(None, 4));
        assert_eq!(Domain { domain: Some("rack7".to_string()) }.of(None, 4), "rack7");
    }
}
