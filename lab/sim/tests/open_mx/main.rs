//! The model of a host with Open-MX: against itself, with its defects, and against captures of real ones.

mod defects;
mod traffic;
mod world;
