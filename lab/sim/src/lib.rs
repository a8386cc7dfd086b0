//! Proof without hardware: a disk that forgets.

pub mod disk;
