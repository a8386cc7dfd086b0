//! How payloads are protected on the way: what an endpoint demands over each of its rails.

use std::fmt;
use std::str::FromStr;

use ropewalk_base::payload::PayloadMode;
use ropewalk_core::RailProtection;
use ropewalk_rail::Rail;
use thiserror::Error;

use crate::security::Security;

/// The modes of an endpoint. By default payloads are `secure` where there are keys, and `crc` where there are none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadModes {
    /// Of networks that are not named; `None`: the default.
    usual: Option<PayloadMode>,
    /// Of networks, by the scheme of their addresses.
    named: Vec<(String, PayloadMode)>,
}

/// A mode that cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PayloadError {
    #[error(
        "payload mode {mode} over {scheme}:// needs keys: name a key file (`ropewalk key create` makes one), \
         or ask for crc"
    )]
    NoKeys { scheme: String, mode: PayloadMode },
    #[error(
        "payload mode {mode} is not there for {scheme}://: use tcp://, or ask for crc there ({scheme}=crc)"
    )]
    NotThere { scheme: String, mode: PayloadMode },
}

impl PayloadModes {
    /// The same mode over all networks.
    pub fn all(mode: PayloadMode) -> PayloadModes {
        PayloadModes { usual: Some(mode), named: Vec::new() }
    }

    /// Whether nothing was asked for.
    pub fn is_default(&self) -> bool {
        self.usual.is_none() && self.named.is_empty()
    }

    /// The mode that was asked for over a network.
    pub fn asked(&self, scheme: &str) -> Option<PayloadMode> {
        let named = self.named.iter().rev().find(|(name, _)| name == scheme);
        named.map(|(_, mode)| *mode).or(self.usual)
    }

    /// The protection that links of a rail are to have. Memory of one host needs none.
    pub(crate) fn protection(
        &self,
        security: &Security,
        rail: &dyn Rail,
    ) -> Result<RailProtection, PayloadError> {
        let (scheme, cipher) = (rail.scheme(), rail.protects());
        let capabilities = rail.capabilities();
        let has_keys = matches!(security, Security::Keys(_));
        let by_itself = match has_keys && cipher.is_some() {
            true => PayloadMode::Secure,
            false => PayloadMode::Crc,
        };
        let demand = self.asked(scheme).unwrap_or(by_itself);
        if capabilities.same_host_only || capabilities.foreign || demand == PayloadMode::Crc {
            return Ok(RailProtection { demand: PayloadMode::Crc, cipher });
        }
        let scheme = scheme.to_string();
        match (has_keys, cipher) {
            (false, _) => Err(PayloadError::NoKeys { scheme, mode: demand }),
            (true, None) => Err(PayloadError::NotThere { scheme, mode: demand }),
            (true, Some(_)) => Ok(RailProtection { demand, cipher }),
        }
    }
}

impl FromStr for PayloadModes {
    type Err = String;

    /// Modes as people write them: `secure`, or with exceptions by network `secure,udp=crc`.
    fn from_str(text: &str) -> Result<PayloadModes, String> {
        let mut modes = PayloadModes::default();
        for part in text.split(',').map(str::trim) {
            match part.split_once('=') {
                None if modes.usual.is_some() => {
                    return Err(format!("'{text}' has two modes for all networks: write one"));
                }
                None => modes.usual = Some(part.parse()?),
                Some((scheme, mode)) => {
                    if !crate::modules::schemes().contains(&scheme) {
                        return Err(format!(
                            "'{scheme}' is not a network: write like secure,udp=crc"
                        ));
                    }
                    modes.named.push((scheme.to_string(), mode.parse()?));
                }
            }
        }
        Ok(modes)
    }
}

impl fmt::Display for PayloadModes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = self.usual.iter().map(PayloadMode::to_string);
        let named = self.named.iter().map(|(scheme, mode)| format!("{scheme}={mode}"));
        f.write_str(&usual.chain(named).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_one_for_all_networks_and_exceptions() {
        let modes: PayloadModes = "secure,udp=crc".parse().unwrap();
        assert_eq!(modes.asked("tcp"), Some(PayloadMode::Secure));
        assert_eq!(modes.asked("udp"), Some(PayloadMode::Crc));
        assert_eq!(modes.to_string(), "secure,udp=crc");
        let modes: PayloadModes = "tcp=auth".parse().unwrap();
        assert_eq!((modes.asked("tcp"), modes.asked("udp")), (Some(PayloadMode::Auth), None));
        assert!(PayloadModes::default().is_default() && !modes.is_default());
    }

    #[test]
    fn wrong_modes_are_named() {
        let error = |text: &str| text.parse::<PayloadModes>().unwrap_err();
        assert!(error("none").contains("'none' is not a payload mode: write crc, auth or secure"));
        assert!(error("tcp=tls").contains("'tls'"));
        assert!(error("gm=auth").contains("'gm' is not a network"));
        assert!(error("crc,auth").contains("two modes"));
    }
}
