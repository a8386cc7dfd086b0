//! For fuzzing: bytes of peers, as windows read them.

use ropewalk_base::descriptor::Descriptor;

use crate::messages::wire::{Item, Reader};

/// Reads a message to its end, or to what makes no sense. Returns how many items it has.
pub fn message(bytes: &[u8]) -> usize {
    let mut reader = Reader::new(bytes);
    let mut items = 0;
    while let Ok(Some(item)) = reader.next() {
        items += 1;
        if let Item::Type { descriptor, .. } = item {
            let _ = Descriptor::decode(&bytes[descriptor]);
        }
    }
    items
}
