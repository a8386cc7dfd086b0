//! Names and hardware addresses of interfaces, as values without memory of their own.

use std::fmt;

/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 15;
/// Longest hardware address, in bytes.
pub const HARDWARE_BYTES_MAX: usize = 32;

/// The name of an interface: 1 to [`NAME_BYTES_MAX`] bytes without NUL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InterfaceName {
    bytes: [u8; NAME_BYTES_MAX],
    len: u8,
}

impl InterfaceName {
    /// A name as the kernel writes it, with or without a NUL at its end. `None` where it is no name.
    pub fn from_kernel(value: &[u8]) -> Option<InterfaceName> {
        let name = value.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
        let mut bytes = [0; NAME_BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(InterfaceName { bytes, len: name.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its text; `?` if it is not UTF-8.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap_or("?")
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A hardware address: 6 bytes for Ethernet, 20 for InfiniBand, none where an interface has no address.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct HardwareAddress {
    bytes: [u8; HARDWARE_BYTES_MAX],
    len: u8,
}

impl HardwareAddress {
    /// An address of at most [`HARDWARE_BYTES_MAX`] bytes.
    pub fn from_kernel(value: &[u8]) -> Option<HardwareAddress> {
        let mut bytes = [0; HARDWARE_BYTES_MAX];
        bytes.get_mut(..value.len())?.copy_from_slice(value);
        Some(HardwareAddress { bytes, len: value.len() as u8 })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.as_bytes().iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_its_nul_and_is_no_longer_than_the_kernels() {
        let name = |value: &[u8]| InterfaceName::from_kernel(value);
        assert_eq!(name(b"eth0\0").unwrap().as_str(), "eth0");
        assert_eq!(name(b"eth0"), name(b"eth0\0rest"));
        assert_eq!(name(b"abcdefghijklmno\0").unwrap().as_bytes().len(), NAME_BYTES_MAX);
        assert_eq!((name(b"abcdefghijklmnop"), name(b""), name(b"\0eth0")), (None, None, None));
        assert_eq!(name(b"eth\xff").unwrap().as_str(), "?");
    }

    #[test]
    fn a_hardware_address_has_any_length_up_to_the_kernels() {
        let address = |value: &[u8]| HardwareAddress::from_kernel(value);
        assert_eq!(format!("{:?}", address(&[2, 0, 0, 0, 0, 0x1f]).unwrap()), "02:00:00:00:00:1f");
        assert_eq!(address(&[]), Some(HardwareAddress::default()));
        assert_eq!(address(&[7; 32]).unwrap().as_bytes(), [7; 32]);
        assert_eq!(address(&[7; 33]), None);
    }
}
