//! Path migration of sessions with several paths: by hand, by policy, and by faults, under traffic both ways.

mod faults;
mod narrow;
mod policies;
mod requests;
mod world;
