//! The model of a host with Open-MX: against itself, with its defects, and against captures of real ones.

mod captures;
mod defects;
mod habits;
mod recorded;
mod traffic;
mod world;
