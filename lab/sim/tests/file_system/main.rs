//! The whole file system in the simulator. One program for all of it: each would compile the whole client once more.

mod abandoned;
mod addresses;
mod appends;
mod check;
mod cuts;
mod eras;
mod exports;
mod groups;
mod holes;
mod identity;
mod late;
mod leases;
mod locks;
mod messages;
mod opens;
mod pages;
mod parts;
mod patience;
mod programs;
mod random;
mod servers;
mod sparse;
mod standby;
mod syncs;
mod terms;
mod views;
