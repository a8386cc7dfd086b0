//! Punch, truncate, reap, fence, epochs, listing.
