//! Options of the data servers that a command starts: their failure domain, and their scrub.

use std::time::Duration;

use ropewalk_data::Scrub;

use crate::cluster::DataSettings;
use crate::config::{DataSection, checked_domain};

/// The name with which each data server is a domain of its own.
const EACH: &str = "each";

/// MiB that a data server's scrub reads in a second, unless somebody says otherwise.
const SCRUB: u32 = 8;
/// The pause between two rounds of the scrub.
const SCRUB_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Options of the data servers that a command starts.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct DataOptions {
    /// Name the failure domain of the data servers, such as their rack: copies of a file lie in
    /// different domains. With the name 'each', each data server is a domain of its own [default:
    /// the name of this host].
    #[arg(long, value_name = "NAME", value_parser = checked_domain)]
    domain: Option<String>,
    /// Let each data server read its data again, once a day, at this rate in MiB per second, and
    /// compare it with checksums and copies. It restores damaged blocks from copies. 0: never
    /// [default: 8].
    #[arg(long, value_name = "MIB", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    scrub: Option<u32>,
}

impl DataOptions {
    /// The settings of a data server, of which the config file may have a section.
    pub fn of(&self, section: Option<&DataSection>, server: u32) -> DataSettings {
        DataSettings { domain: self.domain(section, server), scrub: self.scrub(section) }
    }

    /// The scrub of a data server: as the flag says, as its section says, or the usual one.
    fn scrub(&self, section: Option<&DataSection>) -> Option<Scrub> {
        let said = section.and_then(|section| section.scrub_mib_per_second);
        let rate = u64::from(self.scrub.or(said).unwrap_or(SCRUB)) << 20;
        (rate > 0).then_some(Scrub { bytes_per_second: rate, pause: SCRUB_PAUSE })
    }

    /// The failure domain of a data server: as the flag says, as its section says, or the host's name.
    fn domain(&self, section: Option<&DataSection>, server: u32) -> String {
        let said = section.and_then(|section| section.domain.as_ref());
        match self.domain.as_ref().or(said.map(|name| &name.0)) {
            Some(name) if name == EACH => format!("data server {server}"),
            Some(name) => name.clone(),
            None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_domain_is_the_host_unless_somebody_says_another_one() {
        let named = |name: &str| DataOptions { domain: Some(name.into()), ..Default::default() };
        let own = DataOptions::default().domain(None, 3);
        assert_eq!(own, DataOptions::default().domain(None, 4));
        assert_ne!(named("each").domain(None, 3), named("each").domain(None, 4));
        assert_eq!(named("rack7").domain(None, 4), "rack7");
    }
}
