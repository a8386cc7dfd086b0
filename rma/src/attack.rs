//! For fuzzing: bytes of peers, as windows read them.

use ropewalk_base::descriptor::Descriptor;

use crate::messages::wire::{Item, Reader};

/// Reads a message. Whether all of it makes sense.
pub fn message(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    loop {
        match reader.next() {
            Ok(Some(Item::Type { descriptor, .. })) => {
                if Descriptor::decode(&bytes[descriptor]).is_err() {
                    return false;
                }
            }
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}
